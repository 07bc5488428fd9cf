// Native threads and Python put into one TaskMailbox, which Python consumes, or a native thread.
#include <Python.h>

#include <pillarbox.h>

#include <atomic>
#include <functional>
#include <thread>
#include <vector>

namespace {

std::atomic<long> ran{0}, dropped{0};

void arrived(void*, bool run) { (run ? ran : dropped) += 1; }

struct Unlocked {  // lets other Python threads run until the end of its block
    PyThreadState* state = PyEval_SaveThread();
    ~Unlocked() { PyEval_RestoreThread(state); }
};

struct Locked {  // takes the GIL in a thread that Python does not know
    PyGILState_STATE state = PyGILState_Ensure();
    ~Locked() { PyGILState_Release(state); }
};

// produce(mailbox, threads, each): how many mails were accepted.
PyObject* produce(PyObject*, PyObject* args) {
    PyObject* object;
    int threads;
    long each;
    if (!PyArg_ParseTuple(args, "Oil", &object, &threads, &each)) return nullptr;
    // The arguments keep the TaskMailbox alive until all threads are joined.
    pillarbox_mailbox* const mailbox = pillarbox_api->of(object);
    if (mailbox == nullptr) return nullptr;
    std::atomic<long> accepted{0};
    {
        Unlocked unlocked;
        std::vector<std::thread> producers;
        for (int i = 0; i < threads; ++i) {
            producers.emplace_back([&] {
                for (long n = 0; n < each; ++n) {
                    accepted += pillarbox_api->post(mailbox, arrived, nullptr, 0, 0) == PILLARBOX_OPEN;
                }
            });
        }
        for (std::thread& producer : producers) producer.join();
    }
    return PyLong_FromLong(accepted);
}

// consume(mailbox): runs all mail in a native thread until the mailbox is quiesced; how many mails.
PyObject* consume(PyObject*, PyObject* object) {
    long taken = 0;
    bool begun = false;
    {
        Unlocked unlocked;
        std::thread([&] {
            pillarbox_consumer consumer;
            pillarbox_mailbox* mailbox;
            {
                Locked locked;
                mailbox = pillarbox_api->begin_consuming(object, &consumer);
                // An error belongs to the thread that it came up in.
                if (mailbox == nullptr) PyErr_Print();
            }
            begun = mailbox != nullptr;
            if (!begun) return;
            const int any = PILLARBOX_MIN_PRIORITY;
            while (pillarbox_mail* mail = pillarbox_api->take(mailbox, any, 0, -1, nullptr)) {
                // Takes the GIL for a mail that Python has put, and only then.
                pillarbox_api->run(mail);
                taken += 1 + static_cast<long>(pillarbox_api->run_batch(mailbox));
            }
            Locked locked;
            pillarbox_api->end_consuming(&consumer);
        }).join();
    }
    return begun ? PyLong_FromLong(taken) : PyErr_Format(PyExc_RuntimeError, "the mailbox is not to be had");
}

// complete(queue, handles, results): gives each entry its result, in native threads that do not hold the GIL; how many
// have won.
PyObject* complete(PyObject*, PyObject* args) {
    PyObject *object, *handles, *results;
    if (!PyArg_ParseTuple(args, "OO!O!", &object, &PyTuple_Type, &handles, &PyTuple_Type, &results)) return nullptr;
    pillarbox_queue* const queue = pillarbox_api->queue_of(object);
    if (queue == nullptr) return nullptr;
    struct Call {
        int64_t handle;
        PyObject* result;
        bool won;
    };
    std::vector<Call> calls;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(handles); ++i) {
        const int64_t handle = PyLong_AsLongLong(PyTuple_GET_ITEM(handles, i));
        PyObject* const result = PyTuple_GetItem(results, i);
        if (PyErr_Occurred() != nullptr || result == nullptr) return nullptr;
        calls.push_back({handle, result, false});
    }
    // Twice: of two threads that complete an entry one wins. Each gives a reference of its own.
    std::vector<Call> again = calls;
    for (const Call& call : calls) {
        Py_INCREF(call.result);
        Py_INCREF(call.result);
    }
    const auto complete_all = [queue](std::vector<Call>& some) {
        for (Call& call : some) call.won = pillarbox_api->complete(queue, call.handle, call.result);
    };
    {
        Unlocked unlocked;
        std::thread one(complete_all, std::ref(calls)), other(complete_all, std::ref(again));
        one.join();
        other.join();
    }
    long won = 0;
    for (const std::vector<Call>& some : {calls, again}) {
        for (const Call& call : some) {
            won += call.won;
            if (!call.won) Py_DECREF(call.result);
        }
    }
    return PyLong_FromLong(won);
}

// counts(): how many of the native mails have run, and how many were dropped.
PyObject* counts(PyObject*, PyObject*) { return Py_BuildValue("ll", ran.load(), dropped.load()); }

PyMethodDef methods[] = {
    {"produce", produce, METH_VARARGS, "produce(mailbox, threads, each) -> how many mails were accepted"},
    {"consume", consume, METH_O, "consume(mailbox) -> how many mails were run until it was quiesced"},
    {"complete", complete, METH_VARARGS, "complete(queue, handles, results) -> how many completions have won"},
    {"counts", counts, METH_NOARGS, "counts() -> how many native mails have run, and were dropped"},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "mixed", "Native and Python mail in one mailbox", -1, methods,
    nullptr, nullptr, nullptr, nullptr,
};

}  // namespace

PyMODINIT_FUNC PyInit_mixed() {
    if (pillarbox_import() < 0) return nullptr;
    return PyModule_Create(&definition);
}
