"""Serve a model as replicas of Ray Serve, with the HTTP interface of `homespun serve`.

python examples/ray_serve.py runs/mine --replicas 4
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from fastapi import FastAPI
from ray import serve

from homespun.serving.app import create_app
from homespun.serving.models import Models
from homespun.serving.settings import ServingSettings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, help="run or model folder, at the same path on every node")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--cpus", type=float, default=1.0, help="of a replica")
    options = parser.parse_args()
    source = options.model.resolve()

    def build() -> FastAPI:
        models = Models({source.name: source})
        models.load()
        return create_app(models, ServingSettings())

    @serve.deployment(num_replicas=options.replicas, ray_actor_options={"num_cpus": options.cpus})
    @serve.ingress(build)
    class Server:
        pass

    serve.run(Server.bind())  # type: ignore[attr-defined]
    print("serving at http://127.0.0.1:8000; stop with Ctrl-C", flush=True)
    while True:
        time.sleep(3600)


if __name__ == "__main__":
    main()
