"""Arguments of `Model.generate`, named as in `transformers`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Literal, TypedDict

from pydantic import BeforeValidator, Field, model_validator

from homespun.config import Config, Tree, validate
from homespun.errors import UserError

MAX_NEW_TOKENS = 20  # where neither it nor max_length is given, as there
TokenId = Annotated[int, Field(ge=0)]


@dataclass(frozen=True)
class SpecialTokens:
    """The tokens of a model that writing depends on, where nothing else is asked for.

    Args:
        pad_token_id: what fills the rows that have ended.
        eos_token_id: ends a text; None: nothing but its length does.
        decoder_start_token_id: what a decoder reads before the first token that it writes.
        forced_bos_token_id: what it writes first, whatever is likely.
        forced_eos_token_id: what it writes last where the length ends a text.
    """

    pad_token_id: int = 0
    eos_token_id: int | None = None
    decoder_start_token_id: int = 0
    forced_bos_token_id: int | None = None
    forced_eos_token_id: int | None = None


GENERATION_TOKENS = {field.name for field in fields(SpecialTokens)}


class GenerationArguments(TypedDict, total=False):
    """Keyword arguments of `Model.generate`; `GenerationConfig` describes them."""

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
    """The arguments, checked. A token that is not given is the model's; None says that there is to be none."""

    max_new_tokens: int | None = Field(default=None, ge=1, description="tokens to write at the most")
    max_length: int | None = Field(default=None, ge=1, description="the same, counted with the prompt and its padding")
    min_new_tokens: int = Field(default=0, ge=0, description="before these are written no token ends a text")
    min_length: int = Field(default=0, ge=0, description="the same, counted with the prompt and its padding")
    num_beams: int = Field(
        default=1, ge=1, description="texts that are held at a time; 1: the likeliest token is taken"
    )
    num_return_sequences: int = Field(default=1, ge=1, description="texts to a prompt: beams, or samples")
    length_penalty: float = Field(
        default=1.0, allow_inf_nan=False, description="a beam's score is its log-probability / length^this"
    )
    early_stopping: Annotated[bool, Field(strict=True)] | Literal["never"] = Field(
        default=False,
        description="end with num_beams texts (true), when none is likely to be better, or can be (never)",
    )
    do_sample: bool = Field(default=False, description="draw tokens from their distribution")
    temperature: float = Field(default=1.0, gt=0, description="scores are divided by it")
    top_k: int = Field(default=0, ge=0, description="draw from the so many likeliest; 0: from all")
    top_p: float = Field(default=1.0, gt=0, le=1, description="draw from the likeliest that have this share together")
    seed: int = Field(default=0, ge=0, description="of the draws; what is drawn for a text depends on it and the text")
    no_repeat_ngram_size: int = Field(default=0, ge=0, description="no so many tokens in a row come twice; 0: they may")
    use_cache: bool = Field(default=True, description="keep the keys of earlier tokens; false: read all for each token")
    pad_token_id: TokenId
    eos_token_id: Annotated[tuple[TokenId, ...], BeforeValidator(lambda value: _several(value))] = Field(
        description="tokens that end a text"
    )
    decoder_start_token_id: TokenId
    forced_bos_token_id: TokenId | None
    forced_eos_token_id: TokenId | None

    @model_validator(mode="after")
    def _goes_together(self) -> GenerationConfig:
        drawing = [name for name in ("temperature", "top_k", "top_p", "seed") if name in self.model_fields_set]
        if drawing and not self.do_sample:
            raise ValueError(f"{drawing[0]} is for drawing tokens; give do_sample=True, or leave it out")
        if self.do_sample and self.num_beams > 1:
            named = ", ".join(drawing) or "do_sample"
            raise ValueError(f"{named} and num_beams={self.num_beams} exclude each other; leave one out")
        if self.num_beams == 1 and "length_penalty" in self.model_fields_set:
            raise ValueError("length_penalty is for beams; give num_beams=2 or more, or leave it out")
        if not self.do_sample and self.num_return_sequences > self.num_beams:
            raise ValueError(
                f"num_return_sequences={self.num_return_sequences} of num_beams={self.num_beams}; there are as many "
                f"texts as beams, or draw them: do_sample=True, or in a command --seed"
            )
        if self.max_new_tokens is not None and self.max_length is not None:
            raise ValueError("max_new_tokens and max_length say the same; give one")
        return self

    @classmethod
    def of(cls, arguments: Mapping[str, object], tokens: SpecialTokens) -> GenerationConfig:
        """The arguments, with the model's tokens where they name none.

        Raises:
            UserError: naming an argument that there is none of, or a value that it cannot have.
        """
        own: Tree = vars(tokens) | {"eos_token_id": () if tokens.eos_token_id is None else tokens.eos_token_id}
        return validate(cls, own | dict(arguments), source="generate")

    def steps(self, prompt: int) -> tuple[int, int]:
        """Tokens to write at the most, and at the least, after a prompt so long.

        Raises:
            UserError: ``max_length`` leaves none, or fewer than there must be.
        """
        most = self.max_new_tokens or MAX_NEW_TOKENS
        if self.max_length is not None:
            most = self.max_length - prompt
            if most < 1:
                raise UserError(
                    f"max_length={self.max_length} counts the prompt, which has {prompt} tokens; give "
                    f"max_length={prompt + MAX_NEW_TOKENS}, or max_new_tokens"
                )
        least = max(self.min_new_tokens, self.min_length - prompt)
        if least > most:
            raise UserError(
                f"{least} tokens at the least (min_new_tokens, min_length) are more than the {most} at the most; give "
                f"max_new_tokens={least} or more"
            )
        return most, least


def check_beams(num_beams: int, vocab_size: int) -> None:
    """Of each text twice as many tokens are looked at as it has beams.

    Raises:
        UserError: there are not so many.
    """
    if 2 * num_beams > vocab_size:
        raise UserError(f"num_beams={num_beams} of a vocabulary of {vocab_size}; take at most half as many")


def _several(value: object) -> object:
    """One token, several or none, as several."""
    return () if value is None else (value,) if isinstance(value, int) else value
