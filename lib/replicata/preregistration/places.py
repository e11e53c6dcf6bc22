"""Where a registered study keeps its files, and which state they put it in."""

from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from replicata.errors import UsageError


class State(IntEnum):
    """The life cycle, in order; a study's state is read from its files, never stored."""

    NONE = 0
    DRAFT = 1
    FROZEN = 2
    ARCHIVED = 3
    STAMPED = 4
    COLLECTING = 5
    SEALED = 6
    ANALYSED = 7


ALLOWED: dict[str, tuple[State, ...]] = {
    "draft": (State.NONE,),
    "freeze": (State.DRAFT,),
    "archive": (State.FROZEN,),
    "stamp": (State.ARCHIVED, State.STAMPED, State.COLLECTING, State.SEALED),
    "run": (State.STAMPED, State.COLLECTING),
    "seal": (State.COLLECTING,),
    "pack": (State.SEALED, State.ANALYSED),
    "analyze": (State.SEALED, State.ANALYSED),
    "deviate": tuple(State)[State.FROZEN :],
    "amend": (State.FROZEN, State.ARCHIVED, State.STAMPED, State.COLLECTING),
}


@dataclass(frozen=True)
class Places:
    """The files of one study.

    Attributes
    ----------
    root
        The repository that holds the study's code.
    study
        The study's name: its directory under ``protocols``.
    profile
        Its profile: the directory of its results.
    protocols, results
        Relative to ``root``, or absolute.
    """

    root: Path
    study: str
    profile: str
    protocols: Path = Path("protocols")
    results: Path = Path("results")

    @property
    def protocol_dir(self) -> Path:
        """Directory of the protocol, its archive, its tokens, amendments and deviations."""
        return self.root / self.protocols / self.study

    @property
    def results_dir(self) -> Path:
        """Directory of the records, the seal and the results."""
        return self.root / self.results / self.profile / self.study

    @property
    def draft(self) -> Path:
        """The protocol as it is written."""
        return self.protocol_dir / "draft.yaml"

    @property
    def frozen(self) -> Path:
        """The frozen protocol, canonical JSON."""
        return self.protocol_dir / "frozen.json"

    @property
    def archive(self) -> Path:
        """The protocol with all the files its manifest names."""
        return self.protocol_dir / "archive.zip"

    @property
    def roots(self) -> Path:
        """Root certificates of the timestamp authority, pinned by the frozen protocol."""
        return self.protocol_dir / "roots.pem"

    @property
    def anchor(self) -> Path:
        """The commit that holds the frozen protocol."""
        return self.protocol_dir / "anchor.json"

    @property
    def deviations(self) -> Path:
        """What was done otherwise than planned, hash-chained."""
        return self.protocol_dir / "deviations.jsonl"

    @property
    def records_dir(self) -> Path:
        """One file per shard."""
        return self.results_dir / "records"

    @property
    def seal(self) -> Path:
        """Count and head of every shard."""
        return self.results_dir / "seal.json"

    @property
    def results_json(self) -> Path:
        """The registered results."""
        return self.results_dir / "results.json"

    def amendment(self, number: int) -> Path:
        """Return the path of the amendment with this number, counted from 1."""
        return self.protocol_dir / f"amendment_{number}.json"

    def amendments(self) -> list[Path]:
        """Return the amendments that exist, in order."""
        found = []
        while self.amendment(len(found) + 1).exists():
            found.append(self.amendment(len(found) + 1))
        return found

    def shard_path(self, shard: str) -> Path:
        """Return the records file of a shard: the compressed one where that is what there is."""
        plain = self.records_dir / f"{shard}.jsonl"
        packed = self.records_dir / f"{shard}.jsonl.gz"
        return packed if packed.exists() and not plain.exists() else plain

    def record_files(self) -> list[Path]:
        """Return all records files there are, sorted."""
        found = [*self.records_dir.glob("*.jsonl"), *self.records_dir.glob("*.jsonl.gz")]
        return sorted(path for path in found if path.stat().st_size)

    def shown(self, path: Path) -> str:
        """Return ``path`` as a reader of the repository knows it."""
        return str(path.relative_to(self.root)) if path.is_relative_to(self.root) else path.name


def token_path(path: Path) -> Path:
    """Return where the timestamp token of a file lies."""
    return path.with_name(path.name + ".tsr")


def state_of(places: Places) -> State:
    """Return the state that the study's files put it in."""
    if places.results_json.exists():
        return State.ANALYSED
    if places.seal.exists():
        return State.SEALED
    if places.record_files():
        return State.COLLECTING
    if token_path(places.frozen).exists():
        return State.STAMPED
    if places.archive.exists():
        return State.ARCHIVED
    if places.frozen.exists():
        return State.FROZEN
    return State.DRAFT if places.draft.exists() else State.NONE


def require(places: Places, command: str, also: tuple[State, ...] = ()) -> State:
    """Return the state if ``command`` may run in it, or in one of ``also``.

    Raises
    ------
    UsageError
        If it may not.
    """
    state, allowed = state_of(places), (*ALLOWED[command], *also)
    if state not in allowed:
        names = ", ".join(item.name for item in sorted(set(allowed)))
        raise UsageError(
            f"{command} refuses: study {places.study} is {state.name}, expected {names}"
        )
    return state
