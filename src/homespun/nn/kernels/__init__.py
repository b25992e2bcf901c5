"""Kernels: ``(query, key, value, mask) -> values``, each ``(batch, heads, seq, head_dim)``."""
