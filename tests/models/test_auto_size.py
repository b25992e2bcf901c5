"""Sizes of families, by name and as ``auto``."""

import pytest

from homespun.commands.recipe import PretrainRecipe, as_recipe, load_recipe
from homespun.errors import UserError
from homespun.models.config import FROM_TRAINING, AutoSizeConfig, is_of_family, same_model
from homespun.models.presets import AUTO_SIZE_FAMILIES, PRESETS, family_of, preset_name, sizes_of


def recipe(*changes: str) -> PretrainRecipe:
    found = load_recipe("spun-decoder", changes)
    assert isinstance(found, PretrainRecipe)
    return found


def test_every_preset_is_of_the_family_in_its_name() -> None:
    for name in PRESETS:
        assert name in sizes_of(family_of(name)).values()
    assert family_of("spun-decoder") == "spun-decoder"
    assert set(AUTO_SIZE_FAMILIES) >= {"spun-decoder", "spun-encoder"}


@pytest.mark.parametrize(
    ("preset", "size", "name"),
    [
        ("spun-decoder-mini", None, "spun-decoder-mini"),
        ("spun-decoder-mini", "tiny", "spun-decoder-tiny"),
        ("spun-encoder", "base", "spun-encoder-base"),
        ("gpt3", "2.7b", "gpt3-2.7b"),
    ],
)
def test_a_size_wins_over_the_one_in_the_name(preset: str, size: str | None, name: str) -> None:
    assert preset_name(preset, size) == name


@pytest.mark.parametrize(
    ("preset", "size", "message"),
    [
        ("spun-decoder", None, "size.*tiny, mini, small, medium, base"),
        ("spun-decoder-mini", "huge", "size=huge.*tiny, mini, small, medium, base, auto for"),
        ("gpt2", "huge", "size=huge.*large, xl for"),
        ("spun-decodr-mini", None, "did you mean 'spun-decoder-mini'"),
        ("nothing", "mini", "unknown preset 'nothing'"),
    ],
)
def test_what_is_no_size_of_a_family_is_refused(preset: str, size: str | None, message: str) -> None:
    with pytest.raises(UserError, match=message):
        preset_name(preset, size)


def test_a_recipe_takes_a_size() -> None:
    assert recipe("model.size=tiny").backbone == recipe("model.preset=spun-decoder-tiny").backbone
    assert recipe("model.size=tiny", "model.hidden_size=64").backbone.hidden_size == 64


def test_auto_has_the_sizes_with_the_fields_that_are_set() -> None:
    model = recipe("model.size=auto", "model.positions.theta=500.0", "model.vocab_size=97").model
    candidates = model.candidates()
    assert list(candidates) == list(sizes_of("spun-decoder"))
    for size, backbone in candidates.items():
        changes = (f"model.size={size}", "model.positions.theta=500.0", "model.vocab_size=97")
        assert backbone == recipe(*changes).backbone
    assert model.vocab_size == 97


def test_a_family_without_a_size_is_auto() -> None:
    assert recipe().model == recipe("model.size=auto").model
    assert recipe("model.preset=spun-decoder-mini").backbone == recipe("model.size=mini").backbone
    with pytest.raises(UserError, match="preset=bert is a family"):
        recipe("model.preset=bert")


def test_auto_survives_a_file() -> None:
    given = recipe("model.hidden_act=gelu")
    assert as_recipe(given.model_dump(mode="json")) == given


def test_auto_has_no_backbone_before_it_is_chosen() -> None:
    with pytest.raises(UserError, match=r"model\.size.*tiny, mini"):
        _ = recipe().backbone


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("model.hiden_act=gelu", "hiden_act.*hidden_act"),
        ("model.preset=bert", "spun-decoder"),
        ("model.num_attention_heads=7", "num_attention_heads=7"),
    ],
)
def test_mistakes_with_auto_are_named(change: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        recipe("model.size=auto", change)


def test_a_model_is_of_its_family_whatever_its_size() -> None:
    odd = recipe(
        "model.size=mini", "model.num_hidden_layers=3", "model.hidden_size=192", "model.num_attention_heads=3"
    ).backbone
    assert is_of_family(odd, "spun-decoder")
    assert not is_of_family(odd, "spun-encoder")
    assert not is_of_family(odd.model_copy(update={"hidden_act": "gelu"}), "spun-decoder")
    assert not is_of_family(odd, "lstm")


def test_the_same_model_but_for_its_vocabulary() -> None:
    mini = recipe("model.size=mini").backbone
    assert same_model(mini, mini.with_tokens(101, 3), FROM_TRAINING)
    assert not same_model(mini, recipe("model.size=tiny").backbone, FROM_TRAINING)


def test_families_of_two_stacks_have_sizes_too() -> None:
    model = AutoSizeConfig.model_construct(preset="bart", size="auto")
    widths = {size: backbone.hidden_size for size, backbone in model.candidates().items()}
    assert widths == {"tiny": 128, "mini": 256, "base": 768, "large": 1024}
    for backbone in model.candidates().values():
        assert is_of_family(backbone, "bart")
        assert not is_of_family(backbone, "transformer")
        assert not is_of_family(backbone, "spun-decoder")
