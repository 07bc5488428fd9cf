// The shared side of a mailbox, of either kind: a mailbox chooses when it is made. In builds for tests only.
#pragma once

#include "pillarbox_inbox_lockfree.h"
#include "pillarbox_inbox_mutex.h"

namespace pillarbox {

// A member of each kind costs some bytes; a virtual call would cost every put.
class Inbox {
public:
    static constexpr int KINDS = 2;

    // Before any other call: the kind, from 0 on. False if this build has no such kind.
    bool use(int kind) noexcept {
        with_mutex_ = kind == 1;
        return kind == 0 || kind == 1;
    }
    int kind() const noexcept { return with_mutex_; }

    state_t push(const chain_t& mails, void** armed) noexcept {
        return with_mutex_ ? mutex_.push(mails, armed) : free_.push(mails, armed);
    }
    void quiesce(void** armed) noexcept { with_mutex_ ? mutex_.quiesce(armed) : free_.quiesce(armed); }
    void close(chain_t& to, void** armed) noexcept {
        with_mutex_ ? mutex_.close(to, armed) : free_.close(to, armed);
    }
    state_t fetch(chain_t& to) noexcept { return with_mutex_ ? mutex_.fetch(to) : free_.fetch(to); }
    void park(double seconds) { with_mutex_ ? mutex_.park(seconds) : free_.park(seconds); }
    bool arm(void* callback, void** spare) noexcept {
        return with_mutex_ ? mutex_.arm(callback, spare) : free_.arm(callback, spare);
    }
    state_t state() const noexcept { return with_mutex_ ? mutex_.state() : free_.state(); }
    std::size_t accepted() const noexcept { return with_mutex_ ? mutex_.accepted() : free_.accepted(); }
    std::size_t rejected() const noexcept { return with_mutex_ ? mutex_.rejected() : free_.rejected(); }
    bool any_arrived() const noexcept { return with_mutex_ ? mutex_.any_arrived() : free_.any_arrived(); }
    template <class Look>
    void visit(Look look) { with_mutex_ ? mutex_.visit(look) : free_.visit(look); }
    void* armed() noexcept { return with_mutex_ ? mutex_.armed() : free_.armed(); }
    bool parked() noexcept { return with_mutex_ ? mutex_.parked() : free_.parked(); }

private:
    LockFreeInbox free_;
    MutexInbox mutex_;
    bool with_mutex_ = false;
};

}  // namespace pillarbox
