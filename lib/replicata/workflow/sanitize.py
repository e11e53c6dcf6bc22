"""What an executed notebook may tell about the machine it ran on: nothing.

``Redaction`` rewrites text, ``clean_notebook`` a whole notebook: paths, names and secrets are
replaced, and whatever differs from one run to the next without being a result is taken out.
"""

import getpass
import math
import os
import re
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

MIMES = (
    "text/plain",
    "text/html",
    "text/markdown",
    "text/latex",
    "image/png",
    "image/svg+xml",
    "application/json",
)
"""What outputs may hold; all else, such as scripts and pickles, is left out."""

_WIDGET = "application/vnd.jupyter.widget-view+json"

INJECTED = "injected-parameters"
"""The tag that papermill gives to the cell it adds."""

_CELL_METADATA = ("tags", "jupyter", "editable", "deletable")
_KERNELSPEC = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}

# Shared by many machines, or words that results are full of: no name to hide, and none to replace.
_NO_NAME = (
    *("admin", "docker", "host", "jovyan", "localhost", "nobody", "root", "runner", "ubuntu"),
    *("user", "vagrant"),
    *("data", "loss", "mark", "max", "mean", "min", "model", "rate", "std", "test"),
)
_SHORTEST_NAME = 3
_SHORTEST_SECRET = 8
_SECRET_NAME = re.compile(r"TOKEN|KEY|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)

# Colours of a terminal end one piece of text and start the next; image data is no text at all.
_NO_TEXT = re.compile(
    r"(\x1b\[[0-9;]*[A-Za-z]"
    r"|data:[\w.+-]+/[\w.+-]+;base64,\n?(?:[A-Za-z0-9+/]{60,}\n)*[A-Za-z0-9+/]*={0,2})"
)
_SYSTEM = (
    "data",
    "etc",
    "home",
    "mnt",
    "opt",
    "private",
    "root",
    "scratch",
    "srv",
    "tmp",
    "usr",
    "var",
)
_ADDRESS = re.compile(r"\bat 0x[0-9a-f]{6,16}\b", re.IGNORECASE)


@dataclass(frozen=True)
class Redaction:
    """What to replace in text, and by what.

    Attributes
    ----------
    prefixes
        Directories by what stands for them, such as ``{"/home/ada": "~"}``.
    names
        Words by what stands for them, such as a user's name.
    secrets
        Texts that are replaced wherever they are.
    """

    prefixes: Mapping[str, str]
    names: Mapping[str, str]
    secrets: frozenset[str]

    @classmethod
    def of_this_machine(cls, root: Path, environ: Mapping[str, str] = os.environ) -> "Redaction":
        """Return what to hide here.

        Parameters
        ----------
        root
            The repository; paths in it become relative.
        environ
            The environment that secrets are looked for in.
        """
        home = Path.home()
        places = {
            Path(sys.base_prefix): "[python]",
            Path(tempfile.gettempdir()): "[tmp]",
            home: "~",
            Path(sys.prefix): "[venv]",
            root: ".",
        }
        prefixes: dict[str, str] = {}
        for place, sign in places.items():
            for path in {place.absolute(), place.resolve()}:
                if len(path.parts) > 1:
                    prefixes[str(path)] = sign
                if home in path.parents:
                    # Tracebacks abbreviate the home directory themselves.
                    prefixes[f"~/{path.relative_to(home)}"] = sign
        host = socket.gethostname()
        names = {_user(): "[user]", home.name: "[user]", host: "[host]"}
        names[host.split(".")[0]] = "[host]"
        return cls(
            prefixes,
            {
                name: sign
                for name, sign in names.items()
                if len(name) >= _SHORTEST_NAME and name.lower() not in _NO_NAME
            },
            frozenset(
                value
                for key, value in environ.items()
                if _SECRET_NAME.search(key) and len(value) >= _SHORTEST_SECRET
            ),
        )

    def text(self, text: str) -> str:
        """Return ``text`` without secrets, absolute paths, names and memory addresses.

        Image data inside it (``data:...;base64,...``) stays as it is.
        """
        pieces = _NO_TEXT.split(text)
        pieces[::2] = [self._piece(piece) for piece in pieces[::2]]
        return "".join(pieces)

    def value(self, value: Any) -> Any:
        """Return a JSON value with all its texts redacted, and NaN and infinities as text."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, float) and not math.isfinite(value):
            return str(value)
        if isinstance(value, Mapping):
            return {self.text(str(key)): self.value(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(item) for item in value]
        return value

    def _piece(self, text: str) -> str:
        for secret in sorted(self.secrets, key=len, reverse=True):
            text = text.replace(secret, "[secret]")
        text = self._paths.sub(self._path, text)
        for name, sign in self.names.items():
            text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", sign, text)
        return _ADDRESS.sub("at 0x0", text)

    @cached_property
    def _paths(self) -> re.Pattern[str]:
        known = "|".join(map(re.escape, sorted(self.prefixes, key=len, reverse=True)))
        tops = {path.name for path in Path("/").iterdir() if path.is_dir()} | set(_SYSTEM)
        top = "|".join(map(re.escape, sorted(tops)))
        part = r"[^\s/'\"<>:,;()\[\]{}|*?&\\]+"
        return re.compile(
            rf"(?<![\w.~<-])(?P<known>{known or '(?!)'})(?![\w-]|\.\w)"
            r"(?P<cell>/ipykernel_\d+/\d+\.py)?"
            rf"|(?<![\w.~/<&\]-])/(?:{top})(?:/{part})*/(?P<last>{part})"
        )

    def _path(self, match: re.Match[str]) -> str:
        if match["known"] is None:
            return f"[path]/{match['last']}"
        # The file that stands for a cell is named by the kernel's process id.
        return "[cell]" if match["cell"] else self.prefixes[match["known"]]


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""  # a user id without a name, as in some containers


def clean_notebook(notebook: Any, redaction: Redaction) -> Any:
    """Take out of an executed notebook what is no result. It is changed in place and returned.

    Execution times, papermill's and widgets' metadata go, and so do kinds of output that are not
    among ``MIMES``. All text that was computed is redacted; the authors' cells stay as they are.

    Parameters
    ----------
    notebook : nbformat.NotebookNode
        An executed notebook, format 4.5.
    redaction
        What to hide.
    """
    language = notebook.metadata.get("language_info", {})
    notebook.metadata = {"kernelspec": dict(_KERNELSPEC), "language_info": language}
    for cell in notebook.cells:
        kept = {key: cell.metadata.get(key) for key in _CELL_METADATA}
        cell.metadata = {key: value for key, value in kept.items() if value not in (None, [])}
        if INJECTED in cell.metadata.get("tags", []):
            cell.id = INJECTED  # papermill draws one at random
            cell.source = redaction.text(cell.source)
        if cell.cell_type == "code":
            cell.outputs = list(_clean_outputs(cell.outputs, redaction))
    return notebook


def _clean_outputs(outputs: list[Any], redaction: Redaction) -> Iterator[Any]:
    for output in outputs:
        if output.output_type == "stream":
            output.text = redaction.text(output.text)
        elif output.output_type == "error":
            output.evalue = redaction.text(output.evalue)
            output.traceback = [redaction.text(frame) for frame in output.traceback]
        elif _WIDGET in output.data:
            continue  # a progress bar, say, of which the file would show the first moment
        else:
            output.data = {
                mime: content if mime == "image/png" else redaction.value(content)
                for mime, content in output.data.items()
                if mime in MIMES
            }
            output.metadata = {
                mime: redaction.value(about)
                for mime, about in output.metadata.items()
                if mime in output.data
            }
            if not output.data:
                continue
        yield output
