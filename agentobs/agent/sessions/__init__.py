"""Resuming and forking: from a recorded session to a conversation that can continue."""
