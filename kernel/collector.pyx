"""Collectors: a function is handed one to bring the result of its call, from any thread, in its own time.

The completion that comes first puts one mail; the mailbox thread runs it and so ends the call. That of a
native thread is in the collector itself, for it has no Python object to make one of. A `Collector` is for any
thread, a `CollectorFactory` for the mailbox thread.
"""

from types import GenericAlias

from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF

from pillarbox.kernel.confined cimport check_owner
from pillarbox.kernel.gc_container cimport is_foreign
from pillarbox.kernel.mail cimport as_priority
from pillarbox.kernel.waiting cimport drop, report


cdef extern from "Python.h":
    # Declared without an exception value: the caller looks at the null itself.
    PyObject* PyObject_CallFunctionObjArgs(
        PyObject* function, PyObject* collector, PyObject* call, PyObject* result, PyObject* error, void* end
    )
    void Py_DECREF_RAW "Py_DECREF"(PyObject* reference)

# What it returns null from has set an error, which is then raised.
ctypedef object (*make_object_t)(void* payload, cbool wanted)


cdef class CollectorFactory:
    """CollectorFactory(mailbox, ended, *, priority=0): makes the collectors of one operator.

        >>> from pillarbox.kernel import CollectorFactory, TaskMailbox
        >>> mailbox = TaskMailbox()
        >>> factory = CollectorFactory(mailbox, lambda collector, call, result, error: print(call, result))
        >>> collector = factory.create("call 1")
        >>> collector.complete(42)
        True
        >>> mailbox.take().run()
        call 1 42

    `ended(collector, call, result, error)` is called on the mailbox thread, by mail of this priority, for the
    first completion of each collector, also of a revoked one: `error` is None for a result. An exception of
    it goes to `sys.unraisablehook`. Confined to the mailbox thread, except `late`.
    """

    def __init__(self, TaskMailbox mailbox not None, ended, *, priority=0):
        if not callable(ended):
            raise TypeError(f"ended must be callable, not {ended!r}")
        self.priority = as_priority(priority)
        self.mailbox = mailbox
        self.ended = ended

    def create(self, call):
        """Return a collector for one attempt of `call`, any object. Confined."""
        cdef Collector made
        check_owner(self.mailbox)
        made = Collector.__new__(Collector)
        made.factory = self
        made.call = call
        made.node.fn = arrived
        made.node.priority = self.priority
        made.node.owner = <void*>made
        made.node.mailbox = &self.mailbox.core
        made.node.late = &self.late_count
        return made

    def revoke(self, Collector collector not None):
        """End the attempt of a collector: later completions return False. Confined.

        Returns True if it had not been completed. The first later completion is still passed to `ended`,
        because it may have been paid for.
        """
        check_owner(self.mailbox)
        return collector.node.revoke()

    def close(self, Collector collector not None):
        """End the attempt of a collector for good: later completions are dropped. Confined."""
        check_owner(self.mailbox)
        # spec: Collector!Quiesce
        if collector.node.take() != Collected.TAKEN:
            collector.call = None

    @property
    def late(self):
        """Completions that came too late and were dropped. Thread-safe."""
        return self.late_count.load()


cdef class Collector:
    """Receiver of the result of one call: a function calls `complete` or `fail`, from any thread.

        >>> import threading
        >>> from pillarbox import Collector, async_map
        >>> def call(row, collector: Collector[str]):
        ...     threading.Thread(target=lambda: collector.complete(row.upper())).start()
        >>> list(async_map(["a", "b"], call))
        ['A', 'B']

    1. The first completion decides and returns True. Its result arrives as mail; the call ends when the
       mailbox thread has run that mail.
    2. Later completions return False and have no effect, also those after the timeout of the call, after the
       begin of another attempt, or after the end of the job. They are counted, and are not errors.
    3. Neither method waits.

    The operator makes one for each attempt of a call. Thread-safe.
    """

    def __init__(self):
        raise TypeError("a Collector is made by the operator, for each call of a function that takes one")

    @classmethod
    def __class_getitem__(cls, item):
        return GenericAlias(cls, item)

    def complete(self, result):
        """Complete the call with a result; returns True for the first completion. Thread-safe."""
        return self.bring(result, False)

    def fail(self, error):
        """Fail the attempt with `error`, an exception; returns True for the first completion. Thread-safe.

        The effect is that of an exception in the function: a retry, or the row fails. Raises TypeError if
        `error` is not an exception.
        """
        if not isinstance(error, BaseException):
            raise TypeError(f"error must be an exception, not {error!r}")
        return self.bring(error, True)

    @property
    def is_open(self):
        """True while the call is not completed and its attempt has not ended. Thread-safe."""
        return self.node.is_open()

    def __repr__(self):
        return f"<Collector, {'open' if self.node.is_open() else 'done'}>"

    cdef bint bring(self, object result, bint failed) except -1:
        cdef CollectorFactory factory = self.factory
        cdef Collected found
        cdef Completion mail
        # In the child of a fork nobody is left who would take it.
        if factory is None or is_foreign(factory.mailbox):
            return False
        found = self.node.take()
        if found == Collected.TAKEN:
            self.node.count_late()
            return False
        mail = Completion.__new__(Completion)
        mail.node.priority = factory.priority
        mail.factory = factory
        mail.collector = self
        mail.call = self.call
        mail.result = result
        mail.failed = failed
        self.call = None
        # spec: Collector!PutMail
        return factory.mailbox.offer(mail) and found == Collected.FIRST

    cdef object made(self):
        """The payload of a native completion, as an object; raises what it raises instead."""
        cdef void* payload = self.node.payload
        cdef object result
        self.node.payload = NULL
        if self.node.make != NULL:
            return (<make_object_t>self.node.make)(payload, True)
        result = <object>payload
        Py_DECREF(result)
        return result

    cdef void hand_in(self) noexcept:
        call, result, error = self.call, None, None
        self.call = None
        try:
            result = self.made()
        except BaseException as raised:
            error = raised
        cdef PyObject* answer = PyObject_CallFunctionObjArgs(
            <PyObject*>self.factory.ended,
            <PyObject*>self, <PyObject*>call, <PyObject*>result, <PyObject*>error, NULL,
        )
        if answer != NULL:
            Py_DECREF_RAW(answer)
        else:
            report(self.factory.ended)

    cdef void let_go(self) noexcept:
        self.node.count_late()
        if self.node.make != NULL:
            self.node.make(self.node.payload, False)
        else:
            drop(self.node.payload)
        self.node.payload = NULL
        self.call = None


cdef class Completion(Mail):
    """The mail of a completion by Python. Made by a collector only; one that nobody runs counts as late."""

    def __init__(self):
        raise TypeError("a Completion is made by a Collector")

    def __dealloc__(self):
        if self.factory is not None:
            # spec: Collector!Close
            self.factory.late_count.fetch_add(1)

    def run(self):
        """Tells the operator of the completion, once; raises what it raises."""
        factory, self.factory = self.factory, None
        if factory is not None:
            # spec: Collector!RunMail
            if self.failed:
                factory.ended(self.collector, self.call, None, self.result)
            else:
                factory.ended(self.collector, self.call, self.result, None)

    @property
    def description(self):
        """The kind of mail."""
        return "complete a call"


cdef void arrived(mail_t* mail, cbool run) noexcept with gil:
    """The function of the mail of a native completion, which holds a reference to the collector."""
    collector = <Collector>(<collected_t*>mail).owner
    Py_DECREF(collector)
    if run:
        # spec: Collector!RunMail
        collector.hand_in()
    else:
        # spec: Collector!Close
        collector.let_go()
