"""Normalizers for values that differ in each run: which differences they hide, and which rules are proposed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from re import _parser as parser  # there is no public module that parses patterns
from typing import Any

import pytest

from replay import load
from replay.comparison.normalizers import BUILT_IN, ActiveNormalizers, Normalizer
from replay.comparison.rule_proposals import HiddenValue, propose_rules
from replay.comparison.value_forms import APPLIED, FORMS
from replay.fixture.fixture_folder import add_rules
from tests.provider_script import streamed, text
from tests.replay.agents import frozen, recorded
from tests.replay.test_normalizers import (
    converse,
    divergence_of,
    recorded_conversation,
    recorded_single_prompts,
    replayed,
    single_prompts_match,
)

U, V, W = (f"{n}f2b8c1e-0000-4000-8000-00000000000a" for n in (1, 2, 3))
TIMES = [
    ("Monday, November 23, 2026", "Saturday, January 2, 2027"),
    ("November 23, 2026", "January 2, 2027"),
    ("Nov 23 2026", "Jan 2 2027"),
    ("Nov. 23rd, 2026", "Jan. 2nd, 2027"),
    ("23 November 2026", "2 January 2027"),
    ("23-NOV-2026", "02-JAN-2027"),
    ("November 2026", "January 2027"),
    ("11/23/2026", "01/02/2027"),
    ("11/23/26", "01/02/27"),
    ("23.11.2026", "2.1.2027"),
    ("23-11-2026", "02-01-2027"),
    ("2026/11/23", "2027/01/02"),
    ("2026/11/23 00:31:02", "2027/01/02 10:11:12"),
    ("00:31", "23:59"),
    ("12:31 AM", "1:05 PM"),
    ("3 p.m.", "11 a.m."),
    ("00:31:02", "23:59:59"),
    ("00:31:02.123", "10:11:12.9"),
    ("00:31:02,123", "10:11:12,999"),
    ("2026-11-23", "2027-01-02"),
    ("2026-11-23T00:31:02Z", "2027-01-02T10:11:12Z"),
    ("2026-11-23T00:31:02+01:00", "2027-01-02T10:11:12.123456-0500"),
    ("2026-11-23 00:31:02", "2027-01-02 10:11:12.123456"),
    ("2026-11-23 00:31:02 CET", "2027-01-02 10:11:12 UTC"),
    ("2026-11-23T00-31-02Z", "2027-01-02T10-11-12Z"),
    ("Mon, 23 Nov 2026 00:31:02 +0000", "Sat, 02 Jan 2027 10:11:12 -0500"),
    ("Mon, 23 Nov 2026 00:31:02 GMT", "Sat, 02 Jan 2027 10:11:12 GMT"),
    ("Mon Nov 23 00:31:02 2026", "Sat Jan  2 10:11:12 2027"),
    ("Mon Nov 23 00:31:02 UTC 2026", "Sat Jan  2 10:11:12 CET 2027"),
    ("23/Nov/2026:00:31:02 +0000", "02/Jan/2027:10:11:12 +0100"),
    ("Monday, November 23, 2026 at 12:31 AM UTC", "Saturday, January 2, 2027 at 1:05 PM UTC"),
    ("20261123", "20270102"),
    ("20261123T003102Z", "20270102T101112Z"),
    ("20261123_003102", "20270102_101112"),
    ("2026-W48-1", "2027-W01-6"),
    ("Monday 00:31", "Saturday 10:11"),
    ("today is Monday", "today is Saturday"),
]
HIDDEN: list[tuple[Any, Any, set[str]]] = [
    *((old, new, {"time"}) for old, new in TIMES),
    ("1795341600", "1795419999", {"timestamp"}),
    ("1795341600.25", "1795419999.5", {"timestamp"}),
    ("1795341600123", "1795419999000", {"timestamp"}),
    ("1795341600123456", "1795419999000000", {"timestamp"}),
    ("1795341600123456789", "1795419999000000123", {"timestamp"}),
    ({"at": 1795341600, "n": 1}, {"at": 1795419999, "n": 1}, {"timestamp"}),
    ({"at": 1795341600.25}, {"at": 1795419999.5}, {"timestamp"}),
    ("took 3.21s", "took 12.9s", {"duration"}),
    ("took 3s", "took 12s", {"duration"}),
    ("1m 4s", "2m 59s", {"duration"}),
    ("1h2m3s", "2h0m9s", {"duration"}),
    ("PT3S", "PT1M2.5S", {"duration"}),
    ("in 1.2 ms", "in 340 ms", {"duration"}),
    ("in 12.5 µs", "in 9 ns", {"duration"}),
    ("3 passed in 0.12s", "3 passed in 1.02s", {"duration"}),
    ("0:00:03.210000", "0:01:00.5", {"duration"}),
    ("3 minutes ago", "1 hour ago", {"duration"}),
    ({"elapsed_ms": 1234}, {"elapsed_ms": 17}, {"duration"}),
    ("127.0.0.1:8001", "127.0.0.1:40117", {"port"}),
    ("http://localhost:8001/v1", "http://localhost:40117/v1", {"port"}),
    ("port 8001", "port 40117", {"port"}),
    ({"port": 8001}, {"port": 40117}, {"port"}),
    ("pid 4711", "pid 12", {"pid"}),
    ("PID=4711", "PID=12", {"pid"}),
    ("process 4711 exited", "process 12 exited", {"pid"}),
    ("sshd[4711]: hi", "sshd[12]: hi", {"pid"}),
    ({"pid": 4711}, {"pid": 12}, {"pid"}),
    ("/tmp/tmpab12cd34/notes.txt", "/tmp/tmpzz99yy88/notes.txt", {"tmp_path"}),
    ("/tmp/tmpab12cd34/a", "/var/folders/zz/zyx_n0000gn/T/tmpzz99yy88/a", {"tmp_path"}),
    ("/private/var/folders/a1/bc/T/x1/a", "/private/tmp/x2/a", {"tmp_path"}),
    ("/tmp/pytest-of-me/pytest-1/test_a0/f", "/tmp/pytest-of-you/pytest-22/test_b0/f", {"tmp_path"}),
    ("/tmp/pytest-of-me/pytest-1/popen-gw0/test_a0", "/tmp/pytest-of-me/pytest-2/test_a0", {"tmp_path"}),
    (r"C:\Users\bob\AppData\Local\Temp\tmpab12cd\x", r"C:\Users\EVE~1\AppData\Local\Temp\tmpzz9\x", {"tmp_path"}),
    ("/home/alice/project/a.py", "/Users/bob/project/a.py", {"home_path"}),
    (r"C:\Users\bob\project", r"C:\Users\eve\project", {"home_path"}),
    (U, V, {"uuid"}),
    (f"run-{U}", f"run-{V}", {"uuid"}),
    (U.upper(), V.upper(), {"uuid"}),
    ("018f3a52-7c1b-7e4d-9a3b-5f6e7d8c9b0a", "6ba7b810-9dad-11d1-80b4-00c04fd430c8", {"uuid"}),
    ("3f2b8c1e000040008000000000000001", "9999999900004000a000000000000002", {"uuid"}),
    ("01ARZ3NDEKTSV4RRFFQ69G5FAV", "01BX5ZZKBKACTAV9WEVGEMMVRZ", {"ulid"}),
    ("user_01h455vb4pex5vsknk084sn02q", "user_01h455vb4pex5vsknk084sn0zz", {"ulid"}),
    ("V1StGXR8_Z5jdHi6B-myT", "FyGBnS8CY_L0hqNOtlB2D", {"nanoid"}),
    ("2ujdDO5NxkQ7oxcTCyKxWuFfUQ8", "30jdDO5NxkQ7oxcTCyKxWuFfaaa", {"ksuid"}),
    ("507f1f77bcf86cd799439011", "65f1f77bcf86cd7994390112", {"object_id"}),
    ("d41d8cd98f00b204e9800998ecf8427e", "900150983cd24fb0d6963f7d28e17f72", {"hash"}),
    ("da39a3ee5e6b4b0d3255bfef95601890afd80709", "a9993e364706816aba3e25717850c26c9cd0d89d", {"hash"}),
    (f"sha256:{'0a' * 32}", f"sha256:{'b1' * 32}", {"hash"}),
    ("commit 4f2a91c", "commit 7777777", {"hash"}),
    ("on 4f2a91c now", "on 1f9f257 now", {"hash"}),
    ("v1.2-3-g4f2a91c", "v1.2-3-g1f9f257", {"hash"}),
    ("<Foo object at 0x7f3a2b1c>", "<Foo object at 0x955e40>", {"address"}),
    ("Thread-5 (worker)", "Thread-6 (worker)", {"thread_id"}),
    ("ThreadPoolExecutor-0_1", "ThreadPoolExecutor-3_0", {"thread_id"}),
    ("thread_id=140234567890123", "thread_id=4711", {"thread_id"}),
    ("hostname: build-17", "hostname: laptop", {"host"}),
    ("on ip-10-0-3-17.ec2.internal", "on Bobs-MacBook.local", {"host"}),
    (f"On Nov 23 2026, {U}", f"On Jan 2 2027, {V}", {"time", "uuid"}),
    ("pid 12 in /tmp/run-1/a", "pid 13 in /tmp/run-2/a", {"pid", "tmp_path"}),
    ("at 00:31\nport 8080\nrun 4f2a91c", "at 10:59\nport 9090\nrun 1f9f257", {"time", "port", "hash"}),
    ({"a": [U, {"t": "00:31"}], "b": 1}, {"a": [V, {"t": "10:59"}], "b": 1}, {"uuid", "time"}),
    ("took 3.21s", "took 3.21s", set()),
]  # fmt: skip
"""Recorded text, current text, and the rules that hide the difference."""
DIFFERENT: list[tuple[Any, Any]] = [
    ("1.2.3", "1.2.4"), ("v2026.11.23", "v2026.11.24"), ("$3.21", "$3.22"), ("41.90", "41.9"),
    ("12 items", "13 items"), ("order 1234", "order 1235"), ("yes", "no"), ("Oslo", "Rome"),
    ("John 3:16", "John 3:17"), ("16:9", "4:3"), ("30 days", "60 days"), ("2 hours", "3 hours"),
    ("3 s", "4 s"), ("#ff00ff00", "#00ff00ff"), ("0xFF00FF", "0x00FF00"), ("items[12]: x", "items[13]: x"),
    ("process 3 orders", "process 4 orders"), ("port 443", "port 80"), ("A-17", "A-18"),
    ("Order-Confirmation-v2", "Order-Cancellation-v2"), ("get_customer_Order_v2", "get_customer_Order_v3"),
    ("/tmp/run-1/notes.txt", "/tmp/run-1/report.txt"), ("/home/alice/a.py", "/home/alice/b.py"),
    ("https://x.com/tmp/a", "https://x.com/tmp/b"), ("defaced", "effaced"), ("1234567", "7654321"),
    ("Monday", "Tuesday"), ("You may 5", "You may 6"), (True, False), (None, "00:31"), (1, 2),
    (f"{U} cost 3", f"{V} cost 4"), ("00:31 for $5", "10:59 for $6"), (f"{U} and {U}", f"{V} and {W}"),
    (f"{U} and {V}", f"{W} and {W}"), ([U], [U, V]), ({"a": U, "b": U}, {"a": V, "b": W}),
    ("3.0000001", "3.0000002"), ("call 555-2026-1123", "call 555-2026-1124"), ("10.11.12.13", "10.11.12.14"),
]  # fmt: skip
"""Pairs of texts with meaningful differences, which no rule hides."""


@pytest.mark.parametrize(("recorded", "now", "rules"), HIDDEN)
def test_the_smallest_set_of_rules_is_proposed(recorded: Any, now: Any, rules: set[str]) -> None:
    """The smallest set of rules that hides all differences is proposed, in both directions and inside a sentence."""
    for old, new in ((recorded, now), (now, recorded)):
        found = propose_rules(old, new)
        assert found is not None
        assert {each.rule for each in found} == rules
        if isinstance(old, str):
            around = propose_rules(
                f"Note: {old}. Next line\n{old}", f"Note: {new}. Next line\n{new}"
            )
            assert around is not None
            assert {each.rule for each in around} == rules


@pytest.mark.parametrize(("recorded", "now"), DIFFERENT)
def test_no_rule_hides_a_meaningful_difference(recorded: Any, now: Any) -> None:
    """No rule is proposed for a changed price, version, number or word, and all rules together do not hide the
    change.
    """
    assert propose_rules(recorded, now) is None
    assert propose_rules(now, recorded) is None
    normalizers = ActiveNormalizers(list(BUILT_IN))
    old, new, pairs = normalizers.normalized(json.dumps(recorded), json.dumps(now))
    assert old != new or pairs is None or not normalizers.can_pair(pairs)


def test_a_proposal_lists_the_values_that_each_rule_hides() -> None:
    """A proposal contains each pair of differing values once, with its rule, as plain text and not as JSON."""
    old = rf'on "Nov 23 2026" in C:\Users\bob\AppData\Local\Temp\tmp1a of {U}, {U}'
    new = rf'on "Jan 2 2027" in C:\Users\bob\AppData\Local\Temp\tmp2b of {V}, {V}'
    assert propose_rules({"text": old}, {"text": new}) == [
        HiddenValue("tmp_path", r"C:\Users\bob\AppData\Local\Temp\tmp1a", r"C:\Users\bob\AppData\Local\Temp\tmp2b"),
        HiddenValue("uuid", U, V),
        HiddenValue("time", "Nov 23 2026", "Jan 2 2027"),
    ]  # fmt: skip


def test_a_hash_that_looks_like_a_uuid_matches_another_hash() -> None:
    """With the rules `hash` and `uuid`, a hash that looks like a UUID matches a hash that does not, in any order of
    rules.
    """
    by_chance, other = "3f2b8c1e000040008000000000000001", "d41d8cd98f00b204e9800998ecf8427e"
    for rules in (["hash", "uuid"], ["uuid", "hash"]):
        old, new, pairs = ActiveNormalizers(rules).normalized(f"{U} {by_chance}", f"{V} {other}")
        assert old == new
        assert pairs is not None


def repeats(parsed: Any) -> Iterator[int]:
    """Yield the upper bounds of the quantifiers of a parsed pattern."""
    for op, argument in parsed:
        if str(op) in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
            yield int(argument[1])
        parts = argument if isinstance(argument, tuple | list) else ()
        for part in parts:
            inner = part if isinstance(part, list) else [part]
            for each in inner:
                if isinstance(each, parser.SubPattern):
                    yield from repeats(each)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_no_pattern_has_an_unbounded_quantifier(form: Any) -> None:
    """Every quantifier in a built-in pattern has an upper bound, so the time of a search is linear in the length of the
    text.
    """
    bounds = list(repeats(parser.parse(form.pattern.pattern)))
    assert bounds or form.name == "uuid"
    assert all(bound <= 300 for bound in bounds)
    assert list(repeats(parser.parse("(?:a|b*)"))) == [int(parser.MAXREPEAT)]


def test_every_form_has_a_rule_and_an_order() -> None:
    """Each form is a built-in rule, and has a place in the order in which rules are applied."""
    assert list(BUILT_IN) == [form.name for form in FORMS]
    assert sorted(APPLIED) == sorted(BUILT_IN)


def test_a_custom_rule_with_context() -> None:
    """If a custom pattern has a group `value`, only this group is hidden, and the text around it is compared."""
    custom_rule = Normalizer("ticket", r"ticket (?P<value>\d+)")
    old, new, pairs = ActiveNormalizers([custom_rule]).normalized("ticket 12, 12", "ticket 34, 12")
    assert (old, new, pairs) == (
        "ticket <ticket>, 12",
        "ticket <ticket>, 12",
        [("ticket", "12", "34")],
    )


CLOCK = [("10:00:01", "10:00:03"), ("23:59:59", "23:59:59"), ("00:00:00", "00:00:01")]


@pytest.mark.slow
@pytest.mark.parametrize("recorded_times", CLOCK)
@pytest.mark.parametrize("times", CLOCK)
def test_clock_readings_are_normalized_independently(
    tmp_path: Path, recorded_times: tuple[str, str], times: tuple[str, str]
) -> None:
    """With the rule `time`, equal clock readings may become different, and different clock readings may become
    equal.
    """
    fixture = recorded_conversation(
        tmp_path, f"It is {recorded_times[0]}.", f"It is {recorded_times[1]} now."
    )
    prompts = f"It is {times[0]}.", f"It is {times[1]} now."
    assert replayed(fixture, *prompts, normalizers=["time"]).progress.requests_matched == 2
    if recorded_times != times:
        assert divergence_of(fixture, *prompts).kind == "content"


def test_a_time_from_a_response_is_not_normalized(tmp_path: Path) -> None:
    """A time that the model offered must match, because the agent's choice among such times is meaningful."""
    fixture = recorded_single_prompts(
        tmp_path, ["It is 09:12. When?", "Book 15:00."], ["15:00 or 16:00", "Yes."]
    )
    assert single_prompts_match(fixture, "It is 10:47. When?", "Book 15:00.", normalizers=["time"])
    assert not single_prompts_match(
        fixture, "It is 10:47. When?", "Book 16:00.", normalizers=["time"]
    )
    assert not single_prompts_match(
        fixture, "It is 10:47. When?", "Book 12:00.", normalizers=["time"]
    )


@pytest.mark.slow
def test_a_report_names_all_rules_and_the_option(tmp_path: Path) -> None:
    """If several rules are needed, the report lists the values that each rule hides, and the option that adds all
    rules.
    """
    fixture = recorded_conversation(tmp_path, f"On November 23, 2026 I am {U}.")
    now = f"On January 2, 2027 I am {V}."
    found = divergence_of(fixture, now)
    assert found.nature == "normalizer gap"
    assert [(each.rule, each.hides) for each in found.proposals] == [
        ("uuid", (U,)), ("time", ("November 23, 2026",)),
    ]  # fmt: skip
    report = " ".join(found.text(200).split())
    assert f'uuid would hide "{U}"; time would hide "November 23, 2026"' in report
    assert 'to add them: normalizers=["uuid", "time"]' in report
    assert replayed(fixture, now, normalizers=["uuid", "time"]).normalized == {"uuid": 1, "time": 1}
    assert divergence_of(fixture, now, normalizers=["uuid"]).proposals[0].rule == "time"


def test_rules_are_written_into_a_fixture(tmp_path: Path) -> None:
    """Rules are added to a fixture once each, and nothing else in the file changes except its digest."""
    recording = recorded(
        tmp_path, lambda url: converse(f"I am {U}.", url=url), [streamed(text("Yes."))]
    )
    fixture = frozen(tmp_path, recording)
    before = fixture.path.read_bytes().splitlines()
    assert add_rules(fixture, ["uuid"]) == ["uuid"]
    custom_rule = Normalizer("ticket", r"T-\d{1,9}")
    assert add_rules(load(fixture.path), ["time", custom_rule, "uuid"]) == [
        "uuid",
        "time",
        "ticket",
    ]
    after = fixture.path.read_bytes().splitlines()
    assert before[1:-1] == after[1:-1]
    assert replayed(load(fixture.path), f"I am {V}.").normalized == {"uuid": 1}
    assert re.search(rb'"normalizers": \["uuid", "time", \{"name": "ticket"', after[0])
