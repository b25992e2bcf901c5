"""Heads on the vectors of the last layers: the same as `transformers` gives, trained, stored and loaded again."""

from pathlib import Path
from typing import Any

import pytest
import torch

from homespun.data.labels import LabelledRows, Labels
from homespun.data.long_inputs import ChunkPool
from homespun.errors import UserError
from homespun.hf.open import open_huggingface
from homespun.inference.predict import predict_logits
from homespun.models.bundle import load_model, save_model
from homespun.models.composite_heads import ConcatLastLayers, LastLayersHeadConfig
from homespun.models.config import ModelConfig
from homespun.models.encoder import EncoderConfig
from homespun.models.encoder_decoder import EncoderDecoderConfig
from homespun.models.sequence_heads import BiLSTMHeadConfig
from homespun.tasks.classification import Classification
from homespun.text.tokenizer import Tokenizer

HIDDEN, LAYERS = 20, 5
LABELS = Labels(("a", "b", "c"))
TEXTS = ["one two three four five six seven", "eight nine", "ten eleven twelve one", "two"]


def config(**fields: Any) -> ModelConfig:
    sizes = {"hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": 2, "intermediate_size": 17}
    return ModelConfig(backbone=EncoderConfig(**{"vocab_size": 97, "max_position_embeddings": 31, **sizes, **fields}))


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.randint(5, 97, (3, 11), generator=torch.Generator().manual_seed(3))
    return ids, torch.arange(11)[None] < torch.tensor([11, 7, 2])[:, None]


@pytest.mark.parametrize("residual", ["post", "pre", "reversible"])
def test_they_are_the_last_of_the_hidden_states(residual: str) -> None:
    torch.manual_seed(1)
    backbone = config(residual={"kind": residual}).build().backbone.eval()
    ids, keep = batch()
    states = list(backbone.hidden_states(ids, attention_mask=keep))
    for layers in range(1, LAYERS + 1):
        found = ConcatLastLayers(layers)(backbone, ids, attention_mask=keep)
        expected = [*states[LAYERS - layers + 1 : -1], backbone(ids, attention_mask=keep)]
        torch.testing.assert_close(found, torch.cat(expected, dim=-1), atol=1e-6, rtol=1e-6)


def test_they_are_those_of_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(1)
    tokenizer = Tokenizer.train(TEXTS * 9, kind="wordpiece", vocab_size=61)
    peer = transformers.BertModel(
        transformers.BertConfig(
            vocab_size=97,
            hidden_size=HIDDEN,
            num_hidden_layers=LAYERS,
            num_attention_heads=2,
            intermediate_size=17,
            max_position_embeddings=31,
        )
    ).eval()
    peer.save_pretrained(tmp_path)
    tokenizer.save(tmp_path)
    backbone = open_huggingface(tmp_path).stored.model.backbone
    ids, keep = batch()
    states = peer(ids, attention_mask=keep.long(), output_hidden_states=True).hidden_states
    found = ConcatLastLayers(4)(backbone, ids, attention_mask=keep)
    torch.testing.assert_close(found[keep], torch.cat(states[-4:], dim=-1)[keep], atol=1e-5, rtol=1e-5)


def trained(last_layers: int, *, tune: bool = False, **fields: Any) -> Any:
    torch.manual_seed(2)
    model = config(**fields)
    task = Classification(head=BiLSTMHeadConfig(lstm_size=7), last_layers=last_layers, frozen=not tune)
    return task.build(model.build(), model, LABELS)


def test_the_head_reads_them(tmp_path: Path) -> None:
    model, made = trained(4).export_model()
    ids, keep = batch()
    model.eval()
    wide = model.backbone.last_layers(4, ids, attention_mask=keep)
    assert wide.shape == (3, 11, 4 * HIDDEN)
    torch.testing.assert_close(model(ids, keep), model.head(wide, keep), atol=0, rtol=0)
    assert made.head.kind == "last_layers"
    assert made.head.head.num_labels == 3


def test_gradients_reach_the_layers_also_when_recomputed() -> None:
    gradients = []
    for recompute in (False, True):
        module = trained(3, tune=True, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0).train()
        module.model.head.eval()
        module.model.backbone.gradient_checkpointing = recompute
        module.model(*batch()).square().sum().backward()
        gradients.append([p.grad for p in module.model.backbone.layers.parameters()])
    assert all(gradient.abs().max() > 0 for gradient in gradients[0] if gradient.ndim > 1)
    torch.testing.assert_close(gradients[1], gradients[0], atol=1e-6, rtol=1e-5)


def test_stored_loaded_and_predicting_the_same(tmp_path: Path) -> None:
    tokenizer = Tokenizer.train(TEXTS * 9, kind="wordpiece", vocab_size=61)
    model, made = trained(4).export_model()
    save_model(tmp_path / "model", model, made, tokenizer, labels=LABELS)
    stored = load_model(tmp_path / "model")
    assert stored.config == made
    rows = LabelledRows(TEXTS, None, tokenizer, length=16)
    expected = predict_logits(model, rows, pad_id=tokenizer.pad_id)
    for name, weight in stored.model.state_dict().items():
        assert torch.equal(weight, model.state_dict()[name])
    # to rounding: the last bits depend on where in memory the weights lie
    found = predict_logits(stored.model, rows, pad_id=tokenizer.pad_id)
    torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), rtol=1e-6, atol=1e-7)
    alone = [predict_logits(stored.model, LabelledRows([t], None, tokenizer, length=16), pad_id=0) for t in TEXTS]
    torch.testing.assert_close(torch.tensor(expected), torch.cat([torch.tensor(a) for a in alone]))


def test_a_new_task_on_such_a_model_reads_what_it_asks_for() -> None:
    model, made = trained(4).export_model()
    again, config_again = Classification().build(model, made, LABELS).export_model()
    assert config_again.head.kind == "ffn"
    assert again(*batch()).shape == (3, 3)


def test_with_layers_over_chunks() -> None:
    model = config()
    task = Classification(last_layers=2)
    made = task.build(model.build(), model, LABELS, long_inputs=ChunkPool(chunks=3, layers=1)).export_model()[0].eval()
    chunks = torch.tensor([[0, 2], [1, -1]])
    assert made(*batch(), chunks=chunks).shape == (2, 3)


def test_too_many_layers_and_a_decoder_are_refused() -> None:
    with pytest.raises(UserError, match=r"last_layers=6.* 5 layers"):
        trained(6)
    stack = {"vocab_size": 97, "max_position_embeddings": 31, "hidden_size": HIDDEN, "num_attention_heads": 2}
    both = EncoderDecoderConfig.model_validate({"encoder": stack, "decoder": {}})
    with pytest.raises(UserError, match="one stack"):
        LastLayersHeadConfig(layers=2).build(both.build())
