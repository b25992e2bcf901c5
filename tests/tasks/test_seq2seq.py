"""Text to text: what is learned of a row, by two stacks and by one, against plain arithmetic."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from homespun.data.rows import Row
from homespun.data.source_target import SourceTargetPair
from homespun.errors import UserError
from homespun.metrics.text import Rouge
from homespun.models.config import ModelConfig
from homespun.tasks.seq2seq import TextToText, TextToTextLoss
from homespun.tasks.seq2seq_data import TextPairsData
from homespun.tasks.summaries import measure_texts

SIZES: dict[str, Any] = {"vocab_size": 53, "hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2}
SIZES |= {"intermediate_size": 17, "max_position_embeddings": 31, "hidden_dropout_prob": 0.0}
TWO = {"kind": "encoder_decoder", "encoder": SIZES, "decoder_start_token_id": 3}
ONE = {"kind": "encoder", "causal": True} | SIZES
ROWS = [
    Row(np.array([2, 7, 11, 13, 3]), target_ids=np.array([17, 19, 3])),
    Row(np.array([2, 23, 3]), target_ids=np.array([29, 31, 37, 41, 3])),
]


def objective(backbone: dict[str, Any], **settings: Any) -> TextToTextLoss:
    torch.manual_seed(0)
    config = ModelConfig.model_validate({"backbone": backbone})
    return TextToText(**settings).build(config.build(), config).double()


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("backbone", [TWO, ONE], ids=["two", "one"])
def test_the_loss_is_that_of_the_target_alone(backbone: dict[str, Any], smoothing: float) -> None:
    module = objective(backbone, label_smoothing=smoothing).train()
    batch = TextToText().collate(module.config)(ROWS, [])
    loss = module(batch)
    sums, count = torch.zeros((), dtype=torch.float64), 0
    for row in ROWS:
        source, target = (torch.from_numpy(ids)[None] for ids in (row.input_ids, row.target_ids))
        if backbone is TWO:
            read = torch.cat([torch.tensor([[3]]), target[:, :-1]], 1)
            logits = module.model(source, decoder_input_ids=read)[0]
        else:
            whole = torch.cat([source, target], 1)
            logits = module.model(whole)[0, source.shape[1] - 1 : -1]
        sums += F.cross_entropy(logits, target[0], label_smoothing=smoothing, reduction="sum")
        count += target.shape[1]
    torch.testing.assert_close(loss.terms["seq2seq"].sum.double(), sums)
    assert loss.terms["seq2seq"].count == count == batch.targets["seq2seq"] == 8


def test_the_loss_of_a_validation_is_not_smoothed() -> None:
    module, plain = objective(TWO, label_smoothing=0.3).eval(), objective(TWO).eval()
    batch = TextToText().collate(module.config)(ROWS, [])
    assert module(batch).terms["seq2seq"].sum == plain(batch).terms["seq2seq"].sum


def test_a_frozen_encoder_learns_nothing_and_has_no_dropout() -> None:
    module = objective(TWO | {"encoder": SIZES | {"hidden_dropout_prob": 0.5}}, frozen_encoder=True).train()
    assert not module.model.backbone.encoder.training
    assert module.model.backbone.decoder.training
    module(TextToText().collate(module.config)(ROWS, [])).total().backward()
    moved = {name for name, tensor in module.model.named_parameters() if tensor.grad is not None}
    assert moved
    assert not any(name.startswith("backbone.encoder.") for name in moved)


def test_who_cannot_write() -> None:
    with pytest.raises(UserError, match="this one is an encoder"):
        objective({"kind": "encoder"} | SIZES)
    with pytest.raises(UserError, match="needs an encoder"):
        objective(ONE, frozen_encoder=True)


def test_data_sets_with_one_prefix_are_measured_separately() -> None:
    sets = [{"train": "a.csv", "prefix": "summarize: "}, {"train": "b.csv", "prefix": "summarize: "}]
    data = TextPairsData.model_validate({"sets": sets})
    pairs = [SourceTargetPair("a long text", ("good",), data_set=number) for number in (0, 1)]
    by_set = measure_texts(data, pairs, ["good", "bad"], Rouge()).metrics["by_set"]
    assert {name: metrics["rouge1"] for name, metrics in by_set.items()} == {"summarize": 1.0, "summarize 1": 0.0}
