"""Classes of transformers for models that transformers has no class of, such as an encoder with Linformer attention.

`register_auto_classes` makes ``AutoModel.from_pretrained``, ``AutoModelForSequenceClassification.from_pretrained``, ...
and ``pipeline`` open their folders (`homespun.hf.export.export_registered`). No code of a folder is run.
"""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from torch.nn import functional

from homespun.errors import UserError
from homespun.hf.export import CLASSES, MODEL_TYPE, export_registered, registered_pipeline
from homespun.hf.family import STORED
from homespun.hf.open import open_model
from homespun.models.bundle import ModelBundle
from homespun.models.generation.settings import GenerationArguments

try:
    from transformers import AutoConfig, GenerationConfig, GenerationMixin, PretrainedConfig, PreTrainedModel
    from transformers.modeling_outputs import (
        BaseModelOutput,
        CausalLMOutput,
        MaskedLMOutput,
        QuestionAnsweringModelOutput,
        Seq2SeqLMOutput,
        SequenceClassifierOutput,
        TokenClassifierOutput,
    )
    from transformers.models.auto import modeling_auto as auto
except ImportError as error:
    raise UserError("transformers is not installed; pip install transformers") from error


class HomespunConfig(PretrainedConfig):
    """Sizes and labels; the settings of the model are in ``homespun.json``."""

    model_type = MODEL_TYPE


class HomespunModel(PreTrainedModel):
    """Backbone without a head; base of the classes with one.

    ``forward`` has the arguments of `homespun.models.model.Model.forward`, and ``labels`` in the classes with a head,
    which then also return the loss.
    """

    config_class = HomespunConfig
    pipeline: ClassVar[str] = "feature-extraction"  # key of `CLASSES`

    def __init__(self, config: HomespunConfig, stored: ModelBundle) -> None:
        super().__init__(config)
        self.model = stored.model
        self.stored = stored

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | PathLike[str] | None,
        *model_args: object,
        config: Any = None,
        dtype: torch.dtype | str | None = None,
        **options: Any,
    ) -> Self:
        """Open a folder of `export_registered`, or a repository of the hub, in evaluation mode.

        Args:
            pretrained_model_name_or_path: folder, or name on the hub.
            model_args: no effect, like further ``options`` of transformers.
            config: its config, which `AutoModel` gives.
            dtype: dtype of the weights; default and ``auto``: as in the files.
            options: see ``model_args``.

        Raises:
            UserError: the model has the head of another class, or none.
        """
        source = str(pretrained_model_name_or_path)
        stored = open_model(source, head=None if cls.pipeline == HomespunModel.pipeline else STORED)
        if (stored_pipeline := registered_pipeline(stored.config)) != cls.pipeline:
            stored_class = CLASSES.get(stored_pipeline or "", "no class of homespun")
            raise UserError(
                f"{source} is for {stored_class}, not {CLASSES[cls.pipeline]}; open it by the auto class of that, or "
                f"train a head with: homespun finetune --from {source}"
            )
        model = cls(config or HomespunConfig.from_pretrained(source), stored)
        if dtype not in (None, "auto"):
            model.model.to(getattr(torch, dtype) if isinstance(dtype, str) else dtype)
        return model

    def save_pretrained(self, save_directory: str | PathLike[str], *arguments: Any, **options: Any) -> None:
        """Write the folder that `from_pretrained` opens; the further options of transformers have no effect."""
        export_registered(Path(save_directory), self.stored)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **inputs: Any) -> Any:
        return BaseModelOutput(last_hidden_state=self.outputs(input_ids, attention_mask, inputs))

    def outputs(self, input_ids: Tensor, attention_mask: Tensor | None, inputs: dict[str, Any]) -> Tensor:
        """Compute the outputs of the model from the inputs that it has."""
        known = ("token_type_ids", "position_ids", "documents", "global_attention_mask", "decoder_input_ids")
        context = {name: inputs[name] for name in (*known, "decoder_attention_mask") if inputs.get(name) is not None}
        return self.model(input_ids, attention_mask, **context)


class _HomespunHead(HomespunModel):
    output: ClassVar[type]

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, *, labels: Tensor | None = None, **inputs: Any
    ) -> Any:
        logits = self.outputs(input_ids, attention_mask, inputs)
        return self.output(loss=None if labels is None else self.loss(logits, labels), logits=logits)

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Compute the loss of transformers for classes of this kind; labels of -100 do not count."""
        settings = {"config": self.config, "vocab_size": self.config.vocab_size}
        return self.loss_function(logits=logits, pooled_logits=logits, labels=labels, **settings)


class HomespunForSequenceClassification(_HomespunHead):
    """Classifier, or regression with one label: (batch, labels) logits."""

    pipeline = "text-classification"
    output = SequenceClassifierOutput


class HomespunForTokenClassification(_HomespunHead):
    """Tagger: (batch, seq, labels) logits."""

    pipeline = "token-classification"
    output = TokenClassifierOutput


class HomespunForMaskedLM(_HomespunHead):
    """Masked language model: (batch, seq, vocab) logits."""

    pipeline = "fill-mask"
    output = MaskedLMOutput


class HomespunForQuestionAnswering(_HomespunHead):
    """Extractive question answering: (batch, seq) logits of the start and of the end."""

    pipeline = "question-answering"

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **inputs: Any) -> Any:
        start, end = self.outputs(input_ids, attention_mask, inputs).unbind(-1)
        ends = (inputs.get("start_positions"), inputs.get("end_positions"))
        loss = None if None in ends else self.loss_function(start, end, *ends)
        return QuestionAnsweringModelOutput(loss=loss, start_logits=start, end_logits=end)


class _HomespunGenerator(_HomespunHead, GenerationMixin):
    """Generation by homespun, with its cache."""

    def generate(  # type: ignore[override]
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        generation_config: GenerationConfig | None = None,
        **arguments: Any,
    ) -> Tensor:
        """Generate ids, see `homespun.models.model.Model.generate`; ``arguments`` override ``generation_config``."""
        given = {} if generation_config is None else generation_config.to_diff_dict()
        known = {name: value for name, value in given.items() if name in GenerationArguments.__annotations__}
        return self.model.generate(input_ids, attention_mask, **(known | arguments))


class HomespunForCausalLM(_HomespunGenerator):
    """Causal language model: (batch, seq, vocab) logits of the next token. The loss shifts the labels."""

    pipeline = "text-generation"
    output = CausalLMOutput


class HomespunForConditionalGeneration(_HomespunGenerator):
    """Encoder-decoder: (batch, target, vocab) logits for ``decoder_input_ids``, by default the shifted ``labels``."""

    pipeline = "text2text-generation"
    output = Seq2SeqLMOutput

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, *, labels: Tensor | None = None, **inputs: Any
    ) -> Any:
        if labels is not None and inputs.get("decoder_input_ids") is None:
            inputs["decoder_input_ids"] = self.prepare_decoder_input_ids_from_labels(labels)
        return super().forward(input_ids, attention_mask, labels=labels, **inputs)

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Compute the mean cross-entropy of (batch, target) labels, which are not shifted as those of a decoder."""
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """Shift (batch, target) labels right, after the start token; padding replaces -100."""
        start = labels.new_full((len(labels), 1), self.model.special_tokens.decoder_start_token_id)
        return torch.cat([start, labels[:, :-1].masked_fill(labels[:, :-1] < 0, self.config.pad_token_id)], dim=1)


def register_auto_classes() -> None:
    """Register the classes of this module with the auto classes of transformers.

    Example:
        ``homespun.register_auto_classes(); AutoModelForSequenceClassification.from_pretrained("runs/topics/hf")``

    Raises:
        UserError: transformers is not installed.
    """
    AutoConfig.register(MODEL_TYPE, HomespunConfig, exist_ok=True)
    classes = {
        auto.AutoModel: HomespunModel,
        auto.AutoModelForSequenceClassification: HomespunForSequenceClassification,
        auto.AutoModelForTokenClassification: HomespunForTokenClassification,
        auto.AutoModelForQuestionAnswering: HomespunForQuestionAnswering,
        auto.AutoModelForMaskedLM: HomespunForMaskedLM,
        auto.AutoModelForCausalLM: HomespunForCausalLM,
        auto.AutoModelForSeq2SeqLM: HomespunForConditionalGeneration,
    }
    for registry, model in classes.items():
        registry.register(HomespunConfig, model, exist_ok=True)
