"""Run one cell: draw the pools of a family, build every arm on them, keep all records."""

from typing import Any

import pandas as pd

from replicata.errors import UsageError
from replicata.papers.cacc.arms import Bench
from replicata.papers.cacc.draws import Pools, cut, draw_pools, family_questions
from replicata.papers.cacc.engines import open_proposer, weights_digest
from replicata.papers.cacc.experiment import FamilyParams, Params
from replicata.papers.cacc.grading import Grader
from replicata.papers.cacc.interfaces import Interface
from replicata.papers.cacc.measured import Records
from replicata.papers.cacc.outcomes import FamilyStudy
from replicata.papers.cacc.pool import Candidate, Question
from replicata.papers.cacc.proposer import Drawn, Proposer
from replicata.papers.cacc.repairer import ModelRepairer
from replicata.workflow.cells import Cell


def pools(params: Params, cell: Cell) -> pd.DataFrame:
    """Run a proposer on a family; see `FamilyStudy` for the rows."""
    settings = next(p for p in params.proposers if p.id == cell.params["proposer"])
    family = next(f for f in params.families if f.id == cell.params["family"])
    questions = family_questions(params, family)
    _check(questions, family)
    records = Records(proposer=settings.id, family=family.id)
    with open_proposer(settings) as proposer, Grader() as grader:
        before = weights_digest(proposer)
        drawn = draw_pools(proposer, params, family, [q.asked for q in questions])
        repairer = ModelRepairer(proposer, params.cacc.repair_tokens)
        for interface in family.interfaces:
            bench = Bench(
                Interface(interface, questions[0].asked.mode, grader),
                grader,
                repairer,
                params.cacc.tau_rep_value if questions[0].asked.mode != "letter" else None,
            )
            fixed = interface == family.interfaces[0]
            study = FamilyStudy(params, family, questions, proposer, bench, records)
            study.run(_candidates(proposer, family, drawn), fixed=fixed)
            if fixed and family.budgets:
                _budgets(study, proposer, family, drawn)
        changed = weights_digest(proposer) != before
        records.add("cell", metric="weights_changed", value=float(changed), text=before)
        records.add("cell", metric="timeouts", value=float(grader.timeouts))
    return records.table()


def _check(questions: list[Question], family: FamilyParams) -> None:
    """Refuse questions that no interface can handle, before anything is drawn."""
    for question in questions:
        options = [option.strip().casefold() for option in question.asked.options]
        if len(options) > 26 or len(set(options)) < len(options):
            raise UsageError(
                f"family {family.id}, question {question.asked.id}: {len(options)} options, "
                "expected at most 26, all different"
            )


def _candidates(
    proposer: Proposer, family: FamilyParams, drawn: Pools
) -> dict[str, list[list[Candidate]]]:
    """Return the pools as candidates under the family's budget of tokens."""

    def as_candidates(pool: list[list[Drawn]], source: str) -> list[list[Candidate]]:
        return [[cut(proposer, one, family.max_new_tokens, source) for one in row] for row in pool]

    plain = as_candidates(drawn.plain, "plain")
    enhanced = as_candidates(drawn.enhanced, "enhanced")
    mixed = [row[: len(row) - len(more)] + more for row, more in zip(plain, enhanced, strict=True)]
    return {"plain": plain, "enhanced": mixed, "greedy": as_candidates(drawn.greedy, "plain")}


def _budgets(study: FamilyStudy, proposer: Proposer, family: FamilyParams, drawn: Pools) -> None:
    """Cut the same samples to several budgets of new tokens (spec 10: the tax depends on it)."""
    for budget in family.budgets:
        pool: list[list[Candidate]] = [
            [cut(proposer, one, budget, "plain") for one in row] for row in drawn.plain
        ]
        study.prepare(pool, aligned=False)
        for arm in ("identity", "cacc"):
            extra: dict[str, Any] = {"part": "budget", "budget": float(budget)}
            study.outcomes(arm, pool, [study.built(arm, i, row) for i, row in enumerate(pool)],
                           **extra)  # fmt: skip
        study.truncation(pool, budget)
