"""Forward passes on a transformers model with a compacted cache: what every arm is measured by.

Nothing here knows how a cache was compacted. The serving arms run through the model's stock SDPA
attention; only an arm with a bias (or unequal budgets, which need per-head masks) runs through a
registered attention function, since an ordinary cache cannot express it.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from replicata.papers.kvfold.question import Question


@dataclass(frozen=True)
class Prefill:
    """A context's full cache and the queries that attended to it, all post-RoPE.

    Attributes
    ----------
    keys, values
        ``(L, H, T, d)``.
    context_queries
        ``(L, Hq, T, d)``, of the prefill itself.
    repeat_queries
        ``(L, Hq, T', d)``, of a second reading of the context at positions from ``T`` on.
    """

    keys: Tensor
    values: Tensor
    context_queries: Tensor
    repeat_queries: Tensor

    @property
    def length(self) -> int:
        """Number of context tokens ``T``."""
        return self.keys.shape[2]


@dataclass(frozen=True)
class ArmCache:
    """A cache to be measured: ``t`` entries that stand for the first ``length`` positions.

    Attributes
    ----------
    keys, values
        ``(L, H, t, d)``.
    length
        ``T``: the next token sits at this position.
    bias
        ``(L, H, t)`` added to the logits of the cached entries (``-inf`` hides a padded one), or
        ``None`` for an ordinary cache on the model's stock attention.
    """

    keys: Tensor
    values: Tensor
    length: int
    bias: Tensor | None = None


@dataclass(frozen=True)
class Prompt:
    """Token ids of a chat prompt around a context: ``prefix`` is compacted, ``suffix`` is not."""

    prefix: list[int]
    suffix: list[int]


def build_prompt(tokenizer: Any, text: str, question: str) -> Prompt:
    """Split the chat prompt of a context and a question where the context ends.

    The system turn and the opening of the user turn belong to the prefix; the question, the end of
    the turn and the assistant header to the suffix.
    """
    body = f"{text}\n\nQuestion: {question}"
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": body}], tokenize=False, add_generation_prompt=True
    )
    cut = chat.index(f"Question: {question}")

    def encode(part: str) -> list[int]:
        return tokenizer(part, add_special_tokens=False)["input_ids"]

    return Prompt(encode(chat[:cut]), encode(chat[cut:]))


def _on_the_model(function: Callable[..., Any]) -> Callable[..., Any]:
    """Run a measurement without gradients, its new tensors on the device of the model."""

    @wraps(function)
    def measured(model: PreTrainedModel, *args: Any, **kwargs: Any) -> Any:
        with torch.no_grad(), torch.device(model.device):
            return function(model, *args, **kwargs)

    return measured


# ---------------------------------------------------------------------------------------------
# Attention functions


@contextmanager
def _attention(model: PreTrainedModel, name: str, function: Any) -> Iterator[None]:
    """Run the model with a registered attention function, and restore what was there."""
    before = model.config._attn_implementation
    AttentionInterface.register(name, function)
    AttentionMaskInterface.register(name, sdpa_mask)
    model.set_attn_implementation(name)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


@contextmanager
def recorded_queries(model: PreTrainedModel) -> Iterator[dict[int, Tensor]]:
    """Record the post-RoPE queries ``(Hq, n, d)`` of each layer of a batch of one."""
    queries: dict[int, Tensor] = {}

    def forward(module: Any, query: Tensor, key: Tensor, *args: Any, **kwargs: Any) -> Any:
        queries[module.layer_idx] = query[0].detach()
        return sdpa_attention_forward(module, query, key, *args, **kwargs)

    with _attention(model, "kvfold_record", forward):
        yield queries


@contextmanager
def biased_attention(model: PreTrainedModel, bias: Tensor) -> Iterator[None]:
    """Add ``bias (L, H, t)`` to the logits of the first ``t`` cache entries, per layer and head.

    This is what Attention Matching asks for and an ordinary paged cache does not accept.
    """

    def forward(
        module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, **kwargs: Any
    ) -> Any:
        group = query.shape[1] // key.shape[1]
        heads = bias[module.layer_idx].to(query.dtype).repeat_interleave(group, dim=0)
        padded = torch.nn.functional.pad(heads, (0, key.shape[2] - heads.shape[1]))
        low = torch.finfo(query.dtype).min
        added = torch.where(mask, padded[None, :, None, :].clamp(min=low), low)
        return sdpa_attention_forward(module, query, key, value, added, **kwargs)

    with _attention(model, "kvfold_bias", forward):
        yield


# ---------------------------------------------------------------------------------------------
# Forward passes


@_on_the_model
def prefill(model: PreTrainedModel, prefix: Sequence[int], repeat: Sequence[int]) -> Prefill:
    """Read a context, then read it again at the following positions, recording the queries.

    Parameters
    ----------
    prefix
        Token ids that will be compacted, positions ``0 .. T-1``.
    repeat
        Token ids of the second reading, positions ``T ..`` (queries as they occur when serving).
    """
    cache = DynamicCache()
    with recorded_queries(model) as queries:
        model.model(torch.tensor([list(prefix)]), past_key_values=cache)
        context = _stack(queries)
        keys = torch.stack([layer.keys[0] for layer in cache.layers])
        values = torch.stack([layer.values[0] for layer in cache.layers])
        model.model(torch.tensor([list(repeat)]), past_key_values=cache)
        return Prefill(keys, values, context, _stack(queries))


def _stack(queries: dict[int, Tensor]) -> Tensor:
    return torch.stack([queries[i] for i in range(len(queries))])


@dataclass(frozen=True)
class Reading:
    """Queries, keys and values of one question read after the full cache: ``(L, *, m, d)``."""

    queries: Tensor
    keys: Tensor
    values: Tensor


@_on_the_model
def read_question(model: PreTrainedModel, full: ArmCache, suffix: Sequence[int]) -> Reading:
    """Read one question after the full cache and return its own queries, keys and values."""
    cache = _dynamic_cache(full, 1)
    ids = torch.tensor([list(suffix)])
    with recorded_queries(model) as queries:
        model.model(
            ids,
            past_key_values=cache,
            position_ids=full.length + torch.arange(ids.shape[1])[None],
            attention_mask=_causal(ids.shape[1], full.keys.shape[2]),
        )
    start = full.keys.shape[2]
    return Reading(
        _stack(queries),
        torch.stack([layer.keys[0, :, start:] for layer in cache.layers]),
        torch.stack([layer.values[0, :, start:] for layer in cache.layers]),
    )


def _causal(new: int, cached: int) -> Tensor:
    """Boolean mask ``(1, 1, new, cached + new)``: the cache, and no later new token."""
    seen = torch.ones(new, cached, dtype=torch.bool)
    return torch.cat([seen, torch.ones(new, new, dtype=torch.bool).tril()], dim=1)[None, None]


def _dynamic_cache(cache: ArmCache, batch: int) -> DynamicCache:
    past = DynamicCache()
    for i, (k, v) in enumerate(zip(cache.keys, cache.values, strict=True)):
        past.update(k.expand(batch, -1, -1, -1), v.expand(batch, -1, -1, -1), i)
    return past


@contextmanager
def _arm(model: PreTrainedModel, cache: ArmCache) -> Iterator[None]:
    if cache.bias is None:
        yield
    else:
        with biased_attention(model, cache.bias):
            yield


def _forward(
    model: PreTrainedModel, cache: ArmCache, ids: Tensor, positions: Tensor, allowed: Tensor
) -> Tensor:
    """Last hidden states ``(B, m, width)`` of new tokens after a cache.

    ``allowed (B, m, m)`` says which new tokens see which; every one sees the whole cache.
    """
    batch, new = ids.shape
    seen = torch.ones(batch, new, cache.keys.shape[2], dtype=torch.bool)
    with _arm(model, cache):
        out = model.model(
            ids,
            past_key_values=_dynamic_cache(cache, batch),
            position_ids=cache.length + positions,
            attention_mask=torch.cat([seen, allowed], dim=2)[:, None],
        )
    return out.last_hidden_state


def _pad(rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Right-pad token rows to ids ``(B, m)``, with their lengths ``(B,)``; pads come last."""
    width = max(len(row) for row in rows)
    ids = torch.tensor([[*row, *[0] * (width - len(row))] for row in rows])
    return ids, torch.tensor([len(row) for row in rows])


@_on_the_model
def greedy_answers(
    model: PreTrainedModel,
    cache: ArmCache,
    suffixes: Sequence[Sequence[int]],
    max_tokens: int,
    stop: int,
) -> tuple[list[list[int]], list[Tensor]]:
    """Decode greedily after each suffix, in one batch.

    Returns
    -------
    tuple
        Answers (with the stop token when it was reached), and for each the log-probabilities
        ``(tokens, V)`` it was chosen from.
    """
    ids, lengths = _pad(suffixes)
    batch, width = ids.shape
    cached = cache.keys.shape[2]
    past = _dynamic_cache(cache, batch)
    allowed = torch.ones(width, width, dtype=torch.bool).tril().expand(batch, -1, -1)
    seen = torch.ones(batch, width, cached, dtype=torch.bool)
    mask = torch.cat([seen, allowed], dim=2)[:, None]
    real = torch.arange(width)[None] < lengths[:, None]
    answers: list[list[int]] = [[] for _ in suffixes]
    log_probs: list[list[Tensor]] = [[] for _ in suffixes]
    with _arm(model, cache):
        positions = cache.length + torch.arange(width).expand(batch, -1)
        hidden = model.model(
            ids, past_key_values=past, position_ids=positions, attention_mask=mask
        ).last_hidden_state
        state = hidden[torch.arange(batch), lengths - 1]
        for step in range(max_tokens):
            scores = model.lm_head(state).float().log_softmax(-1)
            chosen = scores.argmax(-1)
            for row, token in enumerate(chosen.tolist()):
                if not answers[row] or answers[row][-1] != stop:
                    answers[row].append(token)
                    log_probs[row].append(scores[row])
            if all(answer[-1] == stop for answer in answers) or step == max_tokens - 1:
                break
            new = torch.ones(batch, step + 1, dtype=torch.bool)
            visible = torch.cat([torch.ones(batch, cached, dtype=torch.bool), real, new], dim=1)
            state = model.model(
                chosen[:, None],
                past_key_values=past,
                position_ids=(cache.length + lengths + step)[:, None],
                attention_mask=visible[:, None, None],
            ).last_hidden_state[:, 0]
    return answers, [torch.stack(rows) for rows in log_probs]


@_on_the_model
def answer_log_probs(
    model: PreTrainedModel,
    cache: ArmCache,
    suffixes: Sequence[Sequence[int]],
    answers: Sequence[Sequence[int]],
) -> list[Tensor]:
    """Log-probabilities ``(tokens, V)`` of each next answer token, answers teacher-forced."""
    rows = [[*s, *a[:-1]] for s, a in zip(suffixes, answers, strict=True)]
    ids, _ = _pad(rows)
    batch, width = ids.shape
    allowed = torch.ones(width, width, dtype=torch.bool).tril().expand(batch, -1, -1)
    hidden = _forward(model, cache, ids, torch.arange(width).expand(batch, -1), allowed)
    return [
        model.lm_head(hidden[row, len(s) - 1 : len(s) - 1 + len(a)]).float().log_softmax(-1)
        for row, (s, a) in enumerate(zip(suffixes, answers, strict=True))
    ]


def token_kl(reference: Tensor, other: Tensor) -> Tensor:
    """KL(reference ‖ other) in nats for each row of two log-probability tables ``(n, V)``."""
    return (reference.exp() * (reference - other)).sum(-1)


@_on_the_model
def option_scores(
    model: PreTrainedModel,
    tokenizer: Any,
    cache: ArmCache,
    suffixes: Sequence[Sequence[int]],
    questions: Sequence[Question],
) -> Tensor:
    """Mean token log-likelihood ``(B, options)`` of each answer option after the reply's stem.

    All options of a question share one row: each sees the suffix and the stem but no other option,
    and all start at the same position, which is exactly what separate rows would compute.
    """
    stems = [tokenizer(q.stem, add_special_tokens=False)["input_ids"] for q in questions]
    heads = [[*s, *stem] for s, stem in zip(suffixes, stems, strict=True)]
    options = [
        [tokenizer(f" {o}", add_special_tokens=False)["input_ids"] for o in q.options]
        for q in questions
    ]
    rows = [
        [*h, *(token for o in opts for token in o)] for h, opts in zip(heads, options, strict=True)
    ]
    ids, _ = _pad(rows)
    batch, width = ids.shape
    positions = torch.zeros(batch, width, dtype=torch.long)
    allowed = torch.eye(width, dtype=torch.bool).expand(batch, -1, -1).clone()
    for row, (head, opts) in enumerate(zip(heads, options, strict=True)):
        shared = len(head)
        positions[row, :shared] = torch.arange(shared)
        allowed[row, :shared, :shared] = torch.ones(shared, shared, dtype=torch.bool).tril()
        start = shared
        for option in opts:
            end = start + len(option)
            positions[row, start:end] = shared + torch.arange(len(option))
            allowed[row, start:end, :shared] = True
            own = torch.ones(len(option), len(option), dtype=torch.bool).tril()
            allowed[row, start:end, start:end] = own
            start = end
    hidden = _forward(model, cache, ids, positions, allowed)
    scores = []
    for row, (head, opts) in enumerate(zip(heads, options, strict=True)):
        log_probs = model.lm_head(hidden[row, len(head) - 1 :]).float().log_softmax(-1)
        start, means = 0, []
        for option in opts:
            # the first token is predicted by the stem, each later one by its predecessor
            sources = [0, *range(start + 1, start + len(option))]
            means.append(log_probs[sources, option].mean())
            start += len(option)
        scores.append(torch.stack(means))
    return torch.stack(scores)
