"""What the user asks of a replay: options, tool policies, faults, forks, scripts."""
