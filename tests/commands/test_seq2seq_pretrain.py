"""Sequence-to-sequence pretraining by the commands: from a tokenizer to a folder that transformers writes with."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from commands_world import World, assert_refused

import homespun
from homespun.hf.open import open_model
from homespun.models.backbone import EncoderDecoder
from homespun.models.encoder_decoder import EncoderDecoderConfig
from homespun.models.model import Model

pytestmark = pytest.mark.slow

SMALL = tuple(
    f"model.encoder.{setting}"
    for setting in ("hidden_size=32", "intermediate_size=48", "num_hidden_layers=1", "num_attention_heads=2")
)
STEPS = ("train.budget.steps=3", "train.batch_size=7", "data.max_length=32")
READ = ("--text-field", "sentence", "--input")
CASES = {
    "bart-mini": "BartForConditionalGeneration",
    "t5-mini": "T5ForConditionalGeneration",
    "pegasus-mini": "PegasusForConditionalGeneration",
    "prophetnet-mini": "ProphetNetForConditionalGeneration",
}


@pytest.fixture(scope="module")
def prepared(world: World) -> Path:
    """A corpus with sentences, of a tokenizer with sentinels."""
    folder, sizes = world.folder / "seq2seq", ("--vocab-size", "400", "--sentinels", "20")
    output = world.run("tokenizer", "train", *READ, world.train, *sizes, "--out", folder / "tokenizer")
    assert output["vocab_size"] == 400
    build(world, folder / "tokenizer", folder / "corpus")
    return folder


def build(world: World, tokenizer: Path, out: Path) -> None:
    world.run("corpus", "build", *READ, world.train, "--sentences", "--tokenizer", tokenizer, "--out", out)


def words_of(prepared: Path, recipe: str, out: Path, *words: str | Path) -> list[str | Path]:
    small = () if "--from" in words else SMALL
    return ["pretrain", recipe, f"data.corpus={prepared / 'corpus'}", *STEPS, *small, *words, "--out", out]


def pretrain(world: World, *arguments: Any) -> dict[str, Any]:
    return world.run(*words_of(*arguments))


@pytest.fixture(scope="module", params=CASES)
def run(request: pytest.FixtureRequest, world: World, prepared: Path) -> tuple[str, Path]:
    out = prepared / "runs" / request.param
    pretrain(world, prepared, request.param, out)
    return request.param, out


def test_a_run_has_what_every_run_has(run: tuple[str, Path]) -> None:
    recipe, out = run
    result = json.loads((out / "result.json").read_text())
    assert {"seq2seq", "seq2seq_accuracy"} < set(result["validation"]["losses"])
    assert result["export"]["architecture"] == CASES[recipe]
    assert (out / "report" / "index.html").is_file()
    assert isinstance(homespun.load(out), Model)


@torch.no_grad()
def written(model: Model, config: EncoderDecoderConfig, ids: torch.Tensor, keep: torch.Tensor, steps: int) -> list[Any]:
    """The likeliest token, again and again: what each text holds until its end."""
    assert isinstance(model.backbone, EncoderDecoder)
    given = torch.full((len(ids), 1), config.decoder_start_token_id)
    for step in range(steps):
        logits = model(ids, keep, decoder_input_ids=given)
        new = logits[:, -1].argmax(-1, keepdim=True)
        if step == steps - 1 and config.forced_eos_token_id is not None:
            new = torch.full_like(new, config.forced_eos_token_id)
        given = torch.cat([given, new], 1)
    rows = given.tolist()
    return [row[: row.index(config.eos_token_id, 1) + 1] if config.eos_token_id in row[1:] else row for row in rows]


def test_transformers_opens_it_and_writes_the_same(run: tuple[str, Path]) -> None:
    transformers = pytest.importorskip("transformers")
    recipe, out = run
    stored = open_model(out)
    config = stored.config.backbone
    assert isinstance(config, EncoderDecoderConfig)
    tokenizer = transformers.AutoTokenizer.from_pretrained(out / "hf")
    theirs = getattr(transformers, CASES[recipe]).from_pretrained(out / "hf").eval()
    texts = ["The coach and the goal before the match.", "Bread with salt."]
    given = tokenizer(texts, return_tensors="pt", padding=True)
    before, after = stored.tokenizer.template
    for row, ids in zip(given["input_ids"].tolist(), stored.tokenizer.encode_batch(texts), strict=True):
        assert row[: len(before) + len(ids) + len(after)] == [*before, *ids.tolist(), *after]
    keep = given["attention_mask"].bool()
    found = theirs.generate(
        given["input_ids"], attention_mask=given["attention_mask"], max_new_tokens=13, do_sample=False, num_beams=1
    )
    ours = written(stored.model.eval(), config, given["input_ids"], keep, 13)
    for mine, other in zip(ours, found.tolist(), strict=True):
        assert mine == other[: len(mine)]
        assert all(token == stored.tokenizer.pad_id for token in other[len(mine) :])


def test_it_goes_on_from_its_checkpoint(run: tuple[str, Path], world: World, prepared: Path, tmp_path: Path) -> None:
    recipe, out = run
    before = json.loads((out / "result.json").read_text())
    after = pretrain(world, prepared, recipe, tmp_path / "run", "--from", out)
    # the same rows under the same noise: what the checkpoint ended with is where this begins
    assert after["adaptation"]["loss"] == pytest.approx(before["validation"]["loss"], abs=1e-6)
    assert after["validation"]["loss"] != pytest.approx(after["adaptation"]["loss"], abs=1e-6)
    assert after["adaptation"]["tensors"]["fresh"] == []
    assert after["adaptation"]["tensors"]["changed"] == {}
    assert after["adaptation"]["moved"] == []
    exported = pretrain(world, prepared, recipe, tmp_path / "hf", "--from", out / "hf")
    assert exported["adaptation"]["loss"] == pytest.approx(before["validation"]["loss"], abs=1e-5)


def test_adaptation_reports_both_stacks(world: World, prepared: Path, tmp_path: Path) -> None:
    bart, start = tmp_path / "bart", ("--from", tmp_path / "bart")
    pretrain(world, prepared, "bart-mini", bart, "model.encoder.max_position_embeddings=32")
    changes = ("model.decoder.max_position_embeddings=53", "model.decoder.num_hidden_layers=3")
    output = pretrain(world, prepared, "bart-mini", tmp_path / "run", *start, *changes)["adaptation"]
    assert output["num_hidden_layers"] == {"before": 1, "after": 1}
    assert output["decoder"] == {
        "num_hidden_layers": {"before": 1, "after": 3},
        "max_position_embeddings": {"before": 32, "after": 53},
        "attention": {"before": "full", "after": "full"},
    }
    assert output["layers"] == [0, 0, 0, 0]
    read, written = output["moved"]
    assert (read["stack"], written["stack"]) == ("encoder", "decoder")
    assert read["relative_distance"] == pytest.approx(0, abs=1e-6)
    assert written["relative_distance"] > 1e-3
    page = (tmp_path / "run" / "report" / "report.md").read_text()
    for row in ("| layers of the decoder | 1 | 3 |", "| longest input of the decoder | 32 | 53 |", "| stack |"):
        assert row in page
    changes = tuple(f"model.{stack}.max_position_embeddings=61" for stack in ("encoder", "decoder"))
    longer = pretrain(world, prepared, "bart-mini", tmp_path / "long", *start, *changes, "data.max_length=61")
    for stack in ("encoder", "decoder"):
        own, new = (row for row in longer["adaptation"]["moved"] if row["stack"] == stack)
        assert (own["tokens"], own["pieces"], new["pieces"]) == (32, 1, 2)
        assert 32 < new["tokens"] <= 61
        assert own["relative_distance"] < 1e-6 < 1e-4 < new["relative_distance"]


def test_one_objective_goes_on_from_the_other(world: World, prepared: Path, tmp_path: Path) -> None:
    pretrain(world, prepared, "bart-mini", tmp_path / "bart")
    output = pretrain(world, prepared, "t5-mini", tmp_path / "t5", "--from", tmp_path / "bart")
    assert output["adaptation"]["tensors"]["fresh"] == []
    config = open_model(tmp_path / "t5").config.backbone
    assert config.encoder.positions.kind == "learned"  # BART's
    assert config.decoder_start_token_id == config.pad_token_id  # and T5's way to begin


def test_what_is_drawn_once_comes_from_the_seed_in_both_stacks(world: World, prepared: Path, tmp_path: Path) -> None:
    attention = "model.encoder.attention={kind: performer, num_features: 8}"
    pretrain(world, prepared, "bart-mini", tmp_path / "run", attention, "train.seed=5", "train.budget.steps=1")
    config = open_model(tmp_path / "run").config.backbone
    assert config.encoder.attention.kind == "performer"
    assert (config.encoder.seed, config.decoder.seed) == (5, 5)


def test_a_led_is_made_of_a_bart(world: World, prepared: Path, tmp_path: Path) -> None:
    pretrain(world, prepared, "bart-mini", tmp_path / "bart", "model.encoder.max_position_embeddings=32")
    window = "{kind: sparse, patterns: [{kind: window, radius: 4}], global_tokens: {projections: true}}"
    changes = (f"model.encoder.attention={window}", "model.encoder.max_position_embeddings=48")
    output = pretrain(world, prepared, "t5-mini", tmp_path / "led", "--from", tmp_path / "bart", *changes)
    tensors = output["adaptation"]["tensors"]
    assert tensors["fresh"] == []
    assert "backbone.encoder.layers.0.attention.sublayer.query_global.weight" in tensors["changed"]
    assert "to 48" in tensors["changed"]["backbone.encoder.embeddings.positions.embedding.weight"]
    assert not any(".decoder." in name for name in tensors["changed"])
    assert [one["tokens"] for one in output["adaptation"]["moved"]]
    assert output["export"]["architecture"] == "LEDForConditionalGeneration"
    wrong = ("--from", tmp_path / "bart", "model.max_position_embeddings=48")
    assert_refused(r"stack.*model\.encoder\.KEY=VALUE", *words_of(prepared, "t5-mini", tmp_path / "no", *wrong))


def test_what_is_refused(world: World, prepared: Path, tmp_path: Path) -> None:
    other = f"data.corpus={world.corpus}"
    for message, recipe, *changes in (
        ("homespun tokenizer train --sent", "t5-mini", other),
        ("homespun corpus build --sentences", "bart-mini", other),
        (" 32 .*max_position_embeddings=16.*data", "bart-mini", "model.decoder.max_position_embeddings=16"),
    ):
        assert_refused(message, *words_of(prepared, recipe, tmp_path / "run", *changes))
    for recipe, preset in (("t5-mini", "bert-tiny"), ("electra-mini", "bart-tiny")):
        words = ("pretrain", recipe, f"data.corpus={prepared / 'corpus'}", *STEPS, f"model={{preset: {preset}}}")
        assert_refused("one stack", *words, "--out", tmp_path / "run")


def test_sentinels_are_added_to_a_tokenizer_and_a_model_goes_on_with_them(
    world: World, prepared: Path, tmp_path: Path
) -> None:
    bart, extended = tmp_path / "bart", tmp_path / "extended"
    build(world, world.tokenizer, tmp_path / "corpus")
    pretrain(world, tmp_path, "bart-mini", bart)
    output = world.run("tokenizer", "extend", bart, "--sentinels", "11", "--out", extended / "tokenizer")
    assert output["vocab_size"] == 411
    build(world, extended / "tokenizer", extended / "corpus")
    output = pretrain(world, extended, "t5-mini", tmp_path / "t5", "--from", bart)
    assert output["adaptation"]["vocabulary"] == {"before": 400, "after": 411, "new_words": 11}
    assert_refused("--add COUNT", "tokenizer", "extend", bart, "--out", tmp_path / "none")
