"""Append-only records: one hash-chained file per shard, every record on the disk before it counts.

Record kinds: ``answer`` (one per finished cell), ``missing`` (a cell given up after its retries),
``attempt`` (a failure that was retried), ``recovered`` (a torn last line was moved to ``*.torn``).
"""

import gzip
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from filelock import FileLock, Timeout

from replicata.errors import RunError, VerificationError
from replicata.preregistration.chain import append, genesis, link, verify
from replicata.preregistration.registration import Registration
from replicata.preregistration.study import PlannedCell
from replicata.workflow.files import atomic_write, raise_if_disk_full, sha256_bytes

Clock = Callable[[], datetime]


def utc_now() -> datetime:
    """Return the time in UTC."""
    return datetime.now(UTC)


def time_text(moment: datetime) -> str:
    """Return a time as fixed-width text in UTC, so that text order is time order."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class Shard:
    """The open records file of one shard: a context manager that holds its lock.

    Parameters
    ----------
    registration
        What records are made under.
    name
        The shard.
    not_before
        The latest time that the protocol's stamp allows for; records at or before it are refused.
    engine
        What answers: names and versions, written into every record.
    clock
        The time; tests set their own.
    """

    def __init__(
        self,
        registration: Registration,
        name: str,
        *,
        not_before: datetime | None = None,
        engine: dict[str, str] | None = None,
        clock: Clock = utc_now,
    ) -> None:
        self.name = name
        self.path = registration.places.records_dir / f"{name}.jsonl"
        self.responses: dict[str, Any] = {}
        """Responses of finished cells by id; None for cells given up."""
        self._registration = registration
        self._not_before = not_before
        self._engine = engine or {}
        self._clock = clock
        self._head = genesis(registration.digest, name)
        self._count = 0
        self._stream: BinaryIO | None = None

    def __enter__(self) -> "Shard":
        packed = self.path.with_name(self.path.name + ".gz")
        if packed.exists():
            raise RunError(f"{packed.name} is a packed shard, which takes no more records")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = FileLock(self.path.with_suffix(".lock"))
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise RunError(f"{self.path.name} is being written by another process") from None
        try:
            self._open()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None
        self._lock.release()

    def _open(self) -> None:
        data = self.path.read_bytes() if self.path.exists() else b""
        whole, torn = data[: data.rfind(b"\n") + 1], data[data.rfind(b"\n") + 1 :]
        chain = verify(whole, self._head, self.path.name)
        self._head, self._count = chain.head, len(chain.records)
        for record in chain.records:
            if record["kind"] in ("answer", "missing"):
                self.responses[record["cell"]] = record.get("response")
        if torn:
            self._keep_torn(torn)
            os.truncate(self.path, len(whole))
        self._stream = self.path.open("ab")
        if torn:
            self._write({"kind": "recovered", "bytes": len(torn), "sha256": sha256_bytes(torn)})

    def _keep_torn(self, torn: bytes) -> None:
        with self.path.with_suffix(".torn").open("ab") as stream:
            append(stream, torn + b"\n")

    def answer(self, cell: PlannedCell, request: Any, response: Any, outcome: Any) -> None:
        """Record the answer to a cell; it is on the disk when this returns.

        Raises
        ------
        RunError
            If the cell is finished already, or the clock is not after the stamp.
        """
        self._finish(cell, {"kind": "answer", "response": response, "outcome": outcome}, request)

    def missing(self, cell: PlannedCell, request: Any, reason: str) -> None:
        """Record that a cell is given up, and why.

        Raises
        ------
        RunError
            As for `answer`.
        """
        self._finish(cell, {"kind": "missing", "reason": reason}, request)

    def attempt(self, cell: PlannedCell, reason: str) -> None:
        """Record a failed attempt that will be repeated."""
        self._write({"kind": "attempt", "cell": cell.id, "reason": reason})

    def _finish(self, cell: PlannedCell, record: dict[str, Any], request: Any) -> None:
        if cell.shard != self.name:
            raise RunError(
                f"cell {cell.id!r} is planned for shard {cell.shard!r}, not {self.name!r}"
            )
        if cell.id in self.responses:
            raise RunError(f"cell {cell.id!r} is finished: a second answer is refused")
        pin = self._registration.protocol.endpoints[cell.endpoint].pin
        self._write(
            {
                **record,
                "cell": cell.id,
                "unit": cell.unit,
                "endpoint": cell.endpoint,
                "model": pin,
                "request": request,
                "engine": self._engine,
            }
        )
        self.responses[cell.id] = record.get("response")

    def _write(self, record: dict[str, Any]) -> None:
        now = self._clock()
        if self._not_before is not None and now <= self._not_before:
            raise RunError(
                f"the clock says {time_text(now)}, which is not after the protocol's stamp of "
                f"{time_text(self._not_before)}"
            )
        if self._stream is None:
            raise RunError(f"{self.path.name} is not open")
        stamped = {
            **record,
            "i": self._count,
            "shard": self.name,
            "protocol": self._registration.head,
            "t_utc": time_text(now),
        }
        line, head = link(stamped, self._head)
        try:
            append(self._stream, line)
        except OSError as error:
            raise_if_disk_full(error, self.path)
            raise
        self._head, self._count = head, self._count + 1


def pack(path: Path) -> Path:
    """Replace a shard by its gzip, which depends on the content alone; return the new path.

    Raises
    ------
    VerificationError
        If it is torn.
    """
    data = path.read_bytes()
    if data and not data.endswith(b"\n"):
        raise VerificationError(f"{path.name} ends in a torn line; run again before packing")
    packed = path.with_name(path.name + ".gz")
    atomic_write(packed, gzip.compress(data, mtime=0))
    path.unlink()
    return packed
