"""Special tokens: their roles in a vocabulary, and their template around texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from tokenizers import Encoding, models
from tokenizers import Tokenizer as Engine

from homespun.config import Tree
from homespun.io.json import read_optional
from homespun.text.vocabularies import CLS, MASK, PAD, SEP, UNK

ROLES = ("pad", "unk", "cls", "sep", "mask", "bos", "eos")

# default names, for a tokenizer.json without configuration
USUAL_NAMES = {
    "pad": (PAD, "<pad>", "<|pad|>", "<|padding|>"),
    "unk": (UNK, "<unk>"),
    "cls": (CLS, "<s>", "<cls>"),
    "sep": (SEP, "</s>", "<sep>"),
    "mask": (MASK, "<mask>"),
    "bos": ("<s>", "<bos>", "<|begin_of_text|>", "<|endoftext|>"),
    "eos": ("</s>", "<eos>", "<|end_of_text|>", "<|endoftext|>"),
}
# roles that replace a missing [CLS], [SEP] or [PAD] (GPT-2, GPT); padding is never attended to
FALLBACK_ROLES = {"cls": ("bos",), "sep": ("eos",), "pad": ("eos", "unk")}


def find_token(role: str, roles: Mapping[str, str]) -> str | None:
    """Return the token of a role, or of its fallback."""
    return next((roles[name] for name in (role, *FALLBACK_ROLES.get(role, ())) if name in roles), None)


def find_roles(tree: Tree, vocabulary: Mapping[str, int], folder: Path) -> dict[str, str]:
    """Find the token of each role in the vocabulary: the one that ``folder`` configures, or a default name.

    A tokenizer that configures bos or eos, but no cls or sep, has no cls or sep.
    """
    configured = _read_roles(folder)
    roles = {}
    for role in ROLES:
        defaults = [*USUAL_NAMES[role], *_model_unknown(role, tree)]
        has_fallback = role in ("cls", "sep") and FALLBACK_ROLES[role][0] in configured
        candidates = [configured[role]] if role in configured else [] if has_fallback else defaults
        present = [token for token in candidates if token in vocabulary]
        if present:
            roles[role] = present[0]
    return roles


def _read_roles(folder: Path) -> dict[str, str]:
    """Read roles from the files next to a tokenizer.json, where values are the token or an object with its content."""
    roles: dict[str, str] = {}
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        config = read_optional(folder / name)
        for role in ROLES:
            value = config.get(f"{role}_token")
            token = value.get("content") if isinstance(value, dict) else value
            if isinstance(token, str):
                roles.setdefault(role, token)
    return roles


def _model_unknown(role: str, tree: Tree) -> list[str]:
    """Return the unknown token of the model, for the role ``unk``."""
    model = tree["model"]
    if role != "unk":
        return []
    if model.get("unk_id") is not None:
        return [model["vocab"][model["unk_id"]][0]]
    return [model["unk_token"]] if model.get("unk_token") else []


@dataclass(frozen=True)
class SpecialTokensTemplate:
    """Ids of special tokens: (before, after) a text; (before, between, after) a pair."""

    single: tuple[list[int], list[int]] = ([], [])
    pair: tuple[list[int], list[int], list[int]] = ([], [], [])

    @classmethod
    def of(cls, engine: Engine) -> SpecialTokensTemplate:
        """Read the template of a tokenizer; empty if it has none."""
        bare = Engine(models.WordLevel({"a": 0}, unk_token="a"))  # tokenizes "a" to one token
        if engine.post_processor is not None:
            bare.post_processor = engine.post_processor
        (before, after), (first, between, last) = _around(bare.encode("a")), _around(bare.encode("a", "a"))
        return cls((before, after), (first, between, last))

    @classmethod
    def between(cls, begin: int, end: int) -> SpecialTokensTemplate:
        """Build the template ``begin A end`` and ``begin A end B end``."""
        return cls(([begin], [end]), ([begin], [end], [end]))

    def add_to(self, tree: Tree, tokens: Sequence[str]) -> None:
        """Set the template of the tokenizer.json ``tree``, which has none; ``tokens`` are ordered by id."""

        def special(ids: list[int], segment: int) -> list[object]:
            return [{"SpecialToken": {"id": tokens[i], "type_id": segment}} for i in ids]

        (begins, ends), (before, between, after) = self.single, self.pair
        first, second = ({"Sequence": {"id": name, "type_id": segment}} for name, segment in (("A", 0), ("B", 1)))
        used = sorted({*begins, *ends, *before, *between, *after})
        template = {
            "type": "TemplateProcessing",
            "single": [*special(begins, 0), first, *special(ends, 0)],
            "pair": [*special(before, 0), first, *special(between, 0), second, *special(after, 1)],
            "special_tokens": {tokens[i]: {"id": tokens[i], "ids": [i], "tokens": [tokens[i]]} for i in used},
        }
        present = tree.get("post_processor")
        tree["post_processor"] = {"type": "Sequence", "processors": [present, template]} if present else template


def _around(encoding: Encoding) -> list[list[int]]:
    """Return the special tokens before, between and after texts of one token each."""
    positions = [position for position, text in enumerate(encoding.sequence_ids) if text is not None]
    edges = [-1, *positions, len(encoding.ids)]
    return [encoding.ids[begin + 1 : end] for begin, end in pairwise(edges)]
