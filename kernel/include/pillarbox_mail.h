// One mail as C++ sees it, a chain of mails on their way, and a first-in first-out list of mails.
//
// A mail is a node that its owner embeds; chains and lists only link nodes and own nothing, and belong to one
// thread.
#pragma once

#include <cstdint>

#include "pillarbox_atomic.h"

namespace pillarbox {

// The least and the greatest priority of a mail; a take that names the least accepts every mail.
constexpr int MIN_PRIORITY = -1;
constexpr int MAX_PRIORITY = 2147483647;

// Bits of mail_t::flags. They are set before the mail is put and do not change while it waits.
constexpr unsigned char URGENT = 1;      // taken before all that are not urgent
constexpr unsigned char DEFERRABLE = 2;  // skipped by a take that asks for that
constexpr unsigned char PYTHON = 4;      // the mail is in a Python object

// Counts the mails that one mailbox thread has sorted in: 64 bits do not run out.
using number_t = std::uint64_t;
constexpr number_t LAST_NUMBER = UINT64_MAX;

// Aligned to sixteen bytes: an inbox keeps four bits of its state beside a pointer to a mail.
struct alignas(16) mail_t {
    mail_t* next = nullptr;
    union {
        void (*fn)(mail_t* mail, bool run) = nullptr;  // called once: to run the mail, or only to let go of it
        void* object;                                  // of a PYTHON mail: the object that it is in
    };
    number_t number = 0;  // of its coming, given by the mailbox thread
    int priority = 0;
    unsigned char flags = 0;
    Atomic<bool> queued{false};  // true from the claim before a put until the mail is handed out

    // Claims the mail for one put. False if it waits in some mailbox already. Acquire pairs with release():
    // who claims the mail anew may write its link after the last taker has read it.
    bool claim() noexcept {
        return !queued.exchange(true, std::memory_order_acquire);
    }

    // As claim, where nobody else claims this mail at the same time, because one lock orders all claims or the mail
    // is the caller's: an atomic exchange would only cost time. Acquire: as in claim, for any thread may release.
    bool claim_alone() noexcept {
        if (queued.load(std::memory_order_acquire)) return false;
        // Relaxed: whoever sees it is the next to claim, or has the mail from the push that publishes it.
        queued.store(true, std::memory_order_relaxed);
        return true;
    }

    // Ends the claim. The caller must have unlinked the mail: another thread may link it at once.
    void release() noexcept { queued.store(false, std::memory_order_release); }
};

// Mails on their way, linked from the newest to the oldest, as an inbox holds them. Owns nothing.
struct chain_t {
    mail_t* newest = nullptr;
    mail_t* oldest = nullptr;  // not known of what was fetched
    std::size_t count = 0;

    // Adds one that is newer than all.
    void add(mail_t* mail) noexcept {
        ++count;
        mail->next = newest;
        newest = mail;
        if (oldest == nullptr) oldest = mail;
    }
};

class MailList {
public:
    std::size_t count() const noexcept { return count_; }

    void append(mail_t* mail) noexcept {
        mail->next = nullptr;
        (last_ == nullptr ? first_ : last_->next) = mail;
        last_ = mail;
        ++count_;
    }

    // The oldest mail, unlinked; or null.
    mail_t* pop_first() noexcept {
        mail_t* const mail = first_;
        if (mail == nullptr) return nullptr;
        first_ = mail->next;
        if (first_ == nullptr) last_ = nullptr;
        --count_;
        return mail;
    }

    // For a walk over the mails, oldest first, by who holds the list.
    mail_t* first() const noexcept { return first_; }

private:
    mail_t* first_ = nullptr;
    mail_t* last_ = nullptr;
    std::size_t count_ = 0;
};

}  // namespace pillarbox
