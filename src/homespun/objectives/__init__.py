"""Pretraining objectives: a seeded ``collate`` from rows to a batch, and a module that computes the `Loss`."""
