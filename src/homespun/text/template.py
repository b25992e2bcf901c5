"""The special tokens that a tokenizer.json puts around a text, and around and between the two of a pair."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tokenizers import Encoding, models
from tokenizers import Tokenizer as Engine


@dataclass(frozen=True)
class SpecialTokensTemplate:
    """Ids of special tokens.

    Args:
        single: before a text, and after it.
        pair: before the first text, between both, and after the second.
    """

    single: tuple[list[int], list[int]] = ([], [])
    pair: tuple[list[int], list[int], list[int]] = ([], [], [])

    @classmethod
    def of(cls, engine: Engine) -> SpecialTokensTemplate:
        """What the template of a tokenizer says; nothing where it has none."""
        bare = Engine(models.WordLevel({"a": 0}, unk_token="a"))  # of a text that is one token, whatever the vocabulary
        if engine.post_processor is not None:
            bare.post_processor = engine.post_processor
        before, after = _around(bare.encode("a"))
        return cls((before, after), _around(bare.encode("a", "a")))

    @classmethod
    def between(cls, begin: int, end: int) -> SpecialTokensTemplate:
        """``begin A end``, and ``begin A end B end``."""
        return cls(([begin], [end]), ([begin], [end], [end]))

    def add_to(self, tree: dict[str, Any], tokens: Sequence[str]) -> None:
        """Make it the template of the tokenizer.json ``tree``, which has none; ``tokens`` are those of each id."""

        def special(ids: list[int], segment: int) -> list[Mapping[str, Any]]:
            return [{"SpecialToken": {"id": tokens[i], "type_id": segment}} for i in ids]

        def text(name: str, segment: int) -> Mapping[str, Any]:
            return {"Sequence": {"id": name, "type_id": segment}}

        begins, ends = self.single
        before, between, after = self.pair
        used = sorted({*begins, *ends, *before, *between, *after})
        template = {
            "type": "TemplateProcessing",
            "single": [*special(begins, 0), text("A", 0), *special(ends, 0)],
            "pair": [*special(before, 0), text("A", 0), *special(between, 0), text("B", 1), *special(after, 1)],
            "special_tokens": {tokens[i]: {"id": tokens[i], "ids": [i], "tokens": [tokens[i]]} for i in used},
        }
        first = tree.get("post_processor")
        tree["post_processor"] = {"type": "Sequence", "processors": [first, template]} if first else template


def _around(encoding: Encoding) -> Any:
    """The special tokens of an encoding of texts of one token each: before, between and after these."""
    places = [place for place, text in enumerate(encoding.sequence_ids) if text is not None]
    edges = [-1, *places, len(encoding.ids)]
    return tuple(encoding.ids[begin + 1 : end] for begin, end in pairwise(edges))
