"""RFC 8785: its published vectors, and what has no canonical form."""

import hashlib
import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicata.errors import UsageError, VerificationError
from replicata.preregistration.canonical import canonical, parse
from replicata.preregistration.chain import genesis, link, verify

# RFC 8785, section 3.2.2 and its result in section 3.2.3.
SAMPLE = r"""{
  "numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
  "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
  "literals": [null, true, false]
}"""
SAMPLE_RESULT = (
    '{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
    '"string":"€$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'
)
# Section 3.2.3: keys sort by UTF-16 code units.
KEYS = {
    "\u20ac": "Euro Sign",
    "\r": "Carriage Return",
    "\ufb33": "Hebrew Letter Dalet With Dagesh",
    "1": "One",
    "\U0001f600": "Emoji: Grinning Face",
    "\u0080": "Control",
    "\u00f6": "Latin Small Letter O With Diaeresis",
}
KEYS_ORDER = [
    "Carriage Return",
    "One",
    "Control",
    "Latin Small Letter O With Diaeresis",
    "Euro Sign",
    "Emoji: Grinning Face",
    "Hebrew Letter Dalet With Dagesh",
]
# Appendix B: IEEE 754 bits to text.
NUMBERS = {
    "0000000000000000": "0",
    "8000000000000000": "0",
    "0000000000000001": "5e-324",
    "8000000000000001": "-5e-324",
    "7fefffffffffffff": "1.7976931348623157e+308",
    "ffefffffffffffff": "-1.7976931348623157e+308",
    "4340000000000000": "9007199254740992",
    "c340000000000000": "-9007199254740992",
    "4430000000000000": "295147905179352830000",
    "44b52d02c7e14af5": "9.999999999999997e+22",
    "44b52d02c7e14af6": "1e+23",
    "44b52d02c7e14af7": "1.0000000000000001e+23",
    "444b1ae4d6e2ef4e": "999999999999999700000",
    "444b1ae4d6e2ef4f": "999999999999999900000",
    "444b1ae4d6e2ef50": "1e+21",
    "3eb0c6f7a0b5ed8c": "9.999999999999997e-7",
    "3eb0c6f7a0b5ed8d": "0.000001",
    "41b3de4355555553": "333333333.3333332",
    "41b3de4355555554": "333333333.33333325",
    "41b3de4355555555": "333333333.3333333",
    "41b3de4355555556": "333333333.3333334",
    "41b3de4355555557": "333333333.33333343",
    "becbf647612f3696": "-0.0000033333333333333333",
    "43143ff3c1cb0959": "1424953923781206.2",
}


def test_the_sample_of_the_rfc():
    assert canonical(json.loads(SAMPLE)).decode() == SAMPLE_RESULT
    assert list(json.loads(canonical(KEYS)).values()) == KEYS_ORDER


@pytest.mark.parametrize(("bits", "text"), NUMBERS.items())
def test_the_numbers_of_the_rfc(bits, text):
    (number,) = struct.unpack(">d", bytes.fromhex(bits))
    assert canonical(number).decode() == text


def test_the_vectors_of_the_study():
    value = json.loads('{"b":1.0,"a":0.1,"c":1e21,"d":-0.0}')
    assert canonical(value) == b'{"a":0.1,"b":1,"c":1e+21,"d":0}'
    for bad in (float("nan"), float("inf"), 2**60, "\ud800", {1: 2}, object()):
        with pytest.raises(UsageError, match="no canonical JSON form"):
            canonical([bad])


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(json_values)
def test_canonical_form_is_a_fixed_point(value):
    data = canonical(value)
    assert canonical(parse(data, "x")) == data


@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), json_values, max_size=5))
def test_a_chain_takes_any_record_and_gives_it_back(record):
    for key in ("prev", "hash"):
        record.pop(key, None)
    line, head = link(record, "0" * 64)
    chain = verify(line, "0" * 64, "x")
    assert chain.head == head == hashlib.sha256(canonical({**record, "prev": "0" * 64})).hexdigest()
    [back] = chain.records
    assert canonical({k: v for k, v in back.items() if k != "prev"}) == canonical(record)


@pytest.mark.parametrize("text", [b'{"a":1,"a":2}', b"[NaN]", b"{", b"\xff"])
def test_surprises_are_refused(text):
    with pytest.raises(VerificationError, match="not valid JSON"):
        parse(text, "x")


def test_a_chain_takes_keys_in_the_order_of_rfc_8785_only():
    """By UTF-16 units U+1F600 comes before U+FB33; by code points, as most encoders sort, after."""
    right = canonical({"\U0001f600": 1, "\ufb33": 2, "prev": genesis("x")})
    wrong = json.dumps(
        {"prev": genesis("x"), "\ufb33": 2, "\U0001f600": 1},
        sort_keys=True,
        separators=(",", ":"),
        ensure_ascii=False,
    ).encode()
    assert right != wrong

    def line(body):
        return body[:-1] + b',"hash":"' + hashlib.sha256(body).hexdigest().encode() + b'"}\n'

    assert len(verify(line(right), genesis("x"), "file").records) == 1
    with pytest.raises(VerificationError, match="canonical"):
        verify(line(wrong), genesis("x"), "file")
