"""Torture cases 21 to 25 and 46: values that are new in each run, compaction, and how much a replay looks at."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from anthropic import Anthropic

import agentobs
import replay.fixture.body_parts
import replay.matching.lane
from agentobs.errors import UsageError
from agentobs.records.exchanges import Answer, Chunk
from replay import Divergence, DivergenceError, Fixture, Normalizer, Replayer, ReplayOptions, load
from replay.comparison.normalizers import BUILT_IN
from replay.comparison.placeholders import Renaming
from replay.freeze.conversion import freeze
from tests.provider_script import streamed, text
from tests.replay.agents import KEY, MODEL, frozen, recorded

U = "3f2b8c1e-0000-4000-8000-00000000000a"
V = "9d1c77aa-1111-4111-9111-11111111111b"
W = "0b5e6f70-2222-4222-a222-22222222222c"


def talk(*prompts: str, url: str | None = None, system: str = "Be brief.") -> list[str]:
    """Say one prompt after the other, each with all that was said before it."""
    messages: list[Any] = []
    told: list[str] = []
    with Anthropic(api_key=KEY, base_url=url, max_retries=0) as client:
        agentobs.record(client)
        with agentobs.session("talk"):
            for prompt in prompts:
                messages.append({"role": "user", "content": prompt})
                ask: dict[str, Any] = {"model": MODEL, "max_tokens": 9, "system": system}
                with client.messages.stream(messages=messages, **ask) as stream:
                    told.append(stream.get_final_text())
                messages.append({"role": "assistant", "content": told[-1]})
    return told


def talked(path: Path, *prompts: str) -> Fixture:
    given = [streamed(text(f"It is {n}."), number=n) for n in range(1, len(prompts) + 1)]
    return frozen(path, recorded(path, lambda url: talk(*prompts, url=url), given), "talk")


def replayed(fixture: Fixture, *prompts: str, **options: Any) -> Replayer:
    with Replayer(fixture, ReplayOptions(**options)) as replay:
        replay.run(talk, *prompts)
    return replay


def diverges(fixture: Fixture, *prompts: str, **options: Any) -> Divergence:
    with pytest.raises(DivergenceError) as raised:
        replayed(fixture, *prompts, **options)
    return raised.value.divergence


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory) -> Fixture:
    """A session that says one uuid twice."""
    return talked(tmp_path_factory.mktemp("twice"), f"I am {U}.", f"Still {U}.")


def test_21_a_uuid_in_a_prompt(twice: Fixture) -> None:
    """Another one matches by a typed placeholder, if that is asked for, and wherever it stands again."""
    found = diverges(twice, f"I am {V}.", f"Still {V}.")
    assert [each.rule for each in found.proposals] == ["uuid"]
    replay = replayed(twice, f"I am {V}.", f"Still {V}.", normalizers=["uuid"])
    assert replay.normalized.keys() == {"uuid"}
    assert replayed(twice, f"I am {U}.", f"Still {U}.", normalizers=["uuid"]).normalized == {}


def test_21_a_second_uuid_where_the_first_was_used_again_diverges(twice: Fixture) -> None:
    """Placeholders are renamed consistently: what was one value must be one."""
    found = diverges(twice, f"I am {V}.", f"Still {W}.", normalizers=["uuid"])
    assert (found.number, found.differences[0].path) == (2, "$.messages[2].content")
    assert found.normalized == ("uuid (1)",)


def test_21_two_uuids_that_become_one_diverge(tmp_path: Path) -> None:
    """And what were two values must be two."""
    fixture = talked(tmp_path, f"I am {U}.", f"Now {W}.")
    replayed(fixture, f"I am {W}.", f"Now {V}.", normalizers=["uuid"])
    assert diverges(fixture, f"I am {V}.", f"Now {V}.", normalizers=["uuid"]).number == 2


def spoken(fixture: Fixture, *prompts: str, **options: Any) -> bool:
    """Return whether single prompts, each a conversation of its own, are the recorded ones."""
    try:
        with Replayer(fixture, ReplayOptions(**options)) as replay:
            replay.run(single, *prompts)
    except DivergenceError:
        return False
    return True


def single(*prompts: str, url: str | None = None) -> None:
    with Anthropic(api_key=KEY, base_url=url, max_retries=0) as client:
        agentobs.record(client)
        with agentobs.session("single"):
            for prompt in prompts:
                client.messages.create(model=MODEL, max_tokens=9, messages=[said("user", prompt)])


def singly(path: Path, prompts: list[str], answers: list[str]) -> Fixture:
    given = [whole(number, words) for number, words in enumerate(answers, 1)]
    return frozen(path, recorded(path, lambda url: single(*prompts, url=url), given), "single")


@pytest.mark.parametrize("speaks", [talk, single])
@pytest.mark.parametrize(
    ("then", "now"),
    [
        ([f"Order {U}.", f"Refund {U}."], [f"Order {U}.", f"Refund {V}."]),
        ([f"Order {U}.", f"Refund {U}."], [f"Order {V}.", f"Refund {U}."]),
        ([f"From {U} to {V}."], [f"From {U} to {U}."]),
        ([f"From {U} to {U}."], [f"From {U} to {V}."]),
        ([f"From {U}.", f"To {V}."], [f"From {V}.", f"To {V}."]),
    ],
)
def test_21_a_value_that_stayed_the_same_is_one_value_too(
    tmp_path: Path, speaks: Any, then: list[str], now: list[str]
) -> None:
    """What is equal on both sides belongs together like what is renamed: neither stands for another one later."""
    given = [whole(number, "Done.") for number in range(1, len(then) + 1)]
    fixture = frozen(tmp_path, recorded(tmp_path, lambda url: _said_by(speaks, then, url), given))
    rules = ReplayOptions(normalizers=["uuid"])
    with Replayer(fixture, rules) as same:
        same.run(_said_by, speaks, then, None)
    assert same.normalized == {}
    with pytest.raises(DivergenceError) as raised, Replayer(fixture, rules) as other:
        other.run(_said_by, speaks, now, None)
    assert raised.value.divergence.number == len(then)
    assert raised.value.divergence.differences


def _said_by(speaks: Any, prompts: list[str], url: str | None) -> None:
    """Say prompts as one conversation or as many, whose answers are no streams."""
    if speaks is single:
        single(*prompts, url=url)
        return
    messages: list[Any] = []
    with Anthropic(api_key=KEY, base_url=url, max_retries=0) as client:
        agentobs.record(client)
        with agentobs.session("said"):
            for prompt in prompts:
                messages.append(said("user", prompt))
                told = client.messages.create(model=MODEL, max_tokens=9, messages=messages)
                messages.append(said("assistant", told.content[0].text))  # type: ignore[union-attr]


def test_21_swapped_values_are_a_renaming(tmp_path: Path) -> None:
    """Two values that stand for each other are one to one, and so is a chain of them."""
    fixture = singly(tmp_path, [f"From {U} to {V}.", f"Back to {U}."], ["Yes.", "Yes."])
    rules: Any = ["uuid"]
    assert spoken(fixture, f"From {V} to {U}.", f"Back to {V}.", normalizers=rules)
    assert spoken(fixture, f"From {V} to {W}.", f"Back to {V}.", normalizers=rules)
    assert not spoken(fixture, f"From {V} to {U}.", f"Back to {U}.", normalizers=rules)


def test_21_what_an_answer_quotes(tmp_path: Path) -> None:
    """The model quotes the recorded value of a renamed one: the agent may say either, and no third."""
    prompts = [f"Order {U}.", f"Refund {U}."]
    fixture = singly(tmp_path, prompts, [f"Ordered {U}.", "Refunded."])
    rules: Any = ["uuid", "pid"]
    for second, is_same in ((U, True), (V, True), (W, False)):
        found = spoken(fixture, f"Order {V}.", f"Refund {second}.", normalizers=rules)
        assert found is is_same, second
    talked_of = [whole(1, f"Ordered {U}."), whole(2, "Refunded.")]
    made = tmp_path / "talked"
    whole_talk = frozen(made, recorded(made, lambda url: _said_by(talk, prompts, url), talked_of))
    with Replayer(whole_talk, ReplayOptions(normalizers=rules)) as replay:
        replay.run(_said_by, talk, [f"Order {V}.", f"Refund {V}."], None)
    with Replayer(whole_talk, ReplayOptions(normalizers=rules)) as replay:
        replay.run(_said_by, talk, [f"Order {V}.", f"Refund {U}."], None)


def test_21_what_an_answer_says_first_is_itself(tmp_path: Path) -> None:
    """A value that the agent has from a recorded answer is not renamed, and stands for no other one."""
    fixture = singly(
        tmp_path, ["Which order?", f"Refund {U}.", f"Log {W}."], [f"{U}, or {V}.", "Yes.", "Yes."]
    )
    rules: Any = ["uuid"]
    others = "7" + U[1:]
    assert spoken(fixture, "Which order?", f"Refund {U}.", f"Log {others}.", normalizers=rules)
    for refund, log in ((V, W), (others, W), (U, V), (U, U)):
        asked = "Which order?", f"Refund {refund}.", f"Log {log}."
        assert not spoken(fixture, *asked, normalizers=rules)


def fetching(url: str | None, order: str, second: str | None) -> None:
    """Have a function look up an order, and say what it returned, or another one."""

    @agentobs.record_tool
    def look_up(order: str) -> str:
        return f"found {order}"

    with Anthropic(api_key=KEY, base_url=url, max_retries=0) as client:
        agentobs.record(client)
        with agentobs.session("fetching"):
            found = look_up(order)
            refund = f"Refund {found if second is None else second}."
            client.messages.create(model=MODEL, max_tokens=9, messages=[said("user", refund)])


@pytest.mark.parametrize("tools", ["recorded", "live"])
def test_21_what_a_function_was_given_and_returned(tmp_path: Path, tools: Any) -> None:
    """Its recorded answer quotes the recorded value; where it runs, the value it was given goes on."""
    given = [whole(1, "Yes.")]
    fixture = frozen(tmp_path, recorded(tmp_path, lambda url: fetching(url, U, None), given))
    options = ReplayOptions(normalizers=["uuid"], tools=tools)
    for second in (None, f"found {V}"):
        with Replayer(fixture, options) as same:
            same.run(fetching, None, V, second)
    # What is equal in a call belongs together as well.
    for order, second in ((V, f"found {W}"), (U, f"found {V}")):
        with pytest.raises(DivergenceError), Replayer(fixture, options) as other:
            other.run(fetching, None, order, second)


A, B, C = (f"ghp_{part * 9}" for part in ("Zz9Q", "Yy8R", "Xx7S"))
"""Secrets, none of which is in a fixture."""


@pytest.mark.parametrize(
    ("then", "now", "is_same"),
    [
        ([f"Use {A}.", f"Then {A}."], [f"Use {B}.", f"Then {B}."], True),
        ([f"Use {A}.", f"Then {A}."], [f"Use {B}.", f"Then {C}."], False),
        ([f"Use {A}.", f"Then {B}."], [f"Use {B}.", f"Then {A}."], True),
        ([f"Use {A}.", f"Then {B}."], [f"Use {C}.", f"Then {C}."], False),
        ([f"From {A} to {B}."], [f"From {C} to {C}."], False),
    ],
)
def test_21_secrets_are_renamed_as_consistently(
    tmp_path: Path, then: list[str], now: list[str], is_same: bool
) -> None:
    """Two recorded secrets that are one now diverge, also in requests that do not repeat each other."""
    fixture = singly(tmp_path, then, ["Yes."] * len(then))
    assert spoken(fixture, *now) is is_same


def test_21_a_secret_that_an_answer_quotes(tmp_path: Path) -> None:
    """What stands for it in the recorded answer may be said again, or the live one; no other secret may."""
    prompts = [f"Keys {A} and {B}.", f"Use {A}."]
    fixture = singly(tmp_path, prompts, [f"I have {A} and {B}.", "Yes."])
    answered = json.loads(fixture.asks[0].answer.body)["content"][0]["text"]
    first, second = answered.removeprefix("I have ").removesuffix(".").split(" and ")
    for says, is_same in ((first, True), (C, True), (second, False), (B, False)):
        assert spoken(fixture, f"Keys {C} and {B}.", f"Use {says}.") is is_same, says


def test_21_a_secret_of_an_answer_is_itself(tmp_path: Path) -> None:
    """Of two that only an answer told, the one is not the other, nor another secret of the agent."""
    fixture = singly(tmp_path, ["Keys?", f"Use {A}."], [f"{A} and {B}", "Yes."])
    answered = json.loads(fixture.asks[0].answer.body)["content"][0]["text"]
    first, second = answered.split(" and ")
    assert spoken(fixture, "Keys?", f"Use {first}.")
    assert not spoken(fixture, "Keys?", f"Use {second}.")


RUN = {
    "time": ("2026-11-22T11:02:37.123456+00:00", "2027-01-02T03:04:05+00:00"),
    "timestamp": ("1763809357.25", "1799999999.5"),
    "tmp_path": ("/tmp/pytest-of-me/pytest-1/a0", "/tmp/pytest-of-you/pytest-22/a0"),
    "pid": ("pid 4711", "pid 12"),
    "port": ("127.0.0.1:40123", "127.0.0.1:9"),
    "address": ("0x7f3a5c0d10f0", "0x55d0c0ffee00"),
}
"""Values of two runs, by the rule that hides them."""


def about(**values: str) -> str:
    return "Here: " + "; ".join(values.get(rule, RUN[rule][0]) for rule in RUN) + "."


@pytest.fixture(scope="module")
def run_once(tmp_path_factory: pytest.TempPathFactory) -> Fixture:
    return talked(tmp_path_factory.mktemp("run"), about())


@pytest.mark.parametrize("rule", RUN)
def test_22_values_of_the_machine_and_the_moment(run_once: Fixture, rule: str) -> None:
    """Each diverges and the report proposes its rule; with that rule it matches, and the rule is listed."""
    now = about(**{rule: RUN[rule][1]})
    assert [each.rule for each in diverges(run_once, now).proposals] == [rule]
    assert replayed(run_once, now, normalizers=[rule]).normalized == {rule: 1}
    others = [name for name in BUILT_IN if name != rule and name != "timestamp"]
    assert diverges(run_once, now, normalizers=others).kind == "content"


def test_23_a_uuid_only_at_replay(run_once: Fixture) -> None:
    """A placeholder stands for a value, never for none."""
    now = about().replace("Here", f"Here {U}")
    assert diverges(run_once, now, normalizers=["uuid"]).kind == "content"


def test_a_rule_of_your_own_and_a_function(run_once: Fixture) -> None:
    """A pattern hides what it finds; a function is given the text of both sides."""
    own = Normalizer("ticket", r"T-\d+")
    fixture_of = about(pid="T-1")
    assert diverges(run_once, fixture_of, normalizers=[own]).kind == "content"

    def lower(text: str) -> str:
        return text.lower()

    replay = replayed(run_once, about().upper(), normalizers=[lower])
    assert replay.normalized == {"lower": 1}


def test_a_fixture_names_its_normalizers(tmp_path: Path) -> None:
    """Frozen with rules, it is replayed with them, whoever replays it."""
    given = [streamed(text("Yes."), number=1)]
    recording = recorded(tmp_path, lambda url: talk(f"I am {U}, T-1.", url=url), given)
    rules: list[Any] = ["uuid", Normalizer("ticket", r"T-\d+")]
    fixture = load(freeze(recording, tmp_path / "made", {}, normalizers=rules).fixture)
    assert fixture.header["normalizers"] == ["uuid", {"name": "ticket", "pattern": r"T-\d+"}]
    assert replayed(fixture, f"I am {V}, T-22.").normalized == {"uuid": 1, "ticket": 1}


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        ("uid", "unknown normalizer 'uid'. Name one of uuid, time"),
        (lambda text: text, "a fixture cannot hold a normalizer that is a function"),
    ],
)
def test_a_normalizer_that_is_none(tmp_path: Path, rule: Any, told: str) -> None:
    """One error says which there are; nothing is written."""
    recording = recorded(tmp_path, lambda url: talk("Hi", url=url), [streamed(text("Yes."))])
    with pytest.raises(UsageError, match=told):
        freeze(recording, tmp_path / "made", {}, normalizers=[rule])
    assert not (tmp_path / "made").exists()
    for pattern in ("(", "", "a*", "a" * 1001):
        with pytest.raises(UsageError, match="the normalizer 'x' cannot be used"):
            Normalizer("x", pattern)


def compacting(parts: int, turns: int, url: str | None = None) -> None:
    """Talk for some turns, then go on from a summary; again and again."""
    with Anthropic(api_key=KEY, base_url=url, max_retries=0) as client:
        agentobs.record(client)
        with agentobs.session("compacting"):
            summary = "Nothing yet."
            for part in range(parts):
                messages: list[Any] = [{"role": "user", "content": f"So far: {summary}"}]
                for turn in range(turns):
                    message = client.messages.create(
                        model=MODEL, max_tokens=9, system="You keep it short. " * 40,
                        stream=False, messages=[*messages, said("user", f"part {part}, turn {turn}")],
                    )  # fmt: skip
                    messages += [
                        said("user", f"part {part}, turn {turn}"),
                        said("assistant", message.content[0].text),  # type: ignore[union-attr]
                    ]
                summary = f"{part + 1} parts are done."


def said(role: str, words: str) -> Any:
    return {"role": role, "content": words}


def whole(number: int, words: str | None = None) -> Any:
    """Return an answer that is no stream."""
    message = {
        "id": f"msg_{number}", "type": "message", "role": "assistant", "model": MODEL,
        "content": [text(words or f"answer {number}.")], "stop_reason": "end_turn", "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }  # fmt: skip
    return Answer(
        200,
        {"content-type": "application/json"},
        (Chunk(json.dumps(message).encode(), 0),),
        "complete",
    )


def test_25_compaction(tmp_path: Path) -> None:
    """Eight conversations in one lane, each from a summary: they match, and the file holds everything once."""
    given = [whole(number) for number in range(1, 41)]
    fixture = frozen(tmp_path, recorded(tmp_path, lambda url: compacting(8, 5, url), given))
    with Replayer(fixture) as replay:
        replay.run(compacting, 8, 5)
    assert replay.progress.requests_matched == 40
    told = fixture.path.read_text()
    counts = Counter(
        told.count(f"part {part}, turn {turn}") for part in range(8) for turn in range(5)
    )
    assert counts == {1: 40}
    assert (
        told.count("You keep it short. You keep") == 20
    )  # once, in a system prompt that says it 40 times
    assert [told.count(f"answer {number}.") for number in (1, 20, 40)] == [2, 1, 1]


class Counting:
    """Counts the bytes that a replay parses, makes canonical, writes and cleans."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.bytes: Counter[str] = Counter()
        for module, name in (
            (replay.matching.lane, "value_of"),
            (replay.matching.lane, "canonical"),
            (replay.fixture.body_parts, "compact"),
            (replay.matching.lane, "asked_body"),
        ):
            patch.setattr(module, name, self.counted(name, getattr(module, name)))
        patch.setattr(Renaming, "clean", self.counted("clean", Renaming.clean))

    def counted(self, name: str, function: Any) -> Any:
        def counting(*given: Any) -> Any:
            told = function(*given)
            size = max((len(v) for v in (*given, told) if isinstance(v, bytes | str)), default=0)
            self.bytes[name] += size
            return told

        return counting


def looked_at(tmp_path: Path, turns: int, patch: pytest.MonkeyPatch) -> tuple[int, int]:
    """Return how many bytes of requests a replay looks at, and how many were new in them."""
    prompts = [f"prompt {number} " * 30 for number in range(turns)]
    fixture = talked(tmp_path / str(turns), *prompts)
    with pytest.MonkeyPatch.context() as inner, Replayer(fixture) as replay:
        counting = Counting(inner)
        assert len(replay.run(talk, *prompts)) == turns
    return sum(counting.bytes.values()), sum(map(len, prompts))


def test_46_what_is_looked_at_grows_with_what_is_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three times the turns have nine times the history, and cost three times the work: each message once."""
    few, new = looked_at(tmp_path, 10, monkeypatch)
    many, more = looked_at(tmp_path, 30, monkeypatch)
    assert few <= 3 * new
    assert many <= 3 * more


def test_the_threads_of_the_tool_runner(tmp_path: Path) -> None:
    """Requests that send only what is new, and name the message that they go on from, match; the steps show it."""

    def run(url: str | None) -> None:
        with Anthropic(api_key=KEY, base_url=url, max_retries=0) as client:
            agentobs.record(client)
            with agentobs.session("thread"):
                thread: dict[str, Any] = {}
                for prompt in ("one", "two"):
                    message = client.beta.messages.create(
                        model=MODEL, max_tokens=9, messages=[said("user", prompt)],
                        extra_body={"thread": thread} if thread else {},
                    )  # fmt: skip
                    thread = {"previous_message_id": message.id}

    fixture = frozen(tmp_path, recorded(tmp_path, run, [whole(1), whole(2)]))
    with Replayer(fixture) as replay:
        replay.run(run, None)
    asked = [line for line in replay.trajectory.splitlines() if "POST" in line]
    assert ["more in the thread" in line for line in asked] == [False, True]


REMINDER = "<system-reminder>The todo list is empty at {now}.</system-reminder>"


def reminded(now: str, question: str = "Count.", url: str | None = None) -> None:
    """A client of somebody else, that weaves into each request what changes from run to run."""
    with Anthropic(api_key=KEY, base_url=url, max_retries=0) as client:
        agentobs.record(client)
        with agentobs.session("reminded"):
            messages: list[Any] = []
            for prompt in (question, "Go on."):
                reminder = {"type": "text", "text": REMINDER.format(now=now)}
                content = [reminder, {"type": "text", "text": prompt}]
                messages.append({"role": "user", "content": content})
                message = client.messages.create(
                    model=MODEL, max_tokens=9, system=f"It is {now}.", messages=messages
                )
                messages.append(
                    {"role": "assistant", "content": [b.to_dict() for b in message.content]}
                )


def test_the_spine_matches_what_varies_and_tells_it(tmp_path: Path) -> None:
    """What a person said and the model answered must be the same; the rest is drift, which is never silent."""
    fixture = frozen(
        tmp_path, recorded(tmp_path, lambda url: reminded("noon", url=url), [whole(1), whole(2)])
    )
    spine = ReplayOptions(match="spine")
    with pytest.raises(DivergenceError), Replayer(fixture) as strict:
        strict.run(reminded, "midnight")
    with Replayer(fixture, spine) as drifting:
        drifting.run(reminded, "midnight")
    assert [(each.request, each.out_of_order) for each in drifting.drift] == [
        (1, False),
        (2, False),
    ]
    assert "$.system" in {difference.path for difference in drifting.drift[0].differences}
    with Replayer(fixture, spine) as same:
        same.run(reminded, "noon")
    assert same.drift == []
    with pytest.raises(DivergenceError), Replayer(fixture, spine) as other:
        other.run(reminded, "noon", "Count again.")
