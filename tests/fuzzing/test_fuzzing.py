"""Fuzzing: mutated inputs of every format cause only documented errors, and earlier failures stay fixed."""

from __future__ import annotations

import contextlib
import random
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentobs.determinism import session_inheritance
from agentobs.errors import DamagedError, UsageError
from agentobs.recording.journal import compression
from agentobs.recording.journal.segments import facts_path, segment_ids
from agentobs.recording.vault.vault import read_session
from tests.fuzzing.file_targets import recorded, sealer
from tests.fuzzing.mutations import mutated
from tests.fuzzing.processes import inputs_by_target, parts
from tests.fuzzing.runner import Opened, Target, fuzz, input_of
from tests.fuzzing.stream_targets import environments
from tests.fuzzing.targets import TARGETS
from tests.importers.recorded_agent import lines
from tests.importers.test_claude_code_requests import SESSION, main_log
from tests.marks import mark_all_but_first
from tests.store.recordings import session_id


def _with_text_as_system(line: dict[str, Any]) -> dict[str, Any]:
    return {**line, "shape": {**line["shape"], "system": "a"}} if "shape" in line else line


FOUND: list[tuple[str, bytes | Callable[[bytes], bytes]]] = [
    ("segment", b'0 1 segment {"form\xe9t":1}\n'),
    ("segment", b"0 " + b"9" * 5_000 + b" attempts {}\n"),
    ("segment", b'0 1 lost {"from":1e400}\n'),
    ("segment-index", lambda seed: re.sub(rb"(\[\[0,\d+,0,\d+,\d+,\d+,)\d+", rb'\1"x"', seed)),
    ("fixture", lambda seed: re.sub(rb'"chunks": \[\[\d+', b'"chunks": [[1.5', seed)),
    ("prices", b"[[price]]\ninput = " + b"9" * 5_000),
    ("prices", b'[[price]]\nmodels = ["x"]\ninput = 0x' + b"f" * 5_000),
    ("environment", b"AGENTOBS_ARCHIVE_BYTES=" + b"9" * 5_000),
    ("environment", b"AGENTOBS_WARN_BYTES=" + b"9" * 5_000),
    ("request", b'{"max_tokens":1e18}'),
    ("request", b'{"max_tokens":' + b"9" * 200 + b"}"),
    ("claude-code", lines([_with_text_as_system(line) for line in main_log().lines])),
    (
        "claude-code",
        lines(main_log().lines)
        + lines(
            [
                {
                    "type": "cost-state",
                    "sessionId": SESSION,
                    "modelUsage": {"": {"inputTokens": 10**200}},
                }
            ]
        ),
    ),
    ("recorded-provider", b"POST / HTTP/1.1\r\nhost: HOST\r\ntransfer-encoding: chunked\r\n\r\n"),
    ("recorded-provider", b"POST / HTTP/1.1\r\nhost: HOST\r\ncontent-length: \r\n\r\n"),
    (
        "recorded-provider",
        b"POST / HTTP/1.1\r\nhost: HOST\r\ntransfer-encoding: chunked\r\n\r\n9222036854775808\r\n",
    ),
]
"""The inputs that failed, by target, or how they differ from a valid one. `HOST` is the server's host and port."""


@pytest.mark.parametrize(
    "name",
    mark_all_but_first(
        [name for name, each in TARGETS.items() if each.quick], pytest.mark.slow, kept=12
    ),
)
def test_changed_inputs_cause_only_documented_errors(name: str, tmp_path: Path) -> None:
    """A few mutated inputs of each target are accepted, or refused with a documented error."""
    target = TARGETS[name]
    outcome = fuzz(target, tmp_path, seed=0, numbers=range(target.quick))
    assert outcome.inputs == target.quick
    assert not outcome.findings, "\n".join(f"{e}\n{e.details}{e.data!r}" for e in outcome.findings)
    assert session_inheritance.joined() is None, "later tests would join the session of an input"


@pytest.mark.parametrize("name", sorted({name for name, _ in FOUND}))
def test_earlier_failures_stay_fixed(name: str, tmp_path: Path) -> None:
    """The inputs that once failed are accepted, or refused with a documented error."""
    target = TARGETS[name]
    with target.open(tmp_path) as opened:
        seed = opened.seeds[-1] if name == "fixture" else opened.seeds[0]
        host = next((s for s in seed.split(b"\r\n") if s.startswith(b"host: ")), b"")
        for found in (each for kind, each in FOUND if kind == name):
            data = found if isinstance(found, bytes) else found(seed)
            assert data != seed
            data = data.replace(b"HOST", host.removeprefix(b"host: "))
            if opened.seal and name in ("segment", "fixture"):
                data = opened.seal(data)
            with contextlib.suppress(*target.allowed):
                opened.run(data)


def test_a_record_of_another_form_is_damage(tmp_path: Path) -> None:
    """A record with a correct checksum and malformed JSON, or with a value of another type, is reported as damage."""
    home, [facts, _] = recorded(tmp_path)
    [segment] = segment_ids(home)
    seal = sealer(zlib.crc32(segment.encode()))
    for old, new in ((b'"origin":', b'"origin"'), (b'"started_ns":', b'"started":')):
        assert old in facts
        facts_path(home, segment).write_bytes(seal(facts.replace(old, new)))
        with pytest.raises(DamagedError, match="has a record that agentobs did not write"):
            read_session(home, session_id(1), [segment])


def test_salvaged_bytes_are_proportional_to_the_file() -> None:
    """Frames inside of frames of a damaged file are not decompressed again and again."""
    block = ((131_072 << 3) | 2).to_bytes(3, "little") + b"a"
    data = (b"\x28\xb5\x2f\xfd\x00\x58" + block * 3) * 2_000
    salvaged = sum(map(len, compression.salvage(data)))
    assert 2**20 < salvaged < 300 * len(data)


def test_a_failure_is_found_and_made_smaller(tmp_path: Path) -> None:
    """An undocumented error is reported once, with its smallest input; documented errors are not reported."""

    def run(data: bytes) -> None:
        if b"\xff" in data:
            raise KeyError("x")
        if b"[" not in data:
            raise UsageError("no list")

    opened = Opened([b'{"a": [1, 2, "text"]}', b"[line]\n[line]\n"], run)
    target = Target("made-up", lambda folder: contextlib.nullcontext(opened))
    outcome = fuzz(target, tmp_path, seed=1, numbers=range(1_000))
    [finding] = outcome.findings
    assert (outcome.inputs, finding.data) == (1_000, b"\xff")
    assert finding.error.startswith("KeyError at ")
    assert 0 < outcome.accepted < 1_000
    assert b"\xff" in input_of(target, opened, 1, finding.number)


def test_a_documented_warning_is_not_shown(
    tmp_path: Path, recwarn: pytest.WarningsRecorder, capsys: pytest.CaptureFixture[str]
) -> None:
    """Inputs with an invalid value of AGENTOBS_GIT do not print the warning that a user would get."""
    with environments(tmp_path) as opened:
        opened.run(b"AGENTOBS_GIT=neither on nor off")
    assert [str(each.message) for each in recwarn] == []
    assert capsys.readouterr().err == ""


def test_inputs_are_shared_between_targets() -> None:
    """Each target gets its share of the inputs, split into parts."""
    counts = inputs_by_target(["segment", "store"], 100_000, is_each=False)
    assert counts["segment"] > 99_000
    assert counts["store"] >= 1
    made = list(parts(counts, 3, 10))
    assert {part.target for part in made} == {"segment", "store"}
    for name, count in counts.items():
        numbers = [n for part in made if part.target == name for n in range(part.first, part.end)]
        assert numbers == list(range(10, 10 + count))


def test_mutations_are_deterministic_and_differ() -> None:
    """The same seed gives the same inputs; other seeds give other ones."""
    seeds = [b'{"a": [1, 2, {"b": "text"}]}\n{"c": null}\n']
    made = [mutated(seeds, random.Random(n)) for n in range(200)]
    assert made == [mutated(seeds, random.Random(n)) for n in range(200)]
    assert len(set(made)) > 150
