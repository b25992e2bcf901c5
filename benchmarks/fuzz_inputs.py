"""Inputs of `benchmarks.fuzz`: valid files of each format, and their mutations.

Tree formats (YAML, JSON, the header of safetensors) are mutated as trees, so that most mutations pass the parser; one
in four is also mutated as bytes.
"""

from __future__ import annotations

import bz2
import dataclasses
import gzip
import io
import json
import lzma
import random
import shutil
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.fuzz_mutations import ESCAPES, PAYLOAD, YAML_PAYLOAD, mutate_bytes, mutate_tree

Words = list[str]  # a command line
Format = Callable[[random.Random, Path, Path], Words]  # random numbers, seeds, folder for the input


def _text(rng: random.Random, tree: Any) -> bytes:
    """Return JSON of a mutated tree, sometimes also mutated as bytes."""
    content = json.dumps(mutate_tree(rng, tree)).encode()
    return mutate_bytes(rng, content) if rng.random() < 0.25 else content


def _build(source: Path, seeds: Path) -> Words:
    return ["corpus", "build", "--input", str(source), "--tokenizer", str(seeds / "tokenizer"), "--out", "out"]


# Recipes


def recipe(rng: random.Random, seeds: Path, folder: Path) -> Words:
    """A recipe."""
    import yaml

    trees = json.loads((seeds / "recipes.json").read_text())
    tree = mutate_tree(rng, trees[rng.choice(sorted(trees))])
    text = yaml.safe_dump(tree, allow_unicode=rng.random() < 0.5, default_flow_style=rng.random() < 0.5)
    if rng.random() < 0.3:
        lines = text.split("\n")
        lines.insert(
            rng.randrange(len(lines) + 1),
            rng.choice(
                [
                    *("a: 2020-99-99", "a: !!int x", f"a: {'1' * 6000}", "a: &a [*a]", "[" * 20_000, "a: 1:99:99.5e3"),
                    *(
                        "{a: " * 5000 + "1" + "}" * 5000,
                        "kind: [pretrain]",
                        f"a: {YAML_PAYLOAD}",
                        "? [a]\n: b",
                        "a: =",
                        "<<: 3",
                    ),
                    "\n".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9 if n else 'x' * 9)}]" for n in range(9)),
                    *("!!bool x: 1", "a: !!binary x", "%YAML 9.9", "--- x", "a: *b", "\t- x", f'"{ESCAPES}": 1'),
                ]
            ),
        )
        text = "\n".join(lines)
    content = text.encode("utf-8", "surrogatepass")
    (folder / "r.yaml").write_bytes(mutate_bytes(rng, content) if rng.random() < 0.2 else content)
    return ["recipes", "show", "r.yaml"]


# Texts


def _records(rng: random.Random) -> list[dict[str, Any]]:
    return [{"text": f"text {n} of words", "label": rng.choice("abc"), "n": n} for n in range(rng.randrange(1, 9))]


def json_records(rng: random.Random, seeds: Path, folder: Path) -> Words:
    """JSON records."""
    records: Any = _records(rng)
    (folder / "t.json").write_bytes(_text(rng, {"data": records} if rng.random() < 0.3 else records))
    return _build(folder / "t.json", seeds)


def jsonl(rng: random.Random, seeds: Path, folder: Path) -> Words:
    """JSON lines."""
    lines = [_text(rng, record) if rng.random() < 0.3 else json.dumps(record).encode() for record in _records(rng)]
    (folder / "t.jsonl").write_bytes(b"\n".join(lines))
    return _build(folder / "t.jsonl", seeds)


def csv(rng: random.Random, seeds: Path, folder: Path) -> Words:
    """CSV and TSV."""
    separator = rng.choice(",;\t|")
    rows = [["text", "label", "n"], *([r["text"], r["label"], str(r["n"])] for r in _records(rng))]
    for _ in range(rng.choice([0, 1, 3])):
        row = rng.choice(rows)
        value = rng.choice([ESCAPES, '"', '""x', "x" * 5000, "", "a\nb", "\0", "\r", separator])
        row[rng.randrange(len(row))] = value
    content = "\n".join(separator.join(row) for row in rows).encode(
        rng.choice(["utf-8", "utf-16", "utf-32", "utf-16-le"])
    )
    path = folder / rng.choice(["t.csv", "t.tsv", "t.conll", "t.txt"])
    path.write_bytes(mutate_bytes(rng, content) if rng.random() < 0.6 else content)
    return [*_build(path, seeds), *rng.choice([[], ["--label-field", "label"], ["--encoding", "utf-16"]])]


def parquet(rng: random.Random, seeds: Path, folder: Path) -> Words:
    """Parquet."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({"text": [f"text {n}" for n in range(50)], "n": list(range(50))})
    stream = io.BytesIO()
    pq.write_table(table, stream, compression=rng.choice(["NONE", "ZSTD", "SNAPPY"]), row_group_size=10)
    (folder / "t.parquet").write_bytes(mutate_bytes(rng, stream.getvalue()))
    return _build(folder / "t.parquet", seeds)


# Archives


def zip_archive(rng: random.Random, seeds: Path, folder: Path) -> Words:
    """Zip archives."""
    stream = io.BytesIO()
    with zipfile.ZipFile(
        stream, "w", rng.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2])
    ) as archive:
        for n in range(rng.randrange(1, 5)):
            name = rng.choice(
                [f"a{n}.txt", f"../../a{n}.txt", f"/tmp/a{n}.txt", f"{ESCAPES}{n}.csv", f"{n}.jsonl.gz", f"{n}.zip"]
            )
            archive.writestr(name, rng.choice([b"text of words", b"text\nword", b"\0" * 1_000_000, b"a " * 300_000]))
    content = stream.getvalue()
    (folder / "t.zip").write_bytes(mutate_bytes(rng, content) if rng.random() < 0.7 else content)
    return _build(folder / "t.zip", seeds)


def tar_archive(rng: random.Random, seeds: Path, folder: Path) -> Words:
    """Tar archives, also compressed."""
    stream = io.BytesIO()
    form = rng.choice([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
    with tarfile.open(fileobj=stream, mode="w", format=form) as archive:
        for n in range(rng.randrange(1, 5)):
            info = tarfile.TarInfo(
                rng.choice([f"a{n}.txt", "../a.txt", "/tmp/a.csv", f"{ESCAPES}.txt", "x" * 300 + ".txt"])
            )
            info.type = rng.choice([tarfile.REGTYPE] * 4 + [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
            info.linkname = "/etc/passwd"
            body = b"text of words " * rng.randrange(100)
            info.size = len(body) if info.isfile() else 0
            archive.addfile(info, io.BytesIO(body))
    content = stream.getvalue()
    content = mutate_bytes(rng, content) if rng.random() < 0.7 else content
    suffix = rng.choice([".tar", ".tar.gz", ".tar.xz", ".tar.zst", ".tgz"])
    (folder / f"t{suffix}").write_bytes(_compress(content, suffix))
    return _build(folder / f"t{suffix}", seeds)


def compressed(rng: random.Random, seeds: Path, folder: Path) -> Words:
    """Compressed texts: gz, bz2, xz and zst."""
    suffix = rng.choice([".gz", ".bz2", ".xz", ".zst"])
    content = _compress(rng.choice([b"text of words\n" * 50, b"\0" * 3_000_000, b"a " * 500_000]), suffix)
    for _ in range(rng.choice([0, 0, 1])):
        content = _compress(content, suffix)
        suffix *= 2
    path = folder / f"t.txt{suffix}"
    path.write_bytes(mutate_bytes(rng, content) if rng.random() < 0.8 else content)
    return _build(path, seeds)


def _compress(content: bytes, suffix: str) -> bytes:
    import zstandard

    if suffix.endswith("gz"):
        return gzip.compress(content)
    if suffix.endswith(".xz"):
        return lzma.compress(content, preset=0)
    if suffix.endswith(".bz2"):
        return bz2.compress(content)
    return zstandard.ZstdCompressor().compress(content) if suffix.endswith(".zst") else content


# Tokenizers


def tokenizer_json(rng: random.Random, seeds: Path, folder: Path) -> Words:
    """tokenizer.json."""
    tree = json.loads((seeds / rng.choice(["tokenizer", "unigram", "bpe"]) / "tokenizer.json").read_text())
    if rng.random() < 0.3:
        pattern = rng.choice(["(a+)+$", "(a|a)*$", "(", "a{9999}{9999}", "(?<=a+)", "\\p{X}", "a*a*a*a*b", "", "(?R)"])
        behavior = rng.choice(["Isolated", "Removed", "MergedWithNext", "Contiguous"])
        split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": rng.random() < 0.5}
        tree["pre_tokenizer"] = split
    if rng.random() < 0.15:
        table = rng.randbytes(rng.choice([3, 8, 400]))
        import base64

        tree["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(table).decode()}
    path = folder / "tokenizer"
    path.mkdir()
    (path / "tokenizer.json").write_bytes(_text(rng, tree) if rng.random() < 0.8 else json.dumps(tree).encode())
    if rng.random() < 0.2:
        config = {"pad_token": "[PAD]", "cls_token": {"content": "[CLS]"}, "bos_token": None}
        (path / "tokenizer_config.json").write_bytes(_text(rng, config))
    return _encode_with(path, folder)


def _encode_with(tokenizer: Path, folder: Path) -> Words:
    """Encode texts that are difficult for regular expressions and character tables."""
    (folder / "t.txt").write_text("text of words e\u0301 \u00e9 \U0001f600 [UNK] </s> \u0e01\u0e33 " + "a" * 40 + "!")
    return ["corpus", "build", "--input", "t.txt", "--tokenizer", str(tokenizer), "--out", "out"]


def vocabulary_files(rng: random.Random, seeds: Path, folder: Path) -> Words:
    """vocab.txt, or vocab.json with merges.txt."""
    path = folder / "tokenizer"
    shutil.copytree(seeds / rng.choice(["vocabulary", "merges"]), path)
    file = path / rng.choice(sorted(entry.name for entry in path.iterdir()))
    content = file.read_bytes()
    if file.suffix == ".json" and rng.random() < 0.6:
        file.write_bytes(_text(rng, json.loads(content)))
    else:
        file.write_bytes(mutate_bytes(rng, content))
    return _encode_with(path, folder)


def sentencepiece(rng: random.Random, seeds: Path, folder: Path) -> Words:
    """SentencePiece models."""
    path = folder / "tokenizer"
    path.mkdir()
    content = (seeds / rng.choice(["unigram.model", "bpe.model"])).read_bytes()
    (path / "spiece.model").write_bytes(mutate_bytes(rng, content) if rng.random() < 0.8 else content)
    config: Any = {
        "tokenizer_class": rng.choice(["T5Tokenizer", "AlbertTokenizer", "PegasusTokenizer", "DebertaV2Tokenizer"])
    }
    config |= {"extra_ids": 10, "added_tokens_decoder": {"0": {"content": "<pad>"}}, "mask_token": "<mask>"}
    (path / "tokenizer_config.json").write_bytes(
        _text(rng, config) if rng.random() < 0.6 else json.dumps(config).encode()
    )
    return _encode_with(path, folder)


# Models


def _convert(path: Path) -> Words:
    return ["convert", str(path), "--out", "out"]


def safetensors(rng: random.Random, seeds: Path, folder: Path) -> Words:
    """Weights in safetensors: header and tensors."""
    path = folder / "model"
    shutil.copytree(seeds / "bert", path)
    file = path / "model.safetensors"
    content = file.read_bytes()
    size = struct.unpack("<Q", content[:8])[0]
    if rng.random() < 0.7:
        header = _text(rng, json.loads(content[8 : 8 + size]))
        length = len(header) if rng.random() < 0.9 else rng.choice([0, 1, 2**31, 2**63, len(content)])
        content = struct.pack("<Q", length) + header + content[8 + size :]
    else:
        content = mutate_bytes(rng, content)
    file.write_bytes(content)
    return _convert(path)


def config_json(rng: random.Random, seeds: Path, folder: Path) -> Words:
    """config.json of each family; of BERT with all of its weights."""
    path = folder / "model"
    shutil.copytree(seeds / "bert", path)
    if rng.random() < 0.7:
        tree = json.loads((seeds / "configs.json").read_text())
        tree = tree[rng.choice(sorted(tree))]
    else:
        tree = json.loads((path / "config.json").read_text())
    (path / "config.json").write_bytes(_text(rng, tree))
    return _convert(path)


class _Executed:
    """Object that writes a file when unpickled."""

    def __reduce__(self) -> tuple[object, ...]:
        return eval, (PAYLOAD,)


def torch_weights(rng: random.Random, seeds: Path, folder: Path) -> Words:
    """Weights of torch, which are pickles, and pickles in the place of safetensors."""
    import torch

    path = folder / "model"
    shutil.copytree(seeds / "bert", path)
    (path / "model.safetensors").unlink()
    stream = io.BytesIO()
    content: Any = {"embeddings.word_embeddings.weight": torch.zeros(2, 2)}
    if rng.random() < 0.5:
        content[rng.choice(["x", ESCAPES])] = rng.choice([_Executed(), [_Executed()], 3, torch.zeros(1).to_sparse()])
    torch.save(content, stream, _use_new_zipfile_serialization=rng.random() < 0.7)
    data = stream.getvalue() if rng.random() < 0.3 else mutate_bytes(rng, stream.getvalue())
    name = rng.choice(["pytorch_model.bin", "pytorch_model.bin", "pytorch_model.bin", "model.safetensors"])
    (path / name).write_bytes(data)
    return _convert(path)


def model_folder(rng: random.Random, seeds: Path, folder: Path) -> Words:
    """The ``model/`` folder of a run."""
    path = folder / "model"
    shutil.copytree(seeds / "run" / "model", path)
    file = path / "homespun.json"
    file.write_bytes(_text(rng, json.loads(file.read_text())))
    return ["predict", str(path), "text of words"] if rng.random() < 0.3 else _convert(path)


# Folders


def run_folder(rng: random.Random, seeds: Path, folder: Path) -> Words:
    """The files of a run: config, environment, metrics, result."""
    import yaml

    path = folder / "run"
    shutil.copytree(seeds / "run", path, ignore=shutil.ignore_patterns("model", "checkpoints", "report", "hf"))
    name = rng.choice(["result.json", "result.json", "environment.json", "metrics.jsonl", "config.yaml"])
    content = (path / name).read_bytes()
    if rng.random() < 0.2:
        (path / name).write_bytes(mutate_bytes(rng, content))
    elif name == "metrics.jsonl":
        lines = content.splitlines()
        place = rng.randrange(len(lines))
        lines[place] = _text(rng, json.loads(lines[place]))
        (path / name).write_bytes(b"\n".join(lines))
    elif name == "config.yaml":
        text = yaml.safe_dump(mutate_tree(rng, yaml.safe_load(content)))
        (path / name).write_bytes(text.encode("utf-8", "surrogatepass"))
    else:
        (path / name).write_bytes(_text(rng, json.loads(content)))
    return ["report", str(path), "--out", "out"]


def corpus(rng: random.Random, seeds: Path, folder: Path) -> Words:
    """A corpus: description, manifest, shards and their list."""
    from homespun.data.corpus import Corpus
    from homespun.data.corpus_files import VERSION
    from homespun.data.reading import reading
    from homespun.data.shards import SHARDS, write_list
    from homespun.io.atomic import file_digest

    path = folder / "corpus"
    shutil.copytree(seeds / "corpus", path)
    tree = json.loads((path / "corpus.json").read_text())
    record = Corpus.open(path).records[0]
    if rng.random() < 0.7:
        (path / "corpus.json").write_bytes(_text(rng, tree))
        if rng.random() < 0.3:  # a half-built corpus, which is resumed
            (path / "corpus.json").unlink()
            line = {"shard": dataclasses.asdict(record), "consumed": 5, "bytes": 100, "words": 20, "labels": {}}
            job = {"version": VERSION, "inputs": reading([str(seeds / "texts.jsonl")]).describe()}
            job |= {"tokenizer": tree["tokenizer"]["fingerprint"], "sentences": False}
            lines = [json.dumps(job).encode(), _text(rng, line)]
            (path / "building.jsonl").write_bytes(b"\n".join([*lines, b""]))
            return [*_build(seeds / "texts.jsonl", seeds)[:-1], str(path)]
    else:
        arrow = rng.choice(sorted(path.glob("*.arrow")))
        content = mutate_bytes(rng, arrow.read_bytes())
        arrow.write_bytes(content)
        if arrow.name == SHARDS:
            checksum = file_digest(arrow)
        else:
            checksum = write_list(path, [dataclasses.replace(record, size=len(content))])
        (path / "corpus.json").write_text(json.dumps(tree | {"shards_checksum": checksum}))
    return ["corpus", "lengths", str(path)]


FORMATS: dict[str, Format] = {
    "recipe": recipe,
    "json": json_records,
    "jsonl": jsonl,
    "csv": csv,
    "parquet": parquet,
    "zip": zip_archive,
    "tar": tar_archive,
    "compressed": compressed,
    "tokenizer.json": tokenizer_json,
    "vocabulary": vocabulary_files,
    "sentencepiece": sentencepiece,
    "safetensors": safetensors,
    "config.json": config_json,
    "pickle": torch_weights,
    "model": model_folder,
    "run": run_folder,
    "corpus": corpus,
}
