"""Reports of divergences: what differs, where it comes from, and of which class it is; each by a real replay."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import re
import socket
import threading
import tracemalloc
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from anthropic import Anthropic, AsyncAnthropic, InternalServerError
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from syrupy.assertion import SnapshotAssertion

import agentobs
from agentobs.agent import Permissions
from agentobs.agent.model.prompt import Section, SystemPrompt
from agentobs.agent.tools.tool import tool
from agentobs.records.differences import differences, same, shortened
from agentobs.records.exchanges import Answer, Chunk
from replay import Divergence, DivergenceError, Fixture, Replayer, ReplayOptions
from replay.comparison.alignment import width
from tests.provider_script import call, refused, streamed, text
from tests.replay.agents import (
    KEY,
    MODEL,
    TOOLS,
    WEATHER,
    Agent,
    answers,
    frozen,
    recorded,
    report,
    weather,
)
from tests.replay.mailer import SEND, Mailer, made, mails

TOKEN = "ghp_" + "Zz9" * 12
PROMPT = f"""# Rules
Be brief.
# This run
run 3f2b8c1e-0000-4000-8000-00000000000a
began 2026-11-22T10:00:00Z
epoch 1795341600.25
scratch /tmp/run-1/notes
pid 4711
cache <object at 0x7f3a2b1c>
server 127.0.0.1:8001
cities {{'Oslo', 'Rome', 'Bern'}}
token {TOKEN}
# Tone
Speak plainly.
"""


@pytest.fixture(scope="module")
def fixture(tmp_path_factory: pytest.TempPathFactory) -> Fixture:
    return weather(tmp_path_factory.mktemp("weather"))


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> Fixture:
    """A session whose system prompt holds what is another in each run."""
    given = [streamed(text("Wet."), number=1)]
    folder = tmp_path_factory.mktemp("noisy")
    run = recorded(folder, lambda url: Agent(url, system=PROMPT).answer("How is it?"), given)
    return frozen(folder, run, "noisy")


def parts(fixture: Fixture, run: Callable[..., Any], *args: Any, **options: Any) -> Divergence:
    """Replay an agent that parts from the recording, and return how."""
    with pytest.raises(DivergenceError) as raised:
        with Replayer(fixture, ReplayOptions(**options)) as replayed:
            replayed.run(run, *args)
    return raised.value.divergence


def changed(fixture: Fixture, **changes: Any) -> Divergence:
    return parts(fixture, Agent(**changes).answer, "How is it?")


def test_03_a_tool_that_returns_another_string(
    fixture: Fixture, snapshot: SnapshotAssertion
) -> None:
    """It diverges at the next request of its lane, and the report names the call, its input and the path."""
    found = changed(fixture, weather={**WEATHER, "Rome": "sun, 21.5 C"})
    assert (found.kind, found.lane, found.number, found.turn) == ("content", "main", 3, 3)
    assert found.cause is not None
    assert (found.cause.kind, found.cause.tool, found.cause.input) == (
        "tool_result", "weather", {"city": "Rome"},
    )  # fmt: skip
    assert found.differences[0].path == "$.messages[4].content[0].content"
    assert report(found) == snapshot
    assert [link.request for link in found.chain] == [3, 3, 2, 1]


def test_04_one_blank_more_in_the_system_prompt(
    fixture: Fixture, snapshot: SnapshotAssertion
) -> None:
    """It diverges at the first request, blanks are seen, and the class says that nothing else differs."""
    found = changed(fixture, system="Be  brief.")
    assert (found.number, found.nature) == (1, "whitespace")
    assert "Be··brief." in found.text()
    assert report(found) == snapshot


@pytest.mark.parametrize(
    ("recorded_text", "now"), [("caf\u00e9", "cafe\u0301"), ("\u212b", "\u00c5"), ("1", "\u00b9")]
)
def test_06_other_unicode_forms_diverge(tmp_path: Path, recorded_text: str, now: str) -> None:
    """What looks alike in two forms is not the same, and the report shows by which characters it differs."""
    given = [streamed(text("Yes."), number=1)]
    run = recorded(tmp_path, lambda url: Agent(url, system=recorded_text).answer("Hm?"), given)
    made_so = frozen(tmp_path, run)
    with Replayer(made_so) as replayed:
        replayed.run(Agent(system=recorded_text, extra={"max_tokens": 64.0}).answer, "Hm?")
    shown = parts(made_so, Agent(system=now).answer, "Hm?").text()
    old, new = (
        line for line in shown.splitlines() if line.lstrip().startswith(("recorded", "now"))
    )
    assert old.split('"')[1] != new.split('"')[1]
    assert [c for c in old + new if ord(c) > 0x2FF] == []


def test_07_a_tool_more(fixture: Fixture, snapshot: SnapshotAssertion) -> None:
    """The report says which tool was added, not that bodies differ."""
    news = {"name": "news", "input_schema": {"type": "object", "properties": {}}}
    found = changed(fixture, tools=[*TOOLS, news])
    assert (found.differences[0].path, found.differences[0].change) == ("$.tools[2]", "added")
    assert (found.nature, found.why) == ("schema", "the tool news was added")
    assert report(found) == snapshot


def test_07_a_property_of_a_tool_of_the_loop(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    """Where our loop runs the tool, the report names the property and the line of its function."""
    fixture, _, _ = made(tmp_path, mails("ann"), options=ALLOWED)
    other = tool(name="send")(_send_to_all)
    tools = (other, *Mailer().tools[1:])
    found = parts(fixture, Mailer(tools=tools, options=ALLOWED).answer, "Mail them.")
    assert found.cause is not None
    assert found.cause.site is not None
    assert (found.cause.place, found.cause.site.function) == ("to", "_send_to_all")
    assert report(found) == snapshot


def _send_to_all(to: list[str], body: str = "") -> str:
    """Send a mail."""
    return f"sent to {to} {body}"


ALLOWED = {"permissions": Permissions(mode="bypassPermissions", bypass_confirmed=True)}


@pytest.mark.parametrize(
    ("extra", "path"),
    [
        ({"model": "claude-haiku-4-5"}, "$.model"),
        ({"max_tokens": 65}, "$.max_tokens"),
        ({"extra_headers": {"anthropic-beta": "context-1m"}}, "request.anthropic-beta"),
    ],
)
def test_08_what_means_something_diverges(
    fixture: Fixture, extra: dict[str, Any], path: str
) -> None:
    """Model, options and betas are part of the question; the report names the one that differs, and the line."""
    found = changed(fixture, extra=extra)
    assert [each.path for each in found.differences] == [path]
    assert found.sent is not None
    assert found.sent.function == "Agent.answer"


@pytest.mark.parametrize(
    "header",
    ["user-agent", "x-stainless-os", "accept-encoding", "traceparent", "cookie", "x-request-id"],
)
def test_08_what_means_nothing_matches(fixture: Fixture, header: str) -> None:
    """Headers that tell of the machine, the SDK or a trace are no part of the question."""
    with Replayer(fixture) as replayed:
        agent = Agent(extra={"extra_headers": {header: "another"}})
        assert replayed.run(agent.answer, "How is it?") == "Oslo is wet."


def test_15_one_request_fewer(fixture: Fixture, snapshot: SnapshotAssertion) -> None:
    """The replay fails when the agent has ended, and names lane and request."""
    found = parts(fixture, impatient, json.loads(fixture.body(1)))
    assert (found.kind, found.lane, found.number, found.of) == ("missing", "main", 2, 3)
    assert found.left.requests == 1
    assert found.left.following == ("request 3: POST /v1/messages in main, turn 3 -> 200",)
    assert report(found) == snapshot


def impatient(body: dict[str, Any]) -> None:
    client = agentobs.record(Anthropic(api_key=KEY))
    with agentobs.session("weather-agent"):
        client.messages.create(**body).close()


NOISE = {
    "uuid": ("3f2b8c1e-0000-4000-8000-00000000000a", "99999999-0000-4000-8000-0000000000ff"),
    "time": ("2026-11-22T10:00:00Z", "2026-11-23T08:15:30Z"),
    "timestamp": ("1795341600.25", "1795419999.75"),
    "tmp_path": ("/tmp/run-1/notes", "/tmp/run-77/notes"),
    "pid": ("pid 4711", "pid 52"),
    "address": ("0x7f3a2b1c", "0x55d0c9a0ff"),
    "port": ("127.0.0.1:8001", "127.0.0.1:40117"),
}


@pytest.mark.parametrize("rule", NOISE)
def test_22_noise_diverges_and_the_rule_is_proposed(noisy: Fixture, rule: str) -> None:
    """Each value that is another in each run diverges, is told as what it looks like, and names the rule."""
    found = changed(noisy, system=PROMPT.replace(*NOISE[rule]))
    assert found.nature == "normalizer gap"
    assert [(each.rule, each.leaves, each.of) for each in found.proposals] == [(rule, 1, 1)]
    assert found.cause is not None
    assert (found.cause.kind, found.cause.place) == ("system_prompt", "# This run")


@pytest.mark.parametrize("rule", NOISE)
def test_22_with_the_rule_it_matches(noisy: Fixture, rule: str) -> None:
    """The proposed rule, taken as it is named, hides the difference, and a later report lists it."""
    agent = Agent(system=PROMPT.replace(*NOISE[rule]))
    with Replayer(noisy, ReplayOptions(normalizers=[rule])) as replayed:
        assert replayed.run(agent.answer, "How is it?") == "Wet."

    def goes_on() -> None:
        agent.answer("How is it?")
        agent.answer("And now?")

    found = parts(noisy, goes_on, normalizers=[rule])
    assert found.kind == "extra"
    assert found.normalized == (f"{rule} (1)",)


def test_22_a_report_of_noise(noisy: Fixture, snapshot: SnapshotAssertion) -> None:
    """The report counts the leaves that look alike, and leaves the others for what they are."""
    prompt = PROMPT.replace(*NOISE["uuid"])
    extra = {"metadata": {"user_id": "11111111-0000-4000-8000-00000000000a"}}
    assert report(changed(noisy, system=prompt)) == snapshot
    found = changed(noisy, system=prompt, extra=extra)
    hidden = 'uuid hides "3f2b8c1e-0000-4000-8000-00000000000a" (1 of 2 differences)'
    assert (found.nature, found.proposals[0].text) == ("", hidden)


def test_22_where_the_value_comes_from(noisy: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current directory, the process, variables of the environment are named; their values are not shown for it."""
    monkeypatch.setenv("FAVORITE_CITY", "Reykjavik-by-the-sea")
    for value, name in (
        (f"scratch {Path.cwd()}", "the current directory"),
        (f"pid {os.getpid()}", "the id of this process"),
        ("city Reykjavik-by-the-sea", "the environment variable FAVORITE_CITY"),
    ):
        found = changed(noisy, system=PROMPT.replace("Be brief.", value))
        assert found.cause is not None
        assert found.cause.contains == name
        assert f"it contains {name}" in " ".join(found.text().split())


def test_24_another_order_of_the_same_elements(
    noisy: Fixture, fixture: Fixture, snapshot: SnapshotAssertion
) -> None:
    """A set that was written out in a different order, and a list that was, are told as that."""
    turned = PROMPT.replace("{'Oslo', 'Rome', 'Bern'}", "{'Bern', 'Oslo', 'Rome'}")
    found = changed(noisy, system=turned)
    assert found.nature == "element order"
    assert report(found) == snapshot
    listed = changed(fixture, tools=TOOLS[::-1])
    assert (listed.nature, listed.differences[0].change) == ("element order", "reordered")


def recorded_under(fixture: Fixture, version: str) -> Fixture:
    header = {**fixture.header, "recorded_with": {"anthropic": version}}
    return Fixture(fixture.path, header, fixture.asks, fixture.tools, fixture.world)


def test_50_another_version_of_the_sdk(fixture: Fixture, snapshot: SnapshotAssertion) -> None:
    """A new header and a new optional field are the SDK's, in a request and in a tool; no tool has changed."""
    old = recorded_under(fixture, "2.11.0")
    beta = {"extra_headers": {"anthropic-beta": "fine-grained-2026-12"}}
    new = changed(old, extra={**beta, "extra_body": {"service_hint": "auto"}})
    assert (new.nature, new.cause and new.cause.kind) == ("SDK version", "sdk_version")
    assert report(new).replace(new.versions[0].now, "INSTALLED") == snapshot
    eager = [{**each, "eager_input_streaming": False} for each in TOOLS]
    told = changed(old, tools=eager)
    assert told.nature == "SDK version"
    assert "declaration of tool" not in told.text()


def test_50_the_same_version_blames_nobody_else(fixture: Fixture) -> None:
    """Without another version such a field is the agent's; with one, a tool that was added is still not the SDK's."""
    extra = {"extra_body": {"service_hint": "auto"}}
    assert changed(fixture, extra=extra).why == "the request option service_hint changed"
    with Replayer(recorded_under(fixture, "2.11.0")) as replayed:
        replayed.run(Agent().answer, "How is it?")
    news = {"name": "news", "input_schema": {"type": "object"}}
    found = changed(recorded_under(fixture, "2.11.0"), tools=[*TOOLS, news])
    assert (found.nature, found.versions[0].recorded) == ("schema", "2.11.0")
    city = {"type": "object", "properties": {"city": {"type": "string"}}}
    found = changed(
        recorded_under(fixture, "2.11.0"), tools=[{**TOOLS[0], "input_schema": city}, TOOLS[1]]
    )
    assert (found.nature, found.why) == (
        "schema",
        "the declaration of tool weather changed, in its property city",
    )


def test_a_secret_in_place_of_another(noisy: Fixture, snapshot: SnapshotAssertion) -> None:
    """Where placeholders of secrets only differs, that is said, and no secret is."""
    found = changed(noisy, system=PROMPT.replace(TOKEN, "none"))
    assert found.nature == "redaction"
    assert report(found) == snapshot
    for shown in (found.text(), found.json(), found.explanation()):
        assert TOKEN not in shown


@pytest.mark.parametrize(
    ("old", "new", "nature"),
    [
        (f"token {TOKEN}", f"token {TOKEN}\nHome: /root", ""),
        (f"token {TOKEN}", f"token {TOKEN}é", ""),
        (f"a {TOKEN}", f"b {TOKEN}", ""),
        (f"a {TOKEN} b {TOKEN}", f"a {TOKEN} b none", "redaction"),
        ("a none b", f"a {TOKEN} b", "redaction"),
        (f"a {TOKEN}", f"a {KEY}", "redaction"),
    ],
)
def test_a_text_behind_a_secret_is_no_secret(
    tmp_path: Path, old: str, new: str, nature: str
) -> None:
    """Only what stands for a secret is one; what was written before or behind it is told for what it is."""
    given = [streamed(text("Yes."), number=1)]
    run = recorded(tmp_path, lambda url: Agent(url).answer(old), given)
    found = parts(frozen(tmp_path, run), Agent().answer, new)
    assert found.nature == nature
    assert ("secret" in found.why) == (nature == "redaction")
    if new.endswith("none"):
        assert "was redacted in the recording" in found.why


@pytest.mark.parametrize(
    ("kept", "more", "why"),
    [
        (slice(2, None), [], "2 messages at the beginning of the history were left out"),
        (slice(0, 3), [], "2 messages at the end of the history were left out"),
        (slice(0, None, 4), [], "3 messages of the history, from message 1 on, were left out"),
        (
            slice(0, None),
            [{"role": "user", "content": "Be quick."}],
            "1 message (role user) at the end of the history was added",
        ),
    ],
)
def test_messages_that_were_taken_away(
    tmp_path: Path, kept: slice, more: list[Any], why: str
) -> None:
    """A history that was cut is told as that, also where what is gone held what the agent was started with."""

    @agentobs.session("cut")
    def ask(prompt: str, url: str | None = None, kept: slice = slice(None), more: Any = ()) -> None:
        client = agentobs.record(Anthropic(api_key=KEY, base_url=url, max_retries=0))
        roles = ("user", "assistant", "user", "assistant", "user")
        said: Any = [{"role": role, "content": f"{prompt} {n}"} for n, role in enumerate(roles)]
        client.messages.create(model=MODEL, max_tokens=9, messages=[*said[kept], *more])

    run = recorded(tmp_path, lambda url: ask("How is it?", url), [plain(text("Fine."))])
    found = parts(frozen(tmp_path, run), ask, "How is it?", None, kept, more)
    assert found.why == why


@agentobs.record_tool
def sky(at: str) -> dict[str, str]:
    """Look at the sky."""
    return {"at": at, "is": "blue"}


def looking(url: str | None, shown: Callable[[Any], str] = json.dumps) -> None:
    """Ask twice; the function is called by the id that the model made, or without one."""
    client = agentobs.record(Anthropic(api_key=KEY, base_url=url, max_retries=0))
    with agentobs.session("looking"):
        messages: list[Any] = [{"role": "user", "content": "Look."}]
        reply = client.messages.create(model=MODEL, max_tokens=9, messages=messages)
        try:
            said = shown(sky(at="noon"))
        except RuntimeError as error:
            said = f"failed: {error}"
        result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": said}
        messages += [
            {"role": "assistant", "content": [block.to_dict() for block in reply.content]},
            {"role": "user", "content": [result]},
        ]
        client.messages.create(model=MODEL, max_tokens=9, messages=messages)


@pytest.mark.parametrize(
    ("options", "shown", "went"),
    [
        ({}, str, "it was answered from the recording; the agent made a different text of it"),
        (
            {"faults": ["tool sky fails"]},
            json.dumps,
            "it failed because of the injected `tool sky fails`",
        ),
        (
            {"tools": "live"},
            str,
            "it ran live and returned the recorded result; the agent made a different text of it",
        ),
    ],
)
def test_how_a_recorded_function_was_answered(
    tmp_path: Path, options: dict[str, Any], shown: Callable[[Any], str], went: str
) -> None:
    """What the recording or a fault has answered is not laid to the function, nor to code that never ran."""
    given = [plain(call(1, "sky", at="noon")), plain(text("Blue."))]
    fixture = frozen(tmp_path, recorded(tmp_path, looking, given))
    found = parts(fixture, looking, None, shown, **options)
    assert found.why == f'tool_result of sky(at="noon"): {went}'


def test_a_request_too_early(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    """A later request of the recording that comes too early is told as such, with what was due."""

    def ask(url: str | None, *prompts: str) -> None:
        client = agentobs.record(Anthropic(api_key=KEY, base_url=url, max_retries=0))
        with agentobs.session("two"):
            for prompt in prompts:
                said: Any = [{"role": "user", "content": prompt}]
                client.messages.create(model=MODEL, max_tokens=9, messages=said)

    given = [streamed(text("one"), number=1), streamed(text("two"), number=2)]
    run = recorded(tmp_path, lambda url: ask(url, "first", "second"), given)
    assert report(parts(frozen(tmp_path, run), ask, None, "second", "first")) == snapshot


def test_a_request_too_many(fixture: Fixture, snapshot: SnapshotAssertion) -> None:
    """The report says that it is one more, and that it asks again what was asked."""

    def twice() -> None:
        for _ in range(2):
            Agent().answer("How is it?")

    found = parts(fixture, twice)
    assert found.kind == "extra"
    assert report(found) == snapshot


@agentobs.session("patient")
async def patient(url: str | None, retries: int, own: int = 0) -> str:
    """Ask, by a client that asks again so often, or by asking again itself."""
    client = agentobs.record(AsyncAnthropic(api_key=KEY, base_url=url, max_retries=retries))
    for left in reversed(range(own + 1)):
        try:
            said: Any = [{"role": "user", "content": "Hm?"}]
            async with client.messages.stream(model=MODEL, max_tokens=9, messages=said) as stream:
                return await stream.get_final_text()
        except InternalServerError:
            if not left:
                raise
    return "nobody"


@pytest.fixture(scope="module")
def retried(tmp_path_factory: pytest.TempPathFactory) -> Fixture:
    """A session whose client got an error, did not read it, and asked again."""
    folder = tmp_path_factory.mktemp("retried")
    given = [refused(529, retry_after_ms="1"), streamed(text("Well."), number=1)]
    made_so = frozen(folder, recorded(folder, lambda url: asyncio.run(patient(url, 1)), given))
    assert (made_so.asks[0].answer.ending, made_so.asks[0].answer.body) == ("cancelled", b"")
    return made_so


@pytest.mark.parametrize("swallows", [False, True])
def test_a_retry_that_is_not_made(retried: Fixture, swallows: bool) -> None:
    """Who does not ask again gets the SDK's own error, and the report names that, whether or not it is swallowed."""

    async def once() -> None:
        with contextlib.suppress(InternalServerError) if swallows else contextlib.nullcontext():
            await patient(None, 0)

    found = parts(retried, once)
    assert (found.kind, found.request, found.attempt) == ("missing", 2, 2)
    assert found.why == (
        "the answer to request 1 was a 529, after which the recorded agent retried; this one does not"
    )
    assert found.cause is not None
    assert found.cause.site is not None
    assert found.cause.site.function == "patient"


def test_who_asks_again_need_not_be_the_client(retried: Fixture) -> None:
    """An agent that asks again by itself takes the recorded path."""
    with Replayer(retried) as replayed:
        assert "Well." in replayed.run(patient, None, 0, own=1)
    assert replayed.progress.requests_matched == 2


def test_an_end_is_told_behind_the_last_request(fixture: Fixture) -> None:
    """What ends otherwise, or is asked, behind all that was recorded has no number of a recorded request."""

    def fails() -> None:
        with agentobs.session("outer"):
            Agent().answer("How is it?")
            agentobs.fail("no reason")

    for run in (fails, lambda: [Agent().answer("How is it?") for _ in range(2)]):
        first = parts(fixture, run).text().splitlines()[0]
        assert "main, after request 3 of 3   (3 of 3 requests matched)" in first


@agentobs.session("shown")
def shown_so(prompt: str, system: str = "Be brief.", url: str | None = None) -> None:
    """Ask once."""
    client = agentobs.record(Anthropic(api_key=KEY, base_url=url, max_retries=0))
    said: Any = [{"role": "user", "content": prompt}]
    client.messages.create(model=MODEL, max_tokens=9, system=system, messages=said)


def test_commands_run_what_has_diverged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line runs the recorded arguments: where a test runs others, the test is what is proposed."""
    run = recorded(tmp_path, lambda url: shown_so("Hm?", url=url), [plain(text("Hm."))])
    made_so = frozen(tmp_path, run)
    assert made_so.header["entry"]
    recorded_so = made_so.header["arguments"]

    def commands(test: str, *args: Any, **kwargs: Any) -> tuple[str, ...]:
        with pytest.raises(DivergenceError) as raised, Replayer(made_so) as replayed:
            replayed.runs_in(test)
            replayed.run(*args, **kwargs)
        return raised.value.divergence.commands

    name = "tests/test_it.py::test_it[a b]"
    told = commands(name, shown_so, "other")
    assert told == (f"pytest '{name}'", f"pytest '{name}' --replay-update")
    assert commands("", shown_so, "other") == ()
    assert commands(name, lambda: shown_so("other")) == told
    elsewhere = {**recorded_so, "system": "Be quick."}
    assert commands(name, **elsewhere) == told
    monkeypatch.setattr("tests.replay.test_torture_reports.MODEL", "claude-haiku-4-5")
    same_run = commands(name, shown_so, **recorded_so)
    assert same_run == commands(name)
    assert same_run[0].startswith("agentobs replay ")


def test_a_connection(fixture: Fixture, snapshot: SnapshotAssertion) -> None:
    """Who tries to connect is named by line."""

    def calls_home() -> None:
        socket.create_connection(("192.0.2.1", 443), timeout=1)

    found = parts(fixture, calls_home)
    assert found.sent is not None
    assert found.sent.function.endswith("calls_home")
    assert report(found) == snapshot


@pytest.mark.usefixtures("no_foreign_threads")
def test_an_agent_that_waits_for_nothing(fixture: Fixture, snapshot: SnapshotAssertion) -> None:
    """Where nothing comes any more, the report says where the agent hangs."""

    def hangs() -> None:
        threading.Event().wait()

    found = parts(fixture, hangs, deadline_seconds=0.05)
    assert found.kind == "timing"
    assert found.sent is not None
    assert found.sent.function.endswith("hangs")
    assert report(found) == snapshot


def test_a_live_tool_that_answers_otherwise(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    """The report names the line of the tool's function, and offers the run with recorded tools."""
    fixture, _, _ = made(tmp_path, mails("ann"), options=ALLOWED)
    known = replace(SEND, function=_other_words)
    tools = (known, *Mailer().tools[1:])
    found = parts(fixture, Mailer(tools=tools, options=ALLOWED).answer, "Mail them.", tools="live")
    assert found.cause is not None
    assert found.cause.site is not None
    assert found.cause.site.function == "_other_words"
    assert report(found) == snapshot


def _other_words(to: str, body: str = "") -> str:
    return f"{to} has got mail 4711 {body}"


def test_a_section_of_the_prompt(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    """Where our loop builds the prompt, the report names the section."""
    told = SystemPrompt(
        custom=(Section("role", "You mail."), Section("tone", "Be kind.\nBe short."))
    )
    other = SystemPrompt(
        custom=(Section("role", "You mail."), Section("tone", "Be kind.\nBe brief."))
    )
    fixture, _, _ = made(tmp_path, mails("ann"), options={**ALLOWED, "system": told})
    agent = Mailer(options={**ALLOWED, "system": other})
    found = parts(fixture, agent.answer, "Mail them.")
    assert found.cause is not None
    assert (found.cause.kind, found.cause.place) == ("prompt_section", "tone")
    assert report(found) == snapshot


def noting(url: str | None, said: str) -> None:
    """Ask twice; what the tool has said stands in the first message then, which has been written anew."""
    client = agentobs.record(Anthropic(api_key=KEY, base_url=url, max_retries=0))
    with agentobs.session("noted"):
        messages: list[Any] = [{"role": "user", "content": "Look."}]
        for _ in range(2):
            reply = client.messages.create(model=MODEL, max_tokens=9, messages=messages)
            result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": said}
            messages = [
                {"role": "user", "content": f"Look. Noted so far: {said}."},
                {"role": "assistant", "content": [block.to_dict() for block in reply.content]},
                {"role": "user", "content": [result]},
            ]


def test_words_of_a_tool_in_a_text_of_the_agent(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    """A message that is built of what a tool has said leads back to the tool."""
    given = [plain(call(1, "look", at="sky")), plain(text("Fine."))]
    run = recorded(tmp_path, lambda url: noting(url, "a cloud"), given)
    found = parts(frozen(tmp_path, run), noting, None, "a balloon")
    assert found.cause is not None
    assert (found.cause.kind, found.cause.tool, found.cause.message) == ("tool_result", "look", 0)
    assert report(found) == snapshot


def plain(*content: Any) -> Answer:
    stop = "tool_use" if content[0]["type"] == "tool_use" else "end_turn"
    message = {
        "id": "msg_1", "type": "message", "role": "assistant", "model": MODEL, "content": content,
        "stop_reason": stop, "usage": {"input_tokens": 1, "output_tokens": 1},
    }  # fmt: skip
    body = json.dumps(message).encode()
    return Answer(200, {"content-type": "application/json"}, (Chunk(body, 0),), "complete")


WIDE = {
    "wide": ("日本語のテキストです。" * 9, "日本語のテクストです。" * 9),
    "arabic": ("السلام عليكم", "السلام عليكما"),
    "emoji": ("ok 👨‍👩‍👧 🇳🇴 👍🏽 done", "ok 👨‍👩‍👦 🇸🇪 👍🏿 done"),
    "control": ("a\x1b[31mred\x07", "a\x1b[32mgreen\u202e"),
    "marks": ("ạ̈ẹ̈ị̈ plain", "ạ̈ẹ̈ị plain"),
    "words": (
        "the quick brown fox jumps over the lazy dog " * 4,
        "the slow brown fox leaps over the lazy cat " * 4,
    ),
    "long": ("x" * 3000 + " one " + "y" * 3000, "x" * 3000 + " two " + "y" * 3000),
    "number": (1, 2.5),
    "nothing": (None, "something"),
    "objects": ({"a": [1, 2, {"b": "c" * 200}]}, ["a", "b"]),
}


MARKED = {"wide": "ク", "arabic": "\\u0627", "emoji": "👦", "number": "2.5", "long": "two"}
"""What stands above the marks, in the cases where it is plain to see."""
JOINING = [(0x1F1E6, 0x1F1FF), (0x1F3FB, 0x1F3FF), (0xFE00, 0xFE0F)]
"""Halves of flags, colors of skin and chosen shapes: their width depends on what stands before them."""


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("case", WIDE)
def test_lines_are_aligned_in_any_script(fixture: Fixture, case: str, columns: int) -> None:
    """No line is wider than it may be, marks stand below what differs, and no character moves another one."""
    old, new = WIDE[case]
    found = replace(changed(fixture, system="Be quick."), differences=tuple(differences(old, new)))
    told = found.text(columns).splitlines()
    assert max(cell_len(line) for line in told if "agentobs " not in line) <= columns
    marked = ""
    for line, below in itertools.pairwise(told):
        if (found_marks := re.match(r" *\^[\^ ]*", below)) is not None:
            marks = found_marks[0]
            assert cell_len(line) >= len(marks.rstrip()) - 1
            assert line.lstrip().startswith(("recorded", "now"))
            if line.lstrip().startswith("now"):
                marked += "".join(c for at, c in _in_columns(line) if marks[at : at + 1] == "^")
    assert marked.strip(MARKED[case]) == "" if case in ("wide", "number", "long") else True
    assert MARKED.get(case, "") in marked
    for each in "".join(told):
        assert each.isprintable()
        assert unicodedata.bidirectional(each) not in ("R", "AL", "AN")
        assert not any(low <= ord(each) <= high for low, high in JOINING)


def _in_columns(line: str) -> Iterator[tuple[int, str]]:
    """Yield the characters of a line, each with the column in which it begins."""
    at = 0
    for character in line:
        yield at, character
        at += cell_len(character)


def test_reports_at_two_widths(fixture: Fixture, snapshot: SnapshotAssertion) -> None:
    """The same facts at 80 and at 120 columns, with several places that differ in one text."""
    system = (
        "Be brief. " + "Look everything up before you act, and say where you have it from. " * 3
    )
    given = {"system": system, "tools": [TOOLS[0], {**TOOLS[1], "description": "天気 clock"}]}
    found = changed(fixture, **given)
    assert [
        found.text(columns).replace(found.path, "FIXTURE").splitlines()[:9] for columns in (80, 120)
    ] == snapshot


@pytest.mark.parametrize("kind", ["text", "list", "words"])
def test_big_values_cost_bounded_memory(fixture: Fixture, kind: str) -> None:
    """Megabytes that differ in their midst: the report is short, and what it keeps is little."""
    size = 2_000_000
    old: Any = "a" * size + "b" + "c" * size
    new: Any = "a" * size + "d" + "c" * size
    if kind == "list":
        old, new = [str(n) for n in range(50_000)], [str(n * (n % 7 > 0)) for n in range(50_000)]
    elif kind == "words":
        old, new = (
            "word %d " * 200_000 % tuple(range(200_000)),
            "word x%d " * 200_000 % tuple(range(200_000)),
        )
    found = differences({"v": old}, {"v": new})
    tracemalloc.start()
    kept = replace(
        changed(fixture, system="Be quick."), differences=tuple(map(shortened, found[:6]))
    )
    shown = kept.text()
    held = sum(each.size for each in tracemalloc.take_snapshot().statistics("filename"))
    tracemalloc.stop()
    assert len(shown) < 6_000
    assert len(kept.json()) < 60_000
    assert held < 20_000_000


def test_a_tool_of_the_recording_that_is_run_otherwise(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    """The call itself is compared, too; here with what the fixture says it was."""
    fixture, _, _ = made(tmp_path, mails("ann"), options=ALLOWED)
    [one] = fixture.tools
    other = replace(one, question=replace(one.question, input={"to": "bob"}))
    foreign = Fixture(fixture.path, fixture.header, fixture.asks, [other], fixture.world)
    found = parts(foreign, Mailer(options=ALLOWED).answer, "Mail them.")
    assert found.kind == "tool"
    assert report(found) == snapshot


def test_a_report_as_json(fixture: Fixture, snapshot: SnapshotAssertion) -> None:
    """All facts, under their names, with the version of the form."""
    found = changed(fixture, weather={**WEATHER, "Oslo": "snow"})
    told = json.loads(found.json().replace(found.path, "FIXTURE"))
    assert told["agentobs_divergence"] == 1
    for site in (
        told["sent"],
        told["cause"]["site"],
        told["chain"][0]["site"],
        told["chain"][1]["site"],
    ):
        site["line"] = 0
    assert told == snapshot


def test_the_way_back(fixture: Fixture, snapshot: SnapshotAssertion) -> None:
    """Step by step: the request, the result, the call, the answer that made it, and so on."""
    found = changed(fixture, weather={**WEATHER, "Rome": "snow"})
    assert re.sub(r"\.py:\d+ in", ".py:LINE in", found.explanation()) == snapshot


LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(max_size=30),
    st.sampled_from(
        ["tool_result", "toolu_1", "[redacted:github_token:1]", "{}", '[{"a": 1}]', "a\nb: \n"]
    ),
)
NAMES = st.sampled_from(
    [
        "type",
        "content",
        "tool_use_id",
        "id",
        "name",
        "input",
        "role",
        "text",
        "properties",
        "input_schema",
    ]
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(NAMES | st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@hypothesis.given(
    key=st.sampled_from(
        ["messages", "system", "tools", "max_tokens", "metadata", "stream", "(request)"]
    ),
    value=VALUES,
    place=st.integers(0, 3),
)
def test_whatever_is_asked_is_told(fixture: Fixture, key: str, value: Any, place: int) -> None:
    """A request of any form, where another was due, is a divergence with a report in every form, and no other error."""
    body = json.loads(fixture.body(1))
    old = body.get(key)
    body[key] = [*old[:place], value, *old[place + 1 :]] if isinstance(old, list) else value
    hypothesis.assume(not same(body, json.loads(fixture.body(1))))
    client = agentobs.record(Anthropic(api_key=KEY, max_retries=0))
    url = "https://api.anthropic.com/v1/messages"
    with pytest.raises(DivergenceError) as raised, Replayer(fixture):
        client._client.post(url, content=json.dumps(body), headers=fixture.asks[0].headers)
    found = raised.value.divergence
    assert found.kind == "content"
    assert found.differences
    assert json.loads(found.json())["more"] == found.more
    for told in (found.text(80), found.text(120), found.explanation(80)):
        assert all(width(line) <= 120 for line in told.splitlines())
        assert all(each.isprintable() for each in told.splitlines())


def test_the_attempt_is_told(tmp_path: Path) -> None:
    """A request that was asked again after a failure is told by its attempt."""
    given = [refused(529, x_should_retry="true"), *answers()]
    fixture = frozen(tmp_path, recorded(tmp_path, lambda url: Agent(url).answer("Hm?"), given))

    class Restless(Agent):
        """Asks something else when it asks again."""

        def answer(self, prompt: str) -> str:
            client = agentobs.record(Anthropic(max_retries=0, **self.options))
            with agentobs.session("restless"):
                for said in (prompt, "Hm!"):
                    try:
                        told: Any = [{"role": "user", "content": said}]
                        with client.messages.stream(messages=told, **self.ask()) as stream:
                            stream.until_done()
                    except InternalServerError:
                        continue
            return ""

    found = parts(fixture, Restless().answer, "Hm?")
    assert (found.number, found.attempt, found.request) == (2, 2, 2)
    assert "request 2 of 4, attempt 2" in found.text()


def test_tasks_that_wait_and_lanes_are_told(tmp_path: Path) -> None:
    """Of agents beside each other the report says how far each came, and where the others wait."""
    fixture, _, _ = made(tmp_path, mails("ann"), options=ALLOWED)
    agent = Mailer(options={**ALLOWED, "system": "Be quick."})

    async def beside() -> None:
        async def waits() -> None:
            await asyncio.Event().wait()

        waiting = [asyncio.create_task(waits(), name=name) for name in ("first", "second")]
        try:
            await agent.answer("Mail them.")
        finally:
            for each in waiting:
                each.cancel()

    found = parts(fixture, beside)
    assert [each.task for each in found.waiting] == ["first", "second"]
    assert "waiting    2 tasks at tests/replay/test_torture_reports.py" in found.text()
    assert [(each.lane, each.asked, each.of) for each in found.lanes] == [("main", 0, 2)]


def test_a_divergence_in_the_midst_of_big_bodies(tmp_path: Path) -> None:
    """Each request carries megabytes; what is kept of the divergence is a few thousand characters of them."""
    long = "".join(f"line {number}\n" for number in range(40_000))
    given = [streamed(text("Long."), number=1)]
    run = recorded(tmp_path, lambda url: Agent(url, system=long).answer("Hm?"), given)
    fixture = frozen(tmp_path, run)
    other = long.replace("line 20000\n", "line 20000 and a half\n")
    found = parts(fixture, Agent(system=other).answer, "Hm?")
    assert found.cause is not None
    assert found.cause.line == 20_001
    [one] = found.differences
    assert len(one.expected) + len(one.actual) <= 4_000
    assert one.lengths == (len(long), len(other))
    assert "line 20000·and a half⏎" in found.text()
    assert "more place" not in found.text()
    assert len(found.text()) < 1_500
    assert len(found.json()) < 12_000
