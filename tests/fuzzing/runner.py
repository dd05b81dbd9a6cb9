"""The runner: runs mutated inputs of a target, and reports each input that causes an error that is not documented.

Input number N of a target is determined by the seed and N, so a failure can be repeated alone. An input must not raise
an error that the target does not document, use more than `CPU_SECONDS`, or let the memory of the process grow by more
than `MEMORY_BYTES`. It must not start a program, connect to a server, or execute code.
"""

from __future__ import annotations

import contextlib
import faulthandler
import random
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentobs.errors import AgentobsError
from tests.fuzzing.mutations import mutated

ROOT = Path(__file__).parents[2]
_PACKAGES = tuple(f"{ROOT / name}/" for name in ("agentobs", "replay", "exporters", "dashboards"))
CPU_SECONDS = 10.0
"""The processor time after which an input counts as a hang."""
WALL_SECONDS = 300.0
"""The time after which a process that does not use the processor is ended with a traceback of all threads."""
MEMORY_BYTES = 512 * 2**20
"""How much the peak memory of the process may grow during a target."""
SHRINK_TRIES = 1_500
"""The maximum number of shorter inputs that are tried to find the smallest one that fails in the same way."""
SHRINK_SECONDS = 15.0
FINDINGS_MAX = 10
"""After so many different failures, a target ends."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A target that is ready to run."""

    seeds: Sequence[bytes]
    """Valid inputs."""
    run: Callable[[bytes], object]
    """Reads an input. It returns whether the input was accepted, for targets that do not raise an error otherwise."""
    seal: Callable[[bytes], bytes] | None = None
    """Corrects the checksums of a mutated input; half of the inputs are sealed."""


@dataclass(frozen=True, slots=True)
class Target:
    """An external format, and the code that reads it."""

    name: str
    open: Callable[[Path], AbstractContextManager[Opened]]
    """Opens the target in an empty folder."""
    share: float = 1.0
    """The share of the inputs of a long run, relative to other targets: small for targets that are slow."""
    allowed: tuple[type[Exception], ...] = (AgentobsError,)
    """The documented errors."""
    quick: int = 30
    """The number of inputs in `make test`; 0 for targets that take too long."""


@dataclass(slots=True)
class Finding:
    """An input that failed."""

    target: str
    seed: int
    number: int
    error: str
    """The kind of the error and where it was raised."""
    details: str
    data: bytes
    """The smallest input that failed in the same way."""

    def __str__(self) -> str:
        return f"{self.target}: input {self.number} of seed {self.seed}: {self.error}"


@dataclass(slots=True)
class Outcome:
    """The result of a target."""

    target: str
    inputs: int = 0
    accepted: int = 0
    """The inputs that were read without an error."""
    seconds: float = 0
    findings: list[Finding] = field(default_factory=list)


class Hang(BaseException):
    """An input used too much processor time."""


class Forbidden(BaseException):
    """An input started a program, opened a connection or executed code."""


def input_of(target: Target, opened: Opened, seed: int, number: int) -> bytes:
    """Return an input of a target."""
    chance = random.Random(f"{seed} {target.name} {number}")
    data = mutated(opened.seeds, chance)
    if opened.seal is not None and chance.random() < 0.5:
        data = opened.seal(data)
    return data


def fuzz(
    target: Target,
    folder: Path,
    *,
    seed: int,
    numbers: Sequence[int],
    seconds: float = float("inf"),
) -> Outcome:
    """Run inputs of a target until the end, the time limit, or too many failures.

    Args:
        target: the target.
        folder: an empty folder for its files.
        seed: the seed of all inputs.
        numbers: the numbers of the inputs.
        seconds: the maximum duration.
    """
    outcome = Outcome(target.name)
    with target.open(folder) as opened:
        for data in opened.seeds:
            if not _is_accepted(target, opened, data):
                raise AssertionError(f"{target.name} does not accept a valid input: {data[:200]!r}")
        memory = _peak_bytes() + MEMORY_BYTES
        started = time.monotonic()
        known: set[str] = set()
        for number in numbers:
            data = input_of(target, opened, seed, number)
            error = _failure(target, opened, data, outcome)
            outcome.inputs += 1
            if error is None and _peak_bytes() > memory:
                error = ("memory grew by more than 512 MB", "")
                memory = _peak_bytes() + MEMORY_BYTES
            if error is not None and error[0] not in known:
                known.add(error[0])
                data = _smallest(target, opened, data, error[0])
                outcome.findings.append(Finding(target.name, seed, number, *error, data))
            if len(known) >= FINDINGS_MAX or time.monotonic() - started > seconds:
                break
        outcome.seconds = time.monotonic() - started
    return outcome


def _is_accepted(target: Target, opened: Opened, data: bytes) -> bool:
    try:
        return opened.run(data) is not False
    except target.allowed:
        return False


def _failure(
    target: Target, opened: Opened, data: bytes, outcome: Outcome | None = None
) -> tuple[str, str] | None:
    """Return the failure of an input and its traceback; None if it is accepted, or refused with a documented error."""
    try:
        with _limited():
            found = opened.run(data)
        if outcome is not None:
            outcome.accepted += found is not False
    except target.allowed:
        return None
    except (Exception, Hang, Forbidden) as error:
        return _place(error), traceback.format_exc()
    return None


def _place(error: BaseException) -> str:
    """Describe an error by its kind and its place, which distinguishes failures."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [each for each in frames if each.filename.startswith(_PACKAGES)]
    at = (ours or frames)[-1]
    return f"{type(error).__name__} at {Path(at.filename).name}:{at.lineno}"


def _smallest(target: Target, opened: Opened, data: bytes, error: str) -> bytes:
    """Return the smallest found input that fails in the same way."""
    tries = SHRINK_TRIES if not error.startswith(("Hang", "memory")) else 0
    size, ends = max(len(data) // 2, 1), time.monotonic() + SHRINK_SECONDS
    while tries > 0 and time.monotonic() < ends:
        at, is_smaller = 0, False
        while at < len(data) and tries > 0 and time.monotonic() < ends:
            tries -= 1
            shorter = data[:at] + data[at + size :]
            found = _failure(target, opened, shorter)
            if found is not None and found[0] == error:
                data, is_smaller = shorter, True
            else:
                at += size
        if size == 1 and not is_smaller:
            break
        size = size if is_smaller and size == 1 else max(size // 2, 1)
    return data


_is_guarded = False


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    """Raise `Hang` if the code uses too much processor time, and `Forbidden` if it executes anything."""
    global _is_guarded
    before = signal.signal(signal.SIGPROF, _hang)
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    _is_guarded = True
    try:
        yield
    finally:
        _is_guarded = False
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def _hang(number: int, frame: Any) -> None:
    raise Hang(f"more than {CPU_SECONDS:.0f} s of processor time")


_FORBIDDEN = frozenset(
    [
        "os.system",
        "os.exec",
        "os.posix_spawn",
        "os.spawn",
        "subprocess.Popen",
        "pickle.find_class",
        "socket.connect",
        "socket.getaddrinfo",
        "ctypes.dlopen",
        "code.__new__",
        "marshal.loads",
        "exec",
    ]
)
_OF_IMPORTS = frozenset(("exec", "marshal.loads", "code.__new__", "ctypes.dlopen"))


def guard_process() -> None:
    """Watch this process for forbidden operations, and for hangs that use no processor time; it cannot be undone."""
    sys.addaudithook(_audit)
    faulthandler.enable()


def renew_watchdog() -> None:
    """Begin the wall time of the next target."""
    faulthandler.dump_traceback_later(WALL_SECONDS, exit=True)


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if not _is_guarded or event not in _FORBIDDEN or (event in _OF_IMPORTS and _is_importing()):
        return
    raise Forbidden(f"{event} {arguments!r:.100}")


def _is_importing() -> bool:
    frame = sys._getframe(2)
    while frame is not None:
        if "importlib" in frame.f_code.co_filename:
            return True
        frame = frame.f_back  # type: ignore[assignment]  # None ends the loop
    return False


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
