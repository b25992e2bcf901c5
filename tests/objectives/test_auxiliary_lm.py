"""GPT's fine-tuning: the loss of the task and a share of the language model's, of one pass (Radford et al. 2018)."""

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch.nn import functional as F

from homespun.batch import Batch
from homespun.data.labels import Labels
from homespun.data.rows import Row
from homespun.errors import UserError
from homespun.models.config import ModelConfig
from homespun.models.sequence_heads import LastTokenHeadConfig
from homespun.tasks.classification import Classification, ClassificationLoss

LABELS = Labels(("a", "b", "c"))
CONFIG = Classification(head=LastTokenHeadConfig(dropout=0.0), auxiliary_lm=0.5)


def pretrained(**fields: Any) -> ModelConfig:
    sizes = {"hidden_size": 14, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 17}
    backbone = {"preset": "gpt-tiny", "vocab_size": 53, "hidden_dropout_prob": 0.0} | sizes | fields
    return ModelConfig.model_validate({"backbone": backbone, "head": {"kind": "causal_lm"}})


def objective(config: Classification = CONFIG, **fields: Any) -> ClassificationLoss:
    torch.manual_seed(1)
    model = pretrained(**fields)
    return config.build(model.build(), model, LABELS)


def batch(rows: slice = slice(None)) -> Batch:
    random = np.random.default_rng(3)
    made = [Row(random.integers(5, 53, length), label=label) for length, label in ((3, 0), (11, 2), (7, 1), (1, 1))]
    return pickle.loads(pickle.dumps(CONFIG.collate(0, LABELS)))(made[rows], [])


def test_the_loss_is_that_of_the_paper() -> None:
    complete, module = batch(), objective().eval()
    loss = module(complete)
    language = module.model.backbone(complete.input_ids, attention_mask=complete.attention_mask)
    logits = language @ module.model.backbone.embeddings.words.weight.T
    nats = [
        F.cross_entropy(row[:-1][keep[1:]], ids[1:][keep[1:]], reduction="sum")
        for row, ids, keep in zip(logits, complete.input_ids, complete.attention_mask, strict=True)
    ]
    task = F.cross_entropy(module.model(complete.input_ids, complete.attention_mask), complete.labels)
    expected = task + 0.5 * torch.stack(nats).sum() / (2 + 10 + 6)
    assert torch.allclose(loss.total(), expected, atol=1e-6)
    assert complete.targets == {"loss": 4.0, "accuracy": 4.0, "causal": 18.0}


def test_micro_batches_sum_to_the_batch() -> None:
    module, complete = objective(), batch()
    parts = [batch(slice(0, 1)), batch(slice(1, 4))]
    total = sum(module(part).total(complete.targets) for part in parts)
    assert torch.allclose(torch.as_tensor(total), module(complete).total(complete.targets), atol=1e-6)


def test_what_is_kept_is_the_classifier() -> None:
    module = objective()
    model, config = module.export_model()
    assert config.head.kind == "last"
    plain = objective(Classification(head=LastTokenHeadConfig()))
    assert {name for name, _ in model.named_parameters()} == {
        name for name, _ in plain.export_model()[0].named_parameters()
    }
    # the words are one parameter of both, and learn once
    assert len(list(module.parameters())) == len(list(plain.parameters()))


def test_a_checkpoint_without_a_head_gets_one_of_its_words() -> None:
    config = pretrained().model_copy(update={"head": None})
    module = CONFIG.build(config.build(), config, LABELS)
    assert module(batch()).terms["causal"].sum.isfinite()


def test_it_is_refused_where_it_makes_no_sense() -> None:
    with pytest.raises(UserError, match=r"causal model, .*set"):
        objective(causal=False)
    for wrong in ({"frozen": True}, {"last_layers": 2}):
        with pytest.raises(ValidationError, match="frozen and last_layers"):
            Classification.model_validate({"auxiliary_lm": 0.5} | wrong)
