"""The kernel behind an executed notebook: ours whatever the notebook names, gone with its runner.

``python -m replicata.workflow.kernel -f CONNECTION_FILE`` is ipykernel, tied to its parent: a
runner that is killed, even by ``kill -9``, takes its kernel along, and a kernel takes along what
the notebook has started. ``manager_class`` makes papermill start it, without a kernelspec being
installed, and without the user's IPython profile, history and start-up files.
"""

import ctypes
import os
import shutil
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from replicata.workflow.processes import die_with_parent

if TYPE_CHECKING:
    from jupyter_client.manager import AsyncKernelManager

_PR_SET_PDEATHSIG = 1

# Bytes that the name of a Unix socket may have, on the least generous system.
_SOCKET_NAME_MAX = 100


def manager_class(directory: Path, exit_codes: list[int]) -> "type[AsyncKernelManager]":
    """Return a kernel manager class for one execution, as papermill and nbclient accept it.

    Parameters
    ----------
    directory
        A private directory, for the connection file, the sockets and IPython's own files. It is
        removed when the kernel is gone.
    exit_codes
        Gets the exit code of a kernel that ends before it is told to: -9 if it was killed.

    Returns
    -------
    type
        A class whose kernels run under this interpreter, with this ``replicata``.
    """
    from jupyter_client.kernelspec import KernelSpec
    from jupyter_client.manager import AsyncKernelManager

    source_root = str(Path(__file__).resolve().parents[2])
    search_path = [source_root, *filter(None, [os.environ.get("PYTHONPATH")])]
    spec = KernelSpec(
        argv=[sys.executable, "-m", __name__, "-f", "{connection_file}"],
        display_name="Python 3 (ipykernel)",
        language="python",
        env={
            "IPYTHONDIR": str(directory / "ipython"),
            "PYTHONPATH": os.pathsep.join(search_path),
            # Sets of words print in the same order each time, and no bar prints its timings.
            "PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", "0"),
            "TQDM_DISABLE": "1",
        },
    )
    socket = str(directory / "socket")

    class KernelManager(AsyncKernelManager):
        @property
        def kernel_spec(self) -> KernelSpec:
            return spec

        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self.connection_file = str(directory / "connection.json")
            # TCP ports are chosen before they are bound, and kernels that start at the same time
            # can choose the same one.
            if len(os.fsencode(socket)) + len("-5") <= _SOCKET_NAME_MAX:
                self.transport, self.ip = "ipc", socket

        async def _async_is_alive(self) -> bool:
            alive = await super()._async_is_alive()
            if not alive and not self.shutting_down and self.provisioner is not None:
                code = await self.provisioner.poll()
                exit_codes.append(code if code is not None else 0)
            return alive

        is_alive = _async_is_alive

        async def _async_wait(self, pollinterval: float = 0.1) -> None:
            await super()._async_wait(pollinterval=min(pollinterval, 0.01))

    return KernelManager


def _clean_up_after(kernel: int, directory: Path) -> None:
    """Fork a process that waits for the kernel's end, however that comes, and clears up.

    What the notebook started is in the kernel's process group and would otherwise go on.
    """
    if not sys.platform.startswith("linux") or os.fork():
        return
    os.setpgid(0, 0)  # out of the way of signals to the kernel's group
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGUSR1, 0, 0, 0)
    if os.getppid() == kernel:
        signal.sigwait({signal.SIGUSR1})
    shutil.rmtree(directory, ignore_errors=True)
    with suppress(ProcessLookupError):
        os.killpg(kernel, signal.SIGKILL)
    os._exit(0)


def main() -> None:
    """Run ipykernel in this process until it is told to stop, or until its parent is gone."""
    die_with_parent(int(os.environ.get("JPY_PARENT_PID", "0")))
    _clean_up_after(os.getpid(), Path(sys.argv[sys.argv.index("-f") + 1]).parent)
    # The notebook's directory is back on the path once ipykernel is loaded; until then a file
    # there must not stand in for a module of ours.
    del sys.path[0]
    from ipykernel.kernelapp import IPKernelApp

    class KernelApp(IPKernelApp):
        def start(self) -> None:
            super().start()
            # At exit, ipykernel ends its output thread first; the control thread, in the last
            # lines of the shutdown request, may then wait for a flush that nobody does any more.
            if self.control_thread is not None:
                self.control_thread.join(timeout=5)

    KernelApp.launch_instance(
        [
            *sys.argv[1:],
            "--HistoryManager.enabled=False",
            "--InteractiveShell.colors=nocolor",
            "--InteractiveShellApp.exec_PYTHONSTARTUP=False",
        ]
    )


if __name__ == "__main__":
    main()
