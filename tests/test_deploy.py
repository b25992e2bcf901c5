"""Launch files: they parse, and the commands in them are accepted."""

import importlib.util
import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
import yaml
from typer.core import TyperGroup

from homespun.cli import app
from homespun.commands.recipe import load_recipe
from homespun.recipes import recipe_names

DEPLOY = Path(__file__).resolve().parents[1] / "deploy"


def documents(name: str) -> list[dict[str, object]]:
    return [*yaml.safe_load_all((DEPLOY / name).read_text(encoding="utf-8"))]


def lists_of_words(tree: object) -> Iterator[list[str]]:
    """Every command of a manifest that is a list of words, or a line."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            if key == "entrypoint":
                yield shlex.split(str(value))
            elif key == "command" and isinstance(value, list):
                yield [str(word) for word in value]
            else:
                yield from lists_of_words(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from lists_of_words(value)


def commands() -> Iterator[tuple[str, list[str]]]:
    """The words after ``homespun`` of each training command."""
    for words in lists_of_words(documents("kubernetes-training.yaml")):
        if "homespun" in words:
            yield "kubernetes-training.yaml", words[words.index("homespun") + 1 :]
    script = re.sub(r"\\\n\s*", " ", (DEPLOY / "slurm.sh").read_text(encoding="utf-8"))
    for line in re.findall(r"^srun .*? -m homespun (.*)$", script, re.M):
        yield "slurm.sh", [word for word in shlex.split(line) if word != "$@"]
    comments = re.sub(r"\n# *", " ", (DEPLOY / "ray-cluster.yaml").read_text(encoding="utf-8"))
    for line in re.findall(r"bin/homespun (compare [^\"]*)\"", comments):
        yield "ray-cluster.yaml", shlex.split(line)


COMMANDS = [*commands()]


def test_each_launch_file_has_a_command() -> None:
    assert {name for name, _ in COMMANDS} == {"kubernetes-training.yaml", "slurm.sh", "ray-cluster.yaml"}


@pytest.mark.parametrize(("name", "words"), COMMANDS)
def test_commands_are_accepted(name: str, words: list[str]) -> None:
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    parsed = group.commands[words[0]].make_context(words[0], words[1:])
    if parsed.params["recipe"] in recipe_names():
        recipe = load_recipe(parsed.params["recipe"], parsed.params["overrides"])
        assert recipe.train.parallel == "auto"
        assert parsed.params["resume"]


@pytest.mark.parametrize("name", ["kubernetes.yaml", "kubernetes-training.yaml"])
def test_manifests_are_complete(name: str) -> None:
    for document in documents(name):
        assert {"apiVersion", "kind", "metadata", "spec"} <= document.keys()


def containers(tree: object) -> Iterator[dict[str, object]]:
    if isinstance(tree, dict):
        if "image" in tree:
            yield tree
        tree = [*tree.values()]
    if isinstance(tree, list):
        for value in tree:
            yield from containers(value)


@pytest.mark.parametrize(("name", "count"), [("kubernetes.yaml", 1), ("kubernetes-training.yaml", 3)])
def test_images_on_a_node_are_used(name: str, count: int) -> None:
    # Kubernetes asks a registry for each image with the tag latest otherwise
    policies = [container["imagePullPolicy"] for container in containers(documents(name))]
    assert policies == ["IfNotPresent"] * count


def test_login_shells_of_the_image_find_the_commands() -> None:
    assert "RUN echo 'PATH=/opt/homespun/bin:$PATH' > /etc/profile.d/" in (DEPLOY / "Dockerfile").read_text("utf-8")


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs ray")
def test_the_ray_cluster_has_the_schema_of_ray() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    found = importlib.util.find_spec("ray")
    assert found is not None
    assert found.origin is not None
    schema = json.loads((Path(found.origin).parent / "autoscaler/ray-schema.json").read_text(encoding="utf-8"))
    jsonschema.validate(documents("ray-cluster.yaml")[0], schema)


def test_the_ray_cluster_installs_the_folder_that_is_copied() -> None:
    (cluster,) = documents("ray-cluster.yaml")
    assert cluster["file_mounts"] == {"~/homespun-source": "."}
    setup = cluster["setup_commands"]
    assert isinstance(setup, list)
    # without ./ it would be the name of a package
    assert [word for word in shlex.split(setup[1]) if "source" in word] == ["./homespun-source[ray]"]


def test_restarts_of_torchrun_get_a_new_store() -> None:
    for name in ("slurm.sh", "kubernetes-training.yaml"):
        text = (DEPLOY / name).read_text(encoding="utf-8")
        assert "--max-restarts=3" in text
        assert re.search(r'TORCH_DISABLE_SHARE_RDZV_TCP_STORE(=1|, value: "1")', text)
        assert "--rdzv-backend=c10d" in text


def test_a_job_of_slurm_survives_a_lost_node() -> None:
    script = DEPLOY / "slurm.sh"
    subprocess.run(["bash", "-n", script], check=True)
    assert {"#SBATCH --no-kill", "#SBATCH --requeue"} <= {*script.read_text(encoding="utf-8").splitlines()}
    assert "srun --no-kill --kill-on-bad-exit=0" in script.read_text(encoding="utf-8")
