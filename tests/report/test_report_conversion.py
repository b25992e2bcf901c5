"""The tables of a conversion: many tensors in few rows, and none lost."""

from homespun.report.transfer import conversion_tables


def test_layers_weights_and_biases_share_a_row() -> None:
    names = {
        "bert.words.weight": ("words.weight",),
        **{f"bert.layer.{i}.query.{end}": (f"layers.{i}.query.{end}",) for i in range(3) for end in ("bias", "weight")},
        "bert.layer.0.attn.weight": ("layers.0.key.weight", "layers.0.value.weight"),
        "cls.bias": ("head.bias",),
        "bert.table": ("table",),
        "bert.scale.bias": ("scale.weight",),
    }
    mapped, dropped = conversion_tables({"mapped": names, "dropped": {"pooler.weight": "not used"}, "new": {}})
    assert set(mapped.rows) == {
        ("bert.words.weight", "words.weight", 1),
        ("bert.layer.{0-2}.query.{weight,bias}", "layers.{0-2}.query.{weight,bias}", 6),
        ("bert.layer.0.attn.weight", "layers.0.key.weight + layers.0.value.weight", 1),
        ("cls.bias", "head.bias", 1),
        ("bert.table", "table", 1),
        ("bert.scale.bias", "scale.weight", 1),
    }
    assert sum(row[-1] for row in mapped.rows) == len(names)
    assert dropped.rows == (("pooler.weight", "not used", 1),)
