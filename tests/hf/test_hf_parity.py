"""Parity with transformers: the same logits and gradients from their files here, and from our files there."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hf_pairs import Pair, Parity
from hf_peers import LENGTHS, REFORMER, bert_tokenizer, chosen, inputs, roberta_tokenizer, save_theirs, their_model

from homespun.commands.predict import predict
from homespun.data.labels import Labels
from homespun.errors import UserError
from homespun.hf.family import STORED
from homespun.hf.open import open_huggingface

transformers = pytest.importorskip("transformers")

BLOCKS: dict[str, Any] = {"block_size": 4, "max_position_embeddings": 137}
# both terms of place, and no positions in the input, as in all released checkpoints
DEBERTA: dict[str, Any] = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_biased_input": False}
DEBERTA_V3 = DEBERTA | {"position_buckets": 8, "share_att_key": True, "norm_rel_ebd": "layer_norm"}
ALBERT: dict[str, Any] = {"embedding_size": 21, "classifier_dropout_prob": 0.0}
GPT: dict[str, Any] = {"embd_pdrop": 0.0, "pad_token_id": 0, "hidden_act": "gelu"}
# heads of an even size, of which queries have more than keys
ROTARY: dict[str, Any] = {"hidden_size": 42, "num_attention_heads": 6, "num_key_value_heads": 3, "head_size": 4}
ROTARY |= {"pad_token_id": 0, "rope_parameters": {"rope_type": "default", "rope_theta": 50.0}}
QWEN3 = ROTARY | {"head_size": 10, "layer_norm_eps": 1e-3}
NANOCHAT = ROTARY | {"final_logit_softcapping": None, "hidden_act": "relu2"}
# a global layer and two of windows that are shorter than the texts
MODERNBERT: dict[str, Any] = {"hidden_size": 22, "local_attention": 6, "pad_token_id": 0}
MODERNBERT_BIASES = {"norm_bias": True, "mlp_bias": True, "attention_bias": True, "classifier_bias": True}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BertModel", {}),
    "bert-gelu_new": ("BertModel", {"hidden_act": "gelu_new"}),
    "bert-gelu_pytorch_tanh": ("BertModel", {"hidden_act": "gelu_pytorch_tanh"}),
    "bert-relu": ("BertModel", {"hidden_act": "relu", "type_vocab_size": 3}),
    "bert-mlm": ("BertForMaskedLM", {"layer_norm_eps": 1e-3}),
    "bert-mlm-gelu_new": ("BertForMaskedLM", {"hidden_act": "gelu_new"}),
    "bert-causal": ("BertModel", {"is_decoder": True}),
    "bert-causal-lm": ("BertLMHeadModel", {"is_decoder": True, "hidden_act": "relu"}),
    "bert-causal-labels": ("BertForTokenClassification", {"is_decoder": True, "num_labels": 5}),
    "bert-pretraining": ("BertForPreTraining", {}),
    "bert-classification": ("BertForSequenceClassification", {"num_labels": 5, "hidden_act": "gelu_fast"}),
    "bert-labels": ("BertForTokenClassification", {"num_labels": 5}),
    "bert-answers": ("BertForQuestionAnswering", {"hidden_act": "relu"}),
    "bert-pooler": ("BertModel", {"type_vocab_size": 3}),
    "roberta": ("RobertaModel", {"type_vocab_size": 1}),
    "roberta-mlm": ("RobertaForMaskedLM", {"hidden_act": "gelu_new"}),
    "roberta-pad-5": ("RobertaForMaskedLM", {"pad_token_id": 5, "type_vocab_size": 1}),
    "roberta-causal-lm": ("RobertaForCausalLM", {"is_decoder": True, "pad_token_id": 5, "type_vocab_size": 1}),
    "roberta-classification": ("RobertaForSequenceClassification", {"num_labels": 3, "type_vocab_size": 1}),
    "roberta-labels": ("RobertaForTokenClassification", {"num_labels": 7, "type_vocab_size": 1}),
    "roberta-answers": ("RobertaForQuestionAnswering", {"type_vocab_size": 1}),
    "roberta-pooler": ("RobertaModel", {"type_vocab_size": 1}),
    "electra": ("ElectraModel", {"embedding_size": 21}),
    "electra-discriminator": ("ElectraForPreTraining", {"embedding_size": 21}),
    "electra-wide": ("ElectraForPreTraining", {"embedding_size": 33}),
    "electra-generator": ("ElectraForMaskedLM", {"embedding_size": 21, "hidden_act": "relu"}),
    "electra-causal-lm": ("ElectraForCausalLM", {"is_decoder": True, "embedding_size": 21}),
    "electra-classification": ("ElectraForSequenceClassification", {"embedding_size": 41, "num_labels": 7}),
    "electra-labels": ("ElectraForTokenClassification", {"embedding_size": 21, "num_labels": 3}),
    "electra-answers": ("ElectraForQuestionAnswering", {"embedding_size": 41}),
    "albert": ("AlbertModel", ALBERT),
    "albert-groups": ("AlbertModel", ALBERT | {"num_hidden_layers": 6, "num_hidden_groups": 2, "hidden_act": "relu"}),
    "albert-mlm": ("AlbertForMaskedLM", ALBERT | {"hidden_act": "gelu_new", "layer_norm_eps": 1e-3}),
    "albert-pretraining": ("AlbertForPreTraining", ALBERT | {"type_vocab_size": 3}),
    "albert-classification": ("AlbertForSequenceClassification", ALBERT | {"num_labels": 5}),
    "albert-labels": ("AlbertForTokenClassification", ALBERT | {"num_labels": 7, "embedding_size": 41}),
    "albert-answers": ("AlbertForQuestionAnswering", ALBERT),
    "albert-pooler": ("AlbertModel", ALBERT | {"hidden_act": "gelu_new"}),
    "longformer": ("LongformerModel", {"attention_window": 4}),
    "longformer-global": ("LongformerModel", {"attention_window": [4, 12, 6], "type_vocab_size": 1}),
    "longformer-long": ("LongformerModel", {"attention_window": [8, 16, 4], "max_position_embeddings": 137}),
    "longformer-mlm": ("LongformerForMaskedLM", {"attention_window": 10, "hidden_act": "gelu_new"}),
    "longformer-mlm-global": ("LongformerForMaskedLM", {"attention_window": 6}),
    "longformer-classification": ("LongformerForSequenceClassification", {"attention_window": 4, "num_labels": 5}),
    "longformer-labels-global": ("LongformerForTokenClassification", {"attention_window": 6, "num_labels": 5}),
    "longformer-answers-global": ("LongformerForQuestionAnswering", {"attention_window": 4}),
    "longformer-pooler": ("LongformerModel", {"attention_window": 4}),
    "big_bird-full": ("BigBirdForSequenceClassification", {"attention_type": "original_full", "hidden_act": "relu"}),
    "big_bird-causal-lm": ("BigBirdForCausalLM", {"is_decoder": True, "attention_type": "original_full"}),
    "big_bird-short": ("BigBirdForMaskedLM", {"block_size": 5}),
    "big_bird-random": ("BigBirdModel", {"num_random_blocks": 2, "type_vocab_size": 3} | BLOCKS),
    "big_bird-pretraining": ("BigBirdForPreTraining", {"num_random_blocks": 1, "hidden_act": "relu"} | BLOCKS),
    "big_bird-mlm": ("BigBirdForMaskedLM", {"num_random_blocks": 3} | BLOCKS),
    "big_bird-classification": (
        "BigBirdForSequenceClassification",
        {"num_random_blocks": 1, "num_labels": 5, "hidden_act": "gelu_new"} | BLOCKS,
    ),
    "deberta": ("DebertaModel", DEBERTA | {"type_vocab_size": 0}),
    "deberta-c2p": ("DebertaModel", DEBERTA | {"pos_att_type": "c2p", "max_relative_positions": 5}),
    "deberta-positions": ("DebertaModel", DEBERTA | {"pos_att_type": "p2c", "position_biased_input": True}),
    "deberta-mlm": ("DebertaForMaskedLM", DEBERTA | {"hidden_act": "gelu_new", "layer_norm_eps": 1e-3}),
    "deberta-mlm-new": ("DebertaForMaskedLM", DEBERTA | {"legacy": False}),
    "deberta-classification": ("DebertaForSequenceClassification", DEBERTA | {"num_labels": 5}),
    "deberta_v2": ("DebertaV2Model", DEBERTA),
    "deberta_v2-c2p": ("DebertaV2Model", DEBERTA | {"pos_att_type": "c2p|p2c", "max_relative_positions": 7}),
    "deberta_v3": ("DebertaV2Model", DEBERTA_V3 | {"type_vocab_size": 0}),
    "deberta_v3-p2c": ("DebertaV2Model", DEBERTA_V3 | {"pos_att_type": ["p2c"], "position_biased_input": True}),
    "deberta_v3-mlm": ("DebertaV2ForMaskedLM", DEBERTA_V3 | {"hidden_act": "relu"}),
    "deberta_v3-mlm-new": ("DebertaV2ForMaskedLM", DEBERTA_V3 | {"legacy": False, "max_relative_positions": 17}),
    "deberta_v3-classification": (
        "DebertaV2ForSequenceClassification",
        DEBERTA_V3 | {"num_labels": 3, "pooler_hidden_act": "tanh", "cls_dropout": 0.0},
    ),
    "big_bird-labels": ("BigBirdForTokenClassification", {"num_random_blocks": 1, "num_labels": 7} | BLOCKS),
    # no separator in the texts, and so no question whose logits would be lowered
    "big_bird-answers": ("BigBirdForQuestionAnswering", {"num_random_blocks": 2, "sep_token_id": 3} | BLOCKS),
    "big_bird-pooler": ("BigBirdModel", {"num_random_blocks": 1} | BLOCKS),
    "deberta-tokens": ("DebertaForTokenClassification", DEBERTA | {"num_labels": 5}),
    "deberta_v3-tokens": ("DebertaV2ForTokenClassification", DEBERTA_V3 | {"num_labels": 7, "cls_dropout": 0.3}),
    "deberta_v3-answers": ("DebertaV2ForQuestionAnswering", DEBERTA_V3),
    "deberta-answers": ("DebertaForQuestionAnswering", DEBERTA),
    "distilbert": ("DistilBertModel", {}),
    "distilbert-sinusoidal": ("DistilBertModel", {"sinusoidal_pos_embds": True, "hidden_act": "relu"}),
    "distilbert-mlm": ("DistilBertForMaskedLM", {"hidden_act": "gelu_new"}),
    "distilbert-classification": ("DistilBertForSequenceClassification", {"classifier_dropout": 0.0, "num_labels": 5}),
    "distilbert-labels": ("DistilBertForTokenClassification", {"num_labels": 3}),
    "distilbert-answers": ("DistilBertForQuestionAnswering", {"qa_dropout": 0.0, "hidden_act": "relu"}),
    "gpt2": ("GPT2Model", GPT),
    "gpt2-inner": ("GPT2Model", GPT | {"intermediate_size": None, "hidden_act": "relu"}),
    "gpt2-lm": ("GPT2LMHeadModel", GPT | {"layer_norm_eps": 1e-3}),
    "gpt2-untied": ("GPT2LMHeadModel", GPT | {"tie_word_embeddings": False}),
    "gpt2-classification": ("GPT2ForSequenceClassification", GPT | {"num_labels": 5}),
    "gpt2-labels": ("GPT2ForTokenClassification", GPT | {"num_labels": 3, "classifier_dropout": 0.0}),
    "gpt2-answers": ("GPT2ForQuestionAnswering", GPT),
    "gpt": ("OpenAIGPTModel", GPT),
    "gpt-lm": ("OpenAIGPTLMHeadModel", GPT | {"hidden_act": "silu"}),
    "gpt-untied": ("OpenAIGPTLMHeadModel", GPT | {"tie_word_embeddings": False}),
    "gpt-classification": ("OpenAIGPTForSequenceClassification", GPT | {"num_labels": 7}),
    "eurobert": ("EuroBertModel", ROTARY | {"mlp_bias": True}),
    "eurobert-mlm": ("EuroBertForMaskedLM", ROTARY | {"attention_bias": True, "hidden_act": "gelu"}),
    "eurobert-mlm-tied": ("EuroBertForMaskedLM", ROTARY | {"tie_word_embeddings": True}),
    "eurobert-classification": (
        "EuroBertForSequenceClassification",
        ROTARY | {"num_labels": 5, "classifier_pooling": "mean"},
    ),
    "eurobert-classification-bos": (
        "EuroBertForSequenceClassification",
        ROTARY | {"num_labels": 3, "classifier_pooling": "bos", "mlp_bias": True},
    ),
    "eurobert-labels": ("EuroBertForTokenClassification", ROTARY | {"num_labels": 5}),
    "llama": ("LlamaModel", ROTARY | {"attention_bias": True, "mlp_bias": True}),
    "llama-lm": ("LlamaForCausalLM", ROTARY | {"head_size": None, "num_attention_heads": 3, "layer_norm_eps": 1e-3}),
    "llama-tied": ("LlamaForCausalLM", ROTARY | {"tie_word_embeddings": True, "num_key_value_heads": 6}),
    "llama-classification": ("LlamaForSequenceClassification", ROTARY | {"num_labels": 5, "hidden_act": "gelu"}),
    "qwen3": ("Qwen3Model", QWEN3),
    "qwen3-lm": ("Qwen3ForCausalLM", QWEN3 | {"attention_bias": True}),
    "qwen3-tied": ("Qwen3ForCausalLM", QWEN3 | {"tie_word_embeddings": True, "num_key_value_heads": 1}),
    "qwen3-classification": ("Qwen3ForSequenceClassification", QWEN3 | {"num_labels": 3}),
    "modernbert": ("ModernBertModel", MODERNBERT),
    "modernbert-biases": ("ModernBertModel", MODERNBERT | MODERNBERT_BIASES | {"layer_norm_eps": 1e-3}),
    "modernbert-full": ("ModernBertModel", MODERNBERT | {"layer_types": ["full_attention"] * 3}),
    "modernbert-mlm": (
        "ModernBertForMaskedLM",
        MODERNBERT | {"classifier_activation": "silu", "local_attention": 9, "layer_norm_eps": 1e-2},
    ),
    "modernbert-mlm-biases": (
        "ModernBertForMaskedLM",
        MODERNBERT | MODERNBERT_BIASES | {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    ),
    "modernbert-classification": (
        "ModernBertForSequenceClassification",
        MODERNBERT | {"num_labels": 5, "classifier_pooling": "mean"},
    ),
    "modernbert-classification-biases": (
        "ModernBertForSequenceClassification",
        MODERNBERT | MODERNBERT_BIASES | {"num_labels": 3, "classifier_activation": "silu", "hidden_act": "relu"},
    ),
    "nanochat": ("NanoChatModel", NANOCHAT | {"num_key_value_heads": None}),
    "nanochat-lm": ("NanoChatForCausalLM", NANOCHAT | {"attention_bias": True}),
    "nanochat-tied": ("NanoChatForCausalLM", NANOCHAT | {"tie_word_embeddings": True, "hidden_act": "gelu"}),
    "reformer": ("ReformerModel", REFORMER),
    "reformer-lsh": ("ReformerModel", REFORMER | {"attn_layers": ["lsh"] * 2, "num_buckets": 4, "num_hashes": 1}),
    "reformer-mixed": (
        "ReformerModel",
        REFORMER | {"attn_layers": ["lsh", "local", "local"], "axial_pos_embds": False, "lsh_num_chunks_after": 1},
    ),
    "reformer-mlm": ("ReformerForMaskedLM", REFORMER),
    "reformer-classification": ("ReformerForSequenceClassification", REFORMER | {"num_labels": 5}),
    "reformer-answers": ("ReformerForQuestionAnswering", REFORMER),
    "reformer-lm": ("ReformerModelWithLMHead", REFORMER | {"attn_layers": ["local"] * 2, "is_decoder": True}),
    "reformer-hashed-lm": (
        "ReformerModelWithLMHead",
        REFORMER | {"num_hashes": 1, "lsh_num_chunks_before": 2, "is_decoder": True},
    ),
    "reformer-heads": ("ReformerForMaskedLM", REFORMER | {"attention_head_size": 5}),
}
# long enough that blocks are gathered, and no multiples of anything
LONG = (131, 23, 87)
FULL_CHUNKS = (24, 23, 22)  # one of whole chunks, and two that end in the last one
SAME_BLOCKS = (131, 129, 130)  # as long, of the same number of blocks of 4


@pytest.fixture(scope="module", params=CASES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    name, settings = CASES[request.param]
    folder = tmp_path_factory.mktemp("theirs")
    cls = getattr(transformers, name)
    theirs = their_model(cls, **settings)
    theirs.save_pretrained(folder)
    counted = request.param.startswith(("roberta", "longformer"))  # positions, from the padding id
    tokenizer = roberta_tokenizer(folder / "tokenizer.json") if counted else bert_tokenizer()
    tokenizer.save(folder)
    lengths = LONG if request.param.endswith("-long") else LENGTHS
    if "num_random_blocks" in settings:
        lengths = SAME_BLOCKS
    if "hash_seed" in settings:
        lengths = FULL_CHUNKS
    given = inputs(
        pad_id=theirs.config.pad_token_id, segments=getattr(theirs.config, "type_vocab_size", 0), lengths=lengths
    )
    if request.param.endswith(("global", "long")):
        given["global_attention_mask"] = chosen(given)
    head = "pooler" if request.param.endswith("-pooler") else STORED
    pair = Pair(cls, theirs, open_huggingface(folder, head=head), folder, tokenizer, lengths, given)
    if "num_random_blocks" in settings:
        pair.share_random_blocks()
    if "hash_seed" in settings:
        pair.share_hashes()
    return pair


class TestParity(Parity):
    """Every case of `pair`."""


def test_one_text_gives_the_outputs_of_the_batch(pair: Pair) -> None:
    # in float64, as products of other shapes round otherwise, by how much depends on the machine; but not where hashes
    # or blocks are drawn, which in float64 are other ones
    draws = pair.theirs.config.model_type in ("reformer", "big_bird")
    precision = torch.float32 if draws else torch.float64
    model = copy.deepcopy(pair.ours.stored.model).to(precision).eval()
    with torch.no_grad():
        # theirs first: what fixes the random blocks of the copy asks the model that they were fixed in
        together = pair.their_output(copy.deepcopy(pair.theirs.eval()).to(precision))
        for row, length in enumerate(pair.lengths):
            alone = {name: tensor[row : row + 1, :length] for name, tensor in pair.inputs.items()}
            del alone["attention_mask"]
            found = model(**alone)[0]
            expected = together[row, :length] if together.shape[:2] == pair.inputs["input_ids"].shape else together[row]
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("BertModel", {}),
        ("GPT2Model", GPT),
        ("RobertaModel", {"type_vocab_size": 1}),
        ("RobertaModel", {"type_vocab_size": 1, "pad_token_id": 5}),
        ("LongformerForMaskedLM", {"attention_window": 4}),
    ],
)
def test_texts_that_are_padded_on_the_left(name: str, settings: dict[str, Any], tmp_path: Path) -> None:
    """Where transformers counts positions from the first token, ours are given them."""
    theirs = save_theirs(tmp_path, name, **settings)
    model = open_huggingface(tmp_path).stored.model
    given = inputs(pad_id=theirs.config.pad_token_id, segments=0)
    left = {key: tensor.flip(1) for key, tensor in given.items()}
    keep = left["attention_mask"]
    counted = {} if name in ("BertModel", "GPT2Model") else {"position_ids": (keep.cumsum(1) - 1).clamp(min=0)}
    with torch.no_grad():
        expected, found = theirs(**left)[0], model(**left, **counted)
    torch.testing.assert_close(found[keep.bool()], expected[keep.bool()], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("question", [(5,), (2, 7, 4)], ids=["same", "different"])
def test_answers_of_bigbird_are_sought_beyond_the_question(question: tuple[int, ...], tmp_path: Path) -> None:
    """Their logits of the question are lowered, but for the first token's; all others are ours."""
    theirs = save_theirs(tmp_path, "BigBirdForQuestionAnswering", attention_type="original_full", sep_token_id=3)
    ours = open_huggingface(tmp_path).stored.model
    given = inputs(pad_id=0)
    ends = torch.tensor(question).expand(len(LENGTHS))[:, None]
    given["input_ids"].scatter_(1, ends, 3)
    positions = torch.arange(given["input_ids"].shape[1])
    asked = (positions <= ends) & (positions > 0)
    with torch.no_grad():
        output = theirs(**given)
        expected = torch.stack([output.start_logits, output.end_logits], dim=-1)
        found = ours(**given)
    scored = given["attention_mask"].bool() & ~asked
    torch.testing.assert_close(found[scored], expected[scored], atol=1e-5, rtol=1e-5)
    assert (expected[asked] < -1e5).all()


@pytest.mark.parametrize("name", ["BertForTokenClassification", "AlbertForTokenClassification"])
def test_what_labels_tokens_tags_words(name: str, tmp_path: Path) -> None:
    save_theirs(tmp_path / "theirs", name, num_labels=3)
    assert open_huggingface(tmp_path / "theirs").stored.labels == Labels(("LABEL_0", "LABEL_1", "LABEL_2"))
    (tmp_path / "new.jsonl").write_text('{"words": ["a", "b", "c"]}\n')
    predict(str(tmp_path / "theirs"), [str(tmp_path / "new.jsonl")], tmp_path / "out.jsonl")
    line = json.loads((tmp_path / "out.jsonl").read_text())
    assert len(line["tags"]) == 3
    assert set(line["tags"]) <= {"LABEL_0", "LABEL_1", "LABEL_2"}


def test_embeddings_of_albert_as_wide_as_its_layers(tmp_path: Path) -> None:
    """Their matrix between the two has no place here, unless it changes nothing."""
    theirs = save_theirs(tmp_path, "AlbertModel", embedding_size=33)
    with pytest.raises(UserError, match=r"embedding_hidden_mapping_in\.bias' and 1 more"):
        open_huggingface(tmp_path)
    with torch.no_grad():
        theirs.encoder.embedding_hidden_mapping_in.weight.copy_(torch.eye(33))
        theirs.encoder.embedding_hidden_mapping_in.bias.zero_()
    theirs.save_pretrained(tmp_path)
    given = inputs(pad_id=0)
    keep = given["attention_mask"].bool()
    with torch.no_grad():
        expected, found = theirs(**given).last_hidden_state, open_huggingface(tmp_path).stored.model(**given)
    torch.testing.assert_close(found[keep], expected[keep], atol=1e-5, rtol=1e-5)
