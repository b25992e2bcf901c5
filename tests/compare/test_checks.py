import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from comparing import comparison

from homespun.compare import checks
from homespun.compare.checks import check
from homespun.compare.recipe import compare_recipe
from homespun.compare.trials import trials
from homespun.data.corpus import Corpus
from homespun.data.corpus_build import build_corpus
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
    rows = [f"{TEXTS[n % len(TEXTS)]} {n},{label}\n" for n, label in enumerate(labels)]
    path.write_text("text,label\n" + "".join(rows))
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
    settings = {"data": {"corpus": str(made / "corpus"), "max_length": 16}, **SMALL}
    stage = {"recipe": "electra-tiny", "settings": settings}
    recipe = comparison(**{"pretrain": stage, "budget": {"steps": 1}} | tree)
    return check(recipe, trials(recipe))


def refused(made: Path, **tree: Any) -> str:
    """The line in which a comparison is refused."""
    with pytest.raises(UserError) as caught:
        checked(made, **tree)
    assert "\n" not in str(caught.value)
    return str(caught.value)


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


def test_a_cache_of_hidden_states_is_not_opened(made: Path, tmp_path: Path) -> None:
    cached = {"finetune": {"objective.frozen": True, "objective.cache": str(tmp_path / "cache")}}
    assert checked(made, finetune=task(made), variations={"cached": cached}) == []
    assert not (tmp_path / "cache").exists()


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
    words = refused(made, finetune=task(made), variations=variations)
    assert re.match(r"8 of 9 .*: \(1\) typo: ", words)
    for name in set(variations) - {"good"}:
        assert f") {name}: " in words
    lengths = ("data.max_length=1031", "data.max_length=4099")
    for reason in ("'model.num_hidden_layers'", "'electra-tiny'", "'cnn'", *lengths, "no/such/corpus"):
        assert reason in words
    assert "good" not in words


def test_word_vectors_that_do_not_fit_are_refused(made: Path) -> None:
    words, wide = made / "words", made / "wide"
    for path, size in ((words, 8), (wide, 11)):
        save_vectors(WordVectors(("price", "bond"), np.ones((2, size), np.float32), np.array([3, 2]), {}), path)
    fits = {"pretrain": {"vectors": str(words)}}
    assert checked(made, variations={"fits": fits}) == []
    unfit = {"wide": str(wide), "which": "", "nowhere": "no/such/vectors"}
    variations = {"fits": fits} | {name: {"pretrain": {"vectors": path}} for name, path in unfit.items()}
    message = refused(made, variations=variations)
    assert message.startswith("3 of 4 ")
    for reason in ("wide: ", "model.embedding_size=11", "which: pretrain.vectors is empty", "no/such/vectors"):
        assert reason in message


def test_reason_of_several_variations_is_reported_once(made: Path) -> None:
    variations = {"a": {}, "b": {"finetune": {"train.batch_size": 3}}}
    message = refused(made, finetune=task(made, test=str(made / "strange.csv")), variations=variations)
    assert re.search(r"2 of 2 .* \(1\) a, b: .*label 'z' ", message)


def test_corpora_with_different_tokenizers_are_refused_unless_allowed(made: Path) -> None:
    variations = {"one": {}, "two": {"pretrain": {"data.corpus": str(made / "other")}}}
    assert re.search("corpus against .*other; .*different_token", refused(made, variations=variations))
    assert checked(made, variations=variations, different_tokenizers=True) == []


def test_budget_beyond_the_corpus_is_reported_in_passes(made: Path) -> None:
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
    assert re.search(r"1 of 2 .* \(1\) one: corpus .*one document", refused(made, variations=variations))


def test_what_every_row_or_validation_would_fail_of_is_refused(made: Path) -> None:
    variations = {
        "pairs": {"pretrain": {"objective": {"kind": "mlm", "next_sentence": True}}},
        "short": {"pretrain": {"data.max_length": 700001}},
        "chosen": {"pretrain": {"train.best_metric": "acuracy"}},
        "judged": {"finetune": {"train.best_metric": "acuracy"}},
    }
    message = refused(made, finetune=task(made), variations=variations)
    assert message.startswith("4 of 4 ")
    metric = r"train\.best_metric=acuracy"
    for words in (
        "pairs: .*sentence ends",
        "700001",
        f"chosen: {metric} .*electra",
        f"judged: {metric} .*classification",
    ):
        assert re.search(words, message)


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
        r"\(6\) g: electra-tiny: .*'model\.num_hidden_layer'.*'model\.num_hidden_layers'\?$"
    )
    assert re.search(listed, refused(made, finetune=task(made), variations=variations, seeds=2))


@pytest.mark.parametrize(
    ("space", "words"),
    [
        ({"pretrain.train.optimizer.learning_rat": {"low": 0.1, "high": 0.2}}, r"\(1\) one, two: .*learning_rate'"),
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
    message = refused(made, finetune=task(made), variations={"one": {}, "two": {}}, search={"space": space})
    assert re.search(f"2 of 2 .*{words}", message)


def test_what_only_a_search_sets_is_not_missed(made: Path) -> None:
    space = {"pretrain.data.corpus": {"choices": [str(made / "corpus"), str(made / "other")]}}
    stage = {"recipe": "electra-tiny", "settings": {"data": {"max_length": 16}, **SMALL}}
    assert "different tokenizers" in refused(made, pretrain=stage, search={"space": space})
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
    if words:
        assert re.search(words, refused(made, **tree))
    else:
        assert checked(made, **tree) == []


def test_variations_are_built_once_for_all_seeds(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
