"""Small random models of transformers, with sizes that differ from one another, and tokenizers made on the spot."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer as Engine
from tokenizers import models, pre_tokenizers, processors, trainers

from homespun.errors import UserError
from homespun.hf.engine import to_hf
from homespun.hf.export import ExportReport, export_huggingface
from homespun.hf.families import FAMILIES
from homespun.hf.family import STORED
from homespun.hf.open import open_huggingface, open_model
from homespun.models.bundle import ModelBundle, weights_of
from homespun.models.config import ModelConfig
from homespun.models.model import Model
from homespun.text.tokenizer import Tokenizer

TEXTS = [
    "The quick brown fox jumps over the lazy dog, again and again.",
    "Small models spun from your own text, on your own machine.",
    "A tokenizer turns words into numbers; numbers into words it turns back.",
    "Revenue rose by seven percent; costs fell by three.",
] * 5

SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 33,
    "num_hidden_layers": 3,
    "num_attention_heads": 11,
    "intermediate_size": 47,
    "max_position_embeddings": 29,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-6,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "initializer_range": 0.3,  # large enough that activations, norms and their epsilon leave traces
}
# a Reformer of these sizes: 24 positions, which are whole chunks of both kinds, and all of them
REFORMER: dict[str, Any] = {
    "max_position_embeddings": 24,
    "attn_layers": ["local", "lsh", "local"],
    "attention_head_size": 3,
    "axial_pos_shape": [4, 6],
    "axial_pos_embds_dim": [12, 21],
    "hash_seed": 11,
    "num_hashes": 2,
    "num_buckets": [2, 4],
    "lsh_attn_chunk_length": 4,
    "local_attn_chunk_length": 3,
    "local_attention_probs_dropout_prob": 0.0,
}
# the decoder of a family whose settings are named as BART's
DECODER: dict[str, Any] = {"decoder_layers": 2, "decoder_attention_heads": 3, "decoder_ffn_dim": 41}
# a ProphetNet of these sizes
PROPHETNET: dict[str, Any] = {
    "num_decoder_layers": 2,
    "num_decoder_attention_heads": 3,
    "decoder_ffn_dim": 41,
    "ngram": 3,
    "num_buckets": 6,
    "relative_max_distance": 9,
    "activation_dropout": 0.0,
    "pad_token_id": 0,
    "bos_token_id": 3,
    "eos_token_id": 5,
    "decoder_start_token_id": 6,
}
LENGTHS = (19, 7, 13)
# classes that have a new pooler unless ``add_pooling_layer=False``
POOLED = ("BertModel", "RobertaModel", "LongformerModel", "BigBirdModel", "AlbertModel")


def bert_tokenizer() -> Tokenizer:
    """89 tokens, [PAD] 0."""
    return Tokenizer.train(TEXTS, kind="wordpiece", vocab_size=89)


def roberta_tokenizer(path: Path) -> Tokenizer:
    """At most 89 tokens, named and numbered as RoBERTa's: <s> 0, <pad> 1, </s> 2."""
    engine = Engine(models.WordLevel(unk_token="<unk>"))
    engine.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    engine.train_from_iterator(TEXTS, trainers.WordLevelTrainer(vocab_size=89, special_tokens=special))
    engine.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    engine.save(str(path))
    return Tokenizer.load(path)


def their_model(cls: Any, **settings: Any) -> Any:
    """A model of transformers whose every parameter is random, norms and biases too; settings are under our names."""
    family = next(family for family in FAMILIES if family.model_type == cls.config_class.model_type)
    sizes = {family.key(name): value for name, value in (SIZES | settings).items()}
    known = {key: value for key, value in sizes.items() if key in family.defaults or key not in SIZES}
    model = cls(cls.config_class(**known))
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not parameter.requires_grad:  # a table that is computed, such as PEGASUS's positions
                continue
            noise = torch.randn(parameter.shape, generator=generator) * 0.3
            norm = name.endswith("weight") and parameter.dim() == 1
            parameter.copy_(1 + noise if norm else noise)
        for name, buffer in model.named_buffers():
            if name == "final_logits_bias":
                buffer.normal_(generator=generator)
    return model.eval()


def save_theirs(folder: Path, name: str, **settings: Any) -> Any:
    """Save a random model of a class of transformers, with `bert_tokenizer`; return it."""
    theirs = their_model(getattr(pytest.importorskip("transformers"), name), **settings)
    theirs.save_pretrained(folder)
    bert_tokenizer().save(folder)
    return theirs


def save_random(folder: Path, name: str, **settings: Any) -> Path:
    """Save random weights and the config of a class of transformers, without transformers; return the folder."""
    family, architecture = next((f, a) for f in FAMILIES for a in f.architectures if a.name == name)
    sizes = {family.key(key): value for key, value in SIZES.items()} | settings | {"architectures": [name]}
    config = family.read_as(architecture, sizes, source="test")
    torch.manual_seed(13)
    theirs = to_hf(family.table + architecture.table, weights_of(config.build()), config.backbone)
    folder.mkdir()
    save_file({name: tensor.contiguous() for name, tensor in theirs.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(family.write_config(architecture, config)))
    bert_tokenizer().save(folder)
    return folder


def refused(source: str | Path, **given: Any) -> str:
    """The one line with which `open_model` refuses a folder."""
    with pytest.raises(UserError) as caught:
        open_model(source, **given)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def edit_config(folder: Path, **values: Any) -> None:
    """Change settings of a config.json; ``...`` removes one."""
    tree = json.loads((folder / "config.json").read_text()) | values
    (folder / "config.json").write_text(json.dumps({key: value for key, value in tree.items() if value is not ...}))


def fix_random_blocks(model: Any, length: int) -> list[list[Any]]:
    """Make a BigBird see in evaluation the random blocks that it draws in training, for batches of this length.

    Returns them: of each layer, and of each of its heads, (blocks - 2, drawn), without the first and the last block.
    """
    training = model.training
    tables = []
    sparse = [module for module in model.modules() if type(module).__name__.endswith("BlockSparseAttention")]
    for number, attention in enumerate(sparse):
        padded = -(-length // attention.block_size) * attention.block_size
        lengths, counts = attention._get_rand_attn_plan(padded, attention.block_size, attention.num_random_blocks)
        draw, size = attention._bigbird_block_rand_mask_with_head, attention.block_size
        np.random.seed(number)  # as their forward does
        model.train()
        drawn = draw(padded, padded, size, size, attention.num_attention_heads, lengths, counts)
        model.train(training)

        def seen(draw: Any = draw, drawn: Any = drawn, attention: Any = attention, **settings: Any) -> Any:
            return draw(**settings) if attention.training else drawn

        attention._bigbird_block_rand_mask_with_head = seen
        tables.append([head.tolist() for head in drawn])
    return tables


def inputs(
    *, pad_id: int, segments: int = 2, vocab_size: int = 89, lengths: tuple[int, ...] = LENGTHS, seed: int = 5
) -> dict[str, torch.Tensor]:
    """Texts of these lengths, padded on the right; token types where there are any segments."""
    generator = torch.Generator().manual_seed(seed)
    keep = torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]
    ids = torch.randint(7, vocab_size, keep.shape, generator=generator).masked_fill(~keep, pad_id)
    given = {"input_ids": ids, "attention_mask": keep.long()}
    if segments:
        given["token_type_ids"] = torch.randint(0, segments, keep.shape, generator=generator).masked_fill(~keep, 0)
    return given


def decoder_inputs(*, pad_id: int, vocab_size: int = 89, lengths: tuple[int, ...] = (11, 17, 5)) -> dict[str, Any]:
    """What the decoder reads beside the texts of `inputs`: others, of other lengths."""
    given = inputs(pad_id=pad_id, segments=0, vocab_size=vocab_size, lengths=lengths, seed=7)
    return {f"decoder_{name}": tensor for name, tensor in given.items()}


def chosen(given: dict[str, torch.Tensor]) -> torch.Tensor:
    """(batch, seq) 0/1: some real tokens of each text, more of one than of another."""
    generator = torch.Generator().manual_seed(17)
    chosen = torch.rand(given["attention_mask"].shape, generator=generator) < 0.2
    return chosen.long() * given["attention_mask"]


def check_export(
    folder: Path, model: Model, config: ModelConfig, name: str, *, tokenizer: Tokenizer, tolerance: float = 1e-5
) -> ExportReport:
    """Export a model as class ``name``; what transformers and we read from the folder gives the same outputs."""
    transformers = pytest.importorskip("transformers")
    report = export_huggingface(folder, ModelBundle(model, config, tokenizer))
    assert report.architecture == name
    pooler = config.head is not None and config.head.kind == "pooler"
    back = open_huggingface(folder, head="pooler" if pooler else STORED).stored
    cls = getattr(transformers, name)
    bare = {"add_pooling_layer": False} if name in POOLED and not pooler else {}
    theirs, info = cls.from_pretrained(folder, output_loading_info=True, **bare)
    assert not any(info.values()), info
    segments = getattr(config.backbone, "type_vocab_size", 0)
    given = inputs(pad_id=tokenizer.pad_id, segments=segments if segments > 1 else 0)
    keep = given["attention_mask"].bool()
    if config.backbone.kind == "encoder_decoder":
        given |= decoder_inputs(pad_id=tokenizer.pad_id)
        keep = given["decoder_attention_mask"].bool()
    ours = model.backbone if back.config.head is None else model  # a head without a class is not written
    with torch.no_grad():
        expected, result, again = ours(**given), theirs.eval()(**given), back.model(**given)
    found = result.pooler_output if pooler else result.get("logits", result.get("last_hidden_state"))
    real = keep if expected.shape[:2] == keep.shape else slice(None)
    assert expected[real].std() > 0.05
    for other in (found, again):
        torch.testing.assert_close(other[real], expected[real], atol=tolerance, rtol=1e-5)
    return report
