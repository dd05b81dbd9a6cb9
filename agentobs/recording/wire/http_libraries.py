"""The HTTP libraries with transports: httpx2 and httpx, which have the same interface but separate classes.

httpx is only used if the program has imported it: its classes are found in `sys.modules`.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import Any

import httpx2

NAMES = ("httpx2", "httpx")
"""The import names of the libraries."""


def imported() -> list[Any]:
    """Return the libraries that this program has imported."""
    return [module for name in NAMES if (module := sys.modules.get(name)) is not None]


def library_of(value: object) -> Any:
    """Return the library that an object belongs to, such as a request or a client; httpx2 if it belongs to none."""
    for kind in type(value).__mro__:
        root = kind.__module__.partition(".")[0]
        if root in NAMES and root in sys.modules:
            return sys.modules[root]
    return httpx2


def is_client(value: object) -> bool:
    """Return whether an object is a client of one of the libraries."""
    return isinstance(value, _classes("Client") + _classes("AsyncClient"))


def is_sync_client(value: object) -> bool:
    """Return whether an object is a synchronous client of one of the libraries."""
    return isinstance(value, _classes("Client"))


def is_read_timeout(error: object) -> bool:
    """Return whether an exception is a read timeout of one of the libraries."""
    return isinstance(error, _classes("ReadTimeout"))


def _classes(name: str) -> tuple[type, ...]:
    # A library that is being imported may not have the class yet.
    return tuple(kind for each in imported() if (kind := getattr(each, name, None)) is not None)


def stream_class(kind: type, library: ModuleType, bases: Sequence[str]) -> Any:
    """Return a stream class of httpx2 as a class whose instances a client of `library` accepts.

    Args:
        kind: the class; it implements the interfaces of `bases`.
        library: the library of the client.
        bases: the names of the interfaces, such as `SyncByteStream`.
    """
    return kind if library is httpx2 else _derived(kind, library, tuple(bases))


@functools.cache
def _derived(kind: type, library: ModuleType, bases: tuple[str, ...]) -> type:
    return type(kind.__name__, (kind, *(getattr(library, name) for name in bases)), {})


class ImportWatch(MetaPathFinder):
    """Calls a function after the first import of any of some modules, until `stop`."""

    def __init__(self, names: Sequence[str], imported: Callable[[], None]) -> None:
        """Start to watch for `names`; `imported` is called after each of them was imported."""
        self._pending, self._imported = set(names), imported
        sys.meta_path.insert(0, self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a watched module as the other finders do, and notice when it has been executed."""
        if name not in self._pending:
            return None
        self._pending.discard(name)
        for finder in sys.meta_path:
            found = None if finder is self else finder.find_spec(name, path, target)
            if found is not None and found.loader is not None:
                found.loader = _Watched(found.loader, self._imported)
                return found
        return None

    def stop(self) -> None:
        """Stop watching."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)


class _Watched(Loader):
    """Loads a module, and calls a function afterwards."""

    def __init__(self, inner: Any, imported: Callable[[], None]) -> None:
        self._inner, self._imported = inner, imported

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._inner.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._inner
        module.__loader__ = self._inner
        self._inner.exec_module(module)
        self._imported()


def described(value: Any) -> str:
    """Return the class of an object, with the package that defines it and its version, for errors."""
    kind = type(value)
    package = kind.__module__.partition(".")[0]
    if package in sys.stdlib_module_names:
        return kind.__qualname__ if package == "builtins" else f"{package}.{kind.__qualname__}"
    try:
        return f"{kind.__qualname__} of {package} {version(package)}"
    except PackageNotFoundError:  # the code of the user, or a package with another import name
        return f"{kind.__module__}.{kind.__qualname__}"
