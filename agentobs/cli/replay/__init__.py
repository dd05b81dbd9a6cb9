"""Commands that freeze, replay, fork and serve recordings."""
