// What more than one thread touches, in one place: the kernel's atomics go through `Atomic`.
//
// A build with PILLARBOX_SCHED takes `Atomic`, and the locks and sleeps of pillarbox_monitor.h, from a
// deterministic scheduler (`tests/native/pillarbox_sched.h`), which decides at each operation which thread
// goes on. `Counter` is for statistics, and for the length of a list, where an older one does no harm: schedules
// are not tried around it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <thread>

#include "pillarbox_defects.h"

#ifdef PILLARBOX_SCHED
#include "pillarbox_sched.h"
#endif

namespace pillarbox {

#ifndef PILLARBOX_SCHED
template <class T>
using Atomic = std::atomic<T>;

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

using Counter = std::atomic<std::size_t>;

// Adds to a counter that only one thread writes, or only threads that hold one lock: others may read it.
inline void bump(Counter& counter, std::size_t by) noexcept {
    counter.store(counter.load(std::memory_order_relaxed) + by, std::memory_order_relaxed);
}

}  // namespace pillarbox
