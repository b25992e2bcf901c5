"""`homespun convert` of released folders that have a vocabulary of SentencePiece and no tokenizer.json."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from commands_world import run

from homespun.hf.open import open_model
from homespun.text.tokenizer import Tokenizer

sentencepiece = pytest.importorskip("sentencepiece")
transformers = pytest.importorskip("transformers")

TEXTS = [f"the {word} fox number {number} jumps over a dog" for number, word in enumerate(["quick", "lazy", "red"] * 7)]


def vocabulary(**settings: Any) -> bytes:
    stream = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS), model_writer=stream, vocab_size=41, minloglevel=3, num_threads=1, **settings
    )
    return stream.getvalue()


def deberta(folder: Path) -> None:
    """As microsoft/deberta-v3-small: spm.model, its [MASK] nowhere but in the program."""
    config = transformers.DebertaV2Config(
        vocab_size=47,
        hidden_size=22,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=13,
        max_position_embeddings=37,
        relative_attention=True,
        pos_att_type=["p2c", "c2p"],
        type_vocab_size=0,
        position_biased_input=False,
    )
    transformers.DebertaV2Model(config).save_pretrained(folder)
    names = {"pad_piece": "[PAD]", "bos_piece": "[CLS]", "eos_piece": "[SEP]", "unk_piece": "[UNK]"}
    (folder / "spm.model").write_bytes(vocabulary(pad_id=0, bos_id=1, eos_id=2, unk_id=3, **names))
    (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": False, "vocab_type": "spm"}))


def t5(folder: Path) -> None:
    """As google-t5/t5-small: spiece.model, and 100 sentinels that only the program knows of."""
    config = transformers.T5Config(vocab_size=149, d_model=22, d_kv=5, d_ff=13, num_layers=2, num_heads=2)
    transformers.T5ForConditionalGeneration(config).save_pretrained(folder)
    (folder / "spiece.model").write_bytes(vocabulary(pad_id=0, eos_id=1, unk_id=2, bos_id=-1))


@pytest.mark.parametrize(
    ("make", "template", "size"), [(deberta, ([1], [2]), 42), (t5, ([], [1]), 141)], ids=["deberta-v3", "t5"]
)
def test_a_folder_with_pieces_is_converted_and_has_a_tokenizer_json(
    make: Any, template: Any, size: int, tmp_path: Path
) -> None:
    torch.manual_seed(3)
    make(tmp_path / "released")
    output = run("convert", tmp_path / "released", "--out", tmp_path / "ours")
    assert output["check"]["largest_difference"] == 0.0
    (made,) = (tmp_path / "ours").rglob("tokenizer.json")
    ours = open_model(tmp_path / "ours").tokenizer
    assert (
        ours.fingerprint == Tokenizer.load(made.parent).fingerprint == Tokenizer.load(tmp_path / "released").fingerprint
    )
    assert (ours.template, ours.vocab_size) == (template, size)

    run("convert", tmp_path / "ours", "--to", "hf", "--out", tmp_path / "again")
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "again")
    for text in ["the lazy fox", "Ａ red\tfox\n"]:
        ids = [int(i) for i in ours.encode_batch([text])[0]]
        assert again(text)["input_ids"] == [*template[0], *ids, *template[1]]
        assert again.decode(ids, skip_special_tokens=True) == ours.decode(ids)
