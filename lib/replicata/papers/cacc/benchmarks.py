"""The paper's benchmarks, through the library ``datasets`` or from local files (profile paper).

Local files have the benchmark's own columns, as JSONL, CSV or Parquet; a directory is read by
``datasets.load_dataset``. Option order is shuffled per question by a stored seed, since GPQA lists
the right answer first.
"""

import random
import re
from collections.abc import Callable, Sequence
from typing import Any

from replicata.errors import ResourceError, UsageError
from replicata.papers.cacc.pool import Asked, Question
from replicata.papers.cacc.tasks import LETTERS
from replicata.workflow.layout import repo_root

#: Hub repository, configuration and split of each benchmark.
HUB = {
    "gsm8k": ("openai/gsm8k", "main", "test"),
    "math": ("HuggingFaceH4/MATH-500", None, "test"),
    "gpqa_diamond": ("Idavidrein/gpqa", "gpqa_diamond", "train"),
    "mmlu_pro": ("TIGER-Lab/MMLU-Pro", None, "test"),
}
_READERS = {".jsonl": "json", ".json": "json", ".csv": "csv", ".parquet": "parquet"}


def benchmark_questions(
    source: str, family: str, path: str | None, n: int | None, seed: int
) -> list[Question]:
    """Return a benchmark's questions, all of them or a random ``n``.

    Raises
    ------
    UsageError
        For an unknown benchmark, a row without the benchmark's columns, or too few rows.
    ResourceError
        If the data are neither at ``path`` nor available to ``datasets``.
    """
    if source not in HUB:
        raise UsageError(f"source {source!r}: unknown, expected one of {', '.join(HUB)}")
    rows = _rows(source, path)
    rng = random.Random(seed)
    chosen = range(len(rows))
    if n is not None:
        if n > len(rows):
            raise UsageError(f"family {family}: {len(rows)} questions, expected at least {n}")
        chosen = sorted(rng.sample(chosen, n))
    questions = []
    for index in chosen:
        try:
            questions.append(_PARSERS[source](f"{family}-{index:05d}", rows[index], rng))
        except (KeyError, ValueError, IndexError, TypeError) as error:
            raise UsageError(
                f"{path or HUB[source][0]}, row {index + 1}: not a row of {source} "
                f"({type(error).__name__}: {error})"
            ) from None
    return questions


def _rows(source: str, path: str | None) -> Sequence[dict[str, Any]]:
    from datasets import load_dataset

    repository, config, split = HUB[source]
    try:
        if path is None:
            return load_dataset(repository, config, split=split)
        place = repo_root() / path
        if not place.exists():
            raise ResourceError(f"{path}: missing, expected the questions of {source}")
        if place.is_dir():
            return load_dataset(str(place), split=split)
        if place.suffix not in _READERS:
            raise UsageError(f"{path}: expected a file ending in {', '.join(_READERS)}")
        return load_dataset(_READERS[place.suffix], data_files=str(place), split="train")
    except (ResourceError, UsageError):
        raise
    # No network, a gated repository, a broken file: the library's errors have no common base.
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise ResourceError(
            f"{path or repository}: cannot be read by datasets ({type(error).__name__}: {reason})"
        ) from error


def _gsm8k(name: str, row: dict[str, Any], rng: random.Random) -> Question:
    return Question(Asked(name, row["question"], "number"), row["answer"].split("####")[1].strip())


def _math(name: str, row: dict[str, Any], rng: random.Random) -> Question:
    gold = row.get("answer")
    if gold is None:
        gold = re.findall(r"\\boxed\{(.*)\}", row["solution"])[-1]
    return Question(Asked(name, row["problem"], "latex"), f"${gold}$")


def _gpqa(name: str, row: dict[str, Any], rng: random.Random) -> Question:
    options = [row["Correct Answer"], *(row[f"Incorrect Answer {i}"] for i in (1, 2, 3))]
    return _shuffled(name, row["Question"], [one.strip() for one in options], 0, rng)


def _mmlu_pro(name: str, row: dict[str, Any], rng: random.Random) -> Question:
    return _shuffled(
        name, row["question"], [str(one) for one in row["options"]], int(row["answer_index"]), rng
    )


def _shuffled(name: str, text: str, options: list[str], right: int, rng: random.Random) -> Question:
    order = list(range(len(options)))
    rng.shuffle(order)
    asked = Asked(name, text, "letter", tuple(options[i] for i in order))
    return Question(asked, LETTERS[order.index(right)])


_PARSERS: dict[str, Callable[[str, dict[str, Any], random.Random], Question]] = {
    "gsm8k": _gsm8k,
    "math": _math,
    "gpqa_diamond": _gpqa,
    "mmlu_pro": _mmlu_pro,
}
