"""Invariants of independent directions, character embeddings and adaptive softmax."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from recurrent_stacks import APART, CHARACTERS, FIELDS, MAXIMUM, SEQ, VOCAB, WIDTH, build, some_ids
from torch import Tensor, nn

from homespun.config import validate
from homespun.errors import UserError
from homespun.models.bundle import load_model, save_model
from homespun.models.config import ModelConfig
from homespun.models.elmo import AdaptiveSoftmax, BiLMHead, BiLMHeadConfig, cutoffs_for
from homespun.models.embeddings import BEGIN, END, NOTHING, SPECIAL, fill_character_table
from homespun.models.encoder_decoder import EncoderDecoderConfig
from homespun.models.recurrent import RecurrentConfig
from homespun.models.weight_transfer import transfer_weights
from homespun.nn.recurrent import IndependentDirections
from homespun.text.tokenizer import Tokenizer
from homespun.text.vocabulary_extension import AddedTokens

every_stack = pytest.mark.parametrize("config", APART.values(), ids=APART)


def tokenizer_of(*words: str) -> Tokenizer:
    return Tokenizer.train([" ".join(words)], kind="words", vocab_size=5 + len(set(words)))


@every_stack
def test_neither_half_sees_the_other_side(config: RecurrentConfig) -> None:
    """By changing each token in turn, and by the gradient."""
    encoder, ids = build(config).double(), some_ids(1, SEQ)
    lower = torch.ones(SEQ, SEQ).tril().bool()
    for states in (lambda ids: encoder(ids), lambda ids: encoder.last_layers(2, ids)[..., : 2 * WIDTH]):
        plain = states(ids)
        seen = torch.zeros(2, SEQ, SEQ, dtype=torch.bool)
        for place in range(SEQ):
            changed = ids.clone()
            changed[0, place] = (ids[0, place] - 5 + 17) % (VOCAB - 5) + 5
            moved = (states(changed) - plain)[0].abs() > 1e-13
            seen[0, :, place], seen[1, :, place] = moved[:, :WIDTH].any(-1), moved[:, WIDTH:].any(-1)
        assert torch.equal(seen[0], lower)
        assert torch.equal(seen[1], lower.T)
    words: list[Tensor] = []
    encoder.embeddings.register_forward_hook(lambda *call: words.append(call[2].detach().requires_grad_()) or words[-1])
    hidden = encoder(ids)
    for half, allowed in ((slice(WIDTH), lower), (slice(WIDTH, None), lower.T)):
        for place in range(SEQ):
            (gradient,) = torch.autograd.grad(hidden[0, place, half].sum(), words[-1], retain_graph=True)
            assert torch.equal(gradient[0].any(-1), allowed[place])


@every_stack
def test_padding_does_not_leak_and_alone_is_as_in_a_batch(config: RecurrentConfig) -> None:
    lengths = (SEQ, 7, 1)
    keep = torch.arange(SEQ) < torch.tensor(lengths)[:, None]
    ids = some_ids(3, SEQ)
    garbage = ids[0, :3].repeat_interleave(SEQ).view(3, SEQ)  # words that are there, of which each is computed once
    encoder = build(config)
    padded = encoder(ids.where(keep, ids[0, 5]), attention_mask=keep)
    other = encoder(ids.where(keep, garbage), attention_mask=keep.long())
    torch.testing.assert_close(padded[keep], other[keep], rtol=0, atol=0)
    left = encoder(ids.where(keep, garbage).flip(1), attention_mask=keep.flip(1))
    for row, length in enumerate(lengths):
        torch.testing.assert_close(padded[row, :length], encoder(ids[row : row + 1, :length])[0], rtol=1e-5, atol=1e-5)
        alone = encoder(ids[row : row + 1, :length].flip(1))
        torch.testing.assert_close(left[row, SEQ - length :], alone[0], rtol=1e-5, atol=1e-5)


@every_stack
def test_gradient_checkpointing_changes_nothing(config: RecurrentConfig) -> None:
    encoder, ids = build(config).train(), some_ids(2, SEQ)
    keep = torch.arange(SEQ) < torch.tensor([[SEQ], [7]])
    found = []
    for encoder.gradient_checkpointing in (False, True):
        torch.manual_seed(3)
        hidden = encoder(ids, attention_mask=keep)
        found.append([hidden, *torch.autograd.grad(hidden.square().sum(), [*encoder.parameters()])])
    for plain, again in zip(*found, strict=True):
        torch.testing.assert_close(plain, again, rtol=1e-6, atol=1e-6)


def test_it_is_two_networks_of_pytorch() -> None:
    encoder, ids = build(APART["elmo"]), some_ids(3, SEQ)
    words = encoder.embeddings(ids)
    halves = []
    for name, turn in (("forwards", False), ("backwards", True)):
        hidden = words.flip(1) if turn else words
        for number, layer in enumerate(encoder.layers):
            assert isinstance(layer, IndependentDirections)
            network = getattr(layer, name).network
            assert (network.hidden_size, network.proj_size) == (17, WIDTH)
            read = network(hidden)[0]
            hidden = read + hidden if number else read
        halves.append(hidden.flip(1) if turn else hidden)
    torch.testing.assert_close(encoder(ids), torch.cat(halves, -1), rtol=1e-6, atol=1e-6)
    states = list(encoder.hidden_states(ids))
    torch.testing.assert_close(states[0], torch.cat([words, words], -1))
    torch.testing.assert_close(encoder.last_layers(3, ids), torch.cat(states, -1))


def test_words_are_spelled_between_marks() -> None:
    tokenizer = tokenizer_of("bank", "bark", "Ébène", "extraordinary")
    words = build(APART["elmo"], vocab_size=tokenizer.vocab_size + 2).embeddings
    unspelled = words.characters[-2:].clone()
    words.fill_character_table(tokenizer)
    names = tokenizer.tokens

    def read(word: str) -> list[int]:
        return words.characters[names.index(word)].tolist()

    assert read("bank") == [BEGIN, *(letter + 1 for letter in b"bank"), END, NOTHING]
    assert read("Ébène") == [BEGIN, *(byte + 1 for byte in "Ébène".encode()[:5]), END]  # two bytes each, and cut
    assert read("extraordinary") == [BEGIN, *(letter + 1 for letter in b"extra"), END]
    assert read("[PAD]")[:3] == [BEGIN, SPECIAL, ord("[") + 1]
    assert torch.equal(words.characters[-2:], unspelled)
    assert len({tuple(row) for row in words.characters.tolist()}) == len(words.characters)


def test_a_words_vector_is_of_its_letters_alone() -> None:
    tokenizer = tokenizer_of("bank", "bark", "bans", "a", "banking")
    words = build(APART["elmo"], vocab_size=tokenizer.vocab_size).embeddings
    words.fill_character_table(tokenizer)
    ids = torch.tensor([[tokenizer.tokens.index(name) for name in ("bank", "bans", "bark", "a", "bank")]])
    vectors = words(ids)[0]
    assert torch.equal(vectors[0], vectors[4])
    for other in (1, 2, 3):
        assert (vectors[0] - vectors[other]).abs().max() > 1e-3
    # in any company, with longer words or without, and not computed apart
    torch.testing.assert_close(words(ids[:, 3:4])[0, 0], vectors[3], rtol=1e-6, atol=1e-6)
    swapped = build(APART["elmo"], vocab_size=tokenizer.vocab_size).embeddings
    swapped.fill_character_table(tokenizer)
    with torch.no_grad():
        swapped.characters[ids[0, 0]] = swapped.characters[ids[0, 1]]
    torch.testing.assert_close(swapped(ids)[0, 0], vectors[1], rtol=1e-6, atol=1e-6)


def test_filters_see_the_word_and_no_padding() -> None:
    """By hand, a word at a time, without padding."""
    words = build(APART["elmo"]).embeddings
    for word in ([BEGIN, END], [BEGIN, 66, END], [BEGIN, 66, 67, 68, 69, 70, END]):
        table = torch.tensor([word + [NOTHING] * (7 - len(word))])
        letters = words.table(torch.tensor([word]))[0]
        found = []
        for conv in words.filters:
            width = conv.kernel_size[0]
            padded = torch.cat([letters, torch.zeros(max(0, width - len(word)), 5)])
            values = [
                (conv.weight * padded[begin : begin + width].T).sum((1, 2)) + conv.bias
                for begin in range(len(padded) - width + 1)
            ]
            found.append(torch.stack(values).amax(0))
        features = torch.cat(found).relu()
        for highway in words.highways:
            gate = torch.sigmoid(highway.gate(features))
            features = gate * torch.relu(highway.transform(features)) + (1 - gate) * features
        torch.testing.assert_close(words.of_words(table)[0], words.projection(features), rtol=1e-5, atol=1e-5)


def test_cells_may_be_wider_than_what_they_give_in_one_direction_too() -> None:
    config = RecurrentConfig.model_validate(
        {"vocab_size": VOCAB, "hidden_size": 11, "cell_size": 19, "max_position_embeddings": MAXIMUM}
    )
    model = ModelConfig.model_validate({"backbone": config, "head": {"kind": "causal_lm"}}).build().eval()
    layer = model.backbone.layers[0]
    assert layer.state_sizes == (11, 19)
    ids, keep = some_ids(3, SEQ), torch.arange(SEQ) < torch.tensor([SEQ, 7, 1])[:, None]
    written = model.generate(ids, keep, max_new_tokens=5)
    assert torch.equal(written, model.generate(ids, keep, max_new_tokens=5, use_cache=False))


@pytest.mark.parametrize("head", [{}, {"softmax": "adaptive", "cutoffs": (7, 23)}], ids=["full", "adaptive"])
def test_save_and_load_restore_the_bits_and_the_words(head: dict[str, Any], tmp_path: Path) -> None:
    tokenizer = tokenizer_of(*(f"w{number}" for number in range(VOCAB - 5)))
    config = ModelConfig(backbone=APART["elmo"], head=BiLMHeadConfig(**head))
    torch.manual_seed(1)
    model = config.build().eval()
    fill_character_table(model, tokenizer)
    save_model(tmp_path / "model", model, config, tokenizer)
    stored = load_model(tmp_path / "model")
    assert stored.config == config
    ids = some_ids(2, SEQ)
    logits = stored.model(ids)
    assert logits.shape == (2, SEQ, 2, VOCAB)
    assert torch.equal(logits, model(ids))
    assert not torch.equal(logits, config.build().eval()(ids))


def test_an_adaptive_softmax_is_a_distribution_and_its_loss_the_labels_share() -> None:
    """Against log-probabilities put together by hand from the parts of the network."""
    torch.manual_seed(1)
    softmax = AdaptiveSoftmax(VOCAB, WIDTH, (7, 23)).double()
    features, labels = torch.randn(17, WIDTH).double(), torch.arange(17) * 3
    network = softmax.network
    expected = torch.zeros(())
    for vector, label in zip(features, labels.tolist(), strict=True):
        first = torch.log_softmax(network.head.weight @ vector, 0)  # 7 words, and 2 groups
        if label < 7:
            expected = expected - first[label]
            continue
        group = int(label >= 23)
        narrow, wide = network.tail[group]
        inside = torch.log_softmax(wide.weight @ (narrow.weight @ vector), 0)
        expected = expected - first[7 + group] - inside[label - (7, 23)[group]]
    loss, correct = softmax.loss(features, labels)
    torch.testing.assert_close(loss, expected.double())
    assert correct is None
    scores = softmax.scores(features)
    torch.testing.assert_close(scores.exp().sum(-1), torch.ones(17).double())
    torch.testing.assert_close(-scores[torch.arange(17), labels].sum(), loss)
    empty, _ = softmax.loss(features[:0], labels[:0])
    assert empty == 0


def test_an_adaptive_softmax_adds_up_in_full_precision() -> None:
    torch.manual_seed(1)
    head = BiLMHeadConfig(softmax="adaptive", cutoffs=(7, 23)).build(build(APART["elmo"]))
    features, labels = torch.randn(3000, WIDTH).bfloat16(), torch.arange(3000) % VOCAB
    truth = head.softmax.loss(features.float(), labels)[0]
    with torch.autocast("cpu", torch.bfloat16):
        loss, scores = head.softmax.loss(features, labels)[0], head.softmax.scores(features)
    assert loss.dtype == scores.dtype == torch.float32
    assert torch.equal(loss, truth)


def test_a_full_softmax_is_cross_entropy() -> None:
    torch.manual_seed(1)
    head = BiLMHeadConfig().build(build(APART["elmo"]))
    with torch.no_grad():
        head.softmax.bias.normal_()
    hidden, labels = torch.randn(17, 2 * WIDTH), torch.arange(17) * 3
    logits = head(hidden)
    for number, half in enumerate(hidden.chunk(2, -1)):
        loss, correct = head.softmax.loss(half, labels)
        torch.testing.assert_close(loss, nn.functional.cross_entropy(logits[:, number], labels, reduction="sum"))
        assert correct == (logits[:, number].argmax(-1) == labels).sum()


@pytest.mark.parametrize("size", [36, 5_000, 30_000, 800_000])
def test_cutoffs_are_within_the_vocabulary(size: int) -> None:
    cutoffs = cutoffs_for(size)
    assert list(cutoffs) == sorted(set(cutoffs))
    assert cutoffs[0] > 0
    assert cutoffs[-1] < size - 1


@pytest.mark.parametrize("head", [{}, {"softmax": "adaptive", "cutoffs": (7, 23)}], ids=["full", "adaptive"])
def test_new_words_need_no_training(head: dict[str, Any]) -> None:
    """They are spelled at once; the softmax has rows for them."""
    names = [f"w{number}" for number in range(VOCAB - 5)]
    before, after = tokenizer_of(*names), [*names, "zebra", "zebu"]
    config = ModelConfig(backbone=APART["elmo"], head=BiLMHeadConfig(**head))
    torch.manual_seed(1)
    model = config.build().eval()
    fill_character_table(model, before)
    stored = load_like(model, config, before)
    larger = config.model_copy(update={"backbone": APART["elmo"].with_tokens(VOCAB + 2, 0)})
    torch.manual_seed(2)
    grown = larger.build().eval()
    words = grown.backbone.embeddings
    table = words.characters.clone()
    for number, name in enumerate(after[-2:], start=VOCAB):
        row = [BEGIN, *(letter + 1 for letter in name.encode()[:5]), END]
        table[number] = torch.tensor(row + [NOTHING] * (7 - len(row)), dtype=table.dtype)
    words.characters.copy_(table)
    origins = transfer_weights(stored, grown, larger, words=AddedTokens(VOCAB, ((1,), (1,))))
    assert not origins.initialized
    assert not origins.unused
    assert torch.equal(words.characters[VOCAB:], table[VOCAB:])
    ids = some_ids(2, SEQ)
    torch.testing.assert_close(grown.backbone(ids), model.backbone(ids), rtol=1e-6, atol=1e-6)
    vectors = words(torch.tensor([[VOCAB, VOCAB + 1, 5]]))[0]
    assert (vectors[0] - vectors[1]).abs().max() > 1e-3
    logits = grown(ids)
    assert logits.shape[-1] == VOCAB + 2
    if not head:  # a new word begins as what it was made of, which is [UNK]
        torch.testing.assert_close(logits[..., VOCAB], logits[..., 1])
        torch.testing.assert_close(logits[..., :VOCAB], model(ids), rtol=1e-5, atol=1e-5)
    else:
        torch.testing.assert_close(logits.exp().sum(-1), torch.ones(2, SEQ, 2))


def load_like(model: Any, config: ModelConfig, tokenizer: Tokenizer) -> Any:
    from homespun.models.bundle import ModelBundle

    return ModelBundle(model, config, tokenizer)


def test_bad_configs_are_refused_in_a_line() -> None:
    for fields, message in (
        ({"bidirectional": False}, "set bidirectional=true"),
        (
            {"cell_size": WIDTH},
            "cell_size=11 ",
        ),
        ({"cell": "gru", "cell_size": 17}, "cell_size=17 "),
        ({"characters": CHARACTERS, "type_vocab_size": 2}, "type_vocab_size=2"),
        ({"characters": CHARACTERS | {"filters": ((9, 3),)}}, "width 9 "),
        ({"characters": CHARACTERS | {"filter": 3}}, "unknown key"),
    ):
        with pytest.raises(UserError, match=message):
            validate(RecurrentConfig, FIELDS | fields, source="test")
    with pytest.raises(UserError, match=r"wordpiece.*--kind words"):
        fill_character_table(build(APART["elmo"]), Tokenizer.train(["ab ab abc"], kind="wordpiece", vocab_size=13))
    with pytest.raises(UserError, match="no embedding table"):
        ModelConfig.model_validate({"backbone": APART["elmo"], "head": {"kind": "masked_lm"}}).build()
    with pytest.raises(UserError, match="each once"):
        validate(BiLMHeadConfig, {"cutoffs": [7, 3]}, source="test")
    encoder = {"kind": "recurrent"} | FIELDS
    for stacks in (
        {"encoder": encoder | {"characters": CHARACTERS}, "decoder": {}},
        {"encoder": encoder, "decoder": {}},
        {"encoder": {"kind": "recurrent", "vocab_size": VOCAB}, "decoder": {"cell_size": 300}},
    ):
        with pytest.raises(UserError, match="is for single-stack models"):
            validate(EncoderDecoderConfig, stacks, source="test")


def test_presets_are_what_they_say() -> None:
    with torch.device("meta"):
        original = validate(ModelConfig, {"backbone": {"preset": "elmo-original"}}, source="t").backbone
    assert sum(count for _, count in original.characters.filters) == 2048
    tree = {"preset": "elmo-mini", "characters": {"max_word_length": 17}}
    mini = validate(RecurrentConfig, tree, source="t")
    assert mini.characters.max_word_length == 17
    assert sum(count for _, count in mini.characters.filters) == 256
    encoder = mini.with_tokens(101, 0).build()
    sizes = {name: parameter.shape for name, parameter in encoder.layers.named_parameters()}
    assert sizes["1.backwards.network.weight_hr_l0"] == (128, 512)
    assert sizes["0.forwards.network.weight_ih_l0"] == (4 * 512, 128)


def test_the_table_is_no_parameter_and_of_small_numbers() -> None:
    words = build(APART["elmo"]).embeddings
    assert words.characters.dtype == torch.int16
    assert "characters" not in dict(words.named_parameters())
    assert isinstance(BiLMHeadConfig().build(build(APART["elmo"])), BiLMHead)
    assert np.array_equal(words.characters[7].numpy()[:3], [BEGIN, ord("7") + 1, END])
