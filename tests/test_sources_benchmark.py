"""The benchmark of the sources' experiments: what it hands on to `homespun compare`."""

from pathlib import Path

import pytest
from benchmarks import sources


@pytest.mark.slow
@pytest.mark.parametrize("changes_last", [False, True])
def test_changes_stand_before_or_after_the_options(
    changes_last: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, ...]] = []
    made: list[Path] = []
    monkeypatch.setattr(sources, "_homespun", lambda *words: calls.append(words))
    monkeypatch.setattr(sources, "MADE", dict.fromkeys(sources.MADE, lambda data, out: made.append(out)))
    changes, options = ["max_parallel=2", "seeds=3"], ["--data", str(tmp_path), "--out", str(tmp_path / "out")]
    found = sources.run(["summaries", *(options + changes if changes_last else changes + options)])
    recipe = tmp_path / "out" / "summaries.yaml"
    assert calls == [("compare", str(recipe), "--out", str(tmp_path / "out" / "summaries"), *changes)]
    assert f"corpus: {tmp_path}/out/data/financial" in recipe.read_text(encoding="utf-8")
    assert made == [tmp_path / "out" / "data"] * 3  # the corpus, the papers, the bullets
    assert found == {}
