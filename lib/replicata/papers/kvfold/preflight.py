"""What profile ``paper`` needs before it starts, and what it costs; no result depends on this."""

from importlib.util import find_spec
from pathlib import Path
from shutil import disk_usage

from replicata.papers.kvfold.experiment import Params
from replicata.workflow.layout import repo_root

#: A 4B model in bfloat16 with contexts of 65,000 tokens and their float32 fits; the spec's reading.
DEVICE_GIB = 70.0
#: Folded caches of one context at a time, and the model.
DISK_GIB = 40.0
#: GPU-hours on an 80 GB device by the spec's estimate for all settings of one model.
GPU_HOURS = 60


def preflight(params: Params) -> list[str]:
    """Return one sentence for each thing that is missing; empty when the run can start."""
    # Imported here: it loads torch, which `replicata run` needs at profile paper only.
    from replicata.models.devices import check_device

    missing = check_device(params.device, DEVICE_GIB)
    free = disk_usage(repo_root()).free / 2**30
    if free < DISK_GIB:
        missing.append(f"disk: {free:.0f} GiB free, expected {DISK_GIB:g}")
    files = {family.name: family.path for family in params.families}
    files["head budgets"] = params.unequal.published
    for name, path in files.items():
        if path is not None and not (repo_root() / Path(path)).is_file():
            missing.append(f"data: {name} not found at {path}")
    if params.serving is not None and find_spec("vllm") is None:
        missing.append("vLLM is not installed: requirements/gpu.txt has it")
    return missing


def cost_estimate(params: Params) -> str:
    """Return the expected cost in one sentence."""
    contexts = sum(family.contexts for family in params.families)
    return (
        f"{contexts} contexts at {len(params.kl_budgets)} budgets with {params.model}: about "
        f"{GPU_HOURS} GPU-hours on an 80 GB device, estimated and never measured"
    )
