"""Observed MCP servers: a tee for servers that speak over their standard input and output, and one for HTTP."""
