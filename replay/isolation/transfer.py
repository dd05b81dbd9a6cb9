"""Transfer of results from a test process: reports, warnings, snapshots and coverage, as plain values."""

from __future__ import annotations

import dataclasses
import importlib
import pickle
import sys
import warnings
from typing import Any

import pytest

from agentobs.errors import UsageError


def picklable(value: Any) -> Any:
    """Return a value in which each part that cannot be pickled is replaced by its `repr`."""
    if isinstance(value, dict):
        return {picklable(key): picklable(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [picklable(inner) for inner in value]
    if type(value) is tuple:
        return tuple(picklable(inner) for inner in value)
    if value is None or type(value) in (str, int, float, bool, bytes):
        return value
    try:
        pickle.loads(pickle.dumps(value))
    except Exception:  # a third-party object may raise anything when it is pickled
        return repr(value)
    return value


def picklable_warning(message: warnings.WarningMessage) -> dict[str, Any]:
    """Return a recorded warning as values that can be pickled; its class may be replaced by a base class."""
    names = ("filename", "lineno", "line")
    fields: dict[str, Any] = {name: getattr(message, name) for name in names}
    base = next(each for each in message.category.__mro__ if not isinstance(picklable(each), str))
    fields["category"] = base
    kept = picklable(message.message)
    fields["message"] = kept if isinstance(kept, Warning) else base(str(message.message))
    return fields


def record_warning(item: pytest.Item, value: tuple[dict[str, Any], Any, str, Any]) -> None:
    """Record a warning of a test in this process."""
    fields, when, nodeid, location = value
    message = warnings.WarningMessage(**fields)
    arguments = {"warning_message": message, "when": when, "nodeid": nodeid, "location": location}
    item.ihook.pytest_warning_recorded.call_historic(kwargs=arguments)


class Snapshots:
    """The syrupy snapshots that a test reads or writes."""

    def __init__(self, item: pytest.Item) -> None:
        """Remember the snapshots that existed before the test."""
        self._session = getattr(item.config, "_syrupy", None)
        self._before = len(self._session._assertions) if self._session is not None else 0
        self._writes = {key: dict(each) for key, each in self._queued().items()}

    def data(self) -> dict[str, Any] | None:
        """Return the assertions of a test and the snapshots to write; None if there are none.

        Raises:
            UsageError: the class that writes its snapshots cannot be imported by another process.
        """
        if self._session is None:
            return None
        assertions = [
            (each.extension_class, [_fields(result) for result in each.executions.values()])
            for each in self._session._assertions[self._before :]
        ]
        writes = [
            (key, index, data)
            for key, queued in self._queued().items()
            for (location, index), data in queued.items()
            if self._writes.get(key, {}).get((location, index)) is not data
        ]
        value = {"asserted": assertions, "writes": writes}
        try:
            pickle.dumps(value)
        except Exception as error:
            raise UsageError(
                f"the snapshots of this test cannot be transferred to the pytest process: {error}",
                todo="Define its snapshot extension at the top level of a module, or use --replay-no-fork",
            ) from error
        return value if assertions or writes else None

    def _queued(self) -> dict[Any, dict[Any, Any]]:
        return self._session._queued_snapshot_writes if self._session is not None else {}


def _fields(result: Any) -> dict[str, Any]:
    names = (each.name for each in dataclasses.fields(result) if each.name != "test_location")
    fields = {name: getattr(result, name) for name in names}
    if fields.get("exception") is not None:
        fields["exception"] = RuntimeError(str(fields["exception"]))
    return fields


def merge_snapshots(item: pytest.Item, value: dict[str, Any]) -> None:
    """Count the snapshots of a test in this process, and queue the snapshots to write."""
    syrupy: Any = importlib.import_module("syrupy.assertion")
    location = importlib.import_module("syrupy.location").PyTestLocation(item)
    session = item.config._syrupy  # type: ignore[attr-defined]
    for extension, results in value["asserted"]:
        assertions = syrupy.SnapshotAssertion(
            session=session,
            extension_class=extension,
            test_location=location,
            update_snapshots=session.update_snapshots,
        )
        for at, result in enumerate(results):
            assertions.executions[at] = syrupy.AssertionResult(**result, test_location=location)
        assertions._executions = len(results)
    for key, index, data in value["writes"]:
        session._queued_snapshot_writes[key][location, index] = data


class Coverage:
    """The coverage data of a test; empty if coverage.py does not measure in this process."""

    def __init__(self) -> None:
        """Measure into memory, because the data file belongs to the waiting process."""
        self._measured = _measurement()
        if self._measured is not None:
            data = sys.modules["coverage"].CoverageData(no_disk=True)
            self._measured._data = data
            self._measured._collector.use_data(data, self._measured.config.context)

    def data(self) -> bytes | None:
        """Return the measured data; None if coverage.py does not measure."""
        if self._measured is None:
            return None
        data: bytes = self._measured.get_data().dumps()
        return data


def merge_coverage(value: bytes) -> None:
    """Add the coverage data of a test to the data of this process."""
    measured = _measurement()
    if measured is not None:
        data = sys.modules["coverage"].CoverageData(no_disk=True)
        data.loads(value)
        measured.get_data().update(data)


def _measurement() -> Any:
    """Return the active measurement of coverage.py in this process, or None."""
    module = sys.modules.get("coverage")
    measured = module.Coverage.current() if module is not None else None
    return measured if getattr(measured, "_collector", None) is not None else None
