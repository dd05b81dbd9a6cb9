"""Recorded functions of third-party agents as tools: in the SDK's runners, in parallel, and nested."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from anthropic import Anthropic, AsyncAnthropic, beta_async_tool, beta_tool

import agentobs
from agentobs.agent.permissions import Permissions, Rule
from agentobs.agent.tools.tool import tool
from agentobs.recording.journal.home import existing_home
from agentobs.recording.journal.segments import Line, facts_path, read, segment_ids
from replay import DivergenceError, Fixture, Replayer, ReplayOptions
from tests.provider_script import call, streamed, text
from tests.replay.agents import KEY, MODEL, frozen, recorded
from tests.replay.mailer import Mailer, mails
from tests.replay.mailer import recorded_fixture as recorded_mailer
from tests.replay.test_tool_policies import Shop, calls, recorded_shop, replays, unstreamed

RAN: list[str] = []


@agentobs.record_tool
def weather(city: str, unit: str = "C") -> str:
    """Return the weather.

    Args:
        city: the city.
        unit: C or F.
    """
    RAN.append(city)
    return f"{city}: 4 {unit}"


@agentobs.record_tool(name="later")
async def weather_later(city: str) -> str:
    """Return the weather later."""
    await asyncio.sleep(0)
    RAN.append(city)
    return f"{city}: 5 C"


def run_tools(url: str | None) -> Any:
    client = agentobs.record(Anthropic(api_key=KEY, base_url=url, max_retries=0))
    with agentobs.session("runner"):
        runner = client.beta.messages.tool_runner(
            model=MODEL,
            max_tokens=99,
            tools=[beta_tool(weather)],
            messages=[{"role": "user", "content": "How is it?"}],
        )
        return runner.until_done().content[0].text  # type: ignore[union-attr]


async def stream_tools(url: str | None) -> Any:
    client = agentobs.record(AsyncAnthropic(api_key=KEY, base_url=url, max_retries=0))
    with agentobs.session("runner"):
        runner = client.beta.messages.tool_runner(
            model=MODEL,
            max_tokens=99,
            tools=[beta_async_tool(weather_later, name="later")],
            messages=[{"role": "user", "content": "How is it?"}],
            stream=True,
        )
        return (await runner.until_done()).content[0].text  # type: ignore[union-attr]


def facts(home: Path, kind: str) -> list[dict[str, Any]]:
    found = existing_home(home)
    lines = (line for each in segment_ids(found) for line in read(facts_path(found, each)))
    return [line.value() for line in lines if isinstance(line, Line) and line.kind == kind]


def test_the_runner_of_the_sdk(tmp_path: Path) -> None:
    """In the SDK's tool runner, each call has the ID that the model chose, is recorded once, and does not run in a
    replay.
    """
    uses = [call(1, "weather", city="Oslo"), call(2, "weather", city="Rome", unit="F")]
    responses = [unstreamed(*uses), unstreamed(text("Fine."), number=2)]
    fixture = frozen(tmp_path, recorded(tmp_path, run_tools, responses))
    assert [(t.question.tool_use_id, t.turn) for t in fixture.tools] == [
        ("toolu_1", 1),
        ("toolu_2", 1),
    ]
    results = facts(tmp_path / "home", "tool_results")
    assert [(r["tool_use_id"], r["source"]) for r in results] == [
        ("toolu_1", "run"),
        ("toolu_2", "run"),
    ]
    assert all(result["attempt_id"] for result in results)
    RAN.clear()
    with Replayer(fixture) as replayed:
        assert replayed.run(run_tools, None) == "Fine."
    assert RAN == []
    with Replayer(fixture, ReplayOptions(tools={"*": "verify"})) as replayed:
        replayed.run(run_tools, None)
    assert RAN == ["Oslo", "Rome"]


def test_the_streaming_runner_of_the_sdk(tmp_path: Path) -> None:
    """In the SDK's streaming tool runner, an async function is recorded, and does not run in a replay."""
    responses = [streamed(call(1, "later", city="Oslo")), streamed(text("Fine."), number=2)]
    run = recorded(tmp_path, lambda url: asyncio.run(stream_tools(url)), responses)
    fixture = frozen(tmp_path, run)
    assert [t.question.tool_use_id for t in fixture.tools] == ["toolu_1"]
    RAN.clear()
    with Replayer(fixture) as replayed:
        assert replayed.run(stream_tools, None) == "Fine."
    assert RAN == []


def test_calls_without_a_tool_use_are_matched_by_arguments(tmp_path: Path) -> None:
    """Calls for which the model made no tool call are matched by their arguments, in any order."""

    def gather(cities: list[str]) -> str:
        order = cities if not RAN else cities[::-1]
        with ThreadPoolExecutor(3) as pool:
            results = dict(zip(order, pool.map(agentobs.carried(weather), order), strict=True))
        return str(sorted(results.items()))

    RAN.clear()
    uses = call(1, "gather", cities=["Oslo", "Rome", "Bern"])
    fixture, live = recorded_shop(
        tmp_path, [unstreamed(uses), unstreamed(text("Done."), number=2)], gather=gather
    )
    assert sorted(t.question.tool_use_id for t in fixture.tools) == [
        "weather@1",
        "weather@2",
        "weather@3",
    ]
    ran = len(RAN)
    replaying = Shop(gather=gather)
    replays(fixture, replaying)
    assert replaying.seen == live.seen
    assert len(RAN) == ran == 3


class Nested:
    """A tool that sends a request itself and calls another recorded function."""

    def __init__(self, url: str | None = None, prompt: str = "Think.") -> None:
        self.client = agentobs.record(Anthropic(api_key=KEY, base_url=url, max_retries=0))
        self.prompt, self.ran = prompt, 0
        self.tool = agentobs.record_tool(name="think")(self.think)

    def think(self, about: str) -> str:
        self.ran += 1
        messages: Any = [{"role": "user", "content": f"{self.prompt} {weather(about)}"}]
        answer = self.client.messages.create(model=MODEL, max_tokens=9, messages=messages)
        assert answer.content[0].type == "text"
        return answer.content[0].text


@pytest.fixture(scope="module")
def nested(tmp_path_factory: pytest.TempPathFactory) -> Fixture:
    tmp = tmp_path_factory.mktemp("nested")
    responses = [
        unstreamed(call(1, "think", about="Oslo")),
        unstreamed(text("Wet."), number=2),
        unstreamed(text("Done."), number=3),
    ]
    run = recorded(tmp, lambda url: Shop(url, think=Nested(url).tool).run(), responses)
    return frozen(tmp, run, "nested")


@pytest.mark.slow
def test_requests_of_a_function_are_in_the_lane_of_its_call(nested: Fixture) -> None:
    """A function's requests and calls are in the lane of its call, and are replayed if the function runs live."""
    assert [ask.lane for ask in nested.requests] == ["main", "main/toolu_1", "main"]
    assert {(t.lane, t.question.name) for t in nested.tools} == {
        ("main", "think"),
        ("main/toolu_1", "weather"),
    }
    RAN.clear()
    answered, runs = Nested(), Nested()
    replays(nested, Shop(think=answered.tool))
    replays(nested, Shop(think=runs.tool), tools=["think"])
    assert (answered.ran, runs.ran, RAN) == (0, 1, [])


def test_a_changed_request_of_a_function_diverges_in_its_lane(nested: Fixture) -> None:
    """If a function runs live and sends a changed request, the replay diverges in the lane of its call."""
    changed = Nested(prompt="Ponder.")
    with pytest.raises(DivergenceError) as raised:
        with Replayer(nested, ReplayOptions(tools=["think"])) as replayed:
            replayed.run(Shop(think=changed.tool).run)
    assert raised.value.divergence.lane == "main/toolu_1"


@pytest.mark.slow
def test_a_canceled_call_is_canceled_in_the_replay(tmp_path: Path) -> None:
    """A call that a timeout canceled in the recording is canceled in the replay too, without running the function."""
    ran: list[int] = []

    @agentobs.record_tool
    async def slow() -> str:
        ran.append(1)
        await asyncio.sleep(3600)
        return "never"

    async def limited() -> str:
        try:
            return await asyncio.wait_for(slow(), 0.01)
        except TimeoutError:
            return "too slow"

    fixture, live = recorded_shop(tmp_path, calls("limited"), limited=limited)
    replaying = Shop(limited=limited)
    replays(fixture, replaying)
    assert replaying.seen == live.seen == ["too slow"]
    assert ran == [1]


def test_secrets_in_arguments_and_results_are_redacted(tmp_path: Path) -> None:
    """Secrets in a function's arguments and result are redacted in the fixture, which replays with a different
    secret.
    """
    secret = "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"
    tool_of = agentobs.record_tool(name="login")

    def agent(token: str, url: str | None = None) -> Shop:
        log_in = tool_of(lambda token: {"token": token})
        return Shop(url, start=lambda: str(log_in(token)))

    run = recorded(tmp_path, lambda url: agent(secret, url).run(), calls("start"))
    fixture = frozen(tmp_path, run, "login")
    assert secret not in fixture.path.read_text()
    assert "[redacted:github_token:1]" in fixture.path.read_text()
    replays(fixture, agent(secret.replace("a1B2", "z9Y8")))


class Hostile:
    """A value whose methods all fail."""

    def __repr__(self) -> str:
        raise RuntimeError("no")

    __str__ = __eq__ = __hash__ = __getattr__ = __repr__  # type: ignore[assignment, misc]


def test_a_hostile_value_does_not_break_the_agent(tmp_path: Path) -> None:
    """An argument that cannot be serialized is recorded by its type, and a later change of the result is not
    recorded.
    """
    changed: list[Any] = ["as returned"]

    @agentobs.record_tool
    def look(at: Any, deep: Any = None) -> Any:
        return changed

    def start() -> str:
        result = look(Hostile(), deep=at_itself)
        changed.append("changed")
        return str(len(result))

    at_itself: list[Any] = []
    at_itself.append(at_itself)
    fixture, _ = recorded_shop(tmp_path, calls("start"), start=start)
    [tool_call] = fixture.tools
    assert tool_call.answer.content == ["as returned"]
    assert tool_call.question.input["at"]["$py"] == "not kept"
    assert "too deep" in tool_call.question.input["deep"]["type"]


def test_a_function_outside_of_a_session_runs() -> None:
    """Outside of a session, a recorded function behaves like the original function."""
    RAN.clear()
    assert weather("Oslo", unit="F") == "Oslo: 4 F"
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'city'"):
        weather()  # type: ignore[call-arg]
    assert RAN == ["Oslo"]


ALLOWED = Permissions(rules=(Rule("allow", "*", None, "user"),))


@pytest.mark.slow
def test_policies_of_the_agent_loop(tmp_path: Path) -> None:
    """In the agent loop, a tool with side effects runs with `live` or a policy for its name, but not with a policy for
    `*`.
    """
    ran: list[str] = []

    def send(to: str, body: str = "") -> str:
        ran.append(to)
        return sent

    sent = "sent"
    options: dict[str, Any] = {"options": {"permissions": ALLOWED}, "tools": (tool(send),)}
    fixture, _, _ = recorded_mailer(tmp_path, mails("ann"), **options)

    def replaying(policy: Any) -> list[str]:
        ran.clear()
        with Replayer(fixture, ReplayOptions(tools=policy)) as replayed:
            replayed.run(Mailer(**options).answer, "Mail them.")
        return list(ran)

    assert replaying({"*": "execute"}) == []
    assert (
        replaying({"send": "execute"})
        == replaying({"send": "verify"})
        == replaying("live")
        == ["ann"]
    )
    sent = "sent it"
    with pytest.raises(
        DivergenceError,
        match="send has the policy `verify`, so its result was compared with the recorded one",
    ):
        replaying({"send": "verify"})


def test_equal_calls_of_one_response_have_their_own_results(tmp_path: Path) -> None:
    """Equal calls of one response each have their own ID and receive their own result."""
    count = iter(range(9))
    tick = agentobs.record_tool(name="tick")(lambda: next(count))
    fixture, live = recorded_shop(tmp_path, calls("tick", "tick", "tick"), tick=tick)
    assert [t.question.tool_use_id for t in fixture.tools] == ["toolu_1", "toolu_2", "toolu_3"]
    replaying = Shop(tick=tick)
    replays(fixture, replaying)
    assert replaying.seen == live.seen == [0, 1, 2]


CHARGED: list[int] = []


@agentobs.record_tool(mutating=True)
def charge(amount: int) -> str:
    """Charge an amount."""
    CHARGED.append(amount)
    return f"charged {amount}"


def till(url: str | None, places: str) -> Any:
    """Send two requests, and charge before, between or after the requests."""
    client = agentobs.record(Anthropic(api_key=KEY, base_url=url, max_retries=0))
    with agentobs.session("till"):
        for number, place in enumerate("abc", 1):
            for _ in range(places.count(place)):
                charge(5)
            if number < 3:
                messages: Any = [{"role": "user", "content": f"question {number}"}]
                client.messages.create(model=MODEL, max_tokens=9, messages=messages)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recorded_at", "after"), [("a", [0]), ("b", [1]), ("c", [2]), ("abbc", [0, 1, 1, 2])]
)
def test_a_function_without_a_tool_use_keeps_its_place(
    tmp_path: Path, recorded_at: str, after: list[int]
) -> None:
    """A call for which the model made no tool call diverges without running if it moves to another place between
    requests.

    Its line in the fixture is at the recorded place.
    """
    responses = [unstreamed(text("Yes.")), unstreamed(text("Done."), number=2)]
    fixture = frozen(tmp_path, recorded(tmp_path, lambda url: till(url, recorded_at), responses))
    assert [tool.after for tool in fixture.tools] == after
    lines = [json.loads(line) for line in fixture.path.read_text().splitlines()]
    kinds = [
        "tool" if "tool" in line else "request"
        for line in lines
        if {"tool", "request"} & line.keys()
    ]
    places = [["tool"] * recorded_at.count(place) for place in "abc"]
    assert kinds == [*places[0], "request", *places[1], "request", *places[2]]
    CHARGED.clear()
    with Replayer(fixture) as replayed:
        replayed.run(till, None, recorded_at)
    for other_place in {"a", "b", "c"} - set(recorded_at):
        with pytest.raises(
            DivergenceError, match=r"tool charge \(\S+\) was called after"
        ) as raised:
            with Replayer(fixture) as replayed:
                replayed.run(till, None, other_place)
        assert raised.value.divergence.kind == "order"
    assert CHARGED == []


def test_a_call_during_a_request_has_no_fixed_place(tmp_path: Path) -> None:
    """A function that was called while a request of its lane was in flight may be called at any place in the replay."""

    def run(url: str | None, early: bool = True) -> None:
        client = agentobs.record(Anthropic(api_key=KEY, base_url=url, max_retries=0))
        messages: Any = [{"role": "user", "content": "Go."}]
        with agentobs.session("beside"):
            if not early:
                charge(5)
            with client.messages.stream(model=MODEL, max_tokens=9, messages=messages) as stream:
                if early:
                    charge(5)
                stream.get_final_message()

    fixture = frozen(tmp_path, recorded(tmp_path, run, [streamed(text("Done."))]))
    assert [tool.after for tool in fixture.tools] == [None]
    for early in (True, False):
        with Replayer(fixture) as replayed:
            replayed.run(run, None, early)


def test_a_call_after_concurrent_requests_has_no_fixed_place(
    tmp_path: Path,
) -> None:
    """A function that was called after overlapping requests of its lane may be called before these requests in the
    replay.
    """

    async def run(url: str | None, early: bool = False) -> None:
        client = agentobs.record(AsyncAnthropic(api_key=KEY, base_url=url, max_retries=0))
        both = asyncio.Barrier(2)

        async def ask(prompt: str) -> None:
            messages: Any = [{"role": "user", "content": prompt}]
            opening = client.messages.stream(model=MODEL, max_tokens=9, messages=messages)
            async with opening as stream:
                await both.wait()
                await stream.get_final_message()

        with agentobs.session("together"):
            if early:
                charge(5)
            await asyncio.gather(ask("one"), ask("two"))
            if not early:
                charge(5)

    responses = [streamed(text("Yes."), number=number) for number in (1, 2)]
    live = recorded(tmp_path, lambda url: asyncio.run(run(url)), responses)
    fixture = frozen(tmp_path, live)
    assert [tool.after for tool in fixture.tools] == [None]
    with Replayer(fixture) as replayed:
        replayed.run(run, None, early=True)
