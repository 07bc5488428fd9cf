"""Exporters of totals, for Prometheus and OpenTelemetry, and the server that Prometheus asks.

For any thread. Everything is read when it is asked for; between two scrapes nothing runs.
"""

# Both exporters are collectors: they read totals that are kept anyway, instead of counting beside the
# operator in instruments of their libraries. Counting there would take a lock for each row, and count twice
# what tasks of Spark do again. What a collector costs is that OpenTelemetry has no histogram that is
# observed: see below.
#
# prometheus_client answers requests itself (`make_wsgi_app`). Its own server would listen on all interfaces
# for whoever asks, wait for clients that say nothing, and start a thread for each: so its application stands
# behind a guard here, in the standard library's server, with a bound on clients and on the time of each.

from __future__ import annotations

import dataclasses
import hmac
import ipaddress
import logging
import re
import socket
import socketserver
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from pillarbox.aio.observe.series import read_totals
from pillarbox.aio.observe.totals import INSTRUMENTS, Instrument, Totals, instruments, merge
from pillarbox.mailbox.metrics import LatencySnapshot
from pillarbox.validate import check_positive_int

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

log = logging.getLogger("pillarbox")

OTHER = "(other)"
"""The label of all that came when there were labels enough."""

MAX_KEYS = 50
"""Classes of errors that have a label of their own."""

MAX_LABEL_SETS = 100
"""Sets of labels of one exporter, by default."""

REQUEST_TIMEOUT_S = 10.0
"""Seconds that a client may take to send its request and to read the answer."""

MAX_CLIENTS = 16
"""Clients that are answered at a time; more are turned away."""

PROMETHEUS_BOUNDS_S = tuple((steps << power) * 1e-9 for power in range(16, 40) for steps in (2, 3))
"""Two bounds in each power of two, from 0.13 ms to 27 minutes; all of them bounds of the histogram's own
buckets, so that counts are exact."""

OPEN_TELEMETRY_UNITS = {"seconds": "s", "bytes": "By", "": "1"}

Labels = dict[str, str]


class _Exported:
    """One observed source, its labels, and what has been read of it."""

    def __init__(self, source: Any, labels: Labels) -> None:
        self.source = source
        self.labels = labels
        # Rows of a task that runs again are counted from 0 again; a counter may not go back.
        self.rows: dict[tuple[str, str], int] = {}
        self.keys: dict[str, set[str]] = {name: set() for name in instruments("table")}

    def steady(self, task: str, totals: Totals) -> Totals:
        """The totals with rows that never go back, and with a bound on the keys of tables."""
        changed: dict[str, Any] = {}
        for name in instruments("row"):
            changed[name] = self.rows[task, name] = max(self.rows.get((task, name), 0), getattr(totals, name))
        for name, known in self.keys.items():
            table: dict[str, Any] = {}
            for key, value in getattr(totals, name).items():
                if len(known) < MAX_KEYS:
                    known.add(key)
                label = key if key in known else OTHER
                table[label] = table.get(label, 0) + value
            changed[name] = table
        return dataclasses.replace(totals, **changed)


class _Exporter:
    """The sources of one exporter, each with its labels, bounded in number."""

    _prefix_pattern: str
    _prefix_rule: str

    def __init__(self, prefix: str, per_task: bool, max_label_sets: int) -> None:
        if not isinstance(prefix, str) or not re.fullmatch(self._prefix_pattern, prefix):
            raise ValueError(f"prefix={prefix!r}: must be {self._prefix_rule}")
        check_positive_int("max_label_sets", max_label_sets)
        self._prefix = prefix
        self._label_names = ["query", "operator", "task"] if per_task else ["query", "operator"]
        self._max_label_sets = max_label_sets
        self._lock = threading.Lock()
        self._sources: dict[int, _Exported] = {}
        self._tasks: set[tuple[int, str]] = set()

    def add(self, source: Any, *, query: str = "", operator: str = "") -> None:
        """Observe `source`: a `Progress`, a `Watch`, the iterator of `async_map`, a `SourceCoordinator`.

        query, operator: its labels; no two sources may have the same. Raises TypeError or ValueError for a
        bad argument, and where there are `max_label_sets` sources already.
        """
        read_totals(source)
        for name, value in (("query", query), ("operator", operator)):
            if not isinstance(value, str):
                raise TypeError(f"{name}={value!r}: must be a text")
        labels = {"query": query, "operator": operator}
        with self._lock:
            if id(source) in self._sources:
                known = self._sources[id(source)].labels
                raise ValueError(f"source: is observed already, with the labels {known}")
            if any(each.labels == labels for each in self._sources.values()):
                raise ValueError(f"query={query!r}, operator={operator!r}: is observed already")
            if len(self._sources) >= self._max_label_sets:
                raise ValueError(
                    f"{self._max_label_sets} sources are observed already: remove one, or allow more by "
                    "`max_label_sets`"
                )
            self._sources[id(source)] = _Exported(source, labels)

    def remove(self, source: Any) -> None:
        """Observe `source` no more: its metrics vanish. Without effect for one that is not observed."""
        with self._lock:
            self._sources.pop(id(source), None)
            self._tasks = {task for task in self._tasks if task[0] != id(source)}

    def _read(self) -> list[tuple[Labels, Totals]]:
        """The labels and totals of all sources, as they are now."""
        with self._lock:
            return [
                ({**each.labels, "task": task}, each.steady(task, totals))
                for number, each in self._sources.items()
                for task, totals in self._tasks_of(number, each.source)
            ]

    def _tasks_of(self, number: int, source: Any) -> Iterable[tuple[str, Totals]]:
        partitions = getattr(source, "partitions", None) if "task" in self._label_names else None
        if partitions is None:
            return [("", read_totals(source))]
        parts: dict[str, list[Totals]] = {}
        for partition, totals in sorted(partitions.items()):
            task = str(partition) if partition >= 0 else OTHER
            if len(self._tasks) < self._max_label_sets:
                self._tasks.add((number, task))
            parts.setdefault(task if (number, task) in self._tasks else OTHER, []).append(totals)
        return [(task, merge(some)) for task, some in parts.items()]


class PrometheusExporter(_Exporter):
    """Counters, gauges and histograms of what is observed, as a collector of `prometheus_client`.

        exporter = PrometheusExporter()
        exporter.add(progress, query="enrich")
        with exporter.serve(9464):
            ...

    registry: where the collector is registered; None for a registry of its own.
    prefix: of all names; letters, digits and underscores.
    per_task: one set of metrics a partition, with the label `task`.
    max_label_sets: sets of labels, at most; what comes later is added up under "(other)".

    Counts of rows never go back: a task that runs again counts again only from where it was. The sums of the
    histograms are estimates from the buckets, off by a sixteenth at most; the counts are exact.

    Needs the package prometheus_client (extra `prometheus`): raises ImportError without. Raises TypeError
    or ValueError for a bad argument, and where the registry has metrics of these names: one exporter is
    enough for all sources, and two need a prefix each.
    """

    _prefix_pattern = "[a-zA-Z_][a-zA-Z0-9_]*"
    _prefix_rule = "letters, digits and underscores, no digit first"

    def __init__(
        self,
        registry: CollectorRegistry | None = None,
        prefix: str = "pillarbox",
        *,
        per_task: bool = False,
        max_label_sets: int = MAX_LABEL_SETS,
    ) -> None:
        try:
            from prometheus_client import CollectorRegistry
        except ImportError:
            raise ImportError(
                "PrometheusExporter needs the package prometheus_client (pip install 'pillarbox[prometheus]')"
            ) from None
        if registry is not None and not isinstance(registry, CollectorRegistry):
            raise TypeError(f"registry={registry!r}: must be a prometheus_client.CollectorRegistry or None")
        super().__init__(prefix, per_task, max_label_sets)
        self._registry: Any = CollectorRegistry() if registry is None else registry
        self._registry.register(self)

    def close(self) -> None:
        """Take the collector out of its registry. Idempotent."""
        registry, self._registry = self._registry, None
        if registry is not None:
            registry.unregister(self)

    def serve(self, port: int, host: str = "127.0.0.1", *, token: str | None = None) -> MetricsServer:
        """Answer `GET /metrics` over HTTP, until the server that is given back is closed.

        port: 0 for any that is free; the server's `port` says which. host: an address of this machine's; one
        beyond loopback needs a `token`, which Prometheus then sends as `Authorization: Bearer`. The traffic
        is not encrypted: beyond loopback, put a proxy with TLS before it, or stay in a network you trust.

        Raises ValueError for a host beyond loopback without a token, OSError where the port is taken.
        """
        from prometheus_client import make_wsgi_app

        return MetricsServer(make_wsgi_app(self._registry), port, host, token)

    def describe(self) -> Iterator[Metric]:
        """All metrics without values: a registry refuses names that it has. Called by the registry."""
        return self._metrics([])

    def collect(self) -> Iterator[Metric]:
        """All metrics as they are now. Called by the registry, in any thread."""
        return self._metrics(self._read())

    def _metrics(self, read: list[tuple[Labels, Totals]]) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        labelled = [([labels[name] for name in self._label_names], totals) for labels, totals in read]
        for field, each in INSTRUMENTS.items():
            if each.export is None:
                continue
            name = "_".join(part for part in (self._prefix, each.export or field, each.unit) if part)
            if each.kind == "histogram":
                histogram = HistogramMetricFamily(name, each.help, labels=self._label_names)
                for labels, totals in labelled:
                    snapshot: LatencySnapshot = getattr(totals, field)
                    histogram.add_metric(labels, _cumulative(snapshot), snapshot.total)
                yield histogram
                continue
            of_kind = GaugeMetricFamily if each.kind == "level" else CounterMetricFamily
            plain = of_kind(
                name, each.help, labels=[*self._label_names, *([each.label] if each.label else [])]
            )
            for labels, totals in labelled:
                for key, value in _values(each, getattr(totals, field)):
                    plain.add_metric([*labels, key] if each.label else labels, value)
            yield plain


def _values(instrument: Instrument, value: Any) -> Iterable[tuple[str, float]]:
    return value.items() if instrument.kind == "table" else [("", value)]


def _cumulative(snapshot: LatencySnapshot) -> list[tuple[str, float]]:
    """The buckets in Prometheus' form: each counts what is at most its bound."""
    found: list[tuple[str, float]] = []
    count, rest = 0, [*reversed(snapshot.buckets)]
    for bound in PROMETHEUS_BOUNDS_S:
        while rest and rest[-1][0] <= bound:
            count += rest.pop()[1]
        found.append((repr(bound), count))
    return [*found, ("+Inf", snapshot.measurements)]


class OpenTelemetryExporter(_Exporter):
    """Observable counters and gauges of what is observed.

        exporter = OpenTelemetryExporter(provider)
        exporter.add(progress, query="enrich")

    provider: a MeterProvider; None for the global one. prefix: of all names. per_task, max_label_sets: as for
        `PrometheusExporter`.

    The API has no histogram that is observed, so durations are gauges: the quantiles 0.5, 0.95, 0.99 and 1,
    as the attribute `quantile`, beside counters of their number and their sum. Quantiles of several
    exporters do not add up; those of `PrometheusExporter` come from buckets, which do.

    Needs the package opentelemetry-api (extra `opentelemetry`): raises ImportError without. Raises TypeError
    or ValueError for a bad argument.
    """

    # As OpenTelemetry allows in the name of an instrument, with room for ours.
    _prefix_pattern = "[a-zA-Z][a-zA-Z0-9_.-]{0,99}"
    _prefix_rule = "up to 100 letters, digits and _.-, a letter first"

    def __init__(
        self,
        provider: MeterProvider | None = None,
        prefix: str = "pillarbox",
        *,
        per_task: bool = False,
        max_label_sets: int = MAX_LABEL_SETS,
    ) -> None:
        try:
            from opentelemetry.metrics import MeterProvider, get_meter
        except ImportError:
            raise ImportError(
                "OpenTelemetryExporter needs the package opentelemetry-api "
                "(pip install 'pillarbox[opentelemetry]')"
            ) from None
        if provider is not None and not isinstance(provider, MeterProvider):
            raise TypeError(f"provider={provider!r}: must be an opentelemetry MeterProvider or None")
        super().__init__(prefix, per_task, max_label_sets)
        self._closed = False
        meter = get_meter("pillarbox") if provider is None else provider.get_meter("pillarbox")
        for field, each in INSTRUMENTS.items():
            if each.export is None:
                continue
            name, unit = f"{prefix}.{each.export or field}", OPEN_TELEMETRY_UNITS[each.unit]
            make = meter.create_observable_counter
            if each.kind == "histogram":
                # The API has no histogram that is observed.
                make(f"{name}.count", [self._callback(field, _number)], "1", f"{each.help}: how many")
                make(f"{name}.sum", [self._callback(field, _sum)], unit, f"{each.help}: in all, estimated")
                quantiles = [self._callback(field, _quantiles)]
                meter.create_observable_gauge(name, quantiles, unit, f"{each.help}: quantiles")
            elif each.kind == "level":
                meter.create_observable_gauge(name, [self._callback(field)], unit, each.help)
            else:
                make(name, [self._callback(field)], unit, each.help)

    def close(self) -> None:
        """Give no more values: instruments themselves cannot be taken out of a meter. Idempotent."""
        self._closed = True

    def _callback(
        self, field: str, values: Callable[[Any], Iterable[tuple[str, float]]] | None = None
    ) -> Callable[[CallbackOptions], Iterable[Observation]]:
        from opentelemetry.metrics import Observation

        instrument = INSTRUMENTS[field]
        attribute = instrument.label or "quantile"

        def observe(options: CallbackOptions) -> Iterable[Observation]:
            if self._closed:
                return
            for labels, totals in self._read():
                value = getattr(totals, field)
                for key, one in _values(instrument, value) if values is None else values(value):
                    given = {**labels, attribute: key}
                    yield Observation(one, {name: label for name, label in given.items() if label})

        return observe


def _number(snapshot: LatencySnapshot) -> Iterable[tuple[str, float]]:
    return [("", snapshot.measurements)]


def _sum(snapshot: LatencySnapshot) -> Iterable[tuple[str, float]]:
    return [("", snapshot.total)]


def _quantiles(snapshot: LatencySnapshot) -> Iterable[tuple[str, float]]:
    if not snapshot.measurements:
        return []
    return [("0.5", snapshot.p50), ("0.95", snapshot.p95), ("0.99", snapshot.p99), ("1", snapshot.max)]


class MetricsServer(socketserver.ThreadingMixIn, WSGIServer):
    """Serves a WSGI application at `/metrics` from its making on, until it is closed.

    On loopback for everybody, beyond it only for those who know the token. Made and closed by any one thread;
    each request is answered in a thread of its own. Raises TypeError or ValueError for bad arguments, OSError
    where the address cannot be had.
    """

    daemon_threads = True
    # A client that sends nothing must not hold up `close`.
    block_on_close = False

    def __init__(
        self,
        application: Callable[..., Any],
        port: int,
        host: str,
        token: str | None,
        *,
        request_timeout: float = REQUEST_TIMEOUT_S,
        max_clients: int = MAX_CLIENTS,
    ) -> None:
        if isinstance(port, bool) or not isinstance(port, int):
            raise TypeError(f"port={port!r}: must be an int, 0 for any free one")
        if not 0 <= port <= 65535:
            raise ValueError(f"port={port!r}: must be 0 to 65535")
        if token is not None and (not isinstance(token, str) or not token or not token.isascii()):
            raise ValueError("token: must be a text in ASCII that is not empty, or None")
        if token is None and not _is_loopback(host):
            raise ValueError(
                f"host={host!r}: is not on loopback, so whoever asks must know a secret: give a token"
            )
        if ":" in host:
            self.address_family = socket.AF_INET6
        self._token = token
        self._request_timeout = request_timeout
        self._places = threading.Semaphore(max_clients)
        super().__init__((host, port), _QuietHandler)
        self._application = application
        self.set_app(self._guard)
        self._thread = threading.Thread(
            target=self.serve_forever, args=(0.1,), name="pillarbox-metrics", daemon=True
        )
        self._thread.start()

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return self.server_port

    @property
    def url(self) -> str:
        """The address at which Prometheus finds the metrics."""
        host = f"[{self.server_name}]" if ":" in self.server_name else self.server_name
        return f"http://{host}:{self.port}/metrics"

    def close(self) -> None:
        """Stop listening and wait for the server's thread. Idempotent."""
        self.shutdown()
        self._thread.join()
        self.server_close()

    def __exit__(self, *error: object) -> None:
        self.close()

    def _guard(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        given = str(environ.get("HTTP_AUTHORIZATION", "")).encode("latin-1", "replace")
        if self._token and not hmac.compare_digest(given, f"Bearer {self._token}".encode()):
            refused = "401 Unauthorized", [("WWW-Authenticate", "Bearer"), ("Content-Length", "0")]
        elif environ.get("PATH_INFO") != "/metrics":
            refused = "404 Not Found", [("Content-Length", "0")]
        else:
            answer: Iterable[bytes] = self._application(environ, start_response)
            return answer
        start_response(*refused)
        return [b""]

    def server_bind(self) -> None:
        """Listen, without the look-up of the host's name, which may wait for a name server."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Return False for a client for which there is no room."""
        return self._places.acquire(blocking=False)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer a client, until its time is over."""
        # A time-out of the socket would begin anew with each byte.
        deadline = threading.Timer(self._request_timeout, _hang_up, (request,))
        deadline.daemon = True
        deadline.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            deadline.cancel()
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log it: whoever can connect could fill standard error otherwise."""
        log.debug("a request for metrics failed", exc_info=True)


def _is_loopback(host: str) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def _hang_up(request: socket.socket) -> None:
    with suppress(OSError):
        request.shutdown(socket.SHUT_RDWR)


class _QuietHandler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: a scrape every few seconds is not news."""
