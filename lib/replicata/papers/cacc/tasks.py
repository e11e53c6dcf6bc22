"""Generated questions: four families of the package ``reasoning_gym`` (spec 5).

The answers of ``arith`` and ``boxed`` are never a number of their question, so that a placebo that
copies numbers carries no information. The letters of ``mcq4`` and ``mcq10`` are balanced exactly:
each letter is right equally often, in random order, so that no preference for a letter scores.
"""

import random
import re
from collections.abc import Iterator
from typing import Any, Literal, get_args

from replicata.errors import ResourceError, UsageError
from replicata.papers.cacc.pool import Asked, Question

Source = Literal["chain_sum", "products", "gsm_symbolic_mcq4", "chain_sum_mcq10"]
SOURCES = get_args(Source)
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

_CHAIN_SUM = {"min_terms": 2, "max_terms": 3, "min_digits": 1, "max_digits": 2}
_PRODUCTS = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2}
#: Distractors lie within this distance of the right value.
NEAR = 10


def generated_questions(source: Source, family: str, n: int, seed: int) -> list[Question]:
    """Return ``n`` different questions of one family.

    Parameters
    ----------
    source
        Which generator, and whether its value is asked as a number or among options.
    family
        Prefix of the questions' ids.
    n
        Number of questions; of a letter family a multiple of its options.
    seed
        Of the generator and of the options' order.

    Raises
    ------
    UsageError
        If letters cannot be balanced over ``n`` questions.
    ResourceError
        If reasoning_gym is not installed.
    """
    if source == "chain_sum":
        return [_number(family, i, e) for i, e in _take(_entries("chain_sum", _CHAIN_SUM, seed), n)]
    if source == "products":
        return [_product(family, i, e) for i, e in _take(_products(seed), n)]
    if source == "gsm_symbolic_mcq4":
        return _balanced(family, _whole(_entries("gsm_symbolic", {}, seed)), n, 4, seed)
    if source == "chain_sum_mcq10":
        return _balanced(family, _entries("chain_sum", _CHAIN_SUM, seed), n, 10, seed)
    raise UsageError(f"source {source!r}: unknown, expected one of {', '.join(SOURCES)}")


def _entries(dataset: str, config: dict[str, Any], seed: int) -> Iterator[dict[str, Any]]:
    """Yield entries whose answer is not among the question's numbers, without repeats."""
    try:
        import reasoning_gym
    except ImportError as error:
        raise ResourceError(
            f"tasks: the package reasoning_gym cannot be imported ({error}); requirements/cpu.txt "
            "lists it with what it needs"
        ) from error
    # An entry depends on seed + index: blocks far apart give seeds nearby different entries.
    first = random.Random(seed).randrange(2**30)
    seen = set()
    for entry in reasoning_gym.create_dataset(dataset, size=100_000, seed=first, **config):
        question, answer = entry["question"], str(entry["answer"])
        if question not in seen and answer not in re.findall(r"\d+", question):
            seen.add(question)
            yield entry


def _products(seed: int) -> Iterator[dict[str, Any]]:
    """Yield products of two factors from 2 to 12: tables that a small model has seen."""
    for entry in _entries("products", _PRODUCTS, seed):
        factors = [int(part) for part in entry["metadata"]["expression"].split(" * ")]
        if all(2 <= factor <= 12 for factor in factors):
            yield entry


def _whole(entries: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the entries whose answer is a whole number, for which near distractors make sense."""
    return (entry for entry in entries if re.fullmatch(r"-?\d+", str(entry["answer"])))


def _take(entries: Iterator[dict[str, Any]], n: int) -> Iterator[tuple[int, dict[str, Any]]]:
    return zip(range(n), entries, strict=False)


def _number(family: str, index: int, entry: dict[str, Any]) -> Question:
    return Question(Asked(f"{family}-{index:03d}", entry["question"], "number"), entry["answer"])


def _product(family: str, index: int, entry: dict[str, Any]) -> Question:
    """Pose a product as competition mathematics does: the answer belongs into a box."""
    text = f"Compute ${entry['metadata']['expression'].replace('*', chr(92) + 'cdot')}$."
    return Question(Asked(f"{family}-{index:03d}", text, "latex"), entry["answer"])


def _balanced(
    family: str, entries: Iterator[dict[str, Any]], n: int, m: int, seed: int
) -> list[Question]:
    """Pose ``n`` values among ``m`` options each, every letter right ``n / m`` times."""
    if n % m:
        raise UsageError(
            f"family {family}: {n} questions cannot have each of {m} letters right equally often, "
            f"expected a multiple of {m}"
        )
    rng = random.Random(f"{family}-{seed}")
    right = [letter for letter in range(m) for _ in range(n // m)]
    rng.shuffle(right)
    questions = []
    for index, entry in _take(entries, n):
        value = int(entry["answer"])
        near = [value + step for step in range(-NEAR, NEAR + 1) if step]
        options = rng.sample(near, m - 1)
        options.insert(right[index], value)
        asked = Asked(
            f"{family}-{index:03d}",
            _stem(entry),
            "letter",
            tuple(str(option) for option in options),
        )
        questions.append(Question(asked, LETTERS[right[index]]))
    return questions


def _stem(entry: dict[str, Any]) -> str:
    """Return the question without its own instruction about the form of the answer."""
    return re.sub(
        r" Give the result as your final answer\..*$| =$", "", entry["question"], flags=re.DOTALL
    )
