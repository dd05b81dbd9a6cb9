"""Sub-agents: the tool that starts another agent, and that agent's lifecycle."""
