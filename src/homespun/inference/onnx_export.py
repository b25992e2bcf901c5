"""Export to ONNX for programs without torch and transformers, with a comparison of the outputs.

Sparse attention is exported as full attention with a mask, because block plans depend on the length of a text: memory
is quadratic in the length, and not linear as in the model.
"""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

import torch
from torch import Tensor, nn

from homespun.attention.blocked import Blocked
from homespun.attention.full import DotProduct
from homespun.attention.local import LocalAttention
from homespun.attention.lsh import LSH
from homespun.attention.multi_head import split_heads
from homespun.attention.sparse import GlobalAttention
from homespun.errors import UserError, first_line
from homespun.io.atomic import atomic_path
from homespun.models.config import ModelConfig
from homespun.models.model import Model
from homespun.nn.masks import Mask
from homespun.nn.recurrent import RecurrentLayer


def make_small_batch(model: Model, config: ModelConfig, lengths: tuple[int, int] = (23, 17)) -> dict[str, Tensor]:
    """Draw two random texts of at most these lengths, padded to the longer; for an encoder-decoder, targets too."""
    backbone = config.backbone
    generator = torch.Generator().manual_seed(0)

    def texts(prefix: str, longest: int, shortest: int) -> dict[str, Tensor]:
        keep = torch.arange(longest)[None] < torch.tensor([longest, shortest])[:, None]
        ids = torch.randint(backbone.vocab_size, keep.shape, generator=generator)
        return {
            f"{prefix}input_ids": ids.masked_fill(~keep, backbone.pad_token_id),
            f"{prefix}attention_mask": keep.long(),
        }

    longest, shortest = (min(length, backbone.max_position_embeddings) for length in lengths)
    given = texts("", longest, shortest)
    if model.backbone.has_decoder:  # a decoder also needs target tokens
        given |= texts("decoder_", min(7, longest), min(5, longest))
    return given


def select_real_tokens(result: Tensor, given: Mapping[str, Tensor]) -> Tensor:
    """Select the outputs of real tokens: ``result`` of the inputs ``given`` without padding."""
    keep = given.get("decoder_attention_mask", given["attention_mask"]).bool()
    return result[keep] if result.shape[:2] == keep.shape else result


_EXTRA = ("onnx", "onnxscript", "onnxruntime")
_LIMIT = 2**31  # bytes of one file of protobuf
_TOLERANCE = 1e-4  # relative to the largest value: kernels sum in another order
_MEETING = "which tokens meet is found while it runs; use another attention"
_UNWRITABLE: dict[type[nn.Module], tuple[str, str]] = {
    LSH: ("lsh attention", _MEETING),
    LocalAttention: ("local attention", _MEETING),
    RecurrentLayer: ("a recurrent network", "padded texts are packed while it runs; use one of attention"),
}
_TRIED = ((23, 17), (11, 5))  # lengths of two texts


class Comparison(TypedDict):
    """Shape of a batch, with the largest difference of the outputs."""

    shape: list[int]
    largest_difference: float


@dataclass(frozen=True)
class OnnxReport:
    """Result of an export."""

    file: str  # the ONNX file
    inputs: tuple[str, ...]  # names of the inputs, each (batch, length) int64; none for a linear model
    output: str  # name of the output, ``logits`` or ``last_hidden_state``; ``probabilities``, before ``logits``
    length: int | None  # length that texts must be padded to; None for any length up to ``max_length``
    max_length: int | None  # maximum length in tokens; None: no limit
    checked: tuple[Comparison, ...]  # comparisons with the model
    notes: tuple[str, ...]  # limits of the file


class Probabilities(nn.Module):
    """Module that returns probabilities and logits of a classifier, with the temperature of its decision rule."""

    def __init__(self, model: Model, temperature: float, *, multi_label: bool) -> None:
        super().__init__()
        self.model, self.temperature, self.multi_label = model, temperature, multi_label

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        """Compute (batch, labels) probabilities and logits from (batch, seq) ids and mask."""
        logits: Tensor = self.model(input_ids, attention_mask)
        scaled = logits / self.temperature
        return scaled.sigmoid() if self.multi_label else scaled.softmax(dim=1), logits


def export_onnx(
    path: str | Path, model: Model, config: ModelConfig, *, probabilities: Callable[[Model], nn.Module] | None = None
) -> OnnxReport:
    """Export the model's forward pass in evaluation mode to ``path``, atomically, for batches of any size.

    Before the file is renamed to ``path``, onnxruntime runs it at two lengths with padding and for one text, and its
    outputs are compared with the model's. An attention that cannot be exported for any length is exported for texts
    padded to ``max_position_embeddings`` tokens.

    Args:
        path: a file that ends in ``.onnx``; an existing file is replaced.
        model, config: parts of the model.
        probabilities: builds the `Probabilities` module of a classifier of single texts, which is then exported.

    Raises:
        UserError: the extra ``export`` is not installed; ``path`` does not end in ``.onnx``; the model has layers that
            cannot be exported, or is too large for one file.
    """
    path = Path(path)
    if path.suffix != ".onnx":
        raise UserError(f"--out must end in .onnx, not {path.name!r}")
    if why := onnx_unsupported_reason(model):
        raise UserError(why)
    if missing := [name for name in _EXTRA if importlib.util.find_spec(name) is None]:
        raise UserError(f"ONNX needs {missing[0]}, which is not installed: pip install 'homespun[export]'")
    size = sum(tensor.nbytes for tensor in model.parameters())
    if size >= _LIMIT:
        raise UserError(f"the weights are {size / 2**30:.1f} GiB, and an ONNX file holds less than 2")
    wrap = probabilities or (lambda model: model)
    module, written_out = wrap(model), wrap(_exportable_copy(model))
    longest = config.backbone.max_position_embeddings
    outputs = ["last_hidden_state" if config.head is None else "logits"]
    if probabilities is not None:
        outputs.insert(0, "probabilities")

    def batch(lengths: tuple[int, int]) -> dict[str, Tensor]:
        given = make_small_batch(model, config, lengths)
        if config.has_segments and probabilities is None:  # single texts have one segment
            ids = given["input_ids"]
            second_half = torch.arange(ids.shape[1]) >= ids.shape[1] // 2
            given["token_type_ids"] = second_half.long().expand_as(ids).contiguous()
        return given

    with atomic_path(path) as made:
        length = None
        notes = []
        if any(isinstance(module, Blocked | GlobalAttention) for module in model.modules()):
            notes.append("the attention is written out in full: memory grows with the square of the length")
        try:
            _write(made, written_out, batch(_TRIED[0]), config, length, outputs)
        except Exception as error:  # torch has many classes for graphs that it cannot export
            length, kind = longest, config.backbone.attention.kind
            try:
                _write(made, written_out, batch((longest, longest - 5)), config, length, outputs)
            except Exception as other:
                raise UserError(f"{kind} attention cannot be written as ONNX: {first_line(other)}") from error
            notes.append(f"texts must be padded to {length} tokens: {kind} attention cannot be written for any length")
        tried = _TRIED if length is None else ((length, length - 5), (length, length // 2))
        batches = [batch(lengths) for lengths in tried]
        # also test a single text of the maximal length
        batches.append({name: tensor[:1] for name, tensor in batch((longest, longest)).items()})
        checked = tuple(_check(made, module, given) for given in batches)
    return OnnxReport(str(path), tuple(batches[0]), outputs[0], length, longest, checked, tuple(notes))


def onnx_unsupported_reason(model: Model) -> str:
    """Return the reason why the model cannot be exported, with an alternative; empty if it can."""
    found = next((_UNWRITABLE[type(module)] for module in model.modules() if type(module) in _UNWRITABLE), None)
    return f"{found[0]} cannot be written as ONNX: {found[1]}, or homespun itself" if found else ""


class _DenseGlobalAttention(nn.Module):
    """`GlobalAttention` that computes all tokens as global tokens, and then selects the global ones.

    The number of global tokens depends on the data, and the shapes of a graph must not.
    """

    def __init__(self, attention: GlobalAttention) -> None:
        super().__init__()
        self.attention = attention
        self.local, self.dense = DotProduct(attention.kernel.sparse), DotProduct()
        assert attention.sparse.global_tokens is not None
        self.global_tokens = attention.sparse.global_tokens

    def forward(self, hidden: Tensor, mask: Mask) -> Tensor:
        """Map (batch, seq, hidden) to (batch, seq, hidden)."""
        own = self.attention
        heads = own.num_attention_heads
        query, key, value = (split_heads(part(hidden), heads) for part in (own.query, own.key, own.value))
        values = self.local(query, key, value, mask).transpose(1, 2).flatten(2)
        query, key, value = (
            split_heads(part(hidden), heads) for part in (own.query_global, own.key_global, own.value_global)
        )
        seen = self.dense(query, key, value, Mask(mask.keep)).transpose(1, 2).flatten(2)
        members = mask.global_mask(self.global_tokens, hidden.shape[1], hidden.device)
        return own.output(torch.where(members[..., None], seen, values))


def _exportable_copy(model: Model) -> Model:
    """Copy a model with the same weights, without block plans."""
    memo = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    model = copy.deepcopy(model, memo).eval()
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, Blocked):
                setattr(module, name, child.dense)
            elif isinstance(child, GlobalAttention):
                setattr(module, name, _DenseGlobalAttention(child))
    return model


def _write(
    path: Path,
    module: nn.Module,
    given: Mapping[str, Tensor],
    config: ModelConfig,
    length: int | None,
    outputs: list[str],
) -> None:
    backbone = config.backbone
    batch = torch.export.Dim("batch")
    longest = {"": backbone.max_position_embeddings}
    if backbone.has_decoder:
        longest["decoder_"] = backbone.decoder.max_position_embeddings
    sizes = {
        # the maximal length is tested on the file: for torch.export, a slice of the full table is another graph
        prefix: torch.export.Dim(f"{prefix}length", min=2, max=most - 1) if length is None else torch.export.Dim.STATIC
        for prefix, most in longest.items()
    }
    shapes = {name: {0: batch, 1: sizes["decoder_" if name.startswith("decoder_") else ""]} for name in given}
    with quietly(), torch.no_grad():
        graph = torch.export.export(module, (), dict(given), dynamic_shapes=shapes, strict=False)
        program = torch.onnx.export(graph, input_names=list(given), output_names=outputs, dynamo=True, verbose=False)
    if program is None:
        raise RuntimeError("torch.onnx.export returned no program")
    program.save(str(path))


def _check(path: Path, module: nn.Module, given: Mapping[str, Tensor]) -> Comparison:
    """Run the file, and compare its outputs with the model's."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    found = session.run(None, {name: tensor.numpy() for name, tensor in given.items()})
    with torch.no_grad():
        results = module(**given)
    differences = []
    for output, result in zip(found, results if isinstance(results, tuple) else (results,), strict=True):
        expected, actual = select_real_tokens(result, given), select_real_tokens(torch.from_numpy(output), given)
        differences.append(float((expected - actual).abs().max()))
        if not differences[-1] <= _TOLERANCE * max(1.0, float(expected.abs().max())):
            raise RuntimeError(f"outputs of {path.name} differ by {differences[-1]:g} from the model's")
    return {"shape": list(given["input_ids"].shape), "largest_difference": max(differences)}


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Suppress the output of the exporters, which only concerns their internals."""
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        before = logging.root.manager.disable
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(before)
