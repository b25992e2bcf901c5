"""JSON files of a corpus: its description, and the manifest of a build."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt, Strict
from pydantic.dataclasses import dataclass

from homespun.text.tokenizer import Tokenizer

VERSION: Literal[2] = 2
DESCRIPTION = "corpus.json"
MANIFEST = "building.jsonl"
TOKENIZER = "tokenizer"

_Count = Annotated[NonNegativeInt, Strict(), Field(lt=2**63)]  # int64 of Arrow


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True)


@dataclass(frozen=True, slots=True)
class ShardRecord:
    """Name, size and checksum of a shard."""

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

    version: Literal[1, 2] = VERSION
    documents: NonNegativeInt
    tokens: NonNegativeInt
    bytes: NonNegativeInt
    words: NonNegativeInt | None = None  # may be missing in version 1
    sentences: bool
    tokenizer: TokenizerFacts
    labels: dict[str, NonNegativeInt]
    shards: PositiveInt | Annotated[list[ShardRecord], Field(min_length=1)]  # number of shards; version 1: all records
    shards_checksum: str = ""  # blake2b of the list of the shards


class Line(_Strict):
    """Line of ``building.jsonl`` after the first: a shard, and totals up to its end."""

    shard: ShardRecord
    consumed: NonNegativeInt  # documents of the stream, including those without tokens
    bytes: NonNegativeInt
    words: NonNegativeInt
    labels: dict[str, NonNegativeInt]
