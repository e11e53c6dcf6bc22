"""cacc's experiment: parameters, cells, and what a cell runs.

One group of cells, ``pools``: a cell is a proposer and a family of questions. It draws (or finds)
the pools, builds every arm on them, and keeps each candidate's text beside the outcomes, so that
everything can be derived again from its table.
"""

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from replicata.workflow.cells import Cell, StrictParams

if TYPE_CHECKING:
    import pandas as pd

Style = Literal["hash", "boxed", "letter-first"]
Kind = Literal["number", "latex", "letter"]


class ProposerParams(StrictParams):
    """A small language model and how it is run.

    ``engine`` ``canned`` answers from a list of hand-made texts, for smoke runs.
    """

    id: str = Field(pattern=r"^[a-z0-9]+$")
    model: str
    engine: Literal["vllm", "transformers", "canned"]
    dtype: Literal["float32", "bfloat16", "float16"]
    device: str = "cpu"
    max_model_len: int = Field(ge=64)
    batch: int = Field(ge=1)
    batch_tokens: int = Field(ge=64)


class FamilyParams(StrictParams):
    """A family of questions.

    ``source`` is a generator of ``tasks.py`` or a data set of ``benchmarks.py``, which ``path``
    overrides by a local file or directory. The first of ``interfaces`` is the fixed one; others are
    read from the same pool for comparison. ``extra_tokens`` lets samples run on beyond the budget,
    from which smaller budgets are cut.
    """

    id: str = Field(pattern=r"^[a-z0-9]+$")
    source: str
    path: str | None = None
    n_questions: int | None = Field(default=None, ge=2)
    interfaces: list[Style] = Field(min_length=1)
    max_new_tokens: int = Field(ge=1)
    budgets: tuple[int, ...] = Field(default=(), strict=False)


class SamplingParams(StrictParams):
    """How plain candidates are sampled."""

    temperature: float = Field(gt=0)
    top_p: float = Field(gt=0, le=1)


class CaccParams(StrictParams):
    """Fixed settings of the repair operator and of noise removal (spec 3.3)."""

    repair_tokens: int = Field(ge=1)
    tau_rep_value: float = Field(ge=0, le=1)


class EnhancedParams(StrictParams):
    """Proposer enhancement: the share of the pool that comes from it, and its temperature."""

    fraction: float = Field(gt=0, lt=1)
    temperature: float = Field(gt=0)


class Params(StrictParams):
    """Parameters of cacc; the same code runs in all profiles."""

    seed: int
    proposers: list[ProposerParams] = Field(min_length=1)
    families: list[FamilyParams] = Field(min_length=1)
    k: int = Field(ge=2)
    sampling: SamplingParams
    cacc: CaccParams
    enhanced: EnhancedParams
    placebo_draws: int = Field(ge=1)
    bootstrap: int = Field(ge=100)
    memory_mb: int = Field(ge=1)


GROUPS = ("pools",)


def cells(params: Params) -> list[Cell]:
    """List the cells: a proposer and a family each, the longest first."""
    return [
        Cell(
            id=f"{proposer.id}-{family.id}",
            group="pools",
            params={"proposer": proposer.id, "family": family.id},
            priority=10 * len(params.families) - rank,
            memory_mb=params.memory_mb,
        )
        for proposer in params.proposers
        for rank, family in enumerate(params.families)
    ]


def run(params: Params, cell: Cell) -> "pd.DataFrame":
    """Run one cell and return its tidy rows.

    Raises
    ------
    NotRun
        Where vLLM or a data set is not on this machine.
    ResourceError
        When a model, a package or the cache is missing.
    """
    # Imported here: the Snakefile imports this module to list cells, and torch takes seconds.
    from replicata.papers.cacc import study

    return study.pools(params, cell)
