"""Prediction: in order, in bounded memory, independent of the batch."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import homespun.inference.predict
import homespun.tasks.texts
from homespun.data.labels import LabelledRows, Labels
from homespun.errors import NotFinite
from homespun.inference.predict import embed_rows, predict_logits
from homespun.metrics.calibration import probabilities
from homespun.models.bundle import ModelBundle
from homespun.models.composite_heads import LastLayersHeadConfig
from homespun.models.config import ModelConfig
from homespun.models.encoder import EncoderConfig
from homespun.models.sequence_heads import ConvolutionalHeadConfig, FeedForwardHeadConfig
from homespun.nn.torch_private import packed_linear_ops
from homespun.tasks.classification import ClassificationTask
from homespun.tasks.texts import LabelledData

LABELS = Labels(("a", "b", "c"))


class Letters:
    """A tokenizer in miniature: one id a letter."""

    vocab_size, pad_id, dtype = 40, 0, np.dtype(np.int64)
    template, pair_template = ([2], [3]), ([2], [3], [3])

    def encode_batch(self, texts: list[str]) -> list[np.ndarray]:
        return [np.array([5 + ord(letter) % 31 for letter in text], dtype=np.int64) for text in texts]


tokenizer: Any = Letters()


def config_of(head: Any = None) -> ModelConfig:
    sizes = {"hidden_size": 14, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 17}
    backbone = EncoderConfig(vocab_size=40, max_position_embeddings=23, initializer_range=0.3, **sizes)
    return ModelConfig(backbone=backbone, head=head or FeedForwardHeadConfig(num_labels=3))


def classifier(head: Any = None) -> Any:
    torch.manual_seed(7)
    return config_of(head).build()


def texts_of(count: int) -> list[str]:
    generator = np.random.default_rng(5)
    return ["".join(map(chr, generator.integers(97, 123, length))) for length in generator.integers(0, 30, count)]


def predict(
    texts: Iterable[str], labels: Labels = LABELS, head: Any = None, model: Any = None
) -> Iterator[dict[str, Any]]:
    bundle = ModelBundle(model or classifier(head), config_of(head), tokenizer, labels, {})
    task = ClassificationTask(LabelledData(max_length=19), labels, bundle)
    return task.predict(bundle.model, ({"text": text} for text in texts), source="test")


@pytest.mark.parametrize("head", [FeedForwardHeadConfig(num_labels=3), ConvolutionalHeadConfig(num_labels=3)])
def test_alone_is_in_a_batch(head: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(homespun.tasks.texts, "_CHUNK", 17)
    texts = texts_of(53)
    together = list(predict(texts, head=head))
    alone = [next(predict([text], head=head)) for text in texts]
    assert len(together) == 53
    for one, other in zip(alone, together, strict=True):
        assert one["probabilities"] == pytest.approx(other["probabilities"], abs=1e-5)
        assert one["label"] == other["label"]
        assert one["truncated"] == other["truncated"]
    assert len({round(one["probabilities"]["a"], 6) for one in together}) > 40  # the texts do matter


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_what_is_no_number_is_no_prediction(wrong: float) -> None:
    broken = classifier()
    next(broken.head.parameters()).data[0, 0] = wrong
    with pytest.raises(NotFinite, match="not finite"):
        list(predict(["abc", "z" * 18], model=broken))


def test_content_of_a_prediction() -> None:
    short, long = predict(["abc", "z" * 18])
    probabilities = short["probabilities"]
    assert short["probability"] == max(probabilities.values()) == probabilities[short["label"]]
    assert sum(probabilities.values()) == pytest.approx(1)
    assert (short["truncated"], long["truncated"]) == (False, True)


def test_several_labels() -> None:
    for prediction in predict(texts_of(11), Labels(LABELS.names, multi_label=True)):
        assert prediction["label"] == tuple(name for name, p in prediction["probabilities"].items() if p > 0.5)
        assert prediction["probability"] is None


def test_it_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(homespun.tasks.texts, "_CHUNK", 7)
    read = 0

    def source() -> Iterator[str]:
        nonlocal read
        while True:
            read += 1
            yield "abc"

    assert list(predict([])) == []
    stream = predict(source())
    for expected in [7] * 7 + [14] * 2:
        next(stream)
        assert read == expected


def test_logits_are_in_the_order_of_the_rows_and_without_dropout() -> None:
    model = classifier().train()
    model.backbone.eval()  # as where it is frozen
    rows = LabelledRows(texts_of(13), None, tokenizer, length=19)
    logits = predict_logits(model, rows, pad_id=0, batch_size=4)
    assert logits.shape == (13, 3)
    assert logits.dtype == np.float32
    assert model.head.training
    assert not model.backbone.training
    model.eval()
    for index in range(13):
        with torch.no_grad():
            alone = model(torch.from_numpy(rows[index].input_ids)[None])
        np.testing.assert_allclose(alone[0].numpy(), logits[index], atol=1e-5)


@pytest.mark.parametrize("least", [0, 10**9])
def test_linear_layers_are_packed_for_many_tokens_and_unpacked_afterwards(
    least: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(homespun.inference.predict, "MIN_NUMBERS", 0)
    model, packed = classifier(), set[bool]()
    rows = LabelledRows(texts_of(13), None, tokenizer, length=19)
    expected = predict_logits(model, rows, pad_id=0)
    monkeypatch.setattr(homespun.inference.predict, "_PACKED_TOKENS", least)
    query = model.backbone.layers[0].attention.sublayer.query
    model.register_forward_pre_hook(lambda *_: packed.add("forward" in vars(query)))
    np.testing.assert_allclose(predict_logits(model, rows, pad_id=0), expected, atol=1e-6)
    assert packed == {least == 0 and packed_linear_ops() is not None}
    assert "forward" not in vars(query)


def test_batches_are_nearly_free_of_padding() -> None:
    texts = texts_of(1000)
    rows = LabelledRows(texts, None, tokenizer, length=19)
    seen = []
    model = classifier()
    model.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].numel()))
    predict_logits(model, rows, pad_id=0, batch_size=32)
    assert rows.lengths.sum() / sum(seen) > 0.95
    assert seen[0] == max(seen)


@pytest.mark.parametrize("unpadded", [False, True])
def test_batches_on_a_cpu_fit_its_cache(unpadded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("_CPU_UNPADDED",) if unpadded else ("_CPU_TOKENS", "_CPU_NUMBERS"):
        monkeypatch.setattr(homespun.inference.predict, limit, 40)
    rows = LabelledRows(texts_of(50), None, tokenizer, length=19)
    seen = []
    model = classifier()
    model.backbone.reads_unpadded = unpadded
    model.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].shape))
    predict_logits(model, rows, pad_id=0, batch_size=32)
    assert sum(texts for texts, _ in seen) == 50
    assert max(texts * tokens for texts, tokens in seen) <= 40
    assert min((texts + 1) * tokens for texts, tokens in seen[:-1]) > 40


def test_probabilities() -> None:
    logits = np.array([[0.0, np.log(3.0), -np.inf]], dtype=np.float32)
    assert probabilities(logits, LABELS)[0] == pytest.approx([0.25, 0.75, 0])
    assert probabilities(logits, Labels(LABELS.names, multi_label=True))[0] == pytest.approx([0.5, 0.75, 0])


def test_vectors_of_no_rows() -> None:
    rows = LabelledRows([], None, tokenizer, length=9)
    found = embed_rows(classifier(), rows, pad_id=0, poolings=("mean", "last"))
    width = config_of().backbone.hidden_size
    assert {name: vectors.shape for name, vectors in found.items()} == {"mean": (0, width), "last": (0, width)}


def test_vectors_of_the_last_layer_for_a_head_on_several() -> None:
    rows = LabelledRows(["a longer text", "a"], None, tokenizer, length=19)
    model = classifier(LastLayersHeadConfig(layers=2))
    with torch.no_grad():
        hidden = [model.eval().backbone(torch.from_numpy(row.input_ids)[None])[0] for row in rows]
    found = embed_rows(model, rows, pad_id=0, poolings=("mean", "last"))
    np.testing.assert_allclose(found["mean"], [states.mean(0) for states in hidden], atol=1e-5)
    np.testing.assert_allclose(found["last"], [states[-1] for states in hidden], atol=1e-5)


def test_no_rows() -> None:
    with pytest.raises(ValueError, match="no rows"):
        predict_logits(classifier(), LabelledRows([], None, tokenizer, length=19), pad_id=0)
