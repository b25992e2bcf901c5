"""Settings of config.json that are refused, for every family: one line that names the setting."""

from pathlib import Path
from typing import Any

import pytest
from hf_peers import REFORMER, edit_config, refused, save_random

BIG_BIRD = {"block_size": 5, "num_random_blocks": 1}
DEBERTA = {"relative_attention": True, "pos_att_type": "p2c|c2p", "position_biased_input": False}
DEBERTA_V3 = DEBERTA | {"position_buckets": 8, "share_att_key": True, "norm_rel_ebd": "layer_norm"}
ROTARY = {"hidden_size": 42, "num_attention_heads": 3, "pad_token_id": 0}
NANOCHAT = ROTARY | {"final_logit_softcapping": None}
T5 = {"d_kv": 5, "relative_attention_num_buckets": 10, "relative_attention_max_distance": 11}
LINEAR = {"rope_type": "linear", "rope_theta": 9.0, "factor": 2.0}
UNSCALED = {"rope_type": "default", "rope_theta": 9.0}
# name: the class and the settings of a model that is opened
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BertForMaskedLM", {}),
    "bert-classification": ("BertForSequenceClassification", {"id2label": {"0": "a", "1": "b"}}),
    "bert-lm": ("BertLMHeadModel", {"is_decoder": True}),
    "electra-lm": ("ElectraForCausalLM", {"is_decoder": True}),
    "longformer": ("LongformerForMaskedLM", {"attention_window": 6}),
    "big_bird": ("BigBirdForMaskedLM", BIG_BIRD),
    "big_bird-lm": ("BigBirdForCausalLM", {"is_decoder": True, "attention_type": "original_full"}),
    "deberta": ("DebertaModel", DEBERTA),
    "deberta_v3": ("DebertaV2ForSequenceClassification", DEBERTA_V3),
    "gpt2": ("GPT2LMHeadModel", {}),
    "reformer": ("ReformerForMaskedLM", REFORMER),
    "nanochat": ("NanoChatForCausalLM", NANOCHAT),
    "modernbert": ("ModernBertForMaskedLM", ROTARY),
    "llama": ("LlamaForCausalLM", ROTARY),
    "qwen3": ("Qwen3Model", ROTARY),
    "eurobert": ("EuroBertForMaskedLM", ROTARY),
    "eurobert-classification": ("EuroBertForSequenceClassification", ROTARY | {"classifier_pooling": "mean"}),
    "t5": ("T5Model", T5),
}
REFUSED: dict[str, list[tuple[dict[str, Any], str]]] = {
    "bert": [
        ({"model_type": "mamba"}, "model_type='mamba'"),
        ({"model_type": ...}, "model_type=None"),
        ({"model_type": ["bert"]}, "model_type=["),
        ({"auto_map": {"AutoModel": "modeling.Model"}}, "never run"),
        ({"architectures": ["BertForMultipleChoice"]}, "architectures="),
        ({"architectures": "BertModel"}, "architectures="),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type='relative_key' is not supported"),
        ({"is_decoder": True}, "is_decoder=True is not supported by BertForMaskedLM, only False"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"hidden_act": "mish"}, "unknown activation 'mish'"),
        ({"hidden_size": "wide"}, "hidden_size"),
        ({"pad_token_id": "x"}, "pad_token_id must"),
        ({"pad_token_id": 97}, "pad_token_id=97 "),
        ({"num_hidden_layers": 10**12}, "but weights for at most"),
        ({"num_attention_heads": 7}, "must be a multiple"),
        ({"hidden_size": 44}, "bert.embeddings.word_embeddings.weight has shape (97, 33)"),
        ({"vocab_size": 10**13}, "but (10000000000000, 33) by the config"),
        ({"num_hidden_layers": 4}, "lacks 16 tensors"),
        ({"num_hidden_layers": 2}, "16 unknown tensors"),
    ],
    "bert-classification": [
        ({"id2label": {"0": "a"}, "num_labels": 1}, "one class"),
        ({"id2label": {}, "problem_type": None}, "0 classes"),
        ({"id2label": None, "num_labels": "two"}, "'two' classes"),
        ({"problem_type": "regression"}, "regression of several numbers"),
        ({"id2label": {"0": "a", "2": "b"}}, "the classes"),
        ({"id2label": {"0": "a", "1": "a"}}, "the classes"),
        ({"id2label": {"x": "a", "y": "b"}}, "numbers to names"),
        ({"id2label": ["a", "b"]}, "numbers to names"),
        ({"id2label": {"0": "a", "1": "b", "2": "c"}}, "has shape (2, 33), but (3, 33) by the config"),
        ({"classifier_dropout": 2}, "dropout"),
    ],
    "bert-lm": [
        ({"is_decoder": False}, "is_decoder=False is not supported by BertLMHeadModel, only True"),
        ({"add_cross_attention": True}, "add_cross_attention=True is not"),
    ],
    "electra-lm": [({"is_decoder": False}, "is_decoder=False is not supported by ElectraForCausalLM, only True")],
    "longformer": [
        ({"attention_window": window}, f"attention_window={window!r} must be an even positive number")
        for window in (5, 0, -2, "wide", [4, 4, 3], [], True)
    ],
    "big_bird": [
        ({"attention_type": "sparse"}, "attention_type='sparse' is not supported"),
        ({"use_bias": False}, "use_bias=False is not supported, only True"),
        ({"rescale_embeddings": True}, "rescale_embeddings=True is not supported, only False"),
        ({"num_random_blocks": 0}, "count"),
        ({"block_size": "wide"}, "size"),
        ({"block_size": 0}, "size"),
    ],
    "big_bird-lm": [({"attention_type": "block_sparse"}, "is_decoder=True with attention_type='block_sparse'")],
    "deberta": [({"talking_head": True}, "talking_head=True")],
    "deberta_v3": [
        ({"conv_kernel_size": 3}, "conv_kernel_size=3 is not supported, only 0"),
        ({"relative_attention": False}, "relative_attention=False is not supported"),
        ({"relative_attention": None}, "relative_attention=False is not supported"),
        ({"pos_att_type": "c2p|p2p"}, "pos_att_type='c2p|p2p' is not supported, only 'c2p', 'p2c' or both"),
        ({"pos_att_type": 5}, "pos_att_type=5 is not supported, only 'c2p', 'p2c' or both"),
        ({"pos_att_type": [5]}, "only 'c2p', 'p2c' or both"),
        ({"pos_att_type": []}, "only 'c2p', 'p2c' or both"),
        ({"embedding_size": 128}, "embedding_size=128 is not supported, only hidden_size"),
        ({"attention_head_size": 32}, "attention_head_size=32 is not supported"),
        ({"pooler_hidden_size": 32}, "pooler_hidden_size=32 is not supported, only hidden_size"),
    ],
    "gpt2": [
        ({"scale_attn_weights": False}, "scale_attn_weights=False is not supported, only True"),
        ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx=True is not supported"),
        ({"n_embd": "wide"}, "hidden_size"),
        ({"n_embd": [33], "n_inner": None}, "hidden_size"),
        ({"n_positions": None}, "but (1024, 33) by the config"),
        ({"pad_token_id": [0]}, "pad_token_id must"),
    ],
    "reformer": [
        ({"attn_layers": ["local", "full"]}, "attn_layers=['local', 'full']"),
        ({"attn_layers": []}, "attn_layers=[] must be"),
        ({"attn_layers": "lsh"}, "attn_layers='lsh'"),
        ({"attn_layers": [["lsh"]]}, "local and lsh"),
        ({"attn_layers": ["lsh"] * 99_999 + ["local"]}, "4096"),
        ({"is_decoder": True}, "is_decoder=True is not supported by ReformerForMaskedLM, only False"),
        ({"attention_head_size": 5}, "self_attention.query.weight has shape (33, 33)"),
        ({"attention_head_size": "wide"}, "head_size"),
        ({"num_buckets": 3}, "even"),
        ({"num_buckets": "many"}, "num_buckets"),
        ({"axial_pos_shape": [2, 3]}, "axial positions"),
        ({"axial_pos_shape": [2, 3, 4]}, "shape"),
        ({"axial_pos_embds_dim": [2, 3]}, "axial positions"),
        ({"hash_seed": "x"}, "seed"),
    ],
    "nanochat": [
        ({"final_logit_softcapping": 15.0}, "final_logit_softcapping=15.0 is not supported by the head, only null"),
        ({"rope_parameters": LINEAR}, "rope_parameters.rope_type='linear' is not supported, only 'default'"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5 is not supported, only 1.0"),
    ],
    "modernbert": [
        ({"decoder_bias": False}, "decoder_bias=False is not supported, only True"),
        (
            {"rope_parameters": {"full_attention": LINEAR, "sliding_attention": UNSCALED}},
            "rope_parameters.rope_type='linear' is not supported, only 'default'",
        ),
        *(
            ({"layer_types": types}, "layer_types")
            for types in ([["full_attention"], {}], [None], ["full_attention"], 3)
        ),
    ],
    "llama": [({"rope_parameters": LINEAR | {"rope_type": "dynamic"}}, "rope_parameters.rope_type='dynamic'")],
    "qwen3": [({"use_sliding_window": True}, "use_sliding_window=True is not supported, only False")],
    "eurobert": [({"mlp_bias": True}, "mlp_bias=True is not supported, because the head of masked tokens")],
    "eurobert-classification": [
        ({"classifier_pooling": "late"}, "classifier_pooling='late' is not supported, only 'bos' and 'mean'")
    ],
    "t5": [
        ({"feed_forward_proj": "swish-gelu"}, "feed_forward_proj='swish-gelu'"),
        ({"feed_forward_proj": "gated-gelo"}, "unknown activation 'gelo'"),
        ({"feed_forward_proj": 7}, "feed_forward_proj=7 "),
        ({"relative_attention_max_distance": 2}, "max_distance=2 "),
        ({"architectures": ["T5ForRanking"]}, "architectures="),
        ({"d_kv": 7}, "by the config"),
    ],
}


@pytest.mark.parametrize(
    ("model", "values", "words"),
    [(model, values, words) for model, cases in REFUSED.items() for values, words in cases],
)
def test_settings_that_are_refused(model: str, values: dict[str, Any], words: str, tmp_path: Path) -> None:
    name, settings = MODELS[model]
    folder = save_random(tmp_path / "hf", name, **settings)
    edit_config(folder, **values)
    assert words in refused(folder)


@pytest.mark.parametrize("text", ["", "{", "[1]", '"bert"', "\x00"])
def test_a_config_that_is_no_object_is_refused(text: str, tmp_path: Path) -> None:
    (save_random(tmp_path / "hf", "BertForMaskedLM") / "config.json").write_text(text)
    assert "config.json" in refused(tmp_path / "hf")
