"""One simulation: runs the steps of a plan on a machine, and checks all invariants after every crash and at the end."""

from __future__ import annotations

import atexit
import contextlib
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from agentobs.errors import AgentobsError, DamagedError, HomeError
from agentobs.recording import segment_writer
from agentobs.recording.facts.interpreter import session_of
from agentobs.recording.journal.followed_segments import FollowedSegments
from agentobs.recording.journal.home import Home, open_home
from agentobs.recording.journal.segment_import import ImportedLine, clear_staging, import_segment
from agentobs.recording.journal.segments import segment_ids
from agentobs.recording.options import Options
from agentobs.recording.recorder import Recorder
from agentobs.records.facts import TABLES, Fact, columns
from agentobs.runtime import process as agent_process
from agentobs.sink import Record
from agentobs.store.duckdb import archives
from agentobs.store.duckdb.connection import connect
from agentobs.store.duckdb.ingest import ingest
from agentobs.store.duckdb.repair import repair
from agentobs.store.duckdb.retention import prune
from agentobs.store.duckdb.verification import verify
from tests.simulation.machine import Died, Machine, PowerLost, Process
from tests.simulation.plan import Step, plan, profile_of
from tests.simulation.truth import Truth, Wrong
from tests.soak.kills import name_of, session_records
from tests.store.recordings import conversation, end, everything, record, session_id, start

MODES: tuple[Any, ...] = ("always", "interval", "process")
"""The sync mode of each recorder."""
SMALL_SEGMENT_BYTES = 20_000
"""The size limit of segments in one of three simulations, so that recorders use several segments."""


class SteppedRecorder(Recorder):
    """A recorder without threads: the simulation calls the functions that the threads would call."""

    process: Process

    def _start_threads(self) -> bool:
        return True

    def _continue(self) -> None:
        """The recorder catches every exception, but a dead process does nothing more."""
        if self.process.is_dead:
            raise Died

    def work(self, items: int = 10**9) -> None:
        """Process items of the queue, as the worker's thread does."""
        while items and not self._queue._items.empty():
            self._handle(self._queue.get())
            self._continue()
            items -= 1

    def tick(self) -> tuple[int, bool] | None:
        """Do what the timekeeper's thread does.

        Return how many records a sync covers, and whether it succeeded; None if it did not sync.
        """
        keeper = self._timekeeper
        failed, due, done = keeper.failed_syncs, keeper._is_sync_due, self._queue.progress.processed
        keeper.work()
        self._continue()
        return (done, keeper.failed_syncs == failed) if due else None


@dataclass(eq=False)
class Agent:
    """A process that records."""

    process: Process
    recorder: SteppedRecorder
    mode: str
    given: list[str] = field(default_factory=list)
    """The names of its records, in order."""
    acknowledged: int = 0
    """The number of records that a flush has acknowledged."""
    upcoming: list[Record] = field(default_factory=list)
    unsynced: int = 0
    """The number of its records that were written before the last failed sync; a power loss may remove them."""


@dataclass
class Result:
    """What a simulation did."""

    seed: int
    steps: int = 0
    calls: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    acknowledged: int = 0
    records: int = 0
    checks: int = 0
    digest: str = ""
    failure: str | None = None
    """The broken invariant; None if all hold."""


class Simulation:
    """The state of a simulation."""

    def __init__(self, seed: int, steps: Sequence[Step], folder: Path) -> None:
        """Prepare the steps on a new disk in `folder`."""
        self.seed, self.steps = seed, steps
        root = folder / "disk"
        root.mkdir()
        self.machine = Machine(root, str(seed))
        self.machine.on_meanwhile = self.do
        self.machine.on_hang = self._hang
        self.place = root / "home"
        self.truth = Truth(self.machine, Home(self.place))
        self.agents: dict[int, Agent] = {}
        self.sessions = 0
        self.follower: FollowedSegments | None = None
        self._is_following = False
        self._depth = 0
        self._busy: set[int] = set()
        """The recorders whose calls a step interrupts now."""
        self.checks = 0
        self.records = 0
        self.touched_store = False

    def run(self) -> None:
        """Run all steps, and check everything at the end.

        Raises:
            Wrong: an invariant does not hold.
        """
        size = SMALL_SEGMENT_BYTES if self.seed % 3 == 0 else segment_writer.SEGMENT_BYTES
        before, segment_writer.SEGMENT_BYTES = segment_writer.SEGMENT_BYTES, size
        try:
            with self.machine.running():
                for step in self.steps:
                    self.do(step)
                self._finish()
        finally:
            segment_writer.SEGMENT_BYTES = before
            for slot in list(self.agents):
                self._bury(slot)
            agent_process.exchange_observer, agent_process.wait_seconds = None, 0.0

    # Steps.

    def do(self, step: Step) -> None:
        """Run one step; a crash ends the process, and all invariants are checked."""
        if step.slot in self._busy and step.kind in ("record", "sync", "flush", "close", "kill"):
            return
        if self._depth and step.kind in ("power", "damage", "clock"):
            return
        agent = self.agents.get(step.slot)
        is_recording = step.kind in ("record", "flush", "sync", "close", "kill")
        process = agent.process if agent and is_recording else Process(f"{step.kind} {step.seed}")
        handler: Callable[[Step, random.Random], None] = getattr(self, f"_do_{step.kind}")
        faults_before = self.machine.had_faults()
        self._depth += 1
        if is_recording:
            self._busy.add(step.slot)
        is_lost = crashed = False
        try:
            with self.machine.step(process, step.faults):
                handler(step, random.Random(step.seed))
        except PowerLost:
            is_lost = True
        except Died:
            pass
        except (AgentobsError, OSError) as error:
            if self.machine.had_faults() == faults_before and not self.truth.may_refuse:
                raise Wrong(f"{step.kind} raised {type(error).__name__}: {error}") from error
        finally:
            self._depth -= 1
            if is_recording:
                self._busy.discard(step.slot)
        if process.is_dead:
            crashed = True
            self.machine.kill(process)
            for slot, each in list(self.agents.items()):
                if each.process is process:
                    self._bury(slot)
        elif not is_recording:
            self.machine.kill(process)  # the command has ended
        if self._depth and any(each.is_dead for each in self._running()):
            raise PowerLost if is_lost else Died
        if is_lost:
            self._lose_power()
        elif crashed and not self._depth:
            self.check()

    def _running(self) -> list[Process]:
        return [each.process for each in self.machine._running]

    def _lose_power(self) -> None:
        for slot in list(self.agents):
            self._bury(slot)
        self.follower = None
        with self.machine.stopped():
            self.truth.power_lost()
            self.machine.disk.lose_power(random.Random(f"{self.seed}:{self.machine.calls}"))
            self.truth.restarted()
        self.check()

    def _bury(self, slot: int) -> None:
        """Forget an agent whose process has ended."""
        agent = self.agents.pop(slot)
        self._check_accounts(agent)
        self.machine.kill(agent.process)
        atexit.unregister(agent.recorder.close)

    def _agent(self, step: Step, chance: random.Random) -> Agent:
        """Return the agent of a slot, which is started if it does not run."""
        found = self.agents.get(step.slot)
        if found is None:
            process = self.machine.process
            assert process is not None
            mode = MODES[step.slot]
            home = open_home(self.place)
            recorder = SteppedRecorder(home, Options(sync=mode))
            atexit.unregister(recorder.close)
            recorder.process = process
            found = self.agents[step.slot] = Agent(process, recorder, mode)
        agent_process.exchange_observer = found.recorder
        return found

    def _do_record(self, step: Step, chance: random.Random) -> None:
        agent = self._agent(step, chance)
        for _ in range(chance.randint(1, 6)):
            self._give(agent, chance)
        agent.recorder.work(chance.choice([0, 1, 3, 100]))
        self._check_accounts(agent)

    def _give(self, agent: Agent, chance: random.Random) -> None:
        if not agent.upcoming:
            self.sessions += 1
            agent.upcoming = session_records(self.sessions, chance)
        record = agent.upcoming.pop(0)
        agent.given.append(name_of(record))
        self.records += 1
        self.truth.give(agent.given[-1], session_of(record))
        agent.recorder(record)

    def _do_sync(self, step: Step, chance: random.Random) -> None:
        if step.slot not in self.agents:
            return
        agent = self._agent(step, chance)
        self.machine.monotonic_ns += 200_000_000
        self._note_synced(agent, agent.recorder.tick())
        agent.recorder.work()

    def _note_synced(self, agent: Agent, synced: tuple[int, bool] | None) -> None:
        """With `interval`, what was written before a successful sync survives a power loss, if it was written."""
        if synced is None or agent.mode != "interval":
            return
        covered, is_successful = synced
        if not is_successful:
            agent.unsynced = covered
        elif not agent.recorder.statistics().dropped:
            self.truth.acknowledge(agent.given[agent.unsynced : covered], is_durable=True)

    def _do_flush(self, step: Step, chance: random.Random) -> None:
        if step.slot not in self.agents:
            return
        agent = self._agent(step, chance)
        self.machine.monotonic_ns += 200_000_000
        agent.recorder.work()
        self._note_synced(agent, agent.recorder.tick())
        agent.recorder.work()
        self._flush(agent)

    def _flush(self, agent: Agent) -> None:
        """Acknowledge all records that were given since the last flush, if the recorder has acknowledged them."""
        if agent.recorder.flush(0):
            names = agent.given[agent.acknowledged :]
            self.truth.acknowledge(names, is_durable=agent.mode == "always")
        agent.acknowledged = len(agent.given)
        self._check_accounts(agent)

    def _do_close(self, step: Step, chance: random.Random) -> None:
        if step.slot not in self.agents:
            return
        agent = self._agent(step, chance)
        agent.recorder.work()
        if agent.mode == "always":
            agent.recorder.tick()
        closed = agent.recorder.close(0)
        agent.recorder._continue()
        agent.recorder.work()
        if closed and not agent.recorder.statistics().waiting:
            self._flush(agent)
        self._bury(step.slot)

    def _do_kill(self, step: Step, chance: random.Random) -> None:
        if step.slot in self.agents:
            self.agents[step.slot].process.is_dead = True
            raise Died

    def _do_power(self, step: Step, chance: random.Random) -> None:
        raise PowerLost

    def _do_clock(self, step: Step, chance: random.Random) -> None:
        hours = chance.choice([-800, -24, -1, 1, 24, 800])
        self.machine.wall_ns += hours * 3_600 * 10**9

    def _do_follow(self, step: Step, chance: random.Random) -> None:
        """Read what is new, as `agentobs tail` does; no record is read twice."""
        if self._is_following or not self.place.exists():
            return  # a follower is not called again in the middle of a look
        if self.follower is None or chance.random() < 0.2:
            self.follower = FollowedSegments(Home(self.place))
            self.truth.start_following()
        self._is_following = True
        try:
            self.truth.check_followed(self.follower.look())
        finally:
            self._is_following = False

    def _do_verify(self, step: Step, chance: random.Random) -> None:
        if self._has_home():
            findings = verify(Home(self.place)).findings
            if self._depth > 1 or any(each.kind == "meanwhile" for each in step.faults):
                self.truth.check_no_false_alarm(findings)
            elif not step.faults:
                self.truth.check_findings(findings)

    def _has_home(self) -> bool:
        return (self.place / "segments").is_dir()

    def _do_ingest(self, step: Step, chance: random.Random) -> None:
        if self._has_home():
            self.touched_store = True
            ingest(Home(self.place), wait_seconds=0, is_awaited=chance.random() < 0.3)

    def _do_query(self, step: Step, chance: random.Random) -> None:
        if self._has_home():
            self.touched_store = True
            with connect(Home(self.place), ingest=chance.random() < 0.5) as connection:
                connection.execute("SELECT count(*) FROM sessions").fetchall()

    def _do_archive(self, step: Step, chance: random.Random) -> None:
        if self._has_home():
            self.touched_store = True
            with _environment(archives.VARIABLE, "1"):
                ingest(Home(self.place), wait_seconds=0)

    def _do_prune(self, step: Step, chance: random.Random) -> None:
        if not self._has_home():
            return
        self.touched_store = True
        known = sorted(self.truth.sessions)
        if not known:
            return
        chosen = chance.sample(known, min(len(known), chance.choice([1, 1, 2])))
        what: Any = chance.choice(["all", "all", "content"])
        self.truth.begin_prune(chosen, what)
        report = prune(Home(self.place), sessions=chosen, what=what)
        if not report.is_pending:
            self.truth.pruned([each.session_id for each in report.chosen], what)

    def _do_repair(self, step: Step, chance: random.Random) -> None:
        if self._has_home():
            self.touched_store = True
            with contextlib.suppress(HomeError):  # another process is ingesting
                repair(Home(self.place), wait_seconds=0)
                self.truth.repaired()

    def _do_import(self, step: Step, chance: random.Random) -> None:
        home = open_home(self.place)
        self.sessions += 1
        number = self.sessions
        facts: list[Fact] = [start(number).start, end(number)]
        names = [f"session_starts {session_id(number)}", f"session_ends {session_id(number)}"]
        for name in names:
            self.truth.give(name, session_id(number))
        lines = [
            ImportedLine(TABLES[type(each)], columns(each), is_content=False) for each in facts
        ]
        clear_staging(home)
        import_segment(home, self.machine.new_id(), lines)
        self.truth.acknowledge(names, is_durable=True)

    def _do_damage(self, step: Step, chance: random.Random) -> None:
        with self.machine.stopped():
            self.truth.damage(chance)

    def _hang(self, process: Process) -> None:
        """While a call hangs, the agent's thread continues, and no flush claims what is not written."""
        agent = next((each for each in self.agents.values() if each.process is process), None)
        if agent is None or agent.recorder._queue.is_closed:
            return
        self._give(agent, random.Random(f"{self.seed}:{self.machine.calls}"))
        if agent.recorder.flush(0):
            raise Wrong("a flush returned True while a call hangs and a record is waiting")
        agent.acknowledged = len(agent.given)  # this flush has reported the losses so far
        self._check_accounts(agent)

    # Checks.

    def _check_accounts(self, agent: Agent) -> None:
        found = agent.recorder.statistics()
        if found.given != found.written + found.dropped + found.waiting:
            raise Wrong(f"the accounts are not balanced: {found}")
        if found.given != len(agent.given):
            raise Wrong(f"{len(agent.given)} records were given, the recorder has counted {found}")
        if found.waiting < 0 or found.dropped != sum(found.reasons.values()):
            raise Wrong(f"the accounts are wrong: {found}")

    def check(self) -> None:
        """Check what must hold at any time; other processes may be running."""
        self.checks += 1
        process = Process("check")
        with self.machine.step(process):
            if self._has_home():
                self.truth.check_journal()
                self.truth.check_findings(verify(Home(self.place)).findings)
        self.machine.kill(process)

    def _finish(self) -> None:
        """End all recorders, recover as a user would, and compare everything."""
        chance = random.Random(f"{self.seed}:end")
        for slot in list(self.agents):
            self.do(Step(chance.choice(["close", "kill"]), f"{self.seed}:end{slot}", slot))
        self.check()
        if not self._has_home() or not (self.touched_store or _compares_stores(self.seed)):
            return
        process = Process("end")
        home = Home(self.place)
        with self.machine.step(process):
            if self._is_store_refused(home):
                return
            self.check()
            if verify(home).findings:
                report = repair(home)
                if report.unrepaired:
                    raise Wrong(f"not repaired: {report.unrepaired}")
                self.truth.repaired()
                self.check()
                ingest(home)
            self.truth.check_journal()
            published = self._rows(home)
            self.truth.check_rows(published)
            for path in (home.database, home.manifest):
                path.unlink(missing_ok=True)
            shutil.rmtree(home.archive, ignore_errors=True)
            ingest(home)
            rebuilt = self._rows(home)
        self.machine.kill(process)
        for table, rows in published.items():
            if rows != rebuilt[table]:
                gone = [each for each in rows if each not in rebuilt[table]][:2]
                new = [each for each in rebuilt[table] if each not in rows][:2]
                raise Wrong(f"a rebuilt store differs in {table}: without {gone}, with {new}")

    def _is_store_refused(self, home: Home) -> bool:
        """Ingest; return whether this refuses to replace a damaged store because a power loss has left no segments."""
        before = home.database.read_bytes() if home.database.exists() else None
        try:
            ingest(home)
        except DamagedError as error:
            if segment_ids(home) or not self.truth.may_refuse:
                raise
            if not home.database.exists() or home.database.read_bytes() != before:
                raise Wrong("a damaged store without segments was changed") from error
            return True
        return False

    @staticmethod
    def _rows(home: Home) -> dict[str, list[tuple[Any, ...]]]:
        with connect(home, ingest=False) as connection:
            rows = everything(connection)
            rows["session_records"] = connection.execute("FROM session_records").fetchall()
        rows["session_records"].sort(key=repr)
        return rows


def _compares_stores(seed: int) -> bool:
    """Return whether the store is built at the end, even if no step of the plan uses it."""
    return seed % 40 == 1


@contextlib.contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    from agentobs import world

    with world.replaced_environ({name: value}):
        yield


@cache
def _warm_up() -> None:
    """Create what a process creates only once, so that the calls of a simulation do not depend on earlier ones."""
    with tempfile.TemporaryDirectory() as folder:
        home = open_home(Path(folder, "home"))
        record(home, conversation(1))
        ingest(home)
        with _environment(archives.VARIABLE, "1"):
            record(home, conversation(2))
            ingest(home)
        with connect(home) as connection:
            everything(connection)


def simulate(seed: int, steps: Sequence[Step] | None = None) -> Result:
    """Run the simulation of a seed, or of some of its steps."""
    steps = plan(seed) if steps is None else steps
    if profile_of(seed) == "store" or _compares_stores(seed):
        _warm_up()
    result = Result(seed, len(steps))
    parent = "/dev/shm" if Path("/dev/shm").is_dir() else None
    folder = Path(tempfile.mkdtemp(prefix="agentobs-simulation-", dir=parent))
    simulation = Simulation(seed, steps, folder)
    try:
        simulation.run()
    except Wrong as wrong:
        result.failure = str(wrong)
    except Exception as error:
        result.failure = _described(error)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    machine = simulation.machine
    result.calls, result.faults = machine.calls, machine.injected
    result.acknowledged, result.records = len(simulation.truth.acknowledged), simulation.records
    result.checks, result.digest = simulation.checks, machine.trace.hexdigest()
    return result


def _described(error: Exception) -> str:
    import traceback

    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} in {Path(frame.filename).name}:{frame.lineno}: {error}"
