// Small programs whose outcomes C++ defines, to see that the scheduler finds all that it allows and nothing else.
//
// `litmus [NAME...]` tries every schedule of each, or of those that are named, and prints a line: its name, and the
// outcomes that some schedule has.
// Each is named as in the literature on memory models. Build with -DPILLARBOX_SCHED.
#include <set>

#include "schedules.h"

using namespace pillarbox;
using sched::fence;

namespace {

constexpr auto RELAXED = std::memory_order_relaxed;
constexpr auto ACQUIRE = std::memory_order_acquire;
constexpr auto RELEASE = std::memory_order_release;
constexpr auto ACQ_REL = std::memory_order_acq_rel;
constexpr auto SEQ_CST = std::memory_order_seq_cst;

std::set<std::string> outcomes;
std::set<std::string> wanted;

struct Litmus : sched::Scenario {
    Atomic<int> x{0}, y{0};
    int r[4] = {};
    sched::Told<int> ended;
    int registers;
    std::vector<std::function<void(Litmus&)>> bodies;

    Litmus(int count, std::vector<std::function<void(Litmus&)>> threads) : registers(count), bodies(std::move(threads)) {}
    std::vector<std::function<void()>> threads() override {
        std::vector<std::function<void()>> bound;
        for (const auto& body : bodies) bound.push_back([this, &body] { body(*this); });
        return bound;
    }
    std::string verdict() override {
        std::string seen;
        for (int number = 0; number < registers; ++number) seen += std::to_string(r[number]);
        outcomes.insert(seen);
        return "";
    }
};

void attempt(const char* name, int registers, const std::vector<std::function<void(Litmus&)>>& threads) {
    if (!wanted.empty() && wanted.count(name) == 0) return;
    outcomes.clear();
    sched::Explorer explorer([&] { return std::make_unique<Litmus>(registers, threads); });
    const bool well = explorer.all(1000, 1000);
    std::printf("%s %s", name, well ? "" : explorer.failure().c_str());
    for (const std::string& outcome : outcomes) std::printf("%s ", outcome.c_str());
    std::puts("");
}

// One thread writes data and then a flag; the other reads the flag and then the data.
void message(const char* name, std::memory_order store, std::memory_order load) {
    attempt(name, 2, {[=](Litmus& t) { t.x.store(1, RELAXED), t.y.store(1, store); },
                      [=](Litmus& t) { t.r[0] = t.y.load(load), t.r[1] = t.x.load(RELAXED); }});
}

// Each thread writes its own and reads the other's.
void buffered(const char* name, std::memory_order store, std::memory_order load, bool with_fence) {
    attempt(name, 2,
            {[=](Litmus& t) {
                 t.x.store(1, store);
                 if (with_fence) fence(SEQ_CST);
                 t.r[0] = t.y.load(load);
             },
             [=](Litmus& t) {
                 t.y.store(1, store);
                 if (with_fence) fence(SEQ_CST);
                 t.r[1] = t.x.load(load);
             }});
}

// Two threads write, two others see the writes in different orders.
void independent(const char* name, std::memory_order store, std::memory_order load) {
    attempt(name, 4, {[=](Litmus& t) { t.x.store(1, store); }, [=](Litmus& t) { t.y.store(1, store); },
                      [=](Litmus& t) { t.r[0] = t.x.load(load), t.r[1] = t.y.load(load); },
                      [=](Litmus& t) { t.r[2] = t.y.load(load), t.r[3] = t.x.load(load); }});
}

}  // namespace

int main(int count, char** names) {
    wanted.insert(names + 1, names + count);
    message("message-relaxed", RELAXED, RELAXED);
    message("message-release-only", RELEASE, RELAXED);
    message("message-acquire-only", RELAXED, ACQUIRE);
    message("message", RELEASE, ACQUIRE);
    attempt("message-by-fences", 2,
            {[](Litmus& t) { t.x.store(1, RELAXED), fence(RELEASE), t.y.store(1, RELAXED); },
             [](Litmus& t) { t.r[0] = t.y.load(RELAXED), fence(ACQUIRE), t.r[1] = t.x.load(RELAXED); }});
    // The flag is changed by a third thread in between: a read-modify-write goes on with the release, a store does not.
    attempt("passed-on-by-an-exchange", 2,
            {[](Litmus& t) { t.x.store(1, RELAXED), t.y.store(1, RELEASE); },
             [](Litmus& t) { int one = 1; t.y.compare_exchange_strong(one, 2, RELAXED, RELAXED); },
             [](Litmus& t) { t.r[0] = t.y.load(ACQUIRE), t.r[1] = t.x.load(RELAXED); }});
    attempt("ended-by-a-store", 2,
            {[](Litmus& t) { t.x.store(1, RELAXED), t.y.store(1, RELEASE); },
             [](Litmus& t) { if (t.y.load(RELAXED) == 1) t.y.store(2, RELAXED); },
             [](Litmus& t) { t.r[0] = t.y.load(ACQUIRE), t.r[1] = t.x.load(RELAXED); }});
    buffered("store-buffers-relaxed", RELAXED, RELAXED, false);
    buffered("store-buffers-acquire-release", RELEASE, ACQUIRE, false);
    buffered("store-buffers", SEQ_CST, SEQ_CST, false);
    buffered("store-buffers-fenced", RELAXED, RELAXED, true);
    independent("independent-acquire-release", RELEASE, ACQUIRE);
    independent("independent", SEQ_CST, SEQ_CST);
    // One location: nobody sees it go back.
    attempt("coherence", 2, {[](Litmus& t) { t.x.store(1, RELAXED), t.x.store(2, RELAXED); },
                             [](Litmus& t) { t.r[0] = t.x.load(RELAXED), t.r[1] = t.x.load(RELAXED); }});
    // Two threads write both, in opposite orders, and each may read the other's in both places.
    attempt("two-writes", 2, {[](Litmus& t) { t.x.store(1, RELAXED), t.y.store(2, RELAXED), t.r[0] = t.y.load(RELAXED); },
                              [](Litmus& t) { t.y.store(1, RELAXED), t.x.store(2, RELAXED), t.r[1] = t.x.load(RELAXED); }});
    // After both have ended: what was written first by each may be what stays.
    attempt("what-stays", 2, {[](Litmus& t) { t.x.store(1, RELAXED), t.y.store(2, RELAXED), ++t.ended; },
                              [](Litmus& t) { t.y.store(1, RELAXED), t.x.store(2, RELAXED), ++t.ended; },
                              [](Litmus& t) {
                                  while (t.ended != 2) await_change(t.ended, static_cast<int>(t.ended));
                                  t.r[0] = t.x.load(RELAXED), t.r[1] = t.y.load(RELAXED);
                              }});
    // Of two exchanges of one word exactly one finds what was there.
    attempt("exchanges", 2, {[](Litmus& t) { t.r[0] = t.x.exchange(1, RELAXED); },
                             [](Litmus& t) { t.r[1] = t.x.exchange(2, RELAXED); }});
    attempt("additions", 1, {[](Litmus& t) { t.x.fetch_add(1, RELAXED); }, [](Litmus& t) { t.x.fetch_add(1, RELAXED); },
                             [](Litmus& t) { t.r[0] = t.x.fetch_add(1, ACQ_REL); }});
    return 0;
}
