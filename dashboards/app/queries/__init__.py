"""Queries of people: the SQL page with its processes, saved queries and views, and downloads of rows."""
