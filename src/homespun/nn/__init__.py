"""Layers other than attention, masks, sparsity patterns and vocabulary losses, with plain arguments."""
