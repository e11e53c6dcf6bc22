"""The commands ``replicata prereg ...`` and ``replicata audit``."""

import json
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from replicata.errors import UsageError, VerificationError, nearest
from replicata.preregistration.canonical import parse
from replicata.preregistration.places import Places, require, state_of, token_path
from replicata.workflow.files import atomic_write
from replicata.workflow.layout import check_profile, repo_root

app = typer.Typer(
    no_args_is_help=True, help="Preregister a study: draft, freeze, stamp, run, seal."
)

StudyName = Annotated[str, typer.Argument(help="The study: its directory under protocols/.")]


def find_places(study: str) -> Places:
    """Return the files of a study that has a protocol.

    Raises
    ------
    UsageError
        If there is none; the sentence names the nearest.
    """
    from replicata.workflow.params import read_yaml

    root = repo_root()
    places = Places(root, study, "cpu")
    if places.frozen.exists():
        try:
            profile = parse(places.frozen.read_bytes(), "frozen.json")["protocol"]["profile"]
        except (VerificationError, KeyError, TypeError):
            # The audit says what is wrong with it; the results lie where the draft says.
            profile = read_yaml(places.draft).get("profile") if places.draft.exists() else "cpu"
    elif places.draft.exists():
        profile = read_yaml(places.draft).get("profile")
    else:
        known = studies(root)
        raise UsageError(
            f"no study is called {study!r}{nearest(study, known)}; known: {', '.join(known) or '-'}"
        )
    return Places(root, study, check_profile(str(profile)))


def studies(root: Path) -> list[str]:
    """Return the studies that have a protocol, frozen or drafted."""
    directory = root / "protocols"
    drafted = (path.name for path in directory.glob("*") if (path / "draft.yaml").exists())
    return sorted({*drafted, *registered(root)})


def registered(root: Path) -> list[str]:
    """Return the studies that are frozen, or have a trace of it: removing a file hides nothing."""
    traces = ("frozen.*", "archive.*", "amendment_*", "deviations.jsonl")
    found = (path.parent.name for trace in traces for path in root.glob(f"protocols/*/{trace}"))
    return sorted(set(found))


@app.command()
def draft(
    study: StudyName, profile: Annotated[str, typer.Option(help="smoke, cpu or paper.")] = "cpu"
) -> None:
    """Write a draft to fill in."""
    places = Places(repo_root(), study, check_profile(profile))
    require(places, "draft")
    template = files("replicata.preregistration").joinpath("draft.yaml.template").read_text("utf-8")
    atomic_write(places.draft, template.format(study=study, profile=profile))
    typer.echo(f"wrote {places.shown(places.draft)}: fill it in, commit it, then freeze")


@app.command()
def freeze(study: StudyName) -> None:
    """Freeze the draft: protocol, plan, and digests of all files that results depend on."""
    from replicata.preregistration.freeze import freeze as do

    places = find_places(study)
    digest = do(places)
    typer.echo(f"froze {places.shown(places.frozen)}: {digest}")


@app.command()
def archive(study: StudyName) -> None:
    """Bundle the frozen protocol and its files into one zip."""
    from replicata.preregistration.archive import write_archive
    from replicata.preregistration.registration import load_registration

    places = find_places(study)
    require(places, "archive")
    typer.echo(f"wrote {places.shown(write_archive(load_registration(places)))}")


@app.command()
def stamp(study: StudyName) -> None:
    """Have everything frozen stamped that is not yet, and note the commit that holds it."""
    from replicata.preregistration.authority import LABEL
    from replicata.preregistration.stamping import stamp_all

    places = find_places(study)
    for path, made in stamp_all(places):
        note = "" if made.independent else f"  {LABEL}"
        typer.echo(f"stamped {places.shown(path)} at {made.time:%Y-%m-%d %H:%M:%S} UTC{note}")


@app.command()
def run(
    study: StudyName,
    shard: Annotated[list[str] | None, typer.Option(help="Only this shard; may repeat.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Processes; each takes one shard.")] = 1,
) -> None:
    """Collect the planned cells that have no record yet."""
    from replicata.preregistration.collect import collect, collect_in_parallel

    if shard and jobs > 1:
        raise UsageError("--shard and --jobs do not go together")

    places = find_places(study)
    asked = collect(places, shard or None) if jobs == 1 else collect_in_parallel(places, jobs)
    typer.echo(f"{asked} cells collected in {places.shown(places.records_dir)}")


@app.command()
def seal(study: StudyName) -> None:
    """Seal the complete records, before any analysis."""
    from replicata.preregistration.seal import seal as do

    places = find_places(study)
    digest = do(places)
    typer.echo(f"sealed {places.shown(places.seal)}: {digest}")


@app.command()
def pack(study: StudyName) -> None:
    """Compress sealed records, for a commit; everything reads them as they are."""
    from replicata.preregistration.records import pack as do

    places = find_places(study)
    require(places, "pack")
    plain = [path for path in places.record_files() if path.suffix == ".jsonl"]
    for path in plain:
        do(path)
    typer.echo(f"packed {len(plain)} shards in {places.shown(places.records_dir)}")


@app.command()
def analyze(
    study: StudyName,
    expect_seal: Annotated[str | None, typer.Option(help="Digest the seal must have.")] = None,
) -> None:
    """Compute the registered results and verdicts from the sealed records."""
    from replicata.preregistration.analysis import analyze as do

    results = do(find_places(study), expect_seal)
    typer.echo(results["label"])
    for name, verdict in results["verdicts"].items():
        typer.echo(f"{name}: {verdict}")


@app.command()
def deviate(
    study: StudyName,
    what: Annotated[str, typer.Option(help="What was done otherwise than planned.")],
    why: Annotated[str, typer.Option(help="The reason.")],
    noticed: Annotated[str, typer.Option(help="When it was noticed.")],
    data_seen: Annotated[bool, typer.Option(help="Whether data had been seen by then.")],
    affects: Annotated[
        list[str] | None, typer.Option(help="An affected hypothesis; may repeat.")
    ] = None,
    file: Annotated[
        list[str] | None,
        typer.Option(help="A frozen file changed after the analysis; may repeat."),
    ] = None,
) -> None:
    """List a deviation from the protocol."""
    from replicata.preregistration.deviations import Deviation
    from replicata.preregistration.deviations import deviate as do

    head = do(
        find_places(study),
        Deviation(what, why, noticed, data_seen, tuple(affects or ()), tuple(file or ())),
    )
    typer.echo(f"listed; head {head}")


@app.command()
def amend(
    study: StudyName,
    reason: Annotated[str, typer.Option(help="Why.")],
    seen: Annotated[str, typer.Option(help="What data had been seen.")],
    changes: Annotated[Path | None, typer.Option(help="YAML of the keys to replace.")] = None,
) -> None:
    """Freeze an amendment that names its parent."""
    from replicata.preregistration.amendments import amend as do
    from replicata.workflow.params import read_yaml

    places = find_places(study)
    path = do(places, read_yaml(changes) if changes else {}, reason, seen)
    typer.echo(f"froze {places.shown(path)}; stamp it before the next run")


@app.command()
def status(study: StudyName) -> None:
    """Say which state a study is in, and what it holds."""
    places = find_places(study)
    typer.echo(f"{study} ({places.profile}): {state_of(places).name}")
    for path in (places.frozen, *places.amendments(), places.seal):
        if path.exists():
            stamped = "stamped" if token_path(path).exists() else "not stamped"
            typer.echo(f"  {places.shown(path)}: {stamped}")


def audit_command(
    study: Annotated[str | None, typer.Argument(help="The study.")] = None,
    all_: Annotated[bool, typer.Option("--all", help="Every frozen study.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    expect_protocol: Annotated[str | None, typer.Option(help="Digest of frozen.json.")] = None,
    expect_seal: Annotated[str | None, typer.Option(help="Digest of seal.json.")] = None,
    block_header: Annotated[
        list[str] | None, typer.Option(help="HEIGHT=HEX of a Bitcoin block header.")
    ] = None,
    replay: Annotated[
        float, typer.Option(min=0, max=1, help="Share of replayable cells to ask again.")
    ] = 0.01,
) -> None:
    """Derive everything again from the raw records; the exit code is 5 if anything fails."""
    from replicata.preregistration.audit import audit

    if (study is None) is not all_:
        raise UsageError("audit takes one study, or --all")
    if all_ and (expect_protocol or expect_seal):
        raise UsageError("an expected digest belongs to one study, and --all audits every one")
    headers = _headers(block_header or [])
    root = repo_root()
    names = registered(root) if all_ else [study]
    if not names:
        typer.echo("no study has a frozen protocol: there is nothing to audit")
    audits = [
        audit(
            find_places(str(name)),
            expected_protocol=expect_protocol,
            expected_seal=expect_seal,
            block_headers=headers,
            replay_share=replay,
        )
        for name in names
    ]
    if as_json:
        typer.echo(json.dumps([item.to_json() for item in audits], indent=2, ensure_ascii=False))
    else:
        for item in audits:
            typer.echo("\n".join([item.study, *map(str, item.items)]))
    failed = [item.study for item in audits if item.failed]
    if failed:
        raise VerificationError(f"the audit of {', '.join(failed)} failed")


def _headers(options: list[str]) -> dict[int, str]:
    headers = {}
    for option in options:
        height, _, header = option.partition("=")
        if not height.isdecimal() or not header:
            raise UsageError(f"--block-header is {option!r}, expected HEIGHT=HEX")
        headers[int(height)] = header
    return headers
