"""Cells: the unit of compute, and the contract between a paper's room and the pipeline."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class StrictParams(BaseModel):
    """Base of every paper's ``Params``: unknown keys and silent type changes are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Cell(StrictParams):
    """One unit of compute: independent of all others, deterministic, written once.

    Attributes
    ----------
    id
        Unique within a paper and profile; the file stem of its Parquet.
    group
        Which part of the experiment it belongs to. Claims name the groups they need, so a verdict
        lands as soon as its groups are complete.
    params
        What ``run`` needs beyond the profile's ``Params``. JSON values only.
    priority
        Higher runs earlier.
    threads
        Cores it uses.
    memory_mb
        Peak memory to reserve, MiB.
    """

    id: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]*$")
    group: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    params: dict[str, Any] = {}
    priority: int = 0
    threads: int = Field(default=1, ge=1)
    memory_mb: int = Field(default=2000, ge=1)
