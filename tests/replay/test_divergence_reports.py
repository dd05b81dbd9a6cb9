"""Reports of divergences: the difference, its origin and its classification, each from a real replay."""

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
from agentobs.records.differences import differences, json_equal, shortened
from agentobs.records.exchanges import Answer, Chunk
from replay import Divergence, DivergenceError, Fixture, Replayer, ReplayOptions
from replay.comparison.alignment import aligned, width
from tests.marks import mark_all_but_first
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
from tests.replay.mailer import SEND, Mailer, mails, recorded_fixture

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
    """A session whose system prompt contains values that differ in each run."""
    responses = [streamed(text("Wet."), number=1)]
    folder = tmp_path_factory.mktemp("noisy")
    run = recorded(folder, lambda url: Agent(url, system=PROMPT).answer("How is it?"), responses)
    return frozen(folder, run, "noisy")


def divergence_of(
    fixture: Fixture, run: Callable[..., Any], *args: Any, **options: Any
) -> Divergence:
    """Replay an agent that diverges, and return the divergence."""
    with pytest.raises(DivergenceError) as raised:
        with Replayer(fixture, ReplayOptions(**options)) as replayed:
            replayed.run(run, *args)
    return raised.value.divergence


def changed_agent(fixture: Fixture, **changes: Any) -> Divergence:
    return divergence_of(fixture, Agent(**changes).answer, "How is it?")


def test_a_changed_tool_result(fixture: Fixture, snapshot: SnapshotAssertion) -> None:
    """A changed tool result diverges at the next request of its lane, and the report names the call, its input and the
    path.
    """
    found = changed_agent(fixture, weather={**WEATHER, "Rome": "sun, 21.5 C"})
    assert (found.kind, found.lane, found.number, found.turn) == ("content", "main", 3, 3)
    assert found.cause is not None
    assert (found.cause.kind, found.cause.tool, found.cause.input) == (
        "tool_result", "weather", {"city": "Rome"},
    )  # fmt: skip
    assert found.differences[0].path == "$.messages[4].content[0].content"
    assert report(found) == snapshot
    assert [link.request for link in found.chain] == [3, 3, 2, 1]


def test_an_additional_space_in_the_system_prompt(
    fixture: Fixture, snapshot: SnapshotAssertion
) -> None:
    """An additional space in the system prompt diverges at the first request, and is shown and classified as
    whitespace.
    """
    found = changed_agent(fixture, system="Be  brief.")
    assert (found.number, found.nature) == (1, "whitespace")
    assert "Be··brief." in found.text()
    assert report(found) == snapshot


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recorded_text", "now"), [("caf\u00e9", "cafe\u0301"), ("\u212b", "\u00c5"), ("1", "\u00b9")]
)
def test_different_unicode_forms_diverge(tmp_path: Path, recorded_text: str, now: str) -> None:
    """Texts that look equal in two Unicode forms diverge, and the report shows the differing characters as escapes."""
    responses = [streamed(text("Yes."), number=1)]
    run = recorded(tmp_path, lambda url: Agent(url, system=recorded_text).answer("Hm?"), responses)
    made_so = frozen(tmp_path, run)
    with Replayer(made_so) as replayed:
        replayed.run(Agent(system=recorded_text, extra={"max_tokens": 64.0}).answer, "Hm?")
    shown = divergence_of(made_so, Agent(system=now).answer, "Hm?").text()
    old, new = (
        line for line in shown.splitlines() if line.lstrip().startswith(("recorded", "now"))
    )
    assert old.split('"')[1] != new.split('"')[1]
    assert [c for c in old + new if ord(c) > 0x2FF] == []


def test_an_additional_tool(fixture: Fixture, snapshot: SnapshotAssertion) -> None:
    """If a tool is added, the report names the tool and not only the changed body."""
    news = {"name": "news", "input_schema": {"type": "object", "properties": {}}}
    found = changed_agent(fixture, tools=[*TOOLS, news])
    assert (found.differences[0].path, found.differences[0].change) == ("$.tools[2]", "added")
    assert (found.nature, found.why) == ("schema", "the tool news was added")
    assert report(found) == snapshot


def test_a_changed_property_of_a_tool(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    """If the agent loop runs the tool, the report names the changed property and the line of the tool's function."""
    fixture, _, _ = recorded_fixture(tmp_path, mails("ann"), options=ALLOWED)
    other = tool(name="send")(_send_to_all)
    tools = (other, *Mailer().tools[1:])
    found = divergence_of(fixture, Mailer(tools=tools, options=ALLOWED).answer, "Mail them.")
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
def test_relevant_parameters_diverge(fixture: Fixture, extra: dict[str, Any], path: str) -> None:
    """A changed model, option or beta header diverges, and the report names its path and the line that sent the
    request.
    """
    found = changed_agent(fixture, extra=extra)
    assert [each.path for each in found.differences] == [path]
    assert found.sent is not None
    assert found.sent.function == "Agent.answer"


@pytest.mark.slow
@pytest.mark.parametrize(
    "header",
    ["user-agent", "x-stainless-os", "accept-encoding", "traceparent", "cookie", "x-request-id"],
)
def test_irrelevant_headers_match(fixture: Fixture, header: str) -> None:
    """Headers about the machine, the SDK or a trace are not compared."""
    with Replayer(fixture) as replayed:
        agent = Agent(extra={"extra_headers": {header: "another"}})
        assert replayed.run(agent.answer, "How is it?") == "Oslo is wet."


def test_a_missing_request(fixture: Fixture, snapshot: SnapshotAssertion) -> None:
    """A request that the agent never sends fails the replay when the agent ends, and the report names its lane and
    number.
    """
    found = divergence_of(fixture, impatient, json.loads(fixture.body(1)))
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


@pytest.mark.slow
@pytest.mark.parametrize("rule", NOISE)
def test_noise_diverges_with_a_proposed_rule(noisy: Fixture, rule: str) -> None:
    """A value that differs in each run diverges, and the report names the kind of the value and proposes a rule."""
    found = changed_agent(noisy, system=PROMPT.replace(*NOISE[rule]))
    assert found.nature == "normalizer gap"
    assert [(each.rule, each.leaves, each.of) for each in found.proposals] == [(rule, 1, 1)]
    assert found.cause is not None
    assert (found.cause.kind, found.cause.place) == ("system_prompt", "# This run")


@pytest.mark.slow
@pytest.mark.parametrize("rule", NOISE)
def test_noise_matches_with_the_proposed_rule(noisy: Fixture, rule: str) -> None:
    """With the proposed rule, the request matches, and a later report lists the values that the rule has hidden."""
    agent = Agent(system=PROMPT.replace(*NOISE[rule]))
    with Replayer(noisy, ReplayOptions(normalizers=[rule])) as replayed:
        assert replayed.run(agent.answer, "How is it?") == "Wet."

    def continues_differently() -> None:
        agent.answer("How is it?")
        agent.answer("And now?")

    found = divergence_of(noisy, continues_differently, normalizers=[rule])
    assert found.kind == "extra"
    assert found.normalized == (f"{rule} (1)",)


def test_a_report_of_noise(noisy: Fixture, snapshot: SnapshotAssertion) -> None:
    """The report counts the values that look like noise, and shows all other values unchanged."""
    prompt = PROMPT.replace(*NOISE["uuid"])
    extra = {"metadata": {"user_id": "11111111-0000-4000-8000-00000000000a"}}
    assert report(changed_agent(noisy, system=prompt)) == snapshot
    found = changed_agent(noisy, system=prompt, extra=extra)
    hidden = 'uuid would hide "3f2b8c1e-0000-4000-8000-00000000000a" (1 of 2 differences)'
    assert (found.nature, found.proposals[0].text) == ("", hidden)


def test_the_origin_of_a_noisy_value(noisy: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """The report states that a value contains the current directory, the process ID or an environment variable."""
    monkeypatch.setenv("FAVORITE_CITY", "Reykjavik-by-the-sea")
    for value, name in (
        (f"scratch {Path.cwd()}", "the current directory"),
        (f"pid {os.getpid()}", "the ID of this process"),
        ("city Reykjavik-by-the-sea", "the environment variable FAVORITE_CITY"),
    ):
        found = changed_agent(noisy, system=PROMPT.replace("Be brief.", value))
        assert found.cause is not None
        assert found.cause.contains == name
        assert f"the new value contains {name}" in " ".join(found.text().split())


def test_a_different_order_of_the_same_elements(
    noisy: Fixture, fixture: Fixture, snapshot: SnapshotAssertion
) -> None:
    """If only the order of elements differs, in a printed set or in a list, the report classifies the difference as
    element order.
    """
    turned = PROMPT.replace("{'Oslo', 'Rome', 'Bern'}", "{'Bern', 'Oslo', 'Rome'}")
    found = changed_agent(noisy, system=turned)
    assert found.nature == "element order"
    assert report(found) == snapshot
    listed = changed_agent(fixture, tools=TOOLS[::-1])
    assert (listed.nature, listed.differences[0].change) == ("element order", "reordered")


def recorded_under(fixture: Fixture, version: str) -> Fixture:
    header = {**fixture.header, "recorded_with": {"anthropic": version}}
    return Fixture(fixture.path, header, fixture.requests, fixture.tools, fixture.world)


def test_a_different_version_of_the_sdk(fixture: Fixture, snapshot: SnapshotAssertion) -> None:
    """With a different SDK version, a new header or optional field is attributed to the SDK and not to the tools."""
    old = recorded_under(fixture, "2.11.0")
    beta = {"extra_headers": {"anthropic-beta": "fine-grained-2026-12"}}
    new = changed_agent(old, extra={**beta, "extra_body": {"service_hint": "auto"}})
    assert (new.nature, new.cause and new.cause.kind) == ("SDK version", "sdk_version")
    assert report(new).replace(new.versions[0].now, "INSTALLED") == snapshot
    eager = [{**each, "eager_input_streaming": False} for each in TOOLS]
    divergence = changed_agent(old, tools=eager)
    assert divergence.nature == "SDK version"
    assert "declaration of tool" not in divergence.text()


def test_changes_by_the_agent_are_not_attributed_to_the_sdk(fixture: Fixture) -> None:
    """With the same SDK version, a new field is attributed to the agent; a changed tool is never attributed to the
    SDK.
    """
    extra = {"extra_body": {"service_hint": "auto"}}
    assert changed_agent(fixture, extra=extra).why == "the request option service_hint changed"
    with Replayer(recorded_under(fixture, "2.11.0")) as replayed:
        replayed.run(Agent().answer, "How is it?")
    news = {"name": "news", "input_schema": {"type": "object"}}
    found = changed_agent(recorded_under(fixture, "2.11.0"), tools=[*TOOLS, news])
    assert (found.nature, found.versions[0].recorded) == ("schema", "2.11.0")
    city = {"type": "object", "properties": {"city": {"type": "string"}}}
    found = changed_agent(
        recorded_under(fixture, "2.11.0"), tools=[{**TOOLS[0], "input_schema": city}, TOOLS[1]]
    )
    assert (found.nature, found.why) == (
        "schema",
        "the declaration of tool weather changed in the property city",
    )


def test_a_missing_secret_is_classified_as_redaction(
    noisy: Fixture, snapshot: SnapshotAssertion
) -> None:
    """If a request differs only in the placeholder of a secret, the report states this and does not contain the
    secret.
    """
    found = changed_agent(noisy, system=PROMPT.replace(TOKEN, "none"))
    assert found.nature == "redaction"
    assert report(found) == snapshot
    for shown in (found.text(), found.json(), found.explanation()):
        assert TOKEN not in shown


@pytest.mark.parametrize(
    ("old", "new", "nature"),
    mark_all_but_first(
        [
            (f"token {TOKEN}", f"token {TOKEN}\nHome: /root", ""),
            (f"token {TOKEN}", f"token {TOKEN}é", ""),
            (f"a {TOKEN}", f"b {TOKEN}", ""),
            (f"a {TOKEN} b {TOKEN}", f"a {TOKEN} b none", "redaction"),
            ("a none b", f"a {TOKEN} b", "redaction"),
            (f"a {TOKEN}", f"a {KEY}", "redaction"),
        ],
        pytest.mark.slow,
        kept=4,
    ),
)
def test_text_next_to_a_secret_is_reported_as_text(
    tmp_path: Path, old: str, new: str, nature: str
) -> None:
    """A change before or after a secret is not classified as redaction; only a change of the secret itself is."""
    responses = [streamed(text("Yes."), number=1)]
    run = recorded(tmp_path, lambda url: Agent(url).answer(old), responses)
    found = divergence_of(frozen(tmp_path, run), Agent().answer, new)
    assert found.nature == nature
    assert ("secret" in found.why) == (nature == "redaction")
    if new.endswith("none"):
        assert "was redacted in the recording" in found.why


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kept", "more", "reason"),
    [
        (slice(2, None), [], "2 messages were removed at the start of the history"),
        (slice(0, 3), [], "2 messages were removed at the end of the history"),
        (slice(0, None, 4), [], "3 messages were removed at message 1 of the history"),
        (
            slice(0, None),
            [{"role": "user", "content": "Be quick."}],
            "1 message (role user) was added at the end of the history",
        ),
    ],
)
def test_a_changed_history(tmp_path: Path, kept: slice, more: list[Any], reason: str) -> None:
    """The report describes which messages were added or removed, even if the removed messages contained the agent's
    arguments.
    """

    @agentobs.session("cut")
    def ask(prompt: str, url: str | None = None, kept: slice = slice(None), more: Any = ()) -> None:
        client = agentobs.record(Anthropic(api_key=KEY, base_url=url, max_retries=0))
        roles = ("user", "assistant", "user", "assistant", "user")
        messages: Any = [{"role": role, "content": f"{prompt} {n}"} for n, role in enumerate(roles)]
        client.messages.create(model=MODEL, max_tokens=9, messages=[*messages[kept], *more])

    run = recorded(tmp_path, lambda url: ask("How is it?", url), [plain(text("Fine."))])
    found = divergence_of(frozen(tmp_path, run), ask, "How is it?", None, kept, more)
    assert found.why == reason


@agentobs.record_tool
def sky(at: str) -> dict[str, str]:
    """Look at the sky."""
    return {"at": at, "is": "blue"}


def looking(url: str | None, shown: Callable[[Any], str] = json.dumps) -> None:
    """Send two requests; `sky` is called for the tool call of the model."""
    client = agentobs.record(Anthropic(api_key=KEY, base_url=url, max_retries=0))
    with agentobs.session("looking"):
        messages: list[Any] = [{"role": "user", "content": "Look."}]
        reply = client.messages.create(model=MODEL, max_tokens=9, messages=messages)
        try:
            content = shown(sky(at="noon"))
        except RuntimeError as error:
            content = f"failed: {error}"
        result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": content}
        messages += [
            {"role": "assistant", "content": [block.to_dict() for block in reply.content]},
            {"role": "user", "content": [result]},
        ]
        client.messages.create(model=MODEL, max_tokens=9, messages=messages)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "shown", "outcome"),
    [
        ({}, str, "its result came from the recording, but the agent rendered it differently"),
        (
            {"faults": ["tool sky fails"]},
            json.dumps,
            "it failed because of the injected `tool sky fails`",
        ),
        (
            {"tools": "live"},
            str,
            "it ran live and returned the recorded result, but the agent rendered it differently",
        ),
    ],
)
def test_the_source_of_a_function_result(
    tmp_path: Path, options: dict[str, Any], shown: Callable[[Any], str], outcome: str
) -> None:
    """The report explains whether a function's result came from the recording, a fault or a live run."""
    responses = [plain(call(1, "sky", at="noon")), plain(text("Blue."))]
    fixture = frozen(tmp_path, recorded(tmp_path, looking, responses))
    found = divergence_of(fixture, looking, None, shown, **options)
    assert found.why == f'tool_result of sky(at="noon"): {outcome}'


def test_an_early_request(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    """If a request equals a later recorded request, the report states this and names the request that was due."""

    def ask(url: str | None, *prompts: str) -> None:
        client = agentobs.record(Anthropic(api_key=KEY, base_url=url, max_retries=0))
        with agentobs.session("two"):
            for prompt in prompts:
                messages: Any = [{"role": "user", "content": prompt}]
                client.messages.create(model=MODEL, max_tokens=9, messages=messages)

    responses = [streamed(text("one"), number=1), streamed(text("two"), number=2)]
    run = recorded(tmp_path, lambda url: ask(url, "first", "second"), responses)
    assert report(divergence_of(frozen(tmp_path, run), ask, None, "second", "first")) == snapshot


def test_an_additional_request(fixture: Fixture, snapshot: SnapshotAssertion) -> None:
    """The report states that a request is additional, and that it repeats an earlier request."""

    def twice() -> None:
        for _ in range(2):
            Agent().answer("How is it?")

    found = divergence_of(fixture, twice)
    assert found.kind == "extra"
    assert report(found) == snapshot


@agentobs.session("patient")
async def patient(url: str | None, retries: int, own_retries: int = 0) -> str:
    """Send a request that is retried by the client (`retries`) or by this function (`own_retries`)."""
    client = agentobs.record(AsyncAnthropic(api_key=KEY, base_url=url, max_retries=retries))
    for remaining in reversed(range(own_retries + 1)):
        try:
            messages: Any = [{"role": "user", "content": "Hm?"}]
            async with client.messages.stream(
                model=MODEL, max_tokens=9, messages=messages
            ) as stream:
                return await stream.get_final_text()
        except InternalServerError:
            if not remaining:
                raise
    return "nobody"


@pytest.fixture(scope="module")
def retried(tmp_path_factory: pytest.TempPathFactory) -> Fixture:
    """A session whose client received an error response, did not read its body, and retried."""
    folder = tmp_path_factory.mktemp("retried")
    responses = [refused(529, retry_after_ms="1"), streamed(text("Well."), number=1)]
    made_so = frozen(folder, recorded(folder, lambda url: asyncio.run(patient(url, 1)), responses))
    assert (made_so.requests[0].answer.ending, made_so.requests[0].answer.body) == (
        "cancelled",
        b"",
    )
    return made_so


@pytest.mark.slow
@pytest.mark.parametrize("swallows", [False, True])
def test_a_missing_retry(retried: Fixture, swallows: bool) -> None:
    """If the current agent does not retry as recorded, the report states this, whether or not the agent catches the
    SDK's error.
    """

    async def once() -> None:
        with contextlib.suppress(InternalServerError) if swallows else contextlib.nullcontext():
            await patient(None, 0)

    found = divergence_of(retried, once)
    assert (found.kind, found.request, found.attempt) == ("missing", 2, 2)
    assert found.why == (
        "the response to request 1 had status 529; the recorded agent retried after it, and this agent does not"
    )
    assert found.cause is not None
    assert found.cause.site is not None
    assert found.cause.site.function == "patient"


def test_the_agent_may_retry_instead_of_the_client(retried: Fixture) -> None:
    """An agent that retries by itself instead of letting the client retry takes the recorded path."""
    with Replayer(retried) as replayed:
        assert "Well." in replayed.run(patient, None, 0, own_retries=1)
    assert replayed.progress.requests_matched == 2


@pytest.mark.slow
def test_a_divergence_after_the_last_request(fixture: Fixture) -> None:
    """A different end, or an additional request at the end, is reported as coming after the last recorded request."""

    def fails() -> None:
        with agentobs.session("outer"):
            Agent().answer("How is it?")
            agentobs.fail("no reason")

    for run in (fails, lambda: [Agent().answer("How is it?") for _ in range(2)]):
        first = divergence_of(fixture, run).text().splitlines()[0]
        assert "main, after request 3 of 3   (3 of 3 requests matched)" in first


@agentobs.session("shown")
def send_prompt(prompt: str, system: str = "Be brief.", url: str | None = None) -> None:
    """Send one request."""
    client = agentobs.record(Anthropic(api_key=KEY, base_url=url, max_retries=0))
    messages: Any = [{"role": "user", "content": prompt}]
    client.messages.create(model=MODEL, max_tokens=9, system=system, messages=messages)


def test_proposed_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The report proposes `agentobs replay` for the recorded arguments, and the pytest command if a test uses other
    arguments.
    """
    run = recorded(tmp_path, lambda url: send_prompt("Hm?", url=url), [plain(text("Hm."))])
    made_so = frozen(tmp_path, run)
    assert made_so.header["entry"]
    recorded_so = made_so.header["arguments"]

    def commands(test: str, *args: Any, **kwargs: Any) -> tuple[str, ...]:
        with pytest.raises(DivergenceError) as raised, Replayer(made_so) as replayed:
            replayed.set_test_id(test)
            replayed.run(*args, **kwargs)
        return raised.value.divergence.commands

    name = "tests/test_it.py::test_it[a b]"
    expected = commands(name, send_prompt, "other")
    assert expected == (f"pytest '{name}'", f"pytest '{name}' --replay-update")
    assert commands("", send_prompt, "other") == ()
    assert commands(name, lambda: send_prompt("other")) == expected
    elsewhere = {**recorded_so, "system": "Be quick."}
    assert commands(name, **elsewhere) == expected
    monkeypatch.setattr("tests.replay.test_divergence_reports.MODEL", "claude-haiku-4-5")
    same_run = commands(name, send_prompt, **recorded_so)
    assert same_run == commands(name)
    assert same_run[0].startswith("agentobs replay ")


def test_a_connection(fixture: Fixture, snapshot: SnapshotAssertion) -> None:
    """If the agent tries to connect, the report names the line."""

    def connects() -> None:
        socket.create_connection(("192.0.2.1", 443), timeout=1)

    found = divergence_of(fixture, connects)
    assert found.sent is not None
    assert found.sent.function.endswith("connects")
    assert report(found) == snapshot


@pytest.mark.usefixtures("no_foreign_threads")
def test_an_agent_that_hangs(fixture: Fixture, snapshot: SnapshotAssertion) -> None:
    """If no event can end the agent's wait, the report names the place of the wait."""

    def hangs() -> None:
        threading.Event().wait()

    found = divergence_of(fixture, hangs, deadline_seconds=0.05)
    assert found.kind == "timing"
    assert found.sent is not None
    assert found.sent.function.endswith("hangs")
    assert report(found) == snapshot


def test_a_live_tool_with_a_different_result(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    """If a live tool returns a different result, the report names the line of its function, and proposes a run with
    recorded tools.
    """
    fixture, _, _ = recorded_fixture(tmp_path, mails("ann"), options=ALLOWED)
    known = replace(SEND, function=_other_result)
    tools = (known, *Mailer().tools[1:])
    found = divergence_of(
        fixture, Mailer(tools=tools, options=ALLOWED).answer, "Mail them.", tools="live"
    )
    assert found.cause is not None
    assert found.cause.site is not None
    assert found.cause.site.function == "_other_result"
    assert report(found) == snapshot


def _other_result(to: str, body: str = "") -> str:
    return f"{to} has got mail 4711 {body}"


def test_a_changed_section_of_the_prompt(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    """If the agent loop builds the prompt, the report names the changed section."""
    prompt = SystemPrompt(
        custom=(Section("role", "You mail."), Section("tone", "Be kind.\nBe short."))
    )
    other = SystemPrompt(
        custom=(Section("role", "You mail."), Section("tone", "Be kind.\nBe brief."))
    )
    fixture, _, _ = recorded_fixture(tmp_path, mails("ann"), options={**ALLOWED, "system": prompt})
    agent = Mailer(options={**ALLOWED, "system": other})
    found = divergence_of(fixture, agent.answer, "Mail them.")
    assert found.cause is not None
    assert (found.cause.kind, found.cause.place) == ("prompt_section", "tone")
    assert report(found) == snapshot


def rewriting_agent(url: str | None, result_text: str) -> None:
    """Send two requests; the first message of the second request is rewritten to contain the result of the tool."""
    client = agentobs.record(Anthropic(api_key=KEY, base_url=url, max_retries=0))
    with agentobs.session("noted"):
        messages: list[Any] = [{"role": "user", "content": "Look."}]
        for _ in range(2):
            reply = client.messages.create(model=MODEL, max_tokens=9, messages=messages)
            result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": result_text}
            messages = [
                {"role": "user", "content": f"Look. Noted so far: {result_text}."},
                {"role": "assistant", "content": [block.to_dict() for block in reply.content]},
                {"role": "user", "content": [result]},
            ]


def test_a_tool_result_inside_of_a_message(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    """If a changed message contains the result of a tool, the report traces the difference back to this tool."""
    responses = [plain(call(1, "look", at="sky")), plain(text("Fine."))]
    run = recorded(tmp_path, lambda url: rewriting_agent(url, "a cloud"), responses)
    found = divergence_of(frozen(tmp_path, run), rewriting_agent, None, "a balloon")
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
"""The text above the marks in the cases in which it is obvious."""
JOINING = [(0x1F1E6, 0x1F1FF), (0x1F3FB, 0x1F3FF), (0xFE00, 0xFE0F)]
"""Parts of flags, skin tones and variation selectors, whose width depends on the previous character."""


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("case", WIDE)
def test_lines_are_aligned_in_any_script(fixture: Fixture, case: str, columns: int) -> None:
    """In any script, lines fit the width, marks are below the differing text, and no character shifts the rest of its
    line.
    """
    old, new = WIDE[case]
    found = replace(
        changed_agent(fixture, system="Be quick."), differences=tuple(differences(old, new))
    )
    lines = found.text(columns).splitlines()
    assert max(cell_len(line) for line in lines if "agentobs " not in line) <= columns
    marked = ""
    for line, below in itertools.pairwise(lines):
        if (found_marks := re.match(r" *\^[\^ ]*", below)) is not None:
            marks = found_marks[0]
            assert cell_len(line) >= len(marks.rstrip()) - 1
            assert line.lstrip().startswith(("recorded", "now"))
            if line.lstrip().startswith("now"):
                marked += "".join(c for at, c in _in_columns(line) if marks[at : at + 1] == "^")
    assert marked.strip(MARKED[case]) == "" if case in ("wide", "number", "long") else True
    assert MARKED.get(case, "") in marked
    for each in "".join(lines):
        assert each.isprintable()
        assert unicodedata.bidirectional(each) not in ("R", "AL", "AN")
        assert not any(low <= ord(each) <= high for low, high in JOINING)


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ({}, {"city": {"name": "Zürich"}}, 'added     {"name": "Zürich"}'),
        ({"city": ["Zürich"]}, {}, 'removed   ["Zürich"]'),
        ({"city": ["Zürich"]}, {"city": "Bern"}, 'recorded  ["Zürich"]'),
    ],
)
def test_objects_and_lists_are_shown_in_any_script(old: Any, new: Any, line: str) -> None:
    """Letters of every script stay readable in values that are not strings."""
    [difference] = differences(old, new)
    assert aligned(difference)[0] == line


def _in_columns(line: str) -> Iterator[tuple[int, str]]:
    """Yield the characters of a line with their start columns."""
    at = 0
    for character in line:
        yield at, character
        at += cell_len(character)


def test_reports_at_two_widths(fixture: Fixture, snapshot: SnapshotAssertion) -> None:
    """The report contains the same facts at 80 and at 120 columns."""
    system = (
        "Be brief. " + "Look everything up before you act, and say where you have it from. " * 3
    )
    changes = {"system": system, "tools": [TOOLS[0], {**TOOLS[1], "description": "天気 clock"}]}
    found = changed_agent(fixture, **changes)
    assert [
        found.text(columns).replace(found.path, "FIXTURE").splitlines()[:9] for columns in (80, 120)
    ] == snapshot


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["text", "list", "words"])
def test_big_values_cost_bounded_memory(fixture: Fixture, kind: str) -> None:
    """The report of megabytes that differ in the middle is short and keeps a limited amount of data."""
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
    divergence = replace(
        changed_agent(fixture, system="Be quick."), differences=tuple(map(shortened, found[:6]))
    )
    shown = divergence.text()
    held = sum(each.size for each in tracemalloc.take_snapshot().statistics("filename"))
    tracemalloc.stop()
    assert len(shown) < 6_000
    assert len(divergence.json()) < 60_000
    assert held < 20_000_000


def test_a_changed_call_of_a_recorded_tool(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    """If a tool call differs from the call in the fixture, the report shows the difference between the calls."""
    fixture, _, _ = recorded_fixture(tmp_path, mails("ann"), options=ALLOWED)
    [one] = fixture.tools
    other = replace(one, question=replace(one.question, input={"to": "bob"}))
    foreign = Fixture(fixture.path, fixture.header, fixture.requests, [other], fixture.world)
    found = divergence_of(foreign, Mailer(options=ALLOWED).answer, "Mail them.")
    assert found.kind == "tool"
    assert report(found) == snapshot


def test_a_report_as_json(fixture: Fixture, snapshot: SnapshotAssertion) -> None:
    """The JSON report contains all facts by name, and the version of its format."""
    found = changed_agent(fixture, weather={**WEATHER, "Oslo": "snow"})
    parsed = json.loads(found.json().replace(found.path, "FIXTURE"))
    assert parsed["agentobs_divergence"] == 1
    for site in (
        parsed["sent"],
        parsed["cause"]["site"],
        parsed["chain"][0]["site"],
        parsed["chain"][1]["site"],
    ):
        site["line"] = 0
    assert parsed == snapshot


def test_the_causal_chain(fixture: Fixture, snapshot: SnapshotAssertion) -> None:
    """The steps of the causal chain are the request, the tool result, the call, the response with the call, and so
    on.
    """
    found = changed_agent(fixture, weather={**WEATHER, "Rome": "snow"})
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


@pytest.mark.slow
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
def test_any_request_is_reported(fixture: Fixture, key: str, value: Any, place: int) -> None:
    """An unexpected request of any form is reported as a divergence in every format, and causes no other error."""
    body = json.loads(fixture.body(1))
    old = body.get(key)
    body[key] = [*old[:place], value, *old[place + 1 :]] if isinstance(old, list) else value
    hypothesis.assume(not json_equal(body, json.loads(fixture.body(1))))
    client = agentobs.record(Anthropic(api_key=KEY, max_retries=0))
    url = "https://api.anthropic.com/v1/messages"
    with pytest.raises(DivergenceError) as raised, Replayer(fixture):
        client._client.post(url, content=json.dumps(body), headers=fixture.requests[0].headers)
    found = raised.value.divergence
    assert found.kind == "content"
    assert found.differences
    assert json.loads(found.json())["more"] == found.more
    for report_text in (found.text(80), found.text(120), found.explanation(80)):
        assert all(width(line) <= 120 for line in report_text.splitlines())
        assert all(each.isprintable() for each in report_text.splitlines())


@pytest.mark.slow
def test_the_attempt_is_reported(tmp_path: Path) -> None:
    """The report of a retried request contains the number of its attempt."""
    responses = [refused(529, x_should_retry="true"), *answers()]
    fixture = frozen(tmp_path, recorded(tmp_path, lambda url: Agent(url).answer("Hm?"), responses))

    class Restless(Agent):
        """An agent that sends a different request when it retries."""

        def answer(self, prompt: str) -> str:
            client = agentobs.record(Anthropic(max_retries=0, **self.options))
            with agentobs.session("restless"):
                for content in (prompt, "Hm!"):
                    try:
                        messages: Any = [{"role": "user", "content": content}]
                        with client.messages.stream(messages=messages, **self.ask()) as stream:
                            stream.until_done()
                    except InternalServerError:
                        continue
            return ""

    found = divergence_of(fixture, Restless().answer, "Hm?")
    assert (found.number, found.attempt, found.request) == (2, 2, 2)
    assert "request 2 of 4, attempt 2" in found.text()


def test_waiting_tasks_and_lanes_are_reported(tmp_path: Path) -> None:
    """The report contains the progress of each lane, and the places at which other tasks wait."""
    fixture, _, _ = recorded_fixture(tmp_path, mails("ann"), options=ALLOWED)
    agent = Mailer(options={**ALLOWED, "system": "Be quick."})

    async def run_next_to_waiting_tasks() -> None:
        async def waits() -> None:
            await asyncio.Event().wait()

        waiting = [asyncio.create_task(waits(), name=name) for name in ("first", "second")]
        try:
            await agent.answer("Mail them.")
        finally:
            for each in waiting:
                each.cancel()

    found = divergence_of(fixture, run_next_to_waiting_tasks)
    assert [each.task for each in found.waiting] == ["first", "second"]
    assert "waiting    2 tasks at tests/replay/test_divergence_reports.py" in found.text()
    assert [(each.lane, each.asked, each.of) for each in found.lanes] == [("main", 0, 2)]


@pytest.mark.slow
def test_a_divergence_in_the_middle_of_big_bodies(tmp_path: Path) -> None:
    """A divergence in the middle of a long request keeps only a few thousand characters of the request."""
    long = "".join(f"line {number}\n" for number in range(40_000))
    responses = [streamed(text("Long."), number=1)]
    run = recorded(tmp_path, lambda url: Agent(url, system=long).answer("Hm?"), responses)
    fixture = frozen(tmp_path, run)
    other = long.replace("line 20000\n", "line 20000 and a half\n")
    found = divergence_of(fixture, Agent(system=other).answer, "Hm?")
    assert found.cause is not None
    assert found.cause.line == 20_001
    [one] = found.differences
    assert len(one.expected) + len(one.actual) <= 4_000
    assert one.lengths == (len(long), len(other))
    assert "line 20000·and a half⏎" in found.text()
    assert "more difference" not in found.text()
    assert len(found.text()) < 1_500
    assert len(found.json()) < 12_000
