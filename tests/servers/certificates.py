"""TLS certificates for test servers, made by openssl."""

from __future__ import annotations

import atexit
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.servers.programs import HOST, server_or_skip

_OPENSSL = f"""
[req]
distinguished_name = name
prompt = no
[name]
CN = penstock tests
[authority]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
[member]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth, clientAuth
subjectAltName = IP:{HOST}, DNS:localhost
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
"""


@dataclass(frozen=True)
class Certificates:
    """An authority of our own, and what it signed for the server and for a client; and another authority."""

    ca: Path
    other_ca: Path
    server: Path
    server_key: Path
    client: Path
    client_key: Path


@cache
def certificates() -> Certificates:
    """Made once in a process, gone with it."""
    openssl = server_or_skip("openssl")
    folder = Path(tempfile.mkdtemp(prefix="penstock-tls-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    (folder / "openssl.cnf").write_text(_OPENSSL)
    for name in ("ca", "other"):
        _certify(openssl, folder, name, "authority")
    for name in ("server", "client"):
        _certify(openssl, folder, name, "member", "-CA", "ca.pem", "-CAkey", "ca.key")
    return Certificates(
        ca=folder / "ca.pem",
        other_ca=folder / "other.pem",
        server=folder / "server.pem",
        server_key=folder / "server.key",
        client=folder / "client.pem",
        client_key=folder / "client.key",
    )


def _certify(openssl: str, folder: Path, name: str, kind: str, *signed_by: str) -> None:
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", f"{name}.key"]
    config = ["-config", "openssl.cnf", "-extensions", kind, "-subj", f"/CN=penstock {name}"]
    command = [openssl, "req", "-x509", *key, *config, *signed_by, "-days", "2", "-out", f"{name}.pem"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, f"openssl made no certificate: {done.stderr}"
