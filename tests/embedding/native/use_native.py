"""Uses the module of this project: native threads work while Python goes on computing."""

import threading

import native


def check(producers: int, each: int, close_after: int = 0) -> dict[str, int]:
    """Each mail is accepted or refused, and what was accepted is run or dropped: once, and in order."""
    counts: dict[str, int] = native.count(producers, each, close_after)
    assert counts["accepted"] + counts["refused"] == producers * each, counts
    assert counts["ran"] + counts["dropped"] == counts["accepted"], counts
    assert counts["out_of_order"] == 0, counts
    return counts


for producers in (1, 2, 8):
    counts = check(producers, 20_000)
    assert counts["ran"] == producers * 20_000, counts
    # Closed in mid-stream: what is left is dropped, and what comes then is refused.
    counts = check(producers, 20_000, close_after=1_000)
    assert counts["ran"] >= 1_000, counts

counted: list[dict[str, int]] = []
worker = threading.Thread(target=lambda: counted.append(check(4, 200_000)))
worker.start()
steps = 0
while worker.is_alive():
    steps += sum(range(100)) == 4950
worker.join()
assert counted[0]["ran"] == 800_000
assert steps > 0
print("native: done")
