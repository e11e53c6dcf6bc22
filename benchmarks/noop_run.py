"""A run with nothing to do: ``snakemake`` on the committed results against an empty Snakefile.

Run with::

    python benchmarks/noop_run.py

Both are started in turns, so that a busy machine slows both alike. What is beyond the empty
Snakefile is loading parameters, digesting code and hashing every committed output.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from replicata.workflow.layout import papers, repo_root

SNAKEMAKE = [sys.executable, "-m", "snakemake", "--cores", "1"]


def seconds(arguments: list[str], directory: Path) -> float:
    """Return how long a Snakemake run takes; it must end well."""
    start = time.perf_counter()
    subprocess.run([*SNAKEMAKE, *arguments], cwd=directory, capture_output=True, check=True)
    return time.perf_counter() - start


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    planned = subprocess.run([*SNAKEMAKE, "-n"], cwd=repo_root(), capture_output=True, text=True)
    if "Nothing to be done" not in planned.stdout + planned.stderr:
        raise SystemExit("snakemake has something to do: run it first")
    with tempfile.TemporaryDirectory() as folder:
        empty = Path(folder)
        (empty / "Snakefile").write_text("rule all:\n    input: []\n")
        times = [(seconds([], empty), seconds([], repo_root())) for _ in range(options.repeats)]
    base, own = (median(column) for column in zip(*times, strict=True))
    print("| papers | empty Snakefile, s | ours, nothing to do, s | ratio |")
    print("| --- | --- | --- | --- |")
    print(f"| {len(papers())} | {base:.2f} | {own:.2f} | {own / base:.2f} |")


if __name__ == "__main__":
    main()
