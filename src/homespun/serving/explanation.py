"""Routes that explain a prediction: effect of each word, attention weights, nearest training examples."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field

from homespun.commands.pipeline import to_example
from homespun.data.labels import LabelledRows
from homespun.data.rows import pad
from homespun.errors import UserError
from homespun.serving.errors import ApiError
from homespun.serving.models import ServedModel
from homespun.serving.neighbours import Neighbour, NeighbourIndex
from homespun.serving.occlusion import Explanation, occlude
from homespun.serving.requests import Body, describe_route, get_model, json_response, read_body, settings_of, wait_for
from homespun.tasks.text_models import TextModel
from homespun.tasks.texts import LabelledText, second_texts

if TYPE_CHECKING:
    from homespun.models.bundle import ModelBundle

MAX_CHARACTERS = 100_000
"""Of a text that is explained."""
MAX_TOKENS = 128
"""Of an attention map."""
_WAITING = 16  # requests that wait for the one thread of this module

R = TypeVar("R")


def text_attention(bundle: ModelBundle, example: LabelledText, layer: int, *, max_length: int) -> dict[str, object]:
    """Compute the attention weights of a text or pair in a layer, as fields of `AttentionAnswer`.

    Raises:
        UserError: no such layer, or the attention of the model has no weights.
    """
    from homespun.commands.attention_map import attention_weights, token_names, weighted_attentions

    layers = len(weighted_attentions(bundle.model))
    if not layers:
        raise UserError("the layers of the model have no attention weights of each token to each other one")
    if not 0 <= layer < layers:
        raise UserError(f"layer={layer} must be from 0 to {layers - 1}")
    rows = LabelledRows(
        [example.text],
        None,
        bundle.tokenizer,
        length=min(max_length, MAX_TOKENS),
        pairs=second_texts([example]),
        segments=bundle.config.has_segments,
    )
    batch = pad([rows[0]], bundle.tokenizer.pad_id).to(next(bundle.model.parameters()).device)
    weights = attention_weights(bundle.model, layer, batch.input_ids, batch.context).cpu().float().numpy().round(4)
    tokens = token_names(bundle.tokenizer, batch.input_ids[0].tolist())
    sizes = {"layers": layers, "heads": len(weights), "layer": layer}
    return sizes | {"tokens": tokens, "weights": weights.tolist(), "truncated": bool(rows.cut[0])}


class TextBody(Body):
    """A text, or a pair of texts."""

    text: str | list[str] = Field(description="a text; for a model of pairs, a list of two texts", examples=["a text"])


class ExplainBody(TextBody):
    """Text whose prediction is explained."""

    method: Literal["occlusion"] = "occlusion"


class AttentionBody(TextBody):
    """Text, and a layer from 0."""

    layer: int = Field(default=0, ge=0)


class NeighboursBody(TextBody):
    """Text, and the number of training examples to return."""

    count: Annotated[int, Field(ge=1, le=100)] = 5


class ExplainAnswer(Explanation):
    """Effect of the words of a text; for regression ``label`` is null and ``number`` is set."""

    model: str
    method: Literal["occlusion"]


class AttentionAnswer(BaseModel):
    """Attention weights of each head, queries by keys; ``truncated``: the text has more tokens."""

    model: str
    layers: int
    heads: int
    layer: int
    tokens: list[str]
    weights: list[list[list[float]]]
    truncated: bool


class NeighboursAnswer(BaseModel):
    """Nearest of the ``indexed`` training examples; the rest of ``examples`` are still being embedded."""

    model: str
    neighbours: list[Neighbour]
    indexed: int
    examples: int


@dataclass(eq=False)
class Explanations:
    """Thread that computes one explanation at a time, and the training examples of models."""

    _waiting: int = 0
    _indices: dict[str, NeighbourIndex] = field(default_factory=dict)
    _executor: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, thread_name_prefix="explain"))

    async def compute(self, request: Request, work: Callable[[], R]) -> R:
        """Call ``work`` in the thread.

        Raises:
            ApiError: too many requests wait (429); see also `wait_for`.
        """
        if self._waiting >= _WAITING:
            raise ApiError(
                429, f"{self._waiting} explanations wait, of at most {_WAITING}; send the request again later"
            )
        self._waiting += 1
        try:
            return await wait_for(request, asyncio.get_running_loop().run_in_executor(self._executor, work))
        finally:
            self._waiting -= 1

    async def index_of(self, model: ServedModel, text_model: TextModel, run: Path) -> NeighbourIndex:
        """Return the index of a model; it is built again when the model was replaced."""
        index = self._indices.get(model.name)
        if index is None or index.model is not text_model:
            replaced, index = index, NeighbourIndex(text_model, run)
            self._indices[model.name] = index
            index.start()
            if replaced is not None:
                await asyncio.to_thread(replaced.close)
        return index

    async def close(self) -> None:
        """End the threads."""
        for index in [*self._indices.values()]:
            await asyncio.to_thread(index.close)
        self._executor.shutdown(wait=False, cancel_futures=True)


def _explanations(request: Request) -> Explanations:
    return request.app.state.explanations


router = APIRouter()


@router.post("/explain", summary="Compute the effect of each word on a prediction", **describe_route(ExplainBody))
async def explain(request: Request) -> ExplainAnswer:
    body = await read_body(request, ExplainBody)
    model = get_model(request, body.model)
    text_model, example = _text_model(model), _example(model, body.text)
    found = await _explanations(request).compute(request, lambda: occlude(text_model, example))
    return ExplainAnswer(model=model.name, method=body.method, **vars(found))


@router.post(
    "/attention",
    summary="Compute the attention weights of a text in one layer",
    response_model=AttentionAnswer,
    **describe_route(AttentionBody),
)
async def attention(request: Request) -> Response:
    body = await read_body(request, AttentionBody)
    model = get_model(request, body.model)
    model.require("attention")
    example, bundle = _example(model, body.text), model.pipeline.bundle
    assert bundle is not None
    length = model.max_length or MAX_TOKENS
    found = await _explanations(request).compute(
        request, lambda: text_attention(bundle, example, body.layer, max_length=length)
    )
    return json_response({"model": model.name} | found)


@router.post(
    "/neighbours", summary="Find the training examples that are nearest to a text", **describe_route(NeighboursBody)
)
async def neighbours(request: Request) -> NeighboursAnswer:
    body = await read_body(request, NeighboursBody)
    model = get_model(request, body.model)
    text_model, example = _text_model(model), _example(model, body.text)
    if model.run is None:
        raise ApiError(409, f"{model.source} is no run, so its training examples are unknown; serve the run")
    explanations = _explanations(request)
    index = await explanations.index_of(model, text_model, model.run)
    await asyncio.to_thread(index.wait, min(5.0, settings_of(request).timeout_s))
    if index.error is not None:
        raise ApiError(409, f"the training examples of {model.name!r} cannot be read: {index.error}")
    found = await explanations.compute(request, functools.partial(index.nearest, example, body.count))
    return NeighboursAnswer(model=model.name, neighbours=found, indexed=index.done, examples=index.rows)


def _text_model(model: ServedModel) -> TextModel:
    try:
        return model.pipeline.text_model
    except UserError as error:
        raise ApiError(409, f"model {model.name!r} has no explanation of predictions: {error}") from None


def _example(model: ServedModel, text: str | list[str]) -> LabelledText:
    if model.task is not None:
        model.check_inputs([text])
    if not isinstance(text, str) and len(text) != 2:
        raise ApiError(422, f"text has {len(text)} texts; send one text, or a list of two")
    if sum(map(len, text)) > MAX_CHARACTERS:
        raise ApiError(413, f"the text has more than {MAX_CHARACTERS:,} characters; shorten it")
    return to_example(text)
