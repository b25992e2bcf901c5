"""Models without a class in transformers open in its auto classes, with equal outputs."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hf_peers import SIZES, bert_tokenizer

import homespun
from homespun.data.labels import Labels
from homespun.errors import UserError
from homespun.hf.export import CLASSES, export_complete
from homespun.hf.open import open_any
from homespun.models.bundle import ModelBundle
from homespun.models.config import ModelConfig
from homespun.models.model import Model

PERFORMER = {"attention": {"kind": "performer", "num_features": 7}}
LINFORMER = {"attention": {"kind": "linformer", "k": 5}}
WINDOW = {"causal": True, "attention": {"kind": "sparse", "patterns": [{"kind": "window", "radius": 3}]}}
TOKENIZER = bert_tokenizer()
TAGS = Labels(("O", "B-ORG", "I-ORG"))


@pytest.fixture(autouse=True)
def registered() -> None:
    homespun.register_auto_classes()


def exported(
    folder: Path, backbone: dict[str, Any], head: dict[str, Any] | None, labels: Labels | None = None
) -> Model:
    config = ModelConfig.model_validate({"backbone": SIZES | backbone, "head": head})
    torch.manual_seed(3)
    model = config.build().eval()
    report = export_complete(folder, ModelBundle(model, config, TOKENIZER, labels))
    assert report.architecture in CLASSES.values()
    assert open_any(folder).stored.config.head == config.head
    return model


@pytest.mark.parametrize(
    ("backbone", "head", "opener"),
    [
        ({}, {"kind": "mean", "num_labels": 3}, "AutoModelForSequenceClassification"),
        ({}, {"kind": "scalar_mix", "head": {"kind": "ffn", "num_labels": 3}}, "AutoModelForSequenceClassification"),
        (LINFORMER, {"kind": "cnn", "num_labels": 3}, "AutoModelForSequenceClassification"),
        (PERFORMER, {"kind": "token_classification", "num_labels": 3}, "AutoModelForTokenClassification"),
        (PERFORMER, {"kind": "question_answering"}, "AutoModelForQuestionAnswering"),
        (PERFORMER, {"kind": "masked_lm"}, "AutoModelForMaskedLM"),
        (WINDOW, {"kind": "causal_lm"}, "AutoModelForCausalLM"),
        (PERFORMER, None, "AutoModel"),
    ],
)
def test_outputs_are_equal(backbone: dict[str, Any], head: dict[str, Any] | None, opener: str, tmp_path: Path) -> None:
    ours = exported(tmp_path / "hf", backbone, head)
    texts = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")(
        ["a b c d", "e"], return_tensors="pt", padding=True
    )
    theirs = getattr(transformers, opener).from_pretrained(tmp_path / "hf")
    with torch.no_grad():
        expected, found = ours(**texts), theirs(**texts)
    outputs = found[0] if len(found) == 1 else torch.stack([*found.values()], dim=-1)  # start and end of an answer
    keep = texts["attention_mask"].bool() if outputs.dim() == 3 else slice(None)
    torch.testing.assert_close(outputs[keep], expected[keep], atol=0.0, rtol=0.0)
    theirs.save_pretrained(tmp_path / "again")
    again = getattr(transformers, opener).from_pretrained(tmp_path / "again", dtype=torch.bfloat16)
    assert {parameter.dtype for parameter in again.parameters()} == {torch.bfloat16}
    bare = transformers.AutoModel.from_pretrained(tmp_path / "hf")
    assert bare(**texts).last_hidden_state.shape == (2, texts["input_ids"].shape[1], SIZES["hidden_size"])


@pytest.mark.parametrize("head", [{"kind": "masked_lm"}, None])
def test_a_model_is_not_opened_with_another_head(head: dict[str, Any] | None, tmp_path: Path) -> None:
    exported(tmp_path, PERFORMER, head)
    for opener in ("AutoModelForSequenceClassification", "AutoModelForTokenClassification", "AutoModelForCausalLM"):
        with pytest.raises(UserError, match="homespun finetune --from"):
            getattr(transformers, opener).from_pretrained(tmp_path)


@pytest.mark.parametrize(("labels", "kind"), [(3, "single_label"), (1, "regression"), (2, "multi_label")])
def test_losses_are_those_of_the_task(labels: int, kind: str, tmp_path: Path) -> None:
    names = tuple(f"class-{number}" for number in range(labels))
    head = {"kind": "mean", "num_labels": labels}
    exported(tmp_path, {}, head, Labels(names, multi_label=kind == "multi_label"))
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert model.config.id2label == dict(enumerate(names))
    ids = torch.tensor([[5, 6, 7], [7, 6, 5]])
    logits = model(ids).logits
    targets = {
        "single_label": torch.tensor([2, 0]),
        "regression": torch.tensor([0.5, -1.0]),
        "multi_label": torch.tensor([[1.0, 0.0], [1.0, 1.0]]),
    }[kind]
    functions = {
        "single_label": torch.nn.functional.cross_entropy,
        "regression": lambda logits, targets: torch.nn.functional.mse_loss(logits[:, 0], targets),
        "multi_label": torch.nn.functional.binary_cross_entropy_with_logits,
    }
    torch.testing.assert_close(model(ids, labels=targets).loss, functions[kind](logits, targets))


def test_encoder_decoder(tmp_path: Path) -> None:
    encoder = SIZES | PERFORMER | {"type_vocab_size": 0}
    backbone = {"kind": "encoder_decoder", "encoder": encoder, "decoder": {"num_hidden_layers": 1}}
    config = ModelConfig.model_validate({"backbone": backbone, "head": {"kind": "causal_lm"}})
    ours = config.build().eval()
    export_complete(tmp_path, ModelBundle(ours, config, TOKENIZER))
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    ids, labels = torch.tensor([[5, 6, 7], [7, 6, 5]]), torch.tensor([[11, 13, 17, 19], [23, 29, -100, -100]])
    start, pad = ours.special_tokens.decoder_start_token_id, TOKENIZER.pad_id
    targets = torch.tensor([[start, 11, 13, 17], [start, 23, 29, pad]])
    logits = ours(ids, decoder_input_ids=targets)
    found = model(ids, labels=labels)
    torch.testing.assert_close(found.logits, logits, atol=0.0, rtol=0.0)
    kept = labels >= 0
    torch.testing.assert_close(found.loss, torch.nn.functional.cross_entropy(logits[kept], labels[kept]))
    written = model.generate(ids, max_new_tokens=5)
    assert torch.equal(written, ours.generate(ids, max_new_tokens=5))


@pytest.mark.parametrize(("opener", "backbone"), [("MaskedLM", PERFORMER), ("CausalLM", WINDOW)])
def test_losses_of_language_models(opener: str, backbone: dict[str, Any], tmp_path: Path) -> None:
    ours = exported(tmp_path, backbone, {"kind": "masked_lm" if opener == "MaskedLM" else "causal_lm"})
    model = getattr(transformers, f"AutoModelFor{opener}").from_pretrained(tmp_path)
    ids, labels = torch.tensor([[5, 6, 7, 8]]), torch.tensor([[-100, 11, 13, 17]])
    logits = ours(ids)
    predicting, predicted = (logits[0, 1:], labels[0, 1:]) if opener == "MaskedLM" else (logits[0, :-1], labels[0, 1:])
    expected = torch.nn.functional.cross_entropy(predicting, predicted)
    torch.testing.assert_close(model(ids, labels=labels).loss, expected)


def test_pipelines(tmp_path: Path) -> None:
    exported(tmp_path / "classes", LINFORMER, {"kind": "mean", "num_labels": 3}, TAGS)
    classify = transformers.pipeline("text-classification", str(tmp_path / "classes"))
    assert classify("a b")[0]["label"] in TAGS.names
    exported(tmp_path / "tags", LINFORMER, {"kind": "token_classification", "num_labels": 3}, TAGS)
    tag = transformers.pipeline("token-classification", str(tmp_path / "tags"), ignore_labels=[])
    assert {found["entity"] for found in tag("a b c")} <= set(TAGS.names)
    exported(tmp_path / "masks", PERFORMER, {"kind": "masked_lm"})
    assert len(transformers.pipeline("fill-mask", str(tmp_path / "masks"))("a [MASK] c")) == 5
    ours = exported(tmp_path / "causal", WINDOW, {"kind": "causal_lm"})
    generate = transformers.pipeline("text-generation", str(tmp_path / "causal"))
    [found] = generate("a b", max_new_tokens=4, do_sample=False, return_tensors=True)
    prompt = generate.tokenizer("a b", return_tensors="pt")["input_ids"]
    assert found["generated_token_ids"] == ours.generate(prompt, max_new_tokens=4)[0].tolist()
