"""Comparisons: variants of recipes over several seeds under one budget; each stage is a process."""
