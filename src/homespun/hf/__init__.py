"""Hugging Face checkpoints, read and written without transformers: one table a family, read in both directions."""
