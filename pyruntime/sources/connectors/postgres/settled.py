"""Up to which value of a growing column no row can come any more: `Settled`. Confined to who has made it.

A transaction takes a value from a sequence, or the time, and commits later: perhaps after one that has
taken a greater one. Whoever reads up to the greatest value that is to be seen misses the smaller one for
ever.

So a value V that is seen is only a candidate. Afterwards it is looked who is about to write: those that
hold a lock on the table that a writer holds, which an INSERT takes before it evaluates its defaults and
keeps to the end of its transaction. When all of these have ended, every row up to V is either to be seen
or will never be. The idea is how CREATE INDEX CONCURRENTLY waits for those who do not know of it.

A time such as `now()` is that of the transaction's begin, before any lock. There all transactions that
run are waited for, by the locks on their virtual ids, which every transaction holds.
"""

from __future__ import annotations

from typing import Any

WRITERS = """
select virtualtransaction from pg_locks
where locktype = 'relation' and granted and pid is distinct from pg_backend_pid()
  and database = (select oid from pg_database where datname = current_database())
  and mode in ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
  and (relation = %(table)s or relation in (select relid from pg_partition_tree(%(table)s)))
"""
# A prepared transaction has no virtual id of its own.
ALL = """
select virtualtransaction from pg_locks
where locktype = 'virtualxid' and mode = 'ExclusiveLock' and granted and pid is distinct from pg_backend_pid()
union all
select '-1/' || transaction::text from pg_prepared_xacts where database = current_database()
"""
PREPARED = "-1/"


class Settled:
    """Finds the greatest value of `column` that is settled.

    ranges: the table. everybody: whether all transactions are waited for, not only the table's writers.
    """

    def __init__(self, ranges: Any, *, everybody: bool) -> None:
        self._greatest = ranges.greatest
        self._holders = ALL if everybody else WRITERS
        self._table = ranges.table.oid
        self._candidate: str | None = None
        self._waited_for: set[str] = set()
        self._settled: str | None = None

    def look(self, connection: Any) -> str | None:
        """The greatest value that is known to be settled; None if none is. Asks the server; does not wait.

        The connection must commit each statement: what is read next must see what has been committed by now.
        """
        if self._candidate is None:
            # In this order: who holds nothing once the value was seen has committed, or takes a greater one.
            found = connection.execute(self._greatest).fetchone()[0]
            if found is None or found == self._settled:
                return self._settled
            self._candidate = found
            self._waited_for = self._running(connection)
        elif self._waited_for:
            running = self._running(connection)
            # One that was prepared meanwhile goes on under another name.
            prepared = {each for each in running if each.startswith(PREPARED)}
            self._waited_for = (self._waited_for & running) | prepared
        if not self._waited_for:
            self._settled, self._candidate = self._candidate, None
        return self._settled

    def _running(self, connection: Any) -> set[str]:
        return {row[0] for row in connection.execute(self._holders, {"table": self._table})}
