"""Prompts: what may differ between arms, and nothing else (spec 8.12)."""

import difflib
import itertools

import pytest

from replicata.models import load_model
from replicata.papers.memory_study import prompts
from replicata.papers.memory_study.worlds import make_world, world_id

SCENARIOS, LOGS = ("unlucky", "lucky"), ("indep", "unstated")


@pytest.fixture
def world(registered):
    return make_world(registered(0), world_id(3))


def said(request):
    return "".join(request["user"])


def changed(left, right):
    """Return the words that differ between two texts."""
    words = difflib.ndiff(left.split(), right.split())
    return sorted(word for word in words if word[0] in "+-")


@pytest.mark.parametrize(("scenario", "log"), itertools.product(SCENARIOS, LOGS))
def test_factual_and_counterfactual_contexts_differ_in_the_outcome_alone(world, scenario, log):
    left, right = ("".join(prompts.context(world, scenario, o, log)) for o in "FS")
    assert changed(left, right) == ["+ succeeded.", "- failed."]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_log_versions_differ_in_one_sentence_that_both_sessions_see(world, scenario):
    for make in (
        lambda log: prompts.guided_request(world, scenario, "F", log, "own"),
        lambda log: prompts.free_request(world, scenario, "F", log, "own"),
        lambda log: prompts.choice_request(world, scenario, "F", log, "m"),
    ):
        assert said(make("indep")).replace(prompts.INDEPENDENT, "", 1) == said(make("unstated"))


def test_arms_differ_in_the_memory_alone(world):
    texts = {
        memory: prompts.memory_text(world, "unlucky", "F", memory, None)
        for memory in ("irr", "instr", "scr", "scr_opp")
    }
    assert len(set(texts.values())) == 4
    bare = {
        said(prompts.choice_request(world, "unlucky", "F", "indep", text)).replace(text, "", 1)
        for text in texts.values()
    }
    assert len(bare) == 1


def test_a_lesson_advises_what_its_verdict_says(world):
    for scenario, used in (("unlucky", world.good), ("lucky", world.bad)):
        other = world.bad if used == world.good else world.good
        for outcome in "FS":
            texts = {v: prompts.lesson(world, scenario, outcome, v) for v in prompts.SLOT["shared"]}
            assert texts["good"].endswith(f"start with {used} again.")
            assert texts["bad"].endswith(f"start with {other}.")
            assert texts["neutral"].endswith("No change.")
            assert all(prompts.WORD[outcome] in text for text in texts.values())


def test_the_lesson_continues_what_the_model_was_given(world):
    request = prompts.guided_request(world, "lucky", "S", "indep", "own")
    lesson = prompts.lesson(world, "lucky", "S", "good")
    assert lesson.startswith(request["prefill"] + request["options"][0])


def test_an_instruction_names_the_tool_that_the_scripted_lesson_advises(world):
    for scenario, outcome in itertools.product(SCENARIOS, "FS"):
        order = prompts.instruction(world, scenario, outcome).removeprefix("Start with ")
        advice = prompts.memory_text(world, scenario, outcome, "scr", None).split("start with ")[1]
        assert order.rstrip(".") == advice.removesuffix(".").removesuffix(" again")


def test_the_note_is_three_sentences_for_both_outcomes_and_shared_has_one_wording(world):
    assert prompts.NOTE.count(".") == 3
    for outcome in "FS":
        noted = prompts.guided_request(world, "unlucky", outcome, "indep", "note")
        plain = prompts.guided_request(world, "unlucky", outcome, "indep", "own")
        assert said(noted).replace(prompts.NOTE, "", 1) == said(plain)
    asks = {prompts.guided_request(world, "unlucky", o, "indep", "shared")["user"][2] for o in "FS"}
    assert len(asks) == 1
    assert " neutral" in prompts.guided_request(world, "unlucky", "F", "indep", "shared")["options"]


@pytest.mark.usefixtures("world")
def test_tokens_of_names_slots_and_memories_are_matched(registered):
    """Only the tokenizer of the registered model decides: equal sums need equal lengths."""
    tokenizer = load_model("smollm2-135m-instruct").tokenizer

    def length(text):
        return len(tokenizer.encode(text, add_special_tokens=False))

    from replicata.papers.memory_study.worlds import NAMES

    assert {length(f" {name}") for name in NAMES} == {1}
    assert {length(f" {word}") for word in prompts.SLOT["shared"]} == {1}
    lessons = sorted(
        length(prompts.lesson(make_world(registered(0), world_id(n)), s, o, v))
        for n in range(0, 40, 3)
        for s, o, v in itertools.product(SCENARIOS, "FS", ("good", "bad"))
    )
    median = lessons[len(lessons) // 2]
    assert abs(length(prompts.IRRELEVANT) - median) <= 0.1 * median
