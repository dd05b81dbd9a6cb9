"""Commands that a session page starts: freeze and replay, as a person would start them in a terminal."""
