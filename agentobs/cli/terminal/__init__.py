"""Code that the commands share: options, tables, output of queries and errors."""
