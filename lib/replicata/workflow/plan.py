"""What a run would do: each stage's key, whether it is current, and why not.

Snakemake schedules; content decides. When the Snakefile loads, every stage is compared with its
receipt. All real inputs of the rules are ``ancient``, so file times rerun nothing. A stale stage
that has outputs gets one more input, a marker newer than they are, named by the reason; that is
what Snakemake shows and reruns for. A current stage has no marker.
"""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from replicata.errors import ResourceError, RunError, UsageError, nearest
from replicata.workflow import receipts
from replicata.workflow.cells import Cell, StrictParams
from replicata.workflow.digests import (
    code_digest,
    find_source,
    imports_of_notebook,
    notebook_digest,
)
from replicata.workflow.files import atomic_write, digest, sha256_file
from replicata.workflow.layout import Room, check_profile, papers, repo_root, select_papers
from replicata.workflow.params import load_params

_CONFIG = {"profile": "cpu", "root": "results", "papers": ""}
_RESULT_CODE = ("replicata.workflow.cells", "replicata.claims.verdicts", "replicata.claims.ledger")


@dataclass(frozen=True)
class Stage:
    """One job of the pipeline.

    Attributes
    ----------
    paper
        Its slug; empty for the two jobs per profile, ``report`` and ``audit``.
    name
        ``cells/<id>``, ``claims``, ``notebook``, ``report`` or ``audit``.
    stale
        Why it has to run, in one or two words, or None if it is current.
    """

    paper: str
    name: str
    stale: str | None


def planned_cells(room: Room, params: StrictParams) -> list[Cell]:
    """Return the cells of a paper's experiment.

    Raises
    ------
    RunError
        If two have the same id, or something in the list is no ``Cell``.
    """
    cells = list(room.module("experiment").cells(params))
    ids: set[str] = set()
    for cell in cells:
        if not isinstance(cell, Cell):
            raise RunError(f"{room.module_name('experiment')}.cells gave {cell!r}, expected a Cell")
        if cell.id in ids:
            raise RunError(f"{room.module_name('experiment')}.cells gave {cell.id!r} twice")
        ids.add(cell.id)
    return cells


def cell_key(room: Room, params: StrictParams, cell: Cell) -> str:
    """Return the digest of all that a cell's table depends on."""
    return digest(
        {
            "paper": room.paper,
            # How it is scheduled changes no number; threads can, through the order of sums.
            "cell": cell.model_dump(mode="json", exclude={"priority", "memory_mb"}),
            "params": params.model_dump(mode="json"),
            "code": code_digest(room.module_name("experiment")),
        }
    )


def claims_key(room: Room, params: StrictParams, tables: dict[str, str]) -> str:
    """Return the digest of all that the verdicts and figures depend on.

    Parameters
    ----------
    room, params
        Of the paper.
    tables
        SHA-256 of each cell's table by its id.
    """
    code = [room.module_name("analysis"), room.module_name("figures"), *_RESULT_CODE]
    return digest(
        {
            "paper": room.paper,
            "tables": tables,
            "ledger": sha256_file(room.ledger),
            "params": params.model_dump(mode="json"),
            "code": code_digest(*(name for name in code if find_source(name))),
        }
    )


def notebook_key(room: Room) -> str:
    """Return the digest of all that the executed notebook depends on.

    Raises
    ------
    RunError
        If the notebook's source is missing or cannot be read.
    """
    try:
        source = room.notebook_source.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise RunError(f"notebooks/{room.paper}.ipynb is missing, expected a notebook") from None
    upstream = receipts.read(room.receipt_path("claims"))
    return digest(
        {
            "paper": room.paper,
            "profile": room.profile,
            "source": notebook_digest(source),
            "code": code_digest(*imports_of_notebook(source)),
            "claims": [upstream.key, upstream.outputs] if upstream else None,
        }
    )


def profile_key(stage: str, root: Path, profile: str) -> str:
    """Return the digest of all that ``report`` or ``audit`` depends on: every paper's outputs."""
    outputs: dict[str, Any] = {}
    for paper in papers_with_results(root, profile):
        found = sorted((Room(paper, profile, root).dir / "receipts").rglob("*.json"))
        outputs[paper] = {
            receipt.stage: receipt.outputs for path in found if (receipt := receipts.read(path))
        }
    comparison = repo_root() / root / profile / "comparison.json"
    if stage == "report" and comparison.is_file():
        outputs["comparison"] = sha256_file(comparison)
    templates = sorted((Path(__file__).parent / "templates").rglob("*"))
    code = {
        "report": ("replicata.workflow.report",),
        "audit": ("replicata.workflow.verify",),
    }[stage]
    return digest(
        {
            "outputs": outputs,
            "code": code_digest(*(name for name in code if find_source(name))),
            "templates": [sha256_file(path) for path in templates if path.is_file()],
        }
    )


def papers_with_results(root: Path, profile: str) -> list[str]:
    """Return the papers that have verdicts under this root and profile."""
    return [paper for paper in papers() if Room(paper, profile, root).claims_json.is_file()]


def profile_receipt(root: Path, profile: str, stage: str) -> Path:
    """Return the receipt of ``report`` or ``audit``."""
    return repo_root() / root / profile / "receipts" / f"{stage}.json"


class PaperPlan:
    """The stages of one paper, in the order they run.

    Parameters
    ----------
    room
        The paper, profile and root.

    Raises
    ------
    UsageError, RunError
        If params, experiment or ledger cannot be read.
    """

    def __init__(self, room: Room) -> None:
        self.room = room
        self.params = load_params(room.paper, room.profile)
        self.cells = {cell.id: cell for cell in planned_cells(room, self.params)}

    @cached_property
    def claims(self) -> list[Any]:
        """The claims of the paper's ledger, in its order."""
        from replicata.claims.ledger import load_ledger

        return list(load_ledger(self.room.ledger).claims)

    @cached_property
    def stages(self) -> list[Stage]:
        """All stages with their state; a stage after a stale one is stale."""
        found = [
            self._stage(f"cells/{cell.id}", cell_key(self.room, self.params, cell))
            for cell in self.cells.values()
        ]
        upstream = any(stage.stale for stage in found)
        tables = {} if upstream else table_digests(self.room, list(self.cells))
        key = None if upstream else claims_key(self.room, self.params, tables)
        found.append(self._stage("claims", key))
        if self.room.notebook_source.is_file():
            key = None if found[-1].stale else notebook_key(self.room)
            found.append(self._stage("notebook", key))
        else:
            found.append(Stage(self.room.paper, "notebook", "source-missing"))
        return found

    def _stage(self, name: str, key: str | None) -> Stage:
        because = receipts.stale_because(self.room.dir, self.room.receipt_path(name), key)
        return Stage(self.room.paper, name, because or (None if key else "upstream-changed"))


def table_digests(room: Room, cell_ids: Sequence[str]) -> dict[str, str]:
    """Return the recorded SHA-256 of each cell's table by its id.

    Raises
    ------
    RunError
        If a cell has no receipt.
    """
    found: dict[str, str] = {}
    for cell_id in cell_ids:
        receipt = receipts.read(room.receipt_path(f"cells/{cell_id}"))
        if receipt is None:
            raise RunError(f"cell {cell_id} of {room.paper} ({room.profile}) has not been run")
        found[cell_id] = receipt.outputs[f"cells/{cell_id}.parquet"]
    return found


class Plan:
    """What the Snakefile asks: targets, markers, and what each job needs.

    Parameters
    ----------
    names
        The papers; all of them where there are none.
    profile
        One of ``layout.PROFILES``.
    root
        The results root, as given on the command line.
    """

    def __init__(self, names: Sequence[str], profile: str, root: str) -> None:
        self.profile = check_profile(profile)
        self.root = root
        self.papers = {
            name: PaperPlan(Room(name, profile, Path(root))) for name in select_papers(names)
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Plan":
        """Make a plan from Snakemake's ``--config``.

        Raises
        ------
        UsageError
            Unknown key, profile or paper.
        """
        for key in config:
            if key not in _CONFIG:
                raise UsageError(
                    f"--config has no key {key!r}{nearest(key, _CONFIG)}; known: "
                    f"{', '.join(_CONFIG)}"
                )
        values = {key: str(config.get(key, default)) for key, default in _CONFIG.items()}
        names = [name.strip() for name in values["papers"].split(",") if name.strip()]
        return cls(names, values["profile"], values["root"])

    @cached_property
    def stages(self) -> list[Stage]:
        """All stages of all papers, then the two of the profile."""
        found = [stage for paper in self.papers.values() for stage in paper.stages]
        upstream = any(stage.stale for stage in found)
        for name in ("report", "audit"):
            key = None if upstream else profile_key(name, Path(self.root), self.profile)
            because = receipts.stale_because(
                self.base, profile_receipt(Path(self.root), self.profile, name), key
            )
            found.append(Stage("", name, because or ("upstream-changed" if upstream else None)))
        return found

    @property
    def base(self) -> Path:
        """The directory of this profile's results."""
        return repo_root() / self.root / self.profile

    def targets(self) -> list[str]:
        """Return every file that a complete run has."""
        base = f"{self.root}/{self.profile}"
        found = [f"{base}/report.html", f"{base}/audit.json"]
        for stage in self.stages:
            if stage.paper:
                found.append(f"{base}/{stage.paper}/receipts/{stage.name}.json")
        return found + [table for name in self.papers for table in self.tables(name)]

    def tables(self, paper: str) -> list[str]:
        """Return the paths of a paper's cell tables, relative to the repository."""
        base = f"{self.root}/{self.profile}/{paper}/cells"
        return [f"{base}/{cell_id}.parquet" for cell_id in self.papers[paper].cells]

    def cell(self, wildcards: Any) -> Cell:
        """Return the cell that a job's wildcards name.

        Raises
        ------
        UsageError
            If the experiment plans no such cell.
        """
        known = self.papers[self._paper(wildcards)].cells
        if wildcards.cell not in known:
            raise UsageError(
                f"{wildcards.paper} has no cell {wildcards.cell!r} at profile {self.profile}"
                f"{nearest(wildcards.cell, known)}"
            )
        return known[wildcards.cell]

    def _paper(self, wildcards: Any) -> str:
        if wildcards.paper not in self.papers:
            raise UsageError(
                f"{wildcards.paper!r} is not among the papers of this run"
                f"{nearest(wildcards.paper, self.papers)}"
            )
        return wildcards.paper

    def threads(self, wildcards: Any) -> int:
        """Return the cores of a cell's job."""
        return self.cell(wildcards).threads

    def memory_mb(self, wildcards: Any) -> int:
        """Return the memory to reserve for a cell's job, MiB."""
        return self.cell(wildcards).memory_mb

    def priority(self, wildcards: Any) -> int:
        """Return how early a cell's job should run."""
        return self.cell(wildcards).priority

    def claims_input(self, wildcards: Any) -> list[str]:
        """Return the tables that a paper's verdicts need."""
        return self._upstream(wildcards.paper, "claims", self.tables(self._paper(wildcards)))

    def notebook_input(self, wildcards: Any) -> list[str]:
        """Return the verdicts that a paper's notebook shows, and their receipt."""
        base = f"{self.root}/{self.profile}/{self._paper(wildcards)}"
        found = [f"{base}/claims.json", f"{base}/receipts/claims.json"]
        return self._upstream(wildcards.paper, "notebook", found)

    def report_input(self, wildcards: Any) -> list[str]:
        """Return the executed notebooks of the papers of this run."""
        return self._upstream("", "report", self._notebooks())

    def audit_input(self, wildcards: Any) -> list[str]:
        """Return the executed notebooks of the papers of this run."""
        return self._upstream("", "audit", self._notebooks())

    def _notebooks(self) -> list[str]:
        return [f"{self.root}/{self.profile}/{name}/notebook.ipynb" for name in self.papers]

    def _upstream(self, paper: str, name: str, paths: list[str]) -> list[str]:
        """Make the inputs of a current stage ancient, so that their times do not matter.

        Those of a stale stage are plain: Snakemake looks no further than at a job that has to run,
        and runs what comes after it only if that is not ancient.
        """
        from snakemake.io import ancient

        stale = {(stage.paper, stage.name) for stage in self.stages if stage.stale}
        return paths if (paper, name) in stale else [ancient(path) for path in paths]

    def stale_cell(self, wildcards: Any) -> list[str]:
        """Return the marker of a cell, if it has one."""
        return self._marker(wildcards.paper, f"cells/{wildcards.cell}")

    def stale_claims(self, wildcards: Any) -> list[str]:
        """Return the marker of a paper's verdicts, if they have one."""
        return self._marker(wildcards.paper, "claims")

    def stale_notebook(self, wildcards: Any) -> list[str]:
        """Return the marker of a paper's notebook, if it has one."""
        return self._marker(wildcards.paper, "notebook")

    def stale_report(self, wildcards: Any) -> list[str]:
        """Return the marker of the report, if it has one."""
        return self._marker("", "report")

    def stale_audit(self, wildcards: Any) -> list[str]:
        """Return the marker of the audit, if it has one."""
        return self._marker("", "audit")

    def _marker(self, paper: str, name: str) -> list[str]:
        path = self._markers.get((paper, name))
        return [path] if path else []

    @cached_property
    def _markers(self) -> dict[tuple[str, str], str]:
        return {
            (stage.paper, stage.name): self._marker_path(stage)
            for stage in self.stages
            if stage.stale and self._outputs(stage)
        }

    def _marker_path(self, stage: Stage) -> str:
        place = self.root.strip("/").replace("/", "-")
        parts = (place, self.profile, stage.paper, stage.name, stage.stale)
        return "/".join([".snakemake/replicata/stale", *(part for part in parts if part)])

    def _outputs(self, stage: Stage) -> list[Path]:
        """Return those outputs of a stage that exist, whole or not."""
        if not stage.paper:
            name = {"report": "report.html", "audit": "audit.json"}[stage.name]
            receipt = profile_receipt(Path(self.root), self.profile, stage.name)
            candidates = [self.base / name, receipt]
        else:
            room = self.papers[stage.paper].room
            candidates = [room.receipt_path(stage.name)]
            if stage.name == "claims":
                candidates += [room.claims_json, room.figures_dir]
            elif stage.name == "notebook":
                candidates += [room.notebook, room.manifest_json]
            else:
                candidates += [room.dir / f"{stage.name}.parquet"]
        return [path for path in candidates if path.exists()]

    def write_markers(self, fresh: bool) -> None:
        """Write the markers of this plan.

        Parameters
        ----------
        fresh
            Write those that exist again. A job that Snakemake starts elsewhere reads the Snakefile
            once more, and must leave the markers of the run that started it alone.
        """
        if fresh:
            self._end_future()
        for stage in self.stages:
            name = self._markers.get((stage.paper, stage.name))
            if name is None:
                continue
            path = repo_root() / name
            if path.exists() and not fresh:
                continue
            # Never the same bytes twice: Snakemake compares the checksums of small inputs.
            atomic_write(path, f"{stage.stale} {time.time_ns()} {os.getpid()}\n")
            newest = path.stat().st_mtime_ns
            for output in self._outputs(stage):
                if output.stat().st_mtime_ns >= newest:
                    os.utime(output, ns=(newest - 10**9, newest - 10**9))

    def _end_future(self) -> None:
        """Give files from the future, such as an archive's, the present time.

        Snakemake refuses a job whose output is older than any input, and calls it clock skew.
        """
        now = time.time_ns()
        places = [self.base]
        for name, paper in self.papers.items():
            places += [repo_root() / "params" / name, paper.room.notebook_source]
        for place in places:
            for path in (place, *place.rglob("*")):
                if path.exists() and path.stat().st_mtime_ns > now:
                    os.utime(path, ns=(now, now))

    def hold(self) -> None:
        """Let no second run write the same results while this process lives.

        Raises
        ------
        ResourceError
            If one is at it.
        """
        from filelock import FileLock, Timeout

        place = self.root.strip("/").replace("/", "-")
        path = repo_root() / ".snakemake/replicata/locks" / f"{place}-{self.profile}.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        # The kernel lets go of it when the process ends, however it ends.
        self._lock = FileLock(path)
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise ResourceError(
                f"another run is writing {self.root}/{self.profile}: "
                "wait for it, or choose another --root"
            ) from None
