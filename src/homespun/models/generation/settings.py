"""Arguments of `Model.generate`, named as in `transformers`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Literal, TypedDict

from pydantic import BeforeValidator, Field, model_validator

from homespun.config import Config, Tree, validate
from homespun.errors import UserError

MAX_NEW_TOKENS = 20  # default without max_length, as in transformers
TokenId = Annotated[int, Field(ge=0)]


@dataclass(frozen=True)
class SpecialTokens:
    """Special tokens of a model, the defaults of `GenerationConfig`.

    Args:
        pad_token_id: fills finished rows.
        eos_token_id: token or tokens that end a text; None: only the maximum length does.
        decoder_start_token_id: first input token of a decoder.
        forced_bos_token_id: forced first token.
        forced_eos_token_id: forced last token at the maximum length.
    """

    pad_token_id: int = 0
    eos_token_id: int | tuple[int, ...] | None = None
    decoder_start_token_id: int = 0
    forced_bos_token_id: int | None = None
    forced_eos_token_id: int | None = None


GENERATION_TOKENS = {field.name for field in fields(SpecialTokens)}


class TextGenerationConfig(Config):
    """Settings of generation, named as in `Model.generate`."""

    num_beams: int = Field(default=1, ge=1, description="beams of beam search; 1: greedy search")
    length_penalty: float = Field(
        default=1.0, allow_inf_nan=False, description="a beam's score is its log-probability / length^this"
    )
    no_repeat_ngram_size: int = Field(default=3, ge=0, description="length of n-grams that may not repeat; 0: no limit")
    min_new_tokens: int = Field(default=0, ge=0, description="minimum number of tokens")


class GenerationArguments(TypedDict, total=False):
    """Keyword arguments of `Model.generate`, see `GenerationConfig`."""

    max_new_tokens: int
    max_length: int
    min_new_tokens: int
    min_length: int
    num_beams: int
    num_return_sequences: int
    length_penalty: float
    early_stopping: bool | Literal["never"]
    do_sample: bool
    temperature: float
    top_k: int
    top_p: float
    seed: int
    no_repeat_ngram_size: int
    use_cache: bool
    pad_token_id: int
    eos_token_id: int | Sequence[int] | None
    decoder_start_token_id: int
    forced_bos_token_id: int | None
    forced_eos_token_id: int | None


class GenerationConfig(Config):
    """Validated arguments of `Model.generate`; special tokens default to the model's, None disables one."""

    max_new_tokens: int | None = Field(default=None, ge=1, description="maximum number of new tokens")
    max_length: int | None = Field(default=None, ge=1, description="maximum length with the padded prompt")
    min_new_tokens: int = Field(default=0, ge=0, description="minimum number of new tokens")
    min_length: int = Field(default=0, ge=0, description="minimum length with the padded prompt")
    num_beams: int = Field(default=1, ge=1, description="beams; 1: greedy decoding")
    num_return_sequences: int = Field(default=1, ge=1, description="texts a prompt: beams or samples")
    length_penalty: float = Field(
        default=1.0, allow_inf_nan=False, description="score of a beam: log-probability / length^length_penalty"
    )
    early_stopping: Annotated[bool, Field(strict=True)] | Literal["never"] = Field(
        default=False,
        description="end with num_beams texts (true), if no better text is likely (false), or possible (never)",
    )
    do_sample: bool = Field(default=False, description="sample from the distribution")
    temperature: float = Field(default=1.0, gt=0, description="divide scores by it")
    top_k: int = Field(default=0, ge=0, description="sample from the most probable tokens; 0: all")
    top_p: float = Field(default=1.0, gt=0, le=1, description="sample from the most probable tokens with this total")
    seed: int = Field(default=0, ge=0, description="seed of samples, which depend on seed and text")
    no_repeat_ngram_size: int = Field(default=0, ge=0, description="size of n-grams that must not repeat; 0: off")
    use_cache: bool = Field(default=True, description="cache keys and values of earlier tokens")
    pad_token_id: TokenId
    eos_token_id: Annotated[tuple[TokenId, ...], BeforeValidator(lambda value: _to_tuple(value))] = Field(
        description="tokens that end a text"
    )
    decoder_start_token_id: TokenId
    forced_bos_token_id: TokenId | None
    forced_eos_token_id: TokenId | None

    @model_validator(mode="after")
    def _check_combinations(self) -> GenerationConfig:
        sampling = [name for name in ("temperature", "top_k", "top_p", "seed") if name in self.model_fields_set]
        if sampling and not self.do_sample:
            raise ValueError(f"{sampling[0]} needs do_sample=True; set it or remove {sampling[0]}")
        if self.do_sample and self.num_beams > 1:
            names = ", ".join(sampling) or "do_sample"
            raise ValueError(f"{names} and num_beams={self.num_beams} exclude each other; remove one")
        of_beams = "length_penalty" if "length_penalty" in self.model_fields_set else "early_stopping"
        if self.num_beams == 1 and (of_beams == "length_penalty" or self.early_stopping):
            raise ValueError(f"{of_beams} needs num_beams of at least 2; set it or remove {of_beams}")
        if not self.do_sample and self.num_return_sequences > self.num_beams:
            raise ValueError(
                f"num_return_sequences={self.num_return_sequences} must be at most num_beams={self.num_beams}; "
                f"increase num_beams or set do_sample=True (--seed on the command line)"
            )
        if self.max_new_tokens is not None and self.max_length is not None:
            raise ValueError("max_new_tokens and max_length exclude each other; remove one")
        return self

    @classmethod
    def of(cls, arguments: Mapping[str, object], tokens: SpecialTokens, vocab_size: int) -> GenerationConfig:
        """Validate arguments, with default tokens.

        Raises:
            UserError: an unknown name, an invalid value, or a token or a number of beams that exceeds the vocabulary.
        """
        defaults: Tree = vars(tokens) | {"eos_token_id": () if tokens.eos_token_id is None else tokens.eos_token_id}
        config = validate(cls, defaults | dict(arguments), source="generate")
        check_beams(config.num_beams, vocab_size)
        for name in GENERATION_TOKENS & arguments.keys():
            value = getattr(config, name)
            for token in value if isinstance(value, tuple) else (value,):
                if token is not None and token >= vocab_size:
                    raise UserError(f"{name}={token} must be below vocab_size={vocab_size}")
        # the end token of a checkpoint may be missing in its vocabulary; then only the length ends a text
        known = tuple(token for token in config.eos_token_id if token < vocab_size)
        return config.model_copy(update={"eos_token_id": known})

    def steps(self, prompt: int) -> tuple[int, int]:
        """Return the maximum and minimum number of new tokens after a prompt of ``prompt`` tokens.

        Raises:
            UserError: the maximum is below 1 or below the minimum.
        """
        maximum = self.max_new_tokens or MAX_NEW_TOKENS
        if self.max_length is not None:
            maximum = self.max_length - prompt
            if maximum < 1:
                raise UserError(
                    f"max_length={self.max_length} includes the prompt of {prompt} tokens; set "
                    f"max_length={prompt + MAX_NEW_TOKENS} or max_new_tokens"
                )
        minimum = max(self.min_new_tokens, self.min_length - prompt)
        if minimum > maximum:
            raise UserError(
                f"the minimum of {minimum} new tokens (min_new_tokens, min_length) exceeds the maximum of {maximum}; "
                f"set max_new_tokens={minimum}"
            )
        return maximum, minimum


def check_beams(num_beams: int, vocab_size: int) -> None:
    """Raise `UserError` if the vocabulary has fewer than two tokens a beam."""
    if 2 * num_beams > vocab_size:
        raise UserError(f"num_beams={num_beams} must be at most half of vocab_size={vocab_size}")


def _to_tuple(value: object) -> object:
    return () if value is None else (value,) if isinstance(value, int) else value
