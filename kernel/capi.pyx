"""The table of functions behind `include/pillarbox.h`, and those among them that need Python.

`table` is a capsule for `pillarbox_import()`. What the other functions do is `include/pillarbox_native.h` and
`include/pillarbox_native_queue.h`, in C++ without Python. Any thread, with the GIL or without, as the header
says of each.
"""

from cpython.pycapsule cimport PyCapsule_New
from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject

from pillarbox.kernel.collector cimport Collector, collected_t
from pillarbox.kernel.confined cimport is_owner
from pillarbox.kernel.gc_container cimport check_process, hide
from pillarbox.kernel.mail cimport Mail, handed_out, let_go, mail_t
from pillarbox.kernel.mailbox cimport TaskMailbox
from pillarbox.kernel.mailbox_core cimport Core
from pillarbox.kernel.resultqueue cimport QueueCore, ResultQueue
from pillarbox.kernel.waiting cimport call_back, drop, report


cdef extern from "Python.h":
    # Declared without an exception value: the caller looks at the null itself.
    PyObject* PyObject_Call(PyObject* function, PyObject* arguments, PyObject* keywords)
    PyObject* PyObject_CallMethodNoArgs(PyObject* object, PyObject* name)
    void Py_DECREF_RAW "Py_DECREF"(PyObject* reference)


cdef extern from "pillarbox_native.h" namespace "pillarbox::native" nogil:
    cdef struct python_t:
        void (*call_back)(void* callback)
        void (*drop)(void* reference)
        int (*run)(mail_t* mail)
        void (*let_go)(mail_t* mail)

    python_t python
    pillarbox_mailbox* handle_of(Core* core) noexcept
    pillarbox_collector* collector_handle_of "pillarbox::native::handle_of"(collected_t* node) noexcept
    void fill(pillarbox_functions& functions) noexcept

cdef extern from "pillarbox_native_queue.h" namespace "pillarbox::native" nogil:
    pillarbox_queue* queue_handle_of "pillarbox::native::handle_of"(QueueCore* queue) noexcept
    void fill_queues(pillarbox_functions& functions) noexcept


cdef str RUN = "run"


cdef void call_back_with_gil(void* callback) noexcept with gil:
    call_back(callback)


cdef void drop_with_gil(void* reference) noexcept with gil:
    drop(reference)


cdef void let_go_with_gil(mail_t* node) noexcept with gil:
    let_go(node)


cdef int run_with_gil(mail_t* node) noexcept with gil:
    cdef Mail mail = handed_out(node)
    cdef PyObject* answer
    if type(mail) is Mail:
        answer = PyObject_Call(<PyObject*>mail.fn, <PyObject*>mail.args, NULL)
    else:
        answer = PyObject_CallMethodNoArgs(<PyObject*>mail, <PyObject*>RUN)
    if answer != NULL:
        Py_DECREF_RAW(answer)
        return 0
    report(mail)
    return -1


cdef TaskMailbox as_mailbox(PyObject* mailbox):
    if not isinstance(<object>mailbox, TaskMailbox):
        raise TypeError(f"mailbox must be a TaskMailbox, not {<object>mailbox!r}")
    check_process(<TaskMailbox>mailbox)
    # Native code takes references out without the GIL: mails, and the wake-up that a put finds.
    hide(<TaskMailbox>mailbox)
    return <TaskMailbox>mailbox


cdef pillarbox_mailbox* of(PyObject* mailbox) except NULL with gil:
    return handle_of(&as_mailbox(mailbox).core)


cdef pillarbox_mailbox* begin_consuming(PyObject* mailbox, pillarbox_consumer* consumer) except NULL with gil:
    cdef TaskMailbox consumed = as_mailbox(mailbox)
    cdef bint owns = is_owner(consumed)
    cdef unsigned long long former = consumed.owner.load()
    cdef unsigned long ident = consumed.ident.load()
    if not owns:
        # As adopt, but in any state: the mailbox may be quiesced before a native thread has come to this.
        if not consumed.has_nothing_private() or not consumed.change_owner(former):
            consumed.wrong_thread()
    Py_INCREF(consumed)
    if not consumed.lent:
        consumed.lender_ident = ident
    consumed.lent = True
    consumer.mailbox = mailbox
    consumer.owner = <unsigned long>former
    return handle_of(&consumed.core)


cdef void end_consuming(pillarbox_consumer* consumer) noexcept with gil:
    consumed = <TaskMailbox>consumer.mailbox
    consumer.mailbox = NULL
    consumed.lent = False
    consumed.ident.store(consumed.lender_ident)
    consumed.owner.store(consumer.owner)
    Py_DECREF(consumed)


cdef pillarbox_queue* queue_of(PyObject* queue) except NULL with gil:
    if not isinstance(<object>queue, ResultQueue):
        raise TypeError(f"queue must be an OrderedQueue or UnorderedQueue, not {<object>queue!r}")
    if (<ResultQueue>queue).owner_completes:
        raise ValueError(
            f"queue must be one that any thread completes, not {<object>queue!r}: "
            "make it without owner_completes"
        )
    check_process(<ResultQueue>queue)
    # What native code gives it are references that come in, which the collector may overlook for a moment.
    return queue_handle_of(&(<ResultQueue>queue).core)


cdef pillarbox_collector* collector_of(PyObject* collector) except NULL with gil:
    if not isinstance(<object>collector, Collector) or (<Collector>collector).factory is None:
        raise TypeError(
            f"collector must be a Collector that a function was handed, not {<object>collector!r}"
        )
    as_mailbox(<PyObject*>(<Collector>collector).factory.mailbox)
    Py_INCREF(<object>collector)
    return collector_handle_of(&(<Collector>collector).node)


cdef pillarbox_functions functions

python.call_back = call_back_with_gil
python.drop = drop_with_gil
python.run = run_with_gil
python.let_go = let_go_with_gil
fill(functions)
fill_queues(functions)
functions.of = of
functions.begin_consuming = begin_consuming
functions.end_consuming = end_consuming
functions.queue_of = queue_of
functions.collector_of = collector_of

table = PyCapsule_New(&functions, "pillarbox.kernel.capi.table", NULL)
