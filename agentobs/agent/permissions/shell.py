"""Find the commands in a shell text, as far as possible without running it.

Permissions do not need a syntax tree. They need a list of all commands that might run, and whether the list is
complete. This reader handles words, quotes, operators and expansions, and reports any doubt. It does not implement the
grammar of a specific shell: if shells would interpret a text differently, the result is in doubt.

Alternatives: `shlex` discards quotes, so `echo ";"` looks like two commands. `bashlex` (0.18, 2023) is under the GPL
and raises exceptions for `case` and arithmetic. tree-sitter returns a tree even if the correct result is "unknown".
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

from agentobs.agent.permissions.globs import GAP, HOLE
from agentobs.agent.permissions.hidden_commands import commands_in_variable, hidden_command_reason
from agentobs.agent.permissions.interpreters import ASSIGNMENT, SEARCHERS, command_start, program

LENGTH_MAX = 16_384
"""Maximum length of a text, in characters; longer texts are not parsed. Our choice."""
DEPTH_MAX = 8
"""Maximum nesting depth of commands. Our choice."""
HIDDEN_WORDS_MAX = 64
"""The maximum number of words after `sudo`, `xargs` and similar commands that are searched for another command. Our
choice.
"""


class CommandForm(NamedTuple):
    """One way to write a command."""

    written: str
    """The unquoted words, joined by blanks, with expansions as written."""
    known: str
    """The same text with a `HOLE` for each unknown value, and a `GAP` for each blank inside a word."""


@dataclass(frozen=True, slots=True)
class CommandPart:
    """One command of a text, which is all text between two operators."""

    form: CommandForm
    hidden: tuple[CommandForm, ...]
    """Other forms of the commands that this part runs or may run: a command without the variables that are set before
    it, without its directory, or without a wrapper such as `sudo` before it.
    """


@dataclass(frozen=True, slots=True)
class ParsedCommands:
    """The commands found in a text."""

    parts: tuple[CommandPart, ...]
    doubt: str | None
    """Why the text may do more than its parts show; None if the parts are complete. If it is set, no rule with a
    pattern can allow the text.
    """
    is_guess: bool
    """Whether commands may have been missed or misread. Any deny or ask rule may then match."""


def read_command(text: str) -> ParsedCommands:
    """Return the commands that a text would run, if its words show them."""
    if len(text) > LENGTH_MAX:
        return ParsedCommands((), f"it is longer than {LENGTH_MAX} characters", is_guess=True)
    reader = _Reader(text)
    if _UNUSUAL.search(text):
        reader.guess("it contains control characters or unusual whitespace")
    reader.read()
    if not reader.parts:
        reader.guess("it contains no command")
    return ParsedCommands(tuple(reader.parts), next(iter(reader.doubts), None), reader.is_guess)


_UNUSUAL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\xa0\u1680\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000"
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
    is_unknown: bool = False
    """Whether the rest of the word is unknown."""

    def add(self, letters: str) -> None:
        self.started = True
        self.written.append(letters)
        if not self.is_unknown:
            self.known += [GAP if letter in " \t\n" else letter for letter in letters]

    def add_hole(self, letters: str) -> None:
        self.started = True
        self.written.append(letters)
        if not self.is_unknown:
            self.known.append(HOLE)

    def add_unknown(self, letters: str) -> None:
        self.add_hole(letters)
        self.is_unknown = True


class _Reader:
    def __init__(self, text: str, depth: int = 0) -> None:
        self.text, self.position, self.depth = text, 0, depth
        self.parts: list[CommandPart] = []
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
        while self.position < len(self.text):
            letter = self.text[self.position]
            if letter == end:
                break
            self._letter(letter)
        self._end_command()

    def _letter(self, letter: str) -> None:
        word = self._word
        if letter in "<>" or self.text.startswith("&>", self.position):
            self._redirect()
        elif letter in " \t":
            self._end_word()
            self.position += 1
        elif letter in "\n;|&":
            if self.text.startswith(";;", self.position) or self.text.startswith(
                ";&", self.position
            ):
                self.guess("it contains a case statement")
            self._end_command()
            self.position += 1
        elif letter in "()":
            self._bracket(letter)
        elif letter == "#" and not word.started:
            line = self.text.find("\n", self.position)
            self.position = len(self.text) if line < 0 else line
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
        word, after = self._word, self.text[self.position + 1 : self.position + 2]
        if letter == "{" and after == "}":
            word.add("{}")
            self.position += 1
        elif letter == "[" and not word.started and after in ("", " ", "\t"):
            word.add(letter)
        elif letter in "*?[{":
            word.add_unknown(letter)
        elif letter == "~" and (not word.started or word.written[-1] in ("=", ":")):
            word.add_hole(letter)
        elif letter == "=" and not word.started:
            word.add_hole(letter)  # zsh: `=name` is the path of a command
        else:
            word.add(letter)
        self.position += 1

    def _backslash(self) -> None:
        after = self.text[self.position + 1 : self.position + 2]
        if not after:
            self.guess("it ends in a backslash")
        elif after != "\n":
            self._word.add(after)
            self._word.quoted = True
        elif self.position and self.text[self.position - 1] not in " \t\n":
            self.guess(
                "a line is broken within a word"
            )  # `$` here and `(` on the next line form one `$(`
        self.position += 2

    def _single_quotes(self) -> None:
        end = self.text.find("'", self.position + 1)
        if end < 0:
            self.guess("a quote is not closed")
            end = len(self.text)
        self._word.started = self._word.quoted = True
        self._word.add(self.text[self.position + 1 : end])
        self.position = end + 1

    def _double_quotes(self) -> None:
        word = self._word
        word.started = word.quoted = True
        self.position += 1
        while self.position < len(self.text):
            letter, after = (
                self.text[self.position],
                self.text[self.position + 1 : self.position + 2],
            )
            if letter == '"':
                self.position += 1
                return
            if letter == "\\" and after and after in '$`"\\\n':
                if after == "\n" and self.text[self.position - 1] == "$":
                    self.guess("a line is broken within a word")
                word.add("" if after == "\n" else after)
                self.position += 2
            elif letter == "`":
                self._backticks()
            elif letter == "$":
                self._dollar(quoted=True)
            else:
                word.add(letter)
                self.position += 1
        self.guess("a quote is not closed")

    def _dollar(self, *, quoted: bool) -> None:
        start, word = self.position, self._word
        after = self.text[start + 1 : start + 2]
        if after == "(":
            self.doubt("it contains a command substitution: $(...)")
            self.position += 2
            self._nested()
            word.add_hole(self.text[start : self.position])
        elif value := _PLAIN_VALUE.match(self.text, start):
            word.add_hole(value.group())
            self.position = value.end()
        elif after and after in "{[":
            self.guess(f"it contains an expansion other than a plain variable: ${after}")
            word.add_unknown("$" + after)
            self.position += 2
        elif after == "'" and not quoted:
            if string := _C_STRING.match(self.text, start):
                word.add_hole(string.group(1))
                word.quoted = True
                self.position = string.end()
            else:
                self.guess("it contains a string with escapes: $'...'")
                word.add_unknown("$")
                self.position += 1
        elif after == '"' and not quoted:
            word.add_hole("")
            self.position += 1
        else:
            word.add("$")
            self.position += 1

    def _backticks(self) -> None:
        self.doubt("it contains a command substitution: `...`")
        found = _BACKTICKS.match(self.text, self.position)
        if not found:
            self.guess("a backtick is not closed")
            self._word.add_unknown("`")
            self._end_command()
            self.position += 1
            return
        self._read_inner(re.sub(r"\\([\\`$])", r"\1", found.group(1)))
        self._word.add_hole(found.group())
        self.position = found.end()

    def _bracket(self, letter: str) -> None:
        self.doubt("it contains brackets: a subshell, a function or a list")
        self._end_command()
        self.position += 1
        if letter == "(":
            self._nested()

    def _nested(self) -> None:
        """Read up to the closing parenthesis, then restore the word that contains it."""
        self.depth += 1
        if self.depth > DEPTH_MAX:
            self.guess("its commands are nested too deep")
            self.position = len(self.text)
            return
        before = self._words, self._word, self._redirection
        self._words, self._word, self._redirection = [], _Word(), ""
        self.read(")")
        self._words, self._word, self._redirection = before
        if self.position >= len(self.text):
            self.guess("a parenthesis is not closed")
        self.position += 1
        self.depth -= 1

    def _read_inner(self, text: str) -> None:
        """Read the commands in a part of a word, such as the text between backticks."""
        if self.depth >= DEPTH_MAX:
            self.guess("its commands are nested too deep")
            return
        inner = _Reader(text, self.depth + 1)
        inner.read()
        self.parts += inner.parts
        self.is_guess |= inner.is_guess

    def _redirect(self) -> None:
        sign = _REDIRECTION.match(self.text, self.position)
        assert sign
        if self.text[sign.end() : sign.end() + 1] == "(":
            self.doubt("it contains a command substitution: <(...)")
            self.position = sign.end() + 1
            self._nested()
            self._word.add_hole(sign.group())
            return
        if re.fullmatch("[0-9]+", "".join(self._word.written)) and not self._word.quoted:
            self._word = _Word()  # the number of the redirected file descriptor
        self._end_word()
        self._redirection = sign.group()
        self.position = sign.end()

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

    def _part(self, words: list[CommandForm]) -> None:
        command_words, hidden = words, _with_bare_names(words)
        while command_words and (
            command_words[0].written in _RESERVED or ASSIGNMENT.match(command_words[0].written)
        ):
            if command_words[0].written in _RESERVED:
                self.doubt(f"it contains the shell keyword {command_words[0].written}")
            command_words = command_words[1:]
            if len(words) - len(command_words) < HIDDEN_WORDS_MAX:
                hidden += [
                    command_words,
                    *_with_bare_names(command_words),
                ]  # after each removed word, because the next word is the command if it is quoted
            else:
                self.guess("too many variables are set before a command")
        name = program(command_words[0].written) if command_words else ""
        start = command_start(name, [word.written for word in command_words[1:]])
        if start is not None:
            self._find_run_commands(name, command_words[start + 1 :], hidden)
        self._find_hidden_commands(words, command_words, hidden)
        forms = dict.fromkeys(_joined(each) for each in hidden if each and each != words)
        self.parts.append(CommandPart(_joined(words), tuple(forms)))

    def _find_hidden_commands(
        self,
        words: list[CommandForm],
        command_words: list[CommandForm],
        hidden: list[list[CommandForm]],
    ) -> None:
        """Report a command that may run commands from its input; add the commands in variables and aliases."""
        before = [word.written for word in words[: len(words) - len(command_words)]]
        assignments = [word for word in before if ASSIGNMENT.match(word)]
        words_after = [word.written for word in command_words]
        if why := hidden_command_reason([*assignments, *words_after]):
            self.guess(why)
        for word in [*assignments, *words_after][:HIDDEN_WORDS_MAX]:
            commands = commands_in_variable(word)
            if words_after[:1] == ["alias"]:
                commands = word.partition("=")[2]
            if commands:
                hidden += [[form] for form in self._forms_in(commands)]

    def _find_run_commands(
        self, name: str, words_after: list[CommandForm], hidden: list[list[CommandForm]]
    ) -> None:
        if name in SEARCHERS and any(
            HOLE in word.known or _ACTION_OPTION.match(word.written) for word in words_after
        ):
            self.doubt(f"{name} may do more than search here")
        if len(words_after) > HIDDEN_WORDS_MAX:
            self.guess(f"the command {name} has too many arguments to check")
        for position in range(min(len(words_after), HIDDEN_WORDS_MAX)):
            hidden += [words_after[position:], *_with_bare_names(words_after[position:])]
        for word in words_after[:HIDDEN_WORDS_MAX]:
            if re.search(r"[\s;&|$`]", word.written):
                hidden += [[form] for form in self._forms_in(word.written)]

    def _forms_in(self, text: str) -> list[CommandForm]:
        """Return every form of every command in a text that may be executed as shell commands."""
        if self.depth >= DEPTH_MAX:
            self.guess("its commands are nested too deep")
            return []
        inner = _Reader(text, self.depth + 1)
        inner.read()
        self.is_guess |= inner.is_guess
        return [form for part in inner.parts for form in (part.form, *part.hidden)]


_ACTION_OPTION = re.compile(r"-(?:exec|ok|x\b|X\b|delete|fprint|fls)|--(?:exec|pre\b|hostname-bin)")
"""Options that make `find`, `fd` and `rg` do more than search: run a command, delete or write files."""


def _form_of(word: _Word) -> CommandForm:
    return CommandForm("".join(word.written), "".join(word.known))


def _joined(words: list[CommandForm]) -> CommandForm:
    return CommandForm(
        " ".join(word.written for word in words), " ".join(word.known for word in words)
    )


def _with_bare_names(words: list[CommandForm]) -> list[list[CommandForm]]:
    """Return the command with its bare names, if it is written with a directory, a version or capitals."""
    if not words or HOLE in words[0].known:
        return []
    name = program(words[0].written)
    short = words[0].written.rpartition("/")[2].lower()
    names = {name, short} - {words[0].written, ""}
    return [[CommandForm(each, each), *words[1:]] for each in sorted(names)]
