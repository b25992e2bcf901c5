"""Heads on several layers: the concatenated last ones, and a scalar mix of all."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from homespun.data.labels import LabelledRows, Labels
from homespun.data.long_inputs import ChunkPool
from homespun.errors import UserError
from homespun.hf.open import open_huggingface
from homespun.inference.predict import predict_logits
from homespun.models.bundle import load_model, save_model
from homespun.models.composite_heads import (
    ConcatLastLayers,
    LastLayersHeadConfig,
    ScalarMix,
    ScalarMixHeadConfig,
    all_layers,
    num_mixed_layers,
    summarize_mix,
)
from homespun.models.config import ModelConfig
from homespun.models.encoder import EncoderConfig
from homespun.models.encoder_decoder import EncoderDecoderConfig
from homespun.models.recurrent import RecurrentConfig
from homespun.models.sequence_heads import BiLSTMHeadConfig
from homespun.tasks.classification import Classification
from homespun.tasks.question_answering import QuestionAnswering
from homespun.tasks.regression import Regression
from homespun.tasks.sentence_classification import SentenceClassification
from homespun.tasks.token_classification import TokenClassification
from homespun.text.tokenizer import Tokenizer

HIDDEN, LAYERS, VOCAB = 44, 3, 97
LABELS = Labels(("a", "b", "c"))
TEXTS = ["one two three four five six seven", "eight nine", "ten eleven twelve one", "two"]
SIZES = {"hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "vocab_size": VOCAB, "max_position_embeddings": 31}
ATTENTION = {"num_attention_heads": 2, "intermediate_size": 17}
INDEPENDENT: dict[str, Any] = {"bidirectional": True, "independent_directions": True, "cell_size": 29}
STACKS: dict[str, EncoderConfig | RecurrentConfig] = {
    "post": EncoderConfig.model_validate(SIZES | ATTENTION),
    "pre": EncoderConfig.model_validate(SIZES | ATTENTION | {"residual": {"kind": "pre"}}),
    "reversible": EncoderConfig.model_validate(SIZES | ATTENTION | {"residual": {"kind": "reversible"}}),
    "narrow words": EncoderConfig.model_validate(SIZES | ATTENTION | {"embedding_size": 7}),
    "lstm": RecurrentConfig.model_validate(SIZES),
    "elmo": RecurrentConfig.model_validate(SIZES | INDEPENDENT | {"characters": {"filters": [[2, 13]]}}),
}
KINDS: dict[str, dict[str, Any]] = {
    "last layers": {"last_layers": 2},
    "mix": {"layers": "mix"},
    "normalised mix": {"layers": "normalised_mix"},
}
every_stack = pytest.mark.parametrize("backbone", STACKS.values(), ids=STACKS)
every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.randint(5, VOCAB, (3, 11), generator=torch.Generator().manual_seed(3))
    return ids, torch.arange(11)[None] < torch.tensor([11, 7, 2])[:, None]


def trained(backbone: Any, **fields: Any) -> Any:
    torch.manual_seed(2)
    model = ModelConfig(backbone=backbone)
    task = Classification(**{"head": BiLSTMHeadConfig(lstm_size=7)} | fields)
    return task.build(model.build(), model, LABELS)


def layers_of(backbone: Any) -> list[torch.Tensor]:
    """The hidden states of `batch`, the last with the final norm."""
    ids, keep = batch()
    states = list(backbone.hidden_states(ids, attention_mask=keep))
    return [*states[:-1], backbone.final_norm(states[-1])]


@every_stack
def test_the_last_layers_are_the_last_of_the_hidden_states(backbone: Any) -> None:
    torch.manual_seed(1)
    encoder = ModelConfig(backbone=backbone).build().backbone.eval()
    ids, keep = batch()
    for count in range(1, LAYERS + 1):
        found = ConcatLastLayers(count)(encoder, ids, attention_mask=keep)
        torch.testing.assert_close(found, torch.cat(layers_of(encoder)[-count:], dim=-1), atol=1e-6, rtol=1e-6)


def test_the_last_layers_are_those_of_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(1)
    tokenizer = Tokenizer.train(TEXTS * 9, kind="wordpiece", vocab_size=61)
    peer = transformers.BertModel(transformers.BertConfig(**SIZES | ATTENTION | {"num_hidden_layers": 5})).eval()
    peer.save_pretrained(tmp_path)
    tokenizer.save(tmp_path)
    backbone = open_huggingface(tmp_path).stored.model.backbone
    ids, keep = batch()
    states = peer(ids, attention_mask=keep.long(), output_hidden_states=True).hidden_states
    found = ConcatLastLayers(4)(backbone, ids, attention_mask=keep)
    torch.testing.assert_close(found[keep], torch.cat(states[-4:], dim=-1)[keep], atol=1e-5, rtol=1e-5)


@every_stack
def test_a_mix_of_one_layer_is_that_layer(backbone: Any) -> None:
    model = trained(backbone, layers="mix").model.eval()
    ids, keep = batch()
    states = layers_of(model.backbone)
    mix = model.head.mix
    assert len(mix.scalars) == len(states) == LAYERS + 1
    hidden = all_layers(model.backbone, ids, attention_mask=keep)
    for number, state in enumerate(states):
        with torch.no_grad():
            mix.scalars.fill_(-1e4)[number] = 1e4
            mix.gamma.fill_(1.0)
        torch.testing.assert_close(mix(hidden), state, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(model(ids, keep), model.head.head(state, keep), rtol=1e-5, atol=1e-6)
        with torch.no_grad():
            mix.gamma.fill_(-2.5)
        torch.testing.assert_close(mix(hidden), -2.5 * state, rtol=1e-6, atol=1e-6)


def test_a_mix_is_the_sum_of_the_paper() -> None:
    torch.manual_seed(1)
    vectors = torch.randn(5, 7, 3, 11)  # three layers of 11
    mix = ScalarMix(3, nn.Identity())
    torch.testing.assert_close(mix(vectors.flatten(2)), vectors.mean(2))  # before training
    with torch.no_grad():
        mix.scalars.copy_(torch.tensor([0.3, -1.0, 2.0]))
        mix.gamma.fill_(0.7)
    shares = mix.scalars.exp() / mix.scalars.exp().sum()
    expected = 0.7 * sum(shares[j] * vectors[:, :, j] for j in range(3))
    torch.testing.assert_close(mix(vectors.flatten(2)), expected)
    normal = ScalarMix(3, nn.LayerNorm(11, elementwise_affine=False))
    centred = vectors - vectors.mean(-1, keepdim=True)
    centred = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    torch.testing.assert_close(normal(vectors.flatten(2)), centred.mean(2), rtol=1e-5, atol=1e-5)
    assert sum(1 for _ in normal.parameters()) == 2


@every_stack
def test_a_frozen_backbone_stays_to_the_bit_and_the_mix_learns(backbone: Any) -> None:
    module = trained(backbone, layers="mix", frozen=True).train()
    before = {name: tensor.clone() for name, tensor in module.model.backbone.state_dict().items()}
    optimizer = torch.optim.AdamW([p for p in module.parameters() if p.requires_grad], lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        module.model(*batch()).square().sum().backward()
        optimizer.step()
    for name, tensor in module.model.backbone.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    mix = module.model.head.mix
    assert (mix.scalars != 0).all()
    assert mix.gamma != 1
    layers = summarize_mix(module.export_model()[0].head)["layers"]
    assert sum(layers["weights"]) == pytest.approx(1, abs=1e-6)
    assert layers["gamma"] == pytest.approx(mix.gamma.item())
    assert summarize_mix(module.model.backbone) == {}


@every_kind
def test_gradients_reach_the_layers_also_when_recomputed(kind: dict[str, Any]) -> None:
    gradients = []
    without_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    for recompute in (False, True):
        module = trained(STACKS["post"].model_copy(update=without_dropout), **kind).train()
        module.model.head.eval()
        module.model.backbone.gradient_checkpointing = recompute
        module.model(*batch()).square().sum().backward()
        gradients.append([p.grad for p in module.model.backbone.layers.parameters()])
    assert all(gradient.abs().max() > 0 for gradient in gradients[0] if gradient.ndim > 1)
    torch.testing.assert_close(gradients[1], gradients[0], atol=1e-6, rtol=1e-5)


@every_kind
def test_stored_loaded_and_predicting_the_same(kind: dict[str, Any], tmp_path: Path) -> None:
    tokenizer = Tokenizer.train(TEXTS * 9, kind="wordpiece", vocab_size=61)
    model, config = trained(STACKS["post"], **kind).export_model()
    assert isinstance(config.head, ScalarMixHeadConfig if "layers" in kind else LastLayersHeadConfig)
    save_model(tmp_path / "model", model, config, tokenizer, labels=LABELS)
    stored = load_model(tmp_path / "model")
    assert stored.config == config
    for name, weight in stored.model.state_dict().items():
        assert torch.equal(weight, model.state_dict()[name])
    rows = LabelledRows(TEXTS, None, tokenizer, length=16)
    expected = predict_logits(model, rows, pad_id=tokenizer.pad_id)
    # to rounding: the last bits depend on where in memory the weights lie
    found = predict_logits(stored.model, rows, pad_id=tokenizer.pad_id)
    torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), rtol=1e-6, atol=1e-7)


def test_layers_of_a_frozen_model_are_cached(tmp_path: Path) -> None:
    fields = {"layers": "mix", "frozen": True}
    module = trained(STACKS["post"], cache=str(tmp_path), **fields).train()
    bare = trained(STACKS["post"], **fields).train()
    found = [one.model.eval()(*batch()) for one in (module, module, bare)]
    assert torch.equal(found[0], found[1])
    torch.testing.assert_close(found[0], found[2], rtol=1e-2, atol=1e-2)
    assert next(tmp_path.glob("*/vectors")).stat().st_size == 2 * (11 + 7 + 2) * (LAYERS + 1) * HIDDEN


def test_narrower_words_are_not_in_a_mix() -> None:
    stack = RecurrentConfig.model_validate(SIZES | {"embedding_size": 7})
    model = trained(stack, layers="mix").model
    assert num_mixed_layers(model.backbone) == LAYERS == len(model.head.mix.scalars)
    assert model(*batch()).shape == (3, 3)


def test_other_tasks_read_a_mix_too() -> None:
    config = ModelConfig(backbone=STACKS["post"])
    ids, keep = batch()
    made: list[tuple[Any, tuple[int, ...]]] = [
        (TokenClassification(layers="mix").build(config.build(), config, LABELS), (3, 11, 3)),
        (SentenceClassification(layers="mix").build(config.build(), config, LABELS), (3, 11, 3)),
        (QuestionAnswering(layers="mix").build(config.build(), config), (3, 11, 2)),
    ]
    for objective, shape in made:
        model, model_config = objective.export_model()
        assert model(ids, keep).shape == shape
        assert isinstance(model_config.head, ScalarMixHeadConfig)
        model_config.build().load_state_dict(model.state_dict())
    numbers = Regression(layers="mix").build(config.build(), config, np.array([1.0, 2.0, 4.0])).eval()
    plain, plain_config = numbers.export_model()
    assert isinstance(plain_config.head, ScalarMixHeadConfig)
    torch.testing.assert_close(plain.eval()(ids, keep), numbers.model(ids, keep), rtol=1e-5, atol=1e-5)
    assert len(summarize_mix(plain.head)["layers"]["weights"]) == LAYERS + 1
    again = QuestionAnswering(layers="mix").build(*made[2][0].export_model())
    assert again.model.head is made[2][0].model.head  # fine-tuned before, it goes on with its head


@every_kind
def test_a_new_task_on_such_a_model_reads_what_it_asks_for(kind: dict[str, Any]) -> None:
    model, config = Classification().build(*trained(STACKS["post"], **kind).export_model(), LABELS).export_model()
    assert config.head.kind == "ffn"
    assert model(*batch()).shape == (3, 3)


@every_kind
def test_with_layers_over_chunks(kind: dict[str, Any]) -> None:
    config = ModelConfig(backbone=STACKS["post"])
    pool = ChunkPool(chunks=3, layers=1)
    model, _ = Classification(**kind).build(config.build(), config, LABELS, long_inputs=pool).export_model()
    assert model.eval()(*batch(), chunks=torch.tensor([[0, 2], [1, -1]])).shape == (2, 3)


def test_unsupported_layers_are_refused() -> None:
    stack = {"vocab_size": VOCAB, "hidden_size": HIDDEN, "num_attention_heads": 2}
    both = EncoderDecoderConfig.model_validate({"encoder": stack, "decoder": {}})
    for backbone, fields, message in (
        (STACKS["post"], {"last_layers": 6}, r"last_layers=6.* 3 layers"),
        (STACKS["post"], {"layers": "mix", "last_layers": 2}, r"objective\.layers=mix "),
        (both, {"layers": "mix"}, r"one stack.*objective\.layers=last"),
        (both, {"last_layers": 2}, "one stack"),
    ):
        with pytest.raises(UserError, match=message):
            trained(backbone, **fields)
