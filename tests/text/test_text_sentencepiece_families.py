"""Released families number and frame the pieces as their own programs did."""

import io
import json
import random
import unicodedata
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from homespun.errors import UserError
from homespun.text.tokenizer import Tokenizer

sentencepiece = pytest.importorskip("sentencepiece")

TEXTS = [
    "",
    "The quick brown fox, who's a dog; jumps over 12 times",
    "ＦＵＬＬ\twidth ①  and\n``quotes'' É e\u0301 한국  ",
    "in 1999, the 12,100 foxes 🦊🦊",
]
PLAIN = ["the quick brown fox", "dogs jump over lazy foxes, and numbers", "a"]  # no family's program differs here


def sentences() -> Iterator[str]:
    generator = random.Random(5)
    ordinary = (
        'the quick brown fox jumps over a lazy dog while numbers 12, 1999, 100 é "quotes" 한국 and The FULL width'
    )
    for _ in range(211):
        words = [generator.choice(ordinary.split()) + generator.choice(["", "", "s", ","]) for _ in range(13)]
        yield " ".join([*words, "".join(generator.choice("abcdefghi") for _ in range(7))])


@cache
def trained(**settings: Any) -> bytes:
    stream = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=sentences(),
        model_writer=stream,
        vocab_size=113,
        minloglevel=3,
        num_threads=1,
        **{name: list(value) if isinstance(value, tuple) else value for name, value in settings.items()},
    )
    return stream.getvalue()


def as_they_are(pieces: Any, text: str) -> list[int]:
    return [int(i) for i in pieces.encode(text)]


def behind_the_masks(pieces: Any, text: str) -> list[int]:
    return [i + 103 for i in pieces.encode(text)]


def albert(pieces: Any, text: str) -> list[int]:
    text = " ".join(text.split()).replace("``", '"').replace("''", '"')
    text = "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c)).lower()
    found: list[str] = []
    for piece in pieces.encode(text, out_type=str):
        if len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit():
            parts = pieces.encode(piece[:-1].replace("▁", ""), out_type=str)
            if piece[0] != "▁" and parts[0][0] == "▁":
                parts = parts[1:] if len(parts[0]) == 1 else [parts[0][1:], *parts[1:]]
            found += [*parts, ","]
        else:
            found.append(piece)
    return [int(pieces.piece_to_id(piece)) for piece in found]


CONTROL = ("[CLS]", "[SEP]", "[MASK]")
T5 = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
Ids = Callable[[Any, str], list[int]]
FAMILIES: dict[str, tuple[dict[str, Any], Ids, list[int], list[int]]] = {
    "albert": ({"pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1, "control_symbols": CONTROL}, albert, [2], [3]),
    "big_bird": (
        {"pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 6, "control_symbols": CONTROL},
        as_they_are,
        [3],
        [4],
    ),
    "deberta-v2": (
        {"pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3}
        | {"pad_piece": "[PAD]", "bos_piece": "[CLS]", "eos_piece": "[SEP]", "unk_piece": "[UNK]"},
        as_they_are,
        [1],
        [2],
    ),
    "pegasus": (T5, behind_the_masks, [], [1]),
    "t5": (T5, as_they_are, [], [1]),
    "reformer": ({"model_type": "bpe", "unk_id": 0, "bos_id": 1, "eos_id": 2}, as_they_are, [], []),
}
CLASSES = {
    "albert": "AlbertTokenizer",
    "big_bird": "BigBirdTokenizer",
    "deberta-v2": "DebertaV2Tokenizer",
    "pegasus": "PegasusTokenizer",
    "t5": "T5Tokenizer",
    "reformer": "ReformerTokenizer",
}


def folder_of(folder: Path, family: str, **config: Any) -> Path:
    name = "spm.model" if family == "deberta-v2" else "spiece.model"
    (folder / name).write_bytes(trained(**FAMILIES[family][0]))
    (folder / "config.json").write_text(json.dumps({"model_type": family}))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("family", FAMILIES)
def test_ids_are_those_of_the_family(family: str, tmp_path: Path) -> None:
    settings, ids, before, after = FAMILIES[family]
    ours = Tokenizer.load(folder_of(tmp_path, family))
    theirs = sentencepiece.SentencePieceProcessor(model_proto=trained(**settings))
    for text, found in zip(TEXTS, ours.encode_batch(TEXTS), strict=True):
        assert found.tolist() == ids(theirs, text), text
    assert ours.template == (before, after)


@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_and_frames_are_those_of_transformers(family: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("google.protobuf")
    ours = Tokenizer.load(folder_of(tmp_path, family))
    theirs = getattr(transformers, CLASSES[family]).from_pretrained(tmp_path)
    assert ours.tokens == theirs.convert_ids_to_tokens(range(len(theirs)))
    for role in ("unk", "sep", "cls", "mask", "pad"):
        token = getattr(theirs, f"{role}_token")
        if token is not None:
            assert ours.roles[role] == token
    ours.save(tmp_path / "new")
    exported = transformers.AutoTokenizer.from_pretrained(tmp_path / "new")
    for text in PLAIN:
        assert exported(text)["input_ids"] == theirs(text)["input_ids"]
    assert exported(*PLAIN[:2])["input_ids"] == theirs(*PLAIN[:2])["input_ids"]


def test_the_numbers_of_released_checkpoints(tmp_path: Path) -> None:
    for family in FAMILIES:
        (tmp_path / family).mkdir()
    pegasus = Tokenizer.load(folder_of(tmp_path / "pegasus", "pegasus"))
    assert pegasus.tokens[:5] == ["<pad>", "</s>", "<mask_1>", "<mask_2>", "<unk_2>"]
    assert pegasus.tokens[104:106] == ["<unk_102>", "<unk>"]
    assert (pegasus.unk_id, pegasus.mask_id, pegasus.vocab_size) == (105, 3, 113 + 103)
    t5 = Tokenizer.load(folder_of(tmp_path / "t5", "t5"))
    assert t5.sentinel_ids.tolist() == list(range(113 + 99, 112, -1))
    deberta = Tokenizer.load(folder_of(tmp_path / "deberta-v2", "deberta-v2"))
    assert (deberta.mask_id, deberta.vocab_size) == (113, 114)


def test_settings_of_tokenizer_config(tmp_path: Path) -> None:
    names = {"mask_token": "[MASK]", "mask_token_sent": None, "cls_token": None, "pad_token": {"content": "<pad>"}}
    folder_of(tmp_path, "pegasus", offset=0, **names)
    bigbird_pegasus = Tokenizer.load(tmp_path)
    assert (bigbird_pegasus.unk_id, bigbird_pegasus.mask_id, bigbird_pegasus.vocab_size) == (2, 113, 114)
    assert bigbird_pegasus.template == ([], [1])
    folder_of(tmp_path, "t5", extra_ids=7, tokenizer_class="T5TokenizerFast")
    assert Tokenizer.load(tmp_path).sentinel_ids.tolist() == list(range(119, 112, -1))
    (tmp_path / "spiece.model").unlink()
    folder_of(tmp_path, "deberta-v2", do_lower_case=True)
    lower = Tokenizer.load(tmp_path)
    assert lower.encode_batch(["the FULL"])[0].tolist() == lower.encode_batch(["THE full"])[0].tolist()


def test_added_tokens_have_their_ids(tmp_path: Path) -> None:
    folder_of(
        tmp_path,
        "deberta-v2",
        added_tokens_decoder={
            "3": {"content": "<unknown>", "special": True},
            "5": {"content": "[SPECIAL]", "special": True},
            "116": {"content": "zebra", "special": False},
        },
        additional_special_tokens=["[END]"],
    )
    (tmp_path / "added_tokens.json").write_text(json.dumps({"[MASK]": 114}))
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"mask_token": "[MASK]"}))
    ours = Tokenizer.load(tmp_path)
    assert ours.tokens[113:] == ["<reserved_113>", "[MASK]", "<reserved_115>", "zebra", "[END]"]
    assert (ours.tokens[5], ours.mask_id, ours.unk_id, ours.tokens[3]) == ("[SPECIAL]", 114, 3, "<unknown>")
    assert ours.encode_batch(["🦊"])[0].tolist()[-1] == 3
    assert 116 in ours.encode_batch(["the zebra"])[0]
    assert not {5, 114, 117} & {*ours.encode_batch(["[MASK] [END] [SPECIAL]"])[0].tolist()}
    assert ours.special_mask[[5, 113, 114, 115, 117]].all()
    assert not ours.special_mask[116]


@pytest.mark.parametrize(
    ("config", "added", "words"),
    [
        ({"tokenizer_class": "XLMRobertaTokenizer"}, {}, "'XLMRobertaTokenizer'"),
        ({"split_by_punct": True}, {}, "split_by_punct=true is not supported"),
        ({}, {"[MASK]": 10**9}, "'[MASK]' the id 1,000,000,000"),
        ({}, {"[MASK]": -1}, "the id -1 "),
        ({}, {"[MASK]": "first"}, "the id 'first' "),
        ({}, {"[SEP]": 50}, "'[SEP]' at 2"),
        ({"added_tokens_decoder": {"113": {"content": "[MASK]"}}}, {"[MASK]": 114}, "'[MASK]' has the ids 113 and 114"),
        ({"additional_special_tokens": [5]}, {}, "the id None "),
        ({"additional_special_tokens": "[END]"}, {}, "must be a list"),
        ({"additional_special_tokens": ["\ud800"]}, {}, "is no added token"),
        ({"cls_token": None}, {}, "cls_token is null"),
        ({"cls_token": "a:b"}, {}, "a:b"),
    ],
)
def test_rejected_settings_of_sentencepiece(
    config: dict[str, Any], added: dict[str, Any], words: str, tmp_path: Path
) -> None:
    folder_of(tmp_path, "deberta-v2", **config)
    (tmp_path / "added_tokens.json").write_text(json.dumps(added))
    with pytest.raises(UserError) as caught:
        Tokenizer.load(tmp_path)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("family", "config", "words"),
    [
        ("t5", {"extra_ids": 10**7}, "extra_ids=.* 0 to 10,000"),
        ("t5", {"extra_ids": "many"}, "extra_ids='many'"),
        ("pegasus", {"offset": -3}, "offset=-3 .*number"),
        ("pegasus", {"mask_token": None}, "mask_token and .*mask_token_sent"),
    ],
)
def test_numbers_that_are_refused(family: str, config: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=words):
        Tokenizer.load(folder_of(tmp_path, family, **config))


def test_two_vocabularies_are_refused(tmp_path: Path) -> None:
    folder_of(tmp_path, "t5")
    (tmp_path / "other.spm").write_bytes(b"")
    with pytest.raises(UserError, match=r"2 .*other\.spm and spiece\.model"):
        Tokenizer.load(tmp_path)
