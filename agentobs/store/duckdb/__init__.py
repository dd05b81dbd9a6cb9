"""The DuckDB store: generations, ingest, archives, verification, retention and the SQL worker."""
