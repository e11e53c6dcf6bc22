"""The endpoint engine against a small real server that answers as vLLM's and as a generic one do.

The server computes its answers with the hand-written decoding loop, so the whole way there and back
is compared with an oracle. What it returns in vLLM's manner was compared once with vLLM 0.32's own
server, whose start takes too long for a test.
"""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch

from replicata.errors import ResourceError, RunError, UsageError
from replicata.inference import Sampling
from replicata.inference.endpoint_engine import EndpointEngine
from replicata.inference.transformers_engine import TransformersEngine


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server = self.server
        with server.lock:
            server.requests.append((self.path, self.headers["Authorization"], body))
            failure = server.failures.pop() if server.failures else None
            answer = failure or (200, server.answer(body))
        status, content = answer
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args):
        pass


@pytest.fixture
def server(tiny, greedy):
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.lock = threading.Lock()
        server.requests, server.failures = [], []
        server.answer = lambda body: complete(tiny, greedy, body)
        server.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def complete(tiny, greedy, body):
    """Answer a completions request: with ids if it came with ids, else with text only."""
    as_ids = isinstance(body["prompt"], list)
    prompt = body["prompt"] if as_ids else tiny.tokenizer.encode(body["prompt"])
    stop = body.get("stop_token_ids", [])
    if not as_ids:
        stop = [tiny.tokenizer.convert_tokens_to_ids(text) for text in body["stop"]]
    decoded = greedy(tiny.model, prompt, body["max_tokens"], stop)
    ids = decoded.token_ids
    stopped = ids[-1] in stop
    choice = {
        "index": 0,
        "finish_reason": "stop" if stopped else "length",
        "text": tiny.tokenizer.decode(ids[:-1] if stopped else ids),
        "logprobs": None,
    }
    if as_ids:
        rows = list(zip(decoded.distributions, ids, strict=True))
        choice["token_ids"] = ids
        choice["logprobs"] = {
            "tokens": [f"token_id:{token}" for token in ids],
            "token_logprobs": [float(row[token]) for row, token in rows],
            # As vLLM does: the chosen token is always among them.
            "top_logprobs": [
                {f"token_id:{t}": float(row[t]) for t in [token, *row.topk(body["logprobs"])[1]]}
                for row, token in rows
            ],
            "text_offset": [],
        }
    return {
        "id": "cmpl-1",
        "object": "text_completion",
        "created": 0,
        "model": body["model"],
        "choices": [choice],
    }


def connect(place, tiny, **changes):
    options = {
        "api_key_env": None,
        "tokenizer": tiny.tokenizer,
        "max_model_len": 2048,
        "max_retries": 0,
    }
    return EndpointEngine(place.url, "tiny", **options | changes)


def test_a_vllm_server_keeps_the_whole_contract(server, tiny, tiny_prompts):
    free = TransformersEngine(tiny).generate(tiny_prompts, Sampling(max_tokens=12))
    sampling = Sampling(max_tokens=12, logprobs=2, stop_token_ids=(free[0].token_ids[4],))
    with connect(server, tiny) as engine:
        answers = engine.generate(tiny_prompts, sampling)
    for one, other in zip(
        answers, TransformersEngine(tiny).generate(tiny_prompts, sampling), strict=True
    ):
        assert (one.token_ids, one.text, one.finish_reason) == (
            other.token_ids,
            other.text,
            other.finish_reason,
        )
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)
        for position, expected in zip(one.top_logprobs, other.top_logprobs, strict=True):
            assert list(position) == list(expected)
            assert position == pytest.approx(expected, abs=1e-4)
    assert answers[0].finish_reason == "stop"


def test_every_setting_is_sent_so_that_the_server_s_own_do_not_apply(server, tiny, tiny_prompts):
    sampling = Sampling(max_tokens=2, temperature=0.7, top_p=0.9, seed=4, stop_token_ids=(2,))
    with connect(server, tiny, concurrency=1) as engine:
        engine.generate(tiny_prompts[:2], sampling)
    for index, (path, _, body) in enumerate(server.requests):
        assert path == "/v1/completions"
        assert body == {
            "model": "tiny",
            "prompt": tiny_prompts[index],
            "max_tokens": 2,
            "temperature": 0.7,
            "top_p": 0.9,
            "top_k": 0,
            "min_p": 0.0,
            "n": 1,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "repetition_penalty": 1.0,
            "seed": sampling.prompt_seed(index),
            "logprobs": 0,
            "ignore_eos": True,
            "stop_token_ids": [2],
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
        }


def test_a_generic_server_takes_and_gives_text(server, tiny, tiny_prompts, greedy):
    sampling = Sampling(max_tokens=6, stop_token_ids=(2,))
    with connect(server, tiny, server="generic") as engine:
        (answer,) = engine.generate(tiny_prompts[:1], sampling)
        with pytest.raises(UsageError, match="logprobs 1 needs a server that reports token ids"):
            engine.generate(tiny_prompts[:1], Sampling(max_tokens=6, logprobs=1))
    ((_, _, body),) = server.requests
    assert body["prompt"] == "hello there"
    assert body["stop"] == ["<|im_end|>"]
    assert "top_k" not in body
    assert answer.text == tiny.tokenizer.decode(greedy(tiny.model, tiny_prompts[0], 6).token_ids)
    assert answer.token_ids == tiny.tokenizer.encode(answer.text)
    assert answer.logprobs == []


def test_a_busy_server_is_asked_again(server, tiny, tiny_prompts):
    server.failures = [(429, {"error": {"message": "busy"}}), (503, {})]
    with connect(server, tiny, max_retries=2) as engine:
        answers = engine.generate(tiny_prompts[:1], Sampling(max_tokens=3))
    assert len(answers[0].token_ids) == 3
    assert len(server.requests) == 3


def test_a_refusal_is_a_sentence(server, tiny, tiny_prompts):
    server.failures = [(404, {"error": {"message": "no such\nmodel"}})]
    with (
        connect(server, tiny) as engine,
        pytest.raises(RunError, match=f"endpoint {server.url}, model tiny: .* no such model"),
    ):
        engine.generate(tiny_prompts[:1], Sampling(max_tokens=3))


def test_a_server_that_is_not_vllm_is_recognised(server, tiny, tiny_prompts):
    def without_ids(body):
        answer = complete(tiny, lambda *args: FIXED, body)
        del answer["choices"][0]["token_ids"]
        return answer

    server.answer = without_ids
    with connect(server, tiny) as engine, pytest.raises(RunError, match="server='generic'"):
        engine.generate(tiny_prompts[:1], Sampling(max_tokens=3))


class FIXED:
    token_ids = (5,)
    distributions = torch.zeros(1, 259)


def test_an_odd_ending_is_an_error(server, tiny, tiny_prompts, greedy):
    def filtered(body):
        answer = complete(tiny, greedy, body)
        answer["choices"][0]["finish_reason"] = "content_filter"
        return answer

    server.answer = filtered
    with connect(server, tiny) as engine, pytest.raises(RunError, match="'content_filter'"):
        engine.generate(tiny_prompts[:1], Sampling(max_tokens=3))


def test_an_unreachable_server_is_a_sentence(server, tiny, tiny_prompts):
    server.shutdown()
    server.server_close()
    with connect(server, tiny) as engine, pytest.raises(ResourceError, match="cannot be reached"):
        engine.generate(tiny_prompts, Sampling(max_tokens=3))


def test_the_api_key_comes_from_its_variable_and_stays_out_of_messages(
    server, tiny, tiny_prompts, monkeypatch
):
    monkeypatch.delenv("SOME_KEY", raising=False)
    with pytest.raises(ResourceError, match="environment variable SOME_KEY must hold the API key"):
        connect(server, tiny, api_key_env="SOME_KEY")
    monkeypatch.setenv("SOME_KEY", "verysecret")
    server.failures = [(401, {"error": {"message": "wrong key"}})]
    with connect(server, tiny, api_key_env="SOME_KEY") as engine:
        with pytest.raises(RunError) as caught:
            engine.generate(tiny_prompts[:1], Sampling(max_tokens=3))
        assert "verysecret" not in str(caught.value)
        engine.generate(tiny_prompts[:1], Sampling(max_tokens=3))
    assert [authorization for _, authorization, _ in server.requests] == ["Bearer verysecret"] * 2


def test_a_closed_engine_says_so(server, tiny, tiny_prompts):
    engine = connect(server, tiny)
    engine.close()
    engine.close()
    with pytest.raises(RunError, match="closed"):
        engine.generate(tiny_prompts, Sampling(max_tokens=3))
