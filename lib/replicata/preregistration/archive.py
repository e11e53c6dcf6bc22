"""The archive: a zip of the frozen protocol and its manifest's files, the same bytes every time."""

import io
import tempfile
import zipfile
from pathlib import Path

from replicata.errors import VerificationError
from replicata.preregistration.canonical import parse
from replicata.preregistration.manifest import differing_files
from replicata.preregistration.registration import (
    Registration,
    check_digest,
    check_unchanged,
    digest_path,
)
from replicata.workflow.files import atomic_write, sha256_bytes

EPOCH = (1980, 1, 1, 0, 0, 0)


def archive_bytes(files: dict[str, bytes]) -> bytes:
    """Return a zip of ``files`` that depends on their names and content alone.

    Names are sorted, times and modes fixed, and nothing is compressed: what zlib makes of the same
    bytes differs between its versions.
    """
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as bundle:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, EPOCH)
            entry.create_system = 3
            entry.external_attr = 0o644 << 16
            bundle.writestr(entry, files[name])
    return buffer.getvalue()


def write_archive(registration: Registration) -> Path:
    """Write archive.zip and its digest beside the frozen protocol.

    Raises
    ------
    VerificationError
        If anything frozen has changed.
    """
    check_unchanged(registration)
    places = registration.places
    paths = [places.root / path for path in registration.manifest["files"]]
    paths += [places.frozen, digest_path(places.frozen), places.roots]
    content = archive_bytes({places.shown(path): path.read_bytes() for path in paths})
    atomic_write(digest_path(places.archive), f"{sha256_bytes(content)}  {places.archive.name}\n")
    atomic_write(places.archive, content)
    return places.archive


def check_archive(registration: Registration) -> None:
    """Check the archive's digest, and that it holds the protocol and its files as they were frozen.

    Raises
    ------
    VerificationError
        If it does not.
    """
    places = registration.places
    check_digest(places.archive)
    with tempfile.TemporaryDirectory(prefix="archive-") as place:
        try:
            with zipfile.ZipFile(places.archive) as bundle:
                inside = bundle.read(places.shown(places.frozen))
                bundle.extractall(place)
        except (KeyError, zipfile.BadZipFile) as error:
            raise VerificationError(f"archive.zip cannot be read: {error}") from None
        if sha256_bytes(inside) != registration.digest:
            raise VerificationError("archive.zip holds another frozen.json")
        # Of the protocol as it was frozen: amendments are not in the archive.
        others = differing_files(parse(inside, "frozen.json")["manifest"], Path(place))
    if others:
        raise VerificationError(f"archive.zip holds {', '.join(others)} other than frozen, or not")
