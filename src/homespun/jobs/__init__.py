"""Whole jobs: a recipe in, a run directory out. The command line and Python call the same functions."""
