"""Shim files: the directory with one shim for each observed program.

    path/sh, path/bash ...  in front of PATH
    shell/bash              the value of SHELL
    missed/1234             a command that could not be reported, by its process
    socket                  the socket of the recorder

A shim is a Perl program without modules, because it starts in 1 ms; Python needs about 10 ms. It is the parent of the
program, because only a parent learns the exit code.
"""

from __future__ import annotations

import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from agentobs.errors import UsageError

SHELLS = ("sh", "bash", "zsh", "dash", "ksh", "fish")
"""The programs that are always observed, if they exist."""
KEPT_BYTES = 32 * 1024
"""How much of the start and of the end of each stream is kept. Our choice: more than a model usually sees."""
START_SECONDS = 10
"""The longest wait for the shim that is run as a check. Our choice."""
_CALLS = {"x86_64": (228, 157), "aarch64": (113, 167), "riscv64": (113, 167), "ppc64le": (246, 171)}
"""The numbers of clock_gettime and prctl on Linux. Source: the kernel's tables of system calls, 2026-11."""
_FIONREAD = {"linux": 0x541B, "darwin": 0x4004667F}
"""The request of ioctl for the number of readable bytes. Source: asm-generic/ioctls.h; sys/filio.h of macOS."""


@dataclass(frozen=True, slots=True)
class ShimFiles:
    """A directory with shims."""

    directory: Path
    programs: Mapping[str, str]
    """The program behind each shim when the directory was written."""

    @property
    def socket(self) -> Path:
        """The socket that receives the reports."""
        return self.directory / "socket"

    def put_into(self, environment: dict[str, str]) -> None:
        """Change PATH and SHELL, so that they lead to the shims, and suppress Perl's warning about locales."""
        path = environment.get("PATH", os.defpath)
        environment["PATH"] = f"{self.directory / 'path'}{os.pathsep}{path}"
        environment.setdefault("PERL_BADLANG", "0")
        shell = Path(environment.get("SHELL", ""))
        if shell.name and (self.directory / "shell" / shell.name).exists():
            environment["SHELL"] = str(self.directory / "shell" / shell.name)

    def missed(self) -> int:
        """Return how many commands could not be reported, because the recorder did not answer in time."""
        return len(list((self.directory / "missed").glob("*")))

    def remove(self) -> None:
        """Delete the directory."""
        shutil.rmtree(self.directory, ignore_errors=True)


def write_shims(
    environment: Mapping[str, str], further: Iterable[str] = (), *, keeps_content: bool = True
) -> ShimFiles:
    """Write shims for the shells and for further programs.

    Args:
        environment: the environment of the observed command; its PATH leads to the programs.
        further: the names of further programs.
        keeps_content: whether the start and the end of each stream are kept.

    Raises:
        UsageError: there is no Perl, PATH leads to none of the programs, or a name contains a slash.
        OSError: the shims cannot be written; none is left.
    """
    path = environment.get("PATH", os.defpath)
    perl = shutil.which("perl", path=os.pathsep.join((path, os.defpath)))
    if perl is None:
        raise UsageError(
            "commands are observed with Perl, which is not installed",
            where="effects: commands",
            todo="Install Perl 5.10 or later (Alpine: `apk add perl`), or observe other effects",
        )
    for name in further:
        if os.sep in name or name in ("", ".", ".."):
            raise UsageError(
                f"{name[:80]!r} is not the name of a program",
                where="AGENTOBS_COMMANDS",
                todo="List names without directories, separated by commas, such as git,npm",
            )
    names = dict.fromkeys((*SHELLS, *further))
    found = {name: shutil.which(name, path=path) for name in names}
    programs = {name: file for name, file in found.items() if file is not None}
    shell = environment.get("SHELL", "")
    has_shell = Path(shell).name in SHELLS and os.access(shell, os.X_OK)
    if not programs and not has_shell:
        raise UsageError(
            "PATH leads to no shell, so no command would be observed",
            where="effects: commands",
            todo="Add the directory of a shell to PATH, list programs in AGENTOBS_COMMANDS, or observe other effects",
        )
    directory = Path(tempfile.mkdtemp(prefix="agentobs-"))
    files = ShimFiles(directory, programs)
    try:
        text = _head(perl, directory, programs, shell, KEPT_BYTES if keeps_content else 0) + (
            Path(__file__).with_name("shim.pl").read_text("utf-8")
        )
        for folder in ("path", "shell", "missed"):
            (directory / folder).mkdir(mode=0o700)
        for name in programs:
            _write_program(directory / "path" / name, text)
        if has_shell:
            _write_program(directory / "shell" / Path(shell).name, text)
    except OSError:
        files.remove()
        raise
    return files


def check_shims(files: ShimFiles, environment: Mapping[str, str]) -> None:
    """Run a shim once, so that a problem appears before the observed command starts.

    Raises:
        UsageError: the shim does not work.
    """
    name = next((each for each in SHELLS if each in files.programs), None)
    if name is None:
        return  # nothing is observed in a PATH without a shell
    command = [str(files.directory / "path" / name), "-c", "exit 7"]
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=START_SECONDS,
        )
        problem = done.stderr.decode("utf-8", "replace")
        is_working = done.returncode == 7
    except (OSError, subprocess.SubprocessError) as error:
        problem, is_working = str(error), False
    for each in (files.directory / "missed").glob("*"):
        each.unlink()  # no receiver listens yet
    if not is_working:
        raise UsageError(
            f"the program that observes commands does not work: {problem.strip()[:200]}",
            where=command[0],
            todo="Set TMPDIR to a directory from which programs can be executed, and check `perl -v`",
        )


def _write_program(path: Path, text: str) -> None:
    path.write_text(text, "utf-8")
    path.chmod(0o700)


def _head(perl: str, directory: Path, programs: Mapping[str, str], shell: str, keep: int) -> str:
    """Return the first lines of a shim, with what depends on the machine and on the directory."""
    clock, prctl = (0, 0)
    if sys.platform == "linux" and sys.maxsize > 2**32:
        clock, prctl = _CALLS.get(platform.machine(), (0, 0))
    names = {each.value: each.name.removeprefix("SIG") for each in signal.Signals}
    signals = " ".join(names.get(number, "-") for number in range(max(names) + 1))
    known = ", ".join(f"{_quoted(name)} => {_quoted(file)}" for name, file in programs.items())
    return (
        # Perl reads settings from the environment of the command, such as stream layers, warnings and strictness.
        f"#!{perl} -C0\n"
        'BEGIN { $^H = 0; ${^WARNING_BITS} = ""; $^W = 0; ${^OPEN} = ":raw\\0:raw" }\n'
        f"$bin = {_quoted(str(directory))}; $socket = {_quoted(str(directory / 'socket'))};\n"
        f"%known = ({known}); $shell = {_quoted(shell)}; $signals = {_quoted(signals)};\n"
        f"$clock = {clock}; $prctl = {prctl}; $fionread = {_FIONREAD.get(sys.platform, 0x541B)}; "
        f"$keep = {keep};\n"
    )


def _quoted(text: str) -> str:
    """Return a text as a literal of Perl."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


__all__ = ["KEPT_BYTES", "SHELLS", "ShimFiles", "check_shims", "write_shims"]
