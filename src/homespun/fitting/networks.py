"""Networks of a fit: frozen encoders with a linear classifier, pretraining on the user's text, fine-tuning."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from homespun.commands.distill import distill
from homespun.commands.finetune import finetune
from homespun.commands.preparation import make_corpus, open_tokenizer, train_tokenizer
from homespun.commands.pretrain import pretrain
from homespun.commands.recipe import FinetuneRecipe, finetune_recipe, pretrain_recipe
from homespun.config import Tree
from homespun.data.labels import Labels
from homespun.data.reading import Reading, reading
from homespun.errors import StepTooLong, UserError, VocabularyTooLarge
from homespun.fitting.candidates import METRICS, score
from homespun.fitting.inspection import Inspection
from homespun.hf.open import open_for_inference
from homespun.inference.predict import embed_rows
from homespun.io.json import read_object, read_optional, write_lines
from homespun.metrics.calibration import DEFAULT_RULE
from homespun.models.bundle import ModelBundle
from homespun.models.model import Model
from homespun.models.sequence_heads import LinearHeadConfig, MeanHeadConfig
from homespun.models.weight_transfer import layers_of
from homespun.nn.devices import best_device
from homespun.report.console import Display
from homespun.tasks.classification import ClassificationTask
from homespun.tasks.network_text_model import NetworkTextModel, open_network
from homespun.tasks.regression import RegressionTask
from homespun.tasks.text_outputs import measure_outputs, targets_of
from homespun.tasks.texts import LabelledText, TextsData, rows_of
from homespun.text.clean import split_words

MIN_LENGTH, MAX_LENGTH = 64, 256  # tokens of a text that a network reads; fewer where its texts are shorter
MIN_CHARACTERS = 20_000  # characters of text, below which a network is not pretrained
_VOCABULARY = 8_000
_CHARACTERS_PER_TOKEN = 150  # characters of text for each entry of a new vocabulary
_STRENGTHS = (0.01, 0.1, 1.0)  # inverse regularisation of the classifier on a frozen encoder
# seconds on one core for an example and a weight: 20 to 60 iterations on 2,000 to 3,000 vectors of 384 numbers
_LAYER_COST = 1.5e-8
_PRETRAINING_EPOCHS = 20  # the held-out loss of a small text was lower after 23 than after 12 or 72 (results/fit.md)
_CONTINUE = ('train.optimizer={"kind": "adamw", "learning_rate": 1e-4}', "train.schedule.kind=linear")
_CONTINUE_MLM = ("objective.probability=0.15",)
_MEASURED_TEXTS, _MEASUREMENTS, _MEASURED_SECONDS = 64, 4, 5.0
_SMALL = 12_000_000  # parameters, below which a checkpoint is fine-tuned as an own network (results/efficiency.md)
_EPOCHS, _STUDENT_EPOCHS = 4, 8
_MODERNBERT_HEAD = {
    "kind": "pooled",
    "token": "mean",
    "hidden_act": "gelu",
    "bias": False,
    "norm": "layer_norm",
    "norm_bias": False,
}
"""Head of `ModernBertForSequenceClassification`, so that the whole model opens in transformers."""


@dataclasses.dataclass(frozen=True)
class Source:
    """A pretrained model to start from."""

    path: str  # run, model folder, Hugging Face folder or name
    stored: ModelBundle  # model without a head
    length: int  # maximum tokens of a text
    texts_per_second: float  # measured speed of prediction
    tokens_per_word: float  # tokens in a word of the training texts


def open_source(path: str, inspection: Inspection) -> Source:
    """Open a model, choose the length of its inputs, and measure its speed.

    The length is the 95th percentile of the training texts, of at most `MAX_LENGTH` tokens.

    Raises:
        UserError: there is no model, or it is no encoder or decoder of texts.
    """
    stored = open_for_inference(path, head=None)
    if stored.config.backbone.has_decoder and not stored.config.backbone.causal:
        raise UserError(f"{path} is an encoder-decoder; fit classifies with an encoder or a decoder alone")
    sample = list(inspection.train[:: max(1, len(inspection.train) // 2_000)])
    texts = [f"{example.text} {example.second or ''}" for example in sample]
    pieces = np.array([len(ids) for ids in stored.tokenizer.encode_batch(texts)])
    length = common_length(pieces + 3, 16, min(MAX_LENGTH, stored.config.backbone.max_position_embeddings))
    rate, words = _measure_rate(stored, inspection, length), sum(len(split_words(text)) for text in texts)
    return Source(path, stored, length, rate, float(pieces.sum()) / max(1, words))


def common_length(tokens: Sequence[int] | NDArray[np.int64], least: int, most: int) -> int:
    """Return the 95th percentile of numbers of tokens as a multiple of 8, within limits."""
    return int(np.clip(8 * np.ceil(np.percentile(tokens, 95) / 8), min(least, most), most))


def shorten(source: Source, inspection: Inspection) -> Source:
    """Return the source with inputs of half the length, at least `MIN_LENGTH` tokens, and the measured speed."""
    length = max(MIN_LENGTH, source.length // 2)
    return dataclasses.replace(source, length=length, texts_per_second=_measure_rate(source.stored, inspection, length))


def _measure_rate(stored: ModelBundle, inspection: Inspection, length: int) -> float:
    """Measure the speed of encoding on a few training texts, in texts per second."""
    data, step = inspection.data_for(length), max(1, len(inspection.train) // (_MEASURED_TEXTS * _MEASUREMENTS))
    pooled(stored, data, inspection.train[:8])  # the first pass is slower
    begin, rates = time.perf_counter(), list[float]()
    for number in range(_MEASUREMENTS):
        few = inspection.train[number::step][:_MEASURED_TEXTS]
        start = time.perf_counter()
        pooled(stored, data, few)
        rates.append(len(few) / (time.perf_counter() - start))
        if time.perf_counter() - begin > _MEASURED_SECONDS:
            break
    return max(rates)  # others were measured while the machine was busy


def pooled(stored: ModelBundle, data: TextsData, examples: Sequence[LabelledText]) -> dict[str, NDArray[np.float32]]:
    """Compute (texts, hidden) vectors by pooling: mean of the tokens and, if trained as a summary, the first token."""
    poolings = ("mean",) if stored.config.backbone.causal else ("mean", "first")
    rows = rows_of(examples, data, stored)
    return embed_rows(stored.model, rows, pad_id=stored.tokenizer.pad_id, poolings=poolings)


def declared_pooling(path: str) -> str | None:
    """Return the pooling of a sentence-transformers folder: ``mean``, ``first`` or, without one, ``None``."""
    settings = read_optional(Path(path).expanduser() / "1_Pooling" / "config.json")
    # version 6 writes `pooling_mode`, older ones a flag for each mode
    for name, mode, flag in (("mean", "mean", "pooling_mode_mean_tokens"), ("first", "cls", "pooling_mode_cls_token")):
        if settings.get("pooling_mode") == mode or settings.get(flag) is True:
            return name
    return None


def fit_frozen(source: Source, inspection: Inspection) -> tuple[NetworkTextModel, float]:
    """Fit a linear classifier or regression on the vectors of a frozen encoder.

    Pooling (unless the checkpoint declares one) and regularisation are chosen on the validation examples.

    Returns:
        The model, and the speed of the encoder in texts per second.
    """
    data, start = inspection.data_for(source.length), time.perf_counter()
    vectors, held_out = (pooled(source.stored, data, part) for part in (inspection.train, inspection.validation))
    rate = (len(inspection.train) + len(inspection.validation)) / (time.perf_counter() - start)
    targets = targets_of(inspection.train, inspection.labels)
    declared, metric = declared_pooling(source.path), METRICS[inspection.task]
    best: tuple[float, str, nn.Linear] | None = None
    for kind in [declared] if declared in vectors else list(vectors):
        for strength in _STRENGTHS:
            layer = _fit_layer(vectors[kind], targets, inspection.labels, strength)
            with torch.no_grad():
                outputs = layer(torch.from_numpy(held_out[kind])).double().numpy()
            values = outputs[:, 0] if inspection.labels is None else outputs
            measured = measure_outputs(values, inspection.validation, inspection.labels, DEFAULT_RULE)
            found = score(measured.metrics, metric)
            if best is None or found > best[0]:
                best = found, kind, layer
    assert best is not None
    _, kind, layer = best
    return _with_layer(source.stored, kind, layer, data, inspection), rate


def layer_seconds(source: Source, inspection: Inspection) -> float:
    """Estimate the seconds of the logistic regressions of `fit_frozen`; a ridge regression takes almost no time."""
    if inspection.labels is None:
        return 0.0
    backbone = source.stored.config.backbone
    poolings = 1 if backbone.causal or declared_pooling(source.path) is not None else 2
    weights = backbone.hidden_size * len(inspection.labels)
    return _LAYER_COST * poolings * len(_STRENGTHS) * len(inspection.train) * weights


def _fit_layer(
    vectors: NDArray[np.float32], targets: NDArray[np.generic], labels: Labels | None, strength: float
) -> nn.Linear:
    """Fit a linear layer on (texts, hidden) vectors; their scaling is part of its weights."""
    from sklearn.linear_model import LogisticRegression, RidgeCV
    from sklearn.preprocessing import StandardScaler

    scaler = StandardScaler().fit(vectors)
    scaled = scaler.transform(vectors)
    regression = LogisticRegression(C=strength, max_iter=1_000)
    if labels is None:
        ridge = RidgeCV(alphas=np.logspace(-1, 4, 11)).fit(scaled, targets)
        weights, biases = ridge.coef_[None], np.array([ridge.intercept_])
    elif labels.multi_label:
        weights, biases = np.zeros((len(labels), vectors.shape[1])), np.zeros(len(labels))
        for index, column in enumerate(targets.T):
            if column.min() == column.max():  # no or each training example has the label: smoothed log-odds
                biases[index] = math.copysign(math.log(2 * len(column) + 1), column[0] - 0.5)
                continue
            regression.fit(scaled, column)
            weights[index], biases[index] = regression.coef_[0], regression.intercept_[0]
    else:
        regression.fit(scaled, targets)
        weights, biases = regression.coef_, regression.intercept_
        if len(labels) == 2:
            weights, biases = np.concatenate([-weights, weights]) / 2, np.concatenate([-biases, biases]) / 2
    weights = weights / scaler.scale_
    layer = nn.Linear(vectors.shape[1], len(weights))
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(weights))
        layer.bias.copy_(torch.from_numpy(biases - weights @ scaler.mean_))
    return layer


def _with_layer(
    source: ModelBundle, kind: str, layer: nn.Linear, data: TextsData, inspection: Inspection
) -> NetworkTextModel:
    """Put a linear layer on the encoder as its head, and calibrate it."""
    labels = inspection.labels
    outputs = layer.out_features
    head = MeanHeadConfig(num_labels=outputs) if kind == "mean" else LinearHeadConfig(num_labels=outputs)
    built = head.build(source.model.backbone)
    built.classifier = layer
    config = source.config.model_copy(update={"head": head})
    model = Model(source.model.backbone, built, reader=config.reader, special_tokens=source.model.special_tokens)
    bundle = ModelBundle(model.to(best_device()).eval(), config, source.tokenizer, labels)
    if labels is None:
        return NetworkTextModel(bundle, RegressionTask(data, bundle, bounds=None))
    return NetworkTextModel(bundle, ClassificationTask(data, labels, bundle))


def write_parts(inspection: Inspection, folder: Path) -> dict[str, Path]:
    """Write the training and validation examples for `finetune`, with the columns of the user's files."""
    files = {}
    for name, examples in (("train", inspection.train), ("validation", inspection.validation)):
        files[name] = folder / f"{name}.jsonl"
        write_lines(files[name], map(inspection.data.example_record, examples))
    return files


def texts_to_read(texts: Sequence[str], training: Iterable[str], folder: Path) -> Reading:
    """Return the pretraining text: unlabelled files, and the training texts, which are written to ``folder``."""
    own = folder / "texts.jsonl"
    if not own.is_file():
        write_lines(own, ({"text": text} for text in training))
    return reading([*texts, str(own)], duplicates="exact")


def pretrain_on(
    read: Reading,
    folder: Path,
    *,
    recipe: str = "spun-encoder",
    start_from: str | None = None,
    seconds: float,
    memory: int | None,
    display: Display,
) -> tuple[str, Tree]:
    """Pretrain a new model with a new tokenizer, or a checkpoint; resumes a stopped training.

    ``folder`` gets the tokenizer, the corpus and the run, which take ``seconds`` together. ``recipe`` defines the
    objective, and a new model.

    Returns:
        The run, and its result.
    """
    start = time.monotonic()
    run = folder / "run"
    if (run / "result.json").is_file():
        return str(run), read_object(run / "result.json")
    tokenizer = folder / "tokenizer"
    if start_from is None and not (tokenizer / "tokenizer.json").is_file():
        size = _vocabulary_size(read)
        display.line(
            f"vocabulary size: {size:,} (one token per {_CHARACTERS_PER_TOKEN} characters, at most {_VOCABULARY:,})"
        )
        train = partial(train_tokenizer, read, tokenizer, kind="bpe")
        try:
            train(vocab_size=size)
        except VocabularyTooLarge as error:  # few distinct words
            display.line(f"vocabulary size: {error.possible:,}, which the text allows")
            train(vocab_size=error.possible)
    if not (folder / "corpus" / "corpus.json").is_file():
        make_corpus(read, tokenizer if start_from is None else open_tokenizer(start_from), folder / "corpus")
    resume = (run / "config.yaml").is_file()
    left = max(20.0, seconds - (time.monotonic() - start))
    settings = [f"data.corpus={folder / 'corpus'}", f"train.budget={{time: {left:.0f}, epochs: {_PRETRAINING_EPOCHS}}}"]
    settings += [] if start_from is None else [*_CONTINUE, *(_CONTINUE_MLM if recipe == "spun-encoder" else ())]
    settings += [] if memory is None else [f"train.budget.memory={memory}"]
    made = pretrain_recipe(str(run / "config.yaml") if resume else recipe, [] if resume else settings)
    with removed_if_too_slow(run):
        result = pretrain(made, run, start_from=start_from, resume=resume, display=display)
    return str(run), result


@contextmanager
def removed_if_too_slow(run: Path) -> Iterator[None]:
    """Remove a run that is too slow for a step, so that a continued fit starts it again with its own time limit."""
    try:
        yield
    except StepTooLong as error:
        shutil.rmtree(run, ignore_errors=True)
        raise StepTooLong("a training step takes longer than the time that is left; give more --time") from error


def _vocabulary_size(read: Reading) -> int:
    """Size of a new vocabulary, by the amount of text."""
    characters = 0
    for document in read.documents():
        characters += len(document.text)
        if characters >= _VOCABULARY * _CHARACTERS_PER_TOKEN:
            break
    return int(np.clip(characters // _CHARACTERS_PER_TOKEN, 400, _VOCABULARY))


def open_recipe(run: Path, name: str, settings: Sequence[str]) -> tuple[FinetuneRecipe, bool]:
    """Return the recipe of a stopped run and True, or for a new run the recipe ``name`` with ``settings`` and False."""
    config = run / "config.yaml"
    resume = config.is_file()
    return finetune_recipe(str(config) if resume else name, [] if resume else settings), resume


def finetune_source(
    source: Source,
    inspection: Inspection,
    files: dict[str, Path],
    run: Path,
    *,
    own: bool,
    seconds: float,
    memory: int | None,
    display: Display,
) -> NetworkTextModel:
    """Fine-tune all weights of a model on the ``files`` of `write_parts`; resumes a stopped training.

    An ``own`` model, which was pretrained here, has ModernBERT's head; a checkpoint has one on the mean of the tokens,
    or a CNN if it is small.
    """
    if not (run / "result.json").is_file():
        name, settings = finetuning_settings(source, inspection, files, own=own, seconds=seconds, memory=memory)
        recipe, resume = open_recipe(run, name, settings)
        train = recipe.train
        display.line(
            f"fine-tuning: at most {train.budget.epochs:g} epochs in batches of {train.batch_size}, learning rate "
            f"{train.optimizer.learning_rate:g}; the best checkpoint of four validations per epoch is kept"
        )
        with removed_if_too_slow(run):
            finetune(recipe, run, start_from=source.path, resume=resume, preflight=False, display=display)
    return open_network(run)


def distil_student(
    teacher: Path,
    share: float,
    run: Path,
    *,
    seconds: float,
    memory: int | None,
    display: Display,
) -> NetworkTextModel:
    """Distil the classifier of the run ``teacher`` into a student; resumes a stopped training.

    The student has a ``share`` of the layers, at least one, evenly spaced.
    """
    if not (run / "result.json").is_file():
        depth = open_network(teacher).stored.config.backbone.num_hidden_layers
        layers = layers_of(depth, max(1, int(share * depth)))
        data = finetune_recipe(str(teacher / "config.yaml"), []).data.model_dump_json()
        settings = [f"data={data}", f"train.budget.time={seconds:.0f}", f"train.budget.epochs={_STUDENT_EPOCHS}"]
        settings += ["train.best_metric=accuracy", "train.validate_every=0.25", "baselines=false"]
        settings += [] if memory is None else [f"train.budget.memory={memory}"]
        recipe, resume = open_recipe(run, "distil-classify", settings)
        distill(recipe, run, teacher=str(teacher), layers=layers, resume=resume, display=display)
    return open_network(run)


def finetuning_settings(
    source: Source,
    inspection: Inspection,
    files: dict[str, Path],
    *,
    own: bool,
    seconds: float,
    memory: int | None,
) -> tuple[str, list[str]]:
    """Return the recipe of a fine-tuning and its settings; arguments as in `finetune_source`."""
    numbers = inspection.labels is None
    columns = inspection.data_for(source.length).model_dump(
        mode="json", exclude={"train", "validation", "test", "columns", "encoding", "split_seed"}
    )
    settings: dict[str, object] = {f"data.{name}": value for name, value in columns.items()} | {
        "data.train": str(files["train"]),
        "data.validation": str(files["validation"]),
        "train.budget.time": round(seconds),
        "train.budget.epochs": _EPOCHS,
        "train.validate_every": 0.25,
        "train.best_metric": METRICS[inspection.task],
        "baselines": False,
    }
    small = own or sum(parameter.numel() for parameter in source.stored.model.parameters()) < _SMALL
    if own:
        settings["objective.head"] = _MODERNBERT_HEAD
    elif numbers or not small:
        settings["objective.head"] = {"kind": "mean"}
    if memory is not None:
        settings["train.budget.memory"] = memory
    if numbers:
        settings["train.optimizer.learning_rate"] = 1e-3 if own else 3e-4
    name = "similarity" if numbers else "classify-cnn" if small else "classify"
    return name, [f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in settings.items()]
