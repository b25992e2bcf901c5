"""Weight transfer: equal bits where nothing changes, repeated positions, copied projections."""

import re
from typing import Any

import pytest
import torch

from homespun.errors import UserError
from homespun.models.bundle import ModelBundle
from homespun.models.config import ModelConfig
from homespun.models.encoder import EncoderConfig
from homespun.models.heads import DiscriminatorHeadConfig, MaskedLMHeadConfig
from homespun.models.weight_transfer import change_stacks, extend_context, layers_of, transfer, transfer_weights
from homespun.text.tokenizer import Tokenizer
from homespun.text.vocabulary_extension import AddedTokens

WINDOW = {"kind": "sparse", "patterns": [{"kind": "window", "radius": 29}]}
STEM = "backbone.layers.0.attention.sublayer."
GLOBAL = WINDOW | {"global_tokens": {"first": 1, "projections": True}}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(["the quick brown fox jumps over the lazy dog"] * 3, kind="words", vocab_size=12)


def made(tokenizer: Tokenizer, **given: Any) -> ModelBundle:
    sizes = {"hidden_size": 22, "num_attention_heads": 2, "num_hidden_layers": 3, "intermediate_size": 17}
    tree = sizes | {"vocab_size": 13, "max_position_embeddings": 23} | given
    config = ModelConfig(backbone=EncoderConfig.model_validate(tree), head=MaskedLMHeadConfig())
    torch.manual_seed(5)
    model = config.build().eval()
    with torch.no_grad():  # biases and norms too: what is zero or one would hide a mistake
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return ModelBundle(model, config, tokenizer, task={"max_length": 19})


def ids(length: int) -> torch.Tensor:
    return torch.randint(5, 12, (2, length), generator=torch.Generator().manual_seed(length))


@pytest.mark.parametrize(
    "attention",
    [
        {"kind": "full"},
        GLOBAL,
        {"kind": "sparse", "patterns": [{"kind": "random_blocks", "size": 3, "count": 1}]},
        {"kind": "linformer", "k": 5},
        {"kind": "linformer", "k": 5, "projection": "convolved"},
        {"kind": "performer"},
        {"kind": "lsh", "chunk_length": 7},
        {"kind": "alternating", "cycle": [{"kind": "local", "chunk_length": 7}, {"kind": "lsh", "chunk_length": 7}]},
    ],
)
def test_with_the_same_length_and_attention_the_bits_are_the_same(
    tokenizer: Tokenizer, attention: dict[str, Any]
) -> None:
    stored = made(tokenizer, attention=attention)
    backbone = stored.config.one_stack("this test")
    for again in (
        extend_context(stored),
        extend_context(stored, max_position_embeddings=23, attention=backbone.attention),
    ):
        assert again.config == stored.config
        assert again.task == stored.task
        assert not again.model.training
        assert torch.equal(again.model(ids(19)), stored.model(ids(19)))
    assert transfer(stored, {})[1].initialized == ()


@pytest.mark.parametrize("kind", ["learned", "offset", "sinusoidal", "relative", "axial"])
@pytest.mark.parametrize("longer", [61, 13])
def test_positions_are_copied_over_and_over_or_cut(tokenizer: Tokenizer, kind: str, longer: int) -> None:
    positions: dict[str, Any] = {"kind": kind}
    if kind == "offset":
        positions = {"kind": "learned", "offset": 2}
    attention = "full"
    if kind == "relative":
        positions, attention = {"kind": "none"}, "relative_bias"
    if kind == "axial":
        positions |= {"shape": (5, 5), "sizes": (9, 13)}
    stored = made(tokenizer, positions=positions, attention={"kind": attention})
    stretched, origins = transfer(stored, {"max_position_embeddings": longer})
    assert stretched.config.backbone.max_position_embeddings == longer
    short = min(longer, 23)
    assert torch.equal(stretched.model(ids(short)), stored.model(ids(short)))
    assert stretched.task == {"max_length": min(19, longer)}
    old, new = stored.model.state_dict(), stretched.model.state_dict()
    name = "backbone.embeddings.positions.embedding.weight"
    if kind in ("learned", "offset"):
        offset = 2 if kind == "offset" else 0
        assert torch.equal(new[name][:offset], old[name][:offset])
        for place in range(longer):
            assert torch.equal(new[name][offset + place], old[name][offset + place % 23])
        assert list(origins.changed) == [name]
    if kind == "relative":
        changes = {"backbone.layers.0.attention.sublayer.kernel.bias.embedding.weight": "as it was: relative positions"}
        assert {name: how[:29] for name, how in origins.changed.items()} == (changes if longer == 61 else {})
    if kind == "axial" and longer == 61:
        assert torch.equal(
            stretched.model.backbone.embeddings.positions(torch.arange(61)[None], 61),
            stored.model.backbone.embeddings.positions(torch.arange(61)[None] % 25, 23),
        )
    stretched.model(ids(longer))
    with pytest.raises(UserError, match=f"max_position_embeddings={longer}"):
        stretched.model(ids(longer + 1))


LATE = {"attention": {"kind": "disentangled", "max_relative_positions": 7}, "positions": {"kind": "none"}}


@pytest.mark.parametrize("longer", [61, 13])
@pytest.mark.parametrize("changes", [{}, {"attention": {"pos_att_type": ["c2p"]}}], ids=["alone", "other attention"])
def test_the_mask_decoders_positions_are_copied_over_and_over_or_cut(
    tokenizer: Tokenizer, changes: dict[str, Any], longer: int
) -> None:
    stored = made(tokenizer, **LATE, enhanced_mask_decoder=True)
    stretched, origins = transfer(stored, changes | {"max_position_embeddings": longer})
    name = "backbone.embeddings.late.embedding.weight"
    old, new = stored.model.state_dict()[name], stretched.model.state_dict()[name]
    assert torch.equal(new, old[torch.arange(longer) % 23])
    assert name in origins.changed
    assert origins.initialized == ()
    if not changes:
        short = min(longer, 23)
        assert torch.equal(stretched.model(ids(short)), stored.model(ids(short)))
    stretched.model(ids(longer))


@pytest.mark.parametrize("attention", [WINDOW, GLOBAL], ids=["window", "global"])
def test_a_window_over_all_tokens_is_full_attention(tokenizer: Tokenizer, attention: dict[str, Any]) -> None:
    stored = made(tokenizer)
    stretched, origins = transfer(stored, {"attention": attention})
    assert origins.initialized == ()
    torch.testing.assert_close(stretched.model(ids(23)), stored.model(ids(23)), rtol=1e-5, atol=1e-5)
    # and a narrow one is not: the test above would not see a window that is never looked at
    narrow = transfer(stored, {"attention": attention | {"patterns": [{"kind": "window", "radius": 2}]}})[0]
    assert not torch.allclose(narrow.model(ids(23)), stored.model(ids(23)), rtol=1e-5, atol=1e-5)


def test_projections_of_global_tokens_begin_as_the_local_ones(tokenizer: Tokenizer) -> None:
    stretched, origins = transfer(made(tokenizer), {"attention": GLOBAL})
    weights = stretched.model.state_dict()
    for layer in range(3):
        stem = f"backbone.layers.{layer}.attention.sublayer."
        for part in ("query", "key", "value"):
            assert torch.equal(weights[f"{stem}{part}_global.weight"], weights[f"{stem}{part}.weight"])
            assert torch.equal(weights[f"{stem}{part}_global.bias"], weights[f"{stem}{part}.bias"])
            assert origins.changed[f"{stem}{part}_global.bias"] == f"from {stem}{part}.bias"


def test_shared_queries_and_keys_begin_as_the_queries_and_the_way_back(tokenizer: Tokenizer) -> None:
    stored = made(tokenizer)
    shared, origins = transfer(stored, {"attention": {"kind": "lsh", "chunk_length": 7}})
    stem = "backbone.layers.1.attention.sublayer."
    old, new = stored.model.state_dict(), shared.model.state_dict()
    assert torch.equal(new[f"{stem}query_key.weight"], old[f"{stem}query.weight"])
    assert f"{stem}key.weight" in origins.unused
    back, origins = transfer(shared, {"attention": {"kind": "full"}})
    new = back.model.state_dict()
    assert torch.equal(new[f"{stem}key.weight"], old[f"{stem}query.weight"])
    assert f"{stem}key.bias" in origins.initialized
    assert not new[f"{stem}key.bias"].any()


@pytest.mark.parametrize("kind", ["linformer", "performer"])
def test_what_starts_fresh_is_named(tokenizer: Tokenizer, kind: str) -> None:
    stored = made(tokenizer)
    changes = {"attention": {"kind": kind} | ({"k": 5} if kind == "linformer" else {})}
    stretched, origins = transfer(stored, changes)
    assert all(".kernel." in name for name in origins.initialized)
    assert bool(origins.initialized) == (kind == "linformer")
    assert torch.equal(transfer(stored, changes)[0].model(ids(11)), stretched.model(ids(11)))


def test_linformer_projections_repeat_over_new_positions(tokenizer: Tokenizer) -> None:
    stored = made(tokenizer, attention={"kind": "linformer", "k": 5})
    longer = extend_context(stored, max_position_embeddings=47)
    torch.testing.assert_close(longer.model(ids(23)), stored.model(ids(23)), rtol=1e-5, atol=1e-5)
    name = "backbone.layers.2.attention.sublayer.kernel.value_projection.weight"
    old, new = stored.model.state_dict()[name], longer.model.state_dict()[name]
    assert torch.equal(new[..., 23:46], old)


def test_relative_positions_stay_what_they_were(tokenizer: Tokenizer) -> None:
    stored = made(tokenizer, attention={"kind": "disentangled"}, positions={"kind": "none"})
    with pytest.raises(UserError, match=r"relative\.embedding\.weight .*\(46, 22\) .*\(122, 22\)") as e:
        extend_context(stored, max_position_embeddings=61)
    assert "model.attention.max_relative_positions=23" in str(e.value)
    changes = {"max_position_embeddings": 61, "attention": {"max_relative_positions": 23}}
    longer, origins = transfer(stored, changes)
    assert origins.initialized == ()
    assert "61 tokens" in origins.changed[f"{STEM}relative.embedding.weight"]
    assert torch.equal(longer.model(ids(23)), stored.model(ids(23)))
    longer.model(ids(61))
    biased = made(tokenizer, attention={"kind": "relative_bias"}, positions={"kind": "none"})
    farther, origins = transfer(biased, {"attention": {"max_distance": 257}})
    assert origins.initialized == ()
    assert torch.equal(farther.model(ids(7)), biased.model(ids(7)))


@pytest.mark.parametrize(
    ("layers", "wanted", "expected"),
    [
        (12, 6, (0, 2, 4, 7, 9, 11)),
        (3, 3, (0, 1, 2)),
        (3, 7, (0, 0, 0, 1, 1, 2, 2)),
        (2, 4, (0, 0, 1, 1)),
        (5, 1, (0,)),
    ],
)
def test_layers_are_copied_or_dropped_evenly(layers: int, wanted: int, expected: tuple[int, ...]) -> None:
    assert layers_of(layers, wanted) == expected


def test_another_depth_has_the_checkpoints_layers(tokenizer: Tokenizer) -> None:
    stored = made(tokenizer)
    deeper, origins = transfer(stored, {"num_hidden_layers": 7})
    assert origins.layers == (0, 0, 0, 1, 1, 2, 2)
    assert origins.initialized == ()
    for layer, origin in zip(deeper.model.backbone.layers, origins.layers, strict=True):
        other = stored.model.backbone.layers[origin].state_dict()
        assert all(torch.equal(tensor, other[name]) for name, tensor in layer.state_dict().items())
    shallow, origins = transfer(stored, {"num_hidden_layers": 2})
    assert origins.layers == (0, 2)
    assert all(name.startswith("backbone.layers.1.") for name in origins.unused)
    assert origins.unused
    shallow.model(ids(7))


def test_repeated_layers_stay_repeated(tokenizer: Tokenizer) -> None:
    stored = made(tokenizer, num_hidden_layers=4, num_hidden_groups=2)
    deeper, _ = transfer(stored, {"num_hidden_layers": 6})
    assert transfer(stored, {"num_hidden_layers": 2})[1].unused == ()  # the second is layer 3, which is layer 2
    layers, own = deeper.model.backbone.layers, stored.model.backbone.layers
    assert layers[0] is layers[2]
    for layer, origin in ((0, 0), (5, 3)):
        other = own[origin].state_dict()
        assert all(torch.equal(tensor, other[name]) for name, tensor in layers[layer].state_dict().items())


def test_new_words_are_the_mean_of_their_pieces(tokenizer: Tokenizer) -> None:
    stored = made(tokenizer)  # 13 rows for 12 tokens: padded, as released checkpoints are
    words = AddedTokens(12, ((5, 7, 11), (6,), ()))
    backbone = stored.config.one_stack("this test").with_tokens(15, 0)
    config = stored.config.model_copy(update={"backbone": backbone})
    model = config.build().eval()
    origins = transfer_weights(stored, model, config, words=words)
    old, new = stored.model.state_dict(), model.state_dict()
    for name in ("backbone.embeddings.words.weight", "head.bias"):
        assert torch.equal(new[name][:12], old[name][:12])
        torch.testing.assert_close(new[name][12], old[name][[5, 7, 11]].mean(0))
        assert torch.equal(new[name][13], old[name][6])
        torch.testing.assert_close(new[name][14], old[name][:12].mean(0))
        assert re.match("3 new rows.* pieces; 1 .* mean", origins.changed[name])
    assert torch.equal(model(ids(9))[..., :12], stored.model(ids(9))[..., :12])


def test_a_head_of_another_kind_is_not_taken(tokenizer: Tokenizer) -> None:
    stored = made(tokenizer)
    config = ModelConfig(backbone=stored.config.backbone, head=DiscriminatorHeadConfig())
    origins = transfer_weights(stored, config.build(), config)
    assert origins.initialized
    assert all(name.startswith("head.") for name in origins.initialized)
    assert "head.transform.weight" in origins.unused


NOWHERE = {"positions": {"kind": "none"}}
MISTAKES = {
    "no positions": (NOWHERE, {"max_position_embeddings": 61}, "=61: "),
    "no positions left": (
        NOWHERE | {"attention": {"kind": "relative_bias"}},
        {"max_position_embeddings": 61, "attention": {"kind": "performer"}},
        r"\(positions none, attention performer\) .*max_position_embeddings=23",
    ),
    "no places any more": (
        NOWHERE | {"attention": {"kind": "disentangled"}},
        {"attention": {"kind": "full"}},
        r"model.attention=full .*\(positions none, attention disentangled\)",
    ),
    "no places any more in a cycle": (
        NOWHERE | {"attention": {"kind": "alternating", "cycle": [{"kind": "full"}, {"kind": "relative_bias"}]}},
        {"max_position_embeddings": 13, "attention": {"kind": "alternating", "cycle": [{"kind": "full"}]}},
        r"\(positions none, attention alternating\)",
    ),
    "windows alone": (NOWHERE | {"attention": WINDOW}, {"max_position_embeddings": 61}, "has nothing to extend"),
    "a width": ({}, {"hidden_size": 44}, "model.hidden_size cannot change"),
    "a misspelt one": ({}, {"atention": {}}, "did you mean 'attention'"),
    "no layer": ({}, {"num_hidden_layers": 0}, "num_hidden_layers: "),
    "no length": ({}, {"max_position_embeddings": 0}, "max_position_embeddings"),
    "groups": ({"num_hidden_groups": 3}, {"num_hidden_layers": 4}, "num_hidden_groups"),
    "no such kind": ({}, {"attention": {"kind": "spare"}}, "unknown kind 'spare'; did you mean 'sparse'"),
    "what cannot follow": (
        {"attention": {"kind": "linformer", "k": 5, "projection": "convolved"}},
        {"max_position_embeddings": 61},
        "keep max_position_embeddings=23",
    ),
    "causal": (
        {"causal": True},
        {"attention": {"kind": "linformer", "k": 5}},
        "linformer attention does not support causal=true",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_errors(tokenizer: Tokenizer, mistake: str) -> None:
    given, changes, message = MISTAKES[mistake]
    with pytest.raises(UserError, match=message) as error:
        transfer(made(tokenizer, **given), changes)
    assert "\n" not in str(error.value)


def test_a_model_without_positions_may_be_cut_and_be_given_some(tokenizer: Tokenizer) -> None:
    stored = made(tokenizer, positions={"kind": "none"})
    shorter = extend_context(stored, max_position_embeddings=13)
    assert torch.equal(shorter.model(ids(13)), stored.model(ids(13)))
    cycle = {"kind": "alternating", "cycle": [{"kind": "full"}, {"kind": "relative_bias"}]}
    longer, origins = transfer(stored, {"max_position_embeddings": 61, "attention": cycle})
    assert [name.rpartition(".kernel.")[2] for name in origins.initialized] == ["bias.embedding.weight"]
    longer.model(ids(61))


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
def test_relative_positions_of_one_of_two_stacks_go_on(tokenizer: Tokenizer, stack: str) -> None:
    sizes = {"vocab_size": 13, "hidden_size": 22, "num_attention_heads": 2, "num_hidden_layers": 2}
    sizes |= {"max_position_embeddings": 23, "attention": {"kind": "relative_bias"}}
    decoder = {"attention": {"kind": "relative_bias"}}
    backbone = {"kind": "encoder_decoder", "encoder": sizes | NOWHERE, "decoder": decoder}
    config = ModelConfig.model_validate({"backbone": backbone})
    stored = ModelBundle(config.build().eval(), config, tokenizer)
    changed = config.model_copy(
        update={"backbone": change_stacks(config.backbone, {stack: {"max_position_embeddings": 61}})}
    )
    origins = transfer_weights(stored, changed.build(), changed)
    assert [*origins.changed] == [STEM.replace("layers", f"{stack}.layers") + "kernel.bias.embedding.weight"]
    plain = {stack: {"max_position_embeddings": 61, "attention": {"kind": "full"}}}
    with pytest.raises(UserError, match="nothing to extend"):
        change_stacks(config.backbone, plain)


def test_an_encoder_with_a_decoder_is_refused(tokenizer: Tokenizer) -> None:
    sizes = {"vocab_size": 13, "hidden_size": 22, "num_attention_heads": 2, "num_hidden_layers": 1}
    config = ModelConfig.model_validate({"backbone": {"kind": "encoder_decoder", "encoder": sizes}})
    with pytest.raises(UserError, match="one stack"):
        extend_context(ModelBundle(config.build(), config, tokenizer), max_position_embeddings=997)
