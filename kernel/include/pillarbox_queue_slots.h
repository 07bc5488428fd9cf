// The slots of a result queue: where entries wait, are completed by any thread, and are found when they have
// finished, in the order in which they did. No lock, no Python.
//
// Methods marked "any" may be called by any thread, the others only by one, the owner of the queue.
//
// The word of a slot is the handle that runs in it, made odd, and then the result, so one compare-and-swap
// from the one to the other is a completion: earlier attempts, reused slots and second answers need no other
// check. Everything else in a slot is the owner's.
//
// An ordered queue has one list of its entries, whose head leaves when it is finished. An unordered one has
// segments. Only the first emits; when all its entries have left, the next one is the first. A watermark has
// a segment for itself. Who has completed an entry pushes its slot onto a stack, which the owner takes as a
// whole. Until then the slot must not be used again: emission takes only what was pushed, `take_all` waits.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "pillarbox_atomic.h"
#include "pillarbox_defects.h"
#include "pillarbox_entry.h"
#include "pillarbox_finished.h"

namespace pillarbox {

class QueueSlots {
public:
    // Once. 1 to MAX_CAPACITY slots. Throws bad_alloc.
    void open(int capacity, bool ordered) {
        ordered_ = PILLARBOX_SEEDED(passes_unfinished_head, ordered, false);
        slots_.reset(new slot_t[static_cast<std::size_t>(capacity)]());
        segments_.reset(new segment_t[ordered_ ? 1 : static_cast<std::size_t>(capacity)]);
        capacity_ = capacity;
        free_all();
    }

    int capacity() const noexcept { return capacity_; }
    int held() const noexcept { return held_; }
    bool full() const noexcept { return free_ == NONE; }

    // ---- in

    // Takes a slot, not if it is full, for an entry that nobody sees before `run` or `has_result`.
    int admit(void* element, EntryState state) noexcept {
        const int index = free_;
        slot_t& slot = slots_[index];
        free_ = slot.next;
        ++held_;
        slot.element = element;
        slot.admission = ++admissions_;
        slot.state = state == EntryState::WATERMARK ? state : EntryState::RUNNING;
        ordered_ ? append(segments_[0], index) : join(slot);
        return index;
    }

    // Begins the first attempt; returns its handle.
    long long run(int index) noexcept {
        attempts_ = next_attempt();
        const long long handle = handle_of(attempts_, index);
        // Release: who completes writes the slot, and `visit` reads it, after what was written here.
        slots_[index].word.store(runs(handle), PILLARBOX_ORDER(weak_put, release));
        return handle;
    }

    void has_result(int index, void* result) noexcept {
        // Release: for `visit`.
        slots_[index].word.store(settled(result), std::memory_order_release);
        const bool waits = PILLARBOX_SEEDED(watermark_not_finished, false,
                                            slots_[index].state == EntryState::WATERMARK);
        if (ordered_) {
            slots_[index].settle();
        } else if (!waits) {
            finished(index);
        }
    }

    // As ResultQueue's.
    // spec: ResultQueueImpl!Renew
    bool renew(long long* handle) noexcept {
        slot_t* slot = named(*handle);
        if (slot == nullptr) return false;
        const long long attempt = next_attempt();
        const long long fresh = handle_of(attempt, slot_of(*handle));
        word_t expected = expecting(*slot, *handle);
        // Relaxed is enough: it publishes nothing, and goes on with the release of the put, as each exchange
        // of a word does. Who fails has learned only that there is a result.
        if (!slot->word.compare_exchange_strong(expected, runs(fresh), std::memory_order_relaxed,
                                                std::memory_order_relaxed)) {
            return false;
        }
        attempts_ = attempt;
        *handle = fresh;
        return true;
    }

    // any. As ResultQueue's.
    // spec: ResultQueueImpl!Win
    bool complete(long long handle, void* result) noexcept {
        if (slot_t* slot = named(handle)) {
            word_t expected = expecting(*slot, handle);
            // Acquire: the slot is written next, after what the owner wrote of it. Release: who sees the
            // result sees what it points to. Who fails has learned only that it comes too late.
            if (slot->word.compare_exchange_strong(expected, settled(result),
                                                   PILLARBOX_ORDER(weak_complete, acq_rel),
                                                   std::memory_order_relaxed)) {
                finish(slot_of(handle));
                return true;
            }
        }
        return PILLARBOX_SEEDED(late_completion_overwrites, false, overwrites(named(handle), result));
    }

    // ---- out

    // Lists what was pushed, in the order in which it was.
    // spec: ResultQueueImpl!Collect
    void collect() noexcept {
        if (ordered_ || finished_.empty()) return;
        int oldest = NONE;
        if (PILLARBOX_PLANTED(finished_in_reverse)) oldest = finished_.take();
        for (int index = finished_.take(); index != NONE;) {
            const int below = slots_[index].next;
            slots_[index].next = oldest;
            oldest = index;
            index = below;
        }
        for (int above = NONE; oldest != NONE; oldest = above) {
            above = slots_[oldest].next;
            finished(oldest);
        }
    }

    // Whether `emit` would give something.
    bool any_ready() const noexcept { return ready() != NONE; }

    // Moves what may leave, at most `most` pairs, to `out`. How many. `*ran` becomes how many of them were run and
    // are perhaps not counted as completed yet: none of an unordered queue.
    // spec: ResultQueueImpl!Emit
    int emit(pair_t* out, int most, int* ran) noexcept {
        int count = 0;
        while (count < most) {
            const int index = ready();
            if (index == NONE) break;
            const slot_t& slot = slots_[index];
            *ran += slot.state == EntryState::RUNNING;
            // Relaxed is enough: `ready` has acquired it.
            out[count++] = {slot.element, payload(slot.word.load(std::memory_order_relaxed))};
            leave(index);
        }
        return count;
    }

    // ---- all at once

    // Copies every entry, in the order of admission, into the empty `out`, which has room.
    // spec: ResultQueueImpl!Snapshot, ResultQueueImpl!CopyOne
    void copy_all(std::vector<entry_t>& out) const noexcept {
        for (int index = 0; index < capacity_; ++index) {
            if (slots_[index].state == EntryState::FREE) continue;
            copy(index, slots_[index].word.load(PILLARBOX_ORDER(weak_snapshot, acquire)), out);
        }
        sort(out);
    }

    struct taken_t {
        int unfinished;
        int ended;  // were run and have finished, perhaps without being counted or collected yet
    };

    // As `copy_all`, but moves. Every completion has either won, and its result is here, or loses. An unordered
    // queue waits for those that have won and are about to push.
    // spec: ResultQueueImpl!TakeOne, ResultQueueImpl!Taken
    taken_t take_all(std::vector<entry_t>& out) noexcept {
        taken_t taken{0, 0};
        for (int index = 0; index < capacity_; ++index) {
            slot_t& slot = slots_[index];
            if (slot.state == EntryState::FREE) continue;
            const word_t word = take(slot);
            taken.unfinished += is_running(word);
            taken.ended += !is_running(word) && slot.state == EntryState::RUNNING;
            copy(index, word, out);
        }
        if (!ordered_) PILLARBOX_SEEDED(clear_without_waiting, await_pushes(taken.ended), void());
        if (capacity_ != 0) free_all();
        sort(out);
        return taken;
    }

    // any, as long as nothing is taken out. Calls `each` with the element of every entry in the first `slots` slots,
    // whether it is finished, and its result, until an answer is not 0, which it returns.
    template <class Each>
    int walk(Each each, int slots) const noexcept {
        int answer = 0;
        for (int index = 0; index < slots && answer == 0; ++index) {
            // Acquire: the element of an entry that comes in meanwhile.
            const word_t word = slots_[index].word.load(std::memory_order_acquire);
            if (word != FREE) answer = each(slots_[index].element, !is_running(word), payload(word));
        }
        return answer;
    }

    // any: how many completions there were.
    const FinishedStack& completed() const noexcept { return finished_; }

private:
    using word_t = std::uint64_t;

    static constexpr int NONE = FinishedStack::NONE;
    // Of a slot without an entry: as if the attempt 0 ran, which there never is.
    static constexpr word_t FREE = 1;
    static constexpr long long MAX_ATTEMPTS = (1LL << (63 - SLOT_BITS)) - 1;  // then again from 1 on

    struct slot_t {
        void* element = nullptr;
        Atomic<word_t> word{FREE};
        long long admission = 0;
        int next = NONE;  // in the list of free slots, the stack of finished ones, or the list of a segment
        int segment = 0;
        // FINISHED: it was admitted with its result, or is in the list of its segment. What is RUNNING may be
        // finished too: see the word.
        EntryState state = EntryState::FREE;

        // Its owner knows that it has its result.
        void settle() noexcept {
            if (state == EntryState::RUNNING) state = EntryState::FINISHED;
        }
    };

    struct segment_t {
        int held;   // entries that have not left; ordered, not counted
        int first;  // finished entries, in the order in which they finished; ordered, all entries
        int last;
        bool sealed;  // its one entry stays alone
    };

    static constexpr word_t runs(long long handle) noexcept { return static_cast<word_t>(handle) << 1 | 1; }
    static constexpr bool is_running(word_t word) noexcept { return (word & 1) != 0; }
    static word_t settled(void* payload) noexcept {
        const word_t word = reinterpret_cast<std::uintptr_t>(payload);
        assert(!is_running(word) && "a result is an even address");
        return word;
    }
    static void* payload(word_t word) noexcept {
        return reinterpret_cast<void*>(static_cast<std::uintptr_t>(word));
    }

    // The slot that the handle names, or null if it can be that of no attempt.
    slot_t* named(long long handle) const noexcept {
        return handle >= MAX_CAPACITY && slot_of(handle) < capacity_ ? &slots_[slot_of(handle)] : nullptr;
    }

    // What the word of the slot is while the attempt runs.
    static word_t expecting(const slot_t& slot, long long handle) noexcept {
        if (!PILLARBOX_PLANTED(earlier_attempt_accepted)) return runs(handle);
        const word_t word = slot.word.load(std::memory_order_relaxed);
        return word == FREE ? runs(handle) : word | 1;
    }

    // Only of a defect.
    static bool overwrites(slot_t* slot, void* result) noexcept {
        if (slot == nullptr || is_running(slot->word.load())) return false;
        slot->word.store(settled(result));
        return true;
    }

    // Who has won has the slot for itself until it is pushed. The owner of an ordered queue looks at the head itself.
    void finish(int index) noexcept {
        ordered_ ? finished_.count() : finished_.push(index, &slots_[index].next);
    }

    // ---- owner

    long long next_attempt() const noexcept { return attempts_ == MAX_ATTEMPTS ? 1 : attempts_ + 1; }

    // Gives an entry its segment. No segment but the last is ever empty, so there are never more than
    // slots.
    void join(slot_t& slot) noexcept {
        const bool alone = PILLARBOX_SEEDED(passes_watermark, slot.state == EntryState::WATERMARK, false);
        if (segments_[last_segment_].held != 0 && (alone || segments_[last_segment_].sealed)) {
            last_segment_ = following(last_segment_);
            segments_[last_segment_] = {0, NONE, NONE, false};
        }
        segments_[last_segment_].sealed = alone;
        ++segments_[last_segment_].held;
        slot.segment = last_segment_;
    }

    void append(segment_t& segment, int index) noexcept {
        slots_[index].next = NONE;
        (segment.first == NONE ? segment.first : slots_[segment.last].next) = index;
        segment.last = index;
    }

    void finished(int index) noexcept {
        slot_t& slot = slots_[index];
        slot.settle();
        append(segments_[slot.segment], index);
    }

    // The slot of the entry that leaves next, or NONE.
    int ready() const noexcept {
        if (held_ == 0) return NONE;
        const int index = segments_[first_segment_].first;
        if (index == NONE || !ordered_) return index;
        const slot_t& head = slots_[index];
        if (PILLARBOX_PLANTED(watermark_not_finished) && head.state == EntryState::WATERMARK) return NONE;
        // Acquire: what the result points to.
        return is_running(head.word.load(PILLARBOX_ORDER(weak_emit, acquire))) ? NONE : index;
    }

    void leave(int index) noexcept {
        segment_t& segment = segments_[first_segment_];
        slot_t& slot = slots_[index];
        segment.first = slot.next;
        if (!ordered_ && --segment.held == 0 && first_segment_ != last_segment_) {
            first_segment_ = following(first_segment_);
        }
        // Relaxed is enough: whatever the slot was, no handle names it any more.
        slot.word.store(FREE, std::memory_order_relaxed);
        slot.state = EntryState::FREE;
        slot.next = free_;
        free_ = PILLARBOX_SEEDED(slot_not_freed, index, free_);
        --held_;
    }

    int following(int segment) const noexcept { return segment + 1 == capacity_ ? 0 : segment + 1; }

    // Makes every slot free for the owner. The payloads must have been moved out, and the words be FREE.
    void free_all() noexcept {
        for (int index = 0; index < capacity_; ++index) {
            slots_[index].state = EntryState::FREE;
            slots_[index].next = index + 1;
        }
        slots_[capacity_ - 1].next = NONE;
        segments_[0] = {0, NONE, NONE, false};
        free_ = first_segment_ = last_segment_ = held_ = 0;
    }

    // After it no completion of the entry wins. Acquire: what the result of one that has points to.
    static word_t take(slot_t& slot) noexcept {
        if (PILLARBOX_PLANTED(taken_in_two_steps)) {
            const word_t word = slot.word.load();
            slot.word.store(FREE);
            return word;
        }
        return slot.word.exchange(FREE, PILLARBOX_ORDER(weak_take, acquire));
    }

    // Whose completion has won may have its slot still to push, and nobody else may have it before.
    // spec: ResultQueueImpl!AwaitPush
    void await_pushes(int due) noexcept {
        for (int turn = 0; due != 0; ++turn) {
            const int before = due;
            for (int index = finished_.take(); index != NONE; index = slots_[index].next) --due;
            if (due == before) pause(turn);
        }
    }

    void copy(int index, word_t word, std::vector<entry_t>& out) const noexcept {
        const slot_t& slot = slots_[index];
        const EntryState state = slot.state == EntryState::WATERMARK ? slot.state
                                 : is_running(word)                  ? EntryState::RUNNING
                                                                     : EntryState::FINISHED;
        out.push_back({slot.element, is_running(word) ? nullptr : payload(word), state, slot.admission});
    }

    static void sort(std::vector<entry_t>& entries) noexcept {
        std::sort(entries.begin(), entries.end(),
                  [](const entry_t& one, const entry_t& other) { return one.admission < other.admission; });
    }

    std::unique_ptr<slot_t[]> slots_;
    int capacity_ = 0;
    bool ordered_ = true;
    FinishedStack finished_;

    int free_ = NONE;
    int held_ = 0;
    int first_segment_ = 0;
    int last_segment_ = 0;
    std::unique_ptr<segment_t[]> segments_;  // a ring; ordered, one
    long long attempts_ = 0;
    long long admissions_ = 0;
};

}  // namespace pillarbox
