import pytest

from homespun.report import formats


def plain(text: str) -> str:
    return text.replace("\u00a0", " ")


@pytest.mark.parametrize(
    ("seconds", "written"),
    [
        (0.0421, "0.042 s"),
        (1.234, "1.23 s"),
        (12.34, "12.3 s"),
        (59.96, "1 m 00 s"),
        (83, "1 m 23 s"),
        (3599.6, "1 h 00 m"),
        (7500, "2 h 05 m"),
        (86399, "1 d 00 h"),
        (-1, "–"),
        (None, "–"),
        (float("nan"), "–"),
    ],
)
def test_durations(seconds: float | None, written: str) -> None:
    assert plain(formats.duration(seconds)) == written


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (0, "0"),
        (512, "512"),
        (999, "999"),
        (999_600, "1.00M"),
        (12_345, "12.3k"),
        (4_560_000, "4.56M"),
        ("x", "–"),
        (10**400, "–"),
    ],
)
def test_counts(value: object, written: str) -> None:
    assert formats.count(value) == written


@pytest.mark.parametrize(
    ("value", "written"), [(1_934_000_000, "1.93 GB"), (512_300_000, "512 MB"), (2_000, "2 kB"), (None, "–")]
)
def test_memory(value: object, written: str) -> None:
    assert plain(formats.memory(value)) == written


def test_losses_rates_and_points() -> None:
    assert [formats.loss(x) for x in (3.14159, 0.04213, 123.44, float("inf"))] == ["3.142", "0.0421", "123.4", "–"]
    assert [formats.rate(x) for x in (0, 8.512, 12_345, True)] == ["0", "8.51", "12.3k", "–"]
    assert [formats.points(x) for x in (0.0123, -0.004)] == ["+1.2", "−0.4"]
    assert plain(formats.spread((0.9151, 0.0031))) == "91.5 ± 0.3 %"
    assert plain(formats.spread((0.9151, None))) == "91.5 %"
    assert formats.step_seconds(0.5) == "0.500"


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0, "0"), (0.25, "0.25"), (4000, "4,000"), (20_000, "20k"), (162_500, "162.5k"), (-3e6, "-3M"), (1.25e9, "1.25B")],
)
def test_numbers_at_an_axis(value: float, expected: str) -> None:
    assert formats.tick(value) == expected
