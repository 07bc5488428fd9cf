// Deadlines against a sorted table, with an allocator that fails now and then: what fails has changed
// nothing.
//
// One thread. Prints "ok", or what is wrong.
#include "pillarbox_deadlines.h"

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <map>
#include <new>
#include <random>
#include <utility>
#include <vector>

namespace {

constexpr double NEVER = std::numeric_limits<double>::infinity();
constexpr long STEPS = 100000;  // of a run
constexpr long BURST = 5000;    // of a burst, and of the quiet time after it

bool failing = false;
int allocations_left = 0;
long failed = 0;

}  // namespace

// Where one of these is inlined and its partner is not, compilers warn of memory that two allocators share.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
    if (failing && allocations_left-- == 0) {
        ++failed;
        throw std::bad_alloc();
    }
    void* memory = std::malloc(bytes);
    if (memory == nullptr) throw std::bad_alloc();
    return memory;
}

[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace {

using Key = std::pair<double, long>;  // when it is due, and which one it is

struct Checked {
    pillarbox::Deadlines deadlines;
    std::map<Key, std::int64_t> table;
    std::vector<std::pair<Key, std::int64_t>> all;
    double now = 0.0;
    long count = 0;

    static void* payload_of(long number) {
        return reinterpret_cast<void*>(static_cast<std::uintptr_t>(number));
    }

    void arm(double seconds) {
        const Key key{deadlines.tell(now) + seconds, ++count};
        std::int64_t handle = -1;
        try {
            handle = deadlines.arm(seconds, payload_of(count));
        } catch (const std::bad_alloc&) {
            return;
        }
        failing = false;
        table[key] = handle;
        all.push_back({key, handle});
    }

    bool cancel(std::size_t which) {
        const auto& [key, handle] = all[which];
        void* payload = nullptr;
        const bool waits = table.erase(key) != 0;
        return deadlines.cancel(handle, &payload) == waits && (!waits || payload == payload_of(key.second));
    }

    bool expire(std::size_t most) {
        std::size_t due = 0;
        for (const auto& [key, handle] : table) {
            if (key.first > now || due == most) break;
            ++due;
        }
        if (deadlines.count_due(deadlines.tell(now), most) != due) return false;
        for (; due != 0; --due) {
            void* payload = nullptr;
            const auto first = table.begin();
            if (!deadlines.pop(now, &payload) || payload != payload_of(first->first.second)) return false;
            table.erase(first);
        }
        return true;
    }

    bool agrees() const {
        std::size_t visited = 0;
        const auto count_one = [](void*, void* context) {
            ++*static_cast<std::size_t*>(context);
            return 0;
        };
        deadlines.visit(count_one, &visited);
        const double next = table.empty() ? NEVER : table.begin()->first.first;
        return deadlines.size() == table.size() && deadlines.next_due() == next && visited == table.size();
    }
};

}  // namespace

// What is wrong, or null.
const char* run(unsigned seed) {
    std::mt19937 random(seed);
    Checked checked;
    for (long step = 0; step < STEPS; ++step) {
        // Bursts come and go, of few lengths and of many.
        const bool fills = step / BURST % 2 == 0;
        const unsigned lengths = step / BURST / 2 % 2 == 0 ? 3 : 1000000;
        const unsigned dice = random() % 16;
        bool right = true;
        failing = random() % 4 == 0;
        if (fills ? dice < 10 : dice < 2) {
            allocations_left = static_cast<int>(random() % 3);
            checked.arm(static_cast<double>(random() % lengths) / 64);
        } else if (dice < 13 && !checked.all.empty()) {
            allocations_left = 0;
            right = checked.cancel(random() % checked.all.size());
        } else {
            allocations_left = 0;
            checked.now += static_cast<double>(random() % 64) / (fills ? 64 : 1);
            right = checked.expire(fills ? 2 : 20);
        }
        failing = false;
        if (!right) return "a timer came out that should not, or did not come out that should";
        if (step % 64 == 0 && !checked.agrees()) return "the table says otherwise";
    }
    checked.now = 1e9;
    if (!checked.expire(checked.table.size()) || !checked.agrees()) return "not all came out";
    return failed == 0 ? "no allocation has failed" : nullptr;
}

int main() {
    for (unsigned seed = 1; seed <= 3; ++seed) {
        if (const char* wrong = run(seed)) {
            std::puts(wrong);
            return 1;
        }
    }
    std::puts("ok");
    return 0;
}
