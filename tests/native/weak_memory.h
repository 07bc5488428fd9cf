// Memory as C++ promises it to the threads of a scenario: a load may see an older store than the newest one.
//
// Each atomic keeps its stores in their modification order. A thread has a view: of each atomic the oldest store that it
// may still read, and of each thread how far it knows what that one did. A release leaves the view of its thread with
// the store, an acquire joins that of the store that it reads to its own, a read-modify-write passes on what it has
// read. Which of the stores a load reads, and where in the modification order a store goes, the scheduler chooses; the
// first choice is the newest, so a schedule without other choices is sequentially consistent.
//
// This is C++20's model, but for one thing: no load sees a store that comes later in the schedule (a cycle of loads and
// stores that depend on each other; no processor of today shows one to code with acquire or release around it).
// A release sequence is continued by read-modify-writes only. Views are those of Kang et al. ("A Promising Semantics
// for Relaxed-Memory Concurrency", 2017), without promises.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

namespace pillarbox::sched {

using stamp_t = std::uint32_t;
constexpr int MAX_THREADS = 8;
constexpr int MAX_LOCATIONS = 64;    // threads among them
constexpr int MAX_CHOICES = 10;      // of the stores that a load may read, the newest
constexpr stamp_t STAMP_STEP = 4096;  // so many stores fit between two

constexpr bool acquires(std::memory_order order) {
    return order == std::memory_order_acquire || order == std::memory_order_consume ||
           order == std::memory_order_acq_rel || order == std::memory_order_seq_cst;
}
constexpr bool releases(std::memory_order order) {
    return order == std::memory_order_release || order == std::memory_order_acq_rel ||
           order == std::memory_order_seq_cst;
}

// By location the stamp of the oldest store that may be read. The first locations are the threads' clocks.
struct View {
    std::array<stamp_t, MAX_LOCATIONS> of{};

    void join(const View& other) {
        for (std::size_t place = 0; place < of.size(); ++place) of[place] = std::max(of[place], other.of[place]);
    }
};

// What a thread knows: now, after an acquire fence, and at its last release fence.
struct Knowledge {
    View now, acquired, released;

    void sees(int location, stamp_t stamp) {
        for (View* view : {&now, &acquired}) {
            stamp_t& seen = view->of[static_cast<std::size_t>(location)];
            seen = std::max(seen, stamp);
        }
    }
    void learns(const View& of_store, bool at_once) {
        acquired.join(of_store);
        if (at_once) now.join(of_store);
    }
    // What a store of this order leaves to those that acquire it.
    const View& leaves(std::memory_order order) const { return releases(order) ? now : released; }
};

// What all threads of one run know.
class Memory {
public:
    // Before the atomics of a scenario are used.
    void begin() {
        locations_ = MAX_THREADS;
        in_order_ = View{};
        for (Knowledge& one : threads_) one = Knowledge{};
    }
    int new_location() {
        if (locations_ == MAX_LOCATIONS) std::puts("more atomics than MAX_LOCATIONS"), std::abort();
        return locations_++;
    }
    Knowledge& of(int thread) { return threads_[thread]; }
    // What has come before in the one order of all that is sequentially consistent.
    View& in_order() { return in_order_; }

    void fence(int thread, std::memory_order order) {
        Knowledge& me = of(thread);
        if (acquires(order)) me.now.join(me.acquired);
        if (order == std::memory_order_seq_cst) {
            me.now.join(in_order_);
            me.acquired.join(in_order_);
            in_order_.join(me.now);
        }
        if (releases(order)) me.released = me.now;
    }

private:
    int locations_ = MAX_THREADS;
    View in_order_;
    Knowledge threads_[MAX_THREADS];
};

// The stores of one atomic.
template <class T>
class History {
public:
    explicit History(T value) { stores_.push_back({value, 0, false, View{}}); }

    // Outside of a run there is one thread, and what it does comes before all that follows.
    T newest() const { return stores_.back().value; }
    void reset(T value) {
        stores_.back().value = value;
        stores_.erase(stores_.begin(), stores_.end() - 1);
    }

    // `choose(n)` gives a number below n; 0 stands for the newest.
    template <class Choose>
    T load(Memory& memory, int thread, std::memory_order order, Choose choose) {
        const int floor = oldest_readable(memory, thread, order);
        const int count = std::min(static_cast<int>(stores_.size()) - floor, MAX_CHOICES);
        return read(memory, thread, order, last() - choose(count));
    }

    template <class Choose>
    void store(T value, Memory& memory, int thread, std::memory_order order, Choose choose) {
        int places[MAX_CHOICES];
        int count = 0;
        for (int place = last(), floor = oldest_readable(memory, thread, order); place >= floor && count < MAX_CHOICES;
             --place) {
            if (!stores_[at(place)].continued && room_after(place)) places[count++] = place;
        }
        insert(places[choose(count)], value, View{}, memory, thread, order);
    }

    // `next(seen, &value)` says whether `value` replaces what is seen; otherwise it is a load of the order `failed`.
    template <class Next, class Choose>
    std::pair<bool, T> change(Next next, Memory& memory, int thread, std::memory_order order, std::memory_order failed,
                              Choose choose) {
        int places[MAX_CHOICES];
        int count = 0;
        T value{};
        for (int place = last(), floor = oldest_readable(memory, thread, order); place >= floor && count < MAX_CHOICES;
             --place) {
            // Nothing comes between a read-modify-write and what it has read.
            const bool changes = next(stores_[at(place)].value, &value);
            if (!changes || (!stores_[at(place)].continued && room_after(place))) places[count++] = place;
        }
        const int place = places[choose(count)];
        const bool changes = next(stores_[at(place)].value, &value);
        const T seen = read(memory, thread, changes ? order : failed, place);
        if (changes) {
            const View passed_on = stores_[at(place)].view;
            stores_[at(place)].continued = true;
            insert(place, value, passed_on, memory, thread, order);
        }
        return {changes, seen};
    }

    int location(Memory& memory) {
        if (location_ < 0) location_ = memory.new_location();
        return location_;
    }

private:
    struct Store {
        T value;
        stamp_t stamp;
        bool continued;  // a read-modify-write has read it, and is the next one
        View view;       // what who acquires it learns
    };

    static std::size_t at(int place) { return static_cast<std::size_t>(place); }
    int last() const { return static_cast<int>(stores_.size()) - 1; }

    int oldest_readable(Memory& memory, int thread, std::memory_order order) {
        const std::size_t here = at(location(memory));
        stamp_t floor = memory.of(thread).now.of[here];
        if (order == std::memory_order_seq_cst) floor = std::max(floor, memory.in_order().of[here]);
        int place = last();
        while (place > 0 && stores_[at(place)].stamp > floor) --place;
        return place;
    }

    bool room_after(int place) const {
        return place == last() || stores_[at(place + 1)].stamp - stores_[at(place)].stamp > 1;
    }

    T read(Memory& memory, int thread, std::memory_order order, int place) {
        const Store& store = stores_[at(place)];
        Knowledge& me = memory.of(thread);
        me.sees(location_, store.stamp);
        me.learns(store.view, acquires(order));
        note_order(memory, order, store.stamp);
        return store.value;
    }

    void insert(int place, T value, const View& passed_on, Memory& memory, int thread, std::memory_order order) {
        const stamp_t before = stores_[at(place)].stamp;
        const stamp_t stamp =
            place == last() ? before + STAMP_STEP : before + (stores_[at(place + 1)].stamp - before) / 2;
        Knowledge& me = memory.of(thread);
        me.sees(location_, stamp);
        note_order(memory, order, stamp);
        Store store{value, stamp, false, passed_on};
        store.view.join(me.leaves(order));
        store.view.of[at(location_)] = std::max(store.view.of[at(location_)], stamp);
        stores_.insert(stores_.begin() + place + 1, store);
    }

    void note_order(Memory& memory, std::memory_order order, stamp_t stamp) {
        if (order != std::memory_order_seq_cst) return;
        stamp_t& known = memory.in_order().of[at(location_)];
        known = std::max(known, stamp);
    }

    std::vector<Store> stores_;
    int location_ = -1;  // numbered when it is first used in a run
};

}  // namespace pillarbox::sched
