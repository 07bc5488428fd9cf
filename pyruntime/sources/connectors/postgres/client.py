"""How a PostgreSQL is reached: its address, whose password is never shown, and connections. Any thread."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pillarbox.sources.connectors.options import password_from

MISSING = 'PostgreSQL needs the package psycopg, here and where tasks run: pip install "pillarbox[postgres]"'
CONNECT = 10
"""Seconds for the server to answer a connection, where the address does not say."""

# Values are read as text, so that text has to have one form.
SESSION = """
set timezone = 'UTC'; set datestyle = 'ISO'; set extra_float_digits = 1; set bytea_output = 'hex';
set idle_in_transaction_session_timeout = 0
"""


def psycopg() -> Any:
    """The client. Raises ImportError that names the extra."""
    try:
        import psycopg
    except ImportError:
        raise ImportError(MISSING) from None
    return psycopg


def begin_reading(connection: Any, snapshot: str | None = None) -> None:
    """Begin a transaction that sees one state: that of `snapshot`, which another one has exported."""
    connection.execute("begin isolation level repeatable read, read only")
    if snapshot is not None:
        literal = psycopg().sql.Literal(snapshot)
        connection.execute(psycopg().sql.SQL("set transaction snapshot {}").format(literal))


class PostgresAddress:
    """Where a database is. A value; pickles with its password, and its text has none.

    conninfo: postgresql://user@host:port/database, or "host=... dbname=..."; what it does not say is taken
    from the environment and the password file, as libpq does. password_env: the name of an environment
    variable, read now, that holds the password. Raises TypeError, ValueError, ImportError.
    """

    def __init__(self, conninfo: str, password_env: str | None = None) -> None:
        if not isinstance(conninfo, str):
            raise TypeError(f"conninfo: must be a str, not {type(conninfo).__name__}")
        client = psycopg()
        try:
            self._parameters = client.conninfo.conninfo_to_dict(conninfo)
        except client.ProgrammingError:
            # Its text has parts of what was given.
            raise ValueError(
                "conninfo: must be postgresql://user@host:port/database, with / ? # @ : in a user or "
                "password written as %2F %3F %23 %40 %3A, or 'host=... port=... dbname=... user=...'"
            ) from None
        if password_env is not None:
            self._parameters["password"] = password_from(password_env)

    def __repr__(self) -> str:
        found = {name: self._parameters.get(name, "") for name in ("host", "port", "dbname")}
        return f"PostgreSQL at {found['host']}:{found['port'] or 5432}/{found['dbname']}"

    def hide(self, error: BaseException) -> str:
        """The text of an error, in one line, without the password that it might have in it."""
        text = " ".join(str(error).split()) or type(error).__name__
        for name in ("password", "sslpassword"):
            if self._parameters.get(name):
                text = text.replace(str(self._parameters[name]), "***")
        return text

    def connect(self) -> Any:
        """A connection that commits each statement. Raises ConnectionError."""
        given = {"connect_timeout": CONNECT, "application_name": "pillarbox", **self._parameters}
        given |= {"autocommit": True, "client_encoding": "UTF8"}
        with self.asking("connecting"):
            connection = psycopg().connect(**given)
            connection.execute(SESSION)
            return connection

    @contextmanager
    def asking(self, doing: str) -> Iterator[None]:
        """Raise ConnectionError or RuntimeError, which say where and at what, for what the client raises."""
        client = psycopg()
        try:
            yield
        except (client.errors.ObjectNotInPrerequisiteState, client.errors.ObjectInUse) as error:
            raise RuntimeError(f"{self!r}: {doing}: {self.hide(error)}") from None
        except (client.OperationalError, client.InterfaceError, OSError) as error:
            if isinstance(error, ConnectionError):
                raise
            raise ConnectionError(f"{self!r}: {doing}: {self.hide(error)}") from None
        except client.Error as error:
            raise RuntimeError(f"{self!r}: {doing}: {self.hide(error)}") from None
