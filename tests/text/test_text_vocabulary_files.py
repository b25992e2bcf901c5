"""Vocabularies of before tokenizer.json, read as transformers reads them, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from homespun.errors import UserError
from homespun.text.tokenizer import Tokenizer

TEXTS = ["The quick brown fox, who's café naïve; jumps 12.5 times.", "the LAZY dog  sleeps\n over 中文 there"] * 7


def files_of(folder: Path, kind: Any, **config: Any) -> Tokenizer:
    """The older files of a trained tokenizer."""
    folder.mkdir(exist_ok=True)
    trained = Tokenizer.train(TEXTS, kind=kind, vocab_size=120 if kind == "wordpiece" else 285)
    trained.save(folder / "whole")
    tree = json.loads((folder / "whole" / "tokenizer.json").read_text())
    tokens = sorted(tree["model"]["vocab"], key=tree["model"]["vocab"].__getitem__)
    if kind == "wordpiece":
        (folder / "vocab.txt").write_text("\n".join(tokens) + "\n", encoding="utf-8")
    else:
        (folder / "vocab.json").write_text(json.dumps(tree["model"]["vocab"]))
        merges = [" ".join(pair) for pair in tree["model"]["merges"]]
        (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]) + "\n", encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return trained


def refused(folder: Path) -> str:
    with pytest.raises(UserError) as caught:
        Tokenizer.load(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("config", [{}, {"do_lower_case": False}, {"do_lower_case": False, "strip_accents": True}])
def test_wordpiece_as_transformers_reads_it(config: dict[str, Any], tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    files_of(tmp_path / "old", "wordpiece", **config)
    ours = Tokenizer.load(tmp_path / "old")
    assert (ours.kind, ours.pad_id, ours.cls_id, ours.sep_id, ours.mask_id) == ("wordpiece", 0, 2, 3, 4)
    theirs = transformers.BertTokenizer.from_pretrained(tmp_path / "old")
    found = [ids.tolist() for ids in ours.encode_batch(TEXTS[:2])]
    assert found == [theirs(text, add_special_tokens=False)["input_ids"] for text in TEXTS[:2]]
    ours.save(tmp_path / "new")
    exported = transformers.AutoTokenizer.from_pretrained(tmp_path / "new")
    assert exported(*TEXTS[:2])["input_ids"] == theirs(*TEXTS[:2])["input_ids"]
    assert Tokenizer.load(tmp_path / "new").fingerprint == ours.fingerprint


@pytest.mark.parametrize("config", [{}, {"do_lower_case": False}])
def test_prophetnets_words_as_transformers_reads_them(config: dict[str, Any], tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    files_of(tmp_path / "old", "wordpiece")
    words = (tmp_path / "old" / "vocab.txt").read_text(encoding="utf-8").split("\n")[:-1]
    released = [*words[:2], "[X_SEP]", *words[2:]]  # as the released one, with a [CLS] that goes around nothing
    (tmp_path / "words").write_text("\n".join(released) + "\n", encoding="utf-8")
    theirs = transformers.ProphetNetTokenizer(str(tmp_path / "words"), **config)
    theirs.save_pretrained(tmp_path / "theirs")
    ours = Tokenizer.load(tmp_path / "theirs")
    ids = [found.tolist() for found in ours.encode_batch(TEXTS[:2])]
    assert ids == [theirs(text, add_special_tokens=False)["input_ids"] for text in TEXTS[:2]]
    assert (ours.kind, ours.pad_id, ours.sep_id, ours.mask_id) == ("wordpiece", 0, 4, 5)
    assert ours.template == ([], [4])
    assert ours.special_mask[2]
    ours.save(tmp_path / "new")
    assert Tokenizer.load(tmp_path / "new").fingerprint == ours.fingerprint
    exported = transformers.AutoTokenizer.from_pretrained(tmp_path / "new")
    for texts in (TEXTS[:1], TEXTS[:2]):
        assert exported(*texts)["input_ids"] == theirs(*texts)["input_ids"]
    assert exported.decode([*ids[0], 2, 4], skip_special_tokens=True) == ours.decode([*ids[0], 2, 4])


def test_byte_pairs_as_transformers_reads_them(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    names |= {"bos_token": "[CLS]", "eos_token": "[SEP]", "mask_token": "[MASK]"}
    trained = files_of(tmp_path / "old", "bpe", **names)
    ours = Tokenizer.load(tmp_path / "old")
    assert (ours.kind, ours.pad_id, ours.mask_id, ours.vocab_size) == ("bpe", 0, 4, trained.vocab_size)
    theirs = transformers.RobertaTokenizer.from_pretrained(tmp_path / "old")
    ids = [found.tolist() for found in ours.encode_batch(TEXTS[:2])]
    assert ids == [theirs(text, add_special_tokens=False)["input_ids"] for text in TEXTS[:2]]
    assert ids == [found.tolist() for found in trained.encode_batch(TEXTS[:2])]
    assert ours.decode(ids[1]) == TEXTS[1]
    ours.save(tmp_path / "new")
    exported = transformers.AutoTokenizer.from_pretrained(tmp_path / "new")
    assert exported(*TEXTS[:2])["input_ids"] == theirs(*TEXTS[:2])["input_ids"]


def test_what_is_refused_of_a_word_list(tmp_path: Path) -> None:
    files_of(tmp_path, "wordpiece")
    tokens = (tmp_path / "vocab.txt").read_text(encoding="utf-8").split("\n")[:-1]
    (tmp_path / "vocab.txt").write_text("\n".join([*tokens, tokens[31]]), encoding="utf-8")
    assert f"vocab.txt has {tokens[31]!r} twice" in refused(tmp_path)
    (tmp_path / "vocab.txt").write_text("\n".join(tokens[5:]), encoding="utf-8")
    assert "no unknown token '[UNK]'" in refused(tmp_path)
    (tmp_path / "vocab.txt").write_bytes(b"\xff\xfe\x00")
    assert "cannot be read" in refused(tmp_path)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ('{"unk_token": ["x"]}', "no unknown token ['x']"),
        ('{"unk_token": {"content": ["x"]}}', "no unknown token ['x']"),
        ('{"strip_accents": ["x"]}', "must be true, false or null"),
        ("[" * 100_000, "tokenizer_config.json"),
        ("{", "tokenizer_config.json"),
    ],
)
def test_rejected_settings_of_a_word_list(config: str, words: str, tmp_path: Path) -> None:
    files_of(tmp_path, "wordpiece")
    (tmp_path / "tokenizer_config.json").write_text(config)
    assert words in refused(tmp_path)


def test_a_name_that_cannot_go_around_texts(tmp_path: Path) -> None:
    files_of(tmp_path, "wordpiece", cls_token="a:b")
    words = (tmp_path / "vocab.txt").read_text(encoding="utf-8")
    (tmp_path / "vocab.txt").write_text(f"{words}a:b\n", encoding="utf-8")
    assert "'a:b' and '[SEP]' cannot be special" in refused(tmp_path)


@pytest.mark.parametrize(
    ("vocabulary", "merges", "words"),
    [
        ('{"a": 0, "b": 1, "a": 2}', "", "has 'a' twice"),
        ('{"a": 0, "b": 0}', "", "'a' and 'b'"),
        ('{"a": 0, "b</w>": 1}', "", "byte-level vocabulary"),
        ('["a"]', "", "tokens to ids"),
        ("{", "", "cannot be read as JSON"),
        ("[" * 100_000, "", "cannot be read as JSON"),
        ('{"a": ' + "7" * 5000 + "}", "", "cannot be read as JSON"),
        ('{"a": -1}', "", "has 'a' with id -1"),
        (f'{{"a": {2**40}}}', "", f"has 'a' with id {2**40}"),
        (None, "one", "'one' is not a pair"),
        (None, "never there", "fit vocab.json"),
    ],
)
def test_what_is_refused_of_byte_pairs(vocabulary: str | None, merges: str, words: str, tmp_path: Path) -> None:
    files_of(tmp_path, "bpe")
    if vocabulary is not None:
        (tmp_path / "vocab.json").write_text(vocabulary)
    (tmp_path / "merges.txt").write_text(merges)
    assert words in refused(tmp_path)


def test_a_tokenizer_json_with_an_entry_twice_is_refused(tmp_path: Path) -> None:
    trained = Tokenizer.train(TEXTS, kind="wordpiece", vocab_size=120)
    trained.save(tmp_path)
    path = tmp_path / "tokenizer.json"
    content = path.read_text(encoding="utf-8")
    assert '"quick"' not in content.split('"vocab"')[0]
    token = json.loads(content)["model"]["vocab"]
    name = next(name for name, number in token.items() if number == 60)
    path.write_text(content.replace(f'"{name}": 60', f'"{name}": 60, "{name}": 61'), encoding="utf-8")
    assert f"has {name!r} twice" in refused(tmp_path)
    path.write_text(content.replace(f'"{name}": 60', f'"{name}": 59'), encoding="utf-8")
    assert "the same id, 59" in refused(tmp_path)
    pieces = Tokenizer.train(TEXTS, kind="unigram", vocab_size=47)
    pieces.save(tmp_path)
    tree = json.loads(path.read_text(encoding="utf-8"))
    tree["model"]["vocab"].append(tree["model"]["vocab"][31])
    path.write_text(json.dumps(tree), encoding="utf-8")
    assert "twice" in refused(tmp_path)


@pytest.mark.parametrize(
    ("added", "words"),
    [
        ([(47, "<x>"), (47, "<y>")], "added token '<y>'"),
        ([(47, "<x>"), (48, "<x>")], "has '<x>' twice"),
        ([(47, "<x>"), (47, "<x>")], "has '<x>' twice"),
        ([(31, "<x>")], "added token '<x>'"),
        ([(31, "[MASK]")], "added token '[MASK]'"),
        ([(47, "<x>"), (49, "<y>")], "added token '<y>'"),
    ],
)
@pytest.mark.parametrize("kind", ["unigram", "wordpiece"])
def test_added_tokens_whose_numbers_do_not_fit(
    kind: Any, added: list[tuple[int, str]], words: str, tmp_path: Path
) -> None:
    Tokenizer.train(TEXTS, kind=kind, vocab_size=47 if kind == "unigram" else 120).save(tmp_path)
    path = tmp_path / "tokenizer.json"
    tree = json.loads(path.read_text(encoding="utf-8"))
    if kind == "wordpiece":
        tree["model"]["vocab"] = {token: n for token, n in tree["model"]["vocab"].items() if n < 47}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    others = [token for token in tree["added_tokens"] if token["content"] not in dict(map(reversed, added))]
    tree["added_tokens"] = [*others, *({"id": number, "content": token} | flags for number, token in added)]
    path.write_text(json.dumps(tree), encoding="utf-8")
    assert words in refused(tmp_path)
