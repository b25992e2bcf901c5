"""Layers other than attention, masks, sparsity patterns, vocabulary losses. They take plain arguments, no configs."""
