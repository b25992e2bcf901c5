"""Families of Hugging Face models; a new family is a new file and an entry of `FAMILIES`."""

from homespun.hf.families.albert import ALBERT
from homespun.hf.families.bart import BART, BIGBIRD_PEGASUS, LED, PEGASUS
from homespun.hf.families.bert import BERT, DISTILBERT, ELECTRA, ROBERTA
from homespun.hf.families.big_bird import BIG_BIRD
from homespun.hf.families.deberta import DEBERTA, DEBERTA_V2
from homespun.hf.families.gpt2 import GPT2, OPENAI_GPT
from homespun.hf.families.llama import EUROBERT, LLAMA, NANOCHAT, QWEN3
from homespun.hf.families.longformer import LONGFORMER
from homespun.hf.families.modernbert import MODERNBERT
from homespun.hf.families.prophetnet import PROPHETNET
from homespun.hf.families.reformer import REFORMER
from homespun.hf.families.t5 import T5, T5_CLASSIFIER, T5_ENCODER

FAMILIES = (
    BERT,
    ROBERTA,
    ELECTRA,
    DEBERTA,
    DEBERTA_V2,
    LONGFORMER,
    BIG_BIRD,
    DISTILBERT,
    MODERNBERT,
    EUROBERT,
    GPT2,
    OPENAI_GPT,
    LLAMA,
    QWEN3,
    NANOCHAT,
    REFORMER,
    BART,
    PROPHETNET,
    ALBERT,
    T5,
    T5_CLASSIFIER,
    T5_ENCODER,
    LED,
    PEGASUS,
    BIGBIRD_PEGASUS,
)
