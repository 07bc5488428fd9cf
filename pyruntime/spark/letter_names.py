"""The names of dead letters' files, and which files a task may remove. For the task's thread.

    part-{rows}-{partition}-{age}-{use}-{action}-{stage}-{attempt}-{random}.{format}

`rows` is the micro-batch and the operator, or the use of the operator outside of streams.
A letter that is there twice does less harm than one that is lost, so that a file is only removed where its
rows are known to be done again:

- by a later attempt of the same task. Not under speculation: of two attempts that run, Spark keeps the one
  that it hears of first, which Python cannot know.
- by the replay of its micro-batch. All that belongs to one run of a micro-batch has the same age, also where
  the function is used several times in it: uses never remove one another's.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable

from pyspark import TaskContext

from pillarbox.spark.dead_letter import LetterBox

MOST_RUNS = 1000
"""Runs of queries that are remembered."""

_first_batches: dict[tuple[str, str], str] = {}
"""The first micro-batch that this process saw of each run of a query: the only one that may be a replay."""


class LetterName:
    """The name of the file of one run of the operator in one task attempt, and what it stands in for."""

    def __init__(self, box: LetterBox) -> None:
        context = TaskContext.get()
        partition = stage = attempt = 0
        local: Callable[[str], str | None] = dict[str, str]().get
        if context is not None:
            partition, stage, attempt = context.partitionId(), context.stageId(), context.attemptNumber()
            local = context.getLocalProperty
        query, batch = local("sql.streaming.queryId"), local("streaming.sql.batchId")
        rows = box.run if query is None else f"{query}-{batch}-{box.operator}"
        # None for actions on an RDD, which have none of the session's settings either.
        action = local("spark.sql.execution.id")
        self._attempt = attempt
        self._alone = action is not None and local("spark.speculation") in (None, "false")
        self._age = _age_of(f"{local('spark.app.startTime')}.{local('spark.sql.execution.root.id')}")
        self._replays = False
        if query is not None and self._age is not None:
            self._replays = _may_replay(box.run, str(batch), local("spark.jobGroup.id"))
        self._stem = f"part-{rows}-{partition:05d}-"
        age = "x" if self._age is None else "{}.{}".format(*self._age)
        self._task = f"{self._stem}{age}-{box.run}-{action}-{stage}-"
        self.name = f"{self._task}{attempt}-{uuid.uuid4().hex[:8]}.{box.dead_letter.format}"

    @property
    def may_replace(self) -> bool:
        """Whether there may be files that this one stands in for."""
        return self._replays or (self._alone and self._attempt > 0)

    def replaces(self, name: str) -> bool:
        """Whether the file `name`, hidden by a `_` or not, is void once this one is there."""
        visible = name.removeprefix("_")
        if visible.startswith(self._task):
            attempt = visible.removeprefix(self._task).partition("-")[0]
            return self._alone and attempt.isdigit() and int(attempt) < self._attempt
        if not self._replays or not name.startswith(self._stem):
            return False
        age = _age_of(name.removeprefix(self._stem).partition("-")[0])
        return age is not None and self._age is not None and age < self._age


def _age_of(text: str) -> tuple[int, int] | None:
    """When the application began, and which of its actions a micro-batch was: later ones are greater."""
    start, _, action = text.partition(".")
    return (int(start), int(action)) if start.isdigit() and action.isdigit() else None


def _may_replay(use: str, batch: str, run: str | None) -> bool:
    """Whether a micro-batch may be a replay. run: the group of the query's jobs, which a restart changes."""
    if run is None:
        return True
    if len(_first_batches) >= MOST_RUNS:
        _first_batches.clear()
    return _first_batches.setdefault((use, run), batch) == batch
