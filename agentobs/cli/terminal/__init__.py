"""Code that the commands share: options, tables, and the output of queries and reports."""
