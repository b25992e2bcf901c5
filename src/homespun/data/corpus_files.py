"""JSON files of a corpus: its description, and the manifest of a build."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt, Strict, model_validator
from pydantic.dataclasses import dataclass

from homespun.text.tokenizer import Tokenizer

VERSION: Literal[1] = 1

_Count = Annotated[NonNegativeInt, Strict()]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True)


@dataclass(frozen=True, slots=True)
class ShardRecord:
    """Name, size and checksum of a shard. Takes about 350 bytes: a large corpus has 10^5 shards."""

    name: Annotated[str, Field(pattern=r"^[^/\\\x00]+$")]  # of a file in the folder
    documents: _Count
    tokens: _Count
    size: _Count  # bytes of the file
    checksum: str  # blake2b of the file


class TokenizerFacts(_Strict):
    """Facts that identify the tokenizer of a corpus."""

    fingerprint: str
    kind: str
    vocab_size: PositiveInt

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> TokenizerFacts:
        return cls(fingerprint=tokenizer.fingerprint, kind=tokenizer.kind, vocab_size=tokenizer.vocab_size)

    def __str__(self) -> str:
        return f"tokenizer {self.fingerprint[:12]} ({self.kind}, {self.vocab_size:,} tokens)"


class Description(_Strict):
    """Content of ``corpus.json``."""

    version: Literal[1] = VERSION
    documents: NonNegativeInt
    tokens: NonNegativeInt
    bytes: NonNegativeInt
    words: NonNegativeInt | None = None
    sentences: bool
    tokenizer: TokenizerFacts
    labels: dict[str, NonNegativeInt]
    shards: list[ShardRecord] = Field(min_length=1)

    @model_validator(mode="after")
    def _check_sums(self) -> Self:
        if self.documents != sum(shard.documents for shard in self.shards):
            raise ValueError("the shards have another number of documents")
        if self.tokens != sum(shard.tokens for shard in self.shards):
            raise ValueError("the shards have another number of tokens")
        return self


class Line(_Strict):
    """Line of ``building.jsonl`` after the first: a shard, and totals up to its end."""

    shard: ShardRecord
    consumed: NonNegativeInt  # documents of the stream, including those without tokens
    bytes: NonNegativeInt
    words: NonNegativeInt | None = None  # missing in old manifests
    labels: dict[str, NonNegativeInt]
