"""Queries that users write: the SQL page and its processes, saved queries and views, and downloads of rows."""
