"""The front page of a profile: papers, claims and verdicts in one HTML file, readable offline.

`replicata report` writes it. The same results give the same bytes: nothing in it depends on when or
where it was rendered. Text for the page is made in ``report_text``; this module gathers the results
and fills the template.
"""

import base64
import struct
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from replicata.claims.ledger import Ledger, load_ledger
from replicata.claims.verdicts import Decision, decide, load_claims
from replicata.errors import VerificationError
from replicata.workflow import receipts, report_text
from replicata.workflow.files import atomic_write, sha256_file
from replicata.workflow.layout import Room, check_profile, repo_root


class Compared(BaseModel):
    """One claim of comparison.json: a rerun beside the reference."""

    model_config = ConfigDict(extra="forbid", strict=True)

    status: Literal["identical", "within the 95 % prediction interval", "drifted", "not run"]
    reference: str | float | None
    rerun: str | float | None
    same_verdict: bool


Comparison = dict[str, dict[str, Compared]]


class Commit(BaseModel):
    """Of the code: the commit, and whether anything was changed since."""

    sha: str
    dirty: bool


class Machine(BaseModel):
    """Cores, and memory in GiB."""

    cores: int
    memory_gib: float


class Software(BaseModel):
    """Python's version, the platform, the processor's name, and package versions."""

    python: str
    platform: str
    cpu: str
    packages: dict[str, str]


class Manifest(BaseModel):
    """What the page says of manifest.json, which holds more."""

    commit: Commit | None
    environment: Software
    hardware: Machine
    seeds: dict[str, Any]
    seconds: float
    peak_memory_mb: float
    command: str
    params_sha256: str
    code_sha256: str
    ledger_sha256: str
    outputs: dict[str, str]


@dataclass(frozen=True)
class Results:
    """What one paper left under one root and profile.

    Attributes
    ----------
    room
        The paper.
    ledger
        Its ledger as it is now.
    decisions
        From claims.json; where there is none, all claims as not run.
    finished
        Whether there is a claims.json.
    ledger_changed
        Whether the decisions were made by another ledger than today's.
    manifest
        From manifest.json; None where there is none.
    """

    room: Room
    ledger: Ledger
    decisions: list[Decision]
    finished: bool
    ledger_changed: bool
    manifest: Manifest | None


def write_report(root: Path, profile: str, papers: list[str]) -> Path:
    """Write ``root/profile/report.html``.

    Parameters
    ----------
    root
        The results root; a relative one is taken from the repository's root.
    profile
        One of ``layout.PROFILES``.
    papers
        The papers of the page, in its order; one without results is shown as not run.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    UsageError
        Unknown profile or paper.
    VerificationError
        If a claims.json, manifest.json or comparison.json is damaged, and which.
    """
    path = repo_root() / root / check_profile(profile) / "report.html"
    comparison = read_comparison(path.with_name("comparison.json"))
    results = [gather(Room(paper, profile, root)) for paper in papers]
    page = report_text.page(results, profile, comparison)
    views = [
        {
            **report_text.paper(result),
            "claims": [
                report_text.claim(decision, comparison.get(result.room.paper, {}))
                for decision in result.decisions
            ],
            "figures": _figures(result.room),
            "links": _links(result.room),
        }
        for result in results
    ]
    atomic_write(path, _template().render(page=page, papers=views, css=_css()))
    return path


def gather(room: Room) -> Results:
    """Read what a paper's run left.

    Raises
    ------
    UsageError
        If its ledger cannot be read.
    VerificationError
        If claims.json or manifest.json is damaged, or is another paper's or profile's.
    """
    ledger = load_ledger(room.ledger)
    manifest = _read(Manifest, room.manifest_json, f"manifest.json of {room.paper}")
    if not room.claims_json.is_file():
        reason = f"no results at profile {room.profile} yet"
        decisions = [decide(claim, None, not_run=reason) for claim in ledger.claims]
        return Results(room, ledger, decisions, False, False, manifest)
    try:
        document = load_claims(room.claims_json)
    except VerificationError as error:
        raise VerificationError(f"{room.paper} ({room.profile}): {error}") from None
    if (document.paper, document.profile) != (room.paper, room.profile):
        raise VerificationError(
            f"claims.json of {room.paper} ({room.profile}) says it is of {document.paper} "
            f"({document.profile})"
        )
    changed = document.ledger_sha256 != sha256_file(room.ledger)
    return Results(room, ledger, document.claims, True, changed, manifest)


def read_comparison(path: Path) -> Comparison:
    """Return a rerun's comparison by paper and claim id; empty where there is none.

    Raises
    ------
    VerificationError
        If the file is there and is not what ``replicata run`` writes.
    """
    return _read(Comparison, path, path.name) or {}


def _read(schema: Any, path: Path, what: str) -> Any:
    """Return a JSON file as ``schema``; None where there is none."""
    try:
        return TypeAdapter(schema).validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise VerificationError(f"{what}: {where}: {first['msg']}") from None


def _links(room: Room) -> list[dict[str, str]]:
    named = {
        room.notebook: "executed notebook",
        room.claims_json: "claims.json",
        room.manifest_json: "manifest.json",
    }
    return [
        {"href": f"{room.paper}/{path.name}", "text": text}
        for path, text in named.items()
        if path.is_file()
    ]


def _figures(room: Room) -> list[dict[str, Any]]:
    """Return the figures, embedded, then those that could not be drawn, with the reason."""
    shown = f"captions.json of {room.paper}"
    captions = _read(dict[str, str], room.figures_dir / "captions.json", shown) or {}
    found = []
    for path in sorted(room.figures_dir.glob("*.png")):
        content = path.read_bytes()
        caption = captions.get(path.stem, "")
        width, height = _png_size(content, f"{path.name} of {room.paper}")
        found.append(
            {
                "name": path.name,
                "href": f"{room.paper}/figures/{path.name}",
                "data": f"data:image/png;base64,{base64.b64encode(content).decode()}",
                "caption": caption,
                "width": width,
                "height": height,
            }
        )
    receipt = receipts.read(room.receipt_path("claims"))
    skipped = receipt.skipped.items() if receipt else ()
    return found + [{"name": Path(name).name, "caption": why} for name, why in sorted(skipped)]


def _png_size(content: bytes, what: str) -> tuple[int, int]:
    """Return width and height in pixels (PNG specification, section 11.2.2)."""
    if content[:8] != b"\x89PNG\r\n\x1a\n" or len(content) < 24:
        raise VerificationError(f"{what} is no PNG image")
    return struct.unpack(">II", content[16:24])


@cache
def _template() -> Template:
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["inline"] = report_text.inline
    return environment.from_string(_resource("report.html.j2"))


def _css() -> Markup:
    return Markup(_resource("report.css"))  # our own file, not data


def _resource(name: str) -> str:
    return files("replicata.workflow").joinpath("templates", name).read_text(encoding="utf-8")
