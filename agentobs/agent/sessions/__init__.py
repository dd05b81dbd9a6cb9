"""Resume and fork: rebuild a conversation that can continue from a recorded session."""
