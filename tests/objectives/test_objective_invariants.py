"""Invariants of a pretraining objective, for every member of the union."""

import dataclasses
import itertools
import pickle
from collections.abc import Iterator
from typing import Any, get_args

import numpy as np
import pytest
import torch
from tiny_language import (
    UNIGRAM_ENTROPY,
    batches,
    fit,
    row_seeds,
    rows_of,
    some_pairs,
    some_rows,
    tiny_elmo,
    tiny_model,
    tiny_recurrent,
    tiny_writer,
)
from torch import Tensor, nn
from torch._dynamo.utils import counters

from homespun.batch import Batch
from homespun.data.rows import Row
from homespun.errors import UserError
from homespun.models.config import ModelConfig
from homespun.objectives.config import PretrainingObjective
from homespun.objectives.denoising import Denoising
from homespun.objectives.gap_sentences import GapSentenceGeneration
from homespun.objectives.mlm import MaskedLM
from homespun.objectives.tbptt import StatefulCausalLM
from homespun.text.tokenizer import Tokenizer

CONFIGS: dict[str, Any] = {
    member.model_fields["kind"].default: member() for member in get_args(get_args(PretrainingObjective)[0])
} | {"stateful_clm": StatefulCausalLM(streams=8)}
VARIANTS = CONFIGS | {
    "nsp": MaskedLM(next_sentence=True),
    "static": MaskedLM(masking="static"),
    "whole words": MaskedLM(whole_words=True),
    "every noise": Denoising(token_masking=0.1, token_deletion=0.1, document_rotation=0.5, sentence_permutation=0.7),
    "gaps and tokens": GapSentenceGeneration(mlm=0.15, selection="sequential", rouge="unique", noise=0.2, intact=0.2),
}
# Steps by objective. After them the loss is at most 0.87 times its limit for mlm and electra, 0.5 times for the others.
UNIGRAM_STEPS, OVERFIT_STEPS = {"mlm": 150, "electra": 250}, {"stateful_clm": 150, "elmo": 100}


def for_each(configs: dict[str, Any], *, fast: set[str] | None = None) -> pytest.MarkDecorator:
    """Parametrise by config; the names not in ``fast`` are marked slow."""
    return pytest.mark.parametrize(
        "config",
        [
            pytest.param(config, id=name, marks=() if fast is None or name in fast else pytest.mark.slow)
            for name, config in configs.items()
        ],
    )


every_kind, every_variant = for_each(CONFIGS), for_each(VARIANTS)


def model_for(config: Any, tokenizer: Tokenizer, **fields: Any) -> ModelConfig:
    if writes(config):
        return tiny_writer(tokenizer, ngram=2 if config.kind == "future_ngrams" else 0, **fields)
    if config.kind == "stateful_clm":
        return tiny_recurrent(tokenizer, **fields)
    if config.kind == "elmo":
        return tiny_elmo(tokenizer, **fields)
    return tiny_model(tokenizer, causal=config.kind == "clm", **fields)


def writes(config: Any) -> bool:
    return bool(config.target_length(24))


def rows_with(config: Any, tokenizer: Tokenizer, lengths: list[int]) -> list[Row]:
    """Rows of these many tokens, of one document each."""
    return rows_of(config, tokenizer, lengths) if writes(config) else some_rows(tokenizer, lengths)


def build(config: Any, tokenizer: Tokenizer, **fields: Any) -> nn.Module:
    torch.manual_seed(1)
    return config.build(model_for(config, tokenizer, **fields), tokenizer)


def rows_for(config: Any, tokenizer: Tokenizer) -> list[Row]:
    """Several lengths, packed and not, and a row with nothing to predict."""
    if getattr(config, "next_sentence", False):
        return some_pairs(tokenizer, 7)
    if writes(config):
        return rows_of(config, tokenizer, [13, 24, 3, 17, 24, 11])
    complete = some_rows(tokenizer, [13, 24, 3])
    return [
        *complete,
        *some_rows(tokenizer, [24, 17], packed=True),
        Row(np.array([tokenizer.cls_id, tokenizer.sep_id])),
    ]


def batch_for(config: Any, tokenizer: Tokenizer, rows: list[Row] | None = None, first: int = 0) -> Batch:
    rows = rows_for(config, tokenizer) if rows is None else rows
    return config.collate(tokenizer)(rows, row_seeds(len(rows), first=first))


def tensors(batch: Batch) -> dict[str, Tensor]:
    return {f.name: v for f in dataclasses.fields(batch) if isinstance(v := getattr(batch, f.name), Tensor)}


def uniforms_from(stream: Tensor) -> Any:
    """A stand-in for `torch.rand` that hands out one fixed stream, whatever it is asked in."""
    place = itertools.count()

    def rand(count: int, **_: Any) -> Tensor:
        return torch.stack([stream[next(place)] for _ in range(count)]) if count else torch.zeros(0)

    return rand


@every_variant
def test_collate_is_pure(config: Any, tokenizer: Tokenizer) -> None:
    rows = rows_for(config, tokenizer)
    before = [row.input_ids.copy() for row in rows]
    for row in rows:
        row.input_ids.setflags(write=False)
    collate = config.collate(tokenizer)
    batch = collate(rows, row_seeds(len(rows)))
    again = pickle.loads(pickle.dumps(collate))(rows, row_seeds(len(rows)))
    assert tensors(batch).keys() == tensors(again).keys()
    for name, tensor in tensors(batch).items():
        assert torch.equal(tensor, tensors(again)[name]), name
    assert batch.targets == again.targets
    for row, ids in zip(rows, before, strict=True):
        assert np.array_equal(row.input_ids, ids)


@every_variant
def test_corruption_of_a_row_does_not_depend_on_the_batch(config: Any, tokenizer: Tokenizer) -> None:
    rows = rows_for(config, tokenizer)
    collate = config.collate(tokenizer)
    together = collate(rows, row_seeds(len(rows)))
    for number, row in enumerate(rows):
        alone = collate([row], row_seeds(1, first=number))
        length = alone.input_ids.shape[1]
        assert torch.equal(together.input_ids[number, :length], alone.input_ids[0])
        keep = together.attention_mask
        assert length == (together.input_ids.shape[1] if keep is None else int(keep[number].sum()))


@every_variant
def test_targets_are_the_counts_of_the_loss(config: Any, tokenizer: Tokenizer) -> None:
    batch = batch_for(config, tokenizer)
    loss = build(config, tokenizer)(batch)
    learnt = {name: float(term.count) for name, term in loss.terms.items() if term.weight}
    assert learnt
    assert {name: batch.targets[name] for name in learnt} == learnt
    assert set(batch.targets) <= set(loss.terms)
    torch.testing.assert_close(loss.total(batch.targets), loss.total())


@every_variant
def test_every_parameter_learns(config: Any, tokenizer: Tokenizer) -> None:
    objective = build(config, tokenizer, hidden_dropout_prob=0.1).train()
    loss = objective(batch_for(config, tokenizer)).total()
    loss.backward()
    for name, parameter in objective.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any() or name.endswith("key.bias"), name  # softmax does not see what all keys share


@every_variant
def test_any_split_into_micro_batches_has_the_same_gradient(
    config: Any, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = rows_for(config, tokenizer)
    objective = build(config, tokenizer).double()
    collate = config.collate(tokenizer)
    names = row_seeds(len(rows))
    targets = collate(rows, names).targets
    splits = [
        [collate(rows[start:end], names[start:end]) for start, end in itertools.pairwise(cuts)]
        for cuts in ([0, len(rows)], [0, 1, 4, len(rows)], range(len(rows) + 1))
    ]
    stream = torch.rand(1000, generator=torch.Generator().manual_seed(1))
    gradients = []
    for split in splits:
        monkeypatch.setattr(torch, "rand", uniforms_from(stream))
        objective.zero_grad()
        for batch in split:
            objective(batch).total(targets).backward()
        gradients.append([p.grad.clone() for p in objective.parameters() if p.grad is not None])
    for added in gradients[1:]:
        for complete, summed in zip(gradients[0], added, strict=True):
            torch.testing.assert_close(summed, complete, rtol=1e-5, atol=1e-6)  # a loss's total is in float32


@every_variant
def test_padding_does_not_change_the_loss(config: Any, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    objective = build(config, tokenizer).eval()
    pairs = getattr(config, "next_sentence", False)
    rows = some_pairs(tokenizer, 1) if pairs else rows_with(config, tokenizer, [13])
    batch = batch_for(config, tokenizer, rows)
    assert batch.positions is not None
    assert batch.attention_mask is None
    length = batch.input_ids.shape[1]
    padded = dataclasses.replace(
        batch,
        input_ids=torch.cat([batch.input_ids, torch.randint(5, 29, (1, 9))], dim=1),
        attention_mask=torch.arange(length + 9)[None] < length,
        token_type_ids=None if batch.token_type_ids is None else nn.functional.pad(batch.token_type_ids, (0, 9)),
    )
    stream = torch.rand(100)
    totals = []
    for each in (batch, padded):
        monkeypatch.setattr(torch, "rand", uniforms_from(stream))
        totals.append(objective(each).total())
    torch.testing.assert_close(totals[0], totals[1])


@every_variant
def test_what_is_kept_is_what_its_config_builds(config: Any, tokenizer: Tokenizer) -> None:
    objective = build(config, tokenizer)
    model, model_config = objective.export_model()
    again = model_config.build()
    assert [name for name, _ in again.named_parameters()] == [name for name, _ in model.named_parameters()]
    again.load_state_dict(model.state_dict())
    ids = torch.randint(5, 29, (2, 13))
    assert torch.equal(again.eval()(ids), model.eval()(ids))


@every_variant
def test_half_precision(config: Any, tokenizer: Tokenizer) -> None:
    objective = build(config, tokenizer).train()
    batch = batch_for(config, tokenizer)
    with torch.autocast("cpu", torch.bfloat16):
        loss = objective(batch).total(batch.targets)
    loss.backward()
    assert loss.dtype == torch.float32
    for parameter in objective.parameters():
        assert parameter.grad.dtype == torch.float32
        assert parameter.grad.isfinite().all()


@pytest.fixture
def compiled_rnns() -> Iterator[None]:
    with torch._dynamo.config.patch(allow_rnn=True):  # else the compiler goes around recurrent networks
        yield


@pytest.mark.slow
@for_each(CONFIGS, fast={"mlm", "denoising"})
@pytest.mark.usefixtures("compiled_rnns")
@pytest.mark.filterwarnings("ignore:LSTM with projections")  # oneDNN has none; ours is quiet where nothing is compiled
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # hidden by torch, but for pytest
def test_compiles_without_a_break_but_for_the_vocabulary_loss(config: Any, tokenizer: Tokenizer) -> None:
    objective = build(config, tokenizer, hidden_dropout_prob=0.1, num_hidden_layers=1).train()
    batch = batch_for(config, tokenizer, rows_with(config, tokenizer, [13] * 3))
    torch.compiler.reset()
    counters["graph_break"].clear()
    compiled = torch.compile(objective, backend="eager")
    loss = compiled(batch).total(batch.targets)
    loss.backward()
    assert loss.isfinite()
    assert [reason for reason in counters["graph_break"] if "predict_tokens" not in reason] == []
    objective.eval()
    stream = torch.get_rng_state()
    plain = objective(batch).total(batch.targets)
    torch.set_rng_state(stream)
    torch.testing.assert_close(compiled(batch).total(batch.targets), plain)


@pytest.mark.slow
@every_kind
def test_beats_the_unigram_entropy(config: Any, tokenizer: Tokenizer) -> None:
    terms = fit(build(config, tokenizer), batches(config, tokenizer), UNIGRAM_STEPS.get(config.kind, 100))
    first = next(iter(terms))  # the term that predicts tokens comes first
    assert terms[first] < 0.85 * UNIGRAM_ENTROPY, terms
    assert terms[f"{first}_accuracy"] > 3 / 24, terms


@pytest.mark.slow
@for_each(VARIANTS, fast={*CONFIGS, "nsp", "gaps and tokens"})  # the others differ in their corruption only
def test_overfits_one_batch(config: Any, tokenizer: Tokenizer) -> None:
    def always() -> Iterator[Batch]:
        while True:
            yield batch

    # one row: the first word of a text cannot be predicted
    pairs = getattr(config, "next_sentence", False)
    rows = rows_for(config, tokenizer) if pairs else rows_with(config, tokenizer, [31])
    batch = batch_for(config, tokenizer, rows)
    steps = OVERFIT_STEPS.get(config.kind, 80)
    terms = fit(build(config, tokenizer), always(), steps, learning_rate=1e-2)
    learnt = [name for name in terms if f"{name}_accuracy" in terms]
    assert learnt
    for name in learnt:
        assert terms[name] < 0.1, terms
        assert terms[f"{name}_accuracy"] > 0.99, terms


@every_kind
def test_a_model_that_sees_the_wrong_way_is_refused(config: Any, tokenizer: Tokenizer) -> None:
    if writes(config):
        with pytest.raises(UserError, match=r"model\.preset="):
            config.build(tiny_model(tokenizer), tokenizer)
        return
    recurrent = tiny_recurrent(tokenizer, bidirectional=config.kind.endswith("clm"))
    for model in (tiny_model(tokenizer, causal=config.kind != "clm"), recurrent):
        with pytest.raises(UserError, match=r"set model\.(causal|bidirectional)=|recurrent"):
            config.build(model, tokenizer)
    with pytest.raises(UserError, match="one stack"):
        config.build(tiny_writer(tokenizer), tokenizer)
