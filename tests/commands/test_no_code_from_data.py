"""Tries to run code, to reach the network or to leave the folder by a file that a command reads; none succeeds.

Each try writes hostile files and returns a command line. The command is refused in one line, or it ignores the hostile
part. Canaries notice payloads, imports from the folder, other programs, connections, unpickled objects, and files that
are read or written outside the folder.
"""

import dataclasses
import gzip
import hashlib
import io
import json
import os
import pickle
import shutil
import socket
import subprocess
import sys
import tarfile
import warnings
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from commands_world import TINY, World

from homespun.cli import main
from homespun.data.corpus import Corpus
from homespun.data.labels import Labels
from homespun.data.reading import reading
from homespun.data.shards import write_list
from homespun.io.atomic import file_digest
from homespun.linear import PLAIN, fit_linear
from homespun.ngrams import Texts
from homespun.tasks.text_models import LinearTextModel, save_text_model
from homespun.tasks.texts import LabelledData
from homespun.training.run import describe_environment

MARK = "executed"  # written by payloads, in the working directory
PAYLOAD = f"open({MARK!r}, 'w').close()"
JINJA = "{{ cycler.__init__.__globals__.os.system('touch executed') }}"
SHELL = "$(touch executed)`touch executed`; touch executed | touch executed & \n touch executed"
MODULE = "canary_module"  # importable from the working directory
SECRET = "secret-of-another-folder"
URL = "http://127.0.0.1:9/canary"

Words = list[str]
Try = Callable[[Path, World], Words]
REFUSED: dict[str, Try] = {}
IGNORED: dict[str, Try] = {}


def refused(make: Try) -> Try:
    REFUSED[make.__name__] = make
    return make


def ignored(make: Try) -> Try:
    IGNORED[make.__name__] = make
    return make


class Payload:
    """Object that calls a function when it is unpickled."""

    def __init__(self, function: Any = exec, *arguments: object) -> None:
        self.call = function, arguments or (PAYLOAD,)

    def __reduce__(self) -> Any:
        return self.call


PICKLE = pickle.dumps(Payload())


# canaries


@dataclass
class Canaries:
    """Events of this process that no command may cause, while ``folder`` is set."""

    folder: Path | None = None
    events: list[str] = field(default_factory=list)

    def notice(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.folder is None:
            return
        if event == "open":
            path, _, flags = arguments
            written = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            if written and isinstance(path, (str, bytes)) and not self._is_inside(os.fsdecode(path)):
                self.events.append(f"writes {os.fsdecode(path)}")
        elif event in ("os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.symlink", "os.link", "os.truncate"):
            paths = [part for part in arguments if isinstance(part, (str, os.PathLike))]
            self.events += [f"{event} {path}" for path in paths if not self._is_inside(path)]
        elif event == "import" and arguments[0] == MODULE:
            self.events.append("imports a module of the folder")
        elif event in ("socket.connect", "socket.getaddrinfo", "urllib.Request", "pickle.find_class"):
            self.events.append(f"{event} {arguments}")
        elif event in ("os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen"):
            self.events += [] if arguments[:1] == ("git",) else [f"{event} {arguments[:2]}"]

    def _is_inside(self, path: str | os.PathLike[str]) -> bool:
        assert self.folder is not None
        absolute = os.path.normpath(os.path.join(self.folder, path))
        return absolute.startswith((str(self.folder), "/dev/null", "/proc/self"))


CANARIES = Canaries()
sys.addaudithook(CANARIES.notice)  # cannot be removed; without a folder it does nothing


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Working directory of a try, next to a folder whose files must stay untouched."""
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    for made in (inside, outside):
        made.mkdir()
    (inside / f"{MODULE}.py").write_text(PAYLOAD)
    (outside / "secret.txt").write_text(SECRET)
    monkeypatch.chdir(inside)
    monkeypatch.syspath_prepend(inside)
    monkeypatch.setenv("TMPDIR", str(inside))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr("sys.dont_write_bytecode", True)  # a module that is first imported by a try
    yield inside
    CANARIES.folder = None


def content_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def run(words: Words, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Any:
    """Exit code, standard output and standard error of a command, and what the canaries noticed."""
    outside = folder.parent / "outside"
    before = content_of(outside)
    for path in outside.rglob("*"):
        os.utime(path, (0, path.stat().st_mtime))  # `relatime` records the next reading of such a file
    monkeypatch.setattr(sys, "argv", ["homespun", *words])
    capfd.readouterr()
    CANARIES.folder, CANARIES.events = folder, []
    try:
        with pytest.raises(SystemExit) as end:
            main()
    finally:
        CANARIES.folder = None
    noticed = CANARIES.events + [
        f"reads {path}" for path in outside.rglob("*") if path.is_file() and path.stat().st_atime
    ]
    noticed += ["changes a folder"] if content_of(outside) != before else []
    noticed += ["runs code"] if list(folder.parent.rglob(MARK)) else []
    return end.value.code or 0, *capfd.readouterr(), noticed


# weights and other binary files


def copy_of(source: Path, folder: Path, **files: object) -> Path:
    """Copy of a folder as ``folder/model``; values of ``files`` replace keys of JSON files, ``__`` is a dot."""
    copy = folder / "model"
    shutil.copytree(source, copy)
    for name, values in files.items():
        path = copy / name.replace("__", ".")
        tree = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps(tree | values))  # type: ignore[operator]
    return copy


def convert(model: Path) -> Words:
    return ["convert", str(model), "--out", "out"]


def torch_file(
    world: World, folder: Path, content: object, *, name: str = "pytorch_model.bin", **options: Any
) -> Words:
    model = copy_of(world.base / "hf", folder)
    (model / "model.safetensors").unlink()
    torch.save(content, model / name, **options)
    return convert(model)


def replace_weights(path: Path, content: bytes) -> None:
    """Replace the weights next to a description, and their size and digest in it."""
    path.write_bytes(content)
    for file in (path.with_suffix(".json"), path.with_name("homespun.json")):
        if file.exists():
            tree, digest = json.loads(file.read_text()), file_digest(path)
            single = isinstance(tree["weights"], str)
            tree["weights"] = digest if single else {"bytes": len(content), "blake2b": digest}
            file.write_text(json.dumps(tree))


@refused
def torch_file_that_loads_a_torch_file(folder: Path, world: World) -> Words:
    inner = io.BytesIO()
    torch.save({"x": Payload()}, inner)
    content = {"x": Payload(torch.storage._load_from_bytes, inner.getvalue())}
    return torch_file(world, folder, content)


@refused
def torchscript_with_code(folder: Path, world: World) -> Words:
    words = torch_file(world, folder, {})
    with warnings.catch_warnings(action="ignore"):
        torch.jit.trace(torch.nn.ReLU(), torch.zeros(1)).save(folder / "model" / "pytorch_model.bin")
    return words


@refused
def pickle_as_weights_of_a_run(folder: Path, world: World) -> Words:
    model = copy_of(world.base / "model", folder)
    replace_weights(model / "model.safetensors", PICKLE)
    return convert(model)


@refused
def pickle_as_weights_of_a_linear_model(folder: Path, world: World) -> Words:
    model = linear_model(folder)
    replace_weights(model / "linear.safetensors", PICKLE)
    return ["predict", str(model), "a"]


def linear_model(folder: Path) -> Path:
    labels = Labels(("x", "y"))
    fitted = fit_linear(Texts(["a b", "c d"] * 4), labels.encode(["x", "y"] * 4), labels, settings=PLAIN).model
    save_text_model(folder / "model", LinearTextModel(fitted, LabelledData(text="text", label="label")))
    return folder / "model"


@refused
def objects_in_an_array_file(folder: Path, world: World) -> Words:
    np.save(folder / "texts.npy", np.array([Payload()], dtype=object), allow_pickle=True)
    return build(world, folder / "texts.npy")


def build(world: World, *inputs: object) -> Words:
    given = [word for entry in inputs for word in ("--input", str(entry))]
    return ["corpus", "build", *given, "--tokenizer", str(world.folder / "tokenizer"), "--out", "out"]


@refused
def pickle_of_a_data_frame(folder: Path, world: World) -> Words:
    (folder / "texts.pkl").write_bytes(PICKLE)
    return build(world, folder / "texts.pkl")


@refused
def folder_of_joblib(folder: Path, world: World) -> Words:
    (folder / "model").mkdir()
    for name in ("model.joblib", "model.pkl", "sklearn_model.skops", "saved_model.pb"):
        (folder / "model" / name).write_bytes(PICKLE)
    return ["predict", str(folder / "model"), "a"]


@refused
def checkpoint_of_lightning(folder: Path, world: World) -> Words:
    torch.save({"state_dict": {}, "hyper_parameters": Payload()}, folder / "epoch.ckpt")
    return convert(folder / "epoch.ckpt")


@refused
def pickle_as_word_vectors(folder: Path, world: World) -> Words:
    vectors = folder / "vectors"
    vectors.mkdir()
    (vectors / "vectors.safetensors").write_bytes(PICKLE)
    words = {"format": 1, "size": 2, "digest": digest_of(PICKLE), "about": {}, "words": ["a"], "counts": None}
    (vectors / "words.json").write_text(json.dumps(words))
    return ["vectors", "similar", str(vectors), "a"]


@ignored
def pickles_next_to_weights(folder: Path, world: World) -> Words:
    model = copy_of(world.base / "hf", folder)
    for name in ("optimizer.pt", "training_args.bin", "rng_state.pth", "tokenizer.pkl", "pytorch_model.bin"):
        (model / name).write_bytes(PICKLE)
    return convert(model)


def resumed(folder: Path, world: World, change: Callable[[Path], object]) -> Words:
    """Words that continue a copy of a pretraining, whose last checkpoint is changed."""
    copy = folder / "model"
    shutil.copytree(world.base, copy)
    *others, last = sorted((copy / "checkpoints").iterdir(), key=lambda path: int(path.name.removeprefix("step-")))
    for other in others:
        shutil.rmtree(other)
    change(last)
    words = ["pretrain", "electra-tiny", f"data.corpus={world.corpus}", "data.max_length=32", *TINY]
    return [*words, "train.budget.steps=13", "train.batch_size=7", "--out", str(copy), "--resume"]


def edit_state(checkpoint: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = checkpoint / "state.json"
    tree = json.loads(path.read_text())
    del tree["blake2b"]
    change(tree)
    path.write_text(json.dumps(tree | {"blake2b": digest_of(json.dumps(tree, sort_keys=True).encode())}))


def digest_of(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def add_file(checkpoint: Path, name: str, content: bytes) -> None:
    """Record a file with its digest in the state of a checkpoint."""
    entry = {"bytes": len(content), "blake2b": digest_of(content)}
    edit_state(checkpoint, lambda tree: tree["files"].update({name: entry}))


@refused
def pickle_as_optimizer(folder: Path, world: World) -> Words:
    def change(checkpoint: Path) -> None:
        (checkpoint / "optimizer.safetensors").write_bytes(PICKLE)
        add_file(checkpoint, "optimizer.safetensors", PICKLE)

    return resumed(folder, world, change)


@ignored
def pickled_metadata_of_a_sharded_checkpoint(folder: Path, world: World) -> Words:
    """Of `torch.distributed.checkpoint`, whose reader unpickles it."""

    def change(checkpoint: Path) -> None:
        for name in ("model", "optimizer"):
            file = checkpoint / f"{name}.safetensors"
            (checkpoint / name).mkdir()
            file.rename(checkpoint / name / file.name)
            (checkpoint / name / ".metadata").write_bytes(PICKLE)
        moved = {f"{name}/{name}.safetensors" for name in ("model", "optimizer")}

        def move(tree: dict[str, Any]) -> None:
            tree["files"] = {name: tree["files"][name.partition("/")[2]] for name in moved}

        edit_state(checkpoint, move)

    return resumed(folder, world, change)


@ignored
def objects_in_the_schema_of_parquet(folder: Path, world: World) -> Words:
    """An extension type of Python, which pyarrow once unpickled (CVE-2023-47248)."""
    pq.write_table(pa.Table.from_batches([batch_with_objects({"text": pa.array(["a b"])})]), folder / "texts.parquet")
    return build(world, folder / "texts.parquet")


def batch_with_objects(columns: dict[str, Any]) -> pa.RecordBatch:
    names = {b"ARROW:extension:name": b"arrow.py_extension_type", b"ARROW:extension:metadata": PICKLE}
    fields = [pa.field(name, array.type, metadata=names) for name, array in columns.items()]
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=pa.schema(fields, metadata={b"pandas": PICKLE}))


@ignored
def objects_in_the_schema_of_a_shard(folder: Path, world: World) -> Words:
    corpus = copy_of(world.corpus, folder)
    path = corpus / "tokens-00000.arrow"
    batch = pa.ipc.open_file(path.read_bytes()).get_batch(0)
    changed = batch_with_objects(dict(zip(batch.schema.names, batch.columns, strict=True)))
    with pa.ipc.new_file(path, changed.schema) as writer:
        writer.write_batch(changed)
    record = dataclasses.replace(Corpus.open(world.corpus).records[0], size=path.stat().st_size)
    checksum = write_list(corpus, [record])
    tree = json.loads((corpus / "corpus.json").read_text())
    (corpus / "corpus.json").write_text(json.dumps(tree | {"shards_checksum": checksum}))
    words = ["pretrain", "electra-tiny", f"data.corpus={corpus}", "data.max_length=32", *TINY]
    return [*words, "train.budget.steps=1", "train.batch_size=7", "--out", "out"]


# configs


@ignored
def chat_template_with_code(folder: Path, world: World) -> Words:
    model = copy_of(world.base / "hf", folder, tokenizer_config__json={"chat_template": JINJA})
    (model / "chat_template.jinja").write_text(JINJA)
    (model / "additional_chat_templates").mkdir()
    return convert(model)


@ignored
def addresses_in_a_config(folder: Path, world: World) -> Words:
    values = {
        "_name_or_path": URL,
        "base_model_name_or_path": "owner/name",
        "custom_pipelines": {"a": {"impl": MODULE}},
    }
    values |= {"task_specific_params": {"x": JINJA}, "_attn_implementation": "owner/kernel", "trust_remote_code": True}
    model = copy_of(world.base / "hf", folder, config__json=values, generation_config__json={"custom_generate": MODULE})
    (model / "custom_generate").mkdir()
    (model / "custom_generate" / "generate.py").write_text(PAYLOAD)
    return convert(model)


@ignored
def modules_of_other_libraries(folder: Path, world: World) -> Words:
    model = copy_of(
        world.base / "hf", folder, adapter_config__json={"base_model_name_or_path": URL, "auto_mapping": {}}
    )
    (model / "modules.json").write_text(json.dumps([{"idx": 0, "name": "0", "path": "", "type": f"{MODULE}.Module"}]))
    for name in ("adapter_model.bin", "handler.py", "setup.py", "conftest.py", "dataset.py"):
        (model / name).write_bytes(PICKLE if name.endswith(".bin") else PAYLOAD.encode())
    return convert(model)


@ignored
def card_with_tags(folder: Path, world: World) -> Words:
    model = copy_of(world.base / "hf", folder)
    (model / "README.md").write_text(f"---\nlicense: !!python/object/apply:builtins.exec [{PAYLOAD!r}]\n---\n{JINJA}")
    return convert(model)


def native(world: World, folder: Path, **changes: object) -> Words:
    """Convert a model whose config has other parts."""
    config = json.loads((world.base / "model" / "homespun.json").read_text())["model"]
    return convert(copy_of(world.base / "model", folder, homespun__json={"model": config | changes}))


@refused
def function_as_analyzer(folder: Path, world: World) -> Words:
    model = linear_model(folder)
    tree = json.loads((model / "linear.json").read_text())
    tree["ngrams"][0]["analyzer"] = f"{MODULE}.analyze"
    (model / "linear.json").write_text(json.dumps(tree))
    return ["predict", str(model), "a"]


def recipe(folder: Path, value: str) -> Words:
    (folder / "recipe.yaml").write_text(f"kind: pretrain\ndescription: {value}\n")
    return ["recipes", "show", str(folder / "recipe.yaml")]


@refused
def object_in_the_config_of_a_run(folder: Path, world: World) -> Words:
    run = report_of(folder, world)
    (folder / "model" / "config.yaml").write_text(f"a: !!python/object/apply:os.system ['touch {MARK}']")
    return run


def report_of(folder: Path, world: World, **changes: object) -> Words:
    """Report of a run with other values in its files."""
    run = folder / "model"
    shutil.copytree(world.classifier, run, ignore=shutil.ignore_patterns("checkpoints", "model", "hf", "report"))
    tree = json.loads((run / "result.json").read_text())
    (run / "result.json").write_text(json.dumps(tree | changes))
    return ["report", str(run), "--out", "out"]


# paths


@refused
def tokens_of_a_half_built_corpus_elsewhere(folder: Path, world: World) -> Words:
    shutil.copytree(world.corpus, folder / "out")
    shutil.copy(world.corpus / "tokens-00000.arrow", folder.parent / "outside" / "shard.arrow")
    tree = json.loads((folder / "out" / "corpus.json").read_text())
    (folder / "out" / "corpus.json").unlink()
    shard = dataclasses.asdict(Corpus.open(world.corpus).records[0]) | {"name": "../../outside/shard.arrow"}
    inputs = reading([str(world.train)], text_fields=["sentence"]).describe()
    header = {"version": 2, "inputs": inputs, "tokenizer": tree["tokenizer"]["fingerprint"], "sentences": False}
    line = {"shard": shard, "consumed": 5, "bytes": 100, "words": 20, "labels": {}}
    (folder / "out" / "building.jsonl").write_text(f"{json.dumps(header)}\n{json.dumps(line)}\n")
    return [*build(world, world.train), "--text-field", "sentence"]


@refused
def links_in_an_archive(folder: Path, world: World) -> Words:
    """Refused, since no other file is in the archive."""
    with tarfile.open(folder / "texts.tar", "w") as archive:
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE):
            member = tarfile.TarInfo(f"a{kind.decode()}.txt")
            member.type, member.linkname = kind, str(folder.parent / "outside" / "secret.txt")
            archive.addfile(member)
    return build(world, folder / "texts.tar")


@ignored
def link_in_a_zip(folder: Path, world: World) -> Words:
    with zipfile.ZipFile(folder / "texts.zip", "w") as archive:
        link = zipfile.ZipInfo("link.txt")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, "../outside/secret.txt")
    return build(world, folder / "texts.zip")


@ignored
def names_in_archives_that_leave_the_folder(folder: Path, world: World) -> Words:
    names = ["../../outside/x.txt", "/tmp/homespun-canary.txt", "..\\..\\outside\\y.txt", f"{SHELL}.txt", "C:\\z.txt"]
    with zipfile.ZipFile(folder / "a.zip", "w") as archive:
        for name in names:
            archive.writestr(name, "text")
    with tarfile.open(folder / "b.tar", "w") as tar:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = 4
            tar.addfile(member, io.BytesIO(b"text"))
    with (folder / "c.txt.gz").open("wb") as file, gzip.GzipFile("../../outside/z.txt", "wb", fileobj=file) as stream:
        stream.write(b"text")
    return build(world, *(folder / name for name in ("a.zip", "b.tar", "c.txt.gz")))


@ignored
def references_in_texts(folder: Path, world: World) -> Words:
    secret = folder.parent / "outside" / "secret.txt"
    texts = [f"file://{secret}", f"@{secret}", URL, f"{{{{ {secret} }}}}", JINJA, SHELL, f"!{PAYLOAD}"]
    records = [{"text": text, "$ref": f"file://{secret}", "__class__": MODULE} for text in texts]
    records += [{"text": "a", "py/object": f"{MODULE}.X", "py/reduce": [{"py/function": "os.system"}, [MARK]]}]
    (folder / "texts.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (folder / "dataset.py").write_text(PAYLOAD)
    return ["predict", str(world.classifier), "--input", "texts.jsonl", "--text-field", "text", "--out", "out.csv"]


@ignored
def file_names_for_a_shell(folder: Path, world: World) -> Words:
    texts = folder / "texts"
    texts.mkdir()
    for number, name in enumerate((SHELL, "| touch executed", "-rf", "--out=x", "$HOME", "~")):
        (texts / f"{name}.txt").write_text(f"text {number}")
    return build(world, texts)


def comparison(folder: Path, **stage: object) -> Words:
    """Report of a comparison, next to a run that does not belong to it."""
    run = folder.parent / "outside" / "run"
    run.mkdir()
    (run / "result.json").write_text(json.dumps({"name": SECRET, "seconds": 3.0, "start_from": SECRET}))
    trial = folder / "model" / "trials" / "a" / "seed-0"
    trial.mkdir(parents=True)
    stages = {str(stage.pop("key", "pretrain")): {"kind": "pretrain"} | stage}
    tree = {"version": 1, "name": "a", "seed": 0, "status": "done", "stages": stages, "plan": {}}
    (trial / "trial.json").write_text(json.dumps(tree))
    (trial / "task").mkdir()
    (folder / "model" / "baselines").mkdir()
    (trial / "task" / "result.json").write_text(json.dumps({"name": "a", "test": {"rows": 1, "accuracy": 0.5}}))
    return ["report", str(folder / "model")]


@ignored
def task_of_a_comparison_elsewhere(folder: Path, world: World) -> Words:
    words = comparison(folder, key="task", kind="finetune")
    (folder / "model" / "comparison.yaml").write_text("finetune: {../../../outside/run: {}}")
    return words


@ignored
def baseline_of_a_run_elsewhere(folder: Path, world: World) -> Words:
    words = comparison(folder, key="task", kind="finetune")
    evil = "../" * 7 + "outside/secret"
    (folder.parent / "outside" / "secret.jsonl").write_text('{"row": 1, "truth": 1, "predicted": 1}')
    path = folder / "model" / "trials" / "a" / "seed-0" / "task" / "result.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"baselines": {evil: {"rows": 1, "accuracy": 0.5}}}))
    (path.parent / "predictions").mkdir()
    return words


@ignored
def settings_of_a_comparison(folder: Path, world: World) -> Words:
    words = comparison(folder, key="task", kind="finetune")
    path = folder / "model" / "trials" / "a" / "seed-0" / "trial.json"
    values = [f"!!python/object/apply:builtins.exec [{PAYLOAD!r}]", "2020-99-99", "&a [*a]", "!!int x", JINJA]
    settings = {"task": [f"train.a{number}={value}" for number, value in enumerate(values)]}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"settings": settings}))
    return words


@ignored
def names_that_leave_the_folder(folder: Path, world: World) -> Words:
    evil = "../../outside/x"
    result = json.loads((world.classifier / "result.json").read_text())
    per_class = {evil: next(iter(result["test"]["per_class"].values()))}
    test = result["test"] | {"per_class": per_class}
    return report_of(folder, world, name=evil, test=test, labels=[evil, "a", "b"], task=evil, kind=evil)


@refused
def onnx_with_weights_elsewhere(folder: Path, world: World) -> Words:
    onnx = pytest.importorskip("onnx")
    (folder / "model").mkdir()
    weight = onnx.TensorProto(name="w", dims=[1], data_type=1, data_location=onnx.TensorProto.EXTERNAL)
    weight.external_data.add(key="location", value="../../outside/secret.txt")
    graph = onnx.GraphProto(name="g", initializer=[weight])
    (folder / "model" / "model.onnx").write_bytes(onnx.ModelProto(ir_version=8, graph=graph).SerializeToString())
    return ["predict", str(folder / "model"), "a"]


@refused
def header_of_safetensors_beyond_the_memory(folder: Path, world: World) -> Words:
    model = copy_of(world.base / "hf", folder)
    (model / "model.safetensors").write_bytes((2**62).to_bytes(8, "little") + b"{}")
    return convert(model)


@refused
def tensor_of_safetensors_beyond_the_file(folder: Path, world: World) -> Words:
    header = json.dumps({"x": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}).encode()
    model = copy_of(world.base / "hf", folder)
    (model / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    return convert(model)


# terminal and pages

ESCAPE = "\x1b[31m\x1b]0;title\x07\x9b2J\r"
MARKUP = f"<script>{PAYLOAD}</script><img src={URL} onerror=alert(1)>\"'--> {JINJA} {{{{ 7*7 }}}} ]]> =1+1 {ESCAPE}"


@ignored
def markup_in_a_report(folder: Path, world: World) -> Words:
    result = json.loads((world.classifier / "result.json").read_text())
    rows = [{"row": 1, "text": MARKUP, "truth": MARKUP, "predicted": MARKUP, "loss": 2.0}]
    test = result["test"] | {"per_class": {MARKUP: next(iter(result["test"]["per_class"].values()))}}
    changes = {"name": MARKUP, "labels": [MARKUP, "a", "b"], "top_errors": rows, "start_from": MARKUP, "test": test}
    return report_of(folder, world, **changes)


@ignored
def labels_that_control_the_terminal(folder: Path, world: World) -> Words:
    model = copy_of(world.classifier / "model", folder)
    tree = json.loads((model / "homespun.json").read_text())
    tree["labels"]["names"] = [f"{name}{MARKUP}{SHELL}" for name in tree["labels"]["names"]]
    (model / "homespun.json").write_text(json.dumps(tree))
    return ["predict", str(model), "text"]


@refused
def column_that_controls_the_terminal(folder: Path, world: World) -> Words:
    pq.write_table(pa.table({MARKUP: ["a"]}), folder / "texts.parquet")
    return build(world, folder / "texts.parquet")


@refused
def format_string_as_label(folder: Path, world: World) -> Words:
    label = "{0.__class__.__init__.__globals__} %(asctime)s %n"
    (folder / "test.csv").write_text(f"sentence,label\na b,{label}\n")
    return ["evaluate", str(world.classifier), "--data", "test.csv"]


# tries of one line

OUTSIDE = "../../outside/secret.txt"
REFUSED |= {
    "torch file of version 1.5": lambda folder, world: torch_file(
        world, folder, {"x": Payload()}, _use_new_zipfile_serialization=False
    ),
    "torch file that imports": lambda folder, world: torch_file(world, folder, {"x": Payload(__import__, MODULE)}),
    "torch file as safetensors": lambda folder, world: torch_file(
        world, folder, {"x": Payload()}, name="model.safetensors"
    ),
    "pickle as state": lambda folder, world: resumed(
        folder, world, lambda last: (last / "state.json").write_bytes(PICKLE)
    ),
    "file of a checkpoint elsewhere": lambda folder, world: resumed(
        folder, world, lambda last: add_file(last, f"../../{OUTSIDE}", SECRET.encode())
    ),
    "target of Hydra": lambda folder, world: native(world, folder, head={"_target_": MODULE, "kind": MODULE}),
    "function as kind": lambda folder, world: native(
        world, folder, backbone={"kind": "os.system", "hidden_act": MODULE}
    ),
    "class of a tokenizer": lambda folder, world: convert(
        copy_of(world.base / "hf", folder, tokenizer__json={"normalizer": {"type": f"{MODULE}.Normalizer"}})
    ),
    "attribute of Python": lambda folder, world: ["plan", "bert-mini", "train.__class__.__init__.__globals__.x=1"],
    "object in a recipe": lambda folder, world: recipe(folder, f"!!python/object/new:builtins.exec [{PAYLOAD!r}]"),
    "module in a recipe": lambda folder, world: recipe(folder, f"!!python/module:{MODULE}"),
    "file in a recipe": lambda folder, world: recipe(folder, "!include ../outside/secret.txt"),
    "baseline that leaves the run": lambda folder, world: report_of(folder, world, baselines={OUTSIDE: {"rows": 1}}),
    "command as path": lambda folder, world: ["pretrain", "bert-mini", f"data.corpus={SHELL}", "--out", "out"],
    "address as model": lambda folder, world: ["predict", f"{URL}/model", "a"],
    "address of a file as model": lambda folder, world: ["predict", f"file://{folder.parent}/outside", "a"],
}
IGNORED |= {
    "classes of a tokenizer": lambda folder, world: convert(
        copy_of(
            world.base / "hf",
            folder,
            tokenizer_config__json={
                "auto_map": {"AutoTokenizer": [f"{MODULE}.A", None]},
                "tokenizer_class": f"{MODULE}.A",
            }
            | {"tokenizer_file": OUTSIDE, "vocab_file": OUTSIDE},
        )
    ),
    "run of a comparison elsewhere": lambda folder, world: comparison(folder, path="../../../../../outside/run"),
    "stage of a comparison elsewhere": lambda folder, world: comparison(folder, key="../../../../../outside/run"),
    "baselines of a comparison elsewhere": lambda folder, world: comparison(
        folder, key="task", kind="finetune", baselines="../../../outside/run"
    ),
}


# tests


@pytest.mark.parametrize("name", REFUSED)
def test_refused(
    name: str, folder: Path, world: World, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    words = REFUSED[name](folder, world)
    before = content_of(folder)
    status, out, err, noticed = run(words, folder, monkeypatch, capfd)
    assert not noticed
    assert (status, out) == (2, "")
    *progress, error = err.splitlines()
    assert error.startswith("error: ")
    assert not [line for line in progress if line.startswith(("error", "Traceback"))]
    assert_printable(err)
    assert len(error) < 500
    assert SECRET not in err
    assert content_of(folder) == before or "--resume" in words


def assert_printable(text: str) -> None:
    assert text.translate({ord("\n"): None, ord("\xa0"): None}).isprintable()


@pytest.mark.parametrize("name", IGNORED)
def test_ignored(
    name: str, folder: Path, world: World, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    words = IGNORED[name](folder, world)
    before = content_of(folder)
    status, out, err, noticed = run(words, folder, monkeypatch, capfd)
    assert not noticed
    assert status == 0, err
    assert_printable(out + err)
    written = {path: content for path, content in content_of(folder).items() if path not in before}
    assert not [path for path, content in written.items() if SECRET.encode() in content]
    for path in written:
        if path.endswith(".html"):
            page = Page()
            page.feed(written[path].decode())
            assert not {"script", "iframe", "object", "link", "base", "form"} & page.tags
            assert not any(name.startswith("on") for name in page.attributes)


@pytest.mark.parametrize("filtered", [False, True])
def test_git_runs_nothing_of_a_repository(filtered: bool, folder: Path) -> None:
    """The configuration of a repository that came with the data names programs."""
    git(folder, "init", "--quiet")
    (folder / "a").write_text("a")
    git(folder, "add", "a")
    git(folder, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "--message=a")
    program = folder / "program"
    program.write_text(f"#!/bin/sh\ntouch {folder / MARK}\ncat\n")
    program.chmod(0o755)
    shutil.copy(program, folder / ".git" / "hooks" / "post-index-change")
    git(folder, "config", "core.fsmonitor", str(program))
    (folder / "a").touch()
    if filtered:
        git(folder, "config", "filter.a.clean", str(program))
        (folder / ".git" / "info" / "attributes").write_text("* filter=a")
    else:
        (folder / "a").write_text("b")
    commit = str(describe_environment()["commit"])
    assert not (folder / MARK).exists()
    assert commit == git(folder, "rev-parse", "HEAD") + "+changes" * (not filtered)


def git(folder: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.slow
@pytest.mark.parametrize("command", ["predict", "compare"])
def test_nothing_of_the_working_directory_is_imported(command: str, folder: Path, world: World) -> None:
    """New processes, which Python lets import from there, figures, and packages with entry points."""
    for name in {*sys.stdlib_module_names, "homespun", "numpy", "sitecustomize", "torch", "usercustomize"}:
        (folder / f"{name}.py").write_text(f"open({str(folder / MARK)!r}, 'w')")
    (folder / "matplotlibrc").write_text(f"text.usetex: True\nbackend: module://{MODULE}\n")
    (folder / "a-1.dist-info").mkdir()
    (folder / "a-1.dist-info" / "METADATA").write_text("Name: a\nVersion: 1\n")
    entries = f"[torch.backends]\na = {MODULE}:a\n[fsspec.specs]\nfile = {MODULE}:a\n"
    (folder / "a-1.dist-info" / "entry_points.txt").write_text(entries)
    script = folder.parent / "homespun"  # as pip installs it
    small = "from homespun.commands import prediction_parts\nprediction_parts._MAX_RECORDS = 100\n"
    start = "if __name__ == '__main__':\n    main()\n"
    script.write_text(f"from homespun.cli import main\n{small * (command == 'predict')}{start}")
    words = [str(world.classifier), "--input", str(world.train), "--processes", "2"]
    if command == "compare":
        settings = {word.partition("=")[0]: int(word.partition("=")[2]) for word in TINY}
        settings |= {"train.budget.steps": 2, "data.corpus": str(world.corpus), "data.max_length": 32}  # type: ignore[dict-item]
        tree = {"kind": "compare", "pretrain": {"recipe": "electra-tiny", "settings": settings}, "seeds": 1}
        (folder / "recipe.yaml").write_text(json.dumps(tree | {"variations": {"a": {}}, "benchmark": None}))
        words = ["recipe.yaml"]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONSAFEPATH"}
    done = subprocess.run(
        [sys.executable, str(script), command, *words, "--out", "out" + ".csv" * (command == "predict")],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not (folder / MARK).exists()


class Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}


@pytest.mark.parametrize(
    ("act", "noticed"),
    [
        (lambda: pickle.loads(PICKLE), "runs code"),
        (lambda: pickle.loads(PICKLE), "pickle.find_class ('builtins', 'exec')"),
        (lambda: __import__(MODULE), "imports a module of the folder"),
        (lambda: os.system("true"), "os.system"),
        (lambda: subprocess.run(["true"], check=True), "subprocess.Popen ('true', ['true'])"),
        (lambda: socket.getaddrinfo("127.0.0.1", 9), "socket.getaddrinfo"),
        (lambda: Path("../outside/new.txt").touch(), "writes ../outside/new.txt"),
        (lambda: Path("../outside/secret.txt").unlink(), "changes a folder"),
        (lambda: pa.memory_map("../outside/secret.txt").read(), "reads"),
    ],
)
def test_the_canaries_notice(
    act: Callable[[], object],
    noticed: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("homespun.cli.app", lambda **_: act() and None)
    assert noticed in " ".join(run([], folder, monkeypatch, capfd)[3])
