"""A GPT from pretraining on: Adafactor with T5's schedule, fine-tuning with the language model's loss, a prompt."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from commands_world import TINY, World, read_lines
from tokenizers import Tokenizer as Engine
from tokenizers import decoders, models, pre_tokenizers, trainers

from homespun.commands.workload import with_vocabulary
from homespun.errors import UserError
from homespun.models.encoder import EncoderConfig
from homespun.text.tokenizer import Tokenizer


def test_from_pretraining_to_labels_and_prompts(world: World, tmp_path: Path) -> None:
    small = [word for word in TINY if "embedding_size" not in word]
    steps = ["train.budget.time=null", "train.budget.steps=4", "train.batch_size=8"]
    factored = ["train.optimizer={kind: adafactor}", "train.schedule={kind: inverse_square_root, level: 0.5}"]
    words = [f"data.corpus={world.corpus}", "data.max_length=31", *small, "model.num_attention_heads=2"]
    world.run("pretrain", "gpt2-mini", *words, *steps, *factored, "--out", tmp_path / "gpt")
    lines = read_lines(tmp_path / "gpt" / "metrics.jsonl")
    rates = [line["learning_rate"] for line in lines if line["event"] == "step"]
    assert rates[:2] == [0.01, 0.01]
    assert rates[3] < rates[2] < 0.01

    data = [f"data.train={world.train}", "data.text=sentence", "data.max_length=31", "baselines=false"]
    budget = ["train.budget={steps: 3}", "train.batch_size=8"]
    words = ["finetune", "classify-gpt", *data, *budget, "--from", tmp_path / "gpt", "--out", tmp_path / "told"]
    result = world.run(*words)
    assert {"loss", "causal", "accuracy"} <= set(result["train"])
    assert result["train"]["causal"] > 1.0

    asked = ["--data", world.train, "--text-field", "sentence", "--limit", "5", "--shots", "0,1", "--repeats", "1"]
    answers = world.run("few-shot", tmp_path / "gpt", *asked, "--out", tmp_path / "prompt")
    assert [found["shots"] for found in answers["shots"]] == [0, 1]


def test_a_model_that_reads_both_ways_wants_padding_of_its_own(world: World) -> None:
    padded = Tokenizer.load(world.base / "model")
    bare = Tokenizer(padded.content, {role: token for role, token in padded.roles.items() if role != "pad"})
    with pytest.raises(UserError, match="padding"):
        with_vocabulary(EncoderConfig(), bare, 31)
    assert with_vocabulary(EncoderConfig(causal=True), bare, 31).pad_token_id == bare.pad_id
    assert with_vocabulary(EncoderConfig(), padded, 31).pad_token_id == padded.pad_id


END = "<|endoftext|>"
SIZES = {"n_embd": 24, "n_layer": 2, "n_head": 3, "n_positions": 64, "vocab_size": 331, "initializer_range": 0.3}


def released(folder: Path, texts: list[str], kind: str) -> Path:
    """A GPT-2 whose tokenizer names the end of texts and no padding, or a GPT that names the unknown alone."""
    transformers = pytest.importorskip("transformers")
    special, roles = (END, ("bos", "eos", "unk")) if kind == "GPT2" else ("<unk>", ("unk",))
    ends = {"bos_token_id": 0, "eos_token_id": 0} if kind == "GPT2" else {}
    config = getattr(transformers, f"{kind}Config")(**SIZES, **ends, embd_pdrop=0.0, resid_pdrop=0.0, attn_pdrop=0.0)
    getattr(transformers, f"{kind}LMHeadModel")(config).save_pretrained(folder)
    engine = Engine(models.BPE())
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    engine.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=330, special_tokens=[special], initial_alphabet=alphabet)
    engine.train_from_iterator(texts, trainer)
    engine.save(str(folder / "tokenizer.json"))
    names: dict[str, Any] = {f"{role}_token": special for role in roles}
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"} | names))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["GPT2", "OpenAIGPT"])
def test_a_gpt_as_released_goes_everywhere(kind: str, world: World, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    with world.test.open(encoding="utf-8", newline="") as stream:
        texts = [row["sentence"] for row in csv.DictReader(stream)][:7]
    folder = released(tmp_path / "released", texts, kind)
    world.run("convert", folder, "--to", "hf", "--out", tmp_path / "converted")

    starts, budget = [folder], ["train.budget={steps: 1}", "train.batch_size=4"]
    if kind == "GPT2":  # a GPT has no token to stand between the texts of a corpus
        built = ["--tokenizer", folder, "--input", world.train, "--text-field", "sentence"]
        world.run("corpus", "build", *built, "--out", tmp_path / "corpus")
        words = ["pretrain", "gpt2-mini", f"data.corpus={tmp_path / 'corpus'}", "data.max_length=61", *budget]
        world.run(*words, "--from", folder, "--out", tmp_path / "adapted")
        starts.append(tmp_path / "adapted")

    data = [f"data.train={world.train}", "data.text=sentence", "data.max_length=61", "baselines=false"]
    for start in starts:
        run = tmp_path / f"from-{start.name}"
        world.run("finetune", "classify-gpt", *data, *budget, "--from", start, "--out", run)
        world.run("predict", run, "--input", world.test, "--out", tmp_path / "told.jsonl")
        output = read_lines(tmp_path / "told.jsonl")[: len(texts)]
        tokenizer = transformers.AutoTokenizer.from_pretrained(run / "hf")
        model = transformers.AutoModelForSequenceClassification.from_pretrained(run / "hf").eval()
        batch = tokenizer(texts, padding=True, truncation=True, max_length=61, return_tensors="pt")
        assert not batch["attention_mask"].all()
        with torch.no_grad():
            found = model(**batch).logits.softmax(-1)
        ours = torch.tensor([[row["probabilities"][name] for name in model.config.label2id] for row in output])
        torch.testing.assert_close(found, ours, atol=1e-5, rtol=1e-5)
