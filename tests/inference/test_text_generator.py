"""Prompts in, plain text out: whole, streamed, in batches, up to a stop string; and the verbs around it."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import homespun.commands.generate
from homespun.cli import app
from homespun.commands.generate import generate, generator
from homespun.data.rows import Row
from homespun.errors import UserError, escape_controls
from homespun.hf.open import load, open_model
from homespun.inference.generation import TextGenerator, TextPieces, generate_batch
from homespun.models.bundle import save_model
from homespun.models.config import ModelConfig
from homespun.models.generation.settings import TextGenerationConfig
from homespun.text.tokenizer import Tokenizer

TEXTS = [
    "Small models spun from your own text, on your own machine.",
    "Größe, naïveté und 50 € – 日本語のテキスト.",
] * 7
PROMPTS = ["Small models", "your own machine, on your own text", "Größe"]
SIZES: dict[str, Any] = {"hidden_size": 36, "num_attention_heads": 3, "intermediate_size": 23, "num_hidden_layers": 2}
SIZES |= {"max_position_embeddings": 61, "type_vocab_size": 0, "initializer_range": 0.6}


def tokenizer(kind: str) -> Tokenizer:
    return Tokenizer.train(TEXTS, kind=kind, vocab_size=270 if kind == "bpe" else 79)


def written_model(folder: Path, *, kind: str = "bpe", two: bool = False, head: str = "causal_lm") -> Path:
    torch.manual_seed(5)
    tokens = tokenizer(kind)
    sizes = SIZES | {"vocab_size": tokens.vocab_size, "pad_token_id": tokens.pad_id}
    backbone = {"kind": "encoder_decoder", "encoder": sizes} if two else sizes | {"causal": head == "causal_lm"}
    config = ModelConfig.model_validate({"backbone": backbone, "head": {"kind": head}})
    save_model(folder, config.build(), config, tokens)
    return folder


@pytest.fixture(scope="module", params=["bpe", "wordpiece", "two"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("runs") / "model"
    return written_model(place, kind="wordpiece" if request.param == "wordpiece" else "bpe", two=request.param == "two")


@pytest.mark.parametrize("arguments", [{}, {"do_sample": True, "seed": 3}], ids=["greedy", "drawn"])
def test_streamed_batched_and_alone_are_the_same_text(folder: Path, arguments: dict[str, Any]) -> None:
    writer = generator(str(folder))
    together = [texts[0] for texts in writer.generate(PROMPTS, max_new_tokens=17, **arguments)]
    for prompt, written in zip(PROMPTS, together, strict=True):
        (alone,) = writer.generate([prompt], max_new_tokens=17, **arguments)
        assert alone == [written]
        pieces = list(writer.stream(prompt, max_new_tokens=17, **arguments))
        assert "".join(pieces) == written.text
        assert len(pieces) > 1 or not arguments  # the likeliest bytes may be no character at all
        assert 1 <= written.tokens <= 17


def test_a_stop_string_cuts_and_one_that_never_comes_does_not(folder: Path) -> None:
    writer = generator(str(folder))
    settings: dict[str, Any] = {"max_new_tokens": 23, "do_sample": True, "seed": 11, "eos_token_id": None}
    (plain,) = next(writer.generate(PROMPTS[:1], **settings))
    text = plain.text.strip()
    stop = text[len(text) // 2 : len(text) // 2 + 3]
    stopping = TextGenerator(open_model(folder), stop=(stop, "this never comes"))
    (cut,) = next(stopping.generate(PROMPTS[:1], **settings))
    assert cut.text == plain.text[: plain.text.index(stop)]
    assert cut.tokens < plain.tokens
    assert "".join(stopping.stream(PROMPTS[0], **settings)) == cut.text
    never = TextGenerator(open_model(folder), stop=("this never comes",))
    assert next(never.generate(PROMPTS[:1], **settings)) == [plain]
    assert plain.tokens == 23
    with pytest.raises(UserError, match="stop string"):
        TextGenerator(open_model(folder), stop=("",))


def test_an_ordinary_end_token_is_not_a_part_of_streamed_text(folder: Path) -> None:
    writer = generator(str(folder))
    settings: dict[str, Any] = {"max_new_tokens": 23, "do_sample": True, "seed": 11}
    stored = open_model(folder)
    ids = torch.tensor([stored.tokenizer.encode_batch([PROMPTS[0]])[0].tolist()])
    token = int(stored.model.generate(ids, **settings, eos_token_id=None)[0, -9])
    assert not stored.tokenizer.special_mask[token]
    for prompt in PROMPTS:
        ((written,),) = writer.generate([prompt], eos_token_id=[token], **settings)
        assert "".join(writer.stream(prompt, eos_token_id=[token], **settings)) == written.text


def test_a_stop_string_may_begin_with_the_space_before_the_first_new_word() -> None:
    tokens = tokenizer("wordpiece")
    (prompt,), (new,) = (tokens.encode_batch([text]) for text in ("Small models", "own text"))
    pieces = TextPieces(tokens, prompt.tolist(), (" own",))
    written = [pieces.add(token) for token in new.tolist() if not pieces.stopped]
    assert pieces.stopped
    assert len(written) < len(new)
    assert "".join(written) + pieces.rest() == ""


@pytest.mark.parametrize("stop", ["wörtlich", "日本"])
def test_a_stop_string_may_have_a_character_of_several_tokens(stop: str) -> None:
    tokens = Tokenizer.train(["plain words only"] * 3, kind="bpe", vocab_size=262)
    pieces = TextPieces(tokens, [], (stop,))
    (new,) = tokens.encode_batch([f"nur {stop} so"])
    written = [pieces.add(int(token)) for token in new if not pieces.stopped]
    assert pieces.stopped
    assert "".join(written) == "nur "


def test_a_stop_string_at_the_start_of_a_batched_text_ends_it(tmp_path: Path) -> None:
    bundle = open_model(written_model(tmp_path / "model", kind="wordpiece"))
    prompts = [text[: 5 * length] for text in TEXTS[:2] for length in range(1, 7)]
    settings: dict[str, Any] = {"max_new_tokens": 23, "do_sample": True, "seed": 11, "eos_token_id": None}
    settings["num_return_sequences"] = 2
    plain = [one for found in TextGenerator(bundle).generate(prompts, **settings) for one in found]
    number = next(n for n, one in enumerate(plain) if one.text.startswith(" "))
    stopping = TextGenerator(bundle, stop=(plain[number].text[:2],))
    cut = [one for found in stopping.generate(prompts, **settings) for one in found]
    assert (cut[number].text, cut[number].tokens) == ("", 1)
    for other, one in zip(plain, cut, strict=True):
        assert other == one or other.text.startswith(one.text + stopping.stop[0])


@pytest.mark.parametrize("kind", ["bpe", "wordpiece"])
@pytest.mark.parametrize("stop", [(), ("never", "t!")])
def test_each_new_token_is_decoded_a_few_times(
    kind: str, stop: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = tokenizer(kind)
    ids = tokens.encode_batch([" ".join(TEXTS)])[0].tolist()
    prompt, new = ids[:20], ids[20:]
    expected = tokens.decode(ids)[len(tokens.decode(prompt)) :]
    decode, decoded = tokens.decode, []
    monkeypatch.setattr(tokens, "decode", lambda ids: decoded.append(len(ids)) or decode(ids))
    pieces = TextPieces(tokens, prompt, stop)
    assert "".join([*map(pieces.add, new), pieces.rest()]) == expected
    assert not pieces.stopped
    assert sum(decoded) < 10 * len(new)


def test_bad_prompts_are_one_line(folder: Path) -> None:
    writer = generator(str(folder))
    with pytest.raises(UserError, match="prompt 2 "):
        list(writer.generate(["Small", ""]))
    with pytest.raises(UserError, match="prompt is empty"):
        writer.stream("")
    with pytest.raises(UserError, match="max_position_embeddings=61"):
        list(writer.generate(["your own machine " * 61]))


def test_the_loaded_model_knows_what_ends_a_text(folder: Path) -> None:
    stored = open_model(folder)
    assert load(folder).special_tokens.eos_token_id == stored.tokenizer.sep_id


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


def test_the_verb_writes_streams_and_fills_a_file(folder: Path, tmp_path: Path) -> None:
    settings = ("--max-new-tokens", "9", "--top-k", "5", "--seed", "2")
    plain = run("generate", str(folder), "--prompt", PROMPTS[0], *settings)
    assert plain.exit_code == 0, plain.output
    output = json.loads(run("generate", str(folder), "--prompt", PROMPTS[0], *settings, "--json").stdout)
    assert plain.stdout == escape_controls(output["generated"][0]) + "\n"
    file, out = tmp_path / "prompts.jsonl", tmp_path / "out.jsonl"
    file.write_text("".join(json.dumps({"text": prompt, "id": n}) + "\n" for n, prompt in enumerate(PROMPTS)))
    result = run("generate", str(folder), "--input", str(file), "--out", str(out), *settings, "--json")
    assert json.loads(result.stdout)["rows"] == 3
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["id"] for row in rows] == [0, 1, 2]
    assert rows[0]["generated"] == output["generated"][0]
    again = tmp_path / "again.jsonl"  # which has the columns `generated` and `tokens` of its own
    result = run("generate", str(folder), "--input", str(out), "--out", str(again), *settings, "--json")
    written = [json.loads(line) for line in again.read_text().splitlines()]
    output = [{"predicted_generated": row["generated"], "predicted_tokens": row["tokens"]} for row in rows]
    assert written == [row | more for row, more in zip(rows, output, strict=True)]
    beams = run("generate", str(folder), "--prompt", PROMPTS[0], "--num-beams", "3", "--num-return-sequences", "2")
    assert beams.exit_code == 0, beams.output


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("arguments", [{"do_sample": True, "seed": 2}, {"num_beams": 2}], ids=["drawn", "beams"])
def test_a_stopped_generation_continues_to_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: int, arguments: dict[str, Any]
) -> None:
    monkeypatch.setattr(homespun.commands.generate, "_PART_BATCHES", 1)
    folder = written_model(tmp_path / "model")
    file, out, whole = (tmp_path / name for name in ("prompts.jsonl", "out.jsonl", "whole.jsonl"))
    file.write_text("".join(json.dumps({"text": f"{PROMPTS[n % 3]} {n}"}) + "\n" for n in range(11)))
    given: dict[str, Any] = {"arguments": {"max_new_tokens": 5} | arguments, "batch_size": 2}
    expected = generate(str(folder), [str(file)], whole, **given)

    def stop(_: int, rows: int) -> None:
        if rows >= 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        generate(str(folder), [str(file)], out, processes=1, progress=stop, **given)
    found = generate(str(folder), [str(file)], out, processes=processes, **given)
    assert found == expected | {"out": str(out), "resumed_rows": 4}
    assert out.read_bytes() == whole.read_bytes()
    assert expected["tokens"] == sum(json.loads(line)["tokens"] for line in whole.read_text().splitlines())


def test_what_the_verbs_refuse(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(json.dumps({"text": ""}) + "\n")
    for arguments, message in {
        (): "give either --prompt TEXT, or --input FILE",
        ("--prompt", "a", "--max-new-tokens", "0"): "max_new_tokens",
        ("--input", str(file)): "--input needs --out",
        ("--prompt", "a", "--out", str(tmp_path / "o.jsonl")): "--out needs --input",
        ("--prompt", "a", "--min-new-tokens", "7", "--max-new-tokens", "5"): "minimum of 7 new tokens",
        ("--prompt", "a", "--num-beams", "2", "--length-penalty", "nan"): "length_penalty",
        ("--prompt", "a", "--length-penalty", "2"): "length_penalty needs num_beams of at least 2",
        ("--prompt", "a", "--num-beams", "2", "--top-p", "0.9"): "top_p and num_beams=2 exclude each other",
        ("--prompt", "a", "--num-return-sequences", "2"): "--seed on the command line",
        ("--input", str(file), "--out", str(tmp_path / "o.txt")): "must end in .jsonl",
        ("--input", str(file), "--out", str(tmp_path / "o.jsonl")): "empty",
        ("--input", str(file), "--out", str(tmp_path / "o.jsonl"), "--batch-size", "0"): "=0 must be at least 1",
        ("--input", str(file), "--out", str(tmp_path / "o.jsonl"), "--batch-size", "-1"): "=-1 must be at least 1",
    }.items():
        result = run("generate", str(folder), *arguments)
        assert isinstance(result.exception, UserError), (arguments, result.exception)
        assert message in str(result.exception)
        assert "\n" not in str(result.exception)
    assert [path.name for path in tmp_path.iterdir()] == [file.name]
    wrong = run("summarize", str(folder), "--input", str(file), "--out", str(tmp_path / "o.jsonl"))
    assert "not fine-tuned" in str(wrong.exception)


def test_the_penalty_of_a_recipe_waits_for_beams(tmp_path: Path) -> None:
    """A model fine-tuned with both may be asked for one beam alone: `--generation num_beams=1`."""
    stored = open_model(str(written_model(tmp_path / "writer", two=True)))
    sources = [Row(ids) for ids in stored.tokenizer.encode_batch(PROMPTS)]
    given: dict[str, Any] = {"end_id": 4, "max_new_tokens": 7}
    one, plain, beams, even = (
        generate_batch(stored.model, sources, stored.tokenizer, generation=generation, **given)
        for generation in (
            TextGenerationConfig(length_penalty=5.0),
            TextGenerationConfig(),
            TextGenerationConfig(num_beams=3, length_penalty=5.0),
            TextGenerationConfig(num_beams=3, length_penalty=-5.0),
        )
    )
    assert one == plain
    assert beams != even


def test_a_classifier_does_not_write_and_a_writer_does_not_classify(tmp_path: Path) -> None:
    classifier = written_model(tmp_path / "classifier", head="linear")
    assert "this model cannot generate" in str(run("generate", str(classifier), "--prompt", "Small").exception)
    writer = written_model(tmp_path / "writer")
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "Small"}) + "\n")
    output = run("predict", str(writer), "--input", str(tmp_path / "a.jsonl"), "--out", str(tmp_path / "o.jsonl"))
    assert isinstance(output.exception, UserError)
    assert "finetune" in str(output.exception)
