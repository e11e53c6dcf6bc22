"""What the front page says, as text: the words for verdicts, numbers, rules and runs."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

from replicata.claims import table
from replicata.claims.ledger import Rule
from replicata.claims.verdicts import Decision

if TYPE_CHECKING:
    from replicata.workflow.report import Compared, Comparison, Manifest, Results

VERDICTS = {
    "supported": "supported",
    "contradicted": "contradicted",
    "inconclusive": "inconclusive",
    "not-testable": "not testable at this scale",
    "not-run": "not run",
}
"""Verdicts in the order they are counted: a name for links and styles, and the word."""

_LEADS = {
    "smoke": "The whole pipeline on tiny sizes, to show that it runs.",
    "cpu": "Real experiments at sizes that two processor cores finish in minutes, with small real "
    "models and enough seeds or contexts for honest statistics.",
    "paper": "The papers' own scale: GPUs, hub models, public data sets.",
}

_SOURCES = {"stated": "stated in the paper", "reconstructed": "reconstructed by us"}

_AGREEMENT_MARK = {
    "identical": "=",
    "within the 95 % prediction interval": "≈",
    "drifted": "≠",
    "not run": "–",
}


def verdict_key(verdict: str) -> str:
    """Return which of ``VERDICTS`` a verdict is; the reason after ``not run:`` does not matter."""
    word = verdict.partition(":")[0]
    return next(key for key, known in VERDICTS.items() if known == word)


def page(results: Sequence["Results"], profile: str, comparison: "Comparison") -> dict[str, Any]:
    """Return the head and foot of the page."""
    decisions = [decision for result in results for decision in result.decisions]
    numbers = Counter(verdict_key(decision.verdict) for decision in decisions)
    counts, start = [], 0
    for key, word in VERDICTS.items():
        counts.append({"key": key, "word": word, "number": numbers[key], "start": start})
        start += numbers[key]
    told = ", ".join(f"{count['number']} {count['word']}" for count in counts if count["number"])
    smoke = profile == "smoke"
    return {
        "title": f"replicata: verdicts at profile {profile}",
        "profile": profile,
        "banner": "SMOKE - NOT EVIDENCE" if smoke else None,
        "banner_note": "Sizes are far too small to support or contradict anything.",
        "heading": f"{_plural(len(decisions), 'claim')} of {_plural(len(results), 'paper')}, "
        "and what came out",
        "lead": _LEADS[profile],
        "total": len(decisions),
        "counts": counts,
        "bar_label": f"Claims by verdict: {told or 'none'}.",
        "agreement": _agreement(results, comparison),
        "run": _run(results),
    }


def paper(result: "Results") -> dict[str, Any]:
    """Return what is said about a paper as a whole."""
    about = result.ledger.paper
    manifest = result.manifest
    warnings = []
    if not result.finished:
        warnings.append(f"Not run at profile {result.room.profile} yet.")
    if result.ledger_changed:
        warnings.append(
            "claims.yaml has changed since this run; the verdicts follow the rules shown here, "
            "which are those of the run."
        )
    if manifest and manifest.commit and manifest.commit.dirty:
        warnings.append("The code had uncommitted changes when this was run.")
    return {
        "slug": result.room.paper,
        "title": about.title,
        "byline": f"{about.authors} · {about.reference}",
        "summary": about.summary,
        "warnings": warnings,
        "facts": _facts(manifest) if manifest else [],
    }


def claim(decision: Decision, compared: "Mapping[str, Compared]") -> dict[str, Any]:
    """Return one claim with its verdict, its evidence, and what a rerun said."""
    key = verdict_key(decision.verdict)
    named = rule_names_in_order(decision.rule)
    order = [*named, *sorted(set(decision.quantities) - set(named))]
    return {
        "id": decision.id,
        "short": decision.id.partition(".")[2],
        "key": key,
        "word": VERDICTS[key],
        "source": _SOURCES[decision.source],
        "kind": decision.kind,
        "statement": decision.statement,
        "reason": decision.reason,
        "reason_label": "Why not run" if key == "not-run" else "Why not testable here",
        "test": decision.how_tested,
        "shows": decision.shows,
        "rule": _rule(decision.rule),
        "paper_value": decision.paper_value,
        "headline": decision.headline if decision.quantities else None,
        "estimate": _split_estimate(decision)[0],
        "numbers": _numbers(decision, key),
        "quantities": [
            (name, table.format_number(decision.quantities[name]))
            for name in order
            if name in decision.quantities
        ],
        "notes": [*decision.notes, *filter(None, [decision.scale_note])],
        "rerun": _rerun(compared.get(decision.id)),
    }


def inline(text: str) -> Markup:
    """Return text as HTML, escaped, with what stands between backticks as code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def rule_names_in_order(rule: Rule | None) -> list[str]:
    """Return the quantities a rule uses, in the order in which it names them."""
    if rule is None:
        return []
    text = f"{rule.supported} {rule.contradicted or ''}"
    known = rule.names
    return list(dict.fromkeys(word for word in re.findall(r"\w+", text) if word in known))


def condition_in_signs(condition: str) -> str:
    """Return a rule's condition with the signs of mathematics for those of the language."""
    for ours, theirs in (("<=", "≤"), (">=", "≥"), ("!=", "≠"), ("==", "="), ("*", "×")):
        condition = condition.replace(ours, theirs)
    return " ".join(condition.split())


def duration(seconds: float) -> str:
    """Return a time in the two units that matter, such as ``8 min 12 s``."""
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def _plural(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _rule(rule: Rule | None) -> list[dict[str, str]]:
    if rule is None:
        return []
    lines = [{"word": "supported", "condition": condition_in_signs(rule.supported)}]
    if rule.contradicted:
        lines.append({"word": "contradicted", "condition": condition_in_signs(rule.contradicted)})
    return [*lines, {"word": f"{rule.otherwise} otherwise", "condition": ""}]


def _numbers(decision: Decision, key: str) -> list[tuple[str, str, str]]:
    """Return rows of label, value and detail that stand under the estimate."""
    rows = []
    if decision.interval is not None:
        rows.append(("Interval", _split_estimate(decision)[1], decision.interval_kind))
    if decision.p_value is not None:
        smallest = decision.smallest_p
        floor = f"; smallest possible {_p(smallest)}" if smallest is not None else ""
        rows.append(("p", _p(decision.p_value), f"{decision.test}{floor}"))
    elif decision.test:
        rows.append(("Test", decision.test, ""))
    if decision.n is not None:
        rows.append(("n", table.format_n(decision), ""))
    if key == "inconclusive" and decision.mde is not None:
        unit = f" {decision.estimate_unit}" if decision.estimate_unit else ""
        size = f"{table.format_number(decision.mde)}{unit}"
        rows.append(("Detectable", size, "is the smallest effect this test would have found"))
    elif key == "inconclusive" and decision.no_mde:
        rows.append(("Detectable", decision.no_mde, ""))
    return rows


def _split_estimate(decision: Decision) -> tuple[str, str]:
    """Return the estimate with its unit, and its interval alone, from the one spelling of both."""
    text = table.format_estimate(decision)
    if decision.interval is None:
        return text, ""
    before, _, after = text.partition(" [")
    ends, _, unit = after.partition("]")
    return before + unit, f"[{ends}]"


def _p(p_value: float) -> str:
    return table.format_p(p_value).removeprefix("p = ").removeprefix("p ")


def _rerun(compared: "Compared | None") -> dict[str, str] | None:
    if compared is None:
        return None
    numbers = [
        f"{name} {table.format_number(value) if isinstance(value, float) else value}"
        for name, value in (("reference", compared.reference), ("rerun", compared.rerun))
        if value is not None
    ]
    agrees = compared.same_verdict and compared.status != "drifted"
    return {
        "mark": _AGREEMENT_MARK[compared.status] if compared.same_verdict else "≠",
        "key": "agrees" if agrees else "differs",
        "status": compared.status,
        "verdict": "same verdict" if compared.same_verdict else "another verdict",
        "numbers": ", ".join(numbers),
    }


def _agreement(results: Sequence["Results"], comparison: "Comparison") -> str | None:
    found = [
        compared
        for result in results
        for compared in comparison.get(result.room.paper, {}).values()
    ]
    if not found:
        return None
    numbers = Counter(compared.status for compared in found)
    told = ", ".join(f"{numbers[word]} {word}" for word in _AGREEMENT_MARK if numbers[word])
    same = sum(compared.same_verdict for compared in found)
    return f"Beside the reference: {told}; same verdict for {same} of {len(found)}."


def _run(results: Iterable["Results"]) -> str | None:
    """Return in one sentence what all results of the page were run from and on."""
    manifests = [result.manifest for result in results if result.manifest]
    if not manifests:
        return None
    commits = dict.fromkeys(_commit(manifest) for manifest in manifests)
    machines = dict.fromkeys(_machine(manifest) for manifest in manifests)
    total = duration(sum(manifest.seconds for manifest in manifests))
    peak = max(manifest.peak_memory_mb for manifest in manifests)
    return (
        f"Run from {', '.join(commits)} on {', '.join(machines)}: {total} summed over all jobs, "
        f"peak memory {peak / 1024:.1f} GiB."
    )


def _commit(manifest: "Manifest") -> str:
    commit = manifest.commit
    if commit is None:
        return "no git commit"
    return f"commit {commit.sha[:10]}{' with uncommitted changes' if commit.dirty else ''}"


def _machine(manifest: "Manifest") -> str:
    cores = _plural(manifest.hardware.cores, "core")
    return f"{manifest.environment.cpu} ({cores}, {manifest.hardware.memory_gib:.0f} GiB)"


def _facts(manifest: "Manifest") -> list[tuple[str, str]]:
    software = manifest.environment
    return [
        ("Command", manifest.command),
        ("Code", _commit(manifest)),
        ("Machine", _machine(manifest)),
        ("Time", f"{duration(manifest.seconds)}, summed over its jobs"),
        ("Peak memory", f"{manifest.peak_memory_mb:.0f} MiB, the largest of its jobs"),
        ("Platform", f"Python {software.python}, {software.platform}"),
        ("Packages", ", ".join(f"{k} {v}" for k, v in software.packages.items())),
        ("Seeds", ", ".join(f"{k} = {v}" for k, v in manifest.seeds.items()) or "none"),
        ("Params digest", manifest.params_sha256),
        ("Code digest", manifest.code_sha256),
        ("Ledger digest", manifest.ledger_sha256),
        ("Outputs", f"{len(manifest.outputs)} files, each with its SHA-256 in manifest.json"),
    ]
