"""uta_lrd's experiment: parameters, cells, and what a cell runs.

Groups of cells:

* ``theory``: closed-form checks of the continuous-time problem (c1);
* ``lab``: exact moments, all schedules against the numerical optimum (c2, c6, c8);
* ``short``: a small Llama from scratch, every head arm at every peak; the first seeds tune the
  peak, the others test (c3, c5, c6);
* ``long``: a second regime, smaller batches and more steps (c3, c5);
* ``sweep``: phi0, final ratio, ablations (c7, c8, c9);
* ``vision``: a small CNN and a small ViT on scikit-learn's digits (c4);
* ``finetune``: one checkpoint continued on shifted text (c10).

In a cell all arms of a seed share initial weights and the order of the data.
"""

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from replicata.workflow.cells import Cell, StrictParams

if TYPE_CHECKING:
    import pandas as pd


class LabParams(StrictParams):
    """The laboratory's problems, budget and search for the optimum."""

    betas: tuple[float, ...]
    sources: tuple[float, ...]
    noises: tuple[float, ...]
    modes: int = Field(ge=10)
    steps: int = Field(ge=20)
    peaks: int = Field(ge=2)
    final_ratio: float = Field(ge=0, lt=1)
    iterations: int = Field(ge=10)


class ModelParams(StrictParams):
    """A Llama with tied embeddings, its data and its evaluation."""

    data: Literal["standard_library", "c4"]
    tokenizer: str | None
    tokens: int = Field(ge=1)
    vocabulary: int = Field(ge=256)
    width: int = Field(ge=8)
    intermediate: int = Field(ge=8)
    layers: int = Field(ge=1)
    heads: int = Field(ge=1)
    sequence: int = Field(ge=8)
    held_out: int = Field(ge=8)
    probe: int = Field(ge=2)


class StudyParams(StrictParams):
    """A group of training runs; ``tuning`` seeds choose among several ``peaks``."""

    arms: tuple[str, ...]
    peaks: tuple[float, ...]
    tuning: int = Field(ge=0)
    seeds: int = Field(ge=2)
    seeds_per_cell: int = Field(ge=1)
    steps: int = Field(ge=10)
    batch: int = Field(ge=1)


class SweepParams(StudyParams):
    """Ablations at one peak, and the final ratios of some arms."""

    ratios: tuple[float, ...]
    ratio_arms: tuple[str, ...]


class ImagesParams(StrictParams):
    """Images of ImageNet's form (`imagenet.load_images`), and the sizes of both models."""

    source: str
    size: int = Field(ge=16)
    resnet_widths: tuple[int, ...]
    resnet_depths: tuple[int, ...]
    vit_patch: int = Field(ge=1)
    vit_width: int = Field(ge=8)
    vit_layers: int = Field(ge=1)
    vit_heads: int = Field(ge=1)
    held_out: int = Field(ge=1)


class VisionParams(StudyParams):
    """Image models at two ``peaks``, the CNN's and the ViT's; scikit-learn's digits if null."""

    images: ImagesParams | None


class SftParams(StudyParams):
    """Supervised fine-tuning of a packaged or hub model by TRL; ``batch`` is over all devices."""

    model: str
    source: str
    sequence: int = Field(ge=8)
    held_out: int = Field(ge=1)
    probe: int = Field(ge=1)
    micro_batch: int = Field(ge=1)


class FinetuneParams(StudyParams):
    """Continuing a checkpoint of ``pretraining`` steps at ``pretraining_peak``."""

    pretraining: int = Field(ge=10)
    pretraining_peak: float = Field(gt=0)


class Params(StrictParams):
    """Parameters of uta_lrd; the same code runs in all profiles.

    Attributes
    ----------
    processes
        Processes, each with a device of its own, that share the batches of a training run.
    micro_batch
        Sequences or images of one forward; null for the whole batch.
    """

    seed: int
    device: str
    processes: int = Field(ge=1)
    micro_batch: int | None = Field(ge=1)
    bf16: bool
    warmup: float = Field(ge=0, lt=1)
    final_ratio: float = Field(ge=0, lt=1)
    lab: LabParams
    model: ModelParams
    short: StudyParams
    long: StudyParams
    sweep: SweepParams
    vision: VisionParams | None
    finetune: FinetuneParams | SftParams | None
    checkpoints: str | None
    memory_mb: int = Field(ge=1)


#: All groups; a profile without a section for one has no cells of it.
GROUPS = ("theory", "lab", "short", "long", "sweep", "vision", "finetune")


def cells(params: Params) -> list[Cell]:
    """List the cells; the longest first, so that two cores end together."""
    memory = params.memory_mb
    listed = [Cell(id="theory", group="theory", priority=90, memory_mb=memory)]
    for kind in ("sgd", "adam"):
        listed.append(
            Cell(id=f"lab-{kind}", group="lab", params={"kind": kind}, priority=80,
                 memory_mb=memory)
        )  # fmt: skip
    for priority, group in zip((70, 60, 50, 40, 30), GROUPS[2:], strict=True):
        study = getattr(params, group)
        if study is None:
            continue
        units = list(range(study.tuning + study.seeds))
        for start in range(0, len(units), study.seeds_per_cell):
            block = units[start : start + study.seeds_per_cell]
            listed.append(
                Cell(id=f"{group}-{start:02d}", group=group, params={"units": block},
                     priority=priority, memory_mb=memory)
            )  # fmt: skip
    return listed


def run(params: Params, cell: Cell) -> "pd.DataFrame":
    """Run one cell and return its tidy rows.

    Raises
    ------
    NotRun
        Where a cell needs what this machine lacks.
    ResourceError
        When data is missing.
    """
    # Imported here: the Snakefile imports this module to list cells, and torch takes seconds.
    from replicata.papers.uta_lrd import parallel, studies

    processes = 1 if cell.group in ("theory", "lab") else params.processes
    return parallel.in_processes(
        processes, params.device, studies.STUDIES[cell.group], params, cell
    )
