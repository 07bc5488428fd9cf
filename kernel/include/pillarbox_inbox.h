// The shared side of a mailbox: the inbox without a lock.
//
// A build for tests has another header in the place of this one (`spec/include`): with a second kind, the oracle,
// which has a mutex, and a branch in each operation.
#pragma once

#include "pillarbox_inbox_lockfree.h"

namespace pillarbox {

class Inbox : public LockFreeInbox {
public:
    static constexpr int KINDS = 1;

    // Before any other call: the kind, from 0 on. False if this build has no such kind.
    bool use(int kind) noexcept { return kind == 0; }
    int kind() const noexcept { return 0; }
};

}  // namespace pillarbox
