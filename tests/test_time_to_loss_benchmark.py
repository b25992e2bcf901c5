"""The benchmark of time to a loss: ours and a peer on the same rows, resumed from finished trials."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks import time_to_loss

from homespun.commands.recipe import pretrain_recipe
from homespun.data.corpus import Corpus
from homespun.data.corpus_build import build_corpus
from homespun.text.sources import Document
from homespun.text.tokenizer import Tokenizer
from homespun.text.vocabulary_extension import with_sentinels

pytestmark = pytest.mark.slow
ARGUMENTS = ["spun-decoder", "qwen3", "--tokens", "1500", "--seeds", "2", "--rates", "1e-3", "2e-3"]
TINY = ["--precision", "float32", "--set", "model.size=tiny", "train.batch_size=4"]


def write_corpus(texts: list[str], tokenizer: Tokenizer, folder: Path) -> Corpus:
    return build_corpus((Document(text, source=str(row)) for row, text in enumerate(texts)), tokenizer, folder)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    texts = [" ".join(f"word{(7 * text + step * (text % 5 + 1)) % 41}" for step in range(400)) for text in range(13)]
    write_corpus(texts, Tokenizer.train(texts, kind="words", vocab_size=46), tmp_path / "data" / "financial")
    return tmp_path


def test_ours_and_a_peer_are_trained_on_the_same_tokens(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(time_to_loss.TEXTS, "financial", lambda shared, out: None)
    found = time_to_loss.run([*ARGUMENTS, *TINY, "--out", str(data)])
    ours, peer = (found["contestants"][name] for name in ("spun-decoder", "qwen3"))
    trials = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(data.glob("*/trial.json"))]
    names = {(trial["name"], trial["seed"]) for trial in trials}
    assert names == {(name, seed) for name in ("spun-decoder", "qwen3") for seed in (0, 1)}
    assert len(trials) == 5  # a second rate of the peer's first seed
    assert all(1500 <= trial["curve"][-1]["tokens"] < 1500 + 8 * 128 for trial in trials)
    assert ours["learning_rate"] is None
    assert peer["learning_rate"] in (1e-3, 2e-3)
    assert set(ours["minutes_to_the_loss_of"]) == {"qwen3"}
    assert (data / "financial-causal.svg").is_file()

    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("a finished trial was repeated")

    monkeypatch.setattr(time_to_loss.subprocess, "run", never)
    assert time_to_loss.run([*ARGUMENTS, *TINY, "--out", str(data)]) == found
    with pytest.raises(AssertionError, match="repeated"):  # another precision is another trial
        time_to_loss.run([*ARGUMENTS, *TINY, "--precision", "bf16", "--out", str(data)])


@pytest.mark.parametrize(("peer", "probability"), [("bert", 0.15), ("modernbert", 0.3)])
def test_peers_mask_as_their_papers_did(peer: str, probability: float) -> None:
    name, *settings = time_to_loss.PEER_RECIPES[peer]
    objective = pretrain_recipe(name, settings).objective
    assert objective.probability == probability


def test_held_out_rows_of_seq2seq_are_the_same_for_all_settings(tmp_path: Path) -> None:
    texts = [" ".join(f"word{(7 * text + step) % 41}" for step in range(700)) for text in range(13)]
    tokenizer = with_sentinels(Tokenizer.train(texts, kind="words", vocab_size=46), 100)
    corpus = write_corpus(texts, tokenizer, tmp_path / "corpus")
    held_out = []
    for settings in (
        ["objective.probability=0.3", "data.max_length=64"],
        ["train.batch_size=5", "data.max_length=256"],
    ):
        recipe = pretrain_recipe("t5-mini", [*settings, f"data.corpus={tmp_path / 'corpus'}"])
        training, measured = time_to_loss._loaders(recipe, corpus)
        assert training.order == "bucketed"
        held_out.append(list(measured.once()))
    for first, second in zip(*held_out, strict=True):
        assert first.input_ids.shape[1] > 128
        assert torch.equal(first.input_ids, second.input_ids)
        assert torch.equal(first.labels, second.labels)
