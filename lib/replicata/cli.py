"""The command line: list, run, verify, report, table, new, reference.

Every command ends with an exit code of ``replicata.errors``. Nothing heavy is imported here: `run`
and `list` answer at once, and a job must set its threads before numpy is loaded.
"""

import os
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from replicata.errors import ReplicataError, UsageError, VerificationError
from replicata.preregistration.cli import app as preregistration
from replicata.preregistration.cli import audit_command
from replicata.workflow.layout import Room, check_profile, papers, repo_root, select_papers
from replicata.workflow.processes import die_with_parent, terminate_as_interrupt

_INTERRUPTED = 130


class _Commands(TyperGroup):
    """Ends every error a user can act on with one sentence and its exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except ReplicataError as error:
            _fail(str(error), error.exit_code)
        except KeyboardInterrupt:
            _fail("interrupted; what was finished is kept", _INTERRUPTED)


class _Jobs(TyperGroup):
    """Adds the exit code to the log, where `replicata run` finds it."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except ReplicataError as error:
            sys.stdout.flush()
            print(f"replicata: exit code {error.exit_code}", file=sys.stderr)
            raise
        except Exception as error:
            import traceback

            traceback.print_exc()
            sentence = " ".join(str(error).split()) or "no message"
            _fail(f"a bug of the pipeline: {type(error).__name__}: {sentence}", 1)


def _fail(sentence: str, code: int) -> None:
    sys.stdout.flush()
    print(f"replicata: error: {' '.join(sentence.split())}", file=sys.stderr, flush=True)
    raise SystemExit(code)


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Replicate machine-learning papers, and derive every verdict from raw records.\n\n"
    "Start with `replicata list`, then `replicata run PAPER --profile smoke`.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
job = typer.Typer(cls=_Jobs, help="The pipeline's single jobs, as the Snakefile calls them.")
reference = typer.Typer(no_args_is_help=True, help="Keep the runs that reruns are compared with.")
app.add_typer(job, name="job", hidden=True)
app.add_typer(reference, name="reference")
app.add_typer(preregistration, name="prereg")
# A paper's own commands, such as `replicata at-at diagnose`: its room's cli.py.
for _paper in papers():
    if find_spec(f"replicata.papers.{_paper}.cli") is not None:
        _commands = import_module(f"replicata.papers.{_paper}.cli")
        app.add_typer(_commands.app, name=_paper.replace("_", "-"))
app.command("audit")(audit_command)

Papers = Annotated[
    list[str] | None, typer.Argument(help="Slugs of papers; all of them if none is named.")
]
Profile = Annotated[
    str, typer.Option(help="smoke (a minute), cpu (the main job) or paper (needs GPUs).")
]
Root = Annotated[
    str, typer.Option(help="Where results lie: results is the reference, rerun is yours.")
]
Paper = Annotated[str, typer.Option()]
Parent = Annotated[int | None, typer.Option(help="End as soon as this process is gone.")]


@app.command("list")
def list_papers(profile: Profile = "cpu", root: Root = "results") -> None:
    """Show the papers, the state of their results, and how many claims have which verdict.

    Example: `replicata list --profile cpu`
    """
    from rich.console import Console
    from rich.table import Table

    from replicata.workflow.summary import summaries

    table = Table("paper", "title", f"{root}/{profile}", "verdicts", box=None, pad_edge=False)
    for row in summaries(check_profile(profile), Path(root)):
        table.add_row(*row)
    Console().print(table)


@app.command()
def run(
    papers: Papers = None,
    profile: Profile = "cpu",
    root: Root = "rerun",
    cores: Annotated[int | None, typer.Option(min=1, help="Cores to use; default all.")] = None,
    compare: Annotated[
        bool, typer.Option(help="Compare with the reference results afterwards.")
    ] = True,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Delete these papers' results under --root first.")
    ] = False,
) -> None:
    """Run what is not current, show verdicts as they land, and compare with the reference.

    A second run does nothing; after a kill or an error the same command goes on from there.

    Example: `replicata run kvfold --profile smoke`
    """
    from replicata.workflow.main_job import run_and_compare

    if os.environ.get("REPLICATA_DIE_WITH_PARENT"):
        die_with_parent()
    terminate_as_interrupt()
    names = select_papers(papers or [])
    raise SystemExit(run_and_compare(names, check_profile(profile), root, cores, compare, fresh))


@app.command()
def verify(papers: Papers = None, profile: Profile = "cpu", root: Root = "results") -> None:
    """Check every digest, and derive every verdict again from the raw tables.

    Example: `replicata verify kvfold --root rerun`
    """
    from replicata.workflow.verify import verify as checks_of

    failed = total = 0
    for name in select_papers(papers or []):
        for check in checks_of(Room(name, check_profile(profile), Path(root))):
            print(check.line(), flush=True)
            total += 1
            failed += check.status == "FAIL"
    if failed:
        raise VerificationError(f"{failed} of {total} checks fail")
    print(f"{total} checks, none fails")


@app.command()
def report(profile: Profile = "cpu", root: Root = "results") -> None:
    """Write the front page: papers, claims and verdicts in one offline HTML file.

    Example: `replicata report --root rerun`
    """
    from replicata.workflow.manifest import run_report
    from replicata.workflow.plan import papers_with_results

    names = papers_with_results(Path(root), check_profile(profile))
    if not names:
        raise UsageError(f"{root}/{profile} holds no results, expected those of one paper at least")
    run_report(profile, Path(root), names)
    print(f"{root}/{profile}/report.html")


@app.command()
def table(
    profile: Profile = "cpu",
    root: Root = "results",
    write: Annotated[
        bool, typer.Option("--write", help="Write it into README.md instead.")
    ] = False,
) -> None:
    """Print all verdicts as a Markdown table.

    Example: `replicata table --profile cpu`
    """
    from replicata.workflow.readme import update_readme, verdict_table

    text = verdict_table(Path(root), check_profile(profile))
    if write:
        changed = update_readme(repo_root() / "README.md", text)
        print("README.md changed" if changed else "README.md is as it should be")
    else:
        print(text, end="")


@app.command()
def new(
    slug: Annotated[str, typer.Argument(help="The paper's name in paths and commands.")],
    title: Annotated[str | None, typer.Option(help="The paper's title.")] = None,
) -> None:
    """Make a complete room for a new paper: modules, params, notebook and tests.

    Example: `replicata new mypaper --title "A Paper"`
    """
    from replicata.workflow.scaffold import new_paper

    for path in new_paper(slug, repo_root(), title):
        print(path.relative_to(repo_root()))


@reference.command("add")
def reference_add(
    name: Annotated[str, typer.Option(help="What to call the run.")],
    papers: Papers = None,
    profile: Profile = "cpu",
    root: Root = "rerun",
) -> None:
    """Add a finished run to those that reruns are compared with.

    Two or more give each estimate a 95 % prediction interval.

    Example: `replicata reference add --root rerun --name laptop`
    """
    from replicata.workflow.compare import add_reference

    for paper in select_papers(papers or []):
        run_room = Room(paper, check_profile(profile), Path(root))
        add_reference(run_room, Room(paper, profile), name)
        print(f"{paper}: {name} added")


def _start_job(parent: int | None, threads: int) -> None:
    terminate_as_interrupt()
    if parent is not None:
        die_with_parent(parent)
    # Read by numpy and torch when they are loaded; the order of sums depends on it.
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[variable] = str(threads)


@job.command("cell")
def job_cell(
    paper: Paper,
    cell: Annotated[str, typer.Option()],
    profile: Profile = "cpu",
    root: Root = "rerun",
    parent: Parent = None,
    threads: Annotated[int, typer.Option(min=1)] = 1,
) -> None:
    """Compute one cell."""
    _start_job(parent, threads)
    from replicata.workflow.run import run_cell

    receipt = run_cell(Room(paper, profile, Path(root)), cell)
    print(f"not run: {receipt.not_run}" if receipt.not_run else f"done in {receipt.seconds} s")


@job.command("claims")
def job_claims(
    paper: Paper, profile: Profile = "cpu", root: Root = "rerun", parent: Parent = None
) -> None:
    """Decide a paper's claims and draw its figures."""
    _start_job(parent, 1)
    from replicata.workflow.run import run_claims

    run_claims(Room(paper, profile, Path(root)))


@job.command("notebook")
def job_notebook(
    paper: Paper, profile: Profile = "cpu", root: Root = "rerun", parent: Parent = None
) -> None:
    """Execute a paper's notebook and write its manifest."""
    _start_job(parent, 1)
    from replicata.workflow.manifest import run_notebook

    run_notebook(Room(paper, profile, Path(root)))


@job.command("report")
def job_report(profile: Profile = "cpu", root: Root = "rerun", parent: Parent = None) -> None:
    """Write a profile's front page."""
    _start_job(parent, 1)
    from replicata.workflow.manifest import run_report
    from replicata.workflow.plan import papers_with_results

    run_report(profile, Path(root), papers_with_results(Path(root), profile))


@job.command("audit")
def job_audit(profile: Profile = "cpu", root: Root = "rerun", parent: Parent = None) -> None:
    """Verify a profile's results and write audit.json."""
    _start_job(parent, 1)
    from replicata.workflow.manifest import run_audit
    from replicata.workflow.plan import papers_with_results

    print("\n".join(run_audit(profile, Path(root), papers_with_results(Path(root), profile))))


def main() -> None:
    """Run the command line."""
    app(prog_name="replicata")
