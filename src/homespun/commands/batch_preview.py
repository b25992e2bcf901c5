"""First batch of a recipe, decoded: tokens, padding and labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from homespun.batch import Batch
from homespun.commands.finetune import read_inputs
from homespun.commands.recipe import FinetuneRecipe, PretrainRecipe, load_recipe, with_train
from homespun.commands.trial_training import prepare_trial
from homespun.commands.workload import open_data, pretraining_rows, with_backbone
from homespun.config import Tree
from homespun.data.labels import Labels
from homespun.data.loader import Collate, Loader, Order
from homespun.data.rows import Rows
from homespun.errors import UserError
from homespun.recipes import require_start, split_overrides
from homespun.report.console import SILENT
from homespun.text.tokenizer import Tokenizer
from homespun.training.config import TrainConfig

_MAX_LABELS = 20  # labelled positions to list per row


def show_batch(recipe: str, overrides: Sequence[str] = (), *, start_from: str | None = None, rows: int = 4) -> Tree:
    """Decode the first batch of a training, with the masks and noise of epoch 0.

    Args:
        recipe: name of a recipe, or a .yaml file.
        overrides: changes to the recipe, ``KEY=VALUE``.
        start_from: checkpoint that the training starts from; fine-tuning needs its tokenizer.
        rows: number of rows to decode, at least 1.

    Returns:
        ``objective``: kind of the objective.
        ``batch``: number of ``rows``, ``length`` in tokens, share of ``padding``.
        ``targets``: number of targets by term of the loss.
        ``rows``: for each row, ``tokens`` without padding and ``padding``, the number of padding tokens; for an
        encoder-decoder also ``decoder_tokens`` and ``decoder_padding``. Token labels are ``labels``, the first 20
        labelled positions {``position``, ``input``, ``target``}, and their number ``num_labels``; ``source_labels`` are
        those of the encoder. Labels of rows are ``label`` (class names, number or answer) and ``pair_label`` (next
        sentence prediction).

    Raises:
        UserError: the corpus is missing, a fine-tuning recipe has no ``start_from``, or the recipe is invalid.
    """
    if rows < 1:
        raise UserError(f"--rows={rows} must be at least 1")
    settings, changes = split_overrides(overrides, has_checkpoint=start_from is not None)
    loaded = load_recipe(recipe, settings)
    if isinstance(loaded, PretrainRecipe):
        source = _pretraining_source(loaded, start_from, changes)
    else:
        source = _finetuning_source(loaded, require_start(start_from, changes))
    batch = source.first_batch(loaded.train)
    decoder = _Decoder(batch, source.tokenizer, source.labels)
    return {
        "objective": loaded.objective.kind,
        "batch": {
            "rows": batch.num_rows,
            "length": batch.input_ids.shape[1],
            "padding": 1 - batch.real_tokens / batch.num_tokens,
        },
        "targets": dict(batch.targets),
        "rows": [decoder.row(index) for index in range(min(rows, batch.num_rows))],
    }


@dataclass(frozen=True)
class _Source:
    """Rows of a training, and the names of their ids; ``labels`` is None if labels are tokens or numbers."""

    rows: Rows
    collate: Collate
    order: Order
    tokenizer: Tokenizer
    labels: Labels | None

    def first_batch(self, train: TrainConfig) -> Batch:
        """Return all rows of step 0, in one batch."""
        loader = Loader(self.rows, self.collate, batch_size=train.batch_size, seed=train.seed, order=self.order)
        return loader.step(0)[0]


def _pretraining_source(recipe: PretrainRecipe, start_from: str | None, changes: Mapping[str, object]) -> _Source:
    corpus, start = open_data(recipe, start_from, changes)
    recipe = with_backbone(recipe, corpus.tokenizer, start)
    rows, _ = pretraining_rows(recipe, corpus)
    objective = recipe.objective
    return _Source(rows, objective.collate(corpus.tokenizer), objective.row_order, corpus.tokenizer, None)


def _finetuning_source(recipe: FinetuneRecipe, start_from: str) -> _Source:
    budget = recipe.train.budget.model_copy(update={"memory": None})  # no step is made
    recipe = with_train(recipe, budget=budget)
    inputs = read_inputs(recipe, start_from, None)
    task, stored = inputs.task, inputs.model.stored
    setup = prepare_trial(recipe, inputs.trials[0], task, stored, SILENT).setup
    return _Source(setup.rows, setup.collate, "bucketed", stored.tokenizer, task.labels)


@dataclass(frozen=True)
class _Decoder:
    """Decodes rows of a batch to tokens and names of labels."""

    batch: Batch
    tokenizer: Tokenizer
    labels: Labels | None

    def row(self, index: int) -> Tree:
        """Decode a row: one sequence, or the chunks of a long text."""
        batch = self.batch
        sequences = [index] if batch.chunks is None else [i for i in batch.chunks[index].tolist() if i >= 0]
        row = self._tokens("", sequences, batch.input_ids, batch.attention_mask)
        if batch.decoder_input_ids is not None:
            row |= self._tokens("decoder_", [index], batch.decoder_input_ids, batch.decoder_attention_mask)
        if batch.labels is not None:
            row |= self._labels(index, batch.labels)
        if batch.source_positions is not None and batch.source_labels is not None:
            row |= self._positions("source_", index, batch.input_ids, batch.source_positions, batch.source_labels)
        return row if batch.pair_labels is None else row | {"pair_label": int(batch.pair_labels[index])}

    def _tokens(self, prefix: str, sequences: list[int], ids: Tensor, mask: Tensor | None) -> Tree:
        real = [ids[i] if mask is None else ids[i][mask[i]] for i in sequences]
        padding = sum(ids.shape[1] - len(tokens) for tokens in real)
        names = [self._name(i) for tokens in real for i in tokens.tolist()]
        return {f"{prefix}tokens": names, f"{prefix}padding": padding}

    def _labels(self, index: int, labels: Tensor) -> Tree:
        batch = self.batch
        if batch.positions is not None:
            ids = batch.input_ids if batch.decoder_input_ids is None else batch.decoder_input_ids
            return self._positions("", index, ids, batch.positions, labels, names=self.labels)
        if batch.sentences is not None:
            numbers = [number for number in dict.fromkeys(batch.sentences[index].tolist()) if number >= 0]
            return {"label": [self._class(int(labels[number])) for number in numbers]}
        label = labels[index]
        if self.labels is None:
            return {"label": label.tolist()}
        if label.ndim:
            return {"label": [self._class(i) for i in np.flatnonzero(label.numpy()).tolist()]}
        return {"label": self._class(int(label))}

    def _positions(
        self, prefix: str, index: int, ids: Tensor, positions: Tensor, labels: Tensor, names: Labels | None = None
    ) -> Tree:
        """Labelled positions of a row; ``positions`` index the flattened ``ids``, (batch, seq)."""
        width = ids.shape[1]
        numbers = (positions // width == index).nonzero().flatten()
        listed: list[dict[str, int | str]] = []
        for number in numbers[:_MAX_LABELS].tolist():
            position, label = int(positions[number]) % width, int(labels[number])
            target = self._name(label) if names is None else names.names[label]
            listed.append({"position": position, "input": self._name(int(ids[index, position])), "target": target})
        return {f"{prefix}labels": listed, f"num_{prefix}labels": len(numbers)}

    def _name(self, token: int) -> str:
        return self.tokenizer.tokens[token]

    def _class(self, label: int) -> str:
        assert self.labels is not None
        return self.labels.names[label]
