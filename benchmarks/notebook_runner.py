"""What our notebook runner costs under Snakemake, beside papermill's and Snakemake's own.

``python benchmarks/notebook_runner.py`` runs the same trivial notebooks three ways, in turns, and
prints a Markdown table: seconds per notebook beyond a Snakemake run that has nothing to do.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LIB = Path(__file__).resolve().parents[1] / "lib"

SNAKEFILE = """\
rule all:
    input:
        expand("out/{{n}}.ipynb", n=range({notebooks})),


rule notebook:
    input:
        "source/{{n}}.py.ipynb",
    {target}:
        {keyword}"out/{{n}}.ipynb",
    {run}:
        {how}
"""

WAYS = {
    "`replicata.workflow.notebooks` in `shell:`": (
        ("output", ""),
        (
            "shell",
            '"python -m replicata.workflow.notebooks {input} {output} -p seed={wildcards.n}"',
        ),
    ),
    "`papermill` in `shell:`": (
        ("output", ""),
        ("shell", '"papermill --no-progress-bar {input} {output} -p seed {wildcards.n}"'),
    ),
    "`notebook:` directive": (
        ("log", "notebook="),
        ("notebook", '"source/{wildcards.n}.py.ipynb"'),
    ),
}
NOTHING = "no notebooks"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--notebooks", type=int, default=12)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--cores", type=int, default=2)
    given = parser.parse_args()
    seconds: dict[str, list[float]] = {NOTHING: []} | {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as directory:
        for _ in range(given.repeats):
            for way, found in seconds.items():
                place = Path(directory) / "run"
                prepare(place, way, given.notebooks)
                found.append(run(place, given.cores))
                executed = [] if way == NOTHING else sorted(place.glob("out/*.ipynb"))
                if len(executed) != (0 if way == NOTHING else given.notebooks):
                    sys.exit(f"{way} made {len(executed)} of {given.notebooks} notebooks")
                shutil.rmtree(place)
    report(seconds, given.notebooks, given.cores)


def prepare(place: Path, way: str, notebooks: int) -> None:
    """Write the notebooks and the Snakefile of one run."""
    (place / "source").mkdir(parents=True)
    (place / "out").mkdir()
    for number in range(notebooks):
        (place / f"source/{number}.py.ipynb").write_text(json.dumps(notebook()))
    text = "rule all:\n    input:\n        [],\n"
    if way != NOTHING:
        (target, keyword), (directive, how) = WAYS[way]
        text = SNAKEFILE.format(
            notebooks=notebooks, target=target, keyword=keyword, run=directive, how=how
        )
        if target == "log":
            # The directive takes its executed notebook for a log, which no rule can ask for.
            text = text.replace('"out/{n}.ipynb", n', '"out/{n}.done", n').replace(
                "    log:", '    output:\n        touch("out/{n}.done"),\n    log:'
            )
    (place / "Snakefile").write_text(text)


def notebook() -> dict:
    """Return a notebook that takes no time to execute."""
    sources = ("seed = 0", "print(seed)", "sum(range(10))")
    cells = [
        {
            "id": f"c{number}",
            "cell_type": "code",
            "source": source,
            "metadata": {"tags": ["parameters"]} if number == 0 else {},
            "outputs": [],
            "execution_count": None,
        }
        for number, source in enumerate(sources)
    ]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def run(place: Path, cores: int) -> float:
    """Run Snakemake and return its wall time in seconds."""
    bin_directory = Path(sys.executable).parent
    environment = os.environ | {
        "PYTHONPATH": str(LIB),
        "PATH": f"{bin_directory}{os.pathsep}{os.environ['PATH']}",
        "REPLICATA_ROOT": str(LIB.parent),
    }
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "snakemake", "--cores", str(cores), "--quiet", "all"],
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
    )
    seconds = time.perf_counter() - started
    if done.returncode:
        sys.exit(done.stderr)
    return seconds


def report(seconds: dict[str, list[float]], notebooks: int, cores: int) -> None:
    """Print the table: medians, and how many times ours each way takes."""
    nothing = statistics.median(seconds[NOTHING])
    each = {
        way: (statistics.median(found) - nothing) / notebooks
        for way, found in seconds.items()
        if way != NOTHING
    }
    ours = next(iter(each.values()))
    repeats = len(seconds[NOTHING])
    print(
        f"{notebooks} notebooks, `--cores {cores}`, medians of {repeats} interleaved repeats; "
        f"Snakemake with nothing to do takes {nothing:.2f} s.\n"
    )
    print("| way | whole run, s (all repeats) | s per notebook | times ours |")
    print("| --- | --- | --- | --- |")
    for way, cost in each.items():
        spread = ", ".join(f"{value:.1f}" for value in sorted(seconds[way]))
        whole = statistics.median(seconds[way])
        print(f"| {way} | {whole:.1f} ({spread}) | {cost:.2f} | {cost / ours:.2f} |")


if __name__ == "__main__":
    main()
