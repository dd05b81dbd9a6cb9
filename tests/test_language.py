"""Checks that prose uses one word per concept, see CONTRIBUTING.md."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ("agentobs", "replay", "exporters", "dashboards")

PHRASES = {
    r"\btold\b(?! to\b)|\btelling\b": "report, show, record, identify",
    r"\bsaid\b": "contain, specify, print; 'prompts and responses' or 'content' for what was said",
    r"\bheard\b|\bhears\b": "receive",
    r"\bgo(?:es)? on\b|\bwent on\b|\bgoing on\b": "continue, resume",
    r"\bbeside\b": "in addition to, in parallel with, next to",
    r"\bmend(?:s|ed|ing)?\b": "fix, repair",
    r"\banew\b": "again",
    r"\bdearest\b": "most expensive",
    r"\bshall\b": "should, must",
    r"\bheed(?:s|ed)?\b": "use, ignore",
    r"\bfor want of\b": "because ... is missing",
    r"\bwhoever\b|\bwhom\b|\bwhomever\b": "name the actor: user, caller, client, hook",
    r"\bbec(?:omes|ame|ome) of\b": "outcome, result",
    r"(?<!there )\b(?:is|are|was|were) no (?!longer\b|(?:more|later|less|newer|older|larger)\b)[a-z]+": (
        "is not a(n) ..."
    ),
    r"\bsome \d": "about",
    r"\btaken out\b|\btakes? out\b": "redacted, removed",
    r"\ban end of it\b": "a suffix",
    r"\bit stands\b(?! for)|\bstands? (?:in|at|here|there|beside)\b": "is, is in",
    r"\b(?:somebody|anybody)\b": "name the actor: user, attacker, another program",
    r"(?<!rows in other tables are missing), too(?=[.;:])": "also, as well",
    r"\balso (?:if|when|after|while|before|those)\b": "even if, even after, including",
    r"\bonce more\b": "again",
    r"\bany more\b": "no longer",
    r"\bnothing but\b": "only",
    r"\bputs? back\b|\bwas put back\b|\bbe put back\b": "restore",
    r"\bof which (?:only|less|the|one|there)\b": "two sentences, or 'whose'",
    r"\b(?:an?|the same) \w+ of (?:its|their) own(?=[^\w ]|$| (?:and|in|that|which|with)\b)": (
        "its own ..., a separate ..."
    ),
    r"(?-i:(?:^|\")How many )": "The number of, the maximum number of",
    r"\bsays (?:so|that|what|why|which|whether|how)\b": "states, explains",
    r"\bcassettes?\b|\bgolden\b": "recording, fixture, snapshot",
}
"""Expressions that are forbidden in prose, each with words that replace it."""


def _starts_at_a_word(pattern: str) -> bool:
    """Return whether each alternative of a pattern starts at the boundary of a word."""
    without_groups = pattern
    while (shorter := re.sub(r"(?<!\\)\([^()]*\)", "", without_groups)) != without_groups:
        without_groups = shorter
    return all(each.startswith(r"\b") for each in without_groups.split("|"))


_AT_WORDS = [pattern for pattern in PHRASES if _starts_at_a_word(pattern)]
# Positions within a word are skipped at once, which takes less than half of the time.
_ANY_PHRASE = re.compile(
    "|".join(
        [rf"\b(?:{'|'.join(_AT_WORDS)})", *(each for each in PHRASES if each not in _AT_WORDS)]
    ),
    re.IGNORECASE | re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Text:
    """A line of prose."""

    path: str
    line: int
    text: str


@cache
def sources() -> tuple[Path, ...]:
    """Return the source files."""
    return tuple(path for name in PACKAGES for path in sorted((ROOT / name).rglob("*.py")))


def modules_of_tests() -> Iterator[Path]:
    """Yield the files of tests and benchmarks, except this one and agents in the style of other authors."""
    for name in ("tests", "benchmarks"):
        for path in sorted((ROOT / name).rglob("*.py")):
            if path != Path(__file__) and "failing_agents/agents" not in path.as_posix():
                yield path


def may_be_wrong(path: Path) -> bool:
    """Return whether a module contains a forbidden expression anywhere. This takes less time than parsing it."""
    return _ANY_PHRASE.search(path.read_text("utf-8")) is not None


def prose_of_tests() -> Iterator[Text]:
    """Yield the docstrings and comments of tests and benchmarks that may contain a forbidden expression."""
    for path in modules_of_tests():
        if may_be_wrong(path):
            yield from _in_python(path, with_texts=False)


def prose() -> Iterator[Text]:
    """Yield all prose that may contain a forbidden expression: docstrings, comments, texts in code, documents, pages,
    and comments in SQL.
    """
    for path in sources():
        if may_be_wrong(path):
            yield from _in_python(path)
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")):
        yield from _lines(
            path, re.sub(r"```.*?```|`[^`\n]*`", _blank, path.read_text("utf-8"), flags=re.S)
        )
    for path in ROOT.glob("dashboards/templates/*.html"):
        yield from _lines(
            path, re.sub(r"<[^>]*>|\{[{%#].*?[}%#]\}", _blank, path.read_text("utf-8"), flags=re.S)
        )
    for path in ROOT.glob("agentobs/store/**/*.sql"):
        yield from _lines(path, "\n".join(map(_comment, path.read_text("utf-8").split("\n"))))


def _comment(line: str) -> str:
    if line.startswith("COMMENT ON"):
        return line.partition(" IS ")[2]
    return line.partition("--")[2]


def _blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", match[0])


def _lines(path: Path, text: str) -> Iterator[Text]:
    for number, line in enumerate(text.split("\n"), 1):
        yield Text(path.relative_to(ROOT).as_posix(), number, line)


def _in_python(path: Path, *, with_texts: bool = True) -> Iterator[Text]:
    """Yield the docstrings of a module, including those of fields, its comments, and its texts of several words."""
    source, relative = path.read_text("utf-8"), path.relative_to(ROOT).as_posix()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            value = node.value.value
            if isinstance(value, str):
                for offset, line in enumerate(re.sub(r"`[^`\n]*`", _blank, value).split("\n")):
                    yield Text(relative, node.lineno + offset, line)
        elif (
            with_texts
            and isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and " " in node.value
        ):
            yield Text(relative, node.lineno, re.sub(r"`[^`\n]*`", _blank, node.value))
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield Text(relative, token.start[0], token.string)


_ARGUMENT = re.compile(r"^\s+\w+: ")
"""The name of an argument in a docstring."""


CASSETTES = (
    "agentobs/importers/",
    "tests/importers/",
    "agentobs/cli/transfer/foreign_recordings.py",
    "docs/importing.md",
    "CHANGELOG.md",
)
"""Where `cassette` is the name of a file of vcrpy or VCR, which users know by this name only."""


def wrong_phrases(texts: Iterable[Text]) -> Iterator[str]:
    """Yield each use of a forbidden expression."""
    patterns = [
        (re.compile(pattern, re.IGNORECASE), instead) for pattern, instead in PHRASES.items()
    ]
    for each in texts:
        text = _ARGUMENT.sub("", each.text)
        if not _ANY_PHRASE.search(text):
            continue
        for pattern, instead in patterns:
            for match in pattern.finditer(text):
                if match[0].lower().startswith("cassette") and each.path.startswith(CASSETTES):
                    continue
                yield f"{each.path}:{each.line}: {match[0]!r}: write {instead}"


def test_prose_contains_no_forbidden_expressions() -> None:
    """Docstrings, comments, documents, pages and comments in SQL contain no forbidden expressions."""
    assert list(wrong_phrases(prose())) == []


def test_prose_of_tests_contains_no_forbidden_expressions() -> None:
    """Docstrings and comments of tests and benchmarks contain no forbidden expressions."""
    assert list(wrong_phrases(prose_of_tests())) == []


def test_the_check_finds_a_forbidden_expression() -> None:
    """The patterns match forbidden expressions, and do not match idiomatic sentences."""
    for text, is_wrong in (
        ("The report is told to the user", False),
        ("The user is told of it", True),
        ("what was said last", True),
        ("There is no session", False),
        ("It is no session", True),
        ("written beside the file", True),
        ("the outcome of the call", False),
        ("How many steps are shown.", True),
        ("It shows how many steps there are.", False),
        ("It is a session of its own.", True),
        ("the previous request of its own task", False),
        ("The output is bounded, too.", True),
        ("The file is too large.", False),
    ):
        found = any(re.search(pattern, text, re.IGNORECASE) for pattern in PHRASES)
        assert found is is_wrong, text
        assert (_ANY_PHRASE.search(text) is not None) is is_wrong, text
