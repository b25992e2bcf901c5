"""Invariants of generation: cached = full, batch = single, one beam = greedy, best beam, no repeats."""

import warnings
from typing import Any

import pytest
import small_models
import torch
from torch import Tensor

from homespun.errors import UserError
from homespun.models.config import ModelConfig
from homespun.models.generation.settings import GenerationArguments, GenerationConfig
from homespun.models.generation.write import generate, stream
from homespun.models.heads import CausalLMHeadConfig
from homespun.models.model import Model

VOCAB, EOS, START, PAD = 43, 5, 3, 0
SIZES = small_models.SIZES | {
    "vocab_size": VOCAB,
    "max_position_embeddings": 37,
    "type_vocab_size": 0,
    "initializer_range": 0.5,
}
WINDOW: dict[str, Any] = {"kind": "sparse", "patterns": [{"kind": "window", "radius": 3}]}
FIRST = WINDOW | {"global_tokens": {"first": 1}}
BLOCKS: dict[str, Any] = {"kind": "sparse", "patterns": [{"kind": "blocks", "size": 2}]}
BAND: dict[str, Any] = {"kind": "sparse", "patterns": [{"kind": "band", "width": 5}]}
STACKS: dict[str, dict[str, Any]] = {
    "full": {"residual": {"kind": "pre"}, "embedding_norm": False},
    "alternating": {"attention": {"kind": "alternating", "cycle": [{"kind": "full"}, BAND]}},
    "first": {"attention": FIRST},
    "performer": {"attention": {"kind": "performer", "num_features": 19}},
    "biased": {"attention": {"kind": "relative_bias"}, "positions": {"kind": "none"}},
    "shared": {"num_hidden_groups": 1, "positions": {"kind": "sinusoidal"}},
}
UNCACHED: dict[str, dict[str, Any]] = {
    "lsh": {"attention": {"kind": "lsh", "chunk_length": 3}},
    "local": {"attention": {"kind": "local", "chunk_length": 3}},
    "last block": {"attention": BLOCKS | {"global_tokens": {"first": 0, "block": 2}}},
}
RECURRENT_SIZES: dict[str, Any] = small_models.RECURRENT_SIZES | {
    "kind": "recurrent",
    "vocab_size": VOCAB,
    "max_position_embeddings": 37,
}
RECURRENT: dict[str, dict[str, Any]] = {"lstm": {"cell_size": 29}, "gru": {"cell": "gru"}}
TWO: dict[str, dict[str, Any]] = {
    "two stacks": {},
    "ngram": {"ngram": 2},
    "band": {"decoder": {"attention": BAND}},
    "no cache": {"decoder": {"attention": {"kind": "local", "chunk_length": 3}}},
    "recurrent": {"encoder": RECURRENT_SIZES | {"bidirectional": True}, "decoder": {}},
}


def config_of(name: str) -> ModelConfig:
    if name in TWO:
        tokens = {"decoder_start_token_id": START, "eos_token_id": EOS}
        backbone = {"kind": "encoder_decoder", "encoder": SIZES} | tokens | TWO[name]
    elif name in RECURRENT:
        backbone = RECURRENT_SIZES | RECURRENT[name]
    else:
        backbone = SIZES | {"causal": True} | (STACKS | UNCACHED)[name]
    return ModelConfig.model_validate({"backbone": backbone, "head": HEAD})


HEAD = CausalLMHeadConfig().model_dump()
every = pytest.mark.parametrize("name", [*STACKS, *UNCACHED, *RECURRENT, *TWO])


def build(name: str, seed: int = 1) -> Model:
    torch.manual_seed(seed)
    return config_of(name).build().eval().double()


def some_ids(*shape: int, seed: int = 1) -> Tensor:
    return small_models.some_ids(*shape, seed=seed, vocab_size=VOCAB)


LENGTHS = (11, 3, 7)
KEEP = small_models.kept(11, *LENGTHS)
IDS = some_ids(3, 11).where(KEEP, PAD)


def written(model: Model, ids: Tensor, keep: Tensor | None = None, **arguments: Any) -> Tensor:
    """Generate new tokens without the prompt; warnings about attention without a cache are ignored."""
    arguments = {"max_new_tokens": 13, "eos_token_id": EOS} | arguments
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "local attention|LSH attention|sparse attention")
        found = model.generate(ids, keep, **arguments)
    columns = found.shape[1] - (1 if model.special_tokens.eos_token_id == EOS else ids.shape[1])
    return found[:, found.shape[1] - columns :]


def real(row: Tensor) -> list[int]:
    """Up to and with the token that ends it."""
    tokens = row.tolist()
    return tokens[: tokens.index(EOS) + 1] if EOS in tokens else tokens


WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "bounded": {"min_new_tokens": 4, "no_repeat_ngram_size": 2},
    "drawn": {"do_sample": True, "seed": 7, "top_p": 0.9, "temperature": 1.5},
    "drawn twice": {"do_sample": True, "num_return_sequences": 2, "top_k": 11},
    "beams": {"num_beams": 3, "num_return_sequences": 2},
    "long beams": {"num_beams": 4, "length_penalty": 3.0, "early_stopping": "never", "min_new_tokens": 2},
    "early": {"num_beams": 4, "early_stopping": True, "length_penalty": 0.4, "no_repeat_ngram_size": 3},
}
every_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


@every
@every_way
def test_a_batch_on_either_side_or_without_a_cache_is_as_each_text(name: str, way: dict[str, Any]) -> None:
    model = build(name)
    copies = way.get("num_return_sequences", 1)
    together = written(model, IDS, KEEP, **way)
    assert torch.equal(together, written(model, IDS, KEEP, use_cache=False, **way))
    turned = KEEP.int().argsort(dim=1, stable=True)
    if name not in TWO:  # an encoder of absolute places counts the padding before a text
        left = written(model, IDS.gather(1, turned), KEEP.gather(1, turned), **way)
        assert torch.equal(left, together)
    for row, length in enumerate(LENGTHS):
        alone = written(model, IDS[row : row + 1, :length], **way)
        for copy in range(copies):
            assert real(together[row * copies + copy]) == real(alone[copy])
            assert not together[row * copies + copy, len(real(alone[copy])) :].any()


@every
def test_one_beam_is_greedy_is_the_likeliest_token_each_time(name: str) -> None:
    model = build(name)
    ids = IDS[:1]
    found = written(model, ids, num_beams=1, eos_token_id=None)[0]
    begun = torch.tensor([[START]]) if name in TWO else ids
    for token in found:
        given = {"decoder_input_ids": begun} if name in TWO else {}
        logits = model(ids if name in TWO else begun, **given)
        assert token == logits[0, -1].float().argmax()
        begun = torch.cat([begun, token.view(1, 1)], 1)


def scores(model: Model, ids: Tensor, tokens: Tensor) -> Tensor:
    """The log-probabilities of new tokens (texts, new) after a prompt (1, seq)."""
    complete = torch.cat([ids.expand(len(tokens), -1), tokens], 1)
    shares = model(complete).log_softmax(-1)[:, ids.shape[1] - 1 : -1]
    return shares.gather(2, tokens[..., None]).sum((1, 2))


def score(model: Model, ids: Tensor, tokens: Tensor) -> float:
    """The log-probability of these new tokens after a prompt (1, seq)."""
    return float(scores(model, ids, tokens[None]))


@pytest.mark.parametrize("seed", range(5))
def test_as_many_beams_as_there_are_texts_find_the_best_of_all(seed: int) -> None:
    tree = {"backbone": SIZES | {"causal": True, "vocab_size": 7}, "head": HEAD}
    torch.manual_seed(seed)
    model = ModelConfig.model_validate(tree).build().eval().double()
    ids, every_text = torch.tensor([[1, 4, 2]]), torch.cartesian_prod(*[torch.arange(7)] * 3)
    with torch.no_grad():
        best = float(scores(model, ids, every_text).max())
        greedy = model.generate(ids, max_new_tokens=3, eos_token_id=None)[0, 3:]
        few = model.generate(ids, max_new_tokens=2, eos_token_id=None, num_beams=2)[0, 3:]
        # of two tokens every number of beams holds the greedy one to the end; of three, as many as there are first two
        assert score(model, ids, few) >= score(model, ids, greedy[:2]) - 1e-9
        three = model.generate(ids, max_new_tokens=3, eos_token_id=None, num_beams=3)[0, 3:]
        assert best >= score(model, ids, three) - 1e-9
        assert best >= score(model, ids, greedy) - 1e-9
    wide = ModelConfig.model_validate({"backbone": tree["backbone"] | {"vocab_size": 99}, "head": HEAD}).build()
    wide = wide.eval().double()
    wide.head.words.weight.data[7:] = 0
    wide.head.bias[7:] = -1e4  # seven words and no more, but as many beams as one likes
    with torch.no_grad():
        best_text = every_text[scores(wide, ids, every_text).argmax()]
        found = wide.generate(ids, max_new_tokens=3, eos_token_id=None, num_beams=49)[0, 3:]
    assert torch.equal(found, best_text)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("name", ["full", "two stacks"])
def test_no_run_of_tokens_comes_twice(name: str, beams: int, size: int) -> None:
    model = build(name)
    model.head.bias[11] = 6.0  # it would like to say the same again and again
    model.head.bias[12] = 6.0
    plain = model.generate(IDS[:2], max_new_tokens=20, num_beams=beams, eos_token_id=None)
    runs = [tuple(run) for run in plain[0].unfold(0, size, 1).tolist()]
    assert len(set(runs)) < len(runs)
    found = model.generate(IDS[:2], max_new_tokens=20, num_beams=beams, eos_token_id=None, no_repeat_ngram_size=size)
    for row in found:
        runs = [tuple(run) for run in row.unfold(0, size, 1).tolist()]
        own = runs[IDS.shape[1] - size + 1 :] if name == "full" else runs
        assert all(runs.count(run) == 1 for run in own)


@pytest.mark.parametrize("beams", [1, 3])
def test_lengths_and_forced_tokens_hold(beams: int) -> None:
    model = build("two stacks")
    model.head.bias[EOS] = 50.0
    given: dict[str, Any] = {"num_beams": beams, "max_new_tokens": 9}
    assert written(model, IDS, KEEP, **given).shape == (3, 1)
    found = written(model, IDS, KEEP, min_new_tokens=4, **given)
    assert (found[:, :4] != EOS).all()
    assert (found[:, 4] == EOS).all()
    assert torch.equal(found, written(model, IDS, KEEP, min_length=5, **given))
    model.head.bias[EOS] = -50.0
    assert written(model, IDS, KEEP, **given).shape == (3, 9)
    assert written(model, IDS, KEEP, num_beams=beams, max_new_tokens=None, max_length=8).shape == (3, 7)
    forced = written(model, IDS, KEEP, forced_bos_token_id=17, forced_eos_token_id=EOS, **given)
    assert (forced[:, 0] == 17).all()
    assert (forced[:, -1] == EOS).all()
    begun = model.generate(IDS, KEEP, decoder_start_token_id=19, **given)
    assert (begun[:, 0] == 19).all()


def test_draws_are_those_of_the_distribution_and_of_their_seed() -> None:
    model = build("full")
    ids, arguments = IDS[:1], {"max_new_tokens": 1, "do_sample": True, "temperature": 2.0}
    with torch.no_grad():
        shares = (model(ids)[0, -1] / 2).softmax(-1)
        found = model.generate(ids, num_return_sequences=4001, **arguments)[:, -1]
        counts = torch.bincount(found, minlength=VOCAB) / 4001
        assert (counts - shares).abs().max() < 4 * (0.25 / 4001) ** 0.5
        kept = model.generate(ids, num_return_sequences=499, top_k=3, **arguments)[:, -1]
        assert set(kept.tolist()) == set(shares.topk(3).indices.tolist())
        order = shares.sort(descending=True)
        nucleus = order.indices[: int((order.values.cumsum(0) < 0.5).sum()) + 1]
        kept = model.generate(ids, num_return_sequences=999, top_p=0.5, **arguments)[:, -1]
        assert set(kept.tolist()) == set(nucleus.tolist())
    once, again, other = (written(model, IDS, KEEP, do_sample=True, seed=seed) for seed in (3, 3, 4))
    assert torch.equal(once, again)
    assert not torch.equal(once, other)
    # a longer text begins as a shorter one
    longer = written(model, IDS, KEEP, do_sample=True, seed=3, max_new_tokens=20, eos_token_id=None)
    shorter = written(model, IDS, KEEP, do_sample=True, seed=3, max_new_tokens=5, eos_token_id=None)
    assert torch.equal(longer[:, :5], shorter)


@pytest.mark.parametrize("name", ["full", "two stacks", "local"])
@pytest.mark.parametrize("way", ["greedy", "drawn"])
def test_streamed_it_is_the_same(name: str, way: str) -> None:
    model, ids = build(name), IDS[:1]
    arguments = WAYS[way] | {"max_new_tokens": 13, "eos_token_id": EOS}
    expected = real(written(model, ids, **WAYS[way])[0])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "local attention")
        model.train()
        tokens = stream(model, ids, arguments)
        found = [next(tokens)]
        assert torch.is_grad_enabled()  # the caller's own state, between two tokens
        assert model.training
        found += tokens
    assert found == expected


@pytest.mark.parametrize("beams", [1, 3])
def test_text_ends_at_the_stop_condition(beams: int) -> None:
    model = build("full")
    plain = written(model, IDS, KEEP, num_beams=beams, eos_token_id=None)
    arguments = {"max_new_tokens": 13, "eos_token_id": None, "num_beams": beams}
    arguments |= {"early_stopping": True} if beams > 1 else {}
    prompts = [ids[keep.bool()].tolist() for ids, keep in zip(IDS, KEEP, strict=True)]
    seen: list[list[int]] = []
    found = generate(model, IDS, KEEP, arguments, ends=lambda prompt, new: seen.append(prompt) or len(new) == 5)[
        :, IDS.shape[1] :
    ]
    assert found.shape == (3, 5)
    assert [prompt for n, prompt in enumerate(seen) if not n or prompt != seen[n - 1]] == prompts * 5
    if beams == 1:
        assert torch.equal(found, plain[:, :5])
    never = generate(model, IDS, KEEP, arguments, ends=lambda prompt, new: False)
    assert never.shape == (3, IDS.shape[1] + 13)


def test_generation_without_cache_warns_once() -> None:
    model = build("local")
    with pytest.warns(UserWarning, match="read again") as caught:
        model.generate(IDS, KEEP, max_new_tokens=5)
    assert len(caught) == 1


def test_the_mode_of_every_part_is_as_before() -> None:
    model = build("full").train()
    model.backbone.embeddings.eval()
    modes = [module.training for module in model.modules()]
    model.generate(IDS, KEEP, max_new_tokens=2)
    assert [module.training for module in model.modules()] == modes
    assert torch.is_grad_enabled()


def test_packed_weights_under_autocast() -> None:
    sizes = {"vocab_size": 1009, "embedding_size": 96, "causal": True}
    tree: dict[str, Any] = {"backbone": SIZES | sizes, "head": {"kind": "causal_lm"}}
    model = ModelConfig.model_validate(tree).build().eval()
    with torch.autocast("cpu", torch.bfloat16):  # its projection to the embeddings gives bfloat16
        assert model.generate(IDS, KEEP, max_new_tokens=17).shape[1] > IDS.shape[1]


@pytest.mark.parametrize("name", ["full", "biased", "two stacks"])
@pytest.mark.parametrize("beams", [1, 4])
def test_packed_weights_change_nothing_and_go_away(name: str, beams: int) -> None:
    tree = config_of(name).model_dump()
    sizes = {"vocab_size": 1009, "hidden_size": 256, "intermediate_size": 512}
    tree["backbone"] |= sizes if "encoder" not in tree["backbone"] else {}
    for stack in ("encoder", "decoder"):
        if stack in tree["backbone"]:
            tree["backbone"][stack] |= sizes
    torch.manual_seed(1)
    model = ModelConfig.model_validate(tree).build().eval()
    given: dict[str, Any] = {"num_beams": beams, "eos_token_id": None}
    packed = written(model, IDS, KEEP, max_new_tokens=17, **given)  # enough for it to be worth while
    plain = written(model.double(), IDS, KEEP, max_new_tokens=17, **given)
    assert torch.equal(packed, plain)
    assert not [module for module in model.modules() if "forward" in vars(module)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens: "),
        ({"max_tokens": 3}, "unknown key 'max_tokens'; did you mean"),
        ({"max_new_tokens": 3, "max_length": 30}, "exclude each other"),
        ({"max_length": 11}, "max_length=11 "),
        ({"max_new_tokens": 28}, "max_new_tokens=27"),
        ({"temperature": 0.5}, "do_sample=True"),
        ({"min_new_tokens": 9, "max_new_tokens": 8}, "maximum of 8"),
        ({"num_beams": 2, "length_penalty": float("nan")}, "length_penalty: "),
        ({"length_penalty": 2.0}, "num_beams of at least 2"),
        ({"early_stopping": True}, "num_beams of at least 2"),
        ({"do_sample": True, "num_beams": 2, "top_p": 0.9}, "top_p and num_beams=2 "),
        ({"do_sample": True, "num_beams": 2}, "exclude each other"),
        ({"num_return_sequences": 2}, "at most num_beams=1"),
        ({"num_beams": 22}, "vocab_size=43"),
        ({"eos_token_id": [3, 500], "min_new_tokens": 2}, "eos_token_id=500 "),
        ({"forced_eos_token_id": 43}, "forced_eos_token_id=43 "),
        ({"early_stopping": "sometimes", "num_beams": 2}, "early_stopping"),
    ],
)
def test_unsupported_settings_are_refused_in_one_line(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        build("full").generate(IDS, KEEP, **arguments)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_prompts_that_cannot_be_are_refused() -> None:
    model = build("full")
    with pytest.raises(UserError, match=" 38 tokens"):
        model.generate(some_ids(1, 38))
    with pytest.raises(UserError, match="a prompt is empty"):
        model.generate(IDS[:, :0])
    for wrong in (43, -1):
        with pytest.raises(UserError, match=f"input_ids .*{wrong}.* vocab_size=43"):
            model.generate(torch.tensor([[5, wrong, 7]]))
    with pytest.raises(UserError, match="a prompt is empty"):
        model.generate(IDS, torch.zeros_like(KEEP))
    with pytest.raises(UserError, match="min_new_tokens=7"):
        model.generate(some_ids(1, 31), min_new_tokens=8)
    assert model.generate(some_ids(1, 31)).shape == (1, 38)  # as far as there is room, where nothing was asked for
    tree: dict[str, Any] = {"backbone": SIZES, "head": {"kind": "linear", "num_labels": 3}}
    with pytest.raises(UserError, match="bidirectional"):
        ModelConfig.model_validate(tree).build().generate(IDS)
    with pytest.raises(UserError, match="beams"):
        stream(model, IDS[:1], {"num_beams": 2})


@pytest.mark.parametrize("name", ["position_ids", "documents", "global_attention_mask"])
def test_a_causal_model_refuses_what_it_would_ignore(name: str) -> None:
    model = build("full")
    with pytest.raises(UserError, match=name):
        model.generate(IDS, KEEP, **{name: torch.zeros_like(IDS)})
    zeros = torch.zeros_like(IDS)  # of a tokenizer
    assert torch.equal(model.generate(IDS, KEEP, token_type_ids=zeros), model.generate(IDS, KEEP))


def test_the_arguments_are_the_fields_of_the_config() -> None:
    assert [*GenerationArguments.__annotations__] == [*GenerationConfig.model_fields]
