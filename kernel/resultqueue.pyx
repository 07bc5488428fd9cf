"""Result queues: entries go in when their calls begin, and come out with their results, bounded in number.

One thread, the owner, puts and emits; any thread completes. Every entry lives in a slot that was allocated
with the queue, so put, complete and emit cost a constant. A lock guards the slots; Python objects are made
and released only outside of it.

A handle names one attempt of one entry: the number of the attempt, counted over the queue's life, above the
number of its slot. A slot accepts only the handle that it holds, so earlier attempts and reused slots need
no other check.
"""

from cpython.mem cimport PyMem_RawCalloc, PyMem_RawFree
from cpython.ref cimport PyObject

from pillarbox.kernel.arguments cimport as_bound
from pillarbox.kernel.confined cimport check_owner
from pillarbox.kernel.pairs cimport pair_t, paired
from pillarbox.kernel.waiting cimport drop, keep

from operator import itemgetter

from .counters import QueueStatistics
from .errors import CapacityError, QueueClosedError
from .watermark import WATERMARK


cdef extern from "Python.h":
    void Py_XINCREF(PyObject* reference)

MAX_CAPACITY = SLOT_MASK + 1


cdef object THE_WATERMARK = WATERMARK


cdef class ResultQueue(Confined):
    """What OrderedQueue and UnorderedQueue have in common; not constructible itself.

    1. At most `capacity` entries are held, watermarks included; `put` into a full queue raises CapacityError.
    2. The first completion of an entry wins. Later ones, those of earlier attempts, and those of entries
       that are gone return False, have no effect, and are counted.
    3. No element passes a watermark, in either direction. A watermark counts as finished.
    4. Nothing is emitted after `clear` or `close` that was admitted before it.

    Confined to the owner, the thread that makes the queue (see `adopt`; allowed while the queue is empty):
    put, put_watermark, renew, has_completed, emit, emit_many, elements, clear, close. Everything else is
    thread-safe.
    """

    def __cinit__(self, capacity):
        if type(self) is ResultQueue:
            raise TypeError("ResultQueue is a base: make an OrderedQueue or an UnorderedQueue")
        self._capacity = <int>as_bound("capacity", capacity, MAX_CAPACITY)
        self.slots = <slot_t*>PyMem_RawCalloc(self._capacity, sizeof(slot_t))
        if self.slots == NULL:
            raise MemoryError(f"no memory for {capacity} entries")
        # Until the subclass, whose hooks do not work yet, has opened it.
        self.closed = True

    def __dealloc__(self):
        cdef int index
        if self.slots == NULL:
            return
        for index in range(self._capacity):
            drop(self.slots[index].element)
            drop(self.slots[index].result)
        PyMem_RawFree(self.slots)

    # ---- confined: in

    def put(self, element):
        """Admits an element; returns the handle of its first attempt, an int. Confined.

        Raises CapacityError if the queue is full, QueueClosedError after `close`.
        """
        check_owner(self)
        return self.admit(element, False)

    def put_watermark(self, watermark):
        """Admits a watermark, any object. Confined. Raises as `put`."""
        check_owner(self)
        self.admit(watermark, True)

    def renew(self, long long handle):
        """Begins a new attempt of an unfinished entry; returns its handle. The old one has no effect from
        then on.

        Confined. Raises ValueError if the handle is not that of the present attempt of an unfinished entry.
        """
        cdef slot_t* slot
        cdef long long renewed = NONE
        check_owner(self)
        self.lock.lock()
        slot = self.running_slot(handle)
        if slot != NULL:
            self.attempts += 1
            self.counts.renewed += 1
            slot.handle = renewed = self.attempts << SLOT_BITS | <int>(slot - self.slots)
        self.lock.unlock()
        if renewed == NONE:
            raise ValueError(f"handle {handle} is not that of the present attempt of an unfinished entry")
        return renewed

    # ---- any thread: completion

    def complete(self, long long handle, result):
        """Gives an entry its result; returns whether this was the first completion of its present attempt.

        Thread-safe, also while the owner puts or emits.
        """
        cdef slot_t* slot
        cdef void* owned = keep(result)
        self.lock.lock()
        slot = self.running_slot(handle)
        if slot == NULL:
            self.counts.late += 1
            self.lock.unlock()
            drop(owned)
            return False
        slot.result = owned
        slot.state = FINISHED
        self.running -= 1
        self.counts.completed += 1
        self.on_finished(<int>(slot - self.slots))
        self.lock.unlock()
        return True

    # ---- confined: out

    def has_completed(self):
        """Whether `emit` would give something now. Confined."""
        cdef int index
        check_owner(self)
        self.lock.lock()
        index = self.ready()
        self.lock.unlock()
        return index != NONE

    def emit(self):
        """Takes the next finished entry out: `(element, result)`, or `(WATERMARK, watermark)`; None if
        there is none. Confined.
        """
        cdef pair_t pair
        cdef bint found
        check_owner(self)
        self.lock.lock()
        found = self.pop(&pair)
        self.lock.unlock()
        return paired(&pair) if found else None

    def emit_many(self, limit=None):
        """Takes at most `limit` finished entries out (None: all): a list of what `emit` would have given.
        Confined. ValueError if `limit` is negative.
        """
        cdef pair_t pairs[CHUNK]
        cdef list emitted = []
        cdef Py_ssize_t left = self._capacity
        cdef int count, index, most
        check_owner(self)
        if limit is not None:
            if limit < 0:
                raise ValueError(f"limit must be None or at least 0 entries, not {limit!r}")
            left = min(left, limit)
        while left > 0:
            count = 0
            most = CHUNK if left > CHUNK else <int>left
            self.lock.lock()
            while count < most and self.pop(&pairs[count]):
                count += 1
            self.lock.unlock()
            for index in range(count):
                emitted.append(paired(&pairs[index]))
            if count < most:
                break
            left -= count
        return emitted

    # ---- confined: all at once

    def elements(self):
        """Every entry admitted and not emitted, in the order of admission: `(element, finished, result)`,
        where the result of an unfinished one is None and a watermark is `(WATERMARK, True, watermark)`.
        Confined.
        """
        check_owner(self)
        return [entry[1:] for entry in self.copied(False)]

    def clear(self):
        """Takes everything out: the list of elements not emitted, without watermarks, in the order of
        admission.

        Completions of these entries are ignored and counted from then on. The queue can be used again.
        Confined.
        """
        check_owner(self)
        return [element for _, element, _, _ in self.copied(True) if element is not THE_WATERMARK]

    def close(self):
        """As `clear`, and takes nothing in any more: a later put raises QueueClosedError. Confined."""
        check_owner(self)
        self.lock.lock()
        self.closed = True
        self.lock.unlock()
        return self.clear()

    # ---- any thread: watching

    def __len__(self):
        """Entries admitted and not emitted, watermarks included. Thread-safe."""
        self.lock.lock()
        size = self.size
        self.lock.unlock()
        return size

    @property
    def capacity(self):
        """The most entries held at once. Thread-safe."""
        return self._capacity

    @property
    def is_full(self):
        """Whether the next put would raise CapacityError. Thread-safe."""
        return len(self) == self._capacity

    @property
    def is_empty(self):
        """Whether nothing is held. Thread-safe."""
        return len(self) == 0

    @property
    def in_flight(self):
        """Entries admitted and not finished. Thread-safe."""
        self.lock.lock()
        running = self.running
        self.lock.unlock()
        return running

    def statistics(self):
        """A frozen QueueStatistics, all of one moment. Thread-safe."""
        self.lock.lock()
        cdef counts_t counts = self.counts
        cdef int size = self.size
        cdef int running = self.running
        self.lock.unlock()
        return QueueStatistics(
            capacity=self._capacity,
            size=size,
            in_flight=running,
            admitted=counts.admitted,
            watermarks=counts.watermarks,
            completed=counts.completed,
            emitted=counts.emitted,
            renewed=counts.renewed,
            late=counts.late,
        )

    # ---- inside

    cdef bint may_change_owner(self) except -1:
        return len(self) == 0

    cdef long long admit(self, object element, bint is_watermark) except -1:
        cdef slot_t* slot
        cdef long long handle = NONE
        cdef int index
        cdef bint closed
        cdef void* first = keep(THE_WATERMARK if is_watermark else element)
        cdef void* second = keep(element) if is_watermark else NULL
        self.lock.lock()
        closed = self.closed
        index = self.free
        if index != NONE and not closed:
            slot = &self.slots[index]
            self.free = slot.next
            self.attempts += 1
            self.admissions += 1
            self.size += 1
            handle = self.attempts << SLOT_BITS | index
            slot.element = first
            slot.result = second
            slot.handle = handle
            slot.admission = self.admissions
            slot.is_watermark = is_watermark
            slot.next = NONE
            if is_watermark:
                slot.state = FINISHED
                self.counts.watermarks += 1
            else:
                slot.state = RUNNING
                self.running += 1
                self.counts.admitted += 1
            self.on_admitted(index)
        self.lock.unlock()
        if handle != NONE:
            return handle
        drop(first)
        drop(second)
        if closed:
            raise QueueClosedError()
        raise CapacityError(self._capacity)

    cdef slot_t* running_slot(self, long long handle) noexcept nogil:
        """The slot that runs the attempt of this handle, or null. Under the lock."""
        cdef long long index = handle & SLOT_MASK
        if index >= self._capacity:
            return NULL
        cdef slot_t* slot = &self.slots[index]
        return slot if slot.handle == handle and slot.state == RUNNING else NULL

    cdef bint pop(self, pair_t* pair) noexcept nogil:
        """Moves the next finished entry to `pair`, which then owns it; False if there is none. Under the
        lock.
        """
        cdef int index = self.ready()
        if index == NONE:
            return False
        cdef slot_t* slot = &self.slots[index]
        pair.element = slot.element
        pair.result = slot.result
        self.on_emitted(index)
        slot.element = NULL
        slot.result = NULL
        slot.state = FREE
        slot.next = self.free
        self.free = index
        self.size -= 1
        self.counts.emitted += 1
        return True

    cdef void open(self) noexcept nogil:
        """The end of a subclass's __cinit__: from here on the queue works."""
        self.free_all()
        self.closed = False

    cdef void free_all(self) noexcept nogil:
        """Marks every slot free. The references must have been moved out before. Under the lock."""
        cdef int index
        for index in range(self._capacity):
            self.slots[index].element = NULL
            self.slots[index].result = NULL
            self.slots[index].state = FREE
            self.slots[index].next = index + 1
        self.slots[self._capacity - 1].next = NONE
        self.free = 0
        self.size = 0
        self.running = 0
        self.on_cleared()

    cdef list copied(self, bint take):
        """`(admission, element, finished, result)` of every entry, in the order of admission; takes them
        out if asked.
        """
        cdef slot_t* copy = <slot_t*>PyMem_RawCalloc(self._capacity, sizeof(slot_t))
        cdef list entries = []
        cdef int index, count = 0
        if copy == NULL:
            raise MemoryError(f"no memory to copy {self._capacity} entries")
        self.lock.lock()
        for index in range(self._capacity):
            if self.slots[index].state == FREE:
                continue
            copy[count] = self.slots[index]
            if not take:
                Py_XINCREF(<PyObject*>copy[count].element)
                Py_XINCREF(<PyObject*>copy[count].result)
            count += 1
        if take:
            self.free_all()
        self.lock.unlock()
        try:
            for index in range(count):
                entries.append((
                    copy[index].admission,
                    <object>copy[index].element,
                    copy[index].state == FINISHED,
                    None if copy[index].result == NULL else <object>copy[index].result,
                ))
        finally:
            for index in range(count):
                drop(copy[index].element)
                drop(copy[index].result)
            PyMem_RawFree(copy)
        entries.sort(key=itemgetter(0))
        return entries

    cdef void on_admitted(self, int index) noexcept nogil:
        pass

    cdef void on_finished(self, int index) noexcept nogil:
        pass

    cdef int ready(self) noexcept nogil:
        return NONE

    cdef void on_emitted(self, int index) noexcept nogil:
        pass

    cdef void on_cleared(self) noexcept nogil:
        pass
