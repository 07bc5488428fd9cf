// What more than one thread touches, in one place: the kernel's atomics go through `Atomic`.
//
// A build with PILLARBOX_SCHED takes `Atomic`, and the locks and sleeps of pillarbox_monitor.h, from a
// deterministic scheduler (`tests/native/pillarbox_sched.h`), which decides at each operation which thread
// goes on and what a load sees. `Unscheduled` is for words around which it need not try that another thread goes on:
// statistics, the length of a list, and a word whose neighbour in the code is an `Atomic`.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <thread>


#ifdef PILLARBOX_SCHED
#include "pillarbox_sched.h"
#endif

namespace pillarbox {

#ifndef PILLARBOX_SCHED
template <class T>
using Atomic = std::atomic<T>;
template <class T>
using Unscheduled = std::atomic<T>;

// Waits for another thread that is in the middle of a few instructions, for the `turn`-th time, from 0 on. A
// thread of lower priority that was stopped there goes on only while this one sleeps.
inline void pause(int turn) noexcept {
    if (turn < 100) {
        std::this_thread::yield();
    } else {
        std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
}
#endif

using Counter = Unscheduled<std::size_t>;

// Adds to a counter that only one thread writes, or only threads that hold one lock: others may read it.
inline void bump(Counter& counter, std::size_t by) noexcept {
    counter.store(counter.load(std::memory_order_relaxed) + by, std::memory_order_relaxed);
}

}  // namespace pillarbox
