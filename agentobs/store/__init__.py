"""The store: one DuckDB file without content, built from the journal's facts, for queries in SQL."""
