"""A stack of policies against the same policies one by one, in plain transformers."""

import copy

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from replicata.errors import UsageError
from replicata.training.stacked import clip_gradients, policy_state, stack_policies

POLICIES = 3


def make_model(tied=True):
    torch.manual_seed(1)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=20,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            tie_word_embeddings=tied,
            initializer_range=0.3,
            bos_token_id=None,
            eos_token_id=1,
            pad_token_id=0,
        )
    ).eval()


@pytest.fixture
def apart():
    """A stack whose policies differ, and the same policies as plain models."""
    plain = make_model()
    stacked = stack_policies(copy.deepcopy(plain), POLICIES)
    with torch.no_grad():
        for parameter in stacked.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    singles = []
    for policy in range(POLICIES):
        single = copy.deepcopy(plain)
        single.load_state_dict(policy_state(stacked, policy))
        singles.append(single)
    return stacked, singles


def test_a_stack_starts_as_copies():
    model = make_model()
    ids = torch.randint(20, (4, 7))
    expected = model(ids).logits
    found = stack_policies(model, POLICIES)(ids.repeat(POLICIES, 1)).logits.unflatten(0, (3, 4))
    assert torch.allclose(found, expected.expand_as(found), atol=1e-5)


def test_logits_and_gradients_are_each_policys_own(apart):
    stacked, singles = apart
    ids = torch.randint(1, 20, (POLICIES * 4, 7))  # 0 is padding: see StackedEmbedding
    logits = stacked(ids).logits.unflatten(0, (POLICIES, 4))
    logits.square().mean((1, 2, 3)).sum().backward()
    gradients = {name: p.grad for name, p in stacked.named_parameters()}
    for policy, single in enumerate(singles):
        own = single(ids.unflatten(0, (POLICIES, 4))[policy]).logits
        assert torch.allclose(logits[policy], own, atol=1e-5)
        own.square().mean().backward()
        for name, parameter in single.named_parameters():
            expected = parameter.grad
            assert torch.allclose(gradients[name][policy], expected, atol=1e-5, rtol=1e-3), name


def test_generate_with_cache_is_each_policys_own(apart):
    stacked, singles = apart
    prompts = torch.randint(3, 20, (POLICIES * 5, 3))
    options = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    mask = torch.ones_like(prompts)
    found = stacked.generate(prompts, attention_mask=mask, **options)
    for policy, single in enumerate(singles):
        own = slice(policy * 5, policy * 5 + 5)
        expected = single.generate(prompts[own], attention_mask=mask[own], **options)
        width = expected.shape[1]
        assert torch.equal(found[own][:, :width], expected)


def test_tied_weights_stay_tied_and_untied_stay_apart():
    tied, untied = stack_policies(make_model(True), 2), stack_policies(make_model(False), 2)
    assert tied.lm_head.weight is tied.model.embed_tokens.weight
    assert untied.lm_head.weight is not untied.model.embed_tokens.weight


def test_gradients_are_clipped_policy_by_policy():
    parameters = [torch.nn.Parameter(torch.zeros(3, 4)), torch.nn.Parameter(torch.zeros(3, 2, 2))]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
        parameter.grad[1] *= 100
    before = [p.grad.clone() for p in parameters]
    norms = clip_gradients(parameters, 5.0)
    for policy in range(3):
        own = [torch.nn.Parameter(torch.zeros_like(p[policy])) for p in parameters]
        for parameter, gradient in zip(own, before, strict=True):
            parameter.grad = gradient[policy].clone()
        expected = torch.nn.utils.clip_grad_norm_(own, 5.0)
        assert torch.isclose(norms[policy], expected)
        for parameter, stack in zip(own, parameters, strict=True):
            assert torch.allclose(parameter.grad, stack.grad[policy])


def test_what_cannot_be_stacked_is_named():
    config = GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=11)
    with pytest.raises(UsageError, match="expected a linear layer without bias"):
        stack_policies(GPT2LMHeadModel(config), 2)
    with pytest.raises(UsageError, match="policies is 0"):
        stack_policies(make_model(), 0)
