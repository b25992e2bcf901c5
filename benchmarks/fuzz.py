"""Fuzzing of the command line: mutated files of every supported input format.

``python -m benchmarks fuzz --inputs 10000`` mutates valid files of each format with seeds 0, 1, ... and runs the
command that reads them, in a child process that handles many inputs. A finding is an input that ends in

- an exit code other than 0 and 2, or a crash of the child;
- an error that is not one escaped line of less than 500 characters;
- more than 10 seconds, or a child above 2 GB of memory;
- an output folder that remains after an error;
- execution of code in the input: the payloads write a file.

Findings are listed with format and seed; ``--only FORMAT --first SEED --inputs 1 --keep FOLDER`` repeats one.
``--outcomes FILE`` appends each outcome to a file, and skips inputs that are in the file, so that a campaign can
continue.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.fuzz_inputs import FORMATS
from benchmarks.fuzz_seeds import write_seeds

SECONDS, MEMORY = 10.0, 2_000_000_000
MARK = "executed"  # the file that payloads write


def run(arguments: list[str]) -> dict[str, Any]:
    """Run the campaign."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=1000, help="number of inputs, the same for each format")
    parser.add_argument("--only", choices=FORMATS, action="append", help="format; default: all")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--keep", type=Path, help="folder to work in, which is kept; default: a temporary one")
    parser.add_argument("--outcomes", type=Path, help="file for the outcomes; inputs that it has are skipped")
    options = parser.parse_args(arguments)
    names = options.only or list(FORMATS)
    jobs = [(names[number % len(names)], options.first + number // len(names)) for number in range(options.inputs)]
    with contextlib.ExitStack() as stack:
        folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        return {"ours": campaign(jobs, folder.resolve(), (options.outcomes or folder / "outcomes.jsonl").resolve())}


def campaign(jobs: Sequence[tuple[str, int]], folder: Path, file: Path) -> dict[str, Any]:
    """Run all jobs, pairs of format and seed, that are not in ``file``; return counts and findings of all jobs."""
    write_seeds(folder / "seeds")
    file.touch()
    outcomes = {(each["format"], each["seed"]): each for each in map(json.loads, file.read_text().splitlines())}
    child = Child(folder)
    with file.open("a") as stream, contextlib.closing(child):
        for number, (name, seed) in enumerate(jobs):
            if (name, seed) in outcomes:
                continue
            outcome = outcomes[name, seed] = {"format": name, "seed": seed, **child.run(name, seed)}
            print(json.dumps(outcome), file=stream, flush=True)
            if outcome["problems"]:
                print(f"finding: {json.dumps(outcome)[:2000]}", file=sys.stderr, flush=True)
            if number % 100 == 99:
                print(f"{time.strftime('%H:%M')} {number + 1:,} inputs", file=sys.stderr, flush=True)
    done = [outcomes[job] for job in jobs]
    formats = {}
    for name in dict(jobs):
        of_format = [each for each in done if each["format"] == name]
        ends = Counter(
            "findings" if each["problems"] else "refused" if each["status"] else "accepted" for each in of_format
        )
        formats[name] = {"inputs": len(of_format), **ends}
    return {
        "inputs": len(jobs),
        "formats": formats,
        "slowest_seconds": max(each["seconds"] for each in done),
        "peak_bytes": max(each["peak_bytes"] for each in done),
        "findings": [each for each in done if each["problems"]],
    }


class Child:
    """Process that handles inputs, replaced when an input ends it or exceeds time or memory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process: subprocess.Popen[str] | None = None

    def run(self, name: str, seed: int) -> dict[str, Any]:
        """Handle one input."""
        if self.process is None:
            command = [sys.executable, "-m", "benchmarks.fuzz", str(self.folder)]
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            self._answer(120)  # imports
        assert self.process.stdin is not None
        self.process.stdin.write(f"{name} {seed}\n")
        self.process.stdin.flush()
        outcome, peak = self._answer(SECONDS), self._memory()
        if outcome is not None:
            if peak > MEMORY:
                outcome["problems"].append(f"{peak:,} bytes of memory")
                self.close()
            return {**outcome, "peak_bytes": peak}
        status = self.process.poll()
        self.close()
        problem = f"child ended with {status}" if status is not None else "time or memory exceeded"
        return {"status": status, "problems": [problem], "seconds": SECONDS, "text": "", "peak_bytes": peak}

    def _answer(self, seconds: float) -> dict[str, Any] | None:
        """Return the answer of the process; None if it ended, or exceeded processor time or memory."""
        assert self.process is not None
        assert self.process.stdout is not None
        start, wall = self._cpu(), time.monotonic()
        while True:
            ready, _, _ = select.select([self.process.stdout], [], [], 0.1)
            if ready:
                line = self.process.stdout.readline()
                return json.loads(line) if line else None
            # the core may be shared: processor time counts, and a wait of six times as long
            if self._cpu() - start > seconds or time.monotonic() - wall > 6 * seconds or self._memory() > MEMORY:
                return None

    def _cpu(self) -> float:
        assert self.process is not None
        with contextlib.suppress(OSError, IndexError):
            fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return 0.0

    def _memory(self) -> int:
        """Return the peak memory of the process so far."""
        assert self.process is not None
        with contextlib.suppress(OSError, IndexError):
            status = Path(f"/proc/{self.process.pid}/status").read_text()
            return int(status.partition("VmHWM:")[2].split()[0]) * 1024
        return 0

    def close(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None


def handle(name: str, seed: int, folder: Path) -> dict[str, Any]:
    """Write one input, run its command in this process, and list the problems."""
    work = folder / "work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    os.chdir(work)
    words = FORMATS[name](random.Random(f"{name} {seed}"), folder / "seeds", work)
    before = {path.name for path in work.iterdir()}
    start = time.process_time()
    status, text = call(words)
    seconds = time.process_time() - start
    problems = [] if status in (0, 2) else [f"exit code {status}"]
    if status == 2:
        lines = text.split("\n")
        errors = [line for line in lines if line.startswith("error: ")]
        if len(errors) != 1 or len(text.splitlines()) != 1 or lines[-1]:
            problems.append("not one line")
        if len(text) >= 500:
            problems.append("500 characters or more")
        left = {path.name for path in work.iterdir()} - before - {MARK}
        if left:
            problems.append(f"left {sorted(left)}")
    if not text.translate({10: None, 0xA0: None}).isprintable():
        problems.append("not escaped")
    if (work / MARK).exists():
        problems.append("code was executed")
    if seconds > SECONDS:
        problems.append(f"{seconds:.0f} seconds")
    return {
        "status": status,
        "problems": problems,
        "seconds": seconds,
        "text": text[-1500:] if problems else text[:200],
    }


def call(words: Sequence[str]) -> tuple[int, str]:
    """Run a command in this process; return exit code and standard error, including output of libraries."""
    from homespun.cli import main

    old = sys.argv
    saved = os.dup(1), os.dup(2)
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        os.dup2(output.fileno(), 1)
        os.dup2(errors.fileno(), 2)
        sys.argv = ["homespun", *words]
        try:
            main()
        except SystemExit as error:
            status = error.code if isinstance(error.code, int) else 0
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            status = 1
        finally:
            sys.argv = old
            sys.stdout.flush()
            sys.stderr.flush()
            for number, descriptor in zip((1, 2), saved, strict=True):
                os.dup2(descriptor, number)
                os.close(descriptor)
        errors.seek(0)
        return status, errors.read().decode(errors="backslashreplace")


def serve(folder: Path) -> None:
    """Handle the inputs named on standard input, one a line."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    print("{}", file=answers, flush=True)
    for line in sys.stdin:
        name, seed = line.split()
        print(json.dumps(handle(name, int(seed), folder)), file=answers, flush=True)


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
