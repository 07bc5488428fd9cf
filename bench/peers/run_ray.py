"""Ray Data: `map` with an async callable class, in one actor. Run in its own environment.

All rows are one block: at the end of each block it waits for all calls.
"""

from __future__ import annotations

import os
from importlib.metadata import version
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import ray
from ray.data._internal.planner import plan_udf_map_op

from bench.peers.jobs import Job, call_for
from bench.peers.serve import Collect, serve


def run(job: Job) -> Collect:
    """A column of answers beside the rows."""
    # What RAY_DATA_DEFAULT_ASYNC_ROW_UDF_MAX_CONCURRENCY sets at import; there is no argument for it.
    plan_udf_map_op.DEFAULT_ASYNC_ROW_UDF_MAX_CONCURRENCY = job.capacity
    call = call_for(job)

    class Ask:
        async def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
            number = int(row["id"])
            return {"id": number, "answer": await call(number)}

    rows = ray.data.range(job.rows, override_num_blocks=1)
    done = rows.map(Ask, compute=ray.data.ActorPoolStrategy(size=1)).materialize()

    def collect() -> tuple[list[int], list[int]]:
        table = done.to_pandas()
        return table["id"].tolist(), table["answer"].tolist()

    return collect


if __name__ == "__main__":
    ray.init(
        address="local",
        include_dashboard=False,
        log_to_driver=False,
        num_cpus=2,
        _node_ip_address="127.0.0.1",
    )
    serve(run, f"Ray {version('ray')}")
