// The counts of a result queue: one thread, the owner, writes them, and any thread reads all of one moment.
//
// A version goes with them, odd while the owner writes: who has read it even, and the same again after the
// counts, has read what belongs together. Nothing here is a lock: a writer never waits, and a reader only for
// a writer that stands between its two steps.
#pragma once

#include <atomic>

#include "pillarbox_atomic.h"
#include "pillarbox_entry.h"

namespace pillarbox {

class QueueCounts {
public:
    // What only grows. A count that can fall is the difference of two of these.
    enum Name {
        ADMITTED,   // elements, restored ones included
        WATERMARKS,
        EMITTED,
        TAKEN,      // by clear and close, out of slots
        RENEWED,
        NOT_RUN,    // elements that were restored with their results, or were taken without one
        TO_RESTORE,
        RESTORED,   // admitted
        DROPPED,    // taken by clear and close before they were admitted
        NAMES
    };

    struct values_t {
        long long of[NAMES];

        int size() const noexcept {
            return static_cast<int>(of[ADMITTED] + of[WATERMARKS] - of[EMITTED] - of[TAKEN]);
        }
        std::size_t restoring() const noexcept {
            return static_cast<std::size_t>(of[TO_RESTORE] - of[RESTORED] - of[DROPPED]);
        }
    };

    // Owner. Adds, as one change: `add(ADMITTED, 1)`, `add(TAKEN, 3, NOT_RUN, 2)`.
    template <class... More>
    void add(More... more) noexcept {
        const unsigned now = version_.load(std::memory_order_relaxed);
        // Relaxed is enough: each count is stored with release after it, so who sees one sees that it is odd.
        version_.store(now + 1, std::memory_order_relaxed);
        add_each(more...);
        version_.store(now + 2, std::memory_order_release);
    }

    // Owner.
    long long operator[](Name name) const noexcept { return values_[name].load(std::memory_order_relaxed); }

    // any. `also()` reads what belongs to the same moment and is not the owner's.
    template <class Also>
    values_t read(Also also) const noexcept {
        values_t values;
        while (true) {
            const unsigned before = version_.load(std::memory_order_acquire);
            also();
            for (int name = 0; name < NAMES; ++name) {
                values.of[name] = values_[name].load(std::memory_order_acquire);
            }
            // Relaxed is enough: who has acquired a count sees the odd version that it was stored under.
            if (before % 2 == 0 && version_.load(std::memory_order_relaxed) == before) return values;
            if (before % 2 != 0) pause();
        }
    }

private:
    void add_each() noexcept {}
    template <class... More>
    void add_each(Name name, long long by, More... more) noexcept {
        std::atomic<long long>& value = values_[name];
        value.store(value.load(std::memory_order_relaxed) + by, std::memory_order_release);
        add_each(more...);
    }

    // Not `Atomic`: whether a reader comes between two of these makes no difference to the queue.
    std::atomic<unsigned> version_{0};
    std::atomic<long long> values_[NAMES] = {};
};

}  // namespace pillarbox
