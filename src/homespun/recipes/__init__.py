"""Shipped recipes: YAML files, each loaded by a test."""
