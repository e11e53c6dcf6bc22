"""Models behind an OpenAI-compatible server: text answers at temperature 0, strictly parsed.

An answer counts only if it names exactly one of the options; anything else is asked again, and
declared missing in the end. A local model of any size is one of these: ``vllm serve`` speaks it.
"""

import os
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pydantic import Field

from replicata.errors import ResourceError
from replicata.papers.memory_study.baselines import CHOSEN, REFUSED
from replicata.preregistration.protocol import Part
from replicata.preregistration.study import Retry


class ApiSettings(Part):
    """An endpoint's ``decoding``: where it is, and how it is asked.

    ``api_key_env`` names the variable that holds the key; keys never stand in a protocol.
    """

    base_url: str
    api_key_env: str | None = None
    temperature: float = Field(default=0.0, ge=0)
    seed: int | None = None
    answer_tokens: int = Field(default=16, ge=1)
    concurrency: int = Field(default=8, ge=1)
    timeout_s: float = Field(default=120.0, gt=0)


def answer_api(
    model: str, settings: ApiSettings, requests: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any] | Retry]:
    """Ask a server; return an answer for each request, or why it should be asked again.

    Parameters
    ----------
    model
        Its name on the server.
    settings
        See `ApiSettings`.
    requests
        As ``prompts.py`` makes them; the beginning of the answer cannot be given over this
        protocol, so the user asks for one word instead.

    Raises
    ------
    ResourceError
        If the variable of the key is not set.
    """
    from openai import OpenAI, OpenAIError

    key = "none"
    if settings.api_key_env is not None:
        key = os.environ.get(settings.api_key_env, "")
        if not key:
            raise ResourceError(f"model {model}: the variable {settings.api_key_env} is not set")
    client = OpenAI(
        base_url=settings.base_url, api_key=key, timeout=settings.timeout_s, max_retries=0
    )

    def ask(request: Mapping[str, Any]) -> dict[str, Any] | Retry:
        try:
            reply = client.chat.completions.create(
                model=model,
                messages=[{"role": "user", "content": question(request)}],
                temperature=settings.temperature,
                seed=settings.seed,
                max_tokens=request.get("max_tokens", settings.answer_tokens),
            )
        except OpenAIError as error:
            return Retry(f"{type(error).__name__}: {error}")
        text = (reply.choices[0].message.content or "").strip()
        return parse(request, text)

    with ThreadPoolExecutor(settings.concurrency) as pool:
        return list(pool.map(ask, requests))


def question(request: Mapping[str, Any]) -> str:
    """Return what the user says."""
    text = "".join(request["user"])
    if "options" not in request:
        return text
    return f"{text} Answer with one word: {' or '.join(o.strip() for o in request['options'])}."


def parse(request: Mapping[str, Any], text: str) -> dict[str, Any] | Retry:
    """Return a text as an answer: scores of 0 for the option it names and -50 for the others."""
    if "options" not in request:
        return {"text": text} if text else Retry("the answer is empty")
    names = [option.strip() for option in request["options"]]
    named = set(names) & set(re.findall(r"\w+", text.casefold()))
    if len(named) != 1:
        return Retry(f"the answer names {len(named)} of the options: {text[:60]!r}")
    return {"scores": [CHOSEN if name in named else REFUSED for name in names], "text": text}
