"""Export of an encoder to the format of sentence-transformers."""

from __future__ import annotations

import json
from pathlib import Path

from homespun.errors import UserError
from homespun.hf.export import CARD, ExportReport, export_huggingface
from homespun.models.bundle import ModelBundle
from homespun.models.model import Model

MODULES, POOLING, LENGTH = "modules.json", "1_Pooling", "sentence_bert_config.json"
_KINDS = {"": "Transformer", POOLING: "Pooling"}
_TOKENIZER = "tokenizer_config.json"


def export_sentence_transformers(folder: str | Path, stored: ModelBundle, *, max_length: int) -> ExportReport:
    """Write an encoder with mean pooling to a new folder, for ``SentenceTransformer``.

    Weights, config and tokenizer are those of `export_huggingface` without a head. A text has at most ``max_length``
    tokens, special tokens included.

    Raises:
        UserError: the model has a decoder, or no family has it.
    """
    folder, backbone = Path(folder), stored.config.backbone
    if backbone.has_decoder or backbone.causal:
        raise UserError("sentence-transformers needs an encoder, and this model has a decoder; use an encoder")
    config = stored.config.model_copy(update={"head": None})
    report = export_huggingface(folder, ModelBundle(Model(stored.model.backbone), config, stored.tokenizer))
    if report.folder is None:
        raise UserError(report.notes[0])
    modules = [
        {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for number, (path, kind) in enumerate(_KINDS.items())
    ]
    pooling = {"word_embedding_dimension": backbone.hidden_size, "pooling_mode_mean_tokens": True}
    (folder / POOLING).mkdir()
    names = json.loads((folder / _TOKENIZER).read_text(encoding="utf-8"))
    files: dict[str, object] = {
        MODULES: modules,
        f"{POOLING}/config.json": pooling,
        LENGTH: {"max_seq_length": max_length, "do_lower_case": False},
        # names of special tokens in a text are ordinary text
        _TOKENIZER: names | {"split_special_tokens": True},
    }
    for name, tree in files.items():
        (folder / name).write_text(json.dumps(tree, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    card = (folder / CARD).read_text(encoding="utf-8")
    (folder / CARD).write_text(
        card.replace("library_name: transformers", "library_name: sentence-transformers"), encoding="utf-8"
    )
    return report
