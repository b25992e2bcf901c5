"""Commands, one module each. The command line and Python call the same functions."""
