// The result queue without Python: entries wait in slots for their results, and leave in the order asked for.
// Putting, completing and emitting take no lock.
//
// Methods marked "any" may be called by any thread, the others only by one, the owner. None needs the GIL,
// none runs foreign code, and none releases a payload: an element or a result is a pointer that the queue
// owns from the call that takes it in to the call that hands it out. A result is an even address.
//
// A handle names one attempt of one entry: the number of the attempt, counted over the queue's life, above
// the number of its slot. How slots are completed, and in which order they leave, is in
// pillarbox_queue_slots.h; here is what may be done when, what is still to be restored, and the counts.
#pragma once

#include <algorithm>
#include <cstddef>
#include <mutex>
#include <vector>

#include "pillarbox_atomic.h"
#include "pillarbox_counts.h"
#include "pillarbox_entry.h"
#include "pillarbox_monitor.h"
#include "pillarbox_queue_slots.h"

namespace pillarbox {

class ResultQueue {
public:
    // Takes nothing in before `open`.
    ResultQueue() = default;
    ResultQueue(int capacity, bool ordered, Completers completers = Completers::ANY) {
        open(capacity, ordered, completers);
    }

    // Once. At most `capacity` entries, watermarks included, 1 to MAX_CAPACITY. Throws bad_alloc.
    void open(int capacity, bool ordered, Completers completers = Completers::ANY) {
        slots_.open(capacity, ordered, completers);
        closed_ = false;
    }

    // ---- in

    // Admits an element. `*handle` becomes the handle of its first attempt.
    // spec: ResultQueue!Put, ResultQueueImpl!Put
    QueueAnswer put(void* element, long long* handle) noexcept {
        const QueueAnswer answer = admissible();
        if (answer == QueueAnswer::DONE) {
            // Before its completion can be counted.
            counts_.add(ADMITTED, 1);
            *handle = slots_.run(slots_.admit(element, EntryState::RUNNING));
        }
        return answer;
    }

    // Admits a watermark, which is emitted as this pair.
    // spec: ResultQueue!PutWatermark, ResultQueueImpl!PutWatermark
    QueueAnswer put_watermark(void* element, void* result) noexcept {
        const QueueAnswer answer = admissible();
        if (answer == QueueAnswer::DONE) {
            counts_.add(WATERMARKS, 1);
            slots_.has_result(slots_.admit(element, EntryState::WATERMARK), result);
        }
        return answer;
    }

    // Begins a new attempt of a running entry, whose present attempt `*handle` must name; `*handle` becomes
    // that of the new one. False, without effect, if it does not.
    // spec: ResultQueue!Renew
    bool renew(long long* handle) noexcept {
        const bool renewed = slots_.renew(handle);
        if (renewed) counts_.add(RENEWED, 1);
        return renewed;
    }

    // any, unless the queue was opened for the owner alone. Gives a running entry its result if the handle names its
    // present attempt. Otherwise false; the result is then still the caller's.
    // spec: ResultQueue!Complete
    bool complete(long long handle, void* result) noexcept {
        const bool won = slots_.complete(handle, result);
        // Release: who reads that it came too late reads that its entry was completed.
        if (!won) late_.fetch_add(1, std::memory_order_release);
        return won;
    }

    // ---- out

    // Whether something could be emitted now. Of a completion that has not returned yet, it may be unaware.
    // spec: ResultQueueGraph!HasCompleted
    bool has_completed() noexcept {
        slots_.collect();
        return slots_.any_ready();
    }

    // Moves what may leave, at most `most` pairs, to `out`, which then owns them. How many. Completions as
    // in `has_completed`.
    // spec: ResultQueue!Emit
    int emit(pair_t* out, int most) noexcept {
        slots_.collect();
        int ran = 0;
        const int count = slots_.emit(out, most, &ran);
        if (count != 0) counts_.add(EMITTED, count, ENDED, ran);
        return count;
    }

    // ---- all at once

    // Copies every entry held, in the order of admission, and behind them those still to be restored, into
    // the empty `out`. The payloads stay the queue's. An entry that is completed meanwhile may have its
    // result in it or not, each for itself. Throws bad_alloc.
    // spec: ResultQueue!Snapshot
    void snapshot(std::vector<entry_t>& out) {
        make_room(out);
        slots_.copy_all(out);
        copy_restoring(out);
    }

    // As `snapshot`, but moves: the caller owns the payloads then. Every completion has either won, and its
    // result is here, or loses. An unordered queue waits for those that have won and are about to say so: for a
    // few instructions of theirs. Throws bad_alloc, and has changed nothing.
    // spec: ResultQueueGraph!Clear, ResultQueueImpl!Clear
    void clear(std::vector<entry_t>& out) { take_all(out, false); }

    // As `clear`, and takes nothing in any more.
    // spec: ResultQueue!Close, ResultQueueImpl!Close
    void close(std::vector<entry_t>& out) { take_all(out, true); }

    // any, as long as nothing is taken out. Calls `each` with every payload that the queue owns, until an
    // answer is not 0, which it returns. `each` must not use the queue.
    int visit(int (*each)(void* payload, void* context), void* context) noexcept {
        std::lock_guard<Lock> held(restoring_lock_);
        // An entry is counted before it is admitted, so a queue that has none by its counts need not be searched.
        const bool empty = size(counts_.read([] {})) == 0;
        return walk([=](void* payload) { return each(payload, context); }, empty ? 0 : slots_.capacity());
    }

    // Calls `release` for every payload that the queue still owns and that is not null. The last use of the queue.
    void let_go(void (*release)(void*)) noexcept {
        const auto each = [=](void* payload) { return payload == nullptr ? 0 : (release(payload), 0); };
        walk(each, slots_.held() == 0 ? 0 : slots_.capacity());
    }

    // ---- restoring

    // Sets what `admit_restored` admits, oldest first, RUNNING, FINISHED or WATERMARK. If the answer is
    // DONE the queue owns the payloads, and `entries` is empty.
    // spec: ResultQueue!Restore
    QueueAnswer restore(std::vector<entry_t>& entries) noexcept {
        if (closed_) return QueueAnswer::CLOSED;
        if (!restoring_.empty()) return QueueAnswer::RESTORING;
        if (slots_.held() != 0) return QueueAnswer::NOT_EMPTY;
        std::lock_guard<Lock> held(restoring_lock_);
        restoring_.swap(entries);
        std::reverse(restoring_.begin(), restoring_.end());
        counts_.add(TO_RESTORE, static_cast<long long>(restoring_.size()));
        return QueueAnswer::DONE;
    }

    // Admits what is still to be restored, in order, up to the first entry that needs its call: its handle,
    // and its element, which stays the queue's. False when the queue is full or nothing is left.
    // spec: ResultQueue!AdmitRestored
    bool admit_restored(void** element, long long* handle) noexcept {
        // What has finished before what comes in finished also leaves before it.
        slots_.collect();
        std::lock_guard<Lock> held(restoring_lock_);
        while (!restoring_.empty() && !slots_.full()) {
            const entry_t entry = restoring_.back();
            restoring_.pop_back();
            const int index = slots_.admit(entry.element, entry.state);
            *element = entry.element;
            *handle = 0;
            if (entry.state == EntryState::RUNNING) {
                counts_.add(RESTORED, 1, ADMITTED, 1);
                *handle = slots_.run(index);
                return true;
            }
            slots_.has_result(index, entry.result);
            if (entry.state == EntryState::WATERMARK) {
                counts_.add(RESTORED, 1, WATERMARKS, 1);
            } else {
                counts_.add(RESTORED, 1, ADMITTED, 1, NOT_RUN, 1);
            }
        }
        return false;
    }

    // ---- any: watching

    int capacity() const noexcept { return slots_.capacity(); }

    // All of one moment; while a completion has not returned, one may be missing.
    queue_counts_t counts() const noexcept {
        FinishedStack::completions_t completions = 0;
        std::size_t late = 0;
        const Counts::values_t values = counts_.read([&] {
            do {
                completions = slots_.completed().completions();
                late = late_.load(std::memory_order_acquire);
            } while (slots_.completed().completions() != completions);
        });
        const long long begun = values.of[ADMITTED] - values.of[NOT_RUN];
        // What has left an ordered queue may have a completion that is still to be counted.
        const long long not_ended = begun - values.of[ENDED];
        const long long not_counted = FinishedStack::running(begun, completions);
        const auto running = static_cast<int>(std::min(not_counted, not_ended));
        return {size(values),
                running,
                static_cast<std::size_t>(values.of[TO_RESTORE] - values.of[RESTORED] - values.of[DROPPED]),
                values.of[ADMITTED],
                values.of[WATERMARKS],
                begun - running,
                values.of[EMITTED],
                values.of[RENEWED],
                values.of[RESTORED],
                static_cast<long long>(late)};
    }

private:
    // What only grows. A count that can fall is the difference of two of these.
    enum Count {
        ADMITTED,  // elements, restored ones included
        WATERMARKS,
        EMITTED,
        TAKEN,    // by clear and close, out of slots
        ENDED,    // elements that were run, finished, and have left; unordered, those that were taken
        RENEWED,
        NOT_RUN,  // elements that were restored with their results, or were taken without one
        TO_RESTORE,
        RESTORED,  // admitted
        DROPPED,   // taken by clear and close before they were admitted
        COUNTS
    };
    using Counts = OwnedCounts<COUNTS>;

    static int size(const Counts::values_t& values) noexcept {
        return static_cast<int>(values.of[ADMITTED] + values.of[WATERMARKS] - values.of[EMITTED] - values.of[TAKEN]);
    }

    QueueAnswer admissible() const noexcept {
        if (closed_) return QueueAnswer::CLOSED;
        if (!restoring_.empty()) return QueueAnswer::RESTORING;
        return slots_.full() ? QueueAnswer::FULL : QueueAnswer::DONE;
    }

    void take_all(std::vector<entry_t>& out, bool close) {
        make_room(out);
        const int count = slots_.held();
        const QueueSlots::taken_t taken = slots_.take_all(out);
        copy_restoring(out);
        const auto dropped = static_cast<long long>(restoring_.size());
        std::lock_guard<Lock> held(restoring_lock_);
        restoring_.clear();
        closed_ = closed_ || close;
        // Last: who reads that nothing is left may be the next owner.
        counts_.add(TAKEN, count, NOT_RUN, taken.unfinished, ENDED, taken.ended, DROPPED, dropped);
    }

    // Before anything is copied or taken, which does not allocate.
    void make_room(std::vector<entry_t>& out) const {
        out.reserve(static_cast<std::size_t>(slots_.held()) + restoring_.size());
    }

    void copy_restoring(std::vector<entry_t>& out) const noexcept {
        out.insert(out.end(), restoring_.rbegin(), restoring_.rend());
    }

    // Calls `each` with every payload in the first `slots` slots, and of what is to be restored, until an answer is
    // not 0, which it returns.
    template <class Each>
    int walk(Each each, int slots) const noexcept {
        const auto both = [&](void* element, bool finished, void* result) -> int {
            const int answer = each(element);
            return answer != 0 || !finished ? answer : each(result);
        };
        int answer = slots_.walk(both, slots);
        for (std::size_t index = 0; index < restoring_.size() && answer == 0; ++index) {
            const entry_t& entry = restoring_[index];
            answer = both(entry.element, entry.state != EntryState::RUNNING, entry.result);
        }
        return answer;
    }

    QueueSlots slots_;
    bool closed_ = true;
    std::vector<entry_t> restoring_;  // the last one first, so that the next one is at the end
    Lock restoring_lock_;             // between the owner, when it changes them, and `visit`
    Counts counts_;
    Counter late_{0};
};

}  // namespace pillarbox
