"""Sentinels: tokens that replace spans cut out of a text, ``<extra_id_0>`` for the first (Raffel et al. 2020)."""

from __future__ import annotations

import json

from homespun.errors import UserError
from homespun.text.tokenizer import Tokenizer, sentinel


def with_sentinels(tokenizer: Tokenizer, count: int) -> Tokenizer:
    """Add ``count`` sentinels after the other ids, the first of them last, as in T5's released tokenizers.

    All other ids stay. Sentinels are special tokens, so no text can contain one.

    Raises:
        UserError: the tokenizer has sentinels, or cannot be extended.
    """
    if len(tokenizer.sentinel_ids):
        raise UserError(f"this tokenizer has {len(tokenizer.sentinel_ids)} sentinels already; leave --sentinels out")
    if count < 1:
        raise UserError(f"--sentinels {count}: must be 1 or more; T5 has 100")
    tree = json.loads(tokenizer.content)
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    first = tokenizer.vocab_size
    tree["added_tokens"] += [{"id": first + n, "content": sentinel(count - 1 - n), **plain} for n in range(count)]
    made = Tokenizer(json.dumps(tree, ensure_ascii=False), tokenizer.roles)
    if made.sentinel_ids.tolist() != list(range(first + count - 1, first - 1, -1)):
        raise UserError(f"this {tokenizer.kind} tokenizer numbers its tokens in a way that none can be added to it")
    return made
