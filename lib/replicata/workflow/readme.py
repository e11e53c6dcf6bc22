"""The table of verdicts in the README, written from the results and never by hand."""

import os
import re
from pathlib import Path

from replicata.errors import UsageError
from replicata.workflow.files import atomic_write
from replicata.workflow.layout import Room, check_profile, papers, repo_root
from replicata.workflow.report import gather
from replicata.workflow.report_text import VERDICTS, verdict_key

BEGIN, END = "<!-- verdicts:begin -->", "<!-- verdicts:end -->"
"""What the table stands between, each on a line of its own."""


def verdict_table(root: Path, profile: str) -> str:
    """Return the verdicts of all papers that have a claims.json, as a Markdown table.

    Parameters
    ----------
    root
        The results root; a relative one is taken from the repository's root.
    profile
        One of ``layout.PROFILES``.

    Returns
    -------
    str
        One row per paper: how many of its claims, and which, have which verdict, and links that are
        relative to the repository's root. A sentence where no paper has results.

    Raises
    ------
    UsageError
        Unknown profile.
    VerificationError
        If a claims.json is damaged.
    """
    check_profile(profile)
    rows = [
        _row(room)
        for room in (Room(paper, profile, root) for paper in papers())
        if room.claims_json.is_file()
    ]
    if not rows:
        return f"No paper has results at profile {profile} yet.\n"
    head = ["paper", *VERDICTS.values(), "read"]
    rule = ["---"] * len(head)
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (head, rule, *rows))


def update_readme(readme: Path, table: str) -> bool:
    """Put the table between the markers of the README.

    Parameters
    ----------
    readme
        The file; the rest of it stays as it is, byte for byte.
    table
        From ``verdict_table``.

    Returns
    -------
    bool
        Whether the file changed.

    Raises
    ------
    UsageError
        If the file is missing, or does not have each marker once, in order.
    """
    before, _, after = _split(readme)
    text = f"{before}{BEGIN}\n{table.strip()}\n{END}{after}"
    if text.encode() == readme.read_bytes():
        return False
    atomic_write(readme, text)
    return True


def _split(readme: Path) -> tuple[str, str, str]:
    """Return what stands before, between and after the markers."""
    try:
        text = readme.read_bytes().decode()
    except FileNotFoundError:
        raise UsageError(f"{readme.name} is missing, expected a file with {BEGIN}") from None
    for marker in (BEGIN, END):
        if text.count(marker) != 1:
            raise UsageError(
                f"{readme.name} has {marker} {text.count(marker)} times, expected it once"
            )
    before, _, rest = text.partition(BEGIN)
    between, found, after = rest.partition(END)
    if not found:
        raise UsageError(f"{readme.name} has {END} before {BEGIN}, expected it after")
    return before, between, after


def _row(room: Room) -> list[str]:
    results = gather(room)
    found: dict[str, list[str]] = {key: [] for key in VERDICTS}
    for decision in results.decisions:
        found[verdict_key(decision.verdict)].append(decision.id.partition(".")[2])
    cells = [f"{len(ids)} ({', '.join(ids)})" if ids else "0" for ids in found.values()]
    base = Path(os.path.relpath(room.dir, repo_root())).as_posix()
    links = f"[notebook]({base}/notebook.ipynb), [claims]({base}/claims.json)"
    return [f"{_escaped(results.ledger.paper.title)} (`{room.paper}`)", *cells, links]


def _escaped(text: str) -> str:
    """Return text that Markdown shows as it is, also within a table."""
    return re.sub(r"([\\`*_{}\[\]<>|#])", r"\\\1", text)
