"""`python -m fredsim` is the `fredsim` command."""

from fredsim.cli import main

main()
