"""The table of attentions by length, from the folders of comparisons."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks import attention_table
from benchmarks.attention_table import COLUMNS, NAMES, page, picture, read_cells

from homespun.compare.recipe import compare_recipe
from homespun.compare.trials import variants

sys.path.insert(0, str(Path(__file__).parent / "report"))
from comparison_folder import BERT, REFORMER, make_comparison

ROOT = Path(__file__).resolve().parents[1]


def test_the_table_has_every_attention_of_the_comparison() -> None:
    recipe = compare_recipe(str(ROOT / "benchmarks" / "comparisons" / "attentions.yaml"))
    assert list(NAMES) == [variant.name for variant in variants(recipe)]
    assert set(COLUMNS) >= set(recipe.finetune)


def test_cells_are_read_from_finished_trials_and_kept(tmp_path: Path) -> None:
    out, store = tmp_path / "out", tmp_path / "cells.json"
    files = ["--out", str(out), "--store", str(store), "--page", str(tmp_path / "page.md")]
    files += ["--picture", str(tmp_path / "picture.svg")]
    everyone = (replace(BERT, name="full"), REFORMER, replace(BERT, name="other"))
    make_comparison(out / "attentions-128", everyone=everyone, failed=False)
    make_comparison(out / "attentions-1024-minutes", everyone=everyone, failed=False)
    (out / "attentions-128" / "trials" / "reformer" / "seed-1" / "trial.json").unlink()
    found = attention_table.run(files)
    cells = read_cells(store)
    assert set(cells["128"]) == {"full", "tfidf"}
    assert cells["128"]["full"]["peak_bytes"] == [2.311e9, 2.312e9, 2.313e9]
    numbers = {name: len(values) for name, values in cells["128"]["full"].items()}
    assert numbers == dict.fromkeys(["seconds", "peak_bytes", "loss", "phrasebank"], 3)
    assert {name: tuple(columns) for name, columns in cells["1024"].items()} == dict.fromkeys(
        ["full", "reformer"], ("loss_in_time",)
    )
    assert len(found["incomplete"]) == found["rows"] == 30
    make_comparison(out / "attentions-1024", everyone=everyone, failed=False)
    attention_table.run(files)
    assert set(read_cells(store)["1024"]["full"]) == {"loss_in_time", "seconds", "peak_bytes", "loss", "phrasebank"}
    assert read_cells(store)["128"] == cells["128"]


@pytest.mark.usefixtures("drawn_figures")
def test_the_page_and_the_picture_show_what_was_measured() -> None:
    measured = {"seconds": [0.2], "peak_bytes": [7e8], "loss": [4.0, 4.2], "long": [0.7, 0.71], "short": [0.8]}
    cells = {"128": {"full": measured, "reformer": {**measured, "loss": [3.9, 3.8]}, "tfidf": {"long": [0.87]}}}
    lines = page(cells).splitlines()
    full = next(line for line in lines if line.startswith("| full |"))
    assert full.split(" | ")[1:3] == ["**200**", "**700**"]
    assert "4.100" in full
    assert "**" in full
    reformer = next(line for line in lines if line.startswith("| Reformer"))
    assert "**3.850" in reformer
    assert next(line for line in lines if line.startswith("| TF-IDF")).endswith("|  | 87.0 |")
    drawn = picture(cells).decode()
    assert [text for text in ("128 tokens", "4,096 tokens", ">full<", ">reformer<") if text not in drawn] == []
    assert ">linformer<" not in drawn


@pytest.mark.skipif(not attention_table.STORE.is_file(), reason="not measured yet")
def test_the_page_is_that_of_the_cells() -> None:
    assert attention_table.PAGE.read_text(encoding="utf-8") == page(read_cells(attention_table.STORE))
