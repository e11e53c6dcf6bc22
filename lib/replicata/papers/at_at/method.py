"""AT-AT: a fixed agent, historical traces, and selective edits of the tools (spec 3.2, 3.7).

Nothing here calls the agent. A replay gate, which does, is passed in by the studies that use one;
without it the optimisation is strictly offline.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from replicata.papers.at_at.edits import L_MAX, Edit, Policy, apply_edit, static_gate
from replicata.papers.at_at.encoder import Encodes
from replicata.papers.at_at.masking import mask_entities
from replicata.papers.at_at.tools import Tool
from replicata.papers.at_at.traces import Trace

Gate = Callable[[Edit, Sequence[Tool], Sequence[Tool]], str | None]
"""From an edit and the tools before and after it to why it is refused, or None."""

#: A tool is edited after this many traces that speak for it (spec 3.3).
MIN_EVIDENCE = 2
#: Example requests per description (spec 3.7, m).
EXAMPLES = 2
INTRODUCTION = "Example requests:"


@dataclass(frozen=True)
class LogEntry:
    """One proposed edit and what became of it; ``reason`` says why it was refused."""

    edit: Edit
    reason: str | None

    @property
    def accepted(self) -> bool:
        """Whether the edit was made."""
        return self.reason is None


@dataclass(frozen=True)
class Optimised:
    """The edited tools and the log of all proposed edits, in order."""

    tools: tuple[Tool, ...]
    log: tuple[LogEntry, ...]

    @property
    def accepted(self) -> tuple[Edit, ...]:
        """The edits that were made."""
        return tuple(entry.edit for entry in self.log if entry.accepted)


def atat(
    tools: Sequence[Tool],
    edits: Iterable[Edit],
    policy: Policy,
    gates: Sequence[Gate] = (),
) -> Optimised:
    """Make proposed edits one at a time, each only if it passes every gate.

    Parameters
    ----------
    tools
        The tool set T that the traces were collected under.
    edits
        Proposed by an optimiser, most wanted first.
    policy
        What may be changed.
    gates
        Further gates after the static one: the differential gate of implementations, or a replay
        gate that runs the agent on training requests.
    """
    current, log = tuple(tools), []
    for edit in edits:
        if sum(entry.accepted for entry in log) >= policy.max_edits:
            log.append(LogEntry(edit, f"the budget of {policy.max_edits} edits is used up"))
            continue
        try:
            candidate = apply_edit(edit, current)
        except ValueError as error:
            log.append(LogEntry(edit, str(error)))
            continue
        reason = static_gate(edit, current, candidate, policy)
        for gate in gates:
            reason = reason or gate(edit, current, candidate)
        log.append(LogEntry(edit, reason))
        if reason is None:
            current = candidate
    return Optimised(current, tuple(log))


@dataclass(frozen=True)
class Misrouting:
    """What the traces say about when a tool should have been called.

    Attributes
    ----------
    misses
        Traces in which another tool was called first.
    positives
        Traces whose request the tool serves.
    """

    misses: tuple[Trace, ...]
    positives: tuple[Trace, ...]


def misrouting(traces: Sequence[Trace]) -> dict[str, Misrouting]:
    """Return, by tool, misses and positives.

    With an expected call in the evaluation (level ``diff``) both are read off it. With pass/fail
    alone, a tool's positives are the requests that it served successfully, and its misses the
    failed traces in which the agent ranked it second to fifth.
    """
    misses: dict[str, list[Trace]] = {}
    positives: dict[str, list[Trace]] = {}
    for trace in traces:
        called, expected = trace.first_tool, trace.expected_call
        if called is None:
            continue
        if expected is not None:
            positives.setdefault(expected["tool"], []).append(trace)
            if called != expected["tool"]:
                misses.setdefault(expected["tool"], []).append(trace)
        elif trace.passed:
            # The tool that was called last is the one whose result passed.
            positives.setdefault(trace.steps[-1].tool, []).append(trace)
        else:
            for name, _ in trace.steps[0].ranked[1:5]:
                misses.setdefault(name, []).append(trace)
    return {
        name: Misrouting(tuple(found), tuple(positives.get(name, ())))
        for name, found in misses.items()
    }


def wanted(traces: Sequence[Trace]) -> list[tuple[str, Misrouting]]:
    """Return the tools with enough misses and positives: most misses first, then by name."""
    enough = [
        (name, found)
        for name, found in misrouting(traces).items()
        if len(found.misses) >= MIN_EVIDENCE and len(found.positives) >= MIN_EVIDENCE
    ]
    return sorted(enough, key=lambda item: (-len(item[1].misses), item[0]))


def example_edits(
    traces: Sequence[Trace],
    tools: Sequence[Tool],
    encoder: Encodes,
    *,
    mask: bool = True,
    max_description: int = L_MAX,
) -> list[Edit]:
    """Propose ``examples``: the medoid training requests of each misrouted tool (spec 3.7).

    Parameters
    ----------
    traces, tools
        Training traces, and the tools they were collected under.
    encoder
        Finds the medoids; the agent is not asked.
    mask
        Whether names, numbers, dates and quotes become type words. A provider could not ship
        requests of real users otherwise.
    max_description
        Examples that would make the description longer are left out whole.
    """
    room = {tool.name: max_description - len(tool.description) for tool in tools}
    edits = []
    for name, found in wanted(traces):
        if name not in room:
            continue
        chosen = medoids(found.positives, encoder, EXAMPLES)
        texts = [mask_entities(t.request) if mask else " ".join(t.request.split()) for t in chosen]
        text = examples_text(list(dict.fromkeys(texts)), room[name])
        if text:
            evidence = tuple(trace.trace_id for trace in (*found.misses, *chosen))
            edits.append(
                Edit(kind="examples", tool=name, text=text, evidence=tuple(dict.fromkeys(evidence)))
            )
    return edits


def medoids(traces: Sequence[Trace], encoder: Encodes, count: int) -> list[Trace]:
    """Return the traces whose requests are closest to the mean request (cosine; ties by id)."""
    vectors = encoder.encode([trace.request for trace in traces])
    centre = vectors.mean(axis=0)
    closeness = np.round(vectors @ centre / np.linalg.norm(centre), 6)
    order = sorted(range(len(traces)), key=lambda i: (-closeness[i], traces[i].trace_id))
    return [traces[i] for i in order[:count]]


def examples_text(texts: Sequence[str], room: int) -> str:
    """Join example requests, dropping from the end what does not fit into ``room`` characters."""
    for count in range(len(texts), 0, -1):
        joined = f"{INTRODUCTION} " + " | ".join(texts[:count])
        if len(joined) + 1 <= room:
            return joined
    return ""
