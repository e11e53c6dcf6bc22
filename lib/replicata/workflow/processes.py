"""Processes that do not outlive the one that started them."""

import ctypes
import os
import signal
import sys

import psutil

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int | None = None) -> None:
    """Ask the kernel to kill this process as soon as its parent is gone, even by ``kill -9``.

    Linux only; elsewhere it does nothing. Processes started later do not inherit it.

    Parameters
    ----------
    parent
        The parent's process id as it was when this process was started. If it is another by now,
        the parent went before the kernel was asked, and this process ends at once.
    """
    if not sys.platform.startswith("linux"):
        return
    expected = os.getppid() if parent is None else parent
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != expected:
        os._exit(1)  # nobody is left to tell


def kill_tree(pid: int) -> None:
    """Kill a process and all its descendants at once; one that is gone already is no error."""
    try:
        top = psutil.Process(pid)
        family = [top, *top.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for process in family:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(family, timeout=10)


def terminate_as_interrupt() -> None:
    """Let SIGTERM end this process the way Ctrl-C does: by KeyboardInterrupt."""

    def interrupt(_signal: int, _frame: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
