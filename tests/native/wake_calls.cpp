// The system calls of a mailbox's threads: `wake_calls`. Prints, for each scenario, how many threads were woken with
// and slept with, and exits with 1 if one of them is more than it must be.
//
// A call for nothing changes no outcome, so no other program notices it. What makes the calls is replaced by a counter
// in front of it. In all scenarios but the last two one thread plays both sides, so the numbers are exact: a consumer
// that has parked for no time at all is, to those who put, one that sleeps.
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <memory>
#include <thread>

#include "check.h"

namespace {

std::atomic<int> woke{0}, slept{0};

template <class... More>
long counted(long number, void* address, int operation, More... more) {
    require(number == SYS_futex, "a system call that is not of a futex");
    ++((operation & FUTEX_CMD_MASK) == FUTEX_WAKE ? woke : slept);
    return ::syscall(number, address, operation, more...);
}

}  // namespace

#define syscall counted
#include "pillarbox_inbox_lockfree.h"
#include "pillarbox_mailbox.h"
#undef syscall

using namespace pillarbox;

namespace {

constexpr int BURST = 1000;

class Subject {
public:
    void put(int mails = 1) {
        chain_t chain;
        for (int i = 0; i < mails; ++i) chain.add(&items_[put_ + i]);
        put_ += mails;
        void* armed = nullptr;
        require(mailbox.put(chain, &armed) == OPEN, "a put was refused");
        if (armed != nullptr) ++called;
    }

    void put_each(int mails) {
        for (int i = 0; i < mails; ++i) put();
    }

    int take_all() {
        int taken = 0;
        state_t seen = OPEN;
        while (mailbox.take(MIN_PRIORITY, 0, &seen) != nullptr) ++taken;
        return taken;
    }

    // To others, the consumer sleeps from here to its next fetch.
    void park() { mailbox.park(0.0); }

    Mailbox<LockFreeInbox> mailbox;
    int called = 0;

private:
    std::unique_ptr<mail_t[]> items_{new mail_t[static_cast<std::size_t>(4 * BURST)]};
    int put_ = 0;
};

int wrong = 0;

template <class Scenario>
void expect(const char* name, int wakes, int sleeps, Scenario scenario) {
    woke = slept = 0;
    Subject subject;
    scenario(subject);
    std::printf("%s: %d woken, %d slept\n", name, woke.load(), slept.load());
    if (woke != wakes || slept != sleeps) {
        std::printf("  must be %d and %d\n", wakes, sleeps);
        ++wrong;
    }
}

}  // namespace

int main() {
    expect("puts to a consumer that never slept", 0, 0, [](Subject& subject) {
        subject.put_each(BURST);
        require(subject.take_all() == BURST, "a mail is missing");
        subject.put_each(BURST);
    });
    expect("a burst to one that sleeps", 1, 1, [](Subject& subject) {
        subject.park();
        subject.put_each(BURST);
    });
    expect("many mails at once to one that sleeps", 1, 1, [](Subject& subject) {
        subject.park();
        subject.put(BURST);
    });
    expect("puts to one that has woken", 1, 1, [](Subject& subject) {
        subject.park();
        subject.put();
        require(subject.take_all() == 1, "a mail is missing");
        subject.put_each(BURST);
    });
    expect("puts to one that has slept its time", 0, 1, [](Subject& subject) {
        subject.park();
        subject.mailbox.fetch();
        subject.put_each(BURST);
    });
    expect("a burst in each of three sleeps", 3, 3, [](Subject& subject) {
        for (int turn = 0; turn < 3; ++turn) {
            subject.park();
            subject.put_each(BURST);
            require(subject.take_all() == BURST, "a mail is missing");
        }
    });
    expect("a park beside mail", 0, 0, [](Subject& subject) {
        subject.put();
        subject.park();
    });
    expect("a quiesce of one that sleeps, and again", 1, 1, [](Subject& subject) {
        subject.park();
        void* armed = nullptr;
        subject.mailbox.quiesce(&armed);
        subject.mailbox.quiesce(&armed);
        subject.park();
    });
    expect("a quiesce of one that does not", 0, 0, [](Subject& subject) {
        void* armed = nullptr;
        subject.mailbox.quiesce(&armed);
    });
    expect("a burst to one that sleeps elsewhere", 0, 0, [](Subject& subject) {
        void* spare = nullptr;
        require(subject.mailbox.arm(&subject, &spare), "not armed");
        subject.put_each(BURST);
        require(subject.called == 1, "the wake-up was not called once");
    });
    // Who is not woken would sleep for an hour in the last one.
    if (wrong != 0) return 1;
    expect("puts of another thread to a consumer that runs", 0, 0, [](Subject& subject) {
        std::thread producer([&] { subject.put_each(4 * BURST); });
        int taken = 0;
        while (taken < 4 * BURST) taken += subject.take_all();
        producer.join();
    });
    expect("a burst of another thread to one that sleeps", 1, 1, [](Subject& subject) {
        std::thread producer([&] {
            while (!subject.mailbox.inbox().parked()) std::this_thread::yield();
            subject.put_each(BURST);
        });
        subject.mailbox.park(3600.0);
        int taken = 0;
        while (taken < BURST) taken += subject.take_all();
        producer.join();
    });
    if (wrong == 0) std::puts("ok");
    return wrong == 0 ? 0 : 1;
}
