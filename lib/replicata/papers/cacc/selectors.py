"""The fixed selectors: from consumables to one key (spec 3.6). None is trained or tuned."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from replicata.errors import UsageError
from replicata.papers.cacc.pool import Candidate, Consumable


def majority(consumables: Sequence[Consumable]) -> str | None:
    """Return the most frequent key; of several, the one whose first member came first.

    Self-consistency (arXiv 2203.11171).
    """
    return _top(Counter(one.key for one in consumables))


def plurality_share(consumables: Sequence[Consumable]) -> dict[str, float]:
    """Return each key's probability to win the plurality under uniform tie-breaks, exactly."""
    votes = Counter(one.key for one in consumables)
    if not votes:
        return {}
    most = max(votes.values())
    winners = [key for key, count in votes.items() if count == most]
    return dict.fromkeys(winners, 1 / len(winners))


def mean_logprob(candidate: Candidate) -> float:
    """Return the length-normalised log-probability of a candidate's own text, nats per token.

    Raises
    ------
    UsageError
        If the proposer gave no log-probabilities.
    """
    if candidate.sum_logprob is None:
        raise UsageError("selector logprob: a candidate has no log-probability, expected one")
    return candidate.sum_logprob / max(candidate.n_tokens, 1)


def by_logprob(consumables: Sequence[Consumable], pool: Sequence[Candidate]) -> str | None:
    """Return the key of the candidate with the highest mean log-probability."""
    if not consumables:
        return None
    return max(consumables, key=lambda one: mean_logprob(pool[one.parent])).key


def weighted(consumables: Sequence[Consumable], pool: Sequence[Candidate]) -> str | None:
    """Return the plurality weighted by the softmax of the mean log-probabilities."""
    votes: dict[str, float] = {}
    for one in consumables:
        weight = math.exp(mean_logprob(pool[one.parent]))
        votes[one.key] = votes.get(one.key, 0.0) + weight
    return _top(votes)


def first_parse(consumables: Sequence[Consumable]) -> str | None:
    """Return the key of the first candidate that could be read."""
    return min(consumables, key=lambda one: one.parent).key if consumables else None


def by_score(consumables: Sequence[Consumable], scores: Mapping[str, float]) -> str | None:
    """Return the key with the highest verifier score; ties go to the one that came first."""
    keys = dict.fromkeys(one.key for one in consumables)
    return max(keys, key=lambda key: scores[key]) if keys else None


def _top(votes: Mapping[str, float]) -> str | None:
    # Both kinds of mapping keep the order of first members, and max takes the first of equals.
    return max(votes, key=lambda key: votes[key]) if votes else None
