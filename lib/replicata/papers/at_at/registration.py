"""The preregistered study: S1's primary comparison, as ``replicata prereg`` and ``audit`` run it.

The protocol is ``protocols/at_at``. A unit is a request, held out; its cluster is its gold tool,
because all requests of a tool share one edited description. A repeat is one halving of the
requests; in each, a unit is held out once.
"""

from functools import lru_cache
from typing import Any

from replicata.papers.at_at.bfcl import Pool, load_pool
from replicata.papers.at_at.encoder import Encoder
from replicata.papers.at_at.routing_study import Outcome, RoutingBench
from replicata.papers.at_at.tools import tools_sha256
from replicata.preregistration.paired import paired_study, settings_of
from replicata.preregistration.registration import Registration
from replicata.preregistration.study import Answer, PlannedCell

#: The study's name: its directory under ``protocols``.
NAME = "at_at"


@lru_cache(maxsize=1)
def encoder() -> Encoder:
    """Return the agent's encoder, loaded once, computing in one thread."""
    import torch

    torch.set_num_threads(1)
    return Encoder()


@lru_cache(maxsize=2)
def _bench(requests: tuple[str, ...], seed: int) -> RoutingBench:
    pool, wanted = load_pool(), set(requests)
    kept = tuple(request for request in pool.requests if request.id in wanted)
    return RoutingBench(Pool(kept, pool.tools), encoder(), seed)


@lru_cache(maxsize=256)
def _outcome(
    bench: RoutingBench, arm: str, repeat: int, direction: int
) -> tuple[Outcome, str, str]:
    """Return an arm's outcome, the digest of its tools, and that of the weights afterwards."""
    outcome = bench.run(arm, repeat, direction)
    return outcome, tools_sha256(outcome.tools), bench.encoder.weights_sha256()


def answer(registration: Registration, cell: PlannedCell, request: Any) -> Answer:
    """Route one held-out request under the tools that were optimised on the other half."""
    protocol = registration.protocol
    bench = _bench(tuple(settings_of(protocol).units), protocol.seeds.global_seed)
    arm, repeat = cell.params["arm"], cell.params["repeat"]
    i = bench.position[cell.unit]
    direction = 0 if bench.heldout(repeat)[i] else 1
    outcome, listed, weights = _outcome(bench, arm, repeat, direction)
    return Answer(
        {
            "tool": outcome.tools[outcome.routed[i]].name,
            "gold": bench.pool.requests[i].gold,
            "direction": direction,
            "tools_sha256": listed,
        },
        f"sha256:{weights}",
    )


def score(response: Any) -> int:
    """Return 1 if the routed tool is the gold tool."""
    return int(response["tool"] == response["gold"])


def again(registration: Registration, cell: PlannedCell, request: Any) -> Any:
    """Ask again, for the audit."""
    return answer(registration, cell, request).response


STUDY = paired_study(answer, score, replay=again)
