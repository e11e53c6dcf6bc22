"""rlvr_entropy's experiment: parameters, cells, and what a cell runs.

Groups of cells:

* ``theorem``: random distributions and samplers against Theorem 1, the kept-mass identity and the
  decomposition (c1, c4, c6);
* ``null``: tiny policies under a reward that is a coin, so that only the sampler mismatch can move
  the entropy: shifts, samplers, importance ratios (c2, c3, c4);
* ``learn``: a real reward in two variants of the task, five rules (c5, c6);
* ``explode``: a hard task, 100 steps (c7, and the analogue of c8);
* ``language``: the mismatch term of a packaged language model under a shipped generation config
  (what TRL users get; no claim rests on it).

A cell of ``null``, ``learn`` and ``explode`` is one seed with all its arms. Tiny policies are
trained side by side; with a ``grpo`` section (profile ``paper``) the arms are language models,
trained one after the other by TRL's ``GRPOTrainer`` with vLLM rollouts.
"""

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from replicata.workflow.cells import Cell, StrictParams

if TYPE_CHECKING:
    import pandas as pd


class ModelParams(StrictParams):
    """Shape of the tiny policy: four heads, two KV heads, tied embeddings."""

    width: int = Field(ge=8, multiple_of=8)
    layers: int = Field(ge=1)


class SftParams(StrictParams):
    """How the base policies learn from demonstrations."""

    batch: int = Field(ge=1)
    lr: float = Field(gt=0)
    answer_weight: float = Field(gt=0)


class TaskParams(StrictParams):
    """A variant of the task, see ``task.Task``, and how long its base policy learns it."""

    sft_steps: int = Field(ge=1)
    mean_filler: float = Field(gt=0)
    right_short: float = Field(ge=0, le=1)
    right_long: float = Field(ge=0, le=1)


class RlParams(StrictParams):
    """One policy-gradient step per rollout batch of ``prompts`` groups.

    ``reward`` is the verifier's, or a fair coin; ``measure_change`` measures the entropy at the
    same states before and after each update.
    """

    prompts: int = Field(ge=1)
    group_size: int = Field(ge=2)
    clip: float = Field(gt=0)
    probe_every: int = Field(ge=1)
    lr: float = Field(default=1e-3, gt=0)
    optimizer: Literal["adam", "sgd"] = "adam"
    reward: Literal["verifier", "coin"] = "verifier"
    measure_change: bool = False
    evaluate_at: tuple[int, ...] = ()


class StudyParams(StrictParams):
    """Units, length and learning rate (Adam's) of a group of runs."""

    seeds: int = Field(ge=2)
    steps: int = Field(ge=2)
    lr: float = Field(gt=0)


class NullParams(StudyParams):
    """The null-reward runs, by Adam and by SGD at ``sgd_lr``."""

    shifts: list[float]
    sgd_lr: float = Field(gt=0)


class LanguageParams(StrictParams):
    """The language model whose mismatch term is measured."""

    model: str
    prompts: int = Field(ge=2)
    group_size: int = Field(ge=2)
    max_tokens: int = Field(ge=1)


class GrpoParams(StrictParams):
    """The paper's scale; see ``grpo_study.py``."""

    model: str
    prompts_path: str
    prompts: int = Field(ge=1)
    group_size: int = Field(ge=2)
    max_tokens: int = Field(ge=1)
    engine: Literal["transformers", "vllm"]


class Params(StrictParams):
    """Parameters of rlvr_entropy; the same code runs in all profiles."""

    seed: int
    device: str
    draws: int = Field(ge=50)
    model: ModelParams
    sft: SftParams
    fillers: int = Field(ge=2)
    max_length: int = Field(ge=5)
    tasks: dict[Literal["long_wrong", "long_right", "hard"], TaskParams]
    rl: RlParams
    arms_per_block: int = Field(ge=1)
    null: NullParams
    learn: StudyParams
    explode: StudyParams
    language: LanguageParams | None
    grpo: GrpoParams | None
    memory_mb: int = Field(ge=1)


#: All groups; a profile without a section for one has no cells of it.
GROUPS = ("theorem", "null", "learn", "explode", "language")


def cells(params: Params) -> list[Cell]:
    """List the cells: those whose verdicts land first have the highest priority."""
    listed = [Cell(id="theorem", group="theorem", priority=40, memory_mb=params.memory_mb)]
    if params.language is not None:
        listed.append(
            Cell(id="language", group="language", priority=0, memory_mb=2 * params.memory_mb)
        )
    groups = (
        ("null", params.null, 30),
        ("explode", params.explode, 20),
        ("learn", params.learn, 10),
    )
    for group, study, priority in groups:
        listed += [
            Cell(
                id=f"{group}-{unit:02d}",
                group=group,
                params={"unit": unit},
                priority=priority,
                memory_mb=params.memory_mb,
            )
            for unit in range(study.seeds)
        ]
    return listed


def run(params: Params, cell: Cell) -> "pd.DataFrame":
    """Run one cell and return its tidy rows.

    Raises
    ------
    NotRun
        Where a cell needs what this machine lacks.
    ResourceError
        When a model or the cache is missing.
    """
    # Imported here: the Snakefile imports this module to list cells, and torch takes seconds.
    if cell.group == "theorem":
        from replicata.papers.rlvr_entropy import theorem

        return theorem.theorem(params, cell)
    if cell.group == "language":
        from replicata.papers.rlvr_entropy import language

        return language.language(params, cell)
    from replicata.papers.rlvr_entropy import studies

    return studies.STUDIES[cell.group](params, cell)
