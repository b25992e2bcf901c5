"""Routes of predictions, vectors and models."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field

from homespun.serving.batching import Batcher
from homespun.serving.errors import ApiError, error_responses
from homespun.serving.models import Input, Models, ServedModel
from homespun.serving.page import find_card, find_report
from homespun.serving.requests import Body, ModelName, describe_route, json_response, read_body, wait_for
from homespun.serving.settings import ServingSettings

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


def router(models: Models, settings: ServingSettings) -> APIRouter:
    """Build the routes; the batcher is ``app.state.batcher``."""
    routes = APIRouter()
    created = int(time.time())

    async def compute(
        request: Request, model: ServedModel, run: Callable[[Sequence[Any]], Sequence[Any]], inputs: Sequence[Input]
    ) -> list[Any]:
        if len(inputs) > (most := settings.max_texts):
            raise ApiError(413, f"{len(inputs)} texts in a request, of at most {most}; send several requests")
        lengths = model.estimate_tokens(inputs)
        request.state.sizes = len(inputs), sum(lengths)
        if (limit := settings.max_tokens_per_text) is not None:
            for index, tokens in enumerate(await asyncio.to_thread(model.count_tokens, inputs)):
                if tokens > limit:
                    raise ApiError(413, f"texts.{index} has {tokens} tokens, of at most {limit}; shorten or divide it")
        batcher: Batcher = request.app.state.batcher
        return await wait_for(request, batcher.submit(run, inputs, lengths), settings)

    @routes.post(
        "/predict",
        summary="Predict labels, numbers, tags, answers or texts",
        response_model=Predictions,
        **describe_route(PredictBody),
    )
    async def predict(request: Request) -> Response:
        body = await read_body(request, PredictBody, settings)
        model = models.get(body.model)
        model.require("predict")
        model.check_inputs(body.texts)
        predictions = await compute(request, model, model.predict, body.texts)
        return json_response({"model": model.name, "predictions": predictions})

    async def embed_texts(request: Request, model: ServedModel, pooling: Pooling, texts: Sequence[str]) -> list[Any]:
        model.require("embed")
        return await compute(request, model, model.embedders[pooling], texts)

    @routes.post(
        "/embed",
        summary="Compute vectors of texts",
        response_model=Vectors,
        **describe_route(EmbedBody),
    )
    async def embed(request: Request) -> Response:
        body = await read_body(request, EmbedBody, settings)
        model = models.get(body.model)
        vectors = await embed_texts(request, model, body.pooling, body.texts)
        return json_response({"model": model.name, "vectors": [vector.tolist() for vector in vectors]})

    @routes.post(
        "/v1/embeddings",
        summary="Compute vectors of texts, as OpenAI's API",
        **describe_route(EmbeddingsBody),
    )
    async def embeddings(request: Request) -> Response:
        body = await read_body(request, EmbeddingsBody, settings)
        model = models.get(body.model)
        texts = [body.input] if isinstance(body.input, str) else body.input
        vectors = await embed_texts(request, model, "mean", texts)
        size = len(vectors[0])
        if body.dimensions not in (None, size):
            raise ApiError(422, f"dimensions={body.dimensions} must be {size}, that of model {model.name!r}")
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

    @routes.get("/models", summary="List the models with their capabilities", responses=error_responses())
    async def list_models() -> ModelList:
        return ModelList(models=[describe(models.get(name)) for name in models.names])

    @routes.get("/v1/models", summary="List the models, as OpenAI's API", responses=error_responses())
    async def list_openai_models() -> dict[str, Any]:
        found = [{"id": n, "object": "model", "created": created, "owned_by": "homespun"} for n in models.names]
        return {"object": "list", "data": found}

    return routes


def describe(model: ServedModel) -> ModelDescription:
    """Describe a model for clients."""
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
