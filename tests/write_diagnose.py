"""Generate docs/diagnose.md: the meaning of each signature, and its findings in recorded traffic and in real logs."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import duckdb

from agentobs.importers.claude_code.transcript_import import import_logs, logs_in
from agentobs.recording.journal.home import Home, create, open_home
from agentobs.recording.wire.exchange_file import read_wire_file
from agentobs.records.exchanges import ModelExchange, Place
from agentobs.sink import Record
from agentobs.store.analysis.diagnosis import SIGNATURES
from agentobs.store.duckdb.connection import connect, named
from tests.store.recordings import SECOND, T0, a_home, end, record, session_id, start
from tests.store.wire_conversations import WireConversation
from tests.wire import corpus

TRANSCRIPTS = Path(
    os.environ.get("AGENTOBS_TRANSCRIPTS")
    or Path(__file__).parents[1].parent / "shared" / "transcripts"
)


@dataclass(frozen=True)
class CorpusFindings:
    """The findings of the signatures in one corpus."""

    sessions: int
    answers: int
    calls: int
    applicable: Counter[str]
    """For each signature, the number of sessions to which it applies."""
    alarms: list[tuple[str, str, str, str, str]]
    """Signature, session, subject, detail, and the number of times in that session."""


def has_corpora() -> bool:
    """Return whether both corpora exist."""
    return (corpus.folder() / "manifest.json").is_file() and TRANSCRIPTS.is_dir()


def diagnose() -> str:
    """Return the text of the document."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some models of that time have no price
        wire = _tried(*record_wire(Path(folder) / "wire"))
        logs = _tried(*_logs(Path(folder) / "logs"))
    parts = [_HEAD, _example(), _COMMANDS, _meanings(), _TELLS, _table(wire, logs), _LOOKED_AT]
    parts += [_alarms("Recorded traffic", wire), _alarms("Logs", logs), _UNTRIED]
    return "".join(parts)


def _example() -> str:
    """Return the output of `agentobs diagnose` for a session that repeats a failing call."""
    with tempfile.TemporaryDirectory() as folder:
        home = a_home(Path(folder))
        conversation = WireConversation(1)
        for _ in range(4):
            [call] = conversation.calls(("lookup_order", {"order_id": "A-17"}))
            conversation.result(call, "no such order", is_error=True)
        record(home, [start(1, "refund-loop"), *conversation.records[1:], end(1)])
        command = [sys.executable, "-m", "agentobs", "--home", str(home.path), "diagnose"]
        done = subprocess.run([*command, "refund-loop"], capture_output=True, text=True, check=True)
    return f"```\n$ agentobs diagnose refund-loop\n{done.stdout}```\n"


def _home(path: Path) -> Home:
    """Open a home with a constant key, because the distance of two inputs depends slightly on the key."""
    home = open_home(path)
    create(path / "key", bytes(range(32)))
    return home


def record_wire(path: Path) -> tuple[Home, dict[str, str]]:
    """Record every file of the corpus as a separate session, with one exchange per second."""
    home, names = _home(path), corpus.files()
    records = (each for number, name in enumerate(names, 1) for each in _session(number, name))
    record(home, records)
    return home, {session_id(number): name for number, name in enumerate(names, 1)}


def _session(number: int, name: str) -> Iterator[Record]:
    begun = T0 + number * 1_000 * SECOND
    yield start(number, at=begun)
    place = Place(session_id(number))
    for at, exchange in enumerate(read_wire_file(corpus.folder() / name).exchanges, 1):
        assert isinstance(exchange, ModelExchange)
        yield replace(
            exchange,
            place=place,
            attempt_id=f"{number:08x}{at:024x}",
            started_ns=begun + at * SECOND,
            headers_ns=SECOND // 4,
            ended_ns=SECOND // 2,
        )
    yield end(number, at=begun + 999 * SECOND)


def _logs(path: Path) -> tuple[Home, dict[str, str]]:
    """Import every log."""
    home = _home(path)
    paths = logs_in([TRANSCRIPTS])
    report = import_logs(home, paths, remove_session=lambda *_: None)
    texts = {path: path.read_text("utf-8") for path in paths}
    names = {
        done.session_id: next(
            f"{path.parent.name}/{path.name}"
            for path, text in texts.items()
            if done.client_id in text
        )
        for done in report.sessions
    }
    return home, names


_IS_RECORDED = (
    "session_id NOT IN (SELECT session_id FROM session_starts WHERE source <> 'recorded')"
)
"""Whether a session was recorded; logs contain neither cancelled hooks nor summaries that were not used."""
_APPLICABLE_SESSIONS = {
    "repeated_calls": """
        SELECT DISTINCT session_id FROM (
            SELECT session_id, lane FROM attempts WHERE tool_use_count > 0 GROUP BY ALL HAVING count(*) >= 3
        )
    """,
    "rising_costs": """
        SELECT DISTINCT session_id FROM (
            SELECT session_id, lane FROM attempts WHERE outcome = 'ok' GROUP BY ALL HAVING count(*) >= 6
        )
    """,
    "full_contexts": "SELECT DISTINCT session_id FROM costs",
    "large_results": """
        SELECT DISTINCT session_id FROM attempts WHERE message_count >= 30
    """,
    "long_waits": "SELECT DISTINCT session_id FROM permissions",
    "repeated_denials": "SELECT DISTINCT session_id FROM tool_results WHERE is_error",
    "silent_hook_cancels": f"SELECT DISTINCT session_id FROM events WHERE kind = 'hook' AND {_IS_RECORDED}",
    "broken_caches": "SELECT DISTINCT session_id FROM cached_calls WHERE previous_cached_tokens > 0",
    "cache_rewrites": "SELECT DISTINCT session_id FROM cached_calls WHERE previous_cached_tokens > 0",
    "repeated_tool_errors": "SELECT DISTINCT session_id FROM tool_results WHERE is_error",
    "contradictions": "SELECT DISTINCT session_id FROM attempts WHERE claims_success IS NOT NULL",
    "failed_summaries": f"""
        SELECT DISTINCT session_id FROM attempts WHERE query_source = 'compaction' AND {_IS_RECORDED}
    """,
}
"""For each signature, a query for the sessions to which it applies."""


def _tried(home: Home, names: dict[str, str]) -> CorpusFindings:
    with connect(home, ingest=False) as connection:
        applicable = Counter(
            {
                name: len(connection.execute(sql).fetchall())
                for name, sql in _APPLICABLE_SESSIONS.items()
            }
        )
        rows = _rows(connection, "diagnoses_by_session")
        return CorpusFindings(
            sessions=_count(connection, "sessions"),
            answers=_count(connection, "turns"),
            calls=_count(connection, "tool_calls"),
            applicable=applicable,
            alarms=sorted(
                (
                    row["signature"],
                    names[row["session_id"]],
                    row["about"],
                    row["detail"],
                    str(row["times"]),
                )
                for row in rows
                if row["signature"] != "failure"  # the cause of a failure is not a signature
            ),
        )


def _count(connection: duckdb.DuckDBPyConnection, table: str) -> int:
    row = connection.execute(f"SELECT count(*) FROM {table}").fetchone()
    return int(row[0]) if row else 0


def _rows(connection: duckdb.DuckDBPyConnection, query: str) -> list[dict[str, Any]]:
    answered = named(connection, query)
    columns = [str(column[0]) for column in answered.description or []]
    return [dict(zip(columns, row, strict=True)) for row in answered.fetchall()]


def _meanings() -> str:
    lines = ["| signature | found if a session contains | suggested fix |", "| --- | --- | --- |"]
    lines += [f"| `{each.name}` | {each.meaning} | {each.todo} |" for each in SIGNATURES]
    return "\n".join(lines) + "\n"


def _table(wire: CorpusFindings, logs: CorpusFindings) -> str:
    head = (
        f"\n- Recorded traffic: {wire.sessions:,} sessions, {wire.answers:,} responses, {wire.calls:,} tool calls.\n"
        f"- Logs: {logs.sessions:,} sessions, {logs.answers:,} responses, {logs.calls:,} tool calls.\n\n"
        "*Eligible* is the number of sessions that contain the data that the signature needs. *Found* is the "
        "number of\nsessions with a finding.\n\n"
    )
    lines = [
        "| signature | traffic: eligible | traffic: found | logs: eligible | logs: found |",
        "| --- | --- | --- | --- | --- |",
    ]
    for each in SIGNATURES:
        cells = []
        for tried in (wire, logs):
            fired = {alarm[1] for alarm in tried.alarms if alarm[0] == each.name}
            cells += [str(tried.applicable[each.name]), str(len(fired))]
        lines.append(f"| `{each.name}` | {' | '.join(cells)} |")
    return head + "\n".join(lines) + "\n"


VERDICTS = {
    (
        "rising_costs",
        "crewAIInc__crewAI/utilities_TestAnthropicStructuredPlanning.test_anthropic_research_workflow_generates_steps.e9e08914.jsonl",
    ): "True. A research agent sends its whole history in each turn and does not cache any of it. The prompt grew "
    "from 753 to 2,610 tokens.",
    (
        "repeated_denials",
        "entireio__cli/37-995ebed6e4-3.jsonl",
    ): "True. A person rejected the plan four times, the last time because it was based on something that the "
    "agent had made up.",
    (
        "large_results",
        "entireio__cli/55-04c1f4266f-0.jsonl",
    ): "True. A web page of 73,469 characters was added to a conversation of 133 messages.",
    (
        "repeated_tool_errors",
        "entireio__cli/37-995ebed6e4-3.jsonl",
    ): "True. These are the same four denials.",
    (
        "cache_rewrites",
        "entireio__cli/04-0b015eb1c2-0.jsonl",
    ): "True. The cache had expired after a pause of 6 minutes 43 seconds.",
    (
        "cache_rewrites",
        "entireio__cli/1e-868c83dbb7-0.jsonl",
    ): "True. The cache had expired after a pause of 6 minutes 48 seconds.",
    (
        "cache_rewrites",
        "entireio__cli/24-3ed775b643-0.jsonl",
    ): "True by the counts. Three requests wrote cached tokens again, after 7 seconds, 43 seconds and 8 "
    "minutes 27 seconds. The log does not contain the requests, so the reasons are unknown.",
    (
        "cache_rewrites",
        "entireio__cli/37-995ebed6e4-3.jsonl",
    ): "True. The cache had expired after a pause of 17 minutes 57 seconds. One more rewrite, after 25 "
    "seconds, has no known reason.",
    (
        "cache_rewrites",
        "entireio__cli/42-d34ec97ff8-0.jsonl",
    ): "True by the counts. 23,268 cached tokens were written again after 2 minutes 2 seconds. The log does "
    "not contain the request, so the reason is unknown.",
    (
        "cache_rewrites",
        "entireio__cli/4b-7d5121b42a-0.jsonl",
    ): "True. The cache had expired after a pause of 13 minutes 13 seconds; 153,234 tokens were written "
    "again.",
    (
        "cache_rewrites",
        "entireio__cli/55-04c1f4266f-0.jsonl",
    ): "True. The cache expired in seven pauses of 6 to 58 minutes.",
    (
        "cache_rewrites",
        "entireio__cli/73-7e6e3ea2ad-2.jsonl",
    ): "True. The cache had expired after a pause of 6 minutes 31 seconds.",
    (
        "cache_rewrites",
        "entireio__cli/76-62d755ef9f-2.jsonl",
    ): "True. The cache expired in three pauses of 6, 8 and 18 minutes. A fourth large rewrite, after 7 "
    "seconds, follows a compaction and is not part of the finding.",
    (
        "cache_rewrites",
        "entireio__cli/89-7eb280e769-20.jsonl",
    ): "True. The cache expired in two pauses of 6 minutes 14 seconds and 6 minutes 41 seconds.",
    (
        "cache_rewrites",
        "entireio__cli/9b-3838281539-0.jsonl",
    ): "True by the counts. 25,980 cached tokens were written again after 45 seconds. The log does not "
    "contain the request, so the reason is unknown.",
    (
        "cache_rewrites",
        "entireio__cli/dc-49cb8a2a42-0.jsonl",
    ): "True. The cache had expired after a pause of 70 minutes.",
}
"""The verdict on each finding, from a review of its session."""


def _alarms(title: str, tried: CorpusFindings) -> str:
    lines = [f"\n### {title}\n", "| signature | session | about | detail | times | verdict |"]
    lines.append("| --- | --- | --- | --- | --- | --- |")
    for signature, name, about, detail, times in tried.alarms:
        verdict = VERDICTS.get((signature, name), "NOT REVIEWED")
        lines.append(f"| `{signature}` | {name} | {about} | {detail} | {times} | {verdict} |")
    return "\n".join(lines) + "\n"


_HEAD = """\
# Failure signatures

<!-- Generated by `make docs` from agentobs/store/analysis/diagnosis.py and two corpora.
Change those, not this file. -->

`agentobs diagnose SESSION` explains why a session failed, and lists the failure signatures found in it. If the session
failed, crashed, or has no recorded end, the output begins with the cause, the failed step with its error, and the steps
just before it. Else the output begins with the status and what failed. For each signature, it prints the strongest
evidence and a suggested fix:

"""

_COMMANDS = """
- `agentobs diagnose --all --since 7d` prints a table of all sessions, with a row `failure` for each session that
  failed. On a store with millions of calls, use `--since`; the command then takes about a second.
- `agentobs sessions --failed` lists the failed sessions with their causes, and `--cause TEXT` selects sessions by
  cause, ignoring case. `--error TYPE` selects sessions in which any tool call or request failed with this type of
  error, even if they completed; so does the search of the dashboard. In SQL, the views `failures` and `errors` contain
  the cause of each failure, and all errors, including those of tools that the provider ran. Texts in SQL are digests,
  so `--cause` finds more than a condition on `summary`.
- With `--fail`, both commands exit with status 1 if they find a signature, for use in CI.
- With `--json`, both commands print one JSON object per line.
- `agentobs diagnose SESSION --judge MODEL` asks a model whether the final responses contradict the tool results since
  the last prompt. It sends at most 20 responses, and 50 results of 4,000 characters each. The requests go through the
  SDK, send content to the provider, and are recorded as a session named `agentobs-judge` with the source `classifier`.
  If content is off, this option is not available.

Signatures need no content, so they also work with `AGENTOBS_CONTENT=off`.

In SQL, each signature is a view in the store, with one row per finding, and a named query of the same name. The view
`diagnoses` combines all signatures. If a session has no rows, either nothing was found or the signature could not be
checked. Only the command reports which, and why.

## Signatures

"""

_TELLS = """
## How causes work without content

- *How a call failed* (`tool_results.error_origin`): the tool `raised` an exception; its result was `returned` as an
  error; a permission, a hook or a check `refused` the call; or the call was `stopped`. This is exact for tools of the
  agent loop, and for functions recorded with `agentobs.record_tool`. For all other tools, including those of imported
  logs and recorded commands, it is derived from the result in the next request: `refused` if its words report a denial,
  else `returned`.
- *The class of an error* is the class of the exception. If only the result is known, it is the built-in exception that
  the text names in the form in which Python writes it, such as `ValueError: ...`. A class that no module declares is
  recorded as a digest.
- *The place of an error* is the innermost line of the program's own code, not of a library. The path is relative to
  the project. It is readable if it only repeats the name of an imported module; otherwise facts contain a digest, and
  local commands show the path. The message of an error is always content.

## How signatures work without content

- *Similar arguments*: each call is recorded with a keyed 64-bit simhash of its input (`tool_uses.input_similarity`), in
  which all arguments have the same weight. Two inputs are similar if their hashes differ in at most 6 bits; the hashes
  of unrelated inputs differ in about 32. Inputs that differ only in case, spaces or punctuation always count as
  similar. Arguments of more than 16 words usually count as similar if they differ in one word. Shorter arguments, such
  as paths, must be identical. The hash uses the home's key. Without the key, an input cannot be found by hashing
  candidates, and it cannot be reconstructed from the hash.
- *Claims success* is a flag (`attempts.claims_success`), which is set while the response is recorded. It is evaluated
  only for responses without tool calls that follow an error result. It is true if the text contains words of success
  and no admission of failure. It works only for English text. Alternative: reading the content later. This would not
  work with content off, and it would be too slow for many sessions.
- *The kind of an error* (`tool_results.error_kind`): for third-party clients, the kind is derived from the error texts
  that these clients use. The agent loop of agentobs records the kind directly. An error that matches no pattern has the
  kind `semantic`. An error is a timeout if its text begins with a name such as `ReadTimeout` or states that something
  timed out. For `repeated_tool_errors`, a class with such a name is enough. If neither the words nor the class of an
  error were recorded, its kind is not shown.
- *Context windows* come from the table that the agent loop uses for compaction. If the agent loop recorded the window
  that it used, that value is used instead. An unknown model is assumed to have a window of 200,000 tokens. The beta
  header that enables a window of one million tokens is not recorded. Therefore `full_contexts` is reported for a
  `claude-sonnet-4` or `-4-5` with this beta at 160,000 to 200,000 tokens, unless a prompt in the same lane was longer
  than 200,000 tokens.
- *A large result* is one text of more than 10,000 characters, not bytes. Old recordings do not contain the number of
  characters; for these, bytes are used. *30 messages* is the number of messages in the request that contains the
  result.
- *Long waits* do not include approvals that a classifier decided. For each interaction, the total waiting time is
  divided by the wall time; concurrent waits count once. If the total is less than one second, it is not reported.
- *Broken caches* do not include cache entries that expired, or cache misses that a compaction of the agent loop caused.

## False positives

All signatures were evaluated on two corpora: recorded provider traffic from the tests of other projects, and logs of
developers who use Claude Code.
"""

_LOOKED_AT = """
Each finding was compared with its session. The last column shows whether the finding is correct.
"""

_UNTRIED = """
### Limits of the corpora

- Test sessions are short, so few of them can contain repeated calls or rising costs.
- Neither corpus contains approval waits (`long_waits`).
- Logs do not contain requests, so they cannot show a changed prefix (`broken_caches`). Their times are the times at
  which lines were written.
- No hook in the logs was canceled (`silent_hook_cancels`).

These signatures are tested in tests/store/test_diagnosis.py, on sessions just above and just below their thresholds.
"""
