"""How a Kafka is reached: its addresses and properties, whose secrets are never shown. Any thread."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from typing import Any

MISSING = 'Kafka needs the package confluent-kafka, here and where tasks run: pip install "pillarbox[kafka]"'
ANSWER = 30.0
"""Seconds for a broker to answer what is asked of it, besides reading."""
SECRET = re.compile(r"password|secret|token|credential|jaas|\.pem$|\.key$|oauthbearer\.config|userinfo")
# Properties that the source settles itself, and the option that stands for them, if there is one.
SETTLED = {
    "group.id": "group_id",
    "isolation.level": "isolation",
    "auto.offset.reset": "on_data_loss",
    "enable.auto.commit": None,
    "enable.auto.offset.store": None,
    "enable.partition.eof": None,
    "partition.assignment.strategy": None,
    "group.instance.id": None,
}


class KafkaClients:
    """The properties of clients, and what makes clients of them. A value; pickles with its secrets.

    properties: those of librdkafka. Needs `bootstrap.servers`. Raises TypeError or ValueError for properties
    that cannot be; it names them and shows no secret.
    """

    def __init__(self, properties: Mapping[str, Any]) -> None:
        if not isinstance(properties, Mapping):
            raise TypeError(f"properties: must be a mapping, not {type(properties).__name__}")
        self._properties = {str(name): value for name, value in properties.items()}
        for name, option in SETTLED.items():
            if name in self._properties:
                instead = f"give {option!r}" if option else "the source settles it"
                raise ValueError(f"property {name!r} cannot be given: {instead}")
        servers = self._properties.get("bootstrap.servers")
        if not isinstance(servers, str) or not servers.strip():
            raise ValueError(f"property 'bootstrap.servers' is {servers!r}: must be host:port, by commas")
        self.servers = servers

    def __repr__(self) -> str:
        return f"Kafka at {self.servers}"

    def hide(self, text: str) -> str:
        """The text without the secrets that it might have in it."""
        for name, value in self._properties.items():
            if isinstance(value, str) and value and SECRET.search(name):
                text = text.replace(value, "***")
        return text

    def admin(self) -> tuple[Any, Complaints]:
        """A client that asks and orders, thread-safe, and what goes wrong with it."""
        complaints = Complaints(self)
        return self._made(package().admin.AdminClient, {}, {}, complaints), complaints

    def consumer(self, settings: Mapping[str, Any]) -> tuple[Any, Complaints]:
        """A client that reads, for one thread, and what goes wrong with it. `settings` can be overridden."""
        complaints = Complaints(self)
        fixed = {
            # A consumer must have a group; it never joins it.
            "group.id": "pillarbox",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
        }
        return self._made(package().Consumer, settings, fixed, complaints), complaints

    def failed(self, doing: str, error: BaseException, complaints: Complaints | None = None) -> Exception:
        """What to raise for what a client has raised: it says where, at what, and what else went wrong."""
        why = complaints.last if complaints is not None else None
        text = f"{self!r}: {doing}: {self.hide(str(error))}" + (f" ({why})" if why else "")
        return ConnectionError(text)

    def _made(
        self, kind: Any, defaults: Mapping[str, Any], fixed: Mapping[str, Any], complaints: Complaints
    ) -> Any:
        # The client would write to stderr what is in the errors already.
        quiet = {"log_level": 0, "error_cb": complaints.take}
        try:
            return kind({**quiet, **defaults, **self._properties, **fixed})
        except Exception as error:
            raise ValueError(f"{self!r}: these properties cannot be: {self.hide(str(error))}") from None


class Complaints:
    """What went wrong between a client and its brokers; the client goes on and tries again. Thread-safe."""

    def __init__(self, clients: KafkaClients) -> None:
        self._clients = clients
        self._lock = threading.Lock()
        self._last: str | None = None

    def take(self, error: Any) -> None:
        """A client complains. On whichever thread serves it."""
        text = self._clients.hide(str(error.str()))
        with self._lock:
            # That all are down says less than why one is.
            if self._last is None or error.code() != error._ALL_BROKERS_DOWN:
                self._last = text

    @property
    def last(self) -> str | None:
        """The last complaint."""
        with self._lock:
            return self._last


def package() -> Any:
    """The package `confluent_kafka`. Any thread. Raises ImportError, which says what to install."""
    try:
        import confluent_kafka
        import confluent_kafka.admin
    except ImportError:
        raise ImportError(MISSING) from None
    return confluent_kafka
