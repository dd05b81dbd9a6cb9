"""Functions of agents that are not ours, as tools: under the SDK's runners, in parallel, inside of each other."""

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
from tests.replay.mailer import made as mailed
from tests.replay.test_torture_world import Shop, calls, made, replays, whole

RAN: list[str] = []


@agentobs.record_tool
def weather(city: str, unit: str = "C") -> str:
    """Tell the weather.

    Args:
        city: where.
        unit: C or F.
    """
    RAN.append(city)
    return f"{city}: 4 {unit}"


@agentobs.record_tool(name="later")
async def weather_later(city: str) -> str:
    """Tell the weather later."""
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
    """Each call goes by the id that the model gave it, is counted once, and does not run again."""
    uses = [call(1, "weather", city="Oslo"), call(2, "weather", city="Rome", unit="F")]
    given = [whole(*uses), whole(text("Fine."), number=2)]
    fixture = frozen(tmp_path, recorded(tmp_path, run_tools, given))
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
    """An async function under `beta_async_tool`, of a streamed answer."""
    given = [streamed(call(1, "later", city="Oslo")), streamed(text("Fine."), number=2)]
    run = recorded(tmp_path, lambda url: asyncio.run(stream_tools(url)), given)
    fixture = frozen(tmp_path, run)
    assert [t.question.tool_use_id for t in fixture.tools] == ["toolu_1"]
    RAN.clear()
    with Replayer(fixture) as replayed:
        assert replayed.run(stream_tools, None) == "Fine."
    assert RAN == []


def test_functions_that_nobody_asked_for_are_counted(tmp_path: Path) -> None:
    """Called in threads in any order, each finds the result for what it was given."""

    def gather(cities: list[str]) -> str:
        order = cities if not RAN else cities[::-1]
        with ThreadPoolExecutor(3) as pool:
            told = dict(zip(order, pool.map(agentobs.carried(weather), order), strict=True))
        return str(sorted(told.items()))

    RAN.clear()
    uses = call(1, "gather", cities=["Oslo", "Rome", "Bern"])
    fixture, live = made(tmp_path, [whole(uses), whole(text("Done."), number=2)], gather=gather)
    assert sorted(t.question.tool_use_id for t in fixture.tools) == [
        "weather@1",
        "weather@2",
        "weather@3",
    ]
    ran = len(RAN)
    again = Shop(gather=gather)
    replays(fixture, again)
    assert again.seen == live.seen
    assert len(RAN) == ran == 3


class Nested:
    """A tool that asks the model itself, and calls another recorded function."""

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
    given = [
        whole(call(1, "think", about="Oslo")),
        whole(text("Wet."), number=2),
        whole(text("Done."), number=3),
    ]
    run = recorded(tmp, lambda url: Shop(url, think=Nested(url).tool).run(), given)
    return frozen(tmp, run, "nested")


def test_what_a_function_asks_lies_under_its_call(nested: Fixture) -> None:
    """Answered from the recording it asks nothing; run, it asks what it asked, and its own calls are answered."""
    assert [ask.lane for ask in nested.asks] == ["main", "main/toolu_1", "main"]
    assert {(t.lane, t.question.name) for t in nested.tools} == {
        ("main", "think"),
        ("main/toolu_1", "weather"),
    }
    RAN.clear()
    answered, runs = Nested(), Nested()
    replays(nested, Shop(think=answered.tool))
    replays(nested, Shop(think=runs.tool), tools=["think"])
    assert (answered.ran, runs.ran, RAN) == (0, 1, [])


def test_what_a_function_asks_otherwise_diverges_in_its_lane(nested: Fixture) -> None:
    """Where the function runs, its requests are compared."""
    changed = Nested(prompt="Ponder.")
    with pytest.raises(DivergenceError) as raised:
        with Replayer(nested, ReplayOptions(tools=["think"])) as replayed:
            replayed.run(Shop(think=changed.tool).run)
    assert raised.value.divergence.lane == "main/toolu_1"


def test_a_call_that_was_cancelled_is_cancelled_again(tmp_path: Path) -> None:
    """A time limit around a function that never ended ends it in the replay, too, and it does not run."""
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

    fixture, live = made(tmp_path, calls("limited"), limited=limited)
    again = Shop(limited=limited)
    replays(fixture, again)
    assert again.seen == live.seen == ["too slow"]
    assert ran == [1]


def test_secrets_that_pass_through_a_function_are_not_kept(tmp_path: Path) -> None:
    """In its arguments and its result they are placeholders, and another secret replays."""
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
    """A value of which nothing can be asked."""

    def __repr__(self) -> str:
        raise RuntimeError("no")

    __str__ = __eq__ = __hash__ = __getattr__ = __repr__  # type: ignore[assignment, misc]


def test_a_hostile_value_does_not_reach_the_agent(tmp_path: Path) -> None:
    """What cannot be written is noted by its type; the function runs as ever, and what it returned may change after."""
    changed: list[Any] = ["as returned"]

    @agentobs.record_tool
    def look(at: Any, deep: Any = None) -> Any:
        return changed

    def start() -> str:
        told = look(Hostile(), deep=at_itself)
        changed.append("changed")
        return str(len(told))

    at_itself: list[Any] = []
    at_itself.append(at_itself)
    fixture, _ = made(tmp_path, calls("start"), start=start)
    [tool_call] = fixture.tools
    assert tool_call.answer.content == ["as returned"]
    assert tool_call.question.input["at"]["$py"] == "not kept"
    assert "too deep" in tool_call.question.input["deep"]["type"]


def test_a_function_outside_everything_just_runs() -> None:
    """Where nothing records, and in a session that is not replayed, the decorator is not noticed."""
    RAN.clear()
    assert weather("Oslo", unit="F") == "Oslo: 4 F"
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'city'"):
        weather()  # type: ignore[call-arg]
    assert RAN == ["Oslo"]


ALLOWED = Permissions(rules=(Rule("allow", "*", None, "user"),))


def test_39_policies_of_our_own_loop(tmp_path: Path) -> None:
    """A tool that is not known to be harmless runs where it is named, never by `*`; `verify` compares."""
    ran: list[str] = []

    def send(to: str, body: str = "") -> str:
        ran.append(to)
        return sent

    sent = "sent"
    options: dict[str, Any] = {"options": {"permissions": ALLOWED}, "tools": (tool(send),)}
    fixture, _, _ = mailed(tmp_path, mails("ann"), **options)

    def again(policy: Any) -> list[str]:
        ran.clear()
        with Replayer(fixture, ReplayOptions(tools=policy)) as replayed:
            replayed.run(Mailer(**options).answer, "Mail them.")
        return list(ran)

    assert again({"*": "execute"}) == []
    assert again({"send": "execute"}) == again({"send": "verify"}) == again("live") == ["ann"]
    sent = "sent it"
    with pytest.raises(DivergenceError, match="send was to be verified: it ran live"):
        again({"send": "verify"})


def test_equal_calls_of_one_answer_have_their_own_results(tmp_path: Path) -> None:
    """The first call that no function has taken is the one, so that each goes by an id of its own."""
    count = iter(range(9))
    tick = agentobs.record_tool(name="tick")(lambda: next(count))
    fixture, live = made(tmp_path, calls("tick", "tick", "tick"), tick=tick)
    assert [t.question.tool_use_id for t in fixture.tools] == ["toolu_1", "toolu_2", "toolu_3"]
    again = Shop(tick=tick)
    replays(fixture, again)
    assert again.seen == live.seen == [0, 1, 2]


CHARGED: list[int] = []


@agentobs.record_tool(mutating=True)
def charge(amount: int) -> str:
    """Charge somebody."""
    CHARGED.append(amount)
    return f"charged {amount}"


def till(url: str | None, places: str) -> Any:
    """Ask twice, and charge before, between or after."""
    client = agentobs.record(Anthropic(api_key=KEY, base_url=url, max_retries=0))
    with agentobs.session("till"):
        for number, place in enumerate("abc", 1):
            for _ in range(places.count(place)):
                charge(5)
            if number < 3:
                messages: Any = [{"role": "user", "content": f"question {number}"}]
                client.messages.create(model=MODEL, max_tokens=9, messages=messages)


@pytest.mark.parametrize(
    ("recorded_at", "after"), [("a", [0]), ("b", [1]), ("c", [2]), ("abbc", [0, 1, 1, 2])]
)
def test_a_function_that_nobody_asked_for_keeps_its_place(
    tmp_path: Path, recorded_at: str, after: list[int]
) -> None:
    """Called before a request that it came after, or after one before which, it diverges and does not run; its line
    stands where it came.
    """
    given = [whole(text("Yes.")), whole(text("Done."), number=2)]
    fixture = frozen(tmp_path, recorded(tmp_path, lambda url: till(url, recorded_at), given))
    assert [tool.after for tool in fixture.tools] == after
    lines = [json.loads(line) for line in fixture.path.read_text().splitlines()]
    told = [
        "tool" if "tool" in line else "request"
        for line in lines
        if {"tool", "request"} & line.keys()
    ]
    places = [["tool"] * recorded_at.count(place) for place in "abc"]
    assert told == [*places[0], "request", *places[1], "request", *places[2]]
    CHARGED.clear()
    with Replayer(fixture) as replayed:
        replayed.run(till, None, recorded_at)
    for moved in {"a", "b", "c"} - set(recorded_at):
        with pytest.raises(DivergenceError, match="tool charge was called after") as raised:
            with Replayer(fixture) as replayed:
                replayed.run(till, None, moved)
        assert raised.value.divergence.kind == "order"
    assert CHARGED == []


def test_the_place_of_a_function_beside_a_request_is_chance(tmp_path: Path) -> None:
    """Called while a request of its lane was in flight it may come at any place."""

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


def test_the_place_of_a_function_among_requests_in_flight_together_is_chance(
    tmp_path: Path,
) -> None:
    """In a lane whose requests overlap, which of them were asked before a call says nothing."""

    async def run(url: str | None, early: bool = False) -> None:
        client = agentobs.record(AsyncAnthropic(api_key=KEY, base_url=url, max_retries=0))
        both = asyncio.Barrier(2)

        async def ask(prompt: str) -> None:
            messages: Any = [{"role": "user", "content": prompt}]
            asked = client.messages.stream(model=MODEL, max_tokens=9, messages=messages)
            async with asked as stream:
                await both.wait()
                await stream.get_final_message()

        with agentobs.session("together"):
            if early:
                charge(5)
            await asyncio.gather(ask("one"), ask("two"))
            if not early:
                charge(5)

    given = [streamed(text("Yes."), number=number) for number in (1, 2)]
    live = recorded(tmp_path, lambda url: asyncio.run(run(url)), given)
    fixture = frozen(tmp_path, live)
    assert [tool.after for tool in fixture.tools] == [None]
    with Replayer(fixture) as replayed:
        replayed.run(run, None, early=True)
