"""Folders of the checkout, and of the shared data sets next to it."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results"
SHARED = ROOT.parent / "shared" / "data"
