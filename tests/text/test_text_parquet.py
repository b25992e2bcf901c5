"""Rows of Parquet files: all types, and texts that grow."""

import io
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from homespun.errors import UserError
from homespun.text.parquet import parquet_rows


def _file(table: pa.Table) -> io.BytesIO:
    stream = io.BytesIO()
    pyarrow.parquet.write_table(table, stream, compression="zstd")
    return stream


@pytest.mark.parametrize("rows", [0, 1, 3, 700])
def test_rows_are_those_of_arrow(rows: int) -> None:
    columns: dict[str, Any] = {
        "text": pa.array(["one", None, "東京"] * 300),
        "label": pa.array(["a", "b", None] * 300).dictionary_encode(),
        "lists": [["a"], None, []] * 300,
        "structs": [{"a": ["q"], "b": 1}, None, {"a": None, "b": 2}] * 300,
        "maps": pa.array([[("k", "v")], [], None] * 300, pa.map_(pa.string(), pa.string())),
        "numbers": pa.array([1, 2, None] * 300).dictionary_encode(),
        "nothing": pa.nulls(900),
    }
    table = pa.table(columns).slice(0, rows)
    assert list(parquet_rows(_file(table), "t.parquet")) == table.to_pylist()


def test_two_columns_of_one_name_are_refused() -> None:
    table = pa.Table.from_arrays([pa.array(["one"]), pa.array(["a"]), pa.array(["b"])], ["text", "label", "label"])
    with pytest.raises(UserError, match=r"t\.parquet: two columns are named 'label'"):
        next(iter(parquet_rows(_file(table), "t.parquet")))


@pytest.mark.parametrize("nested", [False, True])
def test_a_text_of_many_rows_does_not_fill_the_memory(nested: bool) -> None:
    texts: pa.Array = pa.DictionaryArray.from_arrays(pa.array([0] * 512, pa.int32()), pa.array(["x" * 2_000_000]))
    if nested:
        texts = pa.StructArray.from_arrays([texts], ["x"])
    file = _file(pa.table({"text": texts}))
    assert len(file.getvalue()) < 2000
    with pytest.raises(UserError, match="grows more than 250 times"):
        next(iter(parquet_rows(file, "t.parquet")))


@pytest.mark.parametrize("rows", [1, 3000])
def test_lists_of_numbers_do_not_fill_the_memory(rows: int) -> None:
    numbers = pa.array(np.zeros(9_000_000, np.int64))
    offsets = pa.array(np.linspace(0, 9_000_000, rows + 1).astype(np.int32))
    file = _file(pa.table({"tags": pa.ListArray.from_arrays(offsets, numbers)}))
    assert len(file.getvalue()) < 100_000
    with pytest.raises(UserError, match="grows more than 250 times"):
        next(iter(parquet_rows(file, "t.parquet")))


def test_a_word_of_many_rows_is_no_attack() -> None:
    table = pa.table(
        {"label": pa.DictionaryArray.from_arrays(pa.array([0] * 100_000, pa.int32()), pa.array(["x" * 900]))}
    )
    rows = parquet_rows(_file(table), "t.parquet")
    assert sum(1 for _ in rows) == 100_000  # 90 MB
