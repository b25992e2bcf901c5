"""Invariants of independent directions, character embeddings and adaptive softmax."""

from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import CHARACTERS, INDEPENDENT, SEQ, TWO_DIRECTIONS, VOCAB, WIDTH, build, changed, some_ids
from torch import nn

from homespun.config import validate
from homespun.errors import UserError
from homespun.models.bundle import load_model, save_model
from homespun.models.config import ModelConfig
from homespun.models.elmo import AdaptiveSoftmax, BiLMHeadConfig, cutoffs_for
from homespun.models.embeddings import BEGIN, END, NOTHING, fill_character_table
from homespun.models.encoder_decoder import EncoderDecoderConfig
from homespun.models.recurrent import RecurrentConfig
from homespun.models.weight_transfer import transfer_weights
from homespun.text.tokenizer import Tokenizer
from homespun.text.vocabulary_extension import AddedTokens

every_stack = pytest.mark.parametrize("config", INDEPENDENT.values(), ids=INDEPENDENT)


def tokenizer_of(*words: str) -> Tokenizer:
    return Tokenizer.train([" ".join(words)], kind="words", vocab_size=5 + len(set(words)))


@every_stack
def test_neither_half_sees_the_other_side(config: RecurrentConfig) -> None:
    encoder, ids = build(config).double(), some_ids(1, SEQ)
    lower = torch.ones(SEQ, SEQ).tril().bool()
    for states in (lambda ids: encoder(ids), lambda ids: encoder.last_layers(2, ids)[..., : 2 * WIDTH]):
        plain = states(ids)
        seen = torch.zeros(2, SEQ, SEQ, dtype=torch.bool)
        for place in range(SEQ):
            moved = (states(changed(ids, place)) - plain)[0].abs() > 1e-13
            seen[0, :, place], seen[1, :, place] = moved[:, :WIDTH].any(-1), moved[:, WIDTH:].any(-1)
        assert torch.equal(seen[0], lower)
        assert torch.equal(seen[1], lower.T)


@pytest.mark.parametrize("head", [{}, {"softmax": "adaptive", "cutoffs": (7, 23)}], ids=["full", "adaptive"])
def test_save_and_load_restore_the_bits_and_the_words(head: dict[str, Any], tmp_path: Path) -> None:
    tokenizer = tokenizer_of(*(f"w{number}" for number in range(VOCAB - 5)))
    config = ModelConfig(backbone=INDEPENDENT["elmo"], head=BiLMHeadConfig(**head))
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
    head = BiLMHeadConfig(softmax="adaptive", cutoffs=(7, 23)).build(build(INDEPENDENT["elmo"]))
    features, labels = torch.randn(3000, WIDTH).bfloat16(), torch.arange(3000) % VOCAB
    truth = head.softmax.loss(features.float(), labels)[0]
    with torch.autocast("cpu", torch.bfloat16):
        loss, scores = head.softmax.loss(features, labels)[0], head.softmax.scores(features)
    assert loss.dtype == scores.dtype == torch.float32
    assert torch.equal(loss, truth)


def test_a_full_softmax_is_cross_entropy() -> None:
    torch.manual_seed(1)
    head = BiLMHeadConfig().build(build(INDEPENDENT["elmo"]))
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
    config = ModelConfig(backbone=INDEPENDENT["elmo"], head=BiLMHeadConfig(**head))
    torch.manual_seed(1)
    model = config.build().eval()
    fill_character_table(model, before)
    stored = load_like(model, config, before)
    larger = config.model_copy(update={"backbone": INDEPENDENT["elmo"].with_tokens(VOCAB + 2, 0)})
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
        ({"cell_size": WIDTH}, "cell_size=11 "),
        ({"cell": "gru", "cell_size": 17}, "cell_size=17 "),
        ({"characters": CHARACTERS, "type_vocab_size": 2}, "type_vocab_size=2"),
        ({"characters": CHARACTERS | {"filters": ((9, 3),)}}, "width 9 "),
        ({"characters": CHARACTERS | {"filter": 3}}, "unknown key"),
    ):
        with pytest.raises(UserError, match=message):
            validate(RecurrentConfig, TWO_DIRECTIONS | fields, source="test")
    with pytest.raises(UserError, match=r"wordpiece.*--kind words"):
        fill_character_table(
            build(INDEPENDENT["elmo"]), Tokenizer.train(["ab ab abc"], kind="wordpiece", vocab_size=13)
        )
    with pytest.raises(UserError, match="no embedding table"):
        ModelConfig.model_validate({"backbone": INDEPENDENT["elmo"], "head": {"kind": "masked_lm"}}).build()
    with pytest.raises(UserError, match="each once"):
        validate(BiLMHeadConfig, {"cutoffs": [7, 3]}, source="test")
    encoder = {"kind": "recurrent"} | TWO_DIRECTIONS
    for stacks in (
        {"encoder": encoder | {"characters": CHARACTERS}, "decoder": {}},
        {"encoder": encoder, "decoder": {}},
        {"encoder": {"kind": "recurrent", "vocab_size": VOCAB}, "decoder": {"cell_size": 300}},
    ):
        with pytest.raises(UserError, match="is for single-stack models"):
            validate(EncoderDecoderConfig, stacks, source="test")
