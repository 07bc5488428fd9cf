"""Certificates for servers of a test: made by openssl, which nobody has signed."""

from __future__ import annotations

import subprocess
from pathlib import Path


def make_certificate(folder: Path, names: str = "DNS:anything") -> Path:
    """Write a private key and its certificate into one file in PEM, and return its path.

    names: of the server, such as "IP:127.0.0.1".
    """
    key, found, both = folder / "key", folder / "found", folder / "server.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=anything"]
    command += ["-addext", f"subjectAltName={names}"]
    subprocess.run([*command, "-keyout", key, "-out", found], check=True, capture_output=True)
    both.write_text(key.read_text() + found.read_text())
    return both
