"""Made-up rooms and results for the tests of the front page: every verdict, every kind of row."""

import hashlib
import io
import json
from functools import cache
from pathlib import Path

import matplotlib
import pandas as pd
import seaborn as sns
import yaml

from replicata.claims.evidence import Evidence
from replicata.claims.ledger import load_ledger
from replicata.claims.verdicts import decide, ledger_document

matplotlib.use("Agg")
from matplotlib import pyplot as plt

SHA = hashlib.sha256(b"made up").hexdigest()


def _claim(suffix, statement, kind, paper_value, **more):
    rule = more.pop("rule", None)
    claim = {
        "id": f"folding.{suffix}",
        "statement": statement,
        "source": more.pop("source", "stated"),
        "paper_value": paper_value,
        "kind": kind,
        **more,
    }
    return claim | ({"rule": rule, "groups": ["quality"]} if rule else {})


FOLDING = {
    "schema": 1,
    "paper": {
        "slug": "folding",
        "title": "Folding the bias of a compacted cache into its keys",
        "authors": "A. Author, B. Author",
        "reference": "A Journal of Made-up Results 1 (2026)",
        "summary": "Compaction keeps some keys, refits the values and adds a bias per key, which "
        "no fast attention kernel accepts. Folding moves that bias into the keys along one "
        "closed-form direction per head, so that an unmodified engine serves the cache.",
    },
    "claims": [
        _claim(
            "c1",
            "The output error is bounded by how far the query's projection departs from 1.",
            "theorem",
            "a bound",
            test="On held-out queries of all heads: error divided by `D tanh(|eps| R / 4)`.",
            shows="That the bound with our constants holds on real queries, and how tight it is. "
            "The constants are ours; the paper's may be larger or smaller.",
            rule={"supported": "max_ratio <= 1.0001", "contradicted": "max_ratio > 1.0001"},
            headline="max_ratio",
        ),
        _claim(
            "c2",
            "At equal budgets the divergence from the full cache is lower than without the bias.",
            "comparative",
            "lower in 12 of 12 settings",
            test="One-sided sign-flip test of the context-level log ratio, Holm-adjusted.",
            shows="Whether folding keeps what the bias buys, on a 135M model with short contexts.",
            rule={
                "supported": "wins == settings and pooled_high < 1",
                "contradicted": "pooled_low > 1",
            },
            headline="pooled_ratio",
        ),
        _claim(
            "c3",
            "Under unequal budgets the divergence is no longer lower than without the bias.",
            "comparative",
            "no better in 10 of 10 settings; accuracy one win each",
            source="reconstructed",
            test="Interaction of the log ratio, unequal minus equal, cluster bootstrap.",
            shows="A mechanism-level analogue with budgets of our own. It does not show what the "
            "published budgets of larger models do.",
            rule={"supported": "unequal_low <= 1 and unequal_high >= 1 and interaction_low > 0"},
            headline="unequal_ratio",
        ),
        _claim(
            "c4",
            "An unmodified engine gives the same answers as the reference implementation.",
            "numeric",
            "51/51 (4B), 180/200 (14B)",
            test="Greedy answers per question, float32 and bfloat16.",
            shows="That a stock engine serves such a cache. Not the rate of a 14B model.",
            rule={"supported": "share >= 0.95", "contradicted": "high < 0.9"},
            headline="share",
        ),
        _claim(
            "c5",
            "Accuracy does not differ significantly from the unfolded cache's.",
            "comparative",
            "no significant difference in 13 of 14 settings",
            test="Exact McNemar test per setting; TOST within 5 points, clustered by context.",
            shows="Whether folding costs accuracy on a small model.",
            rule={"supported": "equivalent", "contradicted": "high < -0.05"},
            headline="difference",
        ),
        _claim(
            "c6",
            "The same holds at 128k tokens on three model families.",
            "comparative",
            "9 of 10 settings",
            not_testable="Contexts of 128k tokens do not fit into 8 GiB with any model at hand.",
        ),
    ],
}

EVIDENCE = {
    "c1": Evidence(
        quantities={"max_ratio": 0.5183, "median_ratio": 0.1121, "violations": 0},
        n=90,
        n_unit="KV heads",
        notes=["The bound is never closer than a factor of two on these queries."],
    ),
    "c2": Evidence(
        quantities={
            "pooled_ratio": 0.947,
            "pooled_low": 0.921,
            "pooled_high": 0.969,
            "wins": 4,
            "settings": 4,
        },
        interval=(0.921, 0.969),
        interval_kind="95 % cluster bootstrap (percentile, 12)",
        p_value=0.000244,
        smallest_p=0.000244,
        test="exact sign-flip test, less, 4096 sign patterns",
        n=12,
        n_unit="contexts",
        mde=0.031,
    ),
    "c3": Evidence(
        quantities={
            "unequal_ratio": 0.981,
            "unequal_low": 0.93,
            "unequal_high": 1.04,
            "interaction_low": -0.012,
        },
        interval=(0.93, 1.04),
        interval_kind="95 % cluster bootstrap (percentile, 12)",
        n=12,
        n_unit="contexts",
        mde=0.074,
    ),
    "c5": Evidence(
        quantities={"difference": -0.083, "equivalent": False, "high": -0.0512},
        estimate_unit="points / 100",
        interval=(-0.115, -0.0512),
        interval_kind="90 % t interval over 12 contexts",
        p_value=0.93,
        test="TOST (t), margin ±0.05, alpha 0.05",
        n=12,
        n_unit="contexts",
        scale_note="Contexts are a tenth as long as the paper's.",
    ),
}


@cache
def figure():
    """Return a small figure in the style of a paper's room, as PNG."""
    sns.set_theme(style="whitegrid", palette="colorblind")
    canvas, axes = plt.subplots(figsize=(6, 3.4), layout="constrained")
    rows = pd.DataFrame(
        {"budget": [0.05, 0.1, 0.2] * 2, "KL / nats": [1.2, 1.1, 0.9, 1.14, 1.02, 0.84]}
    )
    rows["arm"] = ["drop"] * 3 + ["fold"] * 3
    sns.lineplot(rows, x="budget", y="KL / nats", hue="arm", style="arm", markers=True, ax=axes)
    content = io.BytesIO()
    canvas.savefig(content, dpi=150, metadata={"Software": None})
    plt.close(canvas)
    return content.getvalue()


def manifest(paper, profile, **changed):
    """Return a manifest as the pipeline writes it."""
    values = {
        "schema": 1,
        "paper": paper,
        "profile": profile,
        "commit": {"sha": "3f2a9c1d5e7b8a60c4d2e1f09b8a7c6d5e4f3a2b", "dirty": False},
        "params_sha256": SHA,
        "code_sha256": SHA,
        "ledger_sha256": SHA,
        "environment": {
            "python": "3.11.9",
            "platform": "Linux x86_64",
            "cpu": "A Processor 9000",
            "packages": {"numpy": "2.4.6", "torch": "2.12.1", "transformers": "5.16.1"},
        },
        "hardware": {"cores": 2, "memory_gib": 7.8},
        "seeds": {"seed": 7},
        "seconds": 552.3,
        "peak_memory_mb": 3174.2,
        "not_run": {},
        "command": f"replicata run {paper} --profile {profile} --root results",
        "outputs": {f"cells/a{i}.parquet": SHA for i in range(12)},
    }
    return values | changed


def other(slug, title, verdict_of="c1"):
    """Return a ledger with one claim, for a second paper."""
    claim = FOLDING["claims"][0] | {"id": f"{slug}.{verdict_of}"}
    return {"schema": 1, "paper": FOLDING["paper"] | {"slug": slug, "title": title}} | {
        "claims": [claim, FOLDING["claims"][5] | {"id": f"{slug}.c2"}]
    }


def write_room(rooms, ledger):
    """Write a room that holds a ledger and nothing else; return the ledger's path."""
    path = rooms / ledger["paper"]["slug"] / "claims.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(yaml.safe_dump(ledger, sort_keys=False, allow_unicode=True))
    return path


def write_results(base, profile, ledger_path, evidence, not_run=None, **changed):
    """Write the results of one paper under ``base``/profile, through the claims' own code."""
    ledger = load_ledger(ledger_path)
    slug = ledger.paper.slug
    decisions = [
        decide(claim, evidence.get(claim.suffix), (not_run or {}).get(claim.suffix))
        for claim in ledger.claims
    ]
    document = ledger_document(
        ledger,
        profile,
        decisions,
        ledger_sha256=hashlib.sha256(ledger_path.read_bytes()).hexdigest(),
        params_sha256=SHA,
    )
    room = base / profile / slug
    (room / "figures").mkdir(parents=True, exist_ok=True)
    (room / "figures/f1_divergence.png").write_bytes(figure())
    captions = {"f1_divergence": "KL divergence from the full cache by budget; n = 12 contexts."}
    (room / "figures/captions.json").write_text(json.dumps(captions))
    (room / "claims.json").write_text(json.dumps(document))
    (room / "manifest.json").write_text(json.dumps(manifest(slug, profile, **changed)))
    (room / "notebook.ipynb").write_text("{}")
    return Path(room)
