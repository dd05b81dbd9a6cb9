"""A replayed command continues with the provider after a turn, and the whole run is recorded."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

import agentobs
from agentobs.cli import main
from agentobs.determinism import session_inheritance
from agentobs.determinism.entry import COMMAND
from agentobs.errors import UsageError
from agentobs.provider.content_encoding import decoded_body
from agentobs.recording.journal.home import open_home
from agentobs.recording.journal.segments import segment_ids
from agentobs.recording.vault.vault import read_session
from agentobs.recording.wire.provider_server import ServedProvider
from agentobs.recording.wire.responses import REPLAYED, SENT
from agentobs.recording.wire.transport import OpenExchange, open_for
from agentobs.records.exchanges import ModelExchange, Place, Question, Recording, ReturnValue
from agentobs.runtime import process
from replay import Fixture, Live, load, run_command
from replay.command import recorded_command
from replay.command.continuation import ReplayedPart
from replay.command.live import _RoutedTransport, _Routing
from replay.command.recorded_command import RecordedCommand
from replay.fixture.writer import write
from replay.scenario.fork_plan import Fork
from replay.served.spine_script import LIVE_HEADER
from tests.provider_script import script
from tests.replay.coding_agent_provider import (
    AGENTS,
    RecordingScript,
    environment,
    prepared,
    recorded,
)
from tests.replay.coding_agent_provider import COMMAND as AGENT

KEY = "sk-ant-live-0123456789"
TURNS = 5


@pytest.fixture(scope="module")
def fixture(tmp_path_factory: pytest.TempPathFactory) -> Fixture:
    folder = tmp_path_factory.mktemp("command")
    recording: Recording = dataclasses.replace(
        recorded(folder / "recorded"),
        name="coding-agent",
        entry=f"{COMMAND}python",
        arguments={"argv": list(AGENT), "directory": str(folder / "recorded" / "work")},
        entry_obstacle={"kind": "command"},
        result=ReturnValue({"exit_code": 0}),
    )
    file = folder / "recording.jsonl"
    file.write_bytes(write(recording, {}))
    return load(file)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    prepared(tmp_path / "run")
    yield tmp_path / "run"
    agentobs.stop_recorder()


class KeyedScript(RecordingScript):
    """The provider after the turn. It keeps the keys that it gets."""

    request_headers: tuple[str, ...] = (*RecordingScript.request_headers, "x-api-key")


def continued(
    fixture: Fixture,
    folder: Path,
    turn: int,
    live: Live | None = None,
    answering: type[KeyedScript] = KeyedScript,
    **more: str,
) -> tuple[Any, KeyedScript]:
    """Run the agent up to a turn, and then with a provider; return the run and the provider's script."""
    provider = answering(folder / "work")
    with ServedProvider(script(), script=provider) as served:
        env = environment(
            folder, **{"ANTHROPIC_BASE_URL": served.url, "ANTHROPIC_API_KEY": KEY, **more}
        )
        ran = run_command(
            fixture,
            cwd=folder / "work",
            env=env,
            timeout=60,
            until_turn=turn,
            then=live or Live(folder / "home"),
        )
    return ran, provider


@pytest.mark.slow
@pytest.mark.parametrize("turn", [1, 3, 4])
def test_a_run_continues_with_the_provider(fixture: Fixture, folder: Path, turn: int) -> None:
    """Only the later requests reach it, with the key of the command, and no other host is reached; all are one session,
    a fork; only its live part costs money.
    """
    ran, provider = continued(fixture, folder, turn, AGENT_LEAK="http://example.invalid/data")
    live = len(provider.made)
    # The request for a title may come at any time, and go to the provider.
    of_turns = [each for each in provider.made if b'"tools"' in each.question.body]
    assert len(of_turns) == TURNS - turn + (2 * AGENTS if turn == 1 else 0)
    assert (ran.ended_by, ran.exit_code, ran.problems()) == ("exit", 0, [])
    assert ran.refused_hosts == ("example.invalid",)
    assert ran.verdict.live == live
    assert 1 < (ran.verdict.live_from or 0) <= len(ran.verdict.requests) + 1
    assert ran.verdict.line().endswith(f"live {live}; live from request {ran.verdict.live_from} on")
    assert {each.question.headers["x-api-key"] for each in provider.made} == {KEY}
    bodies = b"".join(each.question.body for each in provider.made)
    assert b"ufe0e" not in bodies  # the marks of the replay
    assert "\ufe0e".encode() not in bodies
    with agentobs.connect(str(folder / "home")) as store:
        [session] = store.sql(
            "SELECT session_id, name, relation, forked_turn, status, replayed_requests FROM sessions"
        ).fetchall()
        origins = store.sql(
            "SELECT origin, count(*) FROM attempts GROUP BY 1 ORDER BY 1"
        ).fetchall()
        billed = store.sql("SELECT billed FROM usage WHERE NOT billed").fetchall()
    assert len(billed) > 0
    assert ran.session_ids == (session[0],)
    replayed = len(ran.verdict.requests)
    assert session[1:] == (f"coding-agent-fork-{turn}", "fork", turn, "completed", replayed)
    assert origins == [("live", live), ("replayed", replayed)]
    assert KEY.encode() not in b"".join(p.read_bytes() for p in folder.rglob("*") if p.is_file())


def test_nothing_is_sent_without_a_key(fixture: Fixture, folder: Path) -> None:
    """A command without credentials is ended at its first request."""
    provider = KeyedScript(folder / "work")
    with ServedProvider(script(), script=provider) as served:
        env = environment(folder, ANTHROPIC_BASE_URL=served.url, ANTHROPIC_API_KEY="")
        with pytest.raises(UsageError, match="sends no credentials") as raised:
            run_command(
                fixture, cwd=folder / "work", env=env, until_turn=4, then=Live(folder / "home")
            )
    assert "ANTHROPIC_API_KEY" in str(raised.value)
    assert provider.made == []


def test_a_command_that_sends_nothing_is_reported(fixture: Fixture, folder: Path) -> None:
    """Without a key, the clients of the provider's SDKs do not send a request."""
    with pytest.raises(UsageError, match=r"sent no request.*ANTHROPIC_API_KEY"):
        without_requests(fixture, folder)


def test_a_client_of_bedrock_that_sends_nothing_needs_a_signature(
    fixture: Fixture, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the option, its requests do not go to the proxy."""
    monkeypatch.setattr(recorded_command, "_uses_bedrock", lambda _: True)
    with pytest.raises(UsageError, match=r"sent no request.*--sign-aws"):
        without_requests(fixture, folder)


def without_requests(fixture: Fixture, folder: Path) -> None:
    run_command(
        fixture,
        ["true"],
        cwd=folder / "work",
        env=environment(folder, ANTHROPIC_BASE_URL="http://127.0.0.1:1"),
        until_turn=4,
        then=Live(folder / "home"),
    )


def test_nothing_is_sent_if_the_command_takes_another_path_before(
    fixture: Fixture, folder: Path
) -> None:
    """The run ends at the request that was not recorded."""
    ran, provider = continued(fixture, folder, 4, AGENT_PROMPT="Delete the files.")
    assert (ran.ended_by, ran.is_reached, ran.verdict.live) == ("miss", False, 0)
    assert ran.problems()[0].startswith("request ")
    assert provider.made == []


@pytest.mark.slow
def test_live_requests_can_be_changed(fixture: Fixture, folder: Path) -> None:
    """The provider gets the changed requests, and these are recorded."""
    live = Live(folder / "home", model="claude-opus-5", options={"max_tokens": 77})
    ran, provider = continued(fixture, folder, 4, live)
    [made] = provider.made
    body = json.loads(made.question.body)
    assert (body["model"], body["max_tokens"]) == ("claude-opus-5", 77)
    home = open_home(str(folder / "home"))
    [session_id] = ran.session_ids
    recording = read_session(home, session_id, segment_ids(home))
    last = [each for each in recording.exchanges if isinstance(each, ModelExchange)][-1]
    assert json.loads(last.question.body) == body


class OpenRequests(KeyedScript):
    """A provider that keeps the requests which would be in the journal if the process ended now."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.open: list[bytes] = []

    def take(self, question: Question) -> ModelExchange | None:
        self.open += [each.question.body for each in open_for(0)]
        return super().take(question)


@pytest.mark.slow
def test_a_request_in_progress_is_recorded_as_it_was_sent(fixture: Fixture, folder: Path) -> None:
    """A response may take long, so the request is written before its headers arrive."""
    live = Live(folder / "home", model="claude-opus-5")
    _, provider = continued(fixture, folder, 4, live, answering=OpenRequests)
    assert isinstance(provider, OpenRequests)
    assert provider.open == [provider.made[0].question.body]
    assert json.loads(provider.open[0])["model"] == "claude-opus-5"


def test_nothing_is_written_before_it_is_known_what_is_sent() -> None:
    """Otherwise the request of the command would be recorded in place of the changed one."""
    url = "https://api.anthropic.com/v1/messages"
    request = httpx2.Request("POST", url, content=b'{"model":"a"}')
    exchange = OpenExchange(request, Place("session"), 1)
    request.extensions = {SENT: None}
    assert exchange.partial_exchange() is None
    request.extensions = {SENT: httpx2.Request("POST", url, content=b'{"model":"b"}')}
    partial = exchange.partial_exchange()
    assert partial is not None
    assert partial.question.body == b'{"model":"b"}'


def test_a_replayed_response_is_written_while_it_arrives(fixture: Fixture, tmp_path: Path) -> None:
    """Its request was not sent to the provider, so it is recorded as the command sent it."""
    part = ReplayedPart(
        fixture, 1, RecordedCommand(("agent",)), tmp_path, {}, "http://127.0.0.1:1", "mark", print
    )
    answering = httpx2.MockTransport(lambda _: httpx2.Response(200))
    routed = _Routing(part, Fork(1, model="other"), None).wrapped(answering)
    assert isinstance(routed, _RoutedTransport)
    routed._served = answering  # type: ignore[assignment]  # also sends asynchronous requests
    url, body = f"{part.url}/v1/messages", b'{"model":"a"}'
    request = httpx2.Request("POST", url, headers={"x-api-key": KEY}, content=body)
    exchange = OpenExchange(request, Place("session"), 1)
    response = asyncio.run(routed.handle_async_request(request))
    assert response.extensions[REPLAYED] is True
    partial = exchange.partial_exchange()
    assert partial is not None
    assert partial.question.body == body


def test_a_request_that_cannot_be_changed_ends_the_command(
    fixture: Fixture, tmp_path: Path
) -> None:
    """Nothing is sent to the provider, neither this request nor a later one."""
    reasons: list[str] = []
    sent: list[httpx2.Request] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        sent.append(request)
        return httpx2.Response(200)

    command = RecordedCommand(("agent",))
    url = "http://127.0.0.1:1"
    part = ReplayedPart(fixture, 1, command, tmp_path, {}, url, "mark", reasons.append)
    routing = _Routing(part, Fork(1, model="claude-opus-5"), None)
    routed = routing.wrapped(httpx2.MockTransport(answer))
    marked = httpx2.MockTransport(lambda _: httpx2.Response(200, headers={LIVE_HEADER: "mark"}))
    assert isinstance(routed, _RoutedTransport)
    routed._served = marked  # type: ignore[assignment]  # also sends asynchronous requests

    def status(content: bytes) -> int:
        request = httpx2.Request(
            "POST", f"{url}/v1/messages", headers={"x-api-key": KEY}, content=content
        )
        return asyncio.run(routed.handle_async_request(request)).status_code

    assert [status(each) for each in (b"{}", b"[]", b"{}")] == [200, 401, 401]
    assert len(sent) == 1
    assert set(reasons) == {"refused"}
    assert "is not a JSON object" in str(routing.problem)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/model/a.claude%3A0/invoke?x=1", "/model/b.claude:1/invoke?x=1"),
        (
            "/v1/projects/p/locations/l/publishers/anthropic/models/a@1:streamRawPredict",
            "/v1/projects/p/locations/l/publishers/anthropic/models/b.claude:1:streamRawPredict",
        ),
    ],
)
def test_the_model_in_the_path_is_changed(
    fixture: Fixture, tmp_path: Path, path: str, expected: str
) -> None:
    """The body, which names no model, is unchanged. A signed request must be signed for its new path."""
    part = ReplayedPart(
        fixture, 1, RecordedCommand(("agent",)), tmp_path, {}, "http://127.0.0.1:1", "mark", print
    )
    fork = Fork(1, model="b.claude:1")
    url, body = f"https://provider.test{path}", b'{"messages":[]}'
    request = httpx2.Request("POST", url, headers={"authorization": f"Bearer {KEY}"}, content=body)
    changed = _Routing(part, fork, None).changed(request)
    assert changed.url.raw_path.decode() == expected
    assert (changed.url.host, changed.content) == ("provider.test", body)
    request.headers["authorization"] = SIGNED
    with pytest.raises(UsageError, match="can only be changed if it is signed again"):
        _Routing(part, fork, None).changed(request)
    signed = _Routing(part, fork, lambda sent: sent).changed(request)
    assert signed.url.raw_path.decode() == expected


SIGNED = "AWS4-HMAC-SHA256 Credential=AKID/20261126/eu-west-1/bedrock/aws4_request, Signature=0"


@pytest.mark.slow
def test_a_signed_request_is_changed_only_if_it_is_signed_again(
    fixture: Fixture, folder: Path
) -> None:
    """Otherwise the command ends, and nothing is sent. The signature is made for the changed request."""
    with pytest.raises(UsageError, match=r"can only be changed if it is signed again.*--sign-aws"):
        continued(
            fixture, folder, 4, Live(folder / "home", model="other"), AGENT_AUTHORIZATION=SIGNED
        )
    seen: list[str] = []

    def sign(request: httpx2.Request) -> httpx2.Request:
        body = decoded_body(request.content, request.headers.get("content-encoding", ""))
        seen.append(json.loads(body)["model"])
        request.headers["authorization"] = f"{SIGNED}{len(seen)}"
        return request

    live = Live(folder / "home", model="claude-opus-5", sign=sign)
    ran, provider = continued(fixture, folder, 4, live, AGENT_AUTHORIZATION=SIGNED)
    assert (ran.problems(), len(provider.made)) == ([], 1)
    # The proxy signs each request before it knows where it goes.
    assert (seen.count("claude-opus-5"), len(seen)) == (1, len(ran.verdict.requests) + 2)


@pytest.mark.slow
def test_the_recorded_run_can_be_frozen_and_replayed(
    fixture: Fixture, folder: Path, tmp_path: Path
) -> None:
    """Its fixture contains both parts, and replays in another directory."""
    ran, _ = continued(fixture, folder, 3)
    home = open_home(str(folder / "home"))
    recording = read_session(home, ran.session_ids[0], segment_ids(home))
    file = tmp_path / "recording.jsonl"
    file.write_bytes(write(recording, {}))
    prepared(tmp_path / "other")
    again = run_command(
        file, cwd=tmp_path / "other" / "work", env=environment(tmp_path / "other"), timeout=60
    )
    again.check()
    assert again.verdict.count("exact") == len(ran.verdict.requests) + ran.verdict.live


def test_contradicting_options_are_refused(fixture: Fixture) -> None:
    """A live run needs a turn of the recording, and a run ends after a turn or at a change."""
    with pytest.raises(UsageError, match=r"has no turn 99. It has turns 1 to 5"):
        run_command(fixture, until_turn=99, then=Live())
    with pytest.raises(UsageError, match="only from a fixture, after a given turn"):
        run_command(fixture, then=Live())
    with pytest.raises(UsageError, match="until_turn and until_change cannot be combined"):
        run_command(fixture, until_turn=1, until_change=1)


@pytest.mark.slow
def test_the_command_line_forks_a_command(
    fixture: Fixture,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The output of the command stays on standard output; the rest says where recorded responses ended."""
    provider = KeyedScript(folder / "work")
    with ServedProvider(script(), script=provider) as served:
        env = environment(
            folder,
            ANTHROPIC_BASE_URL=served.url,
            ANTHROPIC_API_KEY=KEY,
            AGENTOBS_HOME=str(folder / "home"),
        )
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        monkeypatch.chdir(folder / "work")
        with pytest.raises(SystemExit) as ended:
            main(["fork", str(fixture.path), "--at", "4"])
    out, err = capsys.readouterr()
    assert ended.value.code == 0
    assert out.startswith("All files in ")
    tools, forked, following = err.splitlines()
    assert tools == (
        "live    all tools of the command run for real, in a copy of this directory; after turn 4, the provider answers"
    )
    assert forked.startswith("forked  coding-agent after turn 4: served ")
    assert forked.endswith("live 1; live from request 15 on")
    assert following.startswith("next    agentobs show ")
    assert len(provider.made) == 1


@pytest.mark.slow
def test_a_fork_is_a_session_of_its_own_within_a_session(
    fixture: Fixture, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that takes part in the session of its parent does not record the fork into that session."""
    assert agentobs.start(str(folder / "home"))
    with agentobs.session("outer") as outer:
        pass
    agentobs.stop_recorder()
    place = Place(outer.session_id, lane="inner", query_source="sub_agent")
    state = process.state(session_inheritance.State)
    monkeypatch.setattr(state, "is_read", True)
    monkeypatch.setattr(state, "joined", session_inheritance.Joined(place, "vault"))
    ran, _ = continued(fixture, folder, 4)
    with agentobs.connect(str(folder / "home")) as store:
        sessions = store.sql("SELECT session_id, name FROM sessions ORDER BY started_ns").fetchall()
    assert [name for _, name in sessions] == ["outer", "coding-agent-fork-4"]
    assert ran.session_ids == (sessions[1][0],)


TESTS = """
import pytest
from replay import Live

@pytest.mark.replay_command({path!r}, cwd={cwd!r}, env={env!r}, timeout=60)
def test_live(replay_command):
    ran = replay_command(until_turn=4, then=Live({home!r}))
    assert ran.verdict.live == 1

@pytest.mark.replay_command({path!r}, cwd={cwd!r}, env={env!r}, timeout=60)
def test_replayed(replay_command):
    replay_command()
"""


@pytest.mark.slow
def test_a_test_continues_live_only_with_the_option(
    fixture: Fixture, folder: Path, pytester: pytest.Pytester
) -> None:
    """By default the live test is skipped, and with `--replay-live` all others."""
    provider = KeyedScript(folder / "work")
    names = ("CLAUDE_CONFIG_DIR", "TMPDIR")
    with ServedProvider(script(), script=provider) as served:
        env = {name: environment(folder)[name] for name in names}
        env |= {"ANTHROPIC_BASE_URL": served.url, "ANTHROPIC_API_KEY": KEY}
        source = TESTS.format(
            path=str(fixture.path), cwd=str(folder / "work"), env=env, home=str(folder / "home")
        )
        pytester.makepyfile(source)
        options = ("-p", "no:cacheprovider", "-rs", "--replay-no-fork")
        offline = pytester.runpytest_inprocess(*options)
        assert provider.made == []
        online = pytester.runpytest_inprocess(*options, "--replay-live")
    offline.assert_outcomes(passed=1, skipped=1)
    offline.stdout.fnmatch_lines(["*run it with --replay-live*"])
    online.assert_outcomes(passed=1, skipped=1)
    assert len(provider.made) == 1


class InterruptingScript(KeyedScript):
    """A provider during whose first response a person presses Ctrl-C."""

    def take(self, question: Question) -> ModelExchange | None:
        signal.raise_signal(signal.SIGINT)
        return super().take(question)


@pytest.mark.slow
def test_a_session_is_interrupted_if_its_run_is(fixture: Fixture, folder: Path) -> None:
    """It ends with the run; what was recorded until then is kept."""
    with pytest.raises(KeyboardInterrupt):
        continued(fixture, folder, 4, answering=InterruptingScript)
    with agentobs.connect(str(folder / "home")) as store:
        [session] = store.sql("SELECT status, replayed_requests > 0 FROM sessions").fetchall()
    assert session == ("interrupted", True)
