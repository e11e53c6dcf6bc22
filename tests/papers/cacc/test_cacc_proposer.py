"""Pools: kept by content, resumed, cut to smaller budgets; repair by a real (tiny) model."""

import logging

import pytest
import torch

from replicata.errors import RunError
from replicata.inference import Sampling
from replicata.inference.transformers_engine import TransformersEngine
from replicata.models import load_model
from replicata.papers.cacc import proposer as proposer_module
from replicata.papers.cacc.engines import state_digest
from replicata.papers.cacc.pool import Asked, Candidate
from replicata.papers.cacc.prompts import FORCED, messages
from replicata.papers.cacc.proposer import Proposer, draw_pool
from replicata.papers.cacc.repairer import ModelRepairer, truth_scores

QUESTIONS = [Asked(f"q{i}", f"What is {i} + 7?", "number") for i in range(5)]
LETTER = Asked("l", "What is 2 + 2?", "letter", ("3", "4", "5", "6"))


@pytest.fixture(scope="module")
def loaded():
    return load_model("tiny-llama")


class Counting(TransformersEngine):
    """The reference engine, counting its calls and failing where asked to."""

    calls = 0
    fail_at = -1

    def generate(self, prompts, sampling):
        self.calls += 1
        if self.calls == self.fail_at:
            raise RunError("stopped")
        return super().generate(prompts, sampling)


@pytest.fixture
def proposer(loaded, tmp_path, monkeypatch):
    monkeypatch.setenv("REPLICATA_CACHE", str(tmp_path))
    return Proposer(loaded, Counting(loaded), "transformers test", batch=4, batch_tokens=4000)


SAMPLING = Sampling(max_tokens=6, temperature=0.9, seed=3, stop_token_ids=(2,))


def test_pool_is_drawn_once(proposer):
    first = draw_pool(proposer, "p", QUESTIONS, 2, "plain", SAMPLING)
    calls = proposer.engine.calls
    assert calls == 3  # 10 sequences in batches of 4
    assert [len(row) for row in first] == [2] * 5
    assert draw_pool(proposer, "p", QUESTIONS, 2, "plain", SAMPLING) == first
    assert proposer.engine.calls == calls


def test_stopped_run_goes_on(proposer, tmp_path):
    proposer.engine.fail_at = 3
    with pytest.raises(RunError, match="stopped"):
        draw_pool(proposer, "p", QUESTIONS, 2, "plain", SAMPLING)
    (path,) = tmp_path.glob("pools/*/p-*.jsonl")
    path.write_text(path.read_text() + '{"digest": "abc')  # killed while it wrote
    resumed = draw_pool(proposer, "p", QUESTIONS, 2, "plain", SAMPLING)
    assert proposer.engine.calls == 4
    path.unlink()
    assert draw_pool(proposer, "p", QUESTIONS, 2, "plain", SAMPLING) == resumed


def test_changed_template_is_drawn_anew_and_said(proposer, tmp_path, monkeypatch, caplog):
    draw_pool(proposer, "p", QUESTIONS, 2, "plain", SAMPLING)
    calls = proposer.engine.calls
    monkeypatch.setattr(
        proposer_module, "messages", lambda asked, style: [{"role": "user", "content": asked.text}]
    )
    with caplog.at_level(logging.WARNING):
        draw_pool(proposer, "p", QUESTIONS, 2, "plain", SAMPLING)
    assert proposer.engine.calls == 2 * calls
    assert "drawn anew" in caplog.text
    assert len(list(tmp_path.glob("pools/*/p-*.jsonl"))) == 2


def test_damaged_pool_is_refused(proposer, tmp_path):
    draw_pool(proposer, "p", QUESTIONS, 2, "plain", SAMPLING)
    (path,) = tmp_path.glob("pools/*/p-*.jsonl")
    path.write_text(path.read_text().replace("token_ids", "tokens", 1))
    with pytest.raises(RunError, match="line 1"):
        draw_pool(proposer, "p", QUESTIONS, 2, "plain", SAMPLING)


def test_smaller_budget_is_a_prefix(proposer):
    """What a sample of 6 tokens is at 3 tokens is what sampling 3 tokens gives."""
    long = draw_pool(proposer, "p", QUESTIONS, 1, "plain", SAMPLING)
    short = draw_pool(
        proposer, "s", QUESTIONS, 1, "plain", SAMPLING.model_copy(update={"max_tokens": 3})
    )
    for (one,), (other,) in zip(long, short, strict=True):
        a = one.candidate(proposer.loaded.tokenizer, (2,), 3, "plain")
        b = other.candidate(proposer.loaded.tokenizer, (2,), 3, "plain")
        assert (a.text, a.finished, a.n_tokens) == (b.text, b.finished, b.n_tokens)
        assert a.sum_logprob == pytest.approx(b.sum_logprob, abs=1e-4)


def test_batches_respect_both_limits(proposer):
    small = Proposer(proposer.loaded, proposer.engine, "t", batch=3, batch_tokens=10)
    cuts = small.batches([[1] * n for n in (4, 4, 4, 1, 1, 1, 1, 20)])
    assert [list(cut) for cut in cuts] == [[0, 1], [2, 3, 4], [5, 6], [7]]


def test_repair_is_the_models_own_and_changes_nothing(proposer):
    before = state_digest(proposer.loaded.model)
    repairer = ModelRepairer(proposer, 4)
    fragment = Candidate("It is 1", False, 3, -3.0, "plain")
    value = repairer(QUESTIONS[0], [(2, fragment)])[2]
    letter = repairer(LETTER, [(0, fragment)])[0]
    assert state_digest(proposer.loaded.model) == before
    assert value.text.startswith("#### ")
    assert 1 <= value.n_tokens <= 4
    assert letter.n_tokens == 1
    assert 0 < value.probability <= 1
    # An oracle without the shared cache of prefixes: one plain forward pass.
    tokenizer = proposer.loaded.tokenizer
    text = tokenizer.apply_chat_template(
        messages(LETTER, "plain"), tokenize=False, add_generation_prompt=True
    )
    ids = tokenizer.encode(text + fragment.text + FORCED["letter"], add_special_tokens=False)
    with torch.inference_mode():
        logits = proposer.loaded.model(torch.tensor([ids])).logits[0, -1].log_softmax(-1)
    scores = [float(logits[tokenizer.encode(x, add_special_tokens=False)[0]]) for x in "ABCD"]
    assert letter.text == f"The correct option is ({'ABCD'[scores.index(max(scores))]})"
    assert letter.probability == pytest.approx(2.718281828 ** max(scores), rel=1e-4)


def test_truth_scores_do_not_depend_on_company(proposer):
    alone = truth_scores(proposer, [(LETTER, "B) 4")])
    together = truth_scores(proposer, [(LETTER, "A) 3"), (LETTER, "B) 4"), (QUESTIONS[1], "8")])
    assert together["l", "B) 4"] == pytest.approx(alone["l", "B) 4"], abs=1e-4)
    assert together["l", "A) 3"] != together["l", "B) 4"]
