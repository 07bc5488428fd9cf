// The shared side of a mailbox without a lock: one word says the state, the newest mail, how many there are, and
// who waits.
//
// A put links its mail to the newest one and swings the word with one compare-and-swap, which fails if anything
// has changed, the state too: a put races with quiesce and close in that place only. The consumer takes the
// whole chain, newest first, with one exchange that leaves the state where it is. This is Treiber's stack
// ("Systems Programming: Coping with Parallelism", 1986) used by one taker who takes everything, so the same
// address may come back (the ABA problem) without harm: a link always points to what was the newest.
//
// Counting. The word has room for a count of the mails that have arrived, so a put costs no atomic operation more.
// What is beyond it is counted beside the word, before the put, by a put that finds no room. Who fetches moves both
// into a count of its own, under a version, so any thread reads how many were accepted (`spec/ArrivedCount.tla`).
//
// Methods marked "any" may be called by any thread, the others by the consumer only. None needs the GIL, none
// runs foreign code, and none releases a mail or a callback.
//
// Wake-ups. PARKED in the word says that the consumer sleeps or is about to; only the consumer sets and clears
// it, and it sets it by a compare-and-swap that fails if mail has come. Every put that finds PARKED sees to it that
// the consumer wakes, not only the first: a producer that stalls between its push and its wake-up delays nobody
// else's mail. But until the consumer runs again that would be a system call for each put. So who has woken it says
// so, after the call, and names the parking by the count of the signal; others then leave it alone. ARMED is
// cleared by the one push that finds it, for the callback is called once: a stall there does delay the others, as
// it does in the inbox with a mutex.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "pillarbox_counts.h"
#include "pillarbox_mail.h"
#include "pillarbox_monitor.h"
#include "pillarbox_state.h"

namespace pillarbox {

class LockFreeInbox {
public:
    // Of the mails' addresses: what programs get, unless they ask the system for others.
    static constexpr int ADDRESS_BITS = 48;

    // any. Puts a chain of mails, adjacent and in order, if the state is OPEN. Returns the state that decided; if it
    // is not OPEN, the links of the chain mean nothing any more. `*armed` becomes the armed wake-up, which the caller
    // now owns and must call, or null.
    // spec: MailboxImpl!Load, MailboxImpl!Link, MailboxImpl!Push
    // spec: ArrivedCount!Load, ArrivedCount!Charge, ArrivedCount!Swing, ArrivedCount!Refused
    state_t push(const chain_t& mails, void** armed) noexcept {
        const std::size_t count = mails.count;
        // Relaxed: the compare-and-swap decides, and a refusal needs nothing but the state.
        word_t seen = head_.load(std::memory_order_relaxed);
        if (state_of(seen) != OPEN) return refuse(seen, count);
        if (count == 0) return OPEN;
        check_address(mails.newest);
        std::size_t beyond = 0;  // of these mails, what is counted beside the word
        word_t next = 0;
        do {
            if (state_of(seen) != OPEN) {
                if (beyond != 0) count_beyond(beyond, 0);
                return refuse(seen, count);
            }
            const std::size_t room = MOST_COUNTED - count_of(seen);
            if (count > room || beyond != 0) beyond = count_beyond(beyond, count > room ? count - room : 0);
            mails.oldest->next = mail_of(seen);
            const word_t kept = STATE | PARKED | COUNT;
            next = word_of(mails.newest) | ((seen & kept) + ((count - beyond) << COUNT_SHIFT));
        } while (!swing(seen, next));
        notify(seen, armed);
        return OPEN;
    }

    // any. OPEN becomes QUIESCED; other states stay, and the chain stays. Wakes a sleeping consumer.
    // `*armed` as in push.
    // spec: MailboxImpl!BeginQuiesce, MailboxImpl!QuiesceSwap
    void quiesce(void** armed) noexcept {
        word_t seen = head_.load(std::memory_order_relaxed);
        do {
            if (state_of(seen) != OPEN) return;
        } while (!swing(seen, (seen & ~ARMED) | STATE_QUIESCED));
        notify(seen, armed);
    }

    // Becomes CLOSED; `to` becomes the chain of what has arrived. `*armed` becomes the armed wake-up,
    // which the caller now owns and drops.
    // spec: MailboxImpl!Close, MailboxImpl!DropCallback
    void close(chain_t& to, void** armed) noexcept {
        take_chain([this] { return head_.exchange(STATE_CLOSED, std::memory_order_acq_rel); }, to);
        // Relaxed is enough: the callback is the consumer's own.
        *armed = armed_.exchange(nullptr, std::memory_order_relaxed);
    }

    // `to` becomes the chain of what has arrived. Returns the state of the moment at which nothing more had
    // arrived: after QUIESCED nothing more can come. Ends being parked; an armed wake-up stays armed.
    // spec: MailboxImpl!Fetch
    state_t fetch(chain_t& to) noexcept {
        word_t seen = head_.load(std::memory_order_relaxed);
        if (mail_of(seen) != nullptr || (seen & PARKED)) {
            // An exchange with "empty" would reopen a mailbox that another thread has just quiesced.
            seen = take_chain([this] { return head_.fetch_and(STATE | ARMED, std::memory_order_acq_rel); }, to);
        }
        return state_of(seen);
    }

    // Sleeps until mail has arrived, the state is not OPEN, or the time is over; it may also wake early.
    // spec: MailboxImpl!ReadSignal, MailboxImpl!Publish, MailboxImpl!Park, MailboxImpl!Sleep, MailboxImpl!SliceEnds
    void park(double seconds) {
        const Signal::value_t before = signal_.value();
        // Relaxed: published by the compare-and-swap that sets PARKED.
        parked_at_.store(before, std::memory_order_relaxed);
        word_t seen = head_.load(std::memory_order_relaxed);
        // Release: who finds PARKED moves the signal after it was read above.
        if (!idle(seen) || !head_.compare_exchange_strong(
                seen, seen | PARKED, std::memory_order_release, std::memory_order_relaxed)) {
            return;
        }
        signal_.sleep(before, seconds);
    }

    // Arms `callback` for the next push or quiesce if nothing has arrived and the state is OPEN; if not, returns
    // false, and the callback stays the caller's. `*spare` becomes the wake-up that was replaced, or null.
    // spec: MailboxImpl!BeginArm, MailboxImpl!ArmSwap, MailboxImpl!ArmUndo
    bool arm(void* callback, void** spare) noexcept {
        // Release: who takes the callback out sees what it points to. The old one is the consumer's own.
        *spare = armed_.exchange(callback, std::memory_order_release);
        word_t seen = head_.load(std::memory_order_relaxed);
        while (idle(seen)) {
            if (swing(seen, seen | ARMED)) return true;
        }
        // Null: a push that was charged with an earlier arming has taken this callback instead, and calls it. Relaxed is
        // enough: otherwise it is the consumer's own.
        return armed_.exchange(nullptr, std::memory_order_relaxed) == nullptr;
    }

    // any. Acquire: who reads that it has ended sees what was done before that.
    state_t state() const noexcept { return state_of(head_.load(std::memory_order_acquire)); }

    // any; counters, exact as of some moment during the call. A put that takes the mails which have arrived past
    // MOST_COUNTED may be counted before it is in, in part, and is taken back if it is refused.
    // spec: ArrivedCount!ReadVersion, ArrivedCount!Read
    std::size_t accepted() const noexcept {
        std::size_t arrived = 0;
        const auto counts = counts_.read([&] {
            arrived = count_of(head_.load(std::memory_order_acquire));
            arrived += beyond_.load(std::memory_order_acquire);
        });
        return arrived + static_cast<std::size_t>(counts.of[FETCHED]);
    }
    std::size_t rejected() const noexcept { return rejected_.load(std::memory_order_relaxed); }

    // Whether anything waits to be fetched.
    bool any_arrived() const noexcept { return mail_of(head_.load(std::memory_order_relaxed)) != nullptr; }

    // For the collection of garbage, while nobody fetches. Calls `look(mail)` for every mail that has arrived.
    template <class Look>
    void visit(Look look) const {
        // Acquire pairs with the pushes, as in fetch. What others push meanwhile comes in front of it.
        for (mail_t* mail = mail_of(head_.load(std::memory_order_acquire)); mail != nullptr; mail = mail->next) {
            look(mail);
        }
    }

    // The armed wake-up, which stays the inbox's, or null.
    void* armed() const noexcept { return armed_.load(std::memory_order_acquire); }

    // any: whether the consumer sleeps in park, or has slept there and not fetched since.
    bool parked() const noexcept { return (head_.load(std::memory_order_relaxed) & PARKED) != 0; }

private:
    // The word: a pointer to the newest mail that was not fetched, or null. Above it how many there are, up to
    // MOST_COUNTED, and below it
    using word_t = std::uintptr_t;
    static constexpr word_t STATE_QUIESCED = 1;  // the state; neither bit is OPEN
    static constexpr word_t STATE_CLOSED = 2;
    static constexpr word_t STATE = STATE_QUIESCED | STATE_CLOSED;
    static constexpr word_t PARKED = 4;  // the consumer sleeps on the signal, or is about to
    static constexpr word_t ARMED = 8;   // the next push or quiesce calls what is in armed_; never beside a mail
    static constexpr word_t TAGS = STATE | PARKED | ARMED;
    static_assert(alignof(mail_t) > TAGS, "the tags need the low bits of a mail's address");
    static_assert(sizeof(void*) >= 8, "allocators of 32-bit machines align to eight bytes only");
    static constexpr int COUNT_SHIFT = ADDRESS_BITS;
    static constexpr word_t COUNT = ~word_t{0} << COUNT_SHIFT;
    static constexpr std::size_t MOST_COUNTED = COUNT >> COUNT_SHIFT;
    enum { FETCHED, COUNTS };
    static constexpr std::size_t CACHE_LINE = 64;

    static mail_t* mail_of(word_t word) noexcept { return reinterpret_cast<mail_t*>(word & ~(TAGS | COUNT)); }
    static word_t word_of(mail_t* mail) noexcept { return reinterpret_cast<word_t>(mail); }
    static std::size_t count_of(word_t word) noexcept { return word >> COUNT_SHIFT; }
    static state_t state_of(word_t word) noexcept { return static_cast<state_t>(word & STATE); }

    // OPEN, no mail, and the consumer, which asks, not parked; armed or not.
    static bool idle(word_t word) noexcept { return (word & ~ARMED) == 0; }

    // One compare-and-swap of the word. Release publishes the mails, and what armed_ points to. Acquire: who finds
    // PARKED or ARMED acts on what the consumer did before it set them.
    bool swing(word_t& seen, word_t next) noexcept {
        return head_.compare_exchange_weak(seen, next, std::memory_order_acq_rel, std::memory_order_relaxed);
    }

    // Who has changed the word wakes whom it found waiting there.
    // spec: MailboxImpl!LookParked, MailboxImpl!Compare, MailboxImpl!Signal, MailboxImpl!Wake, MailboxImpl!Note
    // spec: MailboxImpl!TakeCallback
    void notify(word_t found, void** armed) noexcept {
        if (found & PARKED) wake();
        // Acquire: what the callback points to, which may be that of a later arming than the word was found with.
        if (found & ARMED) *armed = armed_.exchange(nullptr, std::memory_order_acquire);
    }

    // Wakes the consumer, unless somebody has done so since it parked. Should it have parked anew, it has fetched what
    // the caller has pushed. The parking is named by the count that the signal must move from: relaxed is enough,
    // for a count that is read here is that of this parking or of a later one, and whoever noted it has moved it.
    void wake() noexcept {
        const Signal::value_t parking = parked_at_.load(std::memory_order_relaxed);
        if (woken_.load(std::memory_order_relaxed) == parking) return;
        signal_.wake();
        woken_.store(parking, std::memory_order_relaxed);
    }

    // Better than a mailbox that loses mail.
    static void check_address(mail_t* mail) noexcept {
        if ((word_of(mail) & COUNT) == 0) return;
        std::fprintf(stderr, "pillarbox: a mail at %p: addresses of more than 48 bits are not supported\n",
                     static_cast<void*>(mail));
        std::abort();
    }

    // Makes what a put has counted beside the word `now`. Relaxed is enough: the push that follows releases it.
    std::size_t count_beyond(std::size_t before, std::size_t now) noexcept {
        beyond_.fetch_add(now - before, std::memory_order_relaxed);
        return now;
    }

    // `take()` gives the word whose chain is the consumer's from then on. Acquire pairs with the release of every push
    // in the chain: each continues the releases before it. Release: who reads the counts and sees the word that is
    // left also sees that they are being changed.
    // spec: ArrivedCount!BeginFetch, ArrivedCount!Fetch, ArrivedCount!CountFetched, ArrivedCount!EndFetch
    // spec: ArrivedCount!BeginMove, ArrivedCount!Move, ArrivedCount!CountMoved, ArrivedCount!EndMove
    template <class Take>
    word_t take_chain(Take take, chain_t& to) noexcept {
        word_t seen = 0;
        counts_.change([&] {
            seen = take();
            counts_.raise(FETCHED, static_cast<long long>(count_of(seen)));
        });
        to.newest = mail_of(seen);
        to.count = count_of(seen);
        if (to.count == MOST_COUNTED) {
            to.count = length(to.newest);
            const std::size_t beyond = to.count - MOST_COUNTED;
            counts_.change([&] {
                beyond_.fetch_sub(beyond, std::memory_order_release);
                counts_.raise(FETCHED, static_cast<long long>(beyond));
            });
        }
        return seen;
    }

    state_t refuse(word_t seen, std::size_t count) noexcept {
        rejected_.fetch_add(count, std::memory_order_relaxed);
        return state_of(seen);
    }

    static std::size_t length(const mail_t* newest) noexcept {
        std::size_t count = 0;
        for (const mail_t* mail = newest; mail != nullptr; mail = mail->next) ++count;
        return count;
    }

    Atomic<word_t> head_{0};
    Signal signal_;
    Atomic<Signal::value_t> parked_at_{0};  // the count of the signal when the consumer parked last
    Atomic<Signal::value_t> woken_{0};      // that of a parking that was ended by a wake-up
    Atomic<void*> armed_{nullptr};
    Counter beyond_{0};
    Counter rejected_{0};
    // What follows the consumer alone writes, as it does the lanes behind the inbox: not on the line that all producers
    // change. Distance instead of alignment, for the objects of Python that a mailbox lies in are aligned to 16 bytes.
    char apart_[CACHE_LINE];
    OwnedCounts<COUNTS> counts_;
};

}  // namespace pillarbox
