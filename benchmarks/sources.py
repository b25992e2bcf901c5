"""Experiments of the sources at the scale of a small machine: prepare the data, then run `homespun compare`.

Each comparison is a file of ``benchmarks/comparisons``, has a budget of tokens, and is timed by processor time. The
same command resumes an interrupted one. ``--minutes`` gives every variation equal time instead: a few steps of each are
timed, in turn, and its budget is the steps that fit, so that the load of the machine in later hours changes no result.
``--length`` sets another row length with as many tokens a step. Both have their own folder below ``--out``.
`benchmarks.claims` reads the results.

Texts and labelled rows are from the shared data sets, which are not part of the project.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import hashlib
import html
import io
import json
import re
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from benchmarks.paths import SHARED
from homespun.compare.recipe import CompareRecipe, compare_recipe, flat
from homespun.errors import UserError
from homespun.report.comparison_records import read_comparison

COMPARISONS = Path(__file__).parent / "comparisons"
VOCAB_SIZE = 8000
_TIMED_STEPS, _TIMED_RUNS = 20, 3
_FEWEST = 10  # filings whose training part has an item, or it is no class


def run(arguments: list[str]) -> dict[str, Any]:
    """Prepare the data of a comparison, and run it."""
    known = {path.stem: path for path in sorted(COMPARISONS.glob("*.yaml"))}
    parser = argparse.ArgumentParser(prog="python -m benchmarks sources", description=__doc__)
    parser.add_argument("name", choices=known, help="which comparison")
    parser.add_argument("--data", type=Path, default=SHARED, help="the folder of the shared data sets")
    parser.add_argument("--out", type=Path, default=Path("runs/sources"), help="where data and comparisons go")
    parser.add_argument("--minutes", type=float, help="of processor time for each variation, in place of its budget")
    parser.add_argument("--length", type=int, help="tokens of a row, in place of the comparison's")
    parser.add_argument("--prepare", action="store_true", help="the data alone")
    parser.add_argument("settings", nargs="*", help="KEY=VALUE changes to the comparison, such as seeds=3")
    options = parser.parse_intermixed_args(arguments)
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    recipe = known[options.name].read_text(encoding="utf-8")
    for name in dict.fromkeys(_prepared(word) for word in re.findall(r"DATA/([a-z0-9-]+)", recipe)):
        MADE[name](options.data, out / "data")
    file = out / f"{options.name}.yaml"
    file.write_text(_located(recipe, out), encoding="utf-8")
    folder, settings = out / options.name, []
    if options.length is not None:
        folder = folder.with_name(f"{folder.name}-{options.length}")
        settings += at_length(compare_recipe(str(file)), options.length)
    if options.minutes is not None:
        folder = folder.with_name(f"{folder.name}-minutes")
        given = [*settings, *options.settings]
        speeds = {} if options.prepare else measure_speeds(file, folder.with_name(f"{folder.name}-speeds"), given)
        settings += at_equal_time(compare_recipe(str(file), given), options.minutes, speeds)
    if not options.prepare:
        _homespun("compare", str(file), "--out", str(folder), *settings, *options.settings)
    found = folder / "comparison.json"
    return {"ours": json.loads(found.read_text(encoding="utf-8"))} if found.is_file() else {}


def _prepared(word: str) -> str:
    """Find the function that makes ``DATA/WORD``, by the longest matching name."""
    return max((name for name in MADE if word.startswith(name)), key=len)


def _located(recipe: str, out: Path) -> str:
    """Return the text of a recipe with the folders of this machine."""
    recipe = recipe.replace("DATA/", f"{out.resolve()}/data/").replace("RUNS/", f"{out.resolve()}/")
    if "MINILM" not in recipe:
        return recipe
    from benchmarks.trials import minilm  # imports torch

    return recipe.replace("MINILM", str(minilm()))


def at_length(recipe: CompareRecipe, length: int) -> list[str]:
    """Return settings for rows of ``length`` tokens, with as many tokens a step and held-out tokens.

    Tasks whose texts are as long as the rows also use ``length``.
    """
    assert recipe.pretrain is not None
    given = flat(recipe.pretrain.settings)
    numbers = [given.get(key) for key in ("data.max_length", "train.batch_size", "data.validation_rows")]
    before, rows, held_out = (number if isinstance(number, int) else 0 for number in numbers)
    if not before * rows * held_out:
        raise UserError("--length needs data.max_length, train.batch_size and data.validation_rows of pretraining")
    changes = {"data.max_length": length, "model.max_position_embeddings": length}
    changes["train.batch_size"] = max(1, rows * before // length)
    changes["data.validation_rows"] = max(1, held_out * before // length)
    longer = [name for name, task in recipe.finetune.items() if flat(task.settings).get("data.max_length") == before]
    return [
        *(f"pretrain.settings.{key}={value}" for key, value in changes.items()),
        *(f"finetune.{name}.settings.data.max_length={length}" for name in longer),
        f"benchmark.lengths=[{length}]",
    ]


def at_equal_time(recipe: CompareRecipe, minutes: float, speeds: Mapping[str, float]) -> list[str]:
    """Return settings for ``minutes`` of processor time, of pretraining, or of each task without pretraining.

    Args:
        recipe: of the comparison.
        minutes: of each training.
        speeds: seconds of a step of pretraining by variation, as from `measure_speeds`. Others keep their budget.
    """
    if not _pretrains(recipe):
        budget = f"{{time: {minutes * 60:g}, clock: processor}}"
        return [f"finetune.{name}.settings.train.budget={budget}" for name in recipe.finetune]
    steps = {name: max(1, round(minutes * 60 / seconds)) for name, seconds in speeds.items()}
    limits = "{time: null, tokens: null, epochs: null, steps: %d, clock: processor}"
    return [f"variations.{name}.pretrain.train.budget={limits % number}" for name, number in steps.items()]


def measure_speeds(file: Path, folder: Path, settings: Sequence[str]) -> dict[str, float]:
    """Return the processor seconds of a step of pretraining by variation.

    Each is the median of `_TIMED_RUNS` short runs, which take turns with those of the other variations. They stay in
    ``folder``, so that a comparison that is resumed has the same budgets. Variations without training have none.
    """
    budget = f"{{time: null, tokens: null, epochs: null, steps: {_TIMED_STEPS}, clock: processor}}"
    short = [f"pretrain.settings.train.budget={budget}", "pretrain.settings.train.validate_every=1.0"]
    short += ["finetune={}", "benchmark=null", f"seeds={_TIMED_RUNS}"]
    recipe = compare_recipe(str(file), [*settings, *short])
    if not _pretrains(compare_recipe(str(file), settings)):
        return {}
    trained = {name: variation for name, variation in recipe.variations.items() if variation.start_from is None}
    tree = recipe.model_copy(update={"variations": trained}).model_dump(mode="json", exclude_unset=True)
    timed = folder.with_name(f"{folder.name}.yaml")
    timed.write_text(yaml.safe_dump(tree, sort_keys=False), encoding="utf-8")
    _homespun("compare", str(timed), "--out", str(folder))
    found = {}
    for variant in read_comparison(folder).variants:
        costs = [record.summary.get("seconds_per_step") for record in variant.records("pretrain")]
        if known := [seconds for seconds in costs if seconds is not None]:
            found[variant.name] = median(known)
    return found


def _pretrains(recipe: CompareRecipe) -> bool:
    return recipe.pretrain is not None and flat(recipe.pretrain.settings).get("train.budget.steps") != 0


def financial(data: Path, out: Path) -> None:
    """Prepare risk factors of annual reports and earnings calls: text, tokenizer, corpus without near-duplicates."""
    build_corpus(out / "financial", lambda: (*_reports(data), *_calls(data)))


def financial_sentinels(data: Path, out: Path) -> None:
    """Prepare the same texts with a tokenizer that has T5's sentinels."""
    build_corpus(out / "financial-sentinels", lambda: (*_reports(data), *_calls(data)), sentinels=100)


def _reports(data: Path) -> Iterator[dict[str, str]]:
    for row in _json_lines(data / "edgar_10k" / "item1a.jsonl.gz"):
        text = " ".join(re.sub(r"CONTENT_\d+:", "", html.unescape(row["text"])).split())
        if len(text) > 200:  # the others hold nothing but a heading
            yield {"text": text}


def _calls(data: Path) -> Iterator[dict[str, str]]:
    for row in _json_lines(data / "maec" / "maec_calls.jsonl.gz"):
        yield {"text": " ".join(html.unescape(row["text"]).split())}


def reviews(data: Path, out: Path) -> None:
    """Prepare the training reviews of IMDb: text, tokenizer, corpus without near-duplicates."""
    build_corpus(out / "reviews", lambda: _json_lines(data / "imdb" / "train.jsonl.gz"))


def phrasebank(data: Path, out: Path) -> None:
    """Prepare Financial PhraseBank (agreement of half of the annotators): a sentence and its sentiment."""
    lines = (data / "financial_phrasebank" / "Sentences_50Agree.txt").read_text(encoding="iso-8859-1").splitlines()
    _table(out / "phrasebank.csv", (dict(zip(("text", "label"), line.rsplit("@", 1), strict=True)) for line in lines))


def topics(data: Path, out: Path) -> None:
    """Prepare topics of financial tweets."""
    for split, part in (("train", "train"), ("test", "valid")):
        with gzip.open(data / "twitter_financial_topic" / f"{part}.csv.gz", "rt", encoding="utf-8", newline="") as file:
            _table(out / f"topics-{split}.csv", csv.DictReader(file))


def topics_corpus(data: Path, out: Path) -> None:
    """Prepare a corpus of the training tweets on financial topics."""
    topics(data, out)
    build_corpus(out / "topics-corpus", lambda: _csv_rows(out / "topics-train.csv"))


def newsgroups(data: Path, out: Path) -> None:
    """Prepare posts to twenty newsgroups, every eighth of them, and a corpus of the training part."""
    for split in ("train", "test"):
        read = _json_lines(data / "newsgroups20" / f"{split}.jsonl.gz")
        rows = [{"text": row["text"], "label": row["label"]} for row in read]
        _table(out / f"newsgroups-{split}.csv", rows)
        _table(out / f"newsgroups-few-{split}.csv", rows[::8])
    build_corpus(out / "newsgroups", lambda: _json_lines(data / "newsgroups20" / "train.jsonl.gz"))


def items(data: Path, out: Path) -> None:
    """Prepare sections of annual reports, labelled by item: a fifth of the companies' filings is the test."""
    with zipfile.ZipFile(data / "edgar_10k" / "sections.zip") as archive:
        names = sorted(name for name in archive.namelist() if name.endswith(".json"))
        filings = [json.loads(archive.read(name)) for name in names]
    rows: dict[str, list[dict[str, str]]] = {"train": [], "test": []}
    seen: set[str] = set()
    for number, filing in enumerate(filings):
        for label, text in filing.items():
            cleaned = " ".join(html.unescape(str(text)).split())
            # without its heading, of capitals, which would give the item away
            cleaned = re.sub(r"^item\s+\d+[ab]?\b[.:\s]*", "", cleaned, flags=re.IGNORECASE)
            cleaned = re.sub(r"^(?:[^a-z\s]+\s+)*(?=\S*[a-z])", "", cleaned)
            if label.startswith("item_") and len(cleaned) > 400 and cleaned not in seen:
                seen.add(cleaned)
                rows["test" if number % 5 == 4 else "train"].append({"text": cleaned, "label": label})
    counts = Counter(row["label"] for row in rows["train"])
    for split, part in rows.items():
        _table(out / f"items-{split}.csv", (row for row in part if counts[row["label"]] >= _FEWEST))


def patents(data: Path, out: Path) -> None:
    """Prepare titles and abstracts of patents, labelled by section: without duplicates, a fifth is the test."""
    with gzip.open(data / "patents_ipc" / "patents.csv.gz", "rt", encoding="utf-8", newline="") as file:
        rows = ((f"{row['title']}. {row['abstract']}", row["section"]) for row in csv.DictReader(file))
        _once(out / "patents", rows)


def bullets(data: Path, out: Path) -> None:
    """Prepare earnings calls, with the bullet points of a news agency."""
    _pairs(data / "ectsum", out / "bullets", ("train", "val", "test"), "document", "summary")


def papers(data: Path, out: Path) -> None:
    """Prepare abstracts of papers by sentences, with their summarising sentences."""
    _pairs(data / "scitldr", out / "papers", ("train", "dev", "test"), "source", "target")


def _pairs(data: Path, made: Path, parts: tuple[str, str, str], *columns: str) -> None:
    for split, part in zip(("train", "validation", "test"), parts, strict=True):
        path = made.with_name(f"{made.name}-{split}.jsonl")
        if not path.is_file():
            rows = _json_lines(data / f"{part}.jsonl.gz")
            _write(path, "".join(json.dumps({name: row[name] for name in columns}) + "\n" for row in rows))


def agnews(data: Path, out: Path) -> None:
    """Prepare AG News, title and description as one text, by topic."""
    names = (data / "ag_news" / "classes.txt").read_text(encoding="utf-8").split("\n")
    for split in ("train", "test"):
        with gzip.open(data / "ag_news" / f"{split}.csv.gz", "rt", encoding="utf-8", newline="") as file:
            rows = [(" ".join(" ".join(row[1:3]).split()), names[int(row[0]) - 1].strip()) for row in csv.reader(file)]
        _table(out / f"agnews-{split}.csv", ({"text": text, "label": label} for text, label in rows))


def tweets(data: Path, out: Path) -> None:
    """Prepare tweets on a series, labelled as spoilers: without duplicates, a fifth is the test."""
    with (data / "spoiler_tweets" / "tweet_data.csv").open(encoding="utf-8", newline="") as file:
        read = ((html.unescape(row[0]), row[1].strip()) for row in csv.reader(file) if len(row) > 1)
        _once(out / "tweets", (row for row in read if row[1] in ("s", "ns")))


def lineage(data: Path, out: Path) -> None:
    """Prepare training texts of AG News and of the tweets: a corpus of word pieces, one of words, and word vectors."""
    agnews(data, out)
    tweets(data, out)
    texts = [*_csv_rows(out / "agnews-train.csv"), *_csv_rows(out / "tweets-train.csv")]
    build_corpus(out / "lineage", lambda: texts)
    build_corpus(out / "lineage-words", lambda: texts, kind="words", vocab_size=20_000)
    for method in ("glove", "word2vec"):
        vectors = out / f"lineage-{method}"
        if not vectors.is_dir():
            given = ("--corpus", str(out / "lineage-words"), "--out", str(vectors))
            _homespun("vectors", "train", method, *given, "method.size=128", "words.min_count=3")


def _once(made: Path, rows: Iterable[tuple[str, str]]) -> None:
    """Write ``MADE-train.csv`` and ``MADE-test.csv``: every text once, assigned by its content."""
    cleaned = ((" ".join(text.split()), label) for text, label in rows)
    once = {text.casefold(): (text, label) for text, label in cleaned if text}
    parts: dict[str, list[dict[str, str]]] = {"train": [], "test": []}
    for key, (text, label) in once.items():
        part = "test" if hashlib.blake2b(key.encode(), digest_size=8).digest()[0] % 5 == 0 else "train"
        parts[part].append({"text": text, "label": label})
    for split, part_rows in parts.items():
        _table(made.with_name(f"{made.name}-{split}.csv"), part_rows)


MADE: Mapping[str, Callable[[Path, Path], None]] = {
    "financial": financial,
    "financial-sentinels": financial_sentinels,
    "phrasebank": phrasebank,
    "topics": topics,
    "topics-corpus": topics_corpus,
    "newsgroups": newsgroups,
    "items": items,
    "patents": patents,
    "agnews": agnews,
    "tweets": tweets,
    "lineage": lineage,
    "bullets": bullets,
    "papers": papers,
}


def build_corpus(
    folder: Path,
    documents: Callable[[], Iterable[Mapping[str, Any]]],
    *,
    kind: str = "wordpiece",
    vocab_size: int = VOCAB_SIZE,
    sentinels: int = 0,
) -> None:
    """Write ``FOLDER.jsonl``, ``FOLDER-tokenizer`` and ``FOLDER``, the corpus, which is written last."""
    if folder.is_dir():
        return
    text, tokenizer = folder.with_suffix(".jsonl"), folder.with_name(f"{folder.name}-tokenizer")
    if not text.is_file():
        _write(text, "".join(json.dumps({"text": row["text"]}) + "\n" for row in documents()))
    given = ("--input", str(text))
    if not tokenizer.is_dir():
        size = ("--vocab-size", str(vocab_size), "--sentinels", str(sentinels))
        _homespun("tokenizer", "train", *given, "--kind", kind, "--lowercase", *size, "--out", str(tokenizer))
    more = ("--duplicates", "near", "--sentences", "--out", str(folder))
    _homespun("corpus", "build", *given, "--tokenizer", str(tokenizer), *more)


def _json_lines(path: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        yield from map(json.loads, file)


def _csv_rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _table(path: Path, rows: Iterable[Mapping[str, str]]) -> None:
    if path.is_file():
        return
    stream = io.StringIO(newline="")
    writer = csv.DictWriter(stream, ("text", "label"))
    writer.writeheader()
    writer.writerows(rows)
    _write(path, stream.getvalue())


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".tmp-{path.name}")
    temporary.write_text(text, encoding="utf-8", newline="")
    temporary.replace(path)


def _homespun(*words: str) -> None:
    print("$ homespun", *words, file=sys.stderr, flush=True)
    subprocess.run([sys.executable, "-m", "homespun", *words], check=True)
