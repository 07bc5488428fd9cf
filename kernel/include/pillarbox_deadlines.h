// Deadlines without Python: timers that are armed for a number of seconds, and come out in the order in
// which they are due.
//
// Confined to one thread, but for what is marked "any". Nothing needs the GIL, nothing runs foreign code,
// and nothing releases a payload: a payload is a pointer that the deadlines own from `arm` to the call that
// hands it out. The clock is the caller's: it says what time it is.
//
// Timers of equal length are due in the order of their arming, because the clock does not go back. So every
// length has a lane, a list that is only appended to and is sorted by itself, and the first timers of all
// lanes are in a heap. What is armed behind another, or cancelled from behind another, costs a constant;
// the rest costs the logarithm of the number of different lengths.
//
// A handle is the number of the arming above the number of the slot in which the timer waits. A slot knows
// the arming that it serves, so handles of timers that are gone need no other check.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <new>
#include <unordered_map>
#include <vector>

#include "pillarbox_atomic.h"
#include "pillarbox_slots.h"

namespace pillarbox {

class Deadlines {
public:
    // At most so many timers wait.
    static constexpr int MOST = 1 << 28;

    Deadlines() noexcept : timers_(MOST) {}
    Deadlines(const Deadlines&) = delete;
    Deadlines& operator=(const Deadlines&) = delete;

    // Tells what the clock reads, in seconds, finite. Returns the time: the latest that was ever told.
    double tell(double reading) noexcept {
        if (reading > now_) now_ = reading;
        return now_;
    }

    // Arms a timer that is due `seconds` after the time told last; finite, 0 or more. Returns its handle,
    // which is not negative. Throws bad_alloc, and has changed nothing.
    std::int64_t arm(double seconds, void* payload) {
        timers_.make_room();
        lane_t& lane = lane_of(seconds);
        // From here on nothing fails.
        const int slot = timers_.take();
        const timer_t timer{now_ + seconds, ++armed_, payload, &lane, lane.last, NONE};
        timers_[slot] = timer;
        (lane.last == NONE ? lane.first : timers_[lane.last].next) = slot;
        lane.last = slot;
        if (lane.first == slot) enter_heap(timer);
        bump(size_, 1);
        return handle_of(timer.armed, slot);
    }

    // Takes a timer back: true, and its payload is the caller's. False if the handle is not that of a timer
    // that waits.
    bool cancel(std::int64_t handle, void** payload) noexcept {
        const int slot = static_cast<int>(handle & (MOST - 1));
        if (handle < 0 || !timers_.exists(slot)) return false;
        const timer_t& timer = timers_[slot];
        if (timer.lane == nullptr || handle_of(timer.armed, slot) != handle) return false;
        *payload = timer.payload;
        remove(slot);
        return true;
    }

    // Takes out the timer that is due first, if that is at `until` or before: true, and its payload is the
    // caller's. Of two that are due at once the one that was armed first.
    bool pop(double until, void** payload) noexcept {
        if (heap_.empty() || heap_[0].due > until) return false;
        const int slot = heap_[0].lane->first;
        *payload = timers_[slot].payload;
        remove(slot);
        return true;
    }

    // Looks at the timer that is due first, which stays. False if there is none.
    bool peek(void** payload, double* due) const noexcept {
        if (heap_.empty()) return false;
        *payload = timers_[heap_[0].lane->first].payload;
        *due = heap_[0].due;
        return true;
    }

    // How many timers are due at `until` or before; stops to count at `most`.
    std::size_t count_due(double until, std::size_t most) const noexcept { return count(0, until, most); }

    // Calls `each` with every payload owned, in no order, until an answer is not 0, which it returns.
    // `each` must not use the deadlines. For the collection of garbage.
    int visit(int (*each)(void* payload, void* context), void* context) const noexcept {
        int answer = 0;
        for (const first_t& first : heap_) {
            for (int slot = first.lane->first; slot != NONE && answer == 0; slot = timers_[slot].next) {
                answer = each(timers_[slot].payload, context);
            }
        }
        return answer;
    }

    // Calls `release` for every payload owned, which is no longer owned then.
    void let_go(void (*release)(void*)) noexcept {
        void* payload = nullptr;
        while (pop(NEVER, &payload)) release(payload);
    }

    // any. Timers that wait.
    std::size_t size() const noexcept { return size_.load(std::memory_order_relaxed); }

    // any. When the first timer is due; infinity if there is none. Seen by another thread it may be an
    // older one. Relaxed is enough: the number alone is looked at, nothing is reached through it.
    double next_due() const noexcept { return next_due_.load(std::memory_order_relaxed); }

    // Bytes allocated for timers and for what finds them, without the overhead of the allocator.
    std::size_t bytes() const noexcept {
        return timers_.bytes() + heap_.capacity() * sizeof(first_t) +
               lanes_.bucket_count() * sizeof(void*) +
               lanes_.size() * (sizeof(lanes_t::value_type) + sizeof(void*));
    }

private:
    static constexpr int NONE = -1;
    static constexpr int SLOT_BITS = 28;
    static constexpr double NEVER = std::numeric_limits<double>::infinity();
    // No less is given back.
    static constexpr std::size_t SMALL = 64;
    static_assert(MOST == 1 << SLOT_BITS, "a handle holds the number of any slot");

    // All of one length, in the order of their arming.
    struct lane_t {
        double seconds;
        int first = NONE;
        int last = NONE;
        std::size_t place = 0;  // in the heap, unless the lane is empty
    };

    struct timer_t {
        double due;
        std::uint64_t armed;  // counted over the life of the deadlines
        void* payload;
        lane_t* lane;  // null in a slot that is free
        int previous;  // in the lane
        int next;
    };

    // The first timer of a lane.
    struct first_t {
        double due;
        std::uint64_t armed;
        lane_t* lane;

        bool before(const first_t& other) const noexcept {
            return due < other.due || (due == other.due && armed < other.armed);
        }
    };

    using lanes_t = std::unordered_map<double, lane_t>;

    // The upper bits of a long-lived count are cut off: a handle that has been kept through 2 to the 35
    // armings may be taken for that of another timer.
    static std::int64_t handle_of(std::uint64_t armed, int slot) noexcept {
        return static_cast<std::int64_t>((armed << SLOT_BITS | static_cast<std::uint64_t>(slot)) &
                                         static_cast<std::uint64_t>(INT64_MAX));
    }

    // The lane for a length, made if there is none, and room for its first timer in the heap. Throws
    // bad_alloc.
    lane_t& lane_of(double seconds) {
        if (heap_.size() == heap_.capacity()) heap_.reserve(2 * heap_.size() + 1);
        lane_t& lane = lanes_.try_emplace(seconds, lane_t{seconds}).first->second;
        if (idle_ == &lane) idle_ = nullptr;
        return lane;
    }

    void remove(int slot) noexcept {
        timer_t& timer = timers_[slot];
        lane_t& lane = *timer.lane;
        (timer.previous == NONE ? lane.first : timers_[timer.previous].next) = timer.next;
        (timer.next == NONE ? lane.last : timers_[timer.next].previous) = timer.previous;
        timer.lane = nullptr;
        if (lane.first == NONE) {
            leave_heap(lane.place);
            retire(lane);
        } else if (timer.previous == NONE) {
            const timer_t& first = timers_[lane.first];
            sink(lane.place, {first.due, first.armed, &lane});
            note_next();
        }
        timers_.give_back(slot);
        size_.store(size() - 1, std::memory_order_relaxed);
    }

    // Keeps one empty lane, so that timers of one length that come one at a time find it.
    void retire(lane_t& lane) noexcept {
        if (idle_ != nullptr) {
            const double seconds = idle_->seconds;
            lanes_.erase(seconds);
        }
        idle_ = &lane;
        if (lanes_.bucket_count() > SMALL && lanes_.size() < lanes_.bucket_count() / 4) {
            try {
                lanes_.rehash(lanes_.size() * 2);
            } catch (const std::bad_alloc&) {
                // It stays large.
            }
        }
    }

    // ---- the heap: no first timer is due before the one above it, at (place - 1) / 2

    void enter_heap(const timer_t& timer) noexcept {
        heap_.push_back({});
        rise(heap_.size() - 1, {timer.due, timer.armed, timer.lane});
        note_next();
    }

    void leave_heap(std::size_t place) noexcept {
        const first_t moved = heap_.back();
        heap_.pop_back();
        if (place < heap_.size()) {
            if (place > 0 && moved.before(heap_[(place - 1) / 2])) {
                rise(place, moved);
            } else {
                sink(place, moved);
            }
        }
        note_next();
        if (heap_.capacity() > SMALL && heap_.size() < heap_.capacity() / 4) {
            try {
                std::vector<first_t> smaller;
                smaller.reserve(heap_.capacity() / 2);
                smaller.assign(heap_.begin(), heap_.end());
                heap_.swap(smaller);
            } catch (const std::bad_alloc&) {
                // It stays large.
            }
        }
    }

    // Puts `first` at the free place, or above it.
    void rise(std::size_t place, const first_t first) noexcept {
        while (place > 0 && first.before(heap_[(place - 1) / 2])) {
            put(place, heap_[(place - 1) / 2]);
            place = (place - 1) / 2;
        }
        put(place, first);
    }

    // Puts `first` at the free place, or below it.
    void sink(std::size_t place, const first_t first) noexcept {
        for (std::size_t below = 2 * place + 1; below < heap_.size(); below = 2 * place + 1) {
            if (below + 1 < heap_.size() && heap_[below + 1].before(heap_[below])) ++below;
            if (!heap_[below].before(first)) break;
            put(place, heap_[below]);
            place = below;
        }
        put(place, first);
    }

    void put(std::size_t place, const first_t first) noexcept {
        heap_[place] = first;
        first.lane->place = place;
    }

    // Of the first timers at `place` and below it, and of those behind them in their lanes.
    std::size_t count(std::size_t place, double until, std::size_t most) const noexcept {
        if (most == 0 || place >= heap_.size() || heap_[place].due > until) return 0;
        std::size_t found = 0;
        for (int slot = heap_[place].lane->first; found < most && slot != NONE; slot = timers_[slot].next) {
            if (timers_[slot].due > until) break;
            ++found;
        }
        found += count(2 * place + 1, until, most - found);
        return found + count(2 * place + 2, until, most - found);
    }

    // Relaxed: see `next_due`.
    void note_next() noexcept {
        next_due_.store(heap_.empty() ? NEVER : heap_[0].due, std::memory_order_relaxed);
    }

    Slots<timer_t> timers_;
    lanes_t lanes_;
    std::vector<first_t> heap_;
    lane_t* idle_ = nullptr;  // the empty lane, if there is one
    double now_ = -NEVER;
    std::uint64_t armed_ = 0;
    Counter size_{0};
    Atomic<double> next_due_{NEVER};
};

}  // namespace pillarbox
