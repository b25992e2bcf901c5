"""Files of SentencePiece give the ids that SentencePiece itself gives, and damaged ones are one line."""

import io
import math
import random
import struct
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from homespun.errors import UserError
from homespun.text.tokenizer import Tokenizer
from homespun.text.vocabulary_extension import extend

sentencepiece = pytest.importorskip("sentencepiece")

HARD = [
    "",
    " ",
    "  \t\n ",
    "The quick brown fox, who's café naïve; jumps 12.5 times.",
    "  leading, trailing  and   many spaces  ",
    "tabs\tand\nlines\r\nand\u00a0hard\u3000wide spaces\u200bof no width",
    "ＦＵＬＬ　ｗｉｄｔｈ ① ﬁne Å é e\u0301 İstanbul ẞ ǅ",
    "中文 日本語 한국어 العربية עברית ไทย",
    "emoji 👩‍👩‍👧 🇩🇪 🦊 xx🦊🦊 ♥️",
    "unknown \U00013000\U00013001 between \U00013002",
    "a▁b ▁ c▁",
    "▁",
    "aaaaaaaaaaaaaaaaaaaaaa bbbbbbb abababab",
    "x" * 300,
    "<0x41> <0xE4> 100 <b> </x>",
    "line\x00zero \ufeffmark \ud7ff \ufffd",
]
KINDS: dict[str, dict[str, Any]] = {
    "unigram": {"model_type": "unigram"},
    "bpe": {"model_type": "bpe"},
    "unigram-bytes": {"model_type": "unigram", "byte_fallback": True, "vocab_size": 450},
    "bpe-bytes": {"model_type": "bpe", "byte_fallback": True, "vocab_size": 380},
    "unigram-lower": {"model_type": "unigram", "normalization_rule_name": "nmt_nfkc_cf"},
    "bpe-lower": {"model_type": "bpe", "normalization_rule_name": "nfkc_cf"},
    "identity": {"model_type": "unigram", "normalization_rule_name": "identity"},
    "as-it-is": {
        "model_type": "bpe",
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "add_dummy_prefix": False,
    },
    "spaces-kept": {"model_type": "unigram", "remove_extra_whitespaces": False},
    "across-words": {"model_type": "unigram", "split_by_whitespace": False},
    "bpe-across-words": {"model_type": "bpe", "split_by_whitespace": False},
    "user-unigram": {"model_type": "unigram", "user_defined_symbols": ["(", "<Name>", "12", "\n", "▁the"]},
    "user-bpe": {"model_type": "bpe", "user_defined_symbols": ["(", "<Name>", "12", "\n", "fox,"]},
    "control": {"model_type": "unigram", "control_symbols": ["[CLS]", "[SEP]", "[MASK]"], "pad_id": 3},
}


def sentences() -> Iterator[str]:
    generator = random.Random(7)
    ordinary = (
        "the quick brown fox jumps over a lazy dog while café owners count numbers and read letters fine "
        "The Istanbul number 12 100 4,500 naïve (brackets) times. jumps, who's it's unknown between"
    )
    words = ordinary.split()
    words += ["中文", "日本", "한국", "emoji", "🦊"]
    for _ in range(307):
        yield " ".join(generator.choice(words) + generator.choice(["", "", "s", "ing", ","]) for _ in range(11))


@cache
def trained(kind: str) -> bytes:
    stream = io.BytesIO()
    limit = {"hard_vocab_limit": False} if KINDS[kind]["model_type"] == "unigram" else {}
    settings = {"vocab_size": 127, "character_coverage": 1.0, "minloglevel": 3, "num_threads": 1} | limit | KINDS[kind]
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=sentences(), model_writer=stream, **settings)
    return stream.getvalue()


def opened(folder: Path, content: bytes) -> Tokenizer:
    (folder / "spm.model").write_bytes(content)
    return Tokenizer.load(folder)


def refused(folder: Path, content: bytes) -> str:
    with pytest.raises(UserError) as caught:
        opened(folder, content)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_those_of_sentencepiece(kind: str, tmp_path: Path) -> None:
    ours = opened(tmp_path, trained(kind))
    theirs = sentencepiece.SentencePieceProcessor(model_proto=trained(kind))
    assert ours.vocab_size == theirs.get_piece_size()
    assert ours.tokens == [theirs.id_to_piece(i) for i in range(ours.vocab_size)]
    assert ours.unk_id == theirs.unk_id()
    generator = random.Random(11)
    characters = "aabceefghinorstuwyT  \n,.()12▁é中日🦊<>N\u0301"
    texts = [*HARD, *sentences(), "a <Name>(b 12 34\n\nfox, fox,s"]
    texts += ["".join(generator.choice(characters) for _ in range(23)) for _ in range(499)]
    for text, ids in zip(texts, ours.encode_batch(texts), strict=True):
        assert [int(i) for i in ids] == theirs.encode(text), ascii(text)


@pytest.mark.parametrize("kind", ["unigram", "bpe", "bpe-bytes", "across-words", "user-unigram"])
def test_texts_come_back(kind: str, tmp_path: Path) -> None:
    ours = opened(tmp_path, trained(kind))
    for text in ["the quick brown fox, naïve (brackets)", "中文 12 100 café"]:
        assert ours.decode(ours.encode_batch([text])[0]) == text
    if kind == "bpe-bytes":
        assert ours.decode(ours.encode_batch(["한국어 🦄 العربية"])[0]) == "한국어 🦄 العربية"
    ((ids, offsets),) = ours.encode_with_offsets(["the  N\u0301umber ①"])
    assert len(ids) == len(offsets)
    assert offsets[0][0] == 0
    assert offsets[-1][1] == 14


def fused(ids: list[int], unknown: int | None) -> list[int]:
    return [i for before, i in zip([-1, *ids], ids, strict=False) if i != unknown or before != unknown]


@pytest.mark.parametrize("kind", ["control", "unigram-bytes", "user-bpe", "user-unigram"])
def test_no_text_smuggles_in_a_control_token(kind: str, tmp_path: Path) -> None:
    ours = opened(tmp_path, trained(kind))
    theirs = sentencepiece.SentencePieceProcessor(model_proto=trained(kind))
    names = [token for token, special in zip(ours.tokens, ours.special_mask, strict=True) if special]
    assert len(names) >= 3
    for token in [*names, "<0x41>"]:
        for text in (token, f"the {token} dog", f"a{token}b"):
            found = ours.encode_batch([text])[0].tolist()
            # a name of unknown characters alone is unknown twice: there is no place to part it that is not between two
            assert fused(found, ours.unk_id) == fused(theirs.encode(text), ours.unk_id)
            assert not {ours.tokens[i] for i in found} & ({*names, "<0x41>"} - {"<unk>"})


def test_what_was_read_is_saved_and_extended(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    ours = opened(tmp_path, trained("unigram-lower"))
    ours.save(tmp_path / "new")
    assert Tokenizer.load(tmp_path / "new").fingerprint == ours.fingerprint
    exported = transformers.AutoTokenizer.from_pretrained(tmp_path / "new")
    assert [exported(text)["input_ids"] for text in HARD] == [ids.tolist() for ids in ours.encode_batch(HARD)]
    more, words = extend(ours, ["a zebra and a Zebra"] * 5, 1)
    assert [word.token for word in words] == ["▁zebra"]
    assert more.encode_batch(["the ZEBRA"])[0].tolist()[-1] == ours.vocab_size


def test_a_cut_or_damaged_file_is_one_line(tmp_path: Path) -> None:
    generator, lines = random.Random(13), []
    for kind in ("unigram", "user-bpe"):
        content = trained(kind)
        for _ in range(5):
            assert "spm.model" in refused(tmp_path, content[: generator.randrange(len(content) - 400)])
        for _ in range(17):  # what is no longer the same is refused, or a vocabulary that can be used
            damaged = bytearray(content)
            damaged[generator.randrange(len(content) if kind == "unigram" else 3000)] = generator.randrange(256)
            try:
                opened(tmp_path, bytes(damaged)).encode_batch(HARD)
            except UserError as error:
                lines.append(str(error))
    assert lines
    assert not any("\n" in line for line in lines)


def pieces(*found: tuple[bytes, float, int], trainer: bytes = b"", table: bytes = b"") -> bytes:
    """A file of pieces with their scores and types: each length is below 128, a byte."""
    content = b""
    for text, score, kind in found:
        piece = b"\x0a" + bytes([len(text)]) + text + b"\x15" + struct.pack("<f", score) + b"\x18" + bytes([kind])
        content += b"\x0a" + bytes([len(piece)]) + piece
    normalizer = b"\x12" + bytes([len(table)]) + table if table else b""
    return content + b"\x12" + bytes([len(trainer)]) + trainer + b"\x1a" + bytes([len(normalizer)]) + normalizer


UNKNOWN, END, THE, DOG = (b"<unk>", 0.0, 2), (b"</s>", 0.0, 3), ("▁the".encode(), -2.5, 1), ("▁dog".encode(), -3.5, 1)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "0 unknown pieces"),
        (b"not a model at all", "damaged"),
        (b"\x0a\xff\xff\xff\xff\x0f", "damaged"),  # a field of 4 GiB
        (b"\x0a\x00" * 1_000_001, "1,000,001 pieces"),
        (pieces(UNKNOWN, UNKNOWN, THE), "2 unknown pieces"),
        (pieces(THE, DOG), "0 unknown pieces"),
        (pieces(UNKNOWN, END), "no normal piece"),
        (pieces(UNKNOWN, THE, DOG, THE), "has '▁the' twice"),
        (pieces(UNKNOWN, THE, (b"", -1.0, 1)), "piece 2 has 0 characters"),
        (pieces(UNKNOWN, THE, (b"\xff", -1.0, 1)), "damaged"),
        (pieces(UNKNOWN, THE, (b"a", math.nan, 1)), "piece 2 has score nan"),
        (pieces(UNKNOWN, THE, (b"a", 0.0, 5)), "piece 2 has score 0.0 and type 5"),
        (pieces(UNKNOWN, THE, (b"<0x00>", 0.0, 6)), "1 pieces for bytes"),
        (pieces(UNKNOWN, THE, trainer=b"\x18\x03"), "unigram and bpe"),
        (pieces(UNKNOWN, THE, trainer=b"\xc0\x01\x01"), "treat_whitespace_as_suffix"),
        (pieces(UNKNOWN, THE, table=b"\x08\x00\x00\x00abcd"), "cut short"),
        (pieces(UNKNOWN, THE, table=b"\x04\x00\x00\x00\x00\xff\xff\xffa\x00"), "leads beyond its end"),
    ],
)
def test_what_is_refused(content: bytes, words: str, tmp_path: Path) -> None:
    assert words in refused(tmp_path, content)


def test_a_small_file_by_hand(tmp_path: Path) -> None:
    ours = opened(tmp_path, pieces(UNKNOWN, THE, DOG, END))
    assert ours.tokens == ["<unk>", "▁the", "▁dog", "</s>"]
    assert ours.encode_batch(["the dog the cat"])[0].tolist() == [1, 2, 1, 0]
    assert ours.roles == {"unk": "<unk>", "eos": "</s>", "sep": "</s>"}


def test_the_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = trained("unigram")
    for module in ("sentencepiece.sentencepiece_model_pb2", "google.protobuf.message"):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, module, None)
            assert "homespun[sentencepiece]" in refused(tmp_path, content)


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "spm.model").open("wb") as stream:
        stream.truncate(1 << 40)  # a hole: nothing is written
    with pytest.raises(UserError, match="1,099,511,627,776 bytes"):
        Tokenizer.load(tmp_path)
