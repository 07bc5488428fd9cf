// Where threads of the kernel wait: a lock, a place to sleep under it, and a signal to sleep on without a lock.
//
// Every sleep ends by itself after the time that it was given (steady clock), and may end early; the caller
// looks again, so a wake-up without cause is harmless.
#pragma once

#include <chrono>
#include <climits>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "pillarbox_atomic.h"

// PILLARBOX_NO_FUTEX takes what every platform has, for tests of it.
#if defined(__linux__) && !defined(PILLARBOX_NO_FUTEX)
#define PILLARBOX_FUTEX
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <ctime>
#endif

namespace pillarbox {

// Seconds on a clock that never steps.
inline double steady_seconds() noexcept {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

#ifndef PILLARBOX_SCHED

class Lock {
public:
    void lock() noexcept { mutex_.lock(); }
    void unlock() noexcept { mutex_.unlock(); }

private:
    friend class Sleepers;
    std::mutex mutex_;
};

// One condition of one lock. Nobody is woken who does not sleep: `any()` is exact while the lock is held.
class Sleepers {
public:
    // Any thread that holds `lock`, once, and not the GIL. Gives the lock up while it sleeps.
    void sleep(Lock& lock, double seconds) {
        std::unique_lock<std::mutex> held(lock.mutex_, std::adopt_lock);
        ++sleeping_;
        condition_.wait_for(held, std::chrono::duration<double>(seconds));
        --sleeping_;
        held.release();
    }

    // Under the lock.
    bool any() const noexcept { return sleeping_ != 0; }

    // With or without the lock.
    void wake() noexcept { condition_.notify_all(); }

private:
    std::condition_variable condition_;
    int sleeping_ = 0;
};

// A number that counts wake-ups (an event count). One thread reads it, makes known that it is about to sleep,
// and sleeps if the number has not moved since; whoever has seen that it sleeps moves the number.
class Signal {
public:
    using value_t = std::uint32_t;

    // Relaxed is enough: the sleeper publishes, with release, that it is about to sleep after it has read
    // this; who acquires that moves the number later in its order of changes, so this read cannot see it.
    value_t value() const noexcept { return value_.load(std::memory_order_relaxed); }

    // Any thread, without the GIL.
    void wake() noexcept {
        value_.fetch_add(1, std::memory_order_relaxed);
        notify();
    }

#ifdef PILLARBOX_FUTEX
    void sleep(value_t seen, double seconds) noexcept {
        const auto whole = static_cast<std::time_t>(seconds);
        const timespec time{whole, static_cast<long>((seconds - static_cast<double>(whole)) * 1e9)};
        static_assert(sizeof(value_) == 4, "a futex is four bytes");
        syscall(SYS_futex, &value_, FUTEX_WAIT_PRIVATE, seen, &time, nullptr, 0);
    }

private:
    void notify() noexcept { syscall(SYS_futex, &value_, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0); }
#else
    void sleep(value_t seen, double seconds) {
        lock_.lock();
        if (value() == seen) sleepers_.sleep(lock_, seconds);
        lock_.unlock();
    }

private:
    // Under the lock, or a sleeper that has just compared the number would miss it.
    void notify() noexcept {
        lock_.lock();
        sleepers_.wake();
        lock_.unlock();
    }

    Lock lock_;
    Sleepers sleepers_;
#endif
    // Not 0, so that 0 can stand for none.
    std::atomic<value_t> value_{1};
};

#endif

}  // namespace pillarbox
