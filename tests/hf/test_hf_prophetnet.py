"""ProphetNet on both sides. In a pass over many tokens transformers mixes up the biases of the predicting streams.

`ordered` puts those rows in order, as its own pass over one token and the code released with the paper have them. What
does not depend on them is compared with transformers as it is: the main stream, and its token by token.
"""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from hf_pairs import Pair, check_gradients, check_left_out, check_logits
from hf_peers import LENGTHS, PROPHETNET, bert_tokenizer, decoder_inputs, inputs, save_theirs, their_model
from torch import Tensor

from homespun.batch import Batch
from homespun.hf.export import export_huggingface
from homespun.hf.open import open_huggingface
from homespun.models.bundle import ModelBundle
from homespun.nn.cache import Cache
from homespun.objectives.seq2seq import StreamWeights, decoder_loss

transformers = pytest.importorskip("transformers")

BARE, WRITES = "ProphetNetModel", "ProphetNetForConditionalGeneration"
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "prophetnet": (BARE, PROPHETNET),
    "prophetnet-bigram": (BARE, PROPHETNET | {"ngram": 2, "pad_token_id": 5, "eos_token_id": 8}),
    "prophetnet-lm": (WRITES, PROPHETNET | {"hidden_act": "relu"}),
    "prophetnet-lm-unigram": (WRITES, PROPHETNET | {"ngram": 1, "disable_ngram_loss": True, "eps": 0.1}),
    "prophetnet-lm-long": (
        WRITES,
        PROPHETNET | {"max_position_embeddings": 137, "num_buckets": 32, "relative_max_distance": 128},
    ),
}
LONG, LONG_TARGETS = (131, 23, 87), (101, 134, 37)
SIDES = ("right", "left")


def ordered(
    self: Any, hidden_states: Tensor, attn_weights: Tensor, position_ids: Tensor, buckets: Tensor | None
) -> Tensor:
    """(batch, ngram, heads, seq, keys): each row from the token, stream and head that it is of."""
    assert buckets is not None, "a pass over one token is in order by itself"
    rows = self.relative_pos_embeddings(hidden_states.transpose(1, 2))  # (batch, ngram, seq, buckets * heads)
    rows = rows.unflatten(-1, (self.num_buckets, self.num_attn_heads)).permute(0, 1, 4, 2, 3)
    return rows.gather(-1, buckets[:, None, None].long().expand(*rows.shape[:4], -1))


@pytest.fixture
def in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    module = transformers.models.prophetnet.modeling_prophetnet
    monkeypatch.setattr(module.ProphetNetNgramSelfAttention, "get_predict_relative_pos_embeddings", ordered)


def on_the_left(given: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same texts with their padding before them."""
    turned = {}
    for side in ("", "decoder_"):
        keep = given[f"{side}attention_mask"]
        order = keep.argsort(dim=1, stable=True)
        for name in ("input_ids", "attention_mask"):
            turned[f"{side}{name}"] = given[f"{side}{name}"].gather(1, order)
    return turned


class Prophets(Pair):
    """A pair whose output is what the first predicting stream gives, on both sides."""

    def their_output(self, model: Any) -> Tensor:
        return self.their_streams(model)[:, 0]

    def their_streams(self, model: Any) -> Tensor:
        """(batch, ngram, seq, ...), of all predicting streams."""
        result = model(**self.inputs)
        if "logits" in result:
            others = [] if result.logits_ngram is None else [result.logits_ngram]
            return torch.cat([result.logits[:, None], *others], 1)
        streams: Tensor = result.last_hidden_state_ngram
        return streams.unflatten(1, (model.config.ngram, -1))

    def our_streams(self) -> Tensor:
        """(batch, ngram, seq, ...), of all predicting streams."""
        model, given = self.ours.stored.model, self.inputs
        source = model.backbone.encode(given["input_ids"], attention_mask=given["attention_mask"])
        streams = model.backbone.ngram_streams(
            given["decoder_input_ids"], source, attention_mask=given["decoder_attention_mask"]
        )
        return streams if model.head is None else model.head(streams)

    def real_streams(self, streams: Tensor) -> Tensor:
        """(tokens, ngram, ...) of real tokens."""
        return streams.transpose(1, 2)[self.inputs["decoder_attention_mask"].bool()]


@pytest.fixture(scope="module", params=[(name, side) for name in CASES for side in SIDES], ids="-".join)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Prophets:
    case, side = request.param
    name, settings = CASES[case]
    folder = tmp_path_factory.mktemp("theirs")
    cls = getattr(transformers, name)
    theirs = their_model(cls, **settings)
    theirs.save_pretrained(folder)
    tokenizer = bert_tokenizer()
    tokenizer.save(folder)
    long, pad = "long" in case, theirs.config.pad_token_id
    lengths = LONG if long else LENGTHS
    given = inputs(pad_id=pad, segments=0, lengths=lengths)
    given |= decoder_inputs(pad_id=pad, **({"lengths": LONG_TARGETS} if long else {}))
    given = given if side == "right" else on_the_left(given)
    return Prophets(cls, theirs, open_huggingface(folder), folder, tokenizer, lengths, given)


@pytest.mark.usefixtures("in_order")
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_logits_are_theirs(pair: Prophets, training: bool) -> None:
    check_logits(pair, training)
    with torch.no_grad():
        expected, found = pair.their_streams(pair.theirs), pair.our_streams()
    assert found.shape == expected.shape
    torch.testing.assert_close(pair.real_streams(found), pair.real_streams(expected), atol=1e-5, rtol=1e-5)


@pytest.mark.usefixtures("in_order")
def test_gradients_are_theirs(pair: Prophets) -> None:
    check_gradients(pair)


@pytest.mark.usefixtures("in_order")
def test_gradients_through_all_streams_are_theirs(pair: Prophets, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair, "their_output", lambda model: pair.their_streams(model).transpose(1, 2), raising=False)
    monkeypatch.setattr(pair, "our_output", lambda: pair.our_streams().transpose(1, 2), raising=False)
    check_gradients(pair)


@pytest.mark.usefixtures("in_order")
def test_the_way_back(pair: Prophets, tmp_path: Path) -> None:
    stored = pair.ours.stored
    report = export_huggingface(tmp_path / "hf", ModelBundle(stored.model, stored.config, pair.tokenizer))
    assert report.architecture == pair.cls.__name__
    assert any("biases" in note for note in report.notes)
    back, info = pair.cls.from_pretrained(tmp_path / "hf", output_loading_info=True)
    assert not any(info.values()), info
    with torch.no_grad():
        expected, found = pair.their_streams(pair.theirs.eval()), pair.their_streams(back.eval())
    torch.testing.assert_close(pair.real_streams(found), pair.real_streams(expected), atol=1e-5, rtol=1e-5)
    # what is exported pads as its tokenizer does, and positions begin after that
    if stored.config.backbone.pad_token_id == pair.tokenizer.pad_id:
        assert open_huggingface(tmp_path / "hf").stored.config == stored.config


def test_dropped_tensors_are_reported(pair: Prophets) -> None:
    check_left_out(pair)


def test_the_main_stream_is_theirs(pair: Prophets) -> None:
    """As transformers has it, in a pass over many tokens."""
    backbone, given = pair.ours.stored.model.eval().backbone, pair.inputs
    with torch.no_grad():
        bare = getattr(pair.theirs.eval(), "prophetnet", pair.theirs)
        expected = bare(**given).last_hidden_state
        source = backbone.encode(given["input_ids"], attention_mask=given["attention_mask"])
        keep = given["decoder_attention_mask"]
        found = backbone.decoder.decode(given["decoder_input_ids"], attention_mask=keep, source=source)
    torch.testing.assert_close(pair.real(found), pair.real(expected), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("case", ["prophetnet-lm", "prophetnet-lm-long"])
def test_token_by_token_is_theirs(case: str, tmp_path: Path) -> None:
    """As transformers generates, unchanged; there no padding of the decoder's is heeded in this way."""
    name, settings = CASES[case]
    theirs = save_theirs(tmp_path, name, **settings)
    model = open_huggingface(tmp_path).stored.model.eval()
    given = inputs(pad_id=0, segments=0)
    targets = decoder_inputs(pad_id=0, lengths=(17, 17, 17))["decoder_input_ids"]
    caches = transformers.EncoderDecoderCache(transformers.DynamicCache(), transformers.DynamicCache())
    cache, expected, found = Cache(), [], []
    with torch.no_grad():
        source = model.backbone.encode(given["input_ids"], attention_mask=given["attention_mask"])
        for position in range(targets.shape[1]):
            token = targets[:, position : position + 1]
            result = theirs(**given, decoder_input_ids=token, past_key_values=caches, use_cache=True)
            expected.append(result.logits)
            found.append(model.head(model.backbone.decode(token, source, cache=cache)))
        full_logits = model(**given, decoder_input_ids=targets)
        mixed = theirs(**given, decoder_input_ids=targets, use_cache=False).logits
    torch.testing.assert_close(torch.cat(found, 1), torch.cat(expected, 1), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(full_logits, torch.cat(expected, 1), atol=1e-5, rtol=1e-5)
    # were it in order there, `ordered` and the note of the family would have to go
    assert (mixed - torch.cat(expected, 1)).abs().max() > 0.1


def test_more_layers_in_the_decoder_are_spoken_of(tmp_path: Path) -> None:
    name, settings = CASES["prophetnet-lm"]
    save_theirs(tmp_path, name, **settings | {"num_decoder_layers": 5})
    stored = open_huggingface(tmp_path).stored
    report = export_huggingface(tmp_path / "hf", stored)
    assert any(re.search("3 layers .*encoder.*decoder .*5", note) for note in report.notes)


EVERY = StreamWeights(unseen="predicted")
LOSSES: dict[str, tuple[dict[str, Any], StreamWeights]] = {
    "three streams": ({}, EVERY),
    "two streams": ({"ngram": 2}, EVERY),
    "one stream": ({"ngram": 1}, EVERY),
    "label smoothing": ({"eps": 0.1}, EVERY),
    "the next token alone": (
        {"disable_ngram_loss": True, "eps": 0.1},
        StreamWeights(weights=(1, 0, 0), unseen="predicted"),
    ),
}


def batch_of(given: dict[str, Tensor], labels: Tensor) -> Batch:
    """``labels`` (batch, target) has -100 where there is none."""
    positions = (labels.flatten() >= 0).nonzero().squeeze(-1)
    return Batch(
        given["input_ids"],
        attention_mask=given["attention_mask"].bool(),
        decoder_input_ids=given["decoder_input_ids"],
        decoder_attention_mask=given["decoder_attention_mask"].bool(),
        positions=positions,
        labels=labels.flatten()[positions],
        targets={"seq2seq": float(len(positions))},
    )


@pytest.mark.usefixtures("in_order")
@pytest.mark.parametrize("case", LOSSES)
def test_loss_and_gradients_are_theirs(case: str, tmp_path: Path) -> None:
    settings, streams = LOSSES[case]
    theirs = save_theirs(tmp_path, WRITES, **PROPHETNET | settings)
    model = open_huggingface(tmp_path).stored.model.eval()
    given = inputs(pad_id=0, segments=0) | decoder_inputs(pad_id=0)
    generator = torch.Generator().manual_seed(11)
    labels = torch.randint(7, 89, given["decoder_input_ids"].shape, generator=generator)
    labels = labels.masked_fill(given["decoder_attention_mask"] == 0, -100)
    expected = theirs(**given, labels=labels).loss
    batch = batch_of(given, labels)
    backbone = model.backbone
    source = backbone.encode(batch.input_ids, **batch.context)
    term = decoder_loss(model, source, batch, streams, label_smoothing=settings.get("eps", 0.0))["seq2seq"]
    found = term.sum / term.count
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    expected.backward()
    found.backward()
    ours = backbone.encoder.embeddings.words.weight.grad
    torch.testing.assert_close(ours, theirs.prophetnet.word_embeddings.weight.grad, rtol=1e-5, atol=1e-5)
