"""``homespun.open``: labels, probabilities, vectors and text of any model, as the commands give them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands_world import World, read_lines, write_lines

import homespun
from homespun.crf import fit_crf
from homespun.data.labels import Labels
from homespun.errors import UserError
from homespun.hf.open import open_model
from homespun.models.bundle import save_model
from homespun.models.config import ModelConfig
from homespun.models.heads import TokenClassificationHeadConfig
from homespun.tasks.protocol import task_metadata
from homespun.tasks.taggers import LinearTagger, TaggedData

TEXTS = ["The striker and the goal", "a bank with shares and profit", ""]


def predicted(world: World, folder: Path, *options: str) -> list[dict[str, Any]]:
    """Predictions of the command for `TEXTS`."""
    rows = write_lines(folder / "rows.jsonl", [{"sentence": text} for text in TEXTS])
    world.run("predict", world.classifier, "--input", rows, "--out", folder / "p.jsonl", *options)
    return read_lines(folder / "p.jsonl")


def test_labels_and_probabilities_are_those_of_predict(world: World, tmp_path: Path) -> None:
    model = homespun.open(world.classifier)
    lines = predicted(world, tmp_path)
    assert model.predict(TEXTS) == [line["label"] for line in lines]
    assert model.labels is not None
    expected = [[line["probabilities"][name] for name in model.labels.names] for line in lines]
    np.testing.assert_allclose(model.predict_proba(TEXTS), expected, atol=1e-6)
    assert model.predict([]) == []
    assert model.predict_proba([]).shape == (0, 3)


def test_no_texts_have_no_vectors(world: World) -> None:
    model = homespun.open(world.classifier)
    assert model.embed([]).shape == (0, model.embed(TEXTS).shape[1])


@pytest.mark.parametrize("method", ["predict", "predict_proba", "embed", "generate"])
def test_a_string_is_no_list_of_texts(world: World, method: str) -> None:
    with pytest.raises(UserError, match="list of texts"):
        getattr(homespun.open(world.classifier), method)(TEXTS[0])


@pytest.mark.parametrize(("precision", "tolerance"), [("bf16", 0.02), ("int8", 0.03)])
def test_quantized_models_predict_almost_the_same(
    world: World, tmp_path: Path, precision: str, tolerance: float
) -> None:
    expected = homespun.open(world.classifier).predict_proba(TEXTS)
    found = homespun.open(world.classifier, quantize=precision).predict_proba(TEXTS)  # type: ignore[arg-type]
    assert not np.array_equal(found, expected)
    np.testing.assert_allclose(found, expected, atol=tolerance)
    lines = predicted(world, tmp_path, "--quantize", precision)
    np.testing.assert_allclose([list(line["probabilities"].values()) for line in lines], found, atol=1e-6)


@pytest.mark.parametrize("kind", ["network", "linear"])
def test_tags_are_those_of_predict(world: World, tmp_path: Path, kind: str) -> None:
    sentences, tags = [["the", "goal", "."], ["the", "soup"]], [["O", "B-x", "O"], ["O", "B-y"]]
    data, labels, run = TaggedData(words="tokens"), Labels(("B-x", "B-y", "O")), tmp_path / "run"
    if kind == "linear":
        (crf,) = fit_crf(sentences, tags, labels, epochs=1)
        LinearTagger(crf, data).save(run / "model")
    else:
        stored = open_model(world.base, head=None)
        config = stored.config.model_copy(update={"head": TokenClassificationHeadConfig(num_labels=3)})
        task = task_metadata("token_classification", data)
        save_model(run / "model", config.build(), config, stored.tokenizer, labels=labels, task=task)
    model = homespun.open(run)
    assert model.labels == labels
    expected = world.run("predict", run, "The goal.")
    found, same = model.predict(["The goal.", ["The", "goal", "."]])
    assert isinstance(found, dict)
    assert isinstance(same, dict)
    assert (found["words"], found["tags"]) == (expected["words"], expected["tags"])
    assert (same["words"], same["tags"]) == (["The", "goal", "."], expected["tags"])
    assert same["offsets"] == [[0, 3], [4, 8], [9, 10]]
    assert model.predict([]) == []
    with pytest.raises(UserError):
        model.predict_proba(TEXTS)


def test_vectors_do_not_depend_on_other_texts(world: World) -> None:
    model = homespun.open(world.base)
    together = model.embed(TEXTS)
    alone = np.concatenate([model.embed([text]) for text in TEXTS])
    assert together.shape == (3, 32)
    np.testing.assert_allclose(together, alone, atol=1e-5)
    assert not np.allclose(model.embed(TEXTS, pooling="first"), together)


def test_vectors_of_an_encoder_decoder_are_means_of_its_encoder(world: World, tmp_path: Path) -> None:
    tokenizer = open_model(world.base, head=None).tokenizer
    sizes = {"hidden_size": 36, "num_attention_heads": 3, "num_hidden_layers": 1, "intermediate_size": 24}
    stacks = sizes | {"vocab_size": tokenizer.vocab_size, "pad_token_id": tokenizer.pad_id, "embedding_size": 12}
    backbone = {"kind": "encoder_decoder", "encoder": stacks, "decoder": {"hidden_size": 24}}
    config = ModelConfig.model_validate({"backbone": backbone, "head": {"kind": "causal_lm"}})
    network = config.build().eval()
    save_model(tmp_path / "model", network, config, tokenizer)
    model = homespun.open(tmp_path)
    begin, end = tokenizer.template
    for text in TEXTS:
        ids = torch.tensor([[*begin, *tokenizer.encode_batch([text])[0].tolist(), *end]])
        with torch.no_grad():
            expected = network.backbone.stacks[0](ids).mean(1)
        np.testing.assert_allclose(model.embed([text]), expected, atol=1e-5)
    assert model.embed([]).shape == (0, 36)


def test_what_a_model_cannot_do_is_refused_in_one_line(world: World) -> None:
    model = homespun.open(world.base)
    for call in (
        lambda: model.predict(TEXTS),
        lambda: model.embed(TEXTS, pooling="max"),
        lambda: model.generate(["a"]),
        lambda: homespun.open("runs/none"),
    ):
        with pytest.raises(UserError) as error:
            call()
        assert "\n" not in str(error.value)
