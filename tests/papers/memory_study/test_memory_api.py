"""Endpoints behind a server: a real HTTP server of the same protocol, and strict parsing."""

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from replicata.errors import ResourceError
from replicata.papers.memory_study import api
from replicata.papers.memory_study import registration as study
from replicata.papers.memory_study.api import ApiSettings, answer_api
from replicata.preregistration.protocol import validate_protocol
from replicata.preregistration.study import Retry

CHOICE = {"user": ["Log\n", "Last\n", "Which?"], "options": [" cedar", " maple"], "end": "."}


class Server(BaseHTTPRequestHandler):
    """Says maple, unless the question says status-NUMBER: then it fails with that."""

    asked: list[dict] = []  # noqa: RUF012

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append(body)
        found = re.search(r"status-(\d+)", body["messages"][0]["content"])
        status = int(found[1]) if found else 200
        message = {"role": "assistant", "content": "Maple."}
        reply = {
            "id": "1",
            "object": "chat.completion",
            "created": 0,
            "model": body["model"],
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        }
        data = json.dumps(reply if status == 200 else {"error": {"message": "no"}}).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def url():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()


def test_an_answer_becomes_scores_and_keeps_its_text(url):
    (found,) = answer_api("m", ApiSettings(base_url=url), [CHOICE])
    assert found == {"scores": [api.REFUSED, api.CHOSEN], "text": "Maple."}
    asked = Server.asked[-1]
    assert asked["temperature"] == 0
    assert (
        asked["messages"][0]["content"] == "Log\nLast\nWhich? Answer with one word: cedar or maple."
    )


def test_a_failed_call_is_to_be_asked_again_and_spoils_no_other(url):
    broken = CHOICE | {"user": ["status-500"]}
    found = answer_api("m", ApiSettings(base_url=url, concurrency=2), [CHOICE, broken, CHOICE])
    assert isinstance(found[1], Retry)
    assert found[0] == found[2] == {"scores": [api.REFUSED, api.CHOSEN], "text": "Maple."}


def test_each_attempt_is_one_call(url):
    before = len(Server.asked)
    answer_api("m", ApiSettings(base_url=url), [CHOICE | {"user": ["status-429"]}])
    assert len(Server.asked) == before + 1  # the protocol counts retries, not the client


def test_a_server_that_is_not_there_is_to_be_asked_again():
    (found,) = answer_api("m", ApiSettings(base_url="http://127.0.0.1:9/v1", timeout_s=2), [CHOICE])
    assert isinstance(found, Retry)


def test_a_missing_key_is_named(url, monkeypatch):
    monkeypatch.delenv("STUDY_KEY", raising=False)
    with pytest.raises(ResourceError, match="STUDY_KEY"):
        answer_api("m", ApiSettings(base_url=url, api_key_env="STUDY_KEY"), [CHOICE])


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("cedar", "cedar"),
        ("MAPLE!", "maple"),
        ("I would start with cedar, since cedar leads.", "cedar"),
        ("cedar or maple", None),
        ("mapletree", None),
        ("", None),
    ],
)
def test_only_one_name_is_an_answer(text, named):
    found = api.parse(CHOICE, text)
    if named is None:
        assert isinstance(found, Retry)
    else:
        assert CHOICE["options"][found["scores"].index(api.CHOSEN)].strip() == named


def test_a_study_of_a_server_asks_it(registered, url):
    reg = registered(0, writing="free")
    endpoint = {"kind": "api", "pin": "m", "decoding": {"base_url": url}}
    values = reg.protocol.to_json()
    values["endpoints"]["model"] = endpoint
    reg.protocol = validate_protocol(values, "draft.yaml")
    cell = next(
        c
        for c in study.planned_cells(reg.protocol)
        if c.endpoint == "model" and c.params["phase"] == "write"
    )
    answer = study.answer(reg, cell, study.render(reg, cell, {}))
    assert answer.response == {"text": "Maple."}
    assert answer.model == "m"
