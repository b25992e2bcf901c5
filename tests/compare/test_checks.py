import csv
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from comparing import comparison

from homespun.compare.checks import check
from homespun.compare.recipe import compare_recipe
from homespun.compare.trials import trials
from homespun.data.corpus import build_corpus
from homespun.errors import UserError
from homespun.recipes import comparison_names
from homespun.text.sources import Document
from homespun.text.tokenizer import Tokenizer
from homespun.vectors.store import save_vectors
from homespun.vectors.word_vectors import WordVectors

TEXTS = [f"the {a} of a {b} is {c}" for a in ["price", "value", "sum"] for b in ["bond", "share"] for c in "upward"]
SMALL = {"model": {"hidden_size": 16, "embedding_size": 8, "intermediate_size": 24, "num_attention_heads": 2}}


def corpus(folder: Path, vocab_size: int = 281) -> Path:
    tokenizer = Tokenizer.train(TEXTS, kind="bpe", vocab_size=vocab_size)
    build_corpus((Document(text) for text in TEXTS * 400), tokenizer, folder, workers=1)
    return folder


def table(path: Path, labels: str) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        writer.writerows([f"{TEXTS[n % len(TEXTS)]} {n}", label] for n, label in enumerate(labels))
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checks")
    corpus(folder / "corpus")
    corpus(folder / "other", vocab_size=277)
    table(folder / "train.csv", "ab" * 20)
    table(folder / "test.csv", "ab" * 5)
    table(folder / "strange.csv", "abz" * 5)
    return folder


def checked(made: Path, **tree: Any) -> list[str]:
    stage = {
        "recipe": "electra-tiny",
        "settings": {"data": {"corpus": str(made / "corpus"), "max_length": 16}, **SMALL},
    }
    recipe = comparison(**{"pretrain": stage, "budget": {"steps": 1}} | tree)
    return check(recipe, trials(recipe))


def task(made: Path, **data: Any) -> dict[str, Any]:
    tree = {"train": str(made / "train.csv"), "test": str(made / "test.csv"), "max_length": 16} | data
    return {"topics": {"recipe": "classify", "settings": {"data": tree}}}


def test_what_can_be_built_is_built_without_weights(made: Path) -> None:
    variations = {
        "full": {},
        "frozen": {"finetune": {"objective.frozen": True, "objective.head": {"kind": "cnn"}}},
        "mlm": {"pretrain": {"objective": {"kind": "mlm"}}},
        "large": {"pretrain": {"model": {"hidden_size": 8192, "num_hidden_layers": 48, "intermediate_size": 32768}}},
        "lsh": {"pretrain": {"model.attention": {"kind": "lsh"}}},
        "reversible": {"pretrain": {"model.residual": {"kind": "reversible", "streams": "copy"}}},
    }
    assert checked(made, finetune=task(made), variations=variations) == []


def test_all_that_cannot_be_built_is_listed_at_once_with_its_reason(made: Path) -> None:
    variations = {
        "good": {},
        "typo": {"pretrain": {"model.num_hidden_layer": 2}},
        "heads": {"pretrain": {"model.num_attention_heads": 3}},
        "long": {"pretrain": {"data.max_length": 1031}},
        "causal": {"pretrain": {"model.causal": True}},
        "nowhere": {"pretrain": {"data.corpus": "no/such/corpus"}},
        "unknown": {"pretrain": {"recipe": "electra-tinny"}},
        "head": {"finetune": {"objective.head.kind": "ccn"}},
        "reader": {"finetune": {"data.max_length": 4099}},
    }
    with pytest.raises(UserError) as caught:
        checked(made, finetune=task(made), variations=variations)
    words = str(caught.value)
    assert "\n" not in words
    assert re.match(r"8 of 9 .*: \(1\) typo: ", words)
    for name in set(variations) - {"good"}:
        assert f") {name}: " in words
    for reason in (
        "did you mean 'num_hidden_layers'?",
        "did you mean 'electra-tiny'?",
        "did you mean 'cnn'?",
        "data.max_length=1031 tokens exceed",
        "data.max_length=4099 exceeds",
        "no/such/corpus",
    ):
        assert reason in words
    assert "good" not in words


def test_word_vectors_that_do_not_fit_are_refused(made: Path) -> None:
    words, wide = made / "words", made / "wide"
    for path, size in ((words, 8), (wide, 11)):
        save_vectors(WordVectors(("price", "bond"), np.ones((2, size), np.float32), np.array([3, 2]), {}), path)
    fits = {"pretrain": {"vectors": str(words)}}
    assert checked(made, variations={"fits": fits}) == []
    refused = {
        "fits": fits,
        "wide": {"pretrain": {"vectors": str(wide)}},
        "which": {"pretrain": {"vectors": ""}},
        "nowhere": {"pretrain": {"vectors": "no/such/vectors"}},
    }
    with pytest.raises(UserError, match="3 of 4 ") as caught:
        checked(made, variations=refused)
    for words_ in (
        "wide: the vectors of",
        "set model.embedding_size=11",
        "which: pretrain.vectors is empty",
        "no/such/vectors",
    ):
        assert words_ in str(caught.value)


def test_reason_of_several_variations_is_reported_once(made: Path) -> None:
    variations = {"a": {}, "b": {"finetune": {"train.batch_size": 3}}}
    with pytest.raises(UserError, match=r"2 of 2 .* \(1\) a, b: .*label 'z' "):
        checked(made, finetune=task(made, test=str(made / "strange.csv")), variations=variations)


def test_corpora_with_different_tokenizers_are_refused_unless_allowed(made: Path) -> None:
    variations = {"one": {}, "two": {"pretrain": {"data.corpus": str(made / "other")}}}
    with pytest.raises(UserError, match=r"corpus against .*other; .*different_token"):
        checked(made, variations=variations)
    assert checked(made, variations=variations, different_tokenizers=True) == []


def test_budget_beyond_the_corpus_is_reported_in_passes(made: Path) -> None:
    from homespun.data.corpus import Corpus

    corpus = Corpus.open(made / "corpus")
    available = corpus.count_tokens(corpus.split(0.02, 0)[0])
    (note,) = checked(made, budget={"tokens": 5 * available})
    assert re.search(rf"tokens .* 5\.0 passes .*{made / 'corpus'}.* {available:,} tokens", note)
    (note,) = checked(made, budget={"steps": 1000})
    assert re.search(rf"steps .* {1000 * 32 * 16 / available:,.1f} passes", note)
    assert checked(made, budget={"tokens": available - 1}) == []


def test_a_corpus_that_cannot_be_divided_is_refused(made: Path) -> None:
    tokenizer = Tokenizer.load(made / "corpus" / "tokenizer")
    build_corpus([Document(" ".join(TEXTS * 7))], tokenizer, made / "one", workers=1)
    variations = {"many": {}, "one": {"pretrain": {"data.corpus": str(made / "one")}}}
    with pytest.raises(UserError, match=r"1 of 2 .* \(1\) one: corpus .*one document"):
        checked(made, variations=variations)


def test_what_every_row_or_validation_would_fail_of_is_refused(made: Path) -> None:
    variations = {
        "pairs": {"pretrain": {"objective": {"kind": "mlm", "next_sentence": True}}},
        "short": {"pretrain": {"data.max_length": 700001}},
        "chosen": {"pretrain": {"train.best_metric": "acuracy"}},
        "judged": {"finetune": {"train.best_metric": "acuracy"}},
    }
    with pytest.raises(UserError, match="4 of 4 ") as caught:
        checked(made, finetune=task(made), variations=variations, budget={"steps": 1})
    for words in (
        "pairs: .*sentence ends",
        "one row of 700001",
        r"chosen: train\.best_metric=acuracy .*electra",
        r"judged: train\.best_metric=acuracy .*classification",
    ):
        assert re.search(words, str(caught.value))


def test_mistakes_of_a_comparison_are_listed_with_build_errors(made: Path) -> None:
    variations = {
        "good": {},
        "a": {"pretrain": {"train.seed": 3}},
        "b": {"finetune": {"seeds": 5}},
        "c": {"pretrain": {"train.budget.steps": 7}},
        "d": {"start_from": "x", "pretrain": {"y": 1}},
        "e": {"tasks": {"topcs": {"data.max_length": 8}}},
        "f": {"pretrain": {"train": {"seed": 11}}},
        "g": {"pretrain": {"model.num_hidden_layer": 2}},
    }
    listed = (
        r"^7 of 8 .*\(1\) a, f: .*train\.seed .*`seeds` and `first_seed`.* \(2\) b: .*seeds.* "
        r"\(3\) c: train\.budget\.steps .*\(4\) d: .* y .*\(5\) e: .*'topcs'.*'topics'.* "
        r"\(6\) g: electra-tiny: .*'model\.num_hidden_layer'.*'num_hidden_layers'\?$"
    )
    with pytest.raises(UserError, match=listed):
        checked(made, finetune=task(made), variations=variations, seeds=2)


@pytest.mark.parametrize(
    ("space", "words"),
    [
        ({"pretrain.train.optimizer.learning_rat": {"low": 0.1, "high": 0.2}}, r"\(1\) one, two: .*'learning_rate'"),
        ({"pretrain.train.seed": {"choices": [3, 5]}}, r"\(1\) one, two: .*train\.seed"),
        (
            {"pretrain.data.max_length": {"low": 16, "high": 1031, "integer": True}},
            r"one with pretrain\.data\.max_length=1031, two with pretrain\.data\.max_length=1031: ",
        ),
        (
            {"pretrain.model.num_hidden_layers": {"low": 1, "high": 5}},
            r"one with .*num_hidden_layers=3\.5, .*integer",
        ),
        (
            {
                "pretrain.model.hidden_dropout_prob": {"low": 0.0, "high": 0.5},
                "finetune.objective.head": {"choices": [{"kind": "ffn"}, {"kind": "cnn"}, {"kind": "ccn"}]},
            },
            r"one with finetune\.objective\.head=.kind: ccn., two with .*'cnn'",
        ),
    ],
)
def test_a_space_is_built_before_it_is_searched(made: Path, space: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=f"2 of 2 .*{words}"):
        checked(made, finetune=task(made), variations={"one": {}, "two": {}}, search={"space": space})


def test_what_only_a_search_sets_is_not_missed(made: Path) -> None:
    space = {"pretrain.data.corpus": {"choices": [str(made / "corpus"), str(made / "other")]}}
    stage = {"recipe": "electra-tiny", "settings": {"data": {"max_length": 16}, **SMALL}}
    with pytest.raises(UserError, match="different tokenizers"):
        checked(made, pretrain=stage, search={"space": space})
    assert checked(made, pretrain=stage, search={"space": space}, different_tokenizers=True) == []


@pytest.mark.parametrize(
    ("measure", "tuned", "words"),
    [
        ("macro_f1", True, ""),
        ("roc_auc", True, ""),
        ("loss", False, ""),
        ("acuracy", True, "search.metric=acuracy .*classification.*'accuracy'"),
        ("accuracy", False, "search.metric=accuracy .*electra"),
    ],
)
def test_the_measure_of_a_search_is_looked_at_before(made: Path, measure: str, tuned: bool, words: str) -> None:
    search = {"space": {"pretrain.model.hidden_dropout_prob": {"low": 0.0, "high": 0.5}}, "metric": measure}
    tree = {"search": search, "finetune": task(made)} if tuned else {"search": search}
    if not words:
        assert checked(made, **tree) == []
        return
    with pytest.raises(UserError, match=words):
        checked(made, **tree)


def test_variations_are_built_once_for_all_seeds(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from homespun.compare import checks

    built = []
    build = checks._build
    monkeypatch.setattr(checks, "_build", lambda trial, reader: (built.append(trial.subfolder), build(trial, reader)))
    checked(made, seeds=5)
    assert built == ["base/seed-0"]


@pytest.mark.parametrize("name", comparison_names())
def test_shipped_comparisons_can_be_built(made: Path, name: str) -> None:
    bare = compare_recipe(name)
    assert bare.description
    if any(stage.start_from for trial in trials(bare) for stage in trial.stages):
        return  # from checkpoints of the hub: what can be told without them, test_shipped tells
    given = [f"pretrain.settings.data.corpus={made / 'corpus'}"] if bare.pretrain else []
    for label, stage in bare.finetune.items():
        parts = ("train",) if "folds" in stage.settings else ("train", "test")
        given += [f"finetune.{label}.settings.data.{part}={made / part}.csv" for part in parts]
    recipe = compare_recipe(name, given)
    check(recipe, trials(recipe))


def test_a_recipe_of_another_kind_is_refused() -> None:
    with pytest.raises(UserError, match=r"electra-tiny .*'pretrain'.* compare"):
        compare_recipe("electra-tiny")
