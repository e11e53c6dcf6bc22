"""CACC: the interface layer between a candidate pool and a fixed selector (spec 3.3).

It sees the question and the texts, never a gold answer: `Asked` has none.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from replicata.papers.cacc.interfaces import Interface, Reader
from replicata.papers.cacc.letters import claimed_letters
from replicata.papers.cacc.pool import Asked, Candidate, Consumable
from replicata.papers.cacc.tasks import LETTERS

#: Larger numbers are no answers to these questions but loops of digits.
LARGEST = 1e12
_HASHES = re.compile(r"^#### +(.+?) *$", re.MULTILINE)
#: Boxes with up to one level of braces inside, as in ``\boxed{\frac{1}{2}}``.
_BOXES = re.compile(r"\\boxed\{((?:[^{}]|\{[^{}]*\})*)\}")


@dataclass(frozen=True)
class CaccConfig:
    """Which operators are on, and the least probability of a repaired answer.

    ``tau_rep`` None stands for the spec's: 1 / options for letters, .05 for values.
    """

    align: bool = True
    repair: bool = True
    denoise: bool = True
    tau_rep: float | None = None

    def least(self, asked: Asked) -> float:
        """Return the least probability of a forced continuation."""
        if self.tau_rep is not None:
            return self.tau_rep
        return 1 / len(asked.options) if asked.options else 0.05


@dataclass(frozen=True)
class Repaired:
    """A forced continuation: its text, its probability, and the tokens it cost."""

    text: str
    probability: float
    n_tokens: int


class Repairer(Protocol):
    """Continues fragments by the proposer's own model."""

    def __call__(
        self, asked: Asked, candidates: Sequence[tuple[int, Candidate]]
    ) -> dict[int, Repaired]:
        """Return the continuation of each candidate, by its index."""
        ...


def cacc(
    asked: Asked,
    pool: Sequence[Candidate],
    config: CaccConfig,
    *,
    interface: Interface,
    reader: Reader,
    repairer: Repairer,
) -> list[Consumable]:
    """Return what the fixed selector can use of a pool.

    A candidate that the strict parser reads is kept as it is. Of the rest, alignment comes first,
    since it costs nothing and cannot invent; then one short continuation; then noise is removed.
    With all operators off this is the strict interface alone.
    """
    found: dict[int, Consumable] = {}
    for index, candidate in enumerate(pool):
        key = interface.parse(asked, candidate.text)
        ops: tuple[str, ...] = ()
        if key is None and config.align:
            key, ops = align(asked, candidate.text, reader), ("align",)
        if key is not None:
            found[index] = Consumable(key, index, ops)
    if config.repair:
        rest = [(i, candidate) for i, candidate in enumerate(pool) if i not in found]
        found |= repair(asked, rest, interface, repairer) if rest else {}
    consumables = [found[index] for index in sorted(found)]
    return denoise(asked, pool, consumables, config.least(asked)) if config.denoise else consumables


def align(asked: Asked, text: str, reader: Reader) -> str | None:
    """Return the answer of a text in the selector's mode, or None: no model is called."""
    return reader.read(asked, text)


def repair(
    asked: Asked,
    fragments: Sequence[tuple[int, Candidate]],
    interface: Interface,
    repairer: Repairer,
) -> dict[int, Consumable]:
    """Continue fragments by the selector's expected prefix and parse what comes.

    A forced letter is parsed behind its own prefix ``The correct option is (``.
    """
    found = {}
    for index, repaired in repairer(asked, fragments).items():
        if asked.mode == "letter":
            letters = set(claimed_letters(repaired.text))
            key = letters.pop() if len(letters) == 1 else None
        else:
            key = interface.parse(asked, repaired.text)
        if key is not None:
            found[index] = Consumable(key, index, ("repair",), repaired.probability)
    return found


def denoise(
    asked: Asked, pool: Sequence[Candidate], consumables: Sequence[Consumable], tau: float
) -> list[Consumable]:
    """Drop what disturbs a vote; what is kept is not altered.

    Dropped are texts that an earlier candidate has already, echoes of the prompt or of the format,
    inadmissible answers, repaired answers less likely than ``tau``, and hedges.
    """
    kept, texts = [], set()
    for one in consumables:
        text = " ".join(pool[one.parent].text.split())
        noise = (
            text in texts
            or is_echo(asked, text)
            or not is_admissible(asked, one.key)
            or (one.probability is not None and one.probability < tau)
            or is_hedge(asked, pool[one.parent].text)
        )
        if not noise:
            kept.append(one)
        texts.add(text)
    return kept


def is_echo(asked: Asked, text: str) -> bool:
    """Return whether a text only repeats the question or the format's placeholder."""
    rest = re.sub(r"#### *<(?:answer|letter)>|\\boxed\{\s*\}", "", text).strip()
    question = " ".join(asked.text.split())
    return bool(text) and (not rest or rest == question)


def is_admissible(asked: Asked, key: str) -> bool:
    """Return whether a key can be an answer at all: a letter of the options, a finite number."""
    if asked.mode == "letter":
        return key in LETTERS[: len(asked.options)]
    try:
        numerator, _, denominator = key.partition("/")
        return abs(float(numerator) / float(denominator or 1)) <= LARGEST
    except (ValueError, ZeroDivisionError):
        return key not in ("nan", "oo", "-oo", "zoo") and asked.mode == "latex"


def is_hedge(asked: Asked, text: str) -> bool:
    """Return whether a text gives several contradictory finals in the selector's own format."""
    if asked.mode == "letter":
        return len(set(claimed_letters(text))) > 1
    pattern = _HASHES if asked.mode == "number" else _BOXES
    finals = {re.sub(r"[,$\s]", "", final) for final in pattern.findall(text)}
    return len(finals - {"<answer>", ""}) > 1
