"""Properties of recurrent stacks and additive attention that test_invariants and test_encoder_decoder do not test."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from small_models import INDEPENDENT, RECURRENT_SIZES, SEQ, STACKS, VOCAB, build, kept, some_ids
from torch import nn

from homespun.attention.additive import AdditiveAttention, AlignedLayer
from homespun.config import validate
from homespun.errors import UserError
from homespun.hf.match import match_architecture
from homespun.models.config import ModelConfig
from homespun.models.encoder_decoder import EncoderDecoderConfig
from homespun.models.recurrent import RecurrentConfig
from homespun.nn import recurrent
from homespun.nn.cache import Cache
from homespun.nn.masks import Mask, Source

every_stack = pytest.mark.parametrize("config", (STACKS | INDEPENDENT).values(), ids=STACKS | INDEPENDENT)


@every_stack
def test_padding_may_stand_on_the_left(config: RecurrentConfig) -> None:
    keep = kept(SEQ, SEQ, 7, 1)
    ids, encoder = some_ids(3, SEQ), build(config)
    shifted = encoder(ids.flip(1), attention_mask=keep.flip(1))
    assert not shifted[~keep.flip(1)].any()
    for row, length in enumerate((SEQ, 7, 1)):
        alone = encoder(ids[row : row + 1, :length].flip(1))
        torch.testing.assert_close(shifted[row, SEQ - length :], alone[0], rtol=1e-5, atol=1e-5)


@every_stack
def test_a_batch_of_padding_gives_zeros(config: RecurrentConfig) -> None:
    hidden = build(config)(some_ids(2, SEQ), attention_mask=torch.zeros(2, SEQ))
    assert torch.equal(hidden, torch.zeros_like(hidden))


@every_stack
@pytest.mark.parametrize("padding", ["right", "left", "between documents"])
def test_texts_in_rows_of_their_own_are_packed_texts(
    config: RecurrentConfig, padding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep = kept(SEQ, SEQ, 7, 4, 11)
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


@pytest.mark.parametrize("cell_size", [0, 32])
def test_no_lstm_packs_texts_on_a_cpu(cell_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The backward pass of packed texts is quadratic in their length, mostly so with projections."""
    monkeypatch.delattr(recurrent.Packing, "run")
    layer = recurrent.RecurrentLayer(8, 16, cell="lstm", bidirectional=True, dropout=0.0, cell_size=cell_size)
    documents = torch.tensor([[0] * 30 + [1] * 2 + [2]])
    hidden = torch.randn(1, 33, 8)
    together = layer(hidden, Mask(documents=documents))
    alone = layer(hidden[:, :30], Mask())
    torch.testing.assert_close(together[:, :30], alone)


def test_the_longest_input_is_only_a_setting() -> None:
    encoder = build(STACKS["lstm-2"])
    longer = build(STACKS["lstm-2"], max_position_embeddings=97)
    assert longer.state_dict().keys() == encoder.state_dict().keys()
    torch.testing.assert_close(longer(some_ids(1, 17)), encoder(some_ids(1, 17)), rtol=0, atol=0)


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
    keep = kept(SEQ, SEQ, 7, 3)
    encoder.decode(ids, attention_mask=keep, cache=short)
    one = encoder.decode(new[:, :1], attention_mask=torch.cat([keep, torch.ones(3, 1).bool()], 1), cache=short)
    for row, length in enumerate((SEQ, 7, 3)):
        alone = encoder(torch.cat([ids[row : row + 1, :length], new[row : row + 1, :1]], 1))
        torch.testing.assert_close(one[row, 0], alone[0, -1], rtol=1e-5, atol=1e-5)
    with pytest.raises(UserError, match="causal"):
        build(STACKS[f"{cell}-2-both"]).decode(ids, cache=Cache())


def test_a_step_of_writing_reads_one_token(monkeypatch: pytest.MonkeyPatch) -> None:
    model = ModelConfig.model_validate({"backbone": STACKS["lstm-2"], "head": {"kind": "causal_lm"}}).build().eval()
    read: list[int] = []
    layer = model.backbone.layers[0]
    layer.register_forward_hook(lambda module, given, result: read.append(given[0].shape[1]))
    model.generate(some_ids(2, SEQ), max_new_tokens=5)
    assert read == [SEQ, 1, 1, 1, 1]


def test_attention_is_the_alignment_model_of_the_paper() -> None:
    torch.manual_seed(1)
    attention = AdditiveAttention(5, 3).double()
    state, values = torch.randn(2, 5).double(), torch.randn(2, 7, 3).double()
    keep = kept(7, 7, 4)
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
            validate(RecurrentConfig, RECURRENT_SIZES | fields, source="test")
    with pytest.raises(UserError, match="vocab_size is 0"):
        RecurrentConfig().build()
    with pytest.raises(UserError, match="left to right"):
        validate(
            EncoderDecoderConfig,
            {"encoder": RECURRENT_SIZES | {"kind": "recurrent"}, "decoder": {"bidirectional": True}},
            source="t",
        )
    with pytest.raises(UserError, match="recurrent"):
        ModelConfig(backbone=STACKS["lstm-2"]).one_stack("the picture")
