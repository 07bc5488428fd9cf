"""Certificates for servers of a test: made by openssl, which nobody has signed."""

from __future__ import annotations

import subprocess
from pathlib import Path


def make_certificate(folder: Path) -> Path:
    """Write a private key and its certificate into one file in PEM, and return its path."""
    key, found, both = folder / "key", folder / "found", folder / "server.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=anything"]
    subprocess.run([*command, "-keyout", key, "-out", found], check=True, capture_output=True)
    both.write_text(key.read_text() + found.read_text())
    return both
