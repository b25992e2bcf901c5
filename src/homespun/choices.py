"""Choices of the command line and of Python; imports nothing, so that options are checked before torch is imported."""

from __future__ import annotations

from typing import Literal

TokenizerKind = Literal["bpe", "bpe-characters", "wordpiece", "unigram", "words"]
Duplicates = Literal["keep", "exact", "near"]
"""Duplicates to remove: ``exact`` repeated texts, ``near`` also near-duplicates, ``keep`` none."""

TextTaskName = Literal["auto", "classification", "multi-label", "regression"]
RunTaskName = Literal["language-model", "token-classification", "text-to-text"]
TaskName = Literal[TextTaskName, RunTaskName]
"""Tasks of a fit; `homespun.fitting.runs` has those whose candidates are runs."""

ModelFormat = Literal["homespun", "hf"]
ExportTarget = Literal["onnx", "sentence-transformers", "gguf"]
Quantization = Literal["int8"]
Projection = Literal["pca", "tsne"]
