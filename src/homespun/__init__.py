"""Small language models spun from your own text, on your own machine, with the evidence.

The functions here are those of the command line; each is imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from homespun.compare.recipe import compare_recipe
    from homespun.compare.run import run_comparison
    from homespun.hf.open import load
    from homespun.jobs.distill import distill
    from homespun.jobs.finetune import finetune
    from homespun.jobs.prepare import make_corpus, reading, train_tokenizer
    from homespun.jobs.pretrain import pretrain
    from homespun.jobs.recipe import finetune_recipe, pretrain_recipe
    from homespun.jobs.senses import senses
    from homespun.jobs.use import evaluate, predict
    from homespun.jobs.vectors import train_vectors, vectors_config
    from homespun.report.page import write_report
    from homespun.vectors.store import open_vectors, save_vectors

__version__ = "0.1.0"

_WHERE = {
    "compare_recipe": "homespun.compare.recipe",
    "distill": "homespun.jobs.distill",
    "evaluate": "homespun.jobs.use",
    "finetune": "homespun.jobs.finetune",
    "finetune_recipe": "homespun.jobs.recipe",
    "load": "homespun.hf.open",
    "make_corpus": "homespun.jobs.prepare",
    "open_vectors": "homespun.vectors.store",
    "predict": "homespun.jobs.use",
    "pretrain": "homespun.jobs.pretrain",
    "pretrain_recipe": "homespun.jobs.recipe",
    "reading": "homespun.jobs.prepare",
    "run_comparison": "homespun.compare.run",
    "save_vectors": "homespun.vectors.store",
    "senses": "homespun.jobs.senses",
    "train_tokenizer": "homespun.jobs.prepare",
    "train_vectors": "homespun.jobs.vectors",
    "vectors_config": "homespun.jobs.vectors",
    "write_report": "homespun.report.page",
}

__all__ = [
    "compare_recipe",
    "distill",
    "evaluate",
    "finetune",
    "finetune_recipe",
    "load",
    "make_corpus",
    "open_vectors",
    "predict",
    "pretrain",
    "pretrain_recipe",
    "reading",
    "run_comparison",
    "save_vectors",
    "senses",
    "train_tokenizer",
    "train_vectors",
    "vectors_config",
    "write_report",
]


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(import_module(_WHERE[name]), name)
    raise AttributeError(f"module 'homespun' has no attribute {name!r}")
