"""The transformers engine against plain ``generate``, a hand-written loop and full forwards."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from scipy import stats
from transformers import GenerationConfig

from replicata.errors import RunError, UsageError
from replicata.inference import Sampling
from replicata.inference.transformers_engine import TransformersEngine

GREEDY = Sampling(max_tokens=24, logprobs=3)


@pytest.fixture(scope="module")
def engine(tiny):
    with TransformersEngine(tiny) as engine:
        yield engine


def test_greedy_is_the_argmax_loop_and_plain_generate(tiny, tiny_prompts, engine, greedy):
    completions = engine.generate(tiny_prompts, GREEDY)
    for prompt, completion in zip(tiny_prompts, completions, strict=True):
        assert completion.token_ids == greedy(tiny.model, prompt, 24).token_ids
        plain = tiny.model.generate(
            torch.tensor([prompt]), max_new_tokens=24, do_sample=False, eos_token_id=[]
        )
        assert completion.token_ids == plain[0, len(prompt) :].tolist()
        assert completion.finish_reason == "length"
        assert completion.text == tiny.tokenizer.decode(completion.token_ids)


def test_logprobs_are_those_of_full_forward_passes(tiny, tiny_prompts, engine, greedy):
    for prompt, completion in zip(tiny_prompts, engine.generate(tiny_prompts, GREEDY), strict=True):
        expected = greedy(tiny.model, prompt, 24).distributions
        for step, token in enumerate(completion.token_ids):
            assert completion.logprobs[step] == pytest.approx(
                float(expected[step, token]), abs=1e-4
            )
            best = expected[step].topk(3)
            assert list(completion.top_logprobs[step]) == best.indices.tolist()
            assert list(completion.top_logprobs[step].values()) == pytest.approx(
                best.values.tolist(), abs=1e-4
            )


def test_the_real_model_agrees_with_the_argmax_loop(real, real_prompts, greedy):
    with TransformersEngine(real) as engine:
        sampling = Sampling(max_tokens=6, stop_token_ids=real.stop_token_ids)
        completions = engine.generate(real_prompts, sampling)
    for prompt, completion in zip(real_prompts, completions, strict=True):
        expected = greedy(real.model, prompt, 6, real.stop_token_ids)
        assert completion.token_ids == expected.token_ids
        chosen = expected.distributions.gather(1, torch.tensor([expected.token_ids]).T)[:, 0]
        assert completion.logprobs == pytest.approx(chosen.tolist(), abs=1e-3)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_neither_padding_nor_batching_changes_anything(tiny, tiny_prompts, temperature):
    sampling = Sampling(max_tokens=16, temperature=temperature, seed=11, logprobs=1)
    together = TransformersEngine(tiny, batch_size=4).generate(tiny_prompts, sampling)
    apart = TransformersEngine(tiny, batch_size=1).generate(tiny_prompts, sampling)
    for one, other in zip(together, apart, strict=True):
        assert one.token_ids == other.token_ids
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)
        assert one.top_logprobs[0].keys() == other.top_logprobs[0].keys()


def test_generation_stops_at_the_given_tokens_and_only_there(tiny, tiny_prompts, engine):
    free = [completion.token_ids for completion in engine.generate(tiny_prompts, GREEDY)]
    stop = free[0][5]
    stopped = engine.generate(tiny_prompts, Sampling(max_tokens=24, stop_token_ids=(stop, 999)))
    for unbounded, completion in zip(free, stopped, strict=True):
        if stop in unbounded:
            end = unbounded.index(stop) + 1
            assert completion.finish_reason == "stop"
            assert completion.text == tiny.tokenizer.decode(unbounded[: end - 1])
        else:
            end = 24
            assert completion.finish_reason == "length"
        assert completion.token_ids == unbounded[:end]
        assert len(completion.logprobs) == len(completion.top_logprobs) == end
    assert stopped[0].finish_reason == "stop"
    # The model's own end token is no exception: it does not stop what was not asked to stop.
    ends_at_once = replace(tiny, model=_with_end_token(tiny.model, free[0][0]))
    again = TransformersEngine(ends_at_once).generate(tiny_prompts[:1], GREEDY)
    assert again[0].token_ids == free[0]


def _with_end_token(model, token):
    """Return a copy of the model that declares ``token`` as its end."""
    copy = type(model)(model.config)
    copy.load_state_dict(model.state_dict())
    copy.generation_config = GenerationConfig(eos_token_id=token)
    return copy.eval()


def test_no_setting_is_inherited_from_the_model(tiny, tiny_prompts, engine, hostile_settings):
    hostile = _with_end_token(tiny.model, 7)
    hostile.generation_config = GenerationConfig(**hostile_settings)
    # The settings are such that transformers would follow them.
    inherited = hostile.generate(torch.tensor([tiny_prompts[0]]), max_new_tokens=24)
    expected = engine.generate(tiny_prompts, GREEDY)
    assert inherited[0, len(tiny_prompts[0]) :].tolist() != expected[0].token_ids

    other = TransformersEngine(replace(tiny, model=hostile))
    assert other.generate(tiny_prompts, GREEDY) == expected
    sampling = Sampling(max_tokens=9, temperature=1.3, top_p=0.8, seed=1)
    assert other.generate(tiny_prompts, sampling) == engine.generate(tiny_prompts, sampling)
    # The engine leaves the model as it found it.
    assert hostile.generation_config.temperature == hostile_settings["temperature"]


def test_samples_follow_the_tempered_distribution(tiny, tiny_prompts, engine, greedy):
    """Chi-square of 4,000 first tokens against softmax(logits / T); rare tokens are pooled."""
    draws, temperature = 4000, 0.5
    sampling = Sampling(max_tokens=1, temperature=temperature, seed=3)
    completions = TransformersEngine(tiny, batch_size=500).generate(
        [tiny_prompts[0]] * draws, sampling
    )
    counts = Counter(completion.token_ids[0] for completion in completions)
    raw = greedy(tiny.model, tiny_prompts[0], 1).distributions[0]
    expected = torch.softmax(raw / temperature, dim=0).numpy() * draws
    common = expected >= 5
    observed = [counts[token] for token in common.nonzero()[0]]
    wanted = list(expected[common])
    observed.append(draws - sum(observed))
    wanted.append(draws - sum(wanted))
    assert len(wanted) > 20
    assert stats.chisquare(observed, wanted).pvalue > 1e-3
    # Reported log-probabilities are the model's own, before the temperature.
    for completion in completions[:20]:
        token = completion.token_ids[0]
        assert completion.logprobs[0] == pytest.approx(float(raw[token]), abs=1e-4)


def test_top_p_keeps_the_nucleus_and_nothing_else(tiny, tiny_prompts, greedy):
    raw = greedy(tiny.model, tiny_prompts[0], 1).distributions[0].exp()
    order = raw.argsort(descending=True)
    size = int((raw[order].cumsum(0) < 0.3).sum()) + 1
    completions = TransformersEngine(tiny, batch_size=500).generate(
        [tiny_prompts[0]] * 1000, Sampling(max_tokens=1, temperature=1.0, top_p=0.3, seed=3)
    )
    drawn = {completion.token_ids[0] for completion in completions}
    assert 1 < size < 50
    assert drawn == set(order[:size].tolist())


def test_samples_depend_on_the_seed_and_not_on_the_global_random_state(tiny_prompts, engine):
    sampling = Sampling(max_tokens=12, temperature=1.0, seed=5)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = engine.generate(tiny_prompts, sampling)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    assert engine.generate(tiny_prompts, sampling) == first
    assert engine.generate(tiny_prompts, sampling.model_copy(update={"seed": 6})) != first
    # The same prompt several times gives several samples.
    repeated = engine.generate([tiny_prompts[0]] * 3, sampling)
    assert len({tuple(completion.token_ids) for completion in repeated}) == 3


def test_no_prompts_no_completions(engine):
    assert engine.generate([], GREEDY) == []


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "prompt 1: it is empty"),
        ([1, 259], "prompt 1: token id 259 is outside the vocabulary of 259"),
        ([-1], "prompt 1: token id -1 is outside"),
        ([1] * 2025, "prompt 1: 2025 tokens and max_tokens 24 exceed the engine's 2048 positions"),
    ],
)
def test_bad_prompts_are_named(engine, prompt, message):
    with pytest.raises(UsageError, match=message):
        engine.generate([[1, 2], prompt], GREEDY)


def test_a_failing_model_is_a_sentence(tiny, tiny_prompts, monkeypatch):
    def fail(*args, **kwargs):
        raise RuntimeError("out of\nmemory")

    monkeypatch.setattr(tiny.model, "generate", fail)
    shipped = tiny.model.generation_config
    with pytest.raises(RunError, match="generation failed: out of memory"):
        TransformersEngine(tiny).generate(tiny_prompts, GREEDY)
    assert tiny.model.generation_config is shipped


def test_a_closed_engine_says_so(tiny, tiny_prompts):
    with TransformersEngine(tiny) as engine:
        pass
    engine.close()
    with pytest.raises(RunError, match="closed"):
        engine.generate(tiny_prompts, GREEDY)
