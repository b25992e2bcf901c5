"""Going on from a checkpoint: on other text, with more words, for longer texts, with another attention or depth.

What changed is measured before any training, written into the run as ``adaptation.json``, and shown in its report.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from homespun.commands.preparation import Reading, tokenizer_folder
from homespun.config import Tree, override
from homespun.data.corpus import Corpus, Progress
from homespun.data.padding import pad
from homespun.data.rows import Row, Rows
from homespun.errors import UserError
from homespun.hf.open import open_for_training, open_model
from homespun.io.atomic import write_text
from homespun.models.backbone import Backbone
from homespun.models.bundle import ModelBundle
from homespun.models.characters import fill_character_table
from homespun.models.config import BackboneConfig, ModelConfig
from homespun.models.encoder import EncoderConfig
from homespun.models.model import Model
from homespun.models.recurrent import RecurrentConfig
from homespun.models.weight_transfer import TransferReport, change_stacks, transfer_weights
from homespun.objectives.electra import ElectraObjective
from homespun.text.sentinels import with_sentinels
from homespun.text.sources import ReadProgress
from homespun.text.tokenizer import Tokenizer
from homespun.text.vocabulary_extension import AddedTokens, Word, extend, find_added_tokens
from homespun.training.validation import EvalResult

FILE = "adaptation.json"
_ROWS = 16  # held-out rows on which outputs are compared: 16 of 512 tokens fix a mean cosine to three digits
_AT_ONCE = 4


@dataclass(frozen=True)
class Start:
    """What an adapted run begins with.

    Attributes:
        source: where the checkpoint lies.
        stored: the checkpoint.
        backbone: its config with the changes, and with the corpus's vocabulary.
        words: what the corpus's tokenizer has beyond the checkpoint's.
        generator: of an ELECTRA, where one was given.
    """

    source: str
    stored: ModelBundle
    backbone: BackboneConfig
    words: AddedTokens
    generator: ModelBundle | None = None

    @property
    def config(self) -> ModelConfig:
        """The changed backbone, under the checkpoint's head."""
        return self.stored.config.model_copy(update={"backbone": self.backbone})

    def fill(self, objective: Any) -> TransferReport:
        """Give an objective, just built, what it can take of the checkpoint: its model, and ELECTRA's generator.

        What the objective trains besides, such as a head for next sentences, is among the fresh.

        Raises:
            UserError: a generator that does not fit, or a length that a tensor cannot follow.
        """
        model, config = objective.export_model()
        origins = transfer_weights(self.stored, model, config, words=self.words)
        given = TransferReport() if self.generator is None else _take_generator(objective, self.generator, self.words)
        return _with_rest(origins, given, objective, model)


def split_overrides(overrides: Sequence[str]) -> tuple[list[str], Tree]:
    """A recipe's overrides beside ``--from``: those that are of the recipe, and those that change the checkpoint."""
    of_model = [one for one in overrides if one.startswith("model.") or one.partition("=")[0] == "model"]
    changes = override({}, of_model).get("model", {})
    if not isinstance(changes, dict):
        raise UserError(f"model={changes!r} is not a mapping; write model.KEY=VALUE")
    return [one for one in overrides if one not in of_model], changes


def open_start(
    source: str,
    tokenizer: Tokenizer,
    *,
    corpus: str,
    changes: Mapping[str, Any] | None = None,
    generator: str | None = None,
) -> Start:
    """The checkpoint in ``source``, ready to go on with ``tokenizer``.

    Raises:
        UserError: no checkpoint; a tokenizer that is neither its own nor an extension of it;
            changes that cannot be made.
    """
    stored = open_for_training(source)
    words = _beyond(stored, tokenizer, source, corpus)
    backbone = change_stacks(stored.config.backbone, changes or {})
    backbone = backbone.with_tokens(max(backbone.vocab_size, tokenizer.vocab_size), tokenizer.pad_id)
    given = None
    if generator is not None:
        given = open_for_training(generator)
        given.config.one_stack("a generator")
        if given.tokenizer.fingerprint != stored.tokenizer.fingerprint:
            raise UserError(f"{generator} has another tokenizer than {source}; a generator shares the words")
    return Start(str(source), stored, backbone, words, given)


def _beyond(stored: ModelBundle, tokenizer: Tokenizer, source: str, corpus: str) -> AddedTokens:
    words = find_added_tokens(stored.tokenizer, tokenizer)
    if words is None:
        raise UserError(
            f"{source} has tokenizer {stored.tokenizer.fingerprint}, corpus {corpus} has {tokenizer.fingerprint}, "
            f"which is not an extension of it; build the corpus with the tokenizer of {source}, or with one that "
            f"`homespun tokenizer extend {source}` makes"
        )
    return words


def _take_generator(objective: Any, given: ModelBundle, words: AddedTokens) -> TransferReport:
    if not isinstance(objective, ElectraObjective):
        raise UserError("--generator is for objective electra, which has one")
    wanted = objective.generator_config
    theirs = given.config.backbone
    for name in ("embedding_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"):
        ours, other = getattr(wanted.backbone, name), getattr(theirs, name)
        if name == "embedding_size":
            ours, other = ours or wanted.backbone.hidden_size, other or theirs.hidden_size
        if ours != other:
            raise UserError(
                f"the generator given has {name}={other} and this recipe's has {ours}; set objective.generator_size "
                f"and objective.generator_layers to its size, or leave --generator out"
            )
    # its embeddings are the discriminator's, which has taken its own: they stay
    shared = {name: t.clone() for name, t in objective.discriminator.backbone.embeddings.state_dict().items()}
    origins = transfer_weights(given, objective.generator, wanted, words=words)
    objective.discriminator.backbone.embeddings.load_state_dict(shared)
    return origins


def _with_rest(
    origins: TransferReport, generator: TransferReport, objective: torch.nn.Module, model: Model
) -> TransferReport:
    """With what the objective trains beside the model that it keeps.

    Args:
        generator: where ELECTRA's came from, if one was given.
    """
    kept = {id(parameter) for parameter in model.parameters()}
    rest = [name for name, parameter in objective.named_parameters() if id(parameter) not in kept]
    copied = {f"generator.{name}" for name in generator.copied}
    changed = {f"generator.{name}": how for name, how in generator.changed.items()}
    return dataclasses.replace(
        origins,
        copied=(*origins.copied, *(name for name in rest if name in copied)),
        changed={**origins.changed, **{name: changed[name] for name in rest if name in changed}},
        initialized=(*origins.initialized, *(name for name in rest if name not in copied and name not in changed)),
    )


def extend_tokenizer(
    source: str | Path,
    reading: Reading | None,
    out: str | Path,
    *,
    add: int = 0,
    sentinels: int = 0,
    progress: Progress | None = None,
    read_progress: ReadProgress | None = None,
) -> tuple[Tokenizer, list[Word]]:
    """The tokenizer of a checkpoint (or a tokenizer's folder) with ``add`` words of what is read, saved in ``out``.

    Args:
        reading: where the words are taken from; None: no words are added.
        sentinels: how many to add behind them (`homespun.text.sentinels`).

    Raises:
        UserError: nothing to add, no tokenizer there, too few words, or ``out`` holds something else.
    """
    if reading is None and not sentinels:
        raise UserError("nothing to add; give --add COUNT words of --input, or --sentinels COUNT")
    folder = tokenizer_folder(out)
    tokenizer = open_tokenizer(source)
    words: list[Word] = []
    if reading is not None:
        tokenizer, words = extend(tokenizer, reading.texts(progress=progress, read_progress=read_progress), add)
    if sentinels:
        tokenizer = with_sentinels(tokenizer, sentinels)
    tokenizer.save(folder)
    return tokenizer, words


def open_tokenizer(source: str | Path) -> Tokenizer:
    """The tokenizer of a run, of a model in any form, or of a tokenizer's own folder."""
    folder = Path(source).expanduser()
    for candidate in (folder, folder / "model"):
        if (candidate / "tokenizer.json").is_file():
            return Tokenizer.load(candidate)
    return Tokenizer.load(folder) if folder.is_file() else open_model(source).tokenizer


def measure_adaptation(
    path: Path,
    begin: Start,
    origins: TransferReport,
    *,
    evaluate: Callable[[], EvalResult],
    held_out: Rows,
    corpus: Corpus,
    model: Model,
) -> Tree:
    """What is changed, measured before any training; from ``adaptation.json`` where the run has it already."""
    file = path / FILE
    if file.is_file():
        result = json.loads(file.read_text(encoding="utf-8"))
        assert isinstance(result, dict)
        return result
    before = begin.stored.config.backbone
    loss = evaluate()
    result = {
        "start_from": begin.source,
        "loss": loss.loss,
        "losses": loss.losses,
        "vocabulary": _pair(before.vocab_size, begin.backbone.vocab_size) | {"new_words": len(begin.words.pieces)},
        "tokens_per_word": _tokens_per_word(corpus, begin.words),
        "layers": list(origins.layers),
        **_shapes(before, begin.backbone),
        "moved": _moved(begin, model.backbone, held_out, corpus.tokenizer),
        "tensors": summarize_transfer(origins),
    }
    write_text(file, json.dumps(result, indent=1, ensure_ascii=False))
    return result


def summarize_transfer(origins: TransferReport) -> Tree:
    """The tensors by where they came from: how many, and of those not simply copied each with its story."""
    return {
        "copied": len(origins.copied),
        "changed": dict(origins.changed),
        "fresh": list(origins.initialized),
        "left": list(origins.unused),
    }


def _pair(before: Any, after: Any) -> Tree:
    return {"before": before, "after": after}


def _tokens_per_word(corpus: Corpus, words: AddedTokens) -> Tree | None:
    """Tokens a word (between white space) of the whole corpus, and with the pieces in place of the new words.

    None where the words were not counted: by a corpus built before they were.
    """
    if not corpus.num_words:
        return None
    saved = 0
    if words.pieces:
        more = np.array([len(pieces) - 1 for pieces in words.pieces])
        saved = int(more @ corpus.counts(words.first))
    return _pair((corpus.num_tokens + saved) / corpus.num_words, corpus.num_tokens / corpus.num_words)


def _shapes(before: BackboneConfig, after: BackboneConfig) -> Tree:
    """Depth, length and attention, before and after: of two stacks those of the encoder, with the decoder's beside."""
    result = _shape(before.stacks[0], after.stacks[0])
    if before.has_decoder and after.has_decoder:
        result["decoder"] = _shape(before.decoder, after.decoder)
    return result


def _shape(before: EncoderConfig | RecurrentConfig, after: EncoderConfig | RecurrentConfig) -> Tree:
    return {
        "num_hidden_layers": _pair(before.num_hidden_layers, after.num_hidden_layers),
        "max_position_embeddings": _pair(before.max_position_embeddings, after.max_position_embeddings),
        "attention": _pair(before.attention.kind, after.attention.kind),
    }


def _moved(begin: Start, after: Backbone, held_out: Rows, tokenizer: Tokenizer) -> list[Tree]:
    """How far the hidden states are from the checkpoint's: at its own length, and at the new one, where the checkpoint
    reads one piece after the other. Empty where nothing but the vocabulary changed.

    Of two stacks also those of the decoder, which goes over the text that the encoder reads.
    """
    checkpoint, changed = begin.stored.config.backbone, begin.backbone
    if changed.with_tokens(checkpoint.vocab_size, checkpoint.pad_token_id) == checkpoint:
        return []
    # new words cannot be read by the checkpoint as it is: it gets them too, and nothing else
    config = ModelConfig(backbone=checkpoint.with_tokens(changed.vocab_size, changed.pad_token_id))
    with torch.random.fork_rng(devices=[]):
        before = config.build()
    fill_character_table(before, tokenizer)
    transfer_weights(begin.stored, before, config, words=begin.words)
    old, new = checkpoint.stacks[0], changed.stacks[0]
    packed = old.attention.supports_packing and new.attention.supports_packing
    rows = [_plain(held_out[index], packed) for index in range(min(_ROWS, len(held_out)))]
    reach = old.max_position_embeddings, new.max_position_embeddings
    result = _distances(before.backbone.stacks[0], after.stacks[0], rows, *reach)
    if not checkpoint.has_decoder or not changed.has_decoder:
        return result
    both = [
        min(backbone.max_position_embeddings, backbone.decoder.max_position_embeddings)
        for backbone in (checkpoint, changed)
    ]
    written = _distances(before.backbone, after, rows, *both)
    return [{"stack": "encoder"} | row for row in result] + [{"stack": "decoder"} | row for row in written]


def _distances(before: Backbone, after: Backbone, rows: Sequence[Row], old: int, new: int) -> list[Tree]:
    """At the length that both read, and at that which ``after`` does; they read ``old`` and ``new`` tokens at most."""
    longest = max(len(row.input_ids) for row in rows)
    result = []
    for length in sorted({min(longest, old, new), min(longest, new)}):
        piece = min(length, old)
        result.append({"tokens": length, "pieces": -(-length // piece)} | _distance(before, after, rows, length, piece))
    return result


def _plain(row: Row, packed: bool) -> Row:
    return row if packed else dataclasses.replace(row, documents=None)


@torch.no_grad()
def _distance(before: Backbone, after: Backbone, rows: Sequence[Row], length: int, piece: int) -> Tree:
    was_training = after.training
    device = next(after.parameters()).device
    before.to(device).eval()
    after.eval()
    cosine = distance = 0.0
    tokens = 0
    for first in range(0, len(rows), _AT_ONCE):
        selected = [_cut(row, 0, length) for row in rows[first : first + _AT_ONCE]]
        ours = _read(after, selected, device)
        for row, mine in zip(selected, ours, strict=True):
            parts = [_cut(row, at, at + piece) for at in range(0, len(row.input_ids), piece)]
            theirs = torch.cat([_read(before, [part], device)[0] for part in parts])
            cosine += float(torch.cosine_similarity(mine, theirs, dim=-1).sum())
            distance += float(((mine - theirs).norm(dim=-1) / theirs.norm(dim=-1).clamp(min=1e-12)).sum())
            tokens += len(mine)
    after.train(was_training)
    return {"cosine": cosine / tokens, "relative_distance": distance / tokens, "rows": len(rows)}


def _cut(row: Row, begin: int, end: int) -> Row:
    documents, segments = row.documents, row.token_type_ids
    return dataclasses.replace(
        row,
        input_ids=row.input_ids[begin:end],
        documents=None if documents is None else documents[begin:end] - documents[begin],
        token_type_ids=None if segments is None else segments[begin:end],
    )


def _read(backbone: Backbone, rows: Sequence[Row], device: torch.device) -> list[Tensor]:
    """The hidden states of each row, (tokens, hidden)."""
    batch = pad(rows, 0).to(device)
    hidden = backbone(batch.input_ids, **batch.context).double()
    return [vectors[: len(row.input_ids)] for vectors, row in zip(hidden, rows, strict=True)]
