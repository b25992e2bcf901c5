"""Plots of attention patterns and receptive fields by depth, and of the alignment of source and target tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

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
    token_names,
)
from homespun.commands.recipe import PretrainRecipe, load_recipe
from homespun.config import Tree
from homespun.data.source_target import SourceTargetTemplate
from homespun.errors import UserError, quantity
from homespun.hf.open import open_model
from homespun.inference.generation import TextGenerator
from homespun.models.bundle import ModelBundle
from homespun.models.config import ModelConfig
from homespun.models.encoder import EncoderConfig
from homespun.recipes import recipe_names
from homespun.report.attention import AttentionPanel, AttentionPlot, draw_alignment, draw_attention

SHORTEST, LONGEST_TRIED = 32, 4096  # tokens; attention without a fixed pattern is probed up to the second
_MAX_HEADS, _MAX_PANELS = 4, 8  # panels per layer, and number from which no layer is added; without --layers
_MAX_NEW_TOKENS = 64


def show_attention(
    source: str,
    overrides: Sequence[str] = (),
    *,
    length: int | None = None,
    layers: Sequence[int] | None = None,
    stack: str | None = None,
    out: str | Path | None = None,
) -> Tree:
    """Plot the attention pattern of a recipe, a run or a model, and its receptive field by depth.

    Args:
        source: a pretraining recipe, or a model for `homespun.hf.open.open_model`.
        overrides: ``KEY=VALUE`` changes to a recipe.
        length: number of tokens; by default the smallest that shows the pattern.
        layers: layers to plot, from 1, with all heads; by default the first layers that differ. The receptive field
            always includes all layers.
        stack: ``encoder`` (default) or ``decoder`` of an encoder-decoder.
        out: a .svg or .png file to write; no file by default.

    Returns:
        ``source``, ``stack`` (None for a model with one stack), ``length``, ``out``.
        ``layers``: for each layer its number ``layer``, ``share`` of all pairs of tokens that any head attends to, and
        ``heads``, the share of each head.
        ``reached``: after each layer, the share of pairs in the receptive field, of those that causality allows.
        ``all_reach_all``: number of layers after which that share is 1; None if it is never.

    Raises:
        UserError: there is no such recipe, model, layer or stack, ``length`` exceeds the model's maximum, or ``out``
            has another suffix.
    """
    path = _picture_path(out)
    stack, config = _select_stack(_model_config(source, overrides), stack)
    attentions = build_attentions(config)
    chosen = _chosen_layers(layers, len(attentions))
    length = _checked_length(length, config, attentions)
    maps = [compute_attention_map(attention, length, config) for attention in attentions]
    shares, depth = receptive_field([layer.union for layer in maps], length)
    possible = (length + 1) / (2 * length) if config.causal else 1.0
    reached = [min(1.0, share / possible) for share in shares]
    if path is not None:
        groups = _panels(maps, chosen, config.num_attention_heads)
        shown = groups if layers is not None else _first_panels(groups)
        picture = AttentionPlot(
            title=source if source in recipe_names() else Path(source).absolute().name,
            about=_describe(config, stack, length, more=shown != groups),
            length=length,
            cell=cell_size(length),
            groups=shown,
            depth=pool_depth(depth),
            reached=reached,
        )
        draw_attention(picture).write(path)
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


def _picture_path(out: str | Path | None) -> Path | None:
    path = None if out is None else Path(out)
    if path is not None and path.suffix not in (".svg", ".png"):
        raise UserError(f"--out must end in .svg or .png, not {path.name!r}")
    return path


def _model_config(source: str, overrides: Sequence[str]) -> ModelConfig:
    is_recipe = source in recipe_names() or source.endswith((".yaml", ".yml"))
    # the error of load_recipe suggests similar recipes for an unknown name
    if is_recipe or not ("/" in source or Path(source).exists()):
        recipe = load_recipe(source, overrides)
        if not isinstance(recipe, PretrainRecipe):
            raise UserError(f"fine-tuning recipe {source!r} has no model; give the run or model that it starts from")
        return ModelConfig(backbone=recipe.backbone)
    if overrides:
        raise UserError(f"{overrides[0]!r} changes a recipe, but {source} is a model; leave it out")
    return open_model(source).config


def _select_stack(model: ModelConfig, name: str | None) -> tuple[str | None, EncoderConfig]:
    """Name and config of the stack to plot; the name is None for a model with one stack."""
    if name not in (None, "encoder", "decoder"):
        raise UserError(f"--stack must be encoder or decoder, not {name!r}")
    if not model.backbone.has_decoder:
        if name is not None:
            raise UserError(f"--stack {name} needs an encoder-decoder; leave it out for a model with one stack")
        return None, model.one_stack("the picture")
    stack = model.backbone.decoder if name == "decoder" else model.backbone.encoder
    return name or "encoder", ModelConfig(backbone=stack).one_stack("the picture")


def _chosen_layers(layers: Sequence[int] | None, count: int) -> list[int]:
    if layers is None:
        return [*range(1, count + 1)]
    for number in layers:
        if not 1 <= number <= count:
            raise UserError(f"--layers {number} must be in 1 to {count}, the layers of the model")
    return sorted(set(layers))


def _checked_length(length: int | None, config: EncoderConfig, attentions: Sequence[MultiHead]) -> int:
    longest = config.max_position_embeddings
    probed = any(map(needs_probe, attentions))
    if length is None:
        longest = min(longest, LONGEST_TRIED) if probed else longest
        length = SHORTEST
        while length < longest and not all(shows_structure(attention, length, config) for attention in attentions):
            length *= 2
        return min(length, longest)
    if not 1 <= length <= longest:
        raise UserError(f"--length {length} must be in 1 to max_position_embeddings={longest}")
    if probed and length > LONGEST_TRIED:
        raise UserError(
            f"--length {length} exceeds {LONGEST_TRIED}, the maximum for attention without a fixed pattern; lower it"
        )
    return length


def _panels(maps: Sequence[AttentionMap], chosen: Sequence[int], heads: int) -> list[list[AttentionPanel]]:
    """Panels for each group of equal layers, one panel per group of equal heads."""
    groups = []
    for indices in _group_equal(maps[number - 1].parts for number in chosen):
        numbers = [chosen[index] for index in indices]
        layer = maps[numbers[0] - 1]
        note = f"all tokens, through\n{layer.through}" if layer.through else ""
        panels = []
        for group in _group_equal([parts] for parts in layer.parts):
            title = _numbered("layer", numbers)
            if heads > 1:
                all_heads = len(group) == len(layer.parts)
                title += f" · {'all heads' if all_heads else _numbered('head', [head + 1 for head in group])}"
            panels.append(AttentionPanel(title, layer.shares[group[0]], layer.parts[group[0]], note, layer.order))
        groups.append(panels)
    return groups


def _first_panels(groups: Sequence[list[AttentionPanel]]) -> list[list[AttentionPanel]]:
    shown: list[list[AttentionPanel]] = []
    for group in groups:
        if sum(map(len, shown)) < _MAX_PANELS:
            shown.append(group[:_MAX_HEADS])
    return shown


def _group_equal(items: Iterable[Sequence[dict[str, np.ndarray]]]) -> list[list[int]]:
    """Return the indices of equal items, in the order of their first occurrence; an item has the parts of heads."""
    groups: dict[object, list[int]] = {}
    for index, heads in enumerate(items):
        key = tuple(tuple((name, parts[name].tobytes()) for name in sorted(parts)) for parts in heads)
        groups.setdefault(key, []).append(index)
    return list(groups.values())


def _numbered(name: str, numbers: Sequence[int]) -> str:
    """``layer 3``, ``layers 1–4``, ``layers 1, 3, 5``."""
    if len(numbers) == 1:
        return f"{name} {numbers[0]}"
    if len(numbers) > 2 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"{name}s {numbers[0]}–{numbers[-1]}"
    return f"{name}s {', '.join(map(str, numbers))}"


def _layer_summary(number: int, layer: AttentionMap, heads: int) -> Tree:
    shares = layer.shares * heads if len(layer.shares) == 1 else layer.shares
    union = np.unpackbits(layer.union, axis=1, count=len(layer.union)).mean()
    return {"layer": number, "share": round(float(union), 6), "heads": [round(share, 6) for share in shares]}


def _describe(config: EncoderConfig, stack: str | None, length: int, *, more: bool) -> str:
    cell = cell_size(length)
    parts = [
        *([] if stack is None else [stack]),
        f"{config.attention.kind} attention{', causal' if config.causal else ''}",
        f"{quantity(config.num_hidden_layers, 'layer')}, {quantity(config.num_attention_heads, 'head')}",
        f"{length:,} of at most {config.max_position_embeddings:,} tokens",
    ]
    if cell > 1:
        parts.append(f"a dot is {cell} × {cell} tokens")
    if more:
        parts.append("more with --layers")
    if stack == "encoder":
        parts.append("--stack decoder for the other")
    return " · ".join(parts)


def show_alignment(run: str, *, source: str, target: str | None = None, out: str | Path | None = None) -> Tree:
    """Plot the attention of each target token to the source tokens, in a model with additive attention.

    Args:
        run: a run or a model.
        source: source text.
        target: target text; by default the model generates it.
        out: a .svg or .png file to write; no file by default.

    Returns:
        ``source`` and ``target``: tokens. ``alignment``: for each target token the attention probabilities of the
        source tokens. ``written``: the generated text; None with ``target``. ``out``: the file.

    Raises:
        UserError: the model has no additive attention, a text is empty, or ``out`` has another suffix.
    """
    path = _picture_path(out)
    stored = open_model(run)
    attention = _find_attention(stored, run)
    source_ids, generated = _encode(stored, source, "--source"), None
    if target is None:
        (texts,) = TextGenerator(stored).generate([source], max_new_tokens=_MAX_NEW_TOKENS)
        target = generated = texts[0].text
    target_ids = _encode(stored, target, "--target")
    weights = _attention_weights(stored, attention, source_ids, target_ids)
    source_tokens, target_tokens = (token_names(stored.tokenizer, ids) for ids in (source_ids, target_ids))
    if path is not None:
        draw_alignment(source_tokens, target_tokens, weights.numpy()).write(path)
    return {
        "source": source_tokens,
        "target": target_tokens,
        "alignment": [[round(weight, 6) for weight in row] for row in weights.tolist()],
        "written": generated,
        "out": None if path is None else str(path),
    }


def _find_attention(stored: ModelBundle, run: str) -> AdditiveAttention:
    attentions = [module for module in stored.model.modules() if isinstance(module, AdditiveAttention)]
    if not attentions:
        raise UserError(
            f"{run} has no decoder with additive attention, which aligns texts; use a run of a recipe such as "
            f"rnn-seq2seq-mini"
        )
    return attentions[0]


def _encode(stored: ModelBundle, text: str, option: str) -> list[int]:
    """Token ids of a text with the special tokens of training."""
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
def _attention_weights(
    stored: ModelBundle, attention: AdditiveAttention, source: list[int], target: list[int]
) -> Tensor:
    """Attention probabilities of each target token, (target, source)."""
    backbone = stored.model.eval().backbone
    decoder_input_ids = torch.tensor([[backbone.decoder_start_token_id, *target[:-1]]])
    rows: list[Tensor] = []
    hook = attention.register_forward_hook(lambda module, arguments, result: rows.append(result[1][0]))
    try:
        backbone.decode(decoder_input_ids, backbone.encode(torch.tensor([source])))
    finally:
        hook.remove()
    return torch.stack(rows).float()
