"""Models: configs that build, embeddings, backbones, heads, presets, and the ``model/`` folder."""
