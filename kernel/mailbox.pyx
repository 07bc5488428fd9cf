"""The mailbox of one task thread: any thread puts mail, one thread takes it.

What happens between threads, and in which order mails come out, is the core's: `include/pillarbox_mailbox.h`.
Here are the checks, the references, the errors, and the sleeping in slices.
"""

from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject

from pillarbox.kernel.arguments cimport NO_BOUND, as_bound, check_callback
from pillarbox.kernel.confined cimport check_owner, is_owner
from pillarbox.kernel.gc_container cimport abandon, check_process, is_foreign, visit_reference, visitor_t
from pillarbox.kernel.mail cimport (
    DEFERRABLE,
    PYTHON,
    Mail,
    accepted_priority,
    all_handed_out,
    claim_by_python,
    handed_out,
    let_go,
    unclaim,
)
from pillarbox.kernel.mailbox_core cimport CLOSED, INBOX_KINDS, OPEN
from pillarbox.kernel.waiting cimport (
    after_sleep, call_back, call_if_armed, deadline_after, drop, keep, next_slice,
)

from .counters import MailboxStatistics
from .errors import MailboxClosedError
from .states import MailboxState


cdef extern from "Python.h":
    PyObject** PyTuple_ITEMS "&PyTuple_GET_ITEM"(object items, Py_ssize_t index)
    object PyObject_Vectorcall(object function, PyObject** arguments, size_t count, PyObject* keywords)


cdef enum:
    # Mails of a batch after which signals are handled, and other threads let in, whatever the mails call.
    BREATH = 256

# The interpreter does both when a function of its own begins, and in nothing that is compiled.
cdef object breathe = eval("lambda: None")


BACKENDS = ("lock-free", "mutex")[:INBOX_KINDS]
"""The ways in which producers meet the mailbox thread: a mutex, the oracle, is in builds for tests only."""


cdef class TaskMailbox(Confined):
    """TaskMailbox(thread=None, *, urgent_burst=64, backend="lock-free")

    Mailbox of one task thread: any thread puts mail, the mailbox thread takes it.

        >>> import threading
        >>> from pillarbox.kernel import Mail, TaskMailbox
        >>> mailbox = TaskMailbox()
        >>> done = Mail(print, "from another thread")
        >>> thread = threading.Thread(target=mailbox.put, args=(done,))
        >>> thread.start()
        >>> mailbox.take(timeout=10.0).run()
        from another thread
        >>> thread.join()
        >>> mailbox.close(), mailbox.state.name
        ([], 'CLOSED')

    The mailbox thread is `thread` (a started threading.Thread or an ident), by default the thread that makes
    the mailbox. `backend` is one of `BACKENDS`: builds for tests have an oracle in addition to "lock-free".

    1. *A put that returns is never lost*: its mail is taken, drained, or returned by close, exactly once. A
       put that raises has no effect. No put that begins after `quiesce()` has returned succeeds.
    2. Mails are taken in the order of their puts among those that the take accepts. A priority selects, it
       does not reorder. Urgent mails come first, but after `urgent_burst` of them in sequence the next one
       taken is an ordinary one, if the take accepts one.
    3. A take that reports "no mail" had an instant in which there was none that it accepts.
    4. States go OPEN -> QUIESCED -> CLOSED, never back.

    Methods are *thread-safe* or *confined* to the mailbox thread; a confined one raises WrongThreadError in
    another thread.
    """

    def __cinit__(self, thread=None, *, urgent_burst=64, backend="lock-free"):
        if thread is not None:
            self.name_owner(thread)
        if backend not in BACKENDS:
            raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, not {backend!r}")
        self.core.inbox().use(BACKENDS.index(backend))
        self.core.set_urgent_burst(as_bound("urgent_burst", urgent_burst, NO_BOUND))

    def __dealloc__(self):
        if is_foreign(self):
            abandon(self.core)
        self.release_owned()

    # ---- any thread: putting

    def put(self, Mail mail not None):
        """Put a mail. Thread-safe. Raises MailboxClosedError, which holds the mail, unless the state is
        OPEN; ValueError if the mail waits in a mailbox already.
        """
        if not offered(self, mail):
            raise MailboxClosedError(self.state, mail)

    def try_put(self, Mail mail not None):
        """Put a mail if the state is OPEN; returns True if it did. Thread-safe. ValueError as `put`."""
        return offered(self, mail)

    def put_all(self, mails):
        """Put all of these mails or none: adjacent and in order. Thread-safe.

        Urgent ones among them are adjacent among the urgent. Raises MailboxClosedError, which holds the
        tuple of them, unless the state is OPEN; ValueError if one waits in a mailbox already or is named
        twice.
        """
        cdef tuple whole = tuple(mails)
        cdef Mail mail
        cdef chain_t chain
        cdef Py_ssize_t claimed = 0
        for item in whole:
            if not isinstance(item, Mail):
                raise TypeError(f"mails must be Mail objects, not {item!r}")
        check_process(self)
        for item in whole:
            mail = <Mail>item
            if not claim_by_python(mail.node):
                unclaim(whole, claimed)
                raise ValueError(f"{mail!r} waits in a mailbox already or is named twice")
            claimed += 1
            chain.add(&mail.node)
        for item in whole:
            Py_INCREF(item)
        if self.put_nodes(chain) == OPEN:
            return
        unclaim(whole, claimed)
        for item in whole:
            Py_DECREF(item)
        raise MailboxClosedError(self.state, whole)

    # ---- any thread: ending and watching

    def quiesce(self):
        """Refuse mail from now on: OPEN becomes QUIESCED. No effect in other states. Thread-safe.

        Wakes a waiting take and calls the armed wake-up.
        """
        cdef void* armed = NULL
        check_process(self)
        self.core.quiesce(&armed)
        call_if_armed(armed)

    @property
    def state(self):
        """The MailboxState. Thread-safe."""
        check_process(self)
        return MailboxState(<int>self.core.inbox().state())

    @property
    def backend(self):
        """The way in which producers meet the mailbox thread, one of `BACKENDS`. Thread-safe."""
        return BACKENDS[self.core.inbox().kind()]

    @property
    def is_mailbox_thread(self):
        """True if the calling thread is the mailbox thread. Thread-safe."""
        return is_owner(self)

    def check_is_mailbox_thread(self):
        """Raise WrongThreadError unless the calling thread is the mailbox thread. Thread-safe."""
        check_owner(self)

    def __len__(self):
        """Mails that wait, those of the batch included. Thread-safe. 0 when CLOSED.

        Exact for the mailbox thread; another one gets at least what waits all through the call. A put in
        progress that takes the mails which have arrived past 65,535 may be counted in part.
        """
        check_process(self)
        if self.core.inbox().state() == CLOSED:
            return 0
        return <Py_ssize_t>self.core.waiting()

    def statistics(self):
        """A frozen MailboxStatistics. Thread-safe."""
        cdef state_t state = self.core.inbox().state()
        cdef size_t batch = self.core.in_batch()
        cdef size_t waiting = <size_t>len(self)
        return MailboxStatistics(
            state=MailboxState(<int>state),
            batch=batch if state != CLOSED else 0,
            queued=waiting - batch if waiting > batch else 0,
            put=self.core.inbox().accepted(),
            taken=self.core.taken(),
            urgent_taken=self.core.urgent_taken(),
            rejected=self.core.inbox().rejected(),
        )

    # ---- confined: taking

    def try_take(self, p=-1, *, skip_deferrable=False):
        """Return the first mail of priority `p` or higher, or None. Confined; does not block.

        With `skip_deferrable` deferrable mails remain in the mailbox. Raises MailboxClosedError when CLOSED.
        """
        check_owner(self)
        self.check_not_closed()
        return taken(self, accepted_priority(p), DEFERRABLE if skip_deferrable else 0)

    def take(self, p=-1, timeout=None, *, skip_deferrable=False):
        """Return the first mail of priority `p` or higher; waits for it. Confined; blocks without the GIL.

        Returns None when `timeout` seconds have passed (None: no limit). In QUIESCED raises
        MailboxClosedError at once if no mail is accepted, for no more can come; in CLOSED always. On the
        main thread a signal is handled within 50 ms; an exception of its handler (KeyboardInterrupt) ends the
        wait, and no mail is lost by it.
        """
        check_owner(self)
        cdef int priority = accepted_priority(p)
        cdef unsigned char skip = DEFERRABLE if skip_deferrable else 0
        cdef double deadline = deadline_after(timeout)
        cdef double seconds
        cdef state_t seen = OPEN
        cdef mail_t* node
        self.check_not_closed()
        while True:
            node = self.core.take(priority, skip, &seen)
            if node != NULL:
                return handed_out(node)
            if seen != OPEN:
                raise MailboxClosedError(MailboxState(<int>seen))
            seconds = next_slice(deadline)
            if seconds <= 0.0:
                return None
            with nogil:
                self.core.park(seconds)
            self.core.fetch()
            after_sleep(self)
            # A handler may close the mailbox.
            self.check_not_closed()

    def create_batch(self):
        """Form a batch of all mails put before this call, after the rest of the last batch. Confined.

        Returns True if there is any mail to take. Raises MailboxClosedError when CLOSED.
        """
        check_owner(self)
        self.check_not_closed()
        return self.core.create_batch()

    def try_take_from_batch(self):
        """Return the next mail of the batch, or None when the batch is used up. Confined; does not block.

        A mail put after `create_batch` is not in the batch, an urgent one excepted. Raises
        MailboxClosedError when CLOSED.
        """
        check_owner(self)
        self.check_not_closed()
        cdef mail_t* node = self.core.take_from_batch()
        return None if node == NULL else handed_out(node)

    def run_batch(self, limit=None, *, meanwhile=None):
        """Form a batch as `create_batch` does, take each of its mails and run it. Confined.

        At most `limit` mails (None: all; urgent ones that arrive meanwhile are among them), and at most
        `meanwhile` (None: any number) more than there are when it begins. Returns the number of mails that
        have run; `leave_batch` ends it early. An exception of a mail is raised: that mail is gone, the mails
        after it remain in the batch. A mail may put, take, and close. Raises MailboxClosedError when CLOSED.
        """
        cdef size_t most = NO_BOUND if limit is None else as_bound("limit", limit, NO_BOUND)
        cdef size_t more = NO_BOUND if meanwhile is None else as_bound("meanwhile", meanwhile, NO_BOUND)
        cdef size_t ran = 0
        cdef bint leaving_around
        cdef mail_t* node
        check_owner(self)
        self.check_not_closed()
        leaving_around = self.leaving
        self.core.create_batch()
        if more != NO_BOUND:
            more += self.core.waiting()
            most = min(most, more)
        self.leaving = False
        try:
            while ran < most and not self.leaving:
                node = self.core.take_from_batch()
                if node == NULL:
                    break
                ran += 1
                bump(self.batch_runs, 1)
                if node.flags & PYTHON:
                    run_mail(handed_out(node))
                else:
                    node.release()
                    node.fn(node, True)
                if ran % BREATH == 0:
                    breathe()
                # A mail may fork.
                check_process(self)
        finally:
            # Whoever runs around this one was perhaps told to leave before it began.
            self.leaving |= leaving_around
        return ran

    def leave_batch(self):
        """Make `run_batch` return after the mail that it runs, from which this is called. Confined.

        The other mails remain in the batch. No effect outside of a `run_batch`.
        """
        check_owner(self)
        self.leaving = True

    @property
    def mails_run(self):
        """The mails that `run_batch` has run, with those that raised and one that is running. Thread-safe."""
        return self.batch_runs.load()

    def has_mail(self):
        """True if any mail waits, in the batch or outside. Confined. False when CLOSED."""
        check_owner(self)
        return self.core.has_mail()

    def drain(self):
        """Take all mails that were put before this call; a list, in the order in which takes would have
        returned them. Confined. An empty list when CLOSED.
        """
        check_owner(self)
        cdef MailList mails
        self.core.drain(mails)
        return all_handed_out(mails)

    def close(self):
        """Close the mailbox; returns every mail not taken, each exactly once, in take order. Confined.

        An armed wake-up is dropped. The second close returns an empty list.
        """
        check_owner(self)
        cdef void* armed = NULL
        cdef MailList mails
        self.core.close(mails, &armed)
        drop(armed)
        return all_handed_out(mails)

    # ---- confined: sleeping elsewhere

    def arm_wakeup(self, callback):
        """Arm a one-shot wake-up for a mailbox thread that sleeps outside of `take`. Confined.

        Returns False and arms nothing if a mail waits or the state is not OPEN. Otherwise the next put,
        put_all or quiesce, of any thread, calls `callback()` once, in its own thread, without a lock, after
        its mail is in; the callback must be safe to call there (`loop.call_soon_threadsafe`). Its exceptions
        go to `sys.unraisablehook`. Arming again replaces it; so no wake-up is lost, and each arming makes one
        call at most. A put that found an earlier arming and has not called it yet may call this one, early;
        the return value may then be True although mail waits.
        """
        cdef void* spare = NULL
        cdef void* own
        cdef bint armed
        check_owner(self)
        check_callback(callback)
        own = keep(callback)
        armed = self.core.arm(own, &spare)
        drop(spare)
        if not armed:
            drop(own)
        return armed

    # ---- inside

    cdef int visit_owned(self, visitor_t* visitor) noexcept:
        return self.core.visit(visit_reference, visitor)

    cdef void release_owned(self) noexcept:
        cdef void* armed = NULL
        cdef MailList left
        cdef mail_t* node
        self.core.close(left, &armed)
        drop(armed)
        while True:
            node = left.pop_first()
            if node == NULL:
                break
            let_go(node)

    cdef bint may_change_owner(self) except -1:
        return self.core.inbox().state() == OPEN and self.has_nothing_private()

    cdef bint has_nothing_private(self) noexcept:
        # Arrivals are shared, so they may wait for the next owner; what was fetched is the present owner's.
        return not self.core.any_fetched() and not self.core.inbox().parked()

    cdef int check_not_closed(self) except -1:
        if self.core.inbox().state() == CLOSED:
            raise MailboxClosedError(MailboxState(CLOSED))
        return 0

    cdef bint offer(self, Mail mail) except -1:
        return offered(self, mail)

    cdef state_t put_nodes(self, const chain_t& mails) noexcept nogil:
        """Puts claimed nodes of Mail objects, with a reference to each, and calls the armed wake-up.

        Any thread, with or without the GIL. Returns the state that decided; unless it is OPEN, claims and
        references stay the caller's.
        """
        return put_chain(self, mails)

    cdef Mail take_one(self, int priority, unsigned char skip):
        return taken(self, priority, skip)


# Functions, for a method of a class that may have subclasses is called through a pointer.

cdef inline state_t put_chain(TaskMailbox self, const chain_t& mails) noexcept nogil:
    cdef void* armed = NULL
    cdef state_t state = self.core.put(mails, &armed)
    if armed != NULL:
        with gil:
            call_back(armed)
    return state


cdef inline bint offered(TaskMailbox self, Mail mail) except -1:
    cdef chain_t chain
    check_process(self)
    if not claim_by_python(mail.node):
        raise ValueError(f"{mail!r} waits in a mailbox already")
    Py_INCREF(mail)
    chain.add(&mail.node)
    if put_chain(self, chain) == OPEN:
        return True
    mail.node.release()
    Py_DECREF(mail)
    return False


cdef inline int run_mail(Mail mail) except -1:
    if type(mail) is Mail:
        PyObject_Vectorcall(mail.fn, PyTuple_ITEMS(mail.args, 0), len(mail.args), NULL)
    else:
        # A subclass may have a `run` of its own, and so may each of its mails.
        mail.run()
    return 0


cdef inline Mail taken(TaskMailbox self, int priority, unsigned char skip):
    cdef state_t seen = OPEN
    cdef mail_t* node = self.core.take(priority, skip, &seen)
    return None if node == NULL else handed_out(node)
