"""Canonical JSON (RFC 8785) and reading it back without surprises."""

import json
from pathlib import Path
from typing import Any

import rfc8785

from replicata.errors import UsageError, VerificationError


def canonical(value: Any, what: str = "the value") -> bytes:
    """Return the RFC 8785 form of a JSON value: one sequence of bytes per value.

    Raises
    ------
    UsageError
        If it holds a NaN, an infinity, a whole number beyond 2^53 - 1, a lone surrogate, or
        something that JSON has no type for.
    """
    try:
        return rfc8785.dumps(value)
    except (rfc8785.CanonicalizationError, RecursionError) as error:
        raise UsageError(f"{what} has no canonical JSON form: {error}") from None


def parse(data: bytes, what: str) -> Any:
    """Return the JSON value in ``data``, refusing duplicate keys and NaN.

    Raises
    ------
    VerificationError
        If it is no such JSON; the sentence starts with ``what``.
    """
    try:
        return json.loads(
            data, object_pairs_hook=_once, parse_constant=_no_constant, parse_int=_number
        )
    except (ValueError, RecursionError) as error:
        raise VerificationError(f"{what} is not valid JSON: {error}") from None


def read_canonical(path: Path) -> Any:
    """Return the JSON value of a file that must be in canonical form.

    Raises
    ------
    VerificationError
        If the file is missing, is no JSON, or its bytes are not the canonical ones.
    """
    data = read_bytes(path)
    value = parse(data, path.name)
    if canonical(value, path.name) != data:
        raise VerificationError(f"{path.name} is not in the canonical form of RFC 8785")
    return value


def read_bytes(path: Path) -> bytes:
    """Return a file's bytes.

    Raises
    ------
    VerificationError
        If there is no such file.
    """
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise VerificationError(f"{path.name} is missing") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"key {twice!r} is there twice")
    return values


def _number(text: str) -> int | float:
    """Beyond 2^53, a number without a point is a double, as in RFC 8785; else it is whole."""
    whole = int(text)
    return whole if abs(whole) < 2**53 else float(text)


def _no_constant(word: str) -> Any:
    raise ValueError(f"{word} is no JSON number")
