"""Folders that may come from anyone: names that fall together, odd tensors, sizes without bounds; one line each."""

import json
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hf_peers import DECODER, PROPHETNET, REFORMER, TEXTS, bert_tokenizer, edit_config, refused, save_random
from safetensors.torch import load_file, save_file

from homespun.hf.open import open_any, open_huggingface, open_model
from homespun.models.bundle import weights_of

TOKENIZER = bert_tokenizer()
WEIGHTS, TORCH, INDEX = "model.safetensors", "pytorch_model.bin", "model.safetensors.index.json"
NESTED = "[" * 100_000
_BIG_BIRD: dict[str, Any] = {"block_size": 5, "num_random_blocks": 2}
_PEGASUS = DECODER | {"d_model": 22, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
_ALBERT: dict[str, Any] = {"embedding_size": 21, "num_hidden_groups": 1}
_DEBERTA: dict[str, Any] = {"relative_attention": True, "pos_att_type": ["c2p"], "position_biased_input": False}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_random(tmp_path / "hf", "BertForMaskedLM")


def as_torch(folder: Path, **more: Any) -> dict[str, torch.Tensor]:
    """The weights as a torch file, with some others."""
    tensors = load_file(folder / WEIGHTS) | more
    (folder / WEIGHTS).unlink()
    torch.save(tensors, folder / TORCH)
    return tensors


# names that fall together


@pytest.mark.parametrize(("old", "new"), [("gamma", "weight"), ("beta", "bias")])
def test_two_names_of_one_norm(folder: Path, old: str, new: str) -> None:
    tensors = load_file(folder / WEIGHTS)
    stem = "bert.encoder.layer.1.output.LayerNorm."
    for first in (f"{stem}{old}", f"{stem}{new}"):
        both = {f"{stem}{old}": torch.full((33,), 7.0), f"{stem}{new}": tensors[f"{stem}{new}"]}
        save_file(tensors | both, folder / WEIGHTS)
        message = refused(folder)
        assert "are the same tensor; remove one" in message
        assert repr(first) in message


@pytest.mark.parametrize("number", ["00", "01", "٠", "１", "9" * 5000, "1000000"])
def test_a_layer_whose_number_is_spelled_otherwise(folder: Path, number: str) -> None:
    name = f"bert.encoder.layer.{number}.output.dense.bias"
    save_file(load_file(folder / WEIGHTS) | {name: torch.zeros(33)}, folder / WEIGHTS)
    assert f"does not have: {name!r}" in refused(folder)


def test_a_tensor_in_two_shards(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    name = "cls.predictions.bias"
    (folder / WEIGHTS).unlink()
    save_file(tensors, folder / "model-1.safetensors")
    save_file({name: torch.full((97,), 7.0)}, folder / "model-2.safetensors")
    weight_map = dict.fromkeys(tensors, "model-1.safetensors") | {name: "model-2.safetensors"}
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    assert f"{name!r} is in 'model-2.safetensors' and in an earlier shard" in refused(folder)


# files of another form


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json", "special_tokens_map.json", "tokenizer.json"])
def test_lists_in_lists_without_end(folder: Path, name: str) -> None:
    (folder / name).write_text(NESTED)
    assert name in refused(folder)


def test_an_index_of_lists_and_of_odd_names(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    (folder / INDEX).write_text(NESTED)
    assert "is not valid JSON" in refused(folder)
    for name, words in (
        ("x" * 5000, "shards must be .safetensors files in the same folder"),
        ("x\ny", "does not exist"),
    ):
        (folder / INDEX).write_text(json.dumps({"weight_map": {"a": f"{name}.safetensors"}}))
        message = refused(folder)
        assert words in message
        assert len(message) < 500


@pytest.mark.parametrize("classes", [5, "BertForMaskedLM", {"BertModel": 1}])
def test_classes_that_are_no_list(folder: Path, classes: Any) -> None:
    edit_config(folder, architectures=classes)
    assert "architectures must be a list of classes" in refused(folder, head=None)
    assert "architectures=" in refused(folder)


ODD_TENSORS: dict[str, Callable[[], torch.Tensor]] = {
    "sparse": lambda: torch.eye(33).to_sparse(),
    "rows of a sparse one": lambda: torch.eye(33).to_sparse_csr(),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(3), torch.ones(5)]),
    "without values": lambda: torch.zeros(33, device="meta"),
    "a number over and over": lambda: torch.zeros(1, 33).expand(10**9, 33),
}


@pytest.mark.filterwarnings("ignore:.*(nested|[Ss]parse)")
@pytest.mark.parametrize("kind", ODD_TENSORS)
def test_torch_files_of_other_tensors(folder: Path, kind: str) -> None:
    as_torch(folder, **{"bert.embeddings.word_embeddings.weight": ODD_TENSORS[kind]()})
    edit_config(folder, vocab_size=10**9)
    assert "'bert.embeddings.word_embeddings.weight' must be a dense tensor" in refused(folder)


def test_torch_files_of_parts_of_tensors_are_read(folder: Path) -> None:
    expected = weights_of(open_model(folder).model)
    stem = "bert.encoder.layer.2.attention.self."
    tensors = load_file(folder / WEIGHTS)
    both = torch.cat([tensors[f"{stem}query.weight"], tensors[f"{stem}key.weight"]])
    as_torch(folder, **{f"{stem}query.weight": both[:33], f"{stem}key.weight": both[33:]})
    found = weights_of(open_model(folder).model)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in found.items())


def test_a_torch_file_of_numbered_tensors(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    torch.save({1: torch.zeros(3), "1": torch.zeros(5)}, folder / TORCH)
    assert "must be a mapping of names to tensors" in refused(folder)


def test_a_shape_beyond_64_bits(folder: Path) -> None:
    header = json.dumps({"a": {"dtype": "F32", "shape": [0, 2**63], "data_offsets": [0, 0]}}).encode()
    (folder / WEIGHTS).write_bytes(struct.pack("<Q", len(header)) + header)
    assert "was cut short or altered" in refused(folder)


# sizes without bounds


TOO_LARGE: dict[str, tuple[str, dict[str, Any], dict[str, Any], str]] = {
    "a vocabulary": ("BertForMaskedLM", {}, {"vocab_size": 10**19}, "a tensor that is too large"),
    "a width": ("BertForMaskedLM", {}, {"intermediate_size": 2**62}, "a tensor that is too large"),
    "classes": ("BertForSequenceClassification", {}, {"num_labels": 10**9, "id2label": ...}, "(1000000000, 33)"),
    "shared layers": ("AlbertForMaskedLM", _ALBERT, {"num_hidden_layers": 10**9}, "at most 4096"),
    "sines": ("PegasusModel", _PEGASUS, {"max_position_embeddings": 10**8}, "buffers of 4,400,000,000 numbers"),
    "buckets": ("T5Model", {"d_kv": 5}, {"n_positions": 10**12}, "buffers of 4,000,000,000,000 numbers"),
    "distances": ("DebertaV2Model", _DEBERTA, {"max_position_embeddings": 10**9}, "must be at most 1048576"),
    "random blocks": ("BigBirdModel", _BIG_BIRD, {"max_position_embeddings": 10**6}, "increase size"),
    "rounds of hashing": ("ReformerForMaskedLM", REFORMER, {"num_hashes": 10**9}, "random numbers; decrease either"),
    "hashes": ("ReformerForMaskedLM", REFORMER, {"num_buckets": 2**40}, "random numbers; decrease either"),
}


@pytest.mark.parametrize("what", TOO_LARGE)
def test_a_small_config_takes_no_memory_before_its_shapes_are_compared(what: str, tmp_path: Path) -> None:
    name, settings, values, words = TOO_LARGE[what]
    folder = save_random(tmp_path / "hf", name, **settings)
    open_model(folder)
    edit_config(folder, **values)
    assert words in refused(folder)


def test_odd_numbers_of_attentions(tmp_path: Path) -> None:
    folder = save_random(tmp_path / "deberta", "DebertaV2Model", **_DEBERTA, position_buckets=4)
    edit_config(folder, position_buckets=1)
    assert "position_buckets=1 must be at least 2" in refused(folder)
    folder = save_random(tmp_path / "reformer", "ReformerForMaskedLM", **REFORMER)
    edit_config(folder, hash_seed=10**30)
    open_model(folder)


# what is opened


@pytest.mark.parametrize(("dtype", "name"), [(torch.float16, "float16"), (torch.bfloat16, "bfloat16")])
def test_weights_of_another_type_are_noted(folder: Path, dtype: torch.dtype, name: str) -> None:
    assert open_any(folder).notes == ()
    save_file({key: tensor.to(dtype) for key, tensor in load_file(folder / WEIGHTS).items()}, folder / WEIGHTS)
    assert open_any(folder).notes != ()
    (note,) = open_any(folder).notes
    assert re.search(rf"{name} .*float32", note)


@pytest.mark.parametrize(
    ("name", "sizes", "key", "kept"),
    [
        ("GPT2LMHeadModel", {}, "embd_pdrop", 0.0),
        ("OpenAIGPTLMHeadModel", {}, "embd_pdrop", 0.0),
        ("BartModel", _PEGASUS, "activation_dropout", 0.0),
        ("PegasusModel", _PEGASUS, "encoder_layerdrop", 0.0),
        ("ProphetNetModel", PROPHETNET, "activation_dropout", 0.0),
        ("ReformerForMaskedLM", REFORMER, "lsh_attention_probs_dropout_prob", 0.0),
    ],
)
def test_dropouts_that_ours_has_not_are_noted(
    tmp_path: Path, name: str, sizes: dict[str, Any], key: str, kept: float
) -> None:
    folder = save_random(tmp_path / "hf", name, **sizes)
    before = open_any(folder).notes
    edit_config(folder, **{key: 0.25})
    noted = f"{key}=0.25 of config.json becomes {kept}, also on export; it applies in training only"
    assert open_any(folder).notes == (*before, noted)


def test_the_dropout_of_an_attention_that_a_reformer_has_not_is_not_noted(tmp_path: Path) -> None:
    folder = save_random(tmp_path / "hf", "ReformerForMaskedLM", **REFORMER | {"attn_layers": ["local"] * 3})
    before = open_any(folder).notes
    edit_config(folder, lsh_attention_probs_dropout_prob=0.25)
    assert open_any(folder).notes == before


def test_prophetnet_as_transformers_writes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    transformers = pytest.importorskip("transformers")
    vocabulary = json.loads(TOKENIZER.content)["model"]["vocab"]
    words = [word.replace("[CLS]", "[X_SEP]") for word in sorted(vocabulary, key=vocabulary.__getitem__)]
    (tmp_path / "words").write_text("\n".join(words) + "\n", encoding="utf-8")
    theirs = transformers.ProphetNetTokenizer(str(tmp_path / "words"))
    folder = save_random(tmp_path / "hf", "ProphetNetForConditionalGeneration", **PROPHETNET)
    for file in folder.glob("*token*"):
        file.unlink()
    theirs.save_pretrained(folder)
    assert (folder / "prophetnet.tokenizer").is_file()

    def fetch(name: str, *, allow_patterns: list[str], ignore_patterns: list[str]) -> str:
        assert "prophetnet.tokenizer" in allow_patterns
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    for source in (folder, "someone/prophetnet"):
        ours = open_model(source).tokenizer
        found = [ids.tolist() for ids in ours.encode_batch(TEXTS[:4])]
        assert found == [theirs(text, add_special_tokens=False)["input_ids"] for text in TEXTS[:4]]
        assert ours.template == ([], [theirs.sep_token_id])
    assert open_huggingface(folder).architecture == "ProphetNetForConditionalGeneration"
