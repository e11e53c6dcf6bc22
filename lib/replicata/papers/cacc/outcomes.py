"""All arms of one family behind one interface, question by question."""

import random
from collections.abc import Sequence
from itertools import combinations

from replicata.papers.cacc import selectors
from replicata.papers.cacc.arms import OPERATORS, Bench
from replicata.papers.cacc.baselines import harness_filter
from replicata.papers.cacc.decomposition import Outcome, tax_cause
from replicata.papers.cacc.draws import draw_extra
from replicata.papers.cacc.experiment import FamilyParams, Params
from replicata.papers.cacc.measured import Records
from replicata.papers.cacc.pool import Candidate, Consumable, Question
from replicata.papers.cacc.proposer import Proposer
from replicata.papers.cacc.repairer import truth_scores

Pool = Sequence[Sequence[Candidate]]

#: Most subsets of one size; a pool of 8 has 70 at most, one of 16 has 12,870.
SUBSETS = 100


class FamilyStudy:
    """Builds consumables, selects, grades, and writes rows.

    Parts of the table: ``main``, ``selector``, ``placebo``, ``k``, ``candidate``, ``consumable``;
    see `replicata.papers.cacc.analysis`. The one selector of all arms is `selectors.majority`.
    """

    def __init__(
        self,
        params: Params,
        family: FamilyParams,
        questions: Sequence[Question],
        proposer: Proposer,
        bench: Bench,
        records: Records,
    ) -> None:
        self._params, self._family, self._questions = params, family, questions
        self._proposer, self._bench, self._records = proposer, bench, records
        self._style = bench.interface.style
        self._selector = selectors.majority

    def run(self, pools: dict[str, Pool], *, fixed: bool) -> None:
        """Measure all arms; sweeps, selectors and raw records only behind the fixed interface."""
        plain = pools["plain"]
        self.prepare(plain)
        self.prepare(pools["enhanced"], aligned=False)
        built = {arm: self._all(arm, plain) for arm in OPERATORS}
        for arm, consumables in built.items():
            self.outcomes(arm, plain, consumables, part="main")
        self.outcomes("greedy", pools["greedy"], self._all("identity", pools["greedy"]), "main")
        for arm, operators in (("pe", "identity"), ("cacc_pe", "cacc")):
            built[arm] = self._all(operators, pools["enhanced"])
            self.outcomes(arm, pools["enhanced"], built[arm], part="main")
        self._placebo(plain)
        self._harness(plain)
        self._consumables({arm: built[arm] for arm in ("identity", "cacc")}, plain)
        self._consumables({"cacc_pe": built["cacc_pe"]}, pools["enhanced"])
        if fixed:
            self._candidates(plain)
            self._candidates([row[-self._enhanced() :] for row in pools["enhanced"]])
            self._selectors(plain, {arm: built[arm] for arm in ("identity", "cacc")})
            self._budget(plain, built)
            self._nested(plain)
            if self._questions[0].asked.mode == "letter":
                self._constrained()

    # -- building ---------------------------------------------------------------------------

    def prepare(self, pool: Pool, *, aligned: bool = True) -> None:
        """Compute forced continuations in one go, as many as the arms on this pool ask for.

        ``aligned`` False leaves out what alignment reads: only repair alone continues these.
        """
        fragments = [
            (question.asked, candidate)
            for question, row in zip(self._questions, pool, strict=True)
            for candidate in row
            if self._bench.interface.parse(question.asked, candidate.text) is None
            and (aligned or self._bench.grader.read(question.asked, candidate.text) is None)
        ]
        self._bench.repairer.prepare(fragments)

    def built(self, arm: str, index: int, row: Sequence[Candidate]) -> list[Consumable]:
        """Return the consumables of one question under an ablation."""
        return self._bench.construct(self._questions[index].asked, row, arm)

    def _all(self, arm: str, pool: Pool) -> list[list[Consumable]]:
        return [self.built(arm, index, row) for index, row in enumerate(pool)]

    def _enhanced(self) -> int:
        return round(self._params.k * self._params.enhanced.fraction)

    # -- outcomes ---------------------------------------------------------------------------

    def outcomes(
        self,
        arm: str,
        pool: Pool,
        built: Sequence[list[Consumable]],
        part: str,
        **more: float,
    ) -> None:
        """Write one arm's outcomes by question."""
        for question, row, consumables in zip(self._questions, pool, built, strict=True):
            outcome, before = self._outcome(question, row, consumables)
            read = {one.parent for one in consumables}
            values = {
                "raw": outcome.raw,
                "raw_before": before,
                "sel": outcome.sel,
                "acc": outcome.acc,
                "acc_expected": outcome.acc_expected,
                "created": outcome.created,
                "unparsed": len(row) - len(read),
                "pool": len(row),
                "tokens": sum(one.n_tokens for one in row) + self._repair_tokens(
                    question, row, consumables, arm
                ),
            }  # fmt: skip
            for metric, value in values.items():
                self._records.add(
                    part, metric=metric, value=float(value), arm=arm, unit=question.asked.id,
                    interface=self._style, selector="majority", **{"k": len(row), **more},
                )  # fmt: skip
            if outcome.raw and not outcome.sel:
                self._records.add(
                    part, metric="tax", value=1.0, arm=arm, unit=question.asked.id,
                    interface=self._style, text=self._cause(question, row),
                    **{"k": len(row), **more},
                )  # fmt: skip

    def _outcome(
        self, question: Question, row: Sequence[Candidate], consumables: list[Consumable]
    ) -> tuple[Outcome, bool]:
        """Return the outcome, and whether a text held the answer before construction."""
        keys = [one.key for one in consumables]
        right = dict(zip(keys, self._bench.right(question, keys), strict=True))
        strict = [self._bench.interface.parse(question.asked, one.text) for one in row]
        before = any(self._bench.contains(question, [one.text for one in row])) or any(
            self._bench.right(question, [key for key in strict if key is not None])
        )
        selected = self._selector(consumables)
        shares = selectors.plurality_share(consumables)
        sel = any(right.values())
        outcome = Outcome(
            question=question.asked.id,
            raw=before or sel,
            sel=sel,
            acc=selected is not None and right[selected],
            acc_expected=sum(share for key, share in shares.items() if right[key]),
            created=sel and not before,
        )
        return outcome, before

    def _cause(self, question: Question, row: Sequence[Candidate]) -> str:
        texts = [one.text for one in row]
        contained = self._bench.contains(question, texts)
        readable = [self._bench.grader.read(question.asked, text) is not None for text in texts]
        return tax_cause(row, contained, readable)

    def _repair_tokens(
        self,
        question: Question,
        row: Sequence[Candidate],
        consumables: Sequence[Consumable],
        arm: str,
    ) -> int:
        """Return the tokens that repair generated for one question, kept or dropped."""
        align, repair, _ = OPERATORS.get({"cacc_pe": "cacc"}.get(arm, arm), (False, False, False))
        if not repair:
            return 0
        asked = question.asked
        rest = [
            (index, one)
            for index, one in enumerate(row)
            if self._bench.interface.parse(asked, one.text) is None
            and not (align and self._bench.grader.read(asked, one.text) is not None)
        ]
        return sum(one.n_tokens for one in self._bench.repairer(asked, rest).values())

    # -- control arms -----------------------------------------------------------------------

    def _placebo(self, pool: Pool) -> None:
        for draw in range(self._params.placebo_draws):
            seed = f"{self._params.seed}-placebo-{draw}"
            built = [
                self._bench.placebo(question.asked, row, seed)
                for question, row in zip(self._questions, pool, strict=True)
            ]
            self.outcomes("placebo", pool, built, part="placebo", draw=draw)

    def _harness(self, pool: Pool) -> None:
        built = [
            harness_filter(question.asked, row, reader=self._bench.grader)
            for question, row in zip(self._questions, pool, strict=True)
        ]
        self.outcomes("harness", pool, built, part="main")

    def _budget(self, pool: Pool, built: dict[str, list[list[Consumable]]]) -> None:
        """Spend what repair cost on further raw samples instead."""
        spent = [
            self._repair_tokens(question, row, consumables, "cacc")
            for question, row, consumables in zip(self._questions, pool, built["cacc"], strict=True)
        ]
        asked = [q.asked for q, tokens in zip(self._questions, spent, strict=True) if tokens]
        extra = draw_extra(self._proposer, self._params, self._family, asked, sum(spent))
        larger = [
            [*row, *extra.get(question.asked.id, [])]
            for question, row in zip(self._questions, pool, strict=True)
        ]
        self.outcomes("budget", larger, self._all("identity", larger), part="main")
        self._records.add(
            "cell", metric="repair_tokens", value=float(sum(spent)), interface=self._style
        )

    def _constrained(self) -> None:
        """Take the letter's log-probabilities alone: an upper bound for the format."""
        empty = Candidate("", True, 0, 0.0, "plain")
        repairer = self._bench.repairer
        repairer.prepare([(question.asked, empty) for question in self._questions])
        pool = [[empty] for _ in self._questions]
        self.outcomes("constrained", pool, self._all("repair", pool), part="main")

    def _selectors(self, pool: Pool, built: dict[str, list[list[Consumable]]]) -> None:
        answers = [
            (question.asked, self._shown(question, one.key))
            for rows in built.values()
            for question, consumables in zip(self._questions, rows, strict=True)
            for one in consumables
        ]
        scores = truth_scores(self._proposer, answers)
        for arm, rows in built.items():
            for question, row, consumables in zip(self._questions, pool, rows, strict=True):
                asked = question.asked
                truth = {
                    one.key: scores[asked.id, self._shown(question, one.key)] for one in consumables
                }
                chosen = {
                    "logprob": selectors.by_logprob(consumables, row),
                    "weighted": selectors.weighted(consumables, row),
                    "first-parse": selectors.first_parse(consumables),
                    "verifier": selectors.by_score(consumables, truth),
                }
                for name, key in chosen.items():
                    right = key is not None and self._bench.right(question, [key])[0]
                    self._records.add(
                        "selector", metric="acc", value=float(right), arm=arm, unit=asked.id,
                        interface=self._style, selector=name,
                    )  # fmt: skip
        self._records.add(
            "cell", metric="selector", value=1.0,
            text=f"{self._selector.__module__}.{self._selector.__qualname__}",
        )  # fmt: skip

    def _shown(self, question: Question, key: str) -> str:
        """Return an answer as the verifier sees it: a letter with its option."""
        if question.asked.mode != "letter":
            return key
        return f"{key}) {question.asked.options[ord(key) - ord('A')]}"

    def _nested(self, pool: Pool) -> None:
        """Sweep K: subsets of one pool, averaged, so that only K differs."""
        k = 1
        while k <= len(pool[0]):
            for arm in ("identity", "cacc"):
                for index, (question, row) in enumerate(zip(self._questions, pool, strict=True)):
                    self._one_size(arm, index, question, row, k)
            k *= 2

    def _one_size(
        self, arm: str, index: int, question: Question, row: Sequence[Candidate], k: int
    ) -> None:
        sums = dict.fromkeys(("raw_before", "sel", "acc_expected"), 0.0)
        subsets = list(combinations(row, k))
        if len(subsets) > SUBSETS:
            rng = random.Random(f"{self._params.seed}-{question.asked.id}-{k}")
            subsets = rng.sample(subsets, SUBSETS)
        for subset in subsets:
            outcome, before = self._outcome(question, subset, self.built(arm, index, subset))
            sums["raw_before"] += before
            sums["sel"] += outcome.sel
            sums["acc_expected"] += outcome.acc_expected
        for metric, total in sums.items():
            self._records.add(
                "k", metric=metric, value=total / len(subsets), arm=arm, unit=question.asked.id,
                interface=self._style, k=k,
            )  # fmt: skip

    # -- raw records ------------------------------------------------------------------------

    def truncation(self, pool: Pool, budget: int) -> None:
        """Write the share of candidates that a budget cuts off."""
        flat = [one for row in pool for one in row]
        share = sum(not one.finished for one in flat) / len(flat)
        self._records.add("cell", metric="truncated", value=share, budget=float(budget))

    def _candidates(self, pool: Pool) -> None:
        for question, row in zip(self._questions, pool, strict=True):
            texts = [one.text for one in row]
            for index, (one, found) in enumerate(
                zip(row, self._bench.contains(question, texts), strict=True)
            ):
                self._records.add(
                    "candidate", metric="contains", value=float(found), unit=question.asked.id,
                    source=one.source, text=one.text, index=index, tokens=one.n_tokens,
                    logprob=one.sum_logprob, finished=float(one.finished),
                )  # fmt: skip
        if question.asked.mode != "letter":
            self._any_number(pool)

    def _any_number(self, pool: Pool) -> None:
        for question, row in zip(self._questions, pool, strict=True):
            found = any(self._bench.grader.any_number(question.gold, one.text) for one in row)
            self._records.add(
                "cell", metric="any_number", value=float(found), unit=question.asked.id,
                source=row[0].source,
            )  # fmt: skip

    def _consumables(self, built: dict[str, list[list[Consumable]]], pool: Pool) -> None:
        for arm, rows in built.items():
            for question, row, consumables in zip(self._questions, pool, rows, strict=True):
                keys = [one.key for one in consumables]
                for one, right in zip(consumables, self._bench.right(question, keys), strict=True):
                    self._records.add(
                        "consumable", metric="right", value=float(right), arm=arm,
                        unit=question.asked.id, interface=self._style, text=one.key,
                        ops=" ".join(one.ops) or "strict", index=one.parent,
                        source=row[one.parent].source,
                        probability=one.probability,
                    )  # fmt: skip
