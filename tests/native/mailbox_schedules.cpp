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
    sched::Plain contents[MAILS];  // of each mail: who has it alone may use it
    bool accepted[MAILS] = {};
    int out[MAILS] = {};           // how often each mail came out
    std::vector<int> order;        // of the mails that came out
    bool quiesce_returned = false;
    // Each arming has a callback of its own: the address of one of these.
    struct Arming {
        sched::Plain content;
        int calls = 0;
        bool refused = false, replaced = false;
    };
    static constexpr int ARMINGS = 32;
    Arming armings[ARMINGS];
    int armed_so_far = 0;
    sched::Told<int> calls;

    void call(void* armed) {
        if (armed == nullptr) return;
        static_cast<Arming*>(armed)->content.use();
        ++static_cast<Arming*>(armed)->calls;
        ++calls;
    }

    // Whether the wake-up is armed now.
    bool arm() {
        expect(armed_so_far < ARMINGS, "the consumer arms again and again");
        Arming& mine = armings[armed_so_far++];
        void* spare = nullptr;
        mine.content.use();
        const bool yes = mailbox.arm(&mine, &spare);
        mine.refused = !yes;
        if (!yes) mine.content.use();
        if (spare != nullptr) drop(spare);
        return yes;
    }

    void drop(void* armed) {
        static_cast<Arming*>(armed)->content.use();
        static_cast<Arming*>(armed)->replaced = true;
    }

    state_t put(int first, int last) {
        const bool late = quiesce_returned;
        chain_t chain;
        for (int number = first; number <= last; ++number) {
            expect(mails[number].claim(), "a mail that waits nowhere cannot be claimed");
            contents[number].use();
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
        contents[number].use();
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
        if (armed != nullptr) drop(armed);
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
                        await_change(this->calls, before);
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

// A producer that was charged with one arming, and stalls, takes the callback of the next, and calls it.
template <class Inbox>
struct ArmedAnew : MailboxScenario<Inbox> {
    bool armed_once = false;
    std::vector<std::function<void()>> threads() override {
        return {[this] {
                    // Nothing but the mailbox tells the consumer of the put, nor the producer of the callback.
                    sched::block([this] { return armed_once; });
                    this->put(0, 0);
                },
                [this] {
                    armed_once = this->arm();
                    state_t seen = OPEN;
                    for (int turn = 0; turn < 3; ++turn) {
                        if (mail_t* mail = this->mailbox.take(MIN_PRIORITY, 0, &seen)) this->came_out(mail);
                        if (this->out[0] != 0) break;
                        sched::point();
                    }
                    this->arm();
                    this->close();
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

// Whoever reads the counts reads what has returned, no more than what has begun, and never less than before. The mails
// that have been taken are not more than those that were put.
template <class Inbox>
struct Counted : MailboxScenario<Inbox> {
    std::size_t begun = 0;
    sched::Told<std::size_t> returned;
    bool grows = true;
    std::string wrong;

    void put(int first, int last) {
        const auto count = static_cast<std::size_t>(last - first + 1);
        begun += count;
        MailboxScenario<Inbox>::put(first, last);
        returned += count;
    }

    void look() {
        std::size_t before = 0;
        for (int times = 0; times < 2; ++times) {
            const std::size_t least = returned;
            const std::size_t accepted = this->mailbox.inbox().accepted();
            if (accepted < least) wrong = "a put that had returned is not counted";
            if (accepted > begun) wrong = "more is counted than was put";
            if (accepted < before && grows) wrong = "less is counted than before";
            before = accepted;
        }
    }

    std::vector<std::function<void()>> threads() override {
        return {[this] { put(0, 0), put(1, 2); }, [this] { this->take(3); }, [this] { look(); }};
    }
    std::string verdict() override { return wrong; }
};

// The same while the mailbox is closed.
template <class Inbox>
struct CountedAndClosed : Counted<Inbox> {
    std::vector<std::function<void()>> threads() override {
        return {[this] { this->put(0, 0); }, [this] { this->close(); }, [this] { this->look(); }};
    }
    void put(int first, int last) {
        ++this->begun;
        if (MailboxScenario<Inbox>::put(first, last) == OPEN) ++this->returned;
    }
};

// The same where more arrive than the word has room to count.
struct CountedBeside : Counted<LockFreeInbox> {
    static constexpr std::size_t COUNTED_IN_WORD = 65535, BEFORE = COUNTED_IN_WORD - 1;

    CountedBeside() {
        // Linked once for all runs: nobody writes to them.
        static const std::unique_ptr<mail_t[]> crowd(new mail_t[BEFORE]);
        static chain_t linked;
        while (linked.count < BEFORE) linked.add(&crowd[linked.count]);
        void* armed = nullptr;
        mailbox.put(linked, &armed);
        begun = BEFORE, returned = BEFORE;
        // What a put counts beside the word before it is in, it may take back.
        grows = false;
    }
    std::vector<std::function<void()>> threads() override {
        return {[this] { Counted::put(0, 1), Counted::put(2, 2); },
                [this] {
                    chain_t fetched;
                    mailbox.inbox().fetch(fetched), mailbox.inbox().fetch(fetched);
                },
                [this] { look(); }};
    }
};

// What waits is what was put and not taken.
template <class Inbox>
struct Waiting : MailboxScenario<Inbox> {
    std::string wrong;
    std::vector<std::function<void()>> threads() override {
        return {[this] { this->put(0, 1); }, [this] { this->take(2); },
                [this] {
                    if (this->mailbox.waiting() > 2) wrong = "more waits than was put";
                }};
    }
    std::string verdict() override { return wrong; }
};

// Whoever reads that the mailbox has ended sees what was done before.
template <class Inbox>
struct Ended : MailboxScenario<Inbox> {
    std::vector<std::function<void()>> threads() override {
        return {[this] { this->contents[0].use(), this->quiesce(); }, [this] { this->contents[1].use(), this->close(); },
                [this] {
                    const state_t state = this->mailbox.inbox().state();
                    if (state != OPEN) this->contents[state == QUIESCED ? 0 : 1].use();
                }};
    }
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
                    this->contents[0].use();
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
                        this->contents[0].use();
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

// A mail that was taken is put again by its one owner, who looks whether he has it back.
template <class Inbox>
struct HandedBack : MailboxScenario<Inbox> {
    int puts = 0;
    std::vector<std::function<void()>> threads() override {
        return {[this] {
                    for (int turn = 0; turn < 4 && puts < 2; ++turn) {
                        if (!this->mails[0].claim_alone()) continue;
                        this->contents[0].use();
                        void* armed = nullptr;
                        chain_t chain;
                        chain.add(&this->mails[0]);
                        puts += this->mailbox.put(chain, &armed) == OPEN;
                    }
                },
                [this] {
                    for (int turn = 0; turn < 4; ++turn) {
                        state_t seen = OPEN;
                        if (mail_t* mail = this->mailbox.take(MIN_PRIORITY, 0, &seen)) this->came_out(mail);
                    }
                    this->close();
                }};
    }
    std::string verdict() override { return this->out[0] == puts ? "" : "puts and takes of a mail differ in number"; }
};

template <class Inbox>
void add(std::map<std::string, sched::Make>& scenarios, const std::string& kind) {
    scenarios[kind + "/two-producers"] = sched::make<TwoProducers<Inbox>>;
    scenarios[kind + "/quiesced-by-another"] = sched::make<QuiescedByAnother<Inbox>>;
    scenarios[kind + "/closed-in-the-middle"] = sched::make<ClosedInTheMiddle<Inbox>>;
    scenarios[kind + "/together"] = sched::make<Together<Inbox>>;
    scenarios[kind + "/armed"] = sched::make<Armed<Inbox>>;
    scenarios[kind + "/armed-and-parked"] = sched::make<ArmedAndParked<Inbox>>;
    scenarios[kind + "/armed-anew"] = sched::make<ArmedAnew<Inbox>>;
    scenarios[kind + "/stalled-producer"] = sched::make<Stalled<Inbox>>;
    scenarios[kind + "/counted"] = sched::make<Counted<Inbox>>;
    scenarios[kind + "/counted-and-closed"] = sched::make<CountedAndClosed<Inbox>>;
    scenarios[kind + "/waiting"] = sched::make<Waiting<Inbox>>;
    scenarios[kind + "/ended"] = sched::make<Ended<Inbox>>;
    scenarios[kind + "/put-again"] = sched::make<PutAgain<Inbox>>;
    scenarios[kind + "/handed-back"] = sched::make<HandedBack<Inbox>>;
}

}  // namespace

int main(int count, char** words) {
    std::map<std::string, sched::Make> scenarios;
    add<LockFreeInbox>(scenarios, "lock-free");
    add<MutexInbox>(scenarios, "mutex");
    scenarios["lock-free/counted-beside"] = sched::make<CountedBeside>;
    return sched::schedules_main(count, words, scenarios);
}
