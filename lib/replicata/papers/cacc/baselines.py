"""Controls: fillings without information, and the extraction filters of an established harness."""

import random
import re
from collections.abc import Sequence

from replicata.papers.cacc.interfaces import Reader
from replicata.papers.cacc.pool import Asked, Candidate, Consumable
from replicata.papers.cacc.tasks import LETTERS

_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
#: ``flexible-extract`` of GSM8K and ``custom-extract`` of MMLU-Pro in lm-evaluation-harness
#: (tasks/gsm8k/gsm8k.yaml, tasks/mmlu_pro/_default_template_yaml), rebuilt from their documented
#: patterns; the harness itself is a heavy dependency.
_FLEXIBLE = re.compile(r"(-?[$0-9.,]{2,})|(-?[0-9]+)")
_CUSTOM = re.compile(r"answer is \(?([ABCDEFGHIJ])\)?")


def placebo(
    asked: Asked,
    pool: Sequence[Candidate],
    strict: Sequence[Consumable],
    *,
    reader: Reader,
    seed: str,
) -> list[Consumable]:
    """Fill every candidate that the strict parser cannot read with a random answer.

    A letter is uniform over the options; a value is one of the question's own numbers. So a placebo
    arm has as many consumables as candidates, and the filled ones carry no information.
    """
    rng = random.Random(f"{seed}-{asked.id}")
    choices: Sequence[str | None]
    if asked.mode == "letter":
        choices = LETTERS[: len(asked.options)]
    else:
        choices = reader.parse_keys(_NUMBER.findall(asked.text))
    known = {one.parent: one for one in strict}
    filled = []
    for index in range(len(pool)):
        key = rng.choice(choices) if choices else None
        if index in known:
            filled.append(known[index])
        elif key is not None:
            filled.append(Consumable(key, index, ("placebo",)))
    return filled


def harness_filter(asked: Asked, pool: Sequence[Candidate], *, reader: Reader) -> list[Consumable]:
    """Return what lm-evaluation-harness's flexible filters extract."""
    found = []
    for index, candidate in enumerate(pool):
        if asked.mode == "letter":
            match = _CUSTOM.search(candidate.text)
            key = match[1] if match and match[1] in LETTERS[: len(asked.options)] else None
        else:
            numbers = ["".join(groups) for groups in _FLEXIBLE.findall(candidate.text)]
            plain = numbers[-1].strip("$.,") if numbers else ""
            key = reader.parse_keys([plain])[0] if plain else None
        if key is not None:
            found.append(Consumable(key, index, ("harness",)))
    return found
