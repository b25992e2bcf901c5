"""Checkpoints to continue pretraining from, with added tokens, longer inputs, another attention or another depth."""

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
    """Checkpoint that a run starts from, with changes."""

    source: str  # name or folder of the checkpoint
    stored: ModelBundle
    backbone: BackboneConfig  # config of the checkpoint with the changes and the corpus's vocabulary
    words: AddedTokens  # tokens of the corpus's tokenizer that the checkpoint's tokenizer lacks
    generator: ModelBundle | None = None  # checkpoint of ELECTRA's generator; None: the generator is initialised

    @property
    def config(self) -> ModelConfig:
        """Config of the changed backbone with the checkpoint's head."""
        return self.stored.config.model_copy(update={"backbone": self.backbone})

    def fill(self, objective: nn.Module, model: Model, config: ModelConfig) -> TransferReport:
        """Copy weights of the checkpoint into a new objective: its model, and ELECTRA's generator.

        ``model``, of ``config``, is what ``objective`` exports. Its other modules, such as the head of next sentence
        prediction, are reported as initialised.

        Raises:
            UserError: the generator does not fit, or a tensor cannot be resized to the new length.
        """
        origins = transfer_weights(self.stored, model, config, words=self.words)
        generator = TransferReport()
        if self.generator is not None:
            load = getattr(objective, "load_generator", None)
            if load is None:
                raise UserError("--generator needs objective.kind=electra; leave it out for other objectives")
            generator = load(self.generator, self.words)
        return _add_other_parameters(origins, generator, objective, model)


def open_start(
    source: str,
    tokenizer: Tokenizer,
    *,
    corpus: str,
    changes: Mapping[str, object] | None = None,
    generator: str | None = None,
) -> Start:
    """Open a checkpoint to continue pretraining with ``tokenizer``.

    Args:
        source: a run, a ``model/`` folder, or a Hugging Face folder or name.
        tokenizer: tokenizer of the corpus.
        corpus: name of the corpus, for errors.
        changes: changes to the backbone, of `homespun.models.weight_transfer.CHANGEABLE`.
        generator: checkpoint of ELECTRA's generator.

    Raises:
        UserError: ``source`` is not a checkpoint, ``tokenizer`` is neither its tokenizer nor an extension of it, the
            generator has another tokenizer, or a change is not possible.
    """
    stored = open_for_training(source)
    words = find_added_tokens(stored.tokenizer, tokenizer)
    if words is None:
        raise UserError(
            f"{source} has tokenizer {stored.tokenizer.fingerprint}, corpus {corpus} has {tokenizer.fingerprint}, "
            f"which is not an extension of it; build the corpus with the tokenizer of {source}, or with one made by "
            f"`homespun tokenizer extend {source}`"
        )
    backbone = change_stacks(stored.config.backbone, changes or {})
    backbone = backbone.with_tokens(max(backbone.vocab_size, tokenizer.vocab_size), tokenizer.pad_id)
    stored_generator = None
    if generator is not None:
        stored_generator = open_for_training(generator)
        stored_generator.config.one_stack("a generator")
        if stored_generator.tokenizer.fingerprint != stored.tokenizer.fingerprint:
            raise UserError(f"--generator {generator} has another tokenizer than {source}; give one with the same")
    return Start(str(source), stored, backbone, words, stored_generator)


def _add_other_parameters(
    origins: TransferReport, generator: TransferReport, objective: nn.Module, model: Model
) -> TransferReport:
    """Add the parameters that the objective trains but does not export; ``generator``: report of ELECTRA's."""
    exported = {id(parameter) for parameter in model.parameters()}
    others = [name for name, parameter in objective.named_parameters() if id(parameter) not in exported]
    copied = {f"generator.{name}" for name in generator.copied}
    changed = {f"generator.{name}": how for name, how in generator.changed.items()}
    return dataclasses.replace(
        origins,
        copied=(*origins.copied, *(name for name in others if name in copied)),
        changed={**origins.changed, **{name: changed[name] for name in others if name in changed}},
        initialized=(*origins.initialized, *(name for name in others if name not in copied and name not in changed)),
    )
