"""The shape of each provider's requests and responses. No other package depends on it."""
