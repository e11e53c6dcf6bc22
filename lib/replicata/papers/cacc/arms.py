"""The arms of the study on one family: which pool, which operators, which fixed interface."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from replicata.papers.cacc.baselines import placebo
from replicata.papers.cacc.grading import Grader
from replicata.papers.cacc.interfaces import Interface
from replicata.papers.cacc.method import CaccConfig, Repairer, cacc
from replicata.papers.cacc.pool import Asked, Candidate, Consumable, Question

#: Which operators each ablation uses: align, repair, denoise.
OPERATORS = {
    "identity": (False, False, False),
    "align": (True, False, False),
    "repair": (False, True, False),
    "denoise": (False, False, True),
    "align_repair": (True, True, False),
    "cacc": (True, True, True),
}


@dataclass
class Bench:
    """One family behind one fixed interface; answers are graded once per question and key.

    Attributes
    ----------
    interface
        The strict parser.
    grader
        Knows the gold answers; nothing that builds consumables asks it for one.
    repairer
        The proposer's own model.
    tau
        Least probability of a forced continuation.
    """

    interface: Interface
    grader: Grader
    repairer: Repairer
    tau: float | None
    _right: dict[tuple[str, str], bool] = field(default_factory=dict)
    _contained: dict[tuple[str, str], bool] = field(default_factory=dict)

    def construct(self, asked: Asked, pool: Sequence[Candidate], arm: str) -> list[Consumable]:
        """Return what the selector can use of a pool under an ablation of `OPERATORS`."""
        align, repair, denoise = OPERATORS[arm]
        config = CaccConfig(align=align, repair=repair, denoise=denoise, tau_rep=self.tau)
        return cacc(
            asked, pool, config, interface=self.interface, reader=self.grader,
            repairer=self.repairer,
        )  # fmt: skip

    def placebo(self, asked: Asked, pool: Sequence[Candidate], seed: str) -> list[Consumable]:
        """Return the strict interface's consumables with every gap filled at random."""
        strict = self.construct(asked, pool, "identity")
        return placebo(asked, pool, strict, reader=self.grader, seed=seed)

    def right(self, question: Question, keys: Sequence[str]) -> list[bool]:
        """Return whether each key is the question's answer."""
        name = question.asked.id
        missing = [key for key in dict.fromkeys(keys) if (name, key) not in self._right]
        if missing:
            graded = self.grader.equal(question.asked, question.gold, missing)
            self._right |= {(name, k): ok for k, ok in zip(missing, graded, strict=True)}
        return [self._right[name, key] for key in keys]

    def contains(self, question: Question, texts: Sequence[str]) -> list[bool]:
        """Return whether the liberal reader finds the answer in each text."""
        name = question.asked.id
        for text in dict.fromkeys(texts):
            if (name, text) not in self._contained:
                self._contained[name, text] = self.grader.contains(
                    question.asked, question.gold, text
                )
        return [self._contained[name, text] for text in texts]
