"""Mutation testing: change the source in random places, one at a time, and print which changes the tests detect.

`make mutants` runs it; the checkout must be clean, because files are changed in place and restored. The first run
measures which tests execute which lines, in `.mutants/`; delete that directory after a change of the source. Each
mutant is tried with the tests that execute its line, until one fails. Tests that need recorded traffic from outside
the checkout are left out.
"""

from __future__ import annotations

import argparse
import ast
import random
import re
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
WORK = ROOT / ".mutants"
PACKAGES = ("agentobs/recording", "agentobs/records", "agentobs/store", "replay")
TESTS = ("tests/recording", "tests/records", "tests/store", "tests/replay", "tests/provider")
"""The tests that are measured and run. Lines that only other tests execute count as not executed."""
SECONDS_MAX = 900
"""The timeout of the tests of a mutant; a mutant that exceeds it counts as detected. [seconds]"""
TESTS_MAX = 150
"""The maximum number of tests for one mutant, drawn at random."""

COMPARE: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip
BINARY: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.BitOr: ast.BitAnd,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Mutant:
    """A change of a source file."""

    path: str
    line: int
    before: str
    after: str
    start: int
    """The offset in bytes of the changed part."""
    end: int

    def text(self) -> bytes:
        """Return the changed file."""
        source = (ROOT / self.path).read_bytes()
        return source[: self.start] + self.after.encode() + source[self.end :]


def mutants_of(path: Path) -> Iterator[Mutant]:
    """Yield the mutants of a file: changed comparisons, conditions, arithmetic and numbers, and removed calls."""
    source = path.read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def change(node: ast.expr | ast.stmt, after: str) -> Mutant:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        name = path.relative_to(ROOT).as_posix()
        return Mutant(name, node.lineno, source[start:end].decode(), after, start, end)

    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for node in (each for statement in function.body for each in ast.walk(statement)):
            match node:
                case ast.Compare(left=left, ops=[operator], comparators=[right]):
                    yield change(
                        node,
                        f"({ast.unparse(left)} {COMPARE[type(operator)]} {ast.unparse(right)})",
                    )
                case ast.BoolOp(op=operator, values=[first, *rest]):
                    word = "or" if isinstance(operator, ast.And) else "and"
                    joined = f" {word} ".join(f"({ast.unparse(value)})" for value in (first, *rest))
                    yield change(node, f"({joined})")
                case ast.UnaryOp(op=ast.Not(), operand=operand):
                    yield change(node, f"bool({ast.unparse(operand)})")
                case ast.BinOp(left=left, op=operator, right=right) if type(operator) in BINARY:
                    changed = ast.BinOp(left, BINARY[type(operator)](), right)
                    yield change(node, f"({ast.unparse(changed)})")
                case ast.Constant(value=int() as value) if type(value) is int:
                    yield change(node, f"{value + 1}")
                case ast.Constant(value=bool() as value):
                    yield change(node, str(not value))
                case ast.IfExp(test=test) | ast.If(test=test) | ast.While(test=test):
                    yield change(test, f"(not ({ast.unparse(test)}))")
                case ast.Expr(value=ast.Call() | ast.Await()):
                    yield change(node, "pass")
                case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
                    yield change(value, "None")
                case _:
                    pass


def chosen(count: int, seed: int) -> list[Mutant]:
    """Return mutants drawn at random, the same number for each package."""
    drawn: list[Mutant] = []
    generator = random.Random(seed)
    for number, package in enumerate(PACKAGES):
        found = [m for path in sorted((ROOT / package).rglob("*.py")) for m in mutants_of(path)]
        size = (count + number) // len(PACKAGES)
        drawn += generator.sample(found, size)
    return drawn


def measure() -> None:
    """Run the tests once, and record which of them execute which lines."""
    WORK.mkdir(exist_ok=True)
    settings = WORK / "coveragerc"
    settings.write_text(
        f"[run]\nparallel = true\npatch =\n  subprocess\n  _exit\ndynamic_context = test_function\n"
        f"data_file = {WORK / 'coverage'}\nsource =\n"
        + "".join(f"  {ROOT / package}\n" for package in PACKAGES)
    )
    command = [sys.executable, "-m", "coverage", "run", f"--rcfile={settings}", "-m", "pytest"]
    options = ["-n", "2", "--dist", "loadgroup", "-q", "-p", "no:cacheprovider", *TESTS]
    with (WORK / "measure.log").open("wb") as log:
        subprocess.run([*command, *options], cwd=ROOT, stdout=log, stderr=log, check=False)
    combine = [sys.executable, "-m", "coverage", "combine", f"--rcfile={settings}", "--quiet"]
    subprocess.run(combine, cwd=ROOT, check=True)


class Coverage:
    """The tests that execute each line."""

    def __init__(self) -> None:
        from coverage.numbits import numbits_to_nums

        self._line_numbers = numbits_to_nums
        self._database = sqlite3.connect(WORK / "coverage")
        log = (WORK / "measure.log").read_text()
        self._failing = set(re.findall(r"^(?:FAILED|ERROR) ([^\s@\[]+)", log, re.MULTILINE))
        """Tests that fail without a change."""

    def tests(self, path: str, lines: range) -> tuple[list[str], bool]:
        """Return the node IDs of tests that execute one of these lines, and whether a child process executes one."""
        query = """SELECT context.context, line_bits.numbits FROM line_bits JOIN file ON file.id = file_id
            JOIN context ON context.id = context_id WHERE file.path = ?"""
        found, is_elsewhere = set(), False
        for context, bits in self._database.execute(query, (str(ROOT / path),)):
            if set(lines) & set(self._line_numbers(bits)):
                if node := node_of(context):
                    found.add(node)
                else:
                    is_elsewhere = True
        return sorted(found - self._failing), is_elsewhere


def node_of(context: str) -> str | None:
    """Return the node ID of a test by the name of its function; None if it is not a test."""
    parts = context.split(".") if context else []
    for length in range(len(parts), 0, -1):
        path = Path(*parts[:length]).with_suffix(".py")
        if (ROOT / path).is_file() and len(parts) > length:
            return f"{path.as_posix()}::{'::'.join(parts[length:])}"
    return None


def lines_of(mutant: Mutant) -> range:
    return range(mutant.line, mutant.line + mutant.before.count("\n") + 1)


def verdict_of(mutant: Mutant, tests: list[str]) -> tuple[str, str]:
    """Run tests with a mutant; return the verdict, and the test that detected it."""
    path = ROOT / mutant.path
    original, changed = path.read_bytes(), mutant.text()
    path.write_bytes(changed)
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
    try:
        done = subprocess.run(
            [*command, "--timeout", "120", *tests],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "detected", "does not end"
    finally:
        path.write_bytes(original)
    if done.returncode in (0, 5):
        return "survived", ""
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    return "detected", failed[1] if failed else "pytest itself fails"


def main() -> None:
    """Try the mutants, and print a table row for each."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--count", type=int, default=60, help="number of mutants")
    parser.add_argument("--seed", type=int, default=1, help="seed of the random choice")
    options = parser.parse_args()
    status = ["git", "status", "--porcelain", "--untracked-files=no"]
    if subprocess.run(status, cwd=ROOT, capture_output=True, check=True).stdout:
        sys.exit(
            "The checkout has uncommitted changes. Commit them: mutants change files in place."
        )
    if not (WORK / "coverage").exists():
        measure()
    coverage, verdicts = Coverage(), Counter[str]()
    print("| place | before | after | verdict | by |\n| --- | --- | --- | --- | --- |")
    for number, mutant in enumerate(chosen(options.count, options.seed), 1):
        tests, is_elsewhere = coverage.tests(mutant.path, lines_of(mutant))
        if len(tests) > TESTS_MAX:
            tests = random.Random(number).sample(tests, TESTS_MAX)
        verdict, by = ("executed in child processes only" if is_elsewhere else "not executed"), ""
        if tests:
            verdict, by = verdict_of(mutant, tests)
        verdicts[verdict] += 1
        before, after = (" ".join(each.split())[:80] for each in (mutant.before, mutant.after))
        place = f"{mutant.path}:{mutant.line}"
        print(f"| {place} | `{before}` | `{after}` | {verdict} | {by} |", flush=True)
    print("\n" + ", ".join(f"{verdict}: {count}" for verdict, count in verdicts.most_common()))


if __name__ == "__main__":
    main()
