"""One module a command. The command line and Python call the same functions."""
