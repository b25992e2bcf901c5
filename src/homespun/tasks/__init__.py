"""The kinds of fine-tuning, a file each; `config` is the union of them."""
