"""The model folder: an exact round trip, and damaged folders are refused."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

from homespun.errors import UserError
from homespun.models.bundle import assign_weights, fingerprint, load_model, load_weights, save_model, weights_of
from homespun.models.config import ModelConfig
from homespun.models.encoder import EncoderConfig
from homespun.models.heads import MaskedLMHeadConfig
from homespun.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(["the quick brown fox jumps over the lazy dog"] * 3, kind="words", vocab_size=12)


@pytest.fixture
def folder(tokenizer: Tokenizer, tmp_path: Path) -> Path:
    config = ModelConfig(
        backbone=EncoderConfig(
            vocab_size=tokenizer.vocab_size,
            hidden_size=14,
            num_attention_heads=2,
            num_hidden_layers=3,
            intermediate_size=17,
            max_position_embeddings=23,
        ),
        head=MaskedLMHeadConfig(),
    )
    torch.manual_seed(1)
    save_model(tmp_path / "model", config.build(), config, tokenizer, task={"max_length": 23})
    return tmp_path / "model"


def test_the_bits_come_back(folder: Path, tokenizer: Tokenizer) -> None:
    stored = load_model(folder)
    save_model(folder.parent / "again", stored.model, stored.config, stored.tokenizer, task=stored.task)
    assert (folder.parent / "again" / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    assert stored.tokenizer.fingerprint == tokenizer.fingerprint
    assert stored.task == {"max_length": 23}
    assert not stored.model.training
    ids = torch.tensor([[2, 7, 5, 3]])
    assert torch.equal(stored.model(ids), load_model(folder.parent / "again").model(ids))


def test_a_fingerprint_is_of_the_weights_wherever_they_lie(folder: Path) -> None:
    stored = load_model(folder)
    again = load_model(shutil.copytree(folder, folder.parent / "copied"))
    assert fingerprint(stored.model) == fingerprint(again.model)
    assert fingerprint(stored.model, extra=b"config") != fingerprint(stored.model)
    with torch.no_grad():
        next(reversed(weights_of(again.model).values())).add_(1e-3)
    assert fingerprint(stored.model) != fingerprint(again.model)


def test_tied_weights_are_kept_once_and_come_back_tied(folder: Path) -> None:
    model = load_model(folder).model
    assert "head.weight" not in weights_of(model)
    assert model.head.weight is model.backbone.embeddings.words.weight


def test_buffers_are_kept_as_a_state_dict_keeps_them() -> None:
    module = nn.BatchNorm1d(3)
    module.register_buffer("scratch", torch.zeros(2), persistent=False)
    assert sorted(weights_of(module)) == ["bias", "num_batches_tracked", "running_mean", "running_var", "weight"]


def test_weights_of_another_model_are_refused_before_anything_is_changed() -> None:
    module = nn.Linear(3, 2)
    before = module.weight.clone()
    with pytest.raises(UserError, match=r"file lacks 1 tensor, .*'bias'"):
        load_weights(module, {"weight": torch.zeros(2, 3)}, source="file")
    with pytest.raises(UserError, match="'extra'"):
        weights = {"weight": torch.zeros(2, 3), "bias": torch.zeros(2), "extra": torch.zeros(1)}
        load_weights(module, weights, source="file")
    with pytest.raises(UserError, match=r"bias .*\(5,\).*\(2,\)"):
        load_weights(module, {"weight": torch.zeros(2, 3), "bias": torch.zeros(5)}, source="file")
    assert torch.equal(module.weight, before)


def edit(folder: Path, **changes: object) -> None:
    path = folder / "homespun.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def assert_refused(folder: Path, message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        load_model(folder)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "homespun.json").unlink(), "homespun model"),
        (lambda f: (f / "homespun.json").write_text("{"), "cut short"),
        (lambda f: (f / "homespun.json").write_text("[" * 100_000), "cut short"),
        (lambda f: (f / "homespun.json").write_text("[1]"), "object, not list"),
        (lambda f: (f / "homespun.json").write_text('{"format": 1}'), " model "),
        (lambda f: (f / "homespun.json").write_text('{"format": [1]}'), r"format \[1\]"),
        (lambda f: edit(f, format=99), "format 99"),
        (lambda f: edit(f, tokenizer="0" * 16), "another tokenizer"),
        (lambda f: (f / "model.safetensors").unlink(), "no model.safetensors"),
        (lambda f: (f / "model.safetensors").write_bytes(b"12"), "cut short"),
        (
            lambda f: (f / "model.safetensors").write_bytes((f / "model.safetensors").read_bytes()[:-1] + b"!"),
            "altered",
        ),
    ],
)
def test_a_damaged_folder_is_refused_in_one_line(folder: Path, damage, message: str) -> None:
    damage(folder)
    assert_refused(folder, message)


@pytest.mark.parametrize(
    ("key", "value"), [("labels", [1]), ("task", None), ("tokenizer", 3), ("weights", "x"), ("weights", {"bytes": 5})]
)
def test_a_description_of_odd_values(folder: Path, key: str, value: object) -> None:
    tree = json.loads((folder / "homespun.json").read_text())
    for changed in (tree | {key: value}, {name: kept for name, kept in tree.items() if name != key}):
        (folder / "homespun.json").write_text(json.dumps(changed))
        assert_refused(folder, f" {key} ")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_layers": 10**9}, r"homespun\.json .* 1000000000 layers.*\d+"),
        ({"num_hidden_layers": 10**9, "num_hidden_groups": 1}, "4096"),
        ({"positions": {"kind": "sinusoidal"}, "max_position_embeddings": 10**9}, " 14,000,000,000 "),
        ({"vocab_size": 10**15}, "by the config"),
        ({"vocab_size": 10**30}, "too large"),
    ],
)
def test_a_description_of_endless_size_takes_neither_time_nor_memory(
    folder: Path, changes: dict[str, object], message: str
) -> None:
    model = json.loads((folder / "homespun.json").read_text())["model"]
    edit(folder, model=model | {"backbone": model["backbone"] | changes})
    assert_refused(folder, message)


def test_a_failed_save_leaves_the_old_model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = load_model(folder)
    before = (folder / "model.safetensors").read_bytes()

    def broken(self: Tokenizer, path: Path) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(Tokenizer, "save", broken)
    with pytest.raises(OSError, match="disk full"):
        save_model(folder, stored.model, stored.config, stored.tokenizer)
    assert (folder / "model.safetensors").read_bytes() == before
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


def test_weights_that_are_taken_are_not_copied_and_ties_stay() -> None:
    module = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 7), nn.Linear(5, 7))
    module[2].weight = module[1].weight
    given = {name: torch.randn(tensor.shape) for name, tensor in weights_of(module).items()}
    given["0.weight"] = torch.randn(3, 5).t()  # of another order
    given["2.bias"] = given["1.bias"]  # one there, two here
    given["0.bias"] = given["0.bias"].half()
    assign_weights(module, given, source="file")
    assert module[1].weight.data_ptr() == given["1.weight"].data_ptr()
    assert module[2].weight is module[1].weight
    assert module[0].weight.is_contiguous()
    assert module[0].bias.dtype == torch.float32
    for name, tensor in module.state_dict().items():
        torch.testing.assert_close(tensor, given[name.replace("2.weight", "1.weight")], check_dtype=False)
    with torch.no_grad():
        module[2].bias.zero_()
    assert module[1].bias.abs().sum() > 0
    with pytest.raises(UserError, match="lacks 1 tensor,"):
        assign_weights(module, {name: tensor for name, tensor in given.items() if name != "0.bias"}, source="file")


def test_training_a_model_that_was_opened_leaves_its_file_alone(folder: Path) -> None:
    before = (folder / "model.safetensors").read_bytes()
    stored = load_model(folder)
    opened = stored.model
    with torch.no_grad():
        for parameter in opened.parameters():
            parameter.add_(1.0)
    assert (folder / "model.safetensors").read_bytes() == before
    # and it can be written over the folder that it was read from
    save_model(folder, opened, stored.config, stored.tokenizer)
    again = load_model(folder).model
    for name, tensor in weights_of(again).items():
        torch.testing.assert_close(tensor, weights_of(opened)[name], atol=0, rtol=0)
