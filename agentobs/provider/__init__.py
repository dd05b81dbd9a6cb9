"""Everything that knows the shape of a provider's requests and responses."""
