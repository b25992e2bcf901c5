"""Invariants of a backbone for recurrent stacks and recurrent decoders, with and without additive attention."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from recurrent_stacks import APART, MAXIMUM, SEQ, SIZES, STACKS, VOCAB, build, some_ids
from safetensors.torch import load_file, save_file
from torch import nn

from homespun.attention.additive import AdditiveAttention, AlignedLayer
from homespun.config import validate
from homespun.errors import UserError
from homespun.hf.match import match_architecture
from homespun.models.config import ModelConfig, TokenHeadConfig
from homespun.models.encoder_decoder import EncoderDecoderConfig
from homespun.models.model import Model
from homespun.models.recurrent import RecurrentConfig
from homespun.nn import recurrent
from homespun.nn.cache import Cache
from homespun.nn.masks import Mask, Source

every_stack = pytest.mark.parametrize("config", STACKS.values(), ids=STACKS)
those_apart_too = pytest.mark.parametrize("config", [*STACKS.values(), *APART.values()], ids=[*STACKS, *APART])
every_pair = pytest.mark.parametrize(
    ("cell", "attention"), [*itertools.product(("rnn", "lstm", "gru"), ("additive", "none"))]
)


def two_stacks(cell: str, attention: str, **fields: Any) -> tuple[ModelConfig, Model]:
    stack = SIZES | {"kind": "recurrent", "cell": cell, "bidirectional": True} | fields
    decoder = {"hidden_size": 19, "attention": {"kind": attention}}
    tree = {
        "backbone": {"kind": "encoder_decoder", "encoder": stack, "decoder": decoder},
        "head": {"kind": "causal_lm"},
    }
    config = validate(ModelConfig, tree, source="test")
    torch.manual_seed(1)
    return config, config.build().eval()


@every_stack
def test_padding_does_not_leak_and_alone_is_as_in_a_batch(config: RecurrentConfig) -> None:
    lengths = (SEQ, 7, 1)
    keep = torch.arange(SEQ) < torch.tensor(lengths)[:, None]
    ids, garbage = some_ids(3, SEQ), some_ids(3, SEQ, seed=2)
    encoder = build(config)
    padded = encoder(ids.where(keep, 0), attention_mask=keep)
    other = encoder(ids.where(keep, garbage), attention_mask=keep.long())
    torch.testing.assert_close(padded[keep], other[keep], rtol=0, atol=0)
    assert not padded[~keep].any()
    shifted = encoder(ids.where(keep, garbage).flip(1), attention_mask=keep.flip(1))  # padding on the left
    for row, length in enumerate(lengths):
        torch.testing.assert_close(padded[row, :length], encoder(ids[row : row + 1, :length])[0], rtol=1e-5, atol=1e-5)
        alone = encoder(ids[row : row + 1, :length].flip(1))
        torch.testing.assert_close(shifted[row, SEQ - length :], alone[0], rtol=1e-5, atol=1e-5)


@every_stack
def test_tokens_mix_and_the_future_does_not_leak(config: RecurrentConfig) -> None:
    encoder, ids = build(config).double(), some_ids(1, SEQ)
    plain = encoder(ids)
    seen = torch.zeros(SEQ, SEQ, dtype=torch.bool)
    for place in range(SEQ):
        changed = ids.clone()
        changed[0, place] = (ids[0, place] - 5 + 17) % (VOCAB - 5) + 5
        seen[:, place] = (encoder(changed) - plain).abs().amax(-1)[0] > 1e-12
    assert bool(seen.tril().equal(torch.ones(SEQ, SEQ).tril().bool()))
    assert bool(seen.triu(1).any()) == (not config.causal)
    assert config.causal or bool(seen.all())


@those_apart_too
def test_packed_documents_do_not_see_each_other(config: RecurrentConfig) -> None:
    encoder, ids = build(config), some_ids(2, SEQ)
    documents = torch.tensor([[0] * 3 + [1] * 7 + [2] * 3, [0] * 5 + [-1] * 8])
    for keep in (documents >= 0, torch.ones_like(documents, dtype=torch.bool)):
        hidden = encoder(ids, attention_mask=keep, documents=documents)
        for row, start, length in ((0, 0, 3), (0, 3, 7), (0, 10, 3), (1, 0, 5)):
            alone = encoder(ids[row : row + 1, start : start + length])
            torch.testing.assert_close(hidden[row, start : start + length], alone[0], rtol=1e-5, atol=1e-5)


@those_apart_too
@pytest.mark.parametrize("padding", ["right", "left", "between documents"])
def test_texts_in_rows_of_their_own_are_packed_texts(
    config: RecurrentConfig, padding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep = torch.arange(SEQ) < torch.tensor([SEQ, 7, 4, 11])[:, None]
    keep = keep.flip(1) if padding == "left" else keep
    documents = None
    if padding == "between documents":
        documents = torch.tensor([0] * 6 + [1] * 7).expand(4, -1).masked_fill(~keep, -1)
    found = []
    ways: list[Callable[[list[int]], recurrent.Groups]] = [
        lambda lengths: (),  # packed
        lambda lengths: ((len(lengths), lengths[0]),),
        lambda lengths: ((1, lengths[0]), (len(lengths) - 1, lengths[1])),
        recurrent._similar_lengths,
    ]
    for together in ways:
        monkeypatch.setattr(recurrent, "_similar_lengths", together)
        monkeypatch.setattr(recurrent, "_one_group", together)
        encoder = build(config).double()
        hidden = encoder(some_ids(4, SEQ), attention_mask=keep, documents=documents)
        weight = torch.linspace(-1.0, 1.0, hidden.numel(), dtype=hidden.dtype).view_as(hidden)
        (hidden * weight).sum().backward()
        found.append((hidden, {name: p.grad for name, p in encoder.named_parameters() if p.grad is not None}))
    for other in found[1:]:
        torch.testing.assert_close(other, found[0])


def test_texts_of_about_one_length_are_read_together() -> None:
    assert recurrent._similar_lengths([40, 20, 19, 10, 9, 1]) == ((2, 40), (2, 19), (1, 9), (1, 1))
    assert recurrent._similar_lengths([]) == recurrent._one_group([]) == ()
    assert recurrent._one_group([15, 15, 6]) == ((3, 15),)
    assert recurrent._one_group([15, 6, 6]) == ()


@those_apart_too
def test_masked_rows_and_dropout(config: RecurrentConfig) -> None:
    encoder, ids = build(config), some_ids(2, SEQ)
    for keep in (torch.tensor([[True], [False]]), torch.tensor([[False], [False]])):
        hidden = encoder(ids, attention_mask=keep.expand(2, SEQ))
        hidden.square().sum().backward()
        assert hidden.isfinite().all()
        assert all(p.grad is None or p.grad.isfinite().all() for p in encoder.parameters())
    assert torch.equal(encoder(ids), encoder(ids))
    encoder.train()
    assert not torch.equal(encoder(ids), encoder(ids))
    encoder.zero_grad()
    encoder(ids).square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in encoder.parameters())


@every_stack
def test_any_length_up_to_the_maximum_which_is_only_a_setting(config: RecurrentConfig) -> None:
    encoder = build(config)
    for length in (1, 2, 17, MAXIMUM):
        assert encoder(some_ids(2, length)).shape == (2, length, 22)
    with pytest.raises(UserError, match=f" {MAXIMUM + 1} tokens .*max_position_embeddings={MAXIMUM}"):
        encoder(some_ids(1, MAXIMUM + 1))
    longer = build(config, max_position_embeddings=97)
    assert longer.state_dict().keys() == encoder.state_dict().keys()
    torch.testing.assert_close(longer(some_ids(1, 17)), encoder(some_ids(1, 17)), rtol=0, atol=0)


@every_stack
@pytest.mark.parametrize("head", [None, *get_args(TokenHeadConfig)])
def test_save_and_load_restore_the_bits(config: RecurrentConfig, head: Any, tmp_path: Path) -> None:
    complete = ModelConfig(backbone=config, head=None if head is None else head())
    torch.manual_seed(1)
    saved = complete.build().eval()
    save_file(dict(saved.named_parameters()), tmp_path / "model.safetensors")
    torch.manual_seed(2)
    loaded = complete.build().eval()
    assert not torch.equal(saved(some_ids(2, SEQ)), loaded(some_ids(2, SEQ)))
    loaded.load_state_dict(load_file(tmp_path / "model.safetensors"), strict=False)
    assert torch.equal(saved(some_ids(2, SEQ)), loaded(some_ids(2, SEQ)))


@pytest.mark.parametrize("cell", ["rnn", "lstm", "gru"])
@pytest.mark.parametrize("both", [False, True])
def test_a_stack_is_what_pytorch_calls_one(cell: str, both: bool) -> None:
    """`torch.nn`'s own network of two layers, given our weights."""
    encoder = build(STACKS[f"{cell}-2{'-both' * both}"])
    kinds: dict[str, Any] = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}
    theirs = kinds[cell](17, 22 // (1 + both), 2, batch_first=True, bidirectional=both)
    for number, layer in enumerate(encoder.layers):
        for name, parameter in layer.network.named_parameters():
            theirs.get_parameter(name.replace("_l0", f"_l{number}")).data = parameter.data
    ids = some_ids(3, SEQ)
    torch.testing.assert_close(encoder(ids), theirs(encoder.embeddings(ids))[0], rtol=1e-6, atol=1e-6)
    states = list(encoder.hidden_states(ids))
    torch.testing.assert_close(states[-1], encoder(ids))
    torch.testing.assert_close(encoder.last_layers(2, ids), torch.cat(states[1:], -1))


@pytest.mark.parametrize("cell", ["rnn", "lstm", "gru"])
def test_the_state_is_all_that_is_needed_of_the_tokens_before(cell: str) -> None:
    encoder, ids = build(STACKS[f"{cell}-2"]), some_ids(3, SEQ)
    complete, cache = encoder(ids), Cache()
    pieces = [encoder.decode(ids[:, start:end], cache=cache) for start, end in ((0, 5), (5, 6), (6, SEQ))]
    torch.testing.assert_close(torch.cat(pieces, 1), complete, rtol=1e-5, atol=1e-5)
    assert cache.length == SEQ
    # a branch goes on from some rows and leaves the cache as it was
    branch = cache.branch(torch.tensor([2, 0]))
    new = some_ids(3, 2, seed=5)
    gone_on = encoder.decode(new[:2], cache=branch)
    after = encoder(torch.cat([ids[[2, 0]], new[:2]], 1))[:, -2:]
    torch.testing.assert_close(gone_on, after, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(
        encoder.decode(new, cache=cache), encoder(torch.cat([ids, new], 1))[:, -2:], rtol=1e-5, atol=1e-5
    )
    # a row whose new tokens are padding keeps its state
    short = Cache()
    keep = torch.arange(SEQ) < torch.tensor([SEQ, 7, 3])[:, None]
    encoder.decode(ids, attention_mask=keep, cache=short)
    one = encoder.decode(new[:, :1], attention_mask=torch.cat([keep, torch.ones(3, 1).bool()], 1), cache=short)
    for row, length in enumerate((SEQ, 7, 3)):
        alone = encoder(torch.cat([ids[row : row + 1, :length], new[row : row + 1, :1]], 1))
        torch.testing.assert_close(one[row, 0], alone[0, -1], rtol=1e-5, atol=1e-5)
    with pytest.raises(UserError, match="causal"):
        build(STACKS[f"{cell}-2-both"]).decode(ids, cache=Cache())


@pytest.mark.parametrize("cell", ["rnn", "lstm", "gru"])
def test_it_writes_from_its_state_as_by_reading_all_again(cell: str) -> None:
    model = ModelConfig.model_validate({"backbone": STACKS[f"{cell}-2"], "head": {"kind": "causal_lm"}}).build().eval()
    ids, lengths = some_ids(3, SEQ), (SEQ, 7, 1)
    keep = torch.arange(SEQ) < torch.tensor(lengths)[:, None]
    for how in ({}, {"num_beams": 3}, {"do_sample": True, "seed": 3}):
        written = model.generate(ids, keep, max_new_tokens=9, **how)
        again = model.generate(ids, keep, max_new_tokens=9, use_cache=False, **how)
        assert torch.equal(written, again)
        for row, length in enumerate(lengths):
            alone = model.generate(ids[row : row + 1, :length], max_new_tokens=9, **how)
            assert torch.equal(alone[0, length:], written[row, SEQ:])


def test_a_step_of_writing_reads_one_token(monkeypatch: pytest.MonkeyPatch) -> None:
    model = ModelConfig.model_validate({"backbone": STACKS["lstm-2"], "head": {"kind": "causal_lm"}}).build().eval()
    read: list[int] = []
    layer = model.backbone.layers[0]
    layer.register_forward_hook(lambda module, given, result: read.append(given[0].shape[1]))
    model.generate(some_ids(2, SEQ), max_new_tokens=5)
    assert read == [SEQ, 1, 1, 1, 1]


@every_pair
def test_decoders_read_their_source_and_nothing_later(cell: str, attention: str) -> None:
    _, model = two_stacks(cell, attention)
    model = model.double()
    ids, given = some_ids(1, SEQ), some_ids(1, 7, seed=3)
    plain = model(ids, decoder_input_ids=given)
    assert plain.shape == (1, 7, VOCAB)
    for place in range(SEQ):  # each token of the source has a say in every token written
        changed = ids.clone()
        changed[0, place] = (ids[0, place] - 5 + 17) % (VOCAB - 5) + 5
        assert bool(((model(changed, decoder_input_ids=given) - plain).abs().amax(-1) > 1e-12).all())
    changed = given.clone()
    changed[0, 3] = (given[0, 3] - 5 + 17) % (VOCAB - 5) + 5
    moved = (model(ids, decoder_input_ids=changed) - plain).abs().amax(-1)[0] > 1e-12
    assert moved.tolist() == [False] * 3 + [True] * 4


@every_pair
def test_padding_of_either_side_does_not_leak(cell: str, attention: str) -> None:
    _, model = two_stacks(cell, attention)
    ids, given = some_ids(3, SEQ), some_ids(3, 7, seed=3)
    keep = torch.arange(SEQ) < torch.tensor([SEQ, 7, 1])[:, None]
    real = torch.arange(7) < torch.tensor([2, 7, 5])[:, None]
    complete = model(ids, keep, decoder_input_ids=given, decoder_attention_mask=real)
    for row, (source, target) in enumerate(((SEQ, 2), (7, 7), (1, 5))):
        alone = model(ids[row : row + 1, :source], decoder_input_ids=given[row : row + 1, :target])
        torch.testing.assert_close(complete[row, :target], alone[0], rtol=1e-5, atol=1e-5)
    # a target that is padded on the left, or reads nothing at all
    model.zero_grad()
    masked = model(ids, keep & False, decoder_input_ids=given, decoder_attention_mask=real & False)
    masked.square().sum().backward()
    assert masked.isfinite().all()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


@every_pair
def test_cached_decoding_is_full_decoding(cell: str, attention: str) -> None:
    _, model = two_stacks(cell, attention, num_hidden_layers=2)
    backbone = model.backbone
    ids, given = some_ids(3, SEQ), some_ids(3, 7, seed=3)
    keep = torch.arange(SEQ) < torch.tensor([SEQ, 7, 1])[:, None]
    source, cache = backbone.encode(ids, attention_mask=keep), Cache()
    pieces = [backbone.decode(given[:, start:end], source, cache=cache) for start, end in ((0, 1), (1, 2), (2, 7))]
    torch.testing.assert_close(torch.cat(pieces, 1), backbone.decode(given, source), rtol=1e-5, atol=1e-5)
    for how in ({}, {"num_beams": 3}, {"do_sample": True, "seed": 3}):
        written = model.generate(ids, keep, max_new_tokens=9, **how)
        assert torch.equal(written, model.generate(ids, keep, max_new_tokens=9, use_cache=False, **how))


def test_attention_is_the_alignment_model_of_the_paper() -> None:
    torch.manual_seed(1)
    attention = AdditiveAttention(5, 3).double()
    state, values = torch.randn(2, 5).double(), torch.randn(2, 7, 3).double()
    keep = torch.arange(7) < torch.tensor([[7], [4]])
    context, weights = attention(state, attention.key(values), values, keep)
    for row, length in enumerate((7, 4)):
        energies = [
            attention.score.weight[0]
            @ torch.tanh(attention.query.weight @ state[row] + attention.key.weight @ value + attention.key.bias)
            for value in values[row, :length]
        ]
        share = torch.stack(energies).exp() / torch.stack(energies).exp().sum()
        torch.testing.assert_close(weights[row, :length], share)
        assert not weights[row, length:].any()
        torch.testing.assert_close(context[row], share @ values[row, :length])


def test_the_aligned_layer_asks_with_the_state_before() -> None:
    torch.manual_seed(1)
    layer = AlignedLayer(3, 5, 7, cell="gru", dropout=0.0).double()
    hidden, values = torch.randn(1, 4, 3).double(), torch.randn(1, 6, 7).double()
    mask = Mask(causal=True, source=Source(values, Mask()))
    (state,) = layer.bridge(mask.source, 1)
    torch.testing.assert_close(state, torch.tanh(layer.bridge.linear(torch.cat([values[:, 0], values[:, -1]], -1))))
    for place in range(4):
        context, _ = layer.attention(state, layer.attention.key(values), values, None)
        state = layer.cell(torch.cat([hidden[:, place], context], -1), state)
        expected = torch.tanh(layer.output(torch.cat([state, context, hidden[:, place]], -1)))
        torch.testing.assert_close(layer(hidden, mask)[:, place], expected)


def test_stacks_of_either_kind_go_together() -> None:
    small = {"vocab_size": VOCAB, "hidden_size": 22, "num_attention_heads": 2, "intermediate_size": 17}
    recurrent = {"kind": "recurrent", "vocab_size": VOCAB, "hidden_size": 22}
    for encoder, decoder in ((small, {"kind": "recurrent"}), (recurrent, small | {"kind": "encoder"})):
        config = EncoderDecoderConfig.model_validate({"encoder": encoder, "decoder": decoder})
        model = config.build().eval()
        assert model(some_ids(2, SEQ), decoder_input_ids=some_ids(2, 5)).shape == (2, 5, 22)
        assert EncoderDecoderConfig.model_validate(config.model_dump()) == config
        match, notes = match_architecture(ModelConfig(backbone=config))
        assert match is None
        assert "recurrent" in notes[0]


def test_words_are_tied_through_a_projection_where_the_widths_differ() -> None:
    config = ModelConfig.model_validate({"backbone": STACKS["lstm-2"], "head": {"kind": "causal_lm"}})
    model = config.build()
    head: Any = model.head
    assert head.weight is model.backbone.embeddings.words.weight
    assert (head.transform.in_features, head.transform.out_features) == (22, 17)
    narrow = config.model_copy(update={"backbone": STACKS["lstm-2"].model_copy(update={"embedding_size": 0})}).build()
    assert isinstance(narrow.head.transform, nn.Identity)
    match, notes = match_architecture(config)
    assert match is None
    assert "recurrent" in notes[0]


def test_bad_configs_are_refused_in_a_line() -> None:
    for fields, message in (
        ({"hidden_size": 21, "bidirectional": True}, "hidden_size=21 "),
        ({"cell": "lst"}, "cell"),
        ({"num_attention_heads": 2}, "unknown key 'num_attention_heads'"),
        ({"preset": "lstm-min"}, "unknown preset 'lstm-min'; did you mean 'lstm-mini'"),
    ):
        with pytest.raises(UserError, match=message):
            validate(RecurrentConfig, SIZES | fields, source="test")
    with pytest.raises(UserError, match="vocab_size is 0"):
        RecurrentConfig().build()
    with pytest.raises(UserError, match="left to right"):
        validate(
            EncoderDecoderConfig,
            {"encoder": SIZES | {"kind": "recurrent"}, "decoder": {"bidirectional": True}},
            source="t",
        )
    with pytest.raises(UserError, match="recurrent"):
        ModelConfig(backbone=STACKS["lstm-2"]).one_stack("the picture")
