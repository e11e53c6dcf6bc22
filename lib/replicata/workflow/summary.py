"""What `replicata list` shows: papers, the state of their results, counts of verdicts."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from replicata.errors import ReplicataError
from replicata.workflow.compare import read_claims
from replicata.workflow.layout import Room, papers
from replicata.workflow.plan import PaperPlan


def summaries(profile: str, root: Path) -> Iterator[tuple[str, str, str, str]]:
    """Yield slug, title, state and verdict counts of each paper.

    Parameters
    ----------
    profile, root
        Whose results.
    """
    from replicata.claims.ledger import load_ledger

    for name in papers():
        room = Room(name, profile, root)
        try:
            title = load_ledger(room.ledger).paper.title
            state = _state(room)
            counts = Counter(claim["verdict"].split(":")[0] for claim in read_claims(room).values())
        except ReplicataError as error:
            yield name, "", f"broken: {error}", ""
            continue
        yield name, title, state, ", ".join(f"{n} {verdict}" for verdict, n in counts.items())


def _state(room: Room) -> str:
    from replicata.workflow.scaffold import is_draft

    if is_draft(room.ledger.parent):
        return "draft: FILL IN remains"
    if not room.dir.exists():
        return "missing"
    stages = PaperPlan(room).stages
    stale = [stage for stage in stages if stage.stale]
    if not stale:
        return "current"
    if all(stage.stale == "no-receipt" for stage in stages):
        return "missing"
    return f"stale: {len(stale)} of {len(stages)} stages"
