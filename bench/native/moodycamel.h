// The queue of moodycamel in the place of a mailbox, where the compiler finds it (Debian's libconcurrentqueue-dev).
//
// It carries the addresses of mails, keeps the order of one producer only, and knows no priority.
#pragma once

#if __has_include(<concurrentqueue/blockingconcurrentqueue.h>)
#define BENCH_MOODYCAMEL 1
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wall"
#pragma GCC diagnostic ignored "-Wextra"
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wsign-conversion"
#include <concurrentqueue/blockingconcurrentqueue.h>
#pragma GCC diagnostic pop

#include "mails.h"

namespace bench {

struct Moodycamel {
    moodycamel::BlockingConcurrentQueue<Mail*> queue;
};

inline void put(Moodycamel& box, Mail& mail) noexcept {
    mail.claim_alone();
    box.queue.enqueue(&mail);
}

inline void put_all(Moodycamel& box, Mail* mails, long long count) noexcept {
    Mail* together[64];
    for (long long index = 0; index < count; ++index) {
        mails[index].claim_alone();
        together[index] = &mails[index];
    }
    box.queue.enqueue_bulk(together, static_cast<std::size_t>(count));
}

inline Mail* try_take(Moodycamel& box, int) noexcept {
    Mail* mail = nullptr;
    return box.queue.try_dequeue(mail) ? mail : nullptr;
}

inline Mail* take(Moodycamel& box, int) {
    Mail* mail = nullptr;
    box.queue.wait_dequeue(mail);
    return mail;
}

inline long long run_batch(Moodycamel& box) noexcept {
    Mail* mails[64];
    long long count = 0;
    while (const std::size_t some = box.queue.try_dequeue_bulk(mails, 64)) {
        for (std::size_t index = 0; index < some; ++index) run(mails[index]);
        count += static_cast<long long>(some);
    }
    return count;
}

inline void fetch(Moodycamel&) noexcept {}
inline void close(Moodycamel&) noexcept {}

}  // namespace bench
#endif
