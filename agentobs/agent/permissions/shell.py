"""Find the commands in a shell text, as far as possible without running it.

This reader handles words, quotes, operators and expansions, and reports when it is in doubt; it does not implement the
grammar of any one shell. Three alternatives were considered. `shlex` discards quoting, so `echo ";"` looks like two
commands. `bashlex` (0.18, 2023) is under the GPL and raises for `case` and arithmetic. A grammar with error recovery
(tree-sitter) returns a tree when the right result is "unknown". Permissions need less than a parse: every command that
might run, and whether the list is complete. If shells disagree, the result is in doubt.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

from agentobs.agent.permissions.globs import GAP, HOLE
from agentobs.agent.permissions.hidden_commands import commands_in_variable, unseen
from agentobs.agent.permissions.interpreters import ASSIGNMENT, SEARCHERS, program, runs_from

LENGTH_MAX = 16_384
"""Longer commands are not parsed, in characters. Our choice."""
DEPTH_MAX = 8
"""Maximum nesting depth of commands. Our choice."""
HIDDEN_MAX = 64
"""How many words after `sudo`, `xargs` and similar are searched for a further command. Our choice."""


class Form(NamedTuple):
    """One representation of a command."""

    written: str
    """Its unquoted words, joined by blanks; expansions as written."""
    known: str
    """The same with a `HOLE` for each unknown value, and a `GAP` for each blank inside a word."""


@dataclass(frozen=True, slots=True)
class Part:
    """One command of a text: everything between two operators."""

    form: Form
    hidden: tuple[Form, ...]
    """The commands that it runs or may run: without variables set before it, without folder, after
    `sudo`.
    """


@dataclass(frozen=True, slots=True)
class Reading:
    """The commands found in a text."""

    parts: tuple[Part, ...]
    doubt: str | None
    """Why it does, or may do, more than its parts show; None if they are complete. Nothing in doubt
    is allowed.
    """
    is_guess: bool
    """Whether commands may have been missed or misread, so that no rule can be ruled out."""


def read_command(text: str) -> Reading:
    """Return the commands that a text would run, as far as they are visible."""
    if len(text) > LENGTH_MAX:
        return Reading((), f"it is longer than {LENGTH_MAX} characters", is_guess=True)
    reader = _Reader(text)
    if _STRANGE.search(text):
        reader.guess("it contains control characters or unusual whitespace")
    reader.read()
    if not reader.parts:
        reader.guess("it contains no command")
    return Reading(tuple(reader.parts), next(iter(reader.doubts), None), reader.is_guess)


_STRANGE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\xa0\u1680\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000"
                      r"\ud800-\udfff\ufdd0-\ufdef\ufeff]")  # fmt: skip
_REDIRECTION = re.compile(r"&>>?|<<<|<<-?|<>|<&|>>|>&|>\||<|>")
_PLAIN_VALUE = re.compile(
    r"\$(?:[A-Za-z_][A-Za-z0-9_]*|[0-9@*#?$!-])|\$\{(?:[A-Za-z_][A-Za-z0-9_]*|[0-9@*#?$!-])\}"
)
_BACKTICKS = re.compile(r"`((?:[^`\\]|\\.)*)`", re.DOTALL)
_C_STRING = re.compile(r"\$'([^'\\]*)'")
_RESERVED = frozenset(
    {"!", "[[", "]]", "case", "coproc", "do", "done", "elif", "else", "end", "esac", "fi", "for", "foreach",
     "function", "if", "in", "repeat", "select", "then", "time", "until", "while", "{", "}"}
)  # fmt: skip


@dataclass(slots=True)
class _Word:
    written: list[str] = field(default_factory=list)
    known: list[str] = field(default_factory=list)
    started: bool = False
    quoted: bool = False
    is_vague: bool = False
    """From here on its value is unknown."""

    def add(self, letters: str) -> None:
        self.started = True
        self.written.append(letters)
        if not self.is_vague:
            self.known += [GAP if letter in " \t\n" else letter for letter in letters]

    def hole(self, letters: str) -> None:
        self.started = True
        self.written.append(letters)
        if not self.is_vague:
            self.known.append(HOLE)

    def blur(self, letters: str) -> None:
        self.hole(letters)
        self.is_vague = True


class _Reader:
    def __init__(self, text: str, depth: int = 0) -> None:
        self.text, self.at, self.depth = text, 0, depth
        self.parts: list[Part] = []
        self.doubts: list[str] = []
        self.is_guess = False
        self._words: list[_Word] = []
        self._word = _Word()
        self._redirection = ""

    def doubt(self, why: str) -> None:
        self.doubts.append(why)

    def guess(self, why: str) -> None:
        self.doubts.append(why)
        self.is_guess = True

    def read(self, end: str = "") -> None:
        """Read commands up to an unquoted `end`, or to the end of the text."""
        while self.at < len(self.text):
            letter = self.text[self.at]
            if letter == end:
                break
            self._letter(letter)
        self._end_command()

    def _letter(self, letter: str) -> None:
        word = self._word
        if letter in "<>" or self.text.startswith("&>", self.at):
            self._redirect()
        elif letter in " \t":
            self._end_word()
            self.at += 1
        elif letter in "\n;|&":
            if self.text.startswith(";;", self.at) or self.text.startswith(";&", self.at):
                self.guess("it contains a case statement")
            self._end_command()
            self.at += 1
        elif letter in "()":
            self._bracket(letter)
        elif letter == "#" and not word.started:
            line = self.text.find("\n", self.at)
            self.at = len(self.text) if line < 0 else line
        elif letter == "\\":
            self._backslash()
        elif letter == "'":
            self._single_quotes()
        elif letter == '"':
            self._double_quotes()
        elif letter == "`":
            self._backticks()
        elif letter == "$":
            self._dollar(quoted=False)
        else:
            self._plain(letter)

    def _plain(self, letter: str) -> None:
        word, after = self._word, self.text[self.at + 1 : self.at + 2]
        if letter == "{" and after == "}":
            word.add("{}")
            self.at += 1
        elif letter == "[" and not word.started and after in ("", " ", "\t"):
            word.add(letter)
        elif letter in "*?[{":
            word.blur(letter)
        elif letter == "~" and (not word.started or word.written[-1] in ("=", ":")):
            word.hole(letter)
        elif letter == "=" and not word.started:
            word.hole(letter)  # zsh: `=name` is the path of a command
        else:
            word.add(letter)
        self.at += 1

    def _backslash(self) -> None:
        after = self.text[self.at + 1 : self.at + 2]
        if not after:
            self.guess("it ends in a backslash")
        elif after != "\n":
            self._word.add(after)
            self._word.quoted = True
        elif self.at and self.text[self.at - 1] not in " \t\n":
            self.guess(
                "a line is broken within a word"
            )  # `$` here and `(` on the next line form one `$(`
        self.at += 2

    def _single_quotes(self) -> None:
        end = self.text.find("'", self.at + 1)
        if end < 0:
            self.guess("a quote is not closed")
            end = len(self.text)
        self._word.started = self._word.quoted = True
        self._word.add(self.text[self.at + 1 : end])
        self.at = end + 1

    def _double_quotes(self) -> None:
        word = self._word
        word.started = word.quoted = True
        self.at += 1
        while self.at < len(self.text):
            letter, after = self.text[self.at], self.text[self.at + 1 : self.at + 2]
            if letter == '"':
                self.at += 1
                return
            if letter == "\\" and after and after in '$`"\\\n':
                if after == "\n" and self.text[self.at - 1] == "$":
                    self.guess("a line is broken within a word")
                word.add("" if after == "\n" else after)
                self.at += 2
            elif letter == "`":
                self._backticks()
            elif letter == "$":
                self._dollar(quoted=True)
            else:
                word.add(letter)
                self.at += 1
        self.guess("a quote is not closed")

    def _dollar(self, *, quoted: bool) -> None:
        start, word = self.at, self._word
        after = self.text[start + 1 : start + 2]
        if after == "(":
            self.doubt("it contains a command substitution: $(...)")
            self.at += 2
            self._nested()
            word.hole(self.text[start : self.at])
        elif value := _PLAIN_VALUE.match(self.text, start):
            word.hole(value.group())
            self.at = value.end()
        elif after and after in "{[":
            self.guess(f"it contains an expansion other than a plain variable: ${after}")
            word.blur("$" + after)
            self.at += 2
        elif after == "'" and not quoted:
            if string := _C_STRING.match(self.text, start):
                word.hole(string.group(1))
                word.quoted = True
                self.at = string.end()
            else:
                self.guess("it contains a string with escapes: $'...'")
                word.blur("$")
                self.at += 1
        elif after == '"' and not quoted:
            word.hole("")
            self.at += 1
        else:
            word.add("$")
            self.at += 1

    def _backticks(self) -> None:
        self.doubt("it contains a command substitution: `...`")
        found = _BACKTICKS.match(self.text, self.at)
        if not found:
            self.guess("a backtick is not closed")
            self._word.blur("`")
            self._end_command()
            self.at += 1
            return
        self._within(re.sub(r"\\([\\`$])", r"\1", found.group(1)))
        self._word.hole(found.group())
        self.at = found.end()

    def _bracket(self, letter: str) -> None:
        self.doubt("it contains brackets: a subshell, a function or a list")
        self._end_command()
        self.at += 1
        if letter == "(":
            self._nested()

    def _nested(self) -> None:
        """Read up to the closing bracket, then restore the word that contains it."""
        self.depth += 1
        if self.depth > DEPTH_MAX:
            self.guess("its commands are nested too deep")
            self.at = len(self.text)
            return
        before = self._words, self._word, self._redirection
        self._words, self._word, self._redirection = [], _Word(), ""
        self.read(")")
        self._words, self._word, self._redirection = before
        if self.at >= len(self.text):
            self.guess("a bracket is not closed")
        self.at += 1
        self.depth -= 1

    def _within(self, text: str) -> None:
        """Read a text that a command contains as one word."""
        if self.depth >= DEPTH_MAX:
            self.guess("its commands are nested too deep")
            return
        inner = _Reader(text, self.depth + 1)
        inner.read()
        self.parts += inner.parts
        self.is_guess |= inner.is_guess

    def _redirect(self) -> None:
        sign = _REDIRECTION.match(self.text, self.at)
        assert sign
        if self.text[sign.end() : sign.end() + 1] == "(":
            self.doubt("it contains a command substitution: <(...)")
            self.at = sign.end() + 1
            self._nested()
            self._word.hole(sign.group())
            return
        if re.fullmatch("[0-9]+", "".join(self._word.written)) and not self._word.quoted:
            self._word = _Word()  # the number of the redirected file descriptor
        self._end_word()
        self._redirection = sign.group()
        self.at = sign.end()

    def _end_word(self) -> None:
        word = self._word
        if not word.started:
            return
        self._word = _Word()
        if not self._redirection:
            self._words.append(word)
            return
        sign, self._redirection = self._redirection, ""
        target = "".join(word.known)
        is_copy = sign in ("<&", ">&") and re.fullmatch(r"[0-9]-?|-", target)
        if sign.startswith("<<"):
            self.guess("it contains a here-document: <<")
        elif not is_copy and target != "/dev/null":
            self.doubt("it contains a redirection")

    def _end_command(self) -> None:
        self._end_word()
        if self._redirection:
            self.doubt("a redirection has no target")
        words, self._words, self._redirection = self._words, [], ""
        if words:
            self._part([_form_of(word) for word in words])

    def _part(self, words: list[Form]) -> None:
        own, hidden = words, _named(words)
        while own and (own[0].written in _RESERVED or ASSIGNMENT.match(own[0].written)):
            if own[0].written in _RESERVED:
                self.doubt(f"it contains the shell keyword {own[0].written}")
            own = own[1:]
            if len(words) - len(own) < HIDDEN_MAX:
                hidden += [
                    own,
                    *_named(own),
                ]  # at each step, because in quotes such a word is the command
            else:
                self.guess("too many variables are set before a command")
        name = program(own[0].written) if own else ""
        start = runs_from(name, [word.written for word in own[1:]])
        if start is not None:
            self._may_run_others(name, own[start + 1 :], hidden)
        self._look_for_unseen(words, own, hidden)
        forms = dict.fromkeys(_joined(each) for each in hidden if each and each != words)
        self.parts.append(Part(_joined(words), tuple(forms)))

    def _look_for_unseen(
        self, words: list[Form], own: list[Form], hidden: list[list[Form]]
    ) -> None:
        """Mark commands from other sources as doubtful; add the commands that a variable or an alias contains."""
        before = [word.written for word in words[: len(words) - len(own)]]
        setting = [word for word in before if ASSIGNMENT.match(word)]
        rest = [word.written for word in own]
        if why := unseen([*setting, *rest]):
            self.guess(why)
        for word in [*setting, *rest][:HIDDEN_MAX]:
            commands = commands_in_variable(word)
            if rest[:1] == ["alias"]:
                commands = word.partition("=")[2]
            if commands:
                hidden += [[form] for form in self._forms_in(commands)]

    def _may_run_others(self, name: str, rest: list[Form], hidden: list[list[Form]]) -> None:
        if name in SEARCHERS and any(
            HOLE in word.known or _ACTS.match(word.written) for word in rest
        ):
            self.doubt(f"{name} may do more than search here")
        if len(rest) > HIDDEN_MAX:
            self.guess(f"{name} has too many words")
        for at in range(min(len(rest), HIDDEN_MAX)):
            hidden += [rest[at:], *_named(rest[at:])]
        for word in rest[:HIDDEN_MAX]:
            if re.search(r"[\s;&|$`]", word.written):
                hidden += [[form] for form in self._forms_in(word.written)]

    def _forms_in(self, text: str) -> list[Form]:
        """Return every form of every command in a word that may be executed as commands."""
        if self.depth >= DEPTH_MAX:
            self.guess("its commands are nested too deep")
            return []
        inner = _Reader(text, self.depth + 1)
        inner.read()
        self.is_guess |= inner.is_guess
        return [form for part in inner.parts for form in (part.form, *part.hidden)]


_ACTS = re.compile(r"-(?:exec|ok|x\b|X\b|delete|fprint|fls)|--(?:exec|pre\b|hostname-bin)")
"""Options that make `find`, `fd` and `rg` do more than search: run a command, delete, write."""


def _form_of(word: _Word) -> Form:
    return Form("".join(word.written), "".join(word.known))


def _joined(words: list[Form]) -> Form:
    return Form(" ".join(word.written for word in words), " ".join(word.known for word in words))


def _named(words: list[Form]) -> list[list[Form]]:
    """Return the command with its bare name, if it is written with a folder, a version or capitals."""
    if not words or HOLE in words[0].known:
        return []
    name = program(words[0].written)
    short = words[0].written.rpartition("/")[2].lower()
    names = {name, short} - {words[0].written, ""}
    return [[Form(each, each), *words[1:]] for each in sorted(names)]
