"""The canary: a text with a space is inserted wherever content can enter, and is searched for outside content files.

Content is only in the content files of a session, and on spans if the session opted in. Everywhere else, keyed digests
replace names that may contain content.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import httpx2
import pytest
from anthropic import Anthropic, APIError
from click.testing import CliRunner

import agentobs
from agentobs import tracing
from agentobs.agent import Permissions, tool
from agentobs.agent.execution.live_answers import Reply
from agentobs.agent.hooks import Command, Hook, table
from agentobs.agent.permissions import Rule
from agentobs.agent.sub_agents.starter import sub_agents
from agentobs.agent.tools.agent_definitions import AgentDefinition
from agentobs.cli import cli
from agentobs.effects.commands.command_records import command_record
from agentobs.effects.commands.shim_reports import CommandReport, EndReport, StartReport, Stream
from agentobs.effects.mcp.json_rpc import Moment, RpcExchange
from agentobs.effects.mcp.mcp_records import McpServer
from agentobs.effects.workspaces import Change, ShadowGit, Snapshot
from agentobs.effects.workspaces.attribution import Attribution, Workspace
from agentobs.effects.workspaces.known_calls import KnownCalls
from agentobs.effects.workspaces.repository_states import RepositoryState
from agentobs.effects.workspaces.state_facts import StateFacts
from agentobs.effects.workspaces.windows import Taken, Window
from agentobs.recording import session as sessions
from agentobs.recording.options import Options
from agentobs.recording.session import start_recorder
from agentobs.records.exchanges import Place
from agentobs.records.facts import Event, SpanEnd, SpanStart
from agentobs.records.labels import unchecked
from agentobs.sink import sink
from agentobs.store.backend import open_store
from agentobs.store.text_index import NAME as INDEX
from exporters import otlp, perfetto
from exporters.conventions.semconv import PROFILES, profile_named
from exporters.otlp.backfill import send_recorded
from tests.agent.provider import Provider, call, error, message, streamed, text
from tests.agent.provider import Reply as Answer
from tests.exporters.collector import Collector
from tests.exporters.sample_agents import play
from tests.loopback import LoopbackServer

WORD = "Kanarien"
"""The part of the canary to search for, which remains intact if a text is split at spaces or escaped."""

CONTENT_SWITCHES = {
    "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "SPAN_AND_EVENT",
    "OTEL_SEMCONV_STABILITY_OPT_IN": "gen_ai_latest_experimental",
    "OTEL_INSTRUMENTATION_GENAI_UPLOAD_BASE_PATH": "/tmp",
    "TRACELOOP_TRACE_CONTENT": "true",
    "OPENINFERENCE_HIDE_INPUTS": "false",
    "OPENINFERENCE_HIDE_OUTPUTS": "false",
    "LANGFUSE_TRACING_ENABLED": "true",
    "LOGFIRE_SEND_TO_LOGFIRE": "true",
    "ANTHROPIC_OPEN_TELEMETRY": "true",
    "ANTHROPIC_LOG": "debug",
    "OTEL_LOG_USER_PROMPTS": "1",
    "OTEL_LOG_TOOL_DETAILS": "1",
    "OTEL_LOG_TOOL_CONTENT": "1",
}
"""Environment variables with which other instrumentations, including the SDK's own, enable content."""


PLACES = (
    """
agent;agent description;answered by;argument;argument value;bad request;beta;between;branch;broken line;call id;
class;command argument;command output;condition;count;description of look;description of read;
description of write;directory;error key;error type;file name;hook context;hook error;hook output;hook reason;
hook stderr;input;key;limit;message id;method;model;old path;overloaded;path;person;program;prompt;refused;
report;repository;request id;result key;result value;retry after;sdk prompt;server;server input;server output;
server tool;session name;stop sequence;stopped by;system;tag;tag name;task;thinking;tier;to write;tool error;
tool name;tool output;unknown input;user id;wrong argument
""".replace("\n", "")
    .strip()
    .split(";")
)
"""The places of the canary that the content files contain. Other places, such as headers, are not recorded at all."""


LIVE = ("both", "genai-1.41", "openinference")
"""The profiles of the three collectors that receive telemetry during the run."""


SHAPES: dict[str, Callable[[str], str]] = {
    "words": lambda place: f"{WORD} vogel {place}",
    "path": lambda place: f"/home/{WORD}/{place.replace(' ', '-')}.txt",
    "address": lambda place: f"{WORD}.{place.replace(' ', '-')}@example.org",
    "word": lambda place: f"{WORD}{place.title().replace(' ', '')}",
    "snake": lambda place: f"{WORD.lower()}_{place.replace(' ', '_').lower()}",
    "id": lambda place: f"toolu_{WORD}{place.title().replace(' ', '')}",
}
"""The forms of the canary. All but the first could be labels; the last two look like a term or an ID of a provider."""

_shape = {"now": "words"}


def canary(place: str) -> str:
    return SHAPES[_shape["now"]](place)


class Exotic(Exception):
    """An exception with the canary in the name of its class."""


Exotic.__name__ = Exotic.__qualname__ = canary("class")


@tool(read_only=True)
def look(where: str) -> str:
    return canary("tool output") + where


@tool(subject="what")
def write(what: str) -> str:
    raise Exotic(canary("tool error"))


@tool(read_only=True, paths=["path"])
def read(path: str) -> dict[str, str]:
    return {canary("result key"): canary("result value")}


for each in (look, write, read):
    each.declaration["description"] = canary(f"description of {each.name}")


def _raises(payload: Any) -> Any:
    raise Exotic(canary("hook error"))


def _hooks() -> Any:
    """Return hooks with the canary in their texts."""
    return table(
        [
            Hook("user_prompt_submit", lambda p: {"context": canary("hook context")}, name="one"),
            Hook("pre_tool_use", _raises, name="two"),
            Hook(
                "post_tool_use", lambda p: {"output": canary("hook output")}, "look", name="three"
            ),
            Hook(
                "pre_tool_use",
                Command(
                    f"echo '{canary('hook stdout')}'; echo '{canary('hook stderr')}' >&2; exit 1"
                ),
                "look",
                name="four",
            ),
            Hook(
                "pre_tool_use",
                lambda p: {"outcome": "blocking", "reason": canary("hook reason")},
                f"write({canary('condition')}*)",
                name="five",
            ),
        ]
    )


def _person(consent: Any) -> Reply:
    return Reply("to write" in str(consent.about), reason=canary("person"))


def _turn(*blocks: dict[str, Any], **options: Any) -> Answer:
    return streamed(message(*blocks, stop_reason="tool_use", **options))


def _run_agent_loop(folder: Path) -> None:
    """Run the agent loop of agentobs, with hooks, approvals, files and a sub-agent."""
    hooks = _hooks()
    helper = AgentDefinition("helper", canary("agent description"), system=canary("agent system"))
    start = sub_agents([helper], background=False)
    tools = (look, write, read, start)
    thinking = {"type": "thinking", "thinking": canary("thinking"), "signature": "c2ln"}
    usage = {
        "input_tokens": 1,
        "output_tokens": 1,
        canary("count"): 3,
        "service_tier": canary("tier"),
    }
    path = str(folder / canary("file name"))
    answers = [
        error(529, "overloaded_error", retry="true", text=canary("overloaded")),
        _turn(
            thinking, call("toolu_1", "look", where=canary("input")), model=canary("answered by")
        ),
        _turn(call("toolu_2", "write", what=canary("to write")), id=canary("message id")),
        _turn(call("toolu_8", "write", what=canary("to ask"))),
        _turn(call("toolu_3", canary("tool name"), x=canary("unknown input")), usage=usage),
        _turn(call(canary("call id"), "read", path=path), text(canary("between"))),
        _turn(call("toolu_5", "write", what=canary("condition") + "!")),
        _turn(call("toolu_6", "look", nowhere=canary("wrong argument"))),
        _turn(call("toolu_7", start.name, agent="helper", prompt=canary("task"))),
        streamed(message(text(canary("report")))),
        streamed(message(text(canary("answer")), stop_sequence=canary("stopped by"))),
    ]

    async def run(provider: Provider) -> None:
        async with provider.client() as client:
            await play(
                client,
                canary("prompt"),
                tools=tools,
                system=canary("system"),
                hooks=hooks,
                agent=canary("agent"),
                permissions=Permissions(
                    rules=(Rule.parse(f"write({canary('rule')}*)", "ask", "user"),), mode="default"
                ),
                extra={"metadata": {"user_id": canary("user id")}},
                live={"hooks": hooks, "person": _person, "roots": (folder,)},
            )

    with Provider(answers) as provider:
        asyncio.run(run(provider))


class _Hostile(BaseHTTPRequestHandler):
    """A provider that puts the canary into all parts of its responses."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length") or 0))
        if self.path.startswith("/v1/messages?beta") or "redirected" in self.path:
            self._respond(400, self._error(canary("refused")))
        elif "count_tokens" in self.path:
            self._respond(307, b"{}", location=f"/v1/redirected/{WORD}%20vogel%20location")
        else:
            self._respond(400, self._error(canary("bad request")))

    do_GET = do_POST

    def _error(self, words: str) -> bytes:
        inner = {"type": canary("error type"), "message": words}
        return json.dumps({"type": "error", "error": inner, canary("error key"): 1}).encode()

    def _respond(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {
            "content-type": "application/json",
            "content-length": str(len(body)),
            "request-id": canary("request id"),
            "retry-after": canary("retry after"),
            "x-should-retry": "false",
            "anthropic-ratelimit-requests-limit": canary("limit"),
            "x-own": canary("header"),
            "set-cookie": f"id={canary('cookie')}",
            **headers,
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        pass


def _use_sdk() -> None:
    """Use the SDK without the agent loop, with a hostile provider and a broken connection."""
    server = LoopbackServer(_Hostile)
    server.start()
    request: dict[str, Any] = {
        "model": canary("model"),
        "max_tokens": 5,
        "messages": [{"role": "user", "content": canary("sdk prompt")}],
    }
    options: dict[str, Any] = {
        "stop_sequences": [canary("stop sequence")],
        "extra_headers": {"anthropic-beta": canary("beta"), "x-own": canary("own header")},
        "extra_query": {canary("query"): canary("value")},
    }
    client = agentobs.record(Anthropic(api_key="made-up", base_url=server.base_url, max_retries=0))
    with contextlib.suppress(APIError):
        client.messages.create(**request, **options)
    with contextlib.suppress(APIError):
        client.messages.count_tokens(model=request["model"], messages=request["messages"])
    with contextlib.suppress(APIError):
        client.beta.files.download(canary("file id"))

    def breaks(request: httpx2.Request) -> httpx2.Response:
        raise httpx2.ReadError(canary("broken line"))

    http = httpx2.Client(transport=httpx2.MockTransport(breaks))
    broken = agentobs.record(Anthropic(api_key="made-up", http_client=http, max_retries=1))
    with contextlib.suppress(APIError):
        broken.messages.create(**request)
    server.stop()


def _emit_canaries(session_id: str) -> None:
    """Emit facts and metadata with the canary in every text."""
    word = unchecked(canary("own kind"))
    place: dict[str, Any] = {"session_id": session_id, "interaction_id": canary("interaction")}
    sink.emit(
        Event(
            **place,
            lane=unchecked(canary("lane")),
            turn=1,
            at_ns=1,
            kind=word,
            label=unchecked(canary("label")),
            numbers={canary("number"): 1.0},
            chain_id=canary("chain"),
            labels={canary("label name"): unchecked(canary("label value"))},
        )
    )
    span: dict[str, Any] = {"session_id": session_id, "span_id": canary("span id")}
    sink.emit(
        SpanStart(
            **span,
            trace_id=canary("trace"),
            parent_span_id=canary("parent"),
            lane=word,
            name=unchecked(canary("span")),
            label=unchecked(canary("span label")),
            started_ns=1,
            linked_span_id=canary("linked"),
            remote_parent=canary("remote"),
        )
    )
    sink.emit(
        SpanEnd(**span, ended_ns=2, status="error", error_type=unchecked(canary("span error")))
    )
    for wrong in ({"x": canary("metadata")}, {canary("name"): 1}):
        with contextlib.suppress(TypeError, ValueError):
            agentobs.event("own.kind", **wrong)
        with contextlib.suppress(TypeError, ValueError), agentobs.span("own", **wrong):
            pass
    with contextlib.suppress(TypeError, ValueError), agentobs.span(canary("named span")):
        pass


def _emit_effects(place: Place) -> None:
    """Emit a command, MCP calls and a changed file with the canary in every text."""
    output = canary("command output").encode()
    arguments = ("sh", "-c", canary("command argument"))
    started = StartReport(
        "sh",
        canary("program"),
        9,
        (1,),
        ("pipe", "pipe", "pipe"),
        1,
        canary("directory"),
        arguments,
    )
    streams = Stream(len(output), output, b""), Stream(0, b"", b"")
    ended = EndReport(2, 1, 0, 0, False, *streams)
    sink.emit(
        command_record(place, CommandReport("command", None, started, ended), keeps_content=True)
    )
    server = McpServer(canary("server"), "stdio")
    for method, params in (
        (canary("method"), {}),
        ("tools/call", {"name": canary("server tool"), "arguments": canary("server input")}),
    ):
        request = {"id": 1, "method": method, "params": params}
        response = {"id": 1, "result": canary("server output")}
        at = Moment(1, 1)
        exchange = RpcExchange("client", method, request, 9, at, response, 9, at)
        sink.emit(server.record(place, exchange))
    shadow = ShadowGit(Path("0" * 24), Path("/"))
    taken = Taken(
        Snapshot(canary("tree"), 1, 2, True),
        RepositoryState(canary("repository"), canary("branch"), None, None),
        size=(1, 1),
    )
    facts = StateFacts(shadow, Workspace(Path("/"), Path("/")))
    window = Window(taken, taken, 1, 2, [("end", None)])
    sink.emit(facts._state(place.session_id, window, 0, KnownCalls(), 1))
    change = Change(
        "renamed", canary("path"), canary("old path"), canary("old blob"), canary("blob")
    )
    none = Attribution(None)
    sink.emit(facts._change(place.session_id, window, change, none, [], is_late=False))


_run: dict[str, Any] = {}
"""The folder and the session of the run, in a global because the arguments of `_record_all` are recorded."""


def _record_all(first: str, second: dict[str, str]) -> None:
    _run_agent_loop(_run["folder"])
    _use_sdk()
    here = tracing.place()
    assert here is not None
    _run["opened"].session_id = here.session_id
    _emit_canaries(here.session_id)
    _emit_effects(here)
    raise Exotic(canary("exception"))


def record_canary(folder: Path, content: Any) -> str:
    """Insert the canary wherever content can enter, in one session, and return the session's ID."""
    tags = {"note": canary("tag"), canary("tag name"): "x"}
    opened = agentobs.session(canary("session name"), tags=tags, content=content)

    _run["folder"], _run["opened"] = folder, opened
    with contextlib.suppress(Exotic):
        opened(_record_all)(canary("argument"), {canary("key"): canary("argument value")})
    with agentobs.session("failed", content=content):
        agentobs.fail(canary("failure"))
    return opened.session_id


class Outputs:
    """Everything that left the process, except the recording itself."""

    def __init__(self, tmp_path: Path) -> None:
        self.collectors = [Collector(each) for each in ("http/protobuf", "http/json", "grpc")]
        self.traces = tmp_path / "traces"
        self.home = tmp_path / "home"
        self.logged: list[str] = []
        self.warned: list[str] = []
        self.backends: list[otlp.Backend] = []


@contextlib.contextmanager
def collecting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **options: Any
) -> Iterator[Outputs]:
    """Record with all backends, and collect everything that leaves the process."""
    collected = Outputs(tmp_path)
    monkeypatch.setenv("AGENTOBS_HOME", str(collected.home))
    monkeypatch.setattr("agentobs.errors._reported", set())

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            # The SDK and its transport log their requests if users enable that.
            if not record.name.startswith(("anthropic", "httpx2", "httpcore2")):
                collected.logged.append(f"{record.name} {record.getMessage()} {record.exc_text}")

    handler = Keep(logging.DEBUG)
    logging.getLogger().addHandler(handler)
    before = logging.getLogger().level
    logging.getLogger().setLevel(logging.DEBUG)
    try:
        with contextlib.ExitStack() as stack, warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            for collector, profile in zip(collected.collectors, LIVE, strict=True):
                stack.enter_context(collector)
                protocol: Any = collector.protocol
                made = otlp.beta(collector.endpoint, protocol=protocol, profile=profile)
                collected.backends.append(made)
            drawn = perfetto.trace_file(collected.traces)
            chosen = Options(backends=(*collected.backends, drawn), **options)
            assert start_recorder(str(collected.home), chosen) is not None
            yield collected
            assert sessions.flush(30)
            assert all(backend.flush(30) for backend in collected.backends)
            assert agentobs.stop_recorder()
            assert [backend.failed for backend in collected.backends] == [0, 0, 0]
            assert drawn.failed == 0
            collected.warned = [str(each.message) for each in warned]
    finally:
        logging.getLogger().removeHandler(handler)
        logging.getLogger().setLevel(before)


def outputs(collected: Outputs) -> dict[str, bytes]:
    """Return everything that was sent, written to a trace, reported as a warning, or logged, by destination."""
    found = {f"sent over {each.protocol}": each.bytes for each in collected.collectors}
    # JSON may escape letters, so the parsed messages are searched as well.
    for collector in collected.collectors:
        whole = [str(received.message) for received in collector.received]
        found[f"understood over {collector.protocol}"] = "\n".join(whole).encode()
    found |= {f"trace {path.name}": path.read_bytes() for path in collected.traces.iterdir()}
    found["warnings"] = "\n".join(collected.warned).encode()
    found["log lines"] = "\n".join(collected.logged).encode()
    return found


def command_outputs(home: Path, session_id: str) -> dict[str, bytes]:
    """Return the output of commands that show sessions without content, except texts that digests replace in facts and
    the title.
    """
    runs = [
        ["ingest"], ["sessions"], ["show", session_id], ["diagnose", session_id],
        ["time", session_id], ["tools"], ["waits"], ["models"], ["orphans"], ["cost"], ["cache"],
        ["doctor"], ["verify"], ["sql", "SELECT * FROM event_log"],
    ]  # fmt: skip
    found = {}
    for run in runs:
        ran = CliRunner().invoke(cli, ["--home", str(home), *run])
        assert ran.exception is None or isinstance(ran.exception, SystemExit), (run, ran.exception)
        found[f"agentobs {run[0]}"] = ran.output.encode()
    for name in (
        "sessions",
        "show",
        "diagnose",
        "cache",
        "cost",
        "models",
        "tools",
        "time",
        "orphans",
        "doctor",
    ):
        # On this machine, names, tags, reasons and paths of changed files are shown as text; all other content is not.
        for place in (
            "session name", "failure", "class", "model", "answered by", "tool name", "error type", "tag",
            "agent", "tag name", "tier", "named span", "span", "span label", "own kind", "server", "server tool",
            "method", "path",
        ):  # fmt: skip
            outputs = found[f"agentobs {name}"]
            found[f"agentobs {name}"] = outputs.replace(canary(place).encode(), b"")
    # The title of a session with content, which is its first prompt, is shown once.
    title = f"{canary('prompt')} {canary('hook context')}".encode()
    for name in ("sessions", "show"):
        assert title in found[f"agentobs {name}"]
        found[f"agentobs {name}"] = found[f"agentobs {name}"].replace(title, b"", 1)
    return found


def exported_files(home: Path, session_id: str, folder: Path) -> dict[str, bytes]:
    """Return all files that commands write for other tools and machines, and the home after the import of a bundle."""
    folder.mkdir()
    runs = [
        ["export", form, session_id, "--of", of]
        for form in ("speedscope", "folded")
        for of in ("time", "cost")
    ]
    runs += [
        ["export", name]
        for name in ("attempts", "events", "session_starts", "tool_calls", "span_starts")
    ]
    runs += [["export", "perfetto", session_id], ["bundle", session_id]]
    endings = {
        "attempts": ".arrows",
        "events": ".jsonl",
        "session_starts": ".csv",
        "tool_calls": ".parquet",
    }
    found = {}
    for number, run in enumerate(runs):
        path = folder / f"{number}{endings.get(run[1], '.arrows')}"
        ran = CliRunner().invoke(cli, ["--home", str(home), *run, "-o", str(path)])
        assert ran.exception is None or isinstance(ran.exception, SystemExit), (run, ran.exception)
        found[f"output of {' '.join(run)}"] = ran.output.encode()
        for each in sorted(path.iterdir()) if path.is_dir() else [path]:
            found[" ".join(run)] = each.read_bytes()
    other = folder / "other"
    ran = CliRunner().invoke(cli, ["--home", str(other), "import", "bundle", str(path)])
    assert ran.exit_code == 0, ran.exception
    return {**found, **{f"imported {name}": data for name, data in home_files(other).items()}}


def later_exports(home: Path) -> dict[str, bytes]:
    """Return the bytes that are sent to a collector after the run, and the reports about it, for each profile."""
    found = {}
    with open_store(str(home)) as store:
        for profile in PROFILES:
            with Collector() as collector, otlp.sending(collector.endpoint) as to:
                spoken = profile_named(profile, is_beta=True)
                report = send_recorded(store, to.send, spoken, to.destination, resend=True)
            assert report.is_complete
            assert report.accepted["traces"] > 10
            found[f"sent later as {profile}"] = collector.bytes
            found[f"report of {profile}"] = "\n".join(report.lines()).encode()
    return found


def store_tables(home: Path) -> dict[str, bytes]:
    """Return every table and view of the store, as text."""
    with agentobs.connect(str(home)) as connection:
        named = "SELECT table_catalog, table_schema, table_name FROM information_schema.tables"
        tables = [
            ".".join(f'"{part}"' for part in row) for row in connection.execute(named).fetchall()
        ]
        assert len(tables) > 15
        return {
            f"table {each}": str(connection.execute(f"SELECT * FROM {each}").fetchall()).encode()
            for each in tables
        }


def home_files(home: Path) -> dict[str, bytes]:
    """Return the path and the bytes of every file of a home."""
    paths = [path for path in home.rglob("*") if path.is_file()]
    return {
        str(path.relative_to(home)): str(path.relative_to(home)).encode() + path.read_bytes()
        for path in paths
    }


def leaks(places: dict[str, bytes]) -> dict[str, str]:
    """Return the places that contain the canary, each with an excerpt."""
    word = WORD.lower().encode()
    return {
        name: data[max(data.lower().index(word) - 80, 0) :][:160].decode("utf-8", "replace")
        for name, data in places.items()
        if word in data.lower()
    }


@pytest.mark.slow
def test_content_stays_in_the_content_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default, the canary is only in the content files: in no fact, table, event, span, metric, log record, warning,
    log line, exported byte, trace or command output, except for the title of the session. Environment variables of
    other tools do not change that.
    """
    for name, value in CONTENT_SWITCHES.items():
        monkeypatch.setenv(name, value)
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    with collecting(tmp_path, monkeypatch) as collected:
        session_id = record_canary(folder, None)
    # Check before the ingest, which compresses ended segments.
    files = home_files(collected.home)
    content = {name for name in files if name.endswith(".content")}
    assert len(content) == 1
    assert len([name for name in files if name.endswith(".facts")]) == 1
    assert set(leaks(files)) == content
    assert leaks(outputs(collected)) == {}
    assert leaks(command_outputs(collected.home, session_id)) == {}
    assert leaks(store_tables(collected.home)) == {}
    files_of_others = exported_files(collected.home, session_id, tmp_path / "out")
    assert leaks(files_of_others) == {}
    assert leaks(later_exports(collected.home)) == {}
    assert len(files_of_others) > 25
    # The index of texts contains the title that the commands have shown.
    assert set(leaks(home_files(collected.home))) - content == {INDEX}
    # The canary was recorded, so a leak would have been found.
    content_bytes = b"".join(files[name] for name in content)
    missing = [place for place in PLACES if canary(place).encode() not in content_bytes]
    assert missing == []
    assert any(b"chat " in received.body for received in collected.collectors[0].received)


CONTENT_ATTRIBUTES = {
    "gen_ai.input.messages": "prompt",
    "gen_ai.output.messages": "answer",
    "gen_ai.system_instructions": "system",
    "gen_ai.tool.definitions": "description of look",
    "gen_ai.tool.call.arguments": "input",
    "gen_ai.tool.call.result": "tool output",
}
"""The attributes with content in a session that opted in, each with a text that it contains. OpenInference uses other
names for these attributes.
"""


@pytest.mark.slow
def test_content_is_exported_only_from_sessions_that_opted_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `content="export"`, prompts, responses, tool inputs and results are on the spans of that session. They are
    not on spans of another session, and not in log records, metrics or trace files.
    """
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    with collecting(tmp_path, monkeypatch) as collected:
        loud = record_canary(folder, "export")
        quiet = record_canary(folder, None)
    assert loud != quiet
    for collector in collected.collectors:
        holding = {
            span.attributes["session.id"]: span
            for span in collector.spans()
            if WORD in str(span.attributes)
        }
        assert set(holding) == {loud}
        by_name: dict[str, str] = {}
        for span in collector.spans():
            for name, value in span.attributes.items():
                if WORD in str(value):
                    by_name[name] = by_name.get(name, "") + str(value)
        if any(name.startswith("llm.") for name in by_name):
            parts = {name.partition(".")[0] for name in by_name}
            assert parts == {"llm", "input", "output"}
            exported_text = "".join(by_name.values())
            assert [
                place for place in CONTENT_ATTRIBUTES.values() if canary(place) not in exported_text
            ] == []
        else:
            assert set(by_name) == set(CONTENT_ATTRIBUTES)
            assert [
                n for n, place in CONTENT_ATTRIBUTES.items() if canary(place) not in by_name[n]
            ] == []
        others = [received for received in collector.received if received.signal != "traces"]
        assert not [each.signal for each in others if WORD.encode() in each.body]
    places = outputs(collected)
    assert leaks({name: data for name, data in places.items() if "over" not in name}) == {}
    assert leaks(exported_files(collected.home, loud, tmp_path / "out")) == {}


def test_with_content_off_nothing_contains_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No file of a home contains the canary; `AGENTOBS_CONTENT` is the default for sessions that start."""
    monkeypatch.setenv("AGENTOBS_CONTENT", "off")
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    with collecting(tmp_path, monkeypatch) as collected:
        session_id = record_canary(folder, None)
        monkeypatch.setenv("AGENTOBS_CONTENT", "export")
    assert leaks(home_files(collected.home)) == {}
    assert leaks(outputs(collected)) == {}
    # Other commands read only this home.
    for command in (["ingest"], ["sessions"], ["show", session_id]):
        ran = CliRunner().invoke(cli, ["--home", str(collected.home), *command])
        assert ran.exit_code == 0, ran.exception
        assert leaks({"output": ran.output.encode()}) == {}
    assert leaks(home_files(collected.home)) == {}


DECLARED = {
    "agent": "the name of an agent, which the program passes",
    "class": "the name of a class of an exception",
    "model": "the model that a request names",
    "name": "the name of a value of an event or a span",
    "named span": "the name of a span",
    "server": "the name of an MCP server, which the configuration of the client declares",
    "session name": "the name of a session, which the program passes",
    "tag name": "the name of a tag",
}
"""The places whose text may be in the facts if it is one word, each with the reason; docs/redaction.md lists them."""


def _places_in(data: bytes) -> set[str]:
    """Return the places whose canary a text contains."""
    return {
        each
        for each in _all_places()
        if re.search(re.escape(canary(each)).encode() + rb"(?![A-Za-z_])", data)
    }


def _all_places() -> set[str]:
    """Return every place that this module plants the canary in."""
    return set(re.findall(r'canary\("([^"]+)"\)', Path(__file__).read_text())) | set(PLACES)


@pytest.mark.parametrize(
    "shape",
    [
        each if each in ("path", "word") else pytest.param(each, marks=pytest.mark.slow)
        for each in SHAPES
        if each != "words"
    ],
)
def test_texts_that_could_be_labels_stay_in_the_content_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, shape: str
) -> None:
    """A path, an e-mail address or one word is as private as a sentence, unless the program declares it as a name."""
    monkeypatch.setitem(_shape, "now", shape)
    request.addfinalizer(partial(setattr, Exotic, "__name__", Exotic.__name__))
    Exotic.__name__ = canary("class")
    for each in (look, write, read):
        description = canary(f"description of {each.name}")
        monkeypatch.setitem(each.declaration, "description", description)
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    home = tmp_path / "home"
    monkeypatch.setenv("AGENTOBS_HOME", str(home))
    assert start_recorder(str(home), Options()) is not None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        record_canary(folder, None)
    assert sessions.flush(30)
    assert agentobs.stop_recorder()
    files = home_files(home)
    facts = b"".join(data for name, data in files.items() if name.endswith(".facts"))
    content = b"".join(data for name, data in files.items() if name.endswith(".content"))
    assert len(_places_in(content)) > 60
    assert _places_in(facts) == (set() if shape in ("path", "address") else set(DECLARED))
