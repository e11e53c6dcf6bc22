"""`replicata run`: Snakemake works, and this says what it does while it does it.

Snakemake's own output goes to a log. What is shown comes from what the jobs leave: a log file when
one starts, a receipt when it is done. Verdicts are shown as soon as the cells they need are there.
"""

import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console

from replicata.errors import ReplicataError, RunError
from replicata.workflow import receipts
from replicata.workflow.layout import Room, repo_root
from replicata.workflow.plan import PaperPlan, Plan, Stage, profile_receipt
from replicata.workflow.processes import kill_tree

ERROR = "replicata: error: "
"""How the last line of a failed job's log starts."""
EXIT_CODE = "replicata: exit code "
"""How the line before it starts."""

_POLL = 0.3
_HEARTBEAT = 20.0


@dataclass
class Job:
    """One job as seen from outside: waiting, running, done or failed."""

    stage: Stage
    log: Path
    receipt: Path
    before: tuple[int, int] | None
    started: float | None = None
    state: str = "waiting"

    @property
    def name(self) -> str:
        """The job's name in what is shown."""
        return f"{self.stage.paper} {self.stage.name}".strip()

    def last_line(self) -> str:
        """Return the last line of its log that is not empty."""
        lines = self.lines()
        return lines[-1][-160:] if lines else ""

    def lines(self) -> list[str]:
        """Return the lines at the end of its log; progress bars count as lines."""
        try:
            with self.log.open("rb") as stream:
                stream.seek(max(0, self.log.stat().st_size - 8192))
                text = stream.read().decode("utf-8", "replace")
        except OSError:
            return []
        return [line.strip() for line in text.replace("\r", "\n").splitlines() if line.strip()]


def signature(path: Path) -> tuple[int, int] | None:
    """Return what changes when a file is written anew, or None where it is missing."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino


@dataclass
class Run:
    """One run of the pipeline, from its plan to the exit code.

    Attributes
    ----------
    plan
        What to run.
    cores
        How many to use.
    console
        Where to say things.
    """

    plan: Plan
    cores: int
    console: Console
    jobs: list[Job] = field(default_factory=list)
    decisions: dict[str, Any] = field(default_factory=dict)
    _spoke: float = field(default_factory=time.monotonic)
    _exit_code: int = 0

    def execute(self) -> int:
        """Run what is not current and return the exit code.

        Raises
        ------
        RunError
            If Snakemake itself fails.
        KeyboardInterrupt
            On Ctrl-C or SIGTERM, after everything started here has been ended.
        """
        self.jobs = [self._job(stage) for stage in self.plan.stages if stage.stale]
        current = len(self.plan.stages) - len(self.jobs)
        where = f"{self.plan.root}/{self.plan.profile}"
        if not self.jobs:
            self._say(f"Nothing to do: all {current} stages of {where} are current.")
            return 0
        self._say(
            f"{len(self.jobs)} of {len(self.plan.stages)} stages of {where} to run "
            f"on {self.cores} cores{self._forecast()}; {current} are current."
        )
        for job in self.jobs:
            job.log.unlink(missing_ok=True)
        snakemake = self._start()
        try:
            with self.console.status("") if self.console.is_terminal else _Silent() as status:
                while True:
                    ended = snakemake.poll() is not None
                    self._look(ended)
                    if ended:
                        break
                    status.update(self._running_line())
                    self._heartbeat()
                    time.sleep(_POLL)
        except BaseException:
            kill_tree(snakemake.pid)
            raise
        return self._finish(snakemake.returncode)

    def done(self) -> int:
        """Return how many jobs are done."""
        return sum(job.state == "done" for job in self.jobs)

    def _job(self, stage: Stage) -> Job:
        root, profile = Path(self.plan.root), self.plan.profile
        if stage.paper:
            room = self.plan.papers[stage.paper].room
            log, receipt = room.log_path(stage.name), room.receipt_path(stage.name)
        else:
            log = repo_root() / "logs" / root.name / profile / f"{stage.name}.log"
            receipt = profile_receipt(root, profile, stage.name)
        return Job(stage, log, receipt, signature(receipt))

    def _start(self) -> subprocess.Popen:
        self._log.parent.mkdir(parents=True, exist_ok=True)
        memory = int(psutil.virtual_memory().total * 0.9 / 2**20)
        command = [
            *(sys.executable, "-m", "snakemake", "--cores", str(self.cores)),
            *("--resources", f"mem_mb={memory}"),
            *("--config", f"profile={self.plan.profile}", f"root={self.plan.root}"),
            f"papers={','.join(self.plan.papers)}",
        ]
        # In a session of its own Ctrl-C reaches this process only, which then ends all the others.
        with self._log.open("wb") as stream:
            return subprocess.Popen(
                command,
                cwd=repo_root(),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=os.environ | {"REPLICATA_RUN": str(os.getpid())},
            )

    @property
    def _log(self) -> Path:
        return repo_root() / "logs" / Path(self.plan.root).name / self.plan.profile / "run.log"

    def _look(self, ended: bool) -> None:
        for job in self.jobs:
            if job.state in ("done", "failed"):
                continue
            now = signature(job.receipt)
            if now is not None and now != job.before:
                self._report_done(job)
            elif job.log.exists():
                job.state = "running"
                job.started = job.started or time.monotonic()
                if (ended or job.last_line().startswith(ERROR)) and now is None:
                    self._report_failed(job)
        self._decide_one()

    def _report_done(self, job: Job) -> None:
        receipt = receipts.read(job.receipt)
        job.state = "done"
        assert receipt is not None
        outcome = f"done in {_duration(receipt.seconds)}"
        if receipt.not_run is not None:
            outcome = f"not run: {receipt.not_run}"
        self._say(f"[{self.done()}/{len(self.jobs)}] {job.name} {outcome}")
        if job.stage.name == "claims":
            while self._decide_one():
                pass

    def _report_failed(self, job: Job) -> None:
        job.state = "failed"
        lines = job.lines()
        code = RunError.exit_code
        sentence = "it was killed, or its process ended without a word (out of memory?)"
        if lines and lines[-1].startswith(ERROR):
            sentence = lines[-1].removeprefix(ERROR)
        for line in lines[-2:]:
            if line.startswith(EXIT_CODE):
                code = int(line.removeprefix(EXIT_CODE))
        self._exit_code = self._exit_code or code
        self._say(f"FAILED {job.name}: {sentence}")
        self._say(f"       exit code {code}, log: {_shown(job.log)}")

    def _decide_one(self) -> bool:
        """Show one verdict whose cells are complete; return whether there was one."""
        waiting = {(job.stage.paper, job.stage.name) for job in self.jobs if job.state != "done"}
        for paper in self.plan.papers.values():
            if not any(job.stage.paper == paper.room.paper for job in self.jobs):
                continue
            for claim in paper.claims:
                needed = [cell for cell in paper.cells.values() if cell.group in claim.groups]
                late = any((paper.room.paper, f"cells/{cell.id}") in waiting for cell in needed)
                if claim.id in self.decisions or claim.not_testable or late:
                    continue
                self.decisions[claim.id] = self._decide(paper, claim)
                return True
        return False

    def _decide(self, paper: PaperPlan, claim: Any) -> Any:
        from replicata.workflow.run import evaluate_claim

        try:
            decision = evaluate_claim(paper.room, paper.params, claim)
        except ReplicataError:
            return None  # the claims job meets the same error, and says it
        self._say(f"  {verdict_line(decision.model_dump(mode='json'))}")
        return decision

    def _running(self) -> list[Job]:
        return [job for job in self.jobs if job.state == "running"]

    def _running_line(self) -> str:
        running = [f"{job.name} ({_duration(_since(job))})" for job in self._running()]
        return f"{self.done()}/{len(self.jobs)} done; running: {', '.join(running) or '-'}"

    def _heartbeat(self) -> None:
        if time.monotonic() - self._spoke < _HEARTBEAT:
            return
        for job in self._running():
            last = job.last_line()
            self._say(f"  ... {job.name}, {_duration(_since(job))}{f': {last}' if last else ''}")
        if not self._running():
            self._say("  ... Snakemake is starting the next jobs")

    def _forecast(self) -> str:
        """Return how long the reference took for the same stages, shared by the cores."""
        seconds = 0.0
        for job in self.jobs:
            if job.stage.paper:
                room = Room(job.stage.paper, self.plan.profile)
                try:
                    receipt = receipts.read(room.receipt_path(job.stage.name))
                except ReplicataError:
                    return ""
                if receipt is None:
                    return ""
                seconds += receipt.seconds
        return f" (the reference took {_duration(seconds)} of computing)" if seconds else ""

    def _finish(self, code: int) -> int:
        if code and not self._exit_code:
            text = self._log.read_text(encoding="utf-8", errors="replace")
            lines = [line.strip() for line in text.splitlines() if line.strip()]
            tail = " ".join(lines[-3:])[-500:]
            raise RunError(
                f"Snakemake ended with exit code {code}: {tail}; log: {_shown(self._log)}"
            )
        missing = [job for job in self.jobs if job.state == "waiting"]
        if missing:
            self._say(f"{len(missing)} stages were not started, because one before them failed.")
        return self._exit_code

    def _say(self, line: str) -> None:
        self._spoke = time.monotonic()
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)


class _Silent:
    """Stands in for the status line where there is no terminal."""

    def __enter__(self) -> "_Silent":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, _line: str) -> None:
        pass


def verdict_line(claim: dict[str, Any]) -> str:
    """Return a decision as one line: id, verdict, estimate with interval, p-value, n."""
    parts = []
    if claim.get("estimate") is not None:
        unit = claim.get("estimate_unit") or ""
        parts.append(f"{claim['estimate']:.4g}{f' {unit}' if unit else ''}")
    if claim.get("interval"):
        low, high = claim["interval"]
        parts.append(f"[{low:.4g}, {high:.4g}]")
    if claim.get("p_value") is not None:
        parts.append(f"p = {claim['p_value']:.3g}")
    if claim.get("n"):
        parts.append(f"n = {claim['n']}")
    return f"{claim['id']}: {claim['verdict']}{'; ' + ', '.join(parts) if parts else ''}"


def _since(job: Job) -> float:
    return time.monotonic() - (job.started or time.monotonic())


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min"


def _shown(path: Path) -> str:
    return str(path.relative_to(repo_root())) if path.is_relative_to(repo_root()) else str(path)
