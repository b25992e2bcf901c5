"""Raw text through transformers' own tokenizer gives what it gives here: the tokens around a text are the same."""

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hf_peers import DECODER, REFORMER, TEXTS, bert_tokenizer, roberta_tokenizer, their_model
from tokenizers import Tokenizer as Engine
from tokenizers import models, pre_tokenizers, processors, trainers

from homespun.data.labels import LabelledRows, Labels
from homespun.data.question_answering import Question, QuestionRows, question_batch
from homespun.data.rows import Rows, pad
from homespun.data.token_labels import TaggedWords, TokenLabelRows
from homespun.hf.export import export_huggingface
from homespun.hf.open import open_model
from homespun.inference.predict import forward_logits, predict_logits
from homespun.models.bundle import ModelBundle
from homespun.text.tokenizer import Tokenizer

transformers = pytest.importorskip("transformers")

LENGTH = 60
FIRST = ["Small models spun from your own text", "The lazy dog", "Revenue rose by seven percent; costs fell"]
SECOND = ["costs fell by three", "The quick brown fox jumps over the lazy dog", "words"]


def write(folder: Path, special: list[str], names: dict[str, str], template: Any = None) -> None:
    """A tokenizer as it is released, of whole words, its special tokens first."""
    engine = Engine(models.WordLevel(unk_token=names["unk_token"]))
    engine.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    engine.train_from_iterator(TEXTS, trainers.WordLevelTrainer(vocab_size=89, special_tokens=special))
    if template is not None:
        engine.post_processor = template
    engine.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **names}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def bert(folder: Path) -> None:
    bert_tokenizer().save(folder)


def roberta(folder: Path) -> None:
    roberta_tokenizer(folder / "tokenizer.json").save(folder)


def gpt2(folder: Path) -> None:
    write(folder, ["<|endoftext|>"], dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>"))


def gpt(folder: Path) -> None:
    write(folder, ["<unk>"], {"unk_token": "<unk>"})


def gpt2_between(folder: Path) -> None:
    """A GPT-2 whose texts have a beginning and an end, which its tokenizer does not put there."""
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    write(folder, ["<s>", "</s>", "<unk>"], names, processors.ByteLevel(trim_offsets=False))


def t5(folder: Path) -> None:
    template = processors.TemplateProcessing(single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)])
    write(
        folder, ["<pad>", "</s>", "<unk>"], {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}, template
    )


ENDS: dict[str, Any] = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
BART: dict[str, Any] = DECODER | ENDS | {"decoder_start_token_id": 2}
DEBERTA: dict[str, Any] = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_biased_input": False}
T5: dict[str, Any] = {"d_model": 32, "d_kv": 8, "num_heads": 4, "decoder_start_token_id": 0}
FAMILIES: dict[str, tuple[str, dict[str, Any], Callable[[Path], None]]] = {
    "bert": ("Bert", {}, bert),
    "electra": ("Electra", {"embedding_size": 21}, bert),
    "distilbert": ("DistilBert", {}, bert),
    "albert": ("Albert", {"embedding_size": 21}, bert),
    "deberta": ("Deberta", DEBERTA | {"type_vocab_size": 0}, bert),
    "big_bird": ("BigBird", {"attention_type": "original_full"}, bert),
    "reformer": (
        "Reformer",
        REFORMER | {"attn_layers": ["local"] * 2, "axial_pos_shape": [8, 9], "max_position_embeddings": 72},
        bert,
    ),
    "roberta": ("Roberta", ENDS | {"type_vocab_size": 1}, roberta),
    "bart": ("Bart", BART, roberta),
    "gpt2": ("GPT2", {"eos_token_id": 0, "bos_token_id": 0, "embd_pdrop": 0.0}, gpt2),
    "gpt2-between": ("GPT2", {"eos_token_id": 1, "bos_token_id": 0, "embd_pdrop": 0.0}, gpt2_between),
    "gpt": ("OpenAIGPT", {"embd_pdrop": 0.0}, gpt),
    "t5": ("T5", T5, t5),
}


@dataclass
class Both:
    """A model as it is released, ours of it, and what `hf/` is of ours."""

    released: Path
    ours: ModelBundle
    exported: Path

    @functools.cached_property
    def their_tokenizer(self) -> Any:
        return transformers.AutoTokenizer.from_pretrained(self.exported)

    @functools.cached_property
    def their_model(self) -> Any:
        cls = getattr(transformers, json.loads((self.exported / "config.json").read_text())["architectures"][0])
        return cls.from_pretrained(self.exported).eval()

    def check_ids(self, rows: Rows, *texts: list[str]) -> None:
        """The rows are what the tokenizers of transformers make of the texts, and the segments."""
        for folder in (self.released, self.exported):
            theirs = transformers.AutoTokenizer.from_pretrained(folder)(*texts, return_token_type_ids=True)
            found = [rows[index] for index in range(len(rows))]
            assert [row.input_ids.tolist() for row in found] == theirs["input_ids"]
            if self.ours.config.backbone.type_vocab_size > 1 and len(texts) > 1:
                assert [row.token_type_ids.tolist() for row in found] == theirs["token_type_ids"]


def both(family: str, task: str, folder: Path) -> Both:
    name, settings, tokenizer = FAMILIES[family]
    released = folder / "released"
    cls = getattr(transformers, name + task)
    sizes = {"max_position_embeddings": 69, "num_labels": 2 if task == "ForQuestionAnswering" else 3}
    their_model(cls, **(sizes | settings)).save_pretrained(released)
    tokenizer(released)
    ours = open_model(released)
    report = export_huggingface(folder / "hf", ours)
    assert report.architecture == cls.__name__
    return Both(released, ours, folder / "hf")


@torch.no_grad()
def their_logits(pair: Both, *texts: list[str], one_by_one: bool = False) -> torch.Tensor:
    """Of raw texts in one batch, padded by its own tokenizer."""
    if one_by_one:
        return torch.cat([their_logits(pair, *([text] for text in single)) for single in zip(*texts, strict=True)])
    batch = pair.their_tokenizer(*texts, padding=True, return_tensors="pt")
    return pair.their_model(**batch).logits


@pytest.mark.parametrize("family", FAMILIES)
def test_texts_and_pairs(family: str, tmp_path: Path) -> None:
    pair = both(family, "ForSequenceClassification", tmp_path)
    stored = pair.ours
    segments = stored.config.backbone.type_vocab_size > 1
    for second in (None, SECOND):
        rows = LabelledRows(FIRST, None, stored.tokenizer, length=LENGTH, pairs=second, segments=segments)
        texts = (FIRST,) if second is None else (FIRST, second)
        pair.check_ids(rows, *texts)
        ours = predict_logits(stored.model, rows, pad_id=stored.tokenizer.pad_id)
        theirs = their_logits(pair, *texts, one_by_one=family == "reformer")
        np.testing.assert_allclose(theirs.numpy(), ours, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", ["bert", "roberta", "gpt2", "t5"])
def test_tags(family: str, tmp_path: Path) -> None:
    pair = both(family, "ForTokenClassification", tmp_path)
    stored = pair.ours
    labels = stored.labels
    assert isinstance(labels, Labels)
    rows = TokenLabelRows(
        [TaggedWords(tuple(text.split())) for text in FIRST], stored.tokenizer, length=LENGTH, stride=2, names=labels
    )
    pair.check_ids(rows, FIRST)
    theirs, encoded = their_logits(pair, FIRST), pair.their_tokenizer(FIRST)
    for numbers, logits in forward_logits(
        stored.model, rows, functools.partial(pad, pad_id=stored.tokenizer.pad_id), batch_size=3
    ):
        for number, values in zip(numbers, logits, strict=True):
            size = int(rows.lengths[number])
            np.testing.assert_allclose(theirs[number, :size].numpy(), values[:size], atol=1e-5, rtol=1e-5)
            places, words = rows.first_pieces(number)
            begins = [FIRST[number].index(FIRST[number].split()[word]) for word in words.tolist()]
            assert [encoded[number].offsets[place][0] for place in places.tolist()] == begins


@pytest.mark.parametrize("family", ["bert", "electra", "roberta", "bart", "gpt2", "t5"])
@torch.no_grad()
def test_answers(family: str, tmp_path: Path) -> None:
    pair = both(family, "ForQuestionAnswering", tmp_path)
    stored = pair.ours
    asked = [
        Question(question=one, context=two, answers=(two[:5],), spans=((0, 5),))
        for one, two in zip(FIRST, SECOND, strict=True)
    ]
    rows = QuestionRows(
        asked,
        stored.tokenizer,
        length=LENGTH,
        stride=2,
        question_length=LENGTH,
        segments=stored.config.backbone.type_vocab_size > 1,
    )
    pair.check_ids(rows, FIRST, SECOND)
    batch = pair.their_tokenizer(FIRST, SECOND, padding=True, return_tensors="pt")
    result = pair.their_model(**batch)
    theirs = torch.stack([result.start_logits, result.end_logits], dim=-1).numpy()
    collate = functools.partial(question_batch, pad_id=stored.tokenizer.pad_id)
    for numbers, logits in forward_logits(stored.model, rows, collate, batch_size=3):
        for number, values in zip(numbers, logits, strict=True):
            window, size = rows.windows[number], int(rows.lengths[number])
            np.testing.assert_allclose(theirs[number, :size], values[:size], atol=1e-5, rtol=1e-5)
            assert batch.char_to_token(int(number), 0, sequence_index=1) == window.place == rows[number].label[0]


def test_a_frame_of_cls_and_sep_without_a_template_is_written_as_one(tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    write(bare, list(names.values()), names)
    pair = both("bert", "ForSequenceClassification", tmp_path)
    tokenizer = Tokenizer.load(bare)
    export_huggingface(tmp_path / "hf", ModelBundle(pair.ours.model, pair.ours.config, tokenizer))
    rows = LabelledRows(FIRST, None, tokenizer, length=LENGTH, pairs=SECOND)
    theirs = pair.their_tokenizer(FIRST, SECOND, return_token_type_ids=True)
    assert [rows[index].input_ids.tolist() for index in range(3)] == theirs["input_ids"]
    assert [rows[index].token_type_ids.tolist() for index in range(3)] == theirs["token_type_ids"]
    assert theirs["input_ids"][0][0] == tokenizer.cls_id
    assert rows[0].input_ids[-1] == tokenizer.sep_id


def test_an_empty_text_with_nothing_around_it_is_a_token_of_padding(tmp_path: Path) -> None:
    gpt2(tmp_path)
    tokenizer = Tokenizer.load(tmp_path)
    rows = LabelledRows(["", "The lazy dog"], None, tokenizer, length=LENGTH)
    assert rows.lengths.tolist() == [1, 3]
    assert rows[0].input_ids.tolist() == [tokenizer.pad_id]
    pairs = LabelledRows(["", ""], None, tokenizer, length=LENGTH, pairs=["", "The dog"])
    assert pairs.lengths.tolist() == [1, 2]
    assert pairs[1].token_type_ids.tolist() == [1, 1]
