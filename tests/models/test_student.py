"""A student is its teacher's layers, to the bit, without segments."""

from typing import Any

import pytest
import torch

from homespun.commands.workload import made_up_tokenizer
from homespun.errors import UserError
from homespun.models.bundle import ModelBundle
from homespun.models.config import ModelConfig
from homespun.models.encoder import EncoderConfig
from homespun.models.heads import MaskedLMHeadConfig
from homespun.models.sequence_heads import PooledHeadConfig
from homespun.models.weight_transfer import alternate_layers, build_student


def teacher(head: Any = None, **fields: Any) -> ModelBundle:
    tokenizer = made_up_tokenizer(31)
    sizes = {"hidden_size": 14, "num_hidden_layers": 6, "num_attention_heads": 2, "intermediate_size": 17}
    backbone = EncoderConfig(vocab_size=tokenizer.vocab_size, max_position_embeddings=23, **(sizes | fields))
    config = ModelConfig(backbone=backbone, head=head)
    torch.manual_seed(3)
    return ModelBundle(config.build().eval(), config, tokenizer)


def test_half_of_twelve_is_what_the_released_student_has() -> None:
    assert alternate_layers(12) == (0, 2, 4, 7, 9, 11)
    assert alternate_layers(6) == (0, 2, 5)
    assert alternate_layers(1) == (0,)


@pytest.mark.parametrize("layers", [None, (5, 1)])
def test_layers_are_the_teachers(layers: tuple[int, ...] | None) -> None:
    given = teacher(MaskedLMHeadConfig())
    student, origins = build_student(given, layers=layers)
    chosen = layers or (0, 2, 5)
    assert origins.layers == chosen
    assert not origins.initialized
    for number, origin in enumerate(chosen):
        theirs = given.model.backbone.layers[origin].state_dict()
        for name, tensor in student.model.backbone.layers[number].state_dict().items():
            assert torch.equal(tensor, theirs[name]), name
    assert student.model.head is not None
    assert set(origins.unused) >= {"backbone.embeddings.segments.weight"}


BAND = {"kind": "sparse", "patterns": [{"kind": "band", "width": 3}]}


@pytest.mark.parametrize(
    "fields",
    [
        {"positions": {"kind": "rotary", "theta": [1e4, 1e2, 1e4, 1e2, 1e4, 1e2]}, "head_size": 6},
        {"attention": {"kind": "alternating", "cycle": [{"kind": "full"}, BAND]}},
        {
            "attention": {
                "kind": "sparse",
                "patterns": [{"kind": "window", "radius": [1, 2, 3, 4, 5, 6], "dilation": 2}],
            }
        },
        {"attention": {"kind": "linformer", "k": [3, 4, 5, 6, 7, 8]}},
    ],
    ids=["rotary", "alternating", "window", "linformer"],
)
def test_layers_keep_their_attention(fields: dict[str, Any]) -> None:
    given = teacher(type_vocab_size=0, initializer_range=0.3, **fields)
    student, _ = build_student(given, layers=(1, 4, 3))
    ids = torch.randint(5, 31, (3, 19))
    theirs = given.model.backbone.stacks[0]
    theirs.layers = torch.nn.ModuleList([theirs.layers[number] for number in (1, 4, 3)])
    torch.testing.assert_close(student.model(ids), given.model(ids))


def test_all_layers_without_segments_are_the_teacher() -> None:
    given = teacher(MaskedLMHeadConfig())
    student, _ = build_student(given, layers=range(6))
    ids = torch.randint(5, 31, (3, 19))
    torch.testing.assert_close(student.model(ids), given.model(ids), rtol=1e-5, atol=1e-5)


def test_a_head_over_texts_is_left() -> None:
    given = teacher(PooledHeadConfig(num_labels=3))
    student, origins = build_student(given)
    assert student.config.head is None
    assert any(name.startswith("head.") for name in origins.unused)


@pytest.mark.parametrize("layers", [(), (6,), (-1,)])
def test_layers_that_are_not_there(layers: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match="0 to 5"):
        build_student(teacher(), layers=layers)
