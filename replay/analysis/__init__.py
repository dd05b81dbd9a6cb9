"""From a mismatch to a divergence: its causes, its report, the outcome at the end."""
