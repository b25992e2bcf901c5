"""A decoder with n-gram streams: what each stream attends to, and the invariants of every model."""

from typing import Any

import pytest
import torch
from small_models import SIZES, changed, some_ids

from homespun.attention.ngram import NgramAttention, NgramAttentionConfig
from homespun.config import validate
from homespun.errors import UserError
from homespun.models.backbone import EncoderDecoder
from homespun.models.encoder import EncoderConfig
from homespun.models.encoder_decoder import EncoderDecoderConfig
from homespun.nn.cache import Cache
from homespun.nn.masks import Mask

SOURCE, SEQ, MAXIMUM, NGRAM = 13, 11, 17, 3
ENCODER = SIZES | {"max_position_embeddings": MAXIMUM}
DECODER: dict[str, Any] = {
    "num_hidden_layers": 3,
    "num_attention_heads": 11,
    "attention": {"kind": "ngram", "num_buckets": 6, "relative_max_distance": 9},
}


def config(**fields: Any) -> EncoderDecoderConfig:
    tree = {"ngram": NGRAM, "encoder": ENCODER, "decoder": DECODER} | fields
    return validate(EncoderDecoderConfig, tree, source="model")


def build(seed: int = 1, **fields: Any) -> EncoderDecoder:
    torch.manual_seed(seed)
    return config(**fields).build().eval()


EVERY_WIRING = pytest.mark.parametrize("residual", [{"kind": "post"}, {"kind": "pre"}, {"kind": "reversible"}], ids=str)


@EVERY_WIRING
def test_each_stream_sees_exactly_the_tokens_that_it_predicts_from(residual: dict[str, str]) -> None:
    model = build(encoder=ENCODER | {"residual": residual}).double()
    ids, source = some_ids(2, SEQ), model.encode(some_ids(2, SOURCE, seed=2))
    plain = model.ngram_streams(ids, source)
    assert plain.shape == (2, NGRAM, SEQ, model.hidden_size)
    for place in range(SEQ):
        moved = (model.ngram_streams(changed(ids, place), source) - plain).abs().amax((0, 3)) > 1e-9  # (ngram, seq)
        for stream in range(NGRAM):
            # the first token of the main stream is seen from everywhere
            expected = [place <= asking - stream or place == 0 for asking in range(SEQ)]
            assert moved[stream].tolist() == expected, f"stream {stream}, token {place}"


@pytest.mark.parametrize("positions", ["learned", "none"])
def test_streams_differ_and_the_first_is_what_decoding_gives(positions: str) -> None:
    model, ids = build(encoder=ENCODER | {"positions": {"kind": positions}}), some_ids(2, SEQ)
    source = model.encode(some_ids(2, SOURCE, seed=2))
    streams = model.ngram_streams(ids, source)
    torch.testing.assert_close(streams[:, 0], model.decode(ids, source))
    torch.testing.assert_close(streams[:, 0], model(some_ids(2, SOURCE, seed=2), decoder_input_ids=ids))
    # also at the first token, where all see the same and only their own vectors differ; rounding is 1e-6
    assert bool(((streams[:, 1:] - streams[:, :1]).abs().amax(-1) > 1e-3).all())


def test_the_main_stream_is_an_ordinary_decoder_and_sees_no_other() -> None:
    torch.manual_seed(1)
    attention = NgramAttention(44, 4, num_buckets=6, relative_max_distance=9)
    hidden, mask = torch.randn(2, 1 + NGRAM, SEQ, 44), Mask(causal=True)
    alone, together = attention(hidden[:, 0], mask), attention(hidden, mask)
    torch.testing.assert_close(together[:, 0], alone)
    for stream in range(1, 1 + NGRAM):
        other = hidden.clone()
        other[:, stream] += 1.0
        moved = (attention(other, mask) - together).abs().amax((0, 2, 3)) > 1e-6
        assert moved.tolist() == [asked == stream for asked in range(1 + NGRAM)]


def test_attention_is_the_sum_written_out() -> None:
    """Against the definition, one query at a time."""
    torch.manual_seed(1)
    heads, size = 4, 11
    attention = NgramAttention(44, heads, num_buckets=6, relative_max_distance=9).double()
    hidden = torch.randn(1, 1 + NGRAM, SEQ, 44, dtype=torch.float64)
    found = attention(hidden, Mask(causal=True))
    query, key, value = (
        part(hidden[0]).unflatten(-1, (heads, size)) for part in (attention.query, attention.key, attention.value)
    )
    biases = attention.relative(hidden[0]).unflatten(-1, (6, heads))
    bucket = [0, 1, 2, 3, 3, 4, 4, 5, 5, 5, 5, 5]  # of a distance: exact below 3, then by the logarithm, 9 in the last
    for stream in range(1 + NGRAM):
        for place in range(SEQ):
            ahead = 1 if stream else 0
            last = place - max(0, stream - 1)
            seen = [(0, k, place + ahead - k) for k in range(max(last, 0) + 1)] + [(stream, place, 0)] * ahead
            mixed = []
            for head in range(heads):
                scores = torch.stack(
                    [
                        query[stream, place, head] @ key[s, k, head] / size**0.5
                        + biases[stream, place, bucket[distance], head]
                        for s, k, distance in seen
                    ]
                )
                weights = scores.softmax(0)
                mixed.append(sum(weight * value[s, k, head] for weight, (s, k, _) in zip(weights, seen, strict=True)))
            torch.testing.assert_close(found[0, stream, place], attention.output(torch.cat(mixed)))


def test_decoding_computes_the_main_stream_and_one_other() -> None:
    model, shapes = build(), []
    model.decoder.layers[0].register_forward_hook(lambda *call: shapes.append(tuple(call[2].shape)))
    source = model.encode(some_ids(2, SOURCE))
    model.decode(some_ids(2, 1), source, cache=Cache())
    model.ngram_streams(some_ids(2, SEQ), source)
    assert shapes == [(2, 2, 1, 44), (2, 1 + NGRAM, SEQ, 44)]


def test_dropout_acts_in_training_alone_and_on_every_stream() -> None:
    probability = {"attention_probs_dropout_prob": 0.3, "hidden_dropout_prob": 0.0}
    model = build(encoder=ENCODER | probability)
    ids, source = some_ids(2, SEQ), model.encode(some_ids(2, SOURCE))
    with torch.no_grad():
        assert torch.equal(model.ngram_streams(ids, source), model.ngram_streams(ids, source))
        model.decoder.train()
        differs = (model.ngram_streams(ids, source) - model.ngram_streams(ids, source)).abs().amax((0, 2, 3)) > 1e-4
    assert differs.all()


def test_a_config_written_out_is_the_same_config() -> None:
    assert validate(EncoderDecoderConfig, config().model_dump(mode="json"), source="model") == config()
    plain = validate(EncoderDecoderConfig, {"ngram": 2, "encoder": ENCODER}, source="model")
    assert plain.decoder.attention == NgramAttentionConfig()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"decoder": {"attention": {"kind": "full"}}}, "ngram=3 .*not full"),
        (
            {"decoder": {"attention": {"kind": "ngram", "num_buckets": 8, "relative_max_distance": 4}}},
            "relative_max_distance=4 .*num_buckets=8",
        ),
        ({"ngram": -1}, "ngram"),
    ],
)
def test_mistakes_are_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        config(**fields)


def test_an_ordinary_decoder_has_no_streams() -> None:
    torch.manual_seed(1)
    model = config(ngram=0, decoder={}).build()
    with pytest.raises(UserError, match="ngram=0"):
        model.ngram_streams(some_ids(2, SEQ), model.encode(some_ids(2, SOURCE)))


def test_distances_are_to_earlier_tokens() -> None:
    with pytest.raises(UserError, match=r"ngram attention .*causal"):
        EncoderConfig.model_validate(ENCODER | {"attention": {"kind": "ngram"}}).build()
    with pytest.raises(ValueError, match="causal mask"):
        NgramAttention(44, 4, num_buckets=6, relative_max_distance=9)(torch.randn(2, SEQ, 44), Mask())
