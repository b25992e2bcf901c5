"""Corpus, pretraining, fine-tuning and report on the documentation of installed Python packages."""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypedDict

from homespun.commands.finetune import finetune
from homespun.commands.preparation import clean_documents
from homespun.commands.pretrain import pretrain
from homespun.commands.recipe import PretrainRecipe, finetune_recipe, pretrain_recipe
from homespun.data.corpus import build_corpus
from homespun.errors import UserError
from homespun.io.atomic import write_text
from homespun.report import formats
from homespun.report.console import Display
from homespun.report.page import Section, write_report
from homespun.text.clean import sentence_spans
from homespun.text.pydocs import python_documentation
from homespun.text.sources import Document
from homespun.text.tokenizer import Tokenizer
from homespun.training.devices import trains_on_cpu
from homespun.training.precision import multiplies_faster_in_bf16

CANDIDATES = {
    "full": [],
    "longformer": ["model.attention={kind: sparse, patterns: [{kind: window, radius: 16}], global_tokens: {first: 1}}"],
    "bigbird": [
        "model.attention={kind: sparse, global_tokens: {first: 0, block: 16}, "
        "patterns: [{kind: blocks, size: 16}, {kind: random_blocks, size: 16, count: 1}]}"
    ],
    "performer": ["model.attention={kind: performer, num_features: 64}"],
    "reversible-dilated": [
        "model.attention={kind: sparse, patterns: [{kind: window, radius: 8, dilation: 2}], global_tokens: {first: 1}}",
        "model.residual.kind=reversible",
    ],
}
"""One size, five attentions: full, and four for long inputs, with windows and blocks that fit rows of 128 tokens."""

DISTINGUISHABLE = 0.1
"""Least difference of two held-out losses, in nats, that is not put down to the seed after so short a training."""

CLASSES = 12
VOCAB_SIZE = 8_000
LENGTH = 96  # tokens of a labelled passage
PASSAGE = 420  # characters, about LENGTH tokens
MOST = {"train": 400, "test": 120}  # passages of a class
# seconds set aside for what comes after pretraining: choosing, fine-tuning, baselines, report
AFTER, FINETUNING = 95.0, 65.0

_ALIASES = {
    "numpy": ("np",),
    "pandas": ("pd",),
    "matplotlib": ("plt", "mpl"),
    "networkx": ("nx",),
    "sklearn": ("scikit-learn", "scikits"),
    "torch": ("pytorch", "aten"),
    "huggingface_hub": ("huggingface", "hugging"),
    "fontTools": ("ttlib",),
}


class Quickstart(TypedDict):
    """Result of `quickstart`: paths, accuracies, held-out losses (nats a token) by candidate, and next commands."""

    page: str
    classifier: str
    chosen: str
    losses: dict[str, float]
    accuracy: float
    baselines: dict[str, float]
    seconds: float
    next: str


def quickstart(out: str | Path, *, seconds: float = 330.0, display: Display | None = None) -> Quickstart:
    """Collect, tokenize, pretrain five attentions on equal tokens, go on with one, fine-tune, compare, report.

    Another attention than full is chosen where its held-out loss is lower by more than `DISTINGUISHABLE`.

    Args:
        out: a new folder.
        seconds: for all of it; what preparation leaves goes to pretraining.
        display: where progress is shown.

    Raises:
        UserError: ``out`` is not a new folder, or there is too little time or documentation.
    """
    display = display or Display(json=True)
    out, began = Path(out), time.monotonic()
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file; give --out a new folder")
    if out.exists() and any(out.iterdir()):
        raise UserError(f"{out} is not empty; give --out a new folder, or delete it first")
    if seconds < 200:
        raise UserError(f"{seconds:.0f} s are too few; give at least 3.5 minutes")
    out.mkdir(parents=True, exist_ok=True)

    documents = _collect(display)
    passages = labelled_passages(documents)
    for split, rows in passages.items():
        _write_jsonl(out / f"{split}.jsonl", rows)
    unseen = [document for document in documents if not _is_test(document)]
    _write_jsonl(out / "documents.jsonl", ({"text": d.text, "package": d.label, "source": d.source} for d in unseen))
    task = display.task("tokenizer: byte-level BPE", total=1.0)
    tokenizer = Tokenizer.train((d.text for d in unseen), kind="bpe", vocab_size=VOCAB_SIZE)
    tokenizer.save(out / "tokenizer")
    task.update(1.0)
    task = display.task("corpus", total=len(unseen), unit="texts")
    corpus = build_corpus(unseen, tokenizer, out / "corpus", progress=lambda _, count: task.update(count))
    task.update(len(unseen))

    left = seconds - (time.monotonic() - began) - AFTER
    if left < 30:
        raise UserError(f"preparation left {left:.0f} s for pretraining; give --minutes more")
    losses: dict[str, float] = {}
    seconds_of: dict[str, float] = {}
    tokens = 0
    for name, changes in CANDIDATES.items():
        # the first one finds out how many tokens can be had, and the others are trained on as many
        budget = f"tokens={tokens}" if tokens else f"time={0.09 * left:.0f}"
        result = pretrain(_recipe(out, changes, budget), out / name, preflight=False, display=display)
        tokens = tokens or result["tokens"]
        losses[name] = result["validation"]["loss"]
        seconds_of[name] = float(result["seconds"])
    best = min(losses, key=lambda name: losses[name])
    differ = losses["full"] - losses[best] > DISTINGUISHABLE
    chosen = best if differ else "full"
    left = seconds - (time.monotonic() - began) - AFTER
    grown = seconds_of[chosen] + max(left, 10.0)
    pretrained = pretrain(
        _recipe(out, CANDIDATES[chosen], f"time={grown:.0f}"),
        out / chosen,
        resume=True,
        preflight=False,
        display=display,
    )

    recipe = finetune_recipe(
        "classify-cnn",
        [
            f"data.train={out / 'train.jsonl'}",
            f"data.test={out / 'test.jsonl'}",
            "data.label=package",
            f"data.max_length={LENGTH}",
            f"train.precision={_precision()}",
            f"train.budget.time={FINETUNING}",
            "train.budget.epochs=4",
        ],
    )
    result = finetune(recipe, out / "classifier", start_from=str(out / chosen), display=display)
    commands = next_commands()
    sections = [
        Section(
            "What was done",
            f"The documentation of the Python packages in this environment was collected: {len(documents):,} texts, "
            f"{formats.memory(corpus.num_bytes)} without the test documents, repeated ones dropped. A tokenizer and a "
            f"corpus were made of it. Models with {len(CANDIDATES)} attentions ({', '.join(CANDIDATES)}) were trained "
            f"to predict the next token on the same {tokens:,} tokens. Their held-out losses are "
            + ", ".join(f"{loss:.2f} ({name})" for name, loss in losses.items())
            + f" nats a token: {_decision(best, chosen, differ=differ)} It was trained on to "
            f"{pretrained['tokens']:,} tokens (held-out loss {pretrained['validation']['loss']:.2f}) and "
            f"fine-tuned to say which of {CLASSES} packages a passage documents. The packages' own names are hidden "
            f"in the passages, and no test document was in the corpus.",
        ),
        Section("The same with your own files", commands=commands),
    ]
    runs = [out / name for name in CANDIDATES] + [out / "classifier"]
    page = write_report(
        runs, out / "report", title="Quickstart: which package does a passage document?", sections=sections
    )
    return {
        "page": str(page),
        "classifier": str(out / "classifier"),
        "chosen": chosen,
        "losses": losses,
        "accuracy": result["test"]["accuracy"],
        "baselines": {name: metrics["accuracy"] for name, metrics in result["baselines"].items()},
        "seconds": time.monotonic() - began,
        "next": "\n".join(["", f"page: {page}", "", "The same with your own files:", *commands]),
    }


def _decision(best: str, chosen: str, *, differ: bool) -> str:
    if differ:
        return f"{best} has the lowest by more than {DISTINGUISHABLE} nats, and was chosen."
    return f"differences below {DISTINGUISHABLE} nats may be due to the seed, so {chosen} attention was chosen."


def next_commands() -> list[str]:
    """The commands to do the same with one's own files."""
    return [
        "homespun tokenizer train --input 'texts/*.jsonl.gz' --text-field text --vocab-size 8000 --out tok && "
        "homespun corpus build --input 'texts/*.jsonl.gz' --text-field text --tokenizer tok --out corpus",
        "homespun pretrain spun-decoder data.corpus=corpus train.budget.time=2h --out runs/base",
        "homespun finetune classify-cnn data.train=train.csv data.text=sentence data.label=label --from runs/base "
        "--out runs/mine",
    ]


def labelled_passages(documents: Sequence[Document]) -> dict[str, list[dict[str, str]]]:
    """``train`` and ``test`` passages of the packages with the most documentation, at most `MOST` of each.

    A passage is the beginning of a document; a document is in one split only. The names of the packages are hidden,
    or there would be nothing to learn.

    Raises:
        UserError: too few packages with enough documentation are installed.
    """
    by_package: dict[str, list[Document]] = defaultdict(list)
    for document in documents:
        by_package[str(document.label)].append(document)
    largest = sorted(by_package, key=lambda name: (-len(by_package[name]), name))[:CLASSES]
    if len(largest) < CLASSES:
        raise UserError(f"only {len(largest)} packages here have documentation; install homespun's requirements")
    hide = _names(largest)
    splits: dict[str, list[dict[str, str]]] = {"train": [], "test": []}
    for package in largest:
        taken = dict.fromkeys(splits, 0)
        for document in sorted(by_package[package], key=lambda d: _digest(d.source)):
            split = "test" if _is_test(document) else "train"
            if taken[split] < MOST[split] and (text := _passage(document.text, hide)):
                taken[split] += 1
                splits[split].append({"text": text, "package": package, "source": document.source})
    return splits


def _collect(display: Display) -> list[Document]:
    task = display.task("documentation of the installed packages", total=None, unit="texts")
    documents: list[Document] = []
    stream = python_documentation(workers=os.cpu_count() or 1)
    for document in clean_documents(stream, normal=True, duplicates="near"):
        documents.append(document)
        if len(documents) % 256 == 0:
            task.update(len(documents))
    return documents


def _recipe(out: Path, changes: Sequence[str], budget: str) -> PretrainRecipe:
    return pretrain_recipe(
        "spun-decoder",
        [
            "model.size=tiny",
            *changes,
            f"data.corpus={out / 'corpus'}",
            f"train.precision={_precision()}",
            "train.budget.time=null",
            f"train.budget.{budget}",
            "train.batch_size=8",  # a minute of training wants many small steps
            "train.validate_every=0.2",
            "data.validation_rows=128",
        ],
    )


def _precision() -> str:
    """Precision that ``auto`` chooses for a longer training: a short one is not measured, and is resumed here."""
    return "bf16" if trains_on_cpu() and multiplies_faster_in_bf16() else "auto"


def _names(packages: Iterable[str]) -> re.Pattern[str]:
    words = {word for package in packages for word in (package, *_ALIASES.get(package, ()))}
    return re.compile(rf"(?<![A-Za-z0-9])({'|'.join(map(re.escape, sorted(words)))})(?![A-Za-z0-9])", re.IGNORECASE)


def _passage(text: str, hide: re.Pattern[str]) -> str:
    """The first sentences, up to `PASSAGE` characters, on one line, without the packages' names."""
    ends = [end for _, end in sentence_spans(text[: 2 * PASSAGE]) if end <= PASSAGE]
    passage = text[: ends[-1] if ends else PASSAGE]
    passage = " ".join(hide.sub("this", passage).split())
    return passage if len(passage) >= 80 else ""


def _is_test(document: Document) -> bool:
    return int(_digest(document.source)[:4], 16) % 5 == 0


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _write_jsonl(path: Path, rows: Iterable[Mapping[str, object]]) -> None:
    write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
