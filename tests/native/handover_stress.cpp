// The hand-over among real threads, with no interpreter lock to order them. Prints "ok", or what went
// wrong.
//
// Producers put numbered items, waiting for room; the consumer takes one or all, and waits by sleeping or
// by an armed wake-up. The input ends by finish, by a failure, or the consumer closes in the middle. What
// was accepted must come out, each once and in the order of its producer, within the bounds; nobody may be
// left asleep.
#include "check.h"
#include "pillarbox_handover.h"

#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

using namespace pillarbox;

constexpr int PRODUCERS = 3;
constexpr int EACH = 300;
constexpr std::size_t MAX_ITEMS = 4;
constexpr std::size_t MAX_BYTES = 20;
constexpr double FOREVER = 12.0;  // seconds of a sleep that nobody ends
constexpr double TOO_LONG = 10.0;

// Sleeps where somebody is sure to end it soon.
template <class Sleep>
void sleep_soundly(Sleep sleep) {
    const double begin = steady_seconds();
    sleep();
    require(steady_seconds() - begin < TOO_LONG, "a wake-up was lost");
}

// An armed wake-up: whoever is handed it calls it.
struct Event {
    std::mutex lock;
    std::condition_variable changed;
    int calls = 0;

    static void call(void* armed) {
        if (armed == nullptr) return;
        Event* event = static_cast<Event*>(armed);
        const std::lock_guard<std::mutex> held(event->lock);
        ++event->calls;
        event->changed.notify_all();
    }

    void await(int call) {
        sleep_soundly([&] {
            std::unique_lock<std::mutex> held(lock);
            changed.wait_for(held, std::chrono::duration<double>(FOREVER), [&] { return calls >= call; });
        });
    }
};

std::atomic<int> shared{0};
void share(void*) { ++shared; }
int failure;

enum class Ending { FINISH, FAIL, CLOSE };

struct Round {
    Handover handover;
    std::unique_ptr<item_t[]> items{new item_t[PRODUCERS * EACH]};
    std::atomic<int> accepted{0}, producing{PRODUCERS};
    Ending ending;
    int taken = 0;
    int last[PRODUCERS] = {-1, -1, -1};

    explicit Round(Ending how) : ending(how) { handover.bound(MAX_ITEMS, MAX_BYTES, share); }

    void produce(int producer) {
        for (int number = 0; number < EACH; ++number) {
            item_t* item = &items[producer * EACH + number];
            item->value = item;
            item->nbytes = static_cast<std::size_t>(number % 25);  // some do not fit, but alone
            void* armed = nullptr;
            bool waited = false;
            PutAnswer answer = handover.put(item, &armed);
            while (answer == PutAnswer::NO_ROOM) {
                sleep_soundly([&] { handover.await_room(item->nbytes, FOREVER, &waited); });
                answer = handover.put(item, &armed);
            }
            Event::call(armed);
            require(answer != PutAnswer::ENDED, "a put came after the end of the input");
            if (answer == PutAnswer::CLOSED) {
                require(ending == Ending::CLOSE, "a hand-over was closed by nobody");
                handover.refuse();
                break;
            }
            ++accepted;
        }
        if (--producing == 0 && ending != Ending::CLOSE) {
            void* armed = nullptr;
            require(handover.finish(ending == Ending::FAIL ? &failure : nullptr, &armed), "ended before");
            Event::call(armed);
            item_t late{nullptr, nullptr, 0};
            require(handover.put(&late, &armed) != PutAnswer::ACCEPTED, "an item went in after the end");
        }
    }

    void receive(item_t* chain) {
        for (; chain != nullptr; chain = chain->next) {
            const int position = static_cast<int>(chain - items.get());
            require(last[position / EACH] < position, "a producer's items came out of order");
            last[position / EACH] = position;
            ++taken;
        }
    }

    void check_bounds() {
        const handover_counts_t now = handover.counts();
        require(now.items <= MAX_ITEMS, "more items wait than allowed");
        require(now.nbytes <= MAX_BYTES || now.items == 1, "more bytes wait than allowed");
    }

    void consume(bool by_arming) {
        Event event;
        int armings = 0;
        for (int turn = 0; ending != Ending::CLOSE || taken < EACH; ++turn) {
            taken_t got;
            const TakeAnswer answer = handover.take(turn % 3 == 0, &got);
            check_bounds();
            receive(got.items);
            Event::call(got.armed);
            if (answer == TakeAnswer::FINISHED || answer == TakeAnswer::FAILED) {
                const bool failed = ending == Ending::FAIL;
                require((answer == TakeAnswer::FAILED) == failed, "the input ended in another way");
                require((got.failure == &failure) == failed, "a failure was lost, or came from nowhere");
                break;
            }
            if (answer != TakeAnswer::NOTHING) continue;
            void* callback = &event;
            if (!by_arming) {
                bool waited = false;
                sleep_soundly([&] { require(!handover.await_item(FOREVER, &waited), "woken by nobody"); });
            } else if (handover.arm_consumer(&callback)) {
                require(callback == nullptr, "an armed wake-up stayed armed after its call");
                event.await(++armings);
            }
        }
        left_t left;
        handover.close(&left);
        require(left.items == nullptr || ending == Ending::CLOSE, "an item waited behind the end");
        receive(left.items);
        require(left.consumer == nullptr && left.producer == nullptr, "somebody was left armed");
        require((left.failure == &failure) == (ending == Ending::FAIL), "a failure was lost");
        require(event.calls == armings, "a wake-up was called twice");
    }
};

void accepted_is_taken(Ending ending, bool by_arming) {
    Round round(ending);
    std::vector<std::thread> threads;
    for (int producer = 0; producer < PRODUCERS; ++producer) {
        threads.emplace_back([&round, producer] { round.produce(producer); });
    }
    round.consume(by_arming);
    for (std::thread& thread : threads) thread.join();
    const handover_counts_t end = round.handover.counts();
    require(round.taken == round.accepted, "accepted and taken items differ in number");
    require(end.accepted == static_cast<std::size_t>(round.accepted), "accepted items are counted wrongly");
    require(end.items == 0 && end.nbytes == 0 && end.ended, "something is left after the end");
}

// One producer that is armed instead of sleeping in a put.
void armed_producer_is_called() {
    Handover handover;
    handover.bound(1, Handover::UNBOUNDED, share);
    std::unique_ptr<item_t[]> items(new item_t[EACH]);
    std::thread producer([&] {
        Event event;
        int armings = 0;
        for (int number = 0; number < EACH; ++number) {
            items[number].nbytes = 0;
            void* armed = nullptr;
            while (handover.put(&items[number], &armed) == PutAnswer::NO_ROOM) {
                void* callback = &event;
                if (handover.arm_producer(&callback, 0)) event.await(++armings);
            }
        }
        void* armed = nullptr;
        handover.finish(nullptr, &armed);
        require(event.calls == armings, "a producer was called twice");
    });
    int taken = 0;
    bool waited = false;
    for (TakeAnswer answer = TakeAnswer::NOTHING; answer != TakeAnswer::FINISHED;) {
        taken_t got;
        answer = handover.take(false, &got);
        Event::call(got.armed);
        taken += answer == TakeAnswer::ITEMS;
        if (answer == TakeAnswer::NOTHING) sleep_soundly([&] { handover.await_item(FOREVER, &waited); });
    }
    producer.join();
    require(taken == EACH, "an item was lost beside an armed producer");
}

// Each wake_up ends one wait, or the one that comes next: a lost one would leave the consumer asleep.
void wake_ups_are_kept() {
    Handover handover;
    handover.bound(1, Handover::UNBOUNDED, share);
    constexpr int TIMES = 5000;
    std::atomic<int> woken{0}, seen{0};
    std::thread waker([&] {
        for (int time = 0; time < TIMES; ++time) {
            void* armed = nullptr;
            handover.wake_up(&armed);
            ++woken;
            while (seen <= time) std::this_thread::yield();
        }
    });
    for (int time = 0; time < TIMES; ++time) {
        bool waited = false, ended = false;
        while (time % 2 == 0 && woken <= time) std::this_thread::yield();
        // A sleep may end early, without a wake-up.
        while (!ended) sleep_soundly([&] { ended = handover.await_item(FOREVER, &waited); });
        ++seen;
    }
    waker.join();
}

int main() {
    for (int round = 0; round < 10; ++round) {
        for (const Ending ending : {Ending::FINISH, Ending::FAIL, Ending::CLOSE}) {
            accepted_is_taken(ending, false);
            accepted_is_taken(ending, true);
        }
        armed_producer_is_called();
    }
    require(shared == 20, "a failure was shared another number of times than it was handed out");
    wake_ups_are_kept();
    std::puts("ok");
    return 0;
}
