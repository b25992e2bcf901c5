"""Sentinels: tokens that stand for what was cut out of a text, ``<extra_id_0>`` for the first (Raffel et al. 2020)."""

from __future__ import annotations

import json

from homespun.errors import UserError
from homespun.text.tokenizer import Tokenizer, sentinel


def with_sentinels(tokenizer: Tokenizer, count: int) -> Tokenizer:
    """The tokenizer with ``count`` sentinels behind its ids, the first of them last, as T5's released ones have them.

    All other ids stay. They are special tokens: no text can smuggle one in.

    Raises:
        UserError: it has some already, or numbers its tokens in a way that none can be added to it.
    """
    if len(tokenizer.sentinel_ids):
        raise UserError(f"this tokenizer has {len(tokenizer.sentinel_ids)} sentinels already; leave --sentinels out")
    if count < 1:
        raise UserError(f"--sentinels {count}: give how many, 1 or more; T5 has 100")
    tree = json.loads(tokenizer.content)
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    first = tokenizer.vocab_size
    tree["added_tokens"] += [
        {"id": first + place, "content": sentinel(count - 1 - place), **plain} for place in range(count)
    ]
    made = Tokenizer(json.dumps(tree, ensure_ascii=False), tokenizer.roles)
    if made.sentinel_ids.tolist() != list(range(first + count - 1, first - 1, -1)):
        raise UserError(f"this {tokenizer.kind} tokenizer numbers its tokens in a way that none can be added to it")
    return made
