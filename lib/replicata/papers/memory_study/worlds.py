"""Synthetic worlds: a task, two tools, and a log from which the better tool can be read (spec 3.1).

Worlds come in blocks of four that share a pair of names: each name is the better tool in two of
them, and each order of listing occurs in two, so a model's liking for a name or a place cancels
over a block. Everything else is drawn for each world by itself.
"""

import random
from dataclasses import dataclass

from replicata.errors import UsageError
from replicata.preregistration.registration import Registration

BLOCK = 4
RUNS = 20
"""Logged runs of each tool."""
SMALLEST_LEAD = 6
"""Logged successes that the better tool is ahead by, at least: 0.30 of the runs."""
GOOD_RATES = (0.85, 0.90)
BAD_RATES = (0.45, 0.55)

TASKS = (
    "turn scanned invoices into text",
    "sort support tickets by topic",
    "find duplicate addresses in a customer list",
    "transcribe recorded meetings",
    "translate product labels into French",
    "extract dates from contracts",
    "match photos to catalogue entries",
    "summarise daily sales reports",
    "check web pages for broken links",
    "convert lab notes into tables",
    "label bird sounds in recordings",
    "predict delivery times of parcels",
    "detect errors in payroll files",
    "group news articles by event",
    "read meters from photographs",
    "plan routes for repair crews",
)

_NAMES = """
cedar maple amber coral birch willow falcon sparrow copper silver cobalt nickel granite marble
basalt slate quartz jade river meadow canyon harbor valley island forest desert prairie delta
lagoon glacier comet nebula orbit meteor planet galaxy violin flute trumpet piano harp cotton
linen velvet silk wool canvas leather anchor compass lantern hammer wrench saddle kettle basil
thyme sage mint cumin ginger garlic pepper orchid lily rose iris lotus fern apple peach plum
cherry lemon mango olive grape walnut almond tiger lion wolf bear fox hawk eagle crane dove owl
seal whale dolphin shark salmon trout pearl crystal iron steel bronze brass zinc pine oak elm
palm bamboo ivy moss clover sigma omega theta summer autumn winter castle tower bridge temple
palace arrow pillow mirror candle lamp clock bell
"""
NAMES = tuple(_NAMES.split())
"""Neutral nouns, each one token after a blank in the tokenizers used; the endpoint checks that."""


@dataclass(frozen=True)
class World:
    """One world.

    Attributes
    ----------
    id, task
        Its name, and what the agent does.
    good, bad
        The tool that the log shows to be better, and the other.
    listed
        Both, in the order they are listed in.
    successes
        Logged successes out of ``RUNS``, by tool.
    """

    id: str
    task: str
    good: str
    bad: str
    listed: tuple[str, str]
    successes: dict[str, int]

    def other(self, tool: str) -> str:
        """Return the tool that is not ``tool``."""
        return self.bad if tool == self.good else self.good


def world_id(number: int) -> str:
    """Return the name of a world; pilot worlds are numbered from 10,000."""
    return f"w{number:05d}"


def make_world(registration: Registration, unit: str) -> World:
    """Return a world; its content depends on the registration's seeds alone.

    Raises
    ------
    UsageError
        If there are more blocks than pairs of names.
    """
    number = int(unit.removeprefix("w"))
    block, place = divmod(number % 10_000, BLOCK)
    names = list(NAMES)
    # One shuffle for all worlds, so that no two blocks share a pair.
    random.Random(registration.seed("names" if number < 10_000 else "pilot names")).shuffle(names)
    if 2 * block + 1 >= len(names):
        raise UsageError(f"world {unit}: there are names for {len(names) // 2 * BLOCK} worlds")
    pair = names[2 * block], names[2 * block + 1]
    good, bad = pair if place % 2 == 0 else pair[::-1]
    rng = random.Random(registration.seed(unit))
    good_wins, bad_wins = _successes(rng)
    return World(
        id=unit,
        task=rng.choice(TASKS),
        good=good,
        bad=bad,
        listed=(good, bad) if place < BLOCK // 2 else (bad, good),
        successes={good: good_wins, bad: bad_wins},
    )


def _successes(rng: random.Random) -> tuple[int, int]:
    """Draw both counts: expected ones give or take 1, until the better tool leads clearly."""
    good, bad = rng.choice(GOOD_RATES) * RUNS, rng.choice(BAD_RATES) * RUNS
    while True:
        wins = round(good) + rng.randint(-1, 1), round(bad) + rng.randint(-1, 1)
        if wins[0] - wins[1] >= SMALLEST_LEAD:
            return wins
