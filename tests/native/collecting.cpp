// Native threads that complete the calls of a Python function: none of them holds the GIL. Loaded by
// `test_collecting.py` as a library.
#include <Python.h>

#include <pillarbox.h>

#include <atomic>
#include <thread>
#include <vector>

namespace {

std::atomic<int> made{0}, let_go{0};

struct answer_t {
    long number;
};

// With the GIL where it is wanted: a number below 0 fails the attempt.
PyObject* make(void* payload, bool wanted) {
    answer_t* const answer = static_cast<answer_t*>(payload);
    const long number = answer->number;
    delete answer;
    ++(wanted ? made : let_go);
    if (!wanted) return nullptr;
    if (number < 0) {
        PyErr_Format(PyExc_ValueError, "%ld is below 0", number);
        return nullptr;
    }
    return PyLong_FromLong(number);
}

struct run_t {
    std::atomic<bool> begin{false};
    std::atomic<int> first{0}, without_gil{0};
    std::vector<std::thread> threads;
};

}  // namespace

extern "C" {

// Each handle is completed by a thread of its own, with its number; all of them begin when they are joined, or at once.
void* start(const pillarbox_functions* api, void* const* handles, const long* numbers, int count, bool at_once) {
    run_t* const run = new run_t;
    run->begin = at_once;
    for (int i = 0; i < count; ++i) {
        auto* const handle = static_cast<pillarbox_collector*>(handles[i]);
        const long number = numbers[i];
        run->threads.emplace_back([=] {
            while (!run->begin) std::this_thread::yield();
            run->without_gil += !PyGILState_Check();
            run->first += api->collect(handle, new answer_t{number}, make);
        });
    }
    return run;
}

// Without the GIL. Returns how many came first.
int join(void* started, int* without_gil) {
    run_t* const run = static_cast<run_t*>(started);
    run->begin = true;
    for (std::thread& thread : run->threads) thread.join();
    const int first = run->first;
    *without_gil = run->without_gil;
    delete run;
    return first;
}

int made_so_far() { return made; }
int let_go_so_far() { return let_go; }

}  // extern "C"
