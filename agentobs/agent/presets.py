"""Presets: named parts of `AgentOptions` that are combined field by field.

A preset knows which fields were set, so a field that was set to its default also replaces an earlier value. The fields
of the groups in `GROUPS`, and the keys of `AgentOptions.extra`, are combined one by one; any other value replaces the
earlier value as a whole.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from agentobs.agent.budget import Budget
from agentobs.agent.context import Context
from agentobs.agent.permissions import Permissions
from agentobs.agent.run_check import check_options
from agentobs.agent.state import AgentOptions
from agentobs.errors import UsageError

GROUPS: Mapping[str, type[Any]] = MappingProxyType(
    {"budget": Budget, "context": Context, "permissions": Permissions}
)
"""The options whose values are combined field by field."""

Path = tuple[str, ...]
"""The name of an option, followed by the name of the field of a group or the key in `extra`, if there is one."""


@dataclass(frozen=True, slots=True)
class Preset:
    """A part of `AgentOptions`; create it with `preset`.

    `first | second` combines two presets, and `options | preset` applies a preset to complete options. The later value
    wins for each field.
    """

    name: str
    """The name, which errors contain."""
    values: Mapping[Path, Any]
    """The values that are set."""
    origins: Mapping[Path, str]
    """The name of the preset that set each value."""

    def __or__(self, later: Preset) -> Preset:
        """Return the combination of two presets.

        Raises:
            UsageError: the second operand is `AgentOptions`, which set every field.
        """
        if isinstance(later, AgentOptions):
            raise UsageError(
                "AgentOptions set every field, so that no field of the preset would remain",
                where=f"preset {self.name}",
                todo="Write options | preset, or preset.options(model=...)",
            )
        if not isinstance(later, Preset):
            return NotImplemented
        return Preset(
            f"{self.name} | {later.name}",
            MappingProxyType({**self.values, **later.values}),
            MappingProxyType({**self.origins, **later.origins}),
        )

    def __ror__(self, options: AgentOptions) -> AgentOptions:
        """Return the options with the fields of this preset.

        Raises:
            UsageError: a value is invalid, or two options contradict each other.
        """
        if not isinstance(options, AgentOptions):
            return NotImplemented
        return self._checked(lambda: dataclasses.replace(options, **self._arguments(options)))

    def options(self, **fields: Any) -> AgentOptions:
        """Return complete options with the fields of this preset, and the defaults for all other fields.

        Args:
            **fields: more fields, as for `preset`; they win over those of the preset.

        Raises:
            UsageError: a field is unknown, no model is set, a value is invalid, or two options contradict each other.
        """
        combined = self | preset("program", **fields) if fields else self
        if ("model",) not in combined.values:
            raise UsageError(
                "no model is set",
                where=f"preset {combined.name}",
                todo='Set it in a preset, or with preset.options(model="MODEL")',
            )
        return combined._checked(lambda: AgentOptions(**combined._arguments(None)))

    def _arguments(self, before: AgentOptions | None) -> dict[str, Any]:
        """Return the arguments for `AgentOptions`; each group is a complete value that extends the one in `before`."""
        arguments: dict[str, Any] = {}
        parts: dict[str, dict[str, Any]] = {}
        for path, value in self.values.items():
            if len(path) == 1:
                arguments[path[0]] = value
            else:
                parts.setdefault(path[0], {})[path[1]] = value
        for name, part in parts.items():
            if name == "extra":
                arguments[name] = {**(before.extra if before else {}), **part}
            else:
                group = getattr(before, name) if before else GROUPS[name]()
                arguments[name] = self._extended(name, group, part)
        return arguments

    def _extended(self, name: str, group: Any, part: Mapping[str, Any]) -> Any:
        """Return a group with other values for some fields; an error names the presets that set them."""
        try:
            return dataclasses.replace(group, **part)
        except UsageError as error:
            where = error.where or type(group).__name__
            origin = self.origins.get(_path_of(where))
            presets = [origin] if origin else dict.fromkeys(self.origins[name, f] for f in part)
            where = f"{where} of the preset {', '.join(presets)}"
            raise UsageError(error.found, where=where, todo=error.todo) from None

    def _checked(self, create: Callable[[], AgentOptions]) -> AgentOptions:
        """Return the options that `create` returns, after a check; an error names the preset that set the value."""
        try:
            options = create()
            check_options(options)
        except UsageError as error:
            origin = self.origins.get(_path_of(error.where))
            if origin is None:
                raise
            where = f"{error.where} of the preset {origin}"
            raise UsageError(error.found, where=where, todo=error.todo) from None
        return options


def preset(name: str = "unnamed", /, **fields: Any) -> Preset:
    """Return a preset that sets these fields of `AgentOptions`.

    For example, `preset("team", model="claude-sonnet-5", budget={"interaction_usd": Decimal(1)})`. The values are
    checked together when the options are complete.

    Args:
        name: a name for errors.
        **fields: the fields to set. `budget`, `context`, `permissions` and `extra` are dictionaries with only the
            fields to set.

    Raises:
        UsageError: a field is unknown, or a group is not a dictionary.
    """
    values = dict(_values(name, fields))
    origins = MappingProxyType(dict.fromkeys(values, name))
    return Preset(name, MappingProxyType(values), origins)


def _values(name: str, fields: Mapping[str, Any]) -> Iterator[tuple[Path, Any]]:
    for option, value in fields.items():
        _check_field(name, AgentOptions, option)
        if option not in GROUPS and option != "extra":
            yield (option,), value
            continue
        if not isinstance(value, Mapping):
            raise UsageError(
                f"{option} is a {type(value).__name__}, which sets all of its fields",
                where=f"preset {name}",
                todo=f'Pass a dictionary with the fields to set, such as {option}={{"FIELD": VALUE}}',
            )
        for field, part in value.items():
            if option in GROUPS:
                _check_field(name, GROUPS[option], field)
            yield (option, field), part


def _check_field(name: str, kind: type[Any], field: str) -> None:
    """Raise a UsageError if a class has no such field."""
    known = [each.name for each in dataclasses.fields(kind)]
    if field in known:
        return
    similar = difflib.get_close_matches(str(field), known, n=1)
    raise UsageError(
        f"{kind.__name__} has no field {field!r}",
        where=f"preset {name}",
        todo=f"Write {similar[0]}" if similar else f"Use one of {', '.join(known)}",
    )


def _path_of(where: str) -> Path:
    """Return the path of the field that an error names, such as `AgentOptions.model` or `Budget.day_usd`."""
    owner, _, field = where.partition(".")
    group = next((name for name, kind in GROUPS.items() if kind.__name__ == owner), None)
    return (field,) if group is None else (group, field)
