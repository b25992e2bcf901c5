"""Invariants of an encoder with a decoder, and of causal stacks with a cache."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from small_models import RECURRENT_SIZES, SIZES, VOCAB, changed, kept, some_ids
from torch import Tensor

from homespun.errors import UserError
from homespun.models.backbone import EncoderDecoder
from homespun.models.bundle import weights_of
from homespun.models.config import ModelConfig
from homespun.models.encoder import EncoderConfig
from homespun.models.encoder_decoder import EncoderDecoderConfig
from homespun.models.heads import CausalLMHeadConfig
from homespun.models.recurrent import RecurrentConfig
from homespun.nn.cache import Cache
from homespun.nn.layers import SequentialStack

SOURCE, TARGET, START = 13, 11, 3
DECODER: dict[str, Any] = {"num_hidden_layers": 3, "intermediate_size": 29, "max_position_embeddings": 17}
FULL: dict[str, Any] = {"kind": "full"}
WINDOW: dict[str, Any] = {
    "kind": "sparse",
    "patterns": [{"kind": "window", "radius": 2}],
    "global_tokens": {"first": 1},
}
OWN = WINDOW | {"global_tokens": {"first": 1, "projections": True}}
BAND: dict[str, Any] = {"kind": "sparse", "patterns": [{"kind": "band", "width": 3}]}
PERFORMER: dict[str, Any] = {"kind": "performer", "num_features": 19}
LSH: dict[str, Any] = {"kind": "lsh", "chunk_length": 3}
LOCAL: dict[str, Any] = {"kind": "local", "chunk_length": 3}
ALTERNATING: dict[str, Any] = {"kind": "alternating", "cycle": [FULL, BAND]}
RESIDUALS: dict[str, dict[str, Any]] = {
    "post": {"kind": "post"},
    "pre": {"kind": "pre"},
    "reversible": {"kind": "reversible"},
    "copy": {"kind": "reversible", "streams": "copy"},
}
ENCODERS = {"window": WINDOW, "own": OWN, "performer": PERFORMER, "lsh": LSH}
DECODERS = {"band": BAND, "performer": PERFORMER, "alternating": ALTERNATING}
DECODING = [("post", "band"), ("reversible", "performer"), ("post", "alternating")]
NGRAM: dict[str, Any] = {"kind": "ngram", "num_buckets": 6, "relative_max_distance": 9}


def recurrent(cell: str, attention: str) -> EncoderDecoderConfig:
    stack = RECURRENT_SIZES | {"kind": "recurrent", "cell": cell, "bidirectional": True}
    decoder = {"hidden_size": 19, "attention": {"kind": attention}, "max_position_embeddings": 17}
    return EncoderDecoderConfig.model_validate({"encoder": stack, "decoder": decoder, "decoder_start_token_id": START})


def of(
    residual: dict[str, Any], encoder: dict[str, Any], decoder: dict[str, Any], /, ngram: int = 0, **more: Any
) -> EncoderDecoderConfig:
    tree = {
        "ngram": ngram,
        "encoder": SIZES | {"type_vocab_size": 0, "residual": residual, "attention": encoder},
        "decoder": DECODER | {"attention": decoder} | more,
        "decoder_start_token_id": START,
    }
    return EncoderDecoderConfig.model_validate(tree)


VARIANTS = {
    **{f"{name}-full": of(RESIDUALS[name], FULL, FULL) for name in RESIDUALS},
    **{
        f"{name}-{encoder}": of(RESIDUALS[name], ENCODERS[encoder], FULL)
        for name, encoder in itertools.product(("pre", "reversible"), ENCODERS)
    },
    **{f"{name}-full-{decoder}": of(RESIDUALS[name], FULL, DECODERS[decoder]) for name, decoder in DECODING},
    "shared layers": of(RESIDUALS["pre"], FULL, FULL, num_hidden_groups=1),
    "two wirings": of(RESIDUALS["reversible"], FULL, FULL, residual={"kind": "post"}),
    **{f"{name}-ngram": of(RESIDUALS[name], FULL, NGRAM, ngram=3) for name in ("post", "pre", "reversible")},
    **{
        f"{cell}-{attention}": recurrent(cell, attention)
        for cell, attention in itertools.product(("rnn", "lstm", "gru"), ("additive", "none"))
    },
}
every_variant = pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS)


def is_reversible(stack: EncoderConfig | RecurrentConfig) -> bool:
    return isinstance(stack, EncoderConfig) and stack.residual.kind == "reversible"


REVERSIBLE = {name: config for name, config in VARIANTS.items() if is_reversible(config.encoder)}


def build(config: EncoderDecoderConfig, seed: int = 1) -> EncoderDecoder:
    torch.manual_seed(seed)
    return config.build().eval()


SOURCE_KEEP, TARGET_KEEP = kept(SOURCE, SOURCE, 7, 1), kept(TARGET, 5, TARGET, 1)
IDS, TARGETS = some_ids(3, SOURCE), some_ids(3, TARGET, seed=2)
MASKS: dict[str, Any] = {"attention_mask": SOURCE_KEEP, "decoder_attention_mask": TARGET_KEEP}


@every_variant
def test_padding_does_not_leak_and_alone_is_as_in_a_batch(config: EncoderDecoderConfig) -> None:
    model = build(config).double()  # in float32 the rounding of some processors is more than the tolerance
    padded = model(IDS.where(SOURCE_KEEP, 0), decoder_input_ids=TARGETS.where(TARGET_KEEP, 0), **MASKS)
    garbage = some_ids(3, SOURCE, seed=3), some_ids(3, TARGET, seed=4)
    other = model(IDS.where(SOURCE_KEEP, garbage[0]), decoder_input_ids=TARGETS.where(TARGET_KEEP, garbage[1]), **MASKS)
    torch.testing.assert_close(padded[TARGET_KEEP], other[TARGET_KEEP], rtol=0, atol=0)
    for row in range(3):
        alone = model(
            IDS[row : row + 1, : SOURCE_KEEP[row].sum()],
            decoder_input_ids=TARGETS[row : row + 1, : TARGET_KEEP[row].sum()],
        )
        torch.testing.assert_close(padded[row, : alone.shape[1]], alone[0], rtol=1e-5, atol=1e-5)


@every_variant
def test_the_future_does_not_leak_and_every_token_reads_the_source(config: EncoderDecoderConfig) -> None:
    model = build(config).double()
    ids, targets = IDS[:1], TARGETS[:1]
    plain = model(ids, decoder_input_ids=targets)
    recurrent = config.decoder.is_recurrent
    least = 1e-12 if recurrent else 1e-9  # recurrent layers forget
    for place in range(TARGET):
        moved = (model(ids, decoder_input_ids=changed(targets, place)) - plain).abs().amax(-1)[0] > least
        assert not moved[:place].any()
        assert moved[place:].all() if recurrent else moved[place]
        # a band of 3 reaches the next one at least
        assert place == TARGET - 1 or moved[place + 1]
    for place in range(SOURCE):
        assert ((model(changed(ids, place), decoder_input_ids=targets) - plain).abs().amax(-1) > least).all()


def in_pieces(model: EncoderDecoder, pieces: list[int], cache: Cache) -> Tensor:
    source = model.encode(IDS, attention_mask=SOURCE_KEEP)
    found, start = [], cache.length
    for length in pieces:
        end = start + length
        keep = TARGET_KEEP[:, :end]
        found.append(model.decode(TARGETS[:, start:end], source, attention_mask=keep, cache=cache))
        start = end
    return torch.cat(found, 1)


@every_variant
@pytest.mark.parametrize("pieces", [[1] * TARGET, [3, 1, 5, 2]], ids=["one by one", "in pieces"])
def test_cached_decoding_is_full(config: EncoderDecoderConfig, pieces: list[int]) -> None:
    model, cache = build(config).double(), Cache()
    with torch.no_grad():
        full = model(IDS, decoder_input_ids=TARGETS, **MASKS)
        found = in_pieces(model, pieces, cache)
    assert cache.length == TARGET
    torch.testing.assert_close(found[TARGET_KEEP], full[TARGET_KEEP], rtol=1e-9, atol=1e-9)


@every_variant
def test_a_branch_of_a_cache_has_the_chosen_rows(config: EncoderDecoderConfig) -> None:
    model, cache, rows = build(config).double(), Cache(), torch.tensor([1, 1, 0, 1])
    with torch.no_grad():
        in_pieces(model, [5, 2], cache)
        cache = cache.branch(rows)
        source = model.encode(IDS[rows], attention_mask=SOURCE_KEEP[rows])
        new = some_ids(4, 3, seed=7)
        keep = torch.cat([TARGET_KEEP[rows, :7], torch.ones(4, 3, dtype=torch.bool)], 1)
        found = model.decode(new, source, attention_mask=keep, cache=cache)
        complete = torch.cat([TARGETS[rows, :7], new], 1)
        full = model.decode(complete, source, attention_mask=keep)
    torch.testing.assert_close(found, full[:, 7:], rtol=1e-9, atol=1e-9)


def outcome(model: EncoderDecoder) -> list[Tensor]:
    """Values and gradients of a training step, and the random state that it leaves."""
    torch.manual_seed(3)
    hidden = model(IDS, decoder_input_ids=TARGETS, **MASKS)
    gradients = torch.autograd.grad(hidden.square().sum(), [*model.parameters()])
    return [hidden.detach(), *gradients, torch.rand(3)]


@pytest.mark.parametrize("config", REVERSIBLE.values(), ids=REVERSIBLE)
def test_reversible_layers_are_plain_autograd(config: EncoderDecoderConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(config).double().train()
    reversible = outcome(model)
    for stack in (model.encoder, model.decoder):
        monkeypatch.setattr(stack.layer_stack, "run", SequentialStack().run)
    for found, expected in zip(reversible, outcome(model), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@every_variant
def test_gradient_checkpointing_changes_nothing(config: EncoderDecoderConfig) -> None:
    model = build(config).train()
    calls: list[int] = []
    first = model.decoder.layers[0]
    getattr(first, "cross_attention", first).register_forward_pre_hook(lambda *_: calls.append(1))
    plain = outcome(model)
    once = len(calls)
    model.gradient_checkpointing = True
    assert model.encoder.gradient_checkpointing
    assert model.decoder.gradient_checkpointing
    checkpointed = outcome(model)
    # reversible layers are always computed again
    assert len(calls) - once == (once if is_reversible(config.decoder) else 2 * once)
    for found, expected in zip(checkpointed, plain, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


@every_variant
def test_every_parameter_learns_and_dropout_acts(config: EncoderDecoderConfig) -> None:
    model = build(config).train()
    first, second = outcome(model), outcome(model)
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
    torch.manual_seed(4)
    assert not torch.equal(model(IDS, decoder_input_ids=TARGETS, **MASKS), first[0])
    for (name, _), gradient in zip(model.named_parameters(), first[1:], strict=False):
        assert gradient.isfinite().all(), name
        assert gradient.any(), f"{name} learns nothing"


@every_variant
def test_a_fully_masked_row_gives_no_nan(config: EncoderDecoderConfig) -> None:
    model = build(config).train()
    nothing = kept(SOURCE, SOURCE, 0, 3), kept(TARGET, TARGET, 3, 0)
    hidden = model(IDS, decoder_input_ids=TARGETS, attention_mask=nothing[0], decoder_attention_mask=nothing[1])
    assert hidden.isfinite().all()
    hidden.square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad.isfinite().all(), name


HEADS = {
    "none": None,
    "biased": CausalLMHeadConfig(final_logits_bias=True),
    "untied": CausalLMHeadConfig(tie_word_embeddings=False),
}


@pytest.mark.parametrize(
    ("config", "head"),
    [
        *(pytest.param(config, HEADS["biased"], id=name) for name, config in VARIANTS.items()),
        *(pytest.param(VARIANTS["pre-full"], head, id=f"pre-full, {name}") for name, head in HEADS.items()),
    ],
)
def test_save_and_load_restore_the_bits(config: EncoderDecoderConfig, head: Any, tmp_path: Path) -> None:
    complete = ModelConfig(backbone=config, head=head)
    torch.manual_seed(1)
    saved = complete.build().eval()
    if head is HEADS["biased"]:
        saved.head.bias.normal_()
    save_file(weights_of(saved), tmp_path / "model.safetensors")
    torch.manual_seed(2)
    loaded = complete.build().eval()
    given = MASKS | {"decoder_input_ids": TARGETS}
    assert not torch.equal(saved(IDS, **given), loaded(IDS, **given))
    stored = load_file(tmp_path / "model.safetensors")
    with torch.no_grad():
        for name, tensor in weights_of(loaded).items():
            tensor.copy_(stored.pop(name))
    assert not stored
    assert torch.equal(saved(IDS, **given), loaded(IDS, **given))
    assert ModelConfig.model_validate(complete.model_dump(mode="json")) == complete


@pytest.mark.parametrize("attention", [LSH, LOCAL, OWN], ids=["lsh", "local", "own"])
def test_attention_without_cache_is_refused(attention: dict[str, Any]) -> None:
    model = build(of(RESIDUALS["post"], FULL, attention))
    full = model(IDS, decoder_input_ids=TARGETS)
    assert full.isfinite().all()
    with pytest.raises(UserError, match="cache"):
        in_pieces(model, [3, 1], Cache())


def test_what_does_not_fit_a_cache_is_refused() -> None:
    model = build(VARIANTS["pre-full"])
    source, cache = model.encode(IDS), Cache()
    with pytest.raises(UserError, match="causal"):
        model.encoder.decode(IDS, cache=Cache())
    model.decode(TARGETS[:, :3], source, cache=cache)
    with pytest.raises(UserError, match=r" 1 tokens.* 3 .*cache .*1 new"):
        model.decode(TARGETS[:, 3:4], source, attention_mask=TARGET_KEEP[:, 3:4], cache=cache)
    with pytest.raises(UserError, match=r" 18 tokens .*max_position_embeddings=17"):
        model.decode(some_ids(3, 15), source, cache=cache)
    with pytest.raises(UserError, match=r"eos_token_id=53 .*vocab_size=53"):
        VARIANTS["pre-full"].model_copy(update={"eos_token_id": VOCAB}).build()


@every_variant
def test_without_a_target_the_decoder_reads_the_source_one_place_later(config: EncoderDecoderConfig) -> None:
    config = config.model_copy(update={"decoder": config.decoder.model_copy(update={"max_position_embeddings": 31})})
    model = build(config)
    shifted = torch.cat([torch.full((3, 1), START), IDS[:, :-1]], 1)
    expected = model(IDS, attention_mask=SOURCE_KEEP, decoder_input_ids=shifted, decoder_attention_mask=SOURCE_KEEP)
    assert torch.equal(model(IDS, attention_mask=SOURCE_KEEP), expected)


STACKS: dict[str, dict[str, Any]] = {
    "gpt2": {"residual": {"kind": "pre"}, "embedding_norm": False},
    "gpt": {},
    "gpt3": {"residual": {"kind": "pre"}, "attention": ALTERNATING},
    "performer": {"attention": PERFORMER},
    "biased": {"attention": {"kind": "relative_bias"}, "positions": {"kind": "none"}},
    "window": {"attention": WINDOW, "residual": {"kind": "reversible"}},
    "dilated": {"attention": {"kind": "sparse", "patterns": [{"kind": "window", "radius": 2, "dilation": 2}]}},
    "shared": {"num_hidden_groups": 1},
}


@pytest.mark.parametrize("stack", STACKS.values(), ids=STACKS)
@pytest.mark.parametrize("pieces", [[1] * TARGET, [3, 1, 5, 2]], ids=["one by one", "in pieces"])
def test_a_causal_stack_goes_on_from_a_cache(stack: dict[str, Any], pieces: list[int]) -> None:
    torch.manual_seed(1)
    encoder = (
        EncoderConfig.model_validate(SIZES | {"type_vocab_size": 0, "causal": True} | stack).build().eval().double()
    )
    # padded on the left, as texts are that a language model goes on with
    keep, start, cache, found = kept(TARGET, TARGET, 7, 3).flip(1), 0, Cache(), []
    with torch.no_grad():
        full = encoder(TARGETS, attention_mask=keep)
        for length in pieces:
            end = start + length
            found.append(encoder.decode(TARGETS[:, start:end], attention_mask=keep[:, :end], cache=cache))
            start = end
    torch.testing.assert_close(torch.cat(found, 1)[keep], full[keep], rtol=1e-9, atol=1e-9)
