# mypy: ignore-errors
"""A scripted agent with MCP servers: reads `--mcp-config`, starts the servers, and sends them the calls.

Like Claude Code, it names the ID of the tool call in the metadata if the server is called `named`.
"""

import http.client
import json
import os
import subprocess
import sys
import urllib.parse

with open(sys.argv[sys.argv.index("--mcp-config") + 1]) as file:
    CONFIG = json.load(file)["mcpServers"]
SERVERS = {
    name: subprocess.Popen(
        [each["command"], *each["args"]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    for name, each in CONFIG.items()
}
IDS = iter(range(1, 1000))


def send(name, method, params):
    """Return the response of a server."""
    server = SERVERS[name]
    server.stdin.write(
        json.dumps({"jsonrpc": "2.0", "id": next(IDS), "method": method, "params": params}) + "\n"
    )
    server.stdin.flush()
    return json.loads(server.stdout.readline() or "{}")


def ask(messages):
    """Return the content of the next response of the provider."""
    url = urllib.parse.urlsplit(os.environ["ANTHROPIC_BASE_URL"])
    connection = http.client.HTTPConnection(url.netloc)
    tools = [{"name": f"mcp__{name}__add", "input_schema": {"type": "object"}} for name in SERVERS]
    body = {"model": "claude-sonnet-5", "max_tokens": 9, "tools": tools, "messages": messages}
    connection.request(
        "POST", url.path + "/v1/messages", json.dumps(body), {"anthropic-version": "2023-06-01"}
    )
    return json.loads(connection.getresponse().read())["content"]


for each in SERVERS:
    send(each, "initialize", {})
    send(each, "tools/list", {})
MESSAGES = [{"role": "user", "content": "go"}]
while True:
    CONTENT = ask(MESSAGES)
    CALLS = [block for block in CONTENT if block["type"] == "tool_use"]
    if not CALLS:
        break
    RESULTS = []
    for call in CALLS:
        _, server_name, tool = call["name"].split("__")
        named = {"_meta": {"agent/toolUseId": call["id"]}} if server_name == "named" else {}
        response = send(
            server_name, "tools/call", {"name": tool, "arguments": call["input"], **named}
        )
        RESULTS.append(
            {"type": "tool_result", "tool_use_id": call["id"], "content": json.dumps(response)}
        )
    MESSAGES += [{"role": "assistant", "content": CONTENT}, {"role": "user", "content": RESULTS}]
for each in SERVERS.values():
    each.stdin.close()
print([each.wait() for each in SERVERS.values()])
