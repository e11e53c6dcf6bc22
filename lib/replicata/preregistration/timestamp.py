"""RFC 3161 timestamps: ask for one, keep request and reply, verify them.

The request is kept beside the reply because its nonce is part of what is verified. Signatures,
certificates and imprints are checked by ``rfc3161-client``; at the time of the token, so a
certificate that has expired since does no harm.
"""

import datetime
import hashlib
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from rfc3161_client import TimestampRequestBuilder, VerifierBuilder, decode_timestamp_response

# The package parses requests but does not export it.
from rfc3161_client._rust import parse_timestamp_request
from rfc3161_client.base import HashAlgorithm
from rfc3161_client.errors import VerificationError as TokenError

from replicata.errors import VerificationError
from replicata.preregistration.authority import HttpAuthority, LocalAuthority, is_independent
from replicata.preregistration.canonical import read_bytes
from replicata.preregistration.places import Places, token_path
from replicata.preregistration.registration import Registration
from replicata.workflow.files import atomic_write


@dataclass(frozen=True)
class Stamp:
    """A verified token: its time, with the uncertainty it declares, and who made it."""

    time: datetime.datetime
    accuracy: datetime.timedelta
    independent: bool

    @property
    def latest(self) -> datetime.datetime:
        """The latest time that it allows for: time plus accuracy."""
        return self.time + self.accuracy


def query_path(path: Path) -> Path:
    """Return where the timestamp request of a file lies."""
    return path.with_name(path.name + ".tsq")


def authority_of(registration: Registration) -> HttpAuthority | LocalAuthority:
    """Return the authority that the protocol names."""
    authority = registration.protocol.timestamp.authority
    if authority == "local":
        return LocalAuthority(authority_dir(registration.places))
    return HttpAuthority(authority)


def authority_dir(places: Places) -> Path:
    """Return the directory of a local authority's keys."""
    return places.protocol_dir / ".authority"


def stamp_file(registration: Registration, path: Path) -> Stamp:
    """Have a file stamped, verify the token, and only then write request and reply beside it.

    Raises
    ------
    ResourceError
        If the authority cannot be reached.
    VerificationError
        If its reply does not verify.
    """
    data = read_bytes(path)
    query = (
        TimestampRequestBuilder()
        .data(data)
        .hash_algorithm(HashAlgorithm.SHA256)
        .nonce(nonce=True)
        .cert_request(cert_request=True)
        .build()
        .as_bytes()
    )
    reply = authority_of(registration).reply(query)
    roots = read_bytes(registration.places.roots)
    stamp = verify_token(data, query, reply, roots, registration, path.name)
    atomic_write(query_path(path), query)
    atomic_write(token_path(path), reply)
    return stamp


def verify_stamp(registration: Registration, path: Path) -> Stamp:
    """Verify the token beside a file against the roots that the frozen protocol pins.

    Raises
    ------
    VerificationError
        If a file is missing, the roots are others, or the token does not verify.
    """
    roots = read_bytes(registration.places.roots)
    if hashlib.sha256(roots).hexdigest() != registration.roots_sha256:
        raise VerificationError("roots.pem is other than the protocol pins")
    query, reply = read_bytes(query_path(path)), read_bytes(token_path(path))
    return verify_token(read_bytes(path), query, reply, roots, registration, path.name)


def verify_token(
    data: bytes, query: bytes, reply: bytes, roots: bytes, registration: Registration, shown: str
) -> Stamp:
    """Verify one token: signature and chain to ``roots``, nonce of ``query``, imprint of ``data``.

    Raises
    ------
    VerificationError
        If anything does not hold; the sentence says what.
    """
    try:
        nonce = _nonce(query)
        response = decode_timestamp_response(reply)
        builder = VerifierBuilder(nonce=nonce, roots=x509.load_pem_x509_certificates(roots))
        builder.build().verify_message(response, data)
    except (TokenError, ValueError) as error:
        raise VerificationError(
            f"{token_path(Path(shown)).name}: the token does not verify: {error}"
        ) from None
    info = response.tst_info
    accuracy = datetime.timedelta()
    if info.accuracy is not None:
        accuracy = datetime.timedelta(
            seconds=info.accuracy.seconds or 0,
            milliseconds=info.accuracy.millis or 0,
            microseconds=info.accuracy.micros or 0,
        )
    authority = registration.protocol.timestamp.authority
    return Stamp(info.gen_time, accuracy, is_independent(authority, roots))


def _nonce(query: bytes) -> int:
    nonce = parse_timestamp_request(query).nonce
    if nonce is None:
        raise ValueError("the request has no nonce")
    return nonce
