"""The benchmark of a real checkpoint: finished measurements are kept, and its page reports them."""

import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks import checkpoint, checkpoint_page
from benchmarks.trials import write_results

pytestmark = pytest.mark.slow


def trial(accuracy: float, name: str = "full", **fields: Any) -> dict[str, Any]:
    known = {
        "accuracy": accuracy,
        "macro_f1": accuracy,
        "validation_accuracy": accuracy,
        "rows": 7600,
        "seconds": 60.0,
        "processor_seconds": 30.0,
        "peak_bytes": 2_000_000_000,
        "vectors_computed": 0,
        "settings": [*checkpoint.DATA, *checkpoint.TRAIN, *checkpoint.VARIANTS[name].settings],
        "precision": "float32",
        "machine": {"cpu": "a processor", "cores": 2, "gpu": None, "python": "3", "torch": "2"},
    }
    return known | fields


def page(trials: dict[str, dict[str, Any]]) -> str:
    about = {name: variant.about for name, variant in checkpoint.VARIANTS.items()}
    return checkpoint_page.page({"trials": trials, "baselines": {"tfidf": {"accuracy": 0.917}}}, about)


def test_means_and_deviations_over_the_seeds() -> None:
    trials = {"full-0": trial(0.93), "full-1": trial(0.94), "frozen-cnn-0": trial(0.9, "frozen-cnn")}
    found = checkpoint_page.summary(trials)
    assert found["full"] == {"seeds": 2, "accuracy": pytest.approx(0.935), "std": pytest.approx(0.00707, abs=1e-5)}
    assert found["frozen-cnn"] == {"seeds": 1, "accuracy": 0.9, "std": 0.0}
    assert "| 2 | 93.50 ± 0.71 |" in page(trials)
    assert "no trial of `frozen-cnn` and `frozen-ffn`" in page({"full-0": trial(0.93)})


@pytest.mark.parametrize(("other", "verdict"), [(0.88, "holds"), (0.899, "cannot be decided"), (0.95, "does not hold")])
def test_a_finding_compares_two_variants(other: float, verdict: str) -> None:
    shown = page({"frozen-cnn-0": trial(0.9, "frozen-cnn"), "frozen-ffn-0": trial(other, "frozen-ffn")})
    assert f"| {verdict} | `frozen-cnn` 90.00, `frozen-ffn` {100 * other:.2f} |" in shown


def test_minutes_of_computed_and_of_found_vectors_are_not_mixed() -> None:
    trials = {
        "frozen-ffn-0": trial(0.9, "frozen-ffn", vectors_computed=2**30, seconds=600.0, processor_seconds=None),
        "frozen-ffn-1": trial(0.9, "frozen-ffn", seconds=120.0),
    }
    assert "| 0.5 | 2.0 (10.0) | 2.0 |" in page(trials)


def test_what_is_measured_is_not_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = tmp_path / "checkpoint.json"
    write_results(results, {"trials": {"full-0": trial(0.93)}, "baselines": {"tfidf": {"accuracy": 0.917}}}, "")
    monkeypatch.setattr(checkpoint, "minilm", lambda: tmp_path)
    monkeypatch.setattr(checkpoint, "copy_agnews", lambda data, split, out: out / split)
    ran = []

    def homespun(*words: str) -> None:
        ran.append(words)
        folder = Path(words[words.index("--out") + 1])
        folder.mkdir(parents=True)
        test = {"accuracy": 0.92, "macro_f1": 0.92, "log_loss": 0.2, "rows": 7600}
        result = {"test": test, "validation_metrics": {"accuracy": 0.91}, "rows": {"validation": 5}}
        result |= {"seconds": 1.0, "peak_bytes": 2, "steps": 3}
        (folder / "result.json").write_text(json.dumps(result), encoding="utf-8")

    monkeypatch.setattr(checkpoint, "run_homespun", homespun)
    words = ["--only", "full", "--seeds", "0", "1", "--out", str(tmp_path / "runs"), "--results", str(results)]
    for _ in range(2):
        found = checkpoint.run(words)
        assert len(ran) == 1
        assert found["ours"]["full"]["seeds"] == 2
    assert "train.seed=1" in ran[0]
    assert "| `full` |" in results.with_suffix(".md").read_text(encoding="utf-8")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint.json", "checkpoint.md", "runs"]

    changed = json.loads(results.read_text(encoding="utf-8"))
    changed["trials"]["full-1"]["settings"].append("train.budget.epochs=9")
    results.write_text(json.dumps(changed), encoding="utf-8")
    with pytest.raises(SystemExit, match=r"full-1 .*settings"):
        checkpoint.run(words)


def test_a_run_that_was_stopped_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[str, ...]] = []
    monkeypatch.setattr(checkpoint, "run_homespun", lambda *words: ran.append(words))
    (tmp_path / "run").mkdir()
    variant = checkpoint.VARIANTS["frozen-cnn"]
    files = {"train": tmp_path / "train.csv", "test": tmp_path / "test.csv"}
    with pytest.raises(FileNotFoundError):  # the command that would have written it did nothing
        checkpoint._trial(tmp_path / "run", tmp_path, files, variant, variant.settings, 4, "float32")
    assert ran[0][-1] == "--resume"
    assert f"objective.cache={tmp_path / 'cache'}" in ran[0]
