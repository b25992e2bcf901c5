"""Invariants of one stack, for every member of its unions of configs: a new member is tested once it is added there.

The parts are crossed in pairs, not all with all: every attention with post-norm, every wiring with two attentions (with
every kind where layers are computed again), every kind of positions and every setting with full attention. Recurrent
stacks are those of `small_models`.
"""

import itertools
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from small_models import INDEPENDENT, MAXIMUM, SEQ, SIZES, STACKS, VOCAB, changed, kept, some_ids
from torch import Tensor, nn

from homespun.attention import AttentionConfig
from homespun.data.rows import Row, pad
from homespun.errors import UserError
from homespun.models.backbone import Encoder
from homespun.models.config import ModelConfig, TokenHeadConfig
from homespun.models.encoder import EncoderConfig
from homespun.models.layer_parts import PositionsConfig, ResidualConfig, output_weights
from homespun.models.presets import PRESETS
from homespun.models.recurrent import RecurrentConfig
from homespun.nn.layers import SequentialStack
from homespun.nn.masks import Mask
from homespun.training.devices import has_lstm

StackConfig = EncoderConfig | RecurrentConfig
# examples of each kind of attention, for a short sequence; the last is tested under every wiring
ATTENTIONS: dict[str, list[dict[str, Any]]] = {
    "full": [{}],
    "sparse": [
        {"patterns": [{"kind": "window", "radius": 2}]},
        {"patterns": [{"kind": "window", "radius": [1, 2], "dilation": [[1, 2], 2]}], "global_tokens": {"first": 1}},
        {"patterns": [{"kind": "blocks", "size": 2}, {"kind": "random_blocks", "size": 2, "count": 1}]}
        | {"global_tokens": {"first": 0, "block": 2}},
        {"patterns": [{"kind": "permuted_blocks", "blocks": 4}]},
        {"patterns": [{"kind": "band", "width": 3}]},
        {"patterns": [{"kind": "window", "radius": 2}], "global_tokens": {"first": 2, "projections": True}},
        {"patterns": [{"kind": "random_blocks", "size": 5, "count": 1}], "global_tokens": {"first": 1}},
        {"patterns": [{"kind": "permuted_blocks", "blocks": 2, "shifts": [1]}], "global_tokens": {"first": 2}},
        {"patterns": [{"kind": "window", "radius": 1}], "global_tokens": {"first": 0, "positions": [2, 5]}},
    ],
    "linformer": [
        {"k": 5, "sharing": "none"},
        {"k": [5, 7]},
        {"k": 5, "sharing": "layerwise"},
        {"k": 5, "projection": "pooled"},
        {"k": 11, "projection": "convolved", "sharing": "key_value"},
    ],
    "performer": [{}, {"num_features": 7, "feature_map": "relu", "redraw_interval": 3}],
    "local": [{"chunk_length": 3}, {"chunk_length": 2, "num_chunks_before": 2, "num_chunks_after": 1}],
    "lsh": [
        {"chunk_length": 3},
        {"chunk_length": 4, "num_hashes": 2, "num_buckets": [2, 4]},
        {"chunk_length": 2, "num_hashes": 3, "num_buckets": 2, "num_chunks_before": 2, "num_chunks_after": 1},
    ],
    "disentangled": [
        {"key_bias": False},
        {"position_buckets": 6, "share_att_key": True, "norm_rel_ebd": "layer_norm"},
        {"pos_att_type": ["c2p"], "max_relative_positions": 5},
        {"pos_att_type": ["p2c"], "max_relative_positions": 23, "position_buckets": 8},
    ],
    "relative_bias": [{"num_buckets": 6, "max_distance": 5}],
    "ngram": [{"num_buckets": 6, "relative_max_distance": 9}],
    "paragraphs": [{}],
    "alternating": [{"cycle": [{"kind": "full"}, {"kind": "sparse", "patterns": [{"kind": "band", "width": 3}]}]}],
}
# examples of other parts with more than one option, or with required settings
PARTS: dict[str, list[dict[str, Any]]] = {
    "reversible": [{"streams": "split"}, {"streams": "copy"}],
    "axial": [{"shape": [4, 8], "sizes": [17, 27]}],
}
WINDOW: dict[str, Any] = {"kind": "sparse", "patterns": [{"kind": "window", "radius": 2}]}
SETTINGS: dict[str, dict[str, Any]] = {
    "shared-layers": {"num_hidden_layers": 4, "num_hidden_groups": 2},
    "shared-layers-reversible": {"num_hidden_layers": 4, "num_hidden_groups": 2, "residual": {"kind": "reversible"}},
    # unscaled scores are as large as others from smaller weights
    "no-biases": {"norm": "rms_norm", "attention_bias": False, "mlp_bias": False, "gated_feed_forward": True}
    | {"head_size": 17, "scale_attn_weights": False, "initializer_range": 0.15},
    "rotary-grouped": {"positions": {"kind": "rotary", "theta": 50.0}, "num_key_value_heads": 1, "qk_norm": True}
    | {"norm": "rms_norm", "residual": {"kind": "pre"}, "attention_bias": False},
    "rotary-causal": {"positions": {"kind": "rotary"}, "qk_norm": True, "norm": "rms_norm", "norm_weight": False}
    | {"residual": {"kind": "pre"}, "causal": True, "hidden_act": "relu2"},
    "rotary-window": {"positions": {"kind": "rotary"}, "norm_bias": False}
    | {"attention": WINDOW | {"global_tokens": {"first": 1}}},
    "modernbert": {"positions": {"kind": "rotary", "theta": [90.0, 10.0]}, "norm_bias": False, "type_vocab_size": 0}
    | {"residual": {"kind": "pre", "first_norm": False}, "attention_bias": False, "mlp_bias": False}
    | {"gated_feed_forward": True, "attention": {"kind": "alternating", "cycle": [{"kind": "full"}, WINDOW]}},
    "rotary-performer": {"positions": {"kind": "rotary"}, "attention": {"kind": "performer"}},
    # presets with a setting that no other variant has: an offset of positions, one group of narrow embeddings,
    # no embedding norm, local and LSH attention in turn, heads for neighbours
    "roberta": {"preset": "roberta-tiny"},
    "albert": {"preset": "albert-tiny", "embedding_size": 14},
    "gpt2": {"preset": "gpt2-tiny"},
    "reformer": {"preset": "reformer-mini"},
    "spun-encoder": {"preset": "spun-encoder-tiny"},
}
# Attentions whose neighbourhoods count from the start of a row or depend on its content: packed documents do not see
# each other, but a document does not see exactly what it would see in a row of its own.
GRIDS = {"blocks", "random_blocks", "permuted_blocks", "local", "lsh"}

# attentions across the documents of a row, tested in tests/models/test_hierarchical.py
JOINS = {"paragraphs"}

CAUSAL_ONLY = {"ngram"}
BIDIRECTIONAL_ONLY = {"linformer", "paragraphs"}


def examples(union: Any) -> list[dict[str, Any]]:
    """Every member of a tagged union of configs, as trees."""
    kinds = [member.model_fields["kind"].default for member in get_args(get_args(union)[0])]
    return [{"kind": kind} | example for kind in kinds for example in (ATTENTIONS | PARTS).get(kind, [{}])]


def variant_name(attention: dict[str, Any], residual: dict[str, Any], causal: bool) -> str:
    inner = attention.get("patterns", attention.get("cycle", []))
    everywhere = ["global", *attention["global_tokens"]] if "global_tokens" in attention else []
    settings = [
        f"{value}" for name, value in attention.items() if name not in ("kind", "patterns", "cycle", "global_tokens")
    ]
    parts = "+".join([attention["kind"], *(part["kind"] for part in inner), *everywhere, *settings])
    return "-".join([parts, *residual.values(), *["causal"] * causal])


def cross(
    attentions: list[dict[str, Any]], residuals: list[dict[str, Any]], *causals: bool
) -> dict[str, EncoderConfig]:
    """Every attention with every wiring, in the directions that the attention supports."""
    configs: dict[str, EncoderConfig] = {}
    for attention, residual, causal in itertools.product(attentions, residuals, causals):
        if attention["kind"] not in (BIDIRECTIONAL_ONLY if causal else CAUSAL_ONLY):
            name = variant_name(attention, residual, causal)
            assert name not in configs, f"two variants have the name {name}"
            fields: dict[str, Any] = {"attention": attention, "residual": residual, "causal": causal}
            configs[name] = EncoderConfig.model_validate(SIZES | fields)
    return configs


def of_settings(fields: dict[str, dict[str, Any]]) -> dict[str, EncoderConfig]:
    return {name: EncoderConfig.model_validate(SIZES | values) for name, values in fields.items()}


def presets() -> dict[str, EncoderConfig]:
    """One preset of each architecture: at the same sizes, the presets of a family are equal."""
    configs: dict[str, EncoderConfig] = {}
    for name, fields in PRESETS.items():
        if "encoder" in fields or fields.get("kind") == "recurrent":
            continue
        sizes: dict[str, Any] = {"preset": name} | SIZES
        if fields.get("embedding_size", 0):
            sizes["embedding_size"] = 14
        if "k" in fields.get("attention", {}):
            sizes["attention"] = fields["attention"] | {"k": 5}
        config = EncoderConfig.model_validate(sizes)
        if config not in configs.values():
            configs[name] = config
    return configs


def is_reversible(config: StackConfig) -> bool:
    return isinstance(config, EncoderConfig) and config.residual.kind == "reversible"


POST, *WIRINGS = examples(ResidualConfig)
LAST = [{"kind": kind} | of_kind[-1] for kind, of_kind in ATTENTIONS.items()]
SETS = of_settings(SETTINGS | {part["kind"]: {"positions": part} for part in examples(PositionsConfig)})
SETS |= cross([part for part in LAST if part["kind"] in ("full", "sparse")], WIRINGS, False)
ATTENTIVE: dict[str, StackConfig] = cross(examples(AttentionConfig), [POST], False, True) | SETS
VARIANTS = ATTENTIVE | STACKS | INDEPENDENT
# once per set of parameters: causal only where the attention has to be
MODULES = SETS | {
    name: config
    for name, config in VARIANTS.items()
    if config.is_recurrent or not config.causal or config.attention.kind in CAUSAL_ONLY
}
PRESET_VARIANTS = presets()
WIRED = cross(LAST, WIRINGS, False) | cross([part for part in LAST if part["kind"] in CAUSAL_ONLY], WIRINGS, True)
every_variant = pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS)
every_module = pytest.mark.parametrize("config", MODULES.values(), ids=MODULES)


def test_every_attention_has_an_example() -> None:
    assert {example["kind"] for example in examples(AttentionConfig)} == set(ATTENTIONS)


@pytest.mark.parametrize("causal", [False, True])
def test_attentions_of_one_direction_refuse_the_other(causal: bool) -> None:
    for attention in examples(AttentionConfig):
        if attention["kind"] in (BIDIRECTIONAL_ONLY if causal else CAUSAL_ONLY):
            with pytest.raises(UserError):
                EncoderConfig.model_validate(SIZES | {"attention": attention, "causal": causal}).build()


@pytest.mark.parametrize("name", PRESET_VARIANTS)
def test_presets_build(name: str) -> None:
    encoder = build(PRESET_VARIANTS[name])
    hidden = encoder(some_ids(2, SEQ))
    assert hidden.shape == (2, SEQ, encoder.hidden_size)
    assert hidden.isfinite().all()


def build(config: StackConfig, **fields: Any) -> Encoder:
    torch.manual_seed(1)
    encoder = config.model_copy(update=fields).build().eval()
    if isinstance(config, EncoderConfig) and config.initialization == "fan_in":
        # its sublayers add 0 at first, which fulfils every invariant
        for weight in output_weights(encoder.layers):
            torch.nn.init.normal_(weight, std=0.1)
    return encoder


def modes(config: StackConfig) -> list[Encoder]:
    """One encoder in evaluation and one in training without dropout."""
    return [build(config), build(config, hidden_dropout_prob=0.0).train()]


def reach(encoder: Encoder, length: int) -> Tensor | None:
    """(length, length) whether token j affects the vector of token i; None where that depends on the tokens."""
    mask, seen = Mask(causal=encoder.causal), torch.eye(length)
    for layer in encoder.layers:
        if not hasattr(layer, "attention"):  # recurrent
            return torch.ones(length, length).tril(0 if encoder.causal else length) > 0
        attention = layer.attention.sublayer
        holder = attention if hasattr(attention, "sparse") else attention.kernel
        sparse = getattr(holder, "sparse", None)
        if sparse is None:
            return None
        table = mask.dense(sparse, length, length, torch.device("cpu"))
        # through some head, or the token itself through the residual
        step = torch.ones(length, length) if table is None else table[0].any(0).expand(length, length).float()
        seen = ((step + torch.eye(length)) @ seen > 0).float()
    return seen > 0


@every_variant
def test_padding_does_not_leak_and_a_batch_equals_single_texts(config: StackConfig) -> None:
    lengths = (SEQ, 7, 1)
    keep = kept(SEQ, *lengths)
    ids = some_ids(3, SEQ)
    garbage = ids[0].flip(0)  # words of the batch: character embeddings compute each word once
    for encoder in modes(config):
        padded = encoder(ids.where(keep, ids[0, 5]), attention_mask=keep)
        other = encoder(ids.where(keep, garbage), attention_mask=keep.long())
        torch.testing.assert_close(padded[keep], other[keep], rtol=0, atol=0)
        for row, length in enumerate(lengths):
            alone = encoder(ids[row : row + 1, :length])
            torch.testing.assert_close(padded[row : row + 1, :length], alone, rtol=1e-5, atol=1e-5)


@every_variant
@pytest.mark.parametrize("left", [False, True])
def test_outputs_without_gradients_are_those_with(config: StackConfig, left: bool) -> None:
    """Without gradients, full attention reads texts without their padding (`homespun.nn.masks.unpad`)."""
    encoder = build(config).double()
    keep = kept(SEQ, SEQ, 7, 1, 0)
    keep = keep.flip(1) if left else keep
    ids = some_ids(len(keep), SEQ)
    expected = encoder(ids, attention_mask=keep)[keep]
    with torch.no_grad():
        found = encoder(ids, attention_mask=keep)
        encoder(ids, attention_mask=torch.zeros_like(keep))
    torch.testing.assert_close(found[keep], expected, rtol=0, atol=1e-12)
    assert bool(found.isfinite().all())


@every_variant
def test_tokens_mix_exactly_as_far_as_the_pattern_reaches(config: StackConfig) -> None:
    encoder = build(config).double()
    ids = some_ids(1, SEQ)
    reachable = reach(encoder, SEQ)
    each = torch.cat([changed(ids, place) for place in range(SEQ)])
    least = 1e-12 if config.is_recurrent else 1e-9  # recurrent layers forget
    seen = ((encoder(each) - encoder(ids)).abs().amax(-1) > least).T  # (seq, changed token)
    assert bool(seen.diagonal().all())
    assert bool(seen.any(0).all())
    assert not config.causal or not bool(seen.triu(1).any()), "the future leaks"
    assert bool(seen.tril(-2).any()), "tokens do not mix"
    assert reachable is None or torch.equal(seen, reachable)


@every_variant
def test_packed_documents_do_not_see_each_other(config: StackConfig) -> None:
    pieces = [some_ids(length, seed=length).numpy() for length in (3, 7, 2, 5)]
    rows = [Row(np.concatenate(pieces[:3]), documents=np.repeat([0, 1, 2], [3, 7, 2])), Row(pieces[3])]
    batch = pad(rows, 0)
    if config.attention.kind in JOINS:
        assert not config.attention.supports_packing
        return
    if not config.attention.supports_packing:
        with pytest.raises(UserError, match="documents"):
            build(config)(batch.input_ids, documents=batch.documents)
        return
    context = {"attention_mask": batch.attention_mask, "position_ids": batch.position_ids}
    encoder = build(config).double()
    vectors: list[Tensor] = []
    encoder.embeddings.register_forward_hook(
        lambda *call: vectors.append(call[2].detach().requires_grad_()) or vectors[-1]
    )
    hidden = encoder(batch.input_ids, documents=batch.documents, **context)
    for document in range(3):
        own = torch.from_numpy(rows[0].documents == document)
        (gradient,) = torch.autograd.grad(hidden[0, own].square().sum(), vectors[-1], retain_graph=True)
        assert not gradient[0, ~own].any()
        assert not gradient[1].any()
    if GRIDS & {
        part["kind"] for part in config.attention.model_dump().get("patterns", [config.attention.model_dump()])
    }:
        return
    for encoder in modes(config):
        hidden = encoder(batch.input_ids, documents=batch.documents, **context)
        for piece, (row, start) in zip(pieces, [(0, 0), (0, 3), (0, 10), (1, 0)], strict=True):
            alone = encoder(torch.from_numpy(piece)[None])
            torch.testing.assert_close(hidden[row, start : start + len(piece)], alone[0], rtol=1e-5, atol=1e-5)


@every_variant
def test_a_fully_masked_row_gives_no_nan(config: StackConfig) -> None:
    keep = torch.tensor([[True], [False]]).expand(2, SEQ)
    for encoder in modes(config):
        hidden = encoder(some_ids(2, SEQ), attention_mask=keep)
        assert hidden.isfinite().all()
        hidden.square().sum().backward()
        for name, parameter in encoder.named_parameters():
            assert parameter.grad is None or parameter.grad.isfinite().all(), name


@every_module
def test_training_drops_out_and_evaluation_is_deterministic(config: StackConfig) -> None:
    encoder, ids = build(config, hidden_dropout_prob=0.1), some_ids(2, SEQ)
    assert torch.equal(encoder(ids), encoder(ids))
    encoder.train()
    assert not torch.equal(encoder(ids), encoder(ids))
    torch.manual_seed(3)
    first = encoder(ids)
    torch.manual_seed(3)
    assert torch.equal(first, encoder(ids))
    first.square().sum().backward()
    for name, parameter in encoder.named_parameters():
        assert parameter.grad is not None, f"{name} learns nothing"
        assert parameter.grad.isfinite().all()


@every_variant
def test_half_precision(config: StackConfig) -> None:
    encoder, ids = build(config).train(), some_ids(2, SEQ)
    has_cells = any(isinstance(module, nn.LSTM) for module in encoder.modules())
    if has_cells and not has_lstm(torch.bfloat16, torch.device("cpu")):
        pytest.skip("oneDNN has no LSTM in bfloat16 on this processor")
    with torch.autocast("cpu", torch.bfloat16):
        hidden = encoder(ids)
    hidden.float().square().sum().backward()
    assert hidden.isfinite().all()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in encoder.parameters())


def test_the_padding_token_of_a_causal_text_is_trained() -> None:
    """GPT-2 pads with its end-of-text token."""
    encoder, ids = build(EncoderConfig.model_validate(SIZES | {"causal": True, "pad_token_id": 7})), some_ids(1, SEQ)
    ids[0, 3] = 7
    encoder(ids).square().sum().backward()
    assert encoder.embeddings.words.weight.grad[7].any()


@every_variant
def test_any_length_up_to_the_maximum(config: StackConfig) -> None:
    encoder = build(config)
    for length in (1, 2, 3, 5, 17, MAXIMUM - 1, MAXIMUM):
        ids = some_ids(2, length)
        hidden = encoder(ids)
        assert hidden.shape == (2, length, encoder.hidden_size)
        counted = torch.arange(length).expand(2, -1)
        torch.testing.assert_close(encoder(ids, position_ids=counted), hidden)
    with pytest.raises(UserError, match=f" {MAXIMUM + 1} tokens .*max_position_embeddings={MAXIMUM}"):
        encoder(some_ids(1, MAXIMUM + 1))


@pytest.mark.parametrize("config", (VARIANTS | WIRED).values(), ids=VARIANTS | WIRED)
def test_gradient_checkpointing_changes_nothing(config: StackConfig) -> None:
    encoder, ids = build(config).train(), some_ids(2, SEQ)
    keep = kept(SEQ, SEQ, 7)
    calls = []
    first = encoder.layers[0]
    getattr(first, "attention", first).register_forward_pre_hook(lambda *_: calls.append(1))
    found = []
    for encoder.gradient_checkpointing in (False, True):
        encoder.zero_grad()
        torch.manual_seed(3)
        hidden = encoder(ids, attention_mask=keep)
        hidden.square().sum().backward()
        found.append([hidden.detach(), *(p.grad for p in encoder.parameters() if p.grad is not None)])
    # once, and again when recomputed, which reversible layers always do; each time that the layer occurs
    times = sum(layer is first for layer in encoder.layers)
    assert len(calls) == times * (4 if is_reversible(config) else 3)
    for plain, checkpointed in zip(*found, strict=True):
        torch.testing.assert_close(plain, checkpointed, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "config", [pytest.param(config, id=name) for name, config in (VARIANTS | WIRED).items() if is_reversible(config)]
)
def test_reversible_layers_are_plain_autograd(config: StackConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, ids = build(config).double().train(), some_ids(2, SEQ)
    keep = kept(SEQ, SEQ, 7)
    found: list[list[Tensor]] = []
    for run in (encoder.layer_stack.run, SequentialStack().run):
        monkeypatch.setattr(encoder.layer_stack, "run", run)
        torch.manual_seed(3)
        hidden = encoder(ids, attention_mask=keep)
        gradients = torch.autograd.grad(hidden.square().sum(), [*encoder.parameters()])
        found.append([hidden.detach(), *gradients, torch.rand(3)])
    for reversible, plain in zip(*found, strict=True):
        torch.testing.assert_close(reversible, plain, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("config", "head"),
    [pytest.param(config, None, id=name) for name, config in MODULES.items()]
    + [
        pytest.param(MODULES[name], head, id=f"{name}-{head.__name__}")
        for name in ("full-post", "lstm-2")
        for head in get_args(TokenHeadConfig)
    ],
)
def test_save_and_load_restore_the_bits(config: StackConfig, head: Any, tmp_path: Path) -> None:
    complete = ModelConfig(backbone=config, head=None if head is None else head())
    torch.manual_seed(1)
    saved = complete.build().eval()
    save_file(dict(saved.named_parameters()), tmp_path / "model.safetensors")
    torch.manual_seed(2)
    loaded = complete.build().eval()
    ids = some_ids(2, SEQ)
    assert not torch.equal(saved(ids), loaded(ids))
    stored = load_file(tmp_path / "model.safetensors")
    with torch.no_grad():
        for name, parameter in loaded.named_parameters():
            parameter.copy_(stored.pop(name))
    assert not stored
    assert torch.equal(saved(ids), loaded(ids))


def test_segments_are_zero_where_none_are_given() -> None:
    encoder, ids = build(PRESET_VARIANTS["bert-tiny"]), some_ids(2, SEQ)
    torch.testing.assert_close(encoder(ids, token_type_ids=torch.zeros_like(ids)), encoder(ids))
    assert not torch.equal(encoder(ids, token_type_ids=torch.ones_like(ids)), encoder(ids))


@pytest.mark.parametrize("variant", ["full-post", "full-pre", "full-reversible-split", "full-reversible-copy"])
def test_hidden_states_of_every_layer(variant: str) -> None:
    encoder, ids = build(VARIANTS[variant]), some_ids(2, SEQ)
    states = list(encoder.hidden_states(ids))
    assert len(states) == 1 + len(encoder.layers)
    torch.testing.assert_close(encoder.final_norm(states[-1]), encoder(ids))


@every_variant
def test_the_first_token_alone_has_the_same_hidden_state(config: StackConfig) -> None:
    encoder, ids = build(config), some_ids(3, SEQ)
    context = {"attention_mask": kept(SEQ, SEQ, 6, 1)}
    if config.positions.kind == "rotary":
        context["position_ids"] = torch.arange(3, 3 + SEQ).expand(3, -1)
    queries: list[torch.Size] = []
    last = encoder.layers[-1]
    getattr(last, "attention", last).register_forward_pre_hook(lambda _, inputs: queries.append(inputs[0].shape))
    torch.testing.assert_close(encoder.first_token(ids, **context), encoder(ids, **context)[:, :1])
    if config.attention.kind in ("full", "disentangled") and config.residual.kind == "post":
        assert min(shape[1] for shape in queries) == 1


@pytest.mark.parametrize("narrow", [{}, {"embedding_size": 14}], ids=["as wide", "narrow"])
@pytest.mark.parametrize("head", get_args(TokenHeadConfig))
def test_token_heads(head: Any, narrow: dict[str, int]) -> None:
    """All logits at once, single tokens and `predict` agree."""
    torch.manual_seed(1)
    model = ModelConfig(backbone=EncoderConfig.model_validate(SIZES | narrow), head=head()).build().eval()
    hidden = model.backbone(some_ids(2, SEQ))
    logits = model(some_ids(2, SEQ))
    torch.testing.assert_close(model.head(hidden.flatten(0, 1)[[3, 19]]), logits.flatten(0, 1)[[3, 19]])
    if head.model_fields["kind"].default == "discriminator":
        assert logits.shape == (2, SEQ)
        return
    assert logits.shape == (2, SEQ, VOCAB)
    assert model.head.weight is model.backbone.embeddings.words.weight
    labels = some_ids(2 * SEQ, seed=2)
    expected = nn.functional.cross_entropy(logits.flatten(0, 1), labels, reduction="sum")
    torch.testing.assert_close(model.head.predict(hidden.flatten(0, 1), labels).loss, expected)
