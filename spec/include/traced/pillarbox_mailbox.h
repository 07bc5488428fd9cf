// A mailbox that records what it was asked and what it answered: in the place of pillarbox_mailbox.h in a traced build.
#pragma once

#include "pillarbox_lanes.h"
#include "pillarbox_mail.h"
#include "pillarbox_state.h"
#include "pillarbox_trace.h"

// The mailbox itself, under another name.
#define Mailbox UntracedMailbox
#include "pillarbox_untraced_mailbox.h"
#undef Mailbox

namespace pillarbox {

template <class Inbox>
class Mailbox : public UntracedMailbox<Inbox> {
    using Untraced = UntracedMailbox<Inbox>;

public:
    state_t put(const chain_t& mails, void** armed) noexcept {
        Trace trace(this, "put", mails);
        return trace.state(Untraced::put(mails, armed));
    }

    void quiesce(void** armed) noexcept {
        Trace trace(this, "quiesce");
        Untraced::quiesce(armed);
    }

    mail_t* take(int priority, unsigned char skip, state_t* seen) noexcept {
        Trace trace(this, "take", priority, skip);
        mail_t* const mail = Untraced::take(priority, skip, seen);
        return trace.mail(mail, *seen);
    }

    mail_t* take_from_batch() noexcept {
        Trace trace(this, "take_from_batch");
        return trace.mail(Untraced::take_from_batch(), OPEN);
    }

    bool create_batch() noexcept {
        Trace trace(this, "create_batch");
        return trace.flag(Untraced::create_batch());
    }

    void drain(MailList& to) noexcept {
        Trace trace(this, "drain");
        Untraced::drain(to);
        trace.mails(to);
    }

    void close(MailList& to, void** armed) noexcept {
        Trace trace(this, "close");
        Untraced::close(to, armed);
        trace.mails(to);
    }
};

}  // namespace pillarbox
