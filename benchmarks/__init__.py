"""Benchmarks against other libraries: `python -m benchmarks` lists them, `python -m benchmarks NAME` runs one."""
