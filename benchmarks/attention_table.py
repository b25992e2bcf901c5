"""The table of attentions by length: cost of a step, losses, accuracy on short and on long texts, and its picture.

Read from the folders of ``python -m benchmarks sources attentions`` at each length: ``attentions-LENGTH``, with equal
tokens, and ``attentions-LENGTH-minutes``, with equal processor time. Cells are kept in ``--store``, so that the
comparisons may be run on several machines; a comparison that is there again replaces its cells.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from benchmarks.paths import RESULTS
from homespun.io.atomic import write_bytes, write_text
from homespun.report import formats
from homespun.report.comparison_quality import evaluate
from homespun.report.comparison_records import Comparison, is_comparison, read_comparison
from homespun.results import mean_and_deviation

STORE, PAGE, PICTURE = (RESULTS / f"attentions.{kind}" for kind in ("json", "md", "svg"))
LENGTHS = (128, 1024, 4096)
NAMES = {
    "full": "full",
    "longformer": "Longformer: window of 32 on each side, a global token",
    "bigbird": "BigBird: blocks of 16, 3 random, a global block",
    "blockbert": "BlockBERT: permuted halves",
    "dilated": "dilated windows: 32 on each side, 2 apart, a global token",
    "reformer": "Reformer: local and hashed chunks of 32 in turn",
    "linformer": "Linformer, k 128",
    "performer": "Performer, 128 features",
    "relative-bias": "full with relative position biases (T5)",
    "disentangled": "disentangled (DeBERTa)",
}
COLUMNS = {
    "seconds": "ms a step",
    "peak_bytes": "peak memory, MB",
    "loss": "loss, equal tokens",
    "loss_in_time": "loss, equal time",
    "short": "short texts, %",
    "long": "long texts, %",
}
_TFIDF = "tfidf"

Cells = dict[str, dict[str, dict[str, list[float]]]]
"""By length, attention (or ``tfidf``) and column: a number for each seed."""


def run(arguments: list[str]) -> dict[str, Any]:
    """Read the comparisons below ``--out``, and write the table and its picture."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks attention-table", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--out", type=Path, default=Path("runs/sources"), help="of `python -m benchmarks sources`")
    parser.add_argument("--store", type=Path, default=STORE, help="JSON file of the cells")
    parser.add_argument("--page", type=Path, default=PAGE)
    parser.add_argument("--picture", type=Path, default=PICTURE)
    options = parser.parse_args(arguments)
    cells = read_cells(options.store)
    for length in LENGTHS:
        for suffix in ("", "-minutes"):
            folder = options.out / f"attentions-{length}{suffix}"
            if is_comparison(folder):
                for name, found in measure(read_comparison(folder), equal_time=bool(suffix)).items():
                    cells.setdefault(str(length), {}).setdefault(name, {}).update(found)
    write_text(options.store, json.dumps(cells, indent=1) + "\n")
    write_text(options.page, page(cells))
    write_bytes(options.picture, picture(cells))
    missing = [f"{length} {name}" for length in LENGTHS for name in NAMES if not _complete(cells, length, name)]
    return {"rows": len(LENGTHS) * len(NAMES), "incomplete": missing}


def read_cells(store: Path) -> Cells:
    """Read the cells that were measured before; none without the file."""
    text = store.read_text(encoding="utf-8") if store.is_file() else "{}"
    return TypeAdapter(Cells).validate_json(text)


def measure(comparison: Comparison, *, equal_time: bool) -> dict[str, dict[str, list[float]]]:
    """Return the cells of a comparison by attention, of those whose trials are all done."""
    done = [v for v in comparison.variants if v.name in NAMES and len(v.done) == len(v.trials)]
    if equal_time:
        return {v.name: {"loss_in_time": v.validation_losses()} for v in done}
    found: dict[str, dict[str, list[float]]] = {}
    for variant in done:
        costs = [record.summary for record in variant.records("pretrain")]
        found[variant.name] = {
            "seconds": [seconds for cost in costs if (seconds := cost.get("seconds_per_step")) is not None],
            "peak_bytes": [peak for cost in costs if (peak := cost.get("peak_bytes")) is not None],
            "loss": variant.validation_losses(),
        }
    for task in evaluate(comparison, {}):
        for candidate in task.candidates:
            name = _TFIDF if candidate.name == formats.baseline_title(_TFIDF) else candidate.name
            if candidate.values and (name in found or name == _TFIDF):
                found.setdefault(name, {})[task.name] = list(candidate.values)
    return found


def _complete(cells: Cells, length: int, name: str) -> bool:
    return all(cells.get(str(length), {}).get(name, {}).get(column) for column in COLUMNS)


def page(cells: Cells) -> str:
    """Build the page in Markdown."""
    lines = [_BEFORE]
    for length in LENGTHS:
        rows = cells.get(str(length), {})
        lines += ["", f"## Rows of {length:,} tokens", "", f"| attention | {' | '.join(COLUMNS.values())} |"]
        lines += [f"|{'---|' * (1 + len(COLUMNS))}"]
        shown = [name for name in NAMES if name in rows]
        best = {column: _best(column, {name: rows[name].get(column, []) for name in shown}) for column in COLUMNS}
        for name in shown:
            written = [(column, _write(column, rows[name].get(column, []))) for column in COLUMNS]
            cells_of_row = [f"**{text}**" if best[column] == name else text for column, text in written]
            lines.append(f"| {NAMES[name]} | {' | '.join(cells_of_row)} |")
        if _TFIDF in rows:
            texts = [_write(column, rows[_TFIDF].get(column, [])) for column in COLUMNS]
            lines.append(f"| TF-IDF with a linear model | {' | '.join(texts)} |")
    return "\n".join(lines) + "\n"


def _best(column: str, values: Mapping[str, Sequence[float]]) -> str | None:
    means = {name: fmean(found) for name, found in values.items() if found}
    pick = max if column in ("short", "long") else min
    return pick(means, key=lambda name: means[name]) if means else None


def _write(column: str, values: Sequence[float]) -> str:
    if not values:
        return ""
    mean, deviation = mean_and_deviation(values) or (fmean(values), None)
    if column in ("seconds", "peak_bytes"):
        return f"{mean * 1000:,.0f}" if column == "seconds" else f"{mean / 1e6:,.0f}"
    if column.startswith("loss"):
        return formats.loss_spread((mean, deviation))
    return formats.spread((mean, deviation)).replace(f"{formats.NB}%", "")


def picture(cells: Cells) -> bytes:
    """Draw loss and accuracy by the time of a step, one panel for each length, as SVG."""
    from matplotlib.figure import Figure

    from homespun.report.figure import CARD, assign_looks, render, style

    looks = assign_looks(list(NAMES))
    titles = {"loss": "held-out loss after equal tokens", "long": "accuracy on long texts"}
    with style():
        figure = Figure(figsize=(9.2, 5.2), facecolor=CARD, layout="constrained")
        panels = figure.subplots(len(titles), len(LENGTHS), sharey="row", squeeze=False)
        for row, (column, title) in zip(panels, titles.items(), strict=True):
            for axes, length in zip(row, LENGTHS, strict=True):
                axes.set_facecolor(CARD)
                for name, measured in cells.get(str(length), {}).items():
                    seconds, values = measured.get("seconds"), np.array(measured.get(column, []))
                    if name in looks and seconds and len(values):
                        deviation = values.std(ddof=1) if len(values) > 1 else 0.0
                        look = looks[name]
                        axes.errorbar(
                            fmean(seconds) * 1000,
                            values.mean(),
                            deviation,
                            color=look.colour,
                            marker=look.marker,
                            linestyle="",
                            label=name,
                        )
                axes.set_title(f"{length:,} tokens", loc="left", fontsize=8.5)
                axes.set_xlabel("ms a step")
            row[0].set_ylabel(title)
        handles = {label: h for ax in panels.flat for h, label in zip(*ax.get_legend_handles_labels(), strict=True)}
        ordered = [name for name in NAMES if name in handles]
        figure.legend([handles[name] for name in ordered], ordered, loc="outside right upper", frameon=False)
        return render(figure, "svg")


_BEFORE = """# Attentions by length

Which attention costs and learns how much on rows of 128, 1,024 and 4,096 tokens? Two layers of 128 with learned
positions (the last two have their own), masked prediction of newsgroups in float32. Equal tokens: 1 M; equal time: a
minute of processor time. Then topics of financial tweets (short texts, 64 tokens) and newsgroups read as far as the
rows go (long texts), one epoch with a linear layer on the mean of the vectors. Three seeds, mean ± standard deviation;
milliseconds of processor time, a step has 4,096 tokens; memory of the process. Losses in nats. Bold: the best mean,
without a test.

```
for length in 128 1024 4096; do
    python -m benchmarks sources attentions --length $length benchmark=null
    python -m benchmarks sources attentions --length $length --minutes 1 benchmark=null 'finetune={}'
done
python -m benchmarks attention-table
```

![Loss and accuracy by the time of a step](attentions.svg)"""
