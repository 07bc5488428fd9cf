// A lock, and a place to sleep under it, as the Cython modules use them.
//
// `Sleepers` is one condition of one lock. A thread sleeps for at most the time it gives (steady clock)
// and then looks again by itself, so a wake-up without cause is harmless. Nobody is woken who does not
// sleep: `any()` is exact while the lock is held.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

namespace pillarbox {

class Lock {
public:
    void lock() noexcept { mutex_.lock(); }
    void unlock() noexcept { mutex_.unlock(); }

private:
    friend class Sleepers;
    std::mutex mutex_;
};

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

// Seconds on a clock that never steps.
inline double steady_seconds() noexcept {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace pillarbox
