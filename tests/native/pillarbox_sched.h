// A deterministic scheduler: the kernel's atomics, locks and sleeps for builds with PILLARBOX_SCHED.
//
// The threads of a scenario are contexts on one operating-system thread. Each operation of `Atomic`, `Lock`,
// `Sleepers` and `Signal` first asks the scheduler who goes on, and then which of the stores that `weak_memory.h` allows
// it reads, so one list of answers is one schedule. A sleep does not end by time: when every thread that is left is
// blocked, a wake-up was lost. `schedules.h` tries the schedules of a scenario.
//
// A scenario's own variables are plain, as if one memory were all threads'. Where threads learn of each other by them
// they are `Told`: as if behind a lock. `Plain` stands for data that only the kernel's orders guard: two uses of it
// that no order puts one after the other end the schedule as a data race.
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

#include "weak_memory.h"

namespace pillarbox {
namespace sched {

constexpr std::size_t STACK_BYTES = 64 * 1024;
constexpr int LONGEST_SCHEDULE = 20000;  // points; a scenario that takes more goes round in circles

// What is chosen: the thread that goes on, of several that could, where 0 is the one that runs now, if it can; or the
// store that is read or followed, where 0 is the newest.
enum class Choice { PREEMPTION, SUCCESSOR, STORE };

class Scheduler {
public:
    // Gives a number below `options`.
    using Choose = std::function<int(int options, Choice choice)>;

    // Runs the bodies to their end. Returns what went wrong, or nothing.
    std::string run(const std::vector<std::function<void()>>& bodies, Choose choose) {
        choose_ = std::move(choose);
        failure_.clear();
        points_ = 0;
        running_ = -1;
        memory_.begin();
        threads_.resize(bodies.size());
        for (std::size_t number = 0; number < bodies.size(); ++number) {
            Thread& thread = threads_[number];
            thread.body = &bodies[number];
            thread.ended = thread.pausing = false;
            thread.can_go_on = nullptr;
            if (!thread.stack) thread.stack.reset(new char[STACK_BYTES]);
            getcontext(&thread.context);
            thread.context.uc_stack.ss_sp = thread.stack.get();
            thread.context.uc_stack.ss_size = STACK_BYTES;
            thread.context.uc_link = nullptr;
            makecontext(&thread.context, begin, 0);
        }
        while (failure_.empty() && choose_next()) {
            inside_ = true;
            swapcontext(&main_, &threads_[running_].context);
            inside_ = false;
        }
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

    // Goes on when another thread has made a step; or none can, and what others have stored comes to be seen.
    void pause() {
        if (!inside_) return;
        const int now = points_;
        const std::function<bool()> stepped = [this, now] { return points_ != now; };
        threads_[running_].pausing = true;
        give_up(&stepped);
        threads_[running_].pausing = false;
    }

    // Ends the schedule: something is wrong.
    void fail(const std::string& what) {
        failure_ = what;
        if (inside_) swapcontext(&threads_[running_].context, &main_);
    }

    // Of so many stores, the newest first, the one that the running thread reads or follows.
    int choose_store(int options) { return options == 1 ? 0 : choose_(options, Choice::STORE); }

    // False before and after the run, and while it is asked who can go on.
    bool inside() const { return inside_; }
    int running() const { return running_; }
    Memory& memory() { return memory_; }
    Knowledge& known() { return memory_.of(running_); }

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
        bool pausing = false;
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
        for (int number = 0; number < static_cast<int>(threads_.size()) && count == 0; ++number) {
            if (!threads_[number].ended && threads_[number].pausing) options[count++] = number;
        }
        if (count == 0) {
            if (left) failure_ = "every thread that is left sleeps: a wake-up was lost";
            return false;
        }
        if (++points_ > LONGEST_SCHEDULE) {
            failure_ = "the threads go round in circles";
            return false;
        }
        running_ = options[count == 1 ? 0 : choose_(count, same ? Choice::PREEMPTION : Choice::SUCCESSOR)];
        return true;
    }

    ucontext_t main_;
    Memory memory_;
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
inline void expect(bool right, const char* what) {
    if (!right) Scheduler::the().fail(what);
}
inline void fence(std::memory_order order) {
    Scheduler& scheduler = Scheduler::the();
    scheduler.point();
    if (scheduler.inside()) scheduler.memory().fence(scheduler.running(), order);
}

// A variable of a scenario by which its threads learn of each other, as if behind a lock.
template <class T>
class Told {
public:
    Told(T value = T()) : value_(value) {}
    operator T() const {
        if (Scheduler::the().inside()) Scheduler::the().known().learns(view_, true);
        return value_;
    }
    Told& operator=(T value) {
        value_ = value;
        if (Scheduler::the().inside()) view_.join(Scheduler::the().known().now);
        return *this;
    }
    Told& operator+=(T by) { return *this = *this + by; }
    Told& operator++() { return *this += 1; }

private:
    T value_;
    View view_;
};

// Goes on when the variable has another value, and knows what whoever changed it knew.
template <class T>
void await_change(const Told<T>& variable, T before) {
    block([&variable, before] { return variable != before; });
    static_cast<void>(static_cast<T>(variable));
}

// Data that nothing but the kernel's orders guards: of a scenario, and `Watched` data of the kernel.
class Plain {
public:
    // The running thread has it alone.
    void use() {
        after(written_), after(read_);
        note(written_);
    }
    void read() const {
        after(written_);
        note(read_);
    }

private:
    using Clocks = std::array<stamp_t, MAX_THREADS>;

    static void after(const Clocks& uses) {
        Scheduler& scheduler = Scheduler::the();
        for (std::size_t other = 0; scheduler.inside() && other < MAX_THREADS; ++other) {
            expect(scheduler.known().now.of[other] >= uses[other],
                   "a data race: nothing orders two uses of what was handed on");
        }
    }
    static void note(Clocks& uses) {
        Scheduler& scheduler = Scheduler::the();
        if (!scheduler.inside()) return;
        const auto me = static_cast<std::size_t>(scheduler.running());
        scheduler.known().sees(scheduler.running(), scheduler.known().now.of[me] + 1);
        uses[me] = scheduler.known().now.of[me];
    }

    Clocks written_{};
    mutable Clocks read_{};
};

}  // namespace sched

inline void pause(int) { sched::Scheduler::the().pause(); }

// As std::atomic, with a point before each operation, unless it has no POINTS.
template <class T, bool POINTS = true>
class ScheduledAtomic {
public:
    ScheduledAtomic(T value = T()) : history_(value) {}
    ScheduledAtomic(const ScheduledAtomic&) = delete;

    T load(std::memory_order order = std::memory_order_seq_cst) const {
        sched::Scheduler& scheduler = at_point();
        if (!scheduler.inside()) return history_.newest();
        return history_.load(scheduler.memory(), scheduler.running(), order, choose);
    }
    void store(T value, std::memory_order order = std::memory_order_seq_cst) {
        sched::Scheduler& scheduler = at_point();
        if (!scheduler.inside()) return history_.reset(value);
        history_.store(value, scheduler.memory(), scheduler.running(), order, choose);
    }
    T exchange(T value, std::memory_order order = std::memory_order_seq_cst) {
        return change([value](T) { return value; }, order);
    }
    bool compare_exchange_strong(T& seen, T next, std::memory_order order = std::memory_order_seq_cst,
                                 std::memory_order failed = std::memory_order_seq_cst) {
        const auto [changed, found] = try_change(
            [&](T now, T* value) {
                *value = next;
                return now == seen;
            },
            order, failed);
        if (!changed) seen = found;
        return changed;
    }
    bool compare_exchange_weak(T& seen, T next, std::memory_order order = std::memory_order_seq_cst,
                               std::memory_order failed = std::memory_order_seq_cst) {
        return compare_exchange_strong(seen, next, order, failed);
    }
    T fetch_add(T by, std::memory_order order = std::memory_order_seq_cst) {
        return change([by](T now) { return now + by; }, order);
    }
    T fetch_sub(T by, std::memory_order order = std::memory_order_seq_cst) {
        return change([by](T now) { return now - by; }, order);
    }
    T fetch_and(T bits, std::memory_order order = std::memory_order_seq_cst) {
        return change([bits](T now) { return now & bits; }, order);
    }
    T fetch_or(T bits, std::memory_order order = std::memory_order_seq_cst) {
        return change([bits](T now) { return now | bits; }, order);
    }

    // The newest store that the running thread knows of, and that it is told of one by the system.
    sched::stamp_t newest_known() { return scheduler().known().now.of[location()]; }
    void told(sched::stamp_t stamp) { scheduler().known().sees(static_cast<int>(location()), stamp); }

private:
    static int choose(int options) { return scheduler().choose_store(options); }
    static sched::Scheduler& scheduler() { return sched::Scheduler::the(); }
    static sched::Scheduler& at_point() {
        if (POINTS) sched::point();
        return scheduler();
    }
    std::size_t location() { return static_cast<std::size_t>(history_.location(scheduler().memory())); }

    template <class Next>
    T change(Next next, std::memory_order order) {
        const auto always = [&](T now, T* value) {
            *value = static_cast<T>(next(now));
            return true;
        };
        return try_change(always, order, order).second;
    }
    template <class Next>
    std::pair<bool, T> try_change(Next next, std::memory_order order, std::memory_order failed) {
        sched::Scheduler& scheduler = at_point();
        if (scheduler.inside()) {
            return history_.change(next, scheduler.memory(), scheduler.running(), order, failed, choose);
        }
        T value{};
        const T seen = history_.newest();
        const bool changes = next(seen, &value);
        if (changes) history_.reset(value);
        return {changes, seen};
    }

    mutable sched::History<T> history_;
};

// What is not atomic in the kernel, where `spec/headers.py` puts it in its place.
template <class T>
class Watched {
public:
    Watched(T value = T()) : value_(value) {}
    operator T() const {
        uses_.read();
        return value_;
    }
    Watched& operator=(T value) {
        uses_.use();
        value_ = value;
        return *this;
    }

private:
    T value_;
    sched::Plain uses_;
};

template <class T>
using Atomic = ScheduledAtomic<T>;
template <class T>
using Unscheduled = ScheduledAtomic<T, false>;

class Lock {
public:
    void lock() {
        sched::point();
        take();
    }
    void unlock() {
        give();
        sched::point();
    }

private:
    friend class Sleepers;
    void take() {
        if (held_) sched::block([this] { return !held_; });
        held_ = true;
        static_cast<void>(static_cast<int>(holders_));
    }
    void give() {
        ++holders_;
        held_ = false;
    }

    bool held_ = false;
    sched::Told<int> holders_;  // so far: each knows what those before it knew
};

class Sleepers {
public:
    void sleep(Lock& lock, double) {
        ++sleeping_;
        const unsigned before = wakes_;
        lock.give();
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

    value_t value() const {
        sched::point();
        return value_.load(std::memory_order_relaxed);
    }
    void wake() {
        sched::about_to_wake();
        sched::point();
        value_.fetch_add(1, std::memory_order_relaxed);
        sched::point();
        if (sched::Scheduler::the().inside()) moved_ = std::max(moved_, value_.newest_known());
        ++wakes_;
    }
    void sleep(value_t seen, double) {
        sched::point();
        // Comparing and falling asleep are one step, as the system's futex makes them: who sleeps after a wake-up
        // sees the number that it was for. It learns nothing else, neither here nor when it wakes.
        if (sched::Scheduler::the().inside()) value_.told(moved_);
        if (value_.load(std::memory_order_relaxed) != seen) return;
        const unsigned before = wakes_;
        sched::block([this, before] { return wakes_ != before; });
    }

private:
    Unscheduled<value_t> value_{1};
    sched::stamp_t moved_ = 0;  // the newest number that a wake-up was for
    unsigned wakes_ = 0;
};

}  // namespace pillarbox
