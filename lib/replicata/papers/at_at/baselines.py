"""What AT-AT is compared with, and the controls that must fail."""

import random
import re
from collections.abc import Sequence

import numpy as np

from replicata.papers.at_at.edits import Edit
from replicata.papers.at_at.method import wanted
from replicata.papers.at_at.tools import Tool, name_words
from replicata.papers.at_at.traces import Check, Evaluation, Trace

#: Agent-side instructions, the prompt baseline's choices; the first leaves the agent as it is.
PREFIXES = (
    "",
    "Find the tool for this request: ",
    "Which function should be called? ",
    "User request: ",
    "Task: ",
    "Search for a function that does this: ",
    "The user wants to ",
    "Choose the API for: ",
)
KEYWORDS = 6
_WORD = re.compile(r"[^\W\d_]{3,}")


def keyword_edits(traces: Sequence[Trace], tools: Sequence[Tool]) -> list[Edit]:
    """Propose ``keywords``: per misrouted tool the words with the largest log odds.

    Log odds of a word in requests of the tool against all other requests, add-one smoothing, each
    request counted once; words must be in two requests of the tool and not in its description.
    """
    known = {tool.name: tool for tool in tools}
    words = {trace.trace_id: set(_WORD.findall(trace.request.lower())) for trace in traces}
    edits = []
    for name, found in wanted(traces):
        if name not in known:
            continue
        own = {trace.trace_id for trace in found.positives}
        here = [words[i] for i in sorted(own)]
        there = [found_words for i, found_words in words.items() if i not in own]
        scores = {}
        for word in set().union(*here):
            inside = sum(word in request for request in here)
            outside = sum(word in request for request in there)
            if inside >= 2 and word not in known[name].routing_text.lower():
                odds = (inside + 1) / (len(here) - inside + 1)
                scores[word] = np.log(odds / ((outside + 1) / (len(there) - outside + 1)))
        best = sorted(scores, key=lambda word: (-scores[word], word))[:KEYWORDS]
        if best:
            edits.append(
                Edit(
                    kind="keywords",
                    tool=name,
                    text=f"Keywords: {', '.join(best)}.",
                    evidence=tuple(trace.trace_id for trace in found.misses),
                )
            )
    return edits


def static_descriptions(tools: Sequence[Tool]) -> tuple[Tool, ...]:
    """Rewrite descriptions from the schema alone, without traces: the inputs in words."""
    return tuple(tool.with_description(_with_inputs(tool)) for tool in tools)


def _with_inputs(tool: Tool) -> str:
    inputs = ", ".join(name_words(name).lower() for name in tool.params)
    return f"{tool.description} Inputs: {inputs}." if inputs else tool.description


def shuffled(traces: Sequence[Trace], seed: int) -> list[Trace]:
    """Permute the expected tools among the traces: the control that must gain nothing."""
    labels = [trace.expected_call["tool"] for trace in traces if trace.expected_call]
    if len(labels) < len(traces):
        raise ValueError("shuffling labels needs traces at feedback level diff")
    random.Random(seed).shuffle(labels)
    return [_relabelled(trace, label) for trace, label in zip(traces, labels, strict=True)]


def _relabelled(trace: Trace, label: str) -> Trace:
    ok = trace.first_tool == label
    check = Check(name="tool", ok=ok, expected={"tool": label}, got={"tool": trace.first_tool})
    evaluation = Evaluation.model_validate({"pass": ok, "checks": [check.model_dump()]})
    return trace.model_copy(update={"eval": evaluation})


def placebo(edits: Sequence[Edit], tools: Sequence[Tool], seed: int) -> list[Edit]:
    """Attach the same texts to random other tools: the control that must not help."""
    rng = random.Random(seed)
    names = [tool.name for tool in tools]
    moved = []
    for edit in edits:
        others = [name for name in names if name != edit.tool]
        moved.append(edit.model_copy(update={"tool": rng.choice(others)}))
    return moved
