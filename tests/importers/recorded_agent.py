"""A small agent, and recordings of its requests as other tools store them. Everything in them is made up."""

from __future__ import annotations

import base64
import copy
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
from anthropic import Anthropic
from click.testing import CliRunner, Result

import agentobs
from agentobs.cli import cli
from agentobs.recording.journal.home import Home
from agentobs.recording.journal.segments import segment_ids
from agentobs.recording.vault.vault import read_session
from agentobs.records.exchanges import Recording
from agentobs.store.duckdb.connection import connect
from replay import Replayer, load
from replay.freeze.conversion import freeze
from tests.provider_script import message_events

SECRET = "sk-ant-api03-" + "Qz7" * 20
WORD = "Kanarienvogel"
"""A word that is only in content."""
TOOLS: list[Any] = [
    {
        "name": "weather",
        "description": f"{WORD}: the weather in a city",
        "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
    }
]
OTHER = "https://telemetry.example.com/v1/traces"


class Pair(NamedTuple):
    """One request and its response as HTTP transports them."""

    url: str
    request_headers: dict[str, str]
    request_body: bytes
    response_headers: dict[str, str]
    response_body: bytes


def run_agent(client: Anthropic, *, stream: bool) -> list[str]:
    """Request the weather, run the tool, and return the texts of the responses."""
    messages: list[Any] = [{"role": "user", "content": f"{WORD}: how is the weather in Rome?"}]
    texts = []
    while True:
        arguments: Any = {
            "model": "claude-sonnet-4-5",
            "max_tokens": 100,
            "messages": messages,
            "tools": TOOLS,
        }
        if stream:
            with client.messages.stream(**arguments) as events:
                message: Any = events.get_final_message()
        else:
            message = client.messages.create(**arguments)
        texts += [block.text for block in message.content if block.type == "text"]
        calls = [block for block in message.content if block.type == "tool_use"]
        if not calls:
            return texts
        messages.append({"role": "assistant", "content": message.content})
        results = [
            {
                "type": "tool_result",
                "tool_use_id": call.id,
                "content": f"{WORD}: sunny in {call.input['city']}",
            }
            for call in calls
        ]
        messages.append({"role": "user", "content": results})


def responses(*, stream: bool) -> Iterator[tuple[str, bytes]]:
    """Yield the content type and the body of the responses to the agent."""
    turns: list[list[dict[str, Any]]] = [
        [
            {"type": "text", "text": f"{WORD} äöü 🐦"},
            {"type": "tool_use", "id": "toolu_01", "name": "weather", "input": {"city": "Rome"}},
        ],
        [{"type": "text", "text": "It is sunny."}],
    ]
    for number, content in enumerate(turns, 1):
        if stream:
            events = message_events(*content, number=number, model="claude-sonnet-4-5")
            yield "text/event-stream; charset=utf-8", b"".join(events)
            continue
        answer = {
            "id": f"msg_{number}", "type": "message", "role": "assistant", "model": "claude-sonnet-4-5",
            "content": content, "stop_reason": "end_turn" if number == len(turns) else "tool_use",
            "stop_sequence": None, "usage": {"input_tokens": 1000, "output_tokens": 10},
        }  # fmt: skip
        yield "application/json", json.dumps(answer, ensure_ascii=False).encode()


def recorded_pairs(*, stream: bool = False) -> list[Pair]:
    """Run the agent against scripted responses; return what is sent."""
    pairs: list[Pair] = []
    scripted = responses(stream=stream)

    def respond(request: httpx2.Request) -> httpx2.Response:
        content_type, body = next(scripted)
        headers = {
            "content-type": content_type, "request-id": f"req_{len(pairs)}", "set-cookie": f"session={SECRET}",
            "date": f"Wed, 04 Feb 2026 00:00:0{len(pairs)} GMT",
        }  # fmt: skip
        pairs.append(Pair(str(request.url), dict(request.headers), request.content, headers, body))
        return httpx2.Response(200, headers={"content-type": content_type}, content=body)

    http = httpx2.Client(transport=httpx2.MockTransport(respond))
    client = Anthropic(api_key=SECRET, base_url="https://api.anthropic.com", http_client=http)
    run_agent(client, stream=stream)
    return pairs


def cassette(pairs: list[Pair]) -> dict[str, Any]:
    """Return the pairs as vcrpy stores them, after a request to another host."""
    other = {
        "request": {"method": "POST", "uri": OTHER, "body": "{}", "headers": {}},
        "response": {
            "status": {"code": 200, "message": "OK"},
            "headers": {},
            "body": {"string": ""},
        },
    }
    interactions = [
        {
            "request": {
                "method": "POST",
                "uri": pair.url,
                "body": pair.request_body.decode(),
                "headers": {name: [value] for name, value in pair.request_headers.items()},
            },
            "response": {
                "status": {"code": 200, "message": "OK"},
                "headers": {name.title(): [value] for name, value in pair.response_headers.items()},
                "body": {"string": pair.response_body.decode()},
            },
        }
        for pair in pairs
    ]
    return {"interactions": [other, *interactions], "version": 1}


def har(pairs: list[Pair]) -> dict[str, Any]:
    """Return the pairs as Chrome stores them, with a preflight and a request to another host."""
    entries: list[dict[str, Any]] = []
    for number, pair in enumerate(pairs):
        entries.append(
            {
                "startedDateTime": f"2026-02-04T00:00:0{number * 2}.000Z",
                "time": 1500.5,
                "request": {
                    "method": "POST", "url": pair.url, "httpVersion": "http/2.0", "cookies": [], "queryString": [],
                    "headers": [{"name": n, "value": v} for n, v in pair.request_headers.items()],
                    "headersSize": -1, "bodySize": len(pair.request_body),
                    "postData": {"mimeType": "application/json", "text": pair.request_body.decode()},
                },
                "response": {
                    "status": 200, "statusText": "", "httpVersion": "http/2.0", "cookies": [],
                    "headers": [{"name": n, "value": v} for n, v in pair.response_headers.items()],
                    "content": {
                        "size": len(pair.response_body), "mimeType": pair.response_headers["content-type"],
                        "text": pair.response_body.decode(),
                    },
                    "redirectURL": "", "headersSize": -1, "bodySize": -1, "_error": None,
                },
                "cache": {},
                "timings": {"blocked": 1, "dns": -1, "connect": -1, "send": 0.5, "wait": 998.5, "receive": 500.5},
            }
        )  # fmt: skip
    preflight, other = copy.deepcopy(entries[0]), copy.deepcopy(entries[0])
    preflight["request"] |= {"method": "OPTIONS", "bodySize": 0}
    other["request"] |= {"url": OTHER, "headers": []}
    pages: list[Any] = []
    log = {
        "version": "1.2",
        "creator": {"name": "WebInspector", "version": "537.36"},
        "pages": pages,
    }
    return {"log": {**log, "entries": [preflight, other, *entries]}}


def rewind_trace(pairs: list[Pair]) -> list[dict[str, Any]]:
    """Return the pairs as agent-rewind stores them: as arguments and objects of the SDK, with a call of a function."""
    unset: dict[str, Any] = {"citations": None, "caller": None, "toolset_name": None}
    lines: list[dict[str, Any]] = [{"rewind_format": 1, "created_at": 1770163200.0, "meta": {}}]
    for number, pair in enumerate(pairs):
        arguments = json.loads(pair.request_body)
        for message in arguments["messages"]:
            if message["role"] == "assistant":
                message["content"] = [{**block, **unset} for block in message["content"]]
        is_stream = arguments.pop("stream", False)
        if is_stream:
            data = [
                line[6:]
                for line in pair.response_body.decode().split("\n")
                if line.startswith("data: ")
            ]
            result: dict[str, Any] = {"__rewind_stream__": [json.loads(each) for each in data]}
        else:
            result = {**json.loads(pair.response_body), "container": None}
            result["content"] = [{**block, **unset} for block in result["content"]]
        event = {
            "seq": 2 * number,
            "kind": "llm",
            "name": f"anthropic.messages.{'stream' if is_stream else 'create'}",
        }
        times = {"duration_ms": 1500.5, "ts": 1770163202.0 + 2 * number, "live": False}
        request = {"args": [], "kwargs": arguments}
        lines.append(
            {
                **event,
                "fingerprint": "0" * 16,
                "request": request,
                "response": result,
                "error": None,
                **times,
            }
        )
    tool = {
        "request": {"args": [], "kwargs": {"city": "Rome"}},
        "response": WORD,
        "error": None,
        "duration_ms": 1.0,
    }
    return [
        *lines,
        {
            "seq": 9,
            "kind": "tool",
            "name": "weather",
            "fingerprint": "1" * 16,
            **tool,
            "ts": 1770163209.0,
        },
    ]


def orca_events(pairs: list[Pair]) -> list[dict[str, Any]]:
    """Return the pairs as OrcaReplay stores them, in the middle of other events."""
    events: list[dict[str, Any]] = [
        {"type": "run.start", "actor": "orca", "attrs": {"adapter": "node"}}
    ]
    for number, pair in enumerate(pairs, 1):
        is_stream = "stream" in pair.response_headers["content-type"]
        request = {
            "model": "claude-sonnet-4-5",
            "dialect": "anthropic",
            "path": "/v1/messages",
            "messages": 1,
        }
        response = {"status": 200, "duration_ms": 1500, "streamed": is_stream}
        events += [
            {"type": "net.request", "actor": "agent", "turn": number, "attrs": {"url": OTHER}},
            {
                "type": "model.request", "actor": "agent", "turn": number, "attrs": request,
                "payload": pair.request_body.decode(),
            },
            {
                "type": "model.response", "actor": "model", "turn": number, "attrs": response,
                "payload": pair.response_body.decode(), "causes": [len(events) + 1],
            },
            {"type": "future.kind", "actor": "orca", "turn": number},
        ]  # fmt: skip
    events.append({"type": "run.end", "actor": "orca", "attrs": {"exit_code": 0}})
    return [
        {"seq": seq, "ts": f"2026-02-04T00:00:{seq:02d}.000Z", "mono_us": seq, "turn": 0, **event}
        for seq, event in enumerate(events)
    ]


def lines(values: list[dict[str, Any]]) -> bytes:
    """Return values as JSON lines."""
    return "".join(f"{json.dumps(each, ensure_ascii=False)}\n" for each in values).encode()


def put(path: Path, value: Any) -> Path:
    """Write JSON, text or bytes to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(value, bytes):
        path.write_bytes(value)
    else:
        path.write_text(value if isinstance(value, str) else json.dumps(value), "utf-8")
    return path


def compressed(pair: Pair) -> tuple[dict[str, str], bytes]:
    """Return the headers and the body of a response with its content encoding."""
    return {**pair.response_headers, "content-encoding": "gzip"}, gzip.compress(pair.response_body)


def base64_text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def run(home: Home, *arguments: object) -> Result:
    return CliRunner().invoke(cli, ["--home", str(home.path), *map(str, arguments)])


def session_of(home: Home) -> dict[str, Any]:
    """Return the row of the only session."""
    with connect(home) as connection:
        found = connection.execute(
            "SELECT session_id, attempts, turns, tool_calls, cost_usd, unpriced_calls, incomplete, dropped, tags,"
            " started_at::VARCHAR AS started_at,"
            " (SELECT string_agg(DISTINCT cost_status, ' ') FROM costs) AS cost_status FROM sessions"
        )
        names = [each[0] for each in found.description or ()]
        [row] = found.fetchall()
    return dict(zip(names, row, strict=True))


def recording_of(home: Home) -> Recording:
    """Return the only session with its content."""
    with connect(home, ingest=False) as connection:
        [(session_id,)] = connection.execute("SELECT session_id FROM session_starts").fetchall()
    return read_session(home, session_id, segment_ids(home))


def replayed(home: Home, folder: Path, *, stream: bool) -> list[str]:
    """Freeze the only session, run the agent in its replay, and return the texts that the agent received."""
    freeze(recording_of(home), folder, {})
    client = Anthropic(api_key="k", base_url="http://127.0.0.1:9", max_retries=0)
    with Replayer(load(folder)) as replayer:
        agentobs.record(client)
        with agentobs.session("again"):
            texts = run_agent(client, stream=stream)
    assert replayer.progress.requests_matched == 2
    return texts


TEXTS = [f"{WORD} äöü 🐦", "It is sunny."]
"""The texts that the agent receives."""


def stored_bytes(home: Home) -> bytes:
    """Return everything that is in the files of a home."""
    return b"".join(each.read_bytes() for each in home.path.rglob("*") if each.is_file())
