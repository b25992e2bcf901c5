"""The token store: what goes in comes out, however long it took and however often it was killed."""

import dataclasses
import json
import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from made_up_texts import made_up

from homespun.data import corpus_build as store
from homespun.data import document_set, encoding, shards
from homespun.data.corpus import Corpus, random_keys
from homespun.data.corpus_build import build_corpus
from homespun.data.document_set import split_documents
from homespun.errors import UserError
from homespun.io.atomic import file_digest
from homespun.text.hashing import splitmix64
from homespun.text.sources import Document


class Killed(BaseException):
    pass


def killed_after(documents, count):
    yield from documents[:count]
    raise Killed


@pytest.fixture
def small_shards(monkeypatch):
    monkeypatch.setattr(store, "SHARD_TOKENS", 499)
    monkeypatch.setattr(encoding, "BATCH_CHARACTERS", 700)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_documents_come_back_in_order(tmp_path, tokenizer, small_shards):
    documents = made_up(101)
    corpus = build_corpus(documents, tokenizer, tmp_path / "c", workers=3)
    expected = tokenizer.encode_batch([d.text for d in documents])
    assert len(list((tmp_path / "c").glob("*.arrow"))) > 5
    assert len(corpus) == corpus.num_documents == 101
    assert corpus.num_tokens == sum(map(len, expected)) == corpus.lengths.sum()
    assert corpus.num_bytes == sum(len(d.text.encode()) for d in documents)
    assert corpus.num_words == sum(len(d.text.split()) for d in documents)
    counts = np.bincount(np.concatenate(expected), minlength=tokenizer.vocab_size)
    np.testing.assert_array_equal(corpus.counts(37), counts[37:])
    for i, ids in enumerate(expected):
        np.testing.assert_array_equal(corpus.tokens(i), ids)
        assert corpus.labels()[i] == documents[i].label
    assert corpus.labels() == [d.label for d in documents]
    assert json.loads((corpus.path / "corpus.json").read_text())["labels"] == {"a": 34, "b": 34}
    np.testing.assert_array_equal(corpus.lengths, [len(ids) for ids in expected])


def test_tokens_are_a_view_of_the_file(corpus_of):
    tokens = corpus_of(made_up(7)).tokens(3)
    assert tokens.dtype == np.uint16
    assert not tokens.flags.owndata
    assert not tokens.flags.writeable


@pytest.mark.parametrize("index", [-1, 7])
def test_there_is_no_document_outside(corpus_of, index):
    with pytest.raises(IndexError):
        corpus_of(made_up(7)).tokens(index)


def test_many_files_take_no_descriptors(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr(store, "SHARD_TOKENS", 1)
    before = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else None
    corpus = build_corpus(made_up(53), tokenizer, tmp_path / "c")
    if before is None:
        pytest.skip("no /proc to count descriptors in")
    assert len(corpus.shards) == 53
    assert len(os.listdir("/proc/self/fd")) < before + 5


def test_a_large_vocabulary_is_stored_in_32_bits(tmp_path, tokenizer):
    class Wide:
        fingerprint, kind, vocab_size = "wide", "words", 70_001

        def save(self, folder):
            folder.mkdir()

        def encode_batch(self, texts):
            return [np.array([70_000, len(text)], np.uint32) for text in texts]

    corpus = build_corpus([Document("abc"), Document("de")], Wide(), tmp_path / "c")
    assert corpus.tokens(0).tolist() == [70_000, 3]
    assert corpus.tokens(1).tolist() == [70_000, 2]


def test_the_store_is_small(tmp_path, tokenizer):
    """Two bytes a token, and at most ten a document for its offset, its label and whether it has one."""
    corpus = build_corpus(made_up(3001), tokenizer, tmp_path / "c")
    size = sum(p.stat().st_size for p in (tmp_path / "c").glob("*.arrow"))
    assert size < 2 * corpus.num_tokens + 10 * corpus.num_documents + 4096


def test_a_long_document_is_encoded_in_pieces_to_the_same_tokens(tmp_path, tokenizer, monkeypatch):
    text = "\n\n".join(d.text for d in made_up(113)) + "  and   spaces \t of all  kinds " * 20
    expected = tokenizer.encode_batch([text])[0]
    monkeypatch.setattr(encoding, "PIECE_CHARACTERS", 97)
    monkeypatch.setattr(encoding, "BATCH_CHARACTERS", 1009)
    seen = []
    encode = type(tokenizer).encode_batch
    monkeypatch.setattr(type(tokenizer), "encode_batch", lambda self, texts: seen.extend(texts) or encode(self, texts))
    corpus = build_corpus([Document(text), Document("x" * 1000), Document("next")], tokenizer, tmp_path / "c")
    assert max(map(len, seen)) <= 2 * 97
    np.testing.assert_array_equal(corpus.tokens(0), expected)
    assert corpus.num_words == len(text.split()) + 2
    assert tokenizer.decode(corpus.tokens(1)) == "x" * 1000
    assert tokenizer.decode(corpus.tokens(2)) == "next"


def test_joined_pieces_give_the_same_shard(tmp_path, monkeypatch):
    kept, files = [], []
    for limit in (10, 10**6):
        monkeypatch.setattr(shards, "_MAX_PIECES", limit)
        buffer = shards.ShardBuffer()
        for number in range(101):
            buffer.add([np.arange(number % 4, dtype=np.uint16), np.array([number], np.uint16)], None, sentences=True)
        kept.append(len(buffer.pieces))
        buffer.write(tmp_path, "shard", sentences=True)
        files.append((tmp_path / "shard").read_bytes())
    assert kept[0] < 10
    assert kept[1] == 202
    assert files[0] == files[1]


def test_sentence_ends_cut_a_document_into_its_sentences(corpus_of, tokenizer):
    corpus = corpus_of(["The market rose. Rates held steady! And fell?", "one line"], sentences=True)
    ends = corpus.sentence_ends(0)
    assert ends.dtype == np.uint32
    parts = [tokenizer.decode(part) for part in np.split(corpus.tokens(0), ends)]
    assert parts == ["The market rose.", " Rates held steady!", " And fell?", ""]
    assert corpus.sentence_ends(1).tolist() == [len(corpus.tokens(1))]


def test_sentences_are_asked_for_when_building(corpus_of):
    with pytest.raises(UserError, match=r"sentences=True"):
        corpus_of(made_up(3)).sentence_ends(0)


def test_documents_without_text_are_left_out(corpus_of):
    corpus = corpus_of(["", "the market", "", ""])
    assert corpus.num_documents == 1
    assert corpus.num_bytes == len("the market")


def test_lone_surrogates_do_not_stop_a_build(corpus_of, tokenizer):
    corpus = corpus_of([Document("the \ud800 market", "a \ud800")])
    assert tokenizer.decode(corpus.tokens(0)) == "the ? market"
    assert corpus.labels() == ["a ?"]


@pytest.mark.parametrize("documents", [[], [Document("")], [Document("")] * 5])
def test_no_text_is_no_corpus(tmp_path, tokenizer, documents):
    with pytest.raises(UserError, match="no text"):
        build_corpus(documents, tokenizer, tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_a_refused_input_does_not_block_the_next_build(tmp_path, tokenizer):
    def refused():
        yield Document("one text")
        raise UserError("line 2 is not JSON")

    with pytest.raises(UserError, match="line 2"):
        build_corpus(refused(), tokenizer, tmp_path / "c", inputs="digest of the file")
    assert list(tmp_path.iterdir()) == []
    corpus = build_corpus(made_up(3), tokenizer, tmp_path / "c", inputs="digest of the mended file")
    assert len(corpus) == 3


def test_progress_ends_at_the_total(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr(store, "PROGRESS_BYTES", 10_000)
    seen = []
    documents = made_up(401)
    corpus = build_corpus(documents, tokenizer, tmp_path / "c", progress=lambda b, d: seen.append((b, d)))
    assert seen == sorted(seen)
    assert seen[-1] == (corpus.num_bytes, 401)
    assert len(seen) > 2


# ---- killed and resumed


@pytest.mark.parametrize("killed_at", [0, 1, 37, 80, 100])
@pytest.mark.parametrize("sentences", [False, True])
def test_killed_and_resumed_is_never_interrupted(tmp_path, tokenizer, small_shards, killed_at, sentences):
    documents = [*made_up(83), Document(""), *made_up(17, seed=1)]
    build_corpus(documents, tokenizer, tmp_path / "whole", sentences=sentences)
    out = tmp_path / "killed"
    with pytest.raises(Killed):
        build_corpus(killed_after(documents, killed_at), tokenizer, out, sentences=sentences)
    with pytest.raises(UserError, match=r"half-built"):
        Corpus.open(out)
    read = []
    corpus = build_corpus((read.append(d) or d for d in documents), tokenizer, out, sentences=sentences)
    assert contents(out) == contents(tmp_path / "whole")
    assert corpus.num_documents == sum(1 for d in documents if d.text)


def test_what_was_done_is_not_done_again(tmp_path, tokenizer, monkeypatch, small_shards):
    documents = made_up(101)
    with pytest.raises(Killed):
        build_corpus(killed_after(documents, 90), tokenizer, tmp_path / "c", workers=1)
    done = json.loads((tmp_path / "c" / "building.jsonl").read_text().splitlines()[-1])["consumed"]
    assert done > 50
    encoded = []
    encode = type(tokenizer).encode_batch
    monkeypatch.setattr(type(tokenizer), "encode_batch", lambda self, t: encoded.extend(t) or encode(self, t))
    build_corpus(documents, tokenizer, tmp_path / "c")
    assert encoded == [d.text for d in documents[done:]]


def test_half_a_line_of_the_manifest_is_nothing(tmp_path, tokenizer, small_shards):
    documents = made_up(101)
    build_corpus(documents, tokenizer, tmp_path / "whole")
    with pytest.raises(Killed):
        build_corpus(killed_after(documents, 101), tokenizer, tmp_path / "c")
    manifest = tmp_path / "c" / "building.jsonl"
    manifest.write_bytes(manifest.read_bytes()[:-9])
    (tmp_path / "c" / ".tmp-11-tokens-00003.arrow").write_bytes(b"cut short")
    build_corpus(documents, tokenizer, tmp_path / "c")
    assert contents(tmp_path / "c") == contents(tmp_path / "whole")


@pytest.mark.parametrize(
    "line", ["3", "{}", '{"shard": {"name": 3}, "consumed": 5, "bytes": 5, "labels": {}}', "[" * 9999]
)
def test_an_altered_manifest_is_refused(tmp_path, tokenizer, small_shards, line):
    with pytest.raises(Killed):
        build_corpus(killed_after(made_up(101), 90), tokenizer, tmp_path / "c", workers=1)
    manifest = tmp_path / "c" / "building.jsonl"
    manifest.write_text(f"{manifest.read_text()}{line}\n")
    with pytest.raises(UserError, match=r"building\.jsonl was altered"):
        build_corpus(made_up(101), tokenizer, tmp_path / "c")


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"cut short")])
def test_a_damaged_shard_of_a_half_built_corpus_is_refused_before_the_build(tmp_path, tokenizer, small_shards, damage):
    with pytest.raises(Killed):
        build_corpus(killed_after(made_up(101), 90), tokenizer, tmp_path / "c", workers=1)
    damage(tmp_path / "c" / "tokens-00000.arrow")
    with pytest.raises(UserError, match=r"tokens-00000\.arrow"):
        build_corpus(iter(()), tokenizer, tmp_path / "c")


@pytest.mark.parametrize("change", ["inputs", "tokenizer", "sentences"])
def test_another_job_does_not_go_on_with_it(tmp_path, tokenizer, other_tokenizer, change):
    documents = made_up(11)
    with pytest.raises(Killed):
        build_corpus(killed_after(documents, 5), tokenizer, tmp_path / "c", inputs="a.txt")
    before = contents(tmp_path / "c")
    given = {"inputs": "a.txt", "sentences": False}
    given |= {"inputs": {"inputs": "b.txt"}, "sentences": {"sentences": True}}.get(change, {})
    with pytest.raises(UserError, match=rf"\({change} .*\)"):
        build_corpus(documents, other_tokenizer if change == "tokenizer" else tokenizer, tmp_path / "c", **given)
    assert contents(tmp_path / "c") == before


def test_error_shows_the_first_difference(tmp_path, tokenizer):
    described = "a.txt, " * 30
    with pytest.raises(Killed):
        build_corpus(killed_after(made_up(11), 5), tokenizer, tmp_path / "c", inputs=f"{described}b.txt")
    with pytest.raises(UserError, match=r"inputs .*b\.txt.*c\.txt"):
        build_corpus(made_up(11), tokenizer, tmp_path / "c", inputs=f"{described}c.txt")


def test_inputs_that_became_fewer_are_refused(tmp_path, tokenizer, small_shards):
    documents = made_up(101)
    with pytest.raises(Killed):
        build_corpus(killed_after(documents, 101), tokenizer, tmp_path / "c")
    with pytest.raises(UserError, match="fewer now"):
        build_corpus(documents[:3], tokenizer, tmp_path / "c")


@pytest.mark.parametrize("what", ["finished", "folder", "file"])
def test_nothing_is_written_over(tmp_path, tokenizer, what):
    out = tmp_path / "c"
    if what == "finished":
        build_corpus(made_up(3), tokenizer, out)
    elif what == "folder":
        out.mkdir()
        (out / "notes.txt").write_text("mine")
    else:
        out.write_text("mine")
    with pytest.raises(UserError, match=r"finished corpus|not empty|is a file"):
        build_corpus(made_up(3), tokenizer, out)


def test_the_environment_is_left_as_it_was(tmp_path, tokenizer, monkeypatch):
    monkeypatch.delenv("TOKENIZERS_PARALLELISM", raising=False)
    with pytest.raises(Killed):
        build_corpus(killed_after(made_up(3), 2), tokenizer, tmp_path / "c")
    assert "TOKENIZERS_PARALLELISM" not in os.environ

    def interrupt(done_bytes, done_documents):
        raise Killed

    monkeypatch.setattr(store, "PROGRESS_BYTES", 1)
    with pytest.raises(Killed) as kept:
        build_corpus(made_up(3), tokenizer, tmp_path / "c", progress=interrupt)
    assert "TOKENIZERS_PARALLELISM" not in os.environ, kept
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true")
    build_corpus(made_up(3), tokenizer, tmp_path / "d")
    assert os.environ["TOKENIZERS_PARALLELISM"] == "true"


def test_there_is_at_least_one_worker(tmp_path, tokenizer):
    with pytest.raises(UserError, match=r"workers=0 .*1 or more"):
        build_corpus(made_up(3), tokenizer, tmp_path / "c", workers=0)
    assert not (tmp_path / "c").exists()


# ---- opening


def test_another_tokenizer_is_an_error_that_names_both(tmp_path, tokenizer, other_tokenizer):
    build_corpus(made_up(7), tokenizer, tmp_path / "c")
    assert Corpus.open(tmp_path / "c", tokenizer=tokenizer).tokenizer.fingerprint == tokenizer.fingerprint
    with pytest.raises(UserError) as error:
        Corpus.open(tmp_path / "c", tokenizer=other_tokenizer)
    for one in (tokenizer, other_tokenizer):
        assert one.fingerprint[:12] in str(error.value)
        assert f"({one.kind}, {one.vocab_size} tokens)" in str(error.value)


def test_a_tokenizer_that_was_exchanged_is_noticed(tmp_path, tokenizer, other_tokenizer):
    build_corpus(made_up(7), tokenizer, tmp_path / "c")
    other_tokenizer.save(tmp_path / "c" / "tokenizer")
    with pytest.raises(UserError, match="was built with"):
        _ = Corpus.open(tmp_path / "c").tokenizer


def test_a_corpus_travels_as_its_path(corpus_of):
    corpus = corpus_of(made_up(7))
    sent = pickle.dumps(corpus)
    assert len(sent) < 500
    np.testing.assert_array_equal(pickle.loads(sent).tokens(3), corpus.tokens(3))


def test_a_folder_that_moved_still_opens(tmp_path, corpus_of):
    corpus = corpus_of(made_up(7))
    tokens = corpus.tokens(3).tolist()
    shutil.move(corpus.path, tmp_path / "elsewhere")
    assert Corpus.open(tmp_path / "elsewhere").tokens(3).tolist() == tokens


@pytest.mark.parametrize("damage", ["cut", "grown", "gone", "garbage"])
def test_a_damaged_shard_does_not_open(corpus_of, damage):
    path = corpus_of(made_up(7)).path / "tokens-00000.arrow"
    data = path.read_bytes()
    path.unlink()
    if damage != "gone":
        path.write_bytes({"cut": data[:-1], "grown": data + b"x", "garbage": bytes(len(data))}[damage])
    with pytest.raises(UserError, match=r"cut short or altered|missing|altered"):
        Corpus.open(path.parent)


@pytest.mark.parametrize(
    ("key", "value"),
    [("documents", 8), ("documents", None), ("shards", 2), ("words", -1), ("shards_checksum", "0"), ("vocab_size", 0)],
)
def test_a_description_with_wrong_values_does_not_open(corpus_of, key, value):
    path = corpus_of(made_up(7)).path / "corpus.json"
    tree = json.loads(path.read_text())
    next(part for part in (tree, tree["tokenizer"]) if key in part)[key] = value
    path.write_text(json.dumps(tree))
    with pytest.raises(UserError, match=r"corpus\.json is incomplete or altered"):
        Corpus.open(path.parent)


@pytest.mark.parametrize(
    ("key", "array"),
    [
        ("size", pa.array(["7"])),
        ("size", pa.array([-1])),
        ("size", pa.array([None], pa.int64())),
        ("name", pa.array([3])),
        ("name", pa.array(["tokens\0.arrow"])),
        ("name", pa.array(["../outside.arrow"])),
        ("tokens", pa.array([1.5])),
    ],
)
def test_a_list_of_shards_with_wrong_values_does_not_open(tmp_path, corpus_of, key, array):
    corpus = corpus_of(made_up(7))
    shutil.copy(corpus.path / "tokens-00000.arrow", tmp_path / "outside.arrow")
    write_columns(corpus.path, {**columns(corpus.path), key: array})
    with pytest.raises(UserError, match=r"shards\.arrow cannot be read: it was altered"):
        Corpus.open(corpus.path)


@pytest.mark.parametrize("damage", ["cut", "gone", "garbage", "changed"])
def test_a_damaged_list_of_shards_does_not_open(corpus_of, damage):
    corpus = corpus_of(made_up(7))
    path = corpus.path / "shards.arrow"
    data = path.read_bytes()
    checksum = corpus.records[0].checksum.encode()
    content = {"cut": data[:-1], "garbage": bytes(len(data)), "changed": data.replace(checksum, checksum[::-1])}
    path.unlink()
    if damage in content:
        path.write_bytes(content[damage])
    with pytest.raises(UserError, match=r"altered|missing"):
        Corpus.open(corpus.path)


def test_a_corpus_of_the_first_format_opens(corpus_of):
    corpus = corpus_of(made_up(7))
    path = corpus.path / "corpus.json"
    tree = json.loads(path.read_text()) | {"version": 1, "shards": [dataclasses.asdict(corpus.records[0])]}
    del tree["shards_checksum"], tree["words"]
    path.write_text(json.dumps(tree))
    (corpus.path / "shards.arrow").unlink()
    old = Corpus.open(corpus.path)
    np.testing.assert_array_equal(old.tokens(5), corpus.tokens(5))
    assert (list(old.records), old.num_words) == (list(corpus.records), None)
    for altered in ([], [tree["shards"][0] | {"tokens": 10**40}]):
        path.write_text(json.dumps(tree | {"shards": altered}))
        with pytest.raises(UserError, match=r"corpus\.json is incomplete or altered"):
            Corpus.open(corpus.path)


def columns(folder: Path) -> dict[str, pa.Array]:
    """Columns of the list of shards."""
    batch = pa.ipc.open_file((folder / "shards.arrow").read_bytes()).get_batch(0)
    return dict(zip(batch.schema.names, batch.columns, strict=True))


def write_columns(folder: Path, columns: dict[str, pa.Array]) -> None:
    """Write the list of shards, and its checksum."""
    batch = pa.record_batch(columns)
    with pa.ipc.new_file(folder / "shards.arrow", batch.schema) as writer:
        writer.write_batch(batch)
    tree = json.loads((folder / "corpus.json").read_text())
    tree["shards_checksum"] = file_digest(folder / "shards.arrow")
    (folder / "corpus.json").write_text(json.dumps(tree))


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"version": 1}', '{"version": 2}'])
def test_a_damaged_description_does_not_open(corpus_of, content):
    corpus = corpus_of(made_up(7))
    (corpus.path / "corpus.json").write_text(content)
    with pytest.raises(UserError, match="build"):
        Corpus.open(corpus.path)


def test_what_is_no_corpus_is_named(tmp_path):
    with pytest.raises(UserError, match="no corpus at"):
        Corpus.open(tmp_path / "nothing")
    with pytest.raises(UserError, match=r"corpus\.json"):
        Corpus.open(tmp_path)


# ---- split


@pytest.mark.parametrize(("count", "share", "expected"), [(2, 0.01, 1), (2, 0.99, 1), (101, 0.1, 10), (101, 0.001, 1)])
def test_split_is_a_partition(corpus_of, count, share, expected):
    corpus = corpus_of(made_up(count))
    train, validation = corpus.split(share, seed=5)
    assert len(validation) == expected
    hashes = splitmix64(np.arange(count, dtype=np.uint64) ^ random_keys(5)[0])
    np.testing.assert_array_equal(validation, np.sort(np.argsort(hashes)[:expected]))
    np.testing.assert_array_equal(train, np.sort(np.argsort(hashes)[expected:]))
    np.testing.assert_array_equal(list(train.indices(count // 2)), train.between(count // 2, count))
    assert corpus.count_tokens(train) == corpus.lengths[train].sum()


def test_split_of_many_documents_is_a_partition_that_takes_no_memory(monkeypatch):
    monkeypatch.setattr(document_set, "_CHUNK", 64)
    training, held_out = split_documents(5000, 49, key=3)
    indices = np.concatenate([training, held_out])
    assert (len(training), len(held_out)) == (4951, 49)
    np.testing.assert_array_equal(np.sort(indices), np.arange(5000))
    assert not vars(training).keys() - {field.name for field in dataclasses.fields(training)}


@pytest.mark.parametrize("share", [0, 1, -0.1, 1.5])
def test_split_needs_a_share(corpus_of, share):
    with pytest.raises(UserError, match=r" 0 .* 1"):
        corpus_of(made_up(7)).split(share, seed=0)


def test_one_document_cannot_be_split(corpus_of):
    with pytest.raises(UserError, match="one document"):
        corpus_of(made_up(1)).split(0.5, seed=0)


@pytest.mark.data
def test_english_takes_at_most_six_tenths_of_its_bytes(tmp_path):
    """On real news, with a vocabulary that is small for it."""
    data = Path(__file__).resolve().parents[3] / "shared" / "data" / "ag_news" / "train.csv.gz"
    if not data.exists():
        pytest.skip("needs ../shared/data/ag_news")
    from itertools import islice

    from homespun.text.sources import read_documents
    from homespun.text.tokenizer import Tokenizer

    columns = ["label", "title", "text", "source"]
    documents = list(islice(read_documents([str(data)], text_field="text", columns=columns), 4000))
    tokenizer = Tokenizer.train((d.text for d in documents), kind="bpe", vocab_size=8000)
    corpus = build_corpus(documents, tokenizer, tmp_path / "c")
    size = sum(p.stat().st_size for p in corpus.path.rglob("*.arrow"))
    assert size <= 0.6 * corpus.num_bytes
