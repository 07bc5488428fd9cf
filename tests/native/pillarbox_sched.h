// A deterministic scheduler: the kernel's atomics, locks and sleeps for builds with PILLARBOX_SCHED.
//
// The threads of a scenario are contexts on one operating-system thread. Each operation of `Atomic`, `Lock`,
// `Sleepers` and `Signal` first asks the scheduler who goes on, so one list of answers is one schedule. A sleep
// does not end by time: when every thread that is left is blocked, a wake-up was lost. Memory is sequentially
// consistent here; weaker orders are for ThreadSanitizer. `schedules.h` tries the schedules of a scenario.
//
// The idea of trying schedules with few preemptions first is Musuvathi and Qadeer's ("Iterative Context Bounding
// for Systematic Testing of Multithreaded Programs", 2007).
#pragma once

#include <ucontext.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace pillarbox {
namespace sched {

constexpr std::size_t STACK_BYTES = 64 * 1024;
constexpr int LONGEST_SCHEDULE = 20000;  // points; a scenario that takes more goes round in circles

class Scheduler {
public:
    // Gives, of `options` threads that could go on, the one that does; 0 is the one that runs now, if it can go on.
    using Choose = std::function<int(int options, bool running_can_go_on)>;

    // Runs the bodies to their end. Returns what went wrong, or nothing.
    std::string run(const std::vector<std::function<void()>>& bodies, Choose choose) {
        choose_ = std::move(choose);
        failure_.clear();
        points_ = 0;
        running_ = -1;
        threads_.resize(bodies.size());
        for (std::size_t number = 0; number < bodies.size(); ++number) {
            Thread& thread = threads_[number];
            thread.body = &bodies[number];
            thread.ended = false;
            thread.can_go_on = nullptr;
            if (!thread.stack) thread.stack.reset(new char[STACK_BYTES]);
            getcontext(&thread.context);
            thread.context.uc_stack.ss_sp = thread.stack.get();
            thread.context.uc_stack.ss_size = STACK_BYTES;
            thread.context.uc_link = nullptr;
            makecontext(&thread.context, begin, 0);
        }
        inside_ = true;
        while (failure_.empty() && choose_next()) swapcontext(&main_, &threads_[running_].context);
        inside_ = false;
        before_wake = nullptr;
        return failure_;
    }

    // A place at which another thread may go on.
    void point() {
        if (inside_) give_up(nullptr);
    }

    // Goes on only when `can_go_on` says so.
    void block(const std::function<bool()>& can_go_on) {
        if (inside_) give_up(&can_go_on);
    }

    // Ends the schedule: something is wrong.
    void fail(const std::string& what) {
        failure_ = what;
        if (inside_) swapcontext(&threads_[running_].context, &main_);
    }

    int running() const { return running_; }
    int points() const { return points_; }

    // A scenario may stall the thread that is about to wake somebody: called, in that thread, before each wake-up.
    std::function<void()> before_wake;

    static Scheduler& the() {
        static Scheduler scheduler;
        return scheduler;
    }

private:
    struct Thread {
        ucontext_t context;
        std::unique_ptr<char[]> stack;
        const std::function<void()>* body = nullptr;
        const std::function<bool()>* can_go_on = nullptr;  // null: it can
        bool ended = false;
    };

    static void begin() {
        Scheduler& scheduler = the();
        (*scheduler.threads_[scheduler.running_].body)();
        scheduler.threads_[scheduler.running_].ended = true;
        swapcontext(&scheduler.threads_[scheduler.running_].context, &scheduler.main_);
    }

    void give_up(const std::function<bool()>* can_go_on) {
        Thread& thread = threads_[running_];
        thread.can_go_on = can_go_on;
        swapcontext(&thread.context, &main_);
        thread.can_go_on = nullptr;
    }

    bool ready(int number) const {
        const Thread& thread = threads_[number];
        return !thread.ended && (thread.can_go_on == nullptr || (*thread.can_go_on)());
    }

    bool choose_next() {
        int options[64];
        int count = 0;
        const bool same = running_ >= 0 && ready(running_);
        if (same) options[count++] = running_;
        bool left = false;
        for (int number = 0; number < static_cast<int>(threads_.size()); ++number) {
            left = left || !threads_[number].ended;
            if (number != running_ && ready(number)) options[count++] = number;
        }
        if (count == 0) {
            if (left) failure_ = "every thread that is left sleeps: a wake-up was lost";
            return false;
        }
        if (++points_ > LONGEST_SCHEDULE) {
            failure_ = "the threads go round in circles";
            return false;
        }
        running_ = options[count == 1 ? 0 : choose_(count, same)];
        return true;
    }

    ucontext_t main_;
    std::vector<Thread> threads_;
    Choose choose_;
    std::string failure_;
    int points_ = 0;
    int running_ = -1;
    bool inside_ = false;
};

inline void point() { Scheduler::the().point(); }
inline void about_to_wake() {
    point();
    if (Scheduler::the().before_wake) Scheduler::the().before_wake();
}
inline void block(const std::function<bool()>& can_go_on) { Scheduler::the().block(can_go_on); }

}  // namespace sched

// Until another thread has made a step.
inline void pause(int) {
    const int now = sched::Scheduler::the().points();
    sched::block([now] { return sched::Scheduler::the().points() != now; });
}

// As std::atomic, with a point before each operation. The memory orders are ignored.
template <class T>
class Atomic {
public:
    Atomic(T value = T()) : value_(value) {}
    Atomic(const Atomic&) = delete;

    T load(std::memory_order = std::memory_order_seq_cst) const { return at_point(); }
    void store(T value, std::memory_order = std::memory_order_seq_cst) { at_point() = value; }
    T exchange(T value, std::memory_order = std::memory_order_seq_cst) {
        T& now = at_point();
        const T before = now;
        now = value;
        return before;
    }
    bool compare_exchange_strong(T& seen, T next, std::memory_order = std::memory_order_seq_cst,
                                 std::memory_order = std::memory_order_seq_cst) {
        T& now = at_point();
        if (now == seen) {
            now = next;
            return true;
        }
        seen = now;
        return false;
    }
    bool compare_exchange_weak(T& seen, T next, std::memory_order = std::memory_order_seq_cst,
                               std::memory_order = std::memory_order_seq_cst) {
        return compare_exchange_strong(seen, next);
    }
    T fetch_add(T by, std::memory_order = std::memory_order_seq_cst) { return change([by](T now) { return now + by; }); }
    T fetch_sub(T by, std::memory_order = std::memory_order_seq_cst) { return change([by](T now) { return now - by; }); }
    T fetch_and(T bits, std::memory_order = std::memory_order_seq_cst) {
        return change([bits](T now) { return now & bits; });
    }
    T fetch_or(T bits, std::memory_order = std::memory_order_seq_cst) {
        return change([bits](T now) { return now | bits; });
    }

private:
    T& at_point() const {
        sched::point();
        return value_;
    }
    template <class Change>
    T change(Change next) {
        T& now = at_point();
        const T before = now;
        now = static_cast<T>(next(now));
        return before;
    }

    mutable T value_;
};

class Lock {
public:
    void lock() {
        sched::point();
        take();
    }
    void unlock() {
        held_ = false;
        sched::point();
    }

private:
    friend class Sleepers;
    void take() {
        if (held_) sched::block([this] { return !held_; });
        held_ = true;
    }

    bool held_ = false;
};

class Sleepers {
public:
    void sleep(Lock& lock, double) {
        ++sleeping_;
        const unsigned before = wakes_;
        lock.held_ = false;
        sched::block([this, before] { return wakes_ != before; });
        lock.take();
        --sleeping_;
    }
    bool any() const { return sleeping_ != 0; }
    void wake() {
        sched::about_to_wake();
        ++wakes_;
    }

private:
    unsigned wakes_ = 0;
    int sleeping_ = 0;
};

class Signal {
public:
    using value_t = std::uint32_t;

    value_t value() const { return value_.load(); }
    void wake() {
        sched::about_to_wake();
        value_.fetch_add(1);
        sched::point();
        ++wakes_;
    }
    void sleep(value_t seen, double) {
        // Comparing and falling asleep are one step, as the kernel's futex makes them.
        if (value_.load() != seen) return;
        const unsigned before = wakes_;
        sched::block([this, before] { return wakes_ != before; });
    }

private:
    Atomic<value_t> value_{1};
    unsigned wakes_ = 0;
};

}  // namespace pillarbox
