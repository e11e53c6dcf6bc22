"""Measurements on a tiny model against plain forward passes that know no cache and no packing."""

import pytest
import torch

from replicata.models import load_model
from replicata.papers.kvfold import measure
from replicata.papers.kvfold.measure import ArmCache
from replicata.papers.kvfold.question import Question

CONTEXT = "Alma works as a baker. Bruno works as a pilot. Clara works as a nurse."
QUESTIONS = ["What is Alma's job?", "Who works as a pilot, of these three?"]


@pytest.fixture(scope="module")
def loaded():
    torch.set_num_threads(1)
    return load_model("tiny-llama")


@pytest.fixture(scope="module")
def prompts(loaded):
    return [measure.build_prompt(loaded.tokenizer, CONTEXT, q) for q in QUESTIONS]


@pytest.fixture(scope="module")
def prefill(loaded, prompts):
    return measure.prefill(loaded.model, prompts[0].prefix, prompts[0].prefix[:20])


@pytest.fixture(scope="module")
def full(prefill):
    return ArmCache(prefill.keys, prefill.values, prefill.length)


def plain(loaded, ids):
    """Log-probabilities (n, V) of one uncached forward pass."""
    with torch.no_grad():
        return loaded.model(torch.tensor([ids])).logits[0].log_softmax(-1)


def test_prompt_parts_are_the_whole_chat(loaded, prompts):
    chat = loaded.tokenizer.apply_chat_template(
        [{"role": "user", "content": f"{CONTEXT}\n\nQuestion: {QUESTIONS[1]}"}],
        tokenize=False,
        add_generation_prompt=True,
    )
    joined = loaded.tokenizer.decode(prompts[1].prefix + prompts[1].suffix)
    assert joined == chat
    assert prompts[0].prefix == prompts[1].prefix


def test_greedy_answers_are_those_of_a_loop_without_cache(loaded, full, prompts):
    answers, scores = measure.greedy_answers(
        loaded.model, full, [p.suffix for p in prompts], 6, stop=-1
    )
    for prompt, answer, score in zip(prompts, answers, scores, strict=True):
        ids = prompt.prefix + prompt.suffix
        for step in range(6):
            row = plain(loaded, ids)[-1]
            assert int(row.argmax()) == answer[step]
            assert torch.allclose(row, score[step], atol=1e-4)
            ids = [*ids, answer[step]]


def test_a_stop_token_ends_its_row_only(loaded, full, prompts):
    suffixes = [p.suffix for p in prompts]
    free, _ = measure.greedy_answers(loaded.model, full, suffixes, 6, stop=-1)
    stop = free[0][2]
    answers, scores = measure.greedy_answers(loaded.model, full, suffixes, 6, stop=stop)
    assert answers[0] == free[0][: free[0].index(stop) + 1]
    assert [len(s) for s in scores] == [len(a) for a in answers]


def test_teacher_forcing_equals_a_plain_forward_pass(loaded, full, prompts):
    answers = [[5, 9, 11], [7]]
    scored = measure.answer_log_probs(loaded.model, full, [p.suffix for p in prompts], answers)
    for prompt, answer, rows in zip(prompts, answers, scored, strict=True):
        ids = prompt.prefix + prompt.suffix
        expected = plain(loaded, ids + answer[:-1])[len(ids) - 1 :]
        assert torch.allclose(rows, expected, atol=1e-4)


def test_options_in_one_row_score_as_in_rows_of_their_own(loaded, full, prompts):
    question = Question(
        QUESTIONS[0], "baker", "Alma works as a", ("baker", "spy", "pilot", "nurse")
    )
    scores = measure.option_scores(
        loaded.model, loaded.tokenizer, full, [p.suffix for p in prompts], [question, question]
    )
    tokenize = loaded.tokenizer
    for row, prompt in zip(scores, prompts, strict=True):
        head = prompt.prefix + prompt.suffix
        head = head + tokenize(question.stem, add_special_tokens=False)["input_ids"]
        for score, option in zip(row, question.options, strict=True):
            tail = tokenize(f" {option}", add_special_tokens=False)["input_ids"]
            table = plain(loaded, head + tail)
            own = [table[len(head) - 1 + i, token] for i, token in enumerate(tail)]
            assert float(score) == pytest.approx(float(torch.stack(own).mean()), abs=1e-4)


def test_a_bias_of_log_2_is_a_key_twice(loaded, full, prompts):
    suffixes, answers = [p.suffix for p in prompts], [[5, 9], [7, 2]]
    chosen = 11
    bias = torch.zeros(full.keys.shape[:3])
    bias[:, :, chosen] = torch.log(torch.tensor(2.0))
    biased = ArmCache(full.keys, full.values, full.length, bias)
    twice = ArmCache(
        torch.cat([full.keys, full.keys[:, :, chosen : chosen + 1]], 2),
        torch.cat([full.values, full.values[:, :, chosen : chosen + 1]], 2),
        full.length,
    )
    a = measure.answer_log_probs(loaded.model, biased, suffixes, answers)
    b = measure.answer_log_probs(loaded.model, twice, suffixes, answers)
    plain_cache = measure.answer_log_probs(loaded.model, full, suffixes, answers)
    assert all(torch.allclose(x, y, atol=1e-4) for x, y in zip(a, b, strict=True))
    assert not torch.allclose(a[0], plain_cache[0], atol=1e-4)


def test_the_bias_of_each_layer_and_head_is_its_own(loaded, full, prompts):
    """Hiding an entry from one head of one layer is not hiding it from another."""
    suffix, answer = [prompts[0].suffix], [[5]]
    results = []
    for layer, head in ((0, 0), (0, 1), (1, 0)):
        bias = torch.zeros(full.keys.shape[:3])
        bias[layer, head, : full.length - 3] = -torch.inf
        cache = ArmCache(full.keys, full.values, full.length, bias)
        results.append(measure.answer_log_probs(loaded.model, cache, suffix, answer)[0])
    assert not torch.allclose(results[0], results[1], atol=1e-4)
    assert not torch.allclose(results[0], results[2], atol=1e-4)


def test_padded_entries_have_no_weight(loaded, full, prompts):
    suffixes, answers = [p.suffix for p in prompts], [[5, 9], [7, 2]]
    shape = (*full.keys.shape[:2], 4, full.keys.shape[3])
    noise = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    bias = torch.zeros(*full.keys.shape[:2], full.length + 4)
    bias[:, :, full.length :] = -torch.inf
    padded = ArmCache(
        torch.cat([full.keys, noise], 2), torch.cat([full.values, noise], 2), full.length, bias
    )
    a = measure.answer_log_probs(loaded.model, padded, suffixes, answers)
    b = measure.answer_log_probs(loaded.model, full, suffixes, answers)
    assert all(torch.allclose(x, y, atol=1e-5) for x, y in zip(a, b, strict=True))


def test_stock_sdpa_equals_the_eager_reference(loaded, full, prompts):
    suffixes, answers = [p.suffix for p in prompts], [[5, 9], [7, 2]]
    eager = load_model("tiny-llama", attn_implementation="eager")
    half = ArmCache(full.keys[:, :, ::2], full.values[:, :, ::2], full.length)
    a = measure.answer_log_probs(loaded.model, half, suffixes, answers)
    mask = torch.finfo(torch.float32).min
    rows = []
    for suffix, answer in zip(suffixes, answers, strict=True):
        ids = [*suffix, *answer[:-1]]
        past = measure._dynamic_cache(half, 1)
        allowed = measure._causal(len(ids), half.keys.shape[2])
        with torch.no_grad():
            out = eager.model(
                torch.tensor([ids]),
                past_key_values=past,
                position_ids=half.length + torch.arange(len(ids))[None],
                attention_mask=torch.where(allowed, 0.0, mask),
            )
        rows.append(out.logits[0, len(suffix) - 1 :].log_softmax(-1))
    assert all(torch.allclose(x, y, atol=1e-4) for x, y in zip(a, rows, strict=True))


def test_the_attention_implementation_comes_back_even_after_an_error(loaded, full):
    class Stop(Exception):
        pass

    bias = torch.zeros(full.keys.shape[:3])
    with pytest.raises(Stop), measure.biased_attention(loaded.model, bias):
        raise Stop
    assert loaded.model.config._attn_implementation == "sdpa"


def test_recorded_queries_are_the_rotated_projections(loaded, prefill, prompts):
    """Layer 0 by hand: embedding, norm, projection, rotation in complex numbers."""
    model = loaded.model.model
    ids = torch.tensor(prompts[0].prefix)
    layer = model.layers[0]
    with torch.no_grad():
        flat = layer.self_attn.q_proj(layer.input_layernorm(model.embed_tokens(ids)))
    heads, d = prefill.context_queries.shape[1], prefill.context_queries.shape[3]
    q = flat.view(len(ids), heads, d).transpose(0, 1).double()
    theta = loaded.model.config.rope_parameters["rope_theta"]
    angle = torch.arange(len(ids))[:, None] * theta ** (-torch.arange(d // 2).double() / (d // 2))
    turned = torch.complex(q[..., : d // 2], q[..., d // 2 :]) * torch.polar(
        torch.ones_like(angle), angle
    )
    expected = torch.cat([turned.real, turned.imag], -1).float()
    assert torch.allclose(prefill.context_queries[0], expected, atol=1e-4)


def test_kl_is_that_of_torch_in_float64():
    draw = torch.Generator().manual_seed(1)
    p, q = (torch.randn(5, 40, generator=draw).double().log_softmax(-1) for _ in range(2))
    expected = torch.nn.functional.kl_div(q, p, log_target=True, reduction="none").sum(-1)
    assert torch.allclose(measure.token_kl(p, q), expected, atol=1e-12)
    assert (measure.token_kl(p, p) == 0).all()
