// How the benchmark uses mailboxes and native mails: the one file of it that knows their names and their
// layout.
//
// A mail is made, put, taken and run here as a native producer and a native consumer would do it. Put from
// any thread; everything else from the mailbox thread.
#pragma once

#include <cstddef>
#include <memory>

#include "pillarbox_inbox.h"
#include "pillarbox_inbox_mutex.h"
#include "pillarbox_mailbox.h"

namespace bench {

// A mail with what it counts.
struct Mail : pillarbox::mail_t {
    long long* counted = nullptr;
};

using LockFree = pillarbox::Mailbox<pillarbox::LockFreeInbox>;
using WithMutex = pillarbox::Mailbox<pillarbox::MutexInbox>;

constexpr int ANY = pillarbox::MIN_PRIORITY;
constexpr double SLICE = 1.0;  // seconds of one sleep

// The mails of a workload, of one priority; each adds one to `*counted` when it is run.
inline std::unique_ptr<Mail[]> make_mails(std::size_t count, int priority, long long* counted) {
    std::unique_ptr<Mail[]> mails(new Mail[count]);
    for (std::size_t index = 0; index < count; ++index) {
        mails[index].fn = [](pillarbox::mail_t* mail, bool run) { *static_cast<Mail*>(mail)->counted += run; };
        mails[index].counted = counted;
        mails[index].priority = priority;
    }
    return mails;
}

template <class Box>
void put(Box& mailbox, Mail& mail) noexcept {
    void* armed = nullptr;
    mail.claim_alone();
    pillarbox::chain_t chain;
    chain.add(&mail);
    mailbox.put(chain, &armed);
}

// Runs a mail that was taken; who put it may put it again from then on.
inline void run(pillarbox::mail_t* mail) noexcept {
    mail->release();
    mail->fn(mail, true);
}

// The oldest mail of at least this priority, or null.
template <class Box>
Mail* try_take(Box& mailbox, int priority) noexcept {
    pillarbox::state_t seen;
    return static_cast<Mail*>(mailbox.take(priority, 0, &seen));
}

// Waits for it.
template <class Box>
Mail* take(Box& mailbox, int priority) {
    Mail* mail;
    while ((mail = try_take(mailbox, priority)) == nullptr) mailbox.park(SLICE);
    return mail;
}

// Makes a batch and runs it. How many mails.
template <class Box>
long long run_batch(Box& mailbox) noexcept {
    long long count = 0;
    mailbox.create_batch();
    for (; pillarbox::mail_t* mail = mailbox.take_from_batch(); ++count) run(mail);
    return count;
}

// Puts mails that lie side by side, together.
template <class Box>
void put_all(Box& mailbox, Mail* mails, long long count) noexcept {
    void* armed = nullptr;
    pillarbox::chain_t chain;
    for (long long index = 0; index < count; ++index) {
        mails[index].claim_alone();
        chain.add(&mails[index]);
    }
    mailbox.put(chain, &armed);
}

// Empties a mailbox whose mails are about to go.
template <class Box>
void close(Box& mailbox) noexcept {
    void* armed = nullptr;
    pillarbox::MailList left;
    mailbox.close(left, &armed);
}

// Has the consumer look at what has been put.
template <class Box>
void fetch(Box& mailbox) noexcept {
    mailbox.create_batch();
}

}  // namespace bench
