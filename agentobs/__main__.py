"""Entry point of `python -m agentobs`, which is the same as the command `agentobs`."""

from __future__ import annotations

from agentobs.cli import main

main()
