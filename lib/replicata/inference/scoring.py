"""Scoring fixed options after prompts that share prefixes: each prefix is computed once.

The log-probability of an option is the sum over its tokens. Prompts are given in parts; those that
begin with the same parts share the keys and values of these, whatever follows. The result is that
of scoring every prompt by itself, up to the rounding of other batch shapes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import DynamicCache

from replicata.models import LoadedModel


@dataclass(frozen=True)
class Scored:
    """A prompt whose options are to be scored.

    Attributes
    ----------
    parts
        Token ids of the prompt's parts, at least one, none of them empty.
    options
        Token ids of each option, at least one each.
    """

    parts: tuple[tuple[int, ...], ...]
    options: tuple[tuple[int, ...], ...]


@dataclass
class _Rows:
    """Prefixes computed so far, one a row: their cache and its mask, shape (rows, tokens)."""

    cache: DynamicCache
    mask: torch.Tensor

    def select(self, rows: Sequence[int]) -> "_Rows":
        """Return copies of some rows, in the given order, with repeats."""
        index = torch.as_tensor(rows)
        cache = DynamicCache()
        for number, layer in enumerate(self.cache.layers):
            if layer.keys is not None:
                at = index.to(layer.keys.device)
                cache.update(layer.keys[at], layer.values[at], number)
        return _Rows(cache, self.mask[index])


def score_options(
    loaded: LoadedModel, prompts: Sequence[Scored], *, rows: int = 32
) -> list[list[float]]:
    """Return the log-probability of each option after each prompt, in nats.

    Parameters
    ----------
    loaded
        Model and tokenizer.
    prompts
        What to score; order and repeats are free.
    rows
        Most sequences in one forward pass.
    """
    model = loaded.model
    scores: list[list[float]] = [[] for _ in prompts]
    waiting = dict.fromkeys(prompt.parts[0] for prompt in prompts)
    with torch.inference_mode():
        for first in waiting:
            members = [i for i, prompt in enumerate(prompts) if prompt.parts[0] == first]
            start = _Rows(DynamicCache(), torch.zeros(1, 0, dtype=torch.long))
            _descend(model, prompts, members, start, {(): 0}, 0, rows, scores)
    return scores


def _descend(
    model: torch.nn.Module,
    prompts: Sequence[Scored],
    members: Sequence[int],
    parents: _Rows,
    row_of: dict[tuple, int],
    level: int,
    rows: int,
    scores: list[list[float]],
) -> None:
    """Compute part ``level`` of the members' prompts, then what comes after it."""
    children = list(dict.fromkeys(prompts[i].parts[: level + 1] for i in members))
    for at in range(0, len(children), rows):
        chunk = children[at : at + rows]
        segments = [path[-1] for path in chunk]
        above = parents.select([row_of[path[:-1]] for path in chunk])
        logits, below = _extend(model, above, segments, keep=1)
        index = {path: row for row, path in enumerate(chunk)}
        here = [i for i in members if prompts[i].parts[: level + 1] in index]
        done = [i for i in here if len(prompts[i].parts) == level + 1]
        if done:
            found = [index[prompts[i].parts] for i in done]
            _finish(model, prompts, done, found, below, logits[:, -1], rows, scores)
        deeper = [i for i in here if len(prompts[i].parts) > level + 1]
        if deeper:
            _descend(model, prompts, deeper, below, index, level + 1, rows, scores)


def _finish(
    model: torch.nn.Module,
    prompts: Sequence[Scored],
    done: Sequence[int],
    found: Sequence[int],
    leaves: _Rows,
    last: torch.Tensor,
    rows: int,
    scores: list[list[float]],
) -> None:
    """Score the options of prompts that end here; ``last`` (rows, vocabulary) are their logits."""
    first = torch.log_softmax(last.float(), dim=-1)
    longer = []
    for i, row in zip(done, found, strict=True):
        scores[i] = [float(first[row, option[0]]) for option in prompts[i].options]
        longer += [(i, row, n) for n, o in enumerate(prompts[i].options) if len(o) > 1]
    for at in range(0, len(longer), rows):
        chunk = longer[at : at + rows]
        tails = [prompts[i].options[n] for i, _, n in chunk]
        above = leaves.select([row for _, row, _ in chunk])
        logits, _ = _extend(model, above, [tail[:-1] for tail in tails], keep=0)
        logprobs = torch.log_softmax(logits.float(), dim=-1)
        for row, ((i, _, n), tail) in enumerate(zip(chunk, tails, strict=True)):
            places = range(-len(tail) + 1, 0)
            scores[i][n] += sum(
                float(logprobs[row, place, token])
                for place, token in zip(places, tail[1:], strict=True)
            )


def _extend(
    model: torch.nn.Module, rows: _Rows, segments: Sequence[Sequence[int]], keep: int
) -> tuple[torch.Tensor, _Rows]:
    """Append one segment to each row; return logits (rows, kept, vocabulary) and the rows.

    ``keep`` is the number of last positions whose logits are wanted, 0 for all.
    """
    longest = max(map(len, segments))
    ids = torch.zeros(len(segments), longest, dtype=torch.long)
    fresh = torch.zeros_like(ids)
    for row, segment in enumerate(segments):
        # Padding lies in front, so that every row ends in the last column; the mask hides it.
        ids[row, longest - len(segment) :] = torch.as_tensor(segment)
        fresh[row, longest - len(segment) :] = 1
    mask = torch.cat([rows.mask, fresh], dim=1)
    positions = (mask.cumsum(1) - 1).clamp(min=0)[:, -longest:]
    device = model.device
    output = model(
        input_ids=ids.to(device),
        attention_mask=mask.to(device),
        position_ids=positions.to(device),
        past_key_values=rows.cache,
        use_cache=True,
        logits_to_keep=keep,
    )
    return output.logits.cpu(), _Rows(output.past_key_values, mask)
