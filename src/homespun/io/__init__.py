"""Atomic writes, digests of files, and JSON files."""
