import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from homespun.cli import app
from homespun.commands import attention_plot
from homespun.commands.attention_map import (
    build_attentions,
    cell_size,
    compute_attention_map,
    pool_depth,
    probe_attention,
    receptive_field,
    shows_structure,
)
from homespun.commands.attention_plot import show_attention
from homespun.errors import UserError
from homespun.models.bundle import save_model
from homespun.models.config import ModelConfig
from homespun.models.encoder import EncoderConfig
from homespun.nn.masks import Mask
from homespun.report.attention import PARTS, AttentionPanel, AttentionPlot, draw_attention
from homespun.text.tokenizer import Tokenizer

HEADS, MAXIMUM = 2, 613
ATTENTIONS: dict[str, dict[str, Any]] = {
    "full": {"kind": "full"},
    "window": {"kind": "sparse", "patterns": [{"kind": "window", "radius": 5}]},
    "dilated": {"kind": "sparse", "patterns": [{"kind": "window", "radius": 3, "dilation": [[1, 4], 2, 7]}]}
    | {"global_tokens": {"first": 1}},
    "own projections": {"kind": "sparse", "global_tokens": {"first": 2, "projections": True}},
    "blocks": {"kind": "sparse", "patterns": [{"kind": "blocks", "size": 16}, {"kind": "random_blocks", "size": 16}]}
    | {"global_tokens": {"first": 0, "block": 16}},
    "permuted": {"kind": "sparse", "patterns": [{"kind": "permuted_blocks", "blocks": 5}]},
    "band": {"kind": "sparse", "patterns": [{"kind": "band", "width": 11}]},
}
EXACT = pytest.mark.parametrize("attention", ATTENTIONS.values(), ids=ATTENTIONS)


def config_of(attention: dict[str, Any], **fields: Any) -> EncoderConfig:
    sizes = {"hidden_size": 22, "num_attention_heads": HEADS, "num_hidden_layers": 3}
    return EncoderConfig.model_validate(sizes | {"max_position_embeddings": MAXIMUM, "attention": attention} | fields)


def dense(config: EncoderConfig, layer: int, length: int) -> np.ndarray:
    """(heads, length, length) bool: the reference table of one layer."""
    sparse = build_attentions(config)[layer].kernel.sparse
    if sparse.global_tokens is not None:
        sparse = dataclasses.replace(sparse, global_tokens=dataclasses.replace(sparse.global_tokens, queries=True))
    table = Mask(causal=config.causal).dense(sparse, length, length, torch.device("cpu"))
    return np.ones((HEADS, length, length), bool) if table is None else table[0].expand(HEADS, -1, -1).numpy()


@EXACT
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [37, 263, 607])
def test_exact_attention_is_drawn_as_its_table_has_it(attention: dict[str, Any], causal: bool, length: int) -> None:
    config = config_of(attention, causal=causal)
    for layer, module in enumerate(build_attentions(config)):
        seen, table = compute_attention_map(module, length, config), dense(config, layer, length)
        union = np.unpackbits(seen.union, axis=1, count=length).astype(bool)
        assert np.array_equal(union, table.any(0))
        assert seen.shares * (HEADS // len(seen.shares)) == pytest.approx(table.mean((1, 2)))
        cell = cell_size(length)
        assert (cell == 1) == (length <= 128)
        for head, parts in enumerate(seen.parts):
            assert parts.keys() <= PARTS.keys()
            together = np.sum([*parts.values(), np.zeros((-(-length // cell),) * 2)], axis=0)  # no pair is of two parts
            assert together.max() <= 1 + 1e-6
            starts = np.arange(0, length, cell)
            pairs = np.add.reduceat(np.add.reduceat(table[head].astype(int), starts, 0), starts, 1)
            sizes = np.diff([*starts, length])
            assert np.allclose(together * np.outer(sizes, sizes), pairs, atol=1e-3)


def parts_of(attention: dict[str, Any], length: int, **fields: Any) -> list[dict[str, np.ndarray]]:
    config = config_of(attention, **fields)
    return compute_attention_map(build_attentions(config)[0], length, config).parts


def test_parts_are_distinguished() -> None:
    parts = parts_of(ATTENTIONS["blocks"], 128)[1]
    assert parts.keys() == {"near", "random", "global"}
    assert parts["global"][:16].all()
    assert parts["global"][:, -16:].all()
    assert parts["near"][40, 16:64].all()
    assert not parts["near"][40, 64:].any()
    assert parts["random"].any()
    assert parts_of(ATTENTIONS["full"], 13)[0].keys() == {"full"}


@EXACT
@pytest.mark.parametrize("causal", [False, True])
def test_trying_an_attention_out_finds_what_it_sees(attention: dict[str, Any], causal: bool) -> None:
    if attention.get("global_tokens", {}).get("projections"):
        pytest.skip("global tokens are computed outside of the kernel")
    config = config_of(attention, causal=causal)
    for layer, module in enumerate(build_attentions(config)):
        found = probe_attention(module, 29, config).expand(HEADS, -1, -1).numpy()
        assert np.array_equal(found, dense(config, layer, 29))


@pytest.mark.parametrize("causal", [False, True])
def test_hashed_attention_is_tried_out(causal: bool) -> None:
    config = config_of({"kind": "lsh", "chunk_length": 8, "num_hashes": 1}, causal=causal)
    table = probe_attention(build_attentions(config)[0], 61, config)
    assert table.shape == (HEADS, 61, 61)
    assert int(table.sum(-1).max()) <= 2 * 8
    assert bool((table.sum(-1) > 0).all())
    assert not causal or not table.triu(1).any()
    assert not torch.equal(table[0], table[1])
    seen = compute_attention_map(build_attentions(config)[0], 61, config)
    assert [part.keys() for part in seen.parts] == [{"content"}] * HEADS
    assert np.array_equal(np.unpackbits(seen.union, axis=1, count=61).astype(bool), table.any(0).numpy())
    assert [part["content"].sum() for part in seen.parts] == table.sum((1, 2)).tolist()
    assert seen.order == "by bucket"


def test_hashed_attention_is_drawn_in_the_order_of_its_buckets() -> None:
    one, other = (part["content"] for part in parts_of({"kind": "lsh", "chunk_length": 8, "num_hashes": 1}, 64))
    query, key = np.ogrid[:64, :64]
    assert np.array_equal(one > 0, ((query // 8 - key // 8) % 8 <= 1) & (query != key))
    assert np.array_equal(one, other)


def test_local_attention_is_no_matter_of_content() -> None:
    ((kind, table),) = parts_of({"kind": "local", "chunk_length": 8}, 31, causal=True)[0].items()
    assert kind == "near"
    query, key = np.ogrid[:31, :31]
    assert np.array_equal(table > 0, (key <= query) & (query // 8 - key // 8 <= 1))


@pytest.mark.parametrize(
    ("attention", "through"),
    [
        ({"kind": "linformer", "k": 17}, "17 projections"),
        ({"kind": "linformer", "k": 100, "projection": "pooled"}, "4 projections"),
        ({"kind": "linformer", "k": 100, "projection": "convolved"}, "4 projections"),
        ({"kind": "performer", "num_features": 19}, "19 random features"),
        ({"kind": "paragraphs"}, "a vector a head\nand paragraph"),
    ],
)
def test_low_rank_attention_sees_all_through_few(attention: dict[str, Any], through: str) -> None:
    config = config_of(attention)
    seen = compute_attention_map(build_attentions(config)[0], 23, config)
    assert (seen.through, seen.shares) == (through, [1.0])
    assert seen.parts[0].keys() == {"compressed"}


@pytest.mark.parametrize("kind", ["lsh", "local"])
@pytest.mark.parametrize("size", [7, 17])
def test_heads_of_another_size_are_tried_out(kind: str, size: int) -> None:
    config = config_of({"kind": kind, "chunk_length": 4}, head_size=size)
    table = probe_attention(build_attentions(config)[0], 19, config)
    assert table.shape == (HEADS, 19, 19)
    assert 0 < int(table.sum(-1).min()) <= int(table.sum(-1).max()) <= 2 * 4
    assert kind == "lsh" or torch.equal(
        table[0], probe_attention(build_attentions(config_of(config.attention))[0], 19, config)[0]
    )


def test_ngram_attention_sees_all_that_is_earlier() -> None:
    ((kind, table),) = parts_of({"kind": "ngram"}, 23, causal=True, head_size=7)[0].items()
    assert kind == "full"
    assert np.array_equal(table, np.tri(23))


@EXACT
def test_reach_is_the_product_of_the_tables(attention: dict[str, Any]) -> None:
    config, length = config_of(attention), 59
    unions = [compute_attention_map(module, length, config).union for module in build_attentions(config)]
    reached, depth = receptive_field(unions, length)
    expected, before = np.zeros((length, length), int), np.eye(length)
    for number in (1, 2, 3):
        before = ((dense(config, number - 1, length).any(0) + np.eye(length)) @ before > 0).astype(float)
        expected[(before > 0) & (expected == 0)] = number
        assert reached[number - 1] == before.mean()
    assert np.array_equal(depth, expected)


def test_a_cell_of_the_reach_has_its_least_depth() -> None:
    depth = np.zeros((521, 521), np.uint8)
    depth[:3, :3] = 3
    depth[1, 1] = 2
    depth[520, 520] = 5
    cells = pool_depth(depth)
    assert cells.shape == (105, 105)
    assert (cells[0, 0], cells[1, 1], cells[-1, -1]) == (2, 0, 5)


def test_result_has_share_of_pairs_and_depth() -> None:
    words = ("model.num_hidden_layers=3", "model.num_attention_heads=4", "model.attention.kind=sparse")
    window = "model.attention.patterns=[{kind: window, radius: 7}]"
    result = show_attention("electra-mini", [*words, window], length=31)
    share = np.mean(np.abs(np.subtract.outer(np.arange(31), np.arange(31))) <= 7)
    assert result["layers"] == [
        {"layer": n, "share": round(share, 6), "heads": [round(share, 6)] * 4} for n in (1, 2, 3)
    ]
    assert result["all_reach_all"] is None
    assert result["reached"] == sorted(result["reached"])
    assert result["out"] is None
    first = "model.attention.global_tokens.first=1"
    assert show_attention("electra-mini", [*words, window, first], length=31, layers=[2])["all_reach_all"] == 2
    causal = show_attention("electra-mini", ["model.causal=true"], length=31)
    assert (causal["all_reach_all"], causal["reached"]) == (1, [1.0] * 4)


@pytest.mark.parametrize(
    ("attention", "length"),
    [
        ({"kind": "full"}, 32),
        ({"kind": "sparse", "patterns": [{"kind": "window", "radius": 3}]}, 32),
        ({"kind": "sparse", "patterns": [{"kind": "window", "radius": 31}]}, 256),
        ({"kind": "sparse", "patterns": [{"kind": "window", "radius": 200}]}, MAXIMUM),
        ({"kind": "sparse", "patterns": [{"kind": "permuted_blocks", "blocks": 2}]}, MAXIMUM),
        ({"kind": "linformer", "k": 16}, 32),
        ({"kind": "lsh", "chunk_length": 8}, 64),
    ],
)
def test_the_length_is_the_shortest_that_shows_the_pattern(attention: dict[str, Any], length: int) -> None:
    config = config_of(attention)
    attentions = build_attentions(config)
    assert attention_plot._checked_length(None, config, attentions) == length
    assert length in (32, MAXIMUM) or not shows_structure(attentions[0], length // 2, config)


def test_equal_layers_and_heads_share_a_panel() -> None:
    config = config_of(ATTENTIONS["dilated"], num_hidden_layers=3)
    seen = [compute_attention_map(module, 41, config) for module in build_attentions(config)]
    groups = attention_plot._panels([*seen, seen[1], seen[1]], [1, 2, 3, 4, 5], HEADS)
    assert [[panel.title for panel in group] for group in groups] == [
        ["layer 1 · head 1", "layer 1 · head 2"],
        ["layers 2, 4, 5 · all heads"],
        ["layer 3 · all heads"],
    ]


@pytest.mark.slow
@pytest.mark.parametrize("panels", [1, 2, 5])
def test_a_picture_is_drawn_as_svg_and_png(panels: int) -> None:
    part = np.eye(29)
    group = [
        AttentionPanel(f"layer 1 · head {n}", 1 / 29, {"near": part * 0.5, "global": part.T * 0}, "x")
        for n in range(panels)
    ]
    picture = AttentionPlot("a $name$ <b>", "about", 29, 1, [group, group[:1]], part.astype(int), [1 / 29, 0.5])
    plot = draw_attention(picture)
    assert plot.png.startswith(b"\x89PNG")
    text = plot.svg.decode("utf-8")
    assert "a $name$ &lt;b&gt;" in text
    assert "window or blocks" in text
    assert "random blocks" not in text
    assert "3.4" in plot.caption
    assert draw_attention(picture).svg == plot.svg


def test_the_command_draws_a_recipe_and_a_model(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "picture.svg"
    words = ["show", "attention", "electra-mini", "model.attention.kind=sparse", "--layers", "1, 3", "--out", str(out)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "not within the model" in done.stdout
    assert out.read_bytes().startswith(b"<?xml")
    assert [path.name for path in out.parent.iterdir()] == ["picture.svg"]
    tokenizer = Tokenizer.train(["one two three"], kind="words", vocab_size=8)
    config = ModelConfig(backbone=config_of(ATTENTIONS["dilated"], vocab_size=tokenizer.vocab_size))
    save_model(tmp_path / "model", config.build(), config, tokenizer)
    done = CliRunner().invoke(app, ["show", "attention", str(tmp_path / "model"), "--length", "17", "--json"])
    result = json.loads(done.stdout)
    assert (result["length"], len(result["layers"]), result["out"]) == (17, 3, None)
    with pytest.raises(UserError, match=r"model\.causal=true"):
        show_attention(str(tmp_path / "model"), ["model.causal=true"])


@pytest.mark.parametrize(
    ("family", "encoder", "decoder"),
    [
        ("led", [0.16] * 2, [0.5] * 2),
        ("t5", [1] * 2, [0.5] * 2),
        ("prophetnet", [1] * 2, [0.5] * 2),
        ("hierarchical", [1] * 3, [0.5] * 2),
    ],
)
def test_of_two_stacks_each_is_drawn(family: str, encoder: list[float], decoder: list[float]) -> None:
    source, preset = f"{family}-mini", [f"model.preset={family}-tiny"]
    for stack, shares in (("encoder", encoder), ("decoder", decoder)):
        result = show_attention(source, preset, stack=stack, length=401)
        assert result["stack"] == stack
        assert [round(layer["share"], 2) for layer in result["layers"]] == shares
    assert show_attention(source, preset, length=401)["stack"] == "encoder"
    assert show_attention("electra-tiny", length=31)["stack"] is None


def test_plot_of_two_stacks_names_the_stack(tmp_path: Path) -> None:
    out = tmp_path / "picture.svg"
    done = CliRunner().invoke(app, ["show", "attention", "t5-mini", "--stack", "decoder", "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert "decoder" in done.stdout
    assert "decoder · relative_bias attention, causal" in out.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("source", "given", "message"),
    [
        ("elektra-mini", {}, "did you mean 'electra-mini'"),
        ("no-such.yaml", {}, r"cannot read no-such\.yaml"),
        ("classify", {}, "no model"),
        ("electra-mini", {"overrides": ["model.atention.kind=full"]}, "attention"),
        ("compare-small", {}, "compare-small .*comparison"),
        ("electra-mini", {"stack": "decoder"}, "--stack decoder "),
        ("t5-mini", {"stack": "both"}, "--stack .*'both'"),
        ("rnn-seq2seq-mini", {}, "recurrent"),
        ("electra-mini", {"length": 513}, "513 .*max_position_embeddings=512"),
        ("electra-mini", {"length": 0}, "0 .* 1 to"),
        ("electra-mini", {"layers": [2, 5]}, "--layers 5 .* 1 to 4"),
        ("electra-mini", {"layers": [0]}, "--layers 0 "),
        ("electra-mini", {"out": "picture.pdf"}, r"\.svg or \.png, .*'picture\.pdf'"),
        (
            "electra-mini",
            {"overrides": ["model.attention.kind=lsh", "model.max_position_embeddings=8192"], "length": 5000},
            " 4096",
        ),
    ],
)
def test_errors_name_the_fix(source: str, given: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        show_attention(source, given.pop("overrides", ()), **given)
