"""Objectives: a pure, seeded ``collate`` for the data side, and a module that returns a `Loss` for the model side."""
