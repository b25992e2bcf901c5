"""The enhanced mask decoder: absolute positions enter only where masked tokens are predicted."""

from pathlib import Path
from typing import Any

import pytest
import small_models
import torch
from torch import Tensor

from homespun.config import validate
from homespun.errors import UserError
from homespun.hf.export import export_huggingface
from homespun.hf.match import match_architecture
from homespun.models.backbone import Encoder
from homespun.models.bundle import ModelBundle
from homespun.models.config import ModelConfig
from homespun.models.model import Model
from homespun.objectives.electra import Electra
from homespun.text.tokenizer import Tokenizer

SIZES: dict[str, Any] = {
    "preset": "deberta-v3-mini",
    "vocab_size": 97,
    "hidden_size": 33,
    "num_attention_heads": 11,
    "intermediate_size": 47,
    "num_hidden_layers": 3,
    "max_position_embeddings": 29,
    "initializer_range": 0.3,
    "enhanced_mask_decoder": True,
}
HEADS: dict[str, Any] = {"masked_lm": {"kind": "masked_lm"}, "pooled": {"kind": "pooled"}, "none": None}


def build(head: str = "masked_lm", **fields: Any) -> Model:
    torch.manual_seed(1)
    config = ModelConfig.model_validate({"backbone": SIZES | fields, "head": HEADS[head]})
    return config.build().double().eval()


def encoder_of(model: Model) -> Encoder:
    assert isinstance(model.backbone, Encoder)
    return model.backbone


def some_ids(*shape: int) -> Tensor:
    return small_models.some_ids(*shape, seed=3, vocab_size=97)


@pytest.mark.parametrize("embedding_size", [0, 21], ids=["as wide", "narrow"])
def test_position_enters_through_its_vector_only(embedding_size: int) -> None:
    model, ids = build(embedding_size=embedding_size), some_ids(2, 13)
    later = torch.arange(7, 20).expand(2, -1)
    assert not torch.allclose(model(ids), model(ids, position_ids=later))
    late = encoder_of(model).embeddings.late
    with torch.no_grad():
        late.embedding.weight.copy_(late.embedding.weight[:1].clone())  # every place is the same
    torch.testing.assert_close(model(ids), model(ids, position_ids=later))


@pytest.mark.parametrize("head", ["pooled", "none"])
def test_it_is_not_used_in_fine_tuning(head: str) -> None:
    model, ids = build(head), some_ids(2, 13)
    before = model(ids)
    late = encoder_of(model).embeddings.late
    with torch.no_grad():
        late.embedding.weight.normal_()
    assert torch.equal(model(ids), before)
    without = build(head, enhanced_mask_decoder=False)
    without.load_state_dict({name: t for name, t in model.state_dict().items() if ".late." not in name})
    assert torch.equal(without(ids), before)


def test_it_is_what_the_authors_run() -> None:
    """Their code, over a layer of transformers, which takes queries of its own: MIT, DeBERTa, `EnhancedMaskDecoder`."""
    theirs_module = pytest.importorskip("transformers.models.deberta_v2.modeling_deberta_v2")
    transformers = pytest.importorskip("transformers")
    from homespun.hf.engine import to_hf
    from homespun.hf.families.deberta import DEBERTA_V2
    from homespun.models.bundle import weights_of

    model = build("none")
    config = ModelConfig.model_validate({"backbone": SIZES, "head": None})
    tree = DEBERTA_V2.write_config(DEBERTA_V2.architectures[0], config)
    theirs = theirs_module.DebertaV2Model(transformers.DebertaV2Config(**tree)).double().eval()
    named = to_hf(DEBERTA_V2.table, weights_of(model), config.backbone)
    named = {name.removeprefix("deberta."): tensor for name, tensor in named.items()}
    places = named.pop("embeddings.position_embeddings.weight")
    theirs.load_state_dict(named)
    ids, keep = some_ids(2, 13), small_models.kept(13, 13, 7)
    with torch.no_grad():
        states = theirs(ids, attention_mask=keep.long(), output_hidden_states=True).hidden_states
        encoder, hidden = theirs.encoder, states[-2]
        query = places[:13] + hidden
        for _ in range(2):
            query, _weights = encoder.layer[-1](
                hidden,
                encoder.get_attention_mask(keep.long()),
                query_states=query,
                relative_pos=encoder.get_rel_pos(hidden),
                rel_embeddings=encoder.get_rel_embedding(),
            )
        found = encoder_of(model).decode_masked(ids, attention_mask=keep)
    torch.testing.assert_close(found[keep], query[keep], rtol=1e-9, atol=1e-9)


def test_padding_does_not_leak_and_checkpointing_changes_nothing() -> None:
    encoder, ids = encoder_of(build()), some_ids(2, 13)
    keep = small_models.kept(13, 13, 7)
    padded = encoder.decode_masked(ids.where(keep, 0), attention_mask=keep)
    torch.testing.assert_close(padded[1:, :7], encoder.decode_masked(ids[1:, :7]))
    found = []
    for encoder.gradient_checkpointing in (False, True):
        torch.manual_seed(3)
        encoder.train().zero_grad()
        encoder.decode_masked(ids, attention_mask=keep).square().sum().backward()
        found.append([p.grad for p in encoder.parameters() if p.grad is not None])
    assert len(found[0]) == len([*encoder.parameters()])
    for plain, again in zip(*found, strict=True):
        torch.testing.assert_close(plain, again)


def test_electra_trains_it_in_the_generator() -> None:
    tokenizer = Tokenizer.train(["a few words to be told from their places"] * 3, kind="wordpiece", vocab_size=61)
    config = ModelConfig.model_validate({"backbone": SIZES | {"vocab_size": 61}})
    objective = Electra().build(config, tokenizer)
    assert objective.generator.backbone.embeddings is objective.discriminator.backbone.embeddings
    ids = some_ids(2, 7) % 61
    read = objective.generator.reader(objective.generator.backbone, ids)
    assert not torch.allclose(read, objective.generator.backbone(ids))


def test_it_is_written_for_transformers_but_for_the_head_of_masked_words(tmp_path: Path) -> None:
    tokenizer = Tokenizer.train(["a few words to be told from their places"] * 3, kind="wordpiece", vocab_size=61)
    for head, written in (("pooled", "DebertaV2ForSequenceClassification"), ("masked_lm", "DebertaV2Model")):
        config = ModelConfig.model_validate({"backbone": SIZES, "head": HEADS[head]})
        match, notes = match_architecture(config)
        assert match.architecture.name == written
        assert any("position_embeddings" in note for note in notes)
        report = export_huggingface(tmp_path / head, ModelBundle(config.build(), config, tokenizer))
        assert report.architecture == written


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"attention": {"kind": "full"}}, "full and none"),
        ({"positions": {"kind": "learned"}}, "disentangled and learned"),
        ({"causal": True}, "reversible or causal"),
    ],
)
def test_what_it_cannot_stand_in_is_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        validate(ModelConfig, {"backbone": SIZES | fields}, source="test")
