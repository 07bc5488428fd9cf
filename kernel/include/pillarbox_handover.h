// The hand-over without Python: a bounded list of items that one side appends to and the other takes from.
//
// Any thread may call any method; the words producer and consumer say who is meant to. None needs the GIL,
// none runs foreign code, and none releases anything: an item, a failure and an armed wake-up are pointers
// that the hand-over owns from the call that takes them in to the call that hands them out. One lock guards
// everything.
//
// A caller waits by turns: it tries, sleeps in `await_room` or `await_item`, and tries again. Between two
// turns it may look for signals and at its clock. Nobody is woken who does not sleep, and all who do are.
#pragma once

#include <cstddef>
#include <limits>
#include <mutex>
#include <utility>

#include "pillarbox_monitor.h"

namespace pillarbox {

// A node that its maker allocates and, when it has it back, frees.
struct item_t {
    item_t* next;
    void* value;
    std::size_t nbytes;  // by the producer's count
};

// How a put ended. Only one that is ACCEPTED has changed anything, and owns the item.
enum class PutAnswer { ACCEPTED, NO_ROOM, ENDED, CLOSED };

// What a take has found.
enum class TakeAnswer { ITEMS, NOTHING, FAILED, FINISHED, CLOSED };

struct taken_t {
    item_t* items = nullptr;  // a chain, oldest first; the caller's
    void* failure = nullptr;  // one more reference to it; the caller's
    void* armed = nullptr;    // the producer's wake-up, which the caller owns and must call
};

// What `close` hands back; all of it is the caller's.
struct left_t {
    item_t* items = nullptr;
    void* failure = nullptr;
    void* producer = nullptr;  // the producer's wake-up, which must be called
    void* consumer = nullptr;  // the consumer's wake-up, to be released
};

struct handover_counts_t {
    std::size_t items, nbytes, accepted, taken, refused, producer_waits, consumer_waits;
    bool ended;
};

class Handover {
public:
    static constexpr std::size_t UNBOUNDED = std::numeric_limits<std::size_t>::max();

    // Once, before any other use. `share` counts one more reference to a failure; it is called under the
    // lock, and must do no more than that.
    void bound(std::size_t max_items, std::size_t max_bytes, void (*share)(void* failure)) noexcept {
        max_items_ = max_items;
        max_bytes_ = max_bytes;
        share_ = share;
    }

    // ---- producer

    // Appends the item if it has room. `*armed` becomes the consumer's wake-up, which the caller then owns
    // and must call, or stays.
    // spec: Handover!Put, Handover!PutAtEnd, Handover!PutFindsNoRoom
    PutAnswer put(item_t* item, void** armed) noexcept {
        lock_.lock();
        const PutAnswer answer = admissible(item->nbytes);
        bool wake = false;
        if (answer == PutAnswer::ACCEPTED) {
            append(item);
            *armed = std::exchange(armed_consumer_, nullptr);
            wake = consumers_.any();
        }
        lock_.unlock();
        if (wake) consumers_.wake();
        return answer;
    }

    // Sleeps until an item of `nbytes` bytes may have room, the hand-over has ended, or the time is over.
    // `*waited` says whether the put that calls has slept before.
    // spec: Handover!PutSleeps
    void await_room(std::size_t nbytes, double seconds, bool* waited) {
        std::lock_guard<Lock> held(lock_);
        if (admissible(nbytes) != PutAnswer::NO_ROOM) return;
        if (!std::exchange(*waited, true)) ++counts_.producer_waits;
        producers_.sleep(lock_, seconds);
    }

    // Counts a put that ended without acceptance.
    // spec: Handover!PutTimesOut
    void refuse() noexcept {
        std::lock_guard<Lock> held(lock_);
        ++counts_.refused;
    }

    // Ends the input, with a failure or with null. False, without effect, if it has been ended or closed
    // before; the failure is then still the caller's. `*armed` as in `put`.
    // spec: Handover!Finish, Handover!Fail
    bool finish(void* failure, void** armed) noexcept {
        lock_.lock();
        const bool first = end_ == End::RUNNING;
        if (first) {
            end_ = End::ENDED;
            failure_ = failure;
            *armed = std::exchange(armed_consumer_, nullptr);
        }
        lock_.unlock();
        if (first) {
            // A producer that still waits, in another thread, learns that the input has ended.
            producers_.wake();
            consumers_.wake();
        }
        return first;
    }

    // Arms a wake-up for the take that makes room for an item of `nbytes` bytes, or for `close`. False, and
    // arms nothing, if there is room or the consumer has closed. `*callback` becomes what the caller owns
    // then: the one that was replaced, or the one that was not armed.
    // spec: Handover!ArmProducer
    bool arm_producer(void** callback, std::size_t nbytes) noexcept {
        std::lock_guard<Lock> held(lock_);
        if (has_room(nbytes) || end_ == End::CLOSED) return false;
        std::swap(*callback, armed_producer_);
        armed_nbytes_ = nbytes;
        return true;
    }

    // ---- consumer

    // Takes out the oldest item, or everything. `*taken` comes empty.
    // spec: Handover!Take, Handover!TakeAll, Handover!TakeAtEnd, Handover!TakeFindsNothing
    TakeAnswer take(bool everything, taken_t* taken) noexcept {
        lock_.lock();
        TakeAnswer answer = TakeAnswer::ITEMS;
        bool wake = false;
        if (first_ == nullptr) {
            answer = without_items();
            if (answer == TakeAnswer::FAILED) {
                share_(failure_);
                taken->failure = failure_;
            }
        } else {
            taken->items = unlink(everything);
            wake = producers_.any();
            if (has_room(armed_nbytes_)) taken->armed = std::exchange(armed_producer_, nullptr);
        }
        lock_.unlock();
        if (wake) producers_.wake();
        return answer;
    }

    // Sleeps until an item waits, the input has ended, a wake-up has come, or the time is over. True if
    // there is nothing to take but a wake-up, which this call then consumes. `*waited` as in `await_room`.
    // spec: Handover!TakeSleeps, Handover!TakeIsWoken
    bool await_item(double seconds, bool* waited) {
        std::lock_guard<Lock> held(lock_);
        if (idle() && !woken_) {
            if (!std::exchange(*waited, true)) ++counts_.consumer_waits;
            consumers_.sleep(lock_, seconds);
        }
        return idle() && std::exchange(woken_, false);
    }

    // Ends the output: nothing goes in or out any more. `*left` comes empty.
    // spec: Handover!Close
    void close(left_t* left) noexcept {
        lock_.lock();
        end_ = End::CLOSED;
        left->items = first_;
        left->failure = std::exchange(failure_, nullptr);
        left->producer = std::exchange(armed_producer_, nullptr);
        left->consumer = std::exchange(armed_consumer_, nullptr);
        first_ = last_ = nullptr;
        items_ = nbytes_ = 0;
        lock_.unlock();
        producers_.wake();
        consumers_.wake();
    }

    // Arms a wake-up for the next put, finish or wake_up. False, and arms nothing, if an item waits, the
    // input has ended, or a wake-up has come, which this call then consumes. `*callback` as in
    // `arm_producer`.
    // spec: Handover!ArmConsumer
    bool arm_consumer(void** callback) noexcept {
        std::lock_guard<Lock> held(lock_);
        if (std::exchange(woken_, false) || !idle()) return false;
        std::swap(*callback, armed_consumer_);
        return true;
    }

    // ---- watching, and anybody

    // Ends one wait of the consumer: the present one, or else the next. `*armed` as in `put`.
    // spec: Handover!WakeUp
    void wake_up(void** armed) noexcept {
        lock_.lock();
        *armed = std::exchange(armed_consumer_, nullptr);
        const bool wake = consumers_.any();
        woken_ = *armed == nullptr || wake;
        lock_.unlock();
        if (wake) consumers_.wake();
    }

    handover_counts_t counts() noexcept {
        std::lock_guard<Lock> held(lock_);
        handover_counts_t counts = counts_;
        counts.items = items_;
        counts.nbytes = nbytes_;
        counts.ended = first_ == nullptr && end_ != End::RUNNING;
        return counts;
    }

    // Calls `each` with all that the hand-over owns, values of items, failure, armed wake-ups, until an answer
    // is not 0, which it returns. It calls under the lock: `each` must not use the hand-over.
    int visit(int (*each)(void* owned, void* context), void* context) noexcept {
        std::lock_guard<Lock> held(lock_);
        int answer = 0;
        for (const item_t* item = first_; item != nullptr && answer == 0; item = item->next) {
            answer = each(item->value, context);
        }
        for (void* owned : {failure_, armed_producer_, armed_consumer_}) {
            if (owned != nullptr && answer == 0) answer = each(owned, context);
        }
        return answer;
    }

private:
    enum class End { RUNNING, ENDED, CLOSED };

    // Everything below is called under the lock.

    // Nothing to take, and nothing to say either.
    bool idle() const noexcept { return first_ == nullptr && end_ == End::RUNNING; }

    bool has_room(std::size_t nbytes) const noexcept {
        if (first_ == nullptr) return true;
        if (items_ >= max_items_) return false;
        return nbytes <= max_bytes_ && nbytes_ <= max_bytes_ - nbytes;
    }

    PutAnswer admissible(std::size_t nbytes) const noexcept {
        if (end_ == End::CLOSED) return PutAnswer::CLOSED;
        if (end_ == End::ENDED) return PutAnswer::ENDED;
        return has_room(nbytes) ? PutAnswer::ACCEPTED : PutAnswer::NO_ROOM;
    }

    TakeAnswer without_items() const noexcept {
        if (end_ == End::RUNNING) return TakeAnswer::NOTHING;
        if (end_ == End::CLOSED) return TakeAnswer::CLOSED;
        return failure_ == nullptr ? TakeAnswer::FINISHED : TakeAnswer::FAILED;
    }

    void append(item_t* item) noexcept {
        item->next = nullptr;
        (last_ == nullptr ? first_ : last_->next) = item;
        last_ = item;
        ++items_;
        nbytes_ += item->nbytes;
        ++counts_.accepted;
    }

    item_t* unlink(bool everything) noexcept {
        item_t* chain = first_;
        if (everything || chain->next == nullptr) {
            counts_.taken += items_;
            first_ = last_ = nullptr;
            items_ = nbytes_ = 0;
            return chain;
        }
        first_ = std::exchange(chain->next, nullptr);
        --items_;
        nbytes_ -= chain->nbytes;
        ++counts_.taken;
        return chain;
    }

    Lock lock_;
    Sleepers producers_;
    Sleepers consumers_;
    std::size_t max_items_ = 1;
    std::size_t max_bytes_ = UNBOUNDED;
    void (*share_)(void* failure) = nullptr;
    item_t* first_ = nullptr;
    item_t* last_ = nullptr;
    std::size_t items_ = 0;
    std::size_t nbytes_ = 0;
    End end_ = End::RUNNING;
    void* failure_ = nullptr;
    void* armed_producer_ = nullptr;
    std::size_t armed_nbytes_ = 0;
    void* armed_consumer_ = nullptr;
    bool woken_ = false;  // a wake-up that has met no waiting consumer yet
    handover_counts_t counts_{};
};

}  // namespace pillarbox
