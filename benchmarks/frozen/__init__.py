"""Frozen results of small trainings; see `benchmarks.frozen.__main__`."""
