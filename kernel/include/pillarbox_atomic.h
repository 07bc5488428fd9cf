// What more than one thread touches, in one place: the kernel's atomics go through `Atomic`.
//
// A build with PILLARBOX_SCHED takes `Atomic`, and the locks and sleeps of pillarbox_monitor.h, from a
// deterministic scheduler (`tests/native/pillarbox_sched.h`), which decides at each operation which thread
// goes on. `Counter` is for statistics, and for the length of a list, where an older one does no harm: schedules
// are not tried around it.
#pragma once

#include <atomic>
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

// Waits for a step of another thread that is in the middle of a few instructions.
inline void pause() noexcept { std::this_thread::yield(); }
#endif

using Counter = std::atomic<std::size_t>;

// Adds to a counter that only one thread writes, or only threads that hold one lock: others may read it.
inline void bump(Counter& counter, std::size_t by) noexcept {
    counter.store(counter.load(std::memory_order_relaxed) + by, std::memory_order_relaxed);
}

}  // namespace pillarbox
