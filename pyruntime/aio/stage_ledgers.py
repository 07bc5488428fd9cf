"""The ledgers of a task's functions, opened before it runs. Blocks; for any thread but an event loop's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pillarbox.aio.function import configuration_of
from pillarbox.aio.kept_lengths import expect_kept
from pillarbox.aio.ledger_records import KeptForms
from pillarbox.aio.ledger_scope import budget_of_run, content_of, scope_of, time_of_run
from pillarbox.aio.ledger_session import LedgerSession
from pillarbox.aio.row_fields import as_fields
from pillarbox.aio.stages import Stage
from pillarbox.ledger import Ledger
from pillarbox.ledger.keys import ChainedIdentity, execution_id
from pillarbox.ledger.ledger import CACHE_RUN
from pillarbox.ledger.runs import own_job
from pillarbox.providers import BEGIN_EXECUTION, CACHE_PIN, provided


def open_ledgers(stages: Sequence[Stage]) -> list[Stage]:
    """The functions with what their ledgers have. Blocks. Raises LedgerError and OSError."""
    opened: list[Stage] = []
    try:
        _open_all(stages, opened)
    except BaseException:
        release_ledgers(opened)
        raise
    return opened


def release_ledgers(stages: Sequence[Stage]) -> None:
    """Let go of the ledgers of functions that no task calls after all. Blocks."""
    for stage in stages:
        if stage.ledger_session is not None:
            stage.ledger_session.release()


def _open_all(stages: Sequence[Stage], opened: list[Stage]) -> None:
    for position, stage in enumerate(stages):
        ledger = stage.options.ledger
        run = None if ledger is None else ledger.run
        options = budget_of_run(time_of_run(stage.options, run), run)
        ledger_session = None
        if ledger is not None:
            execution = execution_id()
            more: dict[str, Any] = {"identify": ChainedIdentity(ledger.inputs) if position else None}
            if ledger.cache is not None:
                more = _cached(stage.fn, ledger, execution.hex())
            ledger_session = LedgerSession(
                options,
                str(ledger.run_name),
                execution=execution,
                alone=True,
                job=own_job(ledger, execution.hex()),
                forms=KeptForms(None if position == len(stages) - 1 else as_fields),
                **more,
            )
            if opened and opened[0].ledger_session is not None:
                ledger_session.follow(opened[0].ledger_session)
            expect_kept(stage.fn, ledger_session)
        opened.append(stage._replace(options=options, ledger_session=ledger_session))


def _cached(fn: Callable[..., Any], ledger: Ledger, owner: str) -> dict[str, Any]:
    """The further arguments of a session with a cache. Blocks. Raises LedgerError and OSError."""
    config = {"shape": None, "zone": None, "client": configuration_of(fn)}
    scope = scope_of(ledger, CACHE_RUN, config=config)
    cut = provided(BEGIN_EXECUTION, "cache")(ledger, scope, owner)
    return {
        "config": config,
        "cut": cut,
        "identify": content_of(ledger, fn),
        "pin": provided(CACHE_PIN, "cache")(ledger, scope, owner, cut),
    }
