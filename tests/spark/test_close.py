"""The end of a job, whatever ends it: no call goes on, no thread, task, timer or socket is left behind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

RunScript = Callable[..., list[str]]

# The service holds each connection open and never answers, so that what still calls is seen there. A worker
# that lives on is looked into by a function that runs in it.
SCRIPT = """
import asyncio, os, pathlib, socket, sys, threading
import pyarrow as pa
from pillarbox.spark import async_map
tmp = pathlib.Path(sys.argv[1])

class Service:
    def __init__(self):
        self.open = self.seen = 0
        self.changed = threading.Condition()
        self.socket = socket.create_server(("127.0.0.1", 0), backlog=200)
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            connection, _ = self.socket.accept()
            threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def serve(self, connection):
        self.count(1)
        with connection:
            try:
                connection.recv(1)
            except OSError:
                pass
        self.count(-1)

    def count(self, step):
        with self.changed:
            self.open += step
            self.seen = max(self.seen, self.open)
            self.changed.notify_all()

    def wait_for(self, condition):
        with self.changed:
            return self.changed.wait_for(lambda: condition(self))

service = Service()
port = service.socket.getsockname()[1]

async def call(row):
    if row.id < 10 or row.id >= 1_000_000:
        return row.id
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        await asyncio.Event().wait()
    finally:
        writer.close()

def look(batches):
    # Runs in a worker.
    import gc
    from pillarbox.spark.worker import worker
    for batch in batches:
        loop = worker().loop_thread.loop
        async def others():
            return [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        tasks = len(worker().loop_thread.submit(others()).result(10))
        names = sorted(thread.name for thread in threading.enumerate())
        gc.collect()
        timers = sum(type(each).__name__ == "TimerHandle" and not each.cancelled()
            for each in gc.get_objects())
        sockets = sum("socket" in os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
            if os.path.exists(f"/proc/self/fd/{fd}") or os.path.islink(f"/proc/self/fd/{fd}"))
        yield pa.RecordBatch.from_pydict({"left": [str((names, tasks, timers, sockets))]})

def workers():
    return {row.left for row in spark.range(0, 4, 1, 4).mapInArrow(look, "left string").collect()}

def out(df):
    return async_map(df, call, schema="n long", capacity=20, timeout=600.0)

# What a worker has that has only begun its loop; what is looked at is the same in each.
async_map(spark.range(0, 8, 1, 4), lambda row: row.id, schema="n long").collect()
before = workers()
print(len(before), "pillarbox-loop" in str(before))

many = spark.range(0, 10_000, 1, 2)
# Enough that end at once to fill the buffers between a worker and Spark; those that follow never end.
few = spark.range(0, 30_000, 1, 1).selectExpr("if(id < 20000, id + 1000000, id) as id")
stream = (spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1000)
    .option("numPartitions", 2).load().selectExpr("value as id"))

def end():
    print(out(spark.range(1_000_000, 1_010_000, 1, 2)).count())

def limit():
    print(len(out(few).limit(5).collect()))

def downstream():
    try:
        out(few).selectExpr("if(n >= 0, raise_error('downstream'), n) as n").collect()
    except Exception as error:
        print("downstream" in str(error))

def cancel():
    def run():
        spark.sparkContext.setJobGroup("job", "a job that never ends", interruptOnCancel=True)
        try:
            out(many).collect()
        except Exception as error:
            print("cancelled" in str(error).lower())
    thread = threading.Thread(target=run)
    thread.start()
    assert service.wait_for(lambda service: service.open == 40)
    spark.sparkContext.cancelJobGroup("job")
    thread.join(60)

def stop():
    query = out(stream).writeStream.format("noop").option("checkpointLocation", str(tmp / "c")).start()
    assert service.wait_for(lambda service: service.open == 40)
    query.stop()
    print(query.isActive)

for how in (end, limit, downstream, cancel, stop):
    how()
    print(service.wait_for(lambda service: service.open == 0))
    after = workers()
    print(after == before or (how.__name__, after, before))
"""


@pytest.mark.slow
@pytest.mark.contract
def test_nothing_is_left_in_a_worker_however_its_job_ends(run_script: RunScript, tmp_path: Path) -> None:
    lines = run_script(SCRIPT, str(tmp_path), alone=True)
    assert lines[0] == "1 True"
    ends = ["10000", "5", "True", "True", "False"]
    assert lines[1:] == [line for end in ends for line in (end, "True", "True")]
