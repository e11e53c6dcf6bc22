"""``python -m replicata``: the same as the command ``replicata``."""

from replicata.cli import main

main()
