// What the mailbox thread has fetched, kept so that a take does not look at mail that it does not accept.
//
// Mail of one kind (its priority, and whether it is deferrable) waits in one lane, in the order of its coming. A
// mail carries the number of its coming, so the oldest that a take accepts is the first of the lanes that it
// accepts with the least number: a take costs a look at each kind that waits, whatever the number of mails.
// OWN_LANES kinds have lanes of their own at a time; mail of further kinds shares one lane, which is searched.
// Nothing is allocated. Confined to one thread; only the count may be read by others.
#pragma once

#include "pillarbox_mail.h"

namespace pillarbox {

// Whether a take of this least priority, which leaves out what has one of the flags in `skip`, accepts the mail.
inline bool accepts(const mail_t& mail, int priority, unsigned char skip) noexcept {
    return mail.priority >= priority && (mail.flags & skip) == 0;
}

class Lanes {
public:
    std::size_t count() const noexcept { return count_.load(std::memory_order_relaxed); }

    // Adds a mail, which has its number, behind all that were settled, and before those that were added since.
    // `settle` must follow, before anything else. So a chain is sorted from its newest mail on, in one walk.
    // spec: LanesBySequence!Sort
    void add_before(mail_t* mail) noexcept {
        lane_t& lane = lane_for(*mail);
        mail->next = lane.coming;
        if (lane.coming == nullptr) lane.last_coming = mail;
        lane.coming = mail;
        ++coming_;
    }

    void settle() noexcept {
        if (coming_ == 0) return;
        set_count(count() + coming_);
        coming_ = 0;
        for (lane_t* lane = own_; lane != own_ + used_; ++lane) lane->settle();
        shared_.settle();
    }

    // The oldest mail numbered up to `end`, of at least this priority, that has none of the flags in `skip`,
    // unlinked; or null.
    // spec: LanesBySequence!TakeMail
    mail_t* pop(int priority, unsigned char skip, number_t end) noexcept {
        number_t oldest = end;
        lane_t* found = nullptr;
        for (lane_t* lane = own_; lane != own_ + used_; ++lane) {
            // All mails of a lane are accepted if its first one is.
            if (!accepts(*lane->first, priority, skip) || lane->first->number > oldest) continue;
            oldest = lane->first->number;
            found = lane;
        }
        if (shared_.first != nullptr) {
            mail_t* before = nullptr;
            for (mail_t* mail = shared_.first; mail != nullptr && mail->number <= oldest; mail = mail->next) {
                if (accepts(*mail, priority, skip)) return unlink(shared_, before, mail);
                before = mail;
            }
        }
        if (found == nullptr) return nullptr;
        mail_t* const mail = unlink(*found, nullptr, found->first);
        // The last of the lanes in use moves into the place of one that is not.
        if (found->first == nullptr) *found = own_[--used_];
        return mail;
    }

    // Calls `look(mail)` for every mail, in no particular order.
    template <class Look>
    void visit(Look look) const {
        for (const lane_t* lane = own_; lane != own_ + used_; ++lane) {
            for (mail_t* mail = lane->first; mail != nullptr; mail = mail->next) look(mail);
        }
        for (mail_t* mail = shared_.first; mail != nullptr; mail = mail->next) look(mail);
    }

private:
    static constexpr int OWN_LANES = 32;

    struct lane_t {
        mail_t* first = nullptr;
        mail_t* last = nullptr;
        mail_t* coming = nullptr;  // not settled yet
        mail_t* last_coming = nullptr;
        int priority = 0;
        unsigned char flags = 0;

        void settle() noexcept {
            if (coming == nullptr) return;
            (first == nullptr ? first : last->next) = coming;
            last = last_coming;
            coming = nullptr;
        }
    };

    lane_t& lane_for(const mail_t& mail) noexcept {
        const unsigned char flags = mail.flags & DEFERRABLE;
        for (lane_t* lane = own_; lane != own_ + used_; ++lane) {
            if (lane->priority == mail.priority && lane->flags == flags) return *lane;
        }
        if (used_ == OWN_LANES) return shared_;
        lane_t& lane = own_[used_++];
        lane = {nullptr, nullptr, nullptr, nullptr, mail.priority, flags};
        return lane;
    }

    mail_t* unlink(lane_t& lane, mail_t* before, mail_t* mail) noexcept {
        (before == nullptr ? lane.first : before->next) = mail->next;
        if (mail == lane.last) lane.last = before;
        set_count(count() - 1);
        return mail;
    }

    // Only the mailbox thread writes it: a plain store is enough, and others read it for statistics only.
    void set_count(std::size_t count) noexcept { count_.store(count, std::memory_order_relaxed); }

    int used_ = 0;
    std::size_t coming_ = 0;  // added and not settled
    Counter count_{0};
    lane_t shared_;
    lane_t own_[OWN_LANES];
};

}  // namespace pillarbox
