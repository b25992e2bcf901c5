"""Text generation for rows of token ids, in batches."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from homespun.config import Config
from homespun.data.rows import Row, pad
from homespun.models.generation.settings import GenerationArguments
from homespun.models.model import Model
from homespun.text.tokenizer import Tokenizer


class TextGenerationConfig(Config):
    """Settings of generation; the names are those of `Model.generate`."""

    num_beams: int = Field(default=1, ge=1, description="beams of beam search; 1: greedy search")
    length_penalty: float = Field(
        default=1.0, allow_inf_nan=False, description="a beam's score is its log-probability / length^this"
    )
    no_repeat_ngram_size: int = Field(default=3, ge=0, description="length of n-grams that may not repeat; 0: all may")
    min_new_tokens: int = Field(default=0, ge=0, description="tokens before the end of a text is allowed")


def generate_batch(
    model: Model,
    sources: Sequence[Row],
    tokenizer: Tokenizer,
    *,
    end_id: int,
    max_new_tokens: int,
    generation: TextGenerationConfig,
    batch_size: int = 32,
) -> list[str]:
    """Generate a text for each of ``sources``, in their order.

    Args:
        model: a language model, used on its device.
        sources: token ids with their special tokens. The longest are first, so that too large a batch fails at once.
        tokenizer: of the model.
        end_id: token that ends a text.
        max_new_tokens: maximum length of a text.
        generation: settings of generation.
        batch_size: rows at a time.
    """
    device = next(model.parameters()).device
    arguments: GenerationArguments = {
        "max_new_tokens": max_new_tokens,
        "eos_token_id": end_id,
        "pad_token_id": tokenizer.pad_id,
        "num_beams": generation.num_beams,
        "no_repeat_ngram_size": generation.no_repeat_ngram_size,
        "min_new_tokens": generation.min_new_tokens,
    }
    if generation.num_beams > 1:
        arguments["length_penalty"] = generation.length_penalty
    order = sorted(range(len(sources)), key=lambda index: -len(sources[index].input_ids))
    texts = [""] * len(sources)
    for start in range(0, len(order), batch_size):
        chosen = order[start : start + batch_size]
        batch = pad([sources[index] for index in chosen], tokenizer.pad_id).to(device)
        ids = model.generate(
            batch.input_ids,
            batch.attention_mask,
            documents=batch.documents,
            position_ids=batch.position_ids,
            **arguments,
        )
        shown = 1 if model.backbone.has_decoder else batch.input_ids.shape[1]
        for index, row in zip(chosen, ids[:, shown:].tolist(), strict=True):
            texts[index] = tokenizer.decode(row).strip()
    return texts
