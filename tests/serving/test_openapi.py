"""The schema of the server, and requests that schemathesis makes from it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import positive_data_acceptance

from conftest import Connect
from homespun.serving.app import FREE_PATHS, create_app
from homespun.serving.models import Models
from homespun.serving.settings import ServingSettings


def test_the_schema_names_routes_bodies_and_errors(client: TestClient) -> None:
    schema = client.get("/openapi.json").json()
    paths = schema["paths"]
    assert paths.keys() >= {"/predict", "/embed", "/v1/embeddings", "/models", "/v1/models", "/health", "/ready"}
    predict = paths["/predict"]["post"]
    assert predict["requestBody"]["content"]["application/json"]["schema"]["required"] == ["texts"]
    assert predict["responses"].keys() >= {"200", "400", "401", "404", "409", "413", "422", "429", "503", "504"}
    error = predict["responses"]["429"]["content"]["application/json"]["schema"]
    assert error == {"$ref": "#/components/schemas/ErrorBody"}


def test_every_route_that_reads_a_body_names_the_error_of_a_slow_one(client: TestClient) -> None:
    paths = client.get("/openapi.json").json()["paths"].values()
    posts = [operations["post"] for operations in paths if "post" in operations]
    bodies = [post for post in posts if "application/json" in post["requestBody"]["content"]]
    assert len(bodies) == 8
    assert all("408" in post["responses"] for post in bodies)


def test_the_key_is_a_security_scheme(client: TestClient, connect: Connect) -> None:
    assert "securitySchemes" not in client.get("/openapi.json").json()["components"]
    keyed = connect(api_key="secret-key")
    assert keyed.get("/openapi.json").status_code == 401
    schema = keyed.get("/openapi.json", headers={"Authorization": "Bearer secret-key"}).json()
    (name,) = schema["components"]["securitySchemes"]
    assert schema["components"]["securitySchemes"][name] == {"type": "http", "scheme": "bearer"}
    for path, operations in schema["paths"].items():
        for operation in operations.values():
            assert operation.get("security", []) == ([] if path in FREE_PATHS else [{name: []}])


@pytest.fixture(scope="module")
def served_schema(folders: dict[str, Path]) -> Iterator[Any]:
    models = Models({"linear": folders["linear"], "encoder": folders["encoder"]})
    models.load()
    app = create_app(models, ServingSettings(max_wait_ms=0))
    with TestClient(app):
        yield schemathesis.openapi.from_asgi("/openapi.json", app)


@pytest.mark.slow
def test_answers_conform_to_the_schema(served_schema: Any) -> None:
    operations = [found.ok() for found in served_schema.get_all_operations()]
    assert len(operations) >= 8
    for operation in operations:
        for mode in GenerationMode if operation.method == "post" else [GenerationMode.POSITIVE]:

            @given(case=operation.as_strategy(generation_mode=mode))
            @settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
            def check(case: schemathesis.Case) -> None:
                # the schema is that of all models, and each reads texts or lists of texts
                case.call_and_validate(excluded_checks=[positive_data_acceptance])

            check()
