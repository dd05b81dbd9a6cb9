"""`python -m agentobs.cli` is the command `agentobs`."""

from __future__ import annotations

from agentobs.cli import main

main()
