"""The task: demonstrations are what they say, and the verifier reads the end."""

import numpy as np
import torch

from replicata.papers.rlvr_entropy.task import (
    DIGIT,
    END,
    FILLER,
    MARK,
    PAD,
    Task,
    response_mask,
    verify,
)

TASK = Task(fillers=6, max_length=12, mean_filler=4.0, right_short=1.0, right_long=0.0)


def test_prompts_are_split_once_and_for_all():
    other = Task(fillers=2, max_length=5, mean_filler=1.0, right_short=0.5, right_long=0.5)
    assert TASK.train_prompts.shape == (80, 3)
    assert TASK.test_prompts.shape == (20, 3)
    pairs = {tuple(row) for row in torch.cat([TASK.train_prompts, TASK.test_prompts]).tolist()}
    assert len(pairs) == 100
    assert torch.equal(TASK.test_prompts, other.test_prompts)


def test_demonstrations_verify_as_often_as_they_should():
    sequences, weights = TASK.demonstrations(20_000, np.random.default_rng(0))
    prompts, tokens = sequences[:, :3], sequences[:, 3:]
    mask, overlong = response_mask(tokens)
    assert torch.equal(mask, weights[:, 3:] > 0)
    assert (weights[:, :3] == 0).all()
    length = mask.sum(-1) - 3  # of the filler
    # Over-long: the filler and its tail do not fit, a geometric tail probability.
    assert abs(overlong.float().mean() - 0.8**10) < 0.01
    right = verify(prompts, tokens)
    for filler in (0, 3, 6):
        own = right[~overlong & (length == filler)]
        assert abs(own.mean() - (1 - filler / 9)) < 0.05
    assert not right[overlong].any()


def test_the_answers_weight_marks_the_answer():
    sequences, weights = TASK.demonstrations(500, np.random.default_rng(1))
    rows, places = (weights == 2).nonzero(as_tuple=True)
    answers = sequences[rows, places]
    assert ((answers >= DIGIT) & (answers < FILLER)).all()
    assert (sequences[rows, places - 1] == MARK).all()


def test_the_verifier_by_hand():
    prompt = torch.tensor([3, DIGIT + 2, DIGIT + 7])
    good = [FILLER, MARK, DIGIT + 7, END, PAD, PAD]
    cases = {
        "right": (good, 1.0),
        "wrong digit": ([FILLER, MARK, DIGIT + 2, END, PAD, PAD], 0.0),
        "no marker": ([FILLER, FILLER, DIGIT + 7, END, PAD, PAD], 0.0),
        "over-long": ([FILLER, FILLER, FILLER, FILLER, MARK, DIGIT + 7], 0.0),
        "too short": ([DIGIT + 7, END, PAD, PAD, PAD, PAD], 0.0),
        "right at the limit": ([FILLER, FILLER, FILLER, MARK, DIGIT + 7, END], 1.0),
    }
    tokens = torch.tensor([row for row, _ in cases.values()])
    found = verify(prompt.expand(len(cases), 3), tokens)
    assert dict(zip(cases, found.tolist(), strict=True)) == {n: v for n, (_, v) in cases.items()}
    _, overlong = response_mask(tokens)
    assert overlong.tolist() == [False, False, False, True, False, False]
