"""Models that tell a number, and those of cumulative logits, are the same in `transformers`; and the way back."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hf_peers import bert_tokenizer

from homespun.data.labels import Labels
from homespun.hf.export import export_huggingface
from homespun.hf.open import open_model
from homespun.models.bundle import ModelBundle
from homespun.models.config import ModelConfig
from homespun.tasks.ordinal_regression import OrdinalRegression
from homespun.tasks.regression import Regression

transformers = pytest.importorskip("transformers")

TOKENIZER = bert_tokenizer()
SIZES = {"hidden_size": 22, "num_attention_heads": 2, "intermediate_size": 34, "num_hidden_layers": 1}
BACKBONE = {"kind": "encoder", "vocab_size": TOKENIZER.vocab_size, "max_position_embeddings": 19, **SIZES}
IDS = torch.randint(5, 29, (3, 11), generator=torch.Generator().manual_seed(1))


def made(objective: Any, *numbers: Any) -> tuple[Any, ModelConfig]:
    torch.manual_seed(1)
    config = ModelConfig.model_validate({"backbone": BACKBONE})
    model, config = objective.build(config.build(), config, *numbers).export_model()
    return model.eval(), config


@pytest.mark.parametrize("case", ["regression", "ratings"])
def test_their_class_gives_the_same_numbers(tmp_path: Path, case: str) -> None:
    head = {"kind": "pooled"}
    labels = None
    if case == "regression":
        model, config = made(Regression.model_validate({"head": head}), np.array([100.0, 300.0, 500.0]))
    else:
        levels, ranks = (1.0, 2.0, 3.0, 4.0), np.array([0, 1, 2, 3, 3])
        model, config = made(OrdinalRegression.model_validate({"head": head}), ranks, levels)
        labels = Labels(("> 1", "> 2", "> 3"), multi_label=True)
    report = export_huggingface(tmp_path / "hf", ModelBundle(model, config, TOKENIZER, labels))
    assert report.architecture == "BertForSequenceClassification"
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(str(tmp_path / "hf")).eval()
    problem = "regression" if labels is None else "multi_label_classification"
    assert theirs.config.problem_type == problem
    with torch.no_grad():
        ours = model(IDS)
        assert torch.allclose(theirs(IDS).logits, ours, rtol=1e-5, atol=1e-4)
        again = open_model(str(tmp_path / "hf"))
        assert torch.allclose(again.model(IDS), ours, rtol=1e-5, atol=1e-4)
    assert again.labels == (labels or Labels(("LABEL_0",)))
