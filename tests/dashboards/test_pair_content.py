"""The comparison of the content of two sessions: IDs that are new in each run, and sessions of different homes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from agentobs.cli import cli
from agentobs.cli.inspection.diff import comparison_of
from agentobs.provider.run_ids import PairedIds, shape_of
from agentobs.recording.journal.home import Home
from agentobs.store.backend import open_store
from agentobs.store.port import Store
from replay.divergence.session_diff import Part, compared
from tests.browser.store_builders import recording
from tests.browser.synthetic_sessions import SyntheticSession, text
from tests.dashboards.live_app import serving
from tests.store.recordings import SECOND, T0, a_home

UUID = "0f1e2d3c-1111-4111-8111-{:012}"
PARTS = ("system prompt", "tool definitions")


def test_ids_that_are_new_in_each_run_are_replaced_by_their_number() -> None:
    """IDs of calls, responses, requests and sessions are replaced; other values are data, even if they look random."""
    session, order = UUID.format(1), UUID.format(2)
    value = {
        "report": '<agent_report id="toolu_01Ab">\ntoolu_02Cd</agent_report> toolu_01Ab',
        "session_id": session,
        "metadata": f"user_1_account__session_{session}",
        "note": f"agentId: adb0382, order {order}, commit adb0383, msg_{'01Bt' * 6}, msg_of_the_day",
        "own": "839b35f7",
    }
    shape = shape_of(json.dumps(value), ["839b35f7"])
    assert json.loads(shape.text) == {
        "report": '<agent_report id="<id:1>">\n<id:2></agent_report> <id:1>',
        "session_id": "<id:3>",
        "metadata": "user_1_account__session_<id:3>",
        "note": f"agentId: <id:4>, order {order}, commit adb0383, <id:5>, msg_of_the_day",
        "own": "<id:6>",
    }
    assert shape.ids[:3] == ("toolu_01Ab", "toolu_02Cd", session)


def test_each_id_corresponds_to_exactly_one_other_id() -> None:
    """IDs that are swapped or confused do not match; IDs of aligned calls are known from the start."""
    paired = PairedIds([("toolu_a1", "toolu_b1"), ("toolu_a1", "toolu_b9")])
    assert paired.match(("toolu_a1", "toolu_a2"), ("toolu_b1", "toolu_b2"))
    assert paired.match(("toolu_a2",), ("toolu_b2",))
    for old, new in ((("toolu_a1",), ("toolu_b2",)), (("toolu_a3",), ("toolu_b2",)), ((), ("x",))):
        assert not paired.match(old, new)


def delegated(home: Home, seed: int, reports: tuple[int, int] = (0, 1), prefix: str = "") -> str:
    """Record a session whose main agent calls two tools; their results name the IDs of the calls."""
    with recording(home) as emit:
        run = SyntheticSession(emit, "delegating", T0 + seed * 60 * SECOND, seed=seed)
        with run.interaction("Check the release."):
            calls: list[dict[str, Any]] = [
                {"type": "tool_use", "id": f"{run.call_id()}{prefix}", "name": "find_order", "input": {"order": name}}
                for name in ("docs", "tests")
            ]  # fmt: skip
            run.turn(*calls)
            run.results(
                *(
                    run.run_call(call, f"<agent_report id=\"{calls[named]['id']}\">done</agent_report>")
                    for call, named in zip(calls, reports, strict=True)
                )
            )  # fmt: skip
            run.turn(text(f"Both are done, see {calls[0]['id']}."))
        return run.end()


def changes(store: Store, a: str, b: str) -> list[tuple[str, list[str]]]:
    """Return the name and the differences of each changed step."""
    steps = comparison_of(store, a, b)["steps"]
    return [(step["a"]["name"], step["differs"]) for step in steps if step["change"] != "same"]


@pytest.mark.slow
def test_only_confused_ids_are_a_difference(tmp_path: Path) -> None:
    """Two runs that differ only in IDs are identical, also with IDs of another length; swapped IDs are a difference."""
    home = a_home(tmp_path)
    first, second = delegated(home, 1), delegated(home, 2, prefix="abc")
    swapped = delegated(home, 3, (1, 0))
    with open_store(home) as store:
        assert changes(store, first, second) == []
        assert changes(store, first, swapped) == [("find_order", ["result"])] * 2
    runner = CliRunner()
    found = runner.invoke(cli, ["--home", str(home.path), "diff", first, second, "--content"])
    assert "steps are identical" in found.stdout
    result = runner.invoke(
        cli, ["--home", str(home.path), "diff", first, swapped, "--content", "--json"]
    )
    steps = json.loads(result.stdout)["steps"]
    assert [step["differs"] for step in steps if step["change"] != "same"] == [["texts"]] * 2
    with serving(home) as client:
        assert "steps are identical" in client.get(f"/compare?a={first}&b={second}").words
        page = client.get(f"/compare?a={first}&b={swapped}")
        fields = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', page.html))
        shown = client.press("/compare/texts", **fields)
    assert "Result: only IDs differ" in shown.words
    assert "toolu_010000000002" in shown.html


def test_the_shown_difference_has_the_original_text() -> None:
    """If a text differs in more than IDs, the difference has the texts as they are, and values with only IDs are left
    out.
    """

    def part(number: int, word: str) -> Part:
        return Part("tool_call", "main", 1, "look", texts={
            "input": {"id": f"toolu_{number}"}, "result": f"{word} toolu_{number}",
        })  # fmt: skip

    [pair] = compared([part(1, "rain")], [part(2, "snow")]).pairs
    assert [(each.expected, each.actual) for each in pair.differences] == [
        ("rain toolu_1", "snow toolu_2")
    ]
    [same] = compared([part(1, "rain")], [part(2, "rain")]).pairs
    assert same.change == "same"


@pytest.mark.slow
@pytest.mark.parametrize("has_content", [True, False])
def test_prompts_of_two_homes_are_compared_by_text(tmp_path: Path, has_content: bool) -> None:
    """Sessions of two homes, imported into a third one, are compared by their texts; without texts, the page states
    that their prompts cannot be compared.
    """
    runner, home, ids = CliRunner(), a_home(tmp_path / "third"), []
    for number in (1, 2):
        other = a_home(tmp_path / f"home-{number}")
        ids.append(delegated(other, number))
        bundle = tmp_path / f"{number}.bundle"
        options = ["--with-content"] if has_content else []
        for command in (
            ["--home", other.path, "bundle", ids[-1], *options, "-o", bundle],
            ["--home", home.path, "import", "bundle", bundle],
        ):
            assert runner.invoke(cli, [str(each) for each in command]).exit_code == 0
    with open_store(home) as store:
        assert len(list(store.sql("SELECT DISTINCT system FROM zones").rows)) == 2
        assert changes(store, *ids) == []
    with serving(home) as client:
        words = client.get(f"/compare?a={ids[0]}&b={ids[1]}").words
    assert all(f"different content {part}" not in words for part in PARTS)
    note = "because the sessions were recorded in different homes"
    assert (note in words) is not has_content
    assert ("the content of A and B is missing" in words) is not has_content


@pytest.mark.slow
def test_prompts_of_one_home_are_compared_without_texts(tmp_path: Path) -> None:
    """Without content, prompts of one home are compared by their digests."""
    home = a_home(tmp_path)
    ids = []
    with recording(home) as emit:
        for number, system in enumerate(("Be brief.", "Be brief.", "Be exact.")):
            run = SyntheticSession(
                emit, "quiet", T0 + number * 60 * SECOND, seed=number, system=system
            )
            with run.interaction("Hello."):
                run.turn(text("Hello."))
            ids.append(run.end())
    quiet = [part for each in ids for part in ("--session", each)]
    pruned = CliRunner().invoke(cli, ["--home", str(home.path), "prune", "--content-only", *quiet])
    assert pruned.exit_code == 0, pruned.output
    with open_store(home) as store:
        assert changes(store, ids[0], ids[2]) == [("/v1/messages", ["system_prompt"])]
        found = comparison_of(store, ids[0], ids[1])
    assert {step["change"] for step in found["steps"]} == {"same"}
    [gap] = found["not_compared"]
    assert (gap["reason"], gap["missing_in"]) == ("content_missing", ["a", "b"])


@pytest.mark.slow
def test_a_session_without_content_differs_only_in_known_parts(tmp_path: Path) -> None:
    """If the content of only one session is missing, responses, inputs and results are not compared."""
    home = a_home(tmp_path)
    first, second = delegated(home, 1), delegated(home, 2)
    CliRunner().invoke(
        cli, ["--home", str(home.path), "prune", "--content-only", "--session", first]
    )
    with serving(home) as client:
        words = client.get(f"/compare?a={first}&b={second}").words
    assert "are identical." in words
    assert "input and result, because the content of A is missing." in words


def record_prompts(home: Home, *sessions: tuple[str, ...]) -> list[str]:
    """Record sessions with these prompts, one interaction each, and identical responses."""
    ids = []
    with recording(home) as emit:
        for number, prompts in enumerate(sessions):
            run = SyntheticSession(emit, "prompts", T0 + number * 600 * SECOND, seed=number + 1)
            for prompt in prompts:
                with run.interaction(prompt):
                    run.turn(text("Done."))
            ids.append(run.end())
    return ids


FIRST, SECOND_PROMPT = "Find the root cause.", "Find the root cause on the replica."


@pytest.mark.slow
def test_a_changed_prompt_is_a_difference(tmp_path: Path) -> None:
    """A changed prompt is a difference of the request that contains it, also in a later interaction. The page shows the
    titles of both sessions.
    """
    home = a_home(tmp_path)
    first, changed, later, same = record_prompts(
        home, (FIRST, "Go on."), (SECOND_PROMPT, "Go on."), (FIRST, "Stop."), (FIRST, "Go on.")
    )
    with open_store(home) as store:
        assert changes(store, first, same) == []
        assert changes(store, first, changed) == [("/v1/messages", ["messages"])]
        steps = comparison_of(store, first, later)["steps"]
    [step] = [step for step in steps if step["change"] != "same"]
    assert (step["a"]["name"], step["a"]["turn"], step["differs"]) == (
        "/v1/messages", 2, ["messages"],
    )  # fmt: skip
    with serving(home) as client:
        page = client.get(f"/compare?a={first}&b={changed}")
    assert "First change of content: request in turn 1 : different new messages" in page.words
    assert f"completed {FIRST}" in page.words
    assert f"completed {SECOND_PROMPT}" in page.words
    assert "different content new messages" in page.words


@pytest.mark.slow
def test_a_changed_prompt_is_found_without_reading_content(tmp_path: Path) -> None:
    """`agentobs diff` without `--content` reports another first prompt from its keyed digest, which is not shown; the
    page does so if the content was deleted.
    """
    home = a_home(tmp_path)
    first, changed, same = record_prompts(home, (FIRST,), (SECOND_PROMPT,), (FIRST,))
    runner = CliRunner()
    sessions = [part for each in (first, changed, same) for part in ("--session", each)]
    pruned = ["--home", str(home.path), "prune", "--content-only", *sessions]
    assert runner.invoke(cli, pruned).exit_code == 0
    with open_store(home) as store:
        assert changes(store, first, same) == []
        assert changes(store, first, changed) == [("/v1/messages", ["messages"])]
        digests = [str(row[0]) for row in store.sql("SELECT messages FROM zones").rows]
    found = runner.invoke(cli, ["--home", str(home.path), "diff", first, changed])
    assert "different new messages" in found.stdout
    assert "prompts were compared by their digests" in found.stdout
    as_json = runner.invoke(cli, ["--home", str(home.path), "diff", first, changed, "--json"])
    assert all(each not in as_json.stdout for each in digests)
    result = runner.invoke(cli, ["--home", str(home.path), "diff", first, same])
    assert "all 1 steps are identical" in result.stdout
