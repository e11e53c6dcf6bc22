"""What the cells of trained policies run: which arms, on which task, with which reward."""

import pandas as pd
from transformers import LlamaForCausalLM

from replicata.papers.rlvr_entropy.arms import Arm, explode_arms, learn_arms, null_arms
from replicata.papers.rlvr_entropy.base import base_policy
from replicata.papers.rlvr_entropy.experiment import Params, RlParams
from replicata.papers.rlvr_entropy.task import Task
from replicata.papers.rlvr_entropy.training import train_block
from replicata.workflow.cells import Cell
from replicata.workflow.seeds import derive_seed


def make_task(params: Params, name: str) -> Task:
    """Return a variant of the task."""
    own = params.tasks[name]
    return Task(params.fillers, params.max_length, **own.model_dump(exclude={"sft_steps"}))


def make_base(params: Params, name: str) -> LlamaForCausalLM:
    """Return the base policy of a variant of the task."""
    steps = params.tasks[name].sft_steps
    return base_policy(make_task(params, name), params.model, params.sft, steps, params.seed)


def null(params: Params, cell: Cell) -> pd.DataFrame:
    """Null reward: shifts, samplers, importance ratios; by Adam and by SGD."""
    own, parts = params.null, []
    for optimizer, lr in (("adam", own.lr), ("sgd", own.sgd_lr)):
        rl = params.rl.model_copy(update={"reward": "coin", "optimizer": optimizer, "lr": lr})
        arms = null_arms(own.shifts, optimizer)
        parts.append(_runs(params, cell, "long_wrong", arms, rl, own.steps))
    return pd.concat(parts, ignore_index=True)


def learn(params: Params, cell: Cell) -> pd.DataFrame:
    """Real reward, in both variants of the task."""
    rl = params.rl.model_copy(update={"measure_change": True, "lr": params.learn.lr})
    tasks = ("long_wrong", "long_right")
    parts = [_runs(params, cell, t, learn_arms(), rl, params.learn.steps) for t in tasks]
    return pd.concat(parts, ignore_index=True)


def explode(params: Params, cell: Cell) -> pd.DataFrame:
    """Train on the hard task for many steps, with held-out accuracy on the way."""
    steps = params.explode.steps
    points = (0, min(10, steps), steps)
    rl = params.rl.model_copy(update={"evaluate_at": points, "lr": params.explode.lr})
    return _runs(params, cell, "hard", explode_arms(), rl, steps)


def _runs(
    params: Params, cell: Cell, task_name: str, arms: list[Arm], rl: RlParams, steps: int
) -> pd.DataFrame:
    """Train the arms of one unit; all of them share the unit's seed."""
    unit = cell.params["unit"]
    seed = derive_seed(params.seed, "rlvr_entropy", cell.group, unit)
    if params.grpo is not None:
        # Imported here: TRL takes seconds, and only profile paper needs it.
        from replicata.papers.rlvr_entropy import grpo_study

        parts = grpo_study.run_arms(params.grpo, arms, rl, steps, params.device, seed)
    else:
        blocks = [
            arms[start : start + params.arms_per_block]
            for start in range(0, len(arms), params.arms_per_block)
        ]
        task = make_task(params, task_name)
        parts = [
            train_block(make_base(params, task_name), task, block, rl, steps, seed)
            for block in blocks
        ]
    rows = pd.concat(parts, ignore_index=True)
    return rows.assign(unit=f"seed-{unit:02d}", task=task_name, optimizer=rl.optimizer)


STUDIES = {"null": null, "learn": learn, "explode": explode}
