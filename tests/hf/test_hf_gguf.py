"""GGUF files: llama.cpp tokenizes as our tokenizer does, and predicts as our model does."""

from pathlib import Path
from typing import Any

import pytest
import torch

from homespun.cli import app
from homespun.errors import UserError
from homespun.hf.gguf import export_gguf
from homespun.models.bundle import ModelBundle, save_model
from homespun.models.config import ModelConfig
from homespun.text.tokenizer import Tokenizer

TEXTS = ["The match ended, caf\u00e9 12 goals", "a", "  two  spaces\n\nand it's \u4f60\u597d \U0001f600"]
TOKENIZER = Tokenizer.train(["The match ended 3 to 1, and it's over."] * 3, kind="bpe", vocab_size=277)
LETTER = TOKENIZER.tokens.index("a")
SIZES: dict[str, Any] = {
    "vocab_size": 283,
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 80,
    "max_position_embeddings": 61,
    "type_vocab_size": 0,
    "causal": True,
    "residual": {"kind": "pre"},
    "embedding_norm": False,
    "initializer_range": 0.2,
}
GPT2 = SIZES | {"hidden_act": "gelu_new", "embedding_size": 24}
LLAMA: dict[str, Any] = SIZES | {
    "norm": "rms_norm",
    "attention_bias": False,
    "mlp_bias": False,
    "positions": {"kind": "rotary", "theta": 1000.0},
    "gated_feed_forward": True,
    "hidden_act": "silu",
    "num_key_value_heads": 2,
}
QWEN3 = LLAMA | {"qk_norm": True, "head_size": 16}


def build(backbone: dict[str, Any], tokenizer: Tokenizer = TOKENIZER, tied: bool = True) -> ModelBundle:
    head = {"kind": "causal_lm", "tie_word_embeddings": tied}
    config = ModelConfig.model_validate({"backbone": backbone, "head": head})
    torch.manual_seed(3)
    model = config.build().eval()
    with torch.no_grad():
        for parameter in model.parameters():  # biases and norms too
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return ModelBundle(model, config, tokenizer)


def open_llama_cpp(path: Path) -> Any:
    """A server of llama.cpp in this process, in float32."""
    llama = pytest.importorskip("xllamacpp")
    settings = llama.CommonParams()
    settings.model.path = str(path)
    settings.n_ctx, settings.warmup, settings.verbosity = 61, False, -1
    settings.cache_type_k = settings.cache_type_v = llama.ggml_type.GGML_TYPE_F32
    settings.flash_attn_type = llama.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    settings.cpuparams.n_threads = 1
    return llama.Server(settings)


@pytest.mark.parametrize(
    ("backbone", "tied", "architecture", "tolerance"),
    [
        (GPT2, True, "GPT2LMHeadModel", 2e-2),  # llama.cpp has GELU in a table of float16
        (LLAMA, False, "LlamaForCausalLM", 1e-4),
        (LLAMA | {"attention_bias": True, "mlp_bias": True}, False, "LlamaForCausalLM", 1e-4),
        (QWEN3, True, "Qwen3ForCausalLM", 1e-4),
    ],
    ids=["gpt2", "llama", "llama with biases", "qwen3"],
)
def test_llama_cpp_predicts_as_the_model_does(
    backbone: Any, tied: bool, architecture: str, tolerance: float, tmp_path: Path
) -> None:
    pytest.importorskip("gguf")
    stored = build(backbone, tied=tied)
    assert export_gguf(tmp_path / "model.gguf", stored).architecture == architecture
    server = open_llama_cpp(tmp_path / "model.gguf")
    for text in TEXTS:
        ids = [*TOKENIZER.template[0], *TOKENIZER.encode_batch([text])[0].tolist()]
        # a letter is sampled, whose text is complete; the probabilities are those from before the bias
        request = {"prompt": text, "max_tokens": 1, "logprobs": 283, "logit_bias": {str(LETTER): 100}}
        found = server.handle_completions(request)
        assert found["usage"]["prompt_tokens"] == len(ids)
        with torch.no_grad():
            expected = stored.model(torch.tensor([ids]))[0, -1].log_softmax(0).tolist()
        tokens = found["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
        assert {token["id"] for token in tokens} == set(range(283))
        for token in tokens:
            assert token["logprob"] == pytest.approx(expected[token["id"]], abs=tolerance)


def test_what_llama_cpp_lacks_is_one_line(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    lower = Tokenizer.train(["The match"], kind="bpe", vocab_size=262, lowercase=True)
    for stored, match in (
        (build(SIZES | {"hidden_act": "relu"}), "not relu"),
        (build(GPT2 | {"hidden_act": "silu"}), "hidden_act=gelu_new, not silu"),  # of the others only
        (build(LLAMA | {"hidden_act": "gelu_new"}), "hidden_act=silu, not gelu_new"),
        (build(LLAMA | {"embedding_norm": True}), "not for"),
        (build(QWEN3 | {"attention_bias": True}), "attention_bias=false"),  # of Llama it has them
        (build(GPT2, lower), "kind bpe"),
        (build(GPT2, Tokenizer.train(["The match"], kind="wordpiece", vocab_size=20)), "kind bpe"),
    ):
        with pytest.raises(UserError, match=match):
            export_gguf(tmp_path / "model.gguf", stored)
        assert not list(tmp_path.iterdir())
    save_model(tmp_path / "model", stored.model, stored.config, stored.tokenizer)
    with pytest.raises(UserError, match=r"end in \.gguf"):
        app(["export", str(tmp_path / "model"), "--to", "gguf", "--out", str(tmp_path / "x")], standalone_mode=False)
