"""Verdicts on the sources' claims, and that each claim names a comparison that can decide it."""

import json
import re
import sys
from pathlib import Path

import pytest
from benchmarks import claims
from benchmarks.claims import Claim, ClaimTest, Experiments, Found, judge, page, read_claims, read_verdicts

from homespun.compare.recipe import compare_recipe
from homespun.compare.trials import variants
from homespun.report.comparison_quality import Candidate, TaskComparison

sys.path.insert(0, str(Path(__file__).parent / "report"))
from comparison_folder import BERT, REFORMER, SMALL, WIDE, make_comparison

ROOT = Path(__file__).resolve().parents[1]


def test_every_claim_is_decided_by_a_comparison_or_a_page() -> None:
    comparisons = ROOT / "benchmarks" / "comparisons"
    for claim in read_claims().values():
        if claim.recorded is not None:
            assert (ROOT / "results" / claim.recorded.page).is_file()
        for test in claim.tests:
            name = re.sub(r"(-\d+)?(-minutes)?$", "", test.experiment)
            recipe = compare_recipe(str(comparisons / f"{name}.yaml"))
            named = {test.lower, test.higher, test.model} - {""}
            assert named <= {variant.name for variant in variants(recipe)}
            assert test.of.partition(".")[0] in {*recipe.finetune, "pretrain", "loss"}
            assert test.less_than_in in {"", *recipe.finetune}


def test_the_page_is_that_of_the_verdicts() -> None:
    found = read_verdicts(claims.STORE)
    assert claims.PAGE.read_text(encoding="utf-8") == page(read_claims(), found)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    make_comparison(folder / "small", everyone=(BERT, REFORMER, SMALL, WIDE), failed=False)
    return folder


def verdict(out: Path, **test: object) -> str | None:
    claim = Claim(source="", where="", claim="", tests=[ClaimTest.model_validate({"experiment": "small", **test})])
    found = judge(claim, Experiments(out, [claim]))
    return None if found is None else found.verdict


@pytest.mark.parametrize(
    ("test", "expected"),
    [
        ({"of": "phrasebank", "lower": "reformer", "higher": "bert"}, "holds"),
        ({"of": "phrasebank", "lower": "bert", "higher": "reformer"}, "does not hold"),
        ({"of": "phrasebank", "lower": "bert", "higher": "window-16"}, "cannot be decided"),
        ({"of": "phrasebank", "lower": "bert", "higher": "window-16", "relevant": 0.2}, "does not hold"),
        ({"of": "phrasebank", "lower": "bert", "higher": "window-16", "within": 0.2}, "holds"),
        ({"of": "phrasebank", "lower": "bert", "higher": "window-16", "within": 0.005}, "cannot be decided"),
        ({"of": "phrasebank", "lower": "reformer", "higher": "bert", "within": 0.01}, "does not hold"),
        ({"of": "phrasebank", "lower": "reformer", "higher": "bert", "at_most": 0.01}, "does not hold"),
        ({"of": "phrasebank", "lower": "bert", "higher": "reformer", "at_most": 0.01}, "holds"),
        ({"of": "phrasebank", "lower": "bert", "higher": "window-16", "at_most": 0.005}, "cannot be decided"),
        ({"of": "phrasebank", "model": "bert", "at_least": 0.7}, "holds"),
        ({"of": "phrasebank", "model": "bert", "at_least": 0.84}, "cannot be decided"),
        ({"of": "phrasebank", "model": "bert", "at_least": 0.95}, "does not hold"),
        ({"of": "loss", "lower": "bert", "higher": "reformer"}, "holds"),
        ({"of": "loss", "lower": "reformer", "higher": "bert"}, "does not hold"),
        ({"of": "loss", "model": "bert", "at_least": 1.0}, "holds"),
        ({"of": "pretrain.seconds_per_step", "lower": "bert", "higher": "reformer"}, "holds"),
        ({"of": "pretrain.seconds_per_step", "lower": "bert", "higher": "reformer", "within": 0.9}, "holds"),
        ({"of": "pretrain.peak_bytes", "lower": "bert", "higher": "reformer"}, "does not hold"),
        ({"of": "loss", "lower": "bert", "higher": "missing"}, None),
        ({"of": "loss", "lower": "bert", "higher": "reformer", "experiment": "missing"}, None),
    ],
)
def test_a_verdict(test: dict[str, object], expected: str | None, out: Path) -> None:
    assert verdict(out, **test) == expected


@pytest.mark.parametrize(
    "test", [{"lower": "a"}, {"model": "a"}, {"model": "a", "lower": "a", "higher": "b", "at_least": 1.0}, {}]
)
def test_a_test_is_of_one_kind(test: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="give"):
        ClaimTest.model_validate({"experiment": "small", "of": "loss", **test})
    with pytest.raises(ValueError, match="give"):
        ClaimTest(experiment="small", of="loss", lower="a", higher="b", within=0.1, at_most=0.1)
    with pytest.raises(ValueError, match="give"):
        ClaimTest(experiment="small", of="loss", lower="a", higher="b", within=0.1, less_than_in="few")


@pytest.mark.parametrize(
    ("all_texts", "few_texts", "expected"),
    [
        ([0.80, 0.81, 0.82], [0.62, 0.60, 0.61], "holds"),  # ahead by 1 point, and by 11
        ([0.90, 0.91, 0.92], [0.52, 0.50, 0.51], "does not hold"),  # by 11, and by 1
        ([0.80, 0.81, 0.82], [0.52, 0.50, 0.51], "does not hold"),  # by 1 and 1: 2 points would have been found
        ([0.80, 0.86, 0.82], [0.52, 0.50, 0.60], "cannot be decided"),
    ],
)
def test_a_difference_that_is_smaller_in_another_task(
    all_texts: list[float], few_texts: list[float], expected: str
) -> None:
    below = {"all": [0.79, 0.80, 0.811], "few": [0.511, 0.49, 0.50]}
    tasks = {}
    for name, values in (("all", all_texts), ("few", few_texts)):
        candidates = [Candidate(n, "model", "", v) for n, v in (("full", below[name]), ("reformer", values))]
        tasks[name] = TaskComparison(name, "accuracy", candidates, {}, [], {}, True, "test")
    given = {"of": "all", "less_than_in": "few", "lower": "full", "higher": "reformer", "relevant": 0.02}
    test = ClaimTest.model_validate({"experiment": "small", **given})
    found = claims.interaction(test, tasks)
    assert found is not None
    assert found[0] == expected
    assert claims.interaction(test, {"all": tasks["all"]}) is None


def test_one_refuted_test_refutes_a_claim_and_a_missing_one_leaves_it_open(out: Path) -> None:
    def found(*names: tuple[str, str]) -> Found | None:
        tests = [ClaimTest(experiment="small", of="phrasebank", lower=lower, higher=higher) for lower, higher in names]
        claim = Claim(source="", where="", claim="", tests=tests)
        return judge(claim, Experiments(out, [claim]))

    both = found(("reformer", "bert"), ("reformer", "window-16"))
    assert both is not None
    assert (both.verdict, len(both.evidence)) == ("holds", 2)
    assert found(("reformer", "bert"), ("bert", "missing")) is None
    refuted = found(("bert", "reformer"), ("bert", "missing"))
    assert refuted is not None
    assert refuted.verdict == "does not hold"
    assert found() is None


def test_a_page_decides_until_a_comparison_does(out: Path) -> None:
    def found(experiment: str) -> Found | None:
        test = ClaimTest(experiment=experiment, of="phrasebank", lower="bert", higher="reformer")
        recorded = claims.Recorded(verdict="holds", page="page.md", evidence="figures")
        claim = Claim(source="", where="", claim="", tests=[test], recorded=recorded)
        return judge(claim, Experiments(out, [claim]))

    by_page, by_test = found("missing"), found("small")
    assert by_page is not None
    assert by_test is not None
    assert (by_page.verdict, by_page.evidence) == ("holds", ["figures ([page.md](page.md))"])
    assert by_test.verdict == "does not hold"


def test_p_values_are_corrected_for_the_pairs_that_claims_name(out: Path) -> None:
    def evidence(*others: str, of: str, looks: int = 1) -> str:
        first = ClaimTest(experiment="small", of=of, lower="reformer", higher="bert", looks=looks)
        tests = [first, *(first.model_copy(update={"higher": higher, "looks": 1}) for higher in others)]
        every = [Claim(source="", where="", claim="", tests=[test]) for test in tests]
        found = judge(every[0], Experiments(out, every))
        assert found is not None
        return found.evidence[0]

    def detectable(text: str) -> float:
        match = re.search(r"detectable ([0-9.]+)", text)
        assert match is not None
        return float(match[1])

    for of in ("phrasebank", "loss", "pretrain.seconds_per_step"):
        alone, three = evidence(of=of), evidence("window-16", "not-run", of=of)
        assert detectable(alone) < detectable(three)
        assert evidence("bert", of=of) == alone  # two claims of one pair are one test
        assert evidence(of=of, looks=3) == three  # each look counts as a pair


def test_unfinished_trials_decide_nothing(tmp_path: Path) -> None:
    folder = make_comparison(tmp_path / "small", everyone=(BERT, REFORMER), failed=False)
    assert verdict(tmp_path, of="loss", lower="bert", higher="reformer") == "holds"
    file = sorted(folder.glob("trials/bert/*/trial.json"))[-1]
    file.write_text(json.dumps(json.loads(file.read_text()) | {"status": "running"}))
    assert verdict(tmp_path, of="loss", lower="bert", higher="reformer") is None


def test_the_command_keeps_earlier_verdicts(tmp_path: Path) -> None:
    store, written = tmp_path / "verdicts.json", tmp_path / "page.md"
    store.write_text(json.dumps({"bert-below-reformer": {"verdict": "holds", "evidence": ["on another machine"]}}))
    result = claims.run(["--out", str(tmp_path), "--store", str(store), "--page", str(written)])
    assert result["claims"] == len(read_claims()) == sum(result["verdicts"].values())
    assert read_verdicts(store)["bert-below-reformer"].evidence == ["on another machine"]
    assert "| holds | on another machine |" in written.read_text()
