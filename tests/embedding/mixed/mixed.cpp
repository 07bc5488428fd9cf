// Native threads and Python put into one TaskMailbox, which Python consumes, or a native thread.
#include <Python.h>

#include <pillarbox.h>

#include <atomic>
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

// counts(): how many of the native mails have run, and how many were dropped.
PyObject* counts(PyObject*, PyObject*) { return Py_BuildValue("ll", ran.load(), dropped.load()); }

PyMethodDef methods[] = {
    {"produce", produce, METH_VARARGS, "produce(mailbox, threads, each) -> how many mails were accepted"},
    {"consume", consume, METH_O, "consume(mailbox) -> how many mails were run until it was quiesced"},
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
