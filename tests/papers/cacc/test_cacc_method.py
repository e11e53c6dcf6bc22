"""Readers, interfaces and operators: what each makes of texts whose class is known."""

import random
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replicata.papers.cacc.baselines import harness_filter, placebo
from replicata.papers.cacc.grading import Grader
from replicata.papers.cacc.interfaces import Interface, ModeMismatch, strict
from replicata.papers.cacc.letters import read_letter
from replicata.papers.cacc.method import CaccConfig, Repaired, cacc, is_echo, is_hedge
from replicata.papers.cacc.pool import Asked, Candidate

NUMBER = Asked("n", "What is 30 + 7?", "number")
LATEX = Asked("l", r"Compute $6 \cdot 7$.", "latex")
LETTER = Asked("m", "What is 3 * 4?", "letter", ("11", "12", "13", "14"))
OFF = CaccConfig(align=False, repair=False, denoise=False)


@pytest.fixture(scope="module")
def grader() -> Iterator[Grader]:
    with Grader() as made:
        yield made


def candidates(*texts: str, finished: bool = True) -> list[Candidate]:
    return [Candidate(text, finished, 3, -1.5, "plain") for text in texts]


class Scripted:
    """Repairs every fragment by one text."""

    def __init__(self, text: str, probability: float = 0.9) -> None:
        self.text, self.probability, self.seen = text, probability, []

    def __call__(
        self, asked: Asked, fragments: Sequence[tuple[int, Candidate]]
    ) -> dict[int, Repaired]:
        self.seen += [index for index, _ in fragments]
        return {index: Repaired(self.text, self.probability, 2) for index, _ in fragments}


def construct(
    grader: Grader,
    asked: Asked,
    pool: list[Candidate],
    config: CaccConfig,
    style: str,
    repairer: Scripted | None = None,
) -> list:
    interface = Interface(style, asked.mode, grader)
    return cacc(
        asked, pool, config, interface=interface, reader=grader,
        repairer=repairer or Scripted("nothing"),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "by_parser", "by_reader"),
    [
        ("#### 7", "7", "7"),
        ("The result is 7.", None, "7"),
        ("30 + 7 = 37", None, "37"),
        ("30 + 7 =", None, None),
        ("#### <answer>", None, None),
        ("#### 1,234", "1234", "1234"),
        ("1,234", None, "1234"),
        ("-37", None, "-37"),
        ("minus 37", None, "-37"),
        ("12, so it is not 15", None, "12"),
        ("100%", None, "100"),
        (r"$\frac{3}{4}$", None, "3/4"),
        ("0.75", None, "3/4"),
        ("The answer is 3/4.", None, "3/4"),
        ("8 * 7", None, None),  # not carried out
        ("", None, None),
        ("I do not know.", None, None),
    ],
)
def test_numbers(grader: Grader, text: str, by_parser: str | None, by_reader: str | None) -> None:
    assert Interface("hash", "number", grader).parse(NUMBER, text) == by_parser
    assert grader.read(NUMBER, text) == by_reader


@pytest.mark.parametrize(
    ("text", "by_parser", "by_reader"),
    [
        (r"It is \boxed{42}.", "42", "42"),
        (r"$6 \cdot 7 = 42$", None, "42"),
        (r"\boxed{\frac{1}{2}}", "1/2", "1/2"),
        (r"\boxed{1} or \boxed{2}", "2", "{1, 2}"),  # math-verify: both, which equals neither
        (r"\boxed{x^2+1}", "x**2 + 1", "x**2 + 1"),
        (r"\boxed{}", None, None),
        (r"\boxed{42", None, None),
        (r"$6 \cdot 7$", None, None),  # the question again: nothing was computed
    ],
)
def test_boxes(grader: Grader, text: str, by_parser: str | None, by_reader: str | None) -> None:
    assert Interface("boxed", "latex", grader).parse(LATEX, text) == by_parser
    assert grader.read(LATEX, text) == by_reader


@pytest.mark.parametrize(
    ("text", "by_hash", "by_first", "by_reader"),
    [
        ("#### C", "C", "C", "C"),
        ("**(C)**", None, None, "C"),
        ("C) 13", None, "C", "C"),
        ("(C)", None, "C", "C"),
        ("C: because", None, "C", "C"),
        ("option c", None, None, None),
        ("Answer: C", None, None, "C"),
        ("The answer is (C).", None, None, "C"),
        ("The correct answer is option C", None, None, "C"),
        ("12", None, None, "B"),  # the option's value
        ("3 * 4 = 12", None, None, "B"),
        ("#### E", None, None, None),  # beyond the options
        ("A positive number", None, None, None),
        ("(A) or (B)", None, "A", None),  # two letters claimed as final
        ("B) because it is near", None, "B", "B"),
        ("A) 11\nB) 12", None, "A", None),  # the options, repeated
        ("99", None, None, None),
        ("", None, None, None),
    ],
)
def test_letters(
    grader: Grader, text: str, by_hash: str | None, by_first: str | None, by_reader: str | None
) -> None:
    assert strict(LETTER, text, "hash") == by_hash
    assert strict(LETTER, text, "letter-first") == by_first
    assert grader.read(LETTER, text) == by_reader


def test_a_value_that_two_options_share_names_none(grader: Grader) -> None:
    asked = Asked("m", "Which?", "letter", ("0.5", "1/2", "3"))
    assert grader.read(asked, "It is 0.50") is None
    assert grader.read(asked, "3") == "C"


@given(st.sampled_from("ABCDEFGHIJ"), st.integers(2, 10))
def test_a_letter_beyond_the_options_is_none(letter: str, m: int) -> None:
    expected = letter if "ABCDEFGHIJ".index(letter) < m else None
    assert read_letter(f"The answer is ({letter}).", m) == expected
    assert read_letter(f"The answer is (A). No, the answer is ({letter}).", m) == (
        "A" if letter == "A" else None
    )


def test_a_selector_that_expects_another_mode_is_refused_at_construction(grader: Grader) -> None:
    with pytest.raises(ModeMismatch, match="boxed: it gives latex, but the selector expects lett"):
        Interface("boxed", "letter", grader)
    with pytest.raises(ModeMismatch, match="'xml': unknown"):
        Interface("xml", "number", grader)


# -------------------------------------------------------------------------------------------------
# The operators


POOL = candidates("#### 37", "It is 37.", "#### <answer>", "30 + 7 =", "#### 36", "It is 37.", "")


def test_compatible_candidates_pass_unchanged(grader: Grader) -> None:
    for config in (OFF, CaccConfig()):
        kept = construct(grader, NUMBER, candidates("#### 3", "#### 4"), config, "hash")
        assert [(one.key, one.parent, one.ops) for one in kept] == [("3", 0, ()), ("4", 1, ())]


def test_each_operator_does_its_part_alone(grader: Grader) -> None:
    on = {"align": False, "repair": False, "denoise": False}

    def keys(**more: bool) -> list[tuple[int, str, tuple[str, ...]]]:
        repairer = Scripted("#### 5")
        found = construct(grader, NUMBER, POOL, CaccConfig(**(on | more)), "hash", repairer)
        return [(one.parent, one.key, one.ops) for one in found]

    strictly = [(0, "37", ()), (4, "36", ())]
    assert keys() == strictly
    assert keys(align=True) == sorted(
        [*strictly, (1, "37", ("align",)), (5, "37", ("align",))], key=lambda one: one[0]
    )
    assert [one[0] for one in keys(repair=True)] == [0, 1, 2, 3, 4, 5, 6]
    assert keys(denoise=True) == strictly
    # Of two equal texts one stays; the placeholder's echo goes, even when it was repaired.
    assert [one[0] for one in keys(align=True, repair=True, denoise=True)] == [0, 1, 3, 4, 6]


def test_repair_sees_only_what_alignment_left(grader: Grader) -> None:
    repairer = Scripted("#### 5")
    construct(grader, NUMBER, POOL, CaccConfig(), "hash", repairer)
    assert repairer.seen == [2, 3, 6]


@pytest.mark.parametrize(
    ("asked", "style", "text"),
    [(NUMBER, "hash", "#### 5"), (LETTER, "hash", "The correct option is (B)")],
)
def test_an_unlikely_continuation_is_noise(
    grader: Grader, asked: Asked, style: str, text: str
) -> None:
    least = CaccConfig().least(asked)
    assert least == (0.25 if asked.options else 0.05)
    for probability, kept in ((least * 0.99, 0), (least * 1.01, 1)):
        repairer = Scripted(text, probability)
        found = construct(
            grader, asked, candidates("Hmm, well"), CaccConfig(), style, repairer
        )  # fmt: skip
        assert len(found) == kept


def test_echoes_and_hedges() -> None:
    assert is_echo(NUMBER, "#### <answer>")
    assert is_echo(NUMBER, "What is 30 + 7?")
    assert not is_echo(NUMBER, "")
    assert not is_echo(NUMBER, "#### 37")
    assert is_hedge(NUMBER, "#### 3\n#### 4")
    assert not is_hedge(NUMBER, "#### 3\n#### 3")
    assert is_hedge(LETTER, "(A) or (B)")
    assert is_hedge(LATEX, r"\boxed{1} \boxed{2}")
    assert is_hedge(LATEX, r"\boxed{\frac{1}{2}} or \boxed{\frac{2}{3}}")
    # The placeholder copied after an answer, or a comma, contradicts nothing.
    assert not is_hedge(NUMBER, "#### 37\n#### <answer>")
    assert not is_hedge(NUMBER, "#### 1,234\n#### 1234")


def test_a_degenerate_sampler_cannot_stuff_the_ballot(grader: Grader) -> None:
    """Of equal texts one votes, however it became readable; equal answers of others all do."""
    for text in ("", "Hmm, well", "#### 5"):
        pool = candidates(text, text, f" {text}\n", "It is 5.")
        found = construct(grader, NUMBER, pool, CaccConfig(), "hash", Scripted("#### 5"))
        assert [(one.parent, one.key) for one in found] == [(0, "5"), (3, "5")]


def test_a_loop_of_digits_is_no_number(grader: Grader) -> None:
    """Python refuses to convert more than 4,300 digits."""
    assert strict(NUMBER, "#### " + "9" * 5000, "hash") is None
    assert grader.read(NUMBER, "It is " + "9" * 5000) is None


def test_inadmissible_answers_are_noise(grader: Grader) -> None:
    found = construct(
        grader, NUMBER, candidates("#### 9999999999999", "#### 12"), CaccConfig(), "hash"
    )
    assert [one.key for one in found] == ["12"]


TEXTS = st.sampled_from(
    ["#### 37", "It is 37.", "#### 3", "30 + 7 =", "", "#### <answer>", "36", "#### 1\n#### 2"]
)


@settings(max_examples=60, deadline=None)
@given(st.lists(TEXTS, max_size=6))
def test_alignment_only_adds_and_noise_removal_only_drops(grader: Grader, texts: list[str]) -> None:
    pool = candidates(*texts)

    def parents(**on: bool) -> dict[int, str]:
        config = CaccConfig(**({"align": False, "repair": False, "denoise": False} | on))
        return {c.parent: c.key for c in construct(grader, NUMBER, pool, config, "hash")}

    assert parents().items() <= parents(align=True).items()
    assert parents(align=True, denoise=True).items() <= parents(align=True).items()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(TEXTS, st.integers()), max_size=6))
def test_a_second_pass_changes_nothing(grader: Grader, texts: list[tuple[str, int]]) -> None:
    """The selector's own form of what CACC made is a pool of compatible candidates."""
    once = construct(grader, NUMBER, candidates(*(text for text, _ in texts)), CaccConfig(), "hash")
    # Different texts, since equal texts are noise: the answer stands in the last line.
    again = candidates(*(f"Step {n}.\n#### {one.key}" for n, one in enumerate(once)))
    twice = construct(grader, NUMBER, again, CaccConfig(), "hash")
    assert [one.key for one in twice] == [one.key for one in once]
    assert all(one.ops == () for one in twice)


def test_what_interfaces_see_has_no_gold() -> None:
    assert not any("gold" in name for name in Asked.__dataclass_fields__)


# -------------------------------------------------------------------------------------------------
# Controls


def test_a_placebo_fills_every_gap_and_knows_nothing(grader: Grader) -> None:
    pool = candidates(*["Hmm, well."] * 400)
    right = sum(one.key == "B" for one in placebo(LETTER, pool, [], reader=grader, seed="s"))
    assert 60 < right < 140  # 100 expected, four standard deviations 35
    kept = construct(grader, NUMBER, POOL, OFF, "hash")
    filled = placebo(NUMBER, POOL, kept, reader=grader, seed="s")
    assert [one.parent for one in filled] == list(range(len(POOL)))
    assert [one for one in filled if not one.ops] == kept
    assert {one.key for one in filled if one.ops} <= {"30", "7"}
    assert filled == placebo(NUMBER, POOL, kept, reader=grader, seed="s")
    assert filled != placebo(NUMBER, POOL, kept, reader=grader, seed="other")


def test_the_harness_filters_take_the_last_number_and_the_said_letter(grader: Grader) -> None:
    texts = candidates("3 apples and $1,234.", "none", "so 12 of 15")
    found = harness_filter(NUMBER, texts, reader=grader)
    assert [(one.parent, one.key) for one in found] == [(0, "1234"), (2, "15")]
    said = harness_filter(LETTER, candidates("the answer is (C).", "(C)"), reader=grader)
    assert [(one.parent, one.key) for one in said] == [(0, "C")]


def test_shuffled_golds_leave_every_interface_as_it_is(grader: Grader) -> None:
    """Gold enters nowhere: neither the arguments nor a global can carry it."""
    golds = ["37", "36", "5"]
    outputs = []
    for _ in range(3):
        random.shuffle(golds)
        grader.equal(NUMBER, golds[0], ["37", "36"])
        outputs.append(construct(grader, NUMBER, POOL, CaccConfig(), "hash"))
    assert outputs[0] == outputs[1] == outputs[2]
