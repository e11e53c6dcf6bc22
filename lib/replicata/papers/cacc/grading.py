"""Reading and grading answers by math-verify, in a process that can be killed.

math-verify's own timeout needs the main thread and a signal; here the worker is killed and started
again, the text counts as unreadable, and the timeout is counted.
"""

import json
import re
import selectors
import subprocess
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from replicata.errors import RunError
from replicata.papers.cacc.letters import claimed_letters, read_letter
from replicata.papers.cacc.pool import Asked
from replicata.workflow.layout import repo_root

#: math-verify would read the last number: one that the text denies, or a sign in words, misleads.
_DENIED = re.compile(r"\b(?:not|isn't|never)\s+-?\$?\d[\d,.]*", re.IGNORECASE)
_MINUS = re.compile(r"\b(?:minus|negative)\s+(?=\d)", re.IGNORECASE)
#: 100 % is the number 100 for the questions here; math-verify would say 1.
_PERCENT = re.compile(r"(?<=\d)\s*\\?%")

#: The left side of a computation that was carried out: what counts is its result.
_COMPUTED = re.compile(
    r"(?<![\w.])-?\d[\d,.]*(?:\s*(?:[-+*/\u00d7]|\\cdot|\\times)\s*-?\d[\d,.]*)+\s*=\s*(?=-?\d)"
)

#: Seconds for the worker's imports, generous since other jobs may share the machine.
_START_S = 60.0


class Grader:
    """Reads answers (without gold) and grades them (with gold).

    Parameters
    ----------
    timeout_s
        Seconds after which a request is given up and the worker killed.

    Attributes
    ----------
    timeouts
        Requests given up so far: they took too long, or the worker ended on them.
    """

    def __init__(self, timeout_s: float = 5.0) -> None:
        self.timeouts = 0
        self._timeout = timeout_s
        self._worker: Any = None
        self._keys: dict[str, str | None] = {}
        self._texts: dict[str, str] = {}

    def parse_keys(self, texts: Sequence[str]) -> list[str | None]:
        """Return the canonical key of each text's final value; None where there is none.

        Two unreadable answers are two Nones, which nothing treats as equal.
        """
        for text in dict.fromkeys(texts):
            if text not in self._keys:
                prepared = _prepared(text)
                key = self._keys[text] = self._ask({"do": "key", "text": prepared})
                if key is not None:
                    self._texts[key] = prepared
        return [self._keys[text] for text in texts]

    def read(self, asked: Asked, text: str) -> str | None:
        """Return the final answer of a text in the question's mode, liberally read.

        A letter counts as such; where there is none, the option whose text or value the text ends
        with, if exactly one option matches. Several letters are no answer.
        """
        if asked.mode != "letter":
            return self.parse_keys([text])[0]
        if len(set(claimed_letters(text))) > 1:
            return None
        letter = read_letter(text, len(asked.options))
        return letter or self._option(asked, text)

    def _option(self, asked: Asked, text: str) -> str | None:
        from replicata.papers.cacc.tasks import LETTERS

        last = text.strip().splitlines()[-1].strip(" .*$`") if text.strip() else ""
        same = [i for i, o in enumerate(asked.options) if o.casefold() == last.casefold()]
        if len(same) != 1:
            key = self.parse_keys([text])[0]
            keys = self.parse_keys(asked.options)
            same = [i for i, k in enumerate(keys) if key is not None and k == key]
        return LETTERS[same[0]] if len(same) == 1 else None

    def equal(self, asked: Asked, gold: str, answers: Sequence[str]) -> list[bool]:
        """Return whether each answer key is the gold answer."""
        if asked.mode == "letter":
            return [answer == gold for answer in answers]
        target = _prepared(marked(asked, gold))
        return [
            bool(
                self._ask(
                    {
                        "do": "equal",
                        "gold": target,
                        "key": answer,
                        "text": self._texts.get(answer, answer),
                    }
                )
            )
            for answer in answers
        ]

    def contains(self, asked: Asked, gold: str, text: str) -> bool:
        """Return whether the liberal reader finds the gold answer in a text."""
        key = self.read(asked, text)
        return key is not None and self.equal(asked, gold, [key])[0]

    def any_number(self, gold: str, text: str) -> bool:
        """Return whether any plain number of a text is the gold answer: an upper bound."""
        numbers = re.findall(r"-?\d[\d,]*(?:\.\d+)?", text)
        target = self.parse_keys([gold])[0]
        return target is not None and target in self.parse_keys(
            [number.rstrip(",") for number in numbers]
        )

    def _ask(self, request: dict[str, Any]) -> Any:
        """Send one request; None where it fails, takes too long or ends the worker."""
        if self._worker is None or self._worker.poll() is not None:
            self._start()
        line = ""
        try:
            self._worker.stdin.write(json.dumps(request) + "\n")
            self._worker.stdin.flush()
            line = self._line(self._timeout)
        except BrokenPipeError:
            pass
        if line:
            return json.loads(line)
        self.timeouts += 1
        self.close()
        return None

    def _line(self, wait: float) -> str:
        """Return the worker's next line, empty if it ended or nothing came in time."""
        with selectors.DefaultSelector() as ready:
            ready.register(self._worker.stdout, selectors.EVENT_READ)
            return self._worker.stdout.readline() if ready.select(wait) else ""

    def _start(self) -> None:
        """Start a worker and wait for its imports, which count towards no text's time."""
        self.close()
        self._worker = subprocess.Popen(
            [sys.executable, "-m", "replicata.papers.cacc.grading_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=repo_root() / "lib",
        )
        if not self._line(_START_S):
            self.close()
            raise RunError("grading: the math-verify worker did not start; is it installed?")

    def close(self) -> None:
        """Kill the worker, if there is one."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.kill()
            worker.communicate()

    def __enter__(self) -> Self:
        """Return the grader; the worker starts with the first request."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Kill the worker."""
        self.close()


def _prepared(text: str) -> str:
    """Return a text without what would mislead math-verify's extraction."""
    text = _PERCENT.sub("", _DENIED.sub("", text))
    return _MINUS.sub("-", _COMPUTED.sub("", text))


def marked(asked: Asked, gold: str) -> str:
    """Return a gold answer as math-verify reads it: bare LaTeX is not recognised as such."""
    if asked.mode != "latex" or "$" in gold.replace("\\$", "") or r"\boxed" in gold:
        return gold
    return rf"$\boxed{{{gold}}}$"
