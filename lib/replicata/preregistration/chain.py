"""Hash-chained JSON lines: each line carries the hash of the one before.

A line is the canonical JSON of a record without its hash, with the hash put in as the last member;
the hash is SHA-256 over exactly those canonical bytes, so checking a line is slicing and hashing. A
chain says nothing about lines missing at its end, nor about a chain written anew as a whole: for
that, verification takes the count and head that a seal recorded.
"""

import gzip
import hashlib
import json
import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from replicata.errors import VerificationError
from replicata.preregistration.canonical import canonical, parse

TAIL = len(b',"hash":"') + 64 + len(b'"}')


@dataclass(frozen=True)
class Chain:
    """A verified chain: its records in order, and the hash of the last (or the genesis)."""

    records: list[dict[str, Any]]
    head: str


def genesis(*parts: str) -> str:
    """Return the hash that a chain starts from: of the protocol's digest and the chain's name."""
    return hashlib.sha256("".join(parts).encode()).hexdigest()


def link(record: dict[str, Any], prev: str) -> tuple[bytes, str]:
    """Return the line of ``record`` after ``prev``, and its hash.

    Raises
    ------
    UsageError
        If the record has no canonical form.
    """
    body = canonical({**record, "prev": prev}, "a record")
    digest = hashlib.sha256(body).hexdigest()
    return body[:-1] + b',"hash":"' + digest.encode() + b'"}\n', digest


def append(stream: BinaryIO, line: bytes) -> None:
    """Write a line and force it to the disk before returning."""
    stream.write(line)
    stream.flush()
    os.fsync(stream.fileno())


def read_chain_bytes(path: Path) -> bytes:
    """Return the lines of a chain's file, unpacking it where its name ends in ``.gz``.

    Raises
    ------
    VerificationError
        If it is missing or does not unpack.
    """
    try:
        data = path.read_bytes()
        return gzip.decompress(data) if path.suffix == ".gz" else data
    except FileNotFoundError:
        raise VerificationError(f"{path.name} is missing") from None
    except (OSError, EOFError, zlib.error) as error:
        raise VerificationError(f"{path.name} does not unpack: {error}") from None


def verify(data: bytes, start: str, shown: str, expected: tuple[int, str] | None = None) -> Chain:
    """Check every link, and the end if it is known.

    Parameters
    ----------
    data
        The lines.
    start
        The genesis.
    shown
        The file that error sentences name.
    expected
        Count and head, from a seal.

    Raises
    ------
    VerificationError
        At the first line that is not canonical, does not follow the one before, has another hash
        than its content, or is torn; or if the end is not the expected one.
    """
    lines = data.split(b"\n")
    if lines.pop():
        raise VerificationError(f"{shown}, line {len(lines) + 1}: the last line is torn")
    head, records = start, []
    for number, line in enumerate(lines, 1):
        body = line[:-TAIL] + b"}"
        digest = hashlib.sha256(body).hexdigest()
        if line[-TAIL:] != b',"hash":"' + digest.encode() + b'"}':
            raise VerificationError(f"{shown}, line {number}: the hash is not that of the record")
        record = _parse_body(body, f"{shown}, line {number}")
        if record.get("prev") != head:
            raise VerificationError(f"{shown}, line {number}: does not follow the line before it")
        head = digest
        records.append(record)
    if expected is not None:
        check_end(len(records), head, expected, shown)
    return Chain(records, head)


def check_end(count: int, head: str, expected: tuple[int, str], shown: str) -> None:
    """Compare the end of a chain with a sealed one.

    Raises
    ------
    VerificationError
        If lines are missing at the end, were added, or are others.
    """
    if count < expected[0]:
        raise VerificationError(
            f"{shown}, line {count + 1}: the seal counts {expected[0]} records, there are {count}"
        )
    if (count, head) != expected:
        raise VerificationError(
            f"{shown}, line {count}: {count} records end in {head[:12]}, "
            f"the seal has {expected[0]} and {expected[1][:12]}"
        )


_encode = msgspec.json.Encoder(order="sorted").encode


# One decoder for all lines; numbers that the fast encoder may write otherwise are noted here.
_others: list[str] = []


def _small(text: str) -> int | None:
    return int(text) if len(text) < 16 else _others.append(text)


_decode = json.JSONDecoder(parse_float=_others.append, parse_int=_small).decode


def _parse_body(body: bytes, shown: str) -> dict[str, Any]:
    """Return the record, having checked that these bytes are its canonical form.

    For ASCII without floats and large numbers msgspec writes the canonical form; the slow encoder
    decides for the rest (keys beyond the basic plane are ordered otherwise, for one).
    """
    _others.clear()
    try:
        record = _decode(body.decode())
        plain = body.isascii() and not _others and _encode(record) == body
    except (ValueError, RecursionError, msgspec.MsgspecError):
        plain = False
    if not plain:
        record = parse(body, shown)
        if canonical(record, shown) != body:
            raise VerificationError(f"{shown}: the record is not in canonical form")
    if not isinstance(record, dict):
        raise VerificationError(f"{shown}: is no JSON object")
    return record
