"""Analysis of mismatches: the report of a divergence, its causes, and the check of the outcome at the end."""
