"""A head that would be given the same vector of every text is refused, and no other."""

import re
from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from homespun.data.labels import Labels
from homespun.errors import UserError
from homespun.models.config import ModelConfig
from homespun.models.model import Model
from homespun.models.sequence_heads import MeanHeadConfig, PooledHeadConfig, SequenceHeadConfig
from homespun.tasks.classification import Classification
from homespun.tasks.head_training import ClassLoss
from homespun.tasks.regression import Regression
from homespun.tasks.sentence_classification import SentenceClassification
from homespun.tasks.token_classification import TokenClassification

SIZES = {"vocab_size": 37, "hidden_size": 14, "num_hidden_layers": 2}
WIDE = {"num_attention_heads": 2, "intermediate_size": 22, "max_position_embeddings": 19}
STACKS: dict[str, dict[str, Any]] = {
    "encoder": {"kind": "encoder", **SIZES, **WIDE},
    "causal": {"kind": "encoder", "causal": True, **SIZES, **WIDE},
    "lstm": {"kind": "recurrent", "bidirectional": False, **SIZES},
    "bilstm": {"kind": "recurrent", "bidirectional": True, **SIZES},
}
ONE_WAY = ("causal", "lstm")
LABELS = Labels(("a", "b", "c"))
HEADS = [*(head() for head in get_args(get_args(SequenceHeadConfig)[0])), PooledHeadConfig(token="last")]


@pytest.mark.parametrize("head", HEADS, ids=lambda head: f"{head.kind}-{getattr(head, 'token', '')}")
@pytest.mark.parametrize("stack", STACKS)
def test_heads_with_constant_output_are_refused(stack: str, head: Any) -> None:
    torch.manual_seed(0)
    config = ModelConfig.model_validate({"backbone": STACKS[stack]})
    model = config.build()
    texts = torch.randint(5, 37, (6, 11))
    texts[:, 0] = 2  # [CLS]
    built = head.build(model.backbone).eval()
    with torch.no_grad():
        told = Model(model.backbone, built, reader=config.reader).eval()(texts)
    says_nothing = torch.allclose(told, told[:1].expand_as(told), atol=1e-6)
    assert says_nothing == (stack in ONE_WAY and head.reads_first_token)
    if says_nothing:
        with pytest.raises(UserError, match=re.escape(f"objective.head.kind={head.kind} reads [CLS]")):
            Classification(head=head).build(model, config, LABELS)
    else:
        Classification(head=head).build(model, config, LABELS)


@pytest.mark.parametrize("stack", STACKS)
def test_numbers_have_the_same_heads(stack: str) -> None:
    config = ModelConfig.model_validate({"backbone": STACKS[stack]})
    if stack in ONE_WAY:
        with pytest.raises(UserError, match="classify-cnn"):
            Regression().build(config.build(), config, np.array([1.0, 2.0, 3.0]))
    Regression(head=MeanHeadConfig()).build(config.build(), config, np.array([1.0, 2.0, 3.0]))


@pytest.mark.parametrize("smooth_evaluation", [True, False])
def test_label_smoothing_in_evaluation_is_an_attribute(smooth_evaluation: bool) -> None:
    logits, labels = torch.tensor([[2.0, 0.0, -1.0], [0.5, 1.0, 0.0]]), torch.tensor([0, 2])
    loss = ClassLoss(label_smoothing=0.2, smooth_evaluation=smooth_evaluation)
    plain, smooth = (F.cross_entropy(logits, labels, reduction="sum", label_smoothing=s) for s in (0.0, 0.2))
    assert loss.train()(logits, labels).terms["loss"].sum == smooth != plain
    assert loss.eval()(logits, labels).terms["loss"].sum == (smooth if smooth_evaluation else plain)


@pytest.mark.parametrize(
    ("objective", "smooths"),
    [(Classification(), True), (SentenceClassification(), True), (TokenClassification(), False)],
)
def test_only_tags_are_not_smoothed_in_evaluation(objective: Any, smooths: bool) -> None:
    config = ModelConfig.model_validate({"backbone": STACKS["encoder"]})
    assert objective.build(config.build(), config, LABELS).loss.smooth_evaluation == smooths
