"""Callers: who makes a request, as far as the code of the caller shows it, to distinguish identical requests.

Two sub-agents that send the same request at the same time get different responses, and in a replay they may start in
the other order. The arguments of their functions distinguish them. The frames from the transport outward are inspected;
in frames of the caller's own code, the plain values among the arguments, and the plain values in argument objects, are
collected. Of other local variables only the IDs of tool calls count. The arguments of the functions that started the
task or the work item are included, see `jobs`. No code of the caller is called, and no line or file name is recorded,
so that code may move. All of it is content: it is recorded as digests, in the content of an exchange.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import re
import sys
import sysconfig
from asyncio import current_task
from collections.abc import Iterable, Mapping, Sequence
from contextvars import copy_context
from pathlib import Path, PosixPath, WindowsPath
from types import (
    CodeType,
    FrameType,
    GetSetDescriptorType,
    MemberDescriptorType,
    SimpleNamespace,
)
from typing import Any, NamedTuple
from uuid import UUID

from agentobs.determinism import jobs
from agentobs.provider.registry import call_id_prefixes, call_types
from agentobs.records.exchanges import Origin
from agentobs.redaction import Redactor
from agentobs.runtime import process
from agentobs.tracing import is_opener
from agentobs.tracing.places import opened_here

FRAMES_MAX = 96
"""How many frames are inspected: the SDK and its transport take about 15 of them. Our choice."""
OWN_FRAMES_MAX = 8
"""How many frames of the caller's own code are used. Our choice."""
VALUES_MAX = 48
"""The maximum number of values of the functions of a request, including function names. Our choice."""
SCOPE_VALUES_MAX = 16
"""The maximum number of values of the functions that start a job. Our choice."""
HELD_MAX = 32
"""The maximum number of values that are read from one object. Our choice."""
DEPTH_MAX = 3
"""The maximum depth: `state.job.block.id` is a value of `state` at this depth. Our choice."""
LOOKS_MAX = 256
"""The maximum number of values of objects that are read for one request. Our choice."""
TEXT_MAX = 200
"""The maximum length of a text; a longer one is ignored. Our choice."""
BITS_MAX = 256
"""The maximum number of bits of a number. Our choice."""
DIGEST_BYTES = 4
"""The length of the recorded digest of a value, in the content: anybody who can enumerate the possible values can find
it. A fixture, which is meant to be committed, contains only as much of it as distinguishes a group, see `shortest`.
"""
DRAWN_BYTES = 3
"""The minimum length of the digest of a value that looks random, such as a request ID: it is new in each run, and must
not match another agent's by chance. There are too many such values to try.
"""
_DRAWN = re.compile(
    r"(?=(?:[a-f-]{0,11}[0-9][0-9-]{0,11}[a-f]){2})[0-9a-f-]{12}"
    r"|(?=(?:[A-Za-z]{0,15}(?<![0-9])[0-9]{1,5}[A-Za-z]){2})[0-9A-Za-z]{16}"
)
"""Digits and letters that alternate. Digits alone do not count, however many: all phone numbers of a region, all
account numbers and all times of a year can be tried. The same holds for digits with few letters, such as
`20261123T042011Z`."""
NAME_BYTES = 2
"""The length of the digest of the function's name, which is code, not content."""


def origin_here(attempt_id: str, session_id: str | None, *, is_async: bool) -> Origin | None:
    """Return the caller of a request, seen from the transport; None if it cannot be determined. Never raises.

    Args:
        attempt_id: the attempt.
        session_id: the session that it belongs to.
        is_async: whether it is made in a task.
    """
    try:
        job = jobs.current(may_root=is_opener())
        before = job.asked(attempt_id) if job is not None else None
        told, takes_work = _told(sys._getframe(1), VALUES_MAX)
        if is_async:
            told += _task_name()
        told += _context_values() + _span_names()
        if job is not None:
            jobs.note_request(job, session_id)
            job.is_worker = job.is_worker or takes_work
            told += job.values
        return Origin(attempt_id, tuple(told), before, job)
    except (
        Exception
    ):  # frames hold values of any sort; a call without an origin is identified by its order
        return None


def follow_jobs() -> None:
    """Track which task, work item or thread starts which in this process, from the first call on."""
    jobs.install(_scope)


def _scope(frame: FrameType | None) -> tuple[jobs.Values, bool]:
    """Return the arguments of the functions that start a job, and whether they take work from a queue."""
    told, takes_work = _told(frame, SCOPE_VALUES_MAX)
    return tuple(told), takes_work


def digests(
    origin: Origin, redactor: Redactor | None = None, secrets: Iterable[bytes] = ()
) -> tuple[str, ...]:
    """Return a caller as digests, one for each of its values, those of the nearest frame first.

    With a redactor, values that are among the `secrets` or look like one are left out.
    """
    told = origin.told
    texts = [f"{where} {name}={value!r}" for where, name, value, *_ in told]
    if redactor is not None and redactor.redact_text(joined := "\n".join(texts), secrets) != joined:
        clean = [redactor.redact_text(text, secrets) == text for text in texts]
        told = tuple(itertools.compress(told, clean))
    return tuple(dict.fromkeys(_digest_of(*each) for each in told))


def shortest(all_of_group: Iterable[str]) -> dict[str, str]:
    """Return each digest with as many bytes of its value's as distinguish it from others with its name, at least one.

    For a value that looks random it is at least `DRAWN_BYTES`. The digest of a value does not depend on its name, so a
    value that was passed on under many names reveals no more.
    """
    every = set(all_of_group)
    for size in range(1, DIGEST_BYTES):
        short = {each: _cut(each, size) for each in every}
        if len(set(short.values())) == len(every):
            return short
    return {each: _cut(each, DIGEST_BYTES) for each in every}


def told_of(written: Iterable[str], origin: Origin | None) -> set[str]:
    """Return which digests, in their short form, match those of a caller."""
    if origin is None:
        return set()
    own = digests(origin)
    whole = {
        _hex(f"{where} {name}={value!r}", DIGEST_BYTES) for where, name, value, *_ in origin.told
    }  # as it was before November 22, 2026: one of name and value
    return {
        each
        for each in set(written)
        if (any(one.startswith(each) for one in own) if _MARK in each else each in whole)
    }


_MARK = "."
_LOOKS_DRAWN = "00"
"""The suffix of the complete digest of such a value; never in a fixture."""


HELD_BY = "@"
"""The suffix of a recorded digest of a value inside an object: the path of objects to it; never in a fixture."""


def unshared(
    digests_of: Mapping[int, Sequence[str]], jobs_of: Mapping[int, int]
) -> dict[int, list[str]]:
    """Return the digests that may distinguish identical requests, without the objects that hold their values.

    A value in an object that several jobs were given under one name distinguishes none of them, and may change between
    their requests. The same holds for a value in an object that not all of them have.

    Args:
        digests_of: the digests of each request, as they were recorded.
        jobs_of: the number of the job of each request.
    """
    seen: dict[tuple[str, str], set[int]] = {}
    names: dict[str, set[int]] = {}
    held: dict[str, set[str]] = {}
    for number, each in digests_of.items():
        for digest in each:
            own, _, holders = digest.partition(HELD_BY)
            name = own.partition(_MARK)[0]
            names.setdefault(name, set()).add(number)
            for holder in holders.split("+") if holders else ():
                seen.setdefault((name, holder), set()).add(jobs_of.get(number, 0))
                held.setdefault(name, set()).add(holder)
    # For all requests or for none: a missing value must not distinguish a request. Objects may reuse an address.
    dropped = {
        name
        for name, by in held.items()
        if len(names[name]) < len(digests_of) or any(len(seen[name, each]) > 1 for each in by)
    }
    found: dict[int, list[str]] = {}
    for number, each in digests_of.items():
        bare = [digest.partition(HELD_BY)[0] for digest in each]
        kept = [digest for digest in bare if digest.partition(_MARK)[0] not in dropped]
        found[number] = list(dict.fromkeys(kept))
    return found


def _digest_of(where: str, name: str, value: Any, holders: str = "") -> str:
    text = repr(value)
    drawn = _LOOKS_DRAWN if _DRAWN.search(text) else ""
    held = f"{HELD_BY}{holders}" if holders else ""
    return f"{_hex(f'{where} {name}', NAME_BYTES)}{_MARK}{_hex(text, DIGEST_BYTES)}{drawn}{held}"


def _cut(digest: str, size: int) -> str:
    name, mark, value = digest.partition(_MARK)
    if value.endswith(_LOOKS_DRAWN, 2 * DIGEST_BYTES):
        size = max(size, DRAWN_BYTES)
    return f"{name}{mark}{value[: 2 * size]}" if mark else digest


def _hex(text: str, size: int) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=size).hexdigest()


def _told(frame: FrameType | None, count_max: int) -> tuple[list[tuple[Any, ...]], bool]:
    """Return the plain arguments of the caller's own functions, and whether one of them takes work from a queue.

    Each is a function, a name and a value. Runs on the caller's thread, once per request.
    """
    memo = process.part(Known)
    values = _Values(count_max)
    seen = own = 0
    while frame is not None and seen < FRAMES_MAX and own < OWN_FRAMES_MAX:
        code = frame.f_code
        known = memo.is_own.get(code.co_filename)
        if known is None:
            known = _note(code.co_filename)
        if known:
            own += 1
            if code.co_flags & OPTIMIZED:
                values.add_function(frame, code)
        elif code.co_name in _BEGINS and code.co_qualname in _ROOTS:
            break  # a task or a thread starts here: the runner of the loop or the pool does not identify it
        frame, seen = frame.f_back, seen + 1
    return values.all(), values.takes_work


OPTIMIZED = 0x1
"""The flag of code with local variables of its own: functions, not modules and classes."""
_STAR, _STARS = 0x04, 0x08
"""The flags of code that takes `*args` and `**kwargs`."""
_IS_VIEW = sys.version_info >= (3, 13)
"""Whether each access to a frame's variables returns a new copy."""
_HANDS_OUT = frozenset(("locals", "vars", "eval", "exec", "f_locals"))
"""Names in a function that may refer to the dict of its variables."""
_ROOTS = ("Handle._run", "_WorkItem.run", "Thread.run")
_BEGINS = ("_run", "run")


def may_hold_variables(code: CodeType) -> bool:
    """Return whether a running function may hold its variables as a dict that inspecting its frame would overwrite.

    Before Python 3.13 a frame has one such copy for all: values that a function got with `locals()` and changed would
    be changed back.
    """
    return not _IS_VIEW and not _HANDS_OUT.isdisjoint(code.co_names)


class _Values:
    """The plain values of a stack of functions: first their arguments, then the values in argument objects."""

    __slots__ = ("_count_max", "_found", "_held", "_looked", "_order", "takes_work")

    def __init__(self, count_max: int) -> None:
        self._found: list[tuple[int, tuple[Any, ...]]] = []
        """Each with the number of its function, the nearest first."""
        self._held: list[tuple[int, str, str, Any, bool, str]] = []
        """Objects whose values are still to be read; of some objects only the IDs of tool calls count."""
        self._looked: set[int] = set()
        self._count_max, self._order = count_max, 0
        self.takes_work = False

    def add_function(self, frame: FrameType, code: CodeType) -> None:
        """Add the arguments of a function, and the IDs of tool calls among its other variables."""
        self._order += 1
        where = code.co_qualname
        self._found.append((self._order, (where, "", None)))
        takes = not _TAKES.isdisjoint(code.co_names)
        if takes and not self.takes_work:
            known = frame.f_globals
            self.takes_work = any(_is_queue(known.get(name)) for name in code.co_names)
        if may_hold_variables(code):
            return
        flags, count = code.co_flags, code.co_argcount + code.co_kwonlyargcount
        count += (flags & _STAR != 0) + (flags & _STARS != 0)
        local = frame.f_locals
        given = [*code.co_varnames[:count], *code.co_freevars]
        others = [*code.co_varnames[count:], *code.co_cellvars][:VALUES_MAX]
        values = [(name, local[name], False) for name in given if name in local]
        values += [(name, local[name], True) for name in others if name in local]
        if takes and not self.takes_work:
            self.takes_work = any(_has_queue(value) for _, value, _ in values)
        if takes and self.takes_work:  # an item from a queue may be in any variable
            values = [(name, value, False) for name, value, _ in values]
        # Before Python 3.13 the frame keeps this copy: it must not keep objects alive that the caller releases.
        if type(local) is dict and sys.getrefcount(local) <= OURS_ALONE:
            local.clear()
        for name, value, ids_only in values:
            self._add(self._order, where, name, value, ids_only)

    def _add(
        self, order: int, where: str, name: str, value: Any, ids_only: bool, holders: str = ""
    ) -> None:
        kind = type(value)
        if kind in _PLAIN:
            if (not ids_only or _is_call_id(name, value)) and _is_short(value):
                told = (where, name, value, holders) if holders else (where, name, value)
                self._found.append((order, told))
        elif id(value) not in self._looked and not (ids_only and kind is list):
            holder = f"{id(value) >> 4 & 0xFFFFFFFF:x}"
            holders = f"{holders}+{holder}" if holders else holder
            self._held.append((order, where, name, value, ids_only, holders))

    def all(self) -> list[tuple[Any, ...]]:
        """Return the values, those of the nearest function first."""
        looks = LOOKS_MAX
        for _ in range(DEPTH_MAX):
            held, self._held = self._held, []
            for order, where, name, value, ids_only, holders in held:
                if looks <= 0 or len(self._found) >= self._count_max:
                    break
                if id(value) in self._looked:
                    continue
                self._looked.add(id(value))
                for inner, each, only in _inside(value, ids_only):
                    looks -= 1
                    self._add(order, where, f"{name}.{inner}", each, only, holders)
        found = self._found[: self._count_max]
        return [each for _, each in sorted(found, key=lambda one: one[0])]


_TAKES = frozenset(("get", "get_nowait", "receive", "receive_nowait"))
"""Methods that take something from a queue."""
_QUEUES = frozenset(
    ("asyncio.queues", "queue", "_queue", "multiprocessing.queues", "anyio.streams.memory", "janus")
)


def _is_queue(value: Any) -> bool:
    return type(value).__module__ in _QUEUES


def _has_queue(value: Any) -> bool:
    if _is_queue(value) or type(value) in _PLAIN:
        return _is_queue(value)
    return any(_is_queue(inner) for _, inner, _ in _inside(value, False))


_CALL_ID = re.compile(rf"(?:{'|'.join((*call_id_prefixes(), 'tooluse', 'call'))})_[\w-]{{1,120}}")
_CALL_IDS = frozenset(("tool_use_id", "tool_call_id", "call_id", "tool_id", "toolUseId"))


def _is_call_id(name: str, value: Any) -> bool:
    """Return whether a value is the ID of a tool call, by its form or its name."""
    if type(value) is not str:
        return False
    return name.rpartition(".")[2] in _CALL_IDS or _CALL_ID.fullmatch(value) is not None


def _is_short(value: Any) -> bool:
    """Return whether a value is plain and small enough to be used."""
    kind = type(value)
    if kind is str or kind is bytes:
        return len(value) <= TEXT_MAX
    return kind in _PLAIN and (kind is not int or value.bit_length() <= BITS_MAX)


_PLAIN = frozenset((str, int, bool, type(None), float, bytes, UUID, PosixPath, WindowsPath))
OURS_ALONE = 3
"""References to a frame's copy of its variables if nobody else has it: the frame's, ours, and that of the count."""


def _inside(value: Any, ids_only: bool) -> list[tuple[str, Any, bool]]:
    """Return the values in an object, a dict or a list, and whether only IDs of tool calls count among them.

    No code of its class is called. Objects of libraries count if their class describes data: models of pydantic, data
    classes, attrs, named tuples. Of other library objects, such as clients, whose values are mostly the same for all
    callers, only the data and the IDs of tool calls count.
    """
    memo = process.part(Known)
    kind = type(value)
    if kind is tuple or kind is list:
        return [(str(at), each, ids_only) for at, each in enumerate(value[:HELD_MAX])]
    if kind is dict:
        items = itertools.islice(value.items(), HELD_MAX)
        return _told_of_call([(name, each, ids_only) for name, each in items if type(name) is str])
    sort = memo.sorts.get(kind)
    if sort is None:
        sort = _sort_of(kind)
    if sort.names:
        named = zip(sort.names, tuple.__iter__(value), strict=False)
        return _told_of_call([(name, each, ids_only) for name, each in named])
    if not (sort.variables or sort.slots):
        return []
    ids_only = ids_only or not sort.is_data
    found: list[tuple[str, Any, bool]] = []
    if sort.variables is not None:
        variables = sort.variables.__get__(value)
        # Not a full copy: the object may be large, and this is the agent's own thread.
        items = itertools.islice(variables.items() if type(variables) is dict else (), HELD_MAX)
        found += [(name, each, ids_only) for name, each in items if type(name) is str]
    for name, slot in sort.slots:
        with contextlib.suppress(AttributeError):  # it was never set
            found.append((name, slot.__get__(value), ids_only))
    return _told_of_call(found)


def _told_of_call(found: list[tuple[str, Any, bool]]) -> list[tuple[str, Any, bool]]:
    """Return the values in an object; the `id` of a tool call counts as an ID of a tool call, whatever its form."""
    if not found or not found[0][2]:
        return found
    if any(name == "type" and type(v) is str and v in _CALLS for name, v, _ in found):
        return [(n, v, ids_only and n != "id") for n, v, ids_only in found]
    return found


_CALLS = call_types() | {"tool_call"}


class _Sort(NamedTuple):
    """The parts of a class that hold the values of its objects."""

    is_data: bool
    """Whether all values in its objects count, because it is the caller's own class or describes data."""
    variables: Any
    """The descriptor of its objects' variables; None if they have none."""
    slots: tuple[tuple[str, Any], ...]
    """The names and descriptors of its slots."""
    names: tuple[str, ...] = ()
    """The fields of a named tuple."""


class Known:
    """What was found out about classes, modules and files, each limited to `_FILES_MAX` entries."""

    def __init__(self) -> None:
        self.sorts: dict[type, _Sort] = {}
        self.own_modules: dict[Any, bool] = {}
        self.is_own: dict[str, bool] = {}
        """Whether a file is the caller's own code."""


_DESCRIBES_DATA = (
    "__pydantic_fields__",
    "__dataclass_fields__",
    "__attrs_attrs__",
    "__struct_fields__",
    "model_fields",
)


def _sort_of(kind: type) -> _Sort:
    """Return the layout of a class, without running any code of the class or its metaclass."""
    memo = process.part(Known)
    own, variables = is_own_class(kind), None
    is_data, slots, names = own or kind is SimpleNamespace, list[tuple[str, Any]](), ()
    for each in () if kind is type or issubclass(kind, type) else _mro(kind):
        members = _members(each)
        is_data = is_data or any(name in members for name in _DESCRIBES_DATA)
        if type(fields := members.get("_fields")) is tuple and tuple in _mro(kind):
            names = names or fields
        found = members.get("__dict__")
        if variables is None and type(found) is GetSetDescriptorType:
            variables = found
        slots += [(n, m) for n, m in members.items() if type(m) is MemberDescriptorType]
    if kind.__module__ in _NOTHING_HELD or (not is_data and kind.__module__ == "builtins"):
        variables, slots, names = None, [], ()
    if not is_data:
        slots = []
    sort = _Sort(is_data, variables, tuple(slots[:HELD_MAX]), tuple(names))
    if len(memo.sorts) < _FILES_MAX:
        memo.sorts[kind] = sort
    return sort


_NOTHING_HELD = frozenset(
    ("threading", "_thread", "asyncio.locks", "asyncio.queues", "queue", "ssl")
)


def _mro(kind: type) -> tuple[type, ...]:
    found: tuple[type, ...] = type.__dict__["__mro__"].__get__(kind)
    return found


def _members(kind: type) -> Any:
    return type.__dict__["__dict__"].__get__(kind)


def is_own_class(kind: type) -> bool:
    """Return whether a class is the caller's own: the contents of clients and locks distinguish nothing."""
    memo = process.part(Known)
    module = type.__dict__["__dict__"].__get__(kind).get("__module__")
    known = memo.own_modules.get(module)
    if known is None and type(module) is str:
        file = getattr(sys.modules.get(module), "__file__", None)
        known = type(file) is str and _note(file)
        if len(memo.own_modules) < _FILES_MAX:
            memo.own_modules[module] = known
    return bool(known)


def _span_names() -> list[tuple[Any, ...]]:
    """Return the names of the caller's open spans."""
    found: list[tuple[Any, ...]] = []
    opened = opened_here()
    while opened is not None and len(found) < OWN_FRAMES_MAX:
        found.append(("span", "name", opened.name[:TEXT_MAX]))
        opened = opened.parent
    return found


def _context_values() -> list[tuple[Any, ...]]:
    """Return the plain values of context variables, and the IDs of tool calls in their objects."""
    found: list[tuple[Any, ...]] = []
    for at, (variable, value) in enumerate(copy_context().items()):
        if at >= HELD_MAX:
            break
        if type(value) in _PLAIN:
            if value is not None and _is_short(value):
                found.append(("context", variable.name, value))
            continue
        for name, inner, _ in _inside(value, True):
            if _is_call_id(name, inner) and _is_short(inner):
                found.append(("context", f"{variable.name}.{name}", inner))
    return found


def _task_name() -> tuple[tuple[str, str, Any], ...]:
    """Return the name that the program gave the current task; the default names of asyncio only count tasks."""
    try:
        task = current_task()
    except RuntimeError:  # the event loop is not asyncio's
        return ()
    name = task.get_name() if task is not None else ""
    return () if not name or _COUNTED.fullmatch(name) else (("task", "name", name[:TEXT_MAX]),)


_COUNTED = re.compile(r"Task-\d+|.*<locals>.*|[\w.]+\.[\w.]+")
"""Default names: asyncio counts, and anyio uses the function."""

_FILES_MAX = 4096


def _note(file: str) -> bool:
    memo = process.part(Known)
    own = not file.startswith("<frozen") and not _is_installed(file)
    if len(memo.is_own) < _FILES_MAX:
        memo.is_own[file] = own
    return own


def _is_installed(file: str) -> bool:
    return file.startswith(_INSTALLED) or "site-packages" in file or "dist-packages" in file


_HERE = Path(__file__).resolve().parent.parent
_INSTALLED = (
    *{
        sysconfig.get_paths()[name] + os.sep
        for name in ("stdlib", "platstdlib", "purelib", "platlib")
    },
    f"{_HERE}{os.sep}",
    f"{_HERE.parent / 'replay'}{os.sep}",
)
"""Where library code is: the standard library, packages, and agentobs."""
