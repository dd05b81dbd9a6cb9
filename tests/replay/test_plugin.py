"""The pytest plugin: frozen tests run unedited, and a divergence is a report without a traceback."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
from anthropic import Anthropic

import agentobs
from replay import Fixture
from tests.marks import mark_all_but_first
from tests.provider_script import streamed, text
from tests.replay.agents import KEY, MODEL, frozen, recorded, weather

AGENT = "from tests.replay.agents import Agent, WEATHER\n"
MARK = "import pytest\n" + AGENT + '@pytest.mark.replay("fixtures/weather")\n'


@pytest.fixture(scope="module")
def fixture(tmp_path_factory: pytest.TempPathFactory) -> Fixture:
    return weather(tmp_path_factory.mktemp("plugin"))


@pytest.fixture
def project(pytester: pytest.Pytester, fixture: Fixture, warm_process: None) -> pytest.Pytester:
    """A project with one fixture, in which the plugin is installed."""
    folder = pytester.path / "fixtures" / "weather"
    folder.mkdir(parents=True)
    (folder / "recording.jsonl").write_bytes(fixture.path.read_bytes())
    return pytester


@agentobs.session("one-request")
def send_prompt(prompt: str, url: str | None = None) -> str:
    """Send one request."""
    client = agentobs.record(Anthropic(api_key=KEY, base_url=url, max_retries=0))
    messages: Any = [{"role": "user", "content": prompt}]
    with client.messages.stream(model=MODEL, max_tokens=9, messages=messages) as stream:
        return stream.get_final_text()


def run(project: pytest.Pytester, test: str, *arguments: str) -> pytest.RunResult:
    project.makepyfile(test)
    return project.runpytest_inprocess("-p", "no:cacheprovider", *arguments)


@pytest.mark.slow
def test_a_replay_passes(project: pytest.Pytester) -> None:
    """A marked test whose agent is unchanged passes, because the replay is open during the complete test."""
    run(
        project,
        MARK + "def test_it(replay): assert Agent().answer('How is it?') == 'Oslo is wet.'\n",
    ).assert_outcomes(passed=1)


@pytest.mark.slow
def test_the_report_proposes_the_test_if_its_arguments_differ(project: pytest.Pytester) -> None:
    """If a test's arguments differ from the recorded arguments, the report proposes the test by its pytest ID and not
    `agentobs replay`.
    """
    responses = [streamed(text("Well."), number=1)]
    recording = recorded(project.path, lambda url: send_prompt("How is it?", url), responses)
    other = frozen(project.path, recording, "other")
    assert other.header["entry"]
    (project.path / "fixtures" / "weather" / "recording.jsonl").write_bytes(other.path.read_bytes())
    test = "from tests.replay.test_plugin import send_prompt\n" + MARK
    test += "def test_it(replay): replay.run(send_prompt, 'Where?')\n"
    result = run(project, test)
    shown = result.stdout.str()
    name = "test_the_report_proposes_the_test_if_its_arguments_differ.py::test_it"
    assert f"pytest {name} --replay-update" in shown
    assert "agentobs replay" not in shown


@pytest.mark.slow
def test_a_divergence_is_the_report(project: pytest.Pytester) -> None:
    """A test that fails with a divergence is reported with the divergence and without a traceback."""
    result = run(
        project,
        MARK
        + "def test_it(replay): Agent(weather={**WEATHER, 'Rome': 'fog'}).answer('How is it?')\n",
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "DIVERGED  weather-agent  main, request 3 of 3, turn 3 *(2 of 3 requests matched)",
            "*$.messages[[]4[]].content[[]0[]].content",
            '*recorded  "sun, 21 C"',
            '*now       "fog"',
            "*why        tool_result of weather(city=?Rome?)*",
        ]
    )
    assert "Traceback" not in result.stdout.str()
    assert "replayer.py" not in result.stdout.str()


def test_a_caught_divergence_fails_the_test(project: pytest.Pytester) -> None:
    """A test that catches the divergence fails in its call phase."""
    test = """
    def test_it(replay):
        try:
            Agent().answer("Eh?")
        except Exception:
            pass
    """
    result = run(project, MARK + "\n".join(line[4:] for line in test.splitlines()[1:]))
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["DIVERGED *request 1 of 3*"])


def test_a_divergence_behind_an_assertion_is_the_report(project: pytest.Pytester) -> None:
    """If the agent catches the divergence and an assertion then fails, the report shows the divergence and not the
    assertion.
    """
    test = """
    def test_it(replay):
        try:
            reply = Agent().answer("Eh?")
        except Exception:
            reply = None
        assert reply == "Oslo is wet."
    """
    result = run(project, MARK + "\n".join(line[4:] for line in test.splitlines()[1:]))
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["DIVERGED *request 1 of 3*"])


@pytest.mark.slow
def test_a_test_without_requests_fails(project: pytest.Pytester) -> None:
    """A marked test whose agent sends no requests fails, because the recorded requests are missing."""
    result = run(project, MARK + "def test_it(replay): pass\n")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*the recording continues with POST /v1/messages, but the agent did not send this request*"
        ]
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("marker", "expected"),
    [
        ("", '*name the fixture: @pytest.mark.replay("fixtures/NAME")*'),
        ('@pytest.mark.replay("fixtures/none")\n', "*fixtures/none: this is not a fixture.*"),
    ],
)
def test_a_missing_fixture_is_reported(
    project: pytest.Pytester, marker: str, expected: str
) -> None:
    """A missing fixture is reported in one line with its path, or with the marker that is needed."""
    result = run(project, f"import pytest\n{marker}def test_it(replay): pass\n")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([expected])


@pytest.mark.parametrize(
    ("damage", "expected"),
    mark_all_but_first(
        [
            (lambda data: data[: len(data) // 2], "*the fixture is truncated*"),
            (lambda data: data.replace(b"Oslo", b"Olso"), "*its digest does not match*"),
            (lambda data: b"", "*not a fixture*"),
            (lambda data: b"\x00\xff" * 99, "*not a fixture*"),
            (
                lambda data: data.replace(b'"agentobs_fixture": 1', b'"agentobs_fixture": 9'),
                "*unsupported fixture version 9: this version of agentobs reads up to 1*",
            ),
        ],
        pytest.mark.slow,
    ),
    ids=["cut", "edited", "empty", "binary", "newer"],
)
def test_a_damaged_fixture_is_reported(
    project: pytest.Pytester, damage: object, expected: str
) -> None:
    """A damaged fixture is reported in one line without a traceback."""
    file = project.path / "fixtures" / "weather" / "recording.jsonl"
    file.write_bytes(damage(file.read_bytes()))  # type: ignore[operator]  # one of the functions above
    result = run(project, MARK + "def test_it(replay): pass\n")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([expected])
    assert "Traceback" not in result.stdout.str()


@pytest.mark.slow
def test_the_plugin_does_not_import_the_sdk(pytester: pytest.Pytester) -> None:
    """A run without replays does not import the SDK, which would take time."""
    pytester.makepyfile(
        "import sys\ndef test_it(): assert not {'anthropic', 'duckdb', 'httpx2'} & set(sys.modules)\n"
    )
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)


@pytest.mark.slow
def test_the_tests_of_a_failed_session_pass_with_a_note(project: pytest.Pytester) -> None:
    """If a tool result before the failing turn changes, the recorded responses continue, and a section of the output
    reports it.
    """
    test = MARK + (
        "def test_reaches_the_failure(replay):\n"
        "    replay.reach(Agent(weather={**WEATHER, 'Oslo': 'fog'}).answer, 'How is it?', turn=3)\n"
        '@pytest.mark.replay("fixtures/weather")\n'
        "def test_fixed(replay):\n"
        "    agent = Agent(weather={**WEATHER, 'Oslo': 'fog'})\n"
        "    step = replay.until_change(agent.answer, 'How is it?', turn=1)\n"
        "    assert step.differs and step.turn == 1 and step.tool('weather').text == 'fog'\n"
    )
    result = run(project, test)
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(
        [
            "*= replay notes =*",
            "weather-agent: tool results before turn 3 differ from the recording, "
            "but the agent gets the recorded responses: *",
        ]
    )


def test_the_tests_of_a_failed_session_cannot_run_live(project: pytest.Pytester) -> None:
    """The tests of a failed session are rejected with `--replay-live`, because they depend on the recorded
    responses.
    """
    test = MARK + "def test_it(replay): replay.until_change(Agent().answer, 'How is it?', turn=1)\n"
    result = run(project, test, "--replay-live")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*a test that stops at a recorded turn cannot run live*"])


@pytest.mark.slow
def test_async_tests_of_a_failed_session(project: pytest.Pytester) -> None:
    """Inside an event loop, `areach` and `auntil_change` work like `reach` and `until_change`."""
    test = MARK + (
        "def test_it(replay):\n"
        "    import asyncio\n"
        "    async def answer(prompt): return Agent().answer(prompt)\n"
        "    asyncio.run(replay.areach(answer, 'How is it?', turn=2))\n"
        '@pytest.mark.replay("fixtures/weather")\n'
        "def test_the_same(replay):\n"
        "    import asyncio\n"
        "    async def answer(prompt): return Agent().answer(prompt)\n"
        "    step = asyncio.run(replay.auntil_change(answer, 'How is it?', turn=1))\n"
        "    assert not step.differs and not step.failed, step.describe()\n"
        '@pytest.mark.replay("fixtures/weather")\n'
        "def test_another(replay):\n"
        "    import asyncio\n"
        "    async def answer(prompt): return Agent(clock='13:00').answer(prompt)\n"
        "    step = asyncio.run(replay.auntil_change(answer, 'How is it?', turn=2))\n"
        "    assert step.differs and step.tool('clock').text == '13:00'\n"
    )
    run(project, test).assert_outcomes(passed=3)


@pytest.mark.slow
def test_an_agent_is_found_from_a_folder_below_the_root(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recorded entry below pytest's root directory can be called from any folder below the root."""
    agent = (
        "import anthropic, agentobs\n"
        "@agentobs.session('below')\n"
        "def ask(url):\n"
        f"    client = agentobs.record(anthropic.Anthropic(api_key={KEY!r}, base_url=url))\n"
        f"    said = [{{'role': 'user', 'content': 'Hello'}}]\n"
        f"    with client.messages.stream(model={MODEL!r}, max_tokens=9, messages=said) as stream:\n"
        "        return stream.get_final_text()\n"
    )
    project.makepyfile(below_the_root=agent)
    project.syspathinsert()
    module = importlib.import_module("below_the_root")
    frozen(project.path, recorded(project.path, module.ask, [streamed(text("Well."))]), "below")
    monkeypatch.chdir(project.path / "fixtures")
    result = project.runpytest_inprocess("-p", "no:cacheprovider", "--rootdir", "..", "../below")
    result.assert_outcomes(passed=1)
