// The collector of one attempt: a mail that whoever completes the attempt first may put. No lock, no Python.
//
// Any thread may take it: one exchange of a word says who was first. The mailbox thread makes and revokes it.
#pragma once

#include "pillarbox_atomic.h"
#include "pillarbox_mail.h"
#include "pillarbox_mailbox.h"
#include "pillarbox_inbox.h"

struct _object;  // PyObject

namespace pillarbox {

// What a completion finds: that none has come before, that the attempt has ended without one, or neither.
enum class Collected : int { FIRST, REVOKED, TAKEN };

// Makes the result of what a native thread has given, or lets go of that.
using make_result_t = struct _object* (*)(void* payload, bool wanted);

struct collected_t : mail_t {
    void* owner = nullptr;              // the Python object that this is in
    Mailbox<Inbox>* mailbox = nullptr;  // to put into
    Counter* late = nullptr;            // completions that were refused
    void* payload = nullptr;            // of a native completion
    make_result_t make = nullptr;

    // any. Says what the caller finds: unless that is TAKEN, the mail is the caller's, for one put. Relaxed: it
    // publishes nothing, for the put does, and who is too late has learned only that.
    // spec: Collector!Claim
    Collected take() noexcept { return word_.exchange(Collected::TAKEN, std::memory_order_relaxed); }

    // The attempt has ended. Returns whether nobody had completed it.
    // spec: Collector!TimeOut
    bool revoke() noexcept {
        Collected expected = Collected::FIRST;
        return word_.compare_exchange_strong(expected, Collected::REVOKED, std::memory_order_relaxed,
                                             std::memory_order_relaxed);
    }

    // any. Whether a completion would still be the first.
    bool is_open() const noexcept { return word_.load(std::memory_order_relaxed) == Collected::FIRST; }

    // any. One more completion that has no effect.
    void count_late() noexcept { late->fetch_add(1, std::memory_order_relaxed); }

private:
    Atomic<Collected> word_{Collected::FIRST};
};

}  // namespace pillarbox
