"""Checkpoints to continue pretraining from: with added tokens, longer texts, another attention or depth."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn

from homespun.errors import UserError
from homespun.hf.open import open_for_training
from homespun.models.bundle import ModelBundle
from homespun.models.config import BackboneConfig, ModelConfig
from homespun.models.model import Model
from homespun.models.weight_transfer import TransferReport, change_stacks, transfer_weights
from homespun.text.tokenizer import Tokenizer
from homespun.text.vocabulary_extension import AddedTokens, find_added_tokens


@dataclass(frozen=True)
class Start:
    """Checkpoint that a run starts from, with changes.

    Attributes:
        source: name or folder of the checkpoint.
        stored: the checkpoint.
        backbone: its config with the changes and the corpus's vocabulary.
        words: tokens of the corpus's tokenizer that the checkpoint's has not.
        generator: checkpoint of ELECTRA's generator, if one was given.
    """

    source: str
    stored: ModelBundle
    backbone: BackboneConfig
    words: AddedTokens
    generator: ModelBundle | None = None

    @property
    def config(self) -> ModelConfig:
        """Changed backbone under the checkpoint's head."""
        return self.stored.config.model_copy(update={"backbone": self.backbone})

    def fill(self, objective: nn.Module, model: Model, config: ModelConfig) -> TransferReport:
        """Copy weights of the checkpoint into a new objective: its model, and ELECTRA's generator.

        Other modules of the objective, such as a head for next sentences, are reported as initialised.

        Args:
            objective: module to fill.
            model: the model that it exports.
            config: config of that model.

        Raises:
            UserError: a generator that does not fit, or a length that a tensor cannot follow.
        """
        origins = transfer_weights(self.stored, model, config, words=self.words)
        given = TransferReport()
        if self.generator is not None:
            load = getattr(objective, "load_generator", None)
            if load is None:
                raise UserError("--generator is for objective electra, which has one")
            given = load(self.generator, self.words)
        return _with_rest(origins, given, objective, model)


def open_start(
    source: str,
    tokenizer: Tokenizer,
    *,
    corpus: str,
    changes: Mapping[str, object] | None = None,
    generator: str | None = None,
) -> Start:
    """Open a checkpoint to continue with ``tokenizer``.

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


def _with_rest(
    origins: TransferReport, generator: TransferReport, objective: nn.Module, model: Model
) -> TransferReport:
    """Report with the parameters that the objective trains and does not export; ``generator``: those of ELECTRA's."""
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
