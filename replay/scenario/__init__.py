"""Scenarios: the user's choices for a replay (options, tool policies, faults, forks, scripted responses)."""
