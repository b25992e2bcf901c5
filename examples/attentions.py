"""Compare attentions: pretrain the same decoder with each on equal tokens and print the held-out losses.

python examples/attentions.py --corpus corpus --tokens 1M --out runs/attentions
"""

from __future__ import annotations

import argparse
from pathlib import Path

import homespun

WINDOW = "{kind: sparse, patterns: [{kind: window, radius: 16}]}"
ATTENTIONS = {"full": "{kind: full}", "window": WINDOW, "performer": "{kind: performer}"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpus", required=True, help="folder written by `homespun corpus build`")
    parser.add_argument("--tokens", default="1M", help="of each training")
    parser.add_argument("--model", default="causal-mini", help="recipe")
    parser.add_argument("--out", type=Path, default=Path("runs/attentions"))
    options = parser.parse_args()

    runs = []
    for name, attention in ATTENTIONS.items():
        settings = [f"data.corpus={options.corpus}", f"model.attention={attention}"]
        recipe = homespun.pretrain_recipe(options.model, [*settings, f"train.budget={{tokens: {options.tokens}}}"])
        result = homespun.pretrain(recipe, options.out / name)
        print(
            f"{name}: {result['validation']['loss']:.3f} nats, {result['tokens_per_second']:,.0f} tokens/s", flush=True
        )
        runs.append(options.out / name)

    page = homespun.write_report(runs, options.out / "report", title="Attentions")
    print(f"curves: {page}")


if __name__ == "__main__":
    main()
