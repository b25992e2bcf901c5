"""Pretrain a causal language model on a corpus for some minutes and let it continue a prompt.

python examples/generate.py --corpus corpus --minutes 10 --prompt "The company" --out runs/writer
"""

from __future__ import annotations

import argparse
from pathlib import Path

import homespun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpus", required=True, help="folder written by `homespun corpus build`")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--prompt", default="The company")
    parser.add_argument("--out", type=Path, default=Path("runs/writer"))
    options = parser.parse_args()

    settings = [f"data.corpus={options.corpus}", f"train.budget.time={options.minutes}m"]
    result = homespun.pretrain(homespun.pretrain_recipe("spun-decoder", settings), options.out)
    print(f"held-out loss {result['validation']['loss']:.3f} nats after {result['tokens']:,} tokens")

    writer = homespun.generator(options.out)
    for piece in writer.stream(options.prompt, max_new_tokens=60, do_sample=True, temperature=0.8, seed=0):
        print(piece, end="", flush=True)
    print()


if __name__ == "__main__":
    main()
