"""The mailbox of one task thread: any thread puts mail, one thread takes it.

Producers meet the consumer only in the inbox. The consumer fetches everything that has arrived in one step
and sorts it into lists that are its own: urgent mails, the current batch, and the backlog (what was fetched
after the batch was made). So a batch ends although mail keeps coming.
"""

from cpython.exc cimport PyErr_CheckSignals
from cpython.ref cimport Py_DECREF, Py_INCREF
from libcpp.atomic cimport memory_order_relaxed

from pillarbox.kernel.arguments cimport NO_BOUND, as_bound, check_callback
from pillarbox.kernel.confined cimport check_owner, is_owner
from pillarbox.kernel.inbox cimport CLOSED, OPEN, state_t
from pillarbox.kernel.mail cimport DEFERRABLE, LEAST_PRIORITY, URGENT, as_priority
from pillarbox.kernel.waiting cimport call_back, deadline_after, drop, keep, next_slice

from .counters import MailboxStatistics
from .errors import MailboxClosedError
from .states import MailboxState


cdef class TaskMailbox(Confined):
    """TaskMailbox(thread=None, *, urgent_burst=64)

    The mailbox thread is `thread` (a started threading.Thread or an ident), or else the thread that makes it.

    1. *A put that returns is never lost*: its mail is taken, drained, or returned by close, exactly once. A
       put that raises has left nothing behind. No put that begins after `quiesce()` has returned succeeds.
    2. Mails are taken in the order of their puts among those that the take accepts. A priority selects, it
       does not reorder. Urgent mails come first, but after `urgent_burst` of them in a row the next one
       taken is an ordinary one, if the take accepts one.
    3. A take that reports "no mail" had an instant in which there was none that it accepts.
    4. States go OPEN -> QUIESCED -> CLOSED, never back.

    Methods are *thread-safe* or *confined* to the mailbox thread; a confined one raises WrongThreadError
    elsewhere.
    """

    def __cinit__(self, thread=None, *, urgent_burst=64):
        if thread is not None:
            ident = getattr(thread, "ident", thread)
            if not isinstance(ident, int) or ident <= 0:
                raise ValueError(f"thread must be None, a started Thread or its ident, not {thread!r}")
            self.owner.store(ident)
        self.urgent_burst = as_bound("urgent_burst", urgent_burst, NO_BOUND)

    def __dealloc__(self):
        cdef void* armed = NULL
        cdef mail_t* node
        self.inbox.close(&armed)
        drop(armed)
        self.fetch()
        while True:
            node = self.next_node(LEAST_PRIORITY, 0, False)
            if node == NULL:
                break
            node.release()
            drop(node.arg)

    # ---- any thread: putting

    def put(self, Mail mail not None):
        """Puts a mail. Thread-safe. Raises MailboxClosedError, which holds the mail, unless the state is
        OPEN; ValueError if the mail waits in a mailbox already.
        """
        if not self.offer(mail):
            raise MailboxClosedError(self.state, mail)

    def try_put(self, Mail mail not None):
        """Puts a mail if the state is OPEN; returns whether. Thread-safe. ValueError as `put`."""
        return self.offer(mail)

    def put_all(self, mails):
        """Puts all of these mails or none: adjacent and in order. Thread-safe.

        Urgent ones among them are adjacent among the urgent. Raises MailboxClosedError, which holds the
        tuple of them, unless the state is OPEN; ValueError if one waits in a mailbox already or is named
        twice.
        """
        cdef tuple whole = tuple(mails)
        cdef Mail mail
        cdef mail_t* first = NULL
        cdef mail_t* last = NULL
        cdef Py_ssize_t claimed = 0
        for item in whole:
            if not isinstance(item, Mail):
                raise TypeError(f"mails must be Mail objects, not {item!r}")
        for item in whole:
            mail = <Mail>item
            if not mail.node.claim():
                unclaim(whole, claimed)
                raise ValueError(f"{mail!r} waits in a mailbox already or is named twice")
            claimed += 1
            mail.node.next = NULL
            if first == NULL:
                first = &mail.node
            else:
                last.next = &mail.node
            last = &mail.node
        for item in whole:
            Py_INCREF(item)
        if self.push_chain(first, last, <size_t>claimed):
            return
        unclaim(whole, claimed)
        for item in whole:
            Py_DECREF(item)
        raise MailboxClosedError(self.state, whole)

    # ---- any thread: ending and watching

    def quiesce(self):
        """OPEN becomes QUIESCED: takes no more mail in. Without effect in other states. Thread-safe.

        Wakes a waiting take and calls the armed wake-up.
        """
        cdef void* armed = NULL
        self.inbox.quiesce(&armed)
        if armed != NULL:
            call_back(armed)

    @property
    def state(self):
        """The MailboxState. Thread-safe."""
        return MailboxState(<int>self.inbox.state())

    @property
    def is_mailbox_thread(self):
        """Whether the calling thread is the mailbox thread. Thread-safe."""
        return is_owner(self)

    def check_is_mailbox_thread(self):
        """Raises WrongThreadError unless the calling thread is the mailbox thread. Thread-safe."""
        check_owner(self)

    def __len__(self):
        """Mails that wait, those of the batch included. Thread-safe. 0 when CLOSED."""
        if self.inbox.state() == CLOSED:
            return 0
        # Read in this order the difference cannot be negative: what is gone was accepted before.
        cdef size_t gone = self.gone.load()
        return <Py_ssize_t>(self.inbox.accepted() - gone)

    def statistics(self):
        """A frozen MailboxStatistics. Thread-safe."""
        cdef state_t state = self.inbox.state()
        cdef size_t batch = self.batch.count()
        cdef size_t waiting = <size_t>len(self)
        return MailboxStatistics(
            state=MailboxState(<int>state),
            batch=batch if state != CLOSED else 0,
            queued=waiting - batch if waiting > batch else 0,
            put=self.inbox.accepted(),
            taken=self.taken.load(memory_order_relaxed),
            urgent_taken=self.urgent_taken.load(memory_order_relaxed),
            rejected=self.inbox.rejected(),
        )

    # ---- confined: taking

    def try_take(self, p=LEAST_PRIORITY, *, skip_deferrable=False):
        """The first mail of priority `p` or higher, or None. Confined; does not block.

        With `skip_deferrable` deferrable mails stay where they are. Raises MailboxClosedError when CLOSED.
        """
        check_owner(self)
        if self.inbox.state() == CLOSED:
            raise MailboxClosedError(self.state)
        return self.take_one(as_priority(p), DEFERRABLE if skip_deferrable else 0, False)

    def take(self, p=LEAST_PRIORITY, timeout=None, *, skip_deferrable=False):
        """The first mail of priority `p` or higher; waits for it. Confined; blocks with the GIL released.

        Returns None when `timeout` seconds have passed (None: no limit). In QUIESCED raises
        MailboxClosedError at once if no mail is accepted, for no more can come; in CLOSED always. A signal
        is handled within 50 ms; what its handler raises (KeyboardInterrupt) ends the wait, and no mail is
        lost by it.
        """
        check_owner(self)
        cdef int priority = as_priority(p)
        cdef unsigned char skip = DEFERRABLE if skip_deferrable else 0
        cdef double deadline = deadline_after(timeout)
        cdef double seconds
        cdef state_t state
        while True:
            # The state is read before the mail is fetched: what was accepted while OPEN is then in what is
            # fetched.
            state = self.inbox.state()
            if state != CLOSED:
                mail = self.take_one(priority, skip, False)
                if mail is not None:
                    return mail
            if state != OPEN:
                raise MailboxClosedError(self.state)
            seconds = next_slice(deadline)
            if seconds <= 0.0:
                return None
            with nogil:
                self.inbox.park(seconds)
            PyErr_CheckSignals()

    def create_batch(self):
        """Makes everything put before this call the batch, behind what is left of the last one. Confined.

        Returns whether there is anything to take. Raises MailboxClosedError when CLOSED.
        """
        check_owner(self)
        if self.inbox.state() == CLOSED:
            raise MailboxClosedError(self.state)
        self.fetch()
        self.batch.append_all(self.backlog)
        return self.batch.count() != 0 or self.urgent.count() != 0

    def try_take_from_batch(self):
        """The next mail of the batch, or None when the batch is used up. Confined; does not block.

        A mail put after `create_batch` is not in the batch, an urgent one excepted. Raises
        MailboxClosedError when CLOSED.
        """
        check_owner(self)
        if self.inbox.state() == CLOSED:
            raise MailboxClosedError(self.state)
        return self.take_one(LEAST_PRIORITY, 0, True)

    def has_mail(self):
        """Whether any mail waits, in the batch or outside. Confined. False when CLOSED."""
        check_owner(self)
        return self.inbox.state() != CLOSED and len(self) != 0

    def drain(self):
        """Takes everything that was put before this call; a list, in the order in which takes would have
        given it. Confined. An empty list when CLOSED.
        """
        check_owner(self)
        cdef list mails = []
        if self.inbox.state() == CLOSED:
            return mails
        self.fetch()
        while True:
            node = self.next_node(LEAST_PRIORITY, 0, False)
            if node == NULL:
                return mails
            mails.append(self.hand_out(node))

    def close(self):
        """Becomes CLOSED; returns a list of every mail not taken, each exactly once, in take order. Confined.

        An armed wake-up is dropped. The second close returns an empty list.
        """
        check_owner(self)
        cdef void* armed = NULL
        cdef list mails = []
        cdef mail_t* node
        if self.inbox.state() == CLOSED:
            return mails
        self.inbox.close(&armed)
        drop(armed)
        self.fetch()
        while True:
            node = self.next_node(LEAST_PRIORITY, 0, False)
            if node == NULL:
                return mails
            mails.append(self.unlinked(node))

    # ---- confined: sleeping elsewhere

    def arm_wakeup(self, callback):
        """Arms a one-shot wake-up for a mailbox thread that sleeps elsewhere than in `take`. Confined.

        Returns False and arms nothing if a mail waits or the state is not OPEN. Otherwise the next put,
        put_all or quiesce, of any thread, calls `callback()` once, in its own thread, without a lock, after
        its mail is in; the callback must be safe to call there (`loop.call_soon_threadsafe`). What it
        raises goes to `sys.unraisablehook`. Arming again replaces it; so no wake-up is lost, and each
        arming gives one call at most.
        """
        cdef void* spare = NULL
        cdef bint armed
        check_owner(self)
        check_callback(callback)
        if self.urgent.count() or self.batch.count() or self.backlog.count():
            return False
        armed = self.inbox.arm(keep(callback), &spare)
        drop(spare)
        return armed

    # ---- inside

    cdef bint may_change_owner(self) except -1:
        # Arrivals are shared, so they may wait for the next owner; what was fetched is the present owner's.
        return (
            self.inbox.state() == OPEN
            and not (self.urgent.count() or self.batch.count() or self.backlog.count())
            and not self.inbox.parked()
        )

    cdef bint offer(self, Mail mail) except -1:
        if not mail.node.claim():
            raise ValueError(f"{mail!r} waits in a mailbox already")
        Py_INCREF(mail)
        mail.node.next = NULL
        if self.push_chain(&mail.node, &mail.node, 1):
            return True
        mail.node.release()
        Py_DECREF(mail)
        return False

    cdef int push_chain(self, mail_t* first, mail_t* last, size_t count) except -1:
        cdef void* armed = NULL
        if self.inbox.push(first, last, count, &armed) != OPEN:
            return False
        if armed != NULL:
            call_back(armed)
        return True

    cdef void fetch(self) noexcept:
        """Sorts what has arrived into the urgent list and the backlog."""
        cdef MailList arrived
        cdef mail_t* node
        if self.inbox.arrived() == 0:
            return
        self.inbox.fetch(arrived)
        while True:
            node = arrived.pop_first()
            if node == NULL:
                return
            if node.flags & URGENT:
                self.urgent.append(node)
            else:
                self.backlog.append(node)

    cdef mail_t* next_node(self, int priority, unsigned char skip, bint of_batch) noexcept:
        """Unlinks the mail that a take of this kind gets, or null. Looks only at what was fetched."""
        cdef mail_t* node = NULL
        cdef bint ordinary_first = self.urgent_in_a_row >= self.urgent_burst
        if not ordinary_first:
            node = self.urgent.pop(priority, skip)
        if node == NULL:
            node = self.batch.pop(priority, skip)
        if node == NULL and not of_batch:
            node = self.backlog.pop(priority, skip)
        if node == NULL and ordinary_first:
            node = self.urgent.pop(priority, skip)
        if node == NULL:
            return NULL
        if not node.flags & URGENT:
            self.urgent_in_a_row = 0
        elif not ordinary_first:
            self.urgent_in_a_row += 1
        return node

    cdef Mail take_one(self, int priority, unsigned char skip, bint of_batch):
        self.fetch()
        cdef mail_t* node = self.next_node(priority, skip, of_batch)
        return None if node == NULL else self.hand_out(node)

    cdef Mail hand_out(self, mail_t* node):
        # Only the mailbox thread writes these counters, so no read-modify-write instruction is needed.
        self.taken.store(self.taken.load(memory_order_relaxed) + 1, memory_order_relaxed)
        if node.flags & URGENT:
            self.urgent_taken.store(self.urgent_taken.load(memory_order_relaxed) + 1, memory_order_relaxed)
        return self.unlinked(node)

    cdef Mail unlinked(self, mail_t* node):
        self.gone.store(self.gone.load(memory_order_relaxed) + 1, memory_order_relaxed)
        mail = <Mail>node.arg
        node.release()
        Py_DECREF(mail)
        return mail


cdef void unclaim(tuple mails, Py_ssize_t count) noexcept:
    """Ends the claims on the first `count` of the mails."""
    cdef Py_ssize_t position
    for position in range(count):
        (<Mail>mails[position]).node.release()
