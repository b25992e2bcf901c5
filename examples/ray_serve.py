"""Serve a model by replicas of Ray Serve, which batches requests and adds replicas under load.

pip install '.[serve]' 'ray[serve]'
python examples/ray_serve.py --model runs/mine --replicas 4
curl localhost:8000 --json '{"text": "Margins fell."}'
"""

from __future__ import annotations

import argparse

from ray import serve
from starlette.requests import Request

import homespun


class Classifier:
    """One replica of a model."""

    def __init__(self, source: str) -> None:
        self.model = homespun.open(source)

    @serve.batch(max_batch_size=32, batch_wait_timeout_s=0.005)
    async def predict(self, texts: list[str]) -> list[dict[str, float]]:
        """Return the probability of each class for each text of a batch."""
        assert self.model.labels is not None
        names = self.model.labels.names
        return [dict(zip(names, row.tolist(), strict=True)) for row in self.model.predict_proba(texts)]

    async def __call__(self, request: Request) -> dict[str, float]:
        """Answer a request with the JSON body ``{"text": ...}``."""
        return await self.predict((await request.json())["text"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="run, model folder, or name on the Hugging Face hub")
    parser.add_argument("--replicas", type=int, default=2, help="on all machines of the cluster at RAY_ADDRESS")
    parser.add_argument("--port", type=int, default=8000, help="on this machine")
    options = parser.parse_args()
    serve.start(http_options={"host": "127.0.0.1", "port": options.port})
    deployment = serve.deployment(num_replicas=options.replicas, ray_actor_options={"num_cpus": 1})(Classifier)
    serve.run(deployment.bind(options.model), blocking=True)


if __name__ == "__main__":
    main()
