"""Writing a model as an ONNX file, for programs that have neither torch nor transformers; checked against the model.

The graph is exact attention written out, every pattern as a table of all pairs, because blocks are planned in Python by
the length of a text: memory grows with the square of the length, where the model's own grows with the length.
"""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import io
import logging
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from homespun.attention.blocked import Blocked
from homespun.attention.full import DotProduct
from homespun.attention.global_attention import GlobalAttention
from homespun.attention.local import LocalAttention
from homespun.attention.lsh import LSH
from homespun.attention.multi_head import split_heads
from homespun.errors import UserError, first_line
from homespun.inference.checks import make_small_batch, select_real_tokens
from homespun.io.atomic import atomic_path
from homespun.models.config import ModelConfig
from homespun.models.encoder_decoder import EncoderDecoderConfig
from homespun.models.model import Model
from homespun.nn.masks import Mask
from homespun.nn.recurrent import RecurrentLayer

_EXTRA = ("onnx", "onnxscript", "onnxruntime")
_LIMIT = 2**31  # bytes of one file of protobuf
_TOLERANCE = 1e-4  # of the largest value: another library's kernels add up in another order
_MEETING = "which tokens meet is found while it runs; use another attention"
_UNWRITABLE: dict[type[nn.Module], tuple[str, str]] = {
    LSH: ("lsh attention", _MEETING),
    LocalAttention: ("local attention", _MEETING),
    RecurrentLayer: ("a recurrent network", "padded texts are packed while it runs; use one of attention"),
}
_TRIED = ((23, 17), (11, 5))  # texts of these lengths


@dataclass(frozen=True)
class OnnxReport:
    """An ONNX file that was written and run.

    Args:
        file: where it is.
        inputs: their names, each (batch, length) int64.
        output: its name, ``logits`` or ``last_hidden_state``.
        length: the one that texts must be padded to; None: any, up to ``max_length``.
        max_length: in tokens.
        checked: of each batch that was tried, its shape and the largest difference from the model.
        notes: what its user should know.
    """

    file: str
    inputs: tuple[str, ...]
    output: str
    length: int | None
    max_length: int
    checked: tuple[dict[str, Any], ...]
    notes: tuple[str, ...]


def export_onnx(path: str | Path, model: Model, config: ModelConfig) -> OnnxReport:
    """Write ``path`` whole or not at all: the model's forward pass in evaluation mode, for batches of any size.

    The file is run by onnxruntime before it is there, at two lengths with padding and for one text, and compared with
    the model. Where an attention cannot be written for any length, it is written for texts of exactly
    ``max_position_embeddings`` tokens, padding counted.

    Raises:
        UserError: the extra ``export`` is not installed; the file is to be something else than ``.onnx``; the model
            has an attention that cannot be written, or is too large for one file.
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
    written_out = _exportable_copy(model)
    longest = config.backbone.max_position_embeddings
    output = "last_hidden_state" if config.head is None else "logits"
    with atomic_path(path) as made:
        length = None
        notes = []
        if any(isinstance(module, Blocked | GlobalAttention) for module in model.modules()):
            notes.append("the attention is written out in full: memory grows with the square of the length")
        try:
            _write(made, written_out, _batch(model, config, _TRIED[0]), config, length, output)
        except Exception as error:  # torch has a class of its own for each way in which a graph cannot be taken
            length, kind = longest, config.backbone.attention.kind
            try:
                _write(made, written_out, _batch(model, config, (longest, longest - 5)), config, length, output)
            except Exception as other:
                raise UserError(f"{kind} attention cannot be written as ONNX: {first_line(other)}") from error
            notes.append(f"texts must be padded to {length} tokens: {kind} attention cannot be written for any length")
        tried = _TRIED if length is None else ((length, length - 5), (length, length // 2))
        batches = [_batch(model, config, lengths) for lengths in tried]
        # and one text alone, as long as can be
        batches.append({name: tensor[:1] for name, tensor in _batch(model, config, (longest, longest)).items()})
        checked = tuple(_check(made, model, batch) for batch in batches)
    inputs = tuple(_batch(model, config, _TRIED[1]))
    return OnnxReport(str(path), inputs, output, length, longest, checked, tuple(notes))


def onnx_unsupported_reason(model: Model) -> str:
    """Which of its layers no file can hold, and what to do; nothing where there is none."""
    found = next((_UNWRITABLE[type(module)] for module in model.modules() if type(module) in _UNWRITABLE), None)
    return f"{found[0]} cannot be written as ONNX: {found[1]}, or homespun itself" if found else ""


class _DenseGlobalAttention(nn.Module):
    """`GlobalAttention` that projects every token as a global one too, and then takes those that are.

    How many tokens are global depends on the data, and so would the shapes of the graph.
    """

    def __init__(self, attention: GlobalAttention) -> None:
        super().__init__()
        self.attention = attention
        self.local, self.dense = DotProduct(attention.kernel.sparse), DotProduct()
        members = attention.sparse.global_tokens
        if members is None:
            raise ValueError("there are no global tokens")
        self.global_tokens = members

    def forward(self, hidden: Tensor, mask: Mask) -> Tensor:
        """(batch, seq, hidden) -> (batch, seq, hidden)."""
        own = self.attention
        heads = own.num_attention_heads
        query, key, value = (split_heads(part(hidden), heads) for part in (own.query, own.key, own.value))
        values = self.local(query, key, value, mask).transpose(1, 2).flatten(2)
        query, key, value = (
            split_heads(part(hidden), heads) for part in (own.query_global, own.key_global, own.value_global)
        )
        seen = self.dense(query, key, value, Mask(mask.keep)).transpose(1, 2).flatten(2)
        members = mask.global_mask(self.global_tokens, hidden.shape[1], hidden.device)
        mixed: Tensor = own.output(torch.where(members[..., None], seen, values))
        return mixed


def _exportable_copy(model: Model) -> Model:
    """A copy with the same weights that plans no blocks."""
    memo = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    model = copy.deepcopy(model, memo).eval()
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, Blocked):
                setattr(module, name, child.dense)
            elif isinstance(child, GlobalAttention):
                setattr(module, name, _DenseGlobalAttention(child))
    return model


def _batch(model: Model, config: ModelConfig, lengths: tuple[int, int]) -> dict[str, Tensor]:
    given = make_small_batch(model, config, lengths)
    if config.backbone.type_vocab_size > 1:
        half = torch.arange(given["input_ids"].shape[1]) >= given["input_ids"].shape[1] // 2
        given["token_type_ids"] = half.long().expand_as(given["input_ids"]).contiguous()
    return given


def _write(
    path: Path, model: Model, given: Mapping[str, Tensor], config: ModelConfig, length: int | None, output: str
) -> None:
    backbone = config.backbone
    batch = torch.export.Dim("batch")
    longest = {"": backbone.max_position_embeddings}
    if isinstance(backbone, EncoderDecoderConfig):
        longest["decoder_"] = backbone.decoder.max_position_embeddings
    sizes = {
        # the longest of all is tried on the file: for torch.export, a table cut to its own length is another graph
        prefix: torch.export.Dim(f"{prefix}length", min=2, max=most - 1) if length is None else torch.export.Dim.STATIC
        for prefix, most in longest.items()
    }
    shapes = {name: {0: batch, 1: sizes["decoder_" if name.startswith("decoder_") else ""]} for name in given}
    with _quietly(), torch.no_grad():
        graph = torch.export.export(model, (), dict(given), dynamic_shapes=shapes, strict=False)
        program = torch.onnx.export(graph, input_names=list(given), output_names=[output], dynamo=True, verbose=False)
    if program is None:
        raise RuntimeError("torch.onnx gave no program")
    program.save(str(path))


def _check(path: Path, model: Model, given: Mapping[str, Tensor]) -> dict[str, Any]:
    """Run the file, and compare what it gives."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    found = torch.from_numpy(session.run(None, {name: tensor.numpy() for name, tensor in given.items()})[0])
    with torch.no_grad():
        result = model(**given)
    expected, actual = select_real_tokens(result, given), select_real_tokens(found, given)
    difference = float((expected - actual).abs().max())
    if not difference <= _TOLERANCE * max(1.0, float(expected.abs().max())):
        raise RuntimeError(f"{path.name} gives results that differ by {difference:g} from the model's")
    return {"shape": list(given["input_ids"].shape), "largest_difference": difference}


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """What exporters say on the way is about their own insides."""
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
