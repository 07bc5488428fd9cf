// A mailbox: the inbox that all threads share, and what the mailbox thread has fetched from it.
//
// The consumer fetches everything that has arrived in one step and sorts it into lists that are its own: urgent
// mails, the current batch, and the backlog (what was fetched after the batch was made). So a batch ends although
// mail keeps coming. Methods marked "any" may be called by any thread, the others by the mailbox thread. None
// needs the GIL or runs foreign code; mails and callbacks are handed back to the caller, who releases them.
#pragma once

#include "pillarbox_mail.h"
#include "pillarbox_state.h"
#include "pillarbox_trace.h"

namespace pillarbox {

template <class Inbox>
class Mailbox {
public:
    // Before any other call: how many urgent mails in a row come before one that is not urgent.
    void set_urgent_burst(std::size_t mails) noexcept { urgent_burst_ = mails; }
    Inbox& inbox() noexcept { return inbox_; }

    // any. Puts a chain of mails, adjacent and in order, all or none. Returns the state that decided: they are in
    // if it is OPEN. `*armed` becomes a wake-up that the caller now owns and must call, or null.
    // spec: Mailbox!Put, Mailbox!PutAll, Mailbox!PutRefused
    state_t put(mail_t* first, mail_t* last, std::size_t count, void** armed) noexcept {
        Trace trace(this, "put", first, count);
        return trace.state(inbox_.push(first, last, count, armed));
    }

    // any. OPEN becomes QUIESCED; other states stay. `*armed` as in put.
    // spec: Mailbox!Quiesce
    void quiesce(void** armed) noexcept {
        Trace trace(this, "quiesce");
        inbox_.quiesce(armed);
    }

    // The next mail of at least this priority that has none of the flags in `skip`, unlinked; or null. `*seen`
    // becomes a state that held when there was none: QUIESCED says that none can come.
    // spec: Mailbox!Take, Mailbox!TakeNothing, Mailbox!TakeEnded
    mail_t* take(int priority, unsigned char skip, state_t* seen) noexcept {
        Trace trace(this, "take", priority, skip);
        *seen = fetch();
        mail_t* const mail = taken(next(priority, skip, true));
        if (PILLARBOX_PLANTED(ended_by_a_later_look)) *seen = inbox_.state();
        if (PILLARBOX_PLANTED(ended_take_waits)) *seen = OPEN;
        return trace.mail(mail, *seen);
    }

    // As take, of the batch and the urgent mails.
    // spec: Mailbox!TakeFromBatch, Mailbox!BatchUsedUp
    mail_t* take_from_batch() noexcept {
        Trace trace(this, "take_from_batch");
        const state_t seen = fetch();
        return trace.mail(taken(next(MIN_PRIORITY, 0, PILLARBOX_PLANTED(batch_grows))), seen);
    }

    // Sleeps until mail has arrived, the state is not OPEN, or the time (finite) is over; may wake early.
    void park(double seconds) {
        inbox_.park(seconds);
        fetch();
    }

    // Everything put before this call becomes the batch, behind what is left of the last one. Returns whether
    // there is anything to take.
    // spec: Mailbox!CreateBatch
    bool create_batch() noexcept {
        Trace trace(this, "create_batch");
        fetch();
        if (!PILLARBOX_PLANTED(batch_forgets_backlog)) batch_.append_all(backlog_);
        return trace.flag(batch_.count() != 0 || urgent_.count() != 0);
    }

    // Takes everything that was put before this call, in the order of takes, into `to`.
    // spec: Mailbox!Drain
    void drain(MailList& to) noexcept {
        Trace trace(this, "drain");
        fetch();
        const unsigned char skip = PILLARBOX_SEEDED(drain_skips_deferrable, 0, DEFERRABLE);
        while (mail_t* mail = taken(next(MIN_PRIORITY, skip, true))) to.append(mail);
        trace.mails(to);
    }

    // Becomes CLOSED. Every mail that was not taken goes into `to`, in the order of takes. `*armed` becomes a
    // wake-up that the caller now owns and drops, or null.
    // spec: Mailbox!Close
    void close(MailList& to, void** armed) noexcept {
        Trace trace(this, "close");
        MailList arrived;
        inbox_.close(arrived, armed);
        if (!PILLARBOX_PLANTED(close_forgets_arrived)) sort(arrived);
        if (PILLARBOX_PLANTED(close_forgets_batch)) batch_.forget();
        while (mail_t* mail = gone(next(MIN_PRIORITY, 0, true))) to.append(mail);
        trace.mails(to);
    }

    // Arms a wake-up for the next put or quiesce, if no mail waits and the state is OPEN; if not, returns false, and
    // the callback stays the caller's. `*spare` becomes the wake-up that was replaced, or null.
    // spec: Mailbox!Arm, Mailbox!ArmRefused
    bool arm(void* callback, void** spare) noexcept {
        *spare = nullptr;
        return !any_fetched() && inbox_.arm(callback, spare);
    }

    // Whether any mail waits.
    // spec: Mailbox!HasMail
    bool has_mail() const noexcept { return any_fetched() || inbox_.any_arrived(); }

    // Whether mail waits that is private to the mailbox thread already.
    bool any_fetched() const noexcept { return urgent_.count() != 0 || batch_.count() != 0 || backlog_.count() != 0; }

    // any; counts, in mails.
    std::size_t waiting() const noexcept {
        // Read in this order the difference cannot be negative: what is gone was accepted before.
        const std::size_t gone = gone_.load(std::memory_order_acquire);
        return inbox_.accepted() - gone;
    }
    std::size_t in_batch() const noexcept { return batch_.count(); }
    std::size_t taken() const noexcept { return taken_.load(std::memory_order_relaxed); }
    std::size_t urgent_taken() const noexcept { return urgent_taken_.load(std::memory_order_relaxed); }

private:
    state_t fetch() noexcept {
        MailList arrived;
        const state_t seen = inbox_.fetch(arrived);
        sort(arrived);
        return seen;
    }

    // Sorts what has arrived into the urgent list and the backlog.
    void sort(MailList& arrived) noexcept {
        while (mail_t* mail = arrived.pop_first()) {
            const bool urgent = (mail->flags & URGENT) && !PILLARBOX_PLANTED(urgent_not_first);
            (urgent ? urgent_ : backlog_).append(mail);
        }
    }

    // Unlinks the mail that a take of this kind gets, or null. Looks only at what was fetched.
    mail_t* next(int priority, unsigned char skip, bool of_backlog) noexcept {
        const bool ordinary_first = in_a_row_ >= urgent_burst_ + PILLARBOX_SEEDED(burst_too_long, 0, 1) &&
                                    !PILLARBOX_PLANTED(urgent_starves);
        priority += PILLARBOX_SEEDED(priority_excluded, 0, priority > MIN_PRIORITY);
        if (PILLARBOX_PLANTED(deferrable_not_skipped)) skip = 0;
        mail_t* mail = ordinary_first ? nullptr : urgent_.pop(priority, skip);
        if (mail == nullptr) mail = batch_.pop(priority, skip);
        if (mail == nullptr && of_backlog) mail = backlog_.pop(priority, skip);
        if (mail == nullptr && ordinary_first) mail = urgent_.pop(priority, skip);
        if (mail == nullptr) return nullptr;
        if (!(mail->flags & URGENT)) {
            in_a_row_ = 0;
        } else if (!ordinary_first) {
            ++in_a_row_;
        }
        return mail;
    }

    mail_t* gone(mail_t* mail) noexcept {
        // Release pairs with the acquire in waiting(): the mail was counted as accepted before.
        if (mail != nullptr) gone_.store(gone_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
        return mail;
    }

    mail_t* taken(mail_t* mail) noexcept {
        if (mail == nullptr) return nullptr;
        bump(taken_, 1);
        if (mail->flags & URGENT) bump(urgent_taken_, 1);
        return gone(mail);
    }

    Inbox inbox_;
    // Private to the mailbox thread; others read the counts only.
    MailList urgent_;
    MailList batch_;
    MailList backlog_;
    std::size_t urgent_burst_ = 64;
    std::size_t in_a_row_ = 0;
    Counter taken_{0};
    Counter urgent_taken_{0};
    // Mails that left the mailbox, whichever way.
    Counter gone_{0};
};

}  // namespace pillarbox
