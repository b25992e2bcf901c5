"""RoBERTa (Liu et al. 2019): BERT whose positions are counted from the padding id + 1."""

from homespun.hf import builders
from homespun.hf.builders import BERT_DEFAULTS, CAUSAL, CAUSAL_FIXED, CAUSAL_NAMES, gelu_masked_lm
from homespun.hf.engine import Table
from homespun.hf.family import Family


def masked_lm_table(name: str) -> Table:
    """The head of the model ``name``."""
    words = f"{name}.embeddings.word_embeddings"
    return builders.masked_lm_table(
        words, "lm_head.dense", "lm_head.layer_norm", "lm_head.decoder", bias="lm_head.bias"
    )


def table(name: str) -> Table:
    """The backbone of the model ``name``."""
    return builders.encoder_table(name, offset=builders.after_padding) + builders.drop_pooler(name)


ROBERTA = Family(
    model_type="roberta",
    prefix="roberta.",
    table=table("roberta"),
    architectures=(
        *builders.models_with_pooler("RobertaModel", "roberta.pooler.dense"),
        builders.language_model("RobertaForMaskedLM", masked_lm_table("roberta"), gelu_masked_lm, causal=False),
        builders.language_model("RobertaForCausalLM", masked_lm_table("roberta"), gelu_masked_lm, causal=True),
        builders.text_classification("RobertaForSequenceClassification", head=builders.input_dropout_classification),
        builders.token_classification("RobertaForTokenClassification"),
        builders.question_answering("RobertaForQuestionAnswering"),
    ),
    defaults=BERT_DEFAULTS | CAUSAL | {"vocab_size": 50265, "pad_token_id": 1},
    names=CAUSAL_NAMES,
    fixed=CAUSAL_FIXED,
    offset=builders.after_padding,
)
