"""What profile ``paper`` needs before it starts, and what it costs; no result depends on this."""

from importlib.util import find_spec

from replicata.papers.cacc.experiment import Params
from replicata.papers.cacc.tasks import SOURCES
from replicata.workflow.layout import repo_root

#: A model of 1.7B parameters twice (vLLM and scoring) with a KV cache.
DEVICE_GIB = 20.0
#: Questions of each benchmark, and the spec's estimate of tokens per candidate and per second.
QUESTIONS = {"gsm8k": 1319, "math": 500, "gpqa_diamond": 198, "mmlu_pro": 12032}
TOKENS_PER_CANDIDATE, TOKENS_PER_SECOND = 400, 7000


def preflight(params: Params) -> list[str]:
    """Return one sentence for each thing that is missing; empty when the run can start."""
    # Imported here: it loads torch, which `replicata run` needs at profile paper only.
    from replicata.models.devices import check_device

    missing = []
    for device in dict.fromkeys(proposer.device for proposer in params.proposers):
        missing += check_device(device, DEVICE_GIB)
    for package in ("math_verify", "reasoning_gym", "datasets"):
        if find_spec(package) is None:
            missing.append(f"{package} is not installed: requirements/gpu.txt has it")
    if any(p.engine == "vllm" for p in params.proposers) and find_spec("vllm") is None:
        missing.append("vLLM is not installed: requirements/gpu.txt has it")
    for family in params.families:
        if family.path is not None and not (repo_root() / family.path).exists():
            missing.append(f"data: {family.path} is missing, expected {family.source}")
        if family.source == "gpqa_diamond" and family.path is None:
            missing += _gated()
    return missing


def _gated() -> list[str]:
    from huggingface_hub import get_token

    if get_token() is None:
        return [
            "data: GPQA Diamond is gated; accept its terms on the hub and log in "
            "('hf auth login'), or give a local file as path"
        ]
    return []


def cost_estimate(params: Params) -> str:
    """Return the expected cost in one sentence."""
    questions = sum(
        family.n_questions or QUESTIONS.get(family.source, 0)
        for family in params.families
        if family.source not in SOURCES
    )
    # Plain, and the enhanced share of the pool beside it.
    samples = params.k * (1 + params.enhanced.fraction)
    tokens = questions * samples * TOKENS_PER_CANDIDATE * len(params.proposers)
    hours = tokens / TOKENS_PER_SECOND / 3600
    return (
        f"{questions} questions, {samples:g} candidates each, {len(params.proposers)} proposer(s): "
        f"some {hours:.0f} GPU-hours on an 80 GB device, estimated and never measured"
    )
