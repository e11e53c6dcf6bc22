"""Decision rules: a language too small to hide anything in.

A rule is a condition on named quantities: comparisons joined by ``and``, ``or`` and ``not``, with
arithmetic (``+ - * /``), numbers, ``abs``, ``min`` and ``max`` inside the comparisons. A name that
stands where a condition is expected is a quantity that is true or false. Anything else (calls,
attributes, indexing, text) is refused when the ledger is loaded, before anything is run.
"""

import ast
import operator
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from simpleeval import SimpleEval

Quantity = bool | int | float

FUNCTIONS: dict[str, Callable[..., Quantity]] = {"abs": abs, "min": min, "max": max}
MAX_LENGTH = 1000


class RuleError(ValueError):
    """A rule that cannot be read or evaluated; the message is a sentence without a subject."""


def is_finite(value: Quantity) -> bool:
    """Say whether a float holds ``value``: not for NaN, 1e999 (infinity) and 10**400."""
    return abs(value) <= sys.float_info.max


def _finite(function: Callable[[Quantity, Quantity], Quantity]) -> Callable[..., Quantity]:
    def apply(left: Quantity, right: Quantity) -> Quantity:
        result = function(left, right)
        # inf - inf is NaN, which makes every comparison false: a verdict without evidence.
        if not is_finite(result):
            raise OverflowError("a step of the arithmetic is not finite")
        return result

    return apply


_ARITHMETIC = {
    ast.Add: _finite(operator.add),
    ast.Sub: _finite(operator.sub),
    ast.Mult: _finite(operator.mul),
    ast.Div: _finite(operator.truediv),
}
_SIGNS = {ast.USub: operator.neg, ast.UAdd: operator.pos}
_COMPARISONS = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_OPERATORS = {**_ARITHMETIC, **_SIGNS, **_COMPARISONS, ast.Not: operator.not_}


@dataclass
class _Names:
    """Names by the place they stand in: where a condition is expected, or a number."""

    conditions: set[str] = field(default_factory=set)
    numbers: set[str] = field(default_factory=set)


def rule_names(rule: str) -> frozenset[str]:
    """Return the quantities that ``rule`` uses.

    Raises
    ------
    RuleError
        If the rule is not in the language.
    """
    names = _parse(rule)[1]
    return frozenset(names.conditions | names.numbers)


def evaluate_rule(rule: str, quantities: Mapping[str, Quantity]) -> bool:
    """Return whether ``rule`` holds for ``quantities``.

    Raises
    ------
    RuleError
        If the rule is not in the language, a name it uses is missing, not finite or not of its
        kind (true/false or number), or its arithmetic fails.
    """
    tree, names = _parse(rule)
    used = names.conditions | names.numbers
    for name in sorted(used):
        if name not in quantities:
            raise RuleError(f"uses {name}, which the evidence does not have")
        if not is_finite(quantities[name]):
            raise RuleError(f"uses {name}, which is {quantities[name]}, expected a finite number")
        is_bool = isinstance(quantities[name], bool)
        if name in names.conditions and not is_bool:
            raise RuleError(f"takes {name} as true or false, but it is {quantities[name]!r}")
        if name in names.numbers and is_bool:
            raise RuleError(f"takes {name} as a number, but it is {quantities[name]!r}")
    evaluator = SimpleEval(
        operators=_OPERATORS,
        functions=FUNCTIONS,
        names={name: quantities[name] for name in used},
        allowed_attrs={},
    )
    try:
        return bool(evaluator.eval(rule, previously_parsed=tree))
    except ArithmeticError as error:
        raise RuleError(f"cannot be computed: {error}") from None
    except RecursionError:
        raise RuleError("is nested too deeply") from None


def _parse(rule: str) -> tuple[ast.expr, _Names]:
    text = " ".join(rule.split())
    if not text:
        raise RuleError("is empty, expected a condition such as 'p < 0.05'")
    if len(text) > MAX_LENGTH:
        raise RuleError(f"has {len(text)} characters, expected at most {MAX_LENGTH}")
    if not text.isascii():
        raise RuleError("has characters other than ASCII")
    names = _Names()
    try:
        tree = ast.parse(text, mode="eval").body
        _check_condition(tree, names)
    except SyntaxError as error:
        raise RuleError(f"is not a condition: {error.msg}") from None
    except (RecursionError, MemoryError):
        raise RuleError("is nested too deeply") from None
    return tree, names


def _check_condition(node: ast.expr, names: _Names) -> None:
    match node:
        case ast.BoolOp(values=parts):
            for part in parts:
                _check_condition(part, names)
        case ast.UnaryOp(op=ast.Not(), operand=part):
            _check_condition(part, names)
        case ast.Compare(left=left, ops=ops, comparators=others):
            for op in ops:
                if type(op) not in _COMPARISONS:
                    raise RuleError(f"has {_shown(node)!r}, expected one of < <= > >= == !=")
            for part in (left, *others):
                _check_number(part, names)
        case ast.Name(id=name) if name not in FUNCTIONS:
            names.conditions.add(name)
        case _:
            raise RuleError(f"has {_shown(node)!r} where a condition such as 'p < 0.05' belongs")


def _check_number(node: ast.expr, names: _Names) -> None:
    match node:
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            _check_number(left, names)
            _check_number(right, names)
        case ast.UnaryOp(op=op, operand=part) if type(op) in _SIGNS:
            _check_number(part, names)
        case ast.Call(func=ast.Name(id=name), args=parts, keywords=[]) if name in FUNCTIONS:
            wanted = "1" if name == "abs" else "2 or more"
            if (len(parts) == 1) != (name == "abs") or not parts:
                raise RuleError(f"calls {name} with {len(parts)} number(s), expected {wanted}")
            for part in parts:
                _check_number(part, names)
        case ast.Constant(value=value) if type(value) in (int, float) and is_finite(value):
            pass
        case ast.Name(id=name) if name not in FUNCTIONS:
            names.numbers.add(name)
        case _:
            raise RuleError(
                f"has {_shown(node)!r} where a number belongs: only numbers, names, + - * /, "
                f"{', '.join(sorted(FUNCTIONS))} may stand there"
            )


def _shown(node: ast.expr) -> str:
    text = ast.unparse(node)
    return text if len(text) <= 60 else f"{text[:57]}..."
