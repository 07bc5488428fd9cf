// The shared side of a mailbox with a mutex and a condition: the oracle of the one without, in builds for tests only.
//
// It holds everything that more than one thread touches: the state, the mails that have arrived, the armed
// wake-up, the sleeping consumer. Methods marked "any" may be called by any thread, the others by the consumer
// only. None needs the GIL, none runs foreign code, and none releases a mail or a callback: they are handed
// back to the caller.
//
// Wake-ups. The consumer fetches everything before it parks, and looks once more under the lock, so mail
// never waits beside a sleeper, and a put need not wake a consumer that does not sleep. Every put that finds
// it asleep wakes it, not only the first: a producer that stalls before its wake-up delays nobody else. The
// armed wake-up is different: it is taken out by one producer, whose stall would delay the others' mail. It
// has to be called once, and the calls of all others would be calls too many.
#pragma once

#include "pillarbox_mail.h"
#include "pillarbox_monitor.h"
#include "pillarbox_state.h"

namespace pillarbox {

class MutexInbox {
public:
    // any. Puts a chain of mails, adjacent and in order, if the state is OPEN. Returns the state that decided; if
    // it is not OPEN, the links of the chain mean nothing any more. `*armed` becomes the armed wake-up, which the
    // caller now owns and must call, or null.
    // spec: Mailbox!Put, Mailbox!PutAll, Mailbox!PutRefused
    state_t push(const chain_t& mails, void** armed) noexcept {
        bool wake = false;
        lock_.lock();
        const state_t state = state_.load(std::memory_order_relaxed);
        if (state != OPEN) {
            bump(rejected_, mails.count);
        } else if (mails.count != 0) {
            mails.oldest->next = newest_;
            newest_ = mails.newest;
            bump(arrived_, mails.count);
            bump(accepted_, mails.count);
            wake = consumer_.any();
            *armed = armed_;
            armed_ = nullptr;
        }
        lock_.unlock();
        if (wake) consumer_.wake();
        return state;
    }

    // any. OPEN becomes QUIESCED; other states stay. Wakes a sleeping consumer; `*armed` as in push.
    // spec: Mailbox!Quiesce
    void quiesce(void** armed) noexcept {
        lock_.lock();
        const bool was_open = state_.load(std::memory_order_relaxed) == OPEN;
        if (was_open) {
            state_.store(QUIESCED, std::memory_order_release);
            *armed = armed_;
            armed_ = nullptr;
        }
        lock_.unlock();
        if (was_open) consumer_.wake();
    }

    // Becomes CLOSED; `to` becomes the chain of what has arrived. `*armed` becomes the armed wake-up,
    // which the caller now owns and drops.
    // spec: Mailbox!Close
    void close(chain_t& to, void** armed) noexcept {
        lock_.lock();
        state_.store(CLOSED, std::memory_order_release);
        take_chain(to);
        *armed = armed_;
        armed_ = nullptr;
        lock_.unlock();
    }

    // `to` becomes the chain of what has arrived; a mail whose put has returned is in it.
    // Returns a state that held when nothing more had arrived: after QUIESCED nothing more can come.
    // The look without the lock may miss a put that is under way, never one that has returned before.
    state_t fetch(chain_t& to) noexcept {
        const state_t before = state();
        if (!any_arrived()) return before;
        lock_.lock();
        take_chain(to);
        const state_t state = state_.load(std::memory_order_relaxed);
        lock_.unlock();
        return state;
    }

    // Sleeps until mail has arrived, the state is not OPEN, or the time is over; it may also wake early.
    void park(double seconds) {
        lock_.lock();
        const bool idle = !any_arrived() && state_.load(std::memory_order_relaxed) == OPEN;
        if (idle) consumer_.sleep(lock_, seconds);
        lock_.unlock();
    }

    // Arms `callback` for the next push or quiesce if nothing has arrived and the state is OPEN; if not, returns
    // false, and the callback stays the caller's. `*spare` becomes the wake-up that was replaced, or null.
    // spec: Mailbox!Arm, Mailbox!ArmRefused
    bool arm(void* callback, void** spare) noexcept {
        lock_.lock();
        const bool idle = !any_arrived() && state_.load(std::memory_order_relaxed) == OPEN;
        *spare = nullptr;
        if (idle) {
            *spare = armed_;
            armed_ = callback;
        }
        lock_.unlock();
        return idle;
    }

    // any. Acquire pairs with the release of quiesce and close: who sees QUIESCED sees, with the next
    // fetch, every mail that was accepted before.
    state_t state() const noexcept { return state_.load(std::memory_order_acquire); }

    // any; counters, exact as of some moment during the call.
    std::size_t accepted() const noexcept { return accepted_.load(std::memory_order_relaxed); }
    std::size_t rejected() const noexcept { return rejected_.load(std::memory_order_relaxed); }

    // Whether anything waits to be fetched.
    bool any_arrived() const noexcept { return arrived_.load(std::memory_order_relaxed) != 0; }

    // For the collection of garbage, while nobody fetches. Calls `look(mail)` for every mail that has arrived, under
    // the lock.
    template <class Look>
    void visit(Look look) {
        lock_.lock();
        for (mail_t* mail = newest_; mail != nullptr; mail = mail->next) look(mail);
        lock_.unlock();
    }

    // The armed wake-up, which stays the inbox's, or null.
    void* armed() noexcept {
        lock_.lock();
        void* const callback = armed_;
        lock_.unlock();
        return callback;
    }

    // any: whether the consumer sleeps in park.
    bool parked() noexcept {
        lock_.lock();
        const bool sleeping = consumer_.any();
        lock_.unlock();
        return sleeping;
    }

private:
    // Under the lock.
    void take_chain(chain_t& to) noexcept {
        to.newest = newest_;
        to.count = arrived_.load(std::memory_order_relaxed);
        newest_ = nullptr;
        arrived_.store(0, std::memory_order_relaxed);
    }

    Lock lock_;
    Sleepers consumer_;
    mail_t* newest_ = nullptr;  // of the chain of what has arrived
    Counter arrived_{0};        // how many; also looked at without the lock
    void* armed_ = nullptr;
    Atomic<state_t> state_{OPEN};
    Counter accepted_{0};
    Counter rejected_{0};
};

}  // namespace pillarbox
