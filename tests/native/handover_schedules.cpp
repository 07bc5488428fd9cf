// Scenarios of the hand-over for the deterministic scheduler; build with -DPILLARBOX_SCHED.
#include "pillarbox_handover.h"
#include "schedules.h"

using namespace pillarbox;
using sched::expect;

namespace {

constexpr double FOREVER = 1e9;

void share(void*) {}

// A hand-over, its items, and what came out.
struct HandoverScenario : sched::Scenario {
    static constexpr int ITEMS = 4;

    Handover handover;
    item_t items[ITEMS] = {};
    bool accepted[ITEMS] = {};
    std::vector<int> out;
    TakeAnswer last = TakeAnswer::NOTHING;
    int wakeups = 0;
    int failure = 0;

    explicit HandoverScenario(std::size_t max_items, std::size_t max_bytes = Handover::UNBOUNDED) {
        handover.bound(max_items, max_bytes, share);
    }

    void call(void* armed) {
        expect(armed == nullptr, "something was called that nobody armed");
    }

    // Puts, and waits for room. Whether it went in.
    bool put(int number, std::size_t nbytes = 1) {
        items[number].nbytes = nbytes;
        bool waited = false;
        while (true) {
            void* armed = nullptr;
            const PutAnswer answer = handover.put(&items[number], &armed);
            call(armed);
            if (answer != PutAnswer::NO_ROOM) {
                accepted[number] = answer == PutAnswer::ACCEPTED;
                return accepted[number];
            }
            handover.await_room(nbytes, FOREVER, &waited);
        }
    }

    void finish(void* with = nullptr) {
        void* armed = nullptr;
        handover.finish(with, &armed);
        call(armed);
    }

    void came_out(item_t* chain) {
        for (; chain != nullptr; chain = chain->next) out.push_back(static_cast<int>(chain - items));
    }

    // Takes until the input has ended; with `once`, until something was taken or a wake-up has come.
    void take(bool everything, bool once = false) {
        bool waited = false;
        while (true) {
            taken_t taken;
            last = handover.take(everything, &taken);
            call(taken.armed);
            came_out(taken.items);
            if (last == TakeAnswer::ITEMS && once) return;
            if (last == TakeAnswer::ITEMS) continue;
            if (last != TakeAnswer::NOTHING) return;
            if (handover.await_item(FOREVER, &waited)) {
                ++wakeups;
                if (once) return;
            }
        }
    }

    std::string verdict() override {
        int times[ITEMS] = {};
        for (const int number : out) ++times[number];
        for (int number = 0; number < ITEMS; ++number) {
            if (times[number] != accepted[number]) return "an item was lost, or came out twice";
        }
        const handover_counts_t counts = handover.counts();
        return counts.items == 0 && counts.nbytes == 0 ? "" : "an empty hand-over counts something";
    }

    bool in_order(int first, int second) const {
        for (const int number : out) {
            if (number == first) return true;
            if (number == second) return false;
        }
        return true;
    }
};

struct TwoProducers : HandoverScenario {
    TwoProducers() : HandoverScenario(1) {}
    int left = 2;
    std::vector<std::function<void()>> threads() override {
        const auto producer = [this](int first) {
            return [this, first] {
                put(first), put(first + 1);
                if (--left == 0) finish();
            };
        };
        return {producer(0), producer(2), [this] { take(false); }};
    }
    std::string verdict() override {
        if (!in_order(0, 1) || !in_order(2, 3)) return "a producer's items came out of order";
        if (last != TakeAnswer::FINISHED) return "the end of the input did not come out";
        return HandoverScenario::verdict();
    }
};

// By bytes: the second item waits until the first has left; the third is larger than allowed and goes in alone.
struct ByBytes : HandoverScenario {
    ByBytes() : HandoverScenario(ITEMS, 10) {}
    std::vector<std::function<void()>> threads() override {
        return {[this] { put(0, 6), put(1, 6), put(2, 20), put(3, 1), finish(); },
                [this] { take(true); },
                [this] { expect(handover.counts().nbytes <= 20, "more bytes wait than allowed"); }};
    }
    std::string verdict() override {
        for (int place = 0; place < ITEMS; ++place) {
            if (out[static_cast<std::size_t>(place)] != place) return "items came out of order";
        }
        return HandoverScenario::verdict();
    }
};

// Two items of six bytes never wait together where ten are allowed.
struct NeverTooMany : HandoverScenario {
    NeverTooMany() : HandoverScenario(1, 10) {}
    std::vector<std::function<void()>> threads() override {
        return {[this] { put(0, 6); }, [this] { put(1, 6); },
                [this] {
                    for (int look = 0; look < 2; ++look) {
                        const handover_counts_t counts = handover.counts();
                        expect(counts.items <= 1 && counts.nbytes <= 10, "more waits than allowed");
                        take(false, true);
                    }
                }};
    }
};

struct Failed : HandoverScenario {
    Failed() : HandoverScenario(2) {}
    std::vector<std::function<void()>> threads() override {
        return {[this] { put(0), put(1), finish(&failure); }, [this] { take(false); }};
    }
    std::string verdict() override {
        if (last != TakeAnswer::FAILED) return "the failure did not come out";
        if (out.size() != 2) return "the failure came out before the items";
        return HandoverScenario::verdict();
    }
};

// A producer that waits for room learns that the consumer has gone.
struct ClosedMeanwhile : HandoverScenario {
    ClosedMeanwhile() : HandoverScenario(1) {}
    std::vector<std::function<void()>> threads() override {
        return {[this] { put(0), put(1); }, [this] { put(2); },
                [this] {
                    left_t left;
                    handover.close(&left);
                    came_out(left.items);
                    item_t late = {};
                    void* armed = nullptr;
                    expect(handover.put(&late, &armed) == PutAnswer::CLOSED, "a closed hand-over takes an item");
                }};
    }
};

// One wake-up ends one wait: the present one, or the next.
struct WokenUp : HandoverScenario {
    WokenUp() : HandoverScenario(2) {}
    std::vector<std::function<void()>> threads() override {
        return {[this] { put(0); },
                [this] {
                    void* armed = nullptr;
                    handover.wake_up(&armed);
                    call(armed);
                },
                [this] { take(false, true), take(false, true); }};
    }
    std::string verdict() override {
        if (wakeups != 1 || out.size() != 1) return "a wake-up and an item did not end one wait each";
        return HandoverScenario::verdict();
    }
};

// Both sides sleep elsewhere and are called.
struct Armed : HandoverScenario {
    Armed() : HandoverScenario(1) {}
    int called[2] = {};  // consumer, producer: the callbacks are the addresses of these
    int armings[2] = {};
    void call_one(void* armed) {
        if (armed != nullptr) ++*static_cast<int*>(armed);
    }
    void wait_for_call(int side, int before) {
        ++armings[side];
        sched::block([this, side, before] { return called[side] > before; });
    }
    void put_elsewhere(int number) {
        items[number].nbytes = 1;
        while (true) {
            void* armed = nullptr;
            const PutAnswer answer = handover.put(&items[number], &armed);
            call_one(armed);
            if (answer != PutAnswer::NO_ROOM) {
                accepted[number] = answer == PutAnswer::ACCEPTED;
                return;
            }
            const int before = called[1];
            void* mine = &called[1];
            if (handover.arm_producer(&mine, 1)) wait_for_call(1, before);
        }
    }
    std::vector<std::function<void()>> threads() override {
        return {[this] {
                    put_elsewhere(0), put_elsewhere(1), put_elsewhere(2);
                    void* armed = nullptr;
                    handover.finish(nullptr, &armed);
                    call_one(armed);
                },
                [this] {
                    while (true) {
                        taken_t taken;
                        last = handover.take(true, &taken);
                        call_one(taken.armed);
                        came_out(taken.items);
                        if (last == TakeAnswer::ITEMS) continue;
                        if (last != TakeAnswer::NOTHING) return;
                        const int before = called[0];
                        void* mine = &called[0];
                        if (handover.arm_consumer(&mine)) wait_for_call(0, before);
                    }
                }};
    }
    std::string verdict() override {
        if (called[0] > armings[0] || called[1] > armings[1]) return "one arming gave several calls";
        return HandoverScenario::verdict();
    }
};

}  // namespace

int main(int count, char** words) {
    return sched::schedules_main(count, words,
                                 {{"two-producers", sched::make<TwoProducers>},
                                  {"by-bytes", sched::make<ByBytes>},
                                  {"never-too-many", sched::make<NeverTooMany>},
                                  {"failed", sched::make<Failed>},
                                  {"closed-meanwhile", sched::make<ClosedMeanwhile>},
                                  {"woken-up", sched::make<WokenUp>},
                                  {"armed", sched::make<Armed>}});
}
