"""From a mismatch to a divergence: its causes, its report, and the judgment at the end."""
