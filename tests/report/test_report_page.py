import csv
import json
import re
import warnings
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from homespun.errors import UserError
from homespun.report import formats
from homespun.report.document import (
    Column,
    Document,
    Table,
    csv_text,
    details,
    escape,
    gallery,
    markdown,
    markdown_table,
    tabular,
)
from homespun.report.error_analysis import confusion, mistakes
from homespun.report.figure import Plot, _warn_missing_glyphs, assign_looks, style
from homespun.report.page import write_report
from homespun.report.plots import BY_STEP, BY_TIME, MAX_POINTS, Line, loss_plots, smooth
from homespun.report.records import Point, read_runs
from homespun.results import Metrics

Make = Callable[..., Any]


class Parsed(HTMLParser):
    """Tags that are open at the end, all tags, and the text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in {"meta", "img", "link", "br"}:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.slow
def test_a_comparison_has_everything_in_order(tmp_path: Path, pretraining: Make, finetuning: Make) -> None:
    bert = {"folder": "full/hf", "architecture": "BertForMaskedLM", "notes": ["a note <b>"]}
    none = {"folder": None, "architecture": None, "notes": ["no family has this encoder", "ask for ONNX"]}
    window = {"attention": {"kind": "window", "radius": 31}}
    runs = [
        pretraining(tmp_path / "full", steps=101, export=bert),
        pretraining(tmp_path / "window", steps=113, backbone=window, export=none),
        pretraining(tmp_path / "pre", steps=53, end="interrupted", result=False),
        finetuning(tmp_path / "packages"),
    ]
    path = write_report(runs, tmp_path / "out", title="Which package?")
    assert path == tmp_path / "out" / "index.html"
    parsed = Parsed(path.read_text(encoding="utf-8"))
    assert parsed.open == []
    text = parsed.text.replace("\u00a0", " ")
    parts = ["Which package?", "full, window and pre", "It beat TF-IDF + linear", "pre was interrupted", "Test set"]
    parts += ["Confusion matrix", "Most frequent", "Per class", "In training", "Losses at the end"]
    parts += ["Generator loss by step", "Overall loss by time", "Learning rate", "Configuration"]
    parts += ["Settings that differ", "config.yaml of full", "Machine and versions"]
    positions = [text.index(part, text.index("</title>") if "</title>" in text else 0) for part in parts]
    assert positions == sorted(positions)
    assert re.search("hf/ of full .*BertForMaskedLM .*a note <b>", text)
    assert "window: no family has this encoder" in text
    out = tmp_path / "out"
    names = {file.name for file in (out / "tables").iterdir()}
    assert {"results.csv", "resources.csv", "losses-1.csv", "losses-2.csv", "confusion.csv", "per-class.csv"} <= names
    drawn = {file.name for file in (out / "plots").iterdir()}
    terms = ("generator", "discriminator", "overall")
    curves = {f"1-{term}-by-{axis}" for term in terms for axis in ("step", "time")}
    assert {f"{name}.{kind}" for name in curves for kind in ("svg", "png")} <= drawn
    linked = re.findall(r"\]\((plots/[^)]+)\)", (out / "report.md").read_text())
    assert linked
    assert all((out / link).is_file() for link in linked)
    with (out / "tables" / "results.csv").open() as file:
        head, first, *_ = csv.reader(file)
    assert head[:3] == ["model", "accuracy, mean", "accuracy, deviation"]
    assert float(first[1]) == pytest.approx(0.913, abs=0.02)


def test_the_page_asks_for_nothing_and_runs_nothing(tmp_path: Path, pretraining: Make) -> None:
    text = write_report([pretraining(tmp_path / "a", steps=53)], tmp_path / "out", title="t").read_text()
    parsed = Parsed(text)
    names = [tag for tag, _ in parsed.tags]
    assert not {"script", "link", "iframe", "object", "form"} & set(names)
    assert all(attrs["src"].startswith("data:image/svg+xml;base64,") for tag, attrs in parsed.tags if tag == "img")
    assert all(attrs.get("alt") for tag, attrs in parsed.tags if tag == "img")
    assert "http://" not in text.replace("http-equiv", "")
    assert "https://" not in text
    assert "@import" not in text
    assert "default-src 'none'" in text
    assert 'name="viewport"' in text


def test_names_labels_and_texts_are_data(tmp_path: Path, pretraining: Make, finetuning: Make) -> None:
    evil = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)> $\\frac$ {{ 7*7 }} | `a` =1+1"
    labels = [evil, "-->]]>", "=cmd()", "$x$ 日本語"]
    runs = [
        pretraining(tmp_path / "a", name=evil, steps=53),
        pretraining(tmp_path / "b", name="$\\alpha_{$", steps=53),
        finetuning(tmp_path / "c", name=f"c {evil}", labels=labels, rows=400, start_from=evil),
    ]
    out = tmp_path / "out"
    text = write_report(runs, out, title=evil).read_text(encoding="utf-8")
    parsed = Parsed(text)
    assert parsed.open == []
    assert not {"script", "svg"} & {tag for tag, _ in parsed.tags}
    assert not any(name.startswith("on") for _, attrs in parsed.tags for name in attrs)
    assert "{{ 7*7 }}" in parsed.text
    for svg in (out / "plots").glob("*.svg"):
        drawn = svg.read_text(encoding="utf-8")
        assert "<script" not in drawn
        assert "<img" not in drawn
    content = (out / "report.md").read_text(encoding="utf-8")
    outside_code = re.sub(r"(?ms)^(`{3,})\n.*?^\1$", "", content)
    assert "<script" not in outside_code.replace("\\<", "")
    for file in (out / "tables").glob("*.csv"):
        with file.open(encoding="utf-8") as lines:
            assert not any(cell.startswith("=") for row in csv.reader(lines) for cell in row)


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A run without curves, whose report is quick."""
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "result.json").write_text('{"name": "bare", "seconds": 3.0}')
    return tmp_path / "bare"


def test_two_tables_are_two_files(tmp_path: Path) -> None:
    results: dict[str, Any] = {"a": {"test": {"accuracy": 0.9, "rows": 7}}}
    results["b"] = {"measures": ["f1"], "test": {"f1": 0.8, "rows": 11}}
    for name, result in results.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "result.json").write_text(json.dumps({"name": name, **result}))
    page = write_report([tmp_path / name for name in results], tmp_path / "out", title="both")
    tables = {file.name: file.read_text() for file in page.parent.glob("tables/results*.csv")}
    assert set(tables) == {"results.csv", "results-2.csv"}
    assert "0.9" in tables["results.csv"]
    assert "0.8" in tables["results-2.csv"]
    alone = write_report([tmp_path / "b"], tmp_path / "alone", title="one")
    assert (alone.parent / "tables/results.csv").read_text() == tables["results-2.csv"]


def test_a_name_that_is_taken_is_given_a_number() -> None:
    one, two, three = (tabular(Table(name, title, (), ((),))) for name, title in (("a", "1"), ("a", "2"), ("a-2", "3")))
    drawn = gallery("", [Plot("a", "", b"1", b"1"), Plot("a", "", b"2", b"2")], "")
    document = Document("", one, {"": [*details("", two + drawn), *three]})
    assert [(table.name, table.title) for table in document.tables()] == [("a", "1"), ("a-2", "2"), ("a-2-2", "3")]
    assert [(plot.name, plot.svg) for plot in document.plots()] == [("a", b"1"), ("a-2", b"2")]
    assert "(plots/a-2.svg)" in markdown(document)


def test_the_same_run_gives_the_same_files(tmp_path: Path, finetuning: Make) -> None:
    run = finetuning(tmp_path / "a")
    first, second = (write_report([run], tmp_path / name, title="one").parent for name in ("one", "two"))
    files = [file.relative_to(first) for file in first.rglob("*") if file.is_file()]
    assert len(files) > 9
    assert all((first / file).read_bytes() == (second / file).read_bytes() for file in files)


def test_a_report_again_replaces_the_first_and_leaves_other_files(tmp_path: Path, bare: Path) -> None:
    run, out = bare, tmp_path / "out"
    first = write_report([run], out, title="one").read_text()
    assert "one" in first
    (out / "notes.txt").write_text("mine")
    second = write_report([run], out, title="two").read_text()
    assert first.replace("one<", "two<") == second
    assert (out / "notes.txt").read_text() == "mine"
    assert not [file for file in out.rglob("*") if file.name.startswith(".")]


def test_a_report_that_fails_half_way_leaves_the_page_as_it_was(
    tmp_path: Path, bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, out = bare, tmp_path / "out"
    write_report([run], out, title="one")
    before = (out / "index.html").read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("homespun.io.atomic.os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_report([run], out, title="two")
    assert (out / "index.html").read_bytes() == before
    assert not [file for file in out.rglob("*") if file.name.startswith(".")]


def test_a_file_in_the_way_is_one_line(tmp_path: Path, bare: Path) -> None:
    (tmp_path / "out").write_text("")
    for out in (tmp_path / "out", tmp_path / "out" / "deeper"):
        with pytest.raises(UserError, match="a file is in the way"):
            write_report([bare], out, title="t")


@pytest.mark.parametrize("metrics", ["", '{"event": "start", "step": 0, "time": 0, "parameters": 3}\n{"ev'])
def test_a_run_with_almost_nothing_has_a_page(tmp_path: Path, metrics: str) -> None:
    (tmp_path / "metrics.jsonl").write_text(metrics)
    text = write_report([tmp_path], tmp_path / "report", title="t").read_text()
    assert "did not finish" in text
    assert "<img" not in text


def test_one_step_and_one_validation_are_drawn(tmp_path: Path) -> None:
    event = {"time": 1.0, "step": 1, "loss": 3.0, "losses": {"mlm": 3.0}}
    lines = [json.dumps({"event": kind, **event}) for kind in ("step", "validation")]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    write_report([tmp_path], tmp_path / "report", title="t")
    assert (tmp_path / "report" / "plots" / "mlm-by-step.svg").is_file()


def test_seeds_in_trials_have_their_curves(tmp_path: Path, finetuning: Make) -> None:
    run = finetuning(tmp_path / "a")
    finetuning(run / "trials" / "seed-3")
    (run / "metrics.jsonl").unlink()
    page = write_report([run], tmp_path / "out", title="t").read_text()
    assert "a (seed-3)" in page
    assert "Per class (first of 3 trainings of a)" in page


def test_missing_glyphs_warn_once(tmp_path: Path, pretraining: Make, caplog: pytest.LogCaptureFixture) -> None:
    _warn_missing_glyphs.cache_clear()
    names = ["run 情報", "run \U000f1234"]  # the latter is in no font
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        write_report([pretraining(tmp_path / name) for name in names], tmp_path / "out", title="letters")
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "no font" in caplog.text
    assert "情報" in (tmp_path / "out" / "plots" / "overall-by-step.svg").read_text()


def test_other_warnings_of_a_figure_are_not_kept_back() -> None:
    with pytest.warns(UserWarning, match="something else"), style():
        warnings.warn("something else", stacklevel=1)


def test_long_curves_are_thinned_and_same_colours_are_kept(tmp_path: Path, pretraining: Make) -> None:
    runs = read_runs([pretraining(tmp_path / name, steps=53) for name in "abc"])
    series = runs[0].train["generator"]
    series[:] = [Point(float(i), float(i), float(i)) for i in range(100_000)]
    looks = assign_looks([run.name for run in runs])
    assert len({own.colour for own in looks.values()}) == 3
    lines = [Line(run.name, looks[run.name], [run]) for run in runs]
    plots = {plot.name: plot for plot in loss_plots(lines, (BY_STEP, BY_TIME), "")}
    assert set(plots) == {f"{t}-by-{x}" for t in ("generator", "discriminator", "overall") for x in ("step", "time")}
    svg = plots["generator-by-step"].svg.decode()
    longest = max(path.count("L") for path in re.findall(r' d="([^"]*)"', svg))
    assert longest < MAX_POINTS
    assert all(f"stroke: {own.colour.lower()}" in svg.lower() for own in looks.values())


def test_smoothing_keeps_length_level_and_straight_lines() -> None:
    line = np.linspace(0.0, 1.0, 503)
    assert smooth(np.full(503, 2.5)) == pytest.approx(np.full(503, 2.5))
    assert smooth(line)[10:-10] == pytest.approx(line[10:-10])
    assert smooth(np.array([])).shape == (0,)
    noise = np.random.default_rng(0).normal(size=1009)
    assert smooth(noise).std() < 0.3 * noise.std()


def test_confusion_in_percent_of_the_truth_and_its_mistakes(metrics: Make) -> None:
    found = confusion(Metrics(confusion={"labels": ["a", "b"], "counts": [[3, 1], [0, 0]]}))
    assert found.percent() == [[75.0, 25.0], [0.0, 0.0]]
    table = mistakes(found, "mistakes")
    assert table.rows == (("a", "b", 1, 0.25),)
    assert confusion(Metrics(confusion={"labels": ["a", "b"], "counts": [[1, 2]]})) is None
    assert confusion(Metrics()) is None
    many = confusion(Metrics(**metrics([f"c{i}" for i in range(41)], 0.8, rows=410)))
    assert not many.is_readable


def test_markdown_and_csv_cells() -> None:
    columns = (Column("a|b", numeric=False), Column("n"), Column("pair", formats.interval))
    table = Table("t", "T", columns, (("x\ny|<b>", 1.5, (0, 1)), ("-1", None, None), ("=1", -2.0, (None, 3))))
    assert markdown_table(Table("t", "T", columns[:2], (("x\ny|<b>", 1.5),))).splitlines() == [
        "| a\\|b | n |",
        "| --- | ---: |",
        "| x y\\|\\<b\\> | 1.5 |",
    ]
    assert csv_text(table).splitlines()[0] == 'a|b,n,"pair, low","pair, high"'
    assert csv_text(table).splitlines()[-2:] == ["'-1,,,", "'=1,-2.0,,3"]
    assert escape("[x](y) *z*") == "\\[x\\](y) \\*z\\*"
