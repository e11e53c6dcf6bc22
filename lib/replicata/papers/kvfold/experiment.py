"""kvfold's experiment: parameters, cells, and what a cell runs.

Four groups of cells:

* ``geometry``: shapes, directions, projection errors and the bound on held-out queries (c1, c2);
* ``quality``: KL from the full cache and multiple-choice accuracy of every arm, one row per
  question, at equal budgets (c4, c5);
* ``unequal``: the same at budgets that differ between heads (c6);
* ``serving``: greedy answers of a real vLLM that loads the folded cache, against transformers with
  the same cache (c3, c7).
"""

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from replicata.workflow.cells import Cell, StrictParams

if TYPE_CHECKING:
    import pandas as pd

Family = Literal["squad", "hotpot", "records", "quality", "longhealth", "longbench"]
Share = float


class FamilyParams(StrictParams):
    """One family of contexts; see ``contexts.py``."""

    name: Family
    contexts: int = Field(ge=1)
    max_tokens: int = Field(ge=16)
    kl_questions: int = Field(ge=0)
    choice_questions: int = Field(ge=0)
    persons: int = Field(default=6, ge=4)
    path: str | None = None


class GeometryParams(StrictParams):
    """Contexts per family and budgets of the geometry group."""

    contexts: int = Field(ge=1)
    budgets: list[Share]


class UnequalParams(StrictParams):
    """The study of unequal budgets.

    ``published`` names a JSON of published proportions; without it budgets are derived from one
    calibration context of ``calibration`` (a family that no other group uses).
    """

    contexts: int = Field(ge=1)
    budget: Share
    calibration: Family
    grid: list[int]
    published: str | None = None


class ServingParams(StrictParams):
    """The serving study: contexts per family, questions per context, and dtypes of both engines."""

    contexts: int = Field(ge=1)
    questions: int = Field(ge=1)
    control_questions: int = Field(ge=1)
    budget: Share
    dtypes: list[Literal["float32", "bfloat16"]]
    max_model_len: int = Field(ge=64)


class Params(StrictParams):
    """Parameters of kvfold; the same code runs in all profiles."""

    model: str
    device: str
    dtype: Literal["float32", "bfloat16"]
    seed: int
    families: list[FamilyParams]
    kl_budgets: list[Share]
    choice_budgets: list[Share]
    ablation_budget: Share
    answer_tokens: int = Field(ge=1)
    selection: Literal["highest_attention", "omp"]
    fit_queries: int = Field(ge=1)
    heldout_every: int = Field(ge=2)
    contexts_per_cell: int = Field(ge=1)
    geometry: GeometryParams
    unequal: UnequalParams
    serving: ServingParams | None
    memory_mb: int = Field(ge=1)

    def family(self, name: str) -> FamilyParams:
        """Return the parameters of a family by its name."""
        return next(family for family in self.families if family.name == name)


#: All groups; a profile without a serving section has no serving cells.
GROUPS = ("geometry", "quality", "unequal", "serving")
#: Arms measured at every KL budget, and those at the ablation budget only.
KL_ARMS = ("am", "fold", "drop")
ABLATION_ARMS = (
    "nobias",
    "fold_refit",
    "fold_repeat",
    "am_direct",
    "snapkv",
    "streaming",
    "random",
)
CHOICE_ARMS = ("am", "fold")


def cells(params: Params) -> list[Cell]:
    """List the cells: those whose verdicts land first have the highest priority."""
    listed = [
        Cell(id="geometry", group="geometry", priority=30, memory_mb=params.memory_mb),
    ]
    if params.serving is not None:
        listed += [
            Cell(
                id=f"serving-{dtype}",
                group="serving",
                params={"dtype": dtype},
                priority=20,
                memory_mb=2 * params.memory_mb,
            )
            for dtype in params.serving.dtypes
        ]
    for family in params.families:
        listed += _blocks(params, "quality", family, family.contexts)
        listed += _blocks(params, "unequal", family, min(family.contexts, params.unequal.contexts))
    return listed


def _blocks(params: Params, group: str, family: FamilyParams, contexts: int) -> list[Cell]:
    """Cells of consecutive contexts; unequal ones take a family whole, for they calibrate once."""
    size = contexts if group == "unequal" else params.contexts_per_cell
    return [
        Cell(
            id=f"{group}-{family.name}-{start:02d}",
            group=group,
            params={"family": family.name, "start": start, "stop": min(start + size, contexts)},
            priority=10 if group == "unequal" else 0,
            memory_mb=params.memory_mb,
        )
        for start in range(0, contexts, size)
    ]


def run(params: Params, cell: Cell) -> "pd.DataFrame":
    """Run one cell and return its tidy rows.

    Raises
    ------
    NotRun
        For a serving cell where vLLM is absent or does not start.
    ResourceError
        When the model or a data wheel is missing.
    """
    # Imported here: the Snakefile imports this module to list cells, and torch takes seconds.
    from replicata.papers.kvfold import serving, studies

    studies_by_group = {
        "geometry": studies.geometry,
        "quality": studies.quality,
        "unequal": studies.unequal,
        "serving": serving.serving,
    }
    return studies_by_group[cell.group](params, cell)
