"""Values that differ in each run, compaction, and the amount of data that a replay reads."""

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


def converse(*prompts: str, url: str | None = None, system: str = "Be brief.") -> list[str]:
    """Send prompts one after the other, each with the complete history."""
    messages: list[Any] = []
    texts: list[str] = []
    with Anthropic(api_key=KEY, base_url=url, max_retries=0) as client:
        agentobs.record(client)
        with agentobs.session("talk"):
            for prompt in prompts:
                messages.append({"role": "user", "content": prompt})
                ask: dict[str, Any] = {"model": MODEL, "max_tokens": 9, "system": system}
                with client.messages.stream(messages=messages, **ask) as stream:
                    texts.append(stream.get_final_text())
                messages.append({"role": "assistant", "content": texts[-1]})
    return texts


def recorded_conversation(path: Path, *prompts: str) -> Fixture:
    responses = [streamed(text(f"It is {n}."), number=n) for n in range(1, len(prompts) + 1)]
    return frozen(path, recorded(path, lambda url: converse(*prompts, url=url), responses), "talk")


def replayed(fixture: Fixture, *prompts: str, **options: Any) -> Replayer:
    with Replayer(fixture, ReplayOptions(**options)) as replay:
        replay.run(converse, *prompts)
    return replay


def divergence_of(fixture: Fixture, *prompts: str, **options: Any) -> Divergence:
    with pytest.raises(DivergenceError) as raised:
        replayed(fixture, *prompts, **options)
    return raised.value.divergence


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory) -> Fixture:
    """A session whose prompts contain one UUID twice."""
    return recorded_conversation(tmp_path_factory.mktemp("twice"), f"I am {U}.", f"Still {U}.")


def test_a_uuid_in_a_prompt(twice: Fixture) -> None:
    """With the rule `uuid`, a different UUID matches at all places of the recorded UUID."""
    found = divergence_of(twice, f"I am {V}.", f"Still {V}.")
    assert [each.rule for each in found.proposals] == ["uuid"]
    replay = replayed(twice, f"I am {V}.", f"Still {V}.", normalizers=["uuid"])
    assert replay.normalized.keys() == {"uuid"}
    assert replayed(twice, f"I am {U}.", f"Still {U}.", normalizers=["uuid"]).normalized == {}


def test_two_uuids_in_place_of_one_diverge(twice: Fixture) -> None:
    """Two different UUIDs at the places of a single recorded UUID diverge."""
    found = divergence_of(twice, f"I am {V}.", f"Still {W}.", normalizers=["uuid"])
    assert (found.number, found.differences[0].path) == (2, "$.messages[2].content")
    assert found.normalized == ("uuid (1)",)


def test_one_uuid_in_place_of_two_diverges(tmp_path: Path) -> None:
    """A single UUID at the places of two different recorded UUIDs diverges."""
    fixture = recorded_conversation(tmp_path, f"I am {U}.", f"Now {W}.")
    replayed(fixture, f"I am {W}.", f"Now {V}.", normalizers=["uuid"])
    assert divergence_of(fixture, f"I am {V}.", f"Now {V}.", normalizers=["uuid"]).number == 2


def single_prompts_match(fixture: Fixture, *prompts: str, **options: Any) -> bool:
    """Return whether prompts, each in its own conversation, match the recording."""
    try:
        with Replayer(fixture, ReplayOptions(**options)) as replay:
            replay.run(send_single_prompts, *prompts)
    except DivergenceError:
        return False
    return True


def send_single_prompts(*prompts: str, url: str | None = None) -> None:
    with Anthropic(api_key=KEY, base_url=url, max_retries=0) as client:
        agentobs.record(client)
        with agentobs.session("single"):
            for prompt in prompts:
                client.messages.create(
                    model=MODEL, max_tokens=9, messages=[message_of("user", prompt)]
                )


def recorded_single_prompts(path: Path, prompts: list[str], answers: list[str]) -> Fixture:
    responses = [unstreamed(number, words) for number, words in enumerate(answers, 1)]
    return frozen(
        path,
        recorded(path, lambda url: send_single_prompts(*prompts, url=url), responses),
        "single",
    )


@pytest.mark.slow
@pytest.mark.parametrize("send", [converse, send_single_prompts])
@pytest.mark.parametrize(
    ("recorded_prompts", "prompts"),
    [
        ([f"Order {U}.", f"Refund {U}."], [f"Order {U}.", f"Refund {V}."]),
        ([f"Order {U}.", f"Refund {U}."], [f"Order {V}.", f"Refund {U}."]),
        ([f"From {U} to {V}."], [f"From {U} to {U}."]),
        ([f"From {U} to {U}."], [f"From {U} to {V}."]),
        ([f"From {U}.", f"To {V}."], [f"From {V}.", f"To {V}."]),
    ],
)
def test_an_unchanged_value_is_matched_only_with_itself(
    tmp_path: Path, send: Any, recorded_prompts: list[str], prompts: list[str]
) -> None:
    """A value that is equal in the recording and in the replay cannot represent a different value elsewhere."""
    responses = [unstreamed(number, "Done.") for number in range(1, len(recorded_prompts) + 1)]
    fixture = frozen(
        tmp_path,
        recorded(tmp_path, lambda url: _send_prompts(send, recorded_prompts, url), responses),
    )
    rules = ReplayOptions(normalizers=["uuid"])
    with Replayer(fixture, rules) as same:
        same.run(_send_prompts, send, recorded_prompts, None)
    assert same.normalized == {}
    with pytest.raises(DivergenceError) as raised, Replayer(fixture, rules) as other:
        other.run(_send_prompts, send, prompts, None)
    assert raised.value.divergence.number == len(recorded_prompts)
    assert raised.value.divergence.differences


def _send_prompts(send: Any, prompts: list[str], url: str | None) -> None:
    """Send prompts in one conversation or in several, without streaming."""
    if send is send_single_prompts:
        send_single_prompts(*prompts, url=url)
        return
    messages: list[Any] = []
    with Anthropic(api_key=KEY, base_url=url, max_retries=0) as client:
        agentobs.record(client)
        with agentobs.session("said"):
            for prompt in prompts:
                messages.append(message_of("user", prompt))
                response = client.messages.create(model=MODEL, max_tokens=9, messages=messages)
                messages.append(message_of("assistant", response.content[0].text))  # type: ignore[union-attr]


@pytest.mark.slow
def test_swapped_values_match(tmp_path: Path) -> None:
    """Two values that swapped places match if they are swapped everywhere."""
    fixture = recorded_single_prompts(
        tmp_path, [f"From {U} to {V}.", f"Back to {U}."], ["Yes.", "Yes."]
    )
    rules: Any = ["uuid"]
    assert single_prompts_match(fixture, f"From {V} to {U}.", f"Back to {V}.", normalizers=rules)
    assert single_prompts_match(fixture, f"From {V} to {W}.", f"Back to {V}.", normalizers=rules)
    assert not single_prompts_match(
        fixture, f"From {V} to {U}.", f"Back to {U}.", normalizers=rules
    )


@pytest.mark.slow
def test_a_value_that_a_response_quotes(tmp_path: Path) -> None:
    """If a response quotes a renamed value, the agent may use the recorded or the current value, but no third value."""
    prompts = [f"Order {U}.", f"Refund {U}."]
    fixture = recorded_single_prompts(tmp_path, prompts, [f"Ordered {U}.", "Refunded."])
    rules: Any = ["uuid", "pid"]
    for second, is_same in ((U, True), (V, True), (W, False)):
        found = single_prompts_match(fixture, f"Order {V}.", f"Refund {second}.", normalizers=rules)
        assert found is is_same, second
    talked_of = [unstreamed(1, f"Ordered {U}."), unstreamed(2, "Refunded.")]
    folder = tmp_path / "talked"
    conversation = frozen(
        folder, recorded(folder, lambda url: _send_prompts(converse, prompts, url), talked_of)
    )
    with Replayer(conversation, ReplayOptions(normalizers=rules)) as replay:
        replay.run(_send_prompts, converse, [f"Order {V}.", f"Refund {V}."], None)
    with Replayer(conversation, ReplayOptions(normalizers=rules)) as replay:
        replay.run(_send_prompts, converse, [f"Order {V}.", f"Refund {U}."], None)


@pytest.mark.slow
def test_a_value_from_a_response_is_not_renamed(tmp_path: Path) -> None:
    """A value that first occurs in a response is not renamed, and does not represent any other value."""
    fixture = recorded_single_prompts(
        tmp_path, ["Which order?", f"Refund {U}.", f"Log {W}."], [f"{U}, or {V}.", "Yes.", "Yes."]
    )
    rules: Any = ["uuid"]
    others = "7" + U[1:]
    assert single_prompts_match(
        fixture, "Which order?", f"Refund {U}.", f"Log {others}.", normalizers=rules
    )
    for refund, log in ((V, W), (others, W), (U, V), (U, U)):
        prompts = "Which order?", f"Refund {refund}.", f"Log {log}."
        assert not single_prompts_match(fixture, *prompts, normalizers=rules)


def fetching(url: str | None, order: str, second: str | None) -> None:
    """Let a function look up an order, and send its result, or `second` instead."""

    @agentobs.record_tool
    def look_up(order: str) -> str:
        return f"found {order}"

    with Anthropic(api_key=KEY, base_url=url, max_retries=0) as client:
        agentobs.record(client)
        with agentobs.session("fetching"):
            found = look_up(order)
            refund = f"Refund {found if second is None else second}."
            client.messages.create(model=MODEL, max_tokens=9, messages=[message_of("user", refund)])


@pytest.mark.slow
@pytest.mark.parametrize("tools", ["recorded", "live"])
def test_a_value_in_arguments_and_result_of_a_function(tmp_path: Path, tools: Any) -> None:
    """A renamed argument of a function also matches in its result, whether the result is recorded or live."""
    responses = [unstreamed(1, "Yes.")]
    fixture = frozen(tmp_path, recorded(tmp_path, lambda url: fetching(url, U, None), responses))
    options = ReplayOptions(normalizers=["uuid"], tools=tools)
    for second in (None, f"found {V}"):
        with Replayer(fixture, options) as same:
            same.run(fetching, None, V, second)
    # A value that is unchanged in a call is matched only with itself.
    for order, second in ((V, f"found {W}"), (U, f"found {V}")):
        with pytest.raises(DivergenceError), Replayer(fixture, options) as other:
            other.run(fetching, None, order, second)


A, B, C = (f"ghp_{part * 9}" for part in ("Zz9Q", "Yy8R", "Xx7S"))
"""Secrets that no fixture contains."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recorded_prompts", "prompts", "is_same"),
    [
        ([f"Use {A}.", f"Then {A}."], [f"Use {B}.", f"Then {B}."], True),
        ([f"Use {A}.", f"Then {A}."], [f"Use {B}.", f"Then {C}."], False),
        ([f"Use {A}.", f"Then {B}."], [f"Use {B}.", f"Then {A}."], True),
        ([f"Use {A}.", f"Then {B}."], [f"Use {C}.", f"Then {C}."], False),
        ([f"From {A} to {B}."], [f"From {C} to {C}."], False),
    ],
)
def test_secrets_are_renamed_consistently(
    tmp_path: Path, recorded_prompts: list[str], prompts: list[str], is_same: bool
) -> None:
    """Equal recorded secrets must stay equal and different secrets different, even in requests without a shared
    history.
    """
    fixture = recorded_single_prompts(tmp_path, recorded_prompts, ["Yes."] * len(recorded_prompts))
    assert single_prompts_match(fixture, *prompts) is is_same


def test_a_secret_that_a_response_quotes(tmp_path: Path) -> None:
    """If a response quotes a secret, the agent may send its recorded placeholder or its current value, but no other
    secret.
    """
    prompts = [f"Keys {A} and {B}.", f"Use {A}."]
    fixture = recorded_single_prompts(tmp_path, prompts, [f"I have {A} and {B}.", "Yes."])
    answered = json.loads(fixture.requests[0].answer.body)["content"][0]["text"]
    first, second = answered.removeprefix("I have ").removesuffix(".").split(" and ")
    for says, is_same in ((first, True), (C, True), (second, False), (B, False)):
        assert single_prompts_match(fixture, f"Keys {C} and {B}.", f"Use {says}.") is is_same, says


def test_a_secret_from_a_response_is_matched_only_with_itself(tmp_path: Path) -> None:
    """A secret that occurs only in responses does not match any other secret."""
    fixture = recorded_single_prompts(tmp_path, ["Keys?", f"Use {A}."], [f"{A} and {B}", "Yes."])
    answered = json.loads(fixture.requests[0].answer.body)["content"][0]["text"]
    first, second = answered.split(" and ")
    assert single_prompts_match(fixture, "Keys?", f"Use {first}.")
    assert not single_prompts_match(fixture, "Keys?", f"Use {second}.")


RUN = {
    "time": ("2026-11-22T11:02:37.123456+00:00", "2027-01-02T03:04:05+00:00"),
    "timestamp": ("1763809357.25", "1799999999.5"),
    "tmp_path": ("/tmp/pytest-of-me/pytest-1/a0", "/tmp/pytest-of-you/pytest-22/a0"),
    "pid": ("pid 4711", "pid 12"),
    "port": ("127.0.0.1:40123", "127.0.0.1:9"),
    "address": ("0x7f3a5c0d10f0", "0x55d0c0ffee00"),
}
"""Values of two runs, by the rule that hides their difference."""


def about(**values: str) -> str:
    return "Here: " + "; ".join(values.get(rule, RUN[rule][0]) for rule in RUN) + "."


@pytest.fixture(scope="module")
def run_once(tmp_path_factory: pytest.TempPathFactory) -> Fixture:
    return recorded_conversation(tmp_path_factory.mktemp("run"), about())


@pytest.mark.slow
@pytest.mark.parametrize("rule", RUN)
def test_values_of_the_machine_and_the_time(run_once: Fixture, rule: str) -> None:
    """A time, path, process ID, port or address that differs diverges with a proposed rule, and matches with this
    rule.
    """
    now = about(**{rule: RUN[rule][1]})
    assert [each.rule for each in divergence_of(run_once, now).proposals] == [rule]
    assert replayed(run_once, now, normalizers=[rule]).normalized == {rule: 1}
    others = [name for name in BUILT_IN if name != rule and name != "timestamp"]
    assert divergence_of(run_once, now, normalizers=others).kind == "content"


def test_an_additional_uuid_diverges(run_once: Fixture) -> None:
    """A UUID at a place where the recording contains no value diverges even with the rule."""
    now = about().replace("Here", f"Here {U}")
    assert divergence_of(run_once, now, normalizers=["uuid"]).kind == "content"


def test_custom_rules_and_functions(run_once: Fixture) -> None:
    """A custom normalizer can be a pattern, or a function that is applied to both texts."""
    custom_rule = Normalizer("ticket", r"T-\d+")
    fixture_of = about(pid="T-1")
    assert divergence_of(run_once, fixture_of, normalizers=[custom_rule]).kind == "content"

    def lower(text: str) -> str:
        return text.lower()

    replay = replayed(run_once, about().upper(), normalizers=[lower])
    assert replay.normalized == {"lower": 1}


def test_a_fixture_names_its_normalizers(tmp_path: Path) -> None:
    """A fixture that was frozen with normalizers is always replayed with them."""
    responses = [streamed(text("Yes."), number=1)]
    recording = recorded(tmp_path, lambda url: converse(f"I am {U}, T-1.", url=url), responses)
    rules: list[Any] = ["uuid", Normalizer("ticket", r"T-\d+")]
    fixture = load(freeze(recording, tmp_path / "made", {}, normalizers=rules).fixture)
    assert fixture.header["normalizers"] == ["uuid", {"name": "ticket", "pattern": r"T-\d+"}]
    assert replayed(fixture, f"I am {V}, T-22.").normalized == {"uuid": 1, "ticket": 1}


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("uid", "unknown normalizer 'uid'. Use one of uuid, time"),
        (lambda text: text, "a normalizer that is a function cannot be stored in a fixture"),
    ],
)
def test_an_unknown_normalizer_is_rejected(tmp_path: Path, rule: Any, expected: str) -> None:
    """An unknown or invalid normalizer is rejected with an error, and nothing is written."""
    recording = recorded(tmp_path, lambda url: converse("Hi", url=url), [streamed(text("Yes."))])
    with pytest.raises(UsageError, match=expected):
        freeze(recording, tmp_path / "made", {}, normalizers=[rule])
    assert not (tmp_path / "made").exists()
    for pattern in ("(", "", "a*", "a" * 1001):
        with pytest.raises(UsageError, match="the normalizer 'x' is invalid"):
            Normalizer("x", pattern)


def compacting(parts: int, turns: int, url: str | None = None) -> None:
    """Run several turns, continue from a summary, and repeat this."""
    with Anthropic(api_key=KEY, base_url=url, max_retries=0) as client:
        agentobs.record(client)
        with agentobs.session("compacting"):
            summary = "Nothing yet."
            for part in range(parts):
                messages: list[Any] = [{"role": "user", "content": f"So far: {summary}"}]
                for turn in range(turns):
                    message = client.messages.create(
                        model=MODEL, max_tokens=9, system="You keep it short. " * 40,
                        stream=False, messages=[*messages, message_of("user", f"part {part}, turn {turn}")],
                    )  # fmt: skip
                    messages += [
                        message_of("user", f"part {part}, turn {turn}"),
                        message_of("assistant", message.content[0].text),  # type: ignore[union-attr]
                    ]
                summary = f"{part + 1} parts are done."


def message_of(role: str, words: str) -> Any:
    return {"role": role, "content": words}


def unstreamed(number: int, words: str | None = None) -> Any:
    """Return a response without streaming."""
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


@pytest.mark.slow
def test_compaction(tmp_path: Path) -> None:
    """Requests of eight conversations that each continue from a summary match, and the fixture stores everything
    once.
    """
    responses = [unstreamed(number) for number in range(1, 41)]
    fixture = frozen(tmp_path, recorded(tmp_path, lambda url: compacting(8, 5, url), responses))
    with Replayer(fixture) as replay:
        replay.run(compacting, 8, 5)
    assert replay.progress.requests_matched == 40
    text = fixture.path.read_text()
    counts = Counter(
        text.count(f"part {part}, turn {turn}") for part in range(8) for turn in range(5)
    )
    assert counts == {1: 40}
    assert (
        text.count("You keep it short. You keep") == 20
    )  # stored once, in a system prompt that repeats it 40 times
    assert [text.count(f"answer {number}.") for number in (1, 20, 40)] == [2, 1, 1]


class ByteCounter:
    """A counter of the bytes that a replay parses, canonicalizes, serializes and redacts."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.bytes: Counter[str] = Counter()
        for module, name in (
            (replay.matching.lane, "value_of"),
            (replay.matching.lane, "canonical"),
            (replay.fixture.body_parts, "compact"),
            (replay.matching.lane, "cleaned_body"),
        ):
            patch.setattr(module, name, self.counted(name, getattr(module, name)))
        patch.setattr(Renaming, "clean", self.counted("clean", Renaming.clean))

    def counted(self, name: str, function: Any) -> Any:
        def counting(*arguments: Any) -> Any:
            result = function(*arguments)
            size = max(
                (len(v) for v in (*arguments, result) if isinstance(v, bytes | str)), default=0
            )
            self.bytes[name] += size
            return result

        return counting


def processed_bytes(tmp_path: Path, turns: int, patch: pytest.MonkeyPatch) -> tuple[int, int]:
    """Return the number of request bytes that a replay processes, and the number of new bytes in them."""
    prompts = [f"prompt {number} " * 30 for number in range(turns)]
    fixture = recorded_conversation(tmp_path / str(turns), *prompts)
    with pytest.MonkeyPatch.context() as inner, Replayer(fixture) as replay:
        counting = ByteCounter(inner)
        assert len(replay.run(converse, *prompts)) == turns
    return sum(counting.bytes.values()), sum(map(len, prompts))


@pytest.mark.slow
def test_the_work_grows_with_the_new_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With three times the turns, a replay processes three times the bytes, although the history is nine times as
    long.
    """
    few, new = processed_bytes(tmp_path, 10, monkeypatch)
    many, more = processed_bytes(tmp_path, 30, monkeypatch)
    assert few <= 3 * new
    assert many <= 3 * more


def test_message_threads_of_the_tool_runner(tmp_path: Path) -> None:
    """Requests that contain only new messages and the ID of the previous message match, and steps show the ID."""

    def run(url: str | None) -> None:
        with Anthropic(api_key=KEY, base_url=url, max_retries=0) as client:
            agentobs.record(client)
            with agentobs.session("thread"):
                thread: dict[str, Any] = {}
                for prompt in ("one", "two"):
                    message = client.beta.messages.create(
                        model=MODEL, max_tokens=9, messages=[message_of("user", prompt)],
                        extra_body={"thread": thread} if thread else {},
                    )  # fmt: skip
                    thread = {"previous_message_id": message.id}

    fixture = frozen(tmp_path, recorded(tmp_path, run, [unstreamed(1), unstreamed(2)]))
    with Replayer(fixture) as replay:
        replay.run(run, None)
    lines = [line for line in replay.trajectory.splitlines() if "POST" in line]
    assert ["more in the thread" in line for line in lines] == [False, True]


REMINDER = "<system-reminder>The todo list is empty at {now}.</system-reminder>"


def send_with_reminders(now: str, question: str = "Count.", url: str | None = None) -> None:
    """Send a request with reminders that differ in each run, as a third-party client does."""
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


@pytest.mark.slow
def test_the_spine_matches_and_drift_is_reported(tmp_path: Path) -> None:
    """With `match="spine"`, only the user's prompts and the responses must match; other differences are reported as
    drift.
    """
    fixture = frozen(
        tmp_path,
        recorded(
            tmp_path,
            lambda url: send_with_reminders("noon", url=url),
            [unstreamed(1), unstreamed(2)],
        ),
    )
    spine = ReplayOptions(match="spine")
    with pytest.raises(DivergenceError), Replayer(fixture) as strict:
        strict.run(send_with_reminders, "midnight")
    with Replayer(fixture, spine) as drifting:
        drifting.run(send_with_reminders, "midnight")
    assert [(each.request, each.out_of_order) for each in drifting.drift] == [
        (1, False),
        (2, False),
    ]
    assert "$.system" in {difference.path for difference in drifting.drift[0].differences}
    with Replayer(fixture, spine) as same:
        same.run(send_with_reminders, "noon")
    assert same.drift == []
    with pytest.raises(DivergenceError), Replayer(fixture, spine) as other:
        other.run(send_with_reminders, "noon", "Count again.")
