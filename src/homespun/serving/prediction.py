"""Routes of predictions, vectors and models."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, cast

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field

from homespun.serving.batching import Batcher
from homespun.serving.errors import ApiError, error_responses
from homespun.serving.models import Input, Models, ServedModel
from homespun.serving.page import find_card, find_report
from homespun.serving.requests import (
    Body,
    ModelName,
    describe_route,
    get_model,
    json_response,
    read_body,
    settings_of,
    wait_for,
)

Pooling = Literal["mean", "first", "last"]


class PredictBody(Body):
    """Texts to predict."""

    texts: Annotated[
        list[str | list[str]],
        Field(min_length=1, description="texts; for a model of pairs, lists of two texts", examples=[["a text"]]),
    ]


class EmbedBody(Body):
    """Texts to embed."""

    texts: Annotated[list[str], Field(min_length=1, examples=[["a text"]])]
    pooling: Pooling = Field(default="mean", description="mean of the tokens, first or last token")


class EmbeddingsBody(BaseModel):
    """Body of OpenAI's ``/v1/embeddings``; further fields are ignored."""

    model_config = ConfigDict(strict=True)

    input: Annotated[str | Annotated[list[str], Field(min_length=1)], Field(examples=["a text"])]
    model: ModelName = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(default=None, gt=0, description="must be the size of the model's vectors")


class Predictions(BaseModel):
    """Predictions, in the order of the texts."""

    model: str
    predictions: list[dict[str, Any]]


class Vectors(BaseModel):
    """Vectors, in the order of the texts."""

    model: str
    vectors: list[list[float]]


class ModelDescription(BaseModel):
    """Model with its capabilities."""

    name: str
    task: str | None
    capabilities: list[str]
    inputs: str
    labels: list[str] | None
    parameters: int
    max_length: int | None
    report: bool
    card: bool


class ModelList(BaseModel):
    """The models that are served."""

    models: list[ModelDescription]


router = APIRouter()
_STARTED = int(time.time())


async def _compute(
    request: Request, model: ServedModel, run: Callable[[Sequence[Any]], Sequence[Any]], inputs: Sequence[Input]
) -> list[Any]:
    settings, batcher = settings_of(request), cast(Batcher, request.app.state.batcher)
    if len(inputs) > (most := settings.texts_per_request):
        raise ApiError(413, f"{len(inputs)} texts in a request, of at most {most}; send several requests")
    lengths = model.estimate_tokens(inputs)
    request.state.sizes = len(inputs), sum(lengths)
    if (limit := settings.max_tokens_per_text) is not None:
        for index, tokens in enumerate(await asyncio.to_thread(model.count_tokens, inputs)):
            if tokens > limit:
                raise ApiError(413, f"texts.{index} has {tokens} tokens, of at most {limit}; shorten or divide it")
    return await wait_for(request, batcher.submit(run, inputs, lengths))


@router.post(
    "/predict",
    summary="Predict labels, numbers, tags, answers or texts",
    response_model=Predictions,
    **describe_route(PredictBody),
)
async def predict(request: Request) -> Response:
    body = await read_body(request, PredictBody)
    model = get_model(request, body.model)
    model.require("predict")
    model.check_inputs(body.texts)
    predictions = await _compute(request, model, model.predict, body.texts)
    return json_response({"model": model.name, "predictions": predictions})


async def _embed(request: Request, model: ServedModel, pooling: Pooling, texts: Sequence[str]) -> list[Any]:
    model.require("embed")
    return await _compute(request, model, model.embedders[pooling], texts)


@router.post("/embed", summary="Compute vectors of texts", response_model=Vectors, **describe_route(EmbedBody))
async def embed(request: Request) -> Response:
    body = await read_body(request, EmbedBody)
    model = get_model(request, body.model)
    vectors = await _embed(request, model, body.pooling, body.texts)
    return json_response({"model": model.name, "vectors": [vector.tolist() for vector in vectors]})


@router.post("/v1/embeddings", summary="Compute vectors of texts, as OpenAI's API", **describe_route(EmbeddingsBody))
async def embeddings(request: Request) -> Response:
    body = await read_body(request, EmbeddingsBody)
    model = get_model(request, body.model)
    texts = [body.input] if isinstance(body.input, str) else body.input
    vectors = await _embed(request, model, "mean", texts)
    size = len(vectors[0])
    if body.dimensions not in (None, size):
        raise ApiError(422, f"dimensions={body.dimensions} must be {size}, the size of the vectors of {model.name!r}")
    shown = [
        vector.tolist() if body.encoding_format == "float" else base64.b64encode(vector.tobytes()).decode()
        for vector in vectors
    ]
    tokens = sum(await asyncio.to_thread(model.count_tokens, texts))
    return json_response(
        {
            "object": "list",
            "data": [{"object": "embedding", "index": n, "embedding": one} for n, one in enumerate(shown)],
            "model": model.name,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        }
    )


@router.get("/models", summary="List the models with their capabilities", responses=error_responses())
async def list_models(request: Request) -> ModelList:
    models: Models = request.app.state.models
    return ModelList(models=[_describe(models.get(name)) for name in models.names])


@router.get("/v1/models", summary="List the models, as OpenAI's API", responses=error_responses())
async def list_openai_models(request: Request) -> dict[str, Any]:
    names = request.app.state.models.names
    found = [{"id": name, "object": "model", "created": _STARTED, "owned_by": "homespun"} for name in names]
    return {"object": "list", "data": found}


def _describe(model: ServedModel) -> ModelDescription:
    return ModelDescription(
        name=model.name,
        task=model.task,
        capabilities=sorted(model.capabilities),
        inputs=model.input_kind,
        labels=None if model.labels is None else list(model.labels),
        parameters=model.parameters,
        max_length=model.max_length,
        report=find_report(model) is not None,
        card=find_card(model) is not None,
    )
