"""Table of the learned weights of layers (Peters et al. 2018, section 5.4)."""

from __future__ import annotations

from collections.abc import Sequence

from homespun.report import formats
from homespun.report.records import RunRecord
from homespun.report.table import Table, numbers, texts


def layers_read(records: Sequence[RunRecord]) -> Table | None:
    """A row for each run with a mix of layers: weights of the embeddings and of each layer, and gamma."""
    mixed = [(record.name, mix.weights, mix.gamma) for record in records if (mix := record.result.layers)]
    if not mixed:
        return None
    most = max(len(weights) for _, weights, _ in mixed)
    columns = (
        *texts("run"),
        *numbers(formats.percent, *("words" if not layer else f"layer {layer}" for layer in range(most))),
        *numbers(formats.share, "gamma"),
    )
    # embeddings narrower than the layers are not in the mix: the weights are of the last layers
    rows = tuple((name, *[None] * (most - len(weights)), *weights, gamma) for name, weights, gamma in mixed)
    note = "The task's own weights over all layers, which sum to 1; gamma multiplies the sum."
    return Table("layers", "Layer weights", columns, rows, note)
