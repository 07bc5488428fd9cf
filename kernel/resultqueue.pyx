"""Result queues: entries go in when their calls begin, and come out with their results, bounded in number.

One thread, the owner, puts and emits; any thread completes. What a queue does is in
`include/pillarbox_queue.h`, which knows no Python; here are the checks, the errors and the
references, which are made before the queue gets them and released when it has given them back.
"""

from cpython.ref cimport PyObject
from libcpp.vector cimport vector

from pillarbox.kernel.arguments cimport as_bound, as_handle, as_limit
from pillarbox.kernel.confined cimport check_owner
from pillarbox.kernel.gc_container cimport abandon, check_process, is_foreign, visit_reference, visitor_t
from pillarbox.kernel.queue_pairs cimport pair_t, paired
from pillarbox.kernel.waiting cimport drop, keep

from .counters import QueueStatistics
from .entries import QueueEntry
from .errors import CapacityError, QueueClosedError, QueueRestoringError
from .watermark import WATERMARK


cdef extern from "Python.h":
    void Py_XINCREF(PyObject* reference)


cdef enum:
    # Entries that emit_many moves out at a time.
    CHUNK = 64

MAX_CAPACITY = GREATEST_CAPACITY


cdef object THE_WATERMARK = WATERMARK


cdef class ResultQueue(Confined):
    """Base class of OrderedQueue and UnorderedQueue; not constructible itself.

        >>> from pillarbox.kernel import OrderedQueue, ResultQueue
        >>> queue = OrderedQueue(8)
        >>> isinstance(queue, ResultQueue)
        True
        >>> first, second = queue.put("a"), queue.put("b")
        >>> queue.complete(second, "B"), queue.complete(first, "A"), queue.complete(first, "again")
        (True, True, False)
        >>> queue.emit_many()
        [('a', 'A'), ('b', 'B')]

    1. At most `capacity` entries are held, watermarks included; `put` into a full queue raises CapacityError.
    2. The first completion of an entry wins. Later ones, those of earlier attempts, and those of entries
       that are gone return False, have no effect, and are counted.
    3. No element passes a watermark, in either direction. A watermark counts as finished.
    4. Nothing is emitted after `clear` or `close` that was admitted before it.
    5. The entries set by `restore` are admitted in their order, before new ones, and never past the capacity.

    Confined to the owner, the thread that makes the queue (see `adopt`; allowed while the queue is empty and
    restores nothing): put, put_watermark, renew, has_completed, emit, emit_many, snapshot, restore,
    admit_restored, clear, close; with `owner_completes`, which spares each entry its atomic operations,
    `complete` as well. The rest is thread-safe.
    """

    def __cinit__(self, capacity, *, owner_completes=False):
        if type(self) is ResultQueue:
            raise TypeError("ResultQueue is a base: make an OrderedQueue or an UnorderedQueue")
        # The subclass opens the queue, for its own order.
        as_bound("capacity", capacity, GREATEST_CAPACITY)

    def __dealloc__(self):
        if is_foreign(self):
            abandon(self.core)
        self.core.let_go(drop)

    # ---- confined: in

    def put(self, element):
        """Admit an element; returns the handle of its first attempt, an int. Confined.

        Raises CapacityError if the queue is full, QueueClosedError after `close`, and QueueRestoringError as
        long as entries are still to be restored.
        """
        cdef long long handle = 0
        cdef QueueAnswer answer
        cdef void* owned
        check_owner(self)
        owned = keep(element)
        answer = self.core.put(owned, &handle)
        if answer != QueueAnswer.DONE:
            drop(owned)
            self.refuse(answer)
        return handle

    def put_watermark(self, watermark):
        """Admit a watermark, any object. Confined. Raises as `put`."""
        cdef QueueAnswer answer
        cdef void* mark
        cdef void* owned
        check_owner(self)
        mark = keep(THE_WATERMARK)
        owned = keep(watermark)
        answer = self.core.put_watermark(mark, owned)
        if answer != QueueAnswer.DONE:
            drop(mark)
            drop(owned)
            self.refuse(answer)

    def renew(self, handle):
        """Begin a new attempt of an unfinished entry; returns its handle. The old one has no effect from
        then on.

        Confined. Raises ValueError if the handle is not that of the present attempt of an unfinished entry.
        """
        cdef long long renewed
        check_owner(self)
        renewed = as_handle(handle)
        if not self.core.renew(&renewed):
            raise ValueError(f"handle {handle} is not that of the present attempt of an unfinished entry")
        return renewed

    # ---- any thread, or the owner alone: completion

    def complete(self, handle, result):
        """Complete an entry; returns True if this was the first completion of its present attempt.

        Thread-safe, also while the owner puts or emits; confined in a queue made with `owner_completes`.
        """
        cdef long long number = as_handle(handle)
        cdef void* owned
        if self.owner_completes:
            check_owner(self)
        else:
            check_process(self)
        owned = keep(result)
        if self.core.complete(number, owned):
            return True
        drop(owned)
        return False

    # ---- confined: out

    def has_completed(self):
        """Return True if `emit` would return an entry now. Confined."""
        check_owner(self)
        return self.core.has_completed()

    def emit(self):
        """Remove the next finished entry: `(element, result)`, or `(WATERMARK, watermark)`; None if
        there is none. Confined.
        """
        cdef pair_t pair
        check_owner(self)
        return paired(&pair) if self.core.emit(&pair, 1) else None

    def emit_many(self, limit=None):
        """Remove at most `limit` finished entries (None: all): a list of results of `emit`.
        Confined. ValueError if `limit` is negative.
        """
        cdef pair_t pairs[CHUNK]
        cdef list emitted = []
        cdef size_t left = <size_t>self.core.capacity()
        cdef int count, index, most
        check_owner(self)
        if limit is not None:
            left = min(left, as_limit(limit, "entries"))
        while left > 0:
            most = CHUNK if left > CHUNK else <int>left
            count = self.core.emit(pairs, most)
            for index in range(count):
                emitted.append(paired(&pairs[index]))
            if count < most:
                break
            left -= count
        return emitted

    # ---- confined: all at once

    def snapshot(self, door=()):
        """Return the state for a restart: a list of QueueEntry `(element, finished, result)`. Confined.

        First every entry admitted and not emitted, in the order of admission; then those that are still to be
        restored; then the elements of `door`, an iterable of elements that wait for admission and are not
        finished. The result of an unfinished one is None, a watermark is `(WATERMARK, True, watermark)`. The
        queue does not change.
        """
        cdef vector[entry_t] entries
        cdef size_t index
        check_owner(self)
        # Before anything is copied: an iterator may run any code, use this queue, let others adopt it.
        waiting = list(door)
        check_owner(self)
        self.core.snapshot(entries)
        # The owner is here, so nothing leaves the queue until there is a reference to all of it.
        for index in range(entries.size()):
            Py_XINCREF(<PyObject*>entries[index].element)
            Py_XINCREF(<PyObject*>entries[index].result)
        held = taken_over(entries)
        held += [QueueEntry(element, False, None) for element in waiting]
        return held

    def clear(self):
        """Remove everything: the list of elements not emitted, without watermarks, in the order of
        admission; after them those that were still to be restored.

        Completions of these entries are ignored and counted from then on. The queue can be used again.
        Confined.
        """
        cdef vector[entry_t] entries
        check_owner(self)
        self.core.clear(entries)
        return elements_of(entries)

    def close(self):
        """Clear the queue as `clear` and close it: a later put raises QueueClosedError. Confined."""
        cdef vector[entry_t] entries
        check_owner(self)
        self.core.close(entries)
        return elements_of(entries)

    # ---- confined: restoring

    def restore(self, entries):
        """Set the entries to restore: an iterable of `(element, finished, result)`, as of `snapshot`.

        Nothing is admitted yet: see `admit_restored`. Confined. Raises ValueError if the queue is closed, not
        empty or restoring already; TypeError or ValueError, which name the entry, if one has another form.
        Then the queue is unchanged.
        """
        cdef vector[entry_t] restored
        cdef QueueAnswer answer
        check_owner(self)
        checked = [checked_entry(index, entry) for index, entry in enumerate(entries)]
        # An iterator may let another thread adopt the queue.
        check_owner(self)
        restored.reserve(len(checked))
        for element, finished, result in checked:
            restored.push_back(owned_entry(element, finished, result))
        answer = self.core.restore(restored)
        if answer == QueueAnswer.DONE:
            return
        elements_of(restored)
        if answer == QueueAnswer.CLOSED:
            raise ValueError("only an open queue can be restored, this one is closed")
        if answer == QueueAnswer.RESTORING:
            raise ValueError(f"the queue is restoring {self.restoring} entries already")
        raise ValueError(f"only an empty queue can be restored, this one holds {len(self)} entries")

    def admit_restored(self):
        """Admit the entries of `restore`, in order, up to the first entry that needs its call, and return
        `(handle, element)` of that one. Confined.

        Returns None when the queue is full or all are admitted. Finished entries and watermarks are
        admitted on the way, also before a None: they can be emitted like any other.
        """
        cdef void* element = NULL
        cdef long long handle = 0
        check_owner(self)
        return (handle, <object>element) if self.core.admit_restored(&element, &handle) else None

    # ---- any thread: watching

    def __len__(self):
        """Entries admitted and not emitted, watermarks included. Thread-safe."""
        check_process(self)
        return self.core.counts().size

    @property
    def capacity(self):
        """The most entries held at once. Thread-safe."""
        return self.core.capacity()

    @property
    def is_full(self):
        """True if it holds as many entries as it may. Thread-safe."""
        check_process(self)
        return self.core.counts().size == self.core.capacity()

    @property
    def is_empty(self):
        """True if nothing is held. Thread-safe."""
        check_process(self)
        return self.core.counts().size == 0

    @property
    def in_flight(self):
        """Entries admitted and not finished. Thread-safe."""
        check_process(self)
        return self.core.counts().running

    @property
    def restoring(self):
        """Entries that are still to be admitted by `admit_restored`. Thread-safe."""
        check_process(self)
        return self.core.counts().restoring

    def statistics(self):
        """A frozen QueueStatistics, all of one moment. Thread-safe."""
        cdef queue_counts_t counts
        check_process(self)
        counts = self.core.counts()
        return QueueStatistics(
            capacity=self.core.capacity(),
            size=counts.size,
            in_flight=counts.running,
            restoring=counts.restoring,
            admitted=counts.admitted,
            watermarks=counts.watermarks,
            restored=counts.restored,
            completed=counts.completed,
            emitted=counts.emitted,
            renewed=counts.renewed,
            late=counts.late,
        )

    # ---- inside

    cdef int open(self, object capacity, bint ordered, bint owner_completes) except -1:
        self.owner_completes = owner_completes
        self.core.open(capacity, ordered, Completers.OWNER if owner_completes else Completers.ANY)
        return 0

    cdef int visit_owned(self, visitor_t* visitor) noexcept:
        return self.core.visit(visit_reference, visitor)

    cdef void release_owned(self) noexcept:
        cdef vector[entry_t] entries
        cdef size_t index
        try:
            self.core.close(entries)
        except MemoryError:
            # The cycle stays, until the next collection.
            return
        for index in range(entries.size()):
            drop(entries[index].element)
            drop(entries[index].result)

    cdef bint may_change_owner(self) except -1:
        cdef queue_counts_t counts = self.core.counts()
        return counts.size == 0 and counts.restoring == 0

    cdef int refuse(self, QueueAnswer answer) except -1:
        """Raises what a put raises that was not DONE."""
        if answer == QueueAnswer.CLOSED:
            raise QueueClosedError()
        if answer == QueueAnswer.RESTORING:
            raise QueueRestoringError(self.restoring)
        raise CapacityError(self.core.capacity())


cdef list taken_over(vector[entry_t]& entries):
    """A list of QueueEntry; it takes the references over."""
    cdef list held = []
    cdef size_t index
    try:
        for index in range(entries.size()):
            held.append(QueueEntry(
                <object>entries[index].element,
                entries[index].state != EntryState.RUNNING,
                None if entries[index].result == NULL else <object>entries[index].result,
            ))
    finally:
        for index in range(entries.size()):
            drop(entries[index].element)
            drop(entries[index].result)
    return held


cdef list elements_of(vector[entry_t]& entries):
    """The elements, without watermarks; all references are taken over."""
    return [entry[0] for entry in taken_over(entries) if entry[0] is not THE_WATERMARK]


cdef tuple checked_entry(Py_ssize_t index, object entry):
    """An entry as `restore` takes it, or TypeError or ValueError that names it."""
    if not isinstance(entry, (tuple, list)):
        raise TypeError(f"entry {index} must be a triple (element, finished, result), not {entry!r}")
    if len(entry) != 3:
        raise ValueError(f"entry {index} must be a triple (element, finished, result), not {entry!r}")
    element, finished, result = entry
    if not isinstance(finished, bool):
        raise TypeError(f"entry {index}: finished must be True or False, not {finished!r}")
    if not finished and element is THE_WATERMARK:
        raise ValueError(f"entry {index}: a watermark must be finished: {entry!r}")
    if not finished and result is not None:
        raise ValueError(f"entry {index}: the result of an unfinished entry must be None: {entry!r}")
    return element, finished, result


cdef entry_t owned_entry(object element, bint finished, object result) noexcept:
    cdef entry_t entry
    entry.element = keep(element)
    entry.result = keep(result) if finished else NULL
    entry.admission = 0
    if not finished:
        entry.state = EntryState.RUNNING
    elif element is THE_WATERMARK:
        entry.state = EntryState.WATERMARK
    else:
        entry.state = EntryState.FINISHED
    return entry
