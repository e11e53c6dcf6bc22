"""Build ``.venv`` from a lock, by ``python requirements/install.py [LOCK] [-- PIP_FLAGS...]``.

Standard library only: it runs before anything is installed, and `make` calls it each time. When
the environment is what the lock and pyproject.toml ask for, it says nothing. When an installation
was interrupted, it goes on from the packages that are complete. When the lock changed, or the
project was moved, it starts from an empty environment, so nothing outside the lock can linger.
"""

import ctypes
import fcntl
import hashlib
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHON = (3, 11)
HEARTBEAT_SECONDS = 10.0


def die_with_parent() -> None:
    """Ask Linux to end this process when its parent ends, so that no pip outlives a killed make."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)


def read_groups(lock: Path) -> dict[str, list[str]]:
    """Read a lock's groups: paragraphs, titled by their first comment line, of ``name==version``.

    Parameters
    ----------
    lock
        A requirements file. Paragraphs without a requirement are skipped.

    Returns
    -------
    dict
        Requirements by title, both in the order of the file.
    """
    groups = {}
    for paragraph in lock.read_text(encoding="utf-8").split("\n\n"):
        lines = [line.strip() for line in paragraph.splitlines() if line.strip()]
        requirements = [line for line in lines if not line.startswith("#")]
        if requirements:
            groups[lines[0].lstrip("# ")] = requirements
    return groups


def drop_partial_packages(site_packages: Path) -> list[str]:
    """Remove the records of packages that a killed pip left half installed.

    pip writes INSTALLER after a package's own files, so a record without it is not complete; pip
    would take it for an installed package, and skip it.

    Returns
    -------
    list of str
        Names of the directories removed.
    """
    partial = [
        record
        for record in site_packages.glob("*.dist-info")
        if not (record / "INSTALLER").is_file()
    ]
    for record in partial:
        shutil.rmtree(record)
    return [record.name for record in partial]


class Environment:
    """The virtual environment of one checkout.

    Parameters
    ----------
    directory
        Where it lies or will lie.
    lock
        The requirements file it must equal.
    pyproject
        The project's own metadata; a change of it installs the project again, and nothing else.
    pip_flags
        Passed to every pip call (an index, a proxy, a cache).
    """

    def __init__(self, directory: Path, lock: Path, pyproject: Path, pip_flags: list[str]) -> None:
        self.directory = directory
        self.lock = lock
        self.pip_flags = pip_flags
        self.python = directory / "bin" / "python"
        self.log = directory / "install.log"
        self.stamp = directory / ".installed"
        self.started = directory / ".installing"
        # The path is part of the identity: scripts in bin/ hold it, so a moved checkout is rebuilt.
        self.packages_id = f"lock {_sha256(lock)}\npath {directory}\n"
        self.complete_id = f"{self.packages_id}project {_sha256(pyproject)}\n"

    def build(self) -> None:
        """Bring it to what the lock and the project ask for, or raise SystemExit."""
        stamp = self.stamp.read_text() if self.stamp.is_file() else ""
        if self.python.exists() and stamp == self.complete_id:
            return
        if not (self.python.exists() and stamp.startswith(self.packages_id)):
            self._install_packages()
        self._say("the project itself")
        self._pip("--no-deps", "--no-build-isolation", "--editable", str(ROOT))
        _write_atomically(self.stamp, self.complete_id)
        self.started.unlink(missing_ok=True)
        self._say(f"complete in {self.directory.name}/ (log: {self.directory.name}/install.log)")

    def _install_packages(self) -> None:
        begun = self.started.read_text() if self.started.is_file() else ""
        if self.python.exists() and begun == self.packages_id:
            self._say("an interrupted installation goes on")
            drop_partial_packages(self._site_packages())
        else:
            self._say(f"a new virtual environment in {self.directory.name}/")
            create = [sys.executable, "-m", "venv", "--clear", str(self.directory)]
            if subprocess.run(create, check=False).returncode:
                sys.exit(
                    f"{sys.executable} cannot create a virtual environment; on Debian and Ubuntu "
                    "the package python3.11-venv provides what is missing."
                )
            _write_atomically(self.started, self.packages_id)
        groups = read_groups(self.lock)
        for number, (title, requirements) in enumerate(groups.items(), start=1):
            count = f"{len(requirements)} package{'s' * (len(requirements) > 1)}"
            self._say(f"{number} of {len(groups)}: {title} ({count})")
            self._pip("--no-deps", *requirements)
        # With dependencies, this once: a CUDA build of torch pins CUDA libraries that the lock,
        # made for CPU builds, does not hold. Where torch is complete already, this does nothing.
        torch = [pin for pins in groups.values() for pin in pins if pin.startswith("torch==")]
        self._say("checking that torch is complete")
        self._pip("--constraint", str(self.lock), *torch)

    def _site_packages(self) -> Path:
        return self.directory / "lib" / f"python{PYTHON[0]}.{PYTHON[1]}" / "site-packages"

    def _say(self, message: str) -> None:
        print(f"environment: {message}", flush=True)

    def _pip(self, *arguments: str) -> None:
        """Run pip install with its output in the log, and a line on the screen now and then."""
        command = [str(self.python), "-m", "pip", "install", "--disable-pip-version-check"]
        command += ["--no-input", "--progress-bar=off", *self.pip_flags, *arguments]
        begin = time.monotonic()
        with self.log.open("ab") as log:
            log.write(f"\n$ {' '.join(command)}\n".encode())
            log.flush()
            with subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=die_with_parent,
            ) as pip:
                while True:
                    try:
                        code = pip.wait(timeout=HEARTBEAT_SECONDS)
                        break
                    except subprocess.TimeoutExpired:
                        seconds = time.monotonic() - begin
                        self._say(f"   {seconds:.0f} s: {self._doing()}")
        if code:
            tail = self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:]
            sys.exit(
                "\n".join(tail)
                + f"\nenvironment: pip ended with code {code}; its last lines are above, the rest "
                f"is in {self.directory.name}/install.log. The same command goes on from here."
            )

    def _doing(self) -> str:
        """Say in one line what pip is at."""
        steps = ("Collecting ", "Downloading ", "Installing ", "Building ", "Preparing ", "Using ")
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        last = next((s for line in reversed(lines) if (s := line.strip()).startswith(steps)), "")
        if last.startswith("Installing collected"):
            installed = sum(1 for _ in self._site_packages().glob("*.dist-info/INSTALLER"))
            return f"unpacking; {installed} packages are installed"
        words = last.split("/")[-1] if last.startswith(("Downloading", "Using")) else last
        return words or "waiting for pip"


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _write_atomically(path: Path, text: str) -> None:
    temporary = path.with_name(path.name + ".new")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def main(arguments: list[str]) -> None:
    """Check the machine, take the lock of this checkout, and build."""
    if sys.version_info[:2] != PYTHON:
        sys.exit(
            f"replicata needs Python 3.11, and {sys.executable} is {platform.python_version()}: "
            "name another one, for example make PYTHON=/usr/bin/python3.11"
        )
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        sys.exit(
            "The locks in requirements/ pin wheels for Linux on x86_64, and this is "
            f"{platform.system()} on {platform.machine()}: see docs/install.md."
        )
    if os.environ.get("REPLICATA_DIE_WITH_PARENT") == "1":
        die_with_parent()
    flags = arguments[arguments.index("--") + 1 :] if "--" in arguments else []
    names = arguments[: arguments.index("--")] if "--" in arguments else arguments
    lock = Path(names[0]) if names else ROOT / "requirements" / "cpu.txt"
    if not lock.is_file():
        sys.exit(f"There is no lock {lock}; expected requirements/cpu.txt or requirements/gpu.txt.")
    environment = Environment(ROOT / ".venv", lock, ROOT / "pyproject.toml", flags)
    # Two builds of one environment would tear it; the checkout's own directory is the mutex.
    mutex = os.open(ROOT, os.O_RDONLY)
    try:
        fcntl.flock(mutex, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print("environment: waiting for another installation in this checkout", flush=True)
        fcntl.flock(mutex, fcntl.LOCK_EX)
    environment.build()


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except KeyboardInterrupt:
        print("\nenvironment: interrupted; the same command goes on from here.", file=sys.stderr)
        sys.exit(130)
