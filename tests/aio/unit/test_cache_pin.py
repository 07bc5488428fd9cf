"""A pin in the folder of a cache is written again as long as a task of its execution runs."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from pillarbox.aio import ledger_scope
from pillarbox.aio.ledger_scope import CachePin
from pillarbox.ledger import Ledger, Scope
from pillarbox.ledger.errors import LedgerError
from pillarbox.ledger.ledger import CACHE_RUN
from pillarbox.ledger.maintenance import PIN_LIFE_S, PIN_PREFIX, join_execution, pinned_cuts

OWNER = "0123456789abcdef"


@pytest.mark.contract(convicts=["pin_renewed_once"])
def test_a_pin_is_written_again_until_it_is_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(str(tmp_path), uid="ask", cache=True)
    scope = Scope.of(CACHE_RUN, "ask")
    folder = ledger.folder(scope)
    pin = CachePin(ledger, scope, OWNER, 17)
    assert pin.join() == 17
    written: list[float] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        again = asyncio.Event()

        def joined(*given: Any) -> int:
            if len(written) == 1:
                # Upkeep that fails ends no job.
                written.append(0.0)
                raise LedgerError("there is no room")
            cut = join_execution(*given)
            written.append(folder.changed(PIN_PREFIX + OWNER))
            if len(written) == 3:
                loop.call_soon_threadsafe(again.set)
            return cut

        monkeypatch.setattr(ledger_scope, "join_execution", joined)
        folder.set_changed(PIN_PREFIX + OWNER, time.time() - PIN_LIFE_S)  # type: ignore[union-attr]
        pin.keep(loop, 0.01)
        await again.wait()
        pin.let_go()

    asyncio.run(run())
    assert time.time() - written[0] < PIN_LIFE_S / 2
    assert pinned_cuts(folder, time.time()) == {PIN_PREFIX + OWNER: 17}
