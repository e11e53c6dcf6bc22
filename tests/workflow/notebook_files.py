"""Notebooks for tests, written as plain JSON."""

import json
from pathlib import Path


def code(source: str, *tags: str, **fields: object) -> dict:
    """Return a code cell."""
    cell = {"cell_type": "code", "source": source, "outputs": [], "execution_count": None}
    return cell | {"metadata": {"tags": list(tags)} if tags else {}} | fields


def write(path: Path, *cells: dict, **fields: object) -> Path:
    """Write a notebook whose cells have the ids ``c1``, ``c2``, ..."""
    numbered = [{"id": f"c{number}"} | cell for number, cell in enumerate(cells, 1)]
    document = {"cells": numbered, "metadata": {}, "nbformat": 4, "nbformat_minor": 5} | fields
    path.write_text(json.dumps(document))
    return path


def outputs(path: Path) -> list[list[dict]]:
    """Return the outputs of each code cell."""
    document = json.loads(path.read_text())
    return [cell["outputs"] for cell in document["cells"] if cell["cell_type"] == "code"]


def printed(path: Path) -> str:
    """Return all that was printed, to either stream."""
    return "".join(
        "".join(output["text"])
        for cell in outputs(path)
        for output in cell
        if output["output_type"] == "stream"
    )
