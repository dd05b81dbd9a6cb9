"""The progress of a replay, and how its responses are delivered."""
