"""What the user chooses for a replay: options, tool policies, faults, forks, scripted responses."""
