"""Writing: a model, a prompt and how to go on -> new tokens."""
