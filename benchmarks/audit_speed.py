"""Time of an audit of 90,084 synthetic records: ``python benchmarks/audit_speed.py``.

Makes a registered study in a temporary repository, fills its shards, and audits it at three sizes.
Prints a Markdown table; the time should be linear in the records.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from replicata.preregistration.analysis import analyze
from replicata.preregistration.anchor import record_anchor
from replicata.preregistration.archive import write_archive
from replicata.preregistration.audit import audit
from replicata.preregistration.chain import genesis, link
from replicata.preregistration.collect import planned_cells
from replicata.preregistration.freeze import freeze
from replicata.preregistration.places import Places
from replicata.preregistration.records import time_text, utc_now
from replicata.preregistration.registration import load_registration
from replicata.preregistration.seal import seal
from replicata.preregistration.stamping import stamp_all
from replicata.preregistration.study import load_study

FULL = 90_084

STUDY = """
from replicata.preregistration.study import PlannedCell, Study


def planned_cells(protocol):
    count = protocol.settings["cells"]
    return [
        PlannedCell(f"c{i}", f"s{i // 8000}", f"w{i // 32}", "control") for i in range(count)
    ]


def render(registration, cell, upstream):
    return f"World {cell.unit}, cell {cell.id}: which tool comes first?" + TEXT


def outcome(registration, cell, response):
    return 1 if response["tool"] == "worse" else 0


def analyse(registration, observations, excluded):
    return {"c1": {"rate": sum(o.outcome for o in observations) / len(observations)}}


TEXT = " The log lists twenty runs of either tool." * 10
STUDY = Study(planned_cells, render, None, outcome, analyse)
"""

DRAFT = """
schema: 1
study: synthetic
profile: smoke
title: Synthetic records
hypotheses:
  - id: c1
    statement: none
    status: confirmatory
    estimand: mean
    test: none
    alpha: 0.05
    rule: {{supported: "rate < 0.5"}}
sample: {{rule: all, units: {units}, planned_cells: {cells}}}
exclusions: {{rule: none, max_share: 0.05}}
endpoints: {{control: {{kind: synthetic, pin: "synthetic:1"}}}}
analysis: {{entry_point: "synthetic_study:STUDY"}}
seeds: {{rule: fixed, global_seed: 0}}
stopping: none
power: {{statement: none}}
pilot: {{disclosure: none, units: ["pilot*"]}}
access: none
timestamp: {{authority: local}}
settings: {{cells: {cells}}}
"""


def git(root: Path, *arguments: str) -> None:
    """Run git with an identity of its own."""
    identity = ["-c", "user.name=b", "-c", "user.email=b@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(root), *identity, *arguments], check=True, capture_output=True)


def make_study(root: Path, cells: int) -> Places:
    """Register a study of ``cells`` cells, fill its records, seal and analyse it."""
    (root / "synthetic_study.py").write_text(STUDY)
    (root / ".gitattributes").write_text("* -text\n")
    (root / ".gitignore").write_text("__pycache__/\nresults/\n")
    protocol = root / "protocols" / "synthetic"
    protocol.mkdir(parents=True)
    (protocol / "draft.yaml").write_text(DRAFT.format(cells=cells, units=-(-cells // 32)))
    git(root, "init", "-q")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "x")
    sys.modules.pop("synthetic_study", None)
    sys.path.insert(0, str(root))
    places = Places(root, "synthetic", "smoke")
    freeze(places)
    write_archive(load_registration(places))
    git(root, "add", "-A")
    git(root, "commit", "-qm", "y")
    record_anchor(places)
    stamp_all(places)
    fill(places)
    seal(places)
    analyze(places)
    return places


def fill(places: Places) -> None:
    """Write the records at once, without forcing each to the disk as a real run does."""
    registration = load_registration(places)
    study = load_study(registration.protocol.analysis.entry_point)
    places.records_dir.mkdir(parents=True)
    chains: dict[str, list] = {}
    for number, cell in enumerate(planned_cells(registration)):
        chain = chains.setdefault(cell.shard, [[], genesis(registration.digest, cell.shard)])
        response = {"tool": "worse" if number % 9 == 0 else "better", "scores": ["-0.2501", "-1.5"]}
        record = {
            "kind": "answer",
            "i": len(chain[0]),
            "shard": cell.shard,
            "protocol": registration.head,
            "t_utc": time_text(utc_now()),
            "cell": cell.id,
            "unit": cell.unit,
            "endpoint": cell.endpoint,
            "model": "synthetic:1",
            "request": study.render(registration, cell, {}),
            "engine": {"transformers": "5.16.1"},
            "response": response,
            "outcome": study.outcome(registration, cell, response),
        }
        line, chain[1] = link(record, chain[1])
        chain[0].append(line)
    for name, (lines, _) in chains.items():
        (places.records_dir / f"{name}.jsonl").write_bytes(b"".join(lines))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=FULL)
    full = parser.parse_args().records
    print("| records | MB | audit, s (wall) | s (CPU) | us per record |")
    print("| ---: | ---: | ---: | ---: | ---: |")
    for cells in (full // 4, full // 2, full):
        with tempfile.TemporaryDirectory() as directory:
            places = make_study(Path(directory), cells)
            size = sum(path.stat().st_size for path in places.record_files()) / 1e6
            times = []
            for _ in range(3):
                start, cpu = time.perf_counter(), time.process_time()
                result = audit(places)
                times.append((time.perf_counter() - start, time.process_time() - cpu))
            if result.failed:
                raise SystemExit("\n".join(map(str, result.items)))
            wall, cpu = min(times)
            print(f"| {cells:,} | {size:.0f} | {wall:.2f} | {cpu:.2f} | {wall / cells * 1e6:.1f} |")
            sys.path.remove(directory)


if __name__ == "__main__":
    main()
