"""Inference by an OpenAI-compatible server: the ``completions`` endpoint, not the chat one.

Two kinds of server. A ``"vllm"`` server takes and returns token ids and lets every decoding setting
be given, so it keeps the whole :class:`~replicata.inference.engine.Engine` contract. The
``"generic"`` schema knows neither: prompts and completions go over as text, the ids of a completion
are that text encoded again, there are no log-probabilities, stop tokens are sent as strings, and
settings the schema has no field for (such as top-k) stay whatever the server has.
"""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

from transformers import PreTrainedTokenizerBase

from replicata.errors import ResourceError, RunError, UsageError
from replicata.inference.engine import ClosesOnExit, check_prompts
from replicata.inference.sampling import Completion, Sampling, decode


class EndpointEngine(ClosesOnExit):
    """A completions endpoint behind the :class:`~replicata.inference.engine.Engine` interface.

    Parameters
    ----------
    base_url
        Up to and including the version, such as ``http://localhost:8000/v1``.
    model
        The model's name on the server.
    api_key_env
        Environment variable that holds the API key; ``None`` for a server without keys.
    tokenizer
        The served model's tokenizer.
    max_model_len
        Most positions the server holds per sequence.
    server
        ``"vllm"`` or ``"generic"``, see above.
    concurrency
        Most requests in flight.
    max_retries
        How often the client library retries a request, with growing pauses, when the connection
        fails or the server is busy.
    timeout_s
        Seconds after which a request counts as failed.

    Raises
    ------
    ResourceError
        If the package openai is not installed, or the variable of the API key is not set.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key_env: str | None,
        tokenizer: PreTrainedTokenizerBase,
        max_model_len: int,
        server: Literal["vllm", "generic"] = "vllm",
        concurrency: int = 8,
        max_retries: int = 4,
        timeout_s: float = 600.0,
    ) -> None:
        try:
            import openai
        except ImportError as error:
            raise ResourceError(
                "endpoint engine: the package openai is not installed; 'pip install openai'"
            ) from error
        # Servers without keys ignore it, but the client insists on one.
        key = "none" if api_key_env is None else os.environ.get(api_key_env)
        if not key:
            raise ResourceError(
                f"endpoint engine: the environment variable {api_key_env} must hold the API key "
                f"for {base_url}"
            )
        self._openai = openai
        self._client: openai.OpenAI | None = openai.OpenAI(
            base_url=base_url, api_key=key, max_retries=max_retries, timeout=timeout_s
        )
        self._base_url, self._model, self._server = base_url, model, server
        self._tokenizer, self._max_length = tokenizer, max_model_len
        self._concurrency = concurrency

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> list[Completion]:
        """Continue each prompt; see :meth:`Engine.generate`.

        Raises
        ------
        ResourceError
            If the server cannot be reached.
        """
        if self._client is None:
            raise RunError("endpoint engine: it is closed, so it cannot generate")
        if self._server == "generic" and sampling.logprobs:
            raise UsageError(
                f"sampling: logprobs {sampling.logprobs} needs a server that reports token ids; "
                "a generic endpoint does not, expected 0"
            )
        check_prompts(
            prompts, sampling, vocab_size=len(self._tokenizer), max_length=self._max_length
        )
        # One request per prompt: a seed belongs to a request, and prompts have their own.
        with ThreadPoolExecutor(self._concurrency) as pool:
            jobs = [
                pool.submit(self._complete, prompt, sampling, index)
                for index, prompt in enumerate(prompts)
            ]
            try:
                return [job.result() for job in jobs]
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _complete(self, prompt: Sequence[int], sampling: Sampling, index: int) -> Completion:
        """Send one request and translate its answer."""
        fields: dict[str, Any] = {
            "model": self._model,
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "n": 1,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "seed": sampling.prompt_seed(index),
        }
        if self._server == "vllm":
            fields |= {
                "prompt": list(prompt),
                "logprobs": sampling.logprobs,
                "extra_body": {
                    "top_k": 0,
                    "min_p": 0.0,
                    "repetition_penalty": 1.0,
                    "ignore_eos": True,
                    "stop_token_ids": list(sampling.stop_token_ids),
                    "return_token_ids": True,
                    "return_tokens_as_token_ids": True,
                },
            }
        else:
            fields |= {
                "prompt": self._tokenizer.decode(list(prompt)),
                "stop": [self._tokenizer.decode([token]) for token in sampling.stop_token_ids],
            }
        choice = self._request(fields)
        if choice.finish_reason not in ("stop", "length"):
            raise RunError(f"{self._where()}: a request ended with {choice.finish_reason!r}")
        if self._server == "vllm":
            return self._from_ids(choice, sampling)
        return Completion(
            token_ids=self._tokenizer.encode(choice.text, add_special_tokens=False),
            text=choice.text,
            logprobs=[],
            top_logprobs=[],
            finish_reason=choice.finish_reason,
        )

    def _request(self, fields: dict[str, Any]) -> Any:
        """Return the single choice of a completions request."""
        assert self._client is not None
        try:
            answer = self._client.completions.create(
                **{key: value for key, value in fields.items() if value is not None}
            )
        except self._openai.APIConnectionError as error:
            raise ResourceError(
                f"{self._where()}: cannot be reached ({type(error).__name__}: {error}); "
                "expected a running OpenAI-compatible server"
            ) from error
        except self._openai.APIError as error:
            message = " ".join(str(error).split())
            raise RunError(f"{self._where()}: the request was refused: {message[:300]}") from error
        if len(answer.choices) != 1:
            raise RunError(f"{self._where()}: {len(answer.choices)} choices returned, expected 1")
        return answer.choices[0]

    def _from_ids(self, choice: Any, sampling: Sampling) -> Completion:
        """Translate a choice of a vLLM server, which carries token ids."""
        ids = getattr(choice, "token_ids", None)
        reported = choice.logprobs
        if ids is None or reported is None or len(reported.token_logprobs or []) != len(ids):
            raise RunError(
                f"{self._where()}: the answer has no token ids and log-probabilities, which a vLLM "
                "server returns; expected server='generic' for any other"
            )
        return Completion(
            token_ids=ids,
            text=decode(self._tokenizer, ids, sampling.stop_token_ids),
            logprobs=list(reported.token_logprobs),
            top_logprobs=[
                _most_likely(position or {}, sampling.logprobs)
                for position in reported.top_logprobs or [{}] * len(ids)
            ],
            finish_reason=choice.finish_reason,
        )

    def _where(self) -> str:
        return f"endpoint {self._base_url}, model {self._model}"

    def close(self) -> None:
        """Close the client's connections."""
        client, self._client = self._client, None
        if client is not None:
            client.close()


def _most_likely(position: dict[str, float], count: int) -> dict[int, float]:
    """Return the ``count`` most likely ids; keys are ``token_id:<id>``, possibly one too many."""
    ranked = sorted(position.items(), key=lambda item: -item[1])
    return {int(key.removeprefix("token_id:")): value for key, value in ranked[:count]}
