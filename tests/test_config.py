import re
from pathlib import Path
from typing import Annotated, Literal

import pytest
import yaml
from pydantic import Field, ValidationError

from homespun.config import Config, Count, Duration, dump, override, parse_count, parse_duration, read_yaml, validate
from homespun.errors import UserError, nearest


class Learned(Config):
    kind: Literal["learned"] = "learned"
    offset: int = Field(default=0, ge=0)
    window: int = 0  # named as another member's tag, on purpose


class Window(Config):
    kind: Literal["window"] = "window"
    radius: int = Field(default=64, ge=1)
    inner: "Part" = Learned()


class Limited(Config):
    kind: Literal["limited"] = "limited"
    limit: int = 3


Part = Annotated[Learned | Window, Field(discriminator="kind")]
Window.model_rebuild()


class Budget(Config):
    time: Duration | None = None
    tokens: Count | None = None


class Train(Config):
    budget: Budget = Budget()
    workers: Annotated[int, Field(ge=0)] | Literal["auto"] = "auto"
    names: tuple[str, ...] | str = ""
    learning_rate: float = Field(default=1e-4, gt=0)


class Recipe(Config):
    train: Train = Train()
    part: Part = Learned()
    parts: tuple[Part, ...] = ()
    maybe: Part | None = None
    corpus: Path | None = None
    text: str = "text"


def wrong(tree: dict) -> str:
    with pytest.raises(UserError) as caught:
        validate(Recipe, tree, source="recipe.yaml")
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith("recipe.yaml: ")
    return message.removeprefix("recipe.yaml: ")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [(90, 90), ("90", 90), ("90s", 90), ("20m", 1200), ("2h", 7200), ("1h30m", 5400), ("1.5d", 129600), (0.5, 0.5)],
)
def test_durations(text: object, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "2 weeks", "h", "-2h", "2h-", True, None, 0, -1, "0s", float("nan"), float("inf")]
)
def test_what_is_no_duration(text: object) -> None:
    with pytest.raises(ValueError, match="duration"):
        parse_duration(text)


EXACT = {"0.29M": 290_000, "4.35M": 4_350_000, str(2**60 + 1): 2**60 + 1}  # floats are not


def test_counts() -> None:
    written = {0: 0, 1000: 1000, "1_000": 1000, "250k": 250_000, "10M": 10**7, "1.5B": 1_500_000_000, "1.1k": 1100}
    for text, number in (written | EXACT).items():
        assert parse_count(text) == number


@pytest.mark.parametrize("number", [float("inf"), float("nan")])
def test_numbers_are_finite(number: float) -> None:
    assert re.search("rate: .*finite", wrong({"train": {"learning_rate": number}}))


@pytest.mark.parametrize("text", ["", "k", "-5", "ten", True, None, 1.7, "1.7", "0.0001k"])
def test_what_is_no_count(text: object) -> None:
    with pytest.raises(ValueError, match="not a count"):
        parse_count(text)


def test_override_sets_nested_keys_and_leaves_the_original() -> None:
    tree = {"train": {"budget": {"tokens": 5}}, "parts": [{"kind": "learned"}]}
    result = override(tree, ["train.budget.time=2h", "train.seed=7", "new.key.path=[1, 2]", "empty="])
    assert result["train"] == {"budget": {"tokens": 5, "time": "2h"}, "seed": 7}
    assert result["new"] == {"key": {"path": [1, 2]}}
    assert result["empty"] == ""
    assert tree == {"train": {"budget": {"tokens": 5}}, "parts": [{"kind": "learned"}]}
    result["parts"][0]["kind"] = "changed"
    assert tree["parts"][0]["kind"] == "learned"


def test_override_reads_values_as_yaml_and_keeps_what_is_none() -> None:
    written = ["a=true", "b=null", "c=0.5", "d=x=y", "e={f: 1}", "g='12'", "h=data/*.csv", "i=[unclosed"]
    written += ["j=!!python/object/apply:os.getcwd []", "k=~", "l=''", "m="]
    expected = {"a": True, "b": None, "c": 0.5, "d": "x=y", "e": {"f": 1}, "g": "12", "h": "data/*.csv"}
    expected |= {"i": "[unclosed", "j": "!!python/object/apply:os.getcwd []", "k": None, "l": "", "m": ""}
    assert override({"b": 1, "m": 1}, written) == expected


@pytest.mark.parametrize("text", ["|", ">", "#", "-", ":", "?", " ", "*", ";", ","])
def test_override_takes_what_yaml_makes_nothing_of_as_it_stands(text: str) -> None:
    assert override({}, [f"data.separator={text}"]) == {"data": {"separator": text}}


def test_the_last_assignment_wins_and_null_is_no_wall() -> None:
    assert override({"a": None}, ["a.b=1", "a.b=2"]) == {"a": {"b": 2}}


@pytest.mark.parametrize("assignment", ["train.seed", "=5", ""])
def test_override_refuses_what_is_no_assignment(assignment: str) -> None:
    with pytest.raises(UserError, match="KEY=VALUE"):
        override({}, [assignment])


def test_override_refuses_a_path_through_a_value() -> None:
    with pytest.raises(UserError, match=r"'train\.seed\.deep'.*'seed' .*3"):
        override({"train": {"seed": 3}}, ["train.seed.deep=1"])


@pytest.mark.parametrize(
    ("tree", "key", "right"),
    [
        ({"trian": {}}, "trian", "train"),
        ({"tokens": 5}, "tokens", "train.budget.tokens"),  # the only key of this name
        ({"train": {"tokens": 5}}, "train.tokens", "train.budget.tokens"),
        ({"train": {"budjet": {}}}, "train.budjet", "train.budget"),
        ({"train": {"budget": {"tokns": 5}}}, "train.budget.tokns", "train.budget.tokens"),
        ({"part": {"kind": "learned", "ofset": 1}}, "part.ofset", "part.offset"),
        ({"part": {"kind": "window", "radios": 1}}, "part.radios", "part.radius"),
        ({"maybe": {"kind": "window", "radios": 1}}, "maybe.radios", "maybe.radius"),
        ({"parts": [{"kind": "window", "radios": 1}]}, "parts.0.radios", "parts.0.radius"),
        (
            {"part": {"kind": "window", "inner": {"kind": "learned", "ofset": 1}}},
            "part.inner.ofset",
            "part.inner.offset",
        ),
    ],
)
def test_wrong_keys_name_the_nearest_right_one(tree: dict, key: str, right: str) -> None:
    assert wrong(tree) == f"unknown key '{key}'; did you mean '{right}'?"


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"part": {"kind": "windwo"}}, "^part.kind: .*'windwo'.*'window'"),
        ({"part": {"kind": "zzz"}}, "^part.kind: .*'zzz'.*: learned, window$"),
        ({"part": {"radius": 3}}, "^part: 'kind' is missing"),
        ({"qqq": 1}, "'qqq'.*: corpus, maybe, part, parts, text, train$"),
        ({"part": {"kind": "window", "radius": 0}}, "^part.radius: .* 1 .*given 0"),
        ({"train": {"learning_rate": -1}}, "^train.learning_rate: .* 0 .*given -1"),
        ({"text": 5}, "^text: .*given 5"),
        ({"train": {"workers": -1}}, "^train.workers: [^;]* 0 .*given -1.; train.workers: .*'auto'"),
        ({"train": {"names": ["a", 5]}}, "^train.names.1: [^;]*given 5.; train.names: "),
        ({1: 2}, "^1: .*given 1"),
        ({"train": {"budget": {"time": "soon"}}}, "'soon' .*90s"),
    ],
)
def test_errors_name_the_key_the_value_and_what_is_allowed(tree: dict, message: str) -> None:
    assert re.search(message, wrong(tree))


def test_a_key_of_another_kind_is_not_its_own_suggestion() -> None:
    class Single(Config):
        part: Annotated[Learned | Limited, Field(discriminator="kind")]

    with pytest.raises(UserError, match=r"unknown key 'part\.limit'; there are: kind, offset, window"):
        validate(Single, {"part": {"kind": "learned", "limit": 3}}, source="x")


def test_every_problem_is_named_at_once() -> None:
    message = wrong({"trian": 1, "text": 5, "part": {"kind": "window", "radius": 0}})
    assert message.count(";") >= 2
    assert all(name in message for name in ("trian", "text", "part.radius"))


def test_nearest_names_one_or_all() -> None:
    assert nearest("radios", ["radius", "kind"]) == "; did you mean 'radius'?"
    assert nearest("x", []) == "; there are none"


def test_configs_are_frozen() -> None:
    config = validate(Recipe, {}, source="test")
    with pytest.raises(ValidationError, match="frozen"):
        config.text = "other"


def test_dump_and_validate_are_inverse(tmp_path: Path) -> None:
    tree = {
        "train": {"budget": {"time": "1h30m", "tokens": "250k"}, "learning_rate": 5e-5},
        "part": {"kind": "window", "radius": 3, "inner": {"kind": "window", "inner": {"kind": "learned", "offset": 2}}},
        "parts": [{"kind": "window"}, {"kind": "learned"}],
        "corpus": "some/føldér",
        "text": "yes",  # a word that YAML would read as true
    }
    config = validate(Recipe, tree, source="test")
    path = tmp_path / "config.yaml"
    path.write_text(dump(config), encoding="utf-8")
    again = validate(Recipe, read_yaml(path), source=str(path))
    assert again == config
    assert dump(again) == dump(config)
    assert again.train.budget.time == 5400
    assert list(yaml.safe_load(dump(config))) == list(Recipe.model_fields)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1,\nb: 2", "is not valid YAML"),
        ("a: !!python/object/apply:os.getcwd []", "is not valid YAML: could not determine a constructor"),
        ("- 1\n- 2", "must hold a mapping of keys to values, not list"),
        ("", "must hold a mapping of keys to values, not NoneType"),
    ],
)
def test_bad_yaml_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError) as caught:
        read_yaml(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_and_undecodable_files_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"missing\.yaml"):
        read_yaml(tmp_path / "missing.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"a: caf\xe9")
    with pytest.raises(UserError, match="YAML"):
        read_yaml(tmp_path / "latin.yaml")


_ALIASES = "\n".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9 if n else 'x' * 9)}]" for n in range(9))


@pytest.mark.parametrize(
    "text",
    [
        "a: !!int x",
        "a: !!float x",
        "!!bool x: 1",
        "a: !!set {b}",
        f"a: {'1' * 6000}",
        "a: &a [*a]",
        "[" * 20_000,
        "{a: " * 5000 + "1" + "}" * 5000,
        _ALIASES,
        "a: 1\n" * 190_000,
        "a: 1\n" * 250_000,
    ],
)
def test_malformed_yaml_is_refused_quickly(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=re.escape(str(path))):
        read_yaml(path)
    if len(text) < 1000:
        assert override({}, [f"key={text}"]) == {"key": text}  # not YAML


def test_yaml_reads_dates_as_strings_and_few_aliases(tmp_path: Path) -> None:
    path = tmp_path / "good.yaml"
    path.write_text("a: 2020-99-99\nb: &b {c: 2020-01-01}\nd: [*b, *b]\ne: {<<: *b, f: 1}", encoding="utf-8")
    b = {"c": "2020-01-01"}
    assert read_yaml(path) == {"a": "2020-99-99", "b": b, "d": [b, b], "e": {**b, "f": 1}}
