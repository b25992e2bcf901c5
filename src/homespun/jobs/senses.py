"""One word in several contexts: the vectors that a model has of it there, and which of them are near each other."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from homespun.data.padding import pad
from homespun.data.rows import Row
from homespun.errors import UserError
from homespun.hf.open import open_model
from homespun.models.backbone import Encoder
from homespun.models.bundle import ModelBundle
from homespun.text.sources import read_documents

_BATCH = 32
_AROUND = 50  # characters that are shown on either side of the word
_LENGTH = 128  # tokens that are read around it, where the model does not say how many it was taught on


@dataclass(frozen=True)
class _Occurrence:
    """The word in a text: what is shown of it, what is read of it, and where in that the word stands.

    ``known``: the tokenizer has some piece of it; else the model has not read it at all.
    """

    known: bool
    shown: str
    ids: NDArray[np.int64]
    first: int
    end: int


def senses(
    run: str,
    word: str,
    *,
    texts: Sequence[str] = (),
    inputs: Sequence[str] = (),
    text_field: str = "text",
    encoding: str | None = None,
    columns: Sequence[str] | None = None,
    sentence: str | None = None,
    layer: int | None = None,
    nearest: int = 5,
    most: int = 1000,
) -> dict[str, Any]:
    """Where else a word is used as it is here: of each occurrence the nearest others, by the cosine of their vectors.

    A vector is the mean of those of the word's pieces, in upper or lower case, in a text that is cut around it to the
    length that the model was taught on.

    Args:
        run: a run or a model of one stack, such as an ELMo or a BERT.
        word: as it is written; several words may be one.
        texts: where it is looked for.
        inputs: files where it is looked for, as everywhere, with ``text_field``, ``encoding`` and ``columns``.
        sentence: compare the word in this text alone, which is not among the others.
        layer: whose vectors: 0 is what enters the layers; the last one where not given.
        nearest: how many of each.
        most: occurrences that are looked at, the first ones; those that the tokenizer does not know are passed over.

    Returns:
        ``word``, ``layer``, ``layers`` (of the model), ``occurrences``, and ``senses``: of each occurrence (or of the
        sentence) ``text`` and ``nearest`` [{``cosine``, ``text``}], the nearest first.

    Raises:
        UserError: the word is not found, or too seldom to be compared, or the tokenizer does not know it; two stacks;
            no such layer.
    """
    if not word.strip():
        raise UserError("which word? give --word")
    if not texts and not inputs:
        raise UserError("where is the word to be looked for? give --text TEXT or --input FILE")
    stored = open_model(run)
    layers = stored.config.one_text("showing the senses of a word").num_hidden_layers
    chosen = layers if layer is None else layer
    if not 0 <= chosen <= layers:
        raise UserError(f"--layer {chosen}: the model has layers 1 to {layers}, and 0 is what enters them")
    documents = read_documents(inputs, text_field=text_field, encoding=encoding, columns=columns) if inputs else ()
    everywhere = chain(texts, (document.text for document in documents))
    seen = list(islice(_occurrences(stored, word, everywhere), most))
    own = [] if sentence is None else list(_occurrences(stored, word, [sentence]))[:1]
    if sentence is not None and not own:
        raise UserError(f"--sentence does not have the word {word!r} in it")
    found = [one for one in seen if one.known]
    if (seen and not found) or (own and not own[0].known):
        raise UserError(
            f"the tokenizer does not know the word {word!r}, and so nor does the model; add words with `homespun "
            f"tokenizer extend` and go on from the model with `pretrain --from`"
        )
    if not found:
        raise UserError(f"the word {word!r} is nowhere in these texts; it is looked for as a whole word, in any case")
    if len(found) < 2 and not own:
        raise UserError(f"the word {word!r} is in these texts once, and there is nothing to compare it with; give more")
    vectors = _vectors(stored, [*found, *own], chosen)
    asked = range(len(found), len(vectors)) if own else range(len(found))
    cosines = vectors[list(asked)] @ vectors[: len(found)].T  # (asked, found)
    told = []
    for place, number in enumerate(asked):
        near = [other for other in np.argsort(-cosines[place], kind="stable").tolist() if other != number][:nearest]
        told.append(
            {
                "text": (own[0] if own else found[number]).shown,
                "nearest": [
                    {"cosine": round(float(cosines[place, other]), 6), "text": found[other].shown} for other in near
                ],
            }
        )
    return {"word": word, "layer": chosen, "layers": layers, "occurrences": len(found), "senses": told}


def _occurrences(stored: ModelBundle, word: str, texts: Iterable[str]) -> Iterator[_Occurrence]:
    """Every place of the word, one after the other."""
    tokenizer = stored.tokenizer
    pattern = re.compile(rf"(?<!\w){re.escape(word.strip())}(?!\w)", re.IGNORECASE)
    limit = stored.config.backbone.max_position_embeddings
    length = stored.task.get("length")
    before, after = tokenizer.frame
    room = min(length if isinstance(length, int) else _LENGTH, limit) - len(before) - len(after)
    for text in texts:
        places = [match.span() for match in pattern.finditer(text)]
        if not places:
            continue
        ((ids, offsets),) = tokenizer.encode_with_offsets([text])
        for start, end in places:
            pieces = np.flatnonzero((offsets[:, 0] < end) & (offsets[:, 1] > start))
            if not len(pieces):
                continue
            first, last = int(pieces[0]), int(pieces[-1])
            begin = max(0, min((first + last + 1 - room) // 2, len(ids) - room))
            read = ids[begin : begin + room].astype(np.int64)
            framed = np.concatenate([before, read, after], dtype=np.int64, casting="unsafe")
            stand = len(before) + min(last + 1 - begin, len(read))
            known = tokenizer.unk_id is None or bool((ids[pieces] != tokenizer.unk_id).any())
            yield _Occurrence(known, _shown(text, start, end), framed, len(before) + max(first - begin, 0), stand)


def _shown(text: str, start: int, end: int) -> str:
    """The word in square brackets, with some of the text around it."""
    before, after = text[max(0, start - _AROUND) : start], text[end : end + _AROUND]
    cut = "…" * (start > _AROUND), "…" * (end + _AROUND < len(text))
    return " ".join(f"{cut[0]}{before}[{text[start:end]}]{after}{cut[1]}".split())


@torch.inference_mode()
def _vectors(stored: ModelBundle, occurrences: Sequence[_Occurrence], layer: int) -> NDArray[np.float32]:
    """(occurrences, width) of length 1."""
    backbone = stored.model.eval().backbone
    assert isinstance(backbone, Encoder)
    device = next(backbone.parameters()).device
    found = []
    for start in range(0, len(occurrences), _BATCH):
        some = occurrences[start : start + _BATCH]
        batch = pad([Row(one.ids) for one in some], stored.tokenizer.pad_id).to(device)
        states = backbone.hidden_states(batch.input_ids, attention_mask=batch.attention_mask)
        hidden = next(islice(states, layer, None))
        if layer == len(backbone.layers):
            hidden = backbone.final_norm(hidden)
        found += [hidden[row, one.first : one.end].float().mean(0) for row, one in enumerate(some)]
    vectors = torch.nn.functional.normalize(torch.stack(found), dim=-1)
    return vectors.cpu().numpy()
