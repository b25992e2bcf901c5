"""Comparisons: variations of recipes over several seeds under one budget, each stage a process of its own."""
