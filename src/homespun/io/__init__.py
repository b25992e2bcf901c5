"""Files: atomic writes, digests, locks, JSON; processor cores, signals and the Ray cluster."""
