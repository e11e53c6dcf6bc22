"""What a cell draws from the proposer: questions and their pools."""

from collections.abc import Sequence
from dataclasses import dataclass

from replicata.inference import Sampling
from replicata.papers.cacc.experiment import FamilyParams, Params
from replicata.papers.cacc.pool import Asked, Candidate, Question
from replicata.papers.cacc.proposer import Drawn, Proposer, draw_pool
from replicata.papers.cacc.tasks import SOURCES, generated_questions
from replicata.workflow.seeds import derive_seed


@dataclass(frozen=True)
class Pools:
    """The samples of a family, a list per question.

    Attributes
    ----------
    plain
        K samples of the plain prompt.
    enhanced
        Samples of the enhanced prompt, as many as replace plain ones.
    greedy
        One greedy sample of the plain prompt.
    """

    plain: list[list[Drawn]]
    enhanced: list[list[Drawn]]
    greedy: list[list[Drawn]]


def family_questions(params: Params, family: FamilyParams) -> list[Question]:
    """Return a family's questions, generated or read from a data set."""
    seed = derive_seed(params.seed, "cacc", "questions", family.id)
    if family.source in SOURCES and family.n_questions is not None:
        return generated_questions(family.source, family.id, family.n_questions, seed)
    from replicata.papers.cacc.benchmarks import benchmark_questions

    return benchmark_questions(family.source, family.id, family.path, family.n_questions, seed)


def draw_pools(
    proposer: Proposer, params: Params, family: FamilyParams, questions: Sequence[Asked]
) -> Pools:
    """Draw, or find, the pools of a family."""
    longest = max([family.max_new_tokens, *family.budgets])
    plain = _sampling(proposer, params, family, "plain", longest)
    enhanced = _sampling(proposer, params, family, "enhanced", family.max_new_tokens)
    greedy = Sampling(
        max_tokens=family.max_new_tokens, stop_token_ids=proposer.loaded.stop_token_ids
    )
    prefix = f"cacc-{family.id}"
    share = round(params.k * params.enhanced.fraction)
    return Pools(
        draw_pool(proposer, f"{prefix}-plain", questions, params.k, "plain", plain),
        draw_pool(proposer, f"{prefix}-enhanced", questions, share, "enhanced", enhanced),
        draw_pool(proposer, f"{prefix}-greedy", questions, 1, "plain", greedy),
    )


def draw_extra(
    proposer: Proposer,
    params: Params,
    family: FamilyParams,
    questions: Sequence[Asked],
    tokens: int,
) -> dict[str, list[Candidate]]:
    """Draw further plain samples for the budget arm until they cost ``tokens`` tokens.

    Rounds of one sample per question are drawn; within a round, samples are taken in the order of
    the questions, and the first that reaches the sum is the last.

    Returns
    -------
    dict
        Candidates by question id, the order of ``questions``.
    """
    taken: dict[str, list[Candidate]] = {}
    spent, number = 0, 0
    while questions and spent < tokens:
        sampling = _sampling(proposer, params, family, f"extra-{number}", family.max_new_tokens)
        name = f"cacc-{family.id}-extra{number}"
        drawn = draw_pool(proposer, name, questions, 1, "plain", sampling)
        for asked, (one,) in zip(questions, drawn, strict=True):
            if spent < tokens:
                candidate = cut(proposer, one, family.max_new_tokens, "plain")
                taken.setdefault(asked.id, []).append(candidate)
                spent += candidate.n_tokens
        number += 1
    return taken


def cut(proposer: Proposer, drawn: Drawn, budget: int, source: str) -> Candidate:
    """Return the candidate that a sample is under a budget of new tokens."""
    loaded = proposer.loaded
    return drawn.candidate(loaded.tokenizer, loaded.stop_token_ids, budget, source)


def _sampling(
    proposer: Proposer, params: Params, family: FamilyParams, what: str, max_tokens: int
) -> Sampling:
    enhanced = what == "enhanced"
    return Sampling(
        max_tokens=max_tokens,
        temperature=params.enhanced.temperature if enhanced else params.sampling.temperature,
        top_p=params.sampling.top_p,
        seed=derive_seed(params.seed, "cacc", family.id, what),
        stop_token_ids=proposer.loaded.stop_token_ids,
    )
