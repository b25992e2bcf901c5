"""Multi-document summarisation through the commands: only a hierarchical model reads all paragraphs."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from commands_world import COMMON, WORDS, read_lines, write_lines

from homespun.commands.finetune import finetune
from homespun.commands.predict import evaluate, predict
from homespun.commands.recipe import finetune_recipe
from homespun.errors import UserError
from homespun.models.bundle import save_model
from homespun.models.config import ModelConfig
from homespun.text.tokenizer import Tokenizer

pytest.importorskip("rouge_score")

SIZES: dict[str, Any] = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 48, "num_hidden_layers": 2}
SIZES |= {"max_position_embeddings": 64, "hidden_dropout_prob": 0.0, "vocab_size": 97, "initializer_range": 0.1}
HIERARCHY = {"kind": "alternating", "cycle": [{"kind": "full"}, {"kind": "paragraphs"}]}
CHOSEN = [word for words in WORDS.values() for word in words][:5]


def write(path: Path, rows: int, seed: int) -> Path:
    """The word to write is that of the documents which is no common one; the title names a document that has it."""
    draw = random.Random(seed)
    lines = []
    for _ in range(rows):
        pages = [" ".join(draw.choice(COMMON.split()) for _ in range(5)) for _ in range(5)]
        word = draw.choice(CHOSEN)
        index = draw.randrange(5)
        pages[index] = f"{word} {pages[index]}"
        lines.append({"title": f"the {word}", "pages": pages, "lead": word})
    return write_lines(path, lines)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("documents")
    write(made / "train.jsonl", 211, seed=1)
    write(made / "test.jsonl", 23, seed=2)
    draw = random.Random(3)
    texts = [" ".join(draw.choice([*COMMON.split(), *CHOSEN]) for _ in range(11)) for _ in range(97)]
    tokenizer = Tokenizer.train(texts, kind="wordpiece", vocab_size=97)
    for name, stack in (("two", SIZES | {"attention": HIERARCHY}), ("one", SIZES | {"causal": True})):
        stack |= {"pad_token_id": tokenizer.pad_id}
        two: dict[str, Any] = {"kind": "encoder_decoder", "encoder": stack, "decoder": {"num_hidden_layers": 1}}
        two |= {"decoder_start_token_id": tokenizer.sep_id, "eos_token_id": tokenizer.sep_id}
        tree = {"backbone": two if name == "two" else stack, "head": {"kind": "causal_lm"}}
        config = ModelConfig.model_validate(tree)
        torch.manual_seed(0)
        save_model(made / name / "model", config.build(), config, tokenizer)
    return made


def recipe(folder: Path, *more: str) -> Any:
    given = [f"data.train={folder / 'train.jsonl'}", f"data.test={folder / 'test.jsonl'}", "data.source=pages"]
    given += ["data.target=lead", "data.max_source_length=31", "data.max_target_length=7"]
    given += ["data.paragraphs={title: title, max_paragraphs: 3, max_length: 7}"]
    return finetune_recipe(
        "summarize-documents", [*given, "train.optimizer.learning_rate=3e-3", "train.batch_size=17", *more]
    )


@pytest.mark.slow
def test_it_learns_to_write_of_several_documents(folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    result = finetune(recipe(folder, "train.budget.epochs=45"), run, start_from=str(folder / "two"))
    assert result["test"]["rouge1"] > max(line["rouge1"] for line in result["baselines"].values()) + 0.3
    assert result["paragraphs_left_out"] == 2 * (211 + 23)
    assert evaluate(str(run), [str(folder / "test.jsonl")])["rouge1"] == result["test"]["rouge1"]
    output = predict(str(run), [str(folder / "test.jsonl")], tmp_path / "out.jsonl")
    assert output["truncated"] == 23  # two paragraphs of each were left out
    predictions = read_lines(run / "predictions/model.jsonl")
    assert [line["text"] for line in read_lines(tmp_path / "out.jsonl")] == [line["predicted"] for line in predictions]


@pytest.mark.parametrize(
    ("model", "title", "message"), [("one", "title", "one stack"), ("two", "titel", "no column 'titel'")]
)
def test_paragraphs_that_cannot_be_read(folder: Path, tmp_path: Path, model: str, title: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        finetune(recipe(folder, f"data.paragraphs.title={title}"), tmp_path / "run", start_from=str(folder / model))
