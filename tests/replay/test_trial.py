"""The check of `agentobs freeze` replays each agent in new processes and prints the result."""

from __future__ import annotations

import io
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, chdir, nullcontext, redirect_stderr, redirect_stdout
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from agentobs.cli import main
from agentobs.recording.wire.provider_server import ServedProvider, ServeOptions
from agentobs.records.exchanges import Answer
from replay.fixture.format import load
from replay.trial.fixture_trial import Trials, seconds_ahead
from tests.provider_script import call, script, streamed, text

pytestmark = [pytest.mark.xdist_group("trial"), pytest.mark.slow]

SHOP = """
import datetime, itertools, os, pathlib, signal, sys, tempfile, threading, time, uuid
import agentobs
from anthropic import Anthropic

IS_RECORDED = "URL" in os.environ
HERE = pathlib.Path(__file__).parent
# Not a literal: its order in a fresh process also depends on whether the module was compiled or read from a cache.
WORDS = set("apple pear plum quince fig date melon cherry".split())


def ask(prompt, system="Be brief."):
    client = agentobs.record(Anthropic(api_key="sk-made-up", base_url=os.environ.get("URL")))
    asked = [{"role": "user", "content": prompt}]
    return list(client.messages.create(model="m", max_tokens=9, stream=True, system=system, messages=asked))


@agentobs.session("fine")
def fine(prompt):
    print("printed by the agent")
    ask(prompt)

@agentobs.session("dated")
def dated(prompt):
    ask(prompt, f"Today is {datetime.date.today()}. Be brief.")

@agentobs.session("two-kinds")
def two_kinds(prompt):
    ask(f"{prompt} Order {uuid.uuid4()}", f"It is {datetime.datetime.now():%Y-%m-%d %H:%M:%S.%f}.")

@agentobs.session("set-order")
def set_order(prompt):
    ask(prompt, "Known words: " + ", ".join(WORDS))

@agentobs.session("relative")
def relative(prompt):
    ask(prompt, pathlib.Path("prompts/system.md").read_text())

@agentobs.session("swallows")
def swallows(prompt):
    try:
        system = open("prompts/system.md").read()
    except OSError:
        system = "No prompt was found."
    ask(prompt, system)

@agentobs.session("zoned")
def zoned(prompt):
    ask(prompt, f"You work in the zone {time.strftime('%Z')}.")

@agentobs.session("temporary")
def temporary(prompt):
    ask(prompt, f"Work in {tempfile.mkdtemp()}.")

@agentobs.session("directory")
def directory(prompt):
    ask(prompt, f"You work in {os.path.basename(os.getcwd())}.")

@agentobs.session("random")
def random_(prompt):
    ask(prompt, f"Pick {uuid.uuid4().int % 10**12:012}q.")

@agentobs.session("hangs")
def hangs(prompt):
    lock = threading.Lock()
    lock.acquire()
    if not IS_RECORDED:
        lock.acquire()
    ask(prompt)

@agentobs.session("busy")
def busy(prompt):
    if not IS_RECORDED:
        sum(itertools.repeat(1))  # never lets go of the interpreter
    ask(prompt)

@agentobs.session("dies")
def dies(prompt):
    if not IS_RECORDED:
        os._exit(7)
    ask(prompt)

@agentobs.session("killed")
def killed(prompt):
    if not IS_RECORDED:
        os.kill(os.getpid(), signal.SIGKILL)
    ask(prompt)

@agentobs.session("raises")
def raises(prompt):
    ask(prompt)
    raise LookupError("no such order")

@agentobs.session("raises-now")
def raises_now(prompt):
    if not IS_RECORDED:
        raise KeyError("a table")
    ask(prompt)

@agentobs.session("given-object")
def given_object(prompt, thing):
    ask(prompt)

def anonymous(prompt):
    def inner():
        with agentobs.session("anonymous"):
            ask(prompt)
    inner()

@agentobs.session("noisy-exit")
def noisy_exit(prompt):
    ask(prompt)
    if not IS_RECORDED:
        threading.Thread(target=threading.Event().wait).start()

@agentobs.session("waits")
def waits(prompt):
    print("printed by the agent")
    while not IS_RECORDED:
        with open(HERE / "pids", "a") as file:
            file.write(f"{os.getpid()}\\n")
        threading.Lock().acquire()
        threading.Event().wait()
    ask(prompt)

@agentobs.record_tool
def price(fruit):
    return "2.50"

def weigh(fruit):
    with open("weighed", "a") as file:
        file.write("recorded\\n" if IS_RECORDED else "replayed\\n")
    return "100 g"

@agentobs.session("tools")
def tools(prompt):
    client = agentobs.record(Anthropic(api_key="sk-made-up", base_url=os.environ.get("URL")))
    asked = [{"role": "user", "content": prompt}]
    for _ in range(2):
        with client.messages.stream(model="m", max_tokens=9, messages=asked) as stream:
            message = stream.get_final_message()
        results = [
            {"type": "tool_result", "tool_use_id": block.id, "content": globals()[block.name](**block.input)}
            for block in message.content
            if block.type == "tool_use"
        ]
        asked += [{"role": "assistant", "content": [b.to_dict() for b in message.content]},
                  {"role": "user", "content": results}]
"""
RUNS = """
import sys
import gone, outside, shop

for name in sys.argv[1:]:
    start = next(getattr(module, name) for module in (shop, outside, gone) if hasattr(module, name))
    try:
        start("Hello.", *([object()] if name == "given_object" else []))
    except LookupError:
        pass
"""
NAMES = [
    *re.findall(r"^def (\w+)\(prompt", SHOP.partition("def ask(")[2], re.MULTILINE),
    "outside",
    "gone",
]
SESSIONS = [
    *re.findall(r'^@agentobs.session\("(.+)"\)', SHOP, re.MULTILINE),
    "anonymous",
    "outside",
    "gone",
]
ELSEWHERE = """
import agentobs

@agentobs.session("{name}")
def {name}(prompt):
    import shop
    shop.ask(prompt)
"""


def answers_for(name: str) -> list[Answer]:
    """Return the responses of the model to one of the agents."""
    if name != "tools":
        return [streamed(text("Hi."))]
    return [
        streamed(call(1, "price", fruit="fig"), call(2, "weigh", fruit="fig")),
        streamed(text("Hi.")),
    ]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with recorded sessions of many small agents; one is outside of the project, and one was deleted."""
    path = tmp_path_factory.mktemp("shop")
    project, elsewhere = path / "project", path / "elsewhere"
    (project / "prompts").mkdir(parents=True)
    elsewhere.mkdir()
    (project / "prompts" / "system.md").write_text("You sell fruit.")
    (project / "shop.py").write_text(SHOP)
    (project / "gone.py").write_text(ELSEWHERE.format(name="gone"))
    (elsewhere / "outside.py").write_text(ELSEWHERE.format(name="outside"))
    answers = script(*(answer for name in NAMES for answer in answers_for(name)))
    with ServedProvider(answers, ServeOptions("order")) as provider:
        subprocess.run(
            [sys.executable, "-c", RUNS, *NAMES],
            cwd=project,
            env={
                **os.environ,
                "URL": provider.url,
                "PYTHONPATH": f"{project}{os.pathsep}{elsewhere}",
                "PYTHONHASHSEED": "1",
                "AGENTOBS_HOME": str(path / "home"),
            },
            check=True,
            timeout=100,
        )
    (project / "gone.py").unlink()
    return project


LIMIT_SECONDS = 120.0
"""The default of `--check-timeout`."""


@pytest.fixture(scope="module")
def project(shop: Path) -> Iterator[Path]:
    """The project; all commands in this process use the same worker processes, because they start slowly."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("URL", raising=False)
        patch.setenv("PYTHONHASHSEED", "1")
        trials = Trials(shop, LIMIT_SECONDS)

    def opened(directory: Path, limit_s: float) -> AbstractContextManager[Trials]:
        assert (directory, limit_s) == (shop, LIMIT_SECONDS)
        return nullcontext(trials)

    with trials, pytest.MonkeyPatch.context() as patch:
        patch.setattr("replay.trial.fixture_trial.Trials", opened)
        yield shop


def frozen(project: Path, *arguments: str) -> dict[str, str]:
    """Freeze sessions, and return the output about each of them by session name."""
    return by_session(ran(project, "freeze", *arguments, "-o", "fixtures"))


def by_session(out: str) -> dict[str, str]:
    """Return the output of `agentobs freeze` about each session by session name."""
    assert "printed by the agent" not in out
    written = re.compile("^(?:wrote|kept ) *fixtures/(.+)/recording.jsonl", re.MULTILINE)
    return {written.findall(part)[0]: part for part in out.split("froze  ")[1:]}


def verdict_in(part: str) -> list[str]:
    """Return the lines about the check in the output about a session."""
    lines = part.splitlines()
    begins = next(at for at, line in enumerate(lines) if line.startswith("replays"))
    ends = next(at for at, line in enumerate(lines) if line.startswith("next   "))
    verdict = lines[begins:ends]
    assert not any(len(line) > 80 for line in verdict if "/" not in line), verdict
    return verdict


@pytest.fixture(scope="module")
def outputs(project: Path) -> dict[str, str]:
    """The output of one `agentobs freeze` about each agent that ends by itself, by session name."""
    before = recordings(project)
    result = frozen(project, *(name for name in SESSIONS if name not in ("hangs", "busy", "waits")))
    assert recordings(project) == before
    assert not (project / ".agentobs").exists()
    return result


@pytest.fixture(scope="module")
def verdicts(outputs: dict[str, str]) -> dict[str, list[str]]:
    """The printed lines about the check of each agent that ends by itself."""
    return {name: verdict_in(part) for name, part in outputs.items()}


def recordings(project: Path) -> list[str]:
    return sorted(path.name for path in (project.parent / "home" / "segments").iterdir())


def ran(project: Path, *arguments: str) -> str:
    """Run a command in the project, in this process, and return its output."""
    out, err = io.StringIO(), io.StringIO()
    with chdir(project), redirect_stdout(out), redirect_stderr(err):
        main(["--home", "../home", *arguments])
    assert err.getvalue() == ""
    return out.getvalue()


def command(project: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start a command in the project as a user does, but with the hash seed of the recording."""
    environment = {key: value for key, value in os.environ.items() if key != "URL"}
    return subprocess.Popen(
        [sys.executable, "-m", "agentobs", "--home", "../home", *arguments],
        cwd=project,
        env={**environment, "PYTHONHASHSEED": "1", "TZ": "UTC"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


YES = ["replays: yes, 2 of 2 (1 with changed directory, date, time zone and hash seed)"]


@pytest.mark.parametrize("name", ["fine", "noisy-exit", "raises"])
def test_an_agent_that_replays_has_a_one_line_verdict(
    verdicts: dict[str, list[str]], name: str
) -> None:
    """The verdict is one line, even for an agent that raises as recorded or leaves a thread running."""
    assert verdicts[name] == YES


NEEDS_RULES = {
    "dated": ("depends on the date", "rule time"),
    "temporary": ("differs from the recording", "rule tmp_path"),
    "two-kinds": ("differs from the recording", "rules uuid and time"),
}


@pytest.mark.parametrize("name", NEEDS_RULES)
def test_the_needed_rules_are_proposed(verdicts: dict[str, list[str]], name: str) -> None:
    """The output shows the difference and the rules that would hide it, then the command that adds these rules."""
    (difference, rules), out = NEEDS_RULES[name], verdicts[name]
    assert out[0].startswith(f"replays: no, because request 1 of 1 {difference}")
    assert any(line.strip().startswith("recorded  ") for line in out)
    them = "them" if rules.startswith("rules") else "it"
    assert f"         the {rules} would hide this difference; to apply {them}:" in out


@pytest.mark.parametrize(
    "name",
    [
        each if each == "two-kinds" else pytest.param(each, marks=pytest.mark.soak)
        for each in NEEDS_RULES
    ],
)
def test_apply_adds_the_proposed_rules(
    project: Path, verdicts: dict[str, list[str]], name: str
) -> None:
    """The printed `--apply` command makes the fixture replay, and freezing again keeps the rules."""
    printed, rules = shlex.split(verdicts[name][-1]), NEEDS_RULES[name][1]
    assert printed[0] == "agentobs"
    applied = ran(project, *printed[printed.index("freeze") :]).partition("next   ")[0].splitlines()
    assert f"added  the {rules} to fixtures/{name}/recording.jsonl" in applied
    assert applied[-1:] == YES
    again = ran(project, "freeze", name, "-o", f"fixtures/{name}")
    assert again.splitlines().count(YES[0]) == 1
    names = rules.split(" ", 1)[1].split(" and ")
    assert load(project / "fixtures" / name).header["normalizers"] == names


DEPENDENT = {
    "set-order": "no, because request 1 of 1 depends on the hash seed",
    "zoned": "no, because request 1 of 1 depends on the time zone",
    "relative": "no, only from this directory: shop.py:LINE in relative reads",
    "swallows": "no, only from this directory: shop.py:LINE in swallows reads",
    "directory": "no, only from this directory: request 1 of 1 depends on the directory",
    "random": "no, because request 1 of 1 differs from the recording",
}


@pytest.mark.parametrize("name", DEPENDENT)
def test_the_cause_of_a_failure_is_named(verdicts: dict[str, list[str]], name: str) -> None:
    """The verdict names the changed condition that causes the failure, and no rule is proposed."""
    assert re.sub(r":\d+ in", ":LINE in", verdicts[name][0]) == f"replays: {DEPENDENT[name]}"
    assert not any("would hide" in line for line in verdicts[name])


def test_a_file_that_is_read_by_a_relative_path_is_named(verdicts: dict[str, list[str]]) -> None:
    """The verdict names the path with advice; if the agent continues without the file, the difference is shown."""
    assert "         'prompts/system.md'" in verdicts["relative"]
    out = verdicts["swallows"]
    assert '             recorded  "You sell fruit."' in out
    assert '             now       "No prompt was found."' in out
    assert "Path(__file__).parent / ..." in " ".join(line.strip() for line in out)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("dies", "the process ended before the replay: exit code 7"),
        ("killed", "the process ended before the replay: signal 9"),
        ("raises-now", "the agent raised KeyError: 'a table', at shop.py:LINE in raises_now"),
    ],
)
def test_a_failing_agent_is_reported_in_one_line(
    verdicts: dict[str, list[str]], name: str, expected: str
) -> None:
    """If the process exits, is killed or raises an exception, one line reports the known details."""
    out = " ".join(line.strip() for line in verdicts[name])
    assert re.sub(r":\d+ in", ":LINE in", out) == f"replays: no, because {expected}"


@pytest.mark.soak
def test_a_hanging_agent_is_stopped(shop: Path) -> None:
    """An agent that waits forever, or blocks the interpreter, is stopped, and the report names the line of its code."""
    options = ("-o", "fixtures", "--check-timeout", "40")
    with command(shop, "freeze", "hangs", "busy", *options) as ended:
        out, err = ended.communicate(timeout=400)
    assert (ended.returncode, err) == (0, "")
    result = by_session(out)
    waits, busy = (
        " ".join(line.strip() for line in verdict_in(result[name])) for name in ("hangs", "busy")
    )
    assert waits.startswith("replays: no, because the agent made no progress for 20 seconds")
    assert re.search(r"shop\.py:\d+ in hangs", waits)
    assert re.fullmatch(
        r"replays: no, because the agent did not end within 40 seconds, at shop\.py:\d+ in busy "
        r"if the agent needs more time, use --check-timeout",
        busy,
    )


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("given-object", "shop:given_object was called with"),
        ("anonymous", "the session was started by"),
        ("outside", "the recorded entry outside:outside is not in a file"),
        ("gone", "the recorded entry gone:gone is not in a file"),
    ],
)
def test_an_agent_that_cannot_be_started_is_not_replayed(
    verdicts: dict[str, list[str]], name: str, reason: str
) -> None:
    """If the agent cannot be started, the verdict gives the reason, and no replay is tried."""
    assert verdicts[name][0].startswith(f"replays: not tried, because {reason}")


@pytest.mark.parametrize("name", ["outside", "gone"])
def test_next_steps_for_an_entry_that_cannot_be_called(outputs: dict[str, str], name: str) -> None:
    """The report explains once how to choose another entry, and proposes neither pytest nor forks, which would fail."""
    result = " ".join(outputs[name].split())
    verdict, steps = result.partition("replays: ")[2].split(" next ")
    assert verdict.count("--entry module:name --args JSON") == 1
    assert "Run from the directory that contains the module" in verdict
    assert steps == f"agentobs serve fixtures/{name} acts as the provider for any client"


def test_an_entry_from_the_command_line(project: Path) -> None:
    """The option that the verdict proposes works, and then pytest is proposed."""
    given = ("--entry", "shop:fine", "--args", '["Hello."]')
    result = ran(project, "freeze", "gone", "-o", "fixtures/named", *given)
    verdict, steps = result[result.index("replays: ") :].split("next   ")
    assert verdict.splitlines() == YES
    assert steps.startswith("pytest fixtures/named\n")


def test_the_lines_to_add_to_a_test_are_shown_once(outputs: dict[str, str]) -> None:
    """The lines to add to the test are printed below the verdict, and not repeated in it."""
    result = outputs["given-object"]
    verdict, steps = result[result.index("replays: ") :].split("next   ")
    assert "import" not in verdict
    assert [line.strip() for line in steps.splitlines()] == [
        "edit fixtures/given-object/test_given_object.py: add this import, and replace `...` in "
        "replay.run(...) with these arguments:",
        "from shop import given_object",
        "given_object, prompt=..., thing=...",
        "pytest fixtures/given-object",
        "agentobs serve fixtures/given-object   acts as the provider for any client",
    ]


def test_no_check_runs_no_agent(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With `--no-check`, the output has no verdict, and `--apply` is rejected."""
    assert "replays" not in ran(project, "freeze", "dies", "--no-check")
    with pytest.raises(SystemExit) as ended:
        main(["freeze", "dies", "--no-check", "--apply"])
    assert ended.value.code == 1
    assert "--apply: requires the check" in capsys.readouterr().err


def test_tools_that_run_live_are_named(shop: Path, verdicts: dict[str, list[str]]) -> None:
    """Below the verdict, the output names the tools that the agent itself runs in a replay, without recorded tools."""
    ran_for_real = "tools:   not recorded with record_tool, so a replay runs them for real: weigh"
    assert verdicts["tools"] == [*YES, ran_for_real]
    # The second replay wrote to another directory.
    assert (shop / "weighed").read_text() == "recorded\nreplayed\n"


def test_an_interrupt_leaves_the_fixture_intact(shop: Path) -> None:
    """Ctrl-C while an agent hangs prints one word, leaves no process behind, and keeps the fixture readable."""
    (shop / "pids").write_text("")
    running = command(shop, "freeze", "waits", "-o", "fixtures/interrupted")
    begun = poll(lambda: len(pids := (shop / "pids").read_text().split()) >= 2 and pids)
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=100)
    assert (running.returncode, err.strip()) == (130, "interrupted")
    assert "replays" not in out
    assert "printed by the agent" not in out
    poll(lambda: not any(Path(f"/proc/{pid}").exists() for pid in begun))
    assert load(shop / "fixtures" / "interrupted").name == "waits"


def poll(found: Callable[[], Any]) -> Any:
    """Wait until a value is available; the test's timeout limits the wait."""
    while not (value := found()):
        time.sleep(0.02)
    return value


@pytest.mark.parametrize("month", range(1, 13))
@pytest.mark.parametrize("day", [1, 15, 28])
def test_the_shifted_date_differs_in_all_its_parts(month: int, day: int) -> None:
    """The shifted date is in the future, and its year, month, day, weekday and hour differ."""
    now = datetime(2026, month, day, 23, 59, 30, tzinfo=UTC)
    then = now + timedelta(seconds=seconds_ahead(now))
    pairs = [(getattr(now, unit), getattr(then, unit)) for unit in ("year", "month", "day", "hour")]
    assert then > now
    assert all(a != b for a, b in pairs)
    assert now.weekday() != then.weekday()


def test_the_clock_is_shifted_in_all_functions() -> None:
    """All functions return the same shifted time; explicit times and the monotonic clock are unchanged.

    The functions still work as attributes of a class.
    """
    ended = subprocess.run(
        [sys.executable, "-c", READS],
        env={**os.environ, "TZ": "UTC"},
        capture_output=True,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, b"")


READS = """
import time
steady = time.monotonic()
real = time.time()
from replay.trial.clock_shift import shift_clock
AHEAD = 40_000_000
shift_clock(AHEAD)
import datetime, email.utils
from datetime import UTC
from time import time as imported

def near(value):
    assert abs(value - real - AHEAD) < 5, value

class Timer:
    clock = time.time

near(time.time()); near(imported()); near(Timer().clock()); near(time.time_ns() / 1e9)
near(time.clock_gettime(time.CLOCK_REALTIME)); near(time.clock_gettime_ns(time.CLOCK_REALTIME) / 1e9)
near(datetime.datetime.now().timestamp()); near(datetime.datetime.now(UTC).timestamp())
near(datetime.datetime.utcnow().replace(tzinfo=UTC).timestamp()); near(datetime.datetime.today().timestamp())
near(time.mktime(time.localtime())); near(time.mktime(time.gmtime())); near(time.mktime(time.strptime(time.ctime())))
near(time.mktime(time.strptime(time.asctime()))); near(float(time.strftime("%s")))
near(email.utils.parsedate_to_datetime(email.utils.formatdate()).timestamp())
days = (datetime.date.today() - datetime.date.fromtimestamp(real)).days
assert days in (AHEAD // 86400, AHEAD // 86400 + 1), days
class Later(datetime.datetime): pass
assert type(Later.now()) is Later and type(Later.today()) is Later
assert time.gmtime(0).tm_year == 1970 and time.ctime(0).endswith("1970")
assert time.strftime("%Y", time.gmtime(0)) == "1970"
assert time.monotonic() - steady < 5 and time.clock_gettime(time.CLOCK_MONOTONIC) - steady < 5
"""
