// Counts that one thread, their owner, writes, and of which any thread reads all of one moment.
//
// A version goes with them, odd while the owner changes them: who has read it even, and the same again after the
// counts, has read what belongs together. The owner never waits. A reader begins anew if a change came between,
// and lets others run while one is under way.
#pragma once

#include <atomic>
#include <cstdint>

#include "pillarbox_atomic.h"

namespace pillarbox {

// `NAMES` counts, named 0 to NAMES - 1.
template <int NAMES>
class OwnedCounts {
public:
    struct values_t {
        long long of[NAMES];
    };

    // Owner. Adds, as one change: `add(ADMITTED, 1)`, `add(TAKEN, 3, NOT_RUN, 2)`.
    template <class... More>
    void add(More... more) noexcept {
        change([&] { raise(more...); });
    }

    // Owner. `work()` changes whatever belongs together, counts of others too: those with release.
    template <class Work>
    void change(Work work) noexcept {
        const std::uint64_t now = version_.load(std::memory_order_relaxed);
        // Relaxed is enough: what follows is stored with release, so who sees it sees that the version is odd.
        version_.store(now + 1, std::memory_order_relaxed);
        work();
        version_.store(now + 2, std::memory_order_release);
    }

    // Owner, in a change.
    void raise() noexcept {}
    template <class... More>
    void raise(int name, long long by, More... more) noexcept {
        Atomic<long long>& value = values_[name];
        value.store(value.load(std::memory_order_relaxed) + by, std::memory_order_release);
        raise(more...);
    }

    // any. `also()` reads, with acquire, what belongs to the same moment and is not here. It may be called often.
    template <class Also>
    values_t read(Also also) const noexcept {
        values_t values;
        for (int turn = 0;; ++turn) {
            const std::uint64_t before = version_.load(std::memory_order_acquire);
            also();
            for (int name = 0; name < NAMES; ++name) {
                values.of[name] = values_[name].load(std::memory_order_acquire);
            }
            // Relaxed is enough: who has acquired a count sees the odd version that it was stored under.
            const std::uint64_t after = version_.load(std::memory_order_relaxed);
            if (before % 2 == 0 && after == before) return values;
            if (after % 2 != 0 || turn >= OFTEN) pause(turn);
        }
    }

private:
    // A reader that had to begin anew so many times gives way.
    static constexpr int OFTEN = 32;

    // No thread need go on between it and the count that is read or written next, or after that.
    Unscheduled<std::uint64_t> version_{0};
    Atomic<long long> values_[NAMES] = {};
};

}  // namespace pillarbox
