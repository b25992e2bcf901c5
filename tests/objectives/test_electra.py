"""ELECTRA: what is shared, what is sampled, who is taught by which loss."""

import math
from typing import Any

import pytest
import torch
from tiny_language import batches, fit, row_seeds, some_rows, tiny_model
from torch import Tensor, nn
from torch.nn import functional as F

from homespun.batch import Batch
from homespun.errors import UserError
from homespun.models.bundle import ModelBundle
from homespun.models.config import ModelConfig
from homespun.models.encoder import EncoderConfig
from homespun.models.encoder_decoder import EncoderDecoderConfig
from homespun.models.heads import DiscriminatorHeadConfig
from homespun.models.presets import PRESETS
from homespun.objectives.electra import Electra, ElectraObjective
from homespun.text.tokenizer import Tokenizer
from homespun.text.vocabulary_extension import AddedTokens


def build(tokenizer: Tokenizer, config: Electra | None = None, **fields: Any) -> ElectraObjective:
    torch.manual_seed(1)
    return (config or Electra()).build(tiny_model(tokenizer, **fields), tokenizer)


def some_batch(tokenizer: Tokenizer, *, count: int = 20) -> Batch:
    rows = some_rows(tokenizer, [29, 17] * (count // 2))
    return Electra().collate(tokenizer)(rows, row_seeds(len(rows)))


def texts_seen(model: nn.Module) -> list[Tensor]:
    """Fills with what the backbone of ``model`` is given, call by call."""
    seen: list[Tensor] = []
    model.backbone.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    return seen


def original(batch: Batch) -> Tensor:
    return batch.input_ids.flatten().index_copy(0, batch.positions, batch.labels).view_as(batch.input_ids)


def test_a_generator_is_one_stack(tokenizer: Tokenizer) -> None:
    """An encoder-decoder of the same sizes lacks intermediate_size."""
    objective = build(tokenizer, num_hidden_layers=2)
    mine = objective.generator_config.backbone
    stack = mine.model_dump() | {"num_hidden_layers": 1}
    backbone = EncoderDecoderConfig.model_validate({"encoder": stack, "decoder": {}})
    given = ModelBundle(objective.generator, ModelConfig(backbone=backbone), tokenizer)
    with pytest.raises(UserError, match="a generator needs a model of one stack"):
        objective.load_generator(given, AddedTokens(tokenizer.vocab_size))


@pytest.mark.parametrize("fields", [{}, {"embedding_size": 14}, {"positions": {"kind": "sinusoidal"}}], ids=str)
def test_embeddings_are_one(tokenizer: Tokenizer, fields: dict[str, Any]) -> None:
    objective = build(tokenizer, **fields)
    generator, discriminator = objective.generator, objective.discriminator
    assert generator.backbone.embeddings is discriminator.backbone.embeddings
    assert generator.head.weight is discriminator.backbone.embeddings.words.weight
    names = [name for name, _ in objective.named_parameters()]
    assert sum("words" in name for name in names) == 1
    assert sum("embeddings.positions" in name for name in names) == (0 if "positions" in fields else 1)
    # beside them nothing is shared
    own = [{id(p) for p in model.parameters()} for model in (generator, discriminator)]
    assert own[0] & own[1] == {id(p) for p in discriminator.backbone.embeddings.parameters()}


@pytest.mark.parametrize(
    "preset",
    [
        name
        for name, fields in PRESETS.items()
        if "encoder" not in fields and not fields.get("causal") and fields.get("kind") != "recurrent"
    ],
)
def test_generator_is_a_quarter_as_wide(preset: str) -> None:
    backbone = EncoderConfig.model_validate({"preset": preset, "vocab_size": 101})
    generator = Electra().generator(backbone)
    assert EncoderConfig.model_validate(generator.model_dump()) == generator  # it is a config that could be written
    assert generator.hidden_size == backbone.hidden_size // 4
    assert generator.intermediate_size == backbone.intermediate_size // 4
    assert generator.num_hidden_layers == backbone.num_hidden_layers
    assert generator.embedding_size == (backbone.embedding_size or backbone.hidden_size)
    if backbone.num_attention_heads % 4 == 0:
        assert generator.num_attention_heads == backbone.num_attention_heads // 4


@pytest.mark.parametrize("size", [0.01, 0.25, 1 / 3, 0.75, 1.0])
@pytest.mark.parametrize(
    "fields",
    [
        {"hidden_size": 22, "num_attention_heads": 2},
        {"hidden_size": 21, "num_attention_heads": 3},
        {"hidden_size": 60, "num_attention_heads": 12},
        {"hidden_size": 44, "num_attention_heads": 2, "residual": {"kind": "reversible", "streams": "split"}},
        {"hidden_size": 44, "num_attention_heads": 2, "residual": {"kind": "reversible", "streams": "copy"}},
    ],
    ids=str,
)
def test_generator_of_any_size_builds(tokenizer: Tokenizer, size: float, fields: dict[str, Any]) -> None:
    objective = build(tokenizer, Electra(generator_size=size), **fields)
    batch = some_batch(tokenizer, count=2)
    objective(batch).total(batch.targets).backward()
    assert all(parameter.grad is not None for parameter in objective.parameters())


def test_generator_depth(tokenizer: Tokenizer) -> None:
    objective = build(tokenizer, Electra(generator_layers=0.34), num_hidden_layers=3)
    assert len(objective.generator.backbone.layers) == 1
    model, config = objective.export_model()
    assert model is objective.discriminator
    assert len(model.backbone.layers) == 3
    assert config.head == DiscriminatorHeadConfig()


def test_samples_replace_masked_positions_only(tokenizer: Tokenizer) -> None:
    objective, batch = build(tokenizer), some_batch(tokenizer)
    read, judged = texts_seen(objective.generator), texts_seen(objective.discriminator)
    for _ in range(3):
        objective(batch)
    before = original(batch)
    chosen = torch.zeros(batch.input_ids.numel(), dtype=torch.bool).index_fill(0, batch.positions, True)
    chosen = chosen.view_as(batch.input_ids)
    for masked, filled in zip(read, judged, strict=True):
        assert torch.equal(masked, batch.input_ids)
        assert torch.equal(filled[~chosen], before[~chosen])
    # sampled, and not the most likely taken: a generator that knows nothing says many things, new ones every time
    assert not torch.equal(judged[0], judged[1])
    assert len(judged[0][chosen].unique()) > 10


def test_discriminator_labels_are_replaced_tokens(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    objective, batch = build(tokenizer).eval(), some_batch(tokenizer)
    # a sample that happens to be the original: a generator with one favourite word
    with torch.no_grad():
        objective.generator.head.bias[7] = 4.0
    judged = texts_seen(objective.discriminator)
    labels_seen: list[Tensor] = []
    criterion = F.binary_cross_entropy_with_logits

    def spy(logits: Tensor, labels: Tensor, **arguments: Any) -> Tensor:
        labels_seen.append(labels)
        return criterion(logits, labels, **arguments)

    monkeypatch.setattr(F, "binary_cross_entropy_with_logits", spy)
    terms = objective(batch).terms
    keep = batch.attention_mask
    replaced = (judged[0] != original(batch)) & keep
    assert torch.equal(labels_seen[0].view_as(keep).bool() & keep, replaced)
    assert int(replaced.sum()) < len(batch.labels if batch.labels is not None else [])  # some are the original
    # and by hand: every real token counts once, padding does not
    logits = objective.discriminator(judged[0], batch.attention_mask)
    expected = sum(criterion(logit, label.float()) for logit, label in zip(logits[keep], replaced[keep], strict=True))
    torch.testing.assert_close(terms["discriminator"].sum, expected)
    assert float(terms["discriminator"].count) == int(keep.sum()) == batch.targets["discriminator"]
    right = ((logits > 0) == replaced)[keep]
    assert int(terms["discriminator_accuracy"].sum) == int(right.sum())
    assert int(terms["replaced_recall"].count) == int(replaced.sum())
    assert int(terms["replaced_recall"].sum) == int((logits > 0)[replaced].sum())


@pytest.mark.parametrize("weight", [50.0, 7.0])
def test_losses_are_weighted(tokenizer: Tokenizer, weight: float) -> None:
    assert Electra().discriminator_weight == 50.0
    batch = some_batch(tokenizer)
    loss = build(tokenizer, Electra(discriminator_weight=weight))(batch)
    generator, discriminator = loss.terms["generator"], loss.terms["discriminator"]
    assert int(generator.count) == 10 * (round(0.15 * 27) + round(0.15 * 15))
    expected = generator.sum / generator.count + weight * discriminator.sum / (10 * (29 + 17))
    torch.testing.assert_close(loss.total(batch.targets), expected)


def test_discriminator_does_not_teach_the_generator(tokenizer: Tokenizer) -> None:
    objective, batch = build(tokenizer), some_batch(tokenizer)
    terms = objective(batch).terms
    terms["discriminator"].sum.backward(retain_graph=True)
    shared = {id(p) for p in objective.discriminator.parameters()}
    for name, parameter in objective.named_parameters():
        assert (parameter.grad is not None) == (id(parameter) in shared), name
    objective.zero_grad()
    terms["generator"].sum.backward()
    shared = {id(p) for p in objective.generator.parameters()}
    for name, parameter in objective.named_parameters():
        assert (parameter.grad is not None) == (id(parameter) in shared), name


def test_generator_loss_is_that_of_its_dense_head(tokenizer: Tokenizer) -> None:
    objective, batch = build(tokenizer).eval(), some_batch(tokenizer)
    logits = objective.generator(batch.input_ids, batch.attention_mask).flatten(0, 1)[batch.positions]
    terms = objective(batch).terms
    torch.testing.assert_close(terms["generator"].sum, F.cross_entropy(logits, batch.labels, reduction="sum"))
    assert int(terms["generator_accuracy"].sum) == int((logits.argmax(-1) == batch.labels).sum())


@pytest.mark.slow
def test_discriminator_finds_replaced_tokens(tokenizer: Tokenizer) -> None:
    objective = build(tokenizer)
    objective.generator.requires_grad_(False)  # it stays as ignorant as it began: every word is as likely
    objective.discriminator.requires_grad_(True)
    terms = fit(objective, batches(Electra(), tokenizer), 200)
    share = round(0.15 * 22) / 24 * 28 / 29  # one sample in 29 is the original
    chance = -share * math.log(share) - (1 - share) * math.log(1 - share)
    assert terms["discriminator"] < 0.75 * chance, terms
    assert terms["discriminator_accuracy"] > 1 - share
    assert terms["replaced_recall"] > 0.3


def test_discriminator_is_kept(tokenizer: Tokenizer) -> None:
    objective = build(tokenizer)
    model, config = objective.export_model()
    assert model is objective.discriminator
    assert config.head == DiscriminatorHeadConfig()
    assert not any("generator" in name for name, _ in model.named_parameters())
