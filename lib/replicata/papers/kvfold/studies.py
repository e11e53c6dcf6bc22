"""What the geometry, quality and unequal cells measure; rows in tidy form.

A row is ``arm, unit, metric, value`` with index columns: ``unit`` is the context, the thing
generalised over.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy.stats import spearmanr
from torch import Tensor

from replicata.models import LoadedModel, load_model
from replicata.papers.kvfold import contexts as data
from replicata.papers.kvfold import measure
from replicata.papers.kvfold.arms import ContextArms, FitQueries
from replicata.papers.kvfold.attention import attention_output
from replicata.papers.kvfold.attention_matching import Compacted, pool_queries
from replicata.papers.kvfold.bounds import error_bound
from replicata.papers.kvfold.budgets import (
    greedy_exchange,
    load_public_budgets,
    proportions_to_budgets,
)
from replicata.papers.kvfold.experiment import (
    ABLATION_ARMS,
    CHOICE_ARMS,
    KL_ARMS,
    FamilyParams,
    Params,
)
from replicata.papers.kvfold.measure import ArmCache, Prompt
from replicata.papers.kvfold.method import FOLD_RIDGE, Folded, fold_direction, projection
from replicata.papers.kvfold.rope import check_supported
from replicata.workflow.cells import Cell
from replicata.workflow.seeds import derive_seed

#: Held-out queries per head that are stored one by one, for the scatter of error and bound.
SCATTER_QUERIES = 4
#: Edges of the stored histogram of q·u.
PROJECTION_EDGES = np.linspace(-0.5, 2.0, 26)


class Bench:
    """A loaded model and what prepares contexts for it."""

    def __init__(self, params: Params, threads: int) -> None:
        torch.set_num_threads(threads)
        self.params = params
        self.loaded: LoadedModel = load_model(
            params.model, dtype=params.dtype, device=params.device
        )
        check_supported(self.loaded.model.config)
        self.scale = float(self.loaded.model.model.layers[0].self_attn.scaling)

    def encode(self, text: str) -> list[int]:
        """Token ids of a plain text."""
        return self.loaded.tokenizer(text, add_special_tokens=False)["input_ids"]

    def contexts(self, family: FamilyParams, start: int, stop: int) -> list[data.Context]:
        """Contexts ``start .. stop-1`` of a family."""
        loaded = data.load(
            family.name,
            stop,
            lambda text: len(self.encode(text)),
            family.max_tokens,
            path=family.path,
            persons=family.persons,
            questions=max(family.choice_questions, family.kl_questions),
            seed=self.params.seed,
        )
        return list(loaded[start:stop])

    def prompts(self, context: data.Context, questions: Sequence[data.Question]) -> list[Prompt]:
        """Chat prompts of a context's questions; all share the prefix."""
        tokenizer = self.loaded.tokenizer
        return [measure.build_prompt(tokenizer, context.text, q.text) for q in questions]

    def arms(self, context: data.Context, prefix: Sequence[int]) -> ContextArms:
        """Prefill a context and prepare its arms."""
        prefill = measure.prefill(self.loaded.model, prefix, self.encode(context.text))
        fit = FitQueries(self.params.fit_queries, self.params.heldout_every)
        return ContextArms(prefill, self.scale, fit, self.params.selection)


def entries(ratio: float, length: int) -> int:
    """Return the number of kept entries ``t`` of a context of ``length`` tokens, at least 1."""
    return max(1, round(ratio * length))


# ---------------------------------------------------------------------------------------------
# Geometry: directions, projections, error and bound


def geometry(params: Params, cell: Cell) -> pd.DataFrame:
    """Directions, projections, and error against bound, on held-out queries of every KV head."""
    bench = Bench(params, cell.threads)
    rows: list[dict[str, Any]] = []
    for family in params.families:
        for context in bench.contexts(family, 0, min(params.geometry.contexts, family.contexts)):
            prompts = bench.prompts(context, context.questions[:1])
            arms = bench.arms(context, prompts[0].prefix)
            reading = measure.read_question(
                bench.loaded.model, arms.full_cache(), prompts[0].suffix
            )
            rows += [{"unit": context.name, **row} for row in _direction_rows(arms)]
            for ratio in params.geometry.budgets:
                for row in _budget_rows(arms, reading, entries(ratio, arms.prefill.length)):
                    rows.append({"unit": context.name, "budget": ratio, **row})
    return pd.DataFrame(rows)


def _budget_rows(
    arms: ContextArms, reading: measure.Reading, budget: int
) -> Iterator[dict[str, Any]]:
    for i, (c, folded) in enumerate(zip(arms.compacted(budget), arms.folded(budget), strict=True)):
        same = (
            folded.cache.keys.shape == c.keys.shape and folded.cache.values.shape == c.values.shape
        )
        yield _row("fold", "shape_mismatch", float(not same), layer=i)
        heldout = arms.heldout_queries(i)
        for source, error, bound, dropped, epsilon in (
            ("repeat", *_errors(c, folded, heldout, arms.scale)),
            ("question", *_question_errors(c, folded, reading, i, arms.scale)),
        ):
            yield from _error_rows(i, source, error, bound, dropped, epsilon)


def _row(arm: str, metric: str, value: float, **index: Any) -> dict[str, Any]:
    return {"arm": arm, "metric": metric, "value": float(value), **index}


def _direction_rows(arms: ContextArms) -> Iterator[dict[str, Any]]:
    """Measure what no budget changes: directions, and how held-out queries project on them.

    The least-squares solver works on the stacked system ``[Q; sqrt(n λ) I] u = [1; 0]``: it never
    forms the moments that the closed form is made of.
    """
    for i in range(arms.layers):
        queries = arms.context_queries(i)
        directions = fold_direction(queries)
        for h in range(arms.heads):
            q, u = queries[h].double().cpu().numpy(), directions[h].double().cpu().numpy()
            n, d = q.shape
            ridge = FOLD_RIDGE * (q**2).sum() / n / d
            stacked = np.vstack([q, np.sqrt(n * ridge) * np.eye(d)])
            target = np.concatenate([np.ones(n), np.zeros(d)])
            oracle = np.linalg.lstsq(stacked, target, rcond=None)[0]
            residual = q.T @ (q @ u) / n + ridge * u - q.mean(0)
            error = np.linalg.norm(u - oracle) / np.linalg.norm(oracle)
            kkt = np.linalg.norm(residual) / np.linalg.norm(q.mean(0))
            yield _row("fold", "direction_error", error, layer=i, head=h)
            yield _row("fold", "kkt_residual", kkt, layer=i, head=h)
        projected = projection(arms.heldout_queries(i), directions).cpu().numpy()
        for h, row in enumerate(projected):
            rms = np.sqrt(((row - 1) ** 2).mean())
            yield _row("fold", "rms_epsilon", rms, layer=i, head=h)
            yield _row("fold", "min_projection", row.min(), layer=i, head=h)
        edges = PROJECTION_EDGES
        counts, _ = np.histogram(projected.clip(edges[0], edges[-1]), bins=edges)
        for left, count in zip(edges, counts, strict=False):
            yield _row("fold", "projection_count", count, layer=i, bin=round(float(left), 3))


def _errors(
    c: Compacted, folded: Folded, queries: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Output error of fold, its bound, error of drop, and ε ``(H, n)``, on compacted keys alone."""
    reference = attention_output(queries.double(), c.keys, c.values, scale, c.bias)
    fold = attention_output(queries.double(), folded.cache.keys, c.values, scale)
    drop = attention_output(queries.double(), c.keys, c.values, scale)
    epsilon = projection(queries, folded.direction) - 1
    bound = error_bound(c.bias, c.values, epsilon)
    return (fold - reference).norm(dim=-1), bound, (drop - reference).norm(dim=-1), epsilon


def _question_errors(
    c: Compacted, folded: Folded, reading: measure.Reading, layer: int, scale: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the same for a real question, whose queries also attend to its own tokens."""
    heads = c.keys.shape[0]
    queries = pool_queries(reading.queries[layer], heads).double()
    keys, values = reading.keys[layer].double(), reading.values[layer].double()
    new = keys.shape[1]
    group = queries.shape[1] // new
    later = torch.ones(new, new, dtype=torch.bool).triu(1).repeat(group, 1)

    def output(compacted_keys: Tensor, bias: Tensor) -> Tensor:
        joined = torch.cat([compacted_keys.double(), keys], dim=1)
        logits = scale * queries @ joined.mT
        logits[:, :, :-new] += bias.double().unsqueeze(1)
        logits[:, :, -new:].masked_fill_(later, -torch.inf)
        return logits.softmax(-1) @ torch.cat([c.values.double(), values], dim=1)

    none = torch.zeros_like(c.bias)
    reference = output(c.keys, c.bias)
    epsilon = projection(queries, folded.direction) - 1
    bound = error_bound(c.bias, c.values, epsilon, uncompacted=True, other_values=values)
    fold = (output(folded.cache.keys, none) - reference).norm(dim=-1)
    return fold, bound, (output(c.keys, none) - reference).norm(dim=-1), epsilon


def _error_rows(
    layer: int, source: str, error: Tensor, bound: Tensor, dropped: Tensor, epsilon: Tensor
) -> Iterator[dict[str, Any]]:
    ratio = (error / bound.clamp(min=torch.finfo(bound.dtype).tiny)).cpu().numpy()
    errors, bounds, drops = error.cpu().numpy(), bound.cpu().numpy(), dropped.cpu().numpy()
    count = ratio.shape[1]
    scatter = np.linspace(0, count - 1, min(SCATTER_QUERIES, count)).round().astype(int)
    for h in range(ratio.shape[0]):
        index = {"layer": layer, "head": h, "source": source}
        correlation = spearmanr(errors[h], epsilon[h].abs().cpu().numpy()).statistic
        yield _row("fold", "max_ratio", ratio[h].max(), **index)
        yield _row("fold", "median_ratio", np.median(ratio[h]), **index)
        yield _row("fold", "queries", count, **index)
        yield _row("fold", "mean_error", errors[h].mean(), **index)
        yield _row("drop", "mean_error", drops[h].mean(), **index)
        yield _row("fold", "spearman", correlation, **index)
        for query in scatter:
            yield _row("fold", "error", errors[h, query], query=query, **index)
            yield _row("fold", "bound", bounds[h, query], query=query, **index)


# ---------------------------------------------------------------------------------------------
# Quality: KL and accuracy, equal and unequal budgets


class Exam:
    """One context's questions, the full cache's answers to them, and the scoring of any cache."""

    def __init__(self, bench: Bench, family: FamilyParams, context: data.Context) -> None:
        self.bench, self.context = bench, context
        model, tokenizer = bench.loaded.model, bench.loaded.tokenizer
        questions = list(context.questions)
        self.choices = [q for q in questions if q.options][: family.choice_questions]
        self.choice_prompts = bench.prompts(context, self.choices)
        self.kl_prompts = bench.prompts(context, questions[: family.kl_questions])
        prefix = (self.kl_prompts or self.choice_prompts)[0].prefix
        self.arms = bench.arms(context, prefix)
        if self.kl_prompts:
            self.answers, self.reference = measure.greedy_answers(
                model,
                self.arms.full_cache(),
                [p.suffix for p in self.kl_prompts],
                bench.params.answer_tokens,
                tokenizer.eos_token_id,
            )

    def kl_rows(self, arm: str, cache: ArmCache, **index: Any) -> Iterator[dict[str, Any]]:
        """Token-mean KL(full || arm) and top-1 agreement, one row per question and metric."""
        suffixes = [p.suffix for p in self.kl_prompts]
        scored = measure.answer_log_probs(self.bench.loaded.model, cache, suffixes, self.answers)
        for question, (full, other) in enumerate(zip(self.reference, scored, strict=True)):
            agree = (full.argmax(-1) == other.argmax(-1)).double().mean()
            row = {"unit": self.context.name, "question": question, **index}
            yield _row(arm, "kl", measure.token_kl(full, other).double().mean(), **row)
            yield _row(arm, "top1_agreement", agree, **row)

    def choice_rows(self, arm: str, cache: ArmCache, **index: Any) -> Iterator[dict[str, Any]]:
        """Whether the right option scores highest, one row per question."""
        if not self.choices:
            return
        loaded = self.bench.loaded
        scores = measure.option_scores(
            loaded.model,
            loaded.tokenizer,
            cache,
            [p.suffix for p in self.choice_prompts],
            self.choices,
        )
        for question, (row, asked) in enumerate(zip(scores, self.choices, strict=True)):
            correct = float(row.argmax() == asked.correct)
            where = {"unit": self.context.name, "question": question, **index}
            yield _row(arm, "correct", correct, **where)


def quality(params: Params, cell: Cell) -> pd.DataFrame:
    """KL and accuracy of every arm at equal budgets."""
    bench = Bench(params, cell.threads)
    family = params.family(cell.params["family"])
    rows: list[dict[str, Any]] = []
    for context in bench.contexts(family, cell.params["start"], cell.params["stop"]):
        exam = Exam(bench, family, context)
        rows += [{"family": family.name, **row} for row in _quality_rows(exam, params)]
    return pd.DataFrame(rows)


def _quality_rows(exam: Exam, params: Params) -> Iterator[dict[str, Any]]:
    arms, length = exam.arms, exam.arms.prefill.length
    seed = derive_seed(params.seed, "kvfold", "random", exam.context.name)
    yield from exam.choice_rows("full", arms.full_cache())
    yield from exam.choice_rows("nocontext", arms.no_context())
    if exam.kl_prompts:
        yield from exam.kl_rows("nocontext", arms.no_context())
    yield _row("full", "tokens", length, unit=exam.context.name)
    yield _row("full", "cache_bytes", _bytes(arms.full_cache()), unit=exam.context.name)
    for ratio in sorted({*params.kl_budgets, *params.choice_budgets, params.ablation_budget}):
        t = entries(ratio, length)
        names = KL_ARMS if ratio in params.kl_budgets else ()
        if ratio == params.ablation_budget:
            names = (*names, *ABLATION_ARMS)
        chosen = CHOICE_ARMS if ratio in params.choice_budgets else ()
        for name in dict.fromkeys((*names, *chosen)):
            cache = arms.arm(name, t, seed)
            yield _row(name, "cache_bytes", _bytes(cache), unit=exam.context.name, budget=ratio)
            if name in names and exam.kl_prompts:
                yield from exam.kl_rows(name, cache, budget=ratio)
            if name in chosen:
                yield from exam.choice_rows(name, cache, budget=ratio)


def _bytes(cache: ArmCache) -> int:
    """Bytes of a cache, its bias included."""
    tensors = [cache.keys, cache.values, *([] if cache.bias is None else [cache.bias])]
    return sum(t.numel() * t.element_size() for t in tensors)


def unequal(params: Params, cell: Cell) -> pd.DataFrame:
    """KL and accuracy of am, fold and drop at budgets that differ between heads."""
    bench = Bench(params, cell.threads)
    family = params.family(cell.params["family"])
    proportions = _proportions(bench)
    rows: list[dict[str, Any]] = []
    for layer, heads in enumerate(proportions):
        for head, share in enumerate(heads):
            relative = share * proportions.size
            index = {"unit": "calibration", "layer": layer, "head": head}
            rows.append(_row("budget", "relative_budget", relative, **index))
    for context in bench.contexts(family, cell.params["start"], cell.params["stop"]):
        exam = Exam(bench, family, context)
        budgets = proportions_to_budgets(
            proportions, params.unequal.budget, exam.arms.prefill.length
        )
        for name, cache in exam.arms.unequal(budgets).items():
            rows += exam.kl_rows(name, cache, budget=params.unequal.budget)
            if name in CHOICE_ARMS:
                rows += exam.choice_rows(name, cache, budget=params.unequal.budget)
    return pd.DataFrame(rows).assign(family=family.name)


def _proportions(bench: Bench) -> np.ndarray:
    """Share of all kept keys per head ``(L, H)``: published, or from a calibration context."""
    settings = bench.params.unequal
    if settings.published is not None:
        return load_public_budgets(Path(settings.published))
    longest = max(f.max_tokens for f in bench.params.families)
    family = FamilyParams(
        name=settings.calibration,
        contexts=1,
        max_tokens=longest,
        kl_questions=1,
        choice_questions=0,
    )
    (context,) = bench.contexts(family, 0, 1)
    prompts = bench.prompts(context, context.questions[:1])
    arms = bench.arms(context, prompts[0].prefix)
    grid = [t for t in settings.grid if t <= arms.prefill.length]
    total = arms.layers * arms.heads * entries(settings.budget, arms.prefill.length)
    budgets = greedy_exchange(arms.head_errors(grid), grid, total)
    return (budgets / budgets.sum()).reshape(arms.layers, arms.heads)
