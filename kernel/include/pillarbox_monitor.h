// Where threads of the kernel wait: a lock, a place to sleep under it, and a signal to sleep on without a lock.
//
// Every sleep ends by itself after the time that it was given (steady clock), and may end early; the caller
// looks again, so a wake-up without cause is harmless.
#pragma once

#include <algorithm>
#include <chrono>
#include <climits>
#include <cstdint>
#include <mutex>

#include "pillarbox_atomic.h"

#ifdef __linux__
#include <pthread.h>

#include <ctime>
#else
#include <condition_variable>
#endif

// PILLARBOX_NO_FUTEX takes what every platform has, for tests of it.
#if defined(__linux__) && !defined(PILLARBOX_NO_FUTEX)
#define PILLARBOX_FUTEX
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace pillarbox {

// Seconds on a clock that never steps.
inline double steady_seconds() noexcept {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

#ifndef PILLARBOX_SCHED

// A condition whose waits end by the steady clock. Those of std::condition_variable end by the wall clock, which steps,
// where the C library has no pthread_cond_clockwait: glibc before 2.30, for which wheels are built, and musl.
#ifdef __linux__
class Condition {
public:
    Condition() noexcept {
        pthread_condattr_t attributes;
        pthread_condattr_init(&attributes);
        pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
        pthread_cond_init(&condition_, &attributes);
        pthread_condattr_destroy(&attributes);
    }
    ~Condition() { pthread_cond_destroy(&condition_); }
    Condition(const Condition&) = delete;
    Condition& operator=(const Condition&) = delete;

    void wait_for(std::unique_lock<std::mutex>& held, double seconds) {
        const double bounded = std::clamp(seconds, 0.0, 1e9);
        const auto whole = static_cast<std::time_t>(bounded);
        timespec end{};
        clock_gettime(CLOCK_MONOTONIC, &end);
        end.tv_sec += whole;
        end.tv_nsec += static_cast<long>((bounded - static_cast<double>(whole)) * 1e9);
        if (end.tv_nsec >= 1'000'000'000) {
            ++end.tv_sec;
            end.tv_nsec -= 1'000'000'000;
        }
        pthread_cond_timedwait(&condition_, held.mutex()->native_handle(), &end);
    }

    void notify_all() noexcept { pthread_cond_broadcast(&condition_); }

private:
    pthread_cond_t condition_;
};
#else
class Condition {
public:
    void wait_for(std::unique_lock<std::mutex>& held, double seconds) {
        condition_.wait_for(held, std::chrono::duration<double>(seconds));
    }

    void notify_all() noexcept { condition_.notify_all(); }

private:
    std::condition_variable condition_;
};
#endif

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
        condition_.wait_for(held, seconds);
        --sleeping_;
        held.release();
    }

    // Under the lock.
    bool any() const noexcept { return sleeping_ != 0; }

    // With or without the lock.
    void wake() noexcept { condition_.notify_all(); }

private:
    Condition condition_;
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
