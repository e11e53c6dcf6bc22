"""From a proposer's parameters to a model behind an engine."""

import contextlib
import hashlib
from collections.abc import Iterator
from importlib.metadata import version

import torch

from replicata.errors import NotRun, ResourceError
from replicata.models import LoadedModel, load_model, model_directory
from replicata.papers.cacc.experiment import ProposerParams
from replicata.papers.cacc.proposer import Proposer


@contextlib.contextmanager
def open_proposer(params: ProposerParams) -> Iterator[Proposer]:
    """Load a model, start its engine, and close it afterwards.

    Raises
    ------
    NotRun
        Where vLLM is asked for and does not start on this machine.
    ResourceError
        If the model or the device is missing.
    """
    loaded = load_model(params.model, dtype=params.dtype, device=params.device)
    if params.engine == "vllm":
        from replicata.inference.vllm_engine import VllmEngine

        try:
            engine = VllmEngine(
                model_directory(params.model, params.dtype),
                params.dtype,
                max_model_len=params.max_model_len,
            )
        except ResourceError as error:
            raise NotRun(str(error)) from error
        name = f"vllm {_vllm_version()} {params.dtype} {params.device}"
    elif params.engine == "transformers":
        from replicata.inference.transformers_engine import TransformersEngine

        engine = TransformersEngine(loaded, batch_size=params.batch)
        name = f"transformers {version('transformers')} {params.dtype} {params.device}"
    else:
        from replicata.papers.cacc.canned import CannedEngine

        engine, name = CannedEngine(loaded.tokenizer), "canned"
    with engine:
        yield Proposer(loaded, engine, name, params.batch, params.batch_tokens)


def weights_digest(proposer: Proposer) -> str:
    """Return one SHA-256 over all weights in use: the engine's own copy and transformers'."""
    digests = [state_digest(proposer.loaded.model)]
    llm = getattr(proposer.engine, "llm", None)
    if llm is not None:
        digests += llm.apply_model(state_digest)
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def state_digest(model: torch.nn.Module) -> str:
    """Return the SHA-256 over the names and bytes of a model's state, in hex."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def describe(loaded: LoadedModel) -> str:
    """Return which model it is, with what a reader must know about its weights."""
    return f"{loaded.name}. {loaded.note}" if loaded.note else loaded.name


def _vllm_version() -> str:
    import vllm

    return vllm.__version__
