"""Objects that a ring around the core provides, by their names: the core imports no ring.

A name is `module:attribute`, as entry points are written. Any thread.
"""

# A function says by such a name how it becomes a column (`Chat.column_adapter`), so the core needs not know
# the client. The other names are the core's own, of what an option asks for: who leaves the option out never
# imports the ring, and loses nothing where it is not there.

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

BATCH_SCHEDULER = "pillarbox.aio.batches.batch_scheduler:BatchScheduler"
"""The scheduler of calls that have a batch of rows each."""
HEDGED_BATCH_SCHEDULER = "pillarbox.aio.batches.batch_hedging:HedgingBatchScheduler"
"""The same where slow calls are hedged."""
BATCH_RUNNER = "pillarbox.aio.batches.batch_runner:batch_runner"
"""A function that makes what runs such calls."""
COLLECTOR_RUNNER = "pillarbox.aio.collector_runner:collector_runner"
"""A function that makes what runs the calls of a function with a collector."""
OPERATOR_SNAPSHOTS = "pillarbox.aio.operator_snapshots:OperatorSnapshots"
"""A class that takes the state of an operator for a checkpoint, and puts it back."""
HEDGING_SCHEDULER = "pillarbox.aio.hedging:HedgingScheduler"
"""The scheduler of calls that are hedged."""
ADAPTIVE_CONTROLLER = "pillarbox.aio.concurrency:AdaptiveController"
STUCK_CALLS = "pillarbox.aio.policies.stuck:StuckCalls"
"""Classes that find how many calls may be in flight, and which of them seem never to end."""
CIRCUIT_BREAKER = "pillarbox.aio.policies.breaker:CircuitBreaker"
"""The breaker of a service that is overloaded or away."""
COST_POLICY = "pillarbox.aio.policies.cost:CostPolicy"
"""The class that adds up the usage and the cost of calls."""
IDLE_REPORTER = "pillarbox.aio.idle_reasons:IdleReporter"
LOOP_WATCHER = "pillarbox.aio.loop_watcher:LoopWatcher"
"""Classes that say what an operator waits for, and where code blocks its loop."""
KNOWN_SERVICE = "pillarbox.aio.known_service:KnownService"
LEARNED_LIMITS = "pillarbox.aio.limits.learned:LearnedLimits"
"""Classes for the facts that an operator has about its service, and for the limits that answers name."""
RESOLVE_CHAIN = "pillarbox.aio.chained:resolve_chain"
PLACES_OF_CHAIN = "pillarbox.aio.chained:places_of"
"""Functions that give the functions of a list their options, and the operators of a task their places."""
TIMERS = "pillarbox.task.timers:ProcessingTimeService"
"""The timers of an operator, for one that asks for them."""
GEN_AI_METER = "pillarbox.aio.gen_ai:GenAiMeter"
"""The counts and spans of calls to generative AI."""
EQUAL_CALLS = "pillarbox.aio.dedupe.equal_calls:equal_calls"
"""A function that makes a `SharesCalls`, by which equal rows of a task share calls."""
HELD_CLAIMS = "pillarbox.aio.dedupe.claimed_calls:HeldClaims"
"""The claims of a session, by which equal rows of all tasks share calls."""
CHECK_CLAIMS = "pillarbox.aio.dedupe.claims:check_claims"
CHECK_CLAIMS_PLACE = "pillarbox.aio.dedupe.claims:check_place"
"""Functions that raise LedgerError where an operating system, or a ledger, has no locks for claims."""
EXPIRE_BATCHES = "pillarbox.ledger.maintenance:expire_batches"
"""A function that deletes what a ledger has of micro-batches that are committed."""
BEGIN_EXECUTION = "pillarbox.ledger.upkeep:begin_execution"
CACHE_PIN = "pillarbox.aio.cache_pin:CachePin"
"""A function and a class that keep the records that an execution may ask a cache for; others go."""
DEAD_LETTER_OF = "pillarbox.spark.dead_letters:dead_letter_of"
DEAD_LETTER_FILES = "pillarbox.aio.dead_letter_files:DeadLetterFiles"
"""Places for rows that failed for good, of a DataFrame and of other iterables."""
OBJECT_FOLDER = "pillarbox.ledger.objects.object_folder:ObjectFolder"
"""The folder of a ledger in an object store."""
OWN_JOB = "pillarbox.ledger.objects.holding:own_job"
PLANNED_JOB = "pillarbox.ledger.objects.holding:planned_job"
"""Functions for jobs that hold their run, as `pillarbox.ledger.runs` calls them."""
LOCAL_FRAME = "pillarbox.spark.local_frame:local_frame"
"""A function that makes what stands for a table without Spark in place of a DataFrame."""
SHOW_ERRORS = "pillarbox.spark.shown_errors:show_errors_in_words"
"""A function that has scripts and notebooks show a worker's error by its sentence and the user's frames."""
FILE_JOB = "pillarbox.file_jobs:main"
"""A function that runs a command over a file, by its name and words."""
LOCAL_COORDINATOR = "pillarbox.aio.limits.coordinator:local_coordinator"
"""A function without arguments: the `SharedLimits` of this process for the tasks on this machine."""


def provided(name: str, option: str) -> Any:
    """Return the object called `name`.

    option: what needs it, for the error. Raises ModuleNotFoundError where its module is not installed, and
    AttributeError where the module lacks it.
    """
    module, _, attribute = name.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise _missing(module, option, error.name) from None


def provided_if_there(name: str) -> Any:
    """Return the object called `name`; None where its module is not installed.

    For what no option asks for: an operator does without it then.
    """
    try:
        check_provided(name, name)
    except ModuleNotFoundError:
        return None
    return provided(name, name)


def check_provided(name: str, option: str) -> None:
    """Raise ModuleNotFoundError where the module of the object called `name` is not installed.

    For the moment at which an option is given: it imports the package of the module only.
    """
    module = name.partition(":")[0]
    try:
        found = find_spec(module)
    except ModuleNotFoundError as error:
        raise _missing(module, option, error.name) from None
    if found is None:
        raise _missing(module, option, module)


def _missing(module: str, option: str, name: str | None) -> ModuleNotFoundError:
    return ModuleNotFoundError(
        f"{option}: needs {module}, which is not installed; install all of Pillarbox", name=name
    )
