"""The endpoints: a local language model whose answers are log-probabilities of the options.

Options are compared by summed log-probability of their whole text with its terminator, never by
free text (spec 3.3). Options of one request must be equally long in tokens, so that a sum has no
bias for short ones. Models behind a server, without log-probabilities, are in ``api.py``.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from replicata.errors import RunError
from replicata.preregistration.canonical import canonical

if TYPE_CHECKING:
    from replicata.models import LoadedModel

DECIMALS = 6
"""Log-probabilities are recorded as decimal text with so many places, in nats."""


def pin(name: str, fingerprint: str) -> str:
    """Return what pins a local model: its name and the digest of its weights."""
    return f"{name}:{fingerprint}"


@cache
def local_model(pinned: str, dtype: str) -> "LoadedModel":
    """Load the pinned model, once per process, on one thread.

    Raises
    ------
    RunError
        If its weights are other than pinned.
    ResourceError
        If it is not installed.
    """
    import torch

    from replicata.models import load_model

    torch.set_num_threads(1)
    name = pinned.rpartition(":")[0]
    loaded = load_model(name, dtype=dtype, device="cpu")
    found = pin(name, loaded.fingerprint)
    if found != pinned:
        raise RunError(f"endpoint {name}: its weights are {found}, the protocol pins {pinned}")
    return loaded


def answer_requests(
    loaded: "LoadedModel", requests: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Answer requests: scores of their options, or a text.

    Equal requests are answered once, since decoding is greedy.

    Parameters
    ----------
    loaded
        Model and tokenizer.
    requests
        As ``prompts.py`` makes them.

    Returns
    -------
    list[dict]
        ``{"scores": [text, ...]}`` in nats, or ``{"text": ...}``.

    Raises
    ------
    RunError
        If the options of a request differ in length.
    """
    unique = {canonical(dict(request)): request for request in requests}
    scored = {key: request for key, request in unique.items() if "options" in request}
    free = {key: request for key, request in unique.items() if "options" not in request}
    answers = _score(loaded, scored) | _write(loaded, free)
    return [answers[canonical(dict(request))] for request in requests]


def _score(
    loaded: "LoadedModel", requests: Mapping[bytes, Mapping[str, Any]]
) -> dict[bytes, dict[str, Any]]:
    from replicata.inference.scoring import score_options

    prompts = [_tokenized(loaded, request) for request in requests.values()]
    found = score_options(loaded, prompts)
    return {
        key: {"scores": [f"{score:.{DECIMALS}f}" for score in scores]}
        for key, scores in zip(requests, found, strict=True)
    }


def _tokenized(loaded: "LoadedModel", request: Mapping[str, Any]) -> Any:
    from replicata.inference.scoring import Scored

    options = [
        (*_ids(loaded, option), *_ids(loaded, request["end"])) for option in request["options"]
    ]
    if len({len(option) for option in options}) > 1:
        sizes = ", ".join(
            f"{text!r} {len(ids)}" for text, ids in zip(request["options"], options, strict=True)
        )
        raise RunError(f"the options differ in their number of tokens: {sizes}")
    return Scored(_parts(loaded, request), tuple(options))


def _parts(loaded: "LoadedModel", request: Mapping[str, Any]) -> tuple[tuple[int, ...], ...]:
    """Return the tokens of each part, in the model's chat template, up to where it goes on."""
    mark = "\x00"
    template = loaded.tokenizer.apply_chat_template(
        [{"role": "user", "content": mark}], tokenize=False, add_generation_prompt=True
    )
    before, _, after = template.partition(mark)
    first, *middle, last = request["user"]
    texts = [f"{before}{first}", *middle, f"{last}{after}{request['prefill']}"]
    return tuple(_ids(loaded, text) for text in texts)


def _write(
    loaded: "LoadedModel", requests: Mapping[bytes, Mapping[str, Any]]
) -> dict[bytes, dict[str, Any]]:
    if not requests:
        return {}
    from replicata.inference.sampling import Sampling
    from replicata.inference.transformers_engine import TransformersEngine

    prompts = [
        [token for part in _parts(loaded, request) for token in part]
        for request in requests.values()
    ]
    limits = {request["max_tokens"] for request in requests.values()}
    if len(limits) > 1:
        raise RunError(f"free requests of one batch ask for {sorted(limits)} tokens")
    sampling = Sampling(
        max_tokens=limits.pop(), temperature=0.0, stop_token_ids=loaded.stop_token_ids
    )
    with TransformersEngine(loaded) as engine:
        completions = engine.generate(prompts, sampling)
    return {
        key: {"text": f"{request['prefill']}{completion.text}".strip()}
        for (key, request), completion in zip(requests.items(), completions, strict=True)
    }


def _ids(loaded: "LoadedModel", text: str) -> tuple[int, ...]:
    return tuple(loaded.tokenizer.encode(text, add_special_tokens=False))
