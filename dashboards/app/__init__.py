"""The live application: serves pages about a home over HTTP, while agents may be writing to it."""
