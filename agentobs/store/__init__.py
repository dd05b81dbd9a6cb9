"""The store: one DuckDB file without content, made from the journal's facts and asked in SQL."""
