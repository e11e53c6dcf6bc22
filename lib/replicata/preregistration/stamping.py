"""Stamping everything of a study that is frozen and has no token yet."""

from pathlib import Path

from replicata.preregistration.anchor import record_anchor
from replicata.preregistration.places import Places, require, token_path
from replicata.preregistration.registration import load_registration
from replicata.preregistration.timestamp import Stamp, stamp_file


def stamp_all(places: Places) -> list[tuple[Path, Stamp]]:
    """Stamp the frozen protocol, the amendments and the seal, where they have no token.

    Also records the commit that holds the protocol, if HEAD does.

    Raises
    ------
    ResourceError
        If the authority cannot be reached; what was stamped before stays stamped.
    UsageError
        If the protocol is not archived yet.
    """
    require(places, "stamp")
    registration = load_registration(places)
    record_anchor(places)
    made = []
    for path in (places.frozen, *places.amendments(), places.seal):
        if path.exists() and not token_path(path).exists():
            made.append((path, stamp_file(registration, path)))
    return made
