"""Commands that are interrupted, and commands that make their inputs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Command:
    """Command whose outputs are below the folder ``{out}``.

    Args:
        arguments: arguments of homespun; ``{world}`` is the folder of inputs, ``{out}`` the folder of outputs.
        again: further arguments when it is repeated.
        finished: part of the message that refuses to repeat a finished command.
    """

    arguments: str
    again: str = ""
    finished: str | None = None


_SIZE = ("hidden_size=16", "intermediate_size=24", "num_hidden_layers=2", "num_attention_heads=2")
_MODEL = " ".join(f"model.{size}" for size in _SIZE)
_MODELS = " ".join(f"model.{stack}.{size}" for stack in ("encoder", "decoder") for size in _SIZE)
_RECURRENT = "model.hidden_size=16 model.num_hidden_layers=2"
_TRAIN = "train.budget.steps=4 train.batch_size=4 train.checkpoint_every=0.001"
_ROWS = f"data.max_length=32 {_TRAIN}"
_PRETRAIN = f"data.corpus={{world}}/corpus {_ROWS}"
_SENTENCES = f"data.corpus={{world}}/sentences-corpus {_ROWS}"
_LABELS = "baselines=false data.train={world}/train.csv data.test={world}/test.csv data.text=text data.max_length=24"
_CLASSIFY = f"{_LABELS} {_TRAIN}"
_FROM = "--from {world}/base --out {out}/run"
_READ = "--input {world}/train.csv"


def _data(name: str, length: str = "data.max_length=24") -> str:
    """Build overrides of a fine-tuning with one file for training and test."""
    return f"baselines=false data.train={{world}}/{name} data.test={{world}}/{name} {length} {_TRAIN}"


MADE = {
    "tokenizer": f"tokenizer train {_READ} --vocab-size 300 --out {{world}}/tokenizer",
    "words": f"tokenizer train {_READ} --kind words --vocab-size 60 --out {{world}}/words",
    "sentinels": f"tokenizer train {_READ} --vocab-size 400 --sentinels 100 --out {{world}}/sentinels",
    "corpus": f"corpus build {_READ} --tokenizer {{world}}/tokenizer --out {{world}}/corpus",
    "words-corpus": f"corpus build {_READ} --tokenizer {{world}}/words --out {{world}}/words-corpus",
    "sentinels-corpus": f"corpus build {_READ} --tokenizer {{world}}/sentinels --out {{world}}/sentinels-corpus",
    "sentences-corpus": f"corpus build {_READ} --sentences --tokenizer {{world}}/tokenizer "
    "--out {world}/sentences-corpus",
    "base": f"pretrain roberta-mini {_MODEL} {_PRETRAIN} --out {{world}}/base",
    "seq2seq": f"pretrain bart-mini {_MODELS} {_SENTENCES} --out {{world}}/seq2seq",
    "classifier": f"finetune classify {_CLASSIFY} --from {{world}}/base --out {{world}}/classifier",
}
"""Commands that make inputs, by the name of their output; each reads those before it."""

_PRETRAINED = {
    "mlm": f"roberta-mini {_MODEL} {_PRETRAIN}",
    "workers": f"roberta-mini {_MODEL} {_PRETRAIN} train.workers=1",
    "electra": f"electra-mini {_MODEL} {_PRETRAIN}",
    "clm": f"gpt2-mini {_MODEL} {_PRETRAIN}",
    "stateful_clm": f"lstm-mini {_RECURRENT} objective.streams=4 {_PRETRAIN}",
    "elmo": f"elmo-mini {_RECURRENT} model.cell_size=16 data.corpus={{world}}/words-corpus {_ROWS}",
    "denoising": f"bart-mini {_MODELS} {_SENTENCES}",
    "span_corruption": f"t5-mini {_MODELS} data.corpus={{world}}/sentinels-corpus {_ROWS}",
    "gap_sentences": f"pegasus-mini {_MODELS} {_SENTENCES} data.max_length=64",
    "future_ngrams": f"prophetnet-mini {_MODELS} {_PRETRAIN}",
}
_FINETUNED = {
    "classify": f"classify {_CLASSIFY} {_FROM}",
    "seeds": f"classify seeds=2 {_CLASSIFY} {_FROM}",
    "tag": f"tag {_data('tags.conll')} data.stride=8 {_FROM}",
    "regression": f"classify objective.kind=regression data.text=text {_data('numbers.csv')} {_FROM}",
    "ordinal": f"ordinal-regression data.text=text {_data('stars.csv')} {_FROM}",
    "similarity": f"similarity {_data('pairs.csv')} {_FROM}",
    "sentences": f"classify-sentences {_data('sentences.jsonl', 'data.max_length=32')} {_FROM}",
    "questions": f"question-answering {_data('questions.json', 'data.max_length=32')} data.stride=4 "
    f"data.max_question_length=8 {_FROM}",
    "seq2seq": f"summarize {_data('summaries.jsonl', 'data.max_source_length=24 data.max_target_length=8')} "
    "--from {world}/seq2seq --out {out}/run",
}
COMMANDS = {
    "tokenizer": Command(f"tokenizer train {_READ} --vocab-size 300 --out {{out}}/tokenizer"),
    "corpus": Command(
        f"corpus build {_READ} --tokenizer {{world}}/tokenizer --out {{out}}/corpus", finished="is a finished corpus"
    ),
    **{
        f"pretrain {name}": Command(f"pretrain {words} --out {{out}}/run", "--resume")
        for name, words in _PRETRAINED.items()
    },
    **{f"finetune {name}": Command(f"finetune {words}", "--resume") for name, words in _FINETUNED.items()},
    "distill": Command(
        f"distill finetune distil-classify {_CLASSIFY} --teacher {{world}}/classifier --out {{out}}/run", "--resume"
    ),
    "extend": Command(f"tokenizer extend {{world}}/tokenizer {_READ} --add 5 --sentinels 3 --out {{out}}/tokenizer"),
    "vectors": Command("vectors train glove --corpus {world}/words-corpus --out {out}/vectors"),
    "baselines": Command(f"baselines classify {_LABELS} --from {{world}}/base --out {{out}}/baselines", "--resume"),
    "generate": Command("generate {world}/seq2seq --input {world}/test.csv --out {out}/generated.jsonl"),
    "convert": Command("convert {world}/base --to hf --out {out}/hf"),
    "export": Command("export {world}/base --to sentence-transformers --out {out}/encoder"),
    "export onnx": Command("export {world}/classifier --to onnx --out {out}/onnx"),
    "predict": Command("predict {world}/classifier --input {world}/test.csv --out {out}/predictions.csv"),
    **{
        f"predict {processes}": Command(
            f"predict {{world}}/classifier {_READ} --processes {processes} --out {{out}}/predictions.csv"
        )
        for processes in (1, 2)
    },
    "report": Command("report {world}/base {world}/classifier --out {out}/report"),
    "fit": Command("fit {world}/train.csv --test {world}/test.csv --time 20s --out {out}/fit", "--resume"),
    "compare": Command("compare {world}/compare.yaml --out {out}/compare"),
}
