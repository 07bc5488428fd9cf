// Scenarios of the result queue for the deterministic scheduler; build with -DPILLARBOX_SCHED.
#include "pillarbox_queue.h"
#include "schedules.h"

using namespace pillarbox;
using sched::expect;

namespace {

// A queue, its elements and its results. Who has a result alone may use it.
struct QueueScenario : sched::Scenario {
    static constexpr int ENTRIES = 4;

    ResultQueue queue;
    int elements[ENTRIES] = {};
    sched::Plain results[2 * ENTRIES];
    long long handles[ENTRIES] = {};
    sched::Told<int> completions;  // that have returned
    std::vector<pair_t> emitted;

    QueueScenario(int capacity, bool ordered, Completers completers = Completers::ANY)
        : queue(capacity, ordered, completers) {}

    void put(int number) {
        expect(queue.put(&elements[number], &handles[number]) == QueueAnswer::DONE, "a put with room was refused");
    }

    bool complete(long long handle, int result) {
        results[result].use();
        const bool won = queue.complete(handle, &results[result]);
        if (!won) results[result].use();
        ++completions;
        return won;
    }

    // Emits until so many pairs have left, looking again after each completion.
    void emit(std::size_t most) {
        while (emitted.size() < most) {
            const int before = completions;
            pair_t pairs[ENTRIES];
            const int count = queue.emit(pairs, ENTRIES);
            for (int place = 0; place < count; ++place) use(pairs[place].result);
            emitted.insert(emitted.end(), pairs, pairs + count);
            if (count == 0) await_change(completions, before);
        }
    }

    static void use(void* result) {
        if (result != nullptr) static_cast<sched::Plain*>(result)->use();
    }

    int number(const pair_t& pair) const { return static_cast<int>(static_cast<int*>(pair.element) - elements); }

    std::string verdict() override { return ""; }
};

// Two threads complete one entry: one wins, and its result is the one that is emitted.
struct FirstCompletionWins : QueueScenario {
    FirstCompletionWins() : QueueScenario(2, true) { put(0); }
    bool won[2] = {};
    std::vector<std::function<void()>> threads() override {
        return {[this] { won[0] = complete(handles[0], 0); }, [this] { won[1] = complete(handles[0], 1); },
                [this] { emit(1); }};
    }
    std::string verdict() override {
        if (won[0] == won[1]) return "of two completions not exactly one has won";
        if (emitted[0].result != &results[won[0] ? 0 : 1]) return "the result that was emitted is not the winner's";
        return queue.counts().late == 1 ? "" : "the completion that lost was not counted";
    }
};

struct InOrder : QueueScenario {
    InOrder() : QueueScenario(ENTRIES, true) { put(0), put(1), put(2); }
    std::vector<std::function<void()>> threads() override {
        return {[this] { complete(handles[2], 2), complete(handles[0], 0); }, [this] { complete(handles[1], 1); },
                [this] { emit(3); }};
    }
    std::string verdict() override {
        for (int place = 0; place < 3; ++place) {
            if (number(emitted[static_cast<std::size_t>(place)]) != place) return "an ordered queue emitted out of order";
        }
        return "";
    }
};

// As they finish, but nothing passes the watermark between the entries 0, 1 and 2.
struct AroundAWatermark : QueueScenario {
    AroundAWatermark() : QueueScenario(ENTRIES, false) {
        put(0), put(1);
        expect(queue.put_watermark(&elements[3], nullptr) == QueueAnswer::DONE, "a watermark with room was refused");
    }
    std::vector<std::function<void()>> threads() override {
        return {[this] { complete(handles[0], 0); }, [this] { complete(handles[1], 1); },
                [this] {
                    emit(2);
                    // The slots of what has left are used again.
                    put(2);
                    complete(handles[2], 2);
                    emit(4);
                },
                [this] { complete(handles[0], 4); }};
    }
    std::string verdict() override {
        if (number(emitted[2]) != 3 || number(emitted[3]) != 2) return "an entry and a watermark passed each other";
        return "";
    }
};

// An answer of the first attempt comes while the second one begins.
struct RenewedMeanwhile : QueueScenario {
    RenewedMeanwhile() : QueueScenario(1, true) { put(0), first = second = handles[0]; }
    long long first, second;
    bool early = false, renewed = false, late = false;
    std::vector<std::function<void()>> threads() override {
        return {[this] { early = complete(first, 0); },
                [this] {
                    renewed = queue.renew(&second);
                    late = complete(second, 1);
                    emit(1);
                }};
    }
    std::string verdict() override {
        if (early == renewed) return "a handle of an earlier attempt was accepted, or that of the present one refused";
        return emitted[0].result == &results[early ? 0 : 1] ? "" : "the result is that of the wrong attempt";
    }
};

// An answer comes while the owner closes: the result is the queue's or the caller's, never both, never nobody's.
struct ClosedMeanwhile : QueueScenario {
    ClosedMeanwhile() : QueueScenario(2, true) { put(0), put(1); }
    bool won[2] = {};
    std::vector<entry_t> left;
    std::vector<std::function<void()>> threads() override {
        return {[this] { won[0] = complete(handles[0], 0); }, [this] { won[1] = complete(handles[1], 1); },
                [this] {
                    std::vector<entry_t> copied;
                    queue.snapshot(copied);
                    expect(copied.size() == 2, "a snapshot is not complete");
                    left.reserve(2);
                    queue.close(left);
                    for (const entry_t& entry : left) use(entry.result);
                    pair_t pairs[2];
                    expect(queue.emit(pairs, 2) == 0, "something was emitted after close");
                    expect(queue.put(&elements[2], &handles[2]) == QueueAnswer::CLOSED, "a closed queue takes in");
                    for (const entry_t& entry : copied) {
                        expect(entry.state == EntryState::RUNNING || entry.result != nullptr, "a snapshot is torn");
                    }
                }};
    }
    std::string verdict() override {
        if (left.size() != 2) return "close did not give back what was left";
        for (int place = 0; place < 2; ++place) {
            const bool has = left[static_cast<std::size_t>(place)].state == EntryState::FINISHED;
            if (has != won[place]) return "a result belongs to both sides, or to neither";
        }
        return "";
    }
};

// Answers come while the owner clears, and uses the slots again: what has won is given back, and the new
// entries are those that come out.
struct ClearedMeanwhile : QueueScenario {
    explicit ClearedMeanwhile(bool ordered) : QueueScenario(2, ordered) { put(0), put(1); }
    bool won[2] = {};
    bool owner_won[2] = {};
    std::vector<entry_t> cleared;
    std::vector<std::function<void()>> threads() override {
        return {[this] { won[0] = complete(handles[0], 0); }, [this] { won[1] = complete(handles[1], 1); },
                [this] {
                    queue.clear(cleared);
                    for (const entry_t& entry : cleared) use(entry.result);
                    put(2), put(3);
                    pair_t pairs[2];
                    const int early = queue.emit(pairs, 2);
                    while (completions < 2) await_change(completions, static_cast<int>(completions));
                    expect(early + queue.emit(pairs, 2) == 0, "something came out that nobody has completed");
                    owner_won[0] = complete(handles[3], 3);
                    owner_won[1] = complete(handles[2], 2);
                    emit(2);
                }};
    }
    std::string verdict() override {
        if (cleared.size() != 2) return "clear did not give back what was there";
        for (std::size_t place = 0; place < 2; ++place) {
            const bool has = cleared[place].state == EntryState::FINISHED;
            if (has != won[place]) return "a result belongs to both sides, or to neither";
            if (has && cleared[place].result != &results[place]) return "a result is that of another entry";
            if (!owner_won[place]) return "a completion of a new entry lost";
        }
        for (const pair_t& pair : emitted) {
            if (number(pair) < 2) return "something was emitted that was cleared";
            if (pair.result != &results[number(pair)]) return "a result is that of another entry";
        }
        const queue_counts_t counts = queue.counts();
        return counts.size == 0 && counts.running == 0 ? "" : "what has left is still counted";
    }
};

struct ClearedInOrder : ClearedMeanwhile {
    ClearedInOrder() : ClearedMeanwhile(true) {}
};

struct ClearedUnordered : ClearedMeanwhile {
    ClearedUnordered() : ClearedMeanwhile(false) {}
};

// What has finished comes out in the order in which completions have returned, and a snapshot has every
// result whose completion had returned before it.
struct AsTheyFinish : QueueScenario {
    AsTheyFinish() : QueueScenario(ENTRIES, false) { put(0), put(1), put(2); }
    sched::Told<int> returned;
    bool torn = false;
    std::vector<std::function<void()>> threads() override {
        return {[this] {
                    complete(handles[2], 2), returned = 1;
                    complete(handles[0], 0), returned = 2;
                },
                [this] { complete(handles[1], 1); },
                [this] {
                    const int before = returned;
                    std::vector<entry_t> copied;
                    queue.snapshot(copied);
                    torn = copied.size() != 3 || (before > 0 && copied[2].result != &results[2]) ||
                           (before > 1 && copied[0].result != &results[0]);
                    for (const entry_t& entry : copied) {
                        torn = torn || (entry.state == EntryState::FINISHED) != (entry.result != nullptr);
                    }
                    emit(3);
                }};
    }
    std::string verdict() override {
        if (torn) return "a snapshot does not have a result that had been given";
        int places[3] = {};
        int place = 0;
        for (const pair_t& pair : emitted) places[number(pair)] = place++;
        return places[2] < places[0] ? "" : "what finished first came out later";
    }
};

// At every moment no more runs than there is, and what has left has finished, whoever has not returned yet.
struct CountedMeanwhile : QueueScenario {
    explicit CountedMeanwhile(bool ordered) : QueueScenario(2, ordered) { put(0), put(1); }
    std::string wrong;
    void look() {
        const queue_counts_t now = queue.counts();
        if (now.running > now.size) wrong = "more runs than there is";
        if (now.completed < now.emitted) wrong = "something has left that has not finished";
    }
    std::vector<std::function<void()>> threads() override {
        return {[this] { complete(handles[0], 0); }, [this] { complete(handles[1], 1); },
                [this] {
                    pair_t pair;
                    queue.emit(&pair, 1), look();
                    put_if_room();
                    look();
                    std::vector<entry_t> left;
                    queue.clear(left), look();
                    if (queue.counts().running != 0) wrong = "what was cleared runs";
                }};
    }
    void put_if_room() {
        const QueueAnswer answer = queue.put(&elements[2], &handles[2]);
        expect(answer == QueueAnswer::DONE || answer == QueueAnswer::FULL, "a put was refused without a reason");
    }
    std::string verdict() override { return wrong; }
};

struct CountedInOrder : CountedMeanwhile {
    CountedInOrder() : CountedMeanwhile(true) {}
};

struct CountedUnordered : CountedMeanwhile {
    CountedUnordered() : CountedMeanwhile(false) {}
};

// The same where the owner alone completes, of a thread that watches.
struct CountedAlone : QueueScenario {
    explicit CountedAlone(bool ordered) : QueueScenario(2, ordered, Completers::OWNER) { put(0), put(1); }
    std::string wrong;
    long long seen = 0;
    void look() {
        const queue_counts_t now = queue.counts();
        if (now.running > now.size) wrong = "more runs than there is";
        if (now.completed < now.emitted) wrong = "something has left that has not finished";
        if (now.completed < seen) wrong = "a completion is counted no more";
        seen = now.completed;
    }
    std::vector<std::function<void()>> threads() override {
        return {[this] {
                    complete(handles[1], 1), complete(handles[0], 0);
                    if (complete(handles[0], 2)) wrong = "of two completions both have won";
                    if (queue.counts().running != 0) wrong = "what has finished still runs";
                    const long long stale = handles[0];
                    emit(2);
                    put(2);
                    if (complete(stale, 4)) wrong = "a completion of an earlier entry has won";
                    complete(handles[2], 3), emit(3);
                },
                [this] { look(), look(), look(); }};
    }
    std::string verdict() override {
        look();
        if (emitted[0].result != &results[number(emitted[0])]) return "a result is that of another entry";
        return wrong.empty() && seen != 3 ? "what has finished is not counted" : wrong;
    }
};

struct CountedAloneInOrder : CountedAlone {
    CountedAloneInOrder() : CountedAlone(true) {}
};

struct CountedAloneUnordered : CountedAlone {
    CountedAloneUnordered() : CountedAlone(false) {}
};

// The same as another thread sees it: all is of one moment, and none is before the last.
struct CountedByAnother : QueueScenario {
    CountedByAnother(bool ordered, Completers completers = Completers::ANY) : QueueScenario(2, ordered, completers) {}
    std::string wrong;
    void watch() {
        queue_counts_t before{};
        for (int times = 0; times < 2; ++times) {
            const queue_counts_t now = queue.counts();
            if (now.size < 0 || now.size > 2 || now.running < 0) wrong = "the counts are torn";
            if (now.running > now.size) wrong = "more runs than there is";
            if (now.completed < now.emitted) wrong = "something has left that has not finished";
            if (now.completed > now.admitted) wrong = "something has finished that was not admitted";
            if (now.late > now.completed) wrong = "an answer is late to an entry that has none";
            if (now.admitted < before.admitted || now.emitted < before.emitted || now.completed < before.completed) {
                wrong = "less is counted than before";
            }
            before = now;
        }
    }
    void emit_one() {
        pair_t pair;
        if (queue.emit(&pair, 1) == 1) use(pair.result);
    }
    std::vector<std::function<void()>> threads() override {
        put(0), put(1);
        return {[this] {
                    // The second answer of an entry comes after the first.
                    complete(handles[0], 0), complete(handles[0], 1);
                },
                [this] {
                    emit_one();
                    if (queue.put(&elements[2], &handles[2]) == QueueAnswer::DONE) complete(handles[2], 2);
                },
                [this] { watch(); }};
    }
    std::string verdict() override { return wrong; }
};

// What is counted as completed is counted as admitted.
struct FirstCounted : CountedByAnother {
    using CountedByAnother::CountedByAnother;
    std::vector<std::function<void()>> threads() override {
        return {[this] { put(0), complete(handles[0], 0), emit_one(); }, [this] { watch(); }};
    }
};

struct FirstCountedInOrder : FirstCounted {
    FirstCountedInOrder() : FirstCounted(true) {}
};

struct FirstCountedUnordered : FirstCounted {
    FirstCountedUnordered() : FirstCounted(false) {}
};

struct FirstCountedAlone : FirstCounted {
    FirstCountedAlone() : FirstCounted(true, Completers::OWNER) {}
};

struct CountedByAnotherInOrder : CountedByAnother {
    CountedByAnotherInOrder() : CountedByAnother(true) {}
};

struct CountedByAnotherUnordered : CountedByAnother {
    CountedByAnotherUnordered() : CountedByAnother(false) {}
};

// Whoever visits what a queue owns has each payload as its owner has left it.
struct Visited : QueueScenario {
    explicit Visited(Completers completers) : QueueScenario(2, false, completers) {}
    std::vector<std::function<void()>> threads() override {
        return {[this] {
                    put(0);
                    if (queue.renew(&handles[0])) complete(handles[0], 0);
                    results[1].use();
                    queue.put_watermark(&elements[1], &results[1]);
                },
                [this] {
                    const auto visit = [](void* payload, void* scenario) {
                        auto& results = static_cast<Visited*>(scenario)->results;
                        for (sched::Plain& result : results) {
                            if (payload == &result) result.use();
                        }
                        return 0;
                    };
                    queue.visit(visit, this);
                }};
    }
};

struct VisitedAlone : Visited {
    VisitedAlone() : Visited(Completers::OWNER) {}
};

struct VisitedByAny : Visited {
    VisitedByAny() : Visited(Completers::ANY) {}
};

}  // namespace

int main(int count, char** words) {
    return sched::schedules_main(count, words,
                                 {{"first-completion-wins", sched::make<FirstCompletionWins>},
                                  {"in-order", sched::make<InOrder>},
                                  {"around-a-watermark", sched::make<AroundAWatermark>},
                                  {"renewed-meanwhile", sched::make<RenewedMeanwhile>},
                                  {"closed-meanwhile", sched::make<ClosedMeanwhile>},
                                  {"cleared-in-order", sched::make<ClearedInOrder>},
                                  {"cleared-unordered", sched::make<ClearedUnordered>},
                                  {"as-they-finish", sched::make<AsTheyFinish>},
                                  {"first-counted-in-order", sched::make<FirstCountedInOrder>},
                                  {"first-counted-unordered", sched::make<FirstCountedUnordered>},
                                  {"first-counted-alone", sched::make<FirstCountedAlone>},
                                  {"visited", sched::make<VisitedByAny>},
                                  {"visited-alone", sched::make<VisitedAlone>},
                                  {"counted-by-another-in-order", sched::make<CountedByAnotherInOrder>},
                                  {"counted-by-another-unordered", sched::make<CountedByAnotherUnordered>},
                                  {"counted-in-order", sched::make<CountedInOrder>},
                                  {"counted-unordered", sched::make<CountedUnordered>},
                                  {"counted-alone-in-order", sched::make<CountedAloneInOrder>},
                                  {"counted-alone-unordered", sched::make<CountedAloneUnordered>}});
}
