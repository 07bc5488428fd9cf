"""The channel between a source's coordinator and its readers: `SourceChannel`, a server of services."""

from __future__ import annotations

from pillarbox.rpc.server import ServiceHost


class SourceChannel(ServiceHost):
    """Listens for the readers of sources. Any number of services, each with a name. Use it in a `with` block.

    host: where to listen. The default is this machine alone; "0.0.0.0" is for readers on others. Whoever
        connects must prove that he knows the secret, which travels in a `RpcHandle`.
    port: 0 for any that is free.
    advertise: the name or address by which readers reach this machine. None for `host`, or, where that is
        every address, for this machine's name.
    grace: seconds after its connection has broken in which a client may come back. Then it counts as dead,
        and is refused if it comes all the same.
    certificate: a file in PEM with a private key and its certificate, for TLS: readers, who learn of it from
        the handle, take no other. None: nothing is encrypted.

    Raises TypeError or ValueError for a bad argument; `start` raises OSError where it cannot listen or read
    the certificate.
    """
