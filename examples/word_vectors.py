"""Train GloVe vectors on a corpus of words and print the nearest neighbours of some words.

python examples/word_vectors.py --texts '10k/*.jsonl.gz' --words risk revenue --out runs/vectors
"""

from __future__ import annotations

import argparse
from pathlib import Path

import homespun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--texts", nargs="+", required=True, help="files with a column `text`")
    parser.add_argument("--words", nargs="+", required=True)
    parser.add_argument("--vocab-size", type=int, default=20_000)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--out", type=Path, default=Path("runs/vectors"))
    options = parser.parse_args()

    reading = homespun.reading(options.texts)
    tokenizer = homespun.train_tokenizer(
        reading, options.out / "tokenizer", kind="words", vocab_size=options.vocab_size
    )
    homespun.make_corpus(reading, tokenizer, options.out / "corpus")
    config = homespun.vectors_config("glove", [f"method.size={options.size}", "words.min_count=2"])
    homespun.train_vectors(options.out / "corpus", config, options.out / "glove")

    vectors = homespun.open_vectors(options.out / "glove")
    for word in options.words:
        neighbours = ", ".join(f"{near} {cosine:.2f}" for near, cosine in vectors.similar(word, 5))
        print(f"{word}: {neighbours}")


if __name__ == "__main__":
    main()
