"""Study S1: edits of descriptions from traces, for a fixed router on requests not seen.

Requests are halved at random inside each gold tool. Tools are optimised on one half and the agent
is evaluated on the other, then the halves change roles: in every *repeat* each request is held out
exactly once.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from replicata.papers.at_at import baselines
from replicata.papers.at_at.bfcl import Pool
from replicata.papers.at_at.edits import Edit, Policy
from replicata.papers.at_at.encoder import Encodes
from replicata.papers.at_at.method import Gate, Optimised, atat, example_edits
from replicata.papers.at_at.tools import Tool, tools_sha256
from replicata.papers.at_at.traces import Trace
from replicata.workflow.seeds import derive_seed

#: The confirmatory comparison's arms, then the controls and ablations.
REGISTERED = ("base", "examples", "prompt", "static", "keywords")
EXPLORATORY = (
    "raw",
    "passfail",
    "replay",
    "keywords_replay",
    "shuffled",
    "shuffled_examples",
    "placebo",
)
ARMS = (*REGISTERED, *EXPLORATORY)
AGENT = "router"
#: Two descriptions closer than this (cosine) count as near-duplicates of each other.
TWIN = 0.95


@dataclass(frozen=True)
class Outcome:
    """What an arm does with all requests after one optimisation.

    Attributes
    ----------
    routed
        Index of the chosen tool per request, shape ``(requests,)``.
    tools
        The tools it chose among.
    optimised
        The edits; None where the arm makes none.
    rollouts
        Agent calls that the optimisation used beyond the traces.
    prefix
        Instruction put before each request.
    """

    routed: np.ndarray
    tools: tuple[Tool, ...]
    optimised: Optimised | None = None
    rollouts: int = 0
    prefix: str = ""


class RoutingBench:
    """The pool of requests and tools with the router on it.

    Attributes
    ----------
    pool, encoder, seed
        As given.
    gold
        Index of each request's tool, shape ``(requests,)``.
    position
        Index of each request by its id.
    """

    def __init__(self, pool: Pool, encoder: Encodes, seed: int) -> None:
        self.pool, self.encoder, self.seed = pool, encoder, seed
        index = {tool.name: i for i, tool in enumerate(pool.tools)}
        self.gold = np.array([index[request.gold] for request in pool.requests])
        self.position = {request.id: i for i, request in enumerate(pool.requests)}
        self._base = self.scores(pool.tools)
        self._halves: dict[int, np.ndarray] = {}

    def scores(self, tools: Sequence[Tool], prefix: str = "") -> np.ndarray:
        """Return cosines, shape ``(requests, tools)``."""
        requests = self.encoder.encode([prefix + request.text for request in self.pool.requests])
        return requests @ self.encoder.encode([tool.routing_text for tool in tools]).T

    def heldout(self, repeat: int) -> np.ndarray:
        """Return which requests lie in the first half, shape ``(requests,)``, bool.

        An odd request falls to either half by chance, so that tools with one request are in both
        roles equally often.
        """
        if repeat not in self._halves:
            self._halves[repeat] = self._halve(repeat)
        return self._halves[repeat]

    def _halve(self, repeat: int) -> np.ndarray:
        first = np.zeros(len(self.gold), dtype=bool)
        for tool in np.unique(self.gold):
            members = np.flatnonzero(self.gold == tool)
            name = self.pool.tools[tool].name
            rng = random.Random(derive_seed(self.seed, "halving", repeat, name))
            order = rng.sample(list(members), len(members))
            first[order[: (len(order) + rng.randrange(2)) // 2]] = True
        return first

    def train_traces(self, train: np.ndarray) -> list[Trace]:
        """Return the router's traces on the training requests under the unedited tools."""
        names = [tool.name for tool in self.pool.tools]
        listed = tools_sha256(self.pool.tools)
        return [
            routing_trace(
                self.pool.requests[i].id,
                self.pool.requests[i].text,
                self.pool.requests[i].gold,
                [(names[j], float(self._base[i, j])) for j in best(self._base[i], 5)],
                listed,
            )
            for i in np.flatnonzero(train)
        ]

    def run(self, arm: str, repeat: int, direction: int) -> Outcome:
        """Optimise on one half with one arm, and route every request.

        Parameters
        ----------
        arm
            One of `ARMS`.
        repeat, direction
            Which halving, and which half is held out: the first (0) or the second (1).
        """
        train = self.train_mask(repeat, direction)
        if arm == "base":
            return Outcome(self._base.argmax(axis=1), self.pool.tools)
        if arm == "static":
            tools = baselines.static_descriptions(self.pool.tools)
            return Outcome(self.scores(tools).argmax(axis=1), tools)
        if arm == "prompt":
            return self._prompt(train)
        return self._edited(arm, train, derive_seed(self.seed, arm, repeat, direction))

    def train_mask(self, repeat: int, direction: int) -> np.ndarray:
        """Return which requests are trained on, shape ``(requests,)``, bool."""
        first = self.heldout(repeat)
        return ~first if direction == 0 else first

    def _prompt(self, train: np.ndarray) -> Outcome:
        scored = [
            self.scores(self.pool.tools, prefix).argmax(axis=1) for prefix in baselines.PREFIXES
        ]
        right = [int((routed == self.gold)[train].sum()) for routed in scored]
        chosen = int(np.argmax(right))
        return Outcome(
            scored[chosen],
            self.pool.tools,
            rollouts=int(train.sum()) * (len(baselines.PREFIXES) - 1),
            prefix=baselines.PREFIXES[chosen],
        )

    def _edited(self, arm: str, train: np.ndarray, seed: int) -> Outcome:
        traces = self.train_traces(train)
        labels = self.gold
        if arm in ("shuffled", "shuffled_examples"):
            traces = baselines.shuffled(traces, seed)
            labels = self._shuffled_gold(traces)
        gated = arm in ("replay", "keywords_replay", "shuffled")
        gate = ReplayGate(self, train, labels) if gated else None
        gates: list[Gate] = [gate] if gate else []
        optimised = atat(self.pool.tools, self._proposals(arm, traces, seed), Policy(), gates)
        routed = self._rescored(optimised.tools).argmax(axis=1)
        return Outcome(routed, optimised.tools, optimised, gate.calls if gate else 0)

    def _shuffled_gold(self, traces: Sequence[Trace]) -> np.ndarray:
        index = {tool.name: i for i, tool in enumerate(self.pool.tools)}
        labels = self.gold.copy()
        for trace in traces:
            labels[self.position[trace.task_id]] = index[trace.expected_call["tool"]]
        return labels

    def _proposals(self, arm: str, traces: list[Trace], seed: int) -> list[Edit]:
        tools = self.pool.tools
        propose: dict[str, Callable[[], list[Edit]]] = {
            "raw": lambda: example_edits(traces, tools, self.encoder, mask=False),
            "passfail": lambda: example_edits(
                [trace.at_level("passfail") for trace in traces], tools, self.encoder
            ),
            "keywords": lambda: baselines.keyword_edits(traces, tools),
            "keywords_replay": lambda: baselines.keyword_edits(traces, tools),
            "shuffled": lambda: baselines.keyword_edits(traces, tools),
            "placebo": lambda: baselines.placebo(
                example_edits(traces, tools, self.encoder), tools, seed
            ),
        }
        return propose.get(arm, lambda: example_edits(traces, tools, self.encoder))()

    def _rescored(self, tools: Sequence[Tool]) -> np.ndarray:
        """Score edited tools, embedding only what changed."""
        scores = self._base.copy()
        for j, (old, new) in enumerate(zip(self.pool.tools, tools, strict=True)):
            if new.description != old.description:
                scores[:, j] = self.column(new)
        return scores

    def column(self, tool: Tool) -> np.ndarray:
        """Return every request's cosine with one tool, shape ``(requests,)``."""
        requests = self.encoder.encode([request.text for request in self.pool.requests])
        return requests @ self.encoder.encode([tool.routing_text])[0]

    def twins(self) -> np.ndarray:
        """Return which tools are near-duplicates by their original descriptions, ``(T, T)``."""
        vectors = self.encoder.encode([tool.description for tool in self.pool.tools])
        return vectors @ vectors.T > TWIN


class ReplayGate:
    """Accepts an edit if the agent gains on training requests that gave it no example (spec 3.7).

    An edit must win one request more, and no other tool may lose two. ``calls`` counts the agent's
    calls.
    """

    def __init__(self, bench: RoutingBench, train: np.ndarray, labels: np.ndarray) -> None:
        self.bench, self.labels, self.calls = bench, labels, 0
        self.train = np.flatnonzero(train)
        self._scores = bench.scores(bench.pool.tools)
        self._index = {tool.name: j for j, tool in enumerate(bench.pool.tools)}

    def __call__(self, edit: Edit, before: Sequence[Tool], after: Sequence[Tool]) -> str | None:
        """Return why the edit is refused, or None."""
        used = set(edit.evidence[-2:])
        ids = [i for i in self.train if self.bench.pool.requests[i].id not in used]
        j = self._index[edit.tool]
        new = self._scores.copy()
        new[:, j] = self.bench.column(after[j])
        self.calls += len(ids)
        labels = self.labels[ids]
        was = self._scores[ids].argmax(axis=1) == labels
        now = new[ids].argmax(axis=1) == labels
        lost = np.bincount(labels[was & ~now], minlength=len(before))
        won = np.bincount(labels[now & ~was], minlength=len(before))
        net = won - lost
        if net.sum() < 1:
            return f"replay: {int(now.sum())} right after, {int(was.sum())} before"
        others = np.delete(net, j)
        if others.min(initial=0) <= -2:
            return f"replay: another tool loses {-int(others.min())} requests"
        self._scores = new
        return None


def routing_trace(
    task: str, request: str, gold: str, ranked: list[tuple[str, float]], listed: str
) -> Trace:
    """Return the trace of one routing decision, evaluated against the gold tool."""
    chosen = ranked[0][0]
    check = {
        "name": "tool",
        "ok": chosen == gold,
        "expected": {"tool": gold},
        "got": {"tool": chosen},
    }
    return Trace.model_validate(
        {
            "trace_id": task,
            "server": "bfcl",
            "tools_sha256": listed,
            "agent": {"id": AGENT},
            "task_id": task,
            "request": request,
            "steps": [{"i": 0, "tool": chosen, "ranked": ranked}],
            "eval": {"pass": chosen == gold, "checks": [check]},
            "cost": {"calls": 1},
        }
    )


def best(scores: np.ndarray, count: int) -> list[int]:
    """Return the indices of the largest scores, best first; ties in listing order."""
    return list(np.argsort(-scores, kind="stable")[:count])
