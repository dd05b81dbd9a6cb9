"""The store: one DuckDB file, built from the journal's facts, for SQL queries. It contains no content."""
