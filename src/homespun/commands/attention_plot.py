"""Plots of attention patterns and receptive fields by depth, and of the alignment of source and target tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from homespun.attention.additive import AdditiveAttention
from homespun.commands.attention_map import (
    AttentionMap,
    MultiHead,
    build_attentions,
    cell_size,
    compute_attention_map,
    needs_probe,
    pool_depth,
    receptive_field,
    shows_structure,
)
from homespun.commands.recipe import PretrainRecipe, load_recipe
from homespun.data.source_target import SourceTargetTemplate
from homespun.errors import UserError
from homespun.hf.open import open_model
from homespun.inference.generation import TextGenerator
from homespun.io.atomic import write_bytes
from homespun.models.bundle import ModelBundle
from homespun.models.config import ModelConfig
from homespun.models.encoder import EncoderConfig
from homespun.recipes import recipe_names
from homespun.report.attention import AttentionPanel, AttentionPlot, draw_alignment, draw_attention
from homespun.text.tokenizer import Tokenizer

SHORTEST, LONGEST_TRIED = 32, 4096
_HEADS, _PANELS = 4, 8  # at most so many panels of a layer, and in all, where nobody asked for a layer
T = TypeVar("T")


def show_attention(
    source: str,
    overrides: Sequence[str] = (),
    *,
    length: int | None = None,
    layers: Sequence[int] | None = None,
    stack: str | None = None,
    out: str | Path | None = None,
) -> dict[str, Any]:
    """Draw the attention of a recipe, a run or a model: what the tokens of one text see of each other.

    Args:
        source: a pretraining recipe, or whatever `homespun.hf.open.open_model` opens.
        overrides: ``KEY=VALUE`` changes to a recipe.
        length: tokens of the text; where not given, the shortest that shows the pattern.
        layers: those to draw, from 1, with all their heads; where not given, the first ones that differ. The reach is
            always through all layers.
        stack: of a model of two, ``encoder`` or ``decoder``; the encoder where not given.
        out: a .svg or .png file to write; none where not given.

    Returns:
        ``source``, ``stack`` (None of a model of one), ``length``, ``layers`` [{``layer``, ``share``: of pairs seen by
        some head, ``heads``: the share of each}], ``reached`` (after each layer, the share of pairs that may be reached
        at all: with causal attention the earlier tokens), ``all_reach_all`` (after how many layers that is 1; None: not
        within the model) and ``out``.

    Raises:
        UserError: no such recipe or model, a length beyond the model, layers or a stack that are not there, another
            suffix.
    """
    path = None if out is None else Path(out)
    if path is not None and path.suffix not in (".svg", ".png"):
        raise UserError(f"--out must end in .svg or .png, not {path.name!r}")
    stack, config = _stack(_model(source, overrides), stack)
    attentions = build_attentions(config)
    chosen = _chosen_layers(layers, len(attentions))
    length = _checked_length(length, config, attentions)
    maps = [compute_attention_map(attention, length, config) for attention in attentions]
    shares, depth = receptive_field([layer.union for layer in maps], length)
    possible = (length + 1) / (2 * length) if config.causal else 1.0
    reached = [min(1.0, share / possible) for share in shares]
    if path is not None:
        groups = _panels(maps, chosen, config.num_attention_heads)
        shown = groups if layers is not None else _first(groups)
        picture = AttentionPlot(
            title=source if source in recipe_names() else Path(source).absolute().name,
            about=_about(config, stack, length, more=shown != groups),
            length=length,
            cell=cell_size(length),
            groups=shown,
            depth=pool_depth(depth),
            reached=reached,
        )
        plot = draw_attention(picture)
        write_bytes(path, plot.svg if path.suffix == ".svg" else plot.png)
    full_depths = [layer for layer, share in enumerate(reached, start=1) if share > 1 - 0.5 / length**2]
    return {
        "source": source,
        "stack": stack,
        "length": length,
        "layers": [_layer_summary(number, maps[number - 1], config.num_attention_heads) for number in chosen],
        "reached": [round(share, 6) for share in reached],
        "all_reach_all": full_depths[0] if full_depths else None,
        "out": None if path is None else str(path),
    }


def _model(source: str, overrides: Sequence[str]) -> ModelConfig:
    known = source in recipe_names() or source.endswith((".yaml", ".yml"))
    if known or not ("/" in source or Path(source).exists()):  # of an unknown name it says which ones are near
        recipe = load_recipe(source, overrides)
        if not isinstance(recipe, PretrainRecipe):
            raise UserError(f"recipe {source!r} has no model of its own; give the run that it is to start from")
        return ModelConfig(backbone=recipe.backbone)
    if overrides:
        raise UserError(f"{overrides[0]!r}: only a recipe can be changed, and {source} is a model")
    return open_model(source).config


def _stack(model: ModelConfig, name: str | None) -> tuple[str | None, EncoderConfig]:
    """Name of the stack that is plotted, None for a model with one stack, and its config."""
    if name not in (None, "encoder", "decoder"):
        raise UserError(f"--stack is encoder or decoder, not {name!r}")
    if not model.backbone.has_decoder:
        if name is not None:
            raise UserError(f"--stack {name}: the model is one stack; leave --stack out")
        return None, model.one_stack("the picture")
    stack = model.backbone.decoder if name == "decoder" else model.backbone.encoder
    return name or "encoder", ModelConfig(backbone=stack).one_stack("the picture")


def _chosen_layers(layers: Sequence[int] | None, count: int) -> list[int]:
    if layers is None:
        return [*range(1, count + 1)]
    for number in layers:
        if not 1 <= number <= count:
            raise UserError(f"there is no layer {number}; the model has layers 1 to {count}")
    return sorted(set(layers))


def _checked_length(length: int | None, config: EncoderConfig, attentions: Sequence[MultiHead]) -> int:
    longest = config.max_position_embeddings
    tried = any(map(needs_probe, attentions))
    if length is None:
        longest = min(longest, LONGEST_TRIED) if tried else longest
        readable = SHORTEST
        while readable < longest and not all(shows_structure(attention, readable, config) for attention in attentions):
            readable *= 2
        return min(readable, longest)
    if not 1 <= length <= longest:
        raise UserError(f"--length {length} is not in 1 to max_position_embeddings={longest}, the longest input")
    if tried and length > LONGEST_TRIED:
        raise UserError(f"--length {length}: attention that is no fixed pattern is tried out, up to {LONGEST_TRIED}")
    return length


def _panels(maps: Sequence[AttentionMap], chosen: Sequence[int], heads: int) -> list[list[AttentionPanel]]:
    """Panels by group of equal layers, one panel per group of equal heads."""
    groups = []
    for numbers in _sets(chosen, lambda a, b: _equal_parts(maps[a - 1].parts, maps[b - 1].parts)):
        layer = maps[numbers[0] - 1]
        words = f"all tokens, through\n{layer.through}" if layer.through else ""
        panels = []
        for group in _sets(range(len(layer.parts)), lambda a, b, of=layer.parts: _equal_parts([of[a]], [of[b]])):  # type: ignore[misc]
            which = "all heads" if len(group) == len(layer.parts) else _numbered("head", [head + 1 for head in group])
            which = "" if heads == 1 else f" · {which}"
            title = f"{_numbered('layer', numbers)}{which}"
            panels.append(AttentionPanel(title, layer.shares[group[0]], layer.parts[group[0]], words, layer.order))
        groups.append(panels)
    return groups


def _first(groups: Sequence[list[AttentionPanel]]) -> list[list[AttentionPanel]]:
    shown: list[list[AttentionPanel]] = []
    for group in groups:
        if sum(map(len, shown)) < _PANELS:
            shown.append(group[:_HEADS])
    return shown


def _sets(items: Sequence[T], equal: Callable[[T, T], bool]) -> list[list[T]]:
    """Group equal items, in the order of their first occurrence."""
    sets: list[list[T]] = []
    for item in items:
        own = next((found for found in sets if equal(found[0], item)), None)
        if own is None:
            sets.append([item])
        else:
            own.append(item)
    return sets


def _equal_parts(one: Sequence[dict[str, np.ndarray]], other: Sequence[dict[str, np.ndarray]]) -> bool:
    return len(one) == len(other) and all(
        a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)
        for a, b in zip(one, other, strict=True)
    )


def _numbered(name: str, numbers: Sequence[int]) -> str:
    """``layer 3``, ``layers 1–4``, ``layers 1, 3, 5``."""
    if len(numbers) == 1:
        return f"{name} {numbers[0]}"
    if len(numbers) > 2 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"{name}s {numbers[0]}–{numbers[-1]}"
    return f"{name}s {', '.join(map(str, numbers))}"


def _layer_summary(number: int, layer: AttentionMap, heads: int) -> dict[str, Any]:
    shares = layer.shares * heads if len(layer.shares) == 1 else layer.shares
    union = np.unpackbits(layer.union, axis=1, count=len(layer.union)).mean()
    return {"layer": number, "share": round(float(union), 6), "heads": [round(share, 6) for share in shares]}


def _about(config: EncoderConfig, stack: str | None, length: int, *, more: bool) -> str:
    cell = cell_size(length)
    parts = [
        *([] if stack is None else [stack]),
        f"{config.attention.kind} attention{', causal' if config.causal else ''}",
        f"{config.num_hidden_layers} layers, {config.num_attention_heads} heads",
        f"{length:,} of at most {config.max_position_embeddings:,} tokens",
    ]
    if cell > 1:
        parts.append(f"a dot is {cell} × {cell} tokens")
    if more:
        parts.append("more with --layers")
    if stack == "encoder":
        parts.append("--stack decoder for the other")
    return " · ".join(parts)


_MAX_NEW_TOKENS = 64  # where no target text is given


def show_alignment(
    run: str, *, source: str, target: str | None = None, out: str | Path | None = None
) -> dict[str, Any]:
    """Draw the alignment of a pair of texts by a model that writes through additive attention.

    Args:
        run: a run or a model.
        source: the text to be read.
        target: what is written of it; what the model itself writes where not given.
        out: a .svg or .png file to write; none where not given.

    Returns:
        ``source`` and ``target``, the tokens; ``alignment``, for each of the target's the weights of the source's,
        which sum to 1; ``written`` (the text, where the model wrote it) and ``out``.

    Raises:
        UserError: a model that has no such attention, a text without tokens, another suffix.
    """
    path = None if out is None else Path(out)
    if path is not None and path.suffix not in (".svg", ".png"):
        raise UserError(f"--out must end in .svg or .png, not {path.name!r}")
    stored = open_model(run)
    attention = _attention(stored, run)
    read, written = _ids(stored, source, "--source"), None
    if target is None:
        (texts,) = TextGenerator(stored).generate([source], max_new_tokens=_MAX_NEW_TOKENS)
        target = written = texts[0].text
    target_ids = _ids(stored, target, "--target")
    weights = _weights(stored, attention, read, target_ids)
    tokens, words = _character_ids(stored.tokenizer, read), _character_ids(stored.tokenizer, target_ids)
    if path is not None:
        plot = draw_alignment(tokens, words, weights.numpy())
        write_bytes(path, plot.svg if path.suffix == ".svg" else plot.png)
    return {
        "source": tokens,
        "target": words,
        "alignment": [[round(weight, 6) for weight in row] for row in weights.tolist()],
        "written": written,
        "out": None if path is None else str(path),
    }


def _attention(stored: ModelBundle, run: str) -> AdditiveAttention:
    found = [module for module in stored.model.modules() if isinstance(module, AdditiveAttention)]
    if not found:
        raise UserError(
            f"{run} aligns no texts: it has no decoder with additive attention; take one such as a run of recipe "
            f"rnn-seq2seq-mini"
        )
    return found[0]


def _ids(stored: ModelBundle, text: str, option: str) -> list[int]:
    """Ids of a text in the template of training."""
    backbone = stored.config.backbone
    assert backbone.has_decoder
    template = SourceTargetTemplate.for_encoder_decoder(
        stored.tokenizer, bos_id=backbone.bos_token_id, eos_id=backbone.eos_token_id
    )
    (ids,) = stored.tokenizer.encode_batch([text])
    if not len(ids):
        raise UserError(f"{option} is empty; give a text")
    return [*template.before, *ids.tolist(), *template.after_source]


@torch.no_grad()
def _weights(stored: ModelBundle, attention: AdditiveAttention, source: list[int], target: list[int]) -> Tensor:
    """Attention weights of each target token, (target, source)."""
    backbone = stored.model.eval().backbone
    given = torch.tensor([[backbone.decoder_start_token_id, *target[:-1]]])
    rows: list[Tensor] = []
    hook = attention.register_forward_hook(lambda module, arguments, result: rows.append(result[1][0]))
    try:
        backbone.decode(given, backbone.encode(torch.tensor([source])))
    finally:
        hook.remove()
    return torch.stack(rows).float()


def _character_ids(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    names = tokenizer.tokens
    return [tokenizer.decode([i], skip_special_tokens=False).strip() or names[i] for i in ids]
