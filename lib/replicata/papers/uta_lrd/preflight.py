"""What profile ``paper`` needs before it starts, and what it costs; no result depends on this."""

from importlib.util import find_spec

from replicata.papers.uta_lrd.experiment import Params, StudyParams, SweepParams

#: GPU-hours of 10,000 steps of 60M parameters, and of 90 epochs of ResNet-50 and of ViT-B/16, on an
#: 80 GB device (the spec's estimates).
HOURS, RESNET_HOURS, VIT_HOURS = 1.5, 12.0, 27.0
DEVICE_GIB = 40.0


def preflight(params: Params) -> list[str]:
    """Return one sentence for each thing that is missing; empty when the run can start."""
    # Imported here: it loads torch, which `replicata run` needs at profile paper only.
    import torch

    from replicata.models.devices import check_device

    missing = check_device(params.device, DEVICE_GIB)
    if params.device == "cuda" and torch.cuda.device_count() < params.processes:
        missing.append(
            f"processes is {params.processes}, and there are {torch.cuda.device_count()} devices: "
            "set it to the number of devices"
        )
    if params.model.data == "c4" and find_spec("datasets") is None:
        missing.append("datasets is not installed: pip install datasets")
    if params.vision is not None and params.vision.images is not None and find_spec("PIL") is None:
        missing.append("Pillow, which decodes the images, is not installed: pip install pillow")
    return missing


def _steps(study: StudyParams) -> int:
    """Return the optimizer steps of a group."""
    runs = len(study.arms) * len(study.peaks)
    if isinstance(study, SweepParams):
        runs += len(study.ratio_arms) * len(study.ratios)
    return runs * (study.tuning + study.seeds) * study.steps


def cost_estimate(params: Params) -> str:
    """Return the expected cost in one sentence."""
    steps = sum(_steps(study) for study in (params.short, params.long, params.sweep))
    hours = f"some {steps / 10_000 * HOURS:.0f} GPU-hours on an 80 GB device at 60M parameters"
    if params.vision is not None and params.vision.images is not None:
        runs = len(params.vision.arms) * params.vision.seeds
        hours += f", and {runs * (RESNET_HOURS + VIT_HOURS):.0f} for ImageNet"
    return f"{steps} steps, {hours}, estimated and never measured"
