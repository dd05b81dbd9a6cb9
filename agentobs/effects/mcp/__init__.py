"""Observed MCP servers: a tee for servers that communicate over standard input and output, and one for HTTP."""
