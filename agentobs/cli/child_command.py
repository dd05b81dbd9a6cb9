"""The process in which the dashboard runs a command. It ends when the dashboard ends, even if the dashboard is killed.

The dashboard keeps the other end of the standard input open. When it is closed, the command is interrupted as by
Ctrl-C, and its process group is killed if it does not end. The command itself has an empty standard input.
"""

from __future__ import annotations

import _thread
import os
import signal
import time

from agentobs.cli import main

GRACE_SECONDS = 5.0
"""How long an interrupted command may take to end. Our choice."""
_sleep = time.sleep
"""The real function: a replay in this process replaces `time.sleep`."""


def end_with_parent() -> None:
    """Interrupt this process when its standard input is closed."""
    pipe = os.dup(0)
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    # Not a `threading.Thread`, because a replay counts threads as jobs of the program.
    _thread.start_new_thread(_wait_for_end, (pipe,))


def _wait_for_end(pipe: int) -> None:
    while os.read(pipe, 1):
        pass
    os.kill(os.getpid(), signal.SIGINT)
    _sleep(GRACE_SECONDS)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    end_with_parent()
    main()
