import csv
import itertools
import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from figures import stop_drawing

sys.path.insert(0, str(Path(__file__).parent))
from comparison_folder import (
    BERT,
    CAUSAL,
    EVERYONE,
    LABELS,
    REFORMER,
    ROWS,
    SMALL,
    WIDE,
    answers,
    change,
    change_trial,
    copy,
    make_comparison,
    metrics_of,
    without_tasks,
)

from homespun.cli import app
from homespun.comparison_results import ComparisonResult
from homespun.errors import UserError
from homespun.report.comparison import write_comparison
from homespun.report.comparison_records import read_comparison
from homespun.report.comparison_tables import ablations, crossovers, pareto
from homespun.report.document import slug
from homespun.report.records import Point, mean_series

pytestmark = pytest.mark.slow

Content = dict[str, Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = make_comparison(tmp_path_factory.mktemp("whole") / "news")
    write_comparison(path)
    return path


@pytest.fixture(scope="module")
def content(folder: Path) -> Content:
    return json.loads((folder / "comparison.json").read_text())


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports whose figures are empty files, for tests of the rest."""
    stop_drawing(monkeypatch)


def write(folder: Path) -> Content:
    write_comparison(folder)
    content = json.loads((folder / "comparison.json").read_text())
    result = ComparisonResult.read(folder / "comparison.json")
    assert json.loads(json.dumps(result.to_json())) == content
    return content


def rows_of(folder: Path, table: str) -> list[dict[str, str]]:
    with (folder / "report" / "tables" / f"{table}.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def accuracies(folder: Path, name: str) -> list[float]:
    results = sorted(folder.glob(f"trials/{name}/seed-*/phrasebank/result.json"))
    return [json.loads(result.read_text())["test"]["accuracy"] for result in results]


def test_the_right_numbers_are_in_the_right_cells(folder: Path) -> None:
    quality = {row["model"]: row for row in rows_of(folder, "quality-phrasebank")}
    for made in EVERYONE:
        values = accuracies(folder, made.name)
        assert len(values) == 3
        assert float(quality[made.name]["accuracy, mean"]) == pytest.approx(fmean(values))
        assert float(quality[made.name]["accuracy, deviation"]) == pytest.approx(stdev(values))
    resources = {row["variation"]: row for row in rows_of(folder, "resources-pretrain")}
    for index, made in enumerate(EVERYONE):
        row = resources[made.name]
        assert float(row["parameters"]) == 3_000_017 + 1_000_003 * index
        assert float(row["FLOPs per token"]) == 17_000_000 + 3_000_000 * index
        assert float(row["peak memory, training"]) == pytest.approx(made.peak + 1e6)  # the mean of three seeds
        assert float(row["peak memory, inference"]) == pytest.approx(2e8 + 2048e5 * (index + 1))
        assert float(row["seconds per iteration"]) == pytest.approx(made.seconds / 211 * 1.01)
        assert float(row["tokens seen"]) == 211 * 4003
    assert resources["window-16"]["architecture"] == "3 layers × 128, 2 heads, window attention (radius 16)"
    tuned = {row["variation"]: row for row in rows_of(folder, "resources-phrasebank")}
    assert float(tuned["causal"]["parameters"]) == 3_100_019 + 1_000_003 * 4
    assert "architecture" not in tuned["causal"]  # it went on from a folder of the comparison
    losses = {row["run"]: row for row in rows_of(folder, "losses-1-pretrain")}
    assert set(losses) == {"bert", "reformer", "window-16", "window-128"}
    expected = 5.9 + 0.1 + 3 * np.exp(-3) + 0.013
    assert float(losses["reformer"]["generator, validation"]) == pytest.approx(expected)
    assert [row["run"] for row in rows_of(folder, "losses-2-pretrain")] == ["causal"]


def test_models_within_noise_of_the_best_are_not_significantly_worse(folder: Path, content: Content) -> None:
    task = content["tasks"]["phrasebank"]
    by_name = {row["name"]: row for row in task["contenders"]}
    assert task["best"] == max((r["mean"], r["name"]) for r in task["contenders"] if r["mean"] is not None)[1]
    assert set(task["alike"]) == {"bert", "window-16", "window-128"}
    assert task["pairs"] == 21  # five models and two baselines
    for name in set(task["alike"]) - {task["best"]}:
        assert by_name[name]["adjusted"] > 0.05
    for name in ("reformer", "TF-IDF + linear", "majority class"):
        assert by_name[name]["adjusted"] <= 0.05
        low, high = by_name[name]["interval"]
        assert low < by_name[name]["gap"] < high < 0
    page = (folder / "report" / "index.html").read_text()
    assert page.count('<tr class="marked">') == 3
    advice = " ".join(content["advice"])
    assert "train window-16, or any of" in advice  # the cheapest of those alike
    assert "It beats TF-IDF + linear" in advice


def test_the_tests_are_those_of_the_rows(folder: Path, content: Content) -> None:
    """The difference to the best by hand, from the files of predictions."""

    def right(name: str) -> np.ndarray:
        found = []
        for file in sorted(folder.glob(f"trials/{name}/seed-*/phrasebank/predictions/model.jsonl")):
            lines = [json.loads(line) for line in file.read_text().splitlines()]
            found.append([line["truth"] == line["predicted"] for line in lines])
        return np.array(found).mean(axis=0)

    task = content["tasks"]["phrasebank"]
    by_name = {row["name"]: row for row in task["contenders"]}
    gap = right("reformer") - right(task["best"])
    assert by_name["reformer"]["gap"] == pytest.approx(gap.mean())
    normal = 1.96 * gap.std(ddof=1) / np.sqrt(len(gap))
    assert by_name["reformer"]["interval"] == pytest.approx([gap.mean() - normal, gap.mean() + normal], abs=0.002)

    pairs = {(row["higher"], row["lower"]): row for row in rows_of(folder, "pairs-phrasebank")}
    assert len(pairs) == 20  # of five models and two baselines all but the two baselines
    ranked = [row["name"] for row in task["contenders"] if row["mean"] is not None]
    for higher, lower in itertools.combinations([name for name in ranked if by_name[name]["kind"] == "model"], 2):
        gap = right(lower) - right(higher)
        row = pairs[higher, lower]
        assert float(row["difference"]) == pytest.approx(gap.mean(), abs=1e-9)
        assert (row["the lower is"] == "below") == (float(row["p (Holm)"]) <= 0.05)
    assert pairs[task["best"], "reformer"]["p (Holm)"] == str(by_name["reformer"]["adjusted"])


def test_failed_variant_has_a_row_with_its_error(folder: Path, content: Content) -> None:
    giant = next(row for row in rows_of(folder, "quality-phrasebank") if row["model"] == "giant")
    assert giant["verdict"] == "no result: pretrain: out of memory: killed by signal 9"
    assert giant["trials"] == "3 failed"
    assert giant["accuracy, mean"] == ""
    assert content["trials"] == {"done": 15, "failed": 3}
    assert "Trials: 15 done, 3 failed, of 18." in content["notices"]
    assert any("giant (3 failed)" in text for text in content["advice"])


CHAPTERS = (
    "Quality, Resources, Quality against time and memory, Loss curves, Ablations, Inference cost by length, Classes"
)


def test_page_has_every_chapter_and_loads_no_other_file(folder: Path) -> None:
    page = (folder / "report" / "index.html").read_text()
    for chapter in [*CHAPTERS.split(", "), "Text lengths", "Configuration"]:
        assert f"<h2>{chapter}</h2>" in page
    assert "<script" not in page
    assert "http://" not in page.replace("http-equiv", "")
    assert "https://" not in page
    plots = folder / "report" / "plots"
    drawn = {file.stem for file in plots.glob("*.svg")}
    for axis in ("step", "tokens", "time"):
        assert {f"pretrain-1-generator-by-{axis}", f"pretrain-2-causal-by-{axis}"} <= drawn
    assert {f"phrasebank-by-{cost}" for cost in ("time", "memory", "latency")} <= drawn
    assert {"latency-by-length", "memory-by-length", "lengths-phrasebank-all"} <= drawn
    assert "phrasebank-along-pretrain.model.attention.radius" in drawn
    assert drawn == {file.stem for file in plots.glob("*.png")}
    # losses of another objective are on no axes with these, and a variation has one colour throughout
    generator = (plots / "pretrain-1-generator-by-step.svg").read_text()
    assert "window-128" in generator
    assert "causal" not in generator
    colour = "#cc79a7"  # the fourth of the palette, of the fourth variation
    for name in ("pretrain-1-generator-by-step", "phrasebank-by-time", "latency-by-length"):
        assert colour in (plots / f"{name}.svg").read_text().lower()


def test_on_paper_what_is_folded_is_open_but_for_configs(folder: Path) -> None:
    page = (folder / "report" / "index.html").read_text()
    by_title = {title: kind for kind, title in re.findall(r'<details class="(\w*)"><summary>([^<]*)</summary>', page)}
    assert set(by_title.values()) == {"", "code", "named"}
    assert by_title["comparison.yaml"] == by_title["Configs of bert"] == "code"
    assert by_title["All trials by variation"] == ""
    assert by_title["Machine and versions"] == "named"  # the table in it has that heading
    assert page.count("<details") == len(by_title)
    # of tables only long ones may be divided between pages
    assert set(re.findall(r'<figure class="table( whole)?">', page)) == {" whole", ""}


def test_fronts_crossovers_and_ablations(folder: Path, content: Content) -> None:
    means = {made.name: fmean(accuracies(folder, made.name)) for made in EVERYONE}
    seconds = {made.name: made.seconds for made in EVERYONE}  # the stages of fine-tuning do not change the order
    front = content["fronts"]["phrasebank"]["time"]
    assert front == pareto({name: (seconds[name], means[name]) for name in means})
    assert front[0] == "window-16"
    crossings = {(c["cheaper"], c["dearer"]): c for c in content["crossovers"]["latency"]}
    found = crossings["reformer", "bert"]
    assert (found["after"], found["until"]) == (128, 512)
    assert 128 < found["length"] < 512
    assert content["crossovers"]["memory"] == []
    ablation = rows_of(folder, "phrasebank-along-pretrain.model.attention.radius")
    assert [row["pretrain.model.attention.radius"] for row in ablation] == ["16", "128"]
    assert float(ablation[0]["accuracy, phrasebank, mean"]) == pytest.approx(means["window-16"])


def lines_of(path: Path) -> dict[str, dict[str, list[Any]]]:
    """What is drawn along each setting: by what else there is, the values."""
    comparison = read_comparison(path)
    found = ablations(comparison, {v.name: [0.7] for v in comparison.variants}, ["pretrain", "phrasebank"])
    return {one.setting: {rest: [value for value, *_ in line] for rest, line in one.lines.items()} for one in found}


def test_ablation_points_differ_in_one_setting(tmp_path: Path) -> None:
    more = [replace(SMALL, name="window-32", radius=32), replace(WIDE, name="window-64", radius=64)]
    path = make_comparison(tmp_path / "lines", everyone=(SMALL, WIDE, *more), seeds=2, failed=False, rows=37)
    for name in ("window-64", "window-128"):
        for trial in path.glob(f"trials/{name}/*"):
            stages = json.loads((trial / "trial.json").read_text())["stages"]
            stages["pretrain"]["start_from"] = "hub/other"
            change_trial(trial, stages=stages)
    change_trial(path / "trials/window-32/seed-0", status="failed")  # its first training is of another seed
    lines = {"": [16, 32], "start_from hub/other": [64, 128]}
    assert lines_of(path) == {"pretrain.model.attention.radius": lines}


def test_mappings_in_settings_are_flattened(tmp_path: Path) -> None:
    more = [replace(SMALL, name="full"), replace(SMALL, name="random-3"), replace(SMALL, name="lists")]
    path = make_comparison(tmp_path / "whole", everyone=(SMALL, WIDE, *more), seeds=1, failed=False, rows=37)
    blocks = "model.attention={kind: sparse, patterns: [{kind: blocks, size: 16}, {kind: random, count: %s}]}"
    given = {
        "window-16": [blocks % 1],
        "window-128": [blocks % 5],
        "random-3": [blocks % "[3, {of: 4}]"],  # a mistake of somebody's is drawn as it is
        "full": ["model.attention={kind: full}"],
        "lists": ["model.attention={}"],
    }
    for name, settings in given.items():
        change_trial(path / "trials" / name / "seed-0", settings={"pretrain": settings, "phrasebank": []})
    ((setting, lines),) = lines_of(path).items()
    assert (setting, *lines.values()) == ("pretrain.model.attention.patterns.1.count", [1, 5])
    write_comparison(path)


def test_equal_settings_of_two_stages_stay_separate(tmp_path: Path) -> None:
    path = make_comparison(tmp_path / "stages", everyone=(SMALL, WIDE), seeds=1, failed=False, rows=37)
    for name, stage, radius in (("window-16", "pretrain", 16), ("window-128", "phrasebank", 128)):
        settings = {"pretrain": [f"model.attention.radius={radius}"], "phrasebank": []}
        settings[stage].append("data.max_length=512")
        change_trial(path / "trials" / name / "seed-0", settings=settings)
    assert lines_of(path) == {}


def test_long_names_get_distinct_files() -> None:
    assert slug("sections.data.max_length") == "sections.data.max_length"
    assert len({slug("x" * 50 + end) for end in ("", "a", "b")}) == 3


def test_recipes_machine_and_confusion(folder: Path) -> None:
    differences = {row["setting"]: row for row in rows_of(folder, "differences")}
    assert set(differences) == {
        "pretrain: model.backbone.num_hidden_layers",
        "pretrain: model.backbone.attention.kind",
        "pretrain: model.backbone.attention.radius",
        "pretrain: objective.kind",
    }
    assert differences["pretrain: objective.kind"]["causal"] == "clm"
    best = json.loads((folder / "comparison.json").read_text())["tasks"]["phrasebank"]["best"]
    counts = np.zeros((3, 3))
    for file in folder.glob(f"trials/{best}/seed-*/phrasebank/result.json"):
        counts += json.loads(file.read_text())["test"]["confusion"]["counts"]
    with (folder / "report" / "tables" / "confusion-phrasebank-1.csv").open() as file:
        given = [[float(cell) for cell in row[1:]] for row in list(csv.reader(file))[1:]]
    assert given == counts.tolist()
    assert {row["what"] for row in rows_of(folder, "environment")} >= {"cpu", "cores", "packages.torch"}


def test_the_flat_file_has_a_row_a_trial(folder: Path) -> None:
    with (folder / "comparison.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 18
    row = next(row for row in rows if (row["variation"], row["seed"]) == ("causal", "2"))
    assert float(row["phrasebank.test.accuracy"]) == pytest.approx(accuracies(folder, "causal")[2])
    assert float(row["inference.512.seconds_per_text"]) == pytest.approx(CAUSAL.latency[1] * 1.014)
    assert row["pretrain: train.seed"] == "2"


def files_in(folder: Path) -> dict[str, bytes]:
    own = [*folder.glob("comparison.*"), *folder.glob("report/**/*.*")]
    return {str(file.relative_to(folder)): file.read_bytes() for file in own if file.is_file()}


@pytest.mark.slow
def test_made_twice_the_report_is_the_same_and_what_is_stale_goes(folder: Path, tmp_path: Path) -> None:
    again = copy(folder, tmp_path)
    (again / "report" / "tables" / "old.csv").write_text("stale")
    (again / "report" / "notes.txt").write_text("mine")
    write_comparison(again)
    after = files_in(again)
    assert after.pop("report/notes.txt") == b"mine"
    assert after == files_in(folder)
    assert len(after) > 60


def test_killed_and_resumed_is_the_same_but_for_times(folder: Path, tmp_path: Path, undrawn: None) -> None:
    """A run that went back to a checkpoint repeats steps in its metrics, and its seconds are others."""
    once, resumed = copy(folder, tmp_path / "once"), copy(folder, tmp_path / "resumed")
    metrics = resumed / "trials" / "bert" / "seed-1" / "pretrain" / "metrics.jsonl"
    lines = metrics.read_text().splitlines()
    at = next(i for i, line in enumerate(lines) if json.loads(line).get("step") == 60)
    torn = [*lines[: at + 9], '{"event": "step", "st', json.dumps({"event": "resume", "step": 59, "time": 777.0})]
    metrics.write_text("\n".join([*torn, *lines[at:]]) + "\n")
    change_trial(resumed / "trials" / "bert" / "seed-1", seconds=9999.0)
    first, second = write(once), write(resumed)
    for tree in (first, second):
        for row in tree["tables"]["trials"]["rows"]:
            row[-1] = None
    assert first == second


def test_unfinished_and_unreadable_trials_are_reported(folder: Path, tmp_path: Path, undrawn: None) -> None:
    path = copy(folder, tmp_path)
    trials = path / "trials"
    change_trial(trials / "bert" / "seed-0", status="waiting", stages={}, seconds=None)
    change_trial(trials / "bert" / "seed-1", status="running")
    (trials / "reformer" / "seed-2" / "trial.json").write_text('{"version": 1, "na')
    change_trial(trials / "causal" / "seed-0", version=7)
    (trials / "window-16" / "seed-1" / "trial.json").unlink()
    (trials / "window-128" / "seed-2" / "phrasebank" / "result.json").write_text("{")
    content = write(path)
    assert content["trials"] == {"waiting": 1, "running": 1, "done": 9, "unreadable": 4, "failed": 3}
    notices = "\n".join(content["notices"])
    assert re.search("1 running, 9 done, 3 failed, 4 unreadable, of 18", notices)
    assert "trials/reformer/seed-2: trial.json is not valid JSON" in notices
    assert re.search(r"trials/causal/seed-0: trial\.json .*version 7.* 1\b", notices)
    assert "trials/window-16/seed-1 has no trial.json" in notices
    assert "trials/window-128/seed-2: phrasebank/result.json is not valid JSON" in notices
    assert str(tmp_path) not in json.dumps(content)
    by_name = {row["name"]: row for row in content["tasks"]["phrasebank"]["contenders"]}
    assert [len(by_name[made.name]["values"]) for made in EVERYONE] == [1, 2, 2, 2, 2]
    assert by_name["bert"]["trials"] == "1 waiting, 1 running, 1 done"


def test_mismatched_predictions_are_reported(folder: Path, tmp_path: Path, undrawn: None) -> None:
    path = copy(folder, tmp_path)
    for file in path.glob("trials/reformer/*/phrasebank/predictions/model.jsonl"):
        file.write_text(file.read_text().replace('"truth": "neutral"', '"truth": "other"'))
    cut = path / "trials" / "bert" / "seed-0" / "phrasebank" / "predictions" / "model.jsonl"
    cut.write_text(cut.read_text()[:-9])
    fewer = path / "trials" / "causal" / "seed-0" / "phrasebank" / "predictions" / "model.jsonl"
    fewer.write_text("".join(fewer.read_text().splitlines(keepends=True)[:-3]))
    content = write(path)
    notices = "\n".join(content["notices"])
    assert re.search(r"bert, phrasebank .*line 997 of model\.jsonl", notices)
    assert re.search("reformer .*different rows", notices)
    assert re.search("causal, phrasebank, 994 of 997 rows were predicted by every training", notices)
    by_name = {row["name"]: row for row in content["tasks"]["phrasebank"]["contenders"]}
    assert by_name["reformer"]["texts"] is None
    assert by_name["reformer"]["trainings"] is not None


def test_single_trainings_without_predictions_are_not_significant(tmp_path: Path, undrawn: None) -> None:
    path = make_comparison(tmp_path / "thin", everyone=(BERT, REFORMER), seeds=1, failed=False, rows=211)
    for file in path.glob("trials/*/*/phrasebank/predictions/*.jsonl"):
        file.unlink()
    content = write(path)
    assert set(content["tasks"]["phrasebank"]["alike"]) == {"bert", "reformer", "TF-IDF + linear", "majority class"}
    text = " ".join(content["advice"])
    assert "not tested for significance" in text
    assert "other seeds" in text
    assert "no model beats TF-IDF" in text or "not significant" in text
    assert "under 500 examples" in text


def test_baselines_of_the_comparison_are_read_once_for_all(folder: Path, tmp_path: Path, undrawn: None) -> None:
    path = copy(folder, tmp_path)
    first = path / "trials" / "bert" / "seed-0" / "phrasebank"
    own = path / "baselines" / "phrasebank"
    (own / "predictions").mkdir(parents=True)
    known = json.loads((first / "result.json").read_text())["baselines"]
    (own / "result.json").write_text(json.dumps({"kind": "baselines", "baselines": {"lead": known["tfidf"]}}))
    (own / "predictions" / "lead.jsonl").write_text((first / "predictions" / "tfidf.jsonl").read_text())
    content = write(path)
    names = [row["name"] for row in content["tasks"]["phrasebank"]["contenders"] if row["kind"] == "baseline"]
    assert names == ["lead"]
    assert next(r for r in content["tasks"]["phrasebank"]["contenders"] if r["name"] == "lead")["texts"] < 1e-6


def with_baselines_of(folder: Path, name: str, *, right: float, variants: list[str]) -> None:
    """Baselines of some variations, in ``baselines/NAME``."""
    own = folder / "baselines" / name
    (own / "predictions").mkdir(parents=True)
    noise = np.random.default_rng(7)
    truth, hard = noise.integers(0, 3, ROWS), noise.random(ROWS)  # those of the models
    content = answers(truth, right, 6000, hard)
    answered = enumerate(zip(truth, content, strict=True))
    lines = [{"row": row, "truth": LABELS[t], "predicted": LABELS[p]} for row, (t, p) in answered]
    (own / "predictions" / "tfidf.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = {"version": 1, "kind": "baselines", "baselines": {"tfidf": metrics_of(truth, content)}}
    (own / "result.json").write_text(json.dumps(result))
    for path in [path for variant in variants for path in folder.glob(f"trials/{variant}/*/trial.json")]:
        stages = json.loads(path.read_text())["stages"]
        stages["phrasebank"]["baselines"] = name
        change(path, stages=stages)


def test_every_variant_is_compared_with_its_own_baselines(folder: Path, tmp_path: Path, undrawn: None) -> None:
    path = copy(folder, tmp_path)
    with_baselines_of(path, "phrasebank", right=0.79, variants=["bert", "window-16", "window-128"])
    with_baselines_of(path, "phrasebank@2", right=0.55, variants=["reformer", "causal"])
    content = write(path)
    names = ["TF-IDF + linear of bert, window-16, window-128", "TF-IDF + linear of reformer, causal"]
    by_name = {row["name"]: row for row in content["tasks"]["phrasebank"]["contenders"]}
    assert [name for name, row in by_name.items() if row["kind"] == "baseline"] == names
    means = {name: row["mean"] for name, row in by_name.items()}
    assert means["reformer"] < means[names[0]]  # it would lose against those of the others
    assert list(by_name["bert"]["own_baselines"]) == names[:1]
    (own,) = by_name["reformer"]["own_baselines"].values()
    assert own["gap"] == pytest.approx(means[names[1]] - means["reformer"])
    assert own["interval"][0] < own["gap"] < own["interval"][1] < 0
    advice = " ".join(content["advice"])
    assert f"It beats {names[0]}" in advice
    assert f"It beats {names[1]}" not in advice
    assert f"causal beats {names[1]}" in advice  # the highest of those that have it
    quality = {row["model"]: row for row in rows_of(path, "quality-phrasebank")}
    above = means["reformer"] - means[names[1]]
    assert float(quality["reformer"]["difference to own baseline"]) == pytest.approx(above)
    assert quality["reformer"]["own baselines"] == "above"
    assert "phrasebank against a baseline" not in advice


def test_models_below_or_without_baselines_are_reported(tmp_path: Path, undrawn: None) -> None:
    path = make_comparison(tmp_path / "own", everyone=(BERT, REFORMER, CAUSAL), failed=False)
    for result in path.glob("trials/*/*/phrasebank/result.json"):
        tree = json.loads(result.read_text())
        del tree["baselines"]
        result.write_text(json.dumps(tree))
    with_baselines_of(path, "phrasebank", right=0.77, variants=["bert"])
    with_baselines_of(path, "phrasebank@2", right=0.93, variants=["reformer"])
    with_baselines_of(path, "phrasebank@3", right=0.5, variants=["causal"])
    (path / "baselines" / "phrasebank@3" / "result.json").unlink()
    (path / "baselines" / "phrasebank@3" / "why.txt").write_text("no scikit-learn")
    content = write(path)
    advice = " ".join(content["advice"])
    assert "no model beats TF-IDF + linear of reformer" in advice
    assert "bert beats TF-IDF + linear of bert" in advice
    assert "phrasebank of causal against a baseline" in advice
    assert any(re.search("phrasebank of causal .*: no scikit-learn", notice) for notice in content["notices"])
    quality = {row["model"]: row for row in rows_of(path, "quality-phrasebank")}
    assert [quality[name]["own baselines"] for name in ("bert", "reformer", "causal")] == ["above", "below", ""]


def test_baseline_failure_is_reported(tmp_path: Path, undrawn: None) -> None:
    path = make_comparison(tmp_path / "none", everyone=(BERT, SMALL), seeds=1, failed=False, rows=211)
    why = path / "baselines" / "phrasebank" / "why.txt"
    why.parent.mkdir(parents=True)
    why.write_text("killed by SIGKILL")
    content = write(path)
    assert any(re.search("phrasebank .*: killed by SIGKILL", notice) for notice in content["notices"])
    assert "killed by SIGKILL" in (path / "report" / "report.md").read_text()


def test_a_result_of_another_version_is_not_read(tmp_path: Path, undrawn: None) -> None:
    path = make_comparison(tmp_path / "versions", everyone=(BERT, SMALL), seeds=2, failed=False, rows=211)
    for seed, version in ((0, 1), (1, 99)):
        change(path / "trials" / "bert" / f"seed-{seed}" / "phrasebank" / "result.json", version=version)
    own = path / "baselines" / "phrasebank" / "result.json"
    own.parent.mkdir(parents=True)
    own.write_text('{"version": 98, "baselines": {}}')
    content = write(path)
    assert content["trials"] == {"done": 3, "unreadable": 1}
    notices = "\n".join(content["notices"])
    assert re.search(r"trials/bert/seed-1: phrasebank/result\.json .*version 99.* 1", notices)
    assert re.search(r"baselines/phrasebank/result\.json .*version 98", notices)
    assert "version" not in (path / "comparison.csv").read_text().splitlines()[0]


def shared_by(folder: Path, name: str, owner: str) -> None:
    """As a variation that pretrains as another does."""
    for path in folder.glob(f"trials/{name}/*/trial.json"):
        stages, trial = json.loads(path.read_text())["stages"], f"{owner}/{path.parent.name}"
        stages["pretrain"] |= {"path": f"../../{trial}/pretrain", "shared_with": trial}
        change(path, stages=stages)


@pytest.mark.slow
def test_shared_pretraining_is_reported_and_drawn_once(tmp_path: Path) -> None:
    path = make_comparison(tmp_path / "shared", everyone=(BERT, SMALL, CAUSAL), seeds=2, failed=False, rows=211)
    shared_by(path, "window-16", "bert")
    write_comparison(path)
    page = (path / "report" / "report.md").read_text()
    assert "bert and window-16 share one pretraining" in page
    assert "causal share" not in page
    drawn = (path / "report" / "plots" / "pretrain-1-overall-by-step.svg").read_text()
    assert "validation" in drawn  # one line is alone, whose parts are named
    shared_by(path, "causal", "bert")
    write_comparison(path)
    assert "bert, window-16 and causal share one pretraining" in (path / "report" / "report.md").read_text()


def test_one_line_bears_the_names_of_all_that_share_it(tmp_path: Path) -> None:
    path = make_comparison(tmp_path / "shared", everyone=(BERT, SMALL, WIDE), seeds=2, failed=False, rows=211)
    shared_by(path, "window-16", "bert")
    write_comparison(path)
    drawn = (path / "report" / "plots" / "pretrain-overall-by-step.svg").read_text()
    assert "bert, window-16<" in drawn
    assert "window-128<" in drawn
    assert ">window-16<" not in drawn


def test_losses_are_tested_over_seeds_without_a_task(tmp_path: Path, undrawn: None) -> None:
    path = without_tasks(make_comparison(tmp_path / "losses", everyone=(BERT, WIDE, CAUSAL), failed=False))
    content = write(path)
    assert content["tasks"] == {}
    first, second = content["advice"][1:3]
    assert first.startswith("Among bert and window-128 (same data and objective), lowest validation loss: bert")
    assert "Significantly worse: window-128" in first
    assert "causal" not in first  # another objective's loss is another quantity
    assert second.startswith("Validation loss of causal:")
    best, worse = rows_of(path, "held-out-1")
    assert (best["variation"], worse["variation"]) == ("bert", "window-128")
    assert float(worse["difference to best"]) > float(worse["detectable"]) > 0
    assert float(worse["p (Holm)"]) <= 0.05
    assert [row["variation"] for row in rows_of(path, "held-out-2")] == ["causal"]


def test_another_machine_is_a_warning(tmp_path: Path, undrawn: None) -> None:
    path = make_comparison(tmp_path / "two", everyone=(BERT, SMALL), seeds=2, failed=False, other_machine=True)
    content = write(path)
    assert any("2 different machines" in notice for notice in content["notices"])
    environment = {row[0]: row[1:] for row in content["tables"]["environment"]["rows"]}
    assert environment["packages.torch"] == ["2.13.0", "2.12.1"]


def test_names_and_reasons_are_data(tmp_path: Path, undrawn: None) -> None:
    path = make_comparison(tmp_path / "evil", everyone=(SMALL,), seeds=1)
    change_trial(path / "trials" / "giant" / "seed-0", why="<script>alert(1)</script> =1+1 |")
    change_trial(path / "trials" / "window-16" / "seed-0", name="<b>x")
    write_comparison(path)
    page = (path / "report" / "index.html").read_text()
    assert "<script" not in page
    assert "&lt;script" in page
    assert "<b>" not in page


def test_what_is_no_comparison_is_one_line(tmp_path: Path) -> None:
    for folder, message in ((tmp_path, "no comparison"), (tmp_path / "nowhere", "not a folder")):
        with pytest.raises(UserError, match=message):
            write_comparison(folder)
    (tmp_path / "comparison.yaml").write_text("kind: compare\n")
    (tmp_path / "trials").mkdir()
    content = write(tmp_path)  # nothing begun yet
    assert content["advice"][0] == "No trial is done yet."
    (tmp_path / "comparison.yaml").write_text("kind: [")
    with pytest.raises(UserError, match=r"comparison\.yaml"):
        write_comparison(tmp_path)


def test_the_command_makes_the_page(tmp_path: Path, undrawn: None) -> None:
    path = make_comparison(tmp_path / "cli", everyone=(SMALL,), seeds=1, failed=False, rows=211)
    result = CliRunner().invoke(app, ["report", str(path), "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.output) == {"report": str(path / "report" / "index.html")}
    assert (path / "comparison.json").is_file()
    for options in (["--out", str(tmp_path / "mine")], ["--title", "Mine"], ["--title", ""]):
        refused = CliRunner().invoke(app, ["report", str(path), *options])
        assert isinstance(refused.exception, UserError)
        assert "leave out --out and --title" in str(refused.exception)
    assert not (tmp_path / "mine").exists()


def test_crossovers_by_hand() -> None:
    def twice(cost: Callable[[float], float]) -> dict[float, list[float]]:
        return {n: [cost(n), 1.001 * cost(n)] for n in (128.0, 512.0, 2048.0)}

    linear, quadratic = twice(lambda n: 7.0 * n), twice(lambda n: n * n / 100)  # equal at 700
    (found,) = crossovers({"linear": linear, "quadratic": quadratic})
    assert (found.cheaper, found.dearer, found.after, found.until) == ("linear", "quadratic", 512.0, 2048.0)
    assert found.length == pytest.approx(700.0)
    noisy = {128.0: [1.0, 1.2], 512.0: [3.0, 5.0], 2048.0: [9.0, 9.1]}
    other = {128.0: [1.3, 1.4], 512.0: [4.0, 4.1], 2048.0: [8.0, 8.1]}
    (found,) = crossovers({"a": noisy, "b": other})
    assert (found.cheaper, found.after, found.until) == ("b", 128.0, 2048.0)  # at 512 they are not told apart
    assert crossovers({"a": noisy, "b": {128.0: [1.1], 512.0: [9.0]}}) == []


def test_pareto_by_hand() -> None:
    points = {"a": (1.0, 0.5), "b": (2.0, 0.4), "c": (3.0, 0.9), "d": (3.0, 0.8), "e": (4.0, 0.9), "f": (1.0, 0.5)}
    assert pareto(points) == ["a", "f", "c"]


def test_the_mean_curve_goes_as_far_as_all() -> None:
    first = [Point(1.0, 5.0, 0.1, 11.0), Point(2.0, 6.0, 0.2, 13.0), Point(3.0, 7.0, 0.3, 17.0)]
    second = [Point(1.0, 7.0, 0.3, 11.0), Point(2.0, 10.0, 0.6, 13.0)]
    mean = mean_series([first, second])
    assert [point._replace(value=0.0) for point in mean] == [Point(1.0, 6.0, 0.0, 11.0), Point(2.0, 8.0, 0.0, 13.0)]
    assert [point.value for point in mean] == pytest.approx([0.2, 0.4])


def test_variations_stand_in_the_order_of_the_recipe(folder: Path) -> None:
    names = [variant.name for variant in read_comparison(folder).variants]
    assert names == ["bert", "reformer", "window-16", "window-128", "causal", "giant"]


@pytest.mark.parametrize(("budget", "warned"), [({"time": 180}, True), ({"tokens": 1_000_000}, False)])
def test_a_changing_load_under_a_budget_of_time_is_a_warning(
    budget: dict[str, int], warned: bool, tmp_path: Path, undrawn: None
) -> None:
    path = make_comparison(tmp_path / "timed", everyone=(BERT, SMALL), seeds=2, failed=False)
    for config in path.glob("trials/*/*/pretrain/config.yaml"):
        tree = yaml.safe_load(config.read_text())
        tree["train"]["budget"] = budget
        config.write_text(yaml.safe_dump(tree))
    change(path / "trials" / "bert" / "seed-1" / "pretrain" / "result.json", tokens=400_000)
    notices = [notice for notice in write(path)["notices"] if "budget of time" in notice]
    assert len(notices) == warned
    if warned:
        assert "bert (pretrain) saw 400k to 845k tokens" in notices[0]
