"""The page: its files and their policy, jobs that label files, reports and cards. `test_page_in_browser` uses it."""

import csv
import io
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from served_models import LABELS, TEXTS

from homespun.commands.pipeline import Pipeline
from homespun.errors import UserError
from homespun.inference import quantization
from homespun.serving import page
from homespun.serving.models import Models
from homespun.tasks.text_models import AverageTextModel, open_text_model, save_text_model

Connect = Callable[..., TestClient]


def csv_of(*rows: list[str], header: tuple[str, ...] = ("text",)) -> bytes:
    stream = io.StringIO()
    csv.writer(stream).writerows([header, *rows])
    return stream.getvalue().encode()


def send(client: TestClient, content: bytes, **form: str) -> str:
    answer = client.post("/files", files={"file": ("new.csv", content, "text/csv")}, data=form)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


def wait(client: TestClient, name: str) -> dict[str, object]:
    end = time.monotonic() + 20
    while time.monotonic() < end:
        job: dict[str, object] = client.get(f"/files/{name}").json()
        if job["state"] in ("done", "failed"):
            return job
        time.sleep(0.01)
    raise AssertionError("the job does not end")


def test_the_page_has_no_code_of_its_own_and_no_other_source(client: TestClient) -> None:
    answer = client.get("/")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = answer.headers["content-security-policy"]
    assert "unsafe" not in policy
    assert policy.startswith("default-src 'none';")
    found = [*re.findall(r'(?:src|href)="([^"#]*)"', answer.text)]
    assert set(found) == {"page/page.css", "page/page.js", "data:,", "openapi.json"}
    assert not re.search(r"<style|style=|\son\w+=|<script(?![^>]* src=)", answer.text)
    script = client.get("/page/page.js")
    assert script.headers["content-type"].startswith("text/javascript")
    unsafe = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|https?://(?!www\.w3)"
    assert not re.search(unsafe, script.text)
    assert client.get("/page/page.css").headers["x-content-type-options"] == "nosniff"
    assert client.get("/page/page.py").status_code == 404


def test_the_page_needs_no_key_and_everything_else_does(connect: Connect) -> None:
    client = connect(api_key="secret")
    assert {client.get(path).status_code for path in page.PAGE_PATHS} == {200}
    for path in ("/models", "/files/x", "/report/linear/", "/card/linear"):
        assert client.get(path).status_code == 401
    assert client.get("/models", headers={"Authorization": "Bearer secret"}).status_code == 200


def test_a_file_comes_back_labelled(client: TestClient, opened: Models) -> None:
    texts = [*TEXTS, 'Größe, "quoted"\nin two lines'] * 70
    name = send(client, csv_of(*[[text, str(row)] for row, text in enumerate(texts)], header=("text", "row")))
    assert wait(client, name) == {"id": name, "rows": 350, "done": 350, "state": "done", "error": None}
    answer = client.get(f"/files/{name}/predictions.csv")
    assert answer.headers["content-disposition"] == 'attachment; filename="predictions.csv"'
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert [row["text"] for row in rows] == texts
    assert [row["row"] for row in rows] == [str(row) for row in range(350)]
    assert [row["label"] for row in rows] == opened.get("classifier").pipeline.predict(texts)
    probabilities = {f"probability_{name}" for name in LABELS.names}
    assert rows[0].keys() == {"text", "row", "label", "probability", "truncated"} | probabilities


def test_cells_that_a_spreadsheet_would_compute_are_quoted(client: TestClient) -> None:
    cells = ["=1+1", "+A1", "-A1", "@SUM(A1)", "\tx", "-1.5", "+7", "a=b"]
    name = send(client, csv_of(*[[cell, "text"] for cell in cells], header=("=note", "text")), model="linear")
    assert wait(client, name)["state"] == "done"
    rows = list(csv.DictReader(io.StringIO(client.get(f"/files/{name}/predictions.csv").text)))
    assert [row["'=note"] for row in rows] == ["'=1+1", "'+A1", "'-A1", "'@SUM(A1)", "'\tx", "-1.5", "+7", "a=b"]


def test_another_column_and_another_model(client: TestClient) -> None:
    name = send(client, csv_of([TEXTS[0]], header=("headline",)), column="headline", model="tagger")
    assert wait(client, name)["state"] == "done"
    assert "tags" in client.get(f"/files/{name}/predictions.csv").text.splitlines()[0]


def test_a_missing_column_is_refused(client: TestClient) -> None:
    answer = client.post("/files", files={"file": ("new.csv", csv_of([TEXTS[0]], header=("headline",)))})
    assert answer.status_code == 422
    message = answer.json()["error"]["message"]
    assert "'text'" in message
    assert "headline" in message
    assert "/" not in message  # no path of the server
    assert "--" not in message  # no option of the command line


@pytest.mark.parametrize("form", [{}, {"column": "headline"}])
def test_a_file_of_one_column_for_pairs_is_refused(client: TestClient, form: dict[str, str]) -> None:
    files = {"file": ("new.csv", csv_of([TEXTS[0]], header=("headline",)))}
    answer = client.post("/files", files=files, data=form | {"model": "pairs"})
    assert answer.status_code == 422
    assert "column" in answer.json()["error"]["message"]
    assert "--" not in answer.text


def test_a_file_job_predicts_in_the_precision_of_the_server(
    folders: dict[str, Path], tmp_path: Path, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantization, "MIN_NUMBERS", 1)  # small layers are packed too
    average = AverageTextModel({name: open_text_model(folders[name]) for name in ("classifier", "linear")}, (0.9, 0.1))
    save_text_model(tmp_path / "average", average)
    models = Models({"classifier": folders["classifier"], "average": tmp_path / "average"}, quantize="int8")
    models.load()
    client, text = connect(models), TEXTS[1]
    for name in models.names:
        job = send(client, csv_of([text]), model=name)
        assert wait(client, job)["state"] == "done"
        (row,) = csv.DictReader(io.StringIO(client.get(f"/files/{job}/predictions.csv").text))
        found = [float(row[f"probability_{label}"]) for label in LABELS.names]
        quantized = Pipeline(models.get(name).source, quantize="int8").predict_proba([text])[0]
        assert found == pytest.approx(quantized, abs=1e-5)
        assert found != pytest.approx(Pipeline(models.get(name).source).predict_proba([text])[0], abs=1e-5)
        assert models.get(name).pipeline.predict_proba([text])[0] == pytest.approx(quantized, abs=1e-5)


def test_an_error_of_a_job_is_reported(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_run: str, _inputs: list[str], out: Path, **_: object) -> None:
        raise UserError(f"{out} cannot be written")

    monkeypatch.setattr(page, "predict", fail)
    name = send(client, csv_of([TEXTS[0]]))
    job = wait(client, name)
    assert (job["state"], job["error"]) == ("failed", "predictions.csv cannot be written")
    assert client.get(f"/files/{name}/predictions.csv").status_code == 409


@pytest.mark.parametrize(
    ("content", "form", "status"),
    [
        (b"text\na,b\n", {}, 422),
        (b"text\n", {}, 422),
        (b"", {}, 422),
        (b"text\n\x00\xff\n", {"model": "absent"}, 404),
        (csv_of(["goal"]), {"model": "decoder"}, 409),
    ],
)
def test_a_wrong_file_is_refused(client: TestClient, content: bytes, form: dict[str, str], status: int) -> None:
    answer = client.post("/files", files={"file": ("new.csv", content)}, data=form)
    assert answer.status_code == status, answer.text
    assert "homespun-serve" not in answer.text


@pytest.mark.parametrize(("start", "kind"), [(b"PAR1", "Parquet"), (b"PK\x03\x04", "Excel"), (b"\x1f\x8b", "gzip")])
def test_a_file_of_another_format_is_named(client: TestClient, start: bytes, kind: str) -> None:
    answer = client.post("/files", files={"file": ("new.csv", start + b"text\na\n")})
    assert answer.status_code == 422
    assert kind in answer.json()["error"]["message"]


def test_files_have_their_own_limit(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    client = connect(max_body_bytes=100)
    assert client.post("/predict", json={"texts": ["goal " * 50]}).status_code == 413
    wait(client, send(client, csv_of(["goal " * 50]), model="linear"))
    monkeypatch.setattr(page, "MAX_FILE_BYTES", 1000)
    answer = client.post("/files", files={"file": ("new.csv", csv_of(["goal " * 500]))})
    assert answer.status_code == 413


def test_old_files_make_room_and_all_are_removed_at_the_end(opened: Models, connect: Connect) -> None:
    client = connect()
    names = []
    for _ in range(page.MAX_JOBS + 2):
        names.append(send(client, csv_of(["goal"]), model="linear"))
        assert wait(client, names[-1])["state"] == "done"
    found = [client.get(f"/files/{name}").status_code for name in names]
    assert found == [404, 404, *[200] * page.MAX_JOBS]
    jobs = page.FileJobs()
    with io.BytesIO(csv_of(["goal"])) as content:
        job = jobs.add(opened.get("linear"), content, None)
    assert jobs._folder is not None
    folder = Path(jobs._folder.name)
    assert (folder / job.id / "input.csv").is_file()
    jobs.close()
    assert not folder.exists()


def test_too_many_files_wait(opened: Models, monkeypatch: pytest.MonkeyPatch, connect: Connect) -> None:
    client = connect()
    monkeypatch.setattr(page.FileJobs, "_run", lambda *_: None)  # they wait for ever
    for _ in range(page.MAX_JOBS):
        send(client, csv_of(["goal"]))
    assert client.post("/files", files={"file": ("new.csv", csv_of(["goal"]))}).status_code == 429


@pytest.fixture
def reported(folders: dict[str, Path], tmp_path: Path, connect: Connect) -> TestClient:
    """A server of a run with a report and a card, next to files that are no part of them."""
    run = tmp_path / "run"
    (run / "report" / "plots").mkdir(parents=True)
    (run / "model").symlink_to(folders["linear"] / "model")
    (run / "result.json").write_text("{}")
    (run / "report" / "index.html").write_text("<h1>Report</h1>")
    (run / "report" / "plots" / "loss.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    (run / "report" / "out").symlink_to(run / "result.json")
    (run / "README.md").write_text("# Card\n<script>alert(1)</script>")
    models = Models({"mine": run, "bare": folders["linear"]})
    models.load()
    return connect(models)


def test_reports_and_cards_are_served_without_script(reported: TestClient) -> None:
    described = {one["name"]: one for one in reported.get("/models").json()["models"]}
    for name, exists in (("mine", True), ("bare", False)):
        assert (described[name]["report"], described[name]["card"]) == (exists, exists)
    for path, kind in {"": "text/html", "index.html": "text/html", "plots/loss.svg": "image/svg+xml"}.items():
        answer = reported.get(f"/report/mine/{path}")
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith(kind)
        assert "script-src" not in answer.headers["content-security-policy"]
        assert answer.headers["content-security-policy"].startswith("default-src 'none'")
    card = reported.get("/card/mine")
    assert card.headers["content-type"] == "text/plain; charset=utf-8"
    assert card.text.startswith("# Card")
    assert [reported.get(path).status_code for path in ("/report/bare/", "/card/bare", "/card/absent")] == [404] * 3


OUTSIDE = ("../result.json", "%2e%2e/result.json", "..%2fresult.json", "plots/../../result.json", "/etc/passwd")


@pytest.mark.parametrize("path", [*OUTSIDE, "out", "plots", "%00", "x" * 300])
def test_no_file_outside_the_report_is_served(reported: TestClient, path: str) -> None:
    answer = reported.get(f"/report/mine/{path}")
    assert answer.status_code == 404
    assert answer.json()["error"]["message"]
