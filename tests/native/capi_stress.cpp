// The functions of pillarbox.h among real threads, without Python (`capi_stress lock-free | mutex`). Prints
// "ok", or what went wrong.
//
// Every round: producers put mails of their own, pairs of them, and post; the consumer runs what comes. In some
// rounds another thread quiesces in the middle, in some the consumer closes. What was accepted is run or
// dropped, once and in the order of its producer. Then two threads put the same few mails again and again, and
// two hand one to and fro.
#include "pillarbox_native.h"

#include <atomic>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

constexpr int PRODUCERS = 3;
constexpr int EACH = 400;
constexpr double TOO_LONG = 20.0;  // seconds

pillarbox_functions api;
int backend;

int fail(const char* what) {
    std::puts(what);
    return 1;
}

struct producer_t {
    int last = 0, ran = 0, dropped = 0;  // the consumer's
    bool in_order = true;
    int accepted = 0, refused = 0;  // its own thread's
};

struct item_t {
    pillarbox_mail mail;
    producer_t* producer;
    int number;
};

void arrived(void* arg, bool run) {
    auto* const item = static_cast<item_t*>(arg);
    producer_t& producer = *item->producer;
    producer.in_order &= item->number > producer.last;
    producer.last = item->number;
    ++(run ? producer.ran : producer.dropped);
}

void mail_arrived(pillarbox_mail* mail, bool run) { arrived(reinterpret_cast<item_t*>(mail), run); }

void produce(pillarbox_mailbox* mailbox, producer_t& producer, item_t* items) {
    for (int i = 0; i < EACH; ++i) {
        pillarbox_mail_init(&items[i].mail, mail_arrived, i % 3, i % 5 == 0 ? PILLARBOX_DEFERRABLE : 0);
        items[i].producer = &producer;
        items[i].number = i + 1;
    }
    const auto tell = [&](int answer, int mails) {
        (answer == PILLARBOX_OPEN ? producer.accepted : producer.refused) += mails;
    };
    for (int i = 0; i < EACH; i += 4) {
        pillarbox_mail* pair[] = {&items[i + 2].mail, &items[i + 3].mail};
        tell(api.post(mailbox, arrived, &items[i], 0, 0), 1);
        tell(api.put(mailbox, &items[i + 1].mail), 1);
        tell(api.put_all(mailbox, pair, 2), 2);
    }
}

void consume(pillarbox_mailbox* mailbox, bool early) {
    std::size_t mails = 0;
    while (pillarbox_mail* mail = api.take(mailbox, PILLARBOX_MIN_PRIORITY, 0, -1, nullptr)) {
        api.run(mail);
        if (++mails > 50 && early) break;
        if (mails % 2 == 0 && !early) api.run_batch(mailbox);
    }
    for (pillarbox_mail* mail = api.close(mailbox); mail != nullptr;) {
        pillarbox_mail* const next = mail->next;
        api.drop(mail);
        mail = next;
    }
}

int accepted_is_let_go_of(int round) {
    pillarbox_mailbox* const mailbox = api.create(backend, 64);
    std::vector<producer_t> producers(PRODUCERS);
    std::unique_ptr<item_t[]> items(new item_t[PRODUCERS * EACH]);
    std::vector<std::thread> threads;
    std::thread consumer(consume, mailbox, round % 3 == 1);
    for (int i = 0; i < PRODUCERS; ++i) {
        threads.emplace_back(produce, mailbox, std::ref(producers[i]), &items[i * EACH]);
    }
    if (round % 3 == 2) threads.emplace_back([&] { api.quiesce(mailbox); });
    for (std::thread& thread : threads) thread.join();
    api.quiesce(mailbox);
    consumer.join();
    const bool closed = api.state(mailbox) == PILLARBOX_CLOSED && api.waiting(mailbox) == 0;
    api.destroy(mailbox);
    if (!closed) return fail("a closed mailbox is not closed");
    for (const producer_t& producer : producers) {
        if (producer.accepted + producer.refused != EACH) return fail("a put was neither accepted nor refused");
        if (producer.ran + producer.dropped != producer.accepted) return fail("a mail was lost, or came twice");
        if (!producer.in_order) return fail("mails of one producer came out of order");
        if (round % 3 == 0 && producer.ran != EACH) return fail("a mail was refused or dropped for no reason");
    }
    return 0;
}

// Two threads put the same mails, one thread a mail at a time: one that waits is refused, and stays as it is.
int a_mail_waits_once() {
    constexpr int MAILS = 3, PUTS = 2000;
    pillarbox_mailbox* const mailbox = api.create(backend, 64);
    std::unique_ptr<item_t[]> items(new item_t[MAILS]);
    for (int i = 0; i < MAILS; ++i) pillarbox_mail_init(&items[i].mail, mail_arrived, 0, 0);
    std::mutex locks[MAILS];
    std::atomic<int> accepted{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 2; ++i) {
        threads.emplace_back([&] {
            for (int put = 0; put < PUTS; ++put) {
                const std::lock_guard<std::mutex> held(locks[put % MAILS]);
                accepted += api.put(mailbox, &items[put % MAILS].mail) == PILLARBOX_OPEN;
            }
        });
    }
    int taken = 0;
    std::thread consumer([&] {
        while (pillarbox_mail* mail = api.take(mailbox, PILLARBOX_MIN_PRIORITY, 0, -1, nullptr)) {
            ++taken;
            reinterpret_cast<item_t*>(mail)->number = taken;
            api.release(mail);
        }
    });
    for (std::thread& thread : threads) thread.join();
    api.quiesce(mailbox);
    consumer.join();
    api.destroy(mailbox);
    return taken == accepted ? 0 : fail("a mail that two threads put was lost, or came twice");
}

int to_and_fro() {
    pillarbox_mailbox* const sides[] = {api.create(backend, 1), api.create(backend, 1)};
    item_t ball{};
    pillarbox_mail_init(&ball.mail, mail_arrived, 0, 0);
    std::atomic<bool> lost{false};
    const auto play = [&](int side) {
        for (int i = 0; i < 1000; ++i) {
            pillarbox_mail* const mail = api.take(sides[side], PILLARBOX_MIN_PRIORITY, 0, TOO_LONG, nullptr);
            if (mail == nullptr) {
                lost = true;
                return;
            }
            ++ball.number;
            api.release(mail);
            api.put(sides[1 - side], mail);
        }
    };
    api.put(sides[0], &ball.mail);
    std::thread other(play, 1);
    play(0);
    other.join();
    const bool whole = ball.number == 2000 && api.waiting(sides[0]) == 1;
    pillarbox_mail* const mail = api.take(sides[0], PILLARBOX_MIN_PRIORITY, 0, 0, nullptr);
    if (mail != nullptr) api.release(mail);
    for (pillarbox_mailbox* side : sides) api.destroy(side);
    return whole && !lost ? 0 : fail("a mail, or a wake-up for it, was lost");
}

// What other threads do by chance, without any: several mails wait when they are fetched, also after a quiesce.
int what_waits_comes_out_in_order() {
    constexpr int MAILS = 5;
    pillarbox_mailbox* const mailbox = api.create(backend, 64);
    std::unique_ptr<item_t[]> items(new item_t[MAILS]);
    pillarbox_mail* mails[MAILS];
    for (int i = 0; i < MAILS; ++i) {
        mails[i] = &items[i].mail;
        pillarbox_mail_init(mails[i], mail_arrived, 0, 0);
    }
    bool right = api.put(mailbox, mails[0]) == PILLARBOX_OPEN && api.put_all(mailbox, mails + 1, 3) == PILLARBOX_OPEN &&
                 api.put(mailbox, mails[4]) == PILLARBOX_OPEN;
    api.quiesce(mailbox);
    for (pillarbox_mail* expected : mails) {
        pillarbox_mail* const mail = api.take(mailbox, PILLARBOX_MIN_PRIORITY, 0, 0, nullptr);
        right = right && mail == expected;
        if (mail != nullptr) api.release(mail);
    }
    api.destroy(mailbox);
    return right ? 0 : fail("what waited was lost, or came out of order");
}

int main(int, char** arguments) {
    backend = std::strcmp(arguments[1], "mutex") == 0 ? PILLARBOX_MUTEX : PILLARBOX_LOCK_FREE;
    pillarbox::native::fill(api);
    for (int round = 0; round < 30; ++round) {
        if (accepted_is_let_go_of(round) != 0) return 1;
    }
    if (what_waits_comes_out_in_order() != 0 || a_mail_waits_once() != 0 || to_and_fro() != 0) return 1;
    std::puts("ok");
    return 0;
}
