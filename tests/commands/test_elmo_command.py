"""ELMo by the commands: pretraining, scalar mix, tagging, new words, plan, refusals."""

import dataclasses
from pathlib import Path

import pytest
import torch
from commands_world import World, assert_refused, write_csv

from homespun.commands import machine
from homespun.commands.plan import plan
from homespun.commands.recipe import pretrain_recipe
from homespun.commands.workload import pretraining_work
from homespun.data.corpus import Corpus
from homespun.errors import UserError
from homespun.hf.open import open_model
from homespun.models.embeddings import CharacterEmbeddings
from homespun.planning.predict import Memory, Prediction, Workload, choose
from homespun.planning.rates import Rates
from homespun.planning.tracer import StepTracer

SIZES = [
    "model.hidden_size=22",
    "model.cell_size=17",
    "model.characters={max_word_length: 11, filters: [[1, 3], [3, 7]]}",
]
STEPS = ["train.budget.time=null", "train.budget.steps=7", "train.batch_size=8", "data.max_length=31"]
SHORT = ["baselines=false", "train.budget={steps: 5}", "train.batch_size=8", "data.max_length=31"]


@pytest.fixture(scope="module")
def words(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of words, of which the tokenizer knows the most frequent."""
    folder = tmp_path_factory.mktemp("words")
    read, sizes = ("--input", world.train, "--text-field", "sentence"), ("--vocab-size", "60", "--lowercase")
    world.run("tokenizer", "train", *read, "--kind", "words", *sizes, "--out", folder / "tokenizer")
    world.run("corpus", "build", *read, "--tokenizer", folder / "tokenizer", "--out", folder / "corpus")
    return folder


@pytest.fixture(scope="module")
def elmo(world: World, words: Path) -> Path:
    pretrained = [f"data.corpus={words / 'corpus'}", *SIZES, *STEPS]
    result = world.run("pretrain", "elmo-mini", *pretrained, "--out", words / "elmo")
    assert set(result["validation"]["losses"]) >= {"forward", "backward", "forward_accuracy", "backward_accuracy"}
    assert result["export"]["architecture"] == "HomespunModel"
    losses = result["validation"]["losses"]
    assert result["validation"]["loss"] == pytest.approx((losses["forward"] + losses["backward"]) / 2, rel=1e-5)
    return words / "elmo"


@pytest.mark.slow
def test_task_reports_its_layer_weights(world: World, elmo: Path, tmp_path: Path) -> None:
    data = [f"data.train={world.train}", f"data.test={world.test}", "data.text=sentence", *SHORT]
    fine = ["finetune", "elmo-classify", *data, "objective.head.lstm_size=7", "--from", elmo]
    result = world.run(*fine, "--out", tmp_path / "told")
    assert len(result["layers"]["weights"]) == 3
    assert sum(result["layers"]["weights"]) == pytest.approx(1, abs=1e-6)
    assert result["layers"]["gamma"] != 1
    stored = open_model(tmp_path / "told")
    before, after = (model.model.backbone.state_dict() for model in (open_model(elmo), stored))
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
    page = (tmp_path / "told" / "report" / "index.html").read_text(encoding="utf-8")
    assert "Layer weights" in page
    measured = world.run("evaluate", tmp_path / "told", "--data", world.test)
    assert measured["accuracy"] == pytest.approx(result["test"]["accuracy"])
    kept = world.run(*fine, f"objective.cache={tmp_path / 'kept'}", "seeds=2", "--out", tmp_path / "seeds")
    assert len(kept["layers"]["weights"]) == 3
    # and a model of attention
    mix = ["finetune", "classify", *data, "objective.layers=normalised_mix"]
    bert = world.run(*mix, "--from", world.base, "--out", tmp_path / "bert")
    assert len(bert["layers"]["weights"]) == 2


def test_words_are_tagged_by_a_mix(world: World, elmo: Path, tmp_path: Path) -> None:
    pytest.importorskip("seqeval")
    train = tmp_path / "train.txt"
    train.write_text("the x O\nbank x B-A\n\na x O\nmarket x B-A\n\n" * 20, encoding="utf-8")
    given = ["finetune", "elmo-tag", f"data.train={train}", f"data.test={train}", "data.stride=7", *SHORT]
    result = world.run(*given, "--from", elmo, "--out", tmp_path / "tags")
    assert len(result["layers"]["weights"]) == 3
    assert world.run("evaluate", tmp_path / "tags", "--data", train)["f1"] == pytest.approx(result["test"]["f1"])


def test_new_words_are_known_without_training(world: World, elmo: Path, tmp_path: Path) -> None:
    texts = [[f"{number} the zebra and the zebras of a bank were very old"] for number in range(40)]
    table = write_csv(tmp_path / "new.csv", ["sentence"], texts)
    arguments = ["--input", table, "--text-field", "sentence"]
    world.run("tokenizer", "extend", elmo, *arguments, "--add", "3", "--out", tmp_path / "more")
    world.run("corpus", "build", *arguments, "--tokenizer", tmp_path / "more", "--out", tmp_path / "corpus")
    given = ["pretrain", "elmo-mini", f"data.corpus={tmp_path / 'corpus'}", "train.budget={steps: 0}", *SHORT[2:]]
    result = world.run(*given, "--from", elmo, "--out", tmp_path / "run")
    tensors = result["adaptation"]["tensors"]
    assert tensors["fresh"] == []
    assert "from the characters of the new words" in tensors["changed"]["backbone.embeddings.characters"]
    before, after = open_model(elmo), open_model(tmp_path / "run")
    added = after.tokenizer.tokens[before.tokenizer.vocab_size :]
    assert {"zebra", "zebras"} <= set(added)
    ids = torch.tensor([[2, *range(5, 23), 3]])
    torch.testing.assert_close(after.model.backbone(ids), before.model.backbone(ids), rtol=1e-5, atol=1e-6)
    words_of = after.model.backbone.embeddings
    assert isinstance(words_of, CharacterEmbeddings)
    vectors = words_of(torch.tensor([[after.tokenizer.tokens.index(word) for word in ("zebra", "zebras", "bank")]]))[0]
    near, far = (torch.cosine_similarity(vectors[0], other, dim=0) for other in vectors[1:])
    assert near > far


@pytest.mark.slow
def test_it_is_planned(words: Path, elmo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rates = Rates(**{field.name: 1e9 for field in dataclasses.fields(Rates)} | {"call": 1e-6, "base": 1e8})
    here = machine.Machine(torch.device("cpu"), rates)
    monkeypatch.setattr(machine.Machine, "here", classmethod(lambda cls, *, clock="wall": here))
    # short, since the shadow of a network with projections goes from token to token
    short = ["model.num_hidden_layers=1", "data.max_length=8", "objective.softmax=adaptive", "objective.cutoffs=[7]"]
    recipe = pretrain_recipe("elmo-mini", [f"data.corpus={words / 'corpus'}", *SIZES, *STEPS, *short])
    planned = plan(recipe)
    with StepTracer():
        built = pretraining_work(recipe, Corpus.open(words / "corpus"), None).workload.build()
    assert planned["parameters"]["total"] == sum(p.numel() for p in built.parameters())
    assert planned["flops_per_token"]["forward"] > 0


@pytest.mark.parametrize(("softmax", "way_out"), [("full", "objective.softmax=adaptive"), ("adaptive", "model")])
def test_a_vocabulary_too_large_for_the_full_softmax_names_the_way_out(words: Path, softmax: str, way_out: str) -> None:
    changes = [f"data.corpus={words / 'corpus'}", *SIZES, *STEPS, f"objective.softmax={softmax}"]
    work = pretraining_work(pretrain_recipe("elmo-mini", changes), Corpus.open(words / "corpus"), None)
    large = Memory(0, 0, 0, 0, {}, 0, peak=2**33)

    def predict(workload: Workload, rows: int, accumulate: bool) -> Prediction:
        return Prediction(rows, {}, large, 1.0, 1.0, 1.0, 1.0, 1.0)

    with pytest.raises(UserError, match=f"4.00 GB.*{way_out}$"):
        choose(work.workload, memory=4 * 10**9, predict=predict)


def test_invalid_recipes_fail_before_training(world: World, words: Path, tmp_path: Path) -> None:
    start = ["pretrain", "elmo-mini", f"data.corpus={words / 'corpus'}", *SIZES, *STEPS, "--out", tmp_path / "no"]
    for change, message in (
        (f"data.corpus={world.corpus}", "tokenizer of words"),
        ("objective={kind: clm}", "objective clm"),
        ("objective={kind: mlm}", "characters"),
        ("objective={kind: electra}", "recurrent"),
        ("model={preset: bilstm-tiny}", "independent_directions=true"),
    ):
        given = [word for word in start if not (change.startswith("model=") and str(word).startswith("model."))]
        assert_refused(message, *given, change)
