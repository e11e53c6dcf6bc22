"""Rollouts: transformers' generation draws from q, alone or in a stack, and what is recorded."""

import copy

import pytest
import torch
from scipy.stats import chisquare
from transformers import LogitsProcessorList, TopPLogitsWarper

from replicata.papers.rlvr_entropy.base import build_policy
from replicata.papers.rlvr_entropy.experiment import ModelParams
from replicata.papers.rlvr_entropy.rollout import gumbel_noise, response_logits, roll
from replicata.papers.rlvr_entropy.samplers import SAMPLERS, Sampler
from replicata.papers.rlvr_entropy.task import Task
from replicata.training.stacked import policy_state, stack_policies

TASK = Task(fillers=4, max_length=7, mean_filler=2.0, right_short=0.9, right_long=0.3)
NAMES = ["topp", "exact", "cool"]


@pytest.fixture(scope="module")
def policy():
    torch.manual_seed(0)
    model = build_policy(ModelParams(width=32, layers=2), TASK.vocabulary).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(6 if parameter.ndim > 1 else 1)  # away from a uniform policy
    return model


@pytest.fixture(scope="module")
def rolled(policy):
    stacked = stack_policies(copy.deepcopy(policy), 3)
    with torch.no_grad():
        for parameter in stacked.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    prompts = TASK.train_prompts[:10]
    noise = gumbel_noise(10, TASK.max_length, TASK.vocabulary, 3)
    return stacked, roll(stacked, [SAMPLERS[n] for n in NAMES], prompts, noise), prompts, noise


def test_a_stack_rolls_what_its_policies_roll_alone(policy, rolled):
    stacked, together, prompts, noise = rolled
    for index, name in enumerate(NAMES):
        single = copy.deepcopy(policy)
        single.load_state_dict(policy_state(stacked, index))
        alone = roll(single, [SAMPLERS[name]], prompts, noise)
        width = alone.tokens.shape[-1]
        mask = alone.mask[0]
        assert torch.equal(together.mask[index, :, :width], mask)
        assert torch.equal(together.tokens[index, :, :width][mask], alone.tokens[0][mask])
        kept = together.kept[index, :, :width]
        assert torch.equal(kept[mask], alone.kept[0][mask])
        log_q = together.log_q[index, :, :width]
        assert torch.allclose(log_q[mask], alone.log_q[0][mask], atol=1e-4)


def test_what_is_recorded_agrees_with_a_forward_pass_without_cache(rolled):
    stacked, rollout, _, _ = rolled
    logits = response_logits(stacked, rollout)
    for index, name in enumerate(NAMES):
        sampler, mask = SAMPLERS[name], rollout.mask[index]
        own = logits[index] / sampler.temperature
        own = own.masked_fill(~sampler.kept(logits[index]), -torch.inf).log_softmax(-1)
        chosen = own.gather(-1, rollout.tokens[index][..., None])[..., 0]
        assert torch.allclose(chosen[mask], rollout.log_q[index][mask], atol=1e-4)
        inside = rollout.kept[index].gather(-1, rollout.tokens[index][..., None])[..., 0]
        assert inside[mask].all()


@pytest.mark.parametrize("name", ["exact", "topp", "hot"])
def test_first_tokens_have_the_samplers_frequencies(policy, name):
    prompts = TASK.train_prompts[:1].repeat(6000, 1)
    noise = gumbel_noise(6000, 1, TASK.vocabulary, 5)
    rollout = roll(policy, [SAMPLERS[name]], prompts, noise)
    logits = policy(prompts[:1]).logits[0, -1].detach().double()
    sampler = SAMPLERS[name]
    kept = sampler.kept(logits)
    q = (logits / sampler.temperature).masked_fill(~kept, -torch.inf).softmax(-1)
    counts = torch.bincount(rollout.tokens.flatten(), minlength=TASK.vocabulary)
    assert counts[~kept].sum() == 0
    usual = (q * 6000 > 5) & kept
    expected = q[usual] / q[usual].sum() * counts[usual].sum()
    assert chisquare(counts[usual].numpy(), expected.numpy()).pvalue > 1e-3


def test_generation_agrees_with_transformers_own_warper_and_sampling(policy):
    """The same distribution by transformers' top-p warper and its multinomial sampling."""
    prompts = TASK.train_prompts[:1].repeat(6000, 1)
    torch.manual_seed(0)
    theirs = policy.generate(
        prompts,
        attention_mask=torch.ones_like(prompts),
        max_new_tokens=1,
        do_sample=True,
        top_k=0,
        logits_processor=LogitsProcessorList([TopPLogitsWarper(0.9)]),
        pad_token_id=0,
    )[:, -1]
    noise = gumbel_noise(6000, 1, TASK.vocabulary, 7)
    ours = roll(policy, [Sampler(top_p=0.9)], prompts, noise).tokens.flatten()
    both = [torch.bincount(x, minlength=TASK.vocabulary).double() / 6000 for x in (theirs, ours)]
    assert (both[0] - both[1]).abs().max() < 0.03


def test_noise_belongs_to_a_response_and_not_to_the_batch(policy):
    noise = gumbel_noise(10, TASK.max_length, TASK.vocabulary, 3)
    prompts = TASK.train_prompts[:10]
    whole = roll(policy, [SAMPLERS["topp"]], prompts, noise)
    part = roll(policy, [SAMPLERS["topp"]], prompts[4:7], noise[4:7])
    width = part.tokens.shape[-1]
    assert torch.equal(whole.tokens[0, 4:7, :width][part.mask[0]], part.tokens[0][part.mask[0]])
