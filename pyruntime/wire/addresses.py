"""Where a server listens, and by which names others reach it. Any thread."""

from __future__ import annotations

import contextlib
import ipaddress
import socket


def check_address(host: str, port: int, advertise: str | None) -> None:
    """Raises TypeError or ValueError, which names the argument, for what is no place to listen."""
    for name, text in (("host", host), ("advertise", advertise)):
        if (text is not None or name == "host") and not (isinstance(text, str) and text):
            raise TypeError(f"{name}={text!r}: must be the name or the address of a machine")
    if isinstance(port, bool) or not isinstance(port, int):
        raise TypeError(f"port={port!r}: must be an int, not {type(port).__name__}")
    if not 0 <= port < 65536:
        raise ValueError(f"port={port!r}: must be from 0 (any) to 65535")


def ways_to(host: str, advertise: str | None) -> list[str]:
    """The names or addresses to try, in this order, for a server that listens on `host`."""
    if advertise is not None:
        return [advertise]
    with contextlib.suppress(ValueError):
        if ipaddress.ip_address(host).is_unspecified:
            return [socket.getfqdn(), socket.gethostname(), "127.0.0.1"]
    return [host]
