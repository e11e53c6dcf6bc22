"""What profile ``paper`` needs before it starts, and what it costs; no result depends on this."""

from importlib.util import find_spec
from pathlib import Path

from replicata.papers.rlvr_entropy.arms import explode_arms, learn_arms, null_arms
from replicata.papers.rlvr_entropy.experiment import Params
from replicata.workflow.layout import repo_root

#: A 1.7B model, its AdamW states and a colocated vLLM.
DEVICE_GIB = 70.0
#: GPU-seconds of an update by the spec's estimate (64 prompts, groups of 8, 2,048 tokens).
SECONDS_PER_STEP = 45


def preflight(params: Params) -> list[str]:
    """Return one sentence for each thing that is missing; empty when the run can start."""
    # Imported here: it loads torch, which `replicata run` needs at profile paper only.
    from replicata.models.devices import check_device

    missing = check_device(params.device, DEVICE_GIB)
    if params.grpo is not None:
        path = params.grpo.prompts_path
        if not (repo_root() / Path(path)).is_file():
            missing.append(f"data: {path} is missing, expected a JSONL of prompt and answer")
        if params.grpo.engine == "vllm" and find_spec("vllm") is None:
            missing.append("vLLM is not installed: requirements/gpu.txt has it")
        if find_spec("math_verify") is None:
            missing.append("math-verify is not installed: pip install math-verify")
    return missing


def cost_estimate(params: Params) -> str:
    """Return the expected cost in one sentence."""
    shifts = params.null.shifts
    nulls = sum(len(null_arms(shifts, optimizer)) for optimizer in ("adam", "sgd"))
    steps = (
        params.null.seeds * params.null.steps * nulls
        + params.learn.seeds * params.learn.steps * 2 * len(learn_arms())
        + params.explode.seeds * params.explode.steps * len(explode_arms())
    )
    hours = steps * SECONDS_PER_STEP / 3600
    return (
        f"{steps} updates of about {SECONDS_PER_STEP} s: some {hours:.0f} GPU-hours on an 80 GB "
        "device, estimated and never measured"
    )
