"""A report of a pool as lines for a terminal or as JSON."""

import json

from replicata.papers.cacc.decomposition import Decomposition
from replicata.papers.cacc.report import Report

#: Characters of a text that an example shows, from its end: answers stand there.
SHOWN = 70
SHOWN_IDS = 5


def as_text(report: Report, examples: int) -> str:
    """Return the report as lines for a terminal, with up to ``examples`` texts of each kind."""
    modes = ", ".join(f"{n} {mode}" for mode, n in report.modes.items())
    lines = [
        f"{report.questions} questions ({modes}), {report.candidates} candidates.",
        f"Read by the strict parser: {_share(report.strict, report.candidates)}; with alignment: "
        f"{_share(report.aligned, report.candidates)}; unread by both: "
        f"{_share(report.candidates - report.aligned, report.candidates)}.",
    ]
    if report.timeouts:
        lines.append(f"math-verify was given up on {report.timeouts} texts; they count as unread.")
    if report.unreadable_gold:
        lines.append(
            f"The gold answer of {len(report.unreadable_gold)} questions cannot be read, so they "
            f"count as wrong: {', '.join(report.unreadable_gold[:SHOWN_IDS])}"
            + ("…" if len(report.unreadable_gold) > SHOWN_IDS else ".")
        )
    if report.before is not None and report.after is not None:
        lines += _decomposition_lines(report)
    else:
        lines.append("No gold answers: coverage and accuracy cannot be told.")
    if examples and report.lost:
        lines += ["", "Right answers that the strict parser could not read:"]
        lines += [
            f"  {one.question}: {one.cause}, {'read' if one.recovered else 'not read'} after "
            f"alignment and noise removal: {_end(one.text)}"
            for one in report.lost[:examples]
        ]
        lines += _more(len(report.lost), examples)
    if examples and report.unread:
        lines += ["", "Texts that nothing could read:"]
        lines += [f"  {name}: {_end(text)}" for name, text in report.unread[:examples]]
        lines += _more(len(report.unread), examples)
    return "\n".join(lines)


def _decomposition_lines(report: Report) -> list[str]:
    before, after = report.before, report.after
    assert before is not None
    assert after is not None
    rows = [
        ("raw oracle coverage", before.c_raw, after.c_raw),
        ("selectable coverage", before.c_sel, after.c_sel),
        ("accuracy (majority)", before.accuracy, after.accuracy),
        ("accuracy, ties uniform", report.expected_before, report.expected_after),
        ("interface tax", before.tau, after.tau),
        ("selection loss", before.sigma, after.sigma),
        ("conversion", before.kappa, after.kappa),
    ]
    lines = ["", f"{'':24}{'strict':>8}{'aligned, cleaned':>19}"]
    lines += [f"{name:24}{_number(a):>8}{_number(b):>19}" for name, a, b in rows]
    if report.p_value is None:
        lines.append("No question's answer changed from wrong to right or back.")
    else:
        lines.append(
            f"Right only afterwards: {report.gained}, only before: {report.given_up} of "
            f"{before.n} questions (exact McNemar p {report.p_value:.3g})."
        )
    if report.causes:
        causes = ", ".join(f"{n} {cause}" for cause, n in sorted(report.causes.items()))
        lines.append(f"Questions lost at the interface: {causes}.")
    if report.chance is not None:
        lines.append(
            f"Uniform guesses would cover {report.chance:.3f} of the questions with letters."
        )
    lines.append("Repair needs the model that wrote the texts, and is not part of this report.")
    return lines


def as_json(report: Report) -> str:
    """Return the report's numbers as JSON."""
    fields = {**vars(report), "lost": [vars(one) for one in report.lost]}
    for name in ("before", "after"):
        own: Decomposition | None = fields[name]
        if own is not None:
            derived = {"tau": own.tau, "sigma": own.sigma, "kappa": own.kappa}
            fields[name] = {**vars(own), **derived}
    return json.dumps(fields, indent=2)


def _share(part: int, whole: int) -> str:
    return f"{part} ({part / whole:.1%})" if whole else "0"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _end(text: str) -> str:
    flat = " ".join(text.split())
    return repr(flat if len(flat) <= SHOWN else "…" + flat[-SHOWN:])


def _more(total: int, shown: int) -> list[str]:
    return [f"  and {total - shown} more (--examples)"] if total > shown else []
