"""What a profile asks of a device, checked before anything is loaded."""

import psutil
import torch


def check_device(device: str, min_memory_gb: float) -> list[str]:
    """Return what is wrong with a device, for the check before a paper-scale run.

    Parameters
    ----------
    device
        A torch device name, such as ``"cpu"`` or ``"cuda:0"``.
    min_memory_gb
        Memory the run needs on it, in GiB. Compared with what is free now.

    Returns
    -------
    list of str
        One sentence per problem; empty if the run can start.
    """
    try:
        wanted = torch.device(device)
    except RuntimeError:
        return [f"device {device!r}: unknown, expected a torch device such as 'cpu' or 'cuda:0'"]
    if wanted.type == "cpu":
        free = psutil.virtual_memory().available
    elif wanted.type == "cuda":
        if not torch.cuda.is_available():
            return [
                f"device {device}: this machine has no usable CUDA GPU, or torch is a CPU build"
            ]
        if (wanted.index or 0) >= torch.cuda.device_count():
            return [f"device {device}: this machine has {torch.cuda.device_count()} CUDA GPU(s)"]
        free, _ = torch.cuda.mem_get_info(wanted)
    else:
        return [f"device {device}: only 'cpu' and 'cuda' devices are supported"]
    free_gb = free / 2**30
    if free_gb < min_memory_gb:
        return [f"device {device}: {free_gb:.1f} GiB of memory free, expected {min_memory_gb:g}"]
    return []
