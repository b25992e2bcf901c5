import io

import pytest
from rich.console import Console

from homespun.report import console, formats
from homespun.report.console import Display, rich_table
from homespun.report.document import Column, Table, texts


class Clock:
    """Time that passes only when told."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(console, "time", clock)
    return clock


def lines(out: io.StringIO) -> list[str]:
    return out.getvalue().replace("\u00a0", " ").splitlines()


def test_without_a_terminal_a_line_every_ten_seconds_and_one_at_the_end(clock: Clock) -> None:
    out = io.StringIO()
    with Display(stream=out) as display:
        task = display.task("building", total=1000, unit="tokens")
        for second in range(1, 26):
            clock.now += 1.0
            task.update(40 * second, note="loss 3.21")
        task.update(1000)
    assert lines(out) == [
        "building: 40 %, 40.0 tokens/s, 10.0 s, 15.0 s left, loss 3.21",
        "building: 80 %, 40.0 tokens/s, 20.0 s, 5.00 s left, loss 3.21",
        "building: 100 %, 40.0 tokens/s, 25.0 s, loss 3.21",
    ]


def test_a_resumed_share_is_not_taken_for_speed(clock: Clock) -> None:
    out = io.StringIO()
    with Display(stream=out) as display:
        task = display.task("pretrain", total=1.0)
        task.update(0.6, rate="12.3k tokens/s")
        clock.now += 20.0
        task.update(0.8, rate="12.3k tokens/s")
    assert lines(out) == ["pretrain: 80 %, 12.3k tokens/s, 20.0 s, 20.0 s left"]


def test_what_the_work_knows_of_the_time_left_is_shown(clock: Clock) -> None:
    out = io.StringIO()
    with Display(stream=out) as display:
        task = display.task("pretrain", total=1.0)
        clock.now += 20.0  # a resumed run reads its state before it reports
        task.update(0.6, left=95.0)
    assert lines(out) == ["pretrain: 60 %, 20.0 s, 1 m 35 s left"]


def test_a_task_that_is_complete_at_its_start_has_no_duration(clock: Clock) -> None:
    out = io.StringIO()
    with Display(stream=out) as display:
        task = display.task("reading", total=1.0)
        clock.now += 5e-5
        task.update(1.0, note="93 kB")
    assert lines(out) == ["reading: 100 %, 93 kB"]


def test_an_unknown_total_shows_an_amount(clock: Clock) -> None:
    out = io.StringIO()
    with Display(stream=out) as display:
        task = display.task("reading", total=None, unit="texts")
        clock.now += 10.0
        task.update(12_345)
    assert "reading: 12.3k texts, 1.23k texts/s" in out.getvalue()
    assert "left" not in out.getvalue()


def test_json_is_silent_and_a_terminal_has_bars() -> None:
    silent, terminal = Terminal(), Terminal()
    for stream, json in ((silent, True), (terminal, False)):
        with Display(json=json, stream=stream) as display:
            task = display.task("[bold]x[/bold]\x1b[31m", total=4, unit="texts")
            task.update(2, note="note [/x]")
            task.update(4)
    assert silent.getvalue() == ""
    assert "[bold]x[/bold]\ufffd[31m" in terminal.getvalue()
    assert "100 %" in terminal.getvalue()


def test_bars_are_put_away_after_an_error() -> None:
    terminal = Terminal()

    def work() -> None:
        with Display(stream=terminal) as display:
            display.task("x", total=1.0).update(0.5)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()
    assert terminal.getvalue().rstrip().endswith("\x1b[?25h")  # the cursor is shown again


def test_tables_show_markup_and_control_characters_as_they_are() -> None:
    columns = (Column("name", numeric=False), Column("accuracy", formats.percent))
    table = Table("t", "[red]T[/red]", columns, (("[bold]a[/bold]\x1b[2J", 0.5), ("b", None)), note="so")
    out = io.StringIO()
    Console(file=out, width=80).print(rich_table(table))
    text = out.getvalue()
    assert "[red]T[/red]" in text
    assert "[bold]a[/bold]\ufffd[2J" in text
    assert "\x1b" not in text
    assert formats.DASH in text


def test_numbers_are_not_broken_and_wide_tables_stand_on_their_side(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    durations = [Column(f"seconds per iteration {i}", formats.duration) for i in range(7)]
    rows = (("a", *range(83, 90)), ("b", *[None] * 7))
    table = Table("t", "T", (Column("run", numeric=False), *durations), rows)
    for width in ("60", "120"):
        monkeypatch.setenv("COLUMNS", width)
        console.print_tables(table)
        shown = capsys.readouterr().out.splitlines()
        assert max(map(len, shown)) <= int(width)
        assert sum(" 1 m 23 s" in line for line in shown) == 1
        assert any(" 1 m 23 s" in line and " 1 m 29 s" in line for line in shown) == (width == "120")


def test_no_column_of_a_wide_table_is_cut(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    columns = (*texts(*(f"column {i}" for i in range(7))), Column("count", lambda value: f"{value:,}"))
    rows = tuple((*[f"row {number}, cell {i}" for i in range(7)], number) for number in range(1_000, 1_011))
    monkeypatch.setenv("COLUMNS", "80")
    console.print_tables(Table("t", "T", columns, rows, note="a note"))
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    assert shown.count("a note") == 1
    assert all(f" {number:,} " in shown for number in range(1_000, 1_011))
