"""Identify the callers of requests by the functions and arguments on their stack, to distinguish identical requests.

Two sub-agents that send the same request at the same time get different responses, and in a replay they may start in a
different order. The arguments of their functions distinguish them. The frames from the transport outward are inspected.
In frames of the caller's own code, the plain values among the arguments and in argument objects are collected. Of other
local variables, only the IDs of tool calls are collected. The arguments of the functions that started the task or work
item are included, see `jobs`. No code of the caller is called, and no line numbers or file names are recorded, so that
code may be moved. All collected values are content: they are recorded as digests, in the content of an exchange.
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
"""The maximum number of frames that are inspected: the SDK and its transport take about 15 of them. Our choice."""
OWN_FRAMES_MAX = 8
"""The maximum number of frames of the caller's own code that are used. Our choice."""
VALUES_MAX = 48
"""The maximum number of values that identify the caller of one request, including function names. Our choice."""
SCOPE_VALUES_MAX = 16
"""The maximum number of values of the functions that start a job. Our choice."""
HELD_MAX = 32
"""The maximum number of values that are read from one object. Our choice."""
DEPTH_MAX = 3
"""The maximum nesting depth: `state.job.block.id` is a value of `state` at this depth. Our choice."""
READS_MAX = 256
"""The maximum number of values that are read from objects for one request. Our choice."""
TEXT_MAX = 200
"""The maximum length of a text; longer texts are ignored. Our choice."""
BITS_MAX = 256
"""The maximum number of bits of a number. Our choice."""
DIGEST_BYTES = 4
"""The length of the recorded digest of a value. A digest is content, because the value can be found by trying all
possible values. A fixture is meant to be committed, so it contains only the prefix of a digest that is needed to
distinguish the requests of a group, see `shortened_digests`.
"""
RANDOM_VALUE_BYTES = 3
"""The minimum length of the digest of a value that looks random, such as a request ID. Such a value is new in each run,
and its digest must not match the digest of another agent's value by chance. There are too many such values to try all
of them.
"""
_RANDOM_LOOKING = re.compile(
    r"(?=(?:[a-f-]{0,11}[0-9][0-9-]{0,11}[a-f]){2})[0-9a-f-]{12}"
    r"|(?=(?:[A-Za-z]{0,15}(?<![0-9])[0-9]{1,5}[A-Za-z]){2})[0-9A-Za-z]{16}"
)
"""Matches alternating digits and letters. Digits alone do not match, even if there are many of them, because all phone
numbers of a region, all account numbers or all times of a year can be tried. The same applies to digits with few
letters, such as `20261123T042011Z`.
"""
NAME_BYTES = 2
"""The length of the digest of a function's name and its argument's name, which are code, not content."""


def origin_here(attempt_id: str, session_id: str | None, *, is_async: bool) -> Origin | None:
    """Return the caller of a request, None if it is unknown. The transport calls this function. Never raises.

    Args:
        attempt_id: the attempt that sends the request.
        session_id: the session of the attempt.
        is_async: whether the attempt is made in a task.
    """
    try:
        job = jobs.current(may_root=is_opener())
        previous = job.note_attempt(attempt_id) if job is not None else None
        values, takes_work = _plain_arguments(sys._getframe(1), VALUES_MAX)
        if is_async:
            values += _task_name()
        values += _context_values() + _span_names()
        if job is not None:
            jobs.note_request(job, session_id)
            job.is_worker = job.is_worker or takes_work
            values += job.values
        return Origin(attempt_id, tuple(values), previous, job)
    except Exception:
        # Frames may contain values of any kind. A request without a known caller is identified by its order.
        return None


def follow_jobs() -> None:
    """Start to track the parent of each new task, work item and thread of this process."""
    jobs.install(_starter_arguments)


def _starter_arguments(frame: FrameType | None) -> tuple[jobs.Values, bool]:
    """Return the arguments of the functions that start a job, and whether they take work from a queue."""
    values, takes_work = _plain_arguments(frame, SCOPE_VALUES_MAX)
    return tuple(values), takes_work


def digests(
    origin: Origin, redactor: Redactor | None = None, secrets: Iterable[bytes] = ()
) -> tuple[str, ...]:
    """Return a caller as digests, one for each of its values, starting with the innermost frame.

    If there is a redactor, values that contain one of the `secrets` or look like a secret are left out.
    """
    values = origin.values
    texts = [f"{where} {name}={value!r}" for where, name, value, *_ in values]
    if redactor is not None and redactor.redact_text(joined := "\n".join(texts), secrets) != joined:
        clean = [redactor.redact_text(text, secrets) == text for text in texts]
        values = tuple(itertools.compress(values, clean))
    return tuple(dict.fromkeys(_digest_of(*each) for each in values))


def shortened_digests(group: Iterable[str]) -> dict[str, str]:
    """Return the digests of a group of requests, each mapped to a shortened form that is still unique in the group.

    At least one byte of the value's digest is kept, and at least `RANDOM_VALUE_BYTES` if the value looks random. The
    digest of a value does not depend on its name, so a value that was passed under many names reveals no more than a
    value with one name.
    """
    every = set(group)
    for size in range(1, DIGEST_BYTES):
        short = {each: _cut(each, size) for each in every}
        if len(set(short.values())) == len(every):
            return short
    return {each: _cut(each, DIGEST_BYTES) for each in every}


def matching_digests(recorded: Iterable[str], origin: Origin | None) -> set[str]:
    """Return the recorded digests, in their shortened form, that match a digest of a caller."""
    if origin is None:
        return set()
    complete = digests(origin)
    # Until November 22, 2026, one digest was computed from the name and the value together.
    combined = {
        _hex(f"{where} {name}={value!r}", DIGEST_BYTES) for where, name, value, *_ in origin.values
    }
    return {
        each
        for each in set(recorded)
        if (any(one.startswith(each) for one in complete) if _MARK in each else each in combined)
    }


_MARK = "."
"""Separates the digest of a name from the digest of its value."""
_RANDOM_SUFFIX = "00"
"""The suffix of the complete digest of a value that looks random; never in a fixture."""


HOLDERS_MARK = "@"
"""Separates the recorded digest of a value inside an object from the numbers of the objects that hold the value; never
in a fixture.
"""


def distinguishing_digests(
    digests_of: Mapping[int, Sequence[str]], jobs_of: Mapping[int, int]
) -> dict[int, list[str]]:
    """Return the digests that may distinguish identical requests, without the suffixes for objects.

    Two kinds of values are left out. If several jobs received the same object under the same name, its values do not
    distinguish the jobs, and may change between their requests. If some requests have no value under a name, the values
    of objects under that name are left out for all requests.

    Args:
        digests_of: the recorded digests of each request.
        jobs_of: the number of the job of each request.
    """
    seen: dict[tuple[str, str], set[int]] = {}
    names: dict[str, set[int]] = {}
    held: dict[str, set[str]] = {}
    for number, each in digests_of.items():
        for digest in each:
            plain, _, holders = digest.partition(HOLDERS_MARK)
            name = plain.partition(_MARK)[0]
            names.setdefault(name, set()).add(number)
            for holder in holders.split("+") if holders else ():
                seen.setdefault((name, holder), set()).add(jobs_of.get(number, 0))
                held.setdefault(name, set()).add(holder)
    # A value is used for all requests or for none, because a missing value must not distinguish a request. Objects may
    # reuse an address.
    dropped = {
        name
        for name, holders in held.items()
        if len(names[name]) < len(digests_of) or any(len(seen[name, each]) > 1 for each in holders)
    }
    found: dict[int, list[str]] = {}
    for number, each in digests_of.items():
        bare = [digest.partition(HOLDERS_MARK)[0] for digest in each]
        kept = [digest for digest in bare if digest.partition(_MARK)[0] not in dropped]
        found[number] = list(dict.fromkeys(kept))
    return found


def _digest_of(where: str, name: str, value: Any, holders: str = "") -> str:
    text = repr(value)
    random_suffix = _RANDOM_SUFFIX if _RANDOM_LOOKING.search(text) else ""
    held = f"{HOLDERS_MARK}{holders}" if holders else ""
    return f"{_hex(f'{where} {name}', NAME_BYTES)}{_MARK}{_hex(text, DIGEST_BYTES)}{random_suffix}{held}"


def _cut(digest: str, size: int) -> str:
    name, mark, value = digest.partition(_MARK)
    if value.endswith(_RANDOM_SUFFIX, 2 * DIGEST_BYTES):
        size = max(size, RANDOM_VALUE_BYTES)
    return f"{name}{mark}{value[: 2 * size]}" if mark else digest


def _hex(text: str, size: int) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=size).hexdigest()


def _plain_arguments(frame: FrameType | None, count_max: int) -> tuple[list[tuple[Any, ...]], bool]:
    """Return the plain arguments of the caller's own functions, and whether one of them takes work from a queue.

    Each argument is a function, a name and a value. This runs on the caller's thread, once per request.
    """
    memo = process.state(Cache)
    values = _Values(count_max)
    frames = own_frames = 0
    while frame is not None and frames < FRAMES_MAX and own_frames < OWN_FRAMES_MAX:
        code = frame.f_code
        known = memo.is_own.get(code.co_filename)
        if known is None:
            known = _classify_file(code.co_filename)
        if known:
            own_frames += 1
            if code.co_flags & OPTIMIZED:
                values.add_function(frame, code)
        elif code.co_name in _ROOT_NAMES and code.co_qualname in _ROOTS:
            break  # a task or thread starts here; the outer frames of the loop or pool do not identify the caller
        frame, frames = frame.f_back, frames + 1
    return values.all(), values.takes_work


OPTIMIZED = 0x1
"""The flag of code that has local variables: functions, but not modules and class bodies."""
_STAR, _STARS = 0x04, 0x08
"""The flags of code that takes `*args` and `**kwargs`."""
_IS_VIEW = sys.version_info >= (3, 13)
"""Whether `f_locals` of a function's frame is a view of its variables, not a copy that all readers share (PEP 667)."""
_VARIABLE_ACCESSES = frozenset(("locals", "vars", "eval", "exec", "f_locals"))
"""Names in a function that may refer to the dict of its variables."""
_ROOTS = ("Handle._run", "_WorkItem.run", "Thread.run")
_ROOT_NAMES = ("_run", "run")


def may_hold_variables(code: CodeType) -> bool:
    """Return whether a function may use the dict of its variables, which an inspection of its frame would overwrite.

    Before Python 3.13, a frame has only one such dict. If a function got it from `locals()` and changed it, an
    inspection of the frame would revert the changes.
    """
    return not _IS_VIEW and not _VARIABLE_ACCESSES.isdisjoint(code.co_names)


class _Values:
    """The plain values of a stack of functions: first their arguments, then the values in argument objects."""

    __slots__ = ("_count_max", "_found", "_held", "_order", "_read_ids", "takes_work")

    def __init__(self, count_max: int) -> None:
        self._found: list[tuple[int, tuple[Any, ...]]] = []
        """The values, each with the number of its function; the innermost function has the number 1."""
        self._held: list[tuple[int, str, str, Any, bool, str]] = []
        """Objects whose values have not been read yet; from some objects, only the IDs of tool calls are used."""
        self._read_ids: set[int] = set()
        self._count_max, self._order = count_max, 0
        self.takes_work = False

    def add_function(self, frame: FrameType, code: CodeType) -> None:
        """Add the arguments of a function, and the IDs of tool calls in its other variables."""
        self._order += 1
        where = code.co_qualname
        self._found.append((self._order, (where, "", None)))
        takes = not _TAKING_METHODS.isdisjoint(code.co_names)
        if takes and not self.takes_work:
            known = frame.f_globals
            self.takes_work = any(_is_queue(known.get(name)) for name in code.co_names)
        if may_hold_variables(code):
            return
        flags, count = code.co_flags, code.co_argcount + code.co_kwonlyargcount
        count += (flags & _STAR != 0) + (flags & _STARS != 0)
        local = frame.f_locals
        arguments = [*code.co_varnames[:count], *code.co_freevars]
        others = [*code.co_varnames[count:], *code.co_cellvars][:VALUES_MAX]
        values = [(name, local[name], False) for name in arguments if name in local]
        values += [(name, local[name], True) for name in others if name in local]
        if takes and not self.takes_work:
            self.takes_work = any(_has_queue(value) for _, value, _ in values)
        if takes and self.takes_work:  # an item from a queue may be in any variable
            values = [(name, value, False) for name, value, _ in values]
        # Before Python 3.13, the frame keeps this copy, which would keep objects alive after the caller released them.
        if type(local) is dict and sys.getrefcount(local) <= UNSHARED_REFERENCES:
            local.clear()
        for name, value, ids_only in values:
            self._add(self._order, where, name, value, ids_only)

    def _add(
        self, order: int, where: str, name: str, value: Any, ids_only: bool, holders: str = ""
    ) -> None:
        kind = type(value)
        if kind in _PLAIN:
            if (not ids_only or _is_call_id(name, value)) and _is_short(value):
                entry = (where, name, value, holders) if holders else (where, name, value)
                self._found.append((order, entry))
        elif id(value) not in self._read_ids and not (ids_only and kind is list):
            holder = f"{id(value) >> 4 & 0xFFFFFFFF:x}"
            holders = f"{holders}+{holder}" if holders else holder
            self._held.append((order, where, name, value, ids_only, holders))

    def all(self) -> list[tuple[Any, ...]]:
        """Return the values, starting with the innermost function."""
        reads = READS_MAX
        for _ in range(DEPTH_MAX):
            held, self._held = self._held, []
            for order, where, name, value, ids_only, holders in held:
                if reads <= 0 or len(self._found) >= self._count_max:
                    break
                if id(value) in self._read_ids:
                    continue
                self._read_ids.add(id(value))
                for inner, each, only in _inside(value, ids_only):
                    reads -= 1
                    self._add(order, where, f"{name}.{inner}", each, only, holders)
        found = self._found[: self._count_max]
        return [each for _, each in sorted(found, key=lambda one: one[0])]


_TAKING_METHODS = frozenset(("get", "get_nowait", "receive", "receive_nowait"))
"""Methods that take an item from a queue."""
_QUEUE_MODULES = frozenset(
    ("asyncio.queues", "queue", "_queue", "multiprocessing.queues", "anyio.streams.memory", "janus")
)


def _is_queue(value: Any) -> bool:
    return type(value).__module__ in _QUEUE_MODULES


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
    """Return whether a value has a plain type and is small enough to identify a caller."""
    kind = type(value)
    if kind is str or kind is bytes:
        return len(value) <= TEXT_MAX
    return kind in _PLAIN and (kind is not int or value.bit_length() <= BITS_MAX)


_PLAIN = frozenset((str, int, bool, type(None), float, bytes, UUID, PosixPath, WindowsPath))
UNSHARED_REFERENCES = 3
"""The reference count of a frame's copy of its variables if no other code uses it: the references of the frame, of our
variable, and of the argument of `sys.getrefcount`.
"""


def _inside(value: Any, ids_only: bool) -> list[tuple[str, Any, bool]]:
    """Return the values in an object, a dict or a list, each with its name and a flag: whether only tool call IDs are
    used.

    No code of the object's class is called. All values of a library object are used if its class describes data:
    pydantic models, dataclasses, attrs classes, named tuples. Other library objects, such as clients, mostly contain
    the same values for all callers. From them, only data objects and the IDs of tool calls are used.
    """
    memo = process.state(Cache)
    kind = type(value)
    if kind is tuple or kind is list:
        return [(str(at), each, ids_only) for at, each in enumerate(value[:HELD_MAX])]
    if kind is dict:
        items = itertools.islice(value.items(), HELD_MAX)
        return _with_call_ids([(name, each, ids_only) for name, each in items if type(name) is str])
    layout = memo.layouts.get(kind)
    if layout is None:
        layout = _layout_of(kind)
    if layout.names:
        named = zip(layout.names, tuple.__iter__(value), strict=False)
        return _with_call_ids([(name, each, ids_only) for name, each in named])
    if not (layout.variables or layout.slots):
        return []
    ids_only = ids_only or not layout.is_data
    found: list[tuple[str, Any, bool]] = []
    if layout.variables is not None:
        variables = layout.variables.__get__(value)
        # Only the first items are copied, because the object may be large and this runs on the agent's thread.
        items = itertools.islice(variables.items() if type(variables) is dict else (), HELD_MAX)
        found += [(name, each, ids_only) for name, each in items if type(name) is str]
    for name, slot in layout.slots:
        with contextlib.suppress(AttributeError):  # the slot was never set
            found.append((name, slot.__get__(value), ids_only))
    return _with_call_ids(found)


def _with_call_ids(found: list[tuple[str, Any, bool]]) -> list[tuple[str, Any, bool]]:
    """Return the values in an object; the `id` of a tool call object is used even if it does not look like an ID."""
    if not found or not found[0][2]:
        return found
    if any(name == "type" and type(v) is str and v in _CALLS for name, v, _ in found):
        return [(n, v, ids_only and n != "id") for n, v, ids_only in found]
    return found


_CALLS = call_types() | {"tool_call"}


class _Layout(NamedTuple):
    """Where the objects of a class store their values."""

    is_data: bool
    """Whether all values are used, because the class is the caller's own or describes data."""
    variables: Any
    """The descriptor of `__dict__` of the objects; None if they have none."""
    slots: tuple[tuple[str, Any], ...]
    """The names and descriptors of the slots."""
    names: tuple[str, ...] = ()
    """The fields of a named tuple."""


class Cache:
    """Caches facts about classes, modules and files, each with at most `_FILES_MAX` entries."""

    def __init__(self) -> None:
        self.layouts: dict[type, _Layout] = {}
        self.own_modules: dict[Any, bool] = {}
        self.is_own: dict[str, bool] = {}
        """Whether a file contains the caller's own code."""


_DESCRIBES_DATA = (
    "__pydantic_fields__",
    "__dataclass_fields__",
    "__attrs_attrs__",
    "__struct_fields__",
    "model_fields",
)


def _layout_of(kind: type) -> _Layout:
    """Return the layout of a class, without calling code of the class or its metaclass."""
    memo = process.state(Cache)
    is_own, variables = is_own_class(kind), None
    is_data, slots, names = is_own or kind is SimpleNamespace, list[tuple[str, Any]](), ()
    for each in () if kind is type or issubclass(kind, type) else _mro(kind):
        members = _members(each)
        is_data = is_data or any(name in members for name in _DESCRIBES_DATA)
        if type(fields := members.get("_fields")) is tuple and tuple in _mro(kind):
            names = names or fields
        found = members.get("__dict__")
        if variables is None and type(found) is GetSetDescriptorType:
            variables = found
        slots += [(n, m) for n, m in members.items() if type(m) is MemberDescriptorType]
    if kind.__module__ in _OPAQUE_MODULES or (not is_data and kind.__module__ == "builtins"):
        variables, slots, names = None, [], ()
    if not is_data:
        slots = []
    layout = _Layout(is_data, variables, tuple(slots[:HELD_MAX]), tuple(names))
    if len(memo.layouts) < _FILES_MAX:
        memo.layouts[kind] = layout
    return layout


_OPAQUE_MODULES = frozenset(
    ("threading", "_thread", "asyncio.locks", "asyncio.queues", "queue", "ssl")
)


def _mro(kind: type) -> tuple[type, ...]:
    found: tuple[type, ...] = type.__dict__["__mro__"].__get__(kind)
    return found


def _members(kind: type) -> Any:
    return type.__dict__["__dict__"].__get__(kind)


def is_own_class(kind: type) -> bool:
    """Return whether a class is defined in the caller's own code."""
    memo = process.state(Cache)
    module = type.__dict__["__dict__"].__get__(kind).get("__module__")
    known = memo.own_modules.get(module)
    if known is None and type(module) is str:
        file = getattr(sys.modules.get(module), "__file__", None)
        known = type(file) is str and _classify_file(file)
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
    """Return the plain values of context variables, and the IDs of tool calls in objects of context variables."""
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
    """Return the name that the program gave the current task; empty if the task has a default name."""
    try:
        task = current_task()
    except RuntimeError:  # the event loop is not asyncio's
        return ()
    name = task.get_name() if task is not None else ""
    return () if not name or _DEFAULT_NAME.fullmatch(name) else (("task", "name", name[:TEXT_MAX]),)


_DEFAULT_NAME = re.compile(r"Task-\d+|.*<locals>.*|[\w.]+\.[\w.]+")
"""Matches the default names of tasks: asyncio numbers them, and anyio uses the name of the function."""

_FILES_MAX = 4096


def _classify_file(file: str) -> bool:
    memo = process.state(Cache)
    is_own = not file.startswith("<frozen") and not _is_installed(file)
    if len(memo.is_own) < _FILES_MAX:
        memo.is_own[file] = is_own
    return is_own


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
"""The paths of library code: the standard library, installed packages, and agentobs."""
