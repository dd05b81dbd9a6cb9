"""A scripted agent: sends the conversation to the provider, and runs the commands that the model calls.

It is started with Python's option -S, so it uses the standard library only. Commands start as in most agents: the
program is found through PATH, and its output is captured. The tool `Wrapped` runs its command inside `eval`.
"""

import http.client
import json
import os
import shlex
import subprocess
import urllib.parse


def ask(messages):
    """Return the content of the next response."""
    url = urllib.parse.urlsplit(os.environ["ANTHROPIC_BASE_URL"])
    connection = http.client.HTTPConnection(url.netloc)
    tools: list[dict[str, object]] = [
        {"name": name, "input_schema": {"type": "object"}} for name in ("Bash", "Wrapped")
    ]
    body: dict[str, object] = {
        "model": "claude-sonnet-5",
        "max_tokens": 9,
        "tools": tools,
        "messages": messages,
    }
    headers = {"anthropic-version": "2023-06-01"}
    connection.request("POST", url.path + "/v1/messages", json.dumps(body), headers)
    return json.loads(connection.getresponse().read())["content"]


def run(block):
    """Return the result of a call."""
    command = block["input"]["command"]
    if block["name"] == "Wrapped":
        command = (
            f"shopt -s extglob && eval {shlex.quote(command)} < /dev/null && pwd -P >/dev/null"
        )
    done = subprocess.run(["bash", "-c", command], capture_output=True)
    text = done.stdout.decode(errors="replace")[:1000]
    return {
        "type": "tool_result",
        "tool_use_id": block["id"],
        "content": f"{done.returncode} {text}",
    }


def main():
    """Run until a response without calls."""
    messages: list[dict[str, object]] = [{"role": "user", "content": "go"}]
    while True:
        content = ask(messages)
        calls = [block for block in content if block["type"] == "tool_use"]
        if not calls:
            break
        messages.append({"role": "assistant", "content": content})
        messages.append({"role": "user", "content": [run(block) for block in calls]})
    print("finished")


main()
