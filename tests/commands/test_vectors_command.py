"""Word vectors through the commands: training, conversion, queries, maps, initial embeddings."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands_world import TINY, WORDS, World, assert_refused
from torch import nn
from typer.testing import CliRunner

from homespun.cli import app
from homespun.errors import UserError
from homespun.hf.open import open_model
from homespun.models.embeddings import Embeddings
from homespun.text.tokenizer import Tokenizer
from homespun.vectors.embedding_init import init_embeddings
from homespun.vectors.store import open_vectors
from homespun.vectors.word_vectors import WordVectors


@pytest.fixture(scope="module")
def made(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vectors") / "glove"
    result = world.run(
        *("vectors", "train", "glove", "--corpus", world.corpus, "--out", folder, "words.min_count=3"),
        *("method.size=16", "method.epochs=13", "workers=1"),
    )
    assert result["size"] == 16
    assert result["cells"] > 100
    assert set(result["seconds"]) == {"counting words", "counting pairs", "training"}
    assert [path.name for path in folder.parent.iterdir()] == ["glove"]
    return folder


def test_the_verbs_agree(world: World, made: Path, tmp_path: Path) -> None:
    vectors = open_vectors(made)
    assert vectors.about["config"]["method"]["kind"] == "glove"
    assert vectors.counts.tolist() == sorted(vectors.counts.tolist(), reverse=True)
    for name in ("a.txt", "a.bin", "again"):
        output = world.run("vectors", "convert", made, "--out", tmp_path / name)
        assert output["words"] == len(vectors)
        found = world.run("vectors", "similar", tmp_path / name, "team", "--count", "3")
        assert [entry["word"] for entry in found["words"]] == [word for word, _ in vectors.similar("team", 3)]
    found = world.run("vectors", "analogy", made, "team", "goal", "bank", "--count", "1")
    assert found["words"][0]["word"] == vectors.analogy("team", "goal", "bank", 1)[0][0]
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists" / "pairs.txt").write_text("team goal 9\nteam bank 1\nteam xyz 4\n", encoding="utf-8")
    measured = world.run("vectors", "evaluate", made, "--data", tmp_path / "lists")
    assert measured["similarities"]["pairs"]["covered"] == 2


def test_every_section_of_every_list_is_shown(made: Path, tmp_path: Path) -> None:
    questions = {"first": "team goal bank share", "second": "bank loan team coach"}
    for name, question in questions.items():
        (tmp_path / f"{name}.txt").write_text(f": first\n{question}\n{question}\n: {name}s\n{question}\n")
    (tmp_path / "pairs.txt").write_text("team goal 9\nteam bank 1\n")
    shown = CliRunner().invoke(app, ["vectors", "evaluate", str(made), "--data", str(tmp_path)]).output
    rows = [line.rpartition(" questions")[0].split()[-1] for line in shown.splitlines() if "answered" in line]
    assert rows == ["2", "1", "3"] * 2
    assert "pairs" in shown


def test_topics_are_separated(made: Path) -> None:
    vectors = open_vectors(made)
    topics = {word: topic for topic, words in WORDS.items() for word in words if word in vectors}
    directions = {word: vectors.directions[vectors.row(word)] for word in topics}
    pairs = [(float(directions[a] @ directions[b]), topics[a] == topics[b]) for a in topics for b in topics if a < b]
    same, other = (np.mean([cosine for cosine, same_topic in pairs if same_topic is kind]) for kind in (True, False))
    assert same > other + 0.05


@pytest.mark.usefixtures("drawn_figures")
@pytest.mark.parametrize(("name", "begins"), [("map.png", b"\x89PNG"), ("map.svg", b"<?xml")], ids=["png", "svg"])
def test_a_map_is_a_picture_and_the_same_again(
    world: World, made: Path, tmp_path: Path, name: str, begins: bytes
) -> None:
    for out in (tmp_path / name, tmp_path / "again" / name):
        output = world.run("vectors", "map", made, "--top", "17", "--method", "tsne", "--out", out)
        assert output["words"] == 17
    content = (tmp_path / name).read_bytes()
    assert content.startswith(begins)
    assert content == (tmp_path / "again" / name).read_bytes()
    if name.endswith(".svg"):
        world.run("vectors", "map", made, "--words", "team,goal,bank", "--out", tmp_path / name)
        assert all(word.encode() in (tmp_path / name).read_bytes() for word in ("team", "goal", "bank"))
    assert_refused(r"\.png or \.svg", "vectors", "map", made, "--top", "5", "--out", tmp_path / "a.gif")
    assert_refused("--words a,b,c or --top", "vectors", "map", made, "--out", tmp_path / name)
    assert_refused("similar words: team", "vectors", "map", made, "--words", "team,goal,temm", "--out", tmp_path / name)


def table_of(model: nn.Module) -> torch.Tensor:
    (found,) = {m.words for m in model.modules() if isinstance(m, Embeddings)}
    return found.weight.detach()


def one_of_both(tokenizer: Tokenizer, vectors: WordVectors) -> tuple[int, int]:
    """A word that is one token, and the row of its vector."""
    for row, word in enumerate(vectors.words):
        ids = tokenizer.encode_batch([f" {word}"])[0]
        if word.isalpha() and len(ids) == 1:
            return int(ids[0]), row
    raise AssertionError("no word is one token")


def test_a_model_is_pretrained_and_fine_tuned_from_vectors(world: World, made: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = world.pretraining
    result = world.run(*words, "train.budget.steps=2", "train.batch_size=7", "--vectors", made, "--out", run)
    output = result["vectors"]
    assert 20 < output["found"] < output["tokens"]
    assert output["found"] == output["by_name"] + output["by_word"] + output["by_lower_case"]
    page = (run / "report" / "index.html").read_text("utf-8")
    assert f"{output['found']} of {output['tokens']} tokens have one" in page
    vectors, stored = open_vectors(made), open_model(run)
    token, row = one_of_both(stored.tokenizer, vectors)
    # two steps do not carry it far from where it began
    assert torch.cosine_similarity(table_of(stored.model)[token], torch.from_numpy(vectors.vectors[row]), dim=0) > 0.95
    tuning = (*world.finetuning, "train.budget.steps=2", "baselines=false", "--vectors", made, "--from", run)
    assert world.run(*tuning, "--out", tmp_path / "tuned")["vectors"] == output
    assert_refused("--vectors, not both", *words, "--from", world.base, "--vectors", made, "--out", tmp_path / "both")


def test_a_model_begins_with_vectors_alone(world: World, made: Path, tmp_path: Path) -> None:
    begin = ("vectors", "init-model", "electra-tiny", *TINY, "--tokenizer", world.tokenizer, "--vectors", made)
    output = world.run(*begin, "--out", tmp_path / "model")
    stored, vectors = open_model(tmp_path / "model"), open_vectors(made)
    token, row = one_of_both(stored.tokenizer, vectors)
    assert table_of(stored.model)[token].tolist() == vectors.vectors[row].tolist()
    assert 20 < output["vectors"]["by_word"] <= output["vectors"]["found"]
    wider = ("--out", tmp_path / "other", "model.embedding_size=24")
    assert_refused(r"16 .*24.*model\.embedding_size=16", *begin, *wider)
    assert_refused("--out", *begin, "--out", tmp_path / "model")
    assert not (tmp_path / "other").exists()


class OneTable(nn.Module):
    """Embeddings and nothing else."""

    def __init__(self, vocab_size: int, size: int) -> None:
        super().__init__()
        options: dict[str, Any] = {"positions": nn.Module(), "norm": nn.Identity(), "type_vocab_size": 0, "dropout": 0}
        self.embeddings = Embeddings(vocab_size, size, **options)


@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "unigram", "words"])
def test_rows_are_found_by_token_and_the_others_stay_as_drawn(kind: str) -> None:
    texts = ["the Cat sat on the mat, the cat eats"] * 7
    size = {"bpe": 278, "wordpiece": 43, "unigram": 18, "words": 13}[kind]
    tokenizer = Tokenizer.train(texts, kind=kind, vocab_size=size)
    pieces = np.flatnonzero(~tokenizer.word_starts)  # inside words; `words` has none
    named = int(pieces[0]) if len(pieces) else tokenizer.tokens.index("sat")
    names = ["the", "cat", tokenizer.tokens[named]]
    vectors = WordVectors(names, np.arange(15, dtype=np.float32).reshape(3, 5) + 100)
    model = OneTable(tokenizer.vocab_size, 5)
    before = table_of(model).clone()
    initialized = init_embeddings(model, tokenizer, vectors, source="v")
    after = table_of(model)
    changed = (before != after).any(1)
    assert initialized.found == int(changed.sum())
    assert initialized.tokens == int((~tokenizer.special_mask).sum())
    assert after[named].tolist() == vectors.vectors[2].tolist()
    for i in np.flatnonzero(changed.numpy()).tolist():
        spelt = tokenizer.decode([i]).strip().lower()
        row = 2 if i == named else names.index(spelt)
        assert after[i].tolist() == vectors.vectors[row].tolist()
    assert not changed[torch.from_numpy(tokenizer.special_mask)].any()


def test_vectors_of_other_words_are_refused() -> None:
    tokenizer = Tokenizer.train(["a b c"], kind="words", vocab_size=8)
    model = OneTable(8, 3)
    with pytest.raises(UserError, match=r"3 tokens .*vector"):
        init_embeddings(model, tokenizer, WordVectors(["x"], np.ones((1, 3), np.float32)), source="v")
    with pytest.raises(UserError, match="no word embeddings"):
        init_embeddings(nn.Linear(2, 2), tokenizer, WordVectors(["a"], np.ones((1, 3), np.float32)), source="v")


def word2vec(world: World, out: Path, *others: str) -> dict[str, Any]:
    settings = ("words.min_count=3", "method.size=7", "method.epochs=3", "workers=1", *others)
    return world.run("vectors", "train", "word2vec", "--corpus", world.corpus, "--out", out, *settings)


@pytest.mark.parametrize("architecture", ["skipgram", "cbow"])
def test_word2vec_is_gensims_and_repeats_itself(world: World, tmp_path: Path, architecture: str) -> None:
    pytest.importorskip("gensim")
    for name in ("one", "two"):
        output = word2vec(world, tmp_path / name, f"method.architecture={architecture}")
        assert output["size"] == 7
    one, two = open_vectors(tmp_path / "one"), open_vectors(tmp_path / "two")
    assert np.array_equal(one.vectors, two.vectors)
    assert one.words == two.words
    other = word2vec(world, tmp_path / "three", f"method.architecture={architecture}", "seed=1")
    assert not np.array_equal(open_vectors(other["vectors"]).vectors, one.vectors)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "three", "two"]


def test_missing_gensim_fails_at_once(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gensim", None)
    with pytest.raises(UserError, match=r"'homespun\[vectors\]'"):
        word2vec(world, tmp_path / "out")
    with pytest.raises(UserError, match="'fasttext'"):
        world.run("vectors", "train", "fasttext", "--corpus", world.corpus, "--out", tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_word2vec_learns_what_gensim_does_of_lists(tmp_path: Path) -> None:
    """The way over numbers in a file and back gives every word its own vector."""
    pytest.importorskip("gensim")
    from homespun.vectors.training import Word2VecConfig, train_word2vec
    from homespun.vectors.word_file import WordFile

    draw = np.random.default_rng(0)
    # words of two halves of the vocabulary never meet
    ids = np.concatenate([draw.integers(0, 13, 23) + 13 * int(draw.integers(2)) for _ in range(401)]).astype(np.int32)
    path = tmp_path / "ids"
    ids.tofile(path)
    text = WordFile(path, list(map(str, range(26))), np.bincount(ids, minlength=26), np.arange(1, 402) * 23)
    config = Word2VecConfig(size=5, epochs=15, subsample=0.0)
    vectors = WordVectors(text.words, train_word2vec(text, config, tmp_path, seed=0, workers=1))
    for word in range(26):
        near = {int(other) // 13 for other, _ in vectors.similar(str(word), 5)}
        assert near == {word // 13}
