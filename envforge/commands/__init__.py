"""One module per command; imported by :mod:`envforge.cli` when the command is used."""
