"""All texts of the study (spec 3.2, 3.3, 5.1). The wording is ours.

A request is what a user says, in parts, and how the answer begins. The parts are: what all sessions
of a world share, what those after one outcome share, and the rest; so a local model computes common
prefixes once. Both sessions see the same log and outcome; a memory is all that passes from the
writing session to the choosing one.
"""

from typing import Any, Literal

from replicata.papers.memory_study.worlds import RUNS, World

Scenario = Literal["unlucky", "lucky"]
Outcome = Literal["F", "S"]
Log = Literal["indep", "unstated"]

OUTCOMES: tuple[Outcome, ...] = ("F", "S")
WORD = {"F": "failed", "S": "succeeded"}
LIKELY = {"F": "bad", "S": "good"}
"""The verdict that agrees with an outcome: what a scripted lesson says."""
WRITERS = ("own", "note", "shared")
"""Ways of writing a guided lesson: the base instruction; with the note; and the note in one wording
for both outcomes, with a third option, neutral, which changes nothing."""
SLOT = {"own": ("good", "bad"), "note": ("good", "bad"), "shared": ("good", "bad", "neutral")}

INDEPENDENT = "Each run is independent: a result says nothing about the runs after it.\n"
NOTE = (
    "Judge the choice by what was known before the run. One result is weak evidence. "
    "Compare it with the log. "
)
UNCHANGED = ' If the result teaches nothing, write "No change".'
FREE_TOKENS = 44
IRRELEVANT = (
    "Title: File names\nContent: The last export used blanks. Blanks are hard to read. "
    "Next time, write names with dashes."
)
"""As long as the median lesson, within a tenth, in tokens; a test counts."""
WHY = {
    "F": "The run failed: look for what to avoid next time. ",
    "S": "The run succeeded: look for what to repeat next time. ",
}


def opposite(outcome: Outcome) -> Outcome:
    """Return the other outcome."""
    return "S" if outcome == "F" else "F"


def used_tool(world: World, scenario: Scenario) -> str:
    """Return the tool of the last run: the better one where luck was bad, else the worse."""
    return world.good if scenario == "unlucky" else world.bad


def context(world: World, scenario: Scenario, outcome: Outcome, log: Log) -> list[str]:
    """Return the two parts that the writing and the choosing session share."""
    lines = "".join(
        f"{tool}: {world.successes[tool]} of {RUNS} runs succeeded.\n" for tool in world.listed
    )
    stated = INDEPENDENT if log == "indep" else ""
    return [
        f"Task: {world.task}.\nLog of earlier runs:\n{lines}",
        f"{stated}The last run started with {used_tool(world, scenario)} and {WORD[outcome]}.\n",
    ]


def guided_request(
    world: World, scenario: Scenario, outcome: Outcome, log: Log, writer: str
) -> dict[str, Any]:
    """Return the request for a guided lesson: the model fills in its verdict on the choice."""
    tool = used_tool(world, scenario)
    menu = "a good, a bad or a neutral" if writer == "shared" else "a good or a bad"
    ask = f"{_advice(outcome, writer)}Write a lesson: was starting with {tool} {menu} choice?"
    return {
        "user": [*context(world, scenario, outcome, log), ask],
        "prefill": _lesson_head(tool, outcome),
        "options": [f" {word}" for word in SLOT[writer]],
        "end": "",
    }


def free_request(
    world: World, scenario: Scenario, outcome: Outcome, log: Log, writer: str
) -> dict[str, Any]:
    """Return the request for a lesson in the model's own words."""
    ask = (
        f"{_advice(outcome, writer)}Write a lesson for the next run: a title, then one or two "
        f"sentences.{UNCHANGED if writer == 'shared' else ''}"
    )
    return {
        "user": [*context(world, scenario, outcome, log), ask],
        "prefill": "Title:",
        "max_tokens": FREE_TOKENS,
    }


def choice_request(
    world: World, scenario: Scenario, outcome: Outcome, log: Log, memory: str
) -> dict[str, Any]:
    """Return the request for a choice, given one memory."""
    ask = f"Memory:\n{memory}\nWhich tool do you start the next run with?"
    return {
        "user": [*context(world, scenario, outcome, log), ask],
        "prefill": "I start the next run with",
        "options": [f" {tool}" for tool in world.listed],
        "end": ".",
    }


def lesson(world: World, scenario: Scenario, outcome: Outcome, verdict: str) -> str:
    """Return a guided lesson; the step from verdict to advice is the frame's, not the model's."""
    tool = used_tool(world, scenario)
    advice = {
        "good": f"Next time, start with {tool} again.",
        "bad": f"Next time, start with {world.other(tool)}.",
        "neutral": "No change.",
    }
    return f"{_lesson_head(tool, outcome)} {verdict} choice. {advice[verdict]}"


def instruction(world: World, scenario: Scenario, outcome: Outcome) -> str:
    """Return one imperative line that names the tool which a lesson of ``outcome`` favours."""
    tool = used_tool(world, scenario)
    return f"Start with {world.other(tool) if outcome == 'F' else tool}."


def memory_text(
    world: World, scenario: Scenario, outcome: Outcome, memory: str, written: str | None
) -> str:
    """Return the memory of a choice: what was written, or a ready-made text.

    Parameters
    ----------
    world, scenario, outcome
        Of the choice.
    memory
        ``own``, ``opp``, ``note``, ``shared`` and ``free`` are written; ``scr`` and ``scr_opp``
        are the guided lesson with the verdict that agrees with the shown or the opposite outcome;
        ``instr`` is an instruction without reasons; ``irr`` is about another matter.
    written
        The lesson, where it is a written one.
    """
    if written is not None:
        return written
    if memory == "scr":
        return lesson(world, scenario, outcome, LIKELY[outcome])
    if memory == "scr_opp":
        return lesson(world, scenario, opposite(outcome), LIKELY[opposite(outcome)])
    if memory == "instr":
        return instruction(world, scenario, outcome)
    return IRRELEVANT


def _advice(outcome: Outcome, writer: str) -> str:
    """Return how to look at the outcome: one wording for each, or the note for both."""
    return f"{'' if writer == 'shared' else WHY[outcome]}{'' if writer == 'own' else NOTE}"


def _lesson_head(tool: str, outcome: Outcome) -> str:
    return f"Title: First tool\nContent: The last run {WORD[outcome]}. Starting with {tool} was a"
