"""A failed command becomes tests that a right fix turns green, and that a wrong fix leaves red."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from agentobs.determinism.entry import COMMAND
from agentobs.recording.wire.provider_server import ServedProvider, ServeOptions
from agentobs.records.exchanges import Answer, ReturnValue
from replay import calls, load, run_command, says
from replay.fixture.format import as_recording
from replay.freeze.conversion import Frozen, freeze
from tests.marks import mark_all_but_first
from tests.provider_script import refused, script
from tests.proxy.proxies import proxied

AGENT = """
import http.client, json, os, sys, urllib.parse
from tools import LIMIT, answer, ending

url = urllib.parse.urlsplit(os.environ["ANTHROPIC_BASE_URL"])
messages = [{"role": "user", "content": "What do the lamps cost?"}]
while True:
    connection = http.client.HTTPConnection(url.netloc)
    body = {"model": "claude-sonnet-5", "max_tokens": LIMIT, "messages": messages}
    headers = {"anthropic-version": "2023-06-01", "x-api-key": "a key"}
    connection.request("POST", url.path + "/v1/messages", json.dumps(body), headers)
    response = connection.getresponse()
    message = json.loads(response.read())
    if response.status != 200:
        sys.exit(f"HTTP {response.status}")
    messages.append({"role": "assistant", "content": message["content"]})
    results = [
        {"type": "tool_result", "tool_use_id": each["id"], **answer(**each["input"])}
        for each in message["content"]
        if each["type"] == "tool_use"
    ]
    if not results:
        sys.exit(ending(message["content"][0]["text"]))
    messages.append({"role": "user", "content": results})
"""

TOOLS = """
LIMIT = 100

def answer(item):
    return {"content": f"{item}: 4 EUR"}

def ending(text):
    return 0
"""
MODEL = {"model": "claude-sonnet-5"}
LOOKS = calls("look", item="lamp").answer(1, MODEL)
LOOKS_AGAIN = calls("look", item="bulb").answer(2, MODEL)
SORRY = says("I could not find it.").answer(3, MODEL)


@dataclass(frozen=True)
class Case:
    """A bug, with fixes; each is Python source that overrides definitions of the tools."""

    answers: Sequence[Answer]
    bug: str
    right: str
    wrong: str
    failure: tuple[int, int, str]
    """The failing turn, the turn from which the fix may change something, and the reason."""


RAISES = """
def answer(item):
    return {"content": f"{item}: {dict(lamp=4)[item]} EUR"}
"""
RAISES_OTHERWISE = """
def answer(item):
    return {"content": f"{item}: {[4][len(item) - 4 or 0 if item == 'lamp' else 1]} EUR"}
"""
IS_ERROR = """
def answer(item):
    return {"content": f"no {item}", "is_error": True}

def ending(text):
    return 3 if "could not" in text else 0
"""
IS_OTHER_ERROR = IS_ERROR.replace("no {item}", "there is no {item}")
ENDS_WRONG = """
def ending(text):
    return 5
"""
REFUSED = """
LIMIT = -1
"""
CASES = {
    "a tool raises": Case(
        (LOOKS, LOOKS_AGAIN),
        RAISES,
        "",
        RAISES_OTHERWISE,
        (2, 2, "the command ended with exit code 1 after the response"),
    ),
    "a tool returns an error": Case(
        (LOOKS, SORRY), IS_ERROR, "", IS_OTHER_ERROR, (1, 1, "tool look returned an error")
    ),
    "the end": Case(
        (LOOKS, SORRY),
        ENDS_WRONG,
        "",
        ENDS_WRONG.replace("5", "6"),
        (2, 1, "the command ended with exit code 5 after the response"),
    ),
    "the first request is refused": Case(
        (refused(400, "invalid_request_error"),),
        REFUSED,
        "",
        REFUSED + ENDS_WRONG,
        (1, 1, "request 1 returned status 400"),
    ),
}


def work(folder: Path, changed: str) -> Path:
    """Create the directory of the agent, with other definitions of its tools; return it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "agent.py").write_text(AGENT)
    (folder / "tools.py").write_text(TOOLS + changed)
    return folder


def frozen(case: Case, folder: Path) -> Frozen:
    """Record the failing agent through a proxy, and freeze the session."""
    directory = work(folder / "work", case.bug)
    provider = ServedProvider(script(*case.answers), ServeOptions(match="order"))
    with provider as served, proxied(served.url, folder / "home") as recorder:
        command = (sys.executable, "-B", "agent.py")
        env = {**os.environ, "ANTHROPIC_BASE_URL": recorder.url}
        ended = subprocess.run(command, cwd=directory, env=env, capture_output=True, timeout=60)
        [recording] = recorder.recordings()
    assert ended.returncode != 0, ended.stderr
    failed = dataclasses.replace(
        recording,
        name="shop",
        entry=f"{COMMAND}python",
        arguments={"argv": list(command), "directory": str(directory)},
        entry_obstacle={"kind": "command"},
        result=ReturnValue({"exit_code": ended.returncode}),
        outcome="failed",
        reason=f"exit:{ended.returncode}",
    )
    return freeze(failed, folder / "work" / "fixtures" / "shop", {})


@pytest.mark.parametrize("name", mark_all_but_first(CASES, pytest.mark.slow))
def test_the_fix_of_a_failed_command_is_tested(name: str, tmp_path: Path) -> None:
    """With the bug and with a wrong fix, the command fails again; with the right fix, it differs. It reaches the turn
    that failed in each case.
    """
    case = CASES[name]
    made = frozen(case, tmp_path)
    assert made.failure is not None
    turn, live_from, _ = case.failure
    assert (made.failure.turn, made.failure.live_from, made.failure.reason) == case.failure
    for changed, is_fixed in ((case.bug, False), (case.right, True), (case.wrong, False)):
        directory = work(tmp_path / "work", changed)
        reached = run_command(made.fixture, cwd=directory, until_turn=turn, timeout=60)
        assert reached.problems(allow_drift=True) == [], changed
        ran = run_command(made.fixture, cwd=directory, until_change=live_from, timeout=60)
        assert (ran.problems() == []) == is_fixed, ran.text()
        if not is_fixed:
            how = "as recorded, " if ran.exit_code == ran.recorded_exit_code else ""
            assert ran.problems() == [f"the command failed {how}with exit code {ran.exit_code}"]
            assert ran.text().startswith("FAILED  shop  served ")


@pytest.mark.slow
def test_the_generated_tests_need_no_editing(tmp_path: Path, pytester: pytest.Pytester) -> None:
    """With the bug, the second test is red; with the fix, both are green; if the command takes another path before the
    failing turn, both are red.
    """
    case = CASES["a tool returns an error"]
    made = frozen(case, pytester.path)
    work(pytester.path, case.bug)
    options = ("-p", "no:cacheprovider", "--replay-unused", "fail", str(made.test))
    with_bug = pytester.runpytest_inprocess(*options)
    with_bug.assert_outcomes(passed=1, failed=1)
    with_bug.stdout.fnmatch_lines(["*the command failed as recorded, with exit code 3*"])
    work(pytester.path, case.wrong)
    pytester.runpytest_inprocess(*options).assert_outcomes(passed=1, failed=1)
    work(pytester.path, case.right)
    pytester.runpytest_inprocess(*options).assert_outcomes(passed=2)
    (pytester.path / "agent.py").write_text(AGENT.replace("lamps", "tables"))
    other = pytester.runpytest_inprocess(*options)
    other.assert_outcomes(failed=2)
    other.stdout.fnmatch_lines(["*the command took another path before turn 1 was answered*"])


def test_a_command_that_repeats_its_recording_is_not_fixed(tmp_path: Path) -> None:
    """If the recorded command succeeded with a wrong result, the same path to the end is a failure."""
    made = frozen(CASES["the end"], tmp_path)
    fixture = load(made.fixture)
    succeeded = dataclasses.replace(as_recording(fixture), result=ReturnValue({"exit_code": 0}))
    directory = work(tmp_path / "work", "")
    ran = run_command(succeeded, cwd=directory, until_change=1, timeout=60)
    assert ran.problems() == ["the command repeated its recording to the end"]


def test_a_command_that_ends_too_early_is_not_fixed(tmp_path: Path) -> None:
    """Without the responses up to the failing turn, nothing is known about the fix."""
    made = frozen(CASES["the end"], tmp_path)
    directory = work(tmp_path / "work", "")
    ran = run_command(made.fixture, ["true"], cwd=directory, until_change=1, timeout=60)
    assert ran.problems() == ["the command ended before turn 1 was answered"]
    early = run_command(made.fixture, ["true"], cwd=directory, until_turn=1, timeout=60)
    assert early.problems() == ["recorded requests that were not sent: 1"]
