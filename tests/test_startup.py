"""What a command imports: errors are printed before torch is imported, and nothing is imported that is not used."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from homespun.commands.recipe import load_recipe, settings_schema
from homespun.crf import fit_crf
from homespun.data.labels import Labels
from homespun.errors import UserError
from homespun.extractive import fit_ranker
from homespun.linear import PLAIN, fit_linear
from homespun.ngrams import Texts
from homespun.recipes import check_recipe, recipe_names
from homespun.tasks.seq2seq_data import TextPairsData
from homespun.tasks.summarizers import ExtractiveSummarizer
from homespun.tasks.taggers import LinearTagger, TaggedData
from homespun.tasks.text_models import LinearTextModel, save_text_model
from homespun.tasks.texts import LabelledData

SETTINGS = Path(__file__).resolve().parents[1] / "src" / "homespun" / "recipes" / "settings.json"
COMMANDS = {
    "recipes list": 0,
    "predict --nosuch": 2,
    "predict /nosuch text": 2,
    "evaluate /nosuch --data a.csv": 2,
    "serve /nosuch": 2,
    "serve . --api-key /nosuch": 2,
    "fit /nosuch.csv": 2,
    "fit pyproject.toml --time 0": 2,
    "fit pyproject.toml --task clasification": 2,
    "corpus build --input /nosuch.txt --tokenizer t --out c": 2,
    "corpus build --input pyproject.toml --tokenizer t --out c --duplicates none": 2,
    "tokenizer train --input pyproject.toml --out t --kind words-of-my-own": 2,
    "export . --to hf --out x": 2,
    "export . --quantize int4 --out x": 2,
    "convert . --to onnx --out x": 2,
    "vectors map . --method umap --out x.png": 2,
    "compare nosuch": 2,
    "plan nosuch": 2,
    "plan classify data.train=pyproject.toml": 2,
    "pretrain bert-mini trian.seed=1": 2,
    "pretrain bert-mini train.budget.time=soon": 2,
    "pretrain spun-decoder model.hiden_size=3": 2,
    "pretrain classify": 2,
    "finetune classify data.train=/nosuch.csv --from /nosuch": 2,
    "finetune tag --from .": 2,
    "show batch bert-mini objective.probability=2": 2,
    "few-shot . --data /nosuch.csv": 2,
    "baselines classify data.train=pyproject.toml --from /nosuch": 2,
}
HEAVY = {"torch", "numpy", "scipy", "sklearn", "pandas", "pyarrow", "accelerate", "matplotlib", "onnx", "transformers"}
PROGRAM = """
import json, sys
from homespun.cli import main
found = []
for words in json.loads(sys.argv[1]):
    sys.argv = ["homespun", *words]
    try:
        main()
        status = 0
    except SystemExit as error:
        status = error.code or 0
    found.append((status, sorted(sys.modules)))
print(json.dumps(found))
"""


def run_all(commands: list[list[str]]) -> list[tuple[int, set[str]]]:
    """Exit code of each command, one after another in one process, and the modules that are imported by then."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(commands)], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return [(status, set(modules)) for status, modules in json.loads(done.stdout.splitlines()[-1])]


def test_errors_of_arguments_need_no_torch() -> None:
    found = zip(COMMANDS, run_all([command.split() for command in COMMANDS]), strict=True)
    assert {command: (status, modules & HEAVY) for command, (status, modules) in found} == {
        command: (status, set()) for command, status in COMMANDS.items()
    }


@pytest.fixture(scope="module")
def linear(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A linear classifier, and a file of its examples."""
    folder = tmp_path_factory.mktemp("linear")
    texts, labels = ["good bread", "bad soup"], Labels(("food", "news"))
    model = fit_linear(Texts(texts), np.arange(2), labels, settings=PLAIN).model
    save_text_model(folder / "model", LinearTextModel(model, LabelledData()))
    (folder / "texts.csv").write_text("text,label\ngood bread,food\nbad soup,news\n", encoding="utf-8")
    return folder


def test_linear_models_predict_without_torch_and_scikit_learn(linear: Path) -> None:
    unused = HEAVY - {"numpy", "scipy", "pyarrow"}
    files = str(linear / "texts.csv"), str(linear / "out.jsonl")
    found = run_all(
        [
            ["predict", str(linear), "good soup"],
            ["predict", str(linear), "--input", files[0], "--out", files[1]],
            ["evaluate", str(linear), "--data", files[0]],
        ]
    )
    assert [status for status, _ in found] == [0, 0, 0]
    assert not found[1][1] & unused
    assert "torch" not in found[2][1]


@pytest.mark.parametrize(
    ("content", "options"),
    [
        ("text,label\na,b\n", ["--text-field", "nosuch"]),
        ("text,label\na,b\n", ["--label-field", "nosuch"]),
        ("3,some text\n4,another text\n", []),  # no header
        ("text,label\na,b\nc\n", []),  # a row of one cell
        ("text,label\na b,\nc d,\n", ["--label-field", "label"]),  # no label
        ("text,label\na b,x\nc d,y\n", ["--out", "src"]),  # not empty
    ],
)
def test_errors_in_the_files_of_a_fit_need_no_torch(content: str, options: list[str], tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(content, encoding="utf-8")
    ((status, modules),) = run_all([["fit", str(tmp_path / "a.csv"), "--out", str(tmp_path / "fit"), *options]])
    assert status == 2
    assert "torch" not in modules


@pytest.mark.parametrize(
    ("command", "name"),
    [("evaluate", "--data"), ("evaluate --text-field body", "--data"), ("predict --out o.csv", "--input")],
)
def test_missing_columns_are_refused_before_a_network_is_opened(command: str, name: str, tmp_path: Path) -> None:
    """The folder has no weights: the check reads only the description of the model."""
    described = {"format": 1, "task": {"kind": "classification", "data": "texts", "text": "text", "label": "label"}}
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "homespun.json").write_text(json.dumps(described), encoding="utf-8")
    (tmp_path / "new.csv").write_text("body,topic\na,b\n", encoding="utf-8")
    words = command.split()
    ((status, modules),) = run_all([[words[0], str(tmp_path), name, str(tmp_path / "new.csv"), *words[1:]]])
    assert status == 2
    assert not modules & (HEAVY - {"numpy", "scipy", "pyarrow"})


def test_linear_taggers_predict_without_torch_and_scikit_learn(tmp_path: Path) -> None:
    sentences, tags = [["good", "bread"], ["bad", "soup"]], [["A", "N"], ["A", "N"]]
    (model,) = fit_crf(sentences, tags, Labels(("A", "N")), epochs=1)
    LinearTagger(model, TaggedData()).save(tmp_path / "model")
    ((status, modules),) = run_all([["predict", str(tmp_path), "good soup"]])
    assert status == 0
    assert not modules & (HEAVY - {"numpy", "scipy", "pyarrow"})


def test_extractive_summarizers_predict_without_torch(tmp_path: Path) -> None:
    sources = ["Bread rose. Soup boiled.", "Soup cooled. Bread burned."]
    ranker = fit_ranker(sources, [["Bread rose."], ["Bread burned."]])
    ExtractiveSummarizer(ranker, TextPairsData()).save(tmp_path / "model")
    ((status, modules),) = run_all([["predict", str(tmp_path), "Bread rose. Soup boiled."]])
    assert status == 0
    assert not modules & (HEAVY - {"numpy", "scipy", "pyarrow"})


@pytest.mark.slow
@pytest.mark.parametrize("module", ["predict", "generate", "recipe", "pretrain", "finetune", "plan"])
def test_commands_import_libraries_where_they_are_used(module: str) -> None:
    unused = {"sklearn", "scipy", "pandas", "matplotlib", "onnxruntime", "transformers", "sympy", "torch._dynamo"}
    unused |= {"accelerate"} if module in ("predict", "generate", "recipe") else set()
    code = f"import json, sys, homespun.commands.{module}; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert not set(json.loads(done.stdout)) & unused


@pytest.mark.parametrize(
    ("recipe", "override"),
    [
        ("bert-mini", "model.hiden_size=3"),
        ("bert-mini", "model.hidden_size=-3"),
        ("bert-mini", "model.preset=bert-minn"),
        ("bert-mini", "objective=mlm"),
        ("bert-mini", "objective.teacher.foo=3"),
        ("bert-mini", "data.length=5"),
        ("bert-mini", "train.optimizer.lr=1"),
        ("bert-mini", "train.budget.time=soon"),
        ("bert-mini", "train.budget.epochs=-1"),
        ("bert-mini", "train.compile=maybe"),
        ("bert-mini", "train.micro_batch_size=0"),
        ("bert-mini", "train.seed=1.5"),
        ("bert-mini", "train=3"),
        ("bert-mini", "train.seed.x=3"),
        ("classify", "objective.head.dropout=3"),
        ("classify", "folds=1"),
        ("lstm-mini", "model.cell=x"),
        ("bart-mini", "objective.foo=1"),
        ("compare-small", "x=1"),
        ("nosuch", "x=1"),
    ],
)
def test_the_early_check_finds_what_the_configs_find(recipe: str, override: str) -> None:
    with pytest.raises(UserError) as late:
        load_recipe(recipe, [override])
    with pytest.raises(UserError) as early:
        check_recipe(recipe, [override])
    assert str(early.value) == str(late.value)


@pytest.mark.parametrize("override", ["model.hiden_size=3", "model.hidden_size=-3", "model.residual=3"])
def test_the_early_check_covers_models_without_a_size(override: str) -> None:
    with pytest.raises(UserError) as late:
        load_recipe("spun-decoder", [override])
    with pytest.raises(UserError) as early:
        check_recipe("spun-decoder", [override])
    assert str(late.value) == str(early.value).replace("spun-decoder: ", "spun-decoder: model: spun-decoder-tiny: ")


@pytest.mark.parametrize(
    ("recipe", "override"),
    [
        *((name, "description=x") for name in recipe_names()),
        ("spun-encoder", "model.size=auto"),
        ("bert-mini", "model.attention={kind: sparse, patterns: [{kind: window, radius: 4}]}"),
        ("bert-mini", "train.optimizer={learning_rate: 1e-3}"),
        ("bert-mini", "train.micro_batch_size=null"),
        ("bert-mini", "train.batch_size='16'"),
        ("rnn-seq2seq-mini", "model.decoder.num_hidden_layers=2"),
        ("classify", "train_sizes=[10, all]"),
        ("classify", "objective.class_weights={a: 2}"),
        ("classify", "data.train=[a.csv, b.csv]"),
    ],
)
def test_the_early_check_accepts_what_the_configs_accept(recipe: str, override: str) -> None:
    load_recipe(recipe, [override])
    check_recipe(recipe, [override])


def test_settings_are_those_of_the_configs() -> None:
    made = settings_schema()
    assert SETTINGS.read_text(encoding="utf-8") == made, (
        "the configs have changed; write their schema again: python -c 'from homespun.commands.recipe import "
        f'settings_schema; print(settings_schema(), end="")\' > {SETTINGS.name}'
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "backbone",
    [
        {"preset": "bert-tiny"},
        {"preset": "bert-tiny", "positions": {"kind": "sinusoidal"}},
        {"preset": "spun-encoder-tiny", "neighbour_heads": 1},
    ],
    ids=["learned", "sinusoidal", "rotary"],
)
def test_a_model_is_opened_without_the_compiler(backbone: dict[str, object]) -> None:
    code = (
        "import sys, torch; from homespun.models.bundle import build_on_meta; "
        "from homespun.models.config import ModelConfig; "
        f"config = ModelConfig.model_validate({{'backbone': {backbone | {'vocab_size': 99}}}}); "
        "build_on_meta(config, dict.fromkeys(range(99), torch.zeros(1)), source='test'); "
        "assert 'torch._dynamo' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
