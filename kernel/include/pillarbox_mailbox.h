// A mailbox: the inbox that all threads share, and what the mailbox thread has fetched from it.
//
// The consumer fetches everything that has arrived in one step and sorts it into lanes that are its own: those of
// urgent mail, and those of all other. The batch is what was sorted in before it was made, by its number, so it
// ends although mail keeps coming. Methods marked "any" may be called by any thread, the others by the mailbox
// thread. None needs the GIL or runs foreign code; mails and callbacks are handed back to the caller, who releases them.
#pragma once

#include "pillarbox_lanes.h"
#include "pillarbox_mail.h"
#include "pillarbox_state.h"

namespace pillarbox {

template <class Inbox>
class Mailbox {
public:
    // Before any other call: how many urgent mails in a row come before one that is not urgent.
    void set_urgent_burst(std::size_t mails) noexcept { urgent_burst_ = mails; }
    Inbox& inbox() noexcept { return inbox_; }

    // any. Puts a chain of claimed mails, adjacent and in order, all or none. Returns the state that decided: they are in
    // if it is OPEN. `*armed` becomes a wake-up that the caller now owns and must call, or null.
    // spec: Mailbox!Put, Mailbox!PutAll, Mailbox!PutRefused
    state_t put(const chain_t& mails, void** armed) noexcept {
        return inbox_.push(mails, armed);
    }

    // any. OPEN becomes QUIESCED; other states stay. `*armed` as in put.
    // spec: Mailbox!Quiesce
    void quiesce(void** armed) noexcept { inbox_.quiesce(armed); }

    // The next mail of at least this priority that has none of the flags in `skip`, unlinked; or null. `*seen`
    // becomes a state that held when there was none: QUIESCED says that none can come.
    // spec: Mailbox!Take, Mailbox!TakeNothing, Mailbox!TakeEnded
    mail_t* take(int priority, unsigned char skip, state_t* seen) noexcept {
        chain_t arrived;
        *seen = inbox_.fetch(arrived);
        // One that finds nothing before it does not have to go through the lanes.
        const bool direct = arrived.count == 1 && !any_fetched() && accepts(*arrived.newest, priority, skip);
        if (!direct) sort(arrived);
        return taken(direct ? counted(arrived.newest) : next(priority, skip, LAST_NUMBER));
    }

    // As take, of the batch and the urgent mails.
    // spec: Mailbox!TakeFromBatch, Mailbox!BatchUsedUp
    mail_t* take_from_batch() noexcept {
        fetch();
        return taken(next(MIN_PRIORITY, 0, bound_));
    }

    // Sleeps until mail has arrived, the state is not OPEN, or the time (finite) is over; may wake early. Touches
    // nothing but the inbox. `fetch` must follow.
    void park(double seconds) { inbox_.park(seconds); }

    // Sorts in what has arrived; no mail is taken. Returns a state that held when nothing more had arrived.
    state_t fetch() noexcept {
        chain_t arrived;
        const state_t seen = inbox_.fetch(arrived);
        sort(arrived);
        return seen;
    }

    // Everything put before this call becomes the batch, behind what is left of the last one. Returns whether
    // there is anything to take.
    // spec: Mailbox!CreateBatch, LanesBySequence!MakeBatch
    bool create_batch() noexcept {
        fetch();
        bound_ = numbered_;
        set_in_batch(ordinary_.count());
        return in_batch() != 0 || urgent_.count() != 0;
    }

    // Takes everything that was put before this call, in the order of takes, into `to`.
    // spec: Mailbox!Drain
    void drain(MailList& to) noexcept {
        fetch();
        while (mail_t* mail = taken(next(MIN_PRIORITY, 0, LAST_NUMBER))) to.append(mail);
    }

    // Becomes CLOSED. Every mail that was not taken goes into `to`, in the order of takes. `*armed` becomes a
    // wake-up that the caller now owns and drops, or null.
    // spec: Mailbox!Close
    void close(MailList& to, void** armed) noexcept {
        chain_t arrived;
        inbox_.close(arrived, armed);
        sort(arrived);
        while (mail_t* mail = next(MIN_PRIORITY, 0, LAST_NUMBER)) to.append(mail);
        set_in_batch(0);
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
    bool any_fetched() const noexcept { return urgent_.count() != 0 || ordinary_.count() != 0; }

    // any; counts, in mails. Of no meaning when CLOSED: `waiting`.
    std::size_t waiting() const noexcept {
        // Read in this order the difference cannot be negative: what was taken was accepted before.
        const std::size_t taken = taken_.load(std::memory_order_acquire);
        return inbox_.accepted() - taken;
    }
    std::size_t in_batch() const noexcept { return in_batch_.load(std::memory_order_relaxed); }
    std::size_t taken() const noexcept { return taken_.load(std::memory_order_relaxed); }
    std::size_t urgent_taken() const noexcept { return urgent_taken_.load(std::memory_order_relaxed); }

    // For the collection of garbage, while nobody takes or arms: calls `each` with the object of every Python mail
    // and with the armed wake-up, until an answer is not 0, which it returns. `each` must not use the mailbox.
    int visit(int (*each)(void* owned, void* context), void* context) noexcept {
        void* const armed = inbox_.armed();
        int answer = armed == nullptr ? 0 : each(armed, context);
        const auto look = [&](const mail_t* mail) {
            if (answer == 0 && (mail->flags & PYTHON)) answer = each(mail->object, context);
        };
        inbox_.visit(look);
        urgent_.visit(look);
        ordinary_.visit(look);
        return answer;
    }

private:
    // Numbers the mails in the order of their coming, and gives each to its lane.
    void sort(const chain_t& arrived) noexcept {
        number_t number = numbered_ += arrived.count;
        for (mail_t* mail = arrived.newest; mail != nullptr;) {
            mail_t* const older = mail->next;
            mail->number = number--;
            (mail->flags & URGENT ? urgent_ : ordinary_).add_before(mail);
            mail = older;
        }
        urgent_.settle();
        ordinary_.settle();
    }

    // Unlinks the mail that a take of this kind gets, or null. Looks only at what was fetched, and of what is not
    // urgent at what has a number up to `end`.
    mail_t* next(int priority, unsigned char skip, number_t end) noexcept {
        const bool ordinary_first = in_a_row_ >= urgent_burst_;
        mail_t* mail = ordinary_first ? nullptr : urgent_.pop(priority, skip, LAST_NUMBER);
        if (mail == nullptr) mail = ordinary(priority, skip, end);
        if (mail == nullptr && ordinary_first) mail = urgent_.pop(priority, skip, LAST_NUMBER);
        return mail == nullptr ? nullptr : counted(mail);
    }

    // Counts the urgent mails in a row, up to where the next ordinary one comes first.
    mail_t* counted(mail_t* mail) noexcept {
        if (!(mail->flags & URGENT)) {
            in_a_row_ = 0;
        } else if (in_a_row_ <= urgent_burst_) {
            ++in_a_row_;
        }
        return mail;
    }

    mail_t* ordinary(int priority, unsigned char skip, number_t end) noexcept {
        mail_t* const mail = ordinary_.pop(priority, skip, end);
        if (mail != nullptr && mail->number <= bound_) set_in_batch(in_batch() - 1);
        return mail;
    }

    mail_t* taken(mail_t* mail) noexcept {
        if (mail == nullptr) return nullptr;
        if (mail->flags & URGENT) bump(urgent_taken_, 1);
        // Release pairs with the acquire in waiting(): the mail was counted as accepted before.
        taken_.store(taken_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
        return mail;
    }

    // Only the mailbox thread writes it, and others read it for statistics only.
    void set_in_batch(std::size_t count) noexcept { in_batch_.store(count, std::memory_order_relaxed); }

    Inbox inbox_;
    // Private to the mailbox thread; others read the counts only.
    Lanes urgent_;
    Lanes ordinary_;
    number_t numbered_ = 0;
    number_t bound_ = 0;  // what has a number up to this is of the batch
    std::size_t urgent_burst_ = 64;
    std::size_t in_a_row_ = 0;
    Counter in_batch_{0};
    Counter taken_{0};
    Counter urgent_taken_{0};
};

}  // namespace pillarbox
