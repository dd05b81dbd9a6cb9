"""Tests of `replay.agent_code.imported_modules`: which modules are new since the last look."""

from __future__ import annotations

import sys
import time
import weakref
from types import ModuleType

import pytest

from replay.agent_code.imported_modules import ImportedModules
from replay.virtual_time import time_patches


class NoWeakReferences:
    """An object that is registered as a module, and cannot have weak references."""

    __slots__ = ()


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    """Return what `sys.modules` is during the test: a copy, whose last modules are `first`, `middle` and `last`."""
    copied = dict(sys.modules)
    copied.update({name: ModuleType(name) for name in ("first", "middle", "last")})
    monkeypatch.setattr(sys, "modules", copied)
    return copied


def names_since(imported: ImportedModules) -> list[str]:
    """Return the names of the modules from the first one on that has changed since the last look."""
    names, _, same = imported.look()
    return names[same:]


def test_only_what_has_changed_is_new(modules: dict[str, ModuleType]) -> None:
    """After a module that was added, replaced, renamed or removed, this module and all later ones are new."""
    imported = ImportedModules()
    assert names_since(imported)[-3:] == ["first", "middle", "last"]
    assert names_since(imported) == []
    modules["added"] = ModuleType("added")
    assert imported.imported_since() == [modules["added"]]
    assert names_since(imported) == ["added"]
    modules["middle"] = ModuleType("middle")
    assert names_since(imported) == ["middle", "last", "added"]
    del modules["middle"]
    assert names_since(imported) == ["last", "added"]
    modules["renamed"] = modules.pop("added")
    assert names_since(imported) == ["renamed"]
    del modules["renamed"]
    assert names_since(imported) == []


def test_objects_that_are_no_modules_are_left_out(modules: dict[str, ModuleType]) -> None:
    """None and other objects may be registered as modules; they do not change the count of those that are the same."""
    imported = ImportedModules()
    imported.look()
    others: dict[str, object] = {
        "absent": None,
        "own": NoWeakReferences(),
        "added": ModuleType("added"),
    }
    modules.update(others)  # type: ignore[arg-type]
    assert names_since(imported) == ["added"]
    assert names_since(imported) == []
    modules["again"] = ModuleType("again")
    assert names_since(imported) == ["again"]


def test_a_blocked_import_is_no_module(modules: dict[str, ModuleType]) -> None:
    """None in place of a module that no longer exists blocks its import, and is not taken for this module."""
    imported = ImportedModules()
    imported.look()
    removed = weakref.ref(modules["middle"])
    modules["middle"] = None  # type: ignore[assignment]
    assert removed() is None
    _, found, same = imported.look()
    assert found[same:] == [modules["last"]]
    assert None not in found


def test_a_removed_module_is_not_kept_alive(modules: dict[str, ModuleType]) -> None:
    """A look keeps no module in memory, and another module in its place is new."""
    imported = ImportedModules()
    imported.look()
    removed = weakref.ref(modules.pop("last"))
    assert removed() is None
    modules["last"] = ModuleType("last")
    assert names_since(imported) == ["last"]


def test_a_name_that_a_known_library_gets_later_is_found(modules: dict[str, ModuleType]) -> None:
    """A library that did not use `time` is searched again when it has more names; names are restored at the end."""
    library = modules["middle"]
    for _ in range(2):
        with time_patches.virtual_time():
            assert not hasattr(library, "sleep")
    library.sleep = time.sleep  # type: ignore[attr-defined]
    real = time.sleep
    with time_patches.virtual_time():
        assert library.sleep is time.sleep is not real
        modules["imported"] = ModuleType("imported")
        modules["imported"].sleep = time.sleep  # type: ignore[attr-defined]
    assert library.sleep is modules["imported"].sleep is real
    with time_patches.virtual_time():
        assert modules["imported"].sleep is not real
    assert modules["imported"].sleep is real
