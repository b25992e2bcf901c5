"""Command names: their Python functions, help, unknown commands."""

import errno
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.core import TyperGroup
from typer.testing import CliRunner

import homespun
from homespun import cli
from homespun.cli import app
from homespun.cli.options import SECTIONS, print_line, print_text
from homespun.errors import UserError, escape, one_line
from homespun.io.lock import locked

# commands whose function has another name: `homespun.NAME` may be a package, or too vague
FUNCTIONS = {
    "baselines": "measure_baselines",
    "compare": "run_comparison",
    "corpus build": "make_corpus",
    "corpus lengths": "corpus_lengths",
    "corpus verify": "verify_corpus",
    "distill finetune": "distill",
    "distill pretrain": "distill",
    "few-shot": "few_shot",
    "recipes show": "load_recipe",
    "report": "write_report",
    "show alignment": "show_alignment",
    "show attention": "show_attention",
    "show batch": "show_batch",
    "tokenizer extend": "extend_tokenizer",
    "tokenizer train": "train_tokenizer",
    "vectors init-model": "init_model",
    "vectors convert": "save_vectors",
    "vectors evaluate": "measure_vectors",
    "vectors map": "map_vectors",
    "vectors train": "train_vectors",
}
WITHOUT = {
    "recipes list": "names of files in the package; a function takes any of them",
    "recipes schema": "for editors",
    "vectors analogy": "a method of what `open_vectors` gives",
    "vectors similar": "a method of what `open_vectors` gives",
}


def commands(group: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every command with the words that name it, groups among them."""
    for name, command in group.commands.items():
        yield f"{path}{name}", command
        if isinstance(command, TyperGroup):
            yield from commands(command, f"{path}{name} ")


COMMANDS = dict(commands(typer.main.get_command(app)))
VERBS = [name for name, command in COMMANDS.items() if not isinstance(command, TyperGroup)]


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb not in WITHOUT])
def test_every_command_has_its_function(verb: str) -> None:
    name = FUNCTIONS.get(verb, verb)
    assert name in homespun.__all__
    assert callable(getattr(homespun, name))


def test_the_tables_name_commands() -> None:
    assert {*FUNCTIONS, *WITHOUT} <= set(VERBS)
    assert not FUNCTIONS.keys() & WITHOUT.keys()


@pytest.mark.parametrize("name", homespun.__all__)
def test_no_function_has_the_name_of_a_package(name: str) -> None:
    """Which would take its place as soon as it is imported."""
    assert importlib.util.find_spec(f"homespun.{name}") is None


@pytest.mark.parametrize("group", ["", *(name for name in COMMANDS if name not in VERBS)])
def test_no_description_is_cut(group: str) -> None:
    result = CliRunner().invoke(app, [*group.split(), "--help"], env={"COLUMNS": "80"})
    assert result.exit_code == 0
    listed = result.output.partition("--help ")[2].partition("\n\n")[2]
    assert listed
    assert "..." not in listed


@pytest.mark.parametrize("verb", VERBS)
def test_the_usage_has_one_ellipsis_an_argument(verb: str) -> None:
    usage = CliRunner().invoke(app, [*verb.split(), "--help"], env={"COLUMNS": "80"}).output.partition("\n\n")[0]
    assert "[OPTIONS]" in usage
    assert "...]..." not in usage
    assert "...}..." not in usage


def test_help_lists_every_command_in_one_section() -> None:
    listed = [name for names in SECTIONS.values() for name in names]
    assert sorted(listed) == sorted(name for name in COMMANDS if " " not in name)
    output = CliRunner().invoke(app, ["--help"]).output
    assert [output.index(f"\n{section}:\n") for section in SECTIONS] == sorted(
        output.index(f"\n{section}:\n") for section in SECTIONS
    )
    assert all(f"\n  {name} " in output for name in listed)


def test_version_is_printed() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.output) == (0, f"homespun {version('homespun')}\n")
    assert version("homespun") == homespun.__version__


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["pretain"], "has no command 'pretain'; did you mean 'pretrain'?"),
        (["corpus", "bild"], "corpus has no command 'bild'; did you mean 'build'?"),
        (["corpus", "qqq"], "corpus has no command 'qqq'; there are: build, lengths, verify"),
        (["corpus", "arena"], "corpus has no command 'arena'; there are: build, lengths, verify"),
        (["arena", "listops", "--models", "full"], "python -m benchmarks lra"),
        (["senses"], "senses was removed"),
    ],
)
def test_unknown_command(words: list[str], message: str) -> None:
    result = CliRunner().invoke(app, words)
    assert isinstance(result.exception, UserError)
    assert str(result.exception).endswith(message)


@pytest.mark.parametrize(
    ("error", "fix"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "model.safetensors"), "free disk space"),
        (Exception("Error while serializing: I/O error: No space left on device (os error 28)"), "free disk space"),
        (RuntimeError("unable to open file <x> in read-only mode: Too many open files (24)"), "ulimit -n"),  # of torch
        (MemoryError(), "out of memory; close"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory\nx"), "take smaller batches"),
        (RuntimeError("could not create a primitive"), "out of memory (could not create a primitive)"),
        (RuntimeError("can't start new thread"), "out of memory"),
        (RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. "), "--resume"),
        (ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)), "--resume"),
        (OSError("got end of file during message"), "--resume"),
        (EOFError(), "--resume"),
        (OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)), "out of memory"),
    ],
)
def test_limits_of_the_system_are_one_line(
    error: Exception, fix: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = typer.Typer()

    @program.command()
    def fail() -> None:
        raise error

    monkeypatch.setattr(cli, "app", program)
    monkeypatch.setattr(sys, "argv", ["homespun"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 2
    (line,) = capsys.readouterr().err.strip().splitlines()  # typer prints an empty line before an EOFError
    assert fix in line


def test_a_command_is_refused_while_another_writes_its_output(tmp_path: Path) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("one text\n" * 50)
    words = ["tokenizer", "train", "--input", str(texts), "--vocab-size", "265", "--out", str(tmp_path / "tokenizer")]
    with locked(tmp_path / "tokenizer"):
        refused = CliRunner().invoke(app, words)
    assert isinstance(refused.exception, UserError)
    assert "is written by process" in str(refused.exception)
    assert CliRunner().invoke(app, words).exception is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["texts.txt", "tokenizer"]


def refused(*words: str) -> str:
    """The message of a command that is refused; one line of less than 500 printable characters."""
    program = "import sys; sys.argv[0] = 'homespun'; from homespun.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    line, end, rest = done.stderr.partition("\n")
    assert (line[:7], end, rest) == ("error: ", "\n", "")
    assert line.isprintable()
    assert len(line) < 500
    return line


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["plan", "a\nb\x1b[31m"], r"a\nb\x1b[31m"),
        (["plan", "bert-mini", f"train.seed={'x' * 5000}"], "train.seed"),
        (["plan", "bert-mini", f"{'x' * 5000}=1"], "there are"),
        (["plan", "--a\x1bb"], r"--a\x1bb"),
        (["plan"], "homespun plan --help"),
        (["corpus", "build", "--input", "\x1b[2J\n.txt", "--tokenizer", "t", "--out", "c"], r"\x1b[2J\n.txt"),
    ],
)
def test_a_refusal_is_one_short_escaped_line(words: list[str], shown: str) -> None:
    assert shown in refused(*words)


def test_log_messages_are_one_escaped_line() -> None:
    code = (
        "import logging; from homespun.errors import shorten_warnings; shorten_warnings();"
        r"logging.getLogger('homespun.x').warning('%s', 'a\nb\x1b[2J' + 'x' * 5000)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    (line,) = ended.stderr.splitlines()
    assert line.startswith(r"a\nb\x1b[2Jxxx")
    assert len(line) < 500


def test_printed_texts_cannot_control_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_line("note: a\nb\x1b[2J")
    print_text("one\n\ttwo\x1b]0;x\x07\r\x9b\ud800 \u3000\u200d")
    assert capsys.readouterr().out == "note: a\\nb\\x1b[2J\none\n\ttwo\\x1b]0;x\\x07\\r\\x9b\\ud800 \u3000\u200d\n"


def test_one_line_keeps_both_ends() -> None:
    text = one_line(f"x=\x9b\u202e{'y' * 10_000}; set x=1")
    assert text.startswith(r"x=\x9b\u202eyyy")
    assert text.endswith("yyy; set x=1")
    assert len(text) < 490
    assert escape("0.2\xa0s \ud800") == "0.2\xa0s \\ud800"
