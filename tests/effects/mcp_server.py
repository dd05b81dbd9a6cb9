# mypy: ignore-errors
"""A small MCP server over standard input and output, with the standard library only."""

import json
import sys

TOOLS = [{"name": "add", "inputSchema": {"type": "object"}}]


def answer(message):
    """Return the response to a request."""
    method, params = message["method"], message.get("params") or {}
    if method == "initialize":
        result = {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "serverInfo": {"name": "calc", "version": "1"},
        }
    elif method == "tools/list":
        result = {"tools": TOOLS}
    elif params.get("name") == "add":
        total = sum(params["arguments"].values())
        result = {"content": [{"type": "text", "text": str(total)}]}
    elif params.get("name") == "refuse":
        result = {"content": [], "isError": True}
    else:
        return {"error": {"code": -32601, "message": "unknown"}}
    return {"result": result}


for line in sys.stdin:
    received = json.loads(line)
    if received.get("method") == "tools/call" and received["params"]["name"] == "vanish":
        sys.exit(5)
    if "id" in received and "method" in received:
        response = {"jsonrpc": "2.0", "id": received["id"], **answer(received)}
        sys.stdout.write(json.dumps(response) + "\n")
        sys.stdout.flush()
print("server ends", file=sys.stderr)
