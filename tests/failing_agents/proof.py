"""The proof of one failing agent, from its failure to reliable tests.

The tests that are generated from a frozen failure must be red with the bug, green after a right fix, red after a wrong
fix, and never flaky. The proof uses only the command line and pytest, as a user does. It checks the names and outcomes
of the generated tests, exit codes, and whether the message of the red test names the failure.
"""

from __future__ import annotations

import ast
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from tests.failing_agents.case import SOURCES, Case, Change
from tests.failing_agents.provider import serve_provider
from tests.third_party_agents.environments import environment, own_requirements

ROOT = Path(__file__).parents[2]
REACHES, FIXED, SAME = "test_reaches_the_failure", "test_fixed", "test_same_path"
TIMEOUT = 300
"""The number of seconds after which a process is considered to hang."""
ZONES = ("UTC", "Asia/Tokyo", "America/New_York", "Pacific/Kiritimati", "Europe/Berlin")


@dataclass(frozen=True)
class CompletedProcess:
    """The result of a process."""

    code: int
    output: str
    cpu_seconds: float
    seconds: float


@dataclass(frozen=True)
class Verdicts:
    """The outcome of each generated test in one run of pytest."""

    code: int
    output: str
    seconds: float
    outcomes: dict[str, str]
    """`passed`, `failed`, `error` or `skipped`, by the name of the test."""
    messages: dict[str, str]

    def mismatches(self, **expected: str) -> str:
        """Describe the differences from the expected outcomes; empty if there are none."""
        found = []
        for test, outcome in expected.items():
            actual = self.outcomes.get(test, "missing")
            if actual != outcome:
                why = " ".join(self.messages.get(test, "").split())[:200]
                found.append(f"{test.removeprefix('test_')} {actual}{why and f' ({why})'}")
        if not found and (self.code == 0) != all(each == "passed" for each in expected.values()):
            found.append(f"exit code {self.code}")
        return ", ".join(found)


@dataclass
class Proof:
    """The results for one agent; each cell is `ok` or describes the defect."""

    case: Case
    live: str = "-"
    """Whether the agent and its right and wrong fixes behave as described when run against the provider."""
    turn: str = "-"
    verdict: str = "-"
    freeze_cpu: str = "-"
    """The CPU time of `freeze` and of the agent itself."""
    seconds: str = "-"
    """The wall time of a run of pytest on the generated tests."""
    before: str = "-"
    fixed: str = "-"
    wrong: str = "-"
    back: str = "-"
    same_path: str = "-"
    flakes: str = "-"
    flaky: list[dict[str, Any]] = field(default_factory=list)

    @property
    def cells(self) -> dict[str, str]:
        """All evaluated cells by name."""
        names = ("live", "verdict", "before", "fixed", "wrong", "back", "same_path", "flakes")
        cells = {name: getattr(self, name) for name in names}
        return {name: cell for name, cell in cells.items() if cell != "-"}

    @property
    def failures(self) -> dict[str, str]:
        """The cells that describe a defect."""
        fine = re.compile(r"ok\b|yes\b|0 of ")
        return {name: cell for name, cell in self.cells.items() if not fine.match(cell)}


class Bench:
    """A scratch directory with the agent's project, a separate home directory, and the URL of the provider."""

    def __init__(self, case: Case, folder: Path, url: str) -> None:
        self.case = case
        self.url = url
        self.folder = folder
        self.project = folder / "project"
        self.logs = folder / "logs"
        self.python = interpreter(case)
        self._sessions: dict[str, dict[str, Any]] = {}
        for each in (self.project / ".git", self.logs, folder / "home", folder / "tmp"):
            each.mkdir(parents=True)
        (self.project / "pyproject.toml").write_text(
            f'[project]\nname = "{case.name.replace("_", "-")}"\nversion = "0.1.0"\n'
        )
        self.reset()

    def reset(self, *changes: Change) -> None:
        """Restore the buggy agent, then apply the changes."""
        write_sources(self.case, self.project, changes)

    def environ(self, project: Path, **additional: str) -> dict[str, str]:
        """Return the environment of a child process, which inherits nothing."""
        return {
            "PATH": f"{self.python.parent}:/usr/bin:/bin",
            "HOME": str(self.folder / "home"),
            "TMPDIR": str(self.folder / "tmp"),
            "LANG": "C.UTF-8",
            "PYTHONPATH": str(project / self.case.source_root),
            # If an edit kept the size and the mtime in seconds, a stale .pyc file would hide the edit.
            "PYTHONDONTWRITEBYTECODE": "1",
            "ANTHROPIC_API_KEY": "sk-ant-a-made-up-key-0123456789",
            "ANTHROPIC_BASE_URL": self.url,
            "NO_PROXY": "127.0.0.1",
            **additional,
        }

    def run(self, name: str, *command: str, **environ: str) -> CompletedProcess:
        """Run a command in the project and write its output to a log file."""
        result = run_process(command, self.project, self.environ(self.project, **environ))
        (self.logs / f"{name}.txt").write_text(
            f"$ {' '.join(command)}\n{result.output}\n[{result.code}]\n"
        )
        return result

    def agent(self, name: str, *changes: Change) -> CompletedProcess:
        """Run the agent against the provider; each run has its own recording home."""
        self.reset(*changes)
        home = str(self.home(name))
        return self.run(name, str(self.python), *self.case.run, AGENTOBS_HOME=home)

    def home(self, name: str) -> Path:
        """Return the recording home of a run."""
        return self.project / ".agentobs" / name

    def agentobs(self, name: str, run: str, *arguments: str) -> CompletedProcess:
        """Run the `agentobs` command on the recording home of a run."""
        command = str(self.python.parent / "agentobs")
        return self.run(name, command, "--home", str(self.home(run)), *arguments)

    def session(self, run: str) -> dict[str, Any]:
        """Return the session that a run recorded.

        Raises:
            ValueError: there is not exactly one session.
        """
        if run in self._sessions:
            return self._sessions[run]
        listed = self.agentobs(f"{run}-sessions", run, "sessions", "--json")
        rows = [json.loads(line) for line in listed.output.splitlines() if line.startswith("{")]
        if len(rows) != 1:
            raise ValueError(f"{self.case.name}: expected one session of {run}, found {len(rows)}")
        self._sessions[run] = rows[0]
        return self._sessions[run]

    def freeze(self, run: str, arguments: Iterable[str]) -> tuple[CompletedProcess, Path | None]:
        """Freeze the session of a run; return the command's result and the new folder, or None instead of a folder."""
        before = set(self.project.glob("fixtures/**/recording.jsonl"))
        session = self.session(run)["session_id"]
        resolved = [session if each == "SESSION" else each for each in arguments]
        result = self.agentobs(f"{run}-freeze", run, "freeze", *resolved)
        written = set(self.project.glob("fixtures/**/recording.jsonl")) - before
        return result, written.pop().parent if len(written) == 1 else None

    def tests(self, name: str, folder: Path) -> Verdicts:
        """Run pytest on a folder of the project."""
        target = str(folder.relative_to(self.project))
        environ = self.environ(self.project)
        verdicts = run_pytest(
            self.python, [target], self.project, environ, self.logs / f"{name}.xml"
        )
        (self.logs / f"{name}.txt").write_text(verdicts.output)
        return verdicts


def prove(
    case: Case, folder: Path, *, is_complete: bool = True, replays: int = 0, jobs: int = 1
) -> Proof:
    """Prove one agent in an empty directory.

    If `is_complete` is False, run only the short form of the proof, as `make test` does.
    """
    proof = Proof(case)
    with serve_provider(case.answer) as traffic:
        bench = Bench(case, folder, traffic.url)
        buggy = bench.agent("buggy")
        proof.live = _check_live(bench, buggy, is_complete)
        if proof.live != "ok":
            return proof
        bench.reset()
        live_requests = len(traffic.bodies)
        frozen, fixture = bench.freeze("buggy", case.freeze)
        proof.verdict = _verdict(frozen, fixture)
        proof.freeze_cpu = f"{frozen.cpu_seconds:.1f} s for {buggy.cpu_seconds:.1f} s"
        if fixture is None:
            return proof
        proof.turn = _turn(fixture, frozen.output)
        before = bench.tests("before", fixture)
        proof.seconds = f"{before.seconds:.1f}"
        proof.before = _before(case, before)
        proof.fixed = _fixed(bench, fixture, is_complete=is_complete)
        if is_complete:
            proof.wrong = _wrong(bench, fixture)
            bench.reset()
            verdicts = bench.tests("back", fixture)
            proof.back = verdicts.mismatches(**{REACHES: "passed", FIXED: "failed"}) or "ok"
            proof.same_path = _same_path(bench)
        if replays:
            has_ending = proof.same_path == "ok"
            proof.flaky = replay_under_noise(bench, fixture, replays, jobs, has_ending=has_ending)
            proof.flakes = f"{len(proof.flaky)} of {replays}"
        if len(traffic.bodies) != live_requests:
            proof.before += f", {len(traffic.bodies) - live_requests} requests reached the provider"
    return proof


def _check_live(bench: Bench, buggy: CompletedProcess, is_complete: bool) -> str:
    """Run the agent and its changes against the provider; return `ok` or the deviations from the case."""
    case, found = bench.case, []
    status = bench.session("buggy")["status"]
    expected = "completed" if case.completes else "failed"
    if not re.search(case.fails, buggy.output) or status != expected:
        found.append(f"does not fail as expected ({status}): {buggy.output[-400:]}")
    for number, fix in enumerate(case.fixes if is_complete else ()):
        result = bench.agent(f"fix-{number}", fix)
        status = bench.session(f"fix-{number}")["status"]
        if result.code or status != "completed" or not re.search(case.succeeds, result.output):
            found.append(f"fix '{fix.description}' fails ({status}): {result.output[-400:]}")
    for number, change in enumerate(case.wrong if is_complete else ()):
        result = bench.agent(f"wrong-{number}", change)
        if not re.search(case.fails, result.output) or re.search(case.succeeds, result.output):
            found.append(f"wrong fix '{change.description}' does not fail: {result.output[-400:]}")
    return "; ".join(found) or "ok"


def _verdict(frozen: CompletedProcess, fixture: Path | None) -> str:
    line = re.search(r"replays: *(yes|no.*)", frozen.output)
    if fixture is None:
        last = frozen.output.strip().splitlines()[-1:]
        return f"freeze failed ({frozen.code}): {''.join(last)}"
    if line is None:
        return "no verdict"
    return line[1] if frozen.code == 0 or line[1] != "yes" else f"yes, but exit code {frozen.code}"


def _turn(fixture: Path, output: str) -> str:
    """Return the failing turn from the generated test, or from the output of `freeze`."""
    test = "".join(file.read_text() for file in fixture.glob("test_*.py"))
    found = re.search(r"turn=(\d+)", test) or re.search(r"turn (\d+)", output)
    return found[1] if found else "-"


def _before(case: Case, verdicts: Verdicts) -> str:
    found = verdicts.mismatches(**{REACHES: "passed", FIXED: "failed"})
    return found or _reason(case, verdicts)


def _reason(case: Case, verdicts: Verdicts) -> str:
    """Return `ok` if a red `test_fixed` names the failure, otherwise the defect."""
    message = verdicts.messages[FIXED]
    if "DIVERGED" in message:
        return "red because of a divergence"
    return "ok" if re.search(case.named, message) else "red, but does not name the failure"


def _fixed(bench: Bench, fixture: Path, *, is_complete: bool) -> str:
    """Run the tests of each fixed agent, as generated and with the author's assertion.

    If not `is_complete`, only the first fix is tested.
    """
    found = []
    fixes = bench.case.fixes if is_complete else bench.case.fixes[:1]
    for number, fix in enumerate(fixes):
        bench.reset(fix)
        verdicts = bench.tests(f"fixed-{number}", fixture)
        expected = "failed" if fix.needs_provider or fix.turn else "passed"
        wrong = verdicts.mismatches(**{REACHES: "passed", FIXED: expected})
        if fix.turn:
            wrong = wrong or _fixed_at(bench, fix, fix.turn, verdicts.messages[FIXED])
        if fix.needs_provider and "run the agent with the provider" not in verdicts.messages[FIXED]:
            wrong = (
                wrong
                or "the message of fixed does not say that the prompt needs a run with the provider"
            )
        if is_complete and not wrong and fix.assertion:
            with added_assertion(fixture, fix.assertion):
                verdicts = bench.tests(f"asserted-{number}", fixture)
            wrong = verdicts.mismatches(**{REACHES: "passed", FIXED: "passed"})
            wrong = wrong and f"with assertion: {wrong}"
        if wrong:
            found.append(f"{number + 1}: {wrong}")
    return "; ".join(found) or "ok"


def _fixed_at(bench: Bench, fix: Change, turn: int, message: str) -> str:
    """Freeze the session at another turn, as the red test suggests.

    The generated tests must be red before the fix and green after it.
    """
    if "agentobs freeze --turn" not in " ".join(message.split()):
        return "the message of fixed does not name --turn"
    bench.reset()
    turn_options = ("--turn", str(turn), "-o", f"fixtures/turn-{turn}")
    _, fixture = bench.freeze("buggy", (*bench.case.freeze, *turn_options))
    if fixture is None:
        return f"freeze failed at turn {turn}"
    wrong = bench.tests(f"turn-{turn}-before", fixture).mismatches(
        **{REACHES: "passed", FIXED: "failed"}
    )
    bench.reset(fix)
    fixed = bench.tests(f"turn-{turn}-fixed", fixture)
    return wrong or fixed.mismatches(**{REACHES: "passed", FIXED: "passed"})


def _wrong(bench: Bench, fixture: Path) -> str:
    """Run the tests of each agent with a wrong fix; if only the author's assertion detects it, add the assertion."""
    assertion = next((fix.assertion for fix in bench.case.fixes if fix.assertion), None)
    found = []
    for number, change in enumerate(bench.case.wrong):
        bench.reset(change)
        with ExitStack() as stack:
            if change.only_with_assertion and assertion:
                stack.enter_context(added_assertion(fixture, assertion))
            verdicts = bench.tests(f"wrongly-{number}", fixture)
        wrong = verdicts.mismatches(**{REACHES: "passed", FIXED: "failed"})
        if not wrong and "DIVERGED" in verdicts.messages[FIXED]:
            wrong = "red because of a divergence"
        if wrong:
            found.append(f"{number + 1}: {wrong}")
    return "; ".join(found) or "ok"


def _same_path(bench: Bench) -> str:
    """Freeze the fixed agent's session; its complete path must pass, and a changed return value must fail."""
    case = bench.case
    bench.reset(case.fixes[0])
    apply = [each for each in case.freeze if each == "--apply"]
    folder = bench.project / "fixtures" / "ended-well"
    frozen = bench.agentobs(
        "fixed-freeze",
        "fix-0",
        "freeze",
        bench.session("fix-0")["session_id"],
        *apply,
        "-o",
        str(folder.relative_to(bench.project)),
    )
    if not (folder / "recording.jsonl").exists():
        return f"freeze failed ({frozen.code})"
    if wrong := bench.tests("same-path", folder).mismatches(**{SAME: "passed"}):
        return wrong
    if case.tampered:
        bench.reset(case.fixes[0], case.tampered)
        if wrong := bench.tests("tampered", folder).mismatches(**{SAME: "failed"}):
            return f"with a changed return value: {wrong}"
    return "ok"


def replay_under_noise(
    bench: Bench, fixture: Path, replays: int, jobs: int, *, has_ending: bool
) -> list[dict[str, Any]]:
    """Replay the buggy and the fixed agent alternately under noise; return the replays with unexpected outcomes.

    Half of the replays of the fixed agent include the fixture of its successful session, if there is one.
    """
    checkouts = []
    for name, changes in (("ci/buggy", ()), ("somewhere else/fixed", bench.case.fixes[:1])):
        checkout = bench.folder / name
        shutil.copytree(bench.project, checkout, ignore=shutil.ignore_patterns(".agentobs"))
        write_sources(bench.case, checkout, changes)
        checkouts.append(checkout)

    def replay(number: int) -> dict[str, Any] | None:
        is_fixed = number % 2 == 1
        checkout = checkouts[is_fixed]
        folder = checkout / fixture.relative_to(bench.project)
        chance = random.Random(f"{bench.case.name}/{number}")
        all_fixtures = is_fixed and has_ending and chance.random() < 0.5
        return _replay(bench, folder, checkout, number, chance, all_fixtures=all_fixtures)

    with ThreadPoolExecutor(jobs) as pool:
        return [found for found in pool.map(replay, range(replays)) if found]


def _replay(
    bench: Bench,
    folder: Path,
    checkout: Path,
    number: int,
    chance: random.Random,
    *,
    all_fixtures: bool,
) -> dict[str, Any] | None:
    """Replay once under noise; return a description of an unexpected outcome, or None."""
    noise = {
        "PYTHONHASHSEED": str(chance.randrange(2**32)),
        "TZ": chance.choice(ZONES),
        "AGENT_DAYS": str(chance.randrange(1, 400)),
        "AGENT_JITTER": str(chance.choice((0, 0.002, 0.03))),
    }
    cwd = chance.choice((checkout, checkout, checkout.parent, checkout / "fixtures"))
    is_loaded = chance.random() < 0.34
    targets = [str(folder.parent if all_fixtures else folder)]
    if not all_fixtures and chance.random() < 0.5:
        # Tests run in reverse order, because no test may depend on an earlier test.
        targets = [
            f"{file}::{each}" for file in folder.glob("test_*.py") for each in (FIXED, REACHES)
        ]
    with ExitStack() as stack:
        if is_loaded:
            stack.enter_context(busy_core())
        arguments = ["--rootdir", str(checkout), "-p", "no:cacheprovider", *targets]
        report = bench.logs / f"replay-{number}.xml"
        verdicts = run_pytest(
            bench.python, arguments, cwd, bench.environ(checkout, **noise), report
        )
    wrong = _unexpected(bench.case, verdicts, is_fixed=number % 2 == 1, all_fixtures=all_fixtures)
    if not wrong:
        return None
    (bench.logs / f"replay-{number}.txt").write_text(verdicts.output)
    state = "fixed" if number % 2 else "buggy"
    where = str(cwd.relative_to(bench.folder))
    found = {"number": number, "agent": state, "wrong": wrong, "all_fixtures": all_fixtures}
    return {**found, "cwd": where, "loaded": is_loaded, **noise}


def _unexpected(case: Case, verdicts: Verdicts, *, is_fixed: bool, all_fixtures: bool) -> str:
    expected = {REACHES: "passed", FIXED: "passed" if is_fixed else "failed"}
    if all_fixtures:
        expected[SAME] = "passed"
    if wrong := verdicts.mismatches(**expected):
        return wrong
    reason = "ok" if is_fixed else _reason(case, verdicts)
    return "" if reason == "ok" else reason


def interpreter(case: Case) -> Path:
    """Return the interpreter for an agent; if the agent needs a separate environment, create it once."""
    if not case.needs:
        return Path(sys.executable)
    python = environment(f"failing_{case.name}", (*case.needs, *own_requirements()))
    if not (python.parent / "agentobs").exists():
        install = [str(python), "-m", "pip", "install", "--quiet", "--no-deps", "-e", str(ROOT)]
        subprocess.run(install, check=True)
    return python


def write_sources(case: Case, project: Path, changes: Iterable[Change]) -> None:
    """Write the files of the agent, and apply changes."""
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(SOURCES / case.name, project, dirs_exist_ok=True, ignore=ignore)
    for change in changes:
        for edit in change.edits:
            edit.apply(project)


@contextmanager
def added_assertion(fixture: Path, assertion: str) -> Iterator[None]:
    """Add the author's assertion to the end of `test_fixed` while the context is open."""
    file = min(fixture.glob("test_*.py"))
    source = file.read_text()
    file.write_text(with_assertion(source, assertion))
    try:
        yield
    finally:
        file.write_text(source)


def with_assertion(source: str, assertion: str) -> str:
    """Return the source with an assertion appended to `test_fixed`; unchanged if there is no such test."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == FIXED:
            last = node.body[-1]
            lines = source.splitlines()
            lines.insert(last.end_lineno or last.lineno, " " * last.col_offset + assertion)
            return "\n".join(lines) + "\n"
    return source


@contextmanager
def busy_core() -> Iterator[None]:
    """Keep a core busy while the context is open."""
    spinner = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        spinner.kill()
        spinner.wait()


def run_pytest(
    python: Path, arguments: list[str], cwd: Path, environ: dict[str, str], report: Path
) -> Verdicts:
    """Run pytest and return the outcomes of its tests."""
    report.unlink(missing_ok=True)
    command = [str(python.parent / "pytest"), "-q", f"--junitxml={report}", *arguments]
    result = run_process(command, cwd, environ)
    outcomes: dict[str, str] = {}
    messages: dict[str, str] = {}
    if report.exists():
        for each in ElementTree.parse(report).iter("testcase"):
            name = each.get("name", "").partition("[")[0]
            parts = [part for part in each if part.tag in ("failure", "error", "skipped")]
            outcome = {"failure": "failed"}.get(parts[0].tag, parts[0].tag) if parts else "passed"
            # The tests of a parametrized function share a name; the first outcome that is not `passed` counts.
            outcomes[name] = outcome if outcomes.get(name, "passed") == "passed" else outcomes[name]
            messages[name] = messages.get(name, "") + "\n".join(map(_message, parts))
    return Verdicts(result.code, result.output, result.seconds, outcomes, messages)


def _message(part: ElementTree.Element) -> str:
    """Return the message of a failed test without the source of the test, which may contain any word."""
    text = part.text or ""
    raised = [line for line in text.splitlines() if line.startswith("E ")]
    return "\n".join([part.get("message", ""), *(raised or [text])])


def run_process(command: Iterable[str], cwd: Path, environ: dict[str, str]) -> CompletedProcess:
    """Run a process and wait for it; if it hangs, kill its process group and return the exit code -9."""
    cpu_before, started_at = _cpu_of_children(), time.monotonic()
    child = subprocess.Popen(
        [str(part) for part in command],
        cwd=cwd,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = child.communicate(timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        output, _ = child.communicate()
        output += f"\nhung: killed after {TIMEOUT} seconds"
    return CompletedProcess(
        child.returncode, output, _cpu_of_children() - cpu_before, time.monotonic() - started_at
    )


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
