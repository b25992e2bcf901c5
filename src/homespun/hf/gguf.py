"""Export of a decoder to a GGUF file for llama.cpp and programs based on it."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from safetensors.torch import load_file
from torch import Tensor

from homespun.config import Tree
from homespun.errors import UserError
from homespun.hf.export import CONFIG, WEIGHTS, export_huggingface
from homespun.io.atomic import atomic_path
from homespun.io.json import read_object
from homespun.models.bundle import ModelBundle
from homespun.models.encoder import EncoderConfig
from homespun.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    import gguf

_NAMES = {"GPT2LMHeadModel": "gpt2", "LlamaForCausalLM": "llama", "Qwen3ForCausalLM": "qwen3"}
_ACTIVATIONS = {"gpt2": "gelu_new", "llama": "silu", "qwen3": "silu"}  # llama.cpp has one for each architecture
_TRANSPOSED = ("c_attn.weight", "c_proj.weight", "c_fc.weight")  # GPT-2's weights that transformers stores transposed


@dataclass(frozen=True)
class GgufReport:
    """The file, the class of transformers, and differences from the model."""

    file: str
    architecture: str
    notes: tuple[str, ...]


def export_gguf(path: str | Path, stored: ModelBundle) -> GgufReport:
    """Write a decoder with its tokenizer to ``path``, atomically, in float32; an existing file is replaced.

    Raises:
        UserError: the extra ``gguf`` is not installed; ``path`` does not end in ``.gguf``; llama.cpp does not have the
            model or its tokenizer.
    """
    path = Path(path)
    if path.suffix != ".gguf":
        raise UserError(f"--out must end in .gguf, not {path.name!r}")
    if importlib.util.find_spec("gguf") is None:
        raise UserError("GGUF needs gguf, which is not installed: pip install 'homespun[gguf]'")
    import gguf

    with TemporaryDirectory() as temporary:
        folder = Path(temporary) / "hf"
        report = export_huggingface(folder, stored)
        name = _NAMES.get(report.architecture or "")
        if name is None:
            raise UserError(f"GGUF is for {', '.join(_NAMES)}, and not for {report.architecture or 'this model'}")
        tree, tensors = read_object(folder / CONFIG), load_file(folder / WEIGHTS)
    if (activation := tree.get("activation_function", tree.get("hidden_act"))) != _ACTIVATIONS[name]:
        raise UserError(f"llama.cpp has {name} with hidden_act={_ACTIVATIONS[name]}, not {activation}")
    if name == "qwen3" and tree["attention_bias"]:
        raise UserError("llama.cpp has qwen3 without biases in the attention; set model.attention_bias=false")
    with atomic_path(path) as made:
        writer = gguf.GGUFWriter(made, name)
        _add_settings(writer, stored, tree)
        _add_tokenizer(writer, stored.tokenizer, stored.config.backbone.vocab_size)
        layers = stored.config.backbone.num_hidden_layers
        arch = next(arch for arch, known in gguf.MODEL_ARCH_NAMES.items() if known == name)
        names = gguf.get_tensor_name_map(arch, layers)
        for theirs, tensor in tensors.items():
            target = names.get_name(theirs, try_suffixes=(".weight", ".bias"))
            if target is None:
                raise UserError(f"llama.cpp has no tensor {theirs} in {name}")
            writer.add_tensor(target, _arrange(theirs, tensor, name, tree).contiguous().numpy())
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return GgufReport(str(path), report.architecture or "", report.notes)


def _add_settings(writer: gguf.GGUFWriter, stored: ModelBundle, tree: Tree) -> None:
    backbone = stored.config.backbone.stacks[0]
    assert isinstance(backbone, EncoderConfig)
    writer.add_context_length(backbone.max_position_embeddings)
    writer.add_embedding_length(backbone.hidden_size)
    writer.add_block_count(backbone.num_hidden_layers)
    writer.add_feed_forward_length(backbone.intermediate_size)
    writer.add_head_count(backbone.num_attention_heads)
    writer.add_vocab_size(backbone.vocab_size)
    if "rope_parameters" not in tree:
        writer.add_layer_norm_eps(backbone.layer_norm_eps)
        return
    writer.add_layer_norm_rms_eps(backbone.layer_norm_eps)
    writer.add_head_count_kv(tree["num_key_value_heads"])
    writer.add_rope_freq_base(tree["rope_parameters"]["rope_theta"])
    for add in (writer.add_rope_dimension_count, writer.add_key_length, writer.add_value_length):
        add(tree["head_dim"])


def _add_tokenizer(writer: gguf.GGUFWriter, tokenizer: Tokenizer, vocab_size: int) -> None:
    """Byte-level BPE that splits words as GPT-2 does, the only kind that is written.

    Raises:
        UserError: another kind.
    """
    import gguf

    tree = json.loads(tokenizer.content)
    words = tree["pre_tokenizer"] or {}
    plain = words.get("type") == "ByteLevel" and words.get("use_regex", True) and not words.get("add_prefix_space")
    if tree["model"].get("type") != "BPE" or not plain or tree.get("normalizer"):
        raise UserError(
            "GGUF is for tokenizers of kind bpe that keep upper case and split words as GPT-2 does; train one with "
            "`homespun tokenizer train`"
        )
    before = tokenizer.template[0]
    if len(before) > 1:
        raise UserError(f"llama.cpp puts at most one token before a text, and the tokenizer puts {len(before)}")
    kinds = gguf.TokenType
    added = {one["id"]: kinds.CONTROL if one["special"] else kinds.USER_DEFINED for one in tree["added_tokens"]}
    names = [*tokenizer.tokens, *[""] * (vocab_size - tokenizer.vocab_size)]
    types = [added.get(i, kinds.NORMAL) if token else kinds.UNUSED for i, token in enumerate(names)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([token or f"[UNUSED{i}]" for i, token in enumerate(names)])
    writer.add_token_types(types)
    writer.add_token_merges([pair if isinstance(pair, str) else " ".join(pair) for pair in tree["model"]["merges"]])
    writer.add_add_bos_token(bool(before))
    if before:
        writer.add_bos_token_id(before[0])
    if {"sep", "eos"} & tokenizer.roles.keys():
        writer.add_eos_token_id(tokenizer.sep_id)
    writer.add_pad_token_id(tokenizer.pad_id)


def _arrange(name: str, tensor: Tensor, family: str, tree: Tree) -> Tensor:
    """Order of llama.cpp: GPT-2's matrices are transposed, Llama's rotary halves are interleaved."""
    if family == "gpt2" and name.endswith(_TRANSPOSED):
        return tensor.T
    if family == "llama" and (".q_proj." in name or ".k_proj." in name):
        heads = tree["num_attention_heads" if ".q_proj." in name else "num_key_value_heads"]
        return tensor.reshape(heads, 2, -1, *tensor.shape[1:]).transpose(1, 2).flatten(0, 2)
    return tensor
