"""Many objects of one class with slots at a time: copies of one, runs of such, one slot of all. Any thread.

To make an object, Python runs the class's `__init__`, a frame and a store for each slot: for one that
each row needs that is more than all that is done with it afterwards. A copy is one allocation. And a loop
that reads or sets a slot takes five bytecodes for each object, here one load or store.
"""

from cpython.list cimport PyList_CheckExact, PyList_New, PyList_SET_ITEM
from cpython.long cimport PyLong_CheckExact
from cpython.object cimport PyObject, PyTypeObject
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_CheckExact
from cpython.type cimport PyType_IsSubtype
from libcpp.vector cimport vector

cdef extern from *:
    """
    #include <structmember.h>

    // The bytes in front of a slot's reference in each object; -1 for a descriptor of another kind.
    static inline Py_ssize_t pillarbox_offset(PyObject* descriptor) {
        if (Py_TYPE(descriptor) != &PyMemberDescr_Type) return -1;
        PyMemberDef* member = reinterpret_cast<PyMemberDescrObject*>(descriptor)->d_member;
        return member->type == T_OBJECT_EX ? member->offset : -1;
    }

    static inline PyObject* pillarbox_new(PyTypeObject* kind) { return kind->tp_alloc(kind, 0); }

    // Puts a value into a slot; the former one ends afterwards, as that may run any code. Without a GIL as
    // Python itself does it: another thread may read the slot.
    static inline void pillarbox_exchange(PyObject* owner, Py_ssize_t offset, PyObject* value) {
        PyObject** const slot = reinterpret_cast<PyObject**>(reinterpret_cast<char*>(owner) + offset);
        PyObject* former;
        Py_XINCREF(value);
    #ifdef Py_GIL_DISABLED
        Py_BEGIN_CRITICAL_SECTION(owner);
        former = *slot;
        _Py_atomic_store_ptr_release(slot, value);
        Py_END_CRITICAL_SECTION();
    #else
        former = *slot;
        *slot = value;
    #endif
        Py_XDECREF(former);
    }
    """
    Py_ssize_t pillarbox_offset(object descriptor)
    object pillarbox_new(PyTypeObject* kind)
    void pillarbox_exchange(PyObject* owner, Py_ssize_t offset, PyObject* value)

cdef extern from "Python.h":
    PyTypeObject* Py_TYPE(object)
    PyObject** PySequence_Fast_ITEMS(object)
    Py_ssize_t PySequence_Fast_GET_SIZE(object)
    Py_ssize_t PyLong_AsSsize_t(object) except? -1
    void Py_XINCREF(PyObject*)


cdef inline PyObject** _at(PyObject* owner, Py_ssize_t offset) noexcept:
    return <PyObject**>(<char*>owner + offset)


cdef Py_ssize_t _offset_of(type kind, str slot) except -1:
    """The place of a slot in the objects of a class, in bytes. Raises TypeError."""
    for base in kind.__mro__:
        if slot in vars(base):
            offset = pillarbox_offset(vars(base)[slot])
            if offset >= 0:
                return offset
    raise TypeError(f"{kind.__name__} has no slot {slot!r}")


cdef inline int _check_kind(type kind, PyObject* each, PyTypeObject** last) except -1:
    """Raises TypeError for an object that is not of `kind`, nor of a class below. last: the one seen last."""
    if Py_TYPE(<object>each) != last[0]:
        last[0] = Py_TYPE(<object>each)
        if last[0] != <PyTypeObject*>kind and not PyType_IsSubtype(<type>last[0], kind):
            raise TypeError(f"must be objects of {kind.__name__}, not {type(<object>each).__name__}")
    return 0


cdef int _check_sequence(values) except -1:
    if not (PyList_CheckExact(values) or PyTuple_CheckExact(values)):
        raise TypeError(f"must be a list or a tuple, not {type(values).__name__}")
    return 0


cdef class Copier:
    """Copier(kind, slot)

    Makes copies of an object of class `kind`, whose objects have slots and nothing else. Raises TypeError for
    another class.

        >>> from pillarbox.kernel.alike import Copier
        >>> class Row:
        ...     __slots__ = ("table", "place")
        >>> row = Row()
        >>> row.table = "planes"
        >>> [(each.table, each.place) for each in Copier(Row, "place")(row, [7, 8])]
        [('planes', 7), ('planes', 8)]
    """

    cdef type kind
    cdef Py_ssize_t varying
    cdef vector[Py_ssize_t] others

    def __init__(self, type kind not None, str slot not None):
        self.kind = kind
        self.varying = _offset_of(kind, slot)
        self.others.clear()
        for base in kind.__mro__:
            for descriptor in vars(base).values():
                offset = pillarbox_offset(descriptor)
                if offset >= 0 and offset != self.varying:
                    self.others.push_back(offset)
        cdef Py_ssize_t size = <Py_ssize_t>(sizeof(PyObject) + (self.others.size() + 1) * sizeof(void*))
        # A place for weak references lies in front of the object from Python 3.12 on, and counts for no size.
        is_larger = kind.__basicsize__ != size or kind.__itemsize__
        if is_larger or kind.__dictoffset__ or kind.__weakrefoffset__:
            raise TypeError(f"{kind.__name__} has more than slots: a dict, weak references, or a base of C")

    def __call__(self, prototype, values):
        """Return copies of `prototype`, one for each value, which it has in the slot.

        prototype: of the very class. values: a list or a tuple, which nobody changes meanwhile.
        """
        if type(prototype) is not self.kind:
            raise TypeError(f"the prototype must be a {self.kind.__name__}, not {type(prototype).__name__}")
        _check_sequence(values)
        cdef Py_ssize_t count = PySequence_Fast_GET_SIZE(values), number
        cdef PyObject** given = PySequence_Fast_ITEMS(values)
        cdef PyTypeObject* kind = <PyTypeObject*>self.kind
        cdef PyObject* value
        cdef size_t other, most = self.others.size()
        cdef list made = PyList_New(count)
        for number in range(count):
            copy = pillarbox_new(kind)
            for other in range(most):
                value = _at(<PyObject*>prototype, self.others[other])[0]
                Py_XINCREF(value)
                _at(<PyObject*>copy, self.others[other])[0] = value
            value = given[number]
            Py_XINCREF(value)
            _at(<PyObject*>copy, self.varying)[0] = value
            Py_INCREF(copy)
            PyList_SET_ITEM(made, number, copy)
        return made


cdef class Slot:
    """Slot(kind, name)

    One slot of many objects of class `kind`, or of a class below it. Raises TypeError for a class without it.

        >>> from pillarbox.kernel.alike import Slot
        >>> class Row:
        ...     __slots__ = ("table", "place")
        >>> rows, place = [Row(), Row()], Slot(Row, "place")
        >>> place.put(rows, 7)
        >>> place.of(rows), place.holds(rows, 7)
        ([7, 7], True)
        >>> place.put_each(rows, [8, 9])
        >>> place.of(rows), place.holds(rows, 8)
        ([8, 9], False)

    Each method takes the objects as a list or a tuple, and raises TypeError for another, and where one of
    them is of another class; what stands before that one has been set then. While a method runs, no other
    thread sets the slots.
    """

    cdef type kind
    cdef Py_ssize_t offset

    def __init__(self, type kind not None, str name not None):
        self.kind = kind
        self.offset = _offset_of(kind, name)

    def of(self, objects):
        """Return the list of the values of the slot. Raises AttributeError where it is empty."""
        _check_sequence(objects)
        cdef Py_ssize_t count = PySequence_Fast_GET_SIZE(objects), number
        cdef PyObject** given = PySequence_Fast_ITEMS(objects)
        cdef PyObject* value
        cdef PyTypeObject* last = <PyTypeObject*>self.kind
        cdef list found = PyList_New(count)
        for number in range(count):
            _check_kind(self.kind, given[number], &last)
            value = _at(given[number], self.offset)[0]
            if value == NULL:
                raise AttributeError(f"object {number} of {count} has nothing in its slot")
            Py_XINCREF(value)
            PyList_SET_ITEM(found, number, <object>value)
        return found

    def holds(self, objects, value):
        """Return True if each has this very object in the slot."""
        _check_sequence(objects)
        cdef Py_ssize_t count = PySequence_Fast_GET_SIZE(objects), number
        cdef PyObject** given = PySequence_Fast_ITEMS(objects)
        cdef PyTypeObject* last = <PyTypeObject*>self.kind
        for number in range(count):
            _check_kind(self.kind, given[number], &last)
            if _at(given[number], self.offset)[0] != <PyObject*>value:
                return False
        return True

    def put(self, objects, value):
        """Put one value into the slot of each."""
        cdef PyTypeObject* last = <PyTypeObject*>self.kind
        cdef Py_ssize_t number = 0
        _check_sequence(objects)
        # What the former value's end runs may change the list.
        while number < PySequence_Fast_GET_SIZE(objects):
            _check_kind(self.kind, PySequence_Fast_ITEMS(objects)[number], &last)
            pillarbox_exchange(PySequence_Fast_ITEMS(objects)[number], self.offset, <PyObject*>value)
            number += 1

    def put_each(self, objects, values):
        """Put a value of its own into the slot of each.

        values: a list or a tuple of as many. Raises ValueError for another number of them.
        """
        cdef PyTypeObject* last = <PyTypeObject*>self.kind
        cdef Py_ssize_t number = 0
        _check_sequence(objects)
        _check_sequence(values)
        if PySequence_Fast_GET_SIZE(objects) != PySequence_Fast_GET_SIZE(values):
            raise ValueError(f"{len(values)} values for {len(objects)} objects: as many are needed")
        while number < PySequence_Fast_GET_SIZE(objects) and number < PySequence_Fast_GET_SIZE(values):
            _check_kind(self.kind, PySequence_Fast_ITEMS(objects)[number], &last)
            pillarbox_exchange(
                PySequence_Fast_ITEMS(objects)[number], self.offset, PySequence_Fast_ITEMS(values)[number]
            )
            number += 1


def apart(pairs):
    """Return the list of the first of each pair, and that of the second.

        >>> from pillarbox.kernel.alike import apart
        >>> apart([("a", 1), ("b", 2)])
        (['a', 'b'], [1, 2])

    pairs: a list or a tuple of tuples of two. Raises TypeError for another, and for another element.
    """
    _check_sequence(pairs)
    cdef Py_ssize_t count = PySequence_Fast_GET_SIZE(pairs), number
    cdef PyObject** given = PySequence_Fast_ITEMS(pairs)
    cdef PyObject** pair
    cdef list first = PyList_New(count), second = PyList_New(count)
    for number in range(count):
        each = <object>given[number]
        if not PyTuple_CheckExact(each) or PySequence_Fast_GET_SIZE(each) != 2:
            kind = type(each).__name__
            raise TypeError(f"element {number} of {count} must be a tuple of two, not a {kind}")
        pair = PySequence_Fast_ITEMS(each)
        Py_XINCREF(pair[0])
        PyList_SET_ITEM(first, number, <object>pair[0])
        Py_XINCREF(pair[1])
        PyList_SET_ITEM(second, number, <object>pair[1])
    return first, second


cdef class RunFinder:
    """RunFinder(kind, same, step)

    Finds which objects of class `kind`, or of a class below it, follow one another: those that have the same
    object in the slot `same`, and in `step` whole numbers of which each is one more than that before.

        >>> from pillarbox.kernel.alike import Copier, RunFinder
        >>> class Row:
        ...     __slots__ = ("table", "place")
        >>> row = Row()
        >>> row.table = "planes"
        >>> RunFinder(Row, "table", "place")(Copier(Row, "place")(row, [7, 8, 4]))
        [(0, 2), (2, 3)]
    """

    cdef type kind
    cdef Py_ssize_t same, step

    def __init__(self, type kind not None, str same not None, str step not None):
        self.kind = kind
        self.same, self.step = _offset_of(kind, same), _offset_of(kind, step)

    def __call__(self, objects):
        """Return the runs of `objects` in their order, each as its begin and its end.

        objects: a list or a tuple, which nobody changes meanwhile, nor the slots. Raises TypeError for an
        object of another class, or without a whole number, AttributeError where a slot has nothing.
        """
        _check_sequence(objects)
        cdef Py_ssize_t count = PySequence_Fast_GET_SIZE(objects), number, begin = 0, step, before = 0
        cdef PyObject** given = PySequence_Fast_ITEMS(objects)
        cdef PyTypeObject* last = <PyTypeObject*>self.kind
        cdef PyObject* same
        cdef PyObject* same_before = NULL
        cdef PyObject* at
        cdef list runs = []
        for number in range(count):
            _check_kind(self.kind, given[number], &last)
            same, at = _at(given[number], self.same)[0], _at(given[number], self.step)[0]
            if same == NULL or at == NULL:
                raise AttributeError(f"object {number} of {count} has nothing in its slot")
            if not PyLong_CheckExact(<object>at):
                raise TypeError(f"object {number} of {count} has no whole number, but {<object>at!r}")
            step = PyLong_AsSsize_t(<object>at)
            if number and (same != same_before or step != before + 1):
                runs.append((begin, number))
                begin = number
            same_before, before = same, step
        if count:
            runs.append((begin, count))
        return runs
