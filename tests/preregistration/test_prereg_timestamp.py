"""RFC 3161 against a local authority: our verdict, and openssl's own."""

import subprocess
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from rfc3161_client import TimestampRequestBuilder
from rfc3161_client.base import HashAlgorithm
from toy_repository import commit

from replicata.errors import ResourceError, UsageError, VerificationError
from replicata.preregistration.archive import write_archive
from replicata.preregistration.authority import HttpAuthority, LocalAuthority, is_independent
from replicata.preregistration.freeze import freeze
from replicata.preregistration.places import State, state_of
from replicata.preregistration.registration import load_registration
from replicata.preregistration.stamping import stamp_all
from replicata.preregistration.timestamp import verify_token


@pytest.fixture
def registration(places):
    freeze(places)
    return load_registration(places)


def query(data):
    builder = TimestampRequestBuilder().data(data).hash_algorithm(HashAlgorithm.SHA256)
    return builder.build().as_bytes()


def openssl(directory, reply, data, roots):
    paths = {"reply": reply, "data": data, "roots": roots}
    for name, content in paths.items():
        (directory / name).write_bytes(content)
    arguments = ["-in", "reply", "-data", "data", "-CAfile", "roots"]
    done = subprocess.run(
        ["openssl", "ts", "-verify", *arguments], cwd=directory, capture_output=True, check=False
    )
    return done.returncode == 0


def test_the_four_cases_and_openssl_agree(registration, tmp_path):
    authority = LocalAuthority(tmp_path / "tsa")
    roots, other = authority.create(), LocalAuthority(tmp_path / "other").create()
    request = query(b"data")
    reply = authority.reply(request)

    stamp = verify_token(b"data", request, reply, roots, registration, "x")
    assert not stamp.independent
    assert openssl(tmp_path, reply, b"data", roots)

    with pytest.raises(VerificationError, match="Mismatch between messages"):
        verify_token(b"Data", request, reply, roots, registration, "x")
    assert not openssl(tmp_path, reply, b"Data", roots)

    with pytest.raises(VerificationError, match="Nonce mismatch"):
        verify_token(b"data", query(b"data"), reply, roots, registration, "x")

    with pytest.raises(VerificationError, match="verifying certificates"):
        verify_token(b"data", request, reply, other, registration, "x")
    assert not openssl(tmp_path, reply, b"data", other)

    with pytest.raises(VerificationError, match="does not verify"):
        verify_token(b"data", request, b"no reply", roots, registration, "x")
    without = TimestampRequestBuilder().data(b"data").nonce(nonce=False).build().as_bytes()
    with pytest.raises(VerificationError, match="no nonce"):
        verify_token(b"data", without, reply, roots, registration, "x")


@pytest.fixture
def server(tmp_path):
    authority = LocalAuthority(tmp_path / "remote")
    roots = authority.create()

    class Handler(BaseHTTPRequestHandler):
        kind = "application/timestamp-reply"

        def do_POST(self):
            assert self.headers["Content-Type"] == "application/timestamp-query"
            body = authority.reply(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Type", self.kind)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments):
            pass

    httpd = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=httpd.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{httpd.server_port}/tsr", roots, Handler
    httpd.shutdown()
    thread.join()
    httpd.server_close()


def use_authority(places, url, roots):
    (places.protocol_dir / "tsa-root.pem").write_bytes(roots)
    text = places.draft.read_text()
    text = text.replace("{authority: local}", f'{{authority: "{url}", roots: tsa-root.pem}}')
    places.draft.write_text(text)
    commit(places.root)
    freeze(places)
    write_archive(load_registration(places))


def test_an_authority_over_http(places, server):
    url, roots, handler = server
    use_authority(places, url, roots)
    handler.kind = "text/html"
    with pytest.raises(ResourceError, match="answered text/html"):
        stamp_all(places)
    assert state_of(places) is State.ARCHIVED
    handler.kind = "application/timestamp-reply"
    [(path, stamp)] = stamp_all(places)
    assert path == places.frozen
    assert not stamp.independent
    assert state_of(places) is State.STAMPED


def test_an_authority_that_cannot_be_reached_changes_nothing(places, server):
    _, roots, _ = server
    use_authority(places, "http://127.0.0.1:9/tsr", roots)
    with pytest.raises(ResourceError, match="cannot be reached"):
        stamp_all(places)
    assert state_of(places) is State.ARCHIVED
    with pytest.raises(ResourceError, match="cannot be reached"):
        HttpAuthority("http://127.0.0.1:9/").reply(b"")


def test_who_is_independent(tmp_path):
    ours = LocalAuthority(tmp_path).create()
    assert not is_independent("local", ours)
    assert not is_independent("https://tsa.example.org/tsr", ours)
    assert not is_independent("http://127.0.0.1/tsr", ours)


def test_stamping_before_archiving_is_refused(places):
    freeze(places)
    with pytest.raises(UsageError, match="stamp refuses: study toy is FROZEN"):
        stamp_all(places)
