"""The loss of a decoder's streams is that of transformers, on the same batch, where its biases are put in order."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hf_peers import PROPHETNET, bert_tokenizer, decoder_inputs, inputs, their_model
from test_hf_prophetnet import ordered
from torch import Tensor

from homespun.batch import Batch
from homespun.hf.open import open_huggingface
from homespun.objectives.seq2seq import StreamWeights, decoder_loss

transformers = pytest.importorskip("transformers")

EVERY = StreamWeights(unseen="predicted")
CASES: dict[str, tuple[dict[str, Any], StreamWeights]] = {
    "three streams": ({}, EVERY),
    "two streams": ({"ngram": 2}, EVERY),
    "one stream": ({"ngram": 1}, EVERY),
    "label smoothing": ({"eps": 0.1}, EVERY),
    "the next token alone": (
        {"disable_ngram_loss": True, "eps": 0.1},
        StreamWeights(weights=(1, 0, 0), unseen="predicted"),
    ),
}


def batch_of(given: dict[str, Tensor], labels: Tensor) -> Batch:
    """``labels`` (batch, target) has -100 where there is none."""
    positions = (labels.flatten() >= 0).nonzero().squeeze(-1)
    return Batch(
        given["input_ids"],
        attention_mask=given["attention_mask"].bool(),
        decoder_input_ids=given["decoder_input_ids"],
        decoder_attention_mask=given["decoder_attention_mask"].bool(),
        positions=positions,
        labels=labels.flatten()[positions],
        targets={"seq2seq": float(len(positions))},
    )


@pytest.mark.parametrize("case", CASES)
def test_loss_and_gradients_are_theirs(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = transformers.models.prophetnet.modeling_prophetnet
    monkeypatch.setattr(module.ProphetNetNgramSelfAttention, "get_predict_relative_pos_embeddings", ordered)
    settings, streams = CASES[case]
    theirs = their_model(transformers.ProphetNetForConditionalGeneration, **PROPHETNET | settings)
    theirs.save_pretrained(tmp_path)
    bert_tokenizer().save(tmp_path)
    model = open_huggingface(tmp_path).stored.model.eval()
    given = inputs(pad_id=0, segments=0) | decoder_inputs(pad_id=0)
    generator = torch.Generator().manual_seed(11)
    labels = torch.randint(7, 89, given["decoder_input_ids"].shape, generator=generator)
    labels = labels.masked_fill(given["decoder_attention_mask"] == 0, -100)
    expected = theirs(**given, labels=labels).loss
    batch = batch_of(given, labels)
    backbone = model.backbone
    source = backbone.encode(batch.input_ids, **batch.context)
    term = decoder_loss(model, source, batch, streams, label_smoothing=settings.get("eps", 0.0))["seq2seq"]
    found = term.sum / term.count
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    expected.backward()
    found.backward()
    ours = backbone.encoder.embeddings.words.weight.grad
    assert ours is not None
    torch.testing.assert_close(ours, theirs.prophetnet.word_embeddings.weight.grad, rtol=1e-5, atol=1e-5)
