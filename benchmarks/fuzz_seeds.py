"""Valid files of each format, which `benchmarks.fuzz_inputs` mutates."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

RECIPES = ("bert-mini", "classify", "causal-mini", "t5-mini", "tag", "electra-mini", "longformer-mini", "lstm-mini")


def write_seeds(folder: Path, *, models: bool = True) -> None:
    """Write a valid input of each format, once; models and runs, which take seconds, only with ``models``."""
    if (folder / "complete").exists():
        return
    from homespun.commands.preparation import make_corpus
    from homespun.data.reading import reading
    from homespun.recipes import recipe_tree
    from homespun.text.tokenizer import Tokenizer

    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefghijklmnop", k=rng.randrange(2, 8))) for _ in range(400)]
    texts = [" ".join(rng.choices(words, k=30)) for _ in range(200)]
    (folder / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    (folder / "texts.txt").write_text("\n".join(texts))
    Tokenizer.train(texts, kind="wordpiece", vocab_size=300).save(folder / "tokenizer")
    Tokenizer.train(texts, kind="unigram", vocab_size=150).save(folder / "unigram")
    Tokenizer.train(texts, kind="bpe", vocab_size=300).save(folder / "bpe")
    make_corpus(reading([str(folder / "texts.jsonl")]), folder / "tokenizer", folder / "corpus")
    (folder / "recipes.json").write_text(
        json.dumps({name: recipe_tree(name) for name in (*RECIPES, "compare-attentions")})
    )
    if models:
        _write_vocabularies(folder)
        _write_models(folder)
        _write_run(folder)
    (folder / "complete").touch()


def _write_vocabularies(folder: Path) -> None:
    import sentencepiece

    source = str(folder / "texts.txt")
    for kind in ("unigram", "bpe"):
        sentencepiece.SentencePieceTrainer.train(
            input=source,
            model_prefix=str(folder / kind),
            vocab_size=100,
            model_type=kind,
            minloglevel=2,
        )
    vocabulary, merges = folder / "vocabulary", folder / "merges"
    vocabulary.mkdir()
    merges.mkdir()
    tree = json.loads((folder / "tokenizer" / "tokenizer.json").read_text())
    (vocabulary / "vocab.txt").write_text("\n".join(sorted(tree["model"]["vocab"], key=tree["model"]["vocab"].get)))
    (vocabulary / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True, "unk_token": "[UNK]"}))
    model = json.loads((folder / "bpe" / "tokenizer.json").read_text())["model"]
    (merges / "vocab.json").write_text(json.dumps(model["vocab"]))
    pairs = (pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"])
    (merges / "merges.txt").write_text("#version: 0.2\n" + "\n".join(pairs))


def _write_models(folder: Path) -> None:
    from transformers import AutoConfig, BertConfig, BertModel

    from homespun.hf.families import FAMILIES

    configs = {}
    for family in FAMILIES:
        described = AutoConfig.for_model(family.model_type).to_dict()
        for number, architecture in enumerate(family.architectures):
            configs[f"{family.model_type} {number}"] = {**described, "architectures": [architecture.name]}
    (folder / "configs.json").write_text(json.dumps(configs, default=str))
    config = BertConfig(
        vocab_size=300,
        max_position_embeddings=16,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
    )
    BertModel(config).save_pretrained(folder / "bert")
    shutil.copy(folder / "tokenizer" / "tokenizer.json", folder / "bert")


def _write_run(folder: Path) -> None:
    from homespun.commands.pretrain import pretrain
    from homespun.commands.recipe import pretrain_recipe

    changes = ["model.hidden_size=8", "model.intermediate_size=8", "model.num_hidden_layers=1", "data.max_length=16"]
    changes += ["model.num_attention_heads=2", "objective.next_sentence=false", "train.batch_size=2"]
    changes += ["train.budget={steps: 3}", f"data.corpus={folder / 'corpus'}"]
    pretrain(pretrain_recipe("bert-mini", changes), folder / "run", preflight=False)
