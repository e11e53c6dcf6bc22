"""Errors a user can act on, each with its exit code.

Every message is one sentence that names the file, the key, the value and what was expected. The
command line prints that sentence and exits with ``exit_code``; a traceback means a bug of ours.

==== ==================== ==========================================================
code class                meaning
==== ==================== ==========================================================
2    ``UsageError``       unknown paper, profile, key or value; wrong type
3    ``ResourceError``    a model, data set, engine, device, or disk space is missing
4    ``RunError``         a cell, notebook or engine failed while running
5    ``VerificationError`` a digest, verdict or comparison does not hold
130  (KeyboardInterrupt)  interrupted by the user; finished work is kept
==== ==================== ==========================================================
"""

from collections.abc import Iterable
from difflib import get_close_matches


class ReplicataError(Exception):
    """Base of all errors that end in one sentence instead of a traceback."""

    exit_code = 1


class UsageError(ReplicataError):
    """The user asked for something that does not exist or has the wrong type."""

    exit_code = 2


class ResourceError(ReplicataError):
    """Something the run needs is not on this machine."""

    exit_code = 3


class RunError(ReplicataError):
    """A cell, a notebook or an engine failed while running."""

    exit_code = 4


class VerificationError(ReplicataError):
    """A digest, a verdict or a comparison does not hold."""

    exit_code = 5


class NotRun(Exception):
    """Raised by a paper's ``run`` when a cell cannot be run here (for example, no vLLM).

    The cell is recorded as not run, and every claim that needs it gets the verdict
    ``not run: <reason>``. It is no failure of the pipeline, and never a pass.
    """


def nearest(word: str, known: Iterable[str]) -> str:
    """Return ``" (did you mean 'x'?)"`` for the closest known word, or an empty string."""
    matches = get_close_matches(word, list(known), n=1)
    return f" (did you mean {matches[0]!r}?)" if matches else ""
