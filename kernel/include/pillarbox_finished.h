// The slots of a result queue whose entries have finished, as a stack, and how many ever have: in one word.
//
// Any thread pushes, one, the owner, takes the whole stack: so the same slot may come back without harm, as in the
// inbox of a mailbox. No lock, no Python.
#pragma once

#include <cstdint>

#include "pillarbox_atomic.h"
#include "pillarbox_entry.h"

namespace pillarbox {

class FinishedStack {
public:
    static constexpr int NONE = -1;
    using completions_t = std::uint64_t;

    // any. Counts a completion that needs no push. Release: see `completions`.
    void count() noexcept { word_.fetch_add(ONE, std::memory_order_release); }

    // Owner, where nobody else counts or pushes: as `count`, but no atomic operation.
    void count_alone() noexcept {
        word_.store(word_.load(std::memory_order_relaxed) + ONE, std::memory_order_release);
    }

    // any. Counts a completion and pushes its slot, which its caller has for itself; `*below` becomes the slot under
    // it, or NONE.
    // spec: ResultQueueImpl!ReadTop, ResultQueueImpl!Link, ResultQueueImpl!Push
    void push(int slot, int* below) noexcept {
        // Relaxed is enough: it is only compared, and linked to.
        word_t seen = word_.load(std::memory_order_relaxed);
        word_t next = 0;
        do {
            *below = top_of(seen);
            next = ((seen & ~TOP) + ONE) | static_cast<word_t>(slot + 1);
            // Release: who takes the stack sees the link and the result. Pushes upon this one pass that on.
        } while (!word_.compare_exchange_weak(seen, next, std::memory_order_release, std::memory_order_relaxed));
    }

    // Relaxed is enough: what is there is acquired when it is taken.
    bool empty() const noexcept { return top_of(word_.load(std::memory_order_relaxed)) == NONE; }

    // Owner. Empties the stack, and returns what was its top, or NONE; the number of completions stays.
    int take() noexcept { return top_of(word_.fetch_and(~TOP, std::memory_order_acquire)); }

    // any. Of all time, as far as the word has room. Acquire: who sees one counted sees its entry counted.
    completions_t completions() const noexcept { return word_.load(std::memory_order_acquire) >> TOP_BITS; }

    // How many run of all that have begun: the word has room for far more than can run at once.
    static int running(long long begun, completions_t completions) noexcept {
        return static_cast<int>((static_cast<word_t>(begun) - completions) & (~word_t{0} >> TOP_BITS));
    }

private:
    using word_t = std::uint64_t;
    // The lower bits: 0, or 1 + the slot that was pushed last. Above them the completions.
    static constexpr int TOP_BITS = SLOT_BITS + 1;
    static constexpr word_t ONE = word_t{1} << TOP_BITS;
    static constexpr word_t TOP = ONE - 1;

    static constexpr int top_of(word_t word) noexcept { return static_cast<int>(word & TOP) - 1; }

    Atomic<word_t> word_{0};
};

}  // namespace pillarbox
