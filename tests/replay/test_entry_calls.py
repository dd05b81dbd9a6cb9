"""Every way to start an agent: recorded in one process, and replayed by the generated test in another process."""

from __future__ import annotations

import ast
import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner

from agentobs.cli import cli
from agentobs.errors import UsageError
from agentobs.recording.wire.provider_server import ServedProvider, ServeOptions
from replay import Fixture, load
from replay.agent_code.entry_call import _is_here, recorded_call
from replay.agent_code.entry_obstacles import why_not_callable
from replay.agent_code.project import project_at
from tests.provider_script import script
from tests.replay.test_normalizers import unstreamed

AGENTS = '''
import asyncio, datetime, enum, functools, pathlib, sys
from dataclasses import dataclass
import click, pydantic
from anthropic import Anthropic, AsyncAnthropic
import agentobs


def ask(words):
    client = agentobs.record(Anthropic(max_retries=0))
    prompt = [{"role": "user", "content": str(words)}]
    return client.messages.create(model="claude-sonnet-5", max_tokens=9, messages=prompt).content[0].text


async def aask(words):
    async with agentobs.record(AsyncAnthropic(max_retries=0)) as client:
        prompt = [{"role": "user", "content": str(words)}]
        answer = await client.messages.create(model="claude-sonnet-5", max_tokens=9, messages=prompt)
        return answer.content[0].text


@click.command()
@click.option("--city")
@click.option("--out", type=click.Path(path_type=pathlib.Path))
def command(city, out):
    with agentobs.session("command"):
        ask(f"{city} {out.name}")


@click.group()
def group(): ...


@group.command("sub")
@click.argument("city")
@agentobs.session("subcommand")
def subcommand(city):
    ask(city)


@agentobs.session("generator")
def generator(cities):
    for city in cities:
        yield ask(city)


@agentobs.session("stopped")
def stopped():
    for number in range(5):
        yield ask(f"city {number}")


@agentobs.session("async-generator")
async def async_generator(city, *, times):
    for number in range(times):
        yield await aask(f"{city} {number}")


def inside_generator(city):
    with agentobs.session("inside-generator"):
        yield ask(city)
        yield ask(city + "!")


class Plain:
    @agentobs.session("method")
    def method(self, city):
        return ask(city)

    def with_block(self, city="Oslo"):
        with agentobs.session("block-method"):
            return ask(city)

    @classmethod
    @agentobs.session("class-method")
    def class_method(cls, city):
        return ask(f"{cls.__name__} {city}")

    @staticmethod
    @agentobs.session("static-method")
    def static_method(city):
        return ask(city)

    @agentobs.session("callable-object")
    def __call__(self, city):
        return ask(city)

    @agentobs.session("async-method")
    async def async_method(self, city):
        return await aask(city)


class Heir(Plain):
    pass


class Needs:
    def __init__(self, prefix):
        self.prefix = prefix

    def run(self, city):
        with agentobs.session(self.prefix):
            return ask(f"{self.prefix} {city}")


known = Needs("module-instance")


class Color(enum.Enum):
    RED = "red"


@dataclass
class Trip:
    city: str
    when: datetime.datetime
    color: Color


class Order(pydantic.BaseModel):
    item: str
    count: int = 1


@agentobs.session("typed")
def typed(trip: Trip, orders: list[Order], color: Color | None = None, path: pathlib.Path = pathlib.Path("x")):
    return ask(f"{trip.city} {trip.when:%Y} {trip.color.name} {orders[0].count} {color} {path.name}")


@agentobs.session("stars")
def stars(first, /, *rest, last, **more):
    return ask(f"{first} {rest} {last} {more}")


def wrapping(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)
    return wrapper


@wrapping
def wrapped(city):
    with agentobs.session("wrapped"):
        return ask(city)


class Registered:
    """What some decorators make of a function."""
    def __init__(self, fn):
        self.fn = fn


@Registered
@agentobs.session("registered")
def registered(city):
    return ask(city)


partial = functools.partial(wrapped, city="partial")
a_lambda = lambda: agentobs.session("lambda")(lambda city: ask(city))("Oslo")


def nesting():
    @agentobs.session("nested")
    def nested(city):
        return ask(city)
    nested("Oslo")


@agentobs.session("not-json")
def not_json(client, city):
    return ask(city)


async def drain(source):
    return [value async for value in source]


def record_all():
    command(["--city", "Rome", "--out", "a/b.txt"], standalone_mode=False)
    group(["sub", "Rome"], standalone_mode=False)
    assert list(generator(["Oslo", "Rome"])) == ["Done.", "Done."]
    first = stopped()
    next(first), next(first)
    first.close()
    assert asyncio.run(drain(async_generator("Oslo", times=2))) == ["Done.", "Done."]
    list(inside_generator("Oslo"))
    Plain().method("Oslo")
    Plain().with_block()
    Heir.class_method("Oslo")
    Plain.static_method("Oslo")
    Plain()("Oslo")
    asyncio.run(Heir().async_method("Oslo"))
    Needs("constructor").run("Oslo")
    known.run("Oslo")
    when = datetime.datetime(2026, 11, 23, tzinfo=datetime.timezone.utc)
    typed(Trip("Oslo", when, Color.RED), [Order(item="x", count=3)], Color.RED)
    stars(1, 2, 3, last=4, more=5)
    wrapped("Oslo")
    registered.fn("Oslo")
    a_lambda()
    nesting()
    not_json(object(), "Oslo")
'''
SCRIPT = """
import sys
import agentobs
from agents import ask

if __name__ == "__main__":
    with agentobs.session("script"):
        ask(sys.argv[1])
"""
CALLABLE = [
    "command", "subcommand", "generator", "stopped", "async-generator", "inside-generator", "method", "block-method",
    "class-method", "static-method", "callable-object", "async-method", "module-instance", "typed", "stars", "wrapped",
    "registered", "script",
]  # fmt: skip
FIXED = {
    "constructor": ("from agents import Needs", 'replay.run(Needs(prefix="constructor").run, city="Oslo")'),
    "not-json": ("from agents import not_json", 'replay.run(not_json, client=None, city="Oslo")'),
    "lambda": ("from agents import ask", 'replay.run(lambda: agents.a_lambda())'),
    "nested": ("from agents import nesting", "replay.run(nesting)"),
}  # fmt: skip
"""For each recorded entry that cannot be called: the two lines that replace its call in the test, completed by hand."""
NOTEBOOK = """
import agentobs
from agents import ask
source = "@agentobs.session('notebook')\\ndef cell(city):\\n    return ask(city)\\ncell('Oslo')\\n"
names = {"__name__": "__main__", "agentobs": agentobs, "ask": ask}
exec(compile(source, "/tmp/ipykernel_4711/1234.py", "exec"), names)
"""
RECORD = f"import agents; agents.record_all()\n{NOTEBOOK}"


class Project:
    """A folder with agents that run in separate processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "agents.py").write_text(AGENTS)
        (folder / "scripts").mkdir()
        (folder / "scripts" / "talk.py").write_text(SCRIPT)
        self.env = {**os.environ, "AGENTOBS_HOME": str(folder / "home"), "PYTHONPATH": str(folder)}
        for name in ("ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY", "PYTEST_ADDOPTS"):
            self.env.pop(name, None)

    def run(self, *command: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *command], cwd=self.folder, env={**self.env, **env},
            capture_output=True, text=True, check=False,
        )  # fmt: skip

    def record(self, *commands: tuple[str, ...]) -> None:
        answers = [unstreamed(n, "Done.") for n in range(1, 60)]
        with ServedProvider(script(*answers), ServeOptions(match="order")) as provider:
            for command in commands:
                key = {"ANTHROPIC_BASE_URL": provider.url, "ANTHROPIC_API_KEY": "sk-ant-made-up"}
                done = self.run(*command, **key)
                assert done.returncode == 0, done.stderr

    def freeze(self, *sessions: str, options: tuple[str, ...] = ()) -> str:
        command = ["--home", self.env["AGENTOBS_HOME"], "freeze", *sessions, *options]
        with contextlib.chdir(self.folder):
            done = CliRunner(env={"PYTHONPATH": str(self.folder)}).invoke(cli, command)
        assert done.exit_code == 0, done.output
        return done.stdout

    def test(self, pytester: pytest.Pytester, *paths: str) -> Mapping[str, str]:
        """Run generated tests in this process, which has not imported the agents; return the outcomes by fixture."""
        pytester.syspathinsert(self.folder)
        options = ("-q", "-rA", "-p", "no:cacheprovider", "-p", "no:xdist")
        with contextlib.chdir(self.folder):
            done = pytester.runpytest_inprocess(*options, *paths)
        self.output = done.stdout.str()
        found = re.findall(r"^(PASSED|FAILED|ERROR) fixtures/([\w-]+)/", self.output, re.M)
        assert found, self.output
        return {name: outcome for outcome, name in found}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    project_folder = Project(tmp_path_factory.mktemp("project"))
    project_folder.record(("-c", RECORD), ("scripts/talk.py", "Oslo"))
    return project_folder


@pytest.mark.slow
def test_entries_that_can_be_called_replay_unedited(
    project: Project, pytester: pytest.Pytester, warm_process: None
) -> None:
    """If an entry can be called, the generated test passes unedited, with the recorded arguments."""
    output = project.freeze(*CALLABLE, options=("--no-check",))
    assert "add this import" not in output
    results = project.test(pytester, *(f"fixtures/{name}" for name in CALLABLE))
    assert results == dict.fromkeys(CALLABLE, "PASSED"), project.output


@pytest.mark.slow
def test_entries_that_cannot_be_called_are_explained(
    project: Project, pytester: pytest.Pytester, warm_process: None
) -> None:
    """If an entry cannot be called, `freeze` prints the reason and two lines with which the test passes after they are
    completed.
    """
    output = " ".join(project.freeze(*FIXED).split())
    for reason in (
        "agents:Needs.run is a method of Needs, whose constructor needs prefix",
        "add this import, and replace `...` in replay.run(...) with these arguments: "
        "from agents import Needs Needs(prefix=...).run, city=... pytest",
        "agents:not_json was called with client (builtins:object), which cannot be stored in a fixture",
        "from agents import not_json not_json, client=..., city=... pytest",
        "the session was started by a lambda of agents",
        "the session was started by a function that is defined inside agents:nesting",
    ):
        assert reason in output
    assert project.test(pytester, *(f"fixtures/{name}" for name in FIXED)) == dict.fromkeys(
        FIXED, "FAILED"
    )
    for name, (first, call) in FIXED.items():
        [test] = (project.folder / "fixtures" / name).glob("test_*.py")
        source = re.sub(r"replay\.run\(.*\)", call, test.read_text())
        test.write_text(
            source.replace("import pytest\n", f"import agents\nimport pytest\n\n{first}\n", 1)
        )
    results = project.test(pytester, *(f"fixtures/{name}" for name in FIXED))
    assert results == dict.fromkeys(FIXED, "PASSED"), project.output


@pytest.mark.soak
def test_an_entry_on_the_command_line(
    project: Project, pytester: pytest.Pytester, warm_process: None
) -> None:
    """A missing entry can be set for one replay, or in the fixture."""
    lines = project.freeze("nested", "-o", "fixtures/named", options=("--entry", "agents:nesting"))
    assert "add this import" not in lines
    assert project.test(pytester, "fixtures/named") == {"named": "PASSED"}
    project.freeze("notebook", "-o", "fixtures/notebook")
    header = load(project.folder / "fixtures" / "notebook").header
    problem = why_not_callable(header)
    assert problem is not None
    assert "cell of a notebook" in problem.reason
    replayed = ("-m", "agentobs", "replay", "fixtures/notebook")
    refused = project.run(*replayed)
    assert "cell of a notebook" in refused.stderr
    assert "director" not in refused.stderr
    for args in ('{"city": "Oslo"}', '["Oslo"]'):
        done = project.run(*replayed, "--entry", "agents:Plain.method", "--args", args)
        assert "MATCHED" in done.stdout, done.stdout + done.stderr
    other = project.run(*replayed, "--entry", "agents:Plain.method", "--args", '["Rome"]')
    assert (other.returncode, "DIVERGED" in other.stdout) == (1, True)
    for entry, says in (
        ("os:system", "is not in a file under"),
        ("agents:gone", "agents has no gone"),
        ("agents:Needs.run", "whose constructor needs prefix"),
        ("agents:Color", "expected"),
        ("no name", "does not name a function"),
    ):
        refused = project.run(*replayed, "--entry", entry, "--args", '["Oslo"]')
        assert refused.returncode != 0
        if says != "expected":
            assert says in refused.stderr, refused.stderr


@pytest.mark.parametrize(
    ("python", "is_refused"),
    [
        ("env", True),
        ("env/lib/python3/site-packages", True),
        ("other", False),
        ("", False),
        ("..", False),
    ],
)
def test_an_entry_in_an_installed_package_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, python: str, is_refused: bool
) -> None:
    """Only entries in installed packages are rejected, whether the environment is inside the project, around it, or the
    project itself.
    """
    here = tmp_path / "project"
    file = (
        here / "env" / "lib" / "python3" / "site-packages" / "tool.py"
        if "site" in python
        else here / "env" / "a.py"
    )
    file.parent.mkdir(parents=True)
    file.write_text("")
    for name in ("prefix", "exec_prefix", "base_prefix", "base_exec_prefix"):
        monkeypatch.setattr(sys, name, str((here / python).resolve()))
    with project_at(here):
        assert _is_here(str(file)) is not is_refused


def test_an_entry_in_the_standard_library_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry in the standard library is rejected even if Python is installed below the project directory."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    for folder in (Path(subprocess.__file__).parents[depth] for depth in range(3)):
        with project_at(folder):
            assert not _is_here(subprocess.__file__)
        recorded_arguments = {"*": [["id", "-un"]]}
        header = {
            "entry": "subprocess:check_output",
            "arguments": recorded_arguments,
            "agentobs_fixture": 1,
        }
        with project_at(folder), pytest.raises(UsageError, match="so it is not started"):
            recorded_call(Fixture(Path("stranger.jsonl"), header, [], [], []), {})


@pytest.mark.soak
def test_a_fixture_starts_no_script_that_is_not_an_agent(project: Project) -> None:
    """A script that does not use agentobs is not run, because a fixture can come from an untrusted source."""
    (project.folder / "scripts" / "wipe.py").write_text("print('wiped')\n")
    project.freeze("script", "-o", "fixtures/other-script")
    for entry, says in (
        ("wipe:__main__", "there is no module wipe"),
        ("json:__main__", "is not in a file under"),
    ):
        done = project.run("-m", "agentobs", "replay", "fixtures/other-script", "--entry", entry)
        assert done.returncode != 0
        assert says in done.stderr
        assert "wiped" not in done.stdout
    (project.folder / "wipe2.py").write_text("print('wiped')\n")
    done = project.run(
        "-m", "agentobs", "replay", "fixtures/other-script", "--entry", "wipe2:__main__"
    )
    assert "does not use agentobs" in done.stderr
    assert "wiped" not in done.stdout


def test_the_entry_in_a_header_is_never_code() -> None:
    """Whatever a fixture's header contains, the proposed lines for the test contain only names, and every reason is a
    sentence.
    """
    assert why_not_callable({"entry": "a:b", "arguments": {}}) is None
    evil = {
        "module": "a;import os",
        "outer": "x\n",
        "names": ["a=1)#", "fine"],
        "needs": ["b()", "key"],
    }
    kinds = [
        "lambda", "nested", "notebook", "interactive", "import", "arguments", "constructor", "view", "method",
        "locals", "signature", "outside", "spawned", "unheard-of", "",
    ]  # fmt: skip
    for kind in kinds:
        for entry in (None, "a:b.c", "a;b:c", "a:b()"):
            obstacle = why_not_callable(
                {"entry": entry, "arguments": None, "obstacle": {"kind": kind, **evil}}
            )
            assert obstacle is not None
            assert len(obstacle.reason) > 20
            assert "\n" not in obstacle.reason
            for line in obstacle.lines:
                ast.parse(line)
                assert "os" not in line.split("import")[-1].split()
                assert "b()" not in line


PROCESSES = """
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
import agentobs
from agents import ask


def work(words, queue):
    queue.put(ask(words))


@agentobs.session("through-a-queue")
def through(kind):
    ask("first")
    context = multiprocessing.get_context(kind)
    queue = context.Queue()
    context.Process(target=work, args=("child", queue)).start()
    return queue.get()


@agentobs.session("pool")
def pooled():
    ask("first")
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(ask, "child").result()


@agentobs.session("computing")
def computing():
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return ask(str(pool.map(abs, [-1, -2])))


@agentobs.session("in-child")
def in_child(words):
    return ask(words)


if __name__ == "__main__":
    through("fork") if sys.argv[1] == "fork" else through("spawn")
    pooled()
    computing()
    child = multiprocessing.get_context("spawn").Process(target=in_child, args=("c",))
    child.start()
    child.join()
"""


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["fork", "spawn"])
def test_children_of_multiprocessing(tmp_path: Path, kind: str) -> None:
    """A request in a child process of `multiprocessing` ends the replay with the reason; a child with its own session
    replays.
    """
    project = Project(tmp_path)
    (tmp_path / "processes.py").write_text(PROCESSES)
    project.record(("processes.py", kind))
    project.freeze("through-a-queue", "pool", "computing", "in-child")
    for name in ("through-a-queue", "pool"):
        output = " ".join(
            project.run("-m", "agentobs", "replay", f"fixtures/{name}").stdout.split()
        )
        assert (
            "a process that multiprocessing started made a request, which a replay cannot answer"
            in output
        )
        assert "subprocess and the environment of agentobs.child_environment(name)" in output
        assert "made no progress" not in output
    for name in ("computing", "in-child"):
        done = project.run("-m", "agentobs", "replay", f"fixtures/{name}")
        assert "MATCHED" in done.stdout, done.stdout + done.stderr
