// The memory orders of mails and of the lock-free inbox, one edge a run:
// `inbox_orders push-fetch | push-close | push-visit | arm-visit | release-claim | free-free`.
//
// One thread writes a mail and passes it on, the other waits, without another edge between the two, until it gets
// the mail, and touches what the first has written. So ThreadSanitizer sees a race in every run in which the
// order that should make the edge is too weak, and none otherwise: nothing here is left to chance.
#include "pass.h"
#include "pillarbox_inbox.h"
#include "pillarbox_slab.h"

#include <cstdio>
#include <string_view>
#include <thread>

using namespace pillarbox;

int main(int count, char** words) {
    const std::string_view edge = count == 2 ? words[1] : "";
    LockFreeInbox inbox;
    mail_t mail;
    mail.claim();
    void* none = nullptr;
    const auto push = [&] {
        mail.object = &mail;
        chain_t chain;
        chain.add(&mail);
        inbox.push(chain, &none);
    };
    const auto read = [](const chain_t& fetched) { fetched.newest->object = nullptr; };
    if (edge == "push-fetch") {
        return pass(push, [&] {
            chain_t fetched;
            while (fetched.count == 0) inbox.fetch(fetched);
            read(fetched);
        });
    }
    if (edge == "push-close") {
        return pass(push, [&] {
            while (!inbox.any_arrived()) std::this_thread::yield();
            chain_t fetched;
            void* armed = nullptr;
            inbox.close(fetched, &armed);
            read(fetched);
        });
    }
    if (edge == "push-visit") {
        return pass(push, [&] {
            const void* seen = nullptr;
            while (seen == nullptr) inbox.visit([&](const mail_t* found) { seen = found->object; });
        });
    }
    if (edge == "arm-visit") {
        int callback = 0;
        return pass(
            [&] {
                callback = 1;
                void* spare = nullptr;
                inbox.arm(&callback, &spare);
            },
            [&] {
                void* armed = nullptr;
                while (armed == nullptr) armed = inbox.armed();
                *static_cast<int*>(armed) = 2;
            });
    }
    if (edge == "release-claim") {
        return pass(
            [&] {
                mail.next = &mail;
                mail.release();
            },
            [&] {
                while (!mail.claim()) std::this_thread::yield();
                mail.next = nullptr;
            });
    }
    if (edge == "free-free") {
        Slab* const slab = Slab::make();
        bool last = false;
        posted_t* const one = slab->allocate(&last);
        posted_t* const other = slab->allocate(&last);
        slab->let_go();
        std::atomic<bool> first_is_free{false};
        return pass(
            [&] {
                one->arg = one;
                free_posted(one);
                first_is_free.store(true, std::memory_order_relaxed);
            },
            [&] {
                while (!first_is_free.load(std::memory_order_relaxed)) std::this_thread::yield();
                free_posted(other);
            });
    }
    std::puts("inbox_orders push-fetch | push-close | push-visit | arm-visit | release-claim | free-free");
    return 2;
}
