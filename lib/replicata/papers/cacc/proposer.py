"""Candidate pools: sampled through the shared engines, drawn once, kept by content.

A pool file is named by a digest of everything that its samples depend on: model, engine, prompts as
token ids, sampling and seed. So a changed template never meets an old sample. Batches are appended
as they are drawn, and a run that was stopped goes on where it was.
"""

import hashlib
import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock
from transformers import PreTrainedTokenizerBase

from replicata.errors import RunError
from replicata.inference import Engine, Sampling
from replicata.inference.sampling import decode
from replicata.models import LoadedModel, cache_dir
from replicata.papers.cacc.pool import Asked, Candidate
from replicata.papers.cacc.prompts import PromptStyle, messages
from replicata.workflow.seeds import derive_seed

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Drawn:
    """One sample as generated, from which candidates of any smaller budget are cut.

    Attributes
    ----------
    token_ids
        With the stop token, if one ended it.
    logprobs
        Natural-log probability of each token under the model's own distribution.
    stopped
        Whether a stop token ended it.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    stopped: bool

    def candidate(
        self, tokenizer: PreTrainedTokenizerBase, stop_ids: Sequence[int], budget: int, source: str
    ) -> Candidate:
        """Return what a budget of ``budget`` new tokens would have given.

        Tokens are drawn one after the other, so the first tokens of a longer sample are exactly the
        sample under a smaller budget.
        """
        ids = self.token_ids[:budget]
        return Candidate(
            text=decode(tokenizer, ids, stop_ids),
            finished=self.stopped and len(self.token_ids) <= budget,
            n_tokens=len(ids),
            sum_logprob=sum(self.logprobs[:budget]),
            source=source,
        )


@dataclass(frozen=True)
class Proposer:
    """A model behind an engine, as the experiment asks it.

    Attributes
    ----------
    loaded
        The model in transformers, for its tokenizer and for scoring.
    engine
        What generates.
    engine_name
        Which engine and version, a part of the pools' digest.
    batch
        Most sequences of one call.
    batch_tokens
        Most prompt tokens of one call. vLLM on a CPU cannot sample with seeds where one step does
        not hold all prompts: it winds the random generator back, and CPU generators cannot.
    """

    loaded: LoadedModel
    engine: Engine
    engine_name: str
    batch: int
    batch_tokens: int

    def encode(self, chat: list[dict[str, str]]) -> tuple[int, ...]:
        """Return the token ids of a chat, up to where the assistant's answer begins."""
        tokenizer = self.loaded.tokenizer
        text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        return tuple(tokenizer.encode(text, add_special_tokens=False))

    def batches(self, prompts: Sequence[Sequence[int]]) -> list[range]:
        """Cut the prompts into calls that respect ``batch`` and ``batch_tokens``."""
        cuts, start, tokens = [], 0, 0
        for index, prompt in enumerate(prompts):
            full = index - start == self.batch or tokens + len(prompt) > self.batch_tokens
            if full and index > start:
                cuts.append(range(start, index))
                start, tokens = index, 0
            tokens += len(prompt)
        return [*cuts, range(start, len(prompts))] if prompts else []


def draw_pool(
    proposer: Proposer,
    name: str,
    questions: Sequence[Asked],
    k: int,
    style: PromptStyle,
    sampling: Sampling,
) -> list[list[Drawn]]:
    """Return ``k`` samples per question, from the cache or from the engine.

    Parameters
    ----------
    proposer
        Model and engine.
    name
        What the pool is, such as ``arith-plain``; the beginning of its file's name.
    questions
        What to ask.
    k
        Samples per question.
    style
        Which prompt.
    sampling
        Decoding settings; its seed is varied by batch.
    """
    prompts = [proposer.encode(messages(asked, style)) for asked in questions for _ in range(k)]
    settings = {
        "model": proposer.loaded.fingerprint,
        "engine": proposer.engine_name,
        "batch": [proposer.batch, proposer.batch_tokens],
        "sampling": sampling.model_dump(mode="json"),
        "name": name,
    }
    digest = _digest(settings, prompts)
    folder = cache_dir() / "pools" / proposer.loaded.fingerprint[:12]
    path = folder / f"{name}-{digest[:16]}.jsonl"
    folder.mkdir(parents=True, exist_ok=True)
    _tell_of_others(path, name)
    with FileLock(path.with_suffix(".lock")):
        stored = _read(path, digest)
        cuts = proposer.batches(prompts)
        for number, cut in enumerate(cuts[len(stored) :], start=len(stored)):
            stored.append(_draw_batch(proposer, [prompts[i] for i in cut], sampling, number))
            _append(path, {"digest": digest, "samples": [asdict(one) for one in stored[-1]]})
            logger.info("pool %s: batch %d of %d", name, number + 1, len(cuts))
    flat = [one for batch in stored for one in batch]
    if len(flat) != len(prompts):
        raise RunError(f"pool {path}: {len(flat)} samples, expected {len(prompts)}; remove it")
    return [flat[i : i + k] for i in range(0, len(flat), k)]


def _draw_batch(
    proposer: Proposer, prompts: list[tuple[int, ...]], sampling: Sampling, number: int
) -> list[Drawn]:
    seed = None if sampling.seed is None else derive_seed(sampling.seed, number)
    completions = proposer.engine.generate(prompts, sampling.model_copy(update={"seed": seed}))
    return [
        Drawn(tuple(one.token_ids), tuple(one.logprobs), one.finish_reason == "stop")
        for one in completions
    ]


def _digest(settings: dict[str, Any], prompts: Sequence[Sequence[int]]) -> str:
    content = json.dumps([settings, [list(prompt) for prompt in prompts]], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def _tell_of_others(path: Path, name: str) -> None:
    """Say that a pool of this name with other content is not used."""
    others = [p for p in path.parent.glob(f"{name}-{'?' * 16}.jsonl") if p != path]
    if others and not path.exists():
        logger.warning(
            "pool %s: prompts, sampling or questions are not those of %s, so it is drawn anew",
            name,
            ", ".join(sorted(p.name for p in others)),
        )


def _read(path: Path, digest: str) -> list[list[Drawn]]:
    """Return the whole batches of a pool file, cutting off a last line that was not finished."""
    if not path.exists():
        return []
    content = path.read_text(encoding="utf-8")
    whole = content[: content.rfind("\n") + 1]
    if len(whole) < len(content):
        path.write_text(whole, encoding="utf-8")
    batches = []
    for number, line in enumerate(whole.splitlines(), start=1):
        try:
            record = json.loads(line)
            if record["digest"] != digest:
                raise ValueError("another digest")
            batches.append(
                [Drawn(tuple(s["token_ids"]), tuple(s["logprobs"]), s["stopped"])
                 for s in record["samples"]]
            )  # fmt: skip
        except (ValueError, KeyError, TypeError) as error:
            raise RunError(
                f"pool {path}, line {number}: not a batch of this pool ({error}); remove the file"
            ) from None
    return batches


def _append(path: Path, record: dict[str, Any]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")
