"""``homespun.open``: labels, probabilities, vectors and text of any model, as the commands give them."""

import json
from pathlib import Path

import numpy as np
import pytest
from commands_world import World

import homespun
from homespun.errors import UserError

TEXTS = ["The striker and the goal", "a bank with shares and profit", ""]


def test_labels_and_probabilities_are_those_of_predict(world: World, tmp_path: Path) -> None:
    model = homespun.open(world.classifier)
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"sentence": text}) + "\n" for text in TEXTS))
    world.run("predict", world.classifier, "--input", rows, "--out", tmp_path / "p.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    assert model.predict(TEXTS) == [line["label"] for line in lines]
    assert model.labels is not None
    expected = [[line["probabilities"][name] for name in model.labels.names] for line in lines]
    np.testing.assert_allclose(model.predict_proba(TEXTS), expected, atol=1e-6)
    assert model.predict([]) == []
    assert model.predict_proba([]).shape == (0, 3)


@pytest.mark.parametrize(("precision", "tolerance"), [("bf16", 0.02), ("int8", 0.03)])
def test_quantized_models_predict_almost_the_same(
    world: World, tmp_path: Path, precision: str, tolerance: float
) -> None:
    expected = homespun.open(world.classifier).predict_proba(TEXTS)
    found = homespun.open(world.classifier, quantize=precision).predict_proba(TEXTS)  # type: ignore[arg-type]
    assert not np.array_equal(found, expected)
    np.testing.assert_allclose(found, expected, atol=tolerance)
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"sentence": text}) + "\n" for text in TEXTS))
    world.run("predict", world.classifier, "--input", rows, "--out", tmp_path / "p.jsonl", "--quantize", precision)
    lines = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    np.testing.assert_allclose([list(line["probabilities"].values()) for line in lines], found, atol=1e-6)


def test_vectors_do_not_depend_on_other_texts(world: World) -> None:
    model = homespun.open(world.base)
    together = model.embed(TEXTS)
    alone = np.concatenate([model.embed([text]) for text in TEXTS])
    assert together.shape == (3, 32)
    np.testing.assert_allclose(together, alone, atol=1e-5)
    assert not np.allclose(model.embed(TEXTS, pooling="first"), together)


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
