"""The families of Hugging Face models, one table a file; a new family is a new file and a name here."""

from homespun.hf.families.albert import ALBERT
from homespun.hf.families.bart import BART
from homespun.hf.families.bert import BERT
from homespun.hf.families.big_bird import BIG_BIRD
from homespun.hf.families.bigbird_pegasus import BIGBIRD_PEGASUS
from homespun.hf.families.deberta import DEBERTA
from homespun.hf.families.deberta_v2 import DEBERTA_V2
from homespun.hf.families.distilbert import DISTILBERT
from homespun.hf.families.electra import ELECTRA
from homespun.hf.families.eurobert import EUROBERT
from homespun.hf.families.gpt2 import GPT2
from homespun.hf.families.led import LED
from homespun.hf.families.llama import LLAMA
from homespun.hf.families.longformer import LONGFORMER
from homespun.hf.families.modernbert import MODERNBERT
from homespun.hf.families.nanochat import NANOCHAT
from homespun.hf.families.openai_gpt import OPENAI_GPT
from homespun.hf.families.pegasus import PEGASUS
from homespun.hf.families.prophetnet import PROPHETNET
from homespun.hf.families.qwen3 import QWEN3
from homespun.hf.families.reformer import REFORMER
from homespun.hf.families.roberta import ROBERTA
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
