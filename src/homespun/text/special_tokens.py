"""The roles of special tokens: which token of a vocabulary pads, which begins a text, which ends it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from homespun.io.json import read_json
from homespun.text.vocabularies import CLS, MASK, PAD, SEP, UNK

ROLES = ("pad", "unk", "cls", "sep", "mask", "bos", "eos")

# What the token of a role is usually called, for a tokenizer.json that comes without a word about it.
USUAL_NAMES = {
    "pad": (PAD, "<pad>", "<|pad|>", "<|padding|>"),
    "unk": (UNK, "<unk>"),
    "cls": (CLS, "<s>", "<cls>"),
    "sep": (SEP, "</s>", "<sep>"),
    "mask": (MASK, "<mask>"),
    "bos": ("<s>", "<bos>", "<|begin_of_text|>", "<|endoftext|>"),
    "eos": ("</s>", "<eos>", "<|end_of_text|>", "<|endoftext|>"),
}
# A model that has no [CLS] or [SEP] begins and ends its sequences with these instead, and one without [PAD] pads with
# the end of a text, or with what is unknown (GPT-2, GPT): no model reads its padding.
FALLBACK_ROLES = {"cls": ("bos",), "sep": ("eos",), "pad": ("eos", "unk")}


def find_token(role: str, roles: Mapping[str, str]) -> str | None:
    """The token of a role, or the one that stands in for it."""
    return next((roles[name] for name in (role, *FALLBACK_ROLES.get(role, ())) if name in roles), None)


def find_roles(tree: dict[str, Any], vocabulary: Mapping[str, int], folder: Path) -> dict[str, str]:
    """The token of each role that the vocabulary has: the one that is named, or the one with a usual name.

    One that names what a text begins or ends with, and no [CLS] or [SEP], has none.
    """
    named = _read_roles(folder)
    roles = {}
    for role in ROLES:
        usual = [*USUAL_NAMES[role], *_model_unknown(role, tree)]
        has_fallback = role in ("cls", "sep") and FALLBACK_ROLES[role][0] in named
        candidates = [named[role]] if role in named else [] if has_fallback else usual
        present = [token for token in candidates if token in vocabulary]
        if present:
            roles[role] = present[0]
    return roles


def _read_roles(folder: Path) -> dict[str, str]:
    """The roles that the files beside a tokenizer.json name: values are the token, or an object with its content."""
    roles: dict[str, str] = {}
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        file = folder / name
        if not file.is_file():
            continue
        config = read_json(file)
        for role in ROLES:
            value = config.get(f"{role}_token") if isinstance(config, dict) else None
            token = value.get("content") if isinstance(value, dict) else value
            if isinstance(token, str):
                roles.setdefault(role, token)
    return roles


def _model_unknown(role: str, tree: dict[str, Any]) -> list[str]:
    """The token that the model itself falls back on, for the role ``unk``."""
    model = tree["model"]
    if role != "unk":
        return []
    if model.get("unk_id") is not None:
        return [model["vocab"][model["unk_id"]][0]]
    return [model["unk_token"]] if model.get("unk_token") else []
