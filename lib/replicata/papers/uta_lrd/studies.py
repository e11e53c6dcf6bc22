"""What the cells run: the laboratory and the training runs, as tidy rows."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from replicata.papers.uta_lrd import data, lab, parallel
from replicata.papers.uta_lrd.arms import arm, make_scheduler
from replicata.papers.uta_lrd.experiment import ModelParams, Params, SftParams, StudyParams
from replicata.papers.uta_lrd.method import UTASchedule
from replicata.papers.uta_lrd.training import Batch, Run, evaluate, train
from replicata.papers.uta_lrd.vision import accuracy, vision_runs
from replicata.workflow.cells import Cell
from replicata.workflow.layout import repo_root
from replicata.workflow.seeds import derive_seed

LAB_BASELINES = ("constant", "cosine", "linear", "wsd20", "wsd50",
                 "uba0.1", "uba0.3", "uba1", "uba3", "uba10",
             # Reported, in no rule:
             "wsd20_sqrt", "step", "poly0.5", "poly2")  # fmt: skip
#: The lab arm (m = 2, hyp, phi0 = 0.3) was declared by the spec; the others are ablations.
LAB_UTA = {
    "uta": (0.3, 2, "hyp"),
    "uta@0.1": (0.1, 2, "hyp"),
    "uta@1": (1.0, 2, "hyp"),
    "uta@3": (3.0, 2, "hyp"),
    "uta@10": (10.0, 2, "hyp"),
    "uta_m1": (0.3, 1, "hyp"),
    "uta_log": (0.3, 2, "log"),
    "uta_lin": (0.3, 2, "lin"),
}
#: Steps between recorded learning rates and training losses.
TRACE_EVERY = 10


def theory(params: Params, cell: Cell) -> pd.DataFrame:
    """Check the closed forms of the continuous-time problem (c1)."""
    rows = [
        {"arm": kind, "unit": f"beta={beta:g}", "beta": beta, "metric": "kernel_exponent",
         "value": lab.kernel_exponent(beta, kind),
         "expected": 2 - (1 if kind == "sgd" else 2) / beta}
        for kind in ("sgd", "adam")
        for beta in (1.5, 2.0, 3.0)
    ]  # fmt: skip
    return pd.DataFrame(rows)


def laboratory(params: Params, cell: Cell) -> pd.DataFrame:
    """Run all schedules at all peaks, and find the optimum, for one kind of optimizer."""
    own, rows = params.lab, []
    kind = cell.params["kind"]
    for problem in lab.problems(own.betas, own.sources, own.noises, (kind,), own.modes):
        peaks = problem.cap * np.geomspace(0.02, 1, own.peaks)
        paths = {
            name: lab.open_loop(name, own.steps, own.final_ratio)[:, None] * peaks
            for name in LAB_BASELINES
        }
        for name, (phi0, m, drift) in LAB_UTA.items():
            paths[name] = lab.closed_loop(
                problem, peaks, own.steps, own.final_ratio, phi0, m, drift
            )
        losses = {name: lab.simulate(problem, path) for name, path in paths.items()}
        best_arm = min(losses, key=lambda name: losses[name].min())
        start = paths[best_arm][:, losses[best_arm].argmin()]
        best, eta = lab.optimum(problem, own.steps, own.iterations, start)
        context = {"unit": problem.name, "kind": kind, "beta": problem.beta}
        rows.append({**context, "arm": "optimum", "metric": "loss", "value": best})
        shown = {"optimum": eta / problem.cap}
        for name, values in losses.items():
            shown[name] = paths[name][:, values.argmin()] / problem.cap
            rows += [
                {**context, "arm": name, "metric": "loss", "value": value, "peak": peak}
                for value, peak in zip(values, peaks / problem.cap, strict=True)
            ]
        for name in ("optimum", "uta", "uba0.3", "cosine"):
            rows += [
                {**context, "arm": name, "metric": "lr", "value": shown[name][t], "step": t}
                for t in range(0, own.steps, max(1, own.steps // 100))
            ]
    return pd.DataFrame(rows)


# -------------------------------------------------------------------------------------------------
# Language models


def make_model(own: ModelParams, seed: int) -> LlamaForCausalLM:
    """Return a Llama with weights drawn from ``seed``."""
    config = LlamaConfig(
        vocab_size=own.vocabulary,
        hidden_size=own.width,
        intermediate_size=own.intermediate,
        num_hidden_layers=own.layers,
        num_attention_heads=own.heads,
        num_key_value_heads=own.heads,
        max_position_embeddings=own.sequence,
        tie_word_embeddings=True,
        use_cache=False,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config)


def lm_loss(model: nn.Module, batch: Batch) -> torch.Tensor:
    """Return the mean cross-entropy, nats per token."""
    return model(input_ids=batch[0], labels=batch[1]).loss


def get_corpus(own: ModelParams, shifted: bool = False) -> data.Corpus:
    """Return the model's corpus."""
    if own.data == "c4":
        return data.c4(own.tokens, own.tokenizer)
    return data.standard_library(shifted)


def lm_run(
    params: Params,
    corpus: data.Corpus,
    name: str,
    seed: int,
    peak: float,
    steps: int,
    batch: int,
    final_ratio: float,
    model: LlamaForCausalLM | None = None,
) -> Run:
    """Return a run: weights and data order depend on ``seed`` alone, never on the arm."""
    own, device = params.model, params.device
    model = (model or make_model(own, seed)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=peak, betas=(0.9, 0.95), weight_decay=0.0)
    draw = torch.Generator().manual_seed(seed)
    length = own.sequence
    starts = torch.randint(corpus.cut - length, (steps, batch), generator=draw)
    probe = torch.randint(corpus.cut - length, (own.probe,), generator=draw)

    def at(step: int) -> Batch:
        tokens = data.windows(corpus.tokens, parallel.share(starts[step]), length)
        return tokens, tokens

    probe_tokens = data.windows(corpus.tokens, probe, length)
    schedule = make_scheduler(arm(name), optimizer, steps, int(params.warmup * steps), final_ratio)
    return Run(model, optimizer, schedule, lm_loss, at, (probe_tokens, probe_tokens), steps,
               micro=params.micro_batch, bf16=params.bf16, device=device)  # fmt: skip


def held_out(own: ModelParams, corpus: data.Corpus) -> Batch:
    """Return the held-out windows, equally spaced, the same for every run."""
    last = len(corpus.tokens) - own.sequence
    starts = torch.linspace(corpus.cut, last, own.held_out).long()
    tokens = data.windows(corpus.tokens, starts, own.sequence)
    return tokens, tokens


def finish(run: Run, test: Batch, context: dict[str, Any], trace: bool) -> list[dict[str, Any]]:
    """Train, evaluate the raw weights, and return the rows."""
    log = train(run)
    rows = [
        {**context, "metric": "loss", "value": evaluate(run, test)},
        {**context, "metric": "overhead", "value": log.schedule_seconds / max(log.seconds, 1e-9)},
    ]
    if trace:
        for t in range(0, run.steps, TRACE_EVERY):
            window = float(np.mean(log.losses[t : t + TRACE_EVERY]))
            rows.append({**context, "metric": "lr", "value": log.lr[t], "step": t})
            rows.append({**context, "metric": "train_loss", "value": window, "step": t})
    if isinstance(run.schedule, UTASchedule):
        for entry in run.schedule.history:
            rows += [
                {**context, "metric": key, "value": entry[key], "step": entry["step"]}
                for key in ("noise", "drift", "phi")
            ]
    return rows


def _checkpointed(run: Run, params: Params, group: str, context: dict[str, Any]) -> Run:
    """Return the run with a checkpoint of its own, where the profile asks for them."""
    if params.checkpoints is None:
        return run
    keys = ("model", "arm", "unit", "peak", "final_ratio")
    name = "-".join([group, *(str(context[key]) for key in keys if key in context)])
    path = Path(repo_root() / params.checkpoints) / f"{name}.pt"
    path.parent.mkdir(parents=True, exist_ok=True)
    return replace(run, checkpoint=path, every=max(1, run.steps // 20))


def lm_study(params: Params, cell: Cell) -> pd.DataFrame:
    """Run every arm at every peak, for the seeds of a cell; ``sweep`` adds its final ratios."""
    group = cell.group
    study: StudyParams = getattr(params, group)
    corpus = get_corpus(params.model)
    test = held_out(params.model, corpus)
    jobs = [(name, peak, params.final_ratio) for name in study.arms for peak in study.peaks]
    if group == "sweep":
        jobs += [(name, study.peaks[0], r) for name in study.ratio_arms for r in study.ratios]
    rows = []
    for unit in cell.params["units"]:
        seed = derive_seed(params.seed, "uta_lrd", group, unit)
        for name, peak, ratio in jobs:
            context = {"arm": name, "unit": f"seed-{unit:02d}", "peak": peak,
                       "final_ratio": ratio, "role": "tune" if unit < study.tuning else "test",
                       "corpus": corpus.sha256}  # fmt: skip
            run = lm_run(params, corpus, name, seed, peak, study.steps, study.batch, ratio)
            rows += finish(
                _checkpointed(run, params, group, context), test, context, group != "sweep"
            )
    return pd.DataFrame(rows)


def finetune(params: Params, cell: Cell) -> pd.DataFrame:
    """Continue one checkpoint on the shifted text, or fine-tune by TRL where the params say so."""
    study = params.finetune
    if isinstance(study, SftParams):
        return supervised(params, cell)
    seed = derive_seed(params.seed, "uta_lrd", "checkpoint")
    base = lm_run(params, get_corpus(params.model), "wsd20", seed, study.pretraining_peak,
                  study.pretraining, study.batch, params.final_ratio)  # fmt: skip
    train(base)
    weights = {key: value.clone() for key, value in base.model.state_dict().items()}
    corpus = get_corpus(params.model, shifted=True)
    test = held_out(params.model, corpus)
    rows = []
    for unit in cell.params["units"]:
        for name in study.arms:
            model = make_model(params.model, seed)
            model.load_state_dict(weights)
            own = derive_seed(params.seed, "uta_lrd", "finetune", unit)
            run = lm_run(params, corpus, name, own, study.peaks[0], study.steps, study.batch,
                         params.final_ratio, model)  # fmt: skip
            context = {"arm": name, "unit": f"seed-{unit:02d}",
                       "peak": study.peaks[0], "role": "test", "corpus": corpus.sha256}  # fmt: skip
            rows += finish(run, test, context, False)
    return pd.DataFrame(rows)


def supervised(params: Params, cell: Cell) -> pd.DataFrame:
    """Fine-tune a model by TRL under every arm."""
    from replicata.papers.uta_lrd.sft import sft_rows  # TRL takes seconds to import

    rows = []
    for unit in cell.params["units"]:
        seed = derive_seed(params.seed, "uta_lrd", "finetune", unit)
        for name in params.finetune.arms:
            context = {"arm": name, "unit": f"seed-{unit:02d}", "peak": params.finetune.peaks[0],
                       "role": "test"}  # fmt: skip
            rows += sft_rows(params, name, seed, context)
    return pd.DataFrame(rows)


def vision(params: Params, cell: Cell) -> pd.DataFrame:
    """Train both image models under every arm."""
    rows = []
    for unit in cell.params["units"]:
        seed = derive_seed(params.seed, "uta_lrd", "vision", unit)
        for context, run, test in vision_runs(params, seed):
            full = {**context, "unit": f"seed-{unit:02d}", "role": "test"}
            run = _checkpointed(run, params, "vision", full)
            rows += finish(run, test, full, False)
            rows.append({**full, "metric": "accuracy", "value": accuracy(run, test)})
    return pd.DataFrame(rows)


STUDIES = {
    "theory": theory,
    "lab": laboratory,
    "short": lm_study,
    "long": lm_study,
    "sweep": lm_study,
    "vision": vision,
    "finetune": finetune,
}
