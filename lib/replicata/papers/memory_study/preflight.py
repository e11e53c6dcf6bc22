"""What profile ``paper`` needs before it starts, and what it costs; no result depends on this."""

import os
from pathlib import Path
from shutil import disk_usage

from replicata.papers.memory_study.experiment import Params, places_of
from replicata.preregistration.places import token_path
from replicata.preregistration.protocol import Endpoint, Protocol, load_draft

#: Records of all endpoints, uncompressed.
DISK_GIB = 2.0
#: Tokens of a request and its answer, by the spec's estimate.
TOKENS_PER_CELL = 560


def preflight(params: Params) -> list[str]:
    """Return one sentence for each thing that is missing; empty when the run can start."""
    places = places_of(params)
    protocol = load_draft(places.draft)
    missing = []
    if "TO BE WRITTEN" in places.draft.read_text(encoding="utf-8"):
        missing.append(f"{params.study}: the draft has parts TO BE WRITTEN")
    if not places.frozen.exists():
        missing.append(f"{params.study}: not frozen, see replicata prereg freeze")
    elif not token_path(places.frozen).exists():
        missing.append(f"{params.study}: not stamped, see replicata prereg stamp")
    free = disk_usage(places.root).free / 2**30
    if free < DISK_GIB:
        missing.append(f"disk: {free:.1f} GiB free, expected {DISK_GIB:g}")
    return missing + _roots(protocol, places.protocol_dir) + _endpoints(protocol)


def _roots(protocol: Protocol, directory: Path) -> list[str]:
    roots = protocol.timestamp.roots
    if roots is None or (directory / roots).exists():
        return []
    return [f"timestamp: root certificates {roots} are not beside the draft"]


def _endpoints(protocol: Protocol) -> list[str]:
    found = []
    for name, endpoint in protocol.endpoints.items():
        if endpoint.kind == "api":
            reason = _unreachable(endpoint)
            if reason:
                found.append(f"endpoint {name}: {reason}")
    return found


def _unreachable(endpoint: Endpoint) -> str | None:
    """Return why a server cannot be asked, or None; it lists its models without any cost."""
    from openai import OpenAI, OpenAIError

    from replicata.papers.memory_study.api import ApiSettings

    settings = ApiSettings(**endpoint.decoding)
    key = "none"
    if settings.api_key_env is not None:
        key = os.environ.get(settings.api_key_env, "")
        if not key:
            return f"the variable {settings.api_key_env} is not set"
    client = OpenAI(base_url=settings.base_url, api_key=key, timeout=5, max_retries=0)
    try:
        served = {model.id for model in client.models.list()}
    except OpenAIError as error:
        return f"{settings.base_url} does not answer ({type(error).__name__})"
    return None if endpoint.pin in served else f"{settings.base_url} does not serve {endpoint.pin}"


def cost_estimate(params: Params) -> str:
    """Return the expected cost in one sentence."""
    protocol = load_draft(places_of(params).draft)
    cells = protocol.sample.planned_cells
    return (
        f"{cells:,} requests to {len(protocol.endpoints)} endpoints, about "
        f"{cells * TOKENS_PER_CELL / 1e6:.0f} million tokens, estimated and never measured"
    )
