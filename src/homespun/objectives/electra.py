"""Replaced token detection (Clark et al. 2020): a generator replaces tokens, a discriminator detects them."""

from __future__ import annotations

import math
from typing import Literal

import torch
from pydantic import Field
from torch import nn
from torch.nn import functional as F

from homespun.batch import Batch, Loss, Term
from homespun.errors import UserError
from homespun.models.bundle import ModelBundle
from homespun.models.config import ModelConfig
from homespun.models.encoder import EncoderConfig, initialise
from homespun.models.heads import DiscriminatorHeadConfig, MaskedLMHeadConfig, enhanced_mask_decoder
from homespun.models.model import Model
from homespun.models.weight_transfer import TransferReport, transfer_weights
from homespun.objectives.mlm import MlmCollator, TokenReplacement, gather_positions, require_bidirectional
from homespun.objectives.protocol import PretrainingConfig, UnigramTerm, reuse_head
from homespun.text.tokenizer import Tokenizer
from homespun.text.vocabulary_extension import AddedTokens


class Electra(PretrainingConfig):
    """Generator and discriminator with tied embeddings, trained jointly; only the discriminator is exported."""

    kind: Literal["electra"] = "electra"
    probability: float = Field(default=0.15, gt=0, lt=1, description="share of tokens that the generator predicts")
    mask_share: float = Field(
        default=0.85, ge=0, le=1, description="share of these that are masked; the others are unchanged"
    )
    generator_size: float = Field(default=0.25, gt=0, le=1, description="width of the generator / discriminator")
    generator_layers: float = Field(default=1.0, gt=0, le=1, description="depth of the generator / discriminator")
    discriminator_weight: float = Field(default=50.0, gt=0, description="weight of the loss of the discriminator")
    whole_words: bool = Field(default=False, description="mask all pieces of a word together")

    @property
    def unigram_term(self) -> UnigramTerm:
        return UnigramTerm("generator", self.mask_share)

    def collate(self, tokenizer: Tokenizer) -> MlmCollator:
        """Build the collate that masks tokens for the generator; the forward pass makes the discriminator input."""
        return MlmCollator(
            pad_id=tokenizer.pad_id,
            special=tokenizer.special_mask,
            replace=TokenReplacement.of(tokenizer, mask_share=self.mask_share, random_share=0.0),
            word_starts=tokenizer.word_starts if self.whole_words else None,
            probability=self.probability,
            terms=("generator", "generator_accuracy"),
            token_terms=("discriminator", "discriminator_accuracy"),
        )

    def generator(self, backbone: EncoderConfig) -> EncoderConfig:
        """Build the config of the generator: a narrower discriminator, with heads of equal width if divisible."""
        layer = backbone.residual.layer_size(backbone.hidden_size)
        narrow = max(1, round(layer * self.generator_size))
        hidden = backbone.hidden_size // layer * narrow  # the generator has as many streams as the discriminator
        heads = math.gcd(narrow, max(1, round(backbone.num_attention_heads * self.generator_size)))
        return backbone.model_copy(
            update={
                "embedding_size": backbone.embedding_size or backbone.hidden_size,
                "hidden_size": hidden,
                "num_attention_heads": heads,
                "intermediate_size": max(1, round(backbone.intermediate_size * self.generator_size)),
                "num_hidden_layers": max(1, round(backbone.num_hidden_layers * self.generator_layers)),
            }
        )

    def build(self, model: ModelConfig, tokenizer: Tokenizer) -> ElectraObjective:
        """Build the objective; the discriminator has the backbone of ``model``, and its head or a new head.

        Raises:
            UserError: the backbone is causal.
        """
        stack = model.one_stack("objective electra")
        require_bidirectional(model, "electra")
        config = reuse_head(model, DiscriminatorHeadConfig(hidden_act=stack.hidden_act))
        discriminator = config.build()
        generator_config = ModelConfig(backbone=self.generator(stack), head=MaskedLMHeadConfig())
        backbone = self.generator(stack).build(discriminator.backbone.embeddings)
        head = MaskedLMHeadConfig().build(backbone)
        initialise(head.modules(), model.backbone.initializer_range)
        generator = Model(backbone, head, reader=enhanced_mask_decoder)
        weight = self.discriminator_weight
        return ElectraObjective(generator, discriminator, config, generator_config=generator_config, weight=weight)


class ElectraObjective(nn.Module):
    """Compute the terms ``generator`` (masked LM) and ``discriminator`` (binary), and their accuracies.

    The discriminator classifies all tokens except padding. Tokens are sampled from the generator without a gradient; a
    sample that equals the original counts as original.
    """

    def __init__(
        self,
        generator: Model,
        discriminator: Model,
        config: ModelConfig,
        *,
        generator_config: ModelConfig,
        weight: float,
    ) -> None:
        super().__init__()
        self.generator_config = generator_config
        self.generator = generator
        self.discriminator = discriminator
        self.config = config
        self.weight = weight

    def load_generator(self, given: ModelBundle, words: AddedTokens) -> TransferReport:
        """Copy weights of a checkpoint into the generator, except the embeddings, which are shared.

        Raises:
            UserError: the generator has another size, or is not a transformer of one stack.
        """
        mine, theirs = (config.one_stack("a generator") for config in (self.generator_config, given.config))
        for name in ("embedding_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"):
            ours, other = getattr(mine, name), getattr(theirs, name)
            if name == "embedding_size":
                ours, other = ours or mine.hidden_size, other or theirs.hidden_size
            if ours != other:
                raise UserError(
                    f"the generator given has {name}={other} and this recipe's has {ours}; set "
                    f"objective.generator_size and objective.generator_layers to its size, or leave --generator out"
                )
        embeddings = self.discriminator.backbone.embeddings
        shared = {name: tensor.clone() for name, tensor in embeddings.state_dict().items()}
        origins = transfer_weights(given, self.generator, self.generator_config, words=words)
        embeddings.load_state_dict(shared)
        return origins

    def forward(self, batch: Batch) -> Loss:
        """Run the generator, sample a token for each label, and run the discriminator on the result."""
        assert batch.positions is not None
        assert batch.labels is not None
        masked = gather_positions(self.generator.read(batch.input_ids, batch.context), batch.positions)
        uniforms = torch.rand(len(batch.labels), device=masked.device)
        prediction = self.generator.lm_head.predict(masked, batch.labels, uniforms=uniforms)
        samples = prediction.samples
        assert samples is not None
        # all labelled positions take their sample, also those that were not masked, as in the released code
        filled = batch.input_ids.flatten().index_copy(0, batch.positions, samples).view_as(batch.input_ids)
        differs = (samples != batch.labels).float()
        replaced = torch.zeros(filled.numel(), device=filled.device).index_copy_(0, batch.positions, differs)
        logits = self.discriminator(filled, **batch.context).float().flatten()  # (batch * seq,)
        keep = None if batch.attention_mask is None else batch.attention_mask.flatten().float()
        loss = F.binary_cross_entropy_with_logits(logits, replaced, weight=keep, reduction="sum")
        right = ((logits > 0) == replaced.bool()).float()
        tokens = float(logits.numel()) if keep is None else keep.sum()
        detected = (logits.index_select(0, batch.positions) > 0) & differs.bool()
        count = len(batch.labels)
        return Loss(
            {
                "generator": Term(prediction.loss, count),
                "discriminator": Term(loss, tokens, weight=self.weight),
                "generator_accuracy": Term(prediction.correct, count, weight=0.0),
                "discriminator_accuracy": Term((right if keep is None else right * keep).sum(), tokens, weight=0.0),
                "replaced_recall": Term(detected.sum(), differs.sum(), weight=0.0),
            }
        )

    def export_model(self) -> tuple[Model, ModelConfig]:
        """Return the discriminator and its config."""
        return self.discriminator, self.config
