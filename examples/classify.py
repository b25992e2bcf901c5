"""Train a classifier from scratch: text files to a fine-tuned model, compared with TF-IDF.

python examples/classify.py --texts '10k/*.jsonl.gz' --train train.csv --test test.csv --minutes 10 --out runs/classify
"""

from __future__ import annotations

import argparse
from pathlib import Path

import homespun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--texts", nargs="+", required=True, help="unlabelled files with a column `text`")
    parser.add_argument("--train", required=True, help="table with columns `text` and `label`")
    parser.add_argument("--test", required=True)
    parser.add_argument("--minutes", type=float, default=10.0, help="of pretraining")
    parser.add_argument("--vocab-size", type=int, default=8_000)
    parser.add_argument("--out", type=Path, default=Path("runs/classify"))
    options = parser.parse_args()

    reading = homespun.reading(options.texts, duplicates="near")
    tokenizer = homespun.train_tokenizer(reading, options.out / "tokenizer", vocab_size=options.vocab_size)
    homespun.make_corpus(reading, tokenizer, options.out / "corpus")

    budget = f"train.budget.time={options.minutes}m"
    pretraining = homespun.pretrain_recipe("spun-encoder", [f"data.corpus={options.out / 'corpus'}", budget])
    homespun.pretrain(pretraining, options.out / "pretrained")

    data = [f"data.train={options.train}", f"data.test={options.test}"]
    finetuning = homespun.finetune_recipe("classify-cnn", data)
    result = homespun.finetune(finetuning, options.out / "classifier", start_from=str(options.out / "pretrained"))

    print(f"classifier: {result['test']['accuracy']:.1%} on {result['test']['rows']} test examples")
    for name, metrics in result["baselines"].items():
        print(f"{name}: {metrics['accuracy']:.1%}")


if __name__ == "__main__":
    main()
