"""Effects of an agent outside its requests: commands, MCP calls and files, each observed only if it is switched on."""
