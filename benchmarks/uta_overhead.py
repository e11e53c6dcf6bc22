"""CPU time of a step's schedule calls: UTA against cosine, by size of the model.

Run with::

    OMP_NUM_THREADS=1 python benchmarks/uta_overhead.py

The cost has two parts. Every step averages the weights; every boundary runs the probe batch twice,
forward only. The first is a share of a step whatever the length of the run. The second is a number
of steps, so its share of a run falls as 1/steps.
"""

import argparse
from statistics import median

from replicata.papers.uta_lrd.experiment import Params
from replicata.papers.uta_lrd.studies import get_corpus, lm_run
from replicata.papers.uta_lrd.training import train
from replicata.workflow.params import load_params


def measure(params: Params, name: str, boundaries: bool, steps: int) -> float:
    """Return the share of CPU time spent in the schedule."""
    own = params.short
    run = lm_run(params, get_corpus(params.model), name, 0, 1e-3, steps, own.batch, 0.1)
    if name == "uta" and not boundaries:
        run.schedule.boundaries = []
    log = train(run)
    return log.schedule_seconds / log.seconds


def main() -> None:
    """Print one row a width."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 256])
    arguments = parser.parse_args()
    params = load_params("uta_lrd", "cpu")
    kinds = (
        ("cosine", "cosine", False),
        ("UTA without probes", "uta", False),
        ("UTA", "uta", True),
    )
    print("| width | steps | " + " | ".join(label for label, _, _ in kinds) + " |")
    print("| --- | --- |" + " --- |" * len(kinds))
    for width in arguments.widths:
        model = params.model.model_copy(update={"width": width, "intermediate": 11 * width // 4})
        sized = params.model_copy(update={"model": model})
        # In turns, so that a slow minute of the machine hits all of them.
        measured = [
            [measure(sized, name, probes, arguments.steps) for _, name, probes in kinds]
            for _ in range(arguments.repeats)
        ]
        shares = [median(column) for column in zip(*measured, strict=True)]
        row = " | ".join(f"{share:.2%}" for share in shares)
        print(f"| {width} | {arguments.steps} | {row} |", flush=True)


if __name__ == "__main__":
    main()
