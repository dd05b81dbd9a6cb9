"""YAML items: the items of the lists of a large YAML document, one after the other.

The document is read as a stream of events, and only plain values are built from it: strings, bytes, numbers, lists and
dictionaries. No tag can create another object, so a document cannot run code. Depth and the expanded size of aliases
are limited.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from typing import Any

from agentobs.errors import ForeignError, UsageError
from agentobs.installation import install_extra

try:
    import yaml
except ImportError:  # an extra
    yaml = None

DEPTH_MAX = 200
"""The maximum depth of a document. Our choice."""
NODES_MAX = 2_000_000
"""The maximum number of values in one item, where each alias counts as often as it is used. Our choice."""

_TAGS = {
    "tag:yaml.org,2002:str": "str",
    "tag:yaml.org,2002:python/unicode": "str",
    "tag:yaml.org,2002:python/str": "str",
    "tag:yaml.org,2002:binary": "binary",
    "!binary": "binary",
    "!str": "str",
}
"""The tags of scalars that are known (vcrpy under Python 2 and 3, and Ruby's VCR)."""
_PLAIN = frozenset(
    f"tag:yaml.org,2002:{name}" for name in ("map", "seq", "python/tuple", "python/dict")
)


@dataclass(slots=True)
class _Sized:
    """A value, with the number of values in it."""

    value: Any
    nodes: int


@dataclass(slots=True)
class _Open:
    """A list or a dictionary whose end has not been read."""

    value: Any
    anchor: str | None
    nodes: int = 1
    key: Any = None
    has_key: bool = False

    def add(self, item: _Sized) -> None:
        self.nodes += item.nodes
        if isinstance(self.value, list):
            self.value.append(item.value)
        elif not self.has_key:
            if not isinstance(item.value, str | int | float | None):
                raise ForeignError("a key of the YAML document is not a string")
            self.key, self.has_key = str(item.value), True
        else:
            self.value[self.key] = item.value
            self.has_key = False


@dataclass(slots=True)
class _Builder:
    """Builds values from events."""

    events: Iterator[Any]
    anchors: dict[str, _Sized] = field(default_factory=dict)
    scalars: Any = None
    """Resolves and converts plain scalars."""

    def value(self, event: Any) -> _Sized:
        """Return the value that starts with an event."""
        stack: list[_Open] = []
        nodes = 0
        while True:
            done: _Sized | None = None
            match event:
                case yaml.MappingStartEvent() | yaml.SequenceStartEvent():
                    if event.tag is not None and event.tag not in _PLAIN and event.tag != "!":
                        raise ForeignError("a YAML tag that could create an object")
                    is_map = isinstance(event, yaml.MappingStartEvent)
                    stack.append(_Open({} if is_map else [], event.anchor))
                    if len(stack) > DEPTH_MAX:
                        raise ForeignError("the document is nested too deeply")
                case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                    closed = stack.pop()
                    done = self._named(closed.anchor, _Sized(closed.value, closed.nodes))
                case yaml.AliasEvent():
                    if event.anchor not in self.anchors:
                        raise ForeignError("a YAML alias without its anchor")
                    done = self.anchors[event.anchor]
                    nodes += done.nodes
                case yaml.ScalarEvent():
                    done = self._named(event.anchor, _Sized(self._scalar(event), 1))
                case _:
                    raise ForeignError("a YAML document that ends too early")
            nodes += 1
            if nodes > NODES_MAX:
                raise ForeignError(f"an item with more than {NODES_MAX:,} values, with its aliases")
            if done is not None:
                if not stack:
                    return done
                stack[-1].add(done)
            event = next(self.events)

    def _named(self, anchor: str | None, item: _Sized) -> _Sized:
        if anchor is not None:
            self.anchors[anchor] = item
        return item

    def _scalar(self, event: Any) -> Any:
        text, tag = str(event.value), event.tag
        if tag is None or tag == "!":
            tag = self.scalars.resolve(yaml.ScalarNode, text, event.implicit)
            return self._plain(tag.rpartition(":")[2], text)
        kind = _TAGS.get(tag)
        if kind == "str":
            return text
        if kind == "binary":
            try:
                return base64.b64decode("".join(text.split()), validate=True)
            except (binascii.Error, ValueError) as error:
                raise ForeignError("a binary value that is not base64") from error
        if tag.startswith("tag:yaml.org,2002:") and "/" not in tag:
            return self._plain(tag.rpartition(":")[2], text)
        raise ForeignError("a YAML tag that could create an object")

    def _plain(self, kind: str, text: str) -> Any:
        """Return the value of a plain scalar; texts that are times stay texts."""
        try:
            match kind:
                case "null":
                    return None
                case "bool":
                    return text.lower() in ("yes", "true", "on")
                case "int":
                    return self.scalars.construct_yaml_int(yaml.ScalarNode(kind, text))
                case "float":
                    return self.scalars.construct_yaml_float(yaml.ScalarNode(kind, text))
        except (ValueError, OverflowError):
            pass
        return text


def yaml_items(data: bytes, keys: Container[str]) -> Iterator[tuple[str, Any]]:
    """Yield each item of some lists of the document's dictionary with the key of the list, and all other values.

    Args:
        data: the document, in UTF-8.
        keys: the keys of the lists.

    Raises:
        ForeignError: the document is not YAML, or is not a dictionary, or exceeds a limit.
        UsageError: the YAML library is not installed.
    """
    if yaml is None:
        raise UsageError("reading YAML needs PyYAML", todo=f"Run: {install_extra('cassettes')}")
    try:
        yield from _items(data, keys)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" (line {mark.line + 1})" if mark is not None else ""
        raise ForeignError(
            f"not YAML: {getattr(error, 'problem', None) or 'an invalid character'}{line}"
        ) from error
    except StopIteration as error:
        raise ForeignError("a YAML document that ends too early") from error
    except UnicodeDecodeError as error:
        raise ForeignError(f"not UTF-8 (byte {error.start + 1})") from error


def _items(data: bytes, keys: Container[str]) -> Iterator[tuple[str, Any]]:
    loader_class = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    loader = loader_class(data)
    try:
        events = iter(loader.get_event, None)
        builder = _Builder(events, scalars=yaml.SafeLoader(""))
        event = next(events)
        while isinstance(event, yaml.StreamStartEvent | yaml.DocumentStartEvent):
            event = next(events)
        if not isinstance(event, yaml.MappingStartEvent):
            raise ForeignError("a YAML document that is not a dictionary")
        while not isinstance(event := next(events), yaml.MappingEndEvent):
            key = str(builder.value(event).value)
            event = next(events)
            if key in keys and isinstance(event, yaml.SequenceStartEvent):
                while not isinstance(event := next(events), yaml.SequenceEndEvent):
                    yield key, builder.value(event).value
            else:
                yield key, builder.value(event).value
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                raise ForeignError("more than one YAML document in the file")
            if isinstance(event, yaml.StreamEndEvent):
                return
    finally:
        loader.dispose()
