"""The truth: what a simulation knows about its records and its damage, and the invariants that follow from it."""

from __future__ import annotations

import json
import random
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from agentobs.errors import DamagedError
from agentobs.recording.journal import compression
from agentobs.recording.journal.compression import compressed_path
from agentobs.recording.journal.followed_segments import Appended
from agentobs.recording.journal.home import VIEWS_PREFIX, Home
from agentobs.recording.journal.segments import (
    REPLACED_KINDS,
    Line,
    content_path,
    facts_path,
    is_alive,
    read,
    segment_ids,
)
from agentobs.store.duckdb.verification import _CONTENT_FIELDS, Finding
from tests.simulation.machine import Machine, digest_of
from tests.soak.kills import name_of_line

NO_SUCH_RECORD = "not a complete record"
_LINE = re.compile(rb"([0-9a-f]{8}) ((\d+) ([a-z_]+) (.*))", re.S)


class Wrong(Exception):
    """An invariant does not hold."""


class Truth:
    """What must be in a home, and what may be damaged."""

    def __init__(self, machine: Machine, home: Home) -> None:
        """Start with an empty home."""
        self._machine, self._home = machine, home
        self.session_of: dict[str, str] = {}
        """The session of each record that was given."""
        self.acknowledged: set[str] = set()
        self._durable: set[str] = set()
        """Acknowledged records that survive a power loss."""
        self._seen: set[str] = set()
        """Records that a reader has seen since the last power loss; they must not vanish."""
        self._excused: set[str] = set()
        """Records that the simulation has damaged."""
        self._pruned: set[str] = set()
        """Sessions that may have been pruned."""
        self._gone: set[str] = set()
        """Sessions that certainly were pruned completely."""
        self._ever_damaged: set[str] = set()
        """The names of all files that the simulation has ever damaged."""
        self._damaged_contents: set[bytes] = set()
        """The digests of their contents, which may have got another name since; the damage itself is not synced."""
        self._damaged: dict[str, str] = {}
        """Files that the simulation has damaged, and how."""
        self._is_store_suspect = False
        """Whether the published file was damaged, or may be newer than the segments."""
        self._flawed_segments: set[str] = set()
        """Segments that a power loss or the simulation has changed."""
        self._followed: set[tuple[str, int]] = set()

    @property
    def sessions(self) -> set[str]:
        """The sessions with records."""
        return set(self.session_of.values())

    @property
    def may_refuse(self) -> bool:
        """Whether commands may report an error, because the simulation has damaged something."""
        return bool(self._damaged)

    def give(self, name: str, session_id: str) -> None:
        """Note a record that was given to a recorder."""
        if name in self.session_of:
            raise Wrong(f"the simulation gave {name} twice")
        self.session_of[name] = session_id

    def acknowledge(self, names: Iterable[str], *, is_durable: bool) -> None:
        """Note records that are acknowledged, and whether they must survive a power loss."""
        found = set(names)
        self.acknowledged |= found
        if is_durable:
            self._durable |= found

    # Events.

    def power_lost(self) -> None:
        """Note that only durable records must still exist."""
        self._before = {path.name: path.read_bytes() for path in self._files()}

    def restarted(self) -> None:
        """Note the state of the disk after a power loss. It is durable from now on."""
        after = {path.name: path.read_bytes() for path in self._files()}
        for name, data in self._before.items():
            if after.get(name) != data:
                self._flawed_segments.add(name.partition(".")[0])
        self._check_published()
        self._seen = set(self._durable)
        self._followed.clear()
        self._is_store_suspect = True
        present = {name for name in self._names() if name in self.session_of}
        self._seen |= present
        self._durable |= present

    def _check_published(self) -> None:
        """Check that a power loss has not torn a file that got its name by a rename: it was synced before."""
        for path in self._home.path.rglob("*"):
            known = self._machine.published.get(path.name, set())
            is_cache = path.name.startswith(VIEWS_PREFIX)  # written again if it is damaged
            is_damaged = path.name in self._ever_damaged or known & self._damaged_contents
            if not known or is_cache or is_damaged:
                continue
            if digest_of(path) not in known:
                raise Wrong(f"a power loss has torn {path.name}, which was not synced")

    def begin_prune(self, sessions: Iterable[str], what: str) -> None:
        """Note that sessions are pruned from now on, if they do not run."""
        self._pruned |= set(sessions)

    def pruned(self, sessions: Iterable[str], what: str) -> None:
        """Note that sessions were pruned."""
        if what == "all":
            self._gone |= set(sessions)

    def repaired(self) -> None:
        """Note that the readable part of each damaged file is kept, and the store was rebuilt."""
        self._damaged.clear()
        self._is_store_suspect = False

    def damage(self, chance: random.Random) -> None:
        """Damage a file of an ended segment, the published file or its manifest."""
        if not self._home.segments.is_dir():
            return
        ended = [p for p in self._files() if p.stat().st_size > 200 and not self._is_alive(p)]
        others = [each for each in (self._home.database, self._home.manifest) if each.exists()]
        targets = ended + others
        if not targets:
            return
        path = chance.choice(targets)
        data = bytearray(path.read_bytes())
        before = bytes(data)
        how = chance.choice(["flip", "flip", "zeros", "cut", "swap"])
        at = chance.randrange(len(data))
        size = min(512, len(data) // 3)
        match how:
            case "flip":
                data[at] ^= 1 << chance.randrange(8)
            case "zeros":
                data[at : at + size] = bytes(len(data[at : at + size]))
            case "cut":
                del data[at:]
            case _:
                other = chance.randrange(len(data) - size)
                at = min(at, len(data) - size)
                a, b = bytes(data[at : at + size]), bytes(data[other : other + size])
                data[at : at + size], data[other : other + size] = b, a
        if data == before or not data:
            return
        in_file = self._names_in(path) if path in ended else set()
        path.chmod(0o600)
        path.write_bytes(data)
        if path in ended:
            self._flawed_segments.add(path.name.partition(".")[0])
            self._excused |= in_file
            self._seen -= in_file
        else:
            self._is_store_suspect = True
        self._damaged[path.name] = how
        self._ever_damaged.add(path.name)
        self._damaged_contents.add(digest_of(path))

    def _names_in(self, path: Path) -> set[str]:
        segment_id = path.name.partition(".")[0]
        lines = read(facts_path(self._home, segment_id))
        try:
            return {n for each in lines if isinstance(each, Line) and (n := name_of_line(each))}
        except FileNotFoundError:
            return set()

    def _is_alive(self, path: Path) -> bool:
        return path.suffix != ".zst" and is_alive(path)

    def _files(self) -> list[Path]:
        endings = (".facts", ".content", ".zst")
        if not self._home.segments.is_dir():
            return []
        return sorted(p for p in self._home.segments.iterdir() if p.suffix in endings)

    # Invariants.

    def _names(self) -> list[str]:
        """Return the names of all readable records."""
        return [
            name
            for segment_id in segment_ids(self._home)
            for each in read(facts_path(self._home, segment_id))
            if isinstance(each, Line) and (name := name_of_line(each))
        ]

    def check_journal(self) -> None:
        """Check that nothing that was acknowledged is lost, and that nothing is invented or doubled."""
        names = Counter(self._names())
        if doubled := [name for name, count in names.items() if count > 1]:
            raise Wrong(f"doubled: {doubled[:3]}")
        if invented := [name for name in names if name not in self.session_of]:
            raise Wrong(f"invented: {invented[:3]}")
        required = (self.acknowledged & self._seen) | self._required()
        lost = {each for each in required if each not in names and not self._is_free(each)}
        if lost:
            raise Wrong(f"lost: {sorted(lost)[:3]} of {len(required)} acknowledged records")
        self._seen |= {name for name in names if not self._is_free(name)}
        for name in names:
            if self.session_of[name] in self._gone:
                raise Wrong(f"pruned, but still there: {name}")
        self._check_lines()

    def _required(self) -> set[str]:
        return self._seen | (self.acknowledged if not self._has_lost_power else self._durable)

    @property
    def _has_lost_power(self) -> bool:
        return self._machine.injected["power"] > 0 or hasattr(self, "_before")

    def _is_free(self, name: str) -> bool:
        return name in self._excused or self.session_of[name] in self._pruned

    def _check_lines(self) -> None:
        """Check that each readable line was written exactly like this by a recorder."""
        for path in self._files():
            plain = path.with_name(path.name.removesuffix(".zst"))
            known = self._lines_of(plain.name)
            for each in read(plain):
                if not isinstance(each, Line) or each.kind in REPLACED_KINDS:
                    continue
                text = b"%d %s %s" % (each.sequence, each.kind.encode(), each.payload)
                if text not in known and not _is_restored(each, known):
                    raise Wrong(f"invented: a line of {path.name}: {text[:200]!r}")

    def _lines_of(self, name: str) -> set[bytes]:
        history = self._machine.history.get(name, bytearray())
        return {line[9:] for line in bytes(history).split(b"\n") if line}

    def start_following(self) -> None:
        """Note that a new follower reads everything from its start."""
        self._followed.clear()

    def check_followed(self, appended: Sequence[Appended]) -> None:
        """Check that a follower gets no line twice."""
        for each in appended:
            key = each.segment_id, each.line.sequence
            if key in self._followed and each.line.kind not in REPLACED_KINDS:
                raise Wrong(f"line {key} was followed twice")
            self._followed.add(key)

    # Findings of verify.

    def check_findings(self, findings: Sequence[Finding]) -> None:
        """Check that the findings name all damage, and nothing else."""
        self.check_no_false_alarm(findings)
        texts = [str(each) for each in findings]
        for path in self._files():
            if self._is_alive(path):
                continue
            if (reason := self._flaw(path)) and not any(path.name in text for text in texts):
                raise Wrong(f"verify does not report {path.name}: {reason}")
        for text in self._missing_content():
            if not any(text in each for each in texts):
                raise Wrong(f"verify does not report missing content {text}")

    def check_no_false_alarm(self, findings: Sequence[Finding]) -> None:
        """Check that each finding is damage."""
        for each in findings:
            if not self._is_explained(each):
                raise Wrong(f"verify reports damage that does not exist: {each}")

    def _is_explained(self, finding: Finding) -> bool:
        name, text = finding.path.name, finding.found
        segment_id = name.partition(".")[0]
        if finding.path in (self._home.database, self._home.manifest) or (
            finding.path.parent == self._home.archive
        ):
            return self._is_store_suspect or bool(
                self._flawed_segments & set(re.findall("[0-9a-f]{32}", text))
            )
        if NO_SUCH_RECORD in text:
            return segment_id in self._flawed_segments or self._is_torn(name)
        return segment_id in self._flawed_segments

    def _is_torn(self, name: str) -> bool:
        history = self._machine.history.get(name.removesuffix(".zst"), b"")
        return bool(history) and not bytes(history).endswith(b"\n")

    def _flaw(self, path: Path) -> str | None:
        """Return how a file differs from what was written, judging by its bytes."""
        name = path.name.removesuffix(".zst")
        if path.suffix == ".zst":
            try:
                file, index = compression.read_index(path)
                with file:
                    data = b"".join(compression.read_block(file, index, b) for b in index.blocks)
            except DamagedError:
                return "a damaged compressed file"
            if index.rewritten:
                return None
        else:
            if compressed_path(path).exists():
                return None
            data = path.read_bytes()
        truth = bytes(self._machine.history.get(name, b""))
        if not data or truth == data:
            return None if not data or data.endswith(b"\n") else "its last line is torn"
        if truth.startswith(data):
            return None if data.endswith(b"\n") else "its last line is torn"
        seed = zlib.crc32(name.partition(".")[0].encode())
        lines = data.split(b"\n")
        numbers = [_sequence(line, seed) for line in lines[:-1]]
        if lines[-1] == b"" and numbers == list(range(1, len(numbers) + 1)):
            return None  # a rest of complete lines; what is missing after it leaves no trace
        return "its bytes are not those that were written"

    def _missing_content(self) -> list[str]:
        """Return the content IDs in readable facts whose content cannot be read."""
        missing: list[str] = []
        for segment_id in segment_ids(self._home):
            if is_alive(facts_path(self._home, segment_id)):
                continue
            ids: set[str] = set()
            try:
                for line in read(content_path(self._home, segment_id)):
                    if isinstance(line, Line):
                        ids.add(str(line.value().get("content_id")))
            except FileNotFoundError:
                pass
            for each in read(facts_path(self._home, segment_id)):
                if not isinstance(each, Line) or each.kind not in _CONTENT_FIELDS:
                    continue
                value = each.value()
                if value.get("session_id") in self._pruned:
                    continue
                named = [value.get(field) for field in _CONTENT_FIELDS[each.kind]]
                missing += [str(found) for found in named if found and found not in ids]
        return missing

    # Rows.

    def check_rows(self, rows: dict[str, list[tuple[Any, ...]]]) -> None:
        """Check that the store has exactly the records of the journal."""
        names = Counter(self._names())
        by_kind = Counter(name.partition(" ")[0] for name in names)
        for table in ("session_starts", "session_ends", "attempts", "tool_results"):
            found = len(rows[table])
            if found != by_kind[table]:
                raise Wrong(f"the store has {found} rows of {table}, the journal {by_kind[table]}")
        for session_id, *_, is_exact in rows["session_records"]:
            is_affected = session_id in self._pruned or self._flawed_segments
            if is_exact is False and not is_affected:
                raise Wrong(f"session {session_id} is not accounted for exactly")


def _is_restored(line: Line, known: Iterable[bytes]) -> bool:
    """Return whether a record was restored from a row of the store: columns without a value have no field in it."""
    start = b"%d %s " % (line.sequence, line.kind.encode())
    found = [json.loads(each[len(start) :]) for each in known if each.startswith(start)]
    values = [{k: v for k, v in each.items() if v is not None} for each in (*found, line.value())]
    return values[-1] in values[:-1]


def _sequence(line: bytes, seed: int) -> int | None:
    found = _LINE.fullmatch(line)
    if not found or b"%08x" % zlib.crc32(found[2], seed) != found[1]:
        return None
    return int(found[3])
