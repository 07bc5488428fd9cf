"""A pin in the folder of a cache is written again as long as a task of its execution runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pillarbox.aio import cache_pin
from pillarbox.aio.cache_pin import CachePin
from pillarbox.ledger import Ledger, Scope
from pillarbox.ledger.errors import LedgerError
from pillarbox.ledger.ledger import CACHE_RUN
from pillarbox.ledger.upkeep import PIN_LIFE_S, PIN_PREFIX, PIN_RENEWAL_S, join_execution, pinned_cuts
from pillarbox.testing import VirtualTimeLoop

OWNER = "0123456789abcdef"


class AtOnce(ThreadPoolExecutor):
    """Runs each function where it is submitted, so that the time of a virtual loop stands still for it."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(fn(*args, **kwargs))
        return done


@pytest.mark.contract(convicts=["pin_renewed_once"])
def test_a_pin_is_written_again_until_it_is_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(str(tmp_path), uid="ask", cache=True)
    scope = Scope.of(CACHE_RUN, "ask")
    folder = ledger.folder(scope)
    pin = CachePin(ledger, scope, OWNER, 17)
    assert pin.join() == 17
    written: list[float] = []
    loop = VirtualTimeLoop()

    def joined(*given: Any) -> int:
        if len(written) == 1:
            # Upkeep that fails ends no job.
            written.append(0.0)
            raise LedgerError("there is no room")
        cut = join_execution(*given)
        written.append(folder.changed(PIN_PREFIX + OWNER))
        return cut

    async def run() -> None:
        loop.set_default_executor(AtOnce())
        pin.keep(loop, PIN_RENEWAL_S)
        await asyncio.sleep(PIN_RENEWAL_S / 2)
        for times in range(1, 4):
            await asyncio.sleep(PIN_RENEWAL_S)
            assert len(written) == times
        pin.let_go()
        await asyncio.sleep(2 * PIN_RENEWAL_S)
        assert len(written) == 3

    monkeypatch.setattr(cache_pin, "join_execution", joined)
    folder.set_changed(PIN_PREFIX + OWNER, time.time() - PIN_LIFE_S)  # type: ignore[union-attr]
    try:
        loop.run_until_complete(run())
    finally:
        loop.close()
    assert time.time() - written[0] < PIN_LIFE_S / 2
    assert pinned_cuts(folder, time.time()) == {PIN_PREFIX + OWNER: 17}
