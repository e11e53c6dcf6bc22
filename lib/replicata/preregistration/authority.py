"""Timestamp authorities: a real one over HTTP, and a throw-away one for tests and offline runs.

The local one is made with ``openssl ts``. It is under the author's control, so its stamps prove
that the code works and nothing about time; its root certificate says so in its name.
"""

import datetime
import ipaddress
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from replicata.errors import ResourceError, RunError
from replicata.workflow.files import atomic_write

LABEL = "LOCAL TEST TSA - NOT INDEPENDENT"
TIMEOUT = 30.0

_CONFIG = """\
[tsa]
dir = {directory}
serial = $dir/serial
crypto_device = builtin
signer_cert = $dir/tsa.pem
signer_key = $dir/tsa.key
signer_digest = sha256
default_policy = 1.2.3.4.1
digests = sha256
ess_cert_id_alg = sha256
tsa_name = no
"""


class HttpAuthority:
    """A timestamp authority that answers RFC 3161 requests over HTTP (section 3.4 there)."""

    def __init__(self, url: str) -> None:
        self.url = url

    def reply(self, request: bytes) -> bytes:
        """Return the reply to a DER-encoded request.

        Raises
        ------
        ResourceError
            If the authority does not answer, or with something else than a reply.
        """
        message = urllib.request.Request(
            self.url, data=request, headers={"Content-Type": "application/timestamp-query"}
        )
        try:
            with urllib.request.urlopen(message, timeout=TIMEOUT) as response:
                kind = response.headers.get_content_type()
                body = response.read()
        except (urllib.error.URLError, OSError) as error:
            reason = getattr(error, "reason", None) or error
            raise ResourceError(
                f"the timestamp authority {self.url} cannot be reached: {reason}; nothing changed, "
                "run stamp again"
            ) from None
        if kind != "application/timestamp-reply":
            raise ResourceError(
                f"the timestamp authority {self.url} answered {kind}, expected "
                "application/timestamp-reply"
            )
        return body


class LocalAuthority:
    """A throw-away authority whose keys lie in one directory, which git is told to ignore."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def create(self) -> bytes:
        """Make keys and certificates if there are none; return the root certificate as PEM."""
        root = self.directory / "ca.pem"
        if root.exists():
            return root.read_bytes()
        self.directory.mkdir(parents=True, exist_ok=True)
        atomic_write(self.directory / ".gitignore", "*\n")
        ca_key, tsa_key = (
            ec.generate_private_key(ec.SECP256R1()),
            ec.generate_private_key(ec.SECP256R1()),
        )
        ca_name, tsa_name = _name(LABEL), _name(f"{LABEL} signer")
        ca = _builder(ca_name, ca_name, ca_key.public_key()).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        )
        tsa = _builder(tsa_name, ca_name, tsa_key.public_key()).add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.TIME_STAMPING]), critical=True
        )
        atomic_write(self.directory / "tsa.key", _pem(tsa_key))
        atomic_write(
            self.directory / "tsa.pem",
            tsa.sign(ca_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM),
        )
        atomic_write(self.directory / "serial", "01\n")
        content = ca.sign(ca_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        atomic_write(root, content)
        return content

    def reply(self, request: bytes) -> bytes:
        """Return the reply to a DER-encoded request.

        Raises
        ------
        ResourceError
            If openssl is not installed, or this authority's keys are gone.
        RunError
            If openssl fails.
        """
        if not (self.directory / "tsa.key").exists():
            raise ResourceError(
                "the keys of the local test authority are gone, so it stamps nothing more"
            )
        query, answer = self.directory / "query.tsq", self.directory / "reply.tsr"
        # Written each time, because it holds the directory's path, and directories move.
        atomic_write(self.directory / "tsa.cnf", _CONFIG.format(directory=self.directory))
        query.write_bytes(request)
        answer.unlink(missing_ok=True)
        command = ["openssl", "ts", "-reply", "-config", str(self.directory / "tsa.cnf")]
        command += ["-section", "tsa", "-queryfile", str(query), "-out", str(answer)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            raise ResourceError("openssl is not installed, which a local authority needs") from None
        if done.returncode or not answer.exists():
            raise RunError(f"openssl ts -reply failed: {done.stderr.strip()[-300:]}")
        return answer.read_bytes()


def is_independent(authority: str, roots: bytes) -> bool:
    """Say whether a stamp could come from someone else: no local authority, no loopback URL."""
    if authority == "local":
        return False
    host = urlsplit(authority).hostname or ""
    certificates = x509.load_pem_x509_certificates(roots)
    labelled = any("NOT INDEPENDENT" in cert.subject.rfc4514_string() for cert in certificates)
    return not (labelled or _is_near(host))


def _is_near(host: str) -> bool:
    """Say whether a host can only be this machine or its network."""
    name = host.rstrip(".")
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return "." not in name or name.endswith((".localhost", ".local")) or _is_number(name)
    return not (getattr(address, "ipv4_mapped", None) or address).is_global


def _is_number(name: str) -> bool:
    """Say whether a name is an IPv4 address in an odd notation, such as 127.1."""
    return name.rpartition(".")[2].isdecimal()


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=3650))
    )


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
