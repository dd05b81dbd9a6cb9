"""Origins: who asks, as far as the code of the caller tells, so that equal questions can be told apart.

Two sub-agents that ask the same at the same time get different answers, and in a replay they may start in the other
order. What tells them apart is what their functions were called with. The frames from the transport outward are looked
at, and of those of the caller's own code the plain values that they were given. Nothing of the caller's is called, no
line and no file is kept, so that code may move. All of it is content: it is told as digests, beside the content of an
exchange.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import sys
import sysconfig
import threading
from asyncio import current_task
from collections.abc import Iterable
from contextvars import ContextVar
from pathlib import Path
from types import CodeType, FrameType, GetSetDescriptorType
from typing import Any

from agentobs.records.exchanges import Origin
from agentobs.redaction import Redactor
from agentobs.tracing import is_opener

FRAMES_MAX = 96
"""How many frames are looked at: the SDK and its transport take some 15 of them. Our choice."""
OWN_FRAMES_MAX = 8
"""How many frames of the caller's own code tell something. Our choice."""
VALUES_MAX = 32
"""How many values an origin has, the names of functions among them, and how much of one object is looked at. Our
choice."""
TEXT_MAX = 200
"""How many characters a text may have; a longer one tells nothing. Our choice."""
BITS_MAX = 256
"""How many bits a number may have, likewise. Our choice."""
DIGEST_BYTES = 4
"""How long the digest of a value is where it is recorded, beside the content: whoever tries all that a value may be
finds it by that. What is meant to be committed has as few of them as tell a group apart, see `shortest`."""
DRAWN_BYTES = 3
"""How long at least it stays of a value that looks drawn, such as the id of a request: that is new in each run, and is
not to have the byte of another agent's by chance. There are so many such values that nobody finds one by trying."""
_DRAWN = re.compile(
    r"[0-9]{10}|(?=[0-9a-f-]{0,11}[0-9])[0-9a-f-]{12}|(?=(?:[A-Za-z]{0,15}[0-9]{1,15}[A-Za-z]){2})[0-9A-Za-z]{16}"
)
NAME_BYTES = 2
"""How long the digest of its name is, which is code and no content."""

_before: ContextVar[str | None] = ContextVar("agentobs_before", default=None)
"""The attempt that this context made last, that of a task or a thread; a task that is started from it inherits it."""


def origin_here(attempt_id: str, *, is_async: bool) -> Origin | None:
    """Return who asks, seen from the transport; None where that cannot be told. Never raises.

    Args:
        attempt_id: the attempt that is made.
        is_async: whether it is made in a task.
    """
    try:
        before = _before.get()  # in a thread of a pool only where the job brought its context along
        if is_async or _is_own_thread():
            _before.set(attempt_id)
        told = _told(sys._getframe(1))
        if is_async:
            told += _task_name()
        return Origin(attempt_id, tuple(told), before)
    except (
        Exception
    ):  # frames hold values of any sort; a call without an origin is told apart by order alone
        return None


def _is_own_thread() -> bool:
    """Return whether this thread goes on with what it did before: the main thread, or the one that opened the session.

    Threads of a pool are shared by whoever comes: what one of them asked before says nothing.
    """
    return threading.main_thread().ident == threading.get_ident() or is_opener()


def digests(
    origin: Origin, redactor: Redactor | None = None, secrets: Iterable[bytes] = ()
) -> tuple[str, ...]:
    """Return an origin as digests, one for each value that it tells, those of the nearest frame first.

    With a redactor, what is one of the `secrets` or looks like one tells nothing.
    """
    told = origin.told
    texts = [f"{where} {name}={value!r}" for where, name, value in told]
    if redactor is not None and redactor.redact_text(joined := "\n".join(texts), secrets) != joined:
        clean = [redactor.redact_text(text, secrets) == text for text in texts]
        told = tuple(itertools.compress(told, clean))
    return tuple(dict.fromkeys(_digest_of(*each) for each in told))


def shortest(all_of_group: Iterable[str]) -> dict[str, str]:
    """Return each digest with as much of its value's as tells it from the others of its name, but one byte at least.

    Of a value that looks drawn it is `DRAWN_BYTES` at least. The digest of a value does not depend on its name: so that
    it was passed on by many names tells no more of it.
    """
    every = set(all_of_group)
    for size in range(1, DIGEST_BYTES):
        short = {each: _cut(each, size) for each in every}
        if len(set(short.values())) == len(every):
            return short
    return {each: _cut(each, DIGEST_BYTES) for each in every}


def told_of(written: Iterable[str], origin: Origin | None) -> set[str]:
    """Return which digests, as short as they were written, are those of an origin."""
    if origin is None:
        return set()
    own = digests(origin)
    whole = {
        _hex(f"{where} {name}={value!r}", DIGEST_BYTES) for where, name, value in origin.told
    }  # as it was before November 22, 2026: one of name and value
    return {
        each
        for each in set(written)
        if (any(one.startswith(each) for one in own) if _MARK in each else each in whole)
    }


_MARK = "."
_LOOKS_DRAWN = "00"
"""What is written behind the whole digest of such a value; never into a fixture."""


def _digest_of(where: str, name: str, value: Any) -> str:
    text = repr(value)
    drawn = _LOOKS_DRAWN if _DRAWN.search(text) else ""
    return f"{_hex(f'{where} {name}', NAME_BYTES)}{_MARK}{_hex(text, DIGEST_BYTES)}{drawn}"


def _cut(digest: str, size: int) -> str:
    name, mark, value = digest.partition(_MARK)
    if value.endswith(_LOOKS_DRAWN, 2 * DIGEST_BYTES):
        size = max(size, DRAWN_BYTES)
    return f"{name}{mark}{value[: 2 * size]}" if mark else digest


def _hex(text: str, size: int) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=size).hexdigest()


def _told(frame: FrameType | None) -> list[tuple[str, str, Any]]:
    """Return the plain values that the caller's own functions were given: function, name and value.

    One function, for it runs on the caller's thread once a request.
    """
    told: list[tuple[str, str, Any]] = []
    looked: set[int] = set()
    seen = own = 0
    while frame is not None and seen < FRAMES_MAX and own < OWN_FRAMES_MAX:
        if len(told) >= VALUES_MAX:
            break
        code = frame.f_code
        known = _is_own.get(code.co_filename)
        if known is None:
            known = _note(code.co_filename)
        if known:
            own += 1
            if code.co_flags & _OPTIMISED:
                told.append((code.co_qualname, "", None))
                if not may_hold_variables(code):
                    _add_values(told, looked, frame, code)
        elif code.co_name in _BEGINS and code.co_qualname in _ROOTS:
            break  # here a task or a thread begins: whoever runs the loop or the pool tells nothing of it
        frame, seen = frame.f_back, seen + 1
    return told


_OPTIMISED = 0x1
"""The flag of code with local variables of its own: functions, not modules and classes."""
_STAR, _STARS = 0x04, 0x08
"""The flags of code that takes `*args` and `**kwargs`."""
_IS_VIEW = sys.version_info >= (3, 13)
"""Whether each look at a frame's variables is one of its own."""
_HANDS_OUT = frozenset(("locals", "vars", "eval", "exec", "f_locals"))
"""What a function names that may hold the dict of its variables."""
_ROOTS = ("Handle._run", "_WorkItem.run", "Thread.run")
_BEGINS = ("_run", "run")


def may_hold_variables(code: CodeType) -> bool:
    """Return whether a running function may hold its variables as a dict that a look at its frame writes anew.

    Before Python 3.13 a frame has one such copy for all: what a function got with `locals()` and changed would be
    changed back.
    """
    return not _IS_VIEW and not _HANDS_OUT.isdisjoint(code.co_names)


def _add_values(
    told: list[tuple[str, str, Any]], looked: set[int], frame: FrameType, code: CodeType
) -> None:
    """Add what a function was given, until there is enough; what was `looked` into before tells nothing new."""
    flags, count = code.co_flags, code.co_argcount + code.co_kwonlyargcount
    count += (flags & _STAR != 0) + (flags & _STARS != 0)
    names = code.co_varnames[:count] + code.co_freevars
    if not names:
        return
    local = frame.f_locals
    values = [(name, local[name]) for name in names if name in local]
    # Before Python 3.13 the frame keeps this copy: it must not hold what the caller lets go of.
    if type(local) is dict and sys.getrefcount(local) <= _OURS_ALONE:
        local.clear()
    where = code.co_qualname
    for name, value in values:
        if type(value) in _PLAIN:
            found = [(where, name, value)]
        elif id(value) in looked:
            continue
        else:
            looked.add(id(value))
            found = [(where, f"{name}.{inner}", each) for inner, each in _inside(value)]
        told += [each for each in found if _is_short(each[2])]
        if len(told) >= VALUES_MAX:
            del told[VALUES_MAX:]
            return


def _is_short(value: Any) -> bool:
    """Return whether a value is a plain one that is small enough to tell something."""
    kind = type(value)
    if kind is str:
        return len(value) <= TEXT_MAX
    return kind in _PLAIN and (kind is not int or value.bit_length() <= BITS_MAX)


_PLAIN = frozenset((str, int, bool, type(None)))
_OURS_ALONE = 3
"""References to a frame's copy of its variables where nobody else has it: the frame's, ours, and that of the count."""


def _inside(value: Any) -> Iterable[tuple[str, Any]]:
    """Return what an object, a dict or a list holds, one level deep, without calling any code of its class."""
    kind = type(value)
    if kind is tuple or kind is list:
        return [(str(at), each) for at, each in enumerate(value[:VALUES_MAX])]
    if kind is not dict:
        value = _variables(value, kind) if is_own_class(kind) else None
    # Not a copy of the whole: what an agent holds may be large, and this is its own thread.
    items = list(itertools.islice(value.items(), VALUES_MAX)) if value else []
    return [(name, each) for name, each in items if type(name) is str]


def is_own_class(kind: type) -> bool:
    """Return whether a class is the caller's own: what clients and locks hold tells nothing."""
    module = type.__dict__["__dict__"].__get__(kind).get("__module__")
    known = _own_modules.get(module)
    if known is None and type(module) is str:
        file = getattr(sys.modules.get(module), "__file__", None)
        known = type(file) is str and _note(file)
        if len(_own_modules) < _FILES_MAX:
            _own_modules[module] = known
    return bool(known)


_own_modules: dict[Any, bool] = {}


def _variables(value: Any, kind: type) -> dict[str, Any] | None:
    for each in type.__dict__["__mro__"].__get__(kind):
        found = type.__dict__["__dict__"].__get__(each).get("__dict__")
        if found is not None:
            own = type(found) is GetSetDescriptorType
            return found.__get__(value) if own and kind is not type else None
    return None


def _task_name() -> tuple[tuple[str, str, Any], ...]:
    """Return the name that somebody gave the current task; the ones that asyncio gives count tasks."""
    try:
        task = current_task()
    except RuntimeError:  # the event loop is not asyncio's
        return ()
    name = task.get_name() if task is not None else ""
    return () if not name or _COUNTED.fullmatch(name) else (("task", "name", name[:TEXT_MAX]),)


_COUNTED = re.compile(r"Task-\d+|.*<locals>.*|[\w.]+\.[\w.]+")
"""Names that nobody gave: asyncio counts, and anyio tells the function."""

_is_own: dict[str, bool] = {}
"""Whether a file is the caller's own code."""
_FILES_MAX = 4096


def _note(file: str) -> bool:
    own = not file.startswith("<frozen") and not _is_installed(file)
    if len(_is_own) < _FILES_MAX:
        _is_own[file] = own
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
"""Where code lies that is nobody's own: the standard library, packages, and ours."""
