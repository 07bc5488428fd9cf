"""One mail: a function, its arguments, and how urgently it wants to be taken.

Any thread may make a mail and put it; what a mail says does not change afterwards. Who takes it runs it.
"""

from cpython.long cimport PyLong_AsLongAndOverflow

from pillarbox.kernel.waiting cimport drop

MIN_PRIORITY = LEAST_PRIORITY
MAX_PRIORITY = GREATEST_PRIORITY


cdef class Mail:
    """Mail(fn, *args, priority=0, urgent=False, deferrable=False, description=None)

    Function call that any thread puts into a `TaskMailbox` and the mailbox thread runs.

        >>> from pillarbox.kernel import Mail, TaskMailbox
        >>> mailbox = TaskMailbox()
        >>> mailbox.put(Mail(print, "hello", description="a greeting"))
        >>> mail = mailbox.take()
        >>> mail.description, mail.priority
        ('a greeting', 0)
        >>> mail.run()
        hello

    1. `run()` calls `fn(*args)`; the mailbox itself never does.
    2. `priority` selects: a take names the least priority that it accepts. MIN_PRIORITY (-1) to MAX_PRIORITY.
    3. An `urgent` mail is taken before all mails that are not urgent.
    4. A `deferrable` mail is skipped by a take that asks for that, as the yields of an executor do, and by
       nothing else.
    5. `description`, a str or a function that returns one, is for messages; a function is called only then.
    6. A mail waits in one mailbox at a time. After it was taken it may be put again.

    Any thread may make and put one. Raises TypeError if `fn` is not callable or `description` neither str nor
    callable, ValueError for a priority out of range.
    """

    def __cinit__(self):
        self.node.object = <void*>self
        self.node.flags = PYTHON

    def __init__(self, fn, *args, priority=0, urgent=False, deferrable=False, description=None):
        if not callable(fn):
            raise TypeError(f"fn must be callable, not {fn!r}")
        if description is not None and not isinstance(description, str) and not callable(description):
            raise TypeError(f"description must be None, a str or a function giving one, not {description!r}")
        # What runs foreign code comes before the claim.
        cdef int least = as_priority(priority)
        cdef unsigned char flags = (URGENT if urgent else 0) | (DEFERRABLE if deferrable else 0)
        # A second __init__ of a mail that waits would change what the mailbox has sorted already.
        if not claim_by_python(self.node):
            raise ValueError(f"{self!r} waits in a mailbox and cannot be changed")
        replaced = (self.fn, self.args, self._description)
        self.node.priority = least
        self.node.flags = PYTHON | flags
        self.fn = fn
        self.args = args
        self._description = description
        self.node.release()
        # Released here: what a `__del__` puts must find the mail whole.
        del replaced

    def run(self):
        """Call the function with its arguments; returns its result, raises its error."""
        return self.fn(*self.args)

    @property
    def priority(self):
        """The priority, MIN_PRIORITY to MAX_PRIORITY."""
        return self.node.priority

    @property
    def urgent(self):
        """True if the mail comes before all that are not urgent."""
        return (self.node.flags & URGENT) != 0

    @property
    def deferrable(self):
        """True if a take may be asked to skip the mail."""
        return (self.node.flags & DEFERRABLE) != 0

    @property
    def description(self):
        """The subject of the mail: the description it was given, or the name of its function."""
        if self._description is None:
            return str(getattr(self.fn, "__qualname__", self.fn))
        return str(self._description() if callable(self._description) else self._description)

    def __repr__(self):
        try:
            what = self.description
        except Exception as error:
            what = f"description raised {error!r}"
        extra = f", priority={self.node.priority}" if self.node.priority else ""
        extra += ", urgent" if self.urgent else ""
        extra += ", deferrable" if self.deferrable else ""
        return f"<Mail {what}{extra}>"


cdef class NativeCall:
    """The function of a mail that a native thread has put, as Python gets it: called without arguments, once.

    Made by the mailbox only. One that is dropped without a call tells the native side, which lets go of what
    it holds.
    """

    def __init__(self):
        raise TypeError("a NativeCall is made by a mailbox out of what a native thread has put")

    def __dealloc__(self):
        if self.node != NULL:
            self.node.fn(self.node, False)

    def __call__(self):
        cdef mail_t* node = self.node
        if node == NULL:
            raise RuntimeError("this native mail has run already")
        self.node = NULL
        node.fn(node, True)

    def __repr__(self):
        return "<NativeCall, has run>" if self.node == NULL else f"<NativeCall {<size_t>self.node.fn:#x}>"


cdef Mail handed_out_native(mail_t* node):
    """A Mail that calls what a native thread has put, and owns it."""
    cdef NativeCall call = NativeCall.__new__(NativeCall)
    cdef Mail mail
    node.release()
    call.node = node
    mail = Mail(call)
    mail.node.priority = node.priority
    mail.node.flags = PYTHON | node.flags
    return mail


cdef void let_go(mail_t* node) noexcept:
    """Drops an unlinked mail that nobody will run."""
    node.release()
    if node.flags & PYTHON:
        drop(node.object)
    else:
        node.fn(node, False)


cdef list all_handed_out(MailList& nodes):
    cdef list mails = []
    cdef mail_t* node
    while True:
        node = nodes.pop_first()
        if node == NULL:
            return mails
        mails.append(handed_out(node))


cdef void unclaim(tuple mails, Py_ssize_t count) noexcept:
    """Ends the claims on the first `count` of the mails."""
    cdef Py_ssize_t position
    for position in range(count):
        (<Mail>mails[position]).node.release()


cdef int as_priority(object priority) except? -2:
    """The priority as a C int; TypeError if it is not an int, ValueError if it is out of range."""
    cdef int overflow = 0
    cdef long value
    if not isinstance(priority, int):
        raise TypeError(f"priority must be an int, not {priority!r}")
    value = PyLong_AsLongAndOverflow(priority, &overflow)
    if overflow or value < LEAST_PRIORITY or value > GREATEST_PRIORITY:
        raise ValueError(f"priority must be {LEAST_PRIORITY} to {GREATEST_PRIORITY}, not {priority!r}")
    return <int>value
