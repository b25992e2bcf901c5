"""``python -m homespun``: the same as the command ``homespun``."""

from homespun.cli import main

main()
