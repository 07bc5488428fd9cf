// The slots of a result queue: where entries wait, are completed by any thread, and are found when they have
// finished, in the order in which they did. No lock, no Python.
//
// Methods marked "any" may be called by any thread, the others only by one, the owner of the queue.
//
// The word of a slot is the handle that runs in it, made odd, and then the result, so one compare-and-swap
// from the one to the other is a completion: earlier attempts, reused slots and second answers need no other
// check. Everything else in a slot is the owner's.
//
// An ordered queue is a ring: an entry gets the slot behind the one before it, and the oldest leaves when it is
// finished. An unordered one has segments. Only the first emits; when all its entries have left, the next one is the first. A watermark has
// a segment for itself. Who has completed an entry pushes its slot onto a stack, which the owner takes as a
// whole. Until then the slot must not be used again: emission takes only what was pushed, `take_all` waits.
//
// Where the owner alone completes, it looks at the word and stores it, and lists the slot at once. The word is still
// one that others read: `visit` does.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "pillarbox_atomic.h"
#include "pillarbox_entry.h"
#include "pillarbox_finished.h"

namespace pillarbox {

class QueueSlots {
public:
    // Once. 1 to MAX_CAPACITY slots. Throws bad_alloc.
    void open(int capacity, bool ordered, Completers completers) {
        ordered_ = ordered;
        alone_ = completers == Completers::OWNER;
        const auto count = static_cast<std::size_t>(capacity);
        slots_.reset(new slot_t[count]());
        states_.reset(new EntryState[count]());
        links_.reset(ordered_ ? nullptr : new link_t[count]());
        segments_.reset(ordered_ ? nullptr : new segment_t[count]);
        capacity_ = capacity;
        free_all();
    }

    int capacity() const noexcept { return capacity_; }
    int held() const noexcept { return held_; }
    bool full() const noexcept { return held_ == capacity_; }

    // ---- in

    // Takes a slot, not if it is full, for an entry that nobody sees before `run` or `has_result`.
    int admit(void* element, EntryState state) noexcept {
        const int index = free_;
        slots_[index].element = element;
        states_[index] = state == EntryState::WATERMARK ? state : EntryState::RUNNING;
        ++held_;
        ++admissions_;
        if (ordered_) {
            free_ = following(index);
        } else {
            free_ = links_[index].next;
            join(index);
        }
        return index;
    }

    // Begins the first attempt; returns its handle.
    long long run(int index) noexcept {
        attempts_ = next_attempt();
        const long long handle = handle_of(attempts_, index);
        // Release: who completes writes the slot, and `visit` reads it, after what was written here.
        slots_[index].word.store(runs(handle), std::memory_order_release);
        return handle;
    }

    void has_result(int index, void* result) noexcept {
        // Release: for `visit`.
        slots_[index].word.store(settled(result), std::memory_order_release);
        settle(index);
        if (!ordered_) finished(index);
    }

    // As ResultQueue's.
    // spec: ResultQueueImpl!Renew
    bool renew(long long* handle) noexcept {
        slot_t* slot = named(*handle);
        if (slot == nullptr) return false;
        const long long attempt = next_attempt();
        const long long fresh = handle_of(attempt, slot_of(*handle));
        word_t expected = runs(*handle);
        if (alone_) {
            if (slot->word.load(std::memory_order_relaxed) != expected) return false;
            slot->word.store(runs(fresh), std::memory_order_release);
            attempts_ = attempt;
            *handle = fresh;
            return true;
        }
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

    // any, or the owner alone. As ResultQueue's.
    // spec: ResultQueueImpl!Win
    bool complete(long long handle, void* result) noexcept {
        if (alone_) return complete_alone(handle, result);
        if (slot_t* slot = named(handle)) {
            word_t expected = runs(handle);
            // Acquire: the slot is written next, after what the owner wrote of it. Release: who sees the
            // result sees what it points to. Who fails has learned only that it comes too late.
            if (slot->word.compare_exchange_strong(expected, settled(result), std::memory_order_acq_rel,
                                                   std::memory_order_relaxed)) {
                finish(slot_of(handle));
                return true;
            }
        }
        return false;
    }

    // ---- out

    // Lists what was pushed, in the order in which it was.
    // spec: ResultQueueImpl!Collect
    void collect() noexcept {
        if (ordered_ || finished_.empty()) return;
        int oldest = NONE;
        for (int index = finished_.take(); index != NONE;) {
            const int below = links_[index].next;
            links_[index].next = oldest;
            oldest = index;
            index = below;
        }
        for (int above = NONE; oldest != NONE; oldest = above) {
            above = links_[oldest].next;
            settle(oldest);
            finished(oldest);
        }
    }

    // Whether `emit` would give something.
    bool any_ready() const noexcept { return ready() != NONE; }

    // Moves what may leave, at most `most` pairs, to `out`. How many. `*ran` becomes how many of them were run and
    // are perhaps not counted as completed yet: none of an unordered queue.
    // spec: ResultQueueImpl!Emit
    int emit(pair_t* out, int most, int* ran) noexcept {
        return ordered_ ? emit_oldest(out, most, ran) : emit_listed(out, most);
    }

    // ---- all at once

    // Copies every entry, in the order of admission, into the empty `out`, which has room.
    // spec: ResultQueueImpl!Snapshot, ResultQueueImpl!CopyOne
    void copy_all(std::vector<entry_t>& out) const noexcept {
        each_held([&](int index) {
            copy(index, slots_[index].word.load(std::memory_order_acquire), out);
        });
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
        each_held([&](int index) {
            const word_t word = take(slots_[index]);
            taken.unfinished += is_running(word);
            taken.ended += !is_running(word) && states_[index] == EntryState::RUNNING;
            copy(index, word, out);
        });
        if (!ordered_) await_pushes(taken.ended);
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
    };

    // What an unordered queue has for each slot besides.
    struct link_t {
        long long admission;
        int next;  // in the list of free slots, the stack of finished ones, or the list of a segment
        int segment;
    };

    struct segment_t {
        int held;   // entries that have not left
        int first;  // finished entries, in the order in which they finished
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

    // Who has won has the slot for itself until it is pushed. The owner of an ordered queue looks at the head itself.
    void finish(int index) noexcept {
        ordered_ ? finished_.count() : finished_.push(index, &links_[index].next);
    }

    // ---- owner

    // spec: ResultQueueImpl!LookAlone, ResultQueueImpl!SetAlone
    bool complete_alone(long long handle, void* result) noexcept {
        slot_t* const slot = named(handle);
        // Relaxed is enough: the owner reads what it has written.
        if (slot == nullptr || slot->word.load(std::memory_order_relaxed) != runs(handle)) return false;
        // Release: for `visit`.
        slot->word.store(settled(result), std::memory_order_release);
        if (!ordered_) {
            settle(slot_of(handle));
            finished(slot_of(handle));
        }
        finished_.count_alone();
        return true;
    }

    long long next_attempt() const noexcept { return attempts_ == MAX_ATTEMPTS ? 1 : attempts_ + 1; }

    // Its owner knows that it has its result.
    void settle(int index) noexcept {
        if (states_[index] == EntryState::RUNNING) states_[index] = EntryState::FINISHED;
    }

    int following(int place) const noexcept { return place + 1 == capacity_ ? 0 : place + 1; }

    // Calls `each` with the slot of every entry; of an ordered queue the oldest first.
    template <class Each>
    void each_held(Each each) const noexcept {
        if (ordered_) {
            for (int count = held_, index = first_; count != 0; --count, index = following(index)) each(index);
            return;
        }
        for (int index = 0; index < capacity_; ++index) {
            if (states_[index] != EntryState::FREE) each(index);
        }
    }

    // The slot of the entry that leaves next, or NONE.
    int ready() const noexcept {
        if (held_ == 0) return NONE;
        if (!ordered_) return segments_[first_].first;
        return is_running(word_of_head(first_)) ? NONE : first_;
    }

    // ---- owner of an ordered queue

    // Acquire: what the result points to.
    word_t word_of_head(int index) const noexcept {
        return slots_[index].word.load(std::memory_order_acquire);
    }

    int emit_oldest(pair_t* out, int most, int* ran) noexcept {
        most = std::min(most, held_);
        int index = first_, count = 0;
        for (; count < most; ++count, index = following(index)) {
            const word_t word = word_of_head(index);
            if (is_running(word)) break;
            *ran += states_[index] == EntryState::RUNNING;
            out[count] = {slots_[index].element, payload(word)};
            free_word(index);
        }
        first_ = index;
        held_ -= count;
        return count;
    }

    // ---- owner of an unordered queue

    // Gives an entry its segment. No segment but the last is ever empty, so there are never more than
    // slots.
    void join(int index) noexcept {
        const bool alone = states_[index] == EntryState::WATERMARK;
        if (segments_[last_].held != 0 && (alone || segments_[last_].sealed)) {
            last_ = following(last_);
            segments_[last_] = {0, NONE, NONE, false};
        }
        segment_t& segment = segments_[last_];
        segment.sealed = alone;
        ++segment.held;
        links_[index].admission = admissions_;
        links_[index].segment = last_;
    }

    // Lists an entry that has its result.
    void finished(int index) noexcept {
        link_t& link = links_[index];
        segment_t& segment = segments_[link.segment];
        link.next = NONE;
        (segment.first == NONE ? segment.first : links_[segment.last].next) = index;
        segment.last = index;
    }

    int emit_listed(pair_t* out, int most) noexcept {
        int count = 0;
        for (most = std::min(most, held_); count < most; ++count) {
            const int index = segments_[first_].first;
            if (index == NONE) break;
            const slot_t& slot = slots_[index];
            // Relaxed is enough: the owner has collected it.
            out[count] = {slot.element, payload(slot.word.load(std::memory_order_relaxed))};
            leave(index);
        }
        return count;
    }

    void leave(int index) noexcept {
        segment_t& segment = segments_[first_];
        link_t& link = links_[index];
        segment.first = link.next;
        if (--segment.held == 0 && first_ != last_) first_ = following(first_);
        free_word(index);
        states_[index] = EntryState::FREE;
        link.next = free_;
        free_ = index;
        --held_;
    }

    // ---- owner, at the end of an entry

    // Relaxed is enough: whatever the slot was, no handle names it any more.
    void free_word(int index) noexcept { slots_[index].word.store(FREE, std::memory_order_relaxed); }

    // Makes every slot free for the owner. The payloads must have been moved out, and the words be FREE.
    void free_all() noexcept {
        free_ = first_ = last_ = held_ = 0;
        if (ordered_) return;
        for (int index = 0; index < capacity_; ++index) {
            states_[index] = EntryState::FREE;
            links_[index].next = index + 1;
        }
        links_[capacity_ - 1].next = NONE;
        segments_[0] = {0, NONE, NONE, false};
    }

    // After it no completion of the entry wins. Acquire: what the result of one that has points to.
    static word_t take(slot_t& slot) noexcept {
        return slot.word.exchange(FREE, std::memory_order_acquire);
    }

    // Whose completion has won may have its slot still to push, and nobody else may have it before.
    // spec: ResultQueueImpl!AwaitPush
    void await_pushes(int due) noexcept {
        for (int turn = 0; due != 0; ++turn) {
            const int before = due;
            for (int index = finished_.take(); index != NONE; index = links_[index].next) --due;
            if (due == before) pause(turn);
        }
    }

    void copy(int index, word_t word, std::vector<entry_t>& out) const noexcept {
        const EntryState state = states_[index] == EntryState::WATERMARK ? EntryState::WATERMARK
                                 : is_running(word)                      ? EntryState::RUNNING
                                                                         : EntryState::FINISHED;
        const long long admission =
            ordered_ ? admissions_ - held_ + 1 + static_cast<long long>(out.size()) : links_[index].admission;
        out.push_back({slots_[index].element, is_running(word) ? nullptr : payload(word), state, admission});
    }

    static void sort(std::vector<entry_t>& entries) noexcept {
        std::sort(entries.begin(), entries.end(),
                  [](const entry_t& one, const entry_t& other) { return one.admission < other.admission; });
    }

    std::unique_ptr<slot_t[]> slots_;
    // FINISHED: it was admitted with its result, or is in the list of its segment. What is RUNNING may be finished too:
    // see the word. Ordered, of no meaning where nothing is held.
    std::unique_ptr<EntryState[]> states_;
    int capacity_ = 0;
    bool ordered_ = true;
    bool alone_ = false;  // only the owner completes

    int free_ = NONE;  // the slot of the next entry
    int held_ = 0;
    int first_ = 0;  // ordered, the slot of the oldest entry; otherwise the first segment
    int last_ = 0;   // the last segment
    long long attempts_ = 0;
    long long admissions_ = 0;
    std::unique_ptr<link_t[]> links_;        // unordered
    std::unique_ptr<segment_t[]> segments_;  // unordered: a ring
    FinishedStack finished_;
};

}  // namespace pillarbox
