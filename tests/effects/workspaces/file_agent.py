"""A scripted coding agent as a program: it runs the tools that the model calls in its working directory.

It is started with Python's options -S -E, and uses the standard library only.
"""

import http.client
import json
import os
import subprocess
import sys
import urllib.parse
from pathlib import Path

NAMES = ("write", "edit", "remove", "move", "shell")


def ask(messages):
    """Return the content of the next response."""
    url = urllib.parse.urlsplit(os.environ["ANTHROPIC_BASE_URL"])
    connection = http.client.HTTPConnection(url.netloc, timeout=60)
    tools: list[object] = [{"name": name, "input_schema": {"type": "object"}} for name in NAMES]
    body: dict[str, object] = {
        "model": "claude-sonnet-5",
        "max_tokens": 100,
        "tools": tools,
        "messages": messages,
    }
    headers = {
        "anthropic-version": "2023-06-01",
        "x-api-key": os.environ.get("ANTHROPIC_API_KEY", ""),
    }
    connection.request("POST", url.path + "/v1/messages", json.dumps(body), headers)
    response = connection.getresponse()
    data = response.read()
    if response.status != 200:
        sys.stderr.write(f"HTTP {response.status} {data!r}\n")
        sys.exit(3)
    return json.loads(data)["content"]


def run(name, value):
    """Run a tool, and return its result."""
    path = Path(value.get("path", "."))
    if name == "write":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(value["content"])
    elif name == "edit":
        path.write_text(path.read_text().replace(value["old"], value["new"], 1))
    elif name == "remove":
        path.unlink()
    elif name == "move":
        path.rename(value["to"])
    else:
        done = subprocess.run(["sh", "-c", value["command"]], capture_output=True, text=True)
        return f"exit code {done.returncode}: {done.stdout}"
    return "done"


def main():
    """Run until a response without calls."""
    extra = os.environ.get("FILE_AGENT_WRITES")
    if early := os.environ.get("FILE_AGENT_EARLY"):
        Path(early).write_text("early\n")
    messages: list[object] = [{"role": "user", "content": "Fix the tests."}]
    while True:
        content = ask(messages)
        messages.append({"role": "assistant", "content": content})
        calls = [block for block in content if block["type"] == "tool_use"]
        if not calls:
            break
        results = [
            {
                "type": "tool_result",
                "tool_use_id": call["id"],
                "content": run(call["name"], call["input"]),
            }
            for call in calls
        ]
        messages.append({"role": "user", "content": results})
    if extra:
        Path(extra).write_text("extra\n")
    print(content[0]["text"])


if __name__ == "__main__":
    main()
