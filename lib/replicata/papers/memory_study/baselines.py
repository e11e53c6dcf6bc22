"""Two synthetic endpoints whose carry-over is known, so that a null result means something.

They read the same prompts as a model and answer in the same form (spec 2.1). ``control_ideal``
takes the tool that the log shows to be better, whatever the memory says: its effect is 0.
``control_gullible`` starts, with probability q, with the tool that the memory names, and otherwise
takes the worse tool with probability e; so it chooses the worse tool with probability q + (1-q) e
after a lesson that names it, and the interaction and the swap are exactly q.
"""

import random
import re
from collections.abc import Mapping
from typing import Any

Q, E = 0.116, 0.004
"""The paper's rates, as the spec reads them: 11.6 % with the own lesson, 0.4 % with another."""
CHOSEN, REFUSED = "0.000000", "-50.000000"


def answer(kind: str, request: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Answer a request as ``control_ideal`` or ``control_gullible`` does.

    Parameters
    ----------
    kind
        Which of the two.
    request
        As ``prompts.py`` makes them.
    seed
        Of this cell.

    Returns
    -------
    dict
        ``{"scores": [text, ...]}``: 0 for what it takes and -50 for the rest.
    """
    text = "".join(request["user"])
    names = [option.strip() for option in request["options"]]
    if "Memory:" not in text:
        taken = "bad" if " and failed." in text else "good"
    else:
        taken = _choose(kind, text, names, random.Random(seed))
    return {"scores": [CHOSEN if name == taken else REFUSED for name in names]}


def _choose(kind: str, text: str, names: list[str], rng: random.Random) -> str:
    wins = {name: int(re.findall(rf"\n{name}: (\d+) of", text)[0]) for name in names}
    better, worse = sorted(names, key=wins.__getitem__, reverse=True)
    if kind == "control_ideal":
        return better
    advised = re.findall(r"[Ss]tart with (\w+)", text.partition("Memory:")[2])
    if rng.random() < Q and advised and advised[0] in names:
        return advised[0]
    return worse if rng.random() < E else better
