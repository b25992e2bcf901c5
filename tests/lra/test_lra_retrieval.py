"""Two towers: documents do not see each other, padding does not leak, micro-batches add up."""

import numpy as np
import pytest
import torch
from benchmarks.lra.retrieval import Retrieval, RetrievalCollate, RetrievalObjective

from homespun.batch import Batch, RowSeed
from homespun.data.labels import Labels
from homespun.data.rows import Row
from homespun.errors import UserError
from homespun.models.config import ModelConfig
from homespun.models.encoder import EncoderConfig
from homespun.models.model import Model

LABELS = Labels(("0", "1", "2"))


@pytest.fixture
def objective() -> RetrievalObjective:
    torch.manual_seed(0)
    config = EncoderConfig(
        vocab_size=31, hidden_size=20, num_hidden_layers=1, num_attention_heads=2, intermediate_size=23
    )
    built = Retrieval(hidden_size=14).build(Model(config.build()), ModelConfig(backbone=config), LABELS)
    return built.eval()


def pair(first: int, second: int, label: int, seed: int) -> Row:
    ids = np.random.default_rng(seed).integers(5, 31, first + second)
    return Row(ids, documents=np.repeat([0, 1], [first, second]), label=label)


def collated(rows: list[Row]) -> Batch:
    return RetrievalCollate(0)(rows, [RowSeed(0, 0, i) for i in range(len(rows))])


ROWS = [pair(5, 11, 0, 1), pair(13, 3, 2, 2), pair(7, 7, 1, 3)]


def test_first_documents_then_second_ones() -> None:
    batch = collated(ROWS)
    assert batch.input_ids.shape == (6, 13)
    assert batch.attention_mask.sum(dim=1).tolist() == [5, 13, 7, 11, 3, 7]
    assert batch.documents is None
    assert batch.targets == {"loss": 3.0, "accuracy": 3.0}
    assert batch.input_ids[3, :11].tolist() == ROWS[0].input_ids[5:].tolist()


def test_alone_is_as_in_a_batch(objective: RetrievalObjective) -> None:
    with torch.no_grad():
        batch = collated(ROWS)
        together = objective.model(batch.input_ids, **batch.context)
        assert together.shape == (3, len(LABELS))
        for row, logits in zip(ROWS, together, strict=True):
            alone = collated([row])
            torch.testing.assert_close(objective.model(alone.input_ids, **alone.context)[0], logits)


def test_both_documents_and_their_order_matter(objective: RetrievalObjective) -> None:
    with torch.no_grad():
        row = ROWS[0]
        documents = row.documents
        swapped = Row(np.concatenate([row.input_ids[5:], row.input_ids[:5]]), documents=np.sort(1 - documents), label=0)
        other = row.input_ids.copy()
        other[-1] = 5 + (other[-1] - 4) % 26
        changed = Row(other, documents=documents, label=0)
        batches = [collated([each]) for each in (row, swapped, changed)]
        logits = [objective.model(batch.input_ids, **batch.context) for batch in batches]
    assert not torch.allclose(logits[0], logits[1])
    assert not torch.allclose(logits[0], logits[2])


def test_micro_batches_add_up_and_all_parts_learn(objective: RetrievalObjective) -> None:
    full = collated(ROWS)
    objective(full).total(full.targets).backward()
    expected = {name: parameter.grad.clone() for name, parameter in objective.named_parameters() if _learns(parameter)}
    assert any(name.startswith("model.head") for name in expected)
    assert any(name.startswith("model.backbone.layers") for name in expected)
    objective.zero_grad()
    for rows in (ROWS[:2], ROWS[2:]):
        objective(collated(rows)).total(full.targets).backward()
    for name, gradient in expected.items():
        torch.testing.assert_close(objective.get_parameter(name).grad, gradient)


def _learns(parameter: torch.nn.Parameter) -> bool:
    return parameter.grad is not None


def test_what_is_kept_is_the_encoder(objective: RetrievalObjective) -> None:
    model, config = objective.export_model()
    assert model.head is None
    assert config.head is None
    assert model.backbone is objective.model.backbone


def test_a_causal_encoder_is_refused() -> None:
    config = ModelConfig(backbone=EncoderConfig(vocab_size=31, hidden_size=20, num_attention_heads=2, causal=True))
    with pytest.raises(UserError, match="bidirectional"):
        Retrieval().build(Model(config.backbone.build()), config, LABELS)
