"""Isolation: each replayed test passes whatever ran earlier in the same pytest run, and cannot affect other tests."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from replay import load
from replay.agent_code import leftover_state
from tests.marks import mark_all_but_first
from tests.provider_script import streamed, text
from tests.replay.agents import frozen, recorded

AGENT = """
import functools

import agentobs
from anthropic import Anthropic

history = []
_client = None
calls = 0


def client(url=None):
    global _client
    if _client is None:
        _client = agentobs.record(Anthropic(api_key="made-up", base_url=url, max_retries=0))
    return _client


def ask(words):
    messages = [{"role": "user", "content": words}]
    given = {"model": "claude-opus-4-5", "max_tokens": 9, "messages": messages}
    with client().messages.stream(**given) as stream:
        return stream.get_final_text()


@functools.lru_cache
def describe(city):
    return ask(f"Describe {city}.")


@agentobs.session("weather")
def answer(prompt):
    global calls
    calls += 1
    history.append(prompt)
    return ask(f"{describe('Oslo')} {history} {calls}")
"""
"""An agent whose module keeps a client, a cache, a list and a counter."""
GENERATED = """
import pytest

@pytest.mark.replay("fixtures/weather")
def test_first(replay):
    replay.run()

@pytest.mark.replay("fixtures/weather")
def test_second(replay):
    replay.run()
"""
ORDINARY = """
import weather

def test_ordinary(monkeypatch):
    monkeypatch.setattr(weather, "ask", lambda words: "mocked")
    assert weather.answer("What?") == "mocked"
    assert weather.describe.cache_info().currsize == 1
"""


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Return the fixture file of one session of the agent."""
    folder = tmp_path_factory.mktemp("isolated")
    (folder / "weather.py").write_text(AGENT)
    sys.path.insert(0, str(folder))
    try:
        weather = importlib.import_module("weather")

        def run(url: str) -> str:
            weather.client(url)
            return str(weather.answer("How is it?"))

        responses = [streamed(text("Wet."), number=1), streamed(text("Oslo is wet."), number=2)]
        return frozen(folder, recorded(folder, run, responses)).path.read_bytes()
    finally:
        sys.path.remove(str(folder))
        sys.modules.pop("weather", None)


@pytest.fixture
def project(pytester: pytest.Pytester, recording: bytes, warm_process: None) -> pytest.Pytester:
    """A project with the agent and its fixture."""
    folder = pytester.path / "fixtures" / "weather"
    folder.mkdir(parents=True)
    (folder / "recording.jsonl").write_bytes(recording)
    (pytester.path / "weather.py").write_text(AGENT)
    return pytester


@pytest.fixture(autouse=True)
def no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prevent an inner run from detecting an xdist worker, because syrupy prints no summary in a worker."""
    for name in ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT"):
        monkeypatch.delenv(name, raising=False)


def run(project: pytest.Pytester, *arguments: str, **options: bool) -> pytest.RunResult:
    """Run pytest in this process, which has already imported the SDK."""
    leftover_state.forget()
    return project.runpytest_inprocess(
        "-p", "no:cacheprovider", "-p", "no:xdist", *arguments, **options
    )


def run_fresh(project: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    """Run pytest in a separate process."""
    return project.runpytest_subprocess("-p", "no:cacheprovider", *arguments)


def write(project: pytest.Pytester, **files: str) -> None:
    for name, content in files.items():
        (project.path / f"{name}.py").write_text(content)


@pytest.mark.slow
def test_generated_tests_pass_in_any_order(project: pytest.Pytester) -> None:
    """Generated tests pass in any order, twice, and after an ordinary test that has filled the agent's cache."""
    write(project, test_a=ORDINARY, test_b=GENERATED, test_c=ORDINARY, test_d=GENERATED)
    run(project).assert_outcomes(passed=6)
    names = ["test_b.py::test_second", "test_a.py", "test_b.py::test_first", "test_d.py"]
    run(project, *names).assert_outcomes(passed=5)


@pytest.mark.slow
@pytest.mark.parametrize("workers", mark_all_but_first(["1", "2"], pytest.mark.crash))
def test_generated_tests_pass_in_workers_of_xdist(project: pytest.Pytester, workers: str) -> None:
    """Generated tests pass in a fresh worker process that also runs ordinary tests."""
    write(project, test_a=ORDINARY, test_b=GENERATED, test_c=ORDINARY, test_d=GENERATED)
    run_fresh(project, "-n", workers).assert_outcomes(passed=6)


@pytest.mark.slow
def test_without_isolation_the_report_names_leftover_state(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without isolation, the second test in a process fails, and its report names the state that the first test
    left.
    """
    # The report also names caches in modules of other tests in this process.
    monkeypatch.setattr(leftover_state, "NAMED_MAX", 100)
    write(project, test_b=GENERATED)
    result = run(project, "--replay-no-fork")
    result.assert_outcomes(passed=1, failed=1)
    shown = " ".join(result.stdout.str().split())
    assert (
        "the agent already ran in this process (in test_b.py::test_first) and left state" in shown
    )
    for name in (
        "weather.describe (lru_cache, 1 entries)",
        "weather.history (list, 0 -> 1 items)",
        "weather.calls (set to another value)",
        "weather._client (set to another value)",
    ):
        assert name in shown
    assert "unless --replay-no-fork is set" in shown


@pytest.mark.slow
@pytest.mark.parametrize("method", ["option", "ini"])
def test_isolation_can_be_disabled(project: pytest.Pytester, method: str) -> None:
    """If isolation is disabled by the option or the configuration, tests fail because of the state that an ordinary
    test left.
    """
    write(project, test_a=ORDINARY, test_b=GENERATED)
    if method == "ini":
        project.makeini("[pytest]\nreplay_fork = false\n")
    result = run(project, *(["--replay-no-fork"] if method == "option" else []))
    result.assert_outcomes(passed=1, failed=2)
    assert "(in test_a.py::test_ordinary)" in " ".join(result.stdout.str().split())


ENDINGS = """
import os, signal, sys, threading, time, warnings
import pytest

pytestmark = pytest.mark.replay("fixtures/weather")

def test_exits(replay):
    print("said before")
    sys.stderr.flush()
    os._exit(3)

def test_is_killed(replay):
    os.kill(os.getpid(), signal.SIGKILL)

def test_crashes(replay):
    import ctypes
    ctypes.string_at(0)

def test_leaves():
    sys.exit(4)

def test_hangs_in_a_thread(replay):
    threading.Thread(target=time.sleep, args=(300,)).start()
    replay.run()

def test_passes(replay):
    warnings.warn("look at this")
    replay.run()

@pytest.mark.skip(reason="not now")
def test_skipped(): ...

@pytest.mark.xfail(strict=True)
def test_expected():
    assert 0

@pytest.fixture
def torn():
    yield
    assert 0, "torn down"

def test_teardown(torn, replay):
    replay.run()
"""


@pytest.mark.slow
def test_each_end_of_a_test_is_reported(project: pytest.Pytester) -> None:
    """A crash or exit of a test's process is reported as one failed test with its output, and all other tests run."""
    write(project, test_ends=ENDINGS)
    result = run(project, "--junitxml=junit.xml", "-rA")
    result.assert_outcomes(passed=3, failed=4, skipped=1, xfailed=1, errors=1, warnings=1)
    result.stdout.fnmatch_lines(
        [
            "*the process of this test exited with code 3 during the test.*",
            "*said before*",
            "*the process of this test was killed by SIGKILL during the test.*",
            "*the process of this test was killed by SIGSEGV during the test.*",
            "*Segmentation fault*",
            "*in test_crashes",
            "*UserWarning: look at this",
        ]
    )
    assert "pluggy" not in result.stdout.str().partition("short test summary")[0].partition(
        "rootdir"
    )[2].replace("pluggy-", "")
    written = (project.path / "junit.xml").read_text()
    assert 'tests="10"' in written or 'tests="9"' in written


WIDER = """
import os
import pytest

import weather

@pytest.fixture(scope="session", autouse=True)
def once(tmp_path_factory):
    place = tmp_path_factory.getbasetemp() / "once"
    assert not place.exists()
    place.write_text(str(os.getpid()))
    yield place
    assert place.read_text() == str(os.getpid())
    place.unlink()

@pytest.fixture(scope="module")
def shared():
    yield weather.history

@pytest.fixture(params=["one", "two"])
def each(request):
    return request.param
"""
USES = """
import pytest
import weather

def test_ordinary(once):
    weather.describe.cache_clear()
    weather.history.append("dirt")

@pytest.mark.replay("fixtures/weather")
def test_replayed(replay, once, each, tmp_path, capsys, caplog, monkeypatch, record_property):
    print(tmp_path)
    assert str(tmp_path) in capsys.readouterr().out
    monkeypatch.setenv("EACH", each)
    record_property("each", each)
    assert once.exists()
    replay.run()

@pytest.mark.replay("fixtures/weather")
def test_shares(replay, shared):
    replay.run()
"""


@pytest.mark.slow
def test_pytest_fixtures_keep_their_scope(project: pytest.Pytester) -> None:
    """A session fixture is set up once for all processes, and other pytest fixtures work as usual."""
    write(project, conftest=WIDER, test_uses=USES)
    first = run(project, "--junitxml=junit.xml")
    first.assert_outcomes(passed=4)
    assert '<property name="each" value="two"' in (project.path / "junit.xml").read_text()
    names = [
        "test_uses.py::test_replayed",
        "test_uses.py::test_ordinary",
        "test_uses.py::test_shares",
    ]
    run(project, *names).assert_outcomes(passed=4)


KINDS = """
import unittest
import pytest
import weather

@pytest.mark.replay("fixtures/weather")
class TestPlain(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.known = []

    def test_one(self):
        assert weather.answer("How is it?") == "Oslo is wet."

    def test_two(self):
        with self.subTest("inner"):
            assert weather.answer("How is it?") == "Oslo is wet."

@pytest.fixture
def anyio_backend():
    return "asyncio"

@pytest.mark.anyio
@pytest.mark.replay("fixtures/weather")
@pytest.mark.parametrize("number", [1, 2])
async def test_async(replay, number):
    assert weather.answer("How is it?") == "Oslo is wet."

@pytest.mark.replay("fixtures")
def test_folder(replay, subtests):
    with subtests.test("runs"):
        replay.run()
"""


@pytest.mark.slow
def test_every_kind_of_test_runs_with_isolation(project: pytest.Pytester) -> None:
    """Methods of unittest, async tests, parametrized tests, folders of fixtures, and subtests pass with isolation."""
    write(project, test_kinds=KINDS)
    result = run(project)
    assert result.parseoutcomes()["passed"] >= 5
    assert result.ret == 0


@pytest.mark.slow
def test_snapshots_are_counted_and_written(project: pytest.Pytester) -> None:
    """A snapshot that an isolated test writes is saved and counted, and is compared in the next run."""
    test = GENERATED.replace("replay):", "replay, trajectory):").replace(
        "replay.run()", "replay.run()\n    assert replay == trajectory"
    )
    write(project, test_b=test)
    first = run(project, "--snapshot-update")
    first.stdout.fnmatch_lines(["*2 snapshots generated.*"])
    second = run(project)
    second.stdout.fnmatch_lines(["*2 snapshots passed.*"])
    assert second.ret == 0
    [written, *_] = (project.path / "__snapshots__").rglob("*test_first*")
    written.write_text("something else\n")
    third = run(project)
    third.stdout.fnmatch_lines(["*1 snapshot failed*1 snapshot passed*"])
    third.assert_outcomes(passed=1, failed=1)


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [("-x",), ("--maxfail=1",), ("-s", "-x")])
def test_a_run_stops_at_the_first_failure(
    project: pytest.Pytester, arguments: tuple[str, ...]
) -> None:
    """With `-x` or `--maxfail`, the run also stops at the failure of an isolated test."""
    fails = 'import pytest\npytestmark = pytest.mark.replay("fixtures/weather")\n'
    write(project, test_a=fails + "def test_a(): assert 0\ndef test_b(): assert 0\n")
    result = run(project, *arguments)
    assert result.parseoutcomes()["failed"] == 1
    assert result.ret in (pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED)


@pytest.mark.soak
def test_a_timeout_of_a_plugin_ends_the_test(project: pytest.Pytester) -> None:
    """A timeout of pytest-timeout ends an isolated test, and the run continues."""
    header = 'import pytest, time\npytestmark = pytest.mark.replay("fixtures/weather")\n'
    slow = "def test_slow():\n    while True: time.sleep(0.01)\n"
    write(project, test_a=header + slow + "def test_next(replay): replay.run()\n")
    for method in ("signal", "thread"):
        result = run_fresh(project, "--timeout=20", f"--timeout-method={method}")
        result.assert_outcomes(passed=1, failed=1)


WAITS = """
import os, pathlib, pytest, signal, time

@pytest.fixture
def torn():
    yield
    pathlib.Path("torn").write_text("down")

@pytest.mark.replay("fixtures/weather")
def test_waits(torn):
    pathlib.Path("waits").write_text(f"{os.getpid()} {os.getppid()}")
    while True:
        os.read(os.open("pipe", os.O_RDONLY), 1)
"""


@pytest.mark.slow
def test_ctrl_c_ends_everything(project: pytest.Pytester) -> None:
    """Ctrl-C interrupts and tears down the isolated test, and no child or template process is left."""
    write(project, test_waits=WAITS)
    os.mkfifo(project.path / "pipe")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist"]
    with subprocess.Popen(
        command, cwd=project.path, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as started:
        file = project.path / "waits"
        held = os.open(project.path / "pipe", os.O_WRONLY)  # returns when the test opens the pipe
        os.killpg(started.pid, signal.SIGINT)
        shown, _ = started.communicate(timeout=60)
        os.close(held)
    assert "KeyboardInterrupt" in shown
    assert started.returncode == pytest.ExitCode.INTERRUPTED
    assert (project.path / "torn").read_text() == "down"
    for each in file.read_text().split():
        assert not Path(f"/proc/{each}").exists()


@pytest.mark.slow
def test_an_interrupt_in_a_test_ends_the_run(project: pytest.Pytester) -> None:
    """`KeyboardInterrupt` and `pytest.exit` in an isolated test end the run."""
    header = 'import pytest\npytestmark = pytest.mark.replay("fixtures/weather")\n'
    write(project, test_a=header + "def test_a(): raise KeyboardInterrupt\ndef test_b(): pass\n")
    assert run(project, no_reraise_ctrlc=True).ret == pytest.ExitCode.INTERRUPTED
    write(project, test_a=header + "def test_a(): pytest.exit('enough', 7)\ndef test_b(): pass\n")
    result = run(project)
    result.stdout.fnmatch_lines(["*enough*"])
    assert result.ret == 7


def test_leftovers_of_every_kind_are_named(
    tmp_path: Path, recording: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Changed values of a module, its classes and its objects are named as leftover state; unchanged values are not."""
    monkeypatch.setattr(leftover_state, "NAMED_MAX", 100)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "kept.py").write_text(
        "import collections, functools, itertools\n"
        "class Memory:\n    shared = []\n    def __init__(self): self.seen, self.sent = set(), object()\n"
        "    def look(self): ...\n"
        "memory = Memory()\nnumbers = itertools.count()\nlast = collections.deque()\n"
        "same = [1]\nlimit = 3\nclient = None\n"
        "@functools.cache\ndef looked(key): return key\n"
        "def other(): ...\nother.cache_info = None\n"
    )
    (tmp_path / "recording.jsonl").write_bytes(recording)
    fixture = load(tmp_path)
    module: Any = importlib.import_module("kept")
    leftover_state.forget()
    try:
        assert leftover_state.begin(fixture) == ""
        module.Memory.shared.append(1)
        module.memory.seen.add(1)
        module.memory.sent = object()
        next(module.numbers)
        module.last.append(1)
        module.client = object()
        module.looked("a")
        hint = leftover_state.begin(fixture)
    finally:
        leftover_state.forget()
        del sys.modules["kept"]
    for name in (
        "kept.Memory.shared (list, 0 -> 1 items)",
        "kept.memory.seen (set, 0 -> 1 items)",
        "kept.numbers (set to another value)",
        "kept.last (deque, 0 -> 1 items)",
        "kept.client (set to another value)",
        "kept.looked (lru_cache, 1 entries)",
    ):
        assert name in hint
    assert "kept.memory.sent" not in hint
    assert "kept.same" not in hint
    assert "kept.limit" not in hint


OWN = """
import os
import sys

def pytest_configure(config):
    config.own = os.getpid()
"""
WHERE = """
import os
import pytest

@pytest.mark.replay("fixtures/weather")
def test_where(replay, pytestconfig{fixture}):
    replay.run()
    assert (os.getpid() == pytestconfig.own) is {here}
"""


@pytest.mark.parametrize(
    ("arguments", "fixture", "tracer", "here"),
    mark_all_but_first(
        [
            ((), "", "", False),
            ((), ", record_property", "", False),
            ((), ", record_xml_attribute", "", True),
            (("--pdb",), "", "", True),
            (("--setup-show",), "", "", True),
            ((), "", "    sys.settrace(lambda *given: None)\n", True),
        ],
        pytest.mark.slow,
    ),
    ids=["forks", "property", "attribute", "pdb", "setup-show", "traced"],
)
def test_debuggers_and_unshareable_fixtures_stay_in_this_process(
    project: pytest.Pytester, arguments: tuple[str, ...], fixture: str, tracer: str, here: bool
) -> None:
    """With a debugger, or a pytest fixture that changes objects of the pytest process, a test runs in the pytest
    process.
    """
    write(project, conftest=OWN + tracer, test_a=WHERE.format(fixture=fixture, here=here))
    before = sys.gettrace()
    try:
        run(project, *arguments).assert_outcomes(passed=1)
    finally:
        sys.settrace(before)


BUSY = """
import logging
import threading

import agentobs
from agentobs.recording.session import start_recorder

def pytest_sessionstart(session):
    start_recorder("home")
    def work():
        while not session.config.ends.is_set():
            with agentobs.session("busy"), agentobs.span("inner"):
                logging.getLogger("busy").warning("again")
    session.config.ends = threading.Event()
    session.config.busy = [threading.Thread(target=work) for _ in range(2)]
    for each in session.config.busy:
        each.start()

def pytest_sessionfinish(session):
    session.config.ends.set()
    for each in session.config.busy:
        each.join()
    assert agentobs.stop_recorder()
"""


@pytest.mark.slow
def test_locks_of_this_process_do_not_block_a_child(project: pytest.Pytester) -> None:
    """Locks that a recorder or logging threads hold in the pytest process do not block an isolated test."""
    write(project, conftest=BUSY, test_a=GENERATED, test_b=ORDINARY, test_c=GENERATED)
    run(project, "-p", "no:logging").assert_outcomes(passed=5)
