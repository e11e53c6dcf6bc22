"""What a paper's notebook works with: its params, cells, verdicts and figures.

In the pipeline everything is there when the notebook runs. Opened by hand in JupyterLab, the
session computes what is missing, through the same code as the pipeline, with a progress bar.
"""

import io
import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from replicata.errors import UsageError, nearest
from replicata.workflow import receipts
from replicata.workflow.cells import Cell
from replicata.workflow.layout import Room
from replicata.workflow.params import load_params
from replicata.workflow.plan import cell_key, claims_key, planned_cells, table_digests
from replicata.workflow.run import claims_document, load_cells, not_run_reason, run_cell

if TYPE_CHECKING:
    import pandas as pd
    from pandas.io.formats.style import Styler

_COLUMNS = {
    "id": "claim",
    "statement": "what the paper claims",
    "paper": "paper's value",
    "ours": "ours",
    "p": "p",
    "n": "n",
    "verdict": "verdict",
    "note": "note",
}


def open_paper(slug: str, profile: str, results: str = "results") -> "Session":
    """Open a paper's room.

    Parameters
    ----------
    slug
        The paper, such as ``kvfold``.
    profile
        ``smoke``, ``cpu`` or ``paper``.
    results
        The results root; a relative one is taken from the repository, wherever the notebook lies.

    Raises
    ------
    UsageError
        Unknown paper or profile, or params that do not fit.
    """
    return Session(Room(slug, profile, Path(results)))


class Session:
    """A paper at one profile, as a notebook sees it.

    Attributes
    ----------
    room
        Where everything lies.
    params
        The experiment's ``Params`` at this profile.
    """

    def __init__(self, room: Room) -> None:
        self.room = room
        self.params = load_params(room.paper, room.profile)
        self._planned = planned_cells(room, self.params)

    def __repr__(self) -> str:
        return f"{self.room.paper} at profile {self.room.profile}: {len(self._planned)} cells"

    def cells(self, *groups: str) -> "pd.DataFrame":
        """Return the rows of some groups of cells, computing the cells that are not current.

        Parameters
        ----------
        *groups
            Names of groups; all of them where none is given.

        Returns
        -------
        DataFrame
            Tidy: ``arm``, ``unit``, ``metric``, ``value``, the paper's own columns, ``group`` and
            ``cell``. A cell that cannot run on this machine has no rows.

        Raises
        ------
        UsageError
            Unknown group.
        RunError, ResourceError
            A cell failed, or something it needs is missing.
        """
        known = list(dict.fromkeys(cell.group for cell in self._planned))
        for group in groups:
            if group not in known:
                raise UsageError(
                    f"{self.room.paper} has no group of cells {group!r}{nearest(group, known)}; "
                    f"known: {', '.join(known)}"
                )
        chosen = groups or tuple(known)
        self._compute([cell for cell in self._planned if cell.group in chosen])
        return load_cells(self.room, chosen)

    def claims(self) -> "Styler":
        """Return the verdicts as a table, one row per claim; ``.data`` is its DataFrame.

        They are read from ``claims.json`` if that is current, and decided anew from the cells
        otherwise.
        """
        import pandas as pd

        from replicata.claims.table import verdict_rows

        rows = pd.DataFrame(verdict_rows(self._verdicts))[list(_COLUMNS)].rename(columns=_COLUMNS)
        return self._styled(rows, "claims")

    def rules(self) -> "Styler":
        """Return the claims with their decision rules, as they stand in the ledger."""
        import pandas as pd

        from replicata.claims.ledger import load_ledger

        rows = []
        for claim in load_ledger(self.room.ledger).claims:
            rule = claim.rule
            rows.append(
                {
                    "claim": claim.id,
                    "what the paper claims": f"{claim.statement} ({claim.source})",
                    "paper's value": claim.paper_value,
                    "tested here by": claim.test or "",
                    "supported if": rule.supported
                    if rule
                    else f"not testable: {claim.not_testable}",
                    "contradicted if": (rule.contradicted if rule else None) or "never",
                }
            )
        return self._styled(pd.DataFrame(rows), "rules")

    def _styled(self, table: "pd.DataFrame", name: str) -> "Styler":
        # By default pandas draws a new identifier each time, and the notebook would never be equal.
        style = table.style.set_uuid(f"{self.room.paper}-{name}").hide(axis="index")
        return style.set_properties(**{"text-align": "left", "vertical-align": "top"})

    def figure(self, name: str) -> None:
        """Draw and show one of the paper's figures with its caption.

        Parameters
        ----------
        name
            A key of the paper's ``FIGURES``.

        Raises
        ------
        UsageError
            Unknown figure.
        """
        import matplotlib.pyplot as plt
        from IPython.display import Image, Markdown, display

        known = self.room.module("figures").FIGURES
        if name not in known:
            raise UsageError(
                f"{self.room.paper} has no figure {name!r}{nearest(name, known)}; "
                f"known: {', '.join(known)}"
            )
        groups, draw, caption = known[name]
        self._compute([cell for cell in self._planned if cell.group in groups])
        reason = not_run_reason(self.room, self._planned, groups)
        if reason is not None:
            display(Markdown(f"Figure *{name}* is not drawn: its cells were not run: {reason}"))
            return
        rows = load_cells(self.room, groups)
        drawn = draw(rows, self.params)
        # Bytes of our own making: what the notebook's front end would draw depends on its set-up.
        picture = io.BytesIO()
        drawn.savefig(picture, format="png", dpi=100, metadata={"Software": None})
        plt.close(drawn)
        display(Image(data=picture.getvalue(), alt=name))
        display(Markdown(caption(rows, self.params) if callable(caption) else caption))

    @cached_property
    def _verdicts(self) -> dict[str, Any]:
        self._compute(self._planned)
        tables = table_digests(self.room, [cell.id for cell in self._planned])
        if receipts.is_current(self.room, "claims", claims_key(self.room, self.params, tables)):
            return json.loads(self.room.claims_json.read_text(encoding="utf-8"))
        return claims_document(self.room)

    def _compute(self, cells: Sequence[Cell]) -> None:
        missing = [cell for cell in cells if not self._is_done(cell)]
        if not missing:
            return
        from tqdm.auto import tqdm

        for cell in tqdm(missing, desc=f"{self.room.paper}, cells", unit="cell"):
            run_cell(self.room, cell.id)

    def _is_done(self, cell: Cell) -> bool:
        path = self.room.receipt_path(f"cells/{cell.id}")
        key = cell_key(self.room, self.params, cell)
        because = receipts.stale_because(self.room.dir, path, key)
        if because != "not-run":
            return because is None
        # It was tried, with these params and this code, and this machine has not what it needs.
        tried = receipts.read(path)
        return tried is not None and tried.key == key
