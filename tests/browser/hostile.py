"""Hostile texts, and a store that contains them in every place that allows text.

The texts try to run scripts, to load other sites, or to mislead.
"""

from __future__ import annotations

import shutil
import typing
from collections.abc import Callable

import duckdb

from agentobs.recording.journal.home import Home
from agentobs.records import facts
from agentobs.records.labels import Label
from agentobs.sink import Record
from agentobs.store.duckdb import generations
from agentobs.store.duckdb.schema import SETTINGS
from tests.browser.synthetic_sessions import SyntheticSession, text, thinking

RUN = "window.hacked=1"
"""What each script would do if it ran."""
AWAY = "http://evil.example"
"""The URL that each link or image would load if it could."""
CLOSING = f"</textarea></title></pre></script><script>{RUN};fetch('{AWAY}/a')</script>"
TEXTS = {
    "script": f"<script>{RUN};fetch('{AWAY}/script')</script>",
    "closing": CLOSING,
    "image": f"<img src=x onerror={RUN}><img src={AWAY}/pixel.png>",
    "svg": f"<svg onload={RUN}><animate onbegin={RUN} attributeName=x dur=1s></svg>",
    "link": f"[read this](javascript:{RUN}) ![seen]({AWAY}/md.png) <{AWAY}/auto>",
    "anchor": f"<a href='javascript:{RUN}'>here</a><a href={AWAY} ping={AWAY}>there</a>",
    "attribute": f'" autofocus onfocus="{RUN}" \' onmouseover=\'{RUN}\' x="',
    "form": f"<form action={AWAY}><input autofocus onfocus={RUN}><button>ok</button></form>",
    "meta": f"<meta http-equiv=refresh content='0;url={AWAY}/meta'><base href={AWAY}/>",
    "frame": f"<iframe srcdoc='<script>parent.hacked=1</script>' src={AWAY}></iframe>",
    "style": f"x;}}</style><style>*{{display:none}}body{{background:url({AWAY}/css)}}</style>",
    "template": "{{7*191}} {%raw%} ${7*191} #{7*191} <%= 7*191 %> %(name)s {0}",
    "plotly": f"<b>bold</b><br><a href='{AWAY}/plotly'>link</a> %{{x}} $\\alpha$",
    "json": '"}]</script><!--<script>\u2028\u2029 --> ]]> &lt;b&gt; &#x3c;i&#x3e;',
    "prototype": "__proto__.polluted constructor[prototype] toString",
    "marks": "z" + "\u0301\u0489" * 40 + " taller-than-a-line",
    "bidi": "invoice\u202egnp.exe\u2066 \u200b\u200f\u2069 zero",
    "ansi": f"\x1b[31mred\x1b[0m \x1b]8;;{AWAY}\x07link\x1b]8;;\x07 \x9b2J\r\x08",
}
"""The hostile texts by name."""
BROKEN = "before\x00after, half \ud83d of a pair, \ufffe\uffff, "
"""Characters that JSON allows, but UTF-8 text does not."""
EVERYTHING = BROKEN + "\n".join(TEXTS.values())
LINE = 10_000_000
"""The number of characters of the longest line."""
LINES = 100_000
"""The number of lines of the text with the most lines."""
END = "the very end of it"
"""The end of each long text; it must be in the download."""
STRANGE_ID = f"x\"'><img src=x onerror={RUN}></p>/%2e%2e%2f?a=1&b#c/../d"
"""A session ID that a recorder would never create."""


def record_hostile_sessions(tell: Callable[[Record], None], at_ns: int) -> str:
    """Record sessions with hostile texts; return the ID of the session with long content."""
    for number, words in enumerate(TEXTS.values()):
        _short_session(tell, number, words, at_ns + number * 10**12)
    return _long_session(tell, at_ns - 10**12)


def _short_session(tell: Callable[[Record], None], number: int, words: str, at_ns: int) -> None:
    """Record a session that contains one of the texts in every place."""
    tags = {"branch": words, "__proto__": words[:60]}
    story = SyntheticSession(tell, words, at_ns, model=words, system=words, seed=number, **tags)
    with story.interaction(words):
        _turn(story, words, words)
        story.turn(text(words), stop_reason=words, service_tier=words)
    story.end("failed" if number % 3 else "completed", "ValueError")


def _long_session(tell: Callable[[Record], None], at_ns: int) -> str:
    """Record a session with all texts and long content; return its ID."""
    story = SyntheticSession(tell, "said-at-length", at_ns, seed=99)
    with story.interaction(EVERYTHING):
        _turn(story, EVERYTHING, EVERYTHING)
        _turn(story, "lines", "\n".join(f"line {n} {RUN}" for n in range(LINES)) + END)
        _turn(story, "line", f"<script>{RUN}</script>" + "0123456789" * (LINE // 10) + END)
        story.turn(text(EVERYTHING))
    return story.end()


def _turn(story: SyntheticSession, words: str, result: str) -> None:
    call = {
        "type": "tool_use",
        "id": story.call_id(),
        "name": words[:64],
        "input": {words[:200]: words, "path": f"/tmp/{words}", "__proto__": {"polluted": words}},
    }
    story.turn(thinking(words), text(words), call, fails=("overloaded_error",))
    story.results(story.run_call(call, result, is_error=True, waited=1.0, hook="audit"))


KEPT = {"kind", "lane", "query_source", "certainty", "source", "content", "signal"}
"""Labels by which queries filter and join. If they were changed, nothing would be shown."""
KEPT_NAMES = {"span_starts"}
"""Tables whose `name` determines the category of time, so that only their `label` is changed."""


def add_to_labels(home: Home, but: str) -> None:
    """Add the texts to tags and to all labels of the published file; equal labels stay equal."""
    texts = [f"{words} " for words in TEXTS.values()]
    draft = home.path / "spoilt"
    shutil.copy(home.database, draft)
    draft.chmod(0o600)
    with duckdb.connect(str(draft), config=SETTINGS) as connection:
        for fact, table in facts.TABLES.items():
            for column in sorted(
                _label_columns(fact) - KEPT - ({"name"} if table in KEPT_NAMES else set())
            ):
                connection.execute(
                    f"UPDATE {table} SET {column} = list_extract($texts, "
                    f"1 + (hash({column}) % len($texts)::UBIGINT)::BIGINT) || {column} "
                    f"WHERE {column} IS NOT NULL AND session_id <> $but",
                    {"texts": texts, "but": but},
                )
        # Each text is the name of a session.
        connection.execute(
            "UPDATE session_starts SET name = list_extract($texts, nr) || session_id FROM (SELECT session_id AS id, "
            "row_number() OVER (ORDER BY started_ns) AS nr FROM session_starts WHERE session_id <> $but) "
            "WHERE session_id = id",
            {"texts": texts, "but": but},
        )
        connection.execute(
            "INSERT INTO session_starts BY NAME SELECT * REPLACE ($strange AS session_id, "
            "MAP {$words: $words} AS tags) FROM session_starts LIMIT 1",
            {"strange": STRANGE_ID, "words": TEXTS["closing"]},
        )
        connection.execute(
            "UPDATE session_starts SET tags = MAP {name: name, 'note': name} WHERE session_id <> $but",
            {"but": but},
        )
        connection.execute("CHECKPOINT")
    generation = generations.quick_current(home)
    assert generation is not None
    with generations.locked(home, 10):
        generations.publish(home, draft, generation.facts_bytes, generation, generation.read)


def _label_columns(fact: type) -> set[str]:
    """Return the fields of a fact that contain labels."""
    result = typing.get_type_hints(fact)
    return {name for name, kind in result.items() if Label in (kind, *typing.get_args(kind))}
