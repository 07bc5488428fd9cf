// Scenarios of a collector for the deterministic scheduler; build with -DPILLARBOX_SCHED.
#include "pillarbox_collector.h"
#include "schedules.h"

using namespace pillarbox;

namespace {

// A collector that two threads complete, while its owner does what a scenario says.
struct CollectorScenario : sched::Scenario {
    static constexpr int CALLERS = 2;

    Mailbox<Inbox> mailbox;
    Counter late{0};
    collected_t collector;
    sched::Plain content;  // of the mail
    Collected found[CALLERS] = {};
    int puts = 0, ran = 0, dropped = 0;
    bool revoked = false;

    CollectorScenario() { collector.late = &late; }

    void complete(int caller) {
        found[caller] = collector.take();
        if (found[caller] != Collected::TAKEN) {
            content.use();
            chain_t chain;
            chain.add(&collector);
            void* armed = nullptr;
            if (mailbox.put(chain, &armed) == OPEN) {
                ++puts;
                return;
            }
            content.use();
        }
        collector.count_late();
    }

    void run_one() {
        state_t seen = OPEN;
        if (mailbox.take(MIN_PRIORITY, 0, &seen) == nullptr) return;
        content.use();
        ++ran;
    }

    void close() {
        MailList left;
        void* armed = nullptr;
        mailbox.close(left, &armed);
        while (left.pop_first() != nullptr) {
            content.use();
            ++dropped;
        }
    }

    virtual void own() = 0;

    std::vector<std::function<void()>> threads() override {
        return {[this] { complete(0); }, [this] { complete(1); }, [this] { own(); }};
    }

    std::string verdict() override {
        run_one(), close();
        int first = 0, after = 0;
        for (const Collected each : found) {
            first += each == Collected::FIRST;
            after += each == Collected::REVOKED;
        }
        if (first + after != 1) return "of two completions not exactly one has the mail";
        if (revoked != (after == 1)) return "a completion and the time-out of its attempt disagree on who came first";
        if (ran + dropped != puts) return "a mail that was put neither ran nor was dropped";
        return late.load() == static_cast<std::size_t>(CALLERS - puts) ? "" : "a completion was not counted as late";
    }
};

struct FirstWins : CollectorScenario {
    void own() override { run_one(), run_one(); }
};

struct TimedOut : CollectorScenario {
    void own() override {
        revoked = collector.revoke();
        run_one();
    }
};

struct ClosedMeanwhile : CollectorScenario {
    void own() override {
        void* armed = nullptr;
        mailbox.quiesce(&armed);
        run_one(), close();
    }
};

}  // namespace

int main(int count, char** words) {
    return sched::schedules_main(count, words,
                                 {{"first-wins", sched::make<FirstWins>},
                                  {"timed-out", sched::make<TimedOut>},
                                  {"closed-meanwhile", sched::make<ClosedMeanwhile>}});
}
