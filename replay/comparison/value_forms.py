r"""The forms of values that are new in each run, one for each built-in rule: `uuid`, `time`, `tmp_path`, ...

The patterns are applied to JSON text, in which a line feed is a backslash and an `n`, and a backslash of a Windows path
is doubled. All quantifiers are bounded, so the duration of a search is proportional to the length of the text.

If an alternative of a pattern has a group whose name starts with `value`, only this group is the value; the rest of the
match is required context.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from agentobs.provider.run_ids import SEPARATOR as _SEPARATOR
from agentobs.provider.run_ids import ULID as _ULID
from agentobs.provider.run_ids import UUID as _UUID
from agentobs.provider.run_ids import after as _after


@dataclass(frozen=True, slots=True)
class Form:
    """A form of values that are new in each run."""

    name: str
    """The name of its rule, such as `uuid`."""
    words: str
    """The phrase for such a value in reports: `a UUID`."""
    pattern: re.Pattern[str]
    is_measured: bool = False
    """Whether each value is a new measurement, such as a clock reading. If so, two equal values may differ in a replay.
    The values of other forms are identities: equal values must stay equal.
    """


def _any(*patterns: str) -> str:
    return "(?:" + "|".join(patterns) + ")"


_START = _after(r"\w")

# Paths ------------------------------------------------------------------------------------------------------------
_SLASH = r"(?:\\{1,4}|/)"
_PART = r"[\w.+~%@=-]{0,120}[\w~-]"
_DRIVE = rf"{_START}[A-Za-z]:{_SLASH}"
_TMP_ROOT = _any(
    _after(r"\w.~-")
    + r"(?:/private)?/(?:tmp|var/tmp|dev/shm|var/folders/\w{1,4}/\w{1,80}(?:/[TC0])?)",
    rf"{_DRIVE}Users{_SLASH}{_PART}{_SLASH}AppData{_SLASH}Local{_SLASH}Temp(?:{_SLASH}\d{{1,3}}(?={_SLASH}))?",
    rf"{_DRIVE}(?:(?:Windows{_SLASH})?(?:Temp|TEMP|temp)|tmp)",
)
_PYTEST = (
    rf"pytest-of-{_PART}{_SLASH}pytest-(?:\d{{1,6}}|current)(?:{_SLASH}popen-\w{{1,10}})?"
    rf"(?:{_SLASH}[\w-]{{0,80}}\d(?![\w.]))?"
)
_TMP_PATH = (
    rf"{_TMP_ROOT}(?![\w-])(?:{_SLASH}(?:{_PYTEST}|{_PART}(?:{_SLASH}tmp\w{{6,12}}(?![\w.]))?))?"
)
_USER = r"[\w.+~@-]{0,60}\w"
_HOME_PATH = _any(
    _after(r"\w.~-") + rf"/(?:home|Users|export/home|var/home)/{_USER}",
    _after(r"\w.~/-") + r"/root(?![\w.-])",
    rf"{_DRIVE}(?:Users|Documents and Settings){_SLASH}{_USER}",
)

# Times ------------------------------------------------------------------------------------------------------------
_YEAR = r"(?:19|20)\d\d"
_MONTH = r"(?:0?[1-9]|1[0-2])"
_DAY = r"(?:0?[1-9]|[12]\d|3[01])"
_MONTHS = [
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
]  # fmt: skip
_DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]


def _names(full: list[str], short: list[str]) -> str:
    words = [name for each in (*full, *short) for name in (each, each.upper())]
    return _any(*sorted(words, key=len, reverse=True))


_MONTH_NAME = _names(_MONTHS, [*(each[:3] for each in _MONTHS), "Sept"]) + r"\b\.?"
_WEEKDAY = _names(_DAYS, [*(each[:3] for each in _DAYS), "Tues", "Thur", "Thurs"]) + r"\b\.?"
_DAY_TH = rf"{_DAY}(?:st|nd|rd|th)?(?![\w.:]?\d)"
_ZONE_NAME = (
    r"(?:(?:UTC|GMT)(?:[+-]\d{1,2}(?::?\d\d)?)?|[ECMP][SD]T|CES?T|EES?T|WES?T|[BIJKSH]ST|MSK|AK[SD]T|A[ECW][SD]T|NZ[SD]T"
    r"|HKT|SGT)\b"
)
_ZONE = (
    rf"(?:Z\b|\s?[+-]\d\d:?\d\d(?!\d)|[+-]\d\d(?![\d:])|\s?{_ZONE_NAME})?"
    rf"(?:\s?\({_ZONE_NAME}\)|\s?[\[(]?(?:Europe|America|Asia|Africa|Australia|Pacific|Atlantic|Etc)/\w{{2,30}}[\])]?)?"
)
_CLOCK = r"(?:[01]\d|2[0-4]):[0-5]\d(?::(?:[0-5]\d|60)(?:\.\d{1,9}|,\d{3}(?!\d))?)?"
_HALF = r"[ \u00a0\u202f]?[AaPp](?:\.[Mm]\.|[Mm]\b)"
_TWELVE = rf"(?:0?[1-9]|1[0-2])(?::[0-5]\d(?::[0-5]\d(?:\.\d{{1,9}})?)?)?{_HALF}"
_HOUR = _any(_TWELVE, rf"{_CLOCK}(?:{_HALF})?", r"\d:[0-5]\d(?::[0-5]\d)?(?!:?\d)")
"""A time of day after a date."""
_TIME = rf"{_HOUR}{_ZONE}"
_THEN = r"(?:[Tt_:]|,?[ \u202f]{1,2}(?:at |@ ?)?|, at )"
_ISO = rf"{_YEAR}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01])"
_COMPACT = rf"{_YEAR}(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])"
_NAMED = rf"{_START}(?:{_WEEKDAY},?\s)?" + _any(
    rf"{_MONTH_NAME}\s{{1,2}}{_DAY_TH}(?:,?\s{_YEAR}\b)?",
    rf"(?:the )?{_DAY_TH}(?: of)?[\s/-]{_MONTH_NAME}(?:,?[\s/-]{_YEAR}\b)?",
    rf"{_MONTH_NAME},?\s{_YEAR}\b",
)
_DATE = _any(
    rf"(?<!\d){_ISO}(?!\d)",
    _NAMED,
    rf"(?<![\d.]){_YEAR}/{_MONTH}/{_DAY}(?!\d)",
    rf"{_after('0-9A-Za-z_/.-')}(?:{_MONTH}/{_DAY}|{_DAY}/{_MONTH})/{_YEAR}(?![\w/])",
    rf"{_after('0-9A-Za-z_/.-')}(?:0[1-9]|[12]\d|3[01])/(?:0[1-9]|[12]\d|3[01])/\d\d(?![\w/])",
    rf"{_after('0-9A-Za-z_.-')}{_DAY}\.{_MONTH}\.{_YEAR}(?!\w|\.\d)",
    rf"{_after('0-9A-Za-z_.-')}{_YEAR}\.{_MONTH}\.{_DAY}(?=[ T]\d\d:\d\d)",
    rf"{_after('0-9A-Za-z_.-')}(?:{_DAY}-{_MONTH}|{_MONTH}-{_DAY})-{_YEAR}(?![\w-])",
)
_WEEK = _after(r"\w-") + rf"{_YEAR}-?W[0-5]\d(?:-?[1-7])?(?!\w)"
_FILE_TIME = rf"(?<!\d){_ISO}[T_-][0-2]\d-[0-5]\d(?:-[0-5]\d)?(?:[.-]\d{{1,9}})?Z?(?![\w])"
_STAMP = (
    rf"(?<![\d.$€£#])(?<![0-9a-f]{{4}}-){_COMPACT}"
    r"(?:[T_-]?[0-2]\d[0-5]\d(?:[0-5]\d)?(?:[.,_-]\d{1,6})?(?:Z|[+-]\d{4})?)?(?![0-9A-Za-z]|\.\d|-[0-9a-f]{4}-)"
)
_ALONE = _after(r"\w:.")
_TIME_PATTERN = (
    r"(?=[0-9JFMASONDTWtwd])"
    + _any(  # most positions fail the test above, which is faster than all alternatives
        _FILE_TIME,
        rf"{_DATE}(?:{_THEN}{_TIME}(?:\s{_YEAR}\b)?)?",
        _WEEK,
        _STAMP,
        rf"{_START}{_WEEKDAY},?\s(?:at )?{_TIME}",
        rf"{_ALONE}{_any(_TWELVE, _CLOCK + f'(?:{_HALF})?')}{_ZONE}(?![\w:]|\.\d)",
        r"(?:[Tt]oday is|[Tt]oday|[Ww]eekday|day_of_week)[\s\"':=\\]{1,5}(?P<value>"
        + _any(*_DAYS)
        + r")\b",
    )
)

_TIMESTAMP = r"(?<![0-9a-fA-F.])1[6-9]\d{8}(?:\d{3}|\d{6}|\d{9})?(?:\.\d{1,9})?(?![0-9A-Za-z])"

# Durations --------------------------------------------------------------------------------------------------------
_WHOLE = r"\d{1,6}\s?"
_NUMBER = r"\d{1,12}(?:\.\d{1,12})?(?:[eE]-?\d{1,3})?"
_UNIT_D, _UNIT_H = r"d(?:ays?)?", r"h(?:(?:ou)?rs?)?"
_UNIT_M, _UNIT_S = r"m(?:in(?:ute)?s?)?", r"s(?:ec(?:ond)?s?)?"
_AND = r",?\s?(?:and\s)?"
_END = r"(?![A-Za-z])"
_TINY = r"(?:ns|[µμ]s|ms|nanosec(?:ond)?s?|microsec(?:ond)?s?|millisec(?:ond)?s?)"
_LABEL = r"(?:elapsed|duration|latency|took|uptime|run_?time|wall_?time)"
_DURATION = r"(?=[0-9Pbcdeflprtuw])" + _any(
    rf"{_START}P(?:\d{{1,6}}[YMWD]){{0,4}}T(?:\d{{1,9}}(?:\.\d{{1,9}})?[HMS]){{1,3}}(?!\w)",
    rf"{_ALONE}(?:\d{{1,5}} days?, \d{{1,2}}|\d):[0-5]\d:[0-5]\d(?:\.\d{{1,6}})?(?![\w:])",
    _after(r"\w.$€£")
    + _any(
        rf"{_WHOLE}{_UNIT_D}{_AND}{_WHOLE}{_UNIT_H}(?:{_AND}{_WHOLE}{_UNIT_M})?(?:{_AND}{_NUMBER}\s?{_UNIT_S})?{_END}",
        rf"{_WHOLE}{_UNIT_H}{_AND}{_WHOLE}{_UNIT_M}(?:{_AND}{_NUMBER}\s?{_UNIT_S})?{_END}",
        rf"{_WHOLE}{_UNIT_M}{_AND}{_NUMBER}\s?{_UNIT_S}{_END}",
        rf"{_NUMBER}\s?{_TINY}{_END}",
        rf"{_NUMBER}us{_END}",
        rf"\d{{1,9}}\.\d{{1,12}}(?:[eE]-?\d{{1,3}})?\s?(?:{_UNIT_S}|us){_END}",
        r"\d{1,6} (?:second|minute|hour|day)s? ago\b",
    ),
    rf"{_after('A-Za-z')}(?:took|takes|elapsed|duration|latency|uptime|waited|run ?time|"
    r"(?:finished|completed|done|passed|failed|ran|ready|built|compiled) (?:in|for|after))\W{1,4}(?:about |~)?"
    rf"(?P<value>{_NUMBER}\s?(?:{_UNIT_S}|{_UNIT_M}|{_UNIT_H}){_END})",
    rf"{_after('A-Za-z')}{_LABEL}(?:_?(?:ns|us|ms|s|secs?|seconds?|minutes?))?[\"'\\]{{0,4}}\s?[=:]\s?[\"'\\]{{0,4}}"
    rf"(?P<value2>{_NUMBER})(?![\w.])",
)

# Identifiers ------------------------------------------------------------------------------------------------------
_KSUID = (
    _after("0-9A-Za-z")
    + r"(?=[0-9A-Z]{0,26}[a-z])(?=[0-9a-z]{0,26}[A-Z])[1-5][0-9A-Za-z]{26}(?![0-9A-Za-z])"
)
_OBJECT_ID = _after(r"\w-") + r"(?=\d{0,23}[a-f])[4-7][0-9a-f]{23}(?![\w-])"
_NANOID = (
    _after(r"\w-") + r"(?=[A-Z0-9_-]{0,20}[a-z])(?=[a-z0-9_-]{0,20}[A-Z])(?=[A-Za-z]{0,20}[0-9_-])"
    r"(?![\w-]{0,14}[a-z]{7})[A-Za-z0-9_-]{21}(?![\w-])"
)
_LENGTHS = (128, 96, 64, 56, 40, 32, 16)
"""The numbers of hex digits of SHA-512, SHA-384, SHA-256, SHA-224, SHA-1, MD5 and 64-bit values."""
_HASH = _any(
    _after(r"\w-")
    + r"(?=\d{0,127}[a-f])(?=[a-f]{0,127}\d)"
    + _any(*(rf"[0-9a-f]{{{n}}}" for n in _LENGTHS))
    + r"(?![\w-])",
    _after(r"\w-")
    + r"(?=\d{0,127}[A-F])(?=[A-F]{0,127}\d)"
    + _any(*(rf"[0-9A-F]{{{n}}}" for n in _LENGTHS))
    + r"(?![\w-])",
    rf"{_after('A-Za-z')}(?:commit|rev(?:ision)?|git|sha|HEAD|checksum|digest){_SEPARATOR}(?P<value>[0-9a-f]{{7,40}})"
    r"(?![\w-])",
    r"-\d{1,5}-g(?P<value2>[0-9a-f]{7,40})(?!\w)",
    _after(r"\w#.+-") + r"(?=\d{0,11}[a-f])(?=[a-f]{0,11}\d)[0-9a-f]{7,12}(?![\w-]|\.\d)",
)
_ADDRESS = _any(
    r"(?<=\bat )0x[0-9a-fA-F]{4,16}(?![0-9a-zA-Z])",
    _after("0-9A-Za-z") + r"0x[0-9a-fA-F]{7,16}(?![0-9a-zA-Z])",
    _after(r"\w.") + r"1(?:39|40)\d{12}(?!\w|\.\d)",
)

# The process and its machine --------------------------------------------------------------------------------------
_THREAD = _any(
    _START + r"Thread-\d{1,6}(?: \(\w{1,60}\))?",
    _START + r"(?:ThreadPoolExecutor-\d{1,6}_|Dummy-)\d{1,6}",
    r"\bname='(?P<value>Task-\d{1,9})'",
    rf"{_after('A-Za-z')}(?i:thread[ _]?id(?:ent)?|tid|goroutine){_SEPARATOR}(?P<value2>\d{{1,20}})",
    rf"{_after('A-Za-z')}[Tt]hread{_SEPARATOR}(?P<value3>\d{{4,20}})",
)
_PORT = _any(
    r"(?:127\.0\.0\.1|0\.0\.0\.0|localhost|\[::1?\]):(?P<value>\d{1,5})(?!\d)",
    rf"{_after('A-Za-z')}(?i:port){_SEPARATOR}(?P<value2>\d{{4,5}})(?!\d|\.\d)",
)
_PID = _any(
    rf"{_after('A-Za-z')}(?i:p?pid|process[ _]id){_SEPARATOR}(?P<value>\d{{1,7}})(?!\d|\.\d)",
    rf"{_after('A-Za-z')}[Pp]rocess{_SEPARATOR}(?P<value2>\d{{1,7}})"
    r"(?=[^\w\s.]|\.?(?![\w.])\s{0,2}(?:\Z|[^\w\s])|\.\s|\s(?:exited|ended|died|started|is|was|has|with|running|killed|"
    r"terminated|crashed|not)\b)",
    _START + r"(?:[a-z]{2,20}d|python\d?|cron|CRON|sudo|su)\[(?P<value3>\d{1,7})\](?=:)",
)
_HOST = _any(
    rf"{_after('A-Za-z')}(?i:host ?name|node ?name){_SEPARATOR}(?P<value>[\w.-]{{0,252}}\w)",
    _START + r"ip-(?:\d{1,3}-){3}\d{1,3}(?:\.[a-z0-9-]{1,30}){0,4}(?![\w-])",
    _START + r"(?:DESKTOP|LAPTOP|WIN)-[A-Z0-9]{7,11}(?![\w-])",
    _START + r"[A-Za-z][\w-]{0,62}\.(?:local|internal|lan)(?![\w-])",
    _START + r"[a-z][a-z0-9-]{0,50}-[a-f0-9]{8,10}-[a-z0-9]{5}(?![\w-])",
)

FORMS = tuple(
    Form(name, words, re.compile(pattern), is_measured)
    for name, words, pattern, is_measured in (
        ("uuid", "a UUID", _UUID, False),
        ("time", "a time", _TIME_PATTERN, True),
        ("duration", "a duration", _DURATION, True),
        ("timestamp", "a Unix timestamp", _TIMESTAMP, True),
        ("tmp_path", "a temporary path", _TMP_PATH, False),
        ("home_path", "a home directory", _HOME_PATH, False),
        ("ulid", "a ULID", _ULID, False),
        ("ksuid", "a KSUID", _KSUID, False),
        ("object_id", "a MongoDB ObjectId", _OBJECT_ID, False),
        ("hash", "a hash", _HASH, False),
        ("nanoid", "a Nano ID", _NANOID, False),
        ("address", "a memory address", _ADDRESS, False),
        ("thread_id", "a thread ID", _THREAD, False),
        ("port", "a port number", _PORT, False),
        ("pid", "a process ID", _PID, False),
        ("host", "a host name", _HOST, False),
    )
)
"""All forms, in the order in which reports propose them. `APPLIED` is the order in which they are applied."""

_FIRST = ("tmp_path", "home_path", "duration", "hash")
APPLIED = {
    name: at
    for at, name in enumerate([*_FIRST, *(form.name for form in FORMS if form.name not in _FIRST)])
}
"""The position of each rule in the order in which rules are applied. Paths come before the values that they contain,
and hashes before UUIDs, because some hashes look like the hex form of a UUID."""


def span_of(match: re.Match[str]) -> tuple[int, int]:
    """Return the span of the value in a match: of the group `value...` if it matched, otherwise of the whole match."""
    group = match.lastgroup
    return match.span(group) if group and group.startswith("value") else match.span()
