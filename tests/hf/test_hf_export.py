"""Exporting our own models: every head and shape that has a place, what has none, the tokenizer, the folder itself."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hf_peers import POOLED, SIZES, TEXTS, bert_tokenizer, check_export, inputs, roberta_tokenizer
from safetensors.torch import load_file

from homespun.commands.convert import convert
from homespun.data.labels import Labels
from homespun.errors import UserError
from homespun.hf.export import export_huggingface
from homespun.hf.open import open_model
from homespun.models.bundle import ModelBundle
from homespun.models.config import ModelConfig
from homespun.models.model import Model
from homespun.text.tokenizer import KINDS, Tokenizer

TOKENIZER = bert_tokenizer()
GPT2 = {"causal": True, "residual": {"kind": "pre"}, "embedding_norm": False, "type_vocab_size": 0}
DISTILLED = {"type_vocab_size": 0, "layer_norm_eps": 1e-12}
SOMEWHERE = {"first": 1, "positions": [7], "projections": True}
OFFSET = {"positions": {"kind": "learned", "offset": 2}, "type_vocab_size": 1}


def windows(first: int, **window: Any) -> dict[str, Any]:
    everywhere = {"first": first, "projections": True}
    patterns = [{"kind": "window", "radius": 3} | window]
    return {"attention": {"kind": "sparse", "patterns": patterns, "global_tokens": everywhere}}


def blocks(size: int, **window: Any) -> dict[str, Any]:
    patterns = [{"kind": "blocks", "size": size} | window, {"kind": "random_blocks", "size": size, "count": 2}]
    return {"attention": {"kind": "sparse", "patterns": patterns, "global_tokens": {"first": 0, "block": size}}}


# backbone, head, and the class that it is exported as; the way back of test_hf_parity exports each class
CASES: dict[str, tuple[dict[str, Any], dict[str, Any] | None, str]] = {
    "bert": ({}, None, "BertModel"),
    "bert-mlm-gelu": ({"hidden_act": "relu"}, {"kind": "masked_lm"}, "ElectraForMaskedLM"),
    "bert-ffn": ({}, {"kind": "ffn", "num_labels": 5}, "ElectraForSequenceClassification"),
    "no-segments": ({"type_vocab_size": 0}, {"kind": "masked_lm"}, "BertForMaskedLM"),
    "roberta-ffn": (OFFSET, {"kind": "ffn", "num_labels": 5}, "ElectraForSequenceClassification"),
    "roberta-discriminator": (OFFSET, {"kind": "discriminator"}, "ElectraForPreTraining"),
    "albert-mlm": ({"num_hidden_groups": 1, "type_vocab_size": 0}, {"kind": "masked_lm"}, "AlbertForMaskedLM"),
    "albert-pooled": (
        {"num_hidden_groups": 2, "num_hidden_layers": 4, "embedding_size": 21},
        {"kind": "pooled", "num_labels": 5},
        "AlbertForSequenceClassification",
    ),
    "big_bird": (blocks(5), None, "BigBirdModel"),
    "distilbert-pooled": (
        DISTILLED | {"layer_norm_eps": 1e-12},
        {"kind": "pooled", "num_labels": 5, "hidden_act": "relu"},
        "DistilBertForSequenceClassification",
    ),
    "distilbert-offset": (
        DISTILLED | {"positions": {"kind": "learned", "offset": 2}},
        {"kind": "pooled", "num_labels": 5, "hidden_act": "relu"},
        "DistilBertForSequenceClassification",
    ),
    "distilbert-tanh": (DISTILLED, {"kind": "pooled", "num_labels": 5}, "BertForSequenceClassification"),
    "gpt2-lm": (GPT2, {"kind": "causal_lm"}, "GPT2LMHeadModel"),
    "gpt2-offset": (GPT2 | {"positions": {"kind": "learned", "offset": 2}}, {"kind": "causal_lm"}, "GPT2LMHeadModel"),
    "gpt-lm": (
        GPT2 | {"residual": {"kind": "post"}, "hidden_act": "gelu_new", "intermediate_size": 132},
        {"kind": "causal_lm"},
        "OpenAIGPTLMHeadModel",
    ),
    "longformer-mlm": (windows(0, radius=[2, 3, 4]), {"kind": "masked_lm"}, "LongformerForMaskedLM"),
}


def build(backbone: dict[str, Any], head: dict[str, Any] | None = None) -> tuple[Model, ModelConfig]:
    config = ModelConfig.model_validate({"backbone": SIZES | backbone, "head": head})
    torch.manual_seed(11)
    return config.build().eval(), config


@pytest.mark.parametrize("case", CASES)
def test_export_round_trip(case: str, tmp_path: Path) -> None:
    backbone, head, name = CASES[case]
    model, config = build(backbone, head)
    report = check_export(tmp_path / "hf", model, config, name, tokenizer=TOKENIZER)
    pooler = head is None and name in POOLED
    graph = case == "big_bird"
    assert [("pooler" in note) for note in report.notes] == [True] * pooler + [False, False] * graph
    back = open_model(tmp_path / "hf")
    assert back.tokenizer.fingerprint == TOKENIZER.fingerprint
    if head is not None and "num_labels" in head:
        assert back.labels == Labels(tuple(f"LABEL_{i}" for i in range(5)))


@pytest.mark.parametrize("kind", ["linear", "mean", "cnn", "bilstm"])
def test_a_head_without_a_class_is_dropped_with_a_note(kind: str, tmp_path: Path) -> None:
    model, config = build({"embedding_size": 21}, {"kind": kind})
    report = export_huggingface(tmp_path / "hf", ModelBundle(model, config, TOKENIZER))
    assert report.architecture == "ElectraModel"
    assert len(report.notes) == 1
    assert repr(kind) in report.notes[0]
    assert report.notes[0] in (tmp_path / "hf" / "README.md").read_text()
    given = inputs(pad_id=0)
    with torch.no_grad():
        found = open_model(tmp_path / "hf").model(**given)
        torch.testing.assert_close(found, model.backbone(given.pop("input_ids"), **given))


@pytest.mark.parametrize(
    ("first", "head"), [(1, None), (2, {"kind": "masked_lm"}), (0, {"kind": "pooled"}), (3, {"kind": "pooled"})]
)
def test_different_global_tokens_are_noted(first: int, head: Any, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    model, config = build(windows(first), head)
    report = export_huggingface(tmp_path / "hf", ModelBundle(model, config, TOKENIZER))
    assert f"this model the first {first}; pass a global_attention_mask" in report.notes[-1]
    assert ("that is all 0" in report.notes[-1]) == (first == 0)
    theirs = getattr(transformers, str(report.architecture)).from_pretrained(tmp_path / "hf").eval()
    given = inputs(pad_id=TOKENIZER.pad_id)
    mask = torch.zeros_like(given["input_ids"])
    mask[:, :first] = 1
    with torch.no_grad():
        expected = model(**given)
        result = theirs(**given, global_attention_mask=mask)
    found = result.last_hidden_state if head is None else result.logits
    real = given["attention_mask"].bool() if found.shape[:2] == mask.shape else slice(None)
    torch.testing.assert_close(found[real], expected[real], atol=1e-5, rtol=1e-5)


def reformer(*kinds: str, **settings: Any) -> dict[str, Any]:
    one = {"local": {"kind": "local", "chunk_length": 3}, "lsh": {"kind": "lsh", "chunk_length": 4, "num_hashes": 2}}
    return {
        "attention": {"kind": "alternating", "cycle": [one[kind] for kind in kinds]} if kinds[1:] else one[kinds[0]],
        "residual": {"kind": "reversible", "streams": "copy"},
        "positions": {"kind": "axial", "shape": [5, 6], "sizes": [10, 23]},
        "type_vocab_size": 0,
        "embedding_norm": False,
        "seed": 3,
    } | settings


UNTIED = {"kind": "causal_lm", "tie_word_embeddings": False}


@pytest.mark.parametrize(
    ("backbone", "head", "name", "words"),
    [
        (reformer("local", "lsh"), None, "ReformerModel", ["hashes", "first chunk"]),
        (reformer("lsh"), UNTIED, "ReformerForMaskedLM", ["hashes", "first chunk"]),
        (reformer("local", positions={"kind": "learned", "offset": 2}), UNTIED, "ReformerForMaskedLM", ["first chunk"]),
        (reformer("local", causal=True), UNTIED, "ReformerModelWithLMHead", []),
        (reformer("local", "lsh"), {"kind": "masked_lm"}, "ReformerModel", ["head 'mask", "hashes", "first chunk"]),
        (reformer("lsh"), {"kind": "causal_lm"}, "ReformerModel", ["tie_word_embeddings=False", "hashes", "first"]),
        (reformer("local"), {"kind": "pooled"}, "ReformerModel", ["head.pooler_size=33", "first"]),
        (
            reformer("local"),
            {"kind": "pooled", "num_labels": 5, "pooler_size": 33},
            "ReformerForSequenceClassification",
            ["first chunk"],
        ),
    ],
)
def test_reformers(backbone: Any, head: Any, name: str, words: list[str], tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    model, config = build(backbone, head)
    report = export_huggingface(tmp_path / "hf", ModelBundle(model, config, TOKENIZER))
    assert report.architecture == name
    assert [word in note for word, note in zip(words, report.notes, strict=True)] == [True] * len(words)
    _, info = getattr(transformers, name).from_pretrained(tmp_path / "hf", output_loading_info=True)
    assert not any(info.values()), info
    given = inputs(pad_id=TOKENIZER.pad_id, segments=0)
    again = open_model(tmp_path / "hf")
    with torch.no_grad():
        hidden = model.backbone(**given)
        torch.testing.assert_close(again.model.backbone(**given), hidden, atol=1e-6, rtol=1e-6)
        if again.config.head is not None:
            torch.testing.assert_close(again.model(**given), model(**given), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("case", ["gpt2-lm", "gpt-lm", "reformer"])
def test_generation_ends_at_the_same_token(case: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    backbone, head, name = (
        (reformer("local", causal=True), UNTIED, "ReformerModelWithLMHead") if case == "reformer" else CASES[case]
    )
    model, config = build(backbone, head)
    given = inputs(pad_id=TOKENIZER.pad_id, segments=0, lengths=(7,))
    endless = model.generate(**given, max_new_tokens=9, use_cache=False)[0].tolist()
    end = endless[-1]  # the tokenizer's name for the end of a text is a token that is written
    tokenizer = Tokenizer(TOKENIZER.content, TOKENIZER.roles | {"sep": TOKENIZER.tokens[end]})
    export_huggingface(tmp_path / "hf", ModelBundle(model, config, tokenizer))
    tree = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert (tree["architectures"], tree["bos_token_id"], tree["eos_token_id"]) == ([name], tokenizer.cls_id, end)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    expected = endless[: endless.index(end, 7) + 1]
    assert theirs.generate(**given, max_new_tokens=9, do_sample=False)[0].tolist() == expected
    ours = open_model(tmp_path / "hf").model
    assert ours.generate(**given, max_new_tokens=9, use_cache=False)[0].tolist() == expected


def test_a_checkpoint_keeps_the_tokens_that_its_config_names(tmp_path: Path) -> None:
    model, config = build(GPT2, {"kind": "causal_lm"})
    export_huggingface(tmp_path / "theirs", ModelBundle(model, config, TOKENIZER))
    path = tmp_path / "theirs" / "config.json"
    for begin, end, kept in (
        (TOKENIZER.mask_id, TOKENIZER.pad_id, (TOKENIZER.mask_id, TOKENIZER.pad_id)),
        (50256, 17, (TOKENIZER.cls_id, TOKENIZER.sep_id)),  # beyond the vocabulary, and a word of it
    ):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"bos_token_id": begin, "eos_token_id": end}))
        convert(tmp_path / "theirs", tmp_path / "ours")
        convert(tmp_path / "ours", tmp_path / "back", to="hf")
        tree = json.loads((tmp_path / "back" / "config.json").read_text())
        assert (tree["bos_token_id"], tree["eos_token_id"]) == kept
        assert open_model(tmp_path / "ours").model.special_tokens.eos_token_id == kept[1]


@pytest.mark.parametrize("seed", [0, 7])
@pytest.mark.parametrize("name", ["BigBirdForMaskedLM", "BigBirdPegasusForConditionalGeneration"])
def test_random_blocks_are_the_same_when_what_was_written_is_read(name: str, seed: int, tmp_path: Path) -> None:
    tree: dict[str, Any] = {"backbone": SIZES | blocks(2) | {"seed": seed}, "head": {"kind": "masked_lm"}}
    if "Pegasus" in name:
        like = {"residual": {"kind": "pre"}, "embedding_norm": False, "type_vocab_size": 0, "layer_norm_eps": 1e-5}
        backbone = {"kind": "encoder_decoder", "encoder": tree["backbone"] | like}
        tree = {"backbone": backbone, "head": {"kind": "causal_lm"}}
    config = ModelConfig.model_validate(tree)
    model = config.build().eval()
    assert export_huggingface(tmp_path / "hf", ModelBundle(model, config, TOKENIZER)).architecture == name
    given = inputs(pad_id=0, segments=0)
    with torch.no_grad():
        torch.testing.assert_close(open_model(tmp_path / "hf").model(**given), model(**given), atol=0, rtol=0)


def test_a_head_of_another_activation_is_dropped_with_a_note(tmp_path: Path) -> None:
    model, config = build({"hidden_act": "relu"}, {"kind": "discriminator"})
    report = export_huggingface(tmp_path / "hf", ModelBundle(model, config, TOKENIZER))
    assert report.architecture == "BertModel"
    assert (
        "head 'discriminator': ElectraForPreTraining has head.hidden_act=relu where this model has gelu"
        in (report.notes[0])
    )


ONE_WINDOW = {"kind": "window", "radius": 4}
POST = GPT2 | {"residual": {"kind": "post"}}


@pytest.mark.parametrize(
    ("backbone", "nearest", "setting"),
    [
        ({"attention": {"kind": "sparse", "patterns": [ONE_WINDOW]}}, "longformer", "attention.global_tokens="),
        (
            OFFSET | {"attention": {"kind": "sparse", "patterns": [ONE_WINDOW], "global_tokens": SOMEWHERE}},
            "longformer",
            "global_tokens.positions",
        ),
        (windows(0, dilation=2), "longformer", "attention.patterns="),
        (windows(0) | {"causal": True}, "longformer", "causal=False"),
        (blocks(5, after=0), "big_bird", "attention.patterns="),
        (blocks(5) | {"causal": True}, "longformer", "attention.global_tokens.projections=True"),
        (reformer("lsh", causal=True), "reformer", "attention.across_buckets=True"),
        (reformer("local", "local"), "reformer", "attention.kind=local"),
        ({"attention": {"kind": "performer"}}, "bert", "attention.kind=full"),
        ({"residual": {"kind": "pre"}}, "gpt2", "type_vocab_size=0"),
        ({"residual": {"kind": "reversible", "streams": "copy"}}, "bert", "residual.kind=post"),
        ({"embedding_norm": False}, "bert", "embedding_norm=True"),
        ({"causal": True, "num_hidden_groups": 1}, "bert", "num_hidden_groups=3"),
        ({"positions": {"kind": "sinusoidal"}, "hidden_size": 44}, "bert", "positions.kind="),
        (GPT2 | {"embedding_norm": True}, "gpt2", "embedding_norm=False"),
        (POST, "bert", "embedding_norm=True"),
        (POST | {"hidden_act": "gelu_new"}, "openai-gpt", "intermediate_size=132"),
    ],
)
def test_what_no_family_has_is_not_written(
    backbone: dict[str, Any], nearest: str, setting: str, tmp_path: Path
) -> None:
    model, config = build(backbone)
    report = export_huggingface(tmp_path / "hf", ModelBundle(model, config, TOKENIZER))
    assert report.folder is None
    assert f" {nearest}, has " in report.notes[0]
    assert setting in report.notes[0]
    assert not list(tmp_path.iterdir())


def test_labels_travel(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    model, config = build({}, {"kind": "pooled", "num_labels": 3, "dropout": 0.25})
    for labels in (Labels(("no", "ja", "vielleicht")), Labels(("a", "b", "ç"), multi_label=True)):
        export_huggingface(tmp_path / "hf", ModelBundle(model, config, TOKENIZER, labels))
        theirs = transformers.AutoConfig.from_pretrained(tmp_path / "hf")
        assert theirs.id2label == dict(enumerate(labels.names))
        assert theirs.label2id == {name: i for i, name in enumerate(labels.names)}
        assert theirs.problem_type.startswith("multi_label" if labels.multi_label else "single_label")
        assert theirs.classifier_dropout == 0.25
        stored = open_model(tmp_path / "hf")
        assert stored.labels == labels
        assert stored.config.head == config.head
        assert stored.task["max_length"] == SIZES["max_position_embeddings"]
    with pytest.raises(UserError, match=r"2 labels .* 3 classes"):
        export_huggingface(tmp_path / "hf", ModelBundle(model, config, TOKENIZER, Labels(("a", "b"))))


@pytest.mark.parametrize("kind", [*KINDS, "roberta"])
def test_the_exported_tokenizer_gives_our_ids(kind: Any, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    if kind == "roberta":
        tokenizer = roberta_tokenizer(tmp_path / "tokenizer.json")
    else:
        sizes = {"bpe": 300, "bpe-characters": 80, "wordpiece": 80, "unigram": 60, "words": 40}
        tokenizer = Tokenizer.train(TEXTS, kind=kind, vocab_size=sizes[kind])
    model, config = build({"vocab_size": 311} | (OFFSET if kind == "roberta" else {}))
    export_huggingface(tmp_path / "hf", ModelBundle(model, config, tokenizer))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    texts = [*TEXTS[:4], "Fox, dog!", "", "naïve 漢字"]
    ours = [[tokenizer.cls_id, *ids.tolist(), tokenizer.sep_id] for ids in tokenizer.encode_batch(texts)]
    assert theirs(texts)["input_ids"] == ours
    assert (theirs.pad_token_id, theirs.mask_token_id) == (tokenizer.pad_id, tokenizer.mask_id)
    assert theirs.model_max_length == SIZES["max_position_embeddings"]
    # what it makes of texts too long and of two lengths goes through the model as it is
    batch = theirs([" ".join(TEXTS), "Fox"], ["dog", "again"], padding=True, truncation=True, return_tensors="pt")
    assert batch["input_ids"].shape == (2, SIZES["max_position_embeddings"])
    hidden = transformers.AutoModel.from_pretrained(tmp_path / "hf").eval()(**batch).last_hidden_state
    torch.testing.assert_close(hidden[0], model(**batch)[0], atol=1e-5, rtol=1e-5)


def test_an_export_replaces_an_export_and_nothing_else(tmp_path: Path) -> None:
    model, config = build({})
    other, _ = build({})
    with torch.no_grad():
        other.backbone.embeddings.norm.bias.add_(1)
    folder = tmp_path / "hf"
    for each in (model, other):
        export_huggingface(folder, ModelBundle(each, config, TOKENIZER))
        stored = load_file(folder / "model.safetensors")["embeddings.LayerNorm.bias"]
        torch.testing.assert_close(stored, each.backbone.embeddings.norm.bias)
    assert [path.name for path in tmp_path.iterdir()] == ["hf"]
    assert sorted(path.name for path in folder.iterdir()) == [
        "README.md",
        "config.json",
        "model.safetensors",
        "special_tokens_map.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "letter.txt").write_text("dear")
    with pytest.raises(UserError, match=r"letter\.txt"):
        export_huggingface(mine, ModelBundle(model, config, TOKENIZER))
    assert (mine / "letter.txt").read_text() == "dear"
    (folder / "conversion.json").write_text("{}")  # of `homespun convert`
    export_huggingface(folder, ModelBundle(model, config, TOKENIZER))


@pytest.mark.parametrize(
    ("files", "named"),
    [
        (("config.json", "src/main.py"), "src"),
        (("config.json", "model.safetensors", "generation.py"), "generation.py"),
        (("config.json", "model.safetensors", "README.md/main.py"), "README.md"),
        (("config.json", "README.md"), "README.md"),
        (("model.safetensors", "tokenizer.json"), "model.safetensors"),
    ],
)
def test_a_folder_that_holds_more_than_a_model_is_not_replaced(
    files: tuple[str, ...], named: str, tmp_path: Path
) -> None:
    model, config = build({})
    folder = tmp_path / "project"
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("mine")
    with pytest.raises(UserError, match=f"project .*{named}"):
        export_huggingface(folder, ModelBundle(model, config, TOKENIZER))
    assert all((folder / name).read_text() == "mine" for name in files)
    assert [path.name for path in tmp_path.iterdir()] == ["project"]


@pytest.mark.parametrize("segments", [0, 1, 2, 3])
def test_the_exported_tokenizer_writes_segments(segments: int, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    model, config = build({"type_vocab_size": segments}, {"kind": "pooled", "num_labels": 3})
    export_huggingface(tmp_path / "hf", ModelBundle(model, config, TOKENIZER))
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "hf").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    texts, others = ["quick fox", "own text"], ["lazy", "numbers turn words"]
    given = tokenizer(texts, others, padding=True, return_tensors="pt")
    assert ("token_type_ids" in given) == (segments > 1)
    for row, (text, other) in enumerate(zip(texts, others, strict=True)):
        first, second = (ids.tolist() for ids in TOKENIZER.encode_batch([text, other]))
        ids = [TOKENIZER.cls_id, *first, TOKENIZER.sep_id, *second, TOKENIZER.sep_id]
        types = torch.tensor([[position >= len(first) + 2 for position in range(len(ids))]]).long()
        with torch.no_grad():
            expected = model(torch.tensor([ids]), token_type_ids=types if segments > 1 else None)[0]
            found = theirs(**given).logits[row]
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_the_card_names_what_was_gone_on_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model, config = build({})
    (tmp_path / "runs").mkdir()
    for name, in_front in (("someone/model", True), ("runs/base", False), (tmp_path / "base", False), (None, False)):
        export_huggingface(tmp_path / "hf", ModelBundle(model, config, TOKENIZER), base_model=name)
        card = (tmp_path / "hf" / "README.md").read_text()
        front = card.split("---\n")[1]
        assert (f"base_model: {name}\n" in front, "base_model" in front) == (in_front, in_front)
        base = name if name != tmp_path / "base" else "base"  # nothing of this machine
        assert (f"trained from `{base}`" in card) == (name is not None)
        assert str(tmp_path) not in card


def test_a_write_that_fails_leaves_the_old_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, config = build({})
    export_huggingface(tmp_path / "hf", ModelBundle(model, config, TOKENIZER))
    before = (tmp_path / "hf" / "model.safetensors").read_bytes()
    monkeypatch.setattr(Tokenizer, "save", lambda self, folder: (_ for _ in ()).throw(OSError("no space left")))
    with pytest.raises(OSError, match="no space"):
        export_huggingface(tmp_path / "hf", ModelBundle(model, config, TOKENIZER))
    assert (tmp_path / "hf" / "model.safetensors").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["hf"]


def test_another_models_tokenizer_is_refused(tmp_path: Path) -> None:
    model, config = build({"vocab_size": 61})
    with pytest.raises(UserError, match=r"89 tokens .*61"):
        export_huggingface(tmp_path / "hf", ModelBundle(model, config, TOKENIZER))
    assert not list(tmp_path.iterdir())


def test_the_card_is_markdown_with_its_front_matter(tmp_path: Path) -> None:
    model, config = build({}, {"kind": "masked_lm"})
    export_huggingface(tmp_path / "hf", ModelBundle(model, config, TOKENIZER))
    card = (tmp_path / "hf" / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: transformers\npipeline_tag: fill-mask\n")
    assert f"{sum(p.numel() for p in model.parameters()):,} parameters" in card
    assert json.loads((tmp_path / "hf" / "config.json").read_text())["dtype"] == "float32"
