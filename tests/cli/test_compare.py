"""`agentobs diff`: two sessions side by side, with and without content, recorded or frozen."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from agentobs.agent import Permissions
from agentobs.cli.inspection.diff import _Side
from agentobs.store.analysis.first_changes import first_changes
from replay.divergence.session_diff import Part, compared, new_in_request, stable_lane_names, totals
from replay.fixture.format import load
from replay.freeze.conversion import freeze
from tests.cli.test_commands import Shell
from tests.provider_script import call, streamed, text
from tests.replay.agents import last_session, recorded
from tests.replay.mailer import Mailer, mails, recorded_run
from tests.shared_stores import shared_store
from tests.store.recordings import a_home, attempt, end, record, session_id, start

FREE: dict[str, Any] = {"permissions": Permissions(mode="bypassPermissions", bypass_confirmed=True)}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, list[str]]]:
    """Three sessions of an agent, and their fixtures; the second one also calls `look` and mails a second person."""
    folder = tmp_path_factory.mktemp("compared")
    ids: list[str] = []
    given = [
        mails("ann"),
        [
            streamed(call(7, "look"), number=1),
            streamed(
                text("Mailing."), call(8, "send", to="ann"), call(9, "send", to="bob"), number=2
            ),
            streamed(text("Done."), number=3),
        ],
        mails("ann"),
    ]
    for number, answers in enumerate(given, 1):
        options = {"options": FREE} if number < 3 else {}
        recording, _, _ = recorded_run(folder, answers, **options)
        ids.append(recording.session_id)
        freeze(last_session(folder / "home"), folder / f"fixture-{number}", {"anthropic": "2.12.0"})
    with shared_store(folder / "home"):
        yield folder, ids


@pytest.fixture
def shell(home: tuple[Path, list[str]], capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(home[0] / "home", capsys)


def steps(shell: Shell, *arguments: str) -> list[tuple[str, str, str]]:
    """Return the change, the kind and the name of each step that differs."""
    result = json.loads(shell("diff", *arguments, "--json").out)
    found = []
    for pair in result["steps"]:
        part = pair.get("b") or pair.get("a")
        found.append((pair["change"], part["kind"], part["name"]))
    return found


@pytest.mark.slow
def test_added_steps_appear_at_their_position(shell: Shell, home: tuple[Path, list[str]]) -> None:
    """Steps are aligned by their content instead of their number, so added steps appear at their position."""
    a, b, _ = home[1]
    found = steps(shell, a, b)
    assert [(kind, name) for _, kind, name in found] == [
        ("request", "/v1/messages"),
        ("decision", "look"),
        ("tool_call", "look"),
        ("request", "/v1/messages"),
        ("decision", "send"),
        ("tool_call", "send"),
        ("decision", "send"),
        ("tool_call", "send"),
        ("request", "/v1/messages"),
    ]
    changes = [change for change, _, _ in found]
    assert changes[:4] == ["added", "added", "added", "changed"]
    assert sorted(changes[4:]) == ["added", "added", "same", "same", "same"]
    turned = [change for change, _, _ in steps(shell, b, a)]
    assert turned.count("removed") == 5


@pytest.mark.slow
def test_totals_of_both_sessions(shell: Shell, home: tuple[Path, list[str]]) -> None:
    """The output contains the exact cost, the tokens and the number of steps of both sessions."""
    result = json.loads(shell("diff", *home[1][:2], "--json").out)
    assert (result["a"]["requests"], result["b"]["requests"]) == (2, 3)
    assert (result["a"]["tool_calls"], result["b"]["tool_calls"]) == (1, 3)
    assert (result["a"]["input_tokens"], result["b"]["input_tokens"]) == (20, 30)
    ask = f"SELECT sum(cost_usd) AS cost FROM costs WHERE session_id = '{home[1][0]}'"
    [cost] = json.loads(shell("sql", ask, "--json").out).values()
    assert Decimal(result["a"]["cost_usd"]) == Decimal(cost)


@pytest.mark.slow
def test_the_difference_of_a_lower_bound_is_a_bound(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """If one of the two costs is a lower bound, the difference is a bound."""
    home = a_home(tmp_path)
    shell = Shell(home.path, capsys)
    record(home, [start(91, "sure"), attempt(91, 1), end(91)])
    record(home, [start(92, "less"), attempt(92, 1), attempt(92, 2, model="nobody"), end(92)])
    [line] = [
        each
        for each in shell("diff", session_id(91), session_id(92)).out.splitlines()
        if each.startswith("cost")
    ]
    assert "at least $" in line
    assert line.rstrip().endswith("the same or more")


@pytest.mark.slow
def test_a_session_is_identical_to_itself(shell: Shell, home: tuple[Path, list[str]]) -> None:
    """A session that is compared with itself has no differences, and one line of the output states this."""
    assert "all 4 steps are identical" in shell("diff", home[1][0], home[1][0]).out


@pytest.mark.slow
def test_different_decisions_are_changes(shell: Shell, home: tuple[Path, list[str]]) -> None:
    """If the same call was allowed by a different source, its decision is listed as changed."""
    a, _, c = home[1]
    result = shell("diff", a, c).out
    assert "outcome allow mode -> allow person" in result
    assert [each for each in steps(shell, a, c) if each[0] != "same"] == [
        ("changed", "decision", "send")
    ]


def test_the_command_for_forks_names_the_command_for_sessions(shell: Shell) -> None:
    """If two sessions are passed to `agentobs compare`, the error names `agentobs diff`."""
    for wrong in (("one", "two"), ("one",), ("one", "two", "--content")):
        found = shell("compare", *wrong)
        assert found.code == 2
        assert found.err.rstrip().endswith("To compare two sessions, run: agentobs diff A B")
    forks = shell("compare", "one", "--models", "model-a", "--at", "0")
    assert "agentobs diff" not in forks.err


@pytest.mark.slow
def test_content_is_compared_only_on_request(shell: Shell, home: tuple[Path, list[str]]) -> None:
    """Text and JSON output contain no content without `--content`; with it, they contain the content."""
    ids = home[1][:2]
    for form in ((), ("--json",)):
        result = shell("diff", *ids, "--all", *form).out
        assert "Mailing" not in result
        assert "bob" not in result
    shown = shell("diff", *ids, "--json", "--content").out
    assert "Mailing." in shown
    assert "bob" in shown


CHANGED: dict[str, tuple[str, dict[str, Any]]] = {
    "new messages": ("Mail her.", {}),
    "system prompt": ("Mail them.", {"options": {**FREE, "system": "Be quick."}}),
    "tools": ("Mail them.", {"tools": Mailer().tools[:1]}),
}
"""The prompt and the arguments of a mailer that differs from the first one in one part of its requests."""


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str, dict[str, str]]]:
    """The home of a mailer and of changed mailers, the first session, and the other sessions by the changed part."""
    folder = tmp_path_factory.mktemp("changed")
    ids: list[str] = []
    for prompt, arguments in (("Mail them.", {}), *CHANGED.values()):
        given = {"options": FREE, **arguments} if ids else arguments

        def run(url: str, given: dict[str, Any] = given, prompt: str = prompt) -> Any:
            return Mailer(url, **given).run(prompt)

        ids.append(recorded(folder, run, mails("ann")).session_id)
    with shared_store(folder / "home"):
        yield folder / "home", ids[0], dict(zip(CHANGED, ids[1:], strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "place"),
    [
        ("new messages", "$.asked.messages[0].content"),
        ("system prompt", "$.asked.system"),
        ("tools", "$.asked.tools"),
    ],
)
def test_differing_requests_need_content(
    changed: tuple[Path, str, dict[str, str]],
    capsys: pytest.CaptureFixture[str],
    part: str,
    place: str,
) -> None:
    """Prompt, system prompt, tools and options are compared. Without `--content`, they are compared by their digests,
    and a line states that `--content` shows the differences.
    """
    home, first, others = changed
    shell, ids = Shell(home, capsys), (first, others[part])
    result = shell("diff", *ids).out
    assert f"different {part}" in result
    assert "content was compared by its digests; pass --content" in result
    found = json.loads(shell("diff", *ids, "--content", "--json").out)
    requests = [
        step for step in found["steps"] if (step.get("a") or step["b"])["kind"] == "request"
    ]
    assert found["content"] is True
    assert [step["change"] for step in requests] == ["changed", "same"]
    assert requests[0]["differences"][0]["path"].startswith(place)


def test_a_different_tool_result_in_a_request_is_a_change() -> None:
    """A different tool result in the next request is a difference; different call IDs are not."""
    base: dict[str, Any] = {"system": "s", "messages": [{"role": "user", "content": "Look."}]}

    def then(number: int, content: str) -> dict[str, Any]:
        use = {"type": "tool_use", "id": f"toolu_{number}", "name": "look", "input": {"id": 1}}
        result = {"type": "tool_result", "tool_use_id": f"toolu_{number}", "content": content}
        marked = [{**base["messages"][0], "cache_control": {"type": "ephemeral"}}]
        more = [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
        return {**base, "messages": [*marked, *more]}

    assert new_in_request(base, then(1, "rain")) == new_in_request(base, then(2, "rain"))
    assert new_in_request(base, then(1, "rain")) != new_in_request(base, then(1, "Rain"))
    assert new_in_request({**base, "max_tokens": 1}, {**base, "max_tokens": 2}) == {"max_tokens": 2}
    assert list(new_in_request(base, then(1, "rain"))) == ["messages"]
    assert len(new_in_request(base, then(1, "rain"))["messages"]) == 2
    [message, reported] = new_in_request(base, then(1, "rain"))["messages"]
    answer = [{key: message["content"][0][key] for key in ("type", "name", "input")}]
    assert new_in_request(base, then(1, "rain"), answer)["messages"] == [reported]
    assert new_in_request(then(1, "rain"), base)["messages"] == base["messages"]
    assert new_in_request(base, {"messages": base["messages"]}) == {"system": None}


@pytest.mark.slow
def test_sessions_without_content_are_compared_by_facts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Sessions whose content was pruned are compared by their facts; `--content` gives one clear error."""
    ids = [recorded_run(tmp_path, mails(*to))[0].session_id for to in (("ann",), ("ann", "bob"))]
    shell = Shell(tmp_path / "home", capsys)
    assert (
        shell("prune", "--content-only", *(each for one in ids for each in ("--session", one))).code
        == 0
    )
    result = shell("diff", *ids)
    assert result.code == 0
    assert "+" in result.out
    assert "other content was not compared, because it is missing" in result.out
    refused = shell("diff", *ids, "--content")
    assert refused.code == 1
    assert refused.err.startswith("error: ")


def test_a_fixture_is_compared_with_its_session(shell: Shell, home: tuple[Path, list[str]]) -> None:
    """A session can be compared with a fixture, which has no decisions and is priced with current prices."""
    folder, (a, _, _) = home
    found = steps(shell, a, str(folder / "fixture-1"))
    assert [each for each in found if each[0] != "same"] == [("removed", "decision", "send")]
    both = json.loads(
        shell("diff", str(folder / "fixture-1"), str(folder / "fixture-2"), "--json").out
    )
    assert (both["a"]["requests"], both["b"]["requests"]) == (2, 3)
    assert (both["a"]["turns"], both["b"]["turns"]) == (2, 3)
    assert float(both["a"]["cost_usd"]) > 0


def test_a_failed_call_of_a_fixture_is_no_change_of_outcome(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A call whose result is an error failed on both sides, whatever its outcome and whether a side is a fixture."""
    path = Path(__file__).parents[2] / "fixtures" / "refund-loop"
    fixture = load(path)
    tools = [
        replace(each, answer=replace(each.answer, outcome="executed")) for each in fixture.tools
    ]
    monkeypatch.setattr(fixture, "tools", tools)
    monkeypatch.setattr("replay.fixture.format.load", lambda _: fixture)
    side = _Side(None, str(path), content=False, digests=None)
    assert side.failed_calls == {"toolu_demo03"}
    [failed] = [each for each in side.parts if each.id in side.failed_calls]
    assert failed.name == "issue_refund"
    assert (side.about["failed_calls"], side.about["denied_calls"]) == (1, 0)
    pairs = json.loads(compared(side.parts, side.parts).json(side.about, side.about))["steps"]
    recorded_calls = {"toolu_demo03"}
    ordered = range(1, len(pairs) + 1)
    assert first_changes(pairs, ordered, {}, [side.failed_calls, recorded_calls]) == []


def test_the_table(home: tuple[Path, list[str]], shell: Shell, snapshot: SnapshotAssertion) -> None:
    """The table lists the totals first, then the steps that differ, with outcome, tokens, cost and time."""
    folder = home[0]
    result = shell("diff", str(folder / "fixture-1"), str(folder / "fixture-2"), "--content").out
    lines = [line.rstrip().replace(str(folder), "FOLDER") for line in result.splitlines()]
    timeless = [_without_times(line) for line in lines if not line.startswith("duration")]
    assert "\n".join(timeless) == snapshot


def _without_times(line: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r",? ?\d+(\.\d+)? (ms|s)\b", "", line))


def test_lanes_are_named_by_the_tool_that_started_them() -> None:
    """Lanes are matched by the tool that started them and their order, because call IDs differ between runs."""
    lanes = ["main", "main/toolu_a", "main/toolu_b", "main/toolu_a/toolu_c", "main/hook:x"]
    calls = {"toolu_a": "agent", "toolu_b": "agent", "toolu_c": "search"}
    assert list(stable_lane_names(lanes, calls).values()) == [
        "main", "main/agent#1", "main/agent#2", "main/hook#1", "main/agent#1/search#1",
    ]  # fmt: skip


def steps_of_turns(turns: str, model: str = "small") -> list[Part]:
    """Return the steps of turns. Each character is the tool that a turn calls; a call of `R` fails, and `.` ends."""
    found = []
    for number, character in enumerate(turns, start=1):
        calls = None if character == "." else character.lower()
        found.append(Part("request", "main", number, "/v1/messages", model=model, calls=calls))
        if calls:
            outcome = "failed" if character.isupper() else "executed"
            found.append(Part("tool_call", "main", number, calls, outcome=outcome))
    return found


@pytest.mark.parametrize(
    ("a", "b", "turns"),
    [
        ("fraf.fraFR.", "fRaf.fRaFr.fRafs.", [(at, at) for at in range(1, 12)]),
        ("fraf.fr.", "fr.fraf.fr.", [(1, 1), (2, 2)] + [(at, at + 3) for at in range(3, 9)]),
        ("frap.", "sfrap.", [(at, at + 1) for at in range(1, 6)]),
        ("frap.", "frap.", [(at, at) for at in range(1, 6)]),
        ("fra.", "sss.", [(1, 1), (2, 2), (3, 3), (4, 4)]),
    ],
)
def test_turns_are_aligned_before_their_steps(a: str, b: str, turns: list[tuple[int, int]]) -> None:
    """A turn whose call failed in one session only remains aligned with the turn at its place, instead of with a turn
    far away that failed as well. An additional turn shifts no other turn.
    """
    found = compared(steps_of_turns(a), steps_of_turns(b)).pairs
    paired = [(pair.a.turn, pair.b.turn) for pair in found if pair.a and pair.b]
    assert paired == sorted(paired)
    assert [each for each in dict.fromkeys(paired) if each in turns] == turns
    if a == b:
        assert all(pair.change == "same" for pair in found)


@pytest.mark.parametrize(
    ("a", "b", "changes"),
    [
        (["ok"], ["529", "ok"], ["added", "same"]),
        (["529", "ok"], ["529", "529", "ok"], ["same", "added", "same"]),
        (["529"], ["529", "529"], ["added", "same"]),
        (["529"], ["529", "ok"], ["added", "changed"]),
    ],
)
def test_a_retried_attempt_is_paired_with_no_last_attempt(
    a: list[str], b: list[str], changes: list[str]
) -> None:
    """Only the last attempts of a request are compared; earlier ones are paired with each other, or with none."""
    sides = ([Part("request", "main", 1, "m", outcome=each) for each in side] for side in (a, b))
    found = compared(*sides)
    retried = [each.b.retried for each in found.pairs if each.b]
    assert [each.change for each in found.pairs] == changes
    assert retried[-1] is None
    assert set(retried[:-1]) == {"failed" if b[-1] == "529" else "succeeded"}


def test_another_model_is_stated_once() -> None:
    """The comparison states which model replaced which one, in how many requests, and where first."""
    found = compared(steps_of_turns("fr."), steps_of_turns("fr.f.", "large"))
    assert found.model_changes == [("small", "large", 3, 1)]
    assert json.loads(found.json({}, {}))["model_changes"] == [
        {"a": "small", "b": "large", "requests": 3, "step": 1}
    ]
    assert compared(steps_of_turns("fr."), steps_of_turns("fr.")).model_changes == []


@pytest.mark.slow
def test_a_thousand_turns_are_aligned_quickly() -> None:
    """The effort to align sessions does not grow with the square of the number of steps, even if all steps differ."""

    def part(number: int, seed: int) -> Part:
        return Part(
            "tool_call", "main", number, f"tool_{number % 7}", input_bytes=number * seed % 97
        )

    a = [part(number, 3) for number in range(4_000)]
    b = [part(number, 5) for number in range(4_000) if number % 10]
    began = time.process_time()
    found = compared(a, b)
    assert time.process_time() - began < 20
    assert sum(pair.b is not None for pair in found.pairs) == len(b)
    assert [pair.a for pair in found.pairs if pair.a] == a


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        (("exact", "exact"), "exact"),
        (("exact", "lower_bound"), "lower_bound"),
        (("lower_bound", "estimated"), "estimated"),
        (("exact", None), "lower_bound"),
    ],
)
def test_a_sum_is_as_certain_as_its_parts(states: tuple[str | None, ...], expected: str) -> None:
    """A sum that includes an inexact cost is inexact."""
    parts = [
        Part("request", "main", 1, "m", input_tokens=1, cost_usd=Decimal(1), cost_status=state)
        for state in states
    ]
    assert totals([*parts, Part("tool_call", "main", 1, "look")]).cost_status == expected
