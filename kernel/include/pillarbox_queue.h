// The result queue without Python: entries wait in slots for their results, and leave in the order asked
// for.
//
// Methods marked "any" may be called by any thread, the others only by one, the owner. None needs the GIL,
// none runs foreign code, and none releases a payload: an element or a result is a pointer that the queue
// owns from the call that takes it in to the call that hands it out. One lock guards everything.
//
// A handle names one attempt of one entry: the number of the attempt, counted over the queue's life, above
// the number of its slot. A slot accepts only the handle that it holds, so earlier attempts and reused
// slots need no other check.
//
// The order of emission. Entries are admitted into segments. Only the first segment emits, in the order in
// which its entries finish; when all of them have left, the next segment is the first. A watermark has a
// segment for itself, so nothing passes it; in an ordered queue every entry has one, so nothing passes
// anything.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "pillarbox_defects.h"
#include "pillarbox_entry.h"
#include "pillarbox_monitor.h"

namespace pillarbox {

class ResultQueue {
public:
    // Takes nothing in before `open`.
    ResultQueue() = default;
    ResultQueue(int capacity, bool ordered) { open(capacity, ordered); }

    // Once. At most `capacity` entries, watermarks included, 1 to MAX_CAPACITY. Throws bad_alloc.
    void open(int capacity, bool ordered) {
        const int slots = PILLARBOX_SEEDED(capacity_off_by_one, capacity, capacity + 1);
        slots_.reset(new slot_t[static_cast<std::size_t>(slots)]());
        segments_.reset(new segment_t[static_cast<std::size_t>(slots)]);
        capacity_ = slots;
        ordered_ = ordered;
        free_all();
        closed_ = false;
    }

    // ---- in

    // Admits an element. `*handle` becomes the handle of its first attempt.
    // spec: ResultQueue!Put
    QueueAnswer put(void* element, long long* handle) noexcept {
        std::lock_guard<Lock> held(lock_);
        const QueueAnswer answer = admissible();
        if (answer == QueueAnswer::DONE) *handle = admit(element, nullptr, EntryState::RUNNING);
        return answer;
    }

    // Admits a watermark, which is emitted as this pair.
    // spec: ResultQueue!PutWatermark
    QueueAnswer put_watermark(void* element, void* result) noexcept {
        std::lock_guard<Lock> held(lock_);
        const QueueAnswer answer = admissible();
        if (answer == QueueAnswer::DONE) admit(element, result, EntryState::WATERMARK);
        return answer;
    }

    // Begins a new attempt of a running entry, whose present attempt `*handle` must name; `*handle` becomes
    // that of the new one. False, without effect, if it does not.
    // spec: ResultQueue!Renew
    bool renew(long long* handle) noexcept {
        std::lock_guard<Lock> held(lock_);
        slot_t* slot = named(*handle);
        if (slot == nullptr || slot->state != EntryState::RUNNING) return false;
        ++counts_.renewed;
        slot->handle = *handle = handle_of(++attempts_, slot_of(*handle));
        return true;
    }

    // any. Gives a running entry its result if the handle names its present attempt. Otherwise false; the
    // result is then still the caller's.
    // spec: ResultQueue!Complete
    bool complete(long long handle, void* result) noexcept {
        std::lock_guard<Lock> held(lock_);
        slot_t* slot = named(handle);
        const bool first = slot != nullptr && slot->state == EntryState::RUNNING;
        const bool wins = PILLARBOX_SEEDED(late_completion_overwrites, first, slot != nullptr);
        if (wins) slot->result = result;
        if (first) {
            slot->state = EntryState::FINISHED;
            --running_;
            ++counts_.completed;
            finished(slot_of(handle));
        } else {
            ++counts_.late;
        }
        return wins;
    }

    // ---- out

    // Whether something could be emitted now.
    // spec: ResultQueueGraph!HasCompleted
    bool has_completed() noexcept {
        std::lock_guard<Lock> held(lock_);
        return ready() != NONE;
    }

    // Moves what may leave, at most `most` pairs, to `out`, which then owns them. How many.
    // spec: ResultQueue!Emit
    int emit(pair_t* out, int most) noexcept {
        std::lock_guard<Lock> held(lock_);
        int count = 0;
        for (int index = ready(); count < most && index != NONE; index = ready()) {
            out[count++] = {slots_[index].element, slots_[index].result};
            leave(index);
        }
        return count;
    }

    // ---- all at once

    // Copies every entry held, in the order of admission, and behind them those still to be restored, into
    // the empty `out`. The payloads stay the queue's. Throws bad_alloc.
    // spec: ResultQueue!Snapshot
    void snapshot(std::vector<entry_t>& out) {
        make_room(out);
        lock_.lock();
        const std::ptrdiff_t count = copy_held(out);
        PILLARBOX_SEEDED(snapshot_forgets_restored, copy_restoring(out), void());
        lock_.unlock();
        sort(out, count);
    }

    // As `snapshot`, but moves: the caller owns the payloads then. Throws bad_alloc, and has changed
    // nothing.
    // spec: ResultQueueGraph!Clear
    void clear(std::vector<entry_t>& out) { take_all(out, false); }

    // As `clear`, and takes nothing in any more.
    // spec: ResultQueue!Close
    void close(std::vector<entry_t>& out) { take_all(out, true); }

    // any. Calls `each` with every payload that the queue owns, until an answer is not 0, which it returns.
    // It calls under the lock: `each` must not use the queue.
    int visit(int (*each)(void* payload, void* context), void* context) noexcept {
        std::lock_guard<Lock> held(lock_);
        return walk([=](void* payload) { return each(payload, context); });
    }

    // Calls `release` for every payload that the queue still owns. The last use of the queue.
    void let_go(void (*release)(void*)) noexcept {
        walk([=](void* payload) { return release(payload), 0; });
    }

    // ---- restoring

    // Sets what `admit_restored` admits, oldest first, RUNNING, FINISHED or WATERMARK. If the answer is
    // DONE the queue owns the payloads, and `entries` is empty.
    // spec: ResultQueue!Restore
    QueueAnswer restore(std::vector<entry_t>& entries) noexcept {
        std::lock_guard<Lock> held(lock_);
        if (closed_) return QueueAnswer::CLOSED;
        if (!restoring_.empty()) return QueueAnswer::RESTORING;
        if (size_ != 0) return QueueAnswer::NOT_EMPTY;
        restoring_.swap(entries);
        PILLARBOX_SEEDED(restore_shuffles, std::reverse(restoring_.begin(), restoring_.end()), void());
        return QueueAnswer::DONE;
    }

    // Admits what is still to be restored, in order, up to the first entry that needs its call: its handle,
    // and its element, which stays the queue's. False when the queue is full or nothing is left.
    // spec: ResultQueue!AdmitRestored
    bool admit_restored(void** element, long long* handle) noexcept {
        std::lock_guard<Lock> held(lock_);
        while (!restoring_.empty() && free_ != NONE) {
            const entry_t entry = restoring_.back();
            restoring_.pop_back();
            ++counts_.restored;
            *element = entry.element;
            *handle = admit(entry.element, entry.result, entry.state);
            if (PILLARBOX_SEEDED(restored_called_again, entry.state == EntryState::RUNNING,
                                 entry.state != EntryState::WATERMARK)) {
                return true;
            }
        }
        return false;
    }

    // ---- any: watching

    int capacity() const noexcept { return capacity_; }

    queue_counts_t counts() noexcept {
        std::lock_guard<Lock> held(lock_);
        queue_counts_t counts = counts_;
        counts.size = size_;
        counts.running = running_;
        counts.restoring = restoring_.size();
        return counts;
    }

private:
    static constexpr int NONE = -1;

    struct slot_t {
        void* element;
        void* result;
        long long handle;  // of the present attempt; no other handle, earlier or later, is ever equal to it
        long long admission;
        int next;  // in the list of free slots, or of the finished entries of a segment
        int segment;
        EntryState state;
    };

    struct segment_t {
        int held;   // entries that have not left
        int first;  // finished entries, in the order in which they finished
        int last;
        bool sealed;  // its one entry stays alone
    };

    // Everything below is called under the lock, or by the owner about what only the owner changes.

    QueueAnswer admissible() const noexcept {
        if (closed_) return QueueAnswer::CLOSED;
        const bool restoring = PILLARBOX_SEEDED(put_overtakes_restored, !restoring_.empty(), false);
        if (restoring) return QueueAnswer::RESTORING;
        return free_ == NONE ? QueueAnswer::FULL : QueueAnswer::DONE;
    }

    long long admit(void* element, void* result, EntryState state) noexcept {
        const int index = free_;
        slot_t& slot = slots_[index];
        free_ = slot.next;
        ++size_;
        slot.element = element;
        slot.result = result;
        slot.handle = handle_of(++attempts_, index);
        slot.admission = ++admissions_;
        slot.state = state;
        join(slot);
        if (state == EntryState::RUNNING) {
            ++running_;
        } else if (PILLARBOX_SEEDED(watermark_not_finished, true, state != EntryState::WATERMARK)) {
            finished(index);
        }
        ++(state == EntryState::WATERMARK ? counts_.watermarks : counts_.admitted);
        return slot.handle;
    }

    // The slot whose present attempt the handle names, or null.
    slot_t* named(long long handle) const noexcept {
        const int index = slot_of(handle);
        if (index >= capacity_) return nullptr;
        slot_t* slot = &slots_[index];
        if (slot->state == EntryState::FREE || slot->state == EntryState::WATERMARK) return nullptr;
        return PILLARBOX_SEEDED(earlier_attempt_accepted, slot->handle == handle, true) ? slot : nullptr;
    }

    // Gives an entry its segment. No segment but the last is ever empty, so there are never more than
    // slots.
    void join(slot_t& slot) noexcept {
        const bool alone = PILLARBOX_SEEDED(passes_unfinished_head, ordered_, false) ||
                           PILLARBOX_SEEDED(passes_watermark, slot.state == EntryState::WATERMARK, false);
        if (segments_[last_segment_].held != 0 && (alone || segments_[last_segment_].sealed)) {
            last_segment_ = following(last_segment_);
            segments_[last_segment_] = {0, NONE, NONE, false};
        }
        segments_[last_segment_].sealed = alone;
        ++segments_[last_segment_].held;
        slot.segment = last_segment_;
    }

    void finished(int index) noexcept {
        segment_t& segment = segments_[slots_[index].segment];
        slots_[index].next = NONE;
        (segment.first == NONE ? segment.first : slots_[segment.last].next) = index;
        segment.last = index;
    }

    // The slot of the entry that leaves next, or NONE.
    int ready() const noexcept { return size_ == 0 ? NONE : segments_[first_segment_].first; }

    void leave(int index) noexcept {
        segment_t& segment = segments_[first_segment_];
        segment.first = slots_[index].next;
        --segment.held;
        if (segment.held == 0 && first_segment_ != last_segment_) first_segment_ = following(first_segment_);
        slots_[index].state = EntryState::FREE;
        slots_[index].next = free_;
        free_ = PILLARBOX_SEEDED(slot_not_freed, index, free_);
        --size_;
        ++counts_.emitted;
    }

    int following(int segment) const noexcept { return segment + 1 == capacity_ ? 0 : segment + 1; }

    // Marks every slot free. The payloads must have been moved out before.
    void free_all() noexcept {
        for (int index = 0; index < capacity_; ++index) {
            slots_[index].state = EntryState::FREE;
            slots_[index].next = index + 1;
        }
        slots_[capacity_ - 1].next = NONE;
        segments_[0] = {0, NONE, NONE, false};
        free_ = first_segment_ = last_segment_ = size_ = running_ = 0;
    }

    void take_all(std::vector<entry_t>& out, bool close) {
        make_room(out);
        lock_.lock();
        const std::ptrdiff_t count = copy_held(out);
        copy_restoring(out);
        restoring_.clear();
        if (capacity_ != 0) free_all();
        closed_ = closed_ || close;
        lock_.unlock();
        sort(out, count);
    }

    // Before the lock is taken, under which nothing allocates. Only the owner changes these numbers.
    void make_room(std::vector<entry_t>& out) {
        const queue_counts_t now = counts();
        out.reserve(static_cast<std::size_t>(now.size) + now.restoring);
    }

    std::ptrdiff_t copy_held(std::vector<entry_t>& out) const noexcept {
        for (int index = 0; index < capacity_; ++index) {
            const slot_t& slot = slots_[index];
            if (slot.state == EntryState::FREE) continue;
            out.push_back({slot.element, slot.result, slot.state, slot.admission});
        }
        return size_;
    }

    void copy_restoring(std::vector<entry_t>& out) const noexcept {
        out.insert(out.end(), restoring_.rbegin(), restoring_.rend());
    }

    // The first `count` of them, by admission.
    static void sort(std::vector<entry_t>& entries, std::ptrdiff_t count) noexcept {
        std::sort(entries.begin(), entries.begin() + count,
                  [](const entry_t& one, const entry_t& other) { return one.admission < other.admission; });
    }

    // Calls `each` with every payload, until an answer is not 0, which it returns.
    template <class Each>
    int walk(Each each) const noexcept {
        const auto both = [&](const auto& entry) -> int {
            const int answer = each(entry.element);
            return answer != 0 || entry.state == EntryState::RUNNING ? answer : each(entry.result);
        };
        int answer = 0;
        for (int index = 0; size_ != 0 && index < capacity_ && answer == 0; ++index) {
            if (slots_[index].state != EntryState::FREE) answer = both(slots_[index]);
        }
        for (std::size_t index = 0; index < restoring_.size() && answer == 0; ++index) {
            answer = both(restoring_[index]);
        }
        return answer;
    }

    Lock lock_;
    int capacity_ = 0;
    bool ordered_ = true;
    bool closed_ = true;
    std::unique_ptr<slot_t[]> slots_;
    std::unique_ptr<segment_t[]> segments_;  // a ring
    int first_segment_ = 0;
    int last_segment_ = 0;
    int free_ = NONE;
    int size_ = 0;
    int running_ = 0;
    long long attempts_ = 0;
    long long admissions_ = 0;
    std::vector<entry_t> restoring_;  // the last one first, so that the next one is at the end
    queue_counts_t counts_{};
};

}  // namespace pillarbox
