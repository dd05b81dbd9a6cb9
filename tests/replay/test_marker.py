"""The `replay` marker and its pytest fixtures: folders of fixtures, classes, async tests, unittest, unused fixtures."""

from __future__ import annotations

import unittest
from pathlib import Path

import pytest

from replay import DivergenceError, Fixture, Replayer, ReplayOptions, load
from tests.marks import mark_all_but_first
from tests.provider_script import call, streamed, text
from tests.replay.agents import Agent, frozen, recorded, weather

USE = "import pytest\nfrom tests.replay.agents import Agent, WEATHER\n"
TALK = "    assert Agent().answer('How is it?').endswith('.')\n"


@pytest.fixture(scope="module")
def full_fixture(tmp_path_factory: pytest.TempPathFactory) -> Fixture:
    return weather(tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module")
def short_fixture(tmp_path_factory: pytest.TempPathFactory) -> Fixture:
    path = tmp_path_factory.mktemp("short")
    responses = [
        streamed(call(1, "clock", zone="UTC"), number=1),
        streamed(text("Noon."), number=2),
    ]
    return frozen(
        path, recorded(path, lambda url: Agent(url).answer("How is it?"), responses), "short"
    )


@pytest.fixture
def project(
    pytester: pytest.Pytester,
    full_fixture: Fixture,
    short_fixture: Fixture,
    monkeypatch: pytest.MonkeyPatch,
    warm_process: None,
) -> pytest.Pytester:
    """A project with two fixtures, one of them in a subfolder."""
    monkeypatch.setenv("COLUMNS", "200")
    put(pytester, full_fixture, "fixtures/weather")
    put(pytester, short_fixture, "fixtures/old/clock")
    return pytester


def put(project: pytest.Pytester, fixture: Fixture, where: str) -> None:
    folder = project.path / where
    folder.mkdir(parents=True)
    (folder / "recording.jsonl").write_bytes(fixture.path.read_bytes())


def run(project: pytest.Pytester, test: str, *arguments: str) -> pytest.RunResult:
    project.makepyfile(USE + test)
    return project.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:xdist", *arguments)


@pytest.mark.slow
def test_a_folder_runs_the_test_for_each_fixture(project: pytest.Pytester) -> None:
    """A marker with a folder runs the test once for each fixture in the folder, with the fixture's path as its ID."""
    test = '@pytest.mark.replay("fixtures")\ndef test_it(replay):\n' + TALK
    result = run(project, test, "-v")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(
        ["*::test_it[[]old/clock[]] PASSED*", "*test_it[[]weather[]] PASS*"]
    )


@pytest.mark.slow
def test_a_pattern_runs_the_test_for_each_match(project: pytest.Pytester) -> None:
    """A marker with a pattern runs the test for each matching fixture, and can be combined with other parameters."""
    test = '@pytest.mark.parametrize("n", [1, 2])\n@pytest.mark.replay("fixtures/w*")\n'
    result = run(project, test + "def test_it(n):\n" + TALK, "-v")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["*test_it[[]weather-1[]] PASSED*"])


@pytest.mark.slow
def test_the_marker_is_sufficient_for_a_replay(project: pytest.Pytester) -> None:
    """A marked function, class, module or unittest case is replayed even if it uses no pytest fixture of agentobs."""
    marks = {
        "function": '@pytest.mark.replay("fixtures/weather")\ndef test_it():\n' + TALK,
        "class": '@pytest.mark.replay("fixtures/weather")\nclass TestIt:\n    def test_it(self):\n    '
        + TALK,
        "module": 'pytestmark = pytest.mark.replay("fixtures/weather")\ndef test_it():\n' + TALK,
        "unittest": 'import unittest\n@pytest.mark.replay("fixtures/weather")\n'
        "class TestIt(unittest.TestCase):\n    def test_it(self):\n    " + TALK,
    }
    for name, test in marks.items():
        project.makepyfile(**{f"test_{name}": USE + test})
    result = project.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:xdist")
    result.assert_outcomes(passed=len(marks))


@pytest.mark.slow
def test_a_test_case_that_catches_a_divergence_fails(project: pytest.Pytester) -> None:
    """A unittest case that catches a divergence fails with this divergence, however the test itself ends."""
    statements = ("self.fail('no')", "self.skipTest('no')", "pass")
    test = "import unittest\n"
    for number, statement in enumerate(statements):
        test += (
            f'@pytest.mark.replay("fixtures/weather")\nclass Test{number}(unittest.TestCase):\n'
            "    def test_it(self):\n        try:\n"
            '            Agent().answer("Eh?")\n'
            f"        except Exception:\n            {statement}\n"
        )
    result = run(project, test)
    result.assert_outcomes(failed=len(statements))
    for number in range(len(statements)):
        result.stdout.fnmatch_lines(
            [f"FAILED *::Test{number}::test_it - DIVERGED *request 1 of 3*"]
        )


@pytest.mark.slow
def test_a_divergence_has_precedence_over_the_outcome_of_the_test(
    project: pytest.Pytester,
) -> None:
    """A test that fails or skips itself after a divergence is reported with the divergence."""
    test = 'pytestmark = pytest.mark.replay("fixtures/weather")\n'
    for statement in ("fail", "skip"):
        test += (
            f"def test_{statement}():\n"
            "    try: Agent().answer('Eh?')\n"
            f"    except Exception: pytest.{statement}('no')\n"
        )
    result = run(project, test)
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(
        [f"FAILED *::test_{each} - DIVERGED *request 1 of 3*" for each in ("fail", "skip")]
    )


@pytest.mark.slow
def test_async_tests_are_replayed(project: pytest.Pytester) -> None:
    """An async test can use the pytest fixtures of a replay, and an async client."""
    test = """
        pytestmark = [pytest.mark.anyio, pytest.mark.replay("fixtures/weather")]
        @pytest.fixture
        def anyio_backend():
            return "asyncio"
        async def test_client(replay_async_client):
            with pytest.raises(Exception, match="DIVERGED"):
                await replay_async_client.messages.create(model="m", max_tokens=1, messages=[])
        async def test_agent(replay):
            async def answer(prompt):
                return Agent().answer(prompt)
            assert await replay.arun(answer, "How is it?") == "Oslo is wet."
    """
    result = run(project, "\n".join(line[8:] for line in test.splitlines()))
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["FAILED *::test_client* - DIVERGED *"])


def test_the_pytest_fixtures_of_a_replay(project: pytest.Pytester) -> None:
    """A marked test can request a client, the facts of the session, and the current world."""
    test = """
        pytestmark = pytest.mark.replay("fixtures/old/clock")
        def test_it(replay, replay_client, replay_session, replay_world):
            assert (replay_session.name, replay_session.outcome) == ("weather-agent", "completed")
            assert (replay_session.requests, replay_session.lanes) == (2, ("main",))
            assert replay_world.client is not replay_client
            agent = Agent()
            messages = [{"role": "user", "content": "How is it?"}]
            with replay_client.messages.stream(messages=messages, **agent.ask()) as stream:
                message = stream.get_final_message()
            [block] = message.content
            messages += [
                {"role": "assistant", "content": [block.to_dict()]},
                {"role": "user", "content": [agent.result(block)]},
            ]
            with replay_client.messages.stream(messages=messages, **agent.ask()) as stream:
                assert stream.get_final_text() == "Noon."
            assert replay.progress.requests_matched == 2
    """
    run(project, "\n".join(line[8:] for line in test.splitlines())).assert_outcomes(passed=1)


@pytest.mark.slow
def test_an_invalid_marker_is_reported(project: pytest.Pytester) -> None:
    """An invalid marker is reported in one line, and the test does not run."""
    reports = {
        '"fixtures/weather", tolls="live"': "*unknown options: tolls. Valid options: tools, network,*",
        '"fixtures/weather", chunks=0': "*invalid chunks: 0.*",
        "5": '*name the fixture: @pytest.mark.replay("fixtures/NAME").*',
        '"fixtures/none-*"': "*fixtures/none-*: this is not a fixture*",
        '"empty"': "*empty: this is not a fixture*",
    }
    (project.path / "empty").mkdir()
    test = "".join(
        f"@pytest.mark.replay({arguments})\ndef test_{number}():\n    assert 0, 'ran'\n"
        for number, arguments in enumerate(reports)
    )
    result = run(project, test)
    result.assert_outcomes(errors=len(reports))
    result.stdout.fnmatch_lines(list(reports.values()))
    assert "Traceback" not in result.stdout.str()
    assert "During handling" not in result.stdout.str()
    assert "ran" not in result.stdout.str().split()


@pytest.mark.slow
def test_a_failing_assertion_of_unittest_is_reported(project: pytest.Pytester) -> None:
    """A failed assertion of a unittest case is reported even if recorded requests were not sent."""
    test = 'import unittest\n@pytest.mark.replay("fixtures/weather")\nclass TestIt(unittest.TestCase):\n'
    result = run(project, test + "    def test_it(self):\n        self.assertEqual(1, 2)\n")
    result.assert_outcomes(failed=1)
    assert "AssertionError: 1 != 2" in result.stdout.str()
    assert "did not send this request" not in result.stdout.str()


def test_a_test_case_has_one_fixture(project: pytest.Pytester) -> None:
    """A marker with several fixtures on a unittest case is an error, because a method cannot run for several
    fixtures.
    """
    test = 'import unittest\n@pytest.mark.replay("fixtures")\nclass TestIt(unittest.TestCase):\n'
    result = run(project, test + "    def test_it(self): pass\n")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        ["*fixtures: 2 fixtures match, but a method of unittest.TestCase can replay only one*"]
    )


@pytest.mark.slow
def test_reports_contain_the_divergence(project: pytest.Pytester) -> None:
    """The summary contains the first line of the divergence, and junit.xml contains it as text and JSON."""
    test = '@pytest.mark.replay("fixtures/weather")\ndef test_it(): Agent().answer("Eh?")\n'
    result = run(project, test, "--junitxml=junit.xml")
    result.stdout.fnmatch_lines(["FAILED *::test_it - DIVERGED  weather*"])
    assert "divergence as JSON" not in result.stdout.str()
    written = (project.path / "junit.xml").read_text()
    assert 'message="DIVERGED  weather-agent' in written
    assert '<property name="divergence" value="{' in written
    assert "&quot;kind&quot;: &quot;content&quot;" in written
    run(project, test, "-v").stdout.fnmatch_lines(["*divergence as JSON*"])


def test_plain_unittest_replays() -> None:
    """Without pytest, a replay is a context manager, and a divergence is the error of the test."""
    tests = unittest.TestSuite([Plain("test_same"), Plain("test_other")])
    result = unittest.TestResult()
    tests.run(result)
    assert (result.testsRun, len(result.failures), len(result.errors)) == (2, 0, 1)
    [(failed, expected)] = result.errors
    assert failed.id().endswith("test_other")
    assert "DIVERGED  refund-loop" in expected


class Plain(unittest.TestCase):
    """A test of a project that does not use pytest."""

    __test__ = False
    fixture = load(Path(__file__).parents[2] / "fixtures" / "refund-loop")

    def test_same(self) -> None:
        from agentobs.cli.demo import refund_agent

        with Replayer(self.fixture, ReplayOptions()) as replayed:
            replayed.run(refund_agent.answer, **self.fixture.header["arguments"])
        assert replayed.progress.requests_matched == 4

    def test_other(self) -> None:
        from agentobs.cli.demo import refund_agent

        try:
            with Replayer(self.fixture, ReplayOptions()) as replayed:
                replayed.run(refund_agent.answer, "Something else.")
        except DivergenceError:
            raise


@pytest.mark.parametrize(
    ("arguments", "code"),
    mark_all_but_first(
        [
            ((), 1),
            (("-k", "none"), 1),
            (("--replay-unused=warn",), 0),
            (("--replay-unused=ignore",), 0),
            (("test_one.py",), 0),
            (("--deselect", "test_one.py::test_two"), 0),
        ],
        pytest.mark.slow,
    ),
    ids=["complete-run", "by-keyword", "warn", "ignore", "one-file", "deselect"],
)
def test_an_unused_fixture_fails_a_complete_run(
    project: pytest.Pytester, short_fixture: Fixture, arguments: tuple[str, ...], code: int
) -> None:
    """A complete run fails if no collected test, selected or not, uses a fixture; a run of single files or tests does
    not check.
    """
    put(project, short_fixture, "fixtures/forgotten")
    test = '@pytest.mark.replay("fixtures/weather")\ndef test_it():\n'
    project.makepyfile(test_one=f"{USE}{test}{TALK}def test_two(): pass\n")
    result = project.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:xdist", *arguments)
    expected = "fixtures/forgotten: no collected test uses this fixture." in result.stdout.str()
    assert expected is (not arguments or "-k" in arguments or "warn" in arguments[0])
    assert result.ret == (5 if "-k" in arguments else code)
    assert "fixtures/weather: no" not in result.stdout.str()
    assert "clock" not in result.stdout.str()


@pytest.mark.slow
def test_a_frozen_test_uses_its_own_recording(
    project: pytest.Pytester, short_fixture: Fixture
) -> None:
    """A test in the folder of a fixture uses this fixture and no other."""
    put(project, short_fixture, "fixtures/own")
    test_of_fixture = '@pytest.mark.replay("recording.jsonl")\ndef test_own():\n'
    (project.path / "fixtures" / "own" / "test_own.py").write_text(USE + test_of_fixture + TALK)
    (project.path / "fixtures" / "weather" / "test_weather.py").write_text(
        (USE + test_of_fixture + TALK).replace("test_own", "test_weather")
    )
    test = '@pytest.mark.replay("fixtures/weather")\ndef test_it():\n' + TALK
    result = run(project, test)
    result.assert_outcomes(passed=3)
    assert result.ret == 0
