// Either inbox (`inbox_stress lock-free | mutex`) among real threads, with no interpreter lock to order them.
// Prints "ok", or what went wrong.
//
// Every round: producers push until they are refused, one thread quiesces in the middle, the consumer fetches
// and parks, or arms a wake-up; in some rounds it closes. What was accepted must be fetched, each once and in the
// order of its producer.
// Then two threads put the same few mails again and again. Then two hand one mail to and fro: a wake-up that is
// lost would leave one of them asleep.
#include "pillarbox_inbox.h"

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string_view>
#include <thread>
#include <vector>

using namespace pillarbox;

constexpr int PRODUCERS = 3;
constexpr int EACH = 400;
constexpr double FOREVER = 30.0;  // seconds of a park that nobody ends
constexpr double TOO_LONG = 20.0;

int fail(const char* what) {
    std::puts(what);
    std::fflush(stdout);
    return 1;
}

template <class Inbox>
state_t push(Inbox& inbox, mail_t* mail, void** armed) {
    chain_t chain;
    chain.add(mail);
    return inbox.push(chain, armed);
}

// The mails of a chain, the oldest first.
MailList oldest_first(const chain_t& chain) {
    std::vector<mail_t*> mails;
    for (mail_t* mail = chain.newest; mail != nullptr; mail = mail->next) mails.push_back(mail);
    if (mails.size() != chain.count) std::_Exit(fail("a chain does not have as many mails as it says"));
    MailList list;
    for (std::size_t left = mails.size(); left != 0; --left) list.append(mails[left - 1]);
    return list;
}

template <class Inbox>
state_t fetch(Inbox& inbox, MailList& to) {
    chain_t chain;
    const state_t state = inbox.fetch(chain);
    to = oldest_first(chain);
    return state;
}

// Parks where somebody is sure to end it soon.
template <class Inbox>
void park(Inbox& inbox) {
    const double begin = steady_seconds();
    inbox.park(FOREVER);
    if (steady_seconds() - begin > TOO_LONG) std::_Exit(fail("a wake-up was lost"));
}

template <class Inbox>
int accepted_is_fetched(int round) {
    Inbox inbox;
    std::unique_ptr<mail_t[]> mails(new mail_t[PRODUCERS * EACH]);
    std::atomic<int> accepted{0}, calls{0};
    std::vector<std::thread> threads;
    for (int producer = 0; producer < PRODUCERS; ++producer) {
        threads.emplace_back([&, producer] {
            for (int number = 0; number < EACH; ++number) {
                mail_t* mail = &mails[producer * EACH + number];
                void* armed = nullptr;
                mail->claim();
                mail->object = mail;
                if (push(inbox, mail, &armed) == OPEN) {
                    ++accepted;
                } else {
                    mail->release();
                }
                if (armed != nullptr) ++calls;
            }
        });
    }
    threads.emplace_back([&] {
        const auto enough = static_cast<std::size_t>(round * 5);
        while (inbox.accepted() < enough && inbox.state() == OPEN) std::this_thread::yield();
        void* armed = nullptr;
        inbox.quiesce(&armed);
        if (armed != nullptr) ++calls;
    });

    MailList fetched;
    int taken = 0, armings = 0, last[PRODUCERS] = {-1, -1, -1};
    bool in_order = true;
    while (true) {
        const bool closes = round % 4 == 3 && taken > round;
        void* dropped = nullptr;
        chain_t closed;
        if (closes) inbox.close(closed, &dropped);
        const state_t state = closes ? CLOSED : fetch(inbox, fetched);
        if (closes) fetched = oldest_first(closed);
        while (mail_t* mail = fetched.pop_first()) {
            const int position = static_cast<int>(mail - mails.get());
            in_order = in_order && last[position / EACH] < position;
            last[position / EACH] = position;
            mail->release();
            ++taken;
        }
        if (state != OPEN) break;
        if (round % 2 == 0) {
            park(inbox);
        } else {
            void* spare = nullptr;
            armings += inbox.arm(&inbox, &spare);
        }
    }
    for (std::thread& thread : threads) thread.join();
    fetch(inbox, fetched);
    if (fetched.count() != 0) return fail("a mail came after the state that the consumer saw");
    if (taken != accepted) return fail("accepted and fetched mails differ in number");
    if (!in_order) return fail("a producer's mails came out of order");
    if (calls > armings) return fail("one arming gave several calls");
    return 0;
}

template <class Inbox>
void nobody_sleeps_on() {
    constexpr int ROUNDS = 100000;
    Inbox inboxes[2];
    mail_t ball;
    const auto play = [&](int me) {
        MailList fetched;
        for (int round = 0; round < ROUNDS; ++round) {
            mail_t* mail = nullptr;
            // Looks a varying number of times before it parks, so that the answer often comes just then.
            for (int looks = round % 128; mail == nullptr; --looks) {
                fetch(inboxes[me], fetched);
                mail = fetched.pop_first();
                if (mail == nullptr && looks <= 0) park(inboxes[me]);
            }
            void* armed = nullptr;
            push(inboxes[1 - me], mail, &armed);
        }
    };
    void* armed = nullptr;
    push(inboxes[0], &ball, &armed);
    std::thread other(play, 1);
    play(0);
    other.join();
}

// Mails that were taken are put again, by whoever claims them first.
template <class Inbox>
int claimed_once() {
    constexpr int PUTS = 5000;
    constexpr int MAILS = 3;
    Inbox inbox;
    mail_t mails[MAILS];
    std::atomic<int> put{0};
    std::vector<std::thread> producers;
    for (int producer = 0; producer < 2; ++producer) {
        producers.emplace_back([&] {
            for (int number = 0; put < PUTS; ++number) {
                mail_t* const mail = &mails[number % MAILS];
                void* armed = nullptr;
                if (!mail->claim()) continue;
                mail->object = mail;
                ++put;
                push(inbox, mail, &armed);
            }
            void* armed = nullptr;
            inbox.quiesce(&armed);
        });
    }
    MailList fetched;
    int taken = 0;
    for (state_t state = OPEN; state == OPEN;) {
        state = fetch(inbox, fetched);
        while (mail_t* mail = fetched.pop_first()) {
            if (mail->object != mail) std::_Exit(fail("a mail came out in the middle of its put"));
            mail->object = nullptr;
            ++taken;
            mail->release();
        }
    }
    for (std::thread& producer : producers) producer.join();
    if (static_cast<std::size_t>(taken) != inbox.accepted()) return fail("accepted and fetched mails differ in number");
    return 0;
}

template <class Inbox>
int all() {
    for (int round = 0; round < 200; ++round) {
        if (accepted_is_fetched<Inbox>(round) != 0) return 1;
    }
    if (claimed_once<Inbox>() != 0) return 1;
    nobody_sleeps_on<Inbox>();
    std::puts("ok");
    return 0;
}

int main(int count, char** words) {
    const std::string_view kind = count == 2 ? words[1] : "";
    if (kind == "lock-free") return all<LockFreeInbox>();
    if (kind == "mutex") return all<MutexInbox>();
    return fail("inbox_stress lock-free | mutex");
}
