"""Side by side with peers: `python -m benchmarks` lists them, `python -m benchmarks NAME` runs one."""
