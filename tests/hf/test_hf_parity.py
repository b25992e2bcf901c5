"""Parity with transformers: the same logits and gradients from their files here, and from our files there."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hf_peers import (
    LENGTHS,
    REFORMER,
    bert_tokenizer,
    chosen,
    fix_random_blocks,
    inputs,
    roberta_tokenizer,
    their_model,
)

from homespun.hf.convert import to_ours
from homespun.hf.export import export_huggingface
from homespun.hf.families import FAMILIES
from homespun.hf.open import Opened, open_huggingface
from homespun.nn.kernels.blocked import Blocked
from homespun.nn.kernels.lsh import LSH, draw_rotations
from homespun.nn.patterns import RandomBlocks, Sparse
from homespun.text.tokenizer import Tokenizer

transformers = pytest.importorskip("transformers")

BLOCKS: dict[str, Any] = {"block_size": 4, "max_position_embeddings": 137}
GPT: dict[str, Any] = {"embd_pdrop": 0.0, "pad_token_id": 0, "hidden_act": "gelu"}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BertModel", {}),
    "bert-gelu_new": ("BertModel", {"hidden_act": "gelu_new"}),
    "bert-gelu_pytorch_tanh": ("BertModel", {"hidden_act": "gelu_pytorch_tanh"}),
    "bert-relu": ("BertModel", {"hidden_act": "relu", "type_vocab_size": 3}),
    "bert-mlm": ("BertForMaskedLM", {"layer_norm_eps": 1e-3}),
    "bert-mlm-gelu_new": ("BertForMaskedLM", {"hidden_act": "gelu_new"}),
    "bert-pretraining": ("BertForPreTraining", {}),
    "bert-classification": ("BertForSequenceClassification", {"num_labels": 5, "hidden_act": "gelu_fast"}),
    "roberta": ("RobertaModel", {"type_vocab_size": 1}),
    "roberta-mlm": ("RobertaForMaskedLM", {"hidden_act": "gelu_new"}),
    "roberta-pad-5": ("RobertaForMaskedLM", {"pad_token_id": 5, "type_vocab_size": 1}),
    "roberta-classification": ("RobertaForSequenceClassification", {"num_labels": 3, "type_vocab_size": 1}),
    "electra": ("ElectraModel", {"embedding_size": 21}),
    "electra-discriminator": ("ElectraForPreTraining", {"embedding_size": 21}),
    "electra-wide": ("ElectraForPreTraining", {"embedding_size": 33}),
    "electra-generator": ("ElectraForMaskedLM", {"embedding_size": 21, "hidden_act": "relu"}),
    "electra-classification": ("ElectraForSequenceClassification", {"embedding_size": 41, "num_labels": 7}),
    "longformer": ("LongformerModel", {"attention_window": 4}),
    "longformer-global": ("LongformerModel", {"attention_window": [4, 12, 6], "type_vocab_size": 1}),
    "longformer-long": ("LongformerModel", {"attention_window": [8, 16, 4], "max_position_embeddings": 137}),
    "longformer-mlm": ("LongformerForMaskedLM", {"attention_window": 10, "hidden_act": "gelu_new"}),
    "longformer-mlm-global": ("LongformerForMaskedLM", {"attention_window": 6}),
    "longformer-classification": ("LongformerForSequenceClassification", {"attention_window": 4, "num_labels": 5}),
    "big_bird-full": ("BigBirdForSequenceClassification", {"attention_type": "original_full", "hidden_act": "relu"}),
    "big_bird-short": ("BigBirdForMaskedLM", {"block_size": 5}),
    "big_bird-random": ("BigBirdModel", {"num_random_blocks": 2, "type_vocab_size": 3} | BLOCKS),
    "big_bird-pretraining": ("BigBirdForPreTraining", {"num_random_blocks": 1, "hidden_act": "relu"} | BLOCKS),
    "big_bird-mlm": ("BigBirdForMaskedLM", {"num_random_blocks": 3} | BLOCKS),
    "big_bird-classification": (
        "BigBirdForSequenceClassification",
        {"num_random_blocks": 1, "num_labels": 5, "hidden_act": "gelu_new"} | BLOCKS,
    ),
    "distilbert": ("DistilBertModel", {}),
    "distilbert-sinusoidal": ("DistilBertModel", {"sinusoidal_pos_embds": True, "hidden_act": "relu"}),
    "distilbert-mlm": ("DistilBertForMaskedLM", {"hidden_act": "gelu_new"}),
    "distilbert-classification": ("DistilBertForSequenceClassification", {"classifier_dropout": 0.0, "num_labels": 5}),
    "gpt2": ("GPT2Model", GPT),
    "gpt2-inner": ("GPT2Model", GPT | {"intermediate_size": None, "hidden_act": "relu"}),
    "gpt2-lm": ("GPT2LMHeadModel", GPT | {"layer_norm_eps": 1e-3}),
    "gpt": ("OpenAIGPTModel", GPT),
    "gpt-lm": ("OpenAIGPTLMHeadModel", GPT | {"hidden_act": "silu"}),
    "reformer": ("ReformerModel", REFORMER),
    "reformer-lsh": ("ReformerModel", REFORMER | {"attn_layers": ["lsh"] * 2, "num_buckets": 4, "num_hashes": 1}),
    "reformer-mixed": (
        "ReformerModel",
        REFORMER | {"attn_layers": ["lsh", "local", "local"], "axial_pos_embds": False, "lsh_num_chunks_after": 1},
    ),
    "reformer-mlm": ("ReformerForMaskedLM", REFORMER),
    "reformer-lm": ("ReformerModelWithLMHead", REFORMER | {"attn_layers": ["local"] * 2, "is_decoder": True}),
}
# what their files hold and ours has no place for
POOLER = {"pooler.dense.weight", "pooler.dense.bias"}
LINEAR_POOLER = {"pooler.weight", "pooler.bias"}
NEXT_SENTENCE = {"cls.seq_relationship.weight", "cls.seq_relationship.bias"}
LEFT_OUT = {
    "BertModel": POOLER,
    "RobertaModel": POOLER,
    "LongformerModel": POOLER,
    "BigBirdModel": LINEAR_POOLER,
    "BertForPreTraining": POOLER | NEXT_SENTENCE,
    "BigBirdForPreTraining": LINEAR_POOLER | NEXT_SENTENCE,
    "BigBirdForMaskedLM": LINEAR_POOLER,
    "BigBirdForSequenceClassification": LINEAR_POOLER,
    "ReformerForMaskedLM": {"lm_head.bias"},
    "ReformerModelWithLMHead": {"lm_head.bias"},
}
# classes that make a pooler of their own unless told not to
POOLED = ("BertModel", "RobertaModel", "LongformerModel", "BigBirdModel")
# what is written for classes of which only a part is ours, or which are those of an older family
SAME = {
    "BertForPreTraining": "BertForMaskedLM",
    "BigBirdForPreTraining": "BigBirdForMaskedLM",
}
# long enough that blocks are gathered, and no multiples of anything
LONG = (131, 23, 87)
WHOLE = (24, 23, 22)  # one of whole chunks, and two that end in the last one
ALIKE = (131, 129, 130)  # as long, of the same number of blocks of 4


@dataclass
class Pair:
    """One model on both sides."""

    cls: Any
    theirs: Any
    ours: Opened
    folder: Path
    tokenizer: Tokenizer
    lengths: tuple[int, ...]
    inputs: dict[str, torch.Tensor]
    random_blocks: bool = False

    def share_random_blocks(self) -> None:
        """Give ours the random blocks that theirs draws, and theirs the same in evaluation."""
        self.random_blocks = True
        tables = fix_random_blocks(self.theirs, max(self.lengths))
        for layer, heads in zip(self.ours.stored.model.backbone.layers, tables, strict=True):
            attention = layer.attention.sublayer
            blocks, random = attention.kernel.sparse.patterns
            none = (-1,) * len(heads[0][0])
            table = tuple((none, *(tuple(row) for row in head), none) for head in heads)
            patterns = (blocks, RandomBlocks(random.size, table))
            attention.kernel = Blocked(Sparse(patterns, attention.kernel.sparse.everywhere))

    def share_hashes(self) -> None:
        """Give ours the rotations that theirs draws from its seed, for every layer the same."""
        seed = self.theirs.config.hash_seed
        for layer in self.ours.stored.model.backbone.layers:
            kernel = layer.attention.sublayer.kernel
            if isinstance(kernel, LSH):
                heads, size, rounds, _ = kernel.rotations.shape
                kernel.rotations = draw_rotations(heads, size, rounds, kernel.num_buckets, seed=seed)

    def their_output(self, model: Any) -> torch.Tensor:
        result = model(**self.inputs)
        for name in ("logits", "prediction_logits", "last_hidden_state"):
            if name in result:
                output: torch.Tensor = result[name]
                return output
        raise AssertionError(list(result))

    def our_output(self) -> torch.Tensor:
        output: torch.Tensor = self.ours.stored.model(**self.inputs)
        return output

    def real(self, output: torch.Tensor) -> torch.Tensor:
        """Of one vector or number a token, those of real tokens; what is one row a text as it is."""
        keep = self.inputs["attention_mask"].bool()
        return output[keep] if output.shape[:2] == keep.shape else output


@pytest.fixture(scope="module", params=CASES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    name, settings = CASES[request.param]
    folder = tmp_path_factory.mktemp("theirs")
    cls = getattr(transformers, name)
    theirs = their_model(cls, **settings)
    theirs.save_pretrained(folder)
    counted = request.param.startswith(("roberta", "longformer"))  # positions, from the padding id
    tokenizer = roberta_tokenizer(folder / "tokenizer.json") if counted else bert_tokenizer()
    tokenizer.save(folder)
    lengths = LONG if request.param.endswith("-long") else LENGTHS
    if "num_random_blocks" in settings:
        lengths = ALIKE
    if "hash_seed" in settings:
        lengths = WHOLE
    given = inputs(
        pad_id=theirs.config.pad_token_id, segments=getattr(theirs.config, "type_vocab_size", 0), lengths=lengths
    )
    if request.param.endswith(("global", "long")):
        given["global_attention_mask"] = chosen(given)
    pair = Pair(cls, theirs, open_huggingface(folder), folder, tokenizer, lengths, given)
    if "num_random_blocks" in settings:
        pair.share_random_blocks()
    if "hash_seed" in settings:
        pair.share_hashes()
    return pair


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_logits_are_theirs(pair: Pair, training: bool) -> None:
    pair.theirs.train(training)
    pair.ours.stored.model.train(training)
    with torch.no_grad():
        expected, found = pair.real(pair.their_output(pair.theirs)), pair.real(pair.our_output())
    assert expected.std() > 0.1
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_gradients_are_theirs(pair: Pair) -> None:
    pair.theirs.train().zero_grad()
    model = pair.ours.stored.model.train()
    model.zero_grad()
    outputs = [pair.real(pair.their_output(pair.theirs)), pair.real(pair.our_output())]
    direction = torch.randn(outputs[0].shape, generator=torch.Generator().manual_seed(7))
    for output in outputs:
        (output * direction).sum().backward()
    given = {name: p.grad for name, p in pair.theirs.named_parameters() if p.grad is not None}
    family = next(f for f in FAMILIES if f.model_type == pair.theirs.config.model_type)
    architecture = next(a for a in family.architectures if a.name == pair.cls.__name__)
    if architecture.kind is None:
        given = {family.prefix + name: gradient for name, gradient in given.items()}
    table = family.table + architecture.table  # what holds of the weights holds of their gradients
    expected, _ = to_ours(table, given, pair.ours.stored.config.backbone, source="gradients")
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert found.keys() == expected.keys()
    # the gradient of a key's bias is zero but for rounding, whose size is that of the other gradients
    floor = 1e-6 * max(gradient.abs().max().item() for gradient in expected.values())
    for name, gradient in expected.items():
        error = (found[name] - gradient).abs().max().item()
        assert error <= 1e-4 * gradient.abs().max().item() + floor, name


def test_a_text_alone_is_as_in_the_batch_there(pair: Pair) -> None:
    # in float64, as products of other shapes round otherwise, by how much depends on the machine; but not where hashes
    # or blocks are drawn, which in float64 are other ones
    draws = pair.theirs.config.model_type in ("reformer", "big_bird")
    precision = torch.float32 if draws else torch.float64
    model = copy.deepcopy(pair.ours.stored.model).to(precision).eval()
    with torch.no_grad():
        together = pair.their_output(copy.deepcopy(pair.theirs).to(precision).eval())
        for row, length in enumerate(pair.lengths):
            alone = {name: tensor[row : row + 1, :length] for name, tensor in pair.inputs.items()}
            del alone["attention_mask"]
            found = model(**alone)[0]
            expected = together[row, :length] if together.shape[:2] == pair.inputs["input_ids"].shape else together[row]
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_the_way_back(pair: Pair, tmp_path: Path) -> None:
    stored = pair.ours.stored
    report = export_huggingface(tmp_path / "hf", stored.model, stored.config, pair.tokenizer, labels=stored.labels)
    same = SAME.get(pair.cls.__name__, pair.cls.__name__)
    assert report.architecture == same
    cls = getattr(transformers, same)
    bare = {"add_pooling_layer": False} if same in POOLED else {}
    back, info = cls.from_pretrained(tmp_path / "hf", output_loading_info=True, **bare)
    assert not any(info.values()), info
    if pair.random_blocks:
        fix_random_blocks(back, max(pair.lengths))
    with torch.no_grad():
        expected = pair.real(pair.their_output(pair.theirs.eval()))
        # what is exported pads as its tokenizer does, whatever the first config said
        padding = pair.inputs["attention_mask"] == 0
        repadded = pair.inputs["input_ids"].masked_fill(padding, pair.tokenizer.pad_id)
        other = replace(pair, inputs=pair.inputs | {"input_ids": repadded})
        found = pair.real(other.their_output(back.eval()))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    if stored.config.backbone.pad_token_id == pair.tokenizer.pad_id:
        assert open_huggingface(tmp_path / "hf").stored.config == stored.config


def test_what_was_left_out_is_said(pair: Pair) -> None:
    prefix = next(f.prefix for f in FAMILIES if f.model_type == pair.theirs.config.model_type)
    reasons = {leftover.name.removeprefix(prefix): leftover.reason for leftover in pair.ours.leftovers}
    assert reasons.keys() == LEFT_OUT.get(pair.cls.__name__, set())
    assert all(reasons.values())
