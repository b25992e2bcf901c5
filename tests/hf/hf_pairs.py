"""One model on both sides, ours and that of transformers, and what must be the same of the two."""

import functools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hf_peers import POOLED, fix_random_blocks

from homespun.attention.blocked import Blocked
from homespun.attention.lsh import LSH, draw_rotations
from homespun.hf.engine import from_hf
from homespun.hf.export import export_huggingface
from homespun.hf.families import FAMILIES
from homespun.hf.family import STORED, Architecture, Family
from homespun.hf.open import OpenedModel, open_huggingface
from homespun.models.backbone import EncoderDecoder
from homespun.nn.cache import Cache
from homespun.nn.patterns import BlockTable, Sparse
from homespun.text.tokenizer import Tokenizer

transformers = pytest.importorskip("transformers")

# what their files hold and ours has no place for
POOLER = {"pooler.dense.weight", "pooler.dense.bias"}
LINEAR_POOLER = {"pooler.weight", "pooler.bias"}
SENTENCE_ORDER = {"sop_classifier.classifier.weight", "sop_classifier.classifier.bias"}
NEXT_SENTENCE = {"cls.seq_relationship.weight", "cls.seq_relationship.bias"}
TABLES = {"encoder.embed_positions.weight", "decoder.embed_positions.weight"}
LEFT_OUT = {
    "BertModel": POOLER,
    "RobertaModel": POOLER,
    "LongformerModel": POOLER,
    "BigBirdModel": LINEAR_POOLER,
    "AlbertModel": LINEAR_POOLER,
    "AlbertForPreTraining": LINEAR_POOLER | SENTENCE_ORDER,
    "BertForPreTraining": POOLER | NEXT_SENTENCE,
    "BigBirdForPreTraining": LINEAR_POOLER | NEXT_SENTENCE,
    "BigBirdForMaskedLM": LINEAR_POOLER,
    "BigBirdForCausalLM": LINEAR_POOLER,
    "BigBirdForSequenceClassification": LINEAR_POOLER,
    "BigBirdForTokenClassification": LINEAR_POOLER,
    "ReformerForMaskedLM": {"lm_head.bias"},
    "ReformerModelWithLMHead": {"lm_head.bias"},
    "PegasusModel": TABLES,
    "PegasusForConditionalGeneration": TABLES,
}
# what is written for classes of which only a part is ours, or which are those of an older family
SAME = {
    "BertForPreTraining": "BertForMaskedLM",
    "BigBirdForPreTraining": "BigBirdForMaskedLM",
    "BigBirdForCausalLM": "BertLMHeadModel",
    "AlbertForPreTraining": "AlbertForMaskedLM",
}


@dataclass
class Pair:
    """One model on both sides."""

    cls: Any
    theirs: Any
    ours: OpenedModel
    folder: Path
    tokenizer: Tokenizer
    lengths: tuple[int, ...]
    inputs: dict[str, torch.Tensor]
    random_blocks: bool = False

    def share_random_blocks(self) -> None:
        """Give ours the random blocks that theirs draws, and theirs the same in evaluation."""
        self.random_blocks = True
        tables = fix_random_blocks(self.theirs, max(self.lengths))
        backbone = self.ours.stored.model.backbone
        stack = backbone.encoder if isinstance(backbone, EncoderDecoder) else backbone
        for layer, heads in zip(stack.layers, tables, strict=True):
            attention = layer.attention.sublayer
            blocks, random = attention.kernel.sparse.patterns
            none = (-1,) * len(heads[0][0])
            table = tuple((none, *(tuple(row) for row in head), none) for head in heads)
            patterns = (blocks, BlockTable(random.size, table))
            attention.kernel = Blocked(Sparse(patterns, attention.kernel.sparse.global_tokens))

    def share_hashes(self) -> None:
        """Give ours the rotations that theirs draws from its seed, for every layer the same."""
        seed = self.theirs.config.hash_seed
        for layer in self.ours.stored.model.backbone.layers:
            kernel = layer.attention.sublayer.kernel
            if isinstance(kernel, LSH):
                heads, size, rounds, _ = kernel.rotations.shape
                kernel.rotations = draw_rotations(heads, size, rounds, kernel.num_buckets, seed=seed)

    def architecture(self) -> tuple[Family, Architecture]:
        """The class, of those of its name the one that says most of our model."""
        named = [(f, a) for f in FAMILIES for a in f.architectures if a.name == self.cls.__name__]
        return min(named, key=lambda candidate: len(candidate[0].differences(candidate[1], self.ours.stored.config)))

    @property
    def head(self) -> str | None:
        """The kind of ours."""
        config = self.ours.stored.config.head
        return None if config is None else config.kind

    def their_output(self, model: Any) -> torch.Tensor:
        result = model(**self.inputs)
        if "start_logits" in result:
            return torch.stack([result["start_logits"], result["end_logits"]], dim=-1)
        pooled = ["pooler_output"] if self.head == "pooler" else []
        for name in (*pooled, "logits", "prediction_logits", "last_hidden_state"):
            if name in result:
                return result[name]
        raise AssertionError(list(result))

    @functools.cached_property
    def expected(self) -> torch.Tensor:
        """Their logits, or hidden states, of real tokens in evaluation."""
        with torch.no_grad():
            return self.real(self.their_output(self.theirs.eval()))

    def our_output(self) -> torch.Tensor:
        return self.ours.stored.model(**self.inputs)

    def real(self, output: torch.Tensor) -> torch.Tensor:
        """Of one vector or number a token, those of real tokens; what is one row a text as it is."""
        side = "decoder_attention_mask" if "decoder_attention_mask" in self.inputs else "attention_mask"
        keep = self.inputs[side].bool()
        return output[keep] if output.shape[:2] == keep.shape else output


def check_logits(pair: Pair, training: bool) -> None:
    """Logits, or hidden states, of real tokens."""
    # the one layer of ALBERT, applied several times, amplifies rounding, by how much depends on the machine
    precision = torch.float64 if pair.theirs.config.model_type == "albert" else torch.float32
    theirs, ours = (model.to(precision).train(training) for model in (pair.theirs, pair.ours.stored.model))
    with torch.no_grad():
        expected = pair.real(pair.their_output(theirs))
    # with gradients, padding is computed as in theirs; without, sums have another order (`homespun.nn.masks.unpad`)
    found = pair.real(pair.our_output().detach())
    for model in (theirs, ours):
        model.float()
    assert expected.std() > 0.1
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def check_gradients(pair: Pair) -> None:
    """Of every parameter, of one loss."""
    pair.theirs.train().zero_grad()
    model = pair.ours.stored.model.train()
    model.zero_grad()
    outputs = [pair.real(pair.their_output(pair.theirs)), pair.real(pair.our_output())]
    direction = torch.randn(outputs[0].shape, generator=torch.Generator().manual_seed(7))
    for output in outputs:
        (output * direction).sum().backward()
    given = {name: p.grad for name, p in pair.theirs.named_parameters() if p.grad is not None}
    family, architecture = pair.architecture()
    if architecture.bare:
        given = {family.prefix + name: gradient for name, gradient in given.items()}
    table = family.table + architecture.table  # what holds of the weights holds of their gradients
    expected, _ = from_hf(table, given, pair.ours.stored.config.backbone, source="gradients")
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert found.keys() == expected.keys()
    # the gradient of a key's bias is zero but for rounding, whose size is that of the other gradients
    floor = 1e-6 * max(gradient.abs().max().item() for gradient in expected.values())
    for name, gradient in expected.items():
        error = (found[name] - gradient).abs().max().item()
        assert error <= 1e-4 * gradient.abs().max().item() + floor, name


def check_way_back(pair: Pair, tmp_path: Path) -> None:
    """Our export loads there, with nothing missing or unexpected, and is the same model."""
    stored = pair.ours.stored
    report = export_huggingface(tmp_path / "hf", replace(stored, tokenizer=pair.tokenizer))
    same = SAME.get(pair.cls.__name__, pair.cls.__name__)
    assert report.architecture == same
    cls = getattr(transformers, same)
    bare = {"add_pooling_layer": False} if same in POOLED and pair.head is None else {}
    back, info = cls.from_pretrained(tmp_path / "hf", output_loading_info=True, **bare)
    assert not any(info.values()), info
    if pair.random_blocks:
        fix_random_blocks(back, max(pair.lengths))
    with torch.no_grad():
        # what is exported pads as its tokenizer does, whatever the first config said
        repadded = {
            f"{side}input_ids": pair.inputs[f"{side}input_ids"].masked_fill(
                pair.inputs[f"{side}attention_mask"] == 0, pair.tokenizer.pad_id
            )
            for side in ("", "decoder_")
            if f"{side}input_ids" in pair.inputs
        }
        other = replace(pair, inputs=pair.inputs | repadded)
        found = pair.real(other.their_output(back.eval()))
    torch.testing.assert_close(found, pair.expected, atol=1e-5, rtol=1e-5)
    if stored.config.backbone.pad_token_id == pair.tokenizer.pad_id:
        head = "pooler" if pair.head == "pooler" else STORED
        assert open_huggingface(tmp_path / "hf", head=head).stored.config == stored.config


def check_left_out(pair: Pair) -> None:
    """Every tensor of the files is taken along, or its reason is given."""
    prefix = pair.architecture()[0].prefix
    reasons = {unused.name.removeprefix(prefix): unused.reason for unused in pair.ours.unused_tensors}
    assert reasons.keys() == (set() if pair.head == "pooler" else LEFT_OUT.get(pair.cls.__name__, set()))
    assert all(reasons.values())


def check_cache(pair: Pair) -> None:
    """Decode token by token from a cache and compare with their outputs of the full target."""
    model, given = pair.ours.stored.model.eval(), pair.inputs
    with torch.no_grad():
        expected = pair.their_output(pair.theirs.eval())
        context = {name: given[name] for name in ("attention_mask", "global_attention_mask") if name in given}
        source = model.backbone.encode(given["input_ids"], **context)
        cache, keep = Cache(), given["decoder_attention_mask"]
        for position in range(keep.shape[1]):
            token = given["decoder_input_ids"][:, position : position + 1]
            hidden = model.backbone.decode(token, source, attention_mask=keep[:, : position + 1], cache=cache)
            found = hidden if model.head is None else model.head(hidden)
            real = keep[:, position].bool()
            torch.testing.assert_close(found[real, 0], expected[real, position], atol=1e-5, rtol=1e-5)


class Parity:
    """Outputs, gradients and files of the `pair` fixture of a module."""

    @pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
    def test_logits_are_theirs(self, pair: Pair, training: bool) -> None:
        check_logits(pair, training)

    def test_gradients_are_theirs(self, pair: Pair) -> None:
        check_gradients(pair)

    def test_the_way_back(self, pair: Pair, tmp_path: Path) -> None:
        check_way_back(pair, tmp_path)

    def test_dropped_tensors_are_reported(self, pair: Pair) -> None:
        check_left_out(pair)
