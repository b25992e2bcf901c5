"""The page in Chromium: every function once, accessibility, and texts that look like markup."""

import csv
import io
import json
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn
from fastapi.responses import StreamingResponse
from served_models import TEXTS, write_linear, write_network
from starlette.requests import Request
from starlette.routing import Route

from homespun.serving.app import create_app
from homespun.serving.models import Models
from homespun.serving.settings import ServingSettings

api = pytest.importorskip("playwright.sync_api")
axe = pytest.importorskip("axe_playwright_python.sync_playwright")
BROWSER = shutil.which("chromium")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="there is no Chromium on this machine"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # of the browser's own pipes
]

MARKUP = '<img src=x onerror="document.title=1"><b>bold</b>'
VIEWS = [(width, scheme) for width in (1200, 400) for scheme in ("light", "dark")]


class RunningServer:
    """A server in a thread of this process."""

    def __init__(self, models: Models, **settings: object) -> None:
        self.app = create_app(models, ServingSettings.model_validate(settings))
        self.server = uvicorn.Server(uvicorn.Config(self.app, port=0, log_level="error", access_log=False))
        self.thread = threading.Thread(target=self.server.run)

    def __enter__(self) -> str:
        self.thread.start()
        end = time.monotonic() + 30
        while not self.server.started:
            assert time.monotonic() < end
            time.sleep(0.01)
        return f"http://127.0.0.1:{self.server.servers[0].sockets[0].getsockname()[1]}"

    def __exit__(self, *_: object) -> None:
        self.server.should_exit = True
        self.thread.join(20)


async def write_slowly(request: Request) -> StreamingResponse:
    """Stream of server-sent events: the prompt's settings, then one token after the other."""
    import asyncio

    body = await request.json()
    tokens = [json.dumps({name: value for name, value in body.items() if name not in ("prompt", "model")}), MARKUP]

    async def events() -> "Iterator[str]":  # type: ignore[misc]
        for number in range(body["max_new_tokens"]):
            text = tokens[number] if number < len(tokens) else f" t{number}"
            yield f"data: {json.dumps({'text': text})}\n\n"
            await asyncio.sleep(0.02)
        yield f"data: {json.dumps({'text': '', 'tokens': body['max_new_tokens'], 'finish_reason': 'length'})}\n\n"

    return StreamingResponse(events(), media_type="text/event-stream")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """A run whose first label and training texts are markup, and other models."""
    base = tmp_path_factory.mktemp("page")
    run = base / "run"
    network = write_network(run / "model", "classifier")
    described = (network / "homespun.json").read_text(encoding="utf-8")
    assert described.count('"food"') == 1
    (network / "homespun.json").write_text(described.replace('"food"', json.dumps(MARKUP)), encoding="utf-8")
    rows = [{"text": text, "label": MARKUP} for text in [*TEXTS, MARKUP]]
    (base / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (run / "result.json").write_text(json.dumps({"kind": "fit", "settings": {"train": [str(base / "train.jsonl")]}}))
    (run / "report").mkdir()
    (run / "report" / "index.html").write_text(
        "<!doctype html><title>Report of the run</title><style>h1{color:red}</style>"
    )
    (run / "README.md").write_text("# Card of the run")
    others = {name: write_network(base / name, name) for name in ("pairs", "decoder", "tagger", "regressor")}
    found = Models({"mine": run, "linear": write_linear(base / "linear"), **others})
    found.load()
    return found


@pytest.fixture(scope="module")
def server(models: Models) -> Iterator[str]:
    running = RunningServer(models)
    running.app.router.routes.insert(0, Route("/generate", write_slowly, methods=["POST"]))
    with running as url:
        yield url


@pytest.fixture(scope="module")
def browser() -> Iterator["api.Browser"]:
    with api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def page(browser: "api.Browser", server: str) -> Iterator["api.Page"]:
    """The page of the first model; a script error or a breach of the policy fails the test."""
    yield from open_page(browser, server)


def open_page(browser: "api.Browser", url: str) -> Iterator["api.Page"]:
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    page.set_default_timeout(15_000)
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda line: wrong.append(line.text) if "Content Security Policy" in line.text else None)
    page.goto(url)
    api.expect(page.locator("#about")).not_to_be_empty()
    yield page
    page.close()
    assert not wrong


def choose(page: "api.Page", name: str) -> None:
    page.get_by_label("Model", exact=True).select_option(name)
    api.expect(page.get_by_role("heading", level=1)).to_have_text(name)


def predict(page: "api.Page", text: str) -> None:
    page.get_by_label("Text", exact=True).fill(text)
    page.get_by_role("button", name="Predict").click()
    api.expect(page.locator("#predict .headline")).not_to_be_empty()


def test_the_empty_page_says_what_the_model_does(page: "api.Page") -> None:
    api.expect(page.locator("#about")).to_contain_text("3 labels")
    api.expect(page.locator("#about")).to_contain_text("parameters")
    api.expect(page.locator("#prediction li")).to_have_count(3)
    api.expect(page.locator("#generate")).to_be_hidden()
    choose(page, "decoder")
    api.expect(page.locator("#generate")).to_be_visible()
    api.expect(page.locator("#predict")).to_be_hidden()
    choose(page, "pairs")
    api.expect(page.get_by_label("Second text")).to_be_visible()
    assert page.title().startswith("pairs")


def test_the_page_waits_for_models_that_are_being_opened(browser: "api.Browser", server: str) -> None:
    page = browser.new_page()
    body = {"error": {"message": "the models are being opened", "type": "unavailable", "code": None}}
    page.route("**/models", lambda route: route.fulfill(status=503, json=body), times=1)
    page.goto(server)
    api.expect(page.get_by_role("heading", level=1)).to_have_text("Loading the model …")
    api.expect(page.get_by_role("heading", level=1)).to_have_text("mine")
    page.close()


def test_a_text_gets_its_probabilities(page: "api.Page", models: Models) -> None:
    predict(page, TEXTS[1])
    p = models.get("mine").pipeline.predict_proba([TEXTS[1]])[0]
    shown = page.locator("#prediction li").all_inner_texts()
    assert [float(line.split("\n")[-1].removesuffix(" %")) for line in shown] == pytest.approx(
        sorted(100 * p)[::-1], abs=0.051
    )
    assert page.locator("#prediction li.marked").count() == 1
    bar = page.locator("#prediction li.marked i").bounding_box()
    track = page.locator("#prediction li.marked .track").bounding_box()
    assert bar is not None
    assert track is not None
    page.wait_for_timeout(400)  # the bar grows
    bar = page.locator("#prediction li.marked i").bounding_box()
    assert bar is not None
    assert bar["width"] / track["width"] == pytest.approx(p.max(), abs=0.02)


def test_a_pair_a_number_and_tags(page: "api.Page", models: Models) -> None:
    choose(page, "pairs")
    page.get_by_label("First text").fill(TEXTS[0])
    page.get_by_label("Second text").fill(TEXTS[1])
    page.get_by_label("Second text").press("Control+Enter")
    label = str(models.get("pairs").pipeline.predict([(TEXTS[0], TEXTS[1])])[0])
    api.expect(page.locator("#predict .headline")).to_contain_text(label)
    api.expect(page.locator("#words .passage")).to_have_count(2)
    choose(page, "regressor")
    predict(page, TEXTS[0])
    number = float(models.get("regressor").pipeline.predict([TEXTS[0]])[0])
    assert float(page.locator("#predict .headline").inner_text()) == pytest.approx(number, rel=1e-3)
    choose(page, "tagger")
    predict(page, TEXTS[0])
    api.expect(page.locator("#prediction .passage")).to_contain_text("striker")


def test_words_that_mattered_are_marked_and_listed(page: "api.Page", server: str) -> None:
    predict(page, "A 👍🏽 goal, and butter.")
    words = page.locator("#words tbody tr")
    api.expect(words.first).to_be_visible()
    expected = page.request.post(f"{server}/explain", data={"text": "A 👍🏽 goal, and butter."}).json()["words"]
    strongest = max(expected, key=lambda word: abs(word["score"]))
    assert words.first.locator("th").inner_text() == strongest["text"]
    sign = "−" if strongest["score"] < 0 else "+"
    assert words.first.locator("td").last.inner_text() == f"{sign}{abs(strongest['score']):.2f}"
    assert page.locator("#words .passage").inner_text() == "A 👍🏽 goal, and butter."
    assert page.locator("#words .passage mark").all_inner_texts() == [word["text"] for word in expected]
    for word, mark in zip(expected, page.locator("#words .passage mark").all(), strict=True):
        assert ("against" in str(mark.get_attribute("class"))) == (word["score"] < 0)
    styles = [
        page.locator(f"#words .legend .{kind}").evaluate("node => getComputedStyle(node).textDecorationStyle")
        for kind in ("for", "against")
    ]
    assert styles[0] != styles[1]  # not by colour alone


def test_the_attention_map_of_a_layer_and_a_head(page: "api.Page", server: str) -> None:
    predict(page, "A goal, and butter.")
    page.locator("#attention summary").click()
    picture = page.locator("#attention svg")
    api.expect(picture).to_be_visible()
    body = {"text": "A goal, and butter.", "layer": 1}
    found = page.request.post(f"{server}/attention", data=body).json()
    page.get_by_label("Layer", exact=True).select_option(label="2")
    page.get_by_label("Head", exact=True).select_option(label="3")
    top = max(max(row) for row in found["weights"][2])
    first = page.locator("#attention tbody tr").first
    api.expect(first.locator("td").last).to_have_text(f"{top:.3f}")
    page.get_by_label("From", exact=True).select_option(value="2")
    row = found["weights"][2][1]
    api.expect(first.locator("td").last).to_have_text(f"{max(row):.3f}")
    image = page.locator("#attention image")
    image.scroll_into_view_if_needed()
    box = image.bounding_box()
    assert box is not None
    size = len(found["tokens"])
    page.mouse.move(box["x"] + box["width"] * 0.5 / size, box["y"] + box["height"] * 1.5 / size)
    api.expect(page.locator("#attention .readout")).to_contain_text(f"{row[0]:.3f}")
    choose(page, "linear")
    predict(page, TEXTS[0])
    api.expect(page.locator("#attention")).to_be_hidden()


def test_the_nearest_training_examples(page: "api.Page") -> None:
    predict(page, TEXTS[2])
    page.locator("#neighbours summary").click()
    api.expect(page.locator("#neighbours .near li").first).to_contain_text(TEXTS[2])
    api.expect(page.locator("#neighbours .near li").first).to_contain_text("1.00")
    choose(page, "linear")
    predict(page, TEXTS[2])
    api.expect(page.locator("#neighbours .problem")).to_contain_text("training examples")


def test_text_is_generated_with_settings_and_stopped(page: "api.Page") -> None:
    choose(page, "decoder")
    page.get_by_label("Prompt").fill("A goal")
    page.get_by_label("Maximum tokens").fill("4")
    page.get_by_label("Temperature").fill("0.5")
    page.get_by_label("Seed").fill("7")
    page.get_by_label("Stop at").fill("one\ntwo")
    page.get_by_role("button", name="Generate").click()
    status = page.locator("#generate [role=status]")
    api.expect(status).to_contain_text("4 tokens")
    written = page.locator("#written").inner_text()
    sent = {"stream": True, "stop": ["one", "two"], "max_new_tokens": 4, "temperature": 0.5, "top_p": 0.95, "seed": 7}
    assert json.loads(written[len("A goal") : written.index("}") + 1]) == sent
    assert written.endswith(f"{MARKUP} t2 t3")
    assert page.locator("#written img, #written b").count() == 0
    api.expect(page.locator("#attention")).to_be_visible()
    page.get_by_label("Maximum tokens").fill("400")
    page.get_by_role("button", name="Generate").click()
    api.expect(page.locator("#written")).to_contain_text("t5")
    page.get_by_role("button", name="Stop").click()
    api.expect(status).to_have_text("Stopped.")
    length = len(page.locator("#written").inner_text())
    page.wait_for_timeout(200)
    assert len(page.locator("#written").inner_text()) == length


def test_a_file_is_labelled(page: "api.Page", models: Models, tmp_path: Path) -> None:
    stream = io.StringIO()
    csv.writer(stream).writerows([["headline"], *([text] for text in TEXTS * 80)])
    (tmp_path / "new.csv").write_text(stream.getvalue(), encoding="utf-8")
    page.get_by_label("CSV file").set_input_files(tmp_path / "new.csv")
    page.get_by_label("Column of the text").fill("headline")
    page.get_by_role("button", name="Label", exact=True).click()
    download = page.get_by_role("link", name="Download")
    api.expect(download).to_be_visible()
    api.expect(page.locator("#file [role=status]")).to_contain_text("320 rows")
    with page.expect_download() as kept:
        download.click()
    rows = list(csv.DictReader(kept.value.path().open(encoding="utf-8")))
    assert len(rows) == 320
    assert rows[1]["label"] == models.get("mine").pipeline.predict([TEXTS[1]])[0]
    page.get_by_label("Column of the text").fill("absent")
    page.get_by_role("button", name="Label", exact=True).click()
    api.expect(page.locator("#file .problem")).to_contain_text("absent")


def test_links_lead_to_the_report_and_the_card(page: "api.Page") -> None:
    page.get_by_role("link", name="Report").click()
    assert page.title() == "Report of the run"
    page.go_back()
    page.get_by_role("link", name="Model card").click()
    assert "Card of the run" in page.content()
    page.go_back()
    choose(page, "linear")
    api.expect(page.get_by_role("link", name="Report")).to_be_hidden()


def test_a_key_is_asked_for_and_kept_in_the_session(browser: "api.Browser", models: Models) -> None:
    with RunningServer(models, api_key="secret") as url:
        page = browser.new_page()
        page.goto(url)
        field = page.get_by_label("API key")
        api.expect(field).to_be_focused()
        field.fill("wrong")
        page.keyboard.press("Enter")
        api.expect(page.locator("#problem")).to_contain_text("key")
        field.fill("secret")
        page.keyboard.press("Enter")
        api.expect(page.get_by_role("heading", level=1)).to_have_text("mine")
        api.expect(field).to_be_hidden()
        predict(page, TEXTS[0])
        page.reload()
        api.expect(page.get_by_role("heading", level=1)).to_have_text("mine")
        with page.expect_download() as kept:
            page.get_by_role("link", name="Report").click()
        assert "Report of the run" in kept.value.path().read_text(encoding="utf-8")
        assert page.evaluate("Object.keys(localStorage).length + document.cookie.length") == 0
        page.close()


def test_errors_are_one_line(page: "api.Page") -> None:
    page.route("**/predict", lambda route: route.fulfill(status=429, body=json.dumps({"error": {"message": MARKUP}})))
    page.get_by_label("Text", exact=True).fill("a")
    page.get_by_role("button", name="Predict").click()
    api.expect(page.locator("#predict .problem")).to_have_text(MARKUP)
    page.unroute("**/predict")
    page.route("**/predict", lambda route: route.abort())
    page.get_by_role("button", name="Predict").click()
    api.expect(page.locator("#predict .problem")).to_contain_text("does not answer")


def test_texts_and_labels_with_markup_stay_text(page: "api.Page") -> None:
    predict(page, f"{MARKUP} {TEXTS[0]}")
    for name in ("attention", "neighbours"):
        page.locator(f"#{name} summary").click()
    api.expect(page.locator("#neighbours .near li")).to_have_count(5)
    api.expect(page.locator("#attention svg")).to_be_visible()
    api.expect(page.locator("#words tbody tr").first).to_be_visible()
    assert page.locator("main img, main b:not(.near b)").count() == 0
    api.expect(page.locator("#prediction")).to_contain_text(MARKUP)
    api.expect(page.locator("#neighbours")).to_contain_text(MARKUP)
    assert page.title() == "mine – homespun"


def test_the_keyboard_reaches_everything_in_order(page: "api.Page") -> None:
    predict(page, TEXTS[0])
    api.expect(page.locator("#words tbody tr").first).to_be_visible()
    page.locator("body").evaluate("() => document.activeElement.blur()")
    page.mouse.click(1, 1)
    seen = []
    for _ in range(12):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("document.activeElement.id || document.activeElement.textContent.trim()"))
    assert seen == [
        *("model", "report", "card", "API", "text", "Predict", "Words that mattered", "Attention"),
        *("Nearest training examples", "csv", "column", "Label"),
    ]


@pytest.mark.parametrize(("width", "scheme"), VIEWS)
def test_axe_finds_nothing_serious(browser: "api.Browser", server: str, width: int, scheme: str) -> None:
    page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
    page.goto(server)
    api.expect(page.locator("#about")).not_to_be_empty()
    check(page)
    predict(page, TEXTS[0])
    for name in ("attention", "neighbours"):
        page.locator(f"#{name} summary").click()
    for place in ("#words tbody tr", "#attention svg", "#neighbours .near li"):
        api.expect(page.locator(place).first).to_be_visible()
    check(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    choose(page, "decoder")
    check(page)
    page.close()


def check(page: "api.Page") -> None:
    page.wait_for_timeout(300)  # bars grow
    found = axe.Axe().run(page).response["violations"]
    serious = [
        (one["id"], [node["html"] for node in one["nodes"]])
        for one in found
        if one["impact"] in ("serious", "critical")
    ]
    assert not serious
