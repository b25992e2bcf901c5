"""Freeze what training computes, so that a refactoring can be shown to change nothing.

``python -m benchmarks.frozen write FILE`` runs small trainings of every objective, backbone, attention and task and
writes their losses bit by bit, the names and digests of their weights and of what is exported, the keys of their
``result.json``, the digests of their predictions, and the options of every command. ``python -m benchmarks.frozen
compare OLD NEW`` prints what differs. Losses are equal bit by bit only on the same machine: write the file of the
older commit there, in a worktree of it.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import torch
import typer
from safetensors import safe_open

from benchmarks.frozen import cases, texts
from homespun.cli import app


def main(words: list[str]) -> int:
    if len(words) >= 2 and words[0] == "write":
        torch.set_num_threads(1)
        with tempfile.TemporaryDirectory() as folder:
            found = freeze(Path(folder), words[2:])
        Path(words[1]).write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        return int(any("error" in one for one in found.values()))
    if len(words) == 3 and words[0] == "compare":
        old, new = (json.loads(Path(word).read_text(encoding="utf-8")) for word in words[1:])
        differences = list(compare(old, new))
        print(*differences, f"{len(differences)} differences in {len(old)} runs", sep="\n")
        return int(bool(differences))
    print(__doc__)
    return 2


def freeze(folder: Path, names: list[str]) -> dict[str, Any]:
    """The frozen facts of every run, or of those that are named and what they start from."""
    data, runs = folder / "data", folder / "runs"
    prepare(data)
    found: dict[str, Any] = {} if names else {"cli": options(typer.main.get_command(app))}
    for name, words in cases.commands(data, runs).items():
        if names and name not in names:
            continue
        began = time.perf_counter()
        try:
            run(*words, "--out", str(runs / name.removesuffix("+")))
            found[name] = facts(runs / name.removesuffix("+"))
        except Exception as error:
            found[name] = {"error": f"{type(error).__name__}: {error}"}
            traceback.print_exc()
        print(f"{name}: {time.perf_counter() - began:.1f} s", file=sys.stderr, flush=True)
    return found


def options(command: Any, prefix: str = "homespun") -> dict[str, list[str]]:
    """The options of every command by its name."""
    found = {prefix: sorted(opt for parameter in command.params for opt in parameter.opts)}
    for name, one in getattr(command, "commands", {}).items():
        found |= options(one, f"{prefix} {name}")
    return found


def prepare(data: Path) -> None:
    """Files, a corpus with sentences of a tokenizer with sentinels, and a corpus of words."""
    texts.write(data)
    reads = ["--input", str(data / "train.csv"), "--text-field", "text"]
    pieces, words = (
        ["--vocab-size", "400", "--sentinels", "20"],
        ["--kind", "words", "--vocab-size", "50", "--lowercase"],
    )
    for prefix, settings, split in (("", pieces, ["--sentences"]), ("words-", words, [])):
        tokenizer, corpus = (str(data / f"{prefix}{name}") for name in ("tokenizer", "corpus"))
        run("tokenizer", "train", *reads, *settings, "--out", tokenizer)
        run("corpus", "build", *reads, *split, "--tokenizer", tokenizer, "--out", corpus)


def run(*words: str) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        app([*words, "--json"], standalone_mode=False)


def facts(run: Path) -> dict[str, Any]:
    """What a run computed and wrote."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    losses = [float(line["loss/total"]).hex() for line in lines if "loss/total" in line]
    result = json.loads((run / "result.json").read_text(encoding="utf-8"))
    weights = {str(path.relative_to(run)): tensors(path) for path in sorted(run.glob("*/model.safetensors"))}
    predictions = {
        str(path.relative_to(run)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(run.glob("predictions/*"))
    }
    scores = {name: value for name, value in result.get("test", {}).items() if isinstance(value, float | int)}
    return {
        "losses": losses,
        "result": sorted(set(keys(result))),
        "weights": weights,
        "predictions": predictions,
        "scores": {name: float(value).hex() for name, value in scores.items() if "second" not in name},
    }


def tensors(path: Path) -> dict[str, str]:
    """Shape and digest of each tensor by its name."""
    with safe_open(path, "pt") as file:
        found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    return {
        name: f"{list(tensor.shape)} {hashlib.sha256(tensor.contiguous().numpy().tobytes()).hexdigest()[:16]}"
        for name, tensor in found.items()
    }


def keys(tree: Any, prefix: str = "") -> list[str]:
    if isinstance(tree, dict):
        return [key for name, value in tree.items() for key in keys(value, f"{prefix}.{name}")]
    if isinstance(tree, list):
        return [key for value in tree for key in keys(value, f"{prefix}[]")]
    return [prefix.removeprefix(".")]


def compare(old: Any, new: Any, path: str = "") -> list[str]:
    """One line for each fact that differs."""
    if isinstance(old, dict) and isinstance(new, dict):
        found = [f"{path}: gone: {name}" for name in old if name not in new]
        found += [f"{path}: new: {name}" for name in new if name not in old]
        return found + [line for name in old if name in new for line in compare(old[name], new[name], f"{path}/{name}")]
    if isinstance(old, list) and isinstance(new, list) and all(isinstance(one, str) for one in old + new):
        if path.endswith("/losses") and old != new:
            first = next((n for n, pair in enumerate(zip(old, new, strict=False)) if pair[0] != pair[1]), len(old))
            return [f"{path}: {len(old)} and {len(new)} losses; the first that differs is number {first}"]
        return [f"{path}: gone: {one}" for one in old if one not in new] + [
            f"{path}: new: {one}" for one in new if one not in old
        ]
    return [] if old == new else [f"{path}: {old} is now {new}"]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
