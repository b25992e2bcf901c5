"""Small language models spun from your own text, on your own machine, with the evidence.

The functions here are those of the command line; each is imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from homespun.compare.recipe import compare_recipe
    from homespun.compare.runner import run_comparison
    from homespun.hf.open import load
    from homespun.jobs.adapt import extend_tokenizer
    from homespun.jobs.alignment import show_alignment
    from homespun.jobs.baselines import baselines as measure_baselines
    from homespun.jobs.convert import convert, export
    from homespun.jobs.distill import distill
    from homespun.jobs.doctor import examine as doctor
    from homespun.jobs.finetune import finetune
    from homespun.jobs.generate import generate, generator, summaries, summarize
    from homespun.jobs.in_context import Prompting
    from homespun.jobs.in_context import in_context as prompt
    from homespun.jobs.lengths import corpus_lengths, file_lengths
    from homespun.jobs.measure import measure
    from homespun.jobs.plan import plan
    from homespun.jobs.prepare import make_corpus, reading, train_tokenizer
    from homespun.jobs.pretrain import pretrain
    from homespun.jobs.quickstart import quickstart
    from homespun.jobs.recipe import finetune_recipe, load_recipe, pretrain_recipe
    from homespun.jobs.show import show_attention
    from homespun.jobs.use import evaluate, predict
    from homespun.jobs.vectors import begin_model, map_vectors, measure_vectors, train_vectors, vectors_config
    from homespun.report.comparison import write_comparison
    from homespun.report.page import write_report
    from homespun.vectors.store import open_vectors, save_vectors

__version__ = "0.1.0"

_LAZY_IMPORTS = {
    "Prompting": "homespun.jobs.in_context.Prompting",
    "begin_model": "homespun.jobs.vectors.begin_model",
    "compare_recipe": "homespun.compare.recipe.compare_recipe",
    "convert": "homespun.jobs.convert.convert",
    "corpus_lengths": "homespun.jobs.lengths.corpus_lengths",
    "distill": "homespun.jobs.distill.distill",
    "doctor": "homespun.jobs.doctor.examine",
    "evaluate": "homespun.jobs.use.evaluate",
    "export": "homespun.jobs.convert.export",
    "extend_tokenizer": "homespun.jobs.adapt.extend_tokenizer",
    "file_lengths": "homespun.jobs.lengths.file_lengths",
    "finetune": "homespun.jobs.finetune.finetune",
    "finetune_recipe": "homespun.jobs.recipe.finetune_recipe",
    "generate": "homespun.jobs.generate.generate",
    "generator": "homespun.jobs.generate.generator",
    "load": "homespun.hf.open.load",
    "load_recipe": "homespun.jobs.recipe.load_recipe",
    "make_corpus": "homespun.jobs.prepare.make_corpus",
    "map_vectors": "homespun.jobs.vectors.map_vectors",
    "measure": "homespun.jobs.measure.measure",
    "measure_baselines": "homespun.jobs.baselines.baselines",
    "measure_vectors": "homespun.jobs.vectors.measure_vectors",
    "open_vectors": "homespun.vectors.store.open_vectors",
    "plan": "homespun.jobs.plan.plan",
    "predict": "homespun.jobs.use.predict",
    "pretrain": "homespun.jobs.pretrain.pretrain",
    "pretrain_recipe": "homespun.jobs.recipe.pretrain_recipe",
    "prompt": "homespun.jobs.in_context.in_context",
    "quickstart": "homespun.jobs.quickstart.quickstart",
    "reading": "homespun.jobs.prepare.reading",
    "run_comparison": "homespun.compare.runner.run_comparison",
    "save_vectors": "homespun.vectors.store.save_vectors",
    "show_alignment": "homespun.jobs.alignment.show_alignment",
    "show_attention": "homespun.jobs.show.show_attention",
    "summaries": "homespun.jobs.generate.summaries",
    "summarize": "homespun.jobs.generate.summarize",
    "train_tokenizer": "homespun.jobs.prepare.train_tokenizer",
    "train_vectors": "homespun.jobs.vectors.train_vectors",
    "vectors_config": "homespun.jobs.vectors.vectors_config",
    "write_comparison": "homespun.report.comparison.write_comparison",
    "write_report": "homespun.report.page.write_report",
}

__all__ = [
    "Prompting",
    "begin_model",
    "compare_recipe",
    "convert",
    "corpus_lengths",
    "distill",
    "doctor",
    "evaluate",
    "export",
    "extend_tokenizer",
    "file_lengths",
    "finetune",
    "finetune_recipe",
    "generate",
    "generator",
    "load",
    "load_recipe",
    "make_corpus",
    "map_vectors",
    "measure",
    "measure_baselines",
    "measure_vectors",
    "open_vectors",
    "plan",
    "predict",
    "pretrain",
    "pretrain_recipe",
    "prompt",
    "quickstart",
    "reading",
    "run_comparison",
    "save_vectors",
    "show_alignment",
    "show_attention",
    "summaries",
    "summarize",
    "train_tokenizer",
    "train_vectors",
    "vectors_config",
    "write_comparison",
    "write_report",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY_IMPORTS:
        module, _, its_name = _LAZY_IMPORTS[name].rpartition(".")
        return getattr(import_module(module), its_name)
    raise AttributeError(f"module 'homespun' has no attribute {name!r}")
