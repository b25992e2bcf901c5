"""Opening models: the places they lie in, the forms of their weights, and what is refused."""

import json
import pickle
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hf_peers import SIZES, bert_tokenizer, edit_config, inputs, refused
from safetensors.torch import load_file, save_file

from homespun.data.labels import Labels
from homespun.errors import UserError
from homespun.hf.export import export_huggingface
from homespun.hf.open import open_any, open_for_training, open_huggingface, open_model
from homespun.models.bundle import ModelBundle, save_model, weights_of
from homespun.models.config import ModelConfig

TOKENIZER = bert_tokenizer()
GIVE = "give the folder of a model or a run"
WEIGHTS, TORCH = "model.safetensors", "pytorch_model.bin"


def save_hub_folder(folder: Path, kind: str = "masked_lm", **backbone: Any) -> None:
    config = ModelConfig.model_validate({"backbone": SIZES | backbone, "head": {"kind": kind}})
    torch.manual_seed(13)
    export_huggingface(folder, ModelBundle(config.build(), config, TOKENIZER))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_hub_folder(tmp_path / "hf")
    return tmp_path / "hf"


def logits(source: str | Path, segments: int = 2) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = open_model(source).model(**inputs(pad_id=0, segments=segments))
    return found


def edit_weights(folder: Path, edit: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    tensors = load_file(folder / WEIGHTS)
    edit(tensors)
    save_file(tensors, folder / WEIGHTS)


# the places


def test_a_run_and_its_model_folder(tmp_path: Path) -> None:
    config = ModelConfig.model_validate({"backbone": SIZES, "head": {"kind": "ffn", "num_labels": 3}})
    labels = Labels(("a", "b", "c"))
    run = tmp_path / "run"
    (run / "checkpoints" / "step-3").mkdir(parents=True)
    (run / "checkpoints" / "step-3" / "state.json").write_text("{}")
    (run / "config.yaml").write_text("kind: finetune\n")
    assert "without model/" in refused(run)
    save_model(run / "model", config.build(), config, TOKENIZER, labels=labels)
    for folder in (run, str(run), run / "model"):
        stored = open_model(folder)
        assert stored.labels == labels
        assert not stored.model.training
    assert f"give the finished run {run}" in refused(run / "checkpoints" / "step-3")


def test_a_file_an_empty_folder_and_nothing_at_all(tmp_path: Path, folder: Path) -> None:
    assert "is a file" in refused(folder / "config.json")
    (tmp_path / "empty").mkdir()
    assert "holds no model" in refused(tmp_path / "empty")
    assert "there is no folder" in refused(tmp_path / "absent")
    assert "there is no folder" in refused("../absent")
    assert "there is no folder" in refused("a/b/c")
    TOKENIZER.save(tmp_path / "tokenizer")
    assert refused(tmp_path / "tokenizer").endswith("tokenizer holds a tokenizer and no model; " + GIVE)


@pytest.mark.parametrize("name", ["./absent", "../absent", "~/absent", "/absent", "a/b/c", "runs/bse", "runs/"])
def test_a_path_is_not_looked_for_on_the_hub(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: pytest.fail("asked the hub"))
    (tmp_path / "runs" / "base").mkdir(parents=True)
    if name == "runs/":
        assert "holds no model" in refused(name)
    else:
        assert refused(name).startswith(f"there is no folder {name}")
        assert ("is a local folder" in refused(name)) == (name == "runs/bse")
    assert re.search("runs is a local folder, .* hub is not searched$", refused("runs/bse"))


def test_differences_are_logged_when_training_continues(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    edit_weights(folder, lambda tensors: tensors.update({name: t.half() for name, t in tensors.items()}))
    stored = open_for_training(folder)
    (note,) = caplog.messages
    assert re.search(f"^{folder}: .*float16 .*float32", note)
    open_model(folder)
    assert len(caplog.records) == 1
    caplog.clear()
    edit_config(folder, architectures=["BertModel"])
    assert open_for_training(folder).config.head is None
    assert [record.getMessage() for record in caplog.records] == [note]  # and nothing of a pooler that is not written
    assert stored.config.head is not None


def test_a_hub_name_is_fetched_without_what_is_not_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def fetch(name: str, *, allow_patterns: list[str], ignore_patterns: list[str]) -> str:
        asked.append((name, allow_patterns))
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    torch.testing.assert_close(logits("someone/model"), logits(folder))
    assert [name for name, _ in asked] == ["someone/model"]
    assert not [pattern for pattern in asked[0][1] if ".bin" in pattern]
    (folder / WEIGHTS).unlink()
    assert "has no weights" in refused("someone/model")
    assert asked[-1] == ("someone/model", ["pytorch_model*.bin", "pytorch_model.bin.index.json"])


def test_no_network_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(name: str, **patterns: Any) -> str:
        raise ConnectionError("no route to host\nand more lines\nof it")

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    message = refused("someone/model")
    assert re.search(r"^there is no folder someone/model.* hub \(no route to host\); check[^\n]*$", message)


# the forms of the weights


def shard(folder: Path, complete: str = WEIGHTS, save: Callable[[Any, Path], None] = save_file) -> dict[str, str]:
    tensors = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    name, _, suffix = complete.partition(".")
    weight_map = {key: f"{name}-{1 + n % 2:05}-of-00002.{suffix}" for n, key in enumerate(sorted(tensors))}
    for file in set(weight_map.values()):
        save({key: tensors[key] for key in tensors if weight_map[key] == file}, folder / file)
    write_index(folder, weight_map, complete)
    return weight_map


def write_index(folder: Path, weight_map: Any, complete: str = WEIGHTS) -> None:
    (folder / f"{complete}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def test_shards_of_torch_files_stay_in_their_folder_and_hold_no_code(folder: Path, tmp_path: Path) -> None:
    expected = logits(folder)
    shutil.copy(folder / WEIGHTS, folder.parent / "outside.bin")
    weight_map = shard(folder, TORCH, torch.save)
    torch.testing.assert_close(logits(folder), expected, atol=0, rtol=0)
    for name in ("../outside.bin", "/etc/passwd.bin", "sub/x.bin", "model.safetensors"):
        write_index(folder, dict.fromkeys(weight_map, name), TORCH)
        assert "in the same folder" in refused(folder)
    write_index(folder, weight_map, TORCH)
    torch.save({"bert.x": Malicious(tmp_path / "ran")}, folder / min(weight_map.values()))
    assert "has code" in refused(folder)
    assert not (tmp_path / "ran").exists()


def test_shards_torch_files_and_half_precision_are_the_same_model(folder: Path) -> None:
    expected = logits(folder)
    tensors = load_file(folder / WEIGHTS)
    shard(folder)
    torch.testing.assert_close(logits(folder), expected, atol=0, rtol=0)
    (folder / f"{WEIGHTS}.index.json").unlink()
    torch.save(tensors, folder / "pytorch_model.bin")
    torch.testing.assert_close(logits(folder), expected, atol=0, rtol=0)
    torch.save({name: tensor.half() for name, tensor in tensors.items()}, folder / "pytorch_model.bin")
    found = logits(folder)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, atol=0.1, rtol=0.1)


def test_old_names_tied_copies_and_buffers(folder: Path) -> None:
    expected = logits(folder)

    def age(tensors: dict[str, torch.Tensor]) -> None:
        for name in list(tensors):
            if "LayerNorm" in name:
                old = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
                tensors[old] = tensors.pop(name)
        tensors["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"].clone()
        tensors["cls.predictions.decoder.bias"] = tensors.pop("cls.predictions.bias")  # only the copy
        tensors["bert.embeddings.position_ids"] = torch.arange(29)[None]
        tensors["bert.pooler.dense.bias"] = torch.zeros(33)

    edit_weights(folder, age)
    torch.testing.assert_close(logits(folder), expected, atol=0, rtol=0)
    opened = open_huggingface(folder)
    left = {unused.name: unused.reason for unused in opened.unused_tensors}
    assert left.keys() == {"cls.predictions.decoder.weight", "bert.embeddings.position_ids", "bert.pooler.dense.bias"}
    assert left["cls.predictions.decoder.weight"] == "tied to bert.embeddings.word_embeddings.weight"
    # every tensor of the file has its place, under its own name
    assert opened.mapped.keys() | left.keys() == load_file(folder / WEIGHTS).keys()
    assert not opened.mapped.keys() & left.keys()
    assert opened.mapped["cls.predictions.decoder.bias"] == ("head.bias",)
    assert opened.mapped["bert.embeddings.LayerNorm.gamma"] == ("backbone.embeddings.norm.weight",)
    ours = [name for names in opened.mapped.values() for name in names]
    assert sorted(ours) == sorted(weights_of(opened.stored.model))


def test_the_model_without_its_head(folder: Path) -> None:
    expected = open_model(folder).model.backbone
    for names in (["BertModel"], ..., None, []):
        edit_config(folder, architectures=names)
        opened = open_huggingface(folder)
        assert opened.architecture == "BertModel"
        assert len(opened.unused_tensors) == 5
        assert all(unused.name.startswith("cls.predictions.") for unused in opened.unused_tensors)
        found = opened.stored.model(**inputs(pad_id=0))
        torch.testing.assert_close(found, expected(**inputs(pad_id=0)), atol=0, rtol=0)


def test_the_head_that_is_asked_for(folder: Path, tmp_path: Path) -> None:
    opened = open_huggingface(folder, head=None)
    assert opened.architecture == "BertModel"
    assert opened.stored.config.head is None
    assert all(unused.name.startswith("cls.predictions.") for unused in opened.unused_tensors)
    assert open_huggingface(folder, head="masked_lm").architecture == "BertForMaskedLM"
    with pytest.raises(UserError, match=r"'lstm'.*masked_lm.*none"):
        open_huggingface(folder, head="lstm")
    with pytest.raises(UserError, match=r"'cls\.predictions\.bias' and 4 more"):
        open_huggingface(folder, head="pooled")
    # of our own folders too
    save_model(tmp_path / "model", opened.stored.model, opened.stored.config, TOKENIZER)
    with pytest.raises(UserError, match="'masked_lm'"):
        open_model(tmp_path / "model", head="masked_lm")
    complete = open_model(folder)
    save_model(tmp_path / "model", complete.model, complete.config, TOKENIZER)
    assert open_model(tmp_path / "model", head="masked_lm").config.head is not None
    bare = open_any(tmp_path / "model", head=None)
    assert bare.stored.config.head is None
    assert {unused.name.partition(".")[0] for unused in bare.unused_tensors} == {"head"}
    given = inputs(pad_id=0)
    with torch.no_grad():
        torch.testing.assert_close(bare.stored.model(**given), opened.stored.model(**given), atol=0, rtol=0)


def test_loading_draws_nothing_and_leaves_the_generator_alone(folder: Path) -> None:
    torch.manual_seed(7)
    before = torch.get_rng_state()
    open_model(folder)
    assert torch.equal(torch.get_rng_state(), before)


def test_files_of_before_archives_are_read(folder: Path) -> None:
    expected = logits(folder)
    torch.save(load_file(folder / WEIGHTS), folder / TORCH, _use_new_zipfile_serialization=False)
    (folder / WEIGHTS).unlink()
    torch.testing.assert_close(logits(folder), expected, atol=0, rtol=0)


def test_a_tokenizer_in_the_files_of_before(folder: Path) -> None:
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    (folder / "tokenizer.json").unlink()
    words = sorted(vocabulary, key=vocabulary.__getitem__)
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    assert open_model(folder).tokenizer.vocab_size == 89
    (folder / "vocab.txt").write_text("\n".join([*words, words[17]]) + "\n")
    assert "twice" in refused(folder)


def test_missing_settings_are_those_of_transformers(tmp_path: Path) -> None:
    assumed = {"hidden_act": "gelu", "layer_norm_eps": 1e-12, "type_vocab_size": 2}
    save_hub_folder(tmp_path / "hf", **assumed)
    before = open_model(tmp_path / "hf").config
    edit_config(tmp_path / "hf", **dict.fromkeys([*assumed, "initializer_range", "hidden_dropout_prob"], ...))
    after = open_model(tmp_path / "hf").config
    assert after.backbone == before.backbone.model_copy(update={"initializer_range": 0.02, "hidden_dropout_prob": 0.1})


# what is refused


class Malicious:
    """Unpickled, it would make a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.mkdir, (self.path,)


def test_a_torch_file_with_code_is_refused_and_not_run(folder: Path, tmp_path: Path) -> None:
    (folder / WEIGHTS).unlink()
    torch.save({"bert.x": Malicious(tmp_path / "ran")}, folder / "pytorch_model.bin")
    assert "has code" in refused(folder)
    assert not (tmp_path / "ran").exists()
    torch.save({"bert.x": 3}, folder / "pytorch_model.bin")
    assert "must be a mapping of names to tensors" in refused(folder)


def test_a_pickle_is_refused_without_a_warning(folder: Path, recwarn: pytest.WarningsRecorder) -> None:
    (folder / WEIGHTS).unlink()
    for protocol in range(6):
        (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"a": [1]}, protocol))
        assert "cut short" in refused(folder)
    assert not recwarn.list


def test_weights_cut_short(folder: Path) -> None:
    complete = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(complete[:-100])
    assert "cut short" in refused(folder)
    torch.save(load_file_of(complete, folder), folder / "pytorch_model.bin")
    (folder / WEIGHTS).unlink()
    (folder / "pytorch_model.bin").write_bytes((folder / "pytorch_model.bin").read_bytes()[:-300])
    assert "cut short" in refused(folder)


def load_file_of(content: bytes, folder: Path) -> dict[str, torch.Tensor]:
    (folder / "whole.safetensors").write_bytes(content)
    return load_file(folder / "whole.safetensors")


@pytest.mark.parametrize(
    "name", ["../outside.safetensors", "/etc/passwd", "sub/x.safetensors", "..\\x.safetensors", ".."]
)
def test_an_index_stays_in_its_folder(folder: Path, name: str) -> None:
    shutil.copy(folder / WEIGHTS, folder.parent / "outside.safetensors")
    weight_map = shard(folder)
    write_index(folder, dict.fromkeys(weight_map, name))
    assert "in the same folder" in refused(folder)


def test_an_index_that_does_not_fit_its_shards(folder: Path) -> None:
    weight_map = shard(folder)
    first = min(weight_map)
    write_index(folder, weight_map | {"bert.more": weight_map[first]})
    assert "have different tensors" in refused(folder)
    write_index(folder, {name: file for name, file in weight_map.items() if name != first})
    assert repr(first) in refused(folder)
    write_index(folder, [1, 2])
    assert "no weight_map" in refused(folder)
    write_index(folder, weight_map)
    (folder / weight_map[first]).unlink()
    assert "which does not exist" in refused(folder)


def test_no_config_and_no_weights(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "elsewhere")
    assert "has no weights" in refused(folder)
    (folder / "elsewhere").rename(folder / WEIGHTS)
    (folder / "config.json").unlink()
    assert "no config.json" in refused(folder)


GPT2 = {"causal": True, "residual": {"kind": "pre"}, "embedding_norm": False, "type_vocab_size": 0}


def test_dropout_of_the_embeddings_of_a_gpt_is_that_of_its_layers(tmp_path: Path) -> None:
    save_hub_folder(tmp_path / "hf", kind="causal_lm", **GPT2)
    expected = logits(tmp_path / "hf", segments=0)
    edit_config(tmp_path / "hf", embd_pdrop=0.25, resid_pdrop=0.125)
    assert open_model(tmp_path / "hf").config.backbone.model_dump()["hidden_dropout_prob"] == 0.125
    torch.testing.assert_close(logits(tmp_path / "hf", segments=0), expected, atol=0, rtol=0)


@pytest.mark.parametrize(("end", "pad"), [(7, 7), (50256, 0), (None, 0), ("x", 0)])
def test_a_gpt_without_a_padding_token_pads_with_the_end_of_text(end: Any, pad: int, tmp_path: Path) -> None:
    save_hub_folder(tmp_path / "hf", kind="causal_lm", **GPT2)
    edit_config(tmp_path / "hf", pad_token_id=None, eos_token_id=end)
    assert open_model(tmp_path / "hf").config.backbone.pad_token_id == pad


@pytest.mark.parametrize("shape", [(), (1,), (33, 98), (98, 33), (3, 33, 33)])
def test_fused_matrices_of_the_wrong_shape(shape: tuple[int, ...], tmp_path: Path) -> None:
    save_hub_folder(tmp_path / "hf", kind="causal_lm", **GPT2)
    for name in ("transformer.h.1.attn.c_attn.weight", "transformer.h.1.attn.c_attn.bias"):
        edit_weights(tmp_path / "hf", lambda tensors, name=name: tensors.update({name: torch.zeros(shape)}))
        assert f"{name} has shape" in refused(tmp_path / "hf")
        edit_weights(tmp_path / "hf", lambda tensors, name=name: tensors.pop(name))
        assert f"such as '{name}'" in refused(tmp_path / "hf")
        save_hub_folder(tmp_path / "hf", kind="causal_lm", **GPT2)


def test_tensors_that_are_refused(folder: Path) -> None:
    complete = (folder / WEIGHTS).read_bytes()
    cases: list[tuple[Callable[[dict[str, torch.Tensor]], Any], str]] = [
        (lambda t: t.update({"bert.encoder.layer.0.adapter.weight": torch.zeros(3)}), "adapter.weight'"),
        (lambda t: t.update(a=torch.zeros(3), b=torch.zeros(3)), "'a' and 1 more"),
        (lambda t: t.pop("cls.predictions.bias"), "lacks 1 tensor, such as 'cls.predictions.bias'"),
        (lambda t: t.update({"cls.predictions.decoder.weight": torch.zeros(97, 33)}), "not tied"),
        (lambda t: t.update({"cls.predictions.decoder.weight": torch.zeros(3)}), "not tied"),
        (lambda t: t.update({"cls.predictions.bias": torch.zeros(97, dtype=torch.int8)}), "quantised"),
        (lambda t: t.clear(), "but weights for at most 0"),
    ]
    for edit, words in cases:
        (folder / WEIGHTS).write_bytes(complete)
        edit_weights(folder, edit)
        assert words in refused(folder)


def test_a_missing_or_too_large_tokenizer(folder: Path, tmp_path: Path) -> None:
    tokenizer = (folder / "tokenizer.json").read_text()
    (folder / "tokenizer.json").unlink()
    assert "tokenizer.json" in refused(folder)
    (folder / "tokenizer.json").write_text(tokenizer)
    tree = json.loads(tokenizer)
    tree["model"]["vocab"] |= {f"more{n}": n for n in range(89, 120)}
    (folder / "tokenizer.json").write_text(json.dumps(tree))
    assert "120 tokens and the model 97" in refused(folder)
