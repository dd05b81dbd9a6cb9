"""Facts without content, derived from exchanges."""
