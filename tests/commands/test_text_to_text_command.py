"""Fine-tuning models that write, through the commands: two stacks, one stack, several tasks, and what goes wrong."""

import gzip
import json
import logging
import random
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from commands_world import COMMON, WORDS, World, assert_refused, read_lines, write_lines

import homespun
from homespun.commands.recipe import finetune_recipe
from homespun.errors import UserError
from homespun.models.bundle import save_model
from homespun.models.config import ModelConfig
from homespun.text.tokenizer import Tokenizer

pytest.importorskip("rouge_score")

SIZES = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 48, "num_hidden_layers": 1}
SIZES |= {"max_position_embeddings": 64, "hidden_dropout_prob": 0.0}
LENGTHS = ("data.max_source_length=31", "data.max_target_length=11")


def write_pairs(path: Path, rows: int, seed: int) -> Path:
    """The word to write is the only one of the source that is not a common one."""
    draw = random.Random(seed)
    with gzip.open(path, "wt", encoding="utf-8") as stream:
        for _ in range(rows):
            word = draw.choice([word for words in WORDS.values() for word in words][:5])
            words = [draw.choice(COMMON.split()) for _ in range(7)]
            words[draw.randrange(7)] = word
            listed = [word, "never"] if draw.random() < 0.1 else [word]
            stream.write(json.dumps({"document": " ".join(words), "summary": listed, "topic": "x"}) + "\n")
    return path


def sizes_of(tokenizer: Tokenizer) -> dict[str, Any]:
    return SIZES | {"vocab_size": tokenizer.vocab_size, "pad_token_id": tokenizer.pad_id}


def stored(folder: Path, tokenizer: Tokenizer, backbone: dict[str, Any]) -> Path:
    torch.manual_seed(0)
    config = ModelConfig.model_validate({"backbone": backbone, "head": {"kind": "causal_lm"}})
    save_model(folder / "model", config.build(), config, tokenizer)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("writers")
    write_pairs(made / "train.jsonl.gz", 211, seed=1)
    write_pairs(made / "test.jsonl.gz", 23, seed=2)
    return made


@pytest.fixture(scope="module")
def two_stacks(folder: Path, world: World) -> Path:
    tokenizer = Tokenizer.load(world.tokenizer)
    ends = {"bos_token_id": tokenizer.cls_id, "eos_token_id": tokenizer.sep_id}
    ends |= {"decoder_start_token_id": tokenizer.sep_id}
    backbone = {"kind": "encoder_decoder", "encoder": sizes_of(tokenizer)} | ends
    return stored(folder / "two", tokenizer, backbone)


@pytest.fixture(scope="module")
def one_stack(folder: Path, world: World) -> Path:
    tokenizer = Tokenizer.load(world.tokenizer)
    return stored(folder / "one", tokenizer, {"kind": "encoder", "causal": True} | sizes_of(tokenizer))


def words_of(folder: Path, base: Path, *others: str, test: bool = True) -> tuple[Any, ...]:
    given = ("finetune", "summarize", f"data.train={folder / 'train.jsonl.gz'}", "data.source=document")
    given += ("data.target=summary", *LENGTHS, "train.optimizer.learning_rate=1e-2", "train.batch_size=17")
    given += (f"data.test={folder / 'test.jsonl.gz'}",) if test else ()
    return (*given, *others, "--from", base)


@pytest.mark.slow
@pytest.mark.parametrize("stacks", ["two_stacks", "one_stack"])
def test_a_writer_learns_and_is_used(
    folder: Path, stacks: str, tmp_path: Path, request: pytest.FixtureRequest, world: World
) -> None:
    base = request.getfixturevalue(stacks)
    run = tmp_path / "run"
    result = world.run(*words_of(folder, base, "train.budget.epochs=20"), "--out", run)
    assert result["measured_on"] == "test"
    assert result["test"]["rows"] == 23
    kinds = {f"{kind}-{count}" for kind in ("lead", "random", "central") for count in (1, 3)}
    assert result["baselines"].keys() == kinds | {"copy", "extractive"}
    assert result["test"]["rouge1"] > result["baselines"]["lead-3"]["rouge1"] + 0.3
    assert 0 < result["validation"]["loss"] < 6
    lines = read_lines(run / "predictions/model.jsonl")
    assert [line["row"] for line in lines] == list(range(23))
    assert sum(line["score"] for line in lines) / 23 == pytest.approx(result["test"]["rougeL"])
    assert sum(line["rouge1"] for line in lines) / 23 == pytest.approx(result["test"]["rouge1"])
    assert len((run / "predictions/lead-3.jsonl").read_text().splitlines()) == 23
    again = world.run("evaluate", run, "--data", folder / "test.jsonl.gz")
    assert again["rouge1"] == result["test"]["rouge1"]
    evaluate = ("evaluate", run, "--data", folder / "test.jsonl.gz")
    assert_refused("same column, 'document'", *evaluate, "--label-field", "document")
    assert_refused("--data-set 'short'", *evaluate, "--data-set", "short")
    output = world.run("predict", run, "--input", folder / "test.jsonl.gz", "--out", tmp_path / "out.jsonl")
    written = [line["text"] for line in read_lines(tmp_path / "out.jsonl")]
    assert output["rows"] == 23
    assert written == [line["predicted"] for line in lines]
    assert "ROUGE-1" in (run / "report/index.html").read_text()
    otherwise = ("--generation", "min_new_tokens=6", "--generation", "no_repeat_ngram_size=1")
    test = str(folder / "test.jsonl.gz")
    longer = world.run("summarize", run, "--input", test, *otherwise)["texts"]
    assert sum(map(len, longer)) > sum(map(len, written))
    assert world.run("evaluate", run, "--data", test, *otherwise)["rouge1"] < result["test"]["rouge1"]
    world.run("summarize", run, "--input", test, "--out", tmp_path / "longer.jsonl", "--processes", "1", *otherwise)
    assert [line["text"] for line in read_lines(tmp_path / "longer.jsonl")] == longer
    for wrong, message in (
        ("num_beamz=2", "num_beams"),
        ("num_beams=4000", "at most half of vocab_size"),
        ("num_beams", "KEY=VALUE"),
    ):
        assert_refused(message, "summarize", run, "--input", test, "--generation", wrong)
    assert_refused("--generation", "evaluate", world.classifier, "--data", world.test, *otherwise)


@pytest.mark.slow
def test_several_tasks_learn_together(folder: Path, two_stacks: Path, tmp_path: Path, world: World) -> None:
    train, test = folder / "train.jsonl.gz", folder / "test.jsonl.gz"
    sets = [
        {"name": "short", "train": str(train), "test": str(test), "source": "document", "target": "summary"},
        {"train": str(test), "test": str(test), "source": "document", "target": "topic", "prefix": "name it: "},
    ]
    given = ("finetune", "summarize", f"data.sets={json.dumps(sets)}", "data.limit=60", *LENGTHS)
    given += ("train.budget.steps=9", "train.batch_size=7", "train.optimizer.learning_rate=1e-2", "--from", two_stacks)
    result = world.run(*given, "--out", tmp_path / "run")
    assert result["test"]["by_set"].keys() == {"short", "name it"}
    assert result["test"]["rows"] == 46
    for name, output in result["test"]["by_set"].items():
        metrics = world.run("evaluate", tmp_path / "run", "--data", test, "--data-set", name)
        assert metrics["rouge1"] == pytest.approx(output["rouge1"])
    predictions = read_lines(tmp_path / "run/predictions/model.jsonl")
    written = [
        world.run("summarize", tmp_path / "run", "--input", test, "--data-set", name) for name in ("short", "name it")
    ]
    assert [text for output in written for text in output["texts"]] == [row["predicted"] for row in predictions]
    for verb in (("evaluate", "--data", test), ("summarize", "--input", test), ("predict", "a text")):
        words = (verb[0], tmp_path / "run", *verb[1:])
        assert_refused(r"\['short', 'name it'\].*--data-set", *words)
        assert_refused("--data-set 'shrt'.*'short'", *words, "--data-set", "shrt")


@pytest.mark.slow
def test_a_curve_of_examples(folder: Path, two_stacks: Path, tmp_path: Path, world: World) -> None:
    few = ("train_sizes=[13, all]", "seeds=2", "train.budget.steps=2", "data.generation.num_beams=2")
    result = world.run(*words_of(folder, two_stacks, *few), "--out", tmp_path / "run")
    assert [point["examples"] for point in result["curve"]] == [13, result["rows"]["train"]]
    assert len(result["curve"][0]["seeds"]) == len(result["seeds"]) == 2
    assert result["curve"][1]["test"]["rouge1"] == result["test"]["rouge1"]
    names = {path.name for path in (tmp_path / "run/trials").iterdir()}
    assert names == {f"examples-{n}-seed-{s}" for n in (13, result["rows"]["train"]) for s in (0, 1)}
    assert_refused(
        "train_sizes=5000.* 189 ", *words_of(folder, two_stacks, "train_sizes=[5000]"), "--out", tmp_path / "more"
    )


def test_a_frozen_encoder_stays_as_it_is(folder: Path, two_stacks: Path, tmp_path: Path, world: World) -> None:
    frozen = ("objective.frozen_encoder=true", "train.budget.steps=3", "baselines=false")
    world.run(*words_of(folder, two_stacks, *frozen), "--out", tmp_path / "run")
    before, after = (homespun.load(source).backbone for source in (two_stacks, tmp_path / "run"))
    assert all(torch.equal(t, after.encoder.state_dict()[name]) for name, t in before.encoder.state_dict().items())
    decoder = after.decoder.state_dict()
    assert any(not torch.equal(tensor, decoder[name]) for name, tensor in before.decoder.state_dict().items())


def test_what_is_empty_or_too_long_is_counted(two_stacks: Path, tmp_path: Path, world: World) -> None:
    rows = [{"source": f"the {i} of the match", "target": "goal " * (1 + 20 * (i == 3))} for i in range(19)]
    rows += [{"source": "", "target": "goal"}, {"source": "a match", "target": None}, {"source": "a", "target": " "}]
    rows += [{"source": "the " * 90, "target": "goal"}]
    file = write_lines(tmp_path / "rows.jsonl", rows)
    given = ("finetune", "summarize", f"data.train={file}", f"data.test={file}", *LENGTHS, "train.budget.steps=1")
    result = world.run(*given, "--from", two_stacks, "--out", tmp_path / "run")
    assert result["test"]["rows"] == 20
    assert (result["empty"], result["truncated"], result["targets_truncated"]) == (6, 2, 2)  # in both files
    lines = read_lines(tmp_path / "run/predictions/model.jsonl")
    assert [line["row"] for line in lines if "score" not in line] == [19, 20, 21]


def test_swapped_columns_are_an_error(
    folder: Path, two_stacks: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, world: World
) -> None:
    train = folder / "train.jsonl.gz"
    given = ("finetune", "summarize", f"data.train={train}", "data.source=summary", "data.target=document", *LENGTHS)
    with caplog.at_level(logging.WARNING):
        world.run(*given, "train.budget.steps=1", "--from", two_stacks, "--out", tmp_path / "run")
    assert re.search(r"'summary' and 'document' may be swapped", caplog.text)


MISTAKES = {
    "column": (["data.target=sumary"], "no column 'sumary'"),
    "same column": (["data.target=document"], "same column"),
    "source too long": (["data.max_source_length=65"], "data.max_source_length=65 "),
    "target too long": (["data.max_target_length=65"], "data.max_target_length=65 "),
    "no room": (["data.prefix=a", "data.sets=[{train: a}]"], "each of the sets"),
    "beams": (["data.generation.num_beams=999"], r"num_beams=999 "),
    "never ended": (["data.generation.min_new_tokens=12"], "data.generation.min_new_tokens=12 "),
    "no number": (["data.generation.length_penalty=.nan"], "data.generation.length_penalty: "),
    "classes": (["objective={kind: classification}"], "set objective.kind=seq2seq"),
    "texts": (["data={kind: texts, train: a.csv}"], "cannot read|no such|a.csv"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_fail_before_training(folder: Path, two_stacks: Path, tmp_path: Path, name: str) -> None:
    changes, message = MISTAKES[name]
    assert_refused(message, *words_of(folder, two_stacks, *changes), "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_encoder_alone_does_not_write_and_a_writer_does_not_classify(
    folder: Path, two_stacks: Path, one_stack: Path, tmp_path: Path, world: World
) -> None:
    run = ("--out", tmp_path / "run")
    classify = (*world.finetuning, "--from", one_stack, *run)
    assert_refused("needs an encoder-decoder", *words_of(folder, world.base), *run)
    assert_refused("frozen_encoder", *words_of(folder, one_stack, "objective.frozen_encoder=true"), *run)
    assert_refused("not a classifier", "evaluate", two_stacks, "--data", world.test)
    assert_refused(r"objective\.head\.kind=last", *classify)
    assert not (tmp_path / "run").exists()  # nothing is in the way of the right command
    result = world.run(*classify, "objective.head.kind=last", "train.budget.steps=2")
    assert result["steps"] == 2


def test_recipes_without_kinds_go_on_working(tmp_path: Path) -> None:
    recipe = finetune_recipe("classify", ["data.train=a.csv"])
    assert (recipe.data.kind, recipe.objective.kind) == ("texts", "classification")
    with pytest.raises(UserError, match=r"'data\.txt'"):
        finetune_recipe("classify", ["data.txt=a"])
    with pytest.raises(UserError, match="unknown kind 'pairs_of_text'"):
        finetune_recipe("summarize", ["data.kind=pairs_of_text"])
