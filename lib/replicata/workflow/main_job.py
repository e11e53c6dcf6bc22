"""The main job: a rerun that checks itself against the reference."""

import os
import shutil
from pathlib import Path

from rich.console import Console

from replicata.errors import VerificationError
from replicata.workflow.compare import (
    DRIFTED,
    NOT_RUN,
    compare,
    read_claims,
    write_comparison,
)
from replicata.workflow.layout import Room
from replicata.workflow.manifest import run_report
from replicata.workflow.plan import Plan, papers_with_results
from replicata.workflow.progress import Run, verdict_line
from replicata.workflow.run import preflight


def run_and_compare(
    names: list[str], profile: str, root: str, cores: int | None, check: bool, fresh: bool
) -> int:
    """Run papers, show their verdicts, compare with the reference; return the exit code.

    Parameters
    ----------
    names, profile, root
        What to run, and where its results lie.
    cores
        How many to use; None for all this process may use.
    check
        Compare with ``results/`` afterwards.
    fresh
        Delete these papers' results under ``root`` first.

    Raises
    ------
    ResourceError
        If profile ``paper`` finds something missing, or another run is writing the same results.
    RunError
        If Snakemake itself fails.
    VerificationError
        If a claim drifted or has another verdict than the reference.
    """
    console = Console()
    rooms = [Room(name, profile, Path(root)) for name in names]
    if fresh:
        for room in rooms:
            shutil.rmtree(room.dir, ignore_errors=True)
    plan = Plan(names, profile, root)
    _check_machine(plan, console)
    code = Run(plan, cores or len(os.sched_getaffinity(0)), console).execute()
    _print(console, "", f"Verdicts in {root}/{profile}:")
    for room in rooms:
        claims = read_claims(room).values()
        lines = [verdict_line(claim) for claim in claims] or [f"{room.paper}: no verdicts"]
        _print(console, *(f"  {line}" for line in lines))
    reference = [Room(name, profile) for name in names]
    if check and rooms[0].dir.resolve() != reference[0].dir.resolve():
        _compare(list(zip(rooms, reference, strict=True)), console)
    return code


def _check_machine(plan: Plan, console: Console) -> None:
    if plan.profile != "paper":
        return
    for name, paper in plan.papers.items():
        if paper.room.has_module("preflight"):
            estimate = paper.room.module("preflight").cost_estimate(paper.params)
            _print(console, f"{name}: {estimate}")
    for paper in plan.papers.values():
        preflight(paper.room, paper.params)


def _compare(pairs: list[tuple[Room, Room]], console: Console) -> None:
    by_paper = {rerun.paper: compare(rerun, reference) for rerun, reference in pairs}
    found = [comparison for comparisons in by_paper.values() for comparison in comparisons]
    if not found:
        _print(console, "", "There are no reference results to compare with.")
        return
    _print(console, "", "Compared with the reference:")
    _print(console, *(f"  {comparison.line()}" for comparison in found))
    profile, root = pairs[0][0].profile, pairs[0][0].root
    write_comparison(pairs[0][0].dir.parent, by_paper)
    run_report(profile, root, papers_with_results(root, profile))
    broken = [comparison for comparison in found if not comparison.holds]
    not_run = sum(comparison.category == NOT_RUN for comparison in found)
    aside = f"; {not_run} not run, so not compared" if not_run else ""
    if broken:
        first = broken[0]
        what = "drifted" if first.category == DRIFTED else "has another verdict"
        raise VerificationError(
            f"{len(broken)} of {len(found)} claims do not agree with the reference{aside}, "
            f"first: {first.claim} {what}"
        )
    _print(console, f"{len(found) - not_run} of {len(found)} claims agree{aside}.")


def _print(console: Console, *lines: str) -> None:
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
