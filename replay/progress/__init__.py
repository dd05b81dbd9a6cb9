"""How far a replay has come, and how its answers are delivered."""
