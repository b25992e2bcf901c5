"""Files that are written atomically, their digests, and JSON that is read safely."""
