"""Tokenizers of every kind: invariants, foreign files, messages for errors."""

import json
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, models, pre_tokenizers, processors
from tokenizers import Tokenizer as Engine

from homespun.choices import TokenizerKind
from homespun.errors import UserError
from homespun.text.tokenizer import KINDS, SPECIAL_TOKENS, Tokenizer

WORDS = [
    *("spin", "spinning", "home", "homespun", "wool", "woollen"),
    *("yarn", "small", "smaller", "model", "models", "café"),
]
# Words by rank, so that all the counts differ; and characters enough for every kind.
TEXTS = [
    " ".join(f"{WORDS[(i * j) % 11]}{WORDS[(i + j) % 7]}{'s' * (j % 3)}" for j in range(1, 29))
    + f", said No. {i}: (yes)!"
    for i in range(211)
] + ["The quick brown fox jumps over the lazy dog. Größe, naïve café; [x] <y> {z} 0123456789 'quoted' \"too\""] * 13
SIZES: dict[TokenizerKind, int] = {"bpe": 401, "bpe-characters": 211, "wordpiece": 223, "unigram": 211, "words": 127}


def train(kind: TokenizerKind, **kwargs: Any) -> Tokenizer:
    return Tokenizer.train(iter(TEXTS), kind=kind, vocab_size=SIZES[kind], **kwargs)


@pytest.fixture(scope="module")
def trained() -> dict[TokenizerKind, Tokenizer]:
    return {kind: train(kind) for kind in KINDS}


@pytest.fixture(params=KINDS)
def tokenizer(request: pytest.FixtureRequest, trained: dict[TokenizerKind, Tokenizer]) -> Tokenizer:
    return trained[request.param]


def test_size_specials_and_masks(tokenizer: Tokenizer) -> None:
    assert tokenizer.vocab_size == SIZES[tokenizer.kind]
    ids = (tokenizer.pad_id, tokenizer.unk_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id)
    assert ids == (0, 1, 2, 3, 4)
    assert tokenizer.special_mask.shape == tokenizer.word_starts.shape == (tokenizer.vocab_size,)
    assert tokenizer.special_mask.tolist() == [True] * 5 + [False] * (tokenizer.vocab_size - 5)


def test_encoding(tokenizer: Tokenizer) -> None:
    texts = [TEXTS[0], "", TEXTS[7] * 7, " "]
    rows = tokenizer.encode_batch(texts)
    assert len(rows) == 4
    assert all(row.dtype == np.uint16 for row in rows)
    assert len(rows[1]) == 0
    assert len(rows[2]) > 250  # uncut
    assert not any(np.isin(row, [0, 2, 3, 4]).any() for row in rows)
    alone = tokenizer.encode_batch(texts[2:3])[0]
    assert np.array_equal(alone, rows[2])


def test_lone_surrogates_are_read_as_question_marks(tokenizer: Tokenizer) -> None:
    texts, clean = ["wool \ud83d yarn", "small café"], ["wool ? yarn", "small café"]
    for found, expected in zip(tokenizer.encode_batch(texts), tokenizer.encode_batch(clean), strict=True):
        assert found.tolist() == expected.tolist()
    pairs = zip(tokenizer.encode_with_offsets(texts), tokenizer.encode_with_offsets(clean), strict=True)
    for (ids, offsets), (expected_ids, expected_offsets) in pairs:
        assert ids.tolist() == expected_ids.tolist()
        assert offsets.tolist() == expected_offsets.tolist()


def test_lone_surrogates_do_not_stop_training() -> None:
    found, expected = (
        Tokenizer.train([*TEXTS[:29], text], kind="words", vocab_size=60) for text in ("x \ud83d", "x ?")
    )
    assert found.fingerprint == expected.fingerprint


@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_decoding(kind: TokenizerKind, lowercase: bool) -> None:
    tokenizer = train(kind, lowercase=lowercase)
    text = "The quick  brown fox,\n(said No. 7): naïve café!"
    expected = text.lower() if lowercase else text
    decoded = tokenizer.decode(tokenizer.encode_batch([text])[0])
    if kind == "bpe":
        assert decoded == expected
    elif kind in ("bpe-characters", "unigram"):
        assert decoded == " ".join(expected.split())
    else:
        assert ("quick brown fox" in decoded) == (kind == "wordpiece")  # 127 words have no room for them
        assert "No" not in decoded if lowercase else "No" in decoded


@pytest.mark.slow
@settings(max_examples=100)
@given(st.text())
def test_bytes_decode_to_the_very_text(trained: dict[TokenizerKind, Tokenizer], text: str) -> None:
    tokenizer = trained["bpe"]
    assert tokenizer.decode(tokenizer.encode_batch([text])[0]) == text


def test_special_tokens_in_a_text_are_ordinary_characters(tokenizer: Tokenizer) -> None:
    text = "[MASK] a [CLS][SEP] b [PAD]"
    row = tokenizer.encode_batch([text])[0]
    assert not np.isin(row, [0, 2, 3, 4]).any()
    if tokenizer.kind == "bpe":
        assert tokenizer.decode(row) == text
    assert tokenizer.decode([2, 4, *tokenizer.encode_batch(["said"])[0], 3]).strip() == "said"
    assert "[MASK]" in tokenizer.decode([4], skip_special_tokens=False)


def test_special_tokens_in_the_training_text_are_not_learnt() -> None:
    for kind in KINDS:
        tokenizer = Tokenizer.train(
            ["[MASK] [MASK] [SEP]," + text for text in TEXTS], kind=kind, vocab_size=SIZES[kind] + 3
        )
        assert not np.isin(tokenizer.encode_batch(["[MASK] x [SEP]"])[0], [2, 3, 4]).any()


def test_word_starts(trained: dict[TokenizerKind, Tokenizer]) -> None:
    for kind, tokenizer in trained.items():
        row = tokenizer.encode_batch(["small spinning models"])[0]
        starts = int(tokenizer.word_starts[row].sum())
        assert starts + (kind == "bpe") == 3, kind  # in bytes the first word has no space before it
        assert tokenizer.word_starts[:5].all()


def test_save_load_and_pickle_keep_everything(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path / "deep" / "tok")
    assert sorted(p.name for p in (tmp_path / "deep" / "tok").iterdir()) == [
        "special_tokens_map.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    others = [
        Tokenizer.load(tmp_path / "deep" / "tok"),
        Tokenizer.load(tmp_path / "deep" / "tok" / "tokenizer.json"),
        pickle.loads(pickle.dumps(tokenizer)),
    ]
    for other in others:
        assert other.fingerprint == tokenizer.fingerprint
        assert (other.kind, other.vocab_size, other.mask_id) == (tokenizer.kind, tokenizer.vocab_size, 4)
        assert np.array_equal(other.word_starts, tokenizer.word_starts)
        assert np.array_equal(other.encode_batch(TEXTS[:1])[0], tokenizer.encode_batch(TEXTS[:1])[0])


def test_fingerprints_differ_between_tokenizers(trained: dict[TokenizerKind, Tokenizer], tmp_path: Path) -> None:
    others = [train("bpe", lowercase=True), Tokenizer.train(TEXTS, kind="bpe", vocab_size=400)]
    assert len({t.fingerprint for t in [*trained.values(), *others]}) == 7
    trained["bpe"].save(tmp_path)
    engine = Engine.from_file(str(tmp_path / "tokenizer.json"))
    engine.enable_truncation(17)
    engine.enable_padding(length=31)
    engine.save(str(tmp_path / "tokenizer.json"))
    cut = Tokenizer.load(tmp_path)
    assert cut.fingerprint == trained["bpe"].fingerprint
    assert len(cut.encode_batch([TEXTS[0]])[0]) > 31


@pytest.mark.parametrize("kind", KINDS)
def test_training_is_deterministic_across_processes(
    kind: TokenizerKind, trained: dict[TokenizerKind, Tokenizer]
) -> None:
    code = (
        "import sys, json; from homespun.text.tokenizer import Tokenizer; texts, kind, size = json.load(sys.stdin);"
        "print(Tokenizer.train(texts, kind=kind, vocab_size=size).fingerprint)"
    )
    given = json.dumps([TEXTS, kind, SIZES[kind]])
    prints = {
        subprocess.run([sys.executable, "-c", code], input=given, capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    }
    assert prints == {f"{trained[kind].fingerprint}\n"}


@pytest.mark.parametrize("kind", KINDS)
def test_training_mistakes(kind: TokenizerKind) -> None:
    with pytest.raises(UserError, match=r"[\d,]+ characters .*?(\d+) .* tokens") as caught:
        Tokenizer.train(TEXTS, kind=kind, vocab_size=50_000)
    allowed = int(str(caught.value).split(" characters give ")[1].split()[0])
    assert Tokenizer.train(TEXTS, kind=kind, vocab_size=min(allowed, SIZES[kind])).vocab_size <= allowed
    with pytest.raises(UserError, match="no text"):
        Tokenizer.train([], kind=kind, vocab_size=300)
    with pytest.raises(UserError, match="no text"):
        Tokenizer.train(["", ""], kind=kind, vocab_size=300)
    with pytest.raises(UserError, match="must exceed"):
        Tokenizer.train(TEXTS, kind=kind, vocab_size=5)
    if kind != "words":
        with pytest.raises(UserError, match="vocab_size=23"):
            Tokenizer.train(TEXTS, kind=kind, vocab_size=23)


def test_the_allowed_size_is_allowed() -> None:
    for kind in ("bpe", "bpe-characters", "wordpiece", "words"):
        with pytest.raises(UserError) as caught:
            Tokenizer.train(TEXTS, kind=kind, vocab_size=50_000)
        allowed = int(str(caught.value).split(" characters give ")[1].split()[0])
        assert Tokenizer.train(TEXTS, kind=kind, vocab_size=allowed).vocab_size == allowed


def test_an_unknown_kind() -> None:
    with pytest.raises(UserError, match="did you mean 'wordpiece'"):
        Tokenizer.train(TEXTS, kind="word-piece", vocab_size=300)


def test_errors_of_the_stream_pass_and_reading_stops_at_the_limit() -> None:
    def failing() -> Iterator[str]:
        yield TEXTS[0]
        raise UserError("a.csv, line 3: bad")

    with pytest.raises(UserError, match=r"a\.csv, line 3"):
        Tokenizer.train(failing(), kind="bpe", vocab_size=300)

    read = []

    def endless() -> Iterator[str]:
        while True:
            read.append(1)
            yield TEXTS[len(read) % 211]

    Tokenizer.train(endless(), kind="words", vocab_size=31, max_characters=10_007)
    assert len(read) < 100


# Files of other origins


def write(folder: Path, engine: Engine, config: dict[str, Any] | None = None) -> Path:
    folder.mkdir(exist_ok=True)
    engine.save(str(folder / "tokenizer.json"))
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def byte_level(special: list[str]) -> Engine:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    engine = Engine(models.BPE({token: i for i, token in enumerate(special + alphabet)}, []))
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    engine.add_special_tokens([AddedToken(token, special=True) for token in special])
    return engine


def test_roberta_like(tmp_path: Path) -> None:
    engine = byte_level(["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    bare = Tokenizer.load(write(tmp_path / "bare", engine))
    mask = {"content": "<mask>", "lstrip": True}
    converted = Tokenizer.load(
        write(tmp_path / "told", engine, {"cls_token": "<s>", "sep_token": "</s>", "mask_token": mask})
    )
    for tokenizer in (bare, converted):
        assert tokenizer.kind == "bpe"
        ids = (tokenizer.cls_id, tokenizer.pad_id, tokenizer.sep_id, tokenizer.unk_id, tokenizer.mask_id)
        assert ids == (0, 1, 2, 3, 4)
        assert tokenizer.special_mask.sum() == 5
        assert not np.isin(tokenizer.encode_batch(["<mask> <s>"])[0], range(5)).any()


def test_gpt2_like_lacks_roles_only_when_asked(tmp_path: Path) -> None:
    names = dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>")
    tokenizer = Tokenizer.load(write(tmp_path, byte_level(["<|endoftext|>"]), names))
    assert tokenizer.cls_id == tokenizer.sep_id == tokenizer.unk_id == 0
    with pytest.raises(UserError, match=r"mask.*<\|endoftext\|>.*mask_token"):
        _ = tokenizer.mask_id
    tokenizer.save(tmp_path / "again")
    assert Tokenizer.load(tmp_path / "again").sep_id == 0


@pytest.mark.parametrize(
    ("special", "named", "padding"),
    [
        (["<unk>", "<|endoftext|>"], {"eos_token": "<|endoftext|>"}, 1),
        (["<eos>", "<unk>"], {"unk_token": "<unk>"}, 0),
        (["<other>", "<unk>"], {"unk_token": "<unk>"}, 1),  # GPT's
        (["<eos>", "<pad>"], {"eos_token": "<eos>"}, 1),
    ],
)
def test_what_pads_where_nothing_is_named(
    special: list[str], named: dict[str, str], padding: int, tmp_path: Path
) -> None:
    tokenizer = Tokenizer.load(write(tmp_path, byte_level(special), named))
    assert tokenizer.pad_id == padding
    assert tokenizer.for_transformers().roles["pad"] == special[padding]


def test_a_tokenizer_without_any_end_has_no_padding(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(write(tmp_path, byte_level(["<other>"])))
    with pytest.raises(UserError, match="no pad token"):
        _ = tokenizer.pad_id


TEMPLATE = processors.TemplateProcessing(single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 2)])
ROBERTA = processors.RobertaProcessing(("</s>", 2), ("<s>", 1))
NAMES = {"cls_token": "<s>", "sep_token": "</s>"}
ENDS = {"bos_token": "<s>", "eos_token": "</s>"}


@pytest.mark.parametrize(
    ("template", "named", "single", "pair"),
    [
        (ROBERTA, NAMES, ([1], [2]), ([1], [2, 2], [2])),
        (TEMPLATE, NAMES, ([], [2]), ([], [2], [2])),
        (TEMPLATE, {}, ([], [2]), ([], [2], [2])),
        (None, NAMES, ([1], [2]), ([1], [2], [2])),  # as one that is made here
        (None, {}, ([1], [2]), ([1], [2], [2])),
        (None, ENDS, ([], []), ([], [], [])),  # GPT-2's, whatever its tokens are called
        (processors.ByteLevel(), ENDS, ([], []), ([], [], [])),
        (processors.ByteLevel(), NAMES, ([1], [2]), ([1], [2], [2])),
    ],
)
def test_template_is_read_or_made_of_cls_and_sep(
    template: Any, named: dict[str, str], single: Any, pair: Any, tmp_path: Path
) -> None:
    engine = byte_level(["<pad>", "<s>", "</s>"])
    if template is not None:
        engine.post_processor = template
    tokenizer = Tokenizer.load(write(tmp_path / "given", engine, named))
    tokenizer.save(tmp_path / "ours")
    converted = tokenizer.for_transformers()
    for again in (tokenizer, Tokenizer.load(tmp_path / "ours"), converted, converted.for_transformers()):
        assert (again.template, again.pair_template) == (single, pair)
    theirs = Engine.from_str(converted.content)
    one, two = (ids.tolist() for ids in tokenizer.encode_batch(["wool", "yarn is"]))
    assert theirs.encode("wool").ids == [*single[0], *one, *single[1]]
    assert theirs.encode("wool", "yarn is").ids == [*pair[0], *one, *pair[1], *two, *pair[2]]
    assert (converted.fingerprint == tokenizer.fingerprint) == (theirs.encode("wool").ids == engine.encode("wool").ids)


def test_t5_like(tmp_path: Path) -> None:
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.0), ("a", -3.0), ("▁a", -3.5)]
    engine = Engine(models.Unigram(pieces, unk_id=2))
    engine.pre_tokenizer = pre_tokenizers.Metaspace()
    engine.add_special_tokens(["<extra_id_0>", "<extra_id_1>"])
    tokenizer = Tokenizer.load(write(tmp_path, engine))
    assert (tokenizer.kind, tokenizer.vocab_size) == ("unigram", 8)
    assert (tokenizer.pad_id, tokenizer.sep_id, tokenizer.unk_id) == (0, 1, 2)
    assert tokenizer.special_mask.tolist() == [True, True, True, False, False, False, True, True]
    assert tokenizer.word_starts.tolist() == [True, True, True, True, False, True, True, True]
    with pytest.raises(UserError, match="no cls token"):
        _ = tokenizer.cls_id


def test_holes_in_the_ids_and_wide_ids(tmp_path: Path) -> None:
    engine = Engine(models.WordLevel({"[UNK]": 0, "a": 3, "b": 70_001}, unk_token="[UNK]"))
    engine.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = Tokenizer.load(write(tmp_path, engine))
    assert tokenizer.vocab_size == 70_002
    assert np.flatnonzero(~tokenizer.special_mask).tolist() == [3, 70_001]
    row = tokenizer.encode_batch(["b a"])[0]
    assert row.dtype == np.uint32
    assert row.tolist() == [70_001, 3]


def test_loading_mistakes(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        Tokenizer.load(tmp_path / "none")
    with pytest.raises(UserError, match=r"tokenizer\.json"):
        Tokenizer.load(tmp_path)
    for content in ("", "{", "[]", '{"model": 3}', "\x00\x01"):
        (tmp_path / "tokenizer.json").write_text(content)
        with pytest.raises(UserError, match=r"tokenizer\.json"):
            Tokenizer.load(tmp_path)
    write(tmp_path, byte_level(["<s>"]))
    (tmp_path / "tokenizer_config.json").write_text("{oops")
    with pytest.raises(UserError, match="JSON"):
        Tokenizer.load(tmp_path)


def test_transformers_opens_what_is_saved(tokenizer: Tokenizer, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer.save(tmp_path)
    text, other = TEXTS[3], TEXTS[5]
    ids, other_ids = (row.tolist() for row in tokenizer.encode_batch([text, other]))
    for opened in (
        transformers.AutoTokenizer.from_pretrained(str(tmp_path)),
        transformers.PreTrainedTokenizerFast.from_pretrained(str(tmp_path)),
    ):
        assert opened(text)["input_ids"] == [2, *ids, 3]
        pair = opened(text, other, return_token_type_ids=True)
        assert pair["input_ids"] == [2, *ids, 3, *other_ids, 3]
        assert pair["token_type_ids"] == [0] * (len(ids) + 2) + [1] * (len(other_ids) + 1)
        assert [opened.pad_token_id, opened.unk_token_id, opened.cls_token_id, opened.sep_token_id] == [0, 1, 2, 3]
        assert opened.mask_token == SPECIAL_TOKENS[4]
        assert opened.decode(ids, skip_special_tokens=True) == tokenizer.decode(ids)


def test_what_transformers_saves_opens_here(trained: dict[TokenizerKind, Tokenizer], tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    trained["wordpiece"].save(tmp_path / "a")
    transformers.AutoTokenizer.from_pretrained(str(tmp_path / "a")).save_pretrained(str(tmp_path / "b"))
    again = Tokenizer.load(tmp_path / "b")
    assert (again.pad_id, again.unk_id, again.cls_id, again.sep_id, again.mask_id) == (0, 1, 2, 3, 4)
    assert again.fingerprint == trained["wordpiece"].fingerprint


@pytest.mark.parametrize(
    "steps",
    [
        {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}},
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},
    ],
)
def test_panics_are_one_error(
    steps: dict[str, Any], trained: dict[TokenizerKind, Tokenizer], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    tree = json.loads(trained["words"].content) | steps
    (tmp_path / "tokenizer.json").write_text(json.dumps(tree))
    with pytest.raises(UserError, match="tokenizer"):
        Tokenizer.load(tmp_path).encode_batch(["a" * 40 + "!"] * 4)
    print("kept", file=sys.stderr)
    assert capfd.readouterr().err == "kept\n"
