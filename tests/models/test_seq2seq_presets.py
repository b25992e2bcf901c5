"""Presets of encoders with a decoder are the released models: their numbers of parameters, their classes."""

import pytest
import torch
from torch import Tensor, nn

from homespun.attention.relative_bias import BiasedDotProduct
from homespun.commands.recipe import pretrain_recipe
from homespun.errors import UserError
from homespun.hf.match import match_architecture
from homespun.models.backbone import EncoderDecoder
from homespun.models.config import ModelConfig
from homespun.models.encoder_decoder import EncoderDecoderConfig
from homespun.models.heads import CausalLMHeadConfig
from homespun.models.neighbour_heads import CAUSAL_OFFSETS, OFFSETS
from homespun.models.presets import PRESETS
from homespun.nn.masks import Mask

# name: vocabulary, whether the head has words of its own, parameters of the released checkpoint
RELEASED = {
    "bart-base": (50265, False, 139_420_416),
    "bart-large": (50265, False, 406_291_456),
    "led-base": (50265, False, 161_844_480),
    "led-large": (50265, False, 459_801_600),
    "bigbird-pegasus-large": (96103, False, 576_891_904),
    "t5-small": (32128, False, 60_506_624),
    "t5-base": (32128, False, 222_903_552),
    "t5-large": (32128, False, 737_668_096),
    "t5-3b": (32128, False, 2_851_598_336),
    "t5-11b": (32128, False, 11_307_321_344),
    "t5-v1.1-small": (32128, True, 76_961_152),
    "t5-v1.1-base": (32128, True, 247_577_856),
    "t5-v1.1-large": (32128, True, 783_150_080),
    "t5-v1.1-xl": (32128, True, 2_849_757_184),
    "t5-v1.1-xxl": (32128, True, 11_135_332_352),
}


def build(name: str, vocab_size: int, *, tied: bool = True) -> tuple[ModelConfig, nn.Module]:
    tree = {"backbone": {"preset": name}, "head": {"kind": "causal_lm", "tie_word_embeddings": tied}}
    config = ModelConfig.model_validate(tree)
    config = config.model_copy(update={"backbone": config.backbone.with_tokens(vocab_size, 0)})
    with torch.device("meta"):
        return config, config.build()


@pytest.mark.parametrize("name", RELEASED)
def test_they_have_the_parameters_of_the_released_models(name: str) -> None:
    vocab_size, own, parameters = RELEASED[name]
    _, model = build(name, vocab_size, tied=not own)
    assert sum(p.numel() for p in model.parameters()) == parameters


def test_the_transformer_is_as_large_as_in_its_paper() -> None:
    for name, millions in (("transformer-base", 65), ("transformer-big", 213)):
        _, model = build(name, 37_000)
        assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(millions, rel=0.04)


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, tree in PRESETS.items()
        if tree.get("kind") == "encoder_decoder" and not name.startswith(("transformer-", "rnn-", "hierarchical-"))
    ],
)
def test_each_has_a_class_of_transformers(name: str) -> None:
    config, _ = build(name, 331)
    match, notes = match_architecture(config)
    assert match is not None, notes
    assert match.architecture.name.endswith("ForConditionalGeneration")


@pytest.mark.parametrize("name", ["spun-encoder-decoder", "t5-mini"])
def test_recipes_with_scales_are_t5s(name: str) -> None:
    recipe = pretrain_recipe(name)
    assert recipe.model.encoder.scale_attn_weights
    assert recipe.model.decoder.scale_attn_weights
    head = getattr(recipe.objective, "head", CausalLMHeadConfig())  # the default of denoising
    match, notes = match_architecture(ModelConfig(backbone=recipe.model.with_tokens(331, 0), head=head))
    assert (match.architecture.name, notes) == ("T5ForConditionalGeneration", ())


def test_fields_of_a_stack_win_over_the_presets_one_by_one() -> None:
    tree = {"preset": "t5-v1.1-tiny", "encoder": {"hidden_size": 64}, "decoder": {"num_hidden_layers": 3}}
    config = EncoderDecoderConfig.model_validate(tree)
    assert (config.encoder.hidden_size, config.decoder.hidden_size) == (64, 64)
    assert (config.encoder.num_hidden_layers, config.decoder.num_hidden_layers) == (2, 3)
    assert config.encoder.norm == config.decoder.norm == "rms_norm"
    assert config.decoder.attention.kind == "relative_bias"
    own = EncoderDecoderConfig.model_validate({"preset": "bart-mini", "encoder": {"preset": "longformer-mini"}})
    assert own.encoder.attention.kind == "sparse"
    assert own.encoder.max_position_embeddings == 4096


def test_one_number_of_a_part_of_a_stack_changes_alone() -> None:
    changes = ["model.preset=led-tiny", "model.encoder.attention.patterns=[{kind: window, radius: 3}]"]
    led = pretrain_recipe("bart-mini", changes).model
    assert led.encoder.attention.model_dump()["patterns"] == [{"kind": "window", "radius": 3, "dilation": 1}]
    assert (
        led.encoder.attention.global_tokens == EncoderDecoderConfig(preset="led-tiny").encoder.attention.global_tokens
    )
    t5 = pretrain_recipe("t5-mini", ["model.decoder.attention.num_buckets=8", "model.encoder.residual.kind=pre"]).model
    assert (t5.encoder.attention.num_buckets, t5.decoder.attention.num_buckets) == (32, 8)
    assert t5.encoder.residual.final_dropout


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            ["model.encoder.hiden_size=61"],
            "unknown key 'model.encoder.hiden_size'; did you mean 'model.encoder.hidden_size'?",
        ),
        (["model.encoder.attention={kind: local, chunks: 7}"], "unknown key 'model.encoder.attention.chunks'"),
        (["model.encoder.hidden_size=0"], "model.encoder.hidden_size: Input should be greater than or equal to 1"),
        (
            ["model.decoder.hiden_size=61"],
            "unknown key 'model.decoder.hiden_size'; did you mean 'model.decoder.hidden_size'?",
        ),
    ],
)
def test_errors_name_the_stack(changes: list[str], message: str) -> None:
    with pytest.raises(UserError) as error:
        pretrain_recipe("bart-mini", changes)
    assert message in str(error.value)


@pytest.fixture
def spun() -> EncoderDecoder:
    torch.manual_seed(0)
    backbone = EncoderDecoderConfig.model_validate({"preset": "spun-encoder-decoder-mini"})
    return backbone.with_tokens(997, 0).build().eval()


@pytest.mark.parametrize(("stack", "offsets"), [("encoder", OFFSETS), ("decoder", CAUSAL_OFFSETS)])
def test_its_heads_start_at_neighbours(spun: EncoderDecoder, stack: str, offsets: tuple[int, ...]) -> None:
    seen: list[Tensor] = []
    attention = getattr(spun, stack).layers[0].attention.sublayer
    attention.kernel.register_forward_hook(lambda kernel, inputs, _: seen.append(weights(kernel, *inputs)))
    ids = torch.randint(5, 997, (8, 61))
    spun(ids, decoder_input_ids=ids)
    (attended,) = seen
    for head, offset in enumerate(offsets):
        near = torch.stack([attended[:, head].diagonal(d, dim1=1, dim2=2)[:, 8:40].mean() for d in range(-5, 6)])
        assert int(near.argmax()) - 5 == offset
        assert near.max() > 0.5


def weights(kernel: BiasedDotProduct, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
    """(batch, heads, queries, keys) of the attention."""
    table = kernel.bias.table(mask, query, key.shape[-2])
    return ((query @ key.mT) * query.shape[-1] ** -0.5 + table).softmax(-1)
