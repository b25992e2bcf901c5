"""Open a finished run with transformers and check that both libraries compute the same hidden states.

python examples/to_transformers.py runs/classify/pretrained --text "Margins fell for the third quarter."
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from transformers import AutoModel, AutoTokenizer

import homespun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--text", default="Margins fell for the third quarter.")
    options = parser.parse_args()

    tokenizer = AutoTokenizer.from_pretrained(options.run / "hf")
    theirs = AutoModel.from_pretrained(options.run / "hf").eval()
    ours = homespun.load(options.run)

    inputs = tokenizer(options.text, return_tensors="pt")
    mask = inputs["attention_mask"].bool()
    with torch.no_grad():
        expected = theirs(**inputs).last_hidden_state  # (1, seq, hidden)
        hidden = ours.backbone(inputs["input_ids"], attention_mask=mask)  # (1, seq, hidden)
    difference = (hidden - expected)[mask].abs().max().item()
    print(f"{type(theirs).__name__}: largest difference {difference:.1e} over {int(mask.sum())} tokens")


if __name__ == "__main__":
    main()
