"""Train small language models on your own text, and compare them with baselines.

The commands as functions. Each is imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from homespun.commands.attention_plot import show_alignment, show_attention
    from homespun.commands.batch_preview import show_batch
    from homespun.commands.benchmark import benchmark
    from homespun.commands.convert import convert
    from homespun.commands.distill import distill
    from homespun.commands.doctor import examine as doctor
    from homespun.commands.export import export
    from homespun.commands.few_shot import Prompting, few_shot
    from homespun.commands.finetune import finetune
    from homespun.commands.generate import generate, generator, summaries, summarize
    from homespun.commands.pipeline import Pipeline
    from homespun.commands.pipeline import open_pipeline as open
    from homespun.commands.plan import plan
    from homespun.commands.predict import evaluate, predict
    from homespun.commands.preparation import (
        corpus_lengths,
        extend_tokenizer,
        file_lengths,
        make_corpus,
        train_tokenizer,
        verify_corpus,
    )
    from homespun.commands.pretrain import pretrain
    from homespun.commands.recipe import finetune_recipe, load_recipe, pretrain_recipe
    from homespun.commands.trials import measure_baselines
    from homespun.commands.vectors import init_model, map_vectors, measure_vectors, train_vectors, vectors_config
    from homespun.compare.comparison import run_comparison
    from homespun.compare.recipe import compare_recipe
    from homespun.data.reading import reading
    from homespun.fitting.fit import fit
    from homespun.fitting.quickstart import quickstart
    from homespun.hf.auto_classes import register_auto_classes
    from homespun.hf.open import load
    from homespun.report.comparison import write_comparison
    from homespun.report.page import write_report
    from homespun.serving.server import serve
    from homespun.vectors.store import open_vectors, save_vectors

__version__ = "0.1.0"

_LAZY_IMPORTS = {
    "Pipeline": "homespun.commands.pipeline.Pipeline",
    "Prompting": "homespun.commands.few_shot.Prompting",
    "init_model": "homespun.commands.vectors.init_model",
    "compare_recipe": "homespun.compare.recipe.compare_recipe",
    "convert": "homespun.commands.convert.convert",
    "corpus_lengths": "homespun.commands.preparation.corpus_lengths",
    "distill": "homespun.commands.distill.distill",
    "doctor": "homespun.commands.doctor.examine",
    "evaluate": "homespun.commands.predict.evaluate",
    "export": "homespun.commands.export.export",
    "extend_tokenizer": "homespun.commands.preparation.extend_tokenizer",
    "file_lengths": "homespun.commands.preparation.file_lengths",
    "finetune": "homespun.commands.finetune.finetune",
    "fit": "homespun.fitting.fit.fit",
    "finetune_recipe": "homespun.commands.recipe.finetune_recipe",
    "generate": "homespun.commands.generate.generate",
    "generator": "homespun.commands.generate.generator",
    "load": "homespun.hf.open.load",
    "load_recipe": "homespun.commands.recipe.load_recipe",
    "make_corpus": "homespun.commands.preparation.make_corpus",
    "map_vectors": "homespun.commands.vectors.map_vectors",
    "benchmark": "homespun.commands.benchmark.benchmark",
    "measure_baselines": "homespun.commands.trials.measure_baselines",
    "measure_vectors": "homespun.commands.vectors.measure_vectors",
    "open": "homespun.commands.pipeline.open_pipeline",
    "open_vectors": "homespun.vectors.store.open_vectors",
    "plan": "homespun.commands.plan.plan",
    "predict": "homespun.commands.predict.predict",
    "pretrain": "homespun.commands.pretrain.pretrain",
    "pretrain_recipe": "homespun.commands.recipe.pretrain_recipe",
    "few_shot": "homespun.commands.few_shot.few_shot",
    "quickstart": "homespun.fitting.quickstart.quickstart",
    "reading": "homespun.data.reading.reading",
    "register_auto_classes": "homespun.hf.auto_classes.register_auto_classes",
    "run_comparison": "homespun.compare.comparison.run_comparison",
    "save_vectors": "homespun.vectors.store.save_vectors",
    "serve": "homespun.serving.server.serve",
    "show_alignment": "homespun.commands.attention_plot.show_alignment",
    "show_attention": "homespun.commands.attention_plot.show_attention",
    "show_batch": "homespun.commands.batch_preview.show_batch",
    "summaries": "homespun.commands.generate.summaries",
    "summarize": "homespun.commands.generate.summarize",
    "train_tokenizer": "homespun.commands.preparation.train_tokenizer",
    "train_vectors": "homespun.commands.vectors.train_vectors",
    "verify_corpus": "homespun.commands.preparation.verify_corpus",
    "vectors_config": "homespun.commands.vectors.vectors_config",
    "write_comparison": "homespun.report.comparison.write_comparison",
    "write_report": "homespun.report.page.write_report",
}

__all__ = [
    "Pipeline",
    "Prompting",
    "benchmark",
    "compare_recipe",
    "convert",
    "corpus_lengths",
    "distill",
    "doctor",
    "evaluate",
    "export",
    "extend_tokenizer",
    "few_shot",
    "file_lengths",
    "finetune",
    "finetune_recipe",
    "fit",
    "generate",
    "generator",
    "init_model",
    "load",
    "load_recipe",
    "make_corpus",
    "map_vectors",
    "measure_baselines",
    "measure_vectors",
    "open",
    "open_vectors",
    "plan",
    "predict",
    "pretrain",
    "pretrain_recipe",
    "quickstart",
    "reading",
    "register_auto_classes",
    "run_comparison",
    "save_vectors",
    "serve",
    "show_alignment",
    "show_attention",
    "show_batch",
    "summaries",
    "summarize",
    "train_tokenizer",
    "train_vectors",
    "vectors_config",
    "verify_corpus",
    "write_comparison",
    "write_report",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY_IMPORTS:
        module, _, its_name = _LAZY_IMPORTS[name].rpartition(".")
        return getattr(import_module(module), its_name)
    raise AttributeError(f"module 'homespun' has no attribute {name!r}")
