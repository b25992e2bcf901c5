"""The commands whose results are frozen: every pretraining objective, backbone, attention and fine-tuning task."""

from __future__ import annotations

from pathlib import Path

SMALL = ("model.hidden_size=32", "model.intermediate_size=48", "model.num_hidden_layers=2")
HEADS = ("model.num_attention_heads=2",)
NARROW = ("model.embedding_size=16",)
ENCODER_DECODER = tuple(
    f"model.encoder.{one}"
    for one in ("hidden_size=32", "intermediate_size=48", "num_hidden_layers=1", "num_attention_heads=2")
)
STEPS = ("train.budget={steps: 20}", "train.batch_size=4", "train.precision=float32", "train.validate_every=0.5")
ENCODERS = [
    "bert-mini",
    "roberta-mini",
    "albert-tiny",
    "bigbird-mini",
    "blockbert-mini",
    "deberta-mini",
    "dilated-bert",
    "linformer-mini",
    "longformer-mini",
    "performer-mini",
    "reformer-mini",
    "reversible-dilated-bert",
]
ADAMW = ("train.optimizer={kind: adamw, learning_rate: 1.0e-3}", "train.schedule={kind: linear}")
COSINE = (ADAMW[0], "train.schedule={kind: cosine, warmup: 0.05}")
SPANS = (*ADAMW, "objective={kind: span_corruption}")
UNTIED = (*ADAMW, "objective={kind: span_corruption, head: {tie_word_embeddings: false}}")
# by preset: the recipe that trains it, and the settings with which these results were frozen
PRESETS: dict[str, tuple[str, ...]] = {
    "albert-tiny": ("albert-mini", *ADAMW, "objective={kind: mlm}"),
    "bart-tiny": ("bart-mini", *ADAMW),
    "bigbird-pegasus-tiny": ("pegasus-mini", *ADAMW, "objective={kind: gap_sentences}"),
    "bigru-mini": ("bilstm-mini", *COSINE, "objective={kind: mlm}"),
    "bilstm-tiny": ("bilstm-mini", *COSINE, "objective={kind: mlm}"),
    "elmo-tiny": ("elmo-mini", "train.optimizer={kind: adamw, learning_rate: 2.0e-3}", COSINE[1]),
    "gru-mini": ("lstm-mini",),
    "hierarchical-tiny": ("hierarchical-mini", *ADAMW),
    "led-tiny": ("led-mini", *ADAMW),
    "lstm-tiny": ("lstm-mini",),
    "pegasus-tiny": ("pegasus-mini", *ADAMW, "objective={kind: gap_sentences}"),
    "prophetnet-tiny": ("prophetnet-mini", *ADAMW),
    "rnn-mini": ("lstm-mini", "train.optimizer.learning_rate=1.0e-3"),
    "rnn-seq2seq-plain-mini": ("rnn-seq2seq-mini",),
    "rnn-seq2seq-tiny": ("rnn-seq2seq-mini",),
    "t5-tiny": ("t5-mini", *SPANS),
    "t5-v1.1-tiny": ("t5-mini", *UNTIED),
    "transformer-tiny": ("transformer-mini", *ADAMW),
}
RECURRENT = ["bigru-mini", "bilstm-tiny", "gru-mini", "lstm-tiny", "rnn-mini"]
RECURRENT_SEQ2SEQ = ["rnn-seq2seq-tiny", "rnn-seq2seq-plain-mini"]
ELMO = (
    "model.hidden_size=22",
    "model.cell_size=17",
    "model.characters={max_word_length: 11, filters: [[1, 3], [3, 7]]}",
)
DETECTORS = ["electra-tiny", "deberta-v3-mini"]
DECODERS = ["causal-mini", "gpt-mini", "gpt2-mini", "gpt3-mini"]
SEQ2SEQ = [
    "bart-tiny",
    "pegasus-tiny",
    "prophetnet-tiny",
    "t5-tiny",
    "t5-v1.1-tiny",
    "led-tiny",
    "hierarchical-tiny",
    "transformer-tiny",
    "bigbird-pegasus-tiny",
]
SPUN = {"spun-decoder": "tiny", "spun-encoder": "tiny", "spun-electra": "tiny"}


def commands(data: Path, runs: Path) -> dict[str, list[str]]:
    """The arguments of ``homespun`` by the name of the run, in an order in which each finds what it starts from."""
    pretrain, finetune = _pretraining(data), _finetuning(data, runs)
    made = {name: ["pretrain", *words] for name, words in pretrain.items()}
    made |= {name: ["finetune", *words] for name, words in finetune.items()}
    text = [word for word in finetune["classify"] if word.startswith("data.")]
    corpus = [f"data.corpus={data / 'corpus'}", "data.max_length=32"]
    made["distil-mini"] = ["distill", "pretrain", "distil-mini", *corpus, "--teacher", str(runs / "dynamic-masks")]
    made["distil-classify"] = ["distill", "finetune", "distil-classify", *text, "--teacher", str(runs / "classify")]
    made = {name: [*words, *STEPS] for name, words in made.items()}
    first = [word for word in made["electra-tiny"] if not word.startswith("train.budget")]
    made["resumed"] = [*first, "train.schedule.kind=constant", "train.budget={steps: 12}"]
    made["resumed+"] = [*made["resumed"][:-1], "train.budget={steps: 20}", "--resume"]  # goes on from a checkpoint
    return made


def _recipe(name: str) -> list[str]:
    """A recipe, or the recipe and the settings of a preset."""
    recipe, *settings = PRESETS.get(name, (name,))
    return [recipe, f"model={{preset: {name}}}", *settings] if name in PRESETS else [recipe]


def _pretraining(data: Path) -> dict[str, list[str]]:
    corpus = f"data.corpus={data / 'corpus'}"
    made = {
        name: [*_recipe(name), corpus, "data.max_length=32", *SMALL, *HEADS]
        for name in (*ENCODERS, *DECODERS, *DETECTORS)
    }
    made |= {name: [*_recipe(name), corpus, "data.max_length=32", *SMALL[::2], *NARROW] for name in RECURRENT}
    made |= {name: [*_recipe(name), corpus, "data.max_length=32", *ENCODER_DECODER] for name in SEQ2SEQ}
    made |= {name: [*_recipe(name), corpus, "data.max_length=32", *ENCODER_DECODER[:1]] for name in RECURRENT_SEQ2SEQ}
    made["elmo-tiny"] = [*_recipe("elmo-tiny"), f"data.corpus={data / 'words-corpus'}", "data.max_length=31", *ELMO]
    made |= {name: [*_recipe(name), corpus, "data.max_length=32", f"model.size={size}"] for name, size in SPUN.items()}
    made["spun-encoder-decoder"] = ["spun-encoder-decoder", corpus, "data.max_length=32", *ENCODER_DECODER]
    made["dynamic-masks"] = [*made["bert-mini"], "objective.next_sentence=false", "objective.masking=dynamic"]
    return made


def _finetuning(data: Path, runs: Path) -> dict[str, list[str]]:
    def files(stem: str, suffix: str) -> list[str]:
        return [f"data.{split}={data / f'{stem}{split}{suffix}'}" for split in ("train", "test")]

    def start(name: str) -> list[str]:
        return ["--from", str(runs / name)]

    text = ["data.text=text", "data.max_length=24"]
    pairs = [*files("pairs-", ".csv"), "data.first=one", "data.second=two", "data.max_length=24"]
    written = [*files("summaries-", ".jsonl"), "data.max_source_length=24", "data.max_target_length=8"]
    summaries = [*written, "data.source=document", "data.target=summary"]
    pages = [*written, "data.source=pages", "data.target=summary", "data.paragraphs.title=title"]
    pages += ["data.paragraphs.max_paragraphs=3", "data.paragraphs.max_length=7"]
    elmo = start("elmo-tiny")
    made = {
        "classify": ["classify", *files("", ".csv"), *text, *start("electra-tiny")],
        "classify-cnn": ["classify-cnn", *files("", ".csv"), *text, *start("spun-decoder")],
        "classify-frozen": ["classify-frozen", *files("", ".csv"), *text, *start("roberta-mini")],
        "classify-gpt": ["classify-gpt", *files("", ".csv"), *text, *start("gpt-mini")],
        "classify-sift": ["classify", *files("", ".csv"), *text, "objective.adversarial.kind=sift"],
        "elmo-classify": ["elmo-classify", *files("", ".csv"), *text, "objective.head.lstm_size=8", *elmo],
        "pairs": ["pairs", *pairs, "data.label=same", *start("bert-mini")],
        "similarity": ["similarity", *pairs, "data.label=score", *start("bert-mini")],
        "ratings": [
            "ordinal-regression",
            *files("stars-", ".csv"),
            "data.label=stars",
            "data.max_length=16",
            *start("deberta-mini"),
        ],
        "tag": ["tag", *files("tags-", ".jsonl"), "data.max_length=24", "data.stride=5", *start("electra-tiny")],
        "elmo-tag": ["elmo-tag", *files("tags-", ".jsonl"), "data.max_length=24", "data.stride=5", *elmo],
        "answer": [
            "question-answering",
            *files("answers-", ".json"),
            "data.max_length=24",
            "data.stride=5",
            "data.max_question_length=5",
        ],
        "spoilers": ["classify-sentences", *files("reviews-", ".jsonl"), "data.max_length=24", *start("bert-mini")],
        "summarize": ["summarize", *summaries, *start("t5-tiny")],
        "summarize-causal": ["summarize", *summaries, *start("gpt2-mini")],
        "summarize-documents": ["summarize-documents", *pages, *start("hierarchical-tiny")],
    }
    made["answer"] += start("electra-tiny")
    made["classify-sift"] += start("bert-mini")
    return made
