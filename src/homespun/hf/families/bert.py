"""BERT (Devlin et al. 2019)."""

from homespun.hf import builders
from homespun.hf.builders import BERT_DEFAULTS, CAUSAL, CAUSAL_FIXED, CAUSAL_NAMES
from homespun.hf.engine import Drop, Table
from homespun.hf.family import Family

_NEXT_SENTENCE = Drop(r"cls\.seq_relationship\.(weight|bias)", "the next-sentence head, which is for pretraining")
_HEAD = "cls.predictions"


def masked_lm_table(words: str) -> Table:
    """The head over the word embeddings ``words``."""
    return builders.masked_lm_table(
        words,
        f"{_HEAD}.transform.dense",
        f"{_HEAD}.transform.LayerNorm",
        f"{_HEAD}.decoder",
        bias=f"{_HEAD}.bias",
    )


MASKED_LM = masked_lm_table("bert.embeddings.word_embeddings") + Table(drops=(_NEXT_SENTENCE,))

BERT = Family(
    model_type="bert",
    prefix="bert.",
    table=builders.encoder_table("bert") + builders.drop_pooler("bert"),
    architectures=(
        *builders.models_with_pooler("BertModel", "bert.pooler.dense"),
        builders.language_model("BertForMaskedLM", MASKED_LM, causal=False),
        builders.language_model("BertForPreTraining", MASKED_LM, causal=False),
        builders.language_model("BertLMHeadModel", MASKED_LM, causal=True),
        builders.text_classification(
            "BertForSequenceClassification", dense="bert.pooler.dense", classifier="classifier"
        ),
        builders.token_classification("BertForTokenClassification"),
        builders.question_answering("BertForQuestionAnswering"),
    ),
    defaults=BERT_DEFAULTS | CAUSAL,
    names=CAUSAL_NAMES,
    fixed=CAUSAL_FIXED,
)
