// Scenarios of the mailbox, with either inbox, for the deterministic scheduler; build with -DPILLARBOX_SCHED.
#include "pillarbox_inbox.h"
#include "pillarbox_mailbox.h"
#include "schedules.h"

using namespace pillarbox;
using sched::expect;

namespace {

constexpr double FOREVER = 1e9;

// One mailbox, some mails, and what became of each.
template <class Inbox>
struct MailboxScenario : sched::Scenario {
    static constexpr int MAILS = 6;

    Mailbox<Inbox> mailbox;
    mail_t mails[MAILS];
    bool accepted[MAILS] = {};
    int out[MAILS] = {};           // how often each mail came out
    std::vector<int> order;        // of the mails that came out
    bool quiesce_returned = false;
    // Each arming has a callback of its own: the address of one of these.
    struct Arming {
        int calls = 0;
        bool refused = false, replaced = false;
    };
    static constexpr int ARMINGS = 32;
    Arming armings[ARMINGS];
    int armed_so_far = 0, calls = 0;

    void call(void* armed) {
        if (armed == nullptr) return;
        ++static_cast<Arming*>(armed)->calls;
        ++calls;
    }

    // Whether the wake-up is armed now.
    bool arm() {
        expect(armed_so_far < ARMINGS, "the consumer arms again and again");
        Arming& mine = armings[armed_so_far++];
        void* spare = nullptr;
        const bool yes = mailbox.arm(&mine, &spare);
        mine.refused = !yes;
        if (spare != nullptr) static_cast<Arming*>(spare)->replaced = true;
        return yes;
    }

    state_t put(int first, int last) {
        const bool late = quiesce_returned;
        chain_t chain;
        for (int number = first; number <= last; ++number) {
            expect(mails[number].claim(), "a mail that waits nowhere cannot be claimed");
            chain.add(&mails[number]);
        }
        void* armed = nullptr;
        const state_t state = mailbox.put(chain, &armed);
        call(armed);
        expect(!(late && state == OPEN), "a put that began after quiesce had returned was accepted");
        for (int number = first; number <= last; ++number) accepted[number] = state == OPEN;
        return state;
    }

    void quiesce() {
        void* armed = nullptr;
        mailbox.quiesce(&armed);
        call(armed);
        quiesce_returned = true;
    }

    void came_out(mail_t* mail) {
        const int number = static_cast<int>(mail - mails);
        ++out[number];
        order.push_back(number);
        mail->release();
    }

    // Takes until the mailbox ends, or so many mails have come.
    void take(int most) {
        while (static_cast<int>(order.size()) < most) {
            state_t seen = OPEN;
            mail_t* const mail = mailbox.take(MIN_PRIORITY, 0, &seen);
            if (mail != nullptr) {
                came_out(mail);
            } else if (seen != OPEN) {
                return;
            } else {
                mailbox.park(FOREVER);
            }
        }
    }

    void close() {
        MailList left;
        void* armed = nullptr;
        mailbox.close(left, &armed);
        while (mail_t* mail = left.pop_first()) came_out(mail);
        expect(!mailbox.has_mail(), "after close some mail is left");
    }

    std::string verdict() override {
        for (int number = 0; number < MAILS; ++number) {
            if (out[number] > 1) return "a mail came out twice";
            if (accepted[number] && out[number] == 0) return "an accepted mail was lost";
            if (!accepted[number] && out[number] != 0) return "a refused mail came out";
        }
        for (const Arming& arming : armings) {
            if (arming.calls > 1) return "one arming gave several calls";
            if (arming.calls != 0 && arming.refused) return "a callback was called whose arming was refused";
            if (arming.calls != 0 && arming.replaced) return "a callback was called that had been replaced";
        }
        return "";
    }

    // Whether `first` came out before `second`, if both did.
    bool in_order(int first, int second) const {
        int at[2] = {-1, -1};
        for (int place = 0; place < static_cast<int>(order.size()); ++place) {
            if (order[place] == first) at[0] = place;
            if (order[place] == second) at[1] = place;
        }
        return at[0] < 0 || at[1] < 0 || at[0] < at[1];
    }
};

template <class Inbox>
struct TwoProducers : MailboxScenario<Inbox> {
    std::vector<std::function<void()>> threads() override {
        return {[this] { this->put(0, 0), this->put(1, 1); }, [this] { this->put(2, 2), this->put(3, 3); },
                [this] { this->take(4); }};
    }
    std::string verdict() override {
        if (!this->in_order(0, 1) || !this->in_order(2, 3)) return "a producer's mails came out of order";
        return MailboxScenario<Inbox>::verdict();
    }
};

template <class Inbox>
struct QuiescedByAnother : MailboxScenario<Inbox> {
    std::vector<std::function<void()>> threads() override {
        return {[this] { this->put(0, 0), this->put(1, 1); }, [this] { this->quiesce(), this->put(2, 2); },
                [this] { this->take(MailboxScenario<Inbox>::MAILS); }};
    }
    std::string verdict() override {
        if (this->mailbox.waiting() != 0) return "the take of a quiesced mailbox ended although mail was left";
        return MailboxScenario<Inbox>::verdict();
    }
};

template <class Inbox>
struct ClosedInTheMiddle : MailboxScenario<Inbox> {
    std::vector<std::function<void()>> threads() override {
        return {[this] { this->put(0, 0), this->put(1, 1); }, [this] { this->put(2, 3); },
                [this] {
                    state_t seen = OPEN;
                    this->mailbox.create_batch();
                    if (mail_t* mail = this->mailbox.take(MIN_PRIORITY, 0, &seen)) this->came_out(mail);
                    this->mailbox.create_batch();
                    this->close();
                }};
    }
};

// Several mails at once stay neighbours, an urgent one comes first.
template <class Inbox>
struct Together : MailboxScenario<Inbox> {
    Together() { this->mails[4].flags = URGENT; }
    std::vector<std::function<void()>> threads() override {
        return {[this] { this->put(0, 2); }, [this] { this->put(3, 3), this->put(4, 4); }, [this] { this->take(5); }};
    }
    std::string verdict() override {
        std::string ordinary;
        for (const int number : this->order) ordinary += number == 4 ? "" : std::to_string(number);
        if (ordinary != "0123" && ordinary != "3012") return "mails put together came out apart or out of order";
        return MailboxScenario<Inbox>::verdict();
    }
};

// The consumer sleeps elsewhere and is called.
template <class Inbox>
struct Armed : MailboxScenario<Inbox> {
    std::vector<std::function<void()>> threads() override {
        return {[this] { this->put(0, 0); }, [this] { this->put(1, 1), this->quiesce(); },
                [this] {
                    while (true) {
                        state_t seen = OPEN;
                        while (mail_t* mail = this->mailbox.take(MIN_PRIORITY, 0, &seen)) this->came_out(mail);
                        if (seen != OPEN) return;
                        const int before = this->calls;
                        if (!this->arm()) continue;
                        // A take that finds nothing leaves the wake-up armed.
                        if (mail_t* mail = this->mailbox.take(MIN_PRIORITY, 0, &seen)) this->came_out(mail);
                        sched::block([this, before] { return this->calls != before; });
                    }
                }};
    }
};

// A wake-up is armed, and the consumer sleeps here all the same.
template <class Inbox>
struct ArmedAndParked : MailboxScenario<Inbox> {
    std::vector<std::function<void()>> threads() override {
        return {[this] { this->put(0, 0); }, [this] { this->put(1, 1); },
                [this] {
                    this->arm();
                    this->take(1);
                    this->arm();
                    this->take(2);
                }};
    }
};

// A producer that stalls before it wakes the consumer delays nobody else's mail.
template <class Inbox>
struct Stalled : MailboxScenario<Inbox> {
    std::vector<std::function<void()>> threads() override {
        sched::Scheduler::the().before_wake = [this] {
            if (sched::Scheduler::the().running() == 0) sched::block([this] { return this->out[1] != 0; });
        };
        return {[this] { this->put(0, 0); }, [this] { this->put(1, 1); }, [this] { this->take(2); }};
    }
};

// Whoever reads the counts reads what has returned, and no more than what has begun.
template <class Inbox>
struct Counted : MailboxScenario<Inbox> {
    std::size_t begun = 0, returned = 0;
    std::string wrong;

    void put(int first, int last) {
        const auto count = static_cast<std::size_t>(last - first + 1);
        begun += count;
        MailboxScenario<Inbox>::put(first, last);
        returned += count;
    }

    std::vector<std::function<void()>> threads() override {
        return {[this] { put(0, 0), put(1, 2); }, [this] { this->take(3); },
                [this] {
                    for (int look = 0; look < 2; ++look) {
                        const std::size_t least = returned;
                        const std::size_t accepted = this->mailbox.inbox().accepted();
                        if (accepted < least) wrong = "a put that had returned is not counted";
                        if (accepted > begun) wrong = "more is counted than was put";
                    }
                }};
    }
    std::string verdict() override { return wrong; }
};

// A mail that was taken is put again, by another thread.
template <class Inbox>
struct PutAgain : MailboxScenario<Inbox> {
    int turns[2] = {};
    std::vector<std::function<void()>> threads() override {
        const auto producer = [this](int me) {
            return [this, me] {
                mail_t* const mail = &this->mails[0];
                for (int turn = 0; turn < 2; ++turn) {
                    if (!mail->claim()) continue;
                    void* armed = nullptr;
                    chain_t chain;
                    chain.add(mail);
                    this->turns[me] += this->mailbox.put(chain, &armed) == OPEN;
                }
            };
        };
        return {producer(0), producer(1), [this] {
                    for (int turn = 0; turn < 4; ++turn) {
                        state_t seen = OPEN;
                        mail_t* const mail = this->mailbox.take(MIN_PRIORITY, 0, &seen);
                        if (mail == nullptr) continue;
                        ++this->out[0];
                        mail->release();
                    }
                    this->close_counted();
                }};
    }
    void close_counted() {
        MailList left;
        void* armed = nullptr;
        this->mailbox.close(left, &armed);
        expect(left.count() <= 1, "one mail waits twice");
        this->out[0] += static_cast<int>(left.count());
    }
    std::string verdict() override {
        return this->out[0] == this->turns[0] + this->turns[1] ? "" : "puts and takes of a mail differ in number";
    }
};

template <class Inbox>
void add(std::map<std::string, sched::Make>& scenarios, const std::string& kind) {
    scenarios[kind + "/two-producers"] = sched::make<TwoProducers<Inbox>>;
    scenarios[kind + "/quiesced-by-another"] = sched::make<QuiescedByAnother<Inbox>>;
    scenarios[kind + "/closed-in-the-middle"] = sched::make<ClosedInTheMiddle<Inbox>>;
    scenarios[kind + "/together"] = sched::make<Together<Inbox>>;
    scenarios[kind + "/armed"] = sched::make<Armed<Inbox>>;
    scenarios[kind + "/armed-and-parked"] = sched::make<ArmedAndParked<Inbox>>;
    scenarios[kind + "/stalled-producer"] = sched::make<Stalled<Inbox>>;
    scenarios[kind + "/counted"] = sched::make<Counted<Inbox>>;
    scenarios[kind + "/put-again"] = sched::make<PutAgain<Inbox>>;
}

}  // namespace

int main(int count, char** words) {
    std::map<std::string, sched::Make> scenarios;
    add<LockFreeInbox>(scenarios, "lock-free");
    add<MutexInbox>(scenarios, "mutex");
    return sched::schedules_main(count, words, scenarios);
}
