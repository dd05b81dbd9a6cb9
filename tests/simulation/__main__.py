"""Runs `make simulate`."""

from tests.simulation.command import main

main()
