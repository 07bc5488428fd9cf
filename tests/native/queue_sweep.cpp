// The result queues among real threads, all of their operations at once. Prints "ok", or what went wrong.
//
// The owner puts, renews, emits, takes snapshots, clears, restores, in random order. Meanwhile two threads complete,
// often by handles that are old, one reads the counts, and one visits the payloads as a collection of garbage does: not
// while anything is taken out. A payload is memory that is freed when it has come out, so one that came twice, or was
// seen when it was gone, is found, and by the sanitizers, too; at the end none is left.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <random>
#include <shared_mutex>
#include <thread>
#include <vector>

#include "check.h"
#include "pillarbox_queue.h"

using namespace pillarbox;

namespace {

constexpr int TURNS = 20000;
constexpr int RESTORED = 10;

std::atomic<long> live{0};

struct Payload {
    static constexpr int WHOLE = 0x7e57;
    int state = WHOLE;
    Payload() { ++live; }
    ~Payload() { state = 0, --live; }
};

int look(void* payload, void*) {
    if (payload != nullptr) require(static_cast<Payload*>(payload)->state == Payload::WHOLE, "a payload is gone");
    return 0;
}

void release(void* payload) {
    look(payload, nullptr);
    delete static_cast<Payload*>(payload);
}

class Sweep {
public:
    Sweep(int capacity, bool ordered, unsigned seed) : capacity_(capacity), random_(seed), queue_(capacity, ordered) {}

    void run() {
        std::thread threads[] = {std::thread(&Sweep::complete, this, 1u), std::thread(&Sweep::complete, this, 2u),
                                 std::thread(&Sweep::read, this), std::thread(&Sweep::visit, this)};
        for (int turn = 0; turn < TURNS; ++turn) {
            if (random_() % 4 == 0) std::this_thread::yield();
            any_operation();
        }
        over_ = true;
        for (std::thread& thread : threads) thread.join();
        queue_.let_go(release);
        require(live == 0, "a payload was lost, or was given out twice");
    }

private:
    void any_operation() {
        switch (random_() % 12) {
            case 0: case 1: case 2: case 3: put(); break;
            case 4: put_watermark(); break;
            case 5: renew(); break;
            case 6: case 7: case 8: emit(); break;
            case 9: snapshot(); break;
            case 10: if (random_() % 8 == 0) clear(); break;
            default: admit_restored(); break;
        }
    }

    void put() {
        auto* const element = new Payload;
        long long handle = 0;
        if (queue_.put(element, &handle) == QueueAnswer::DONE) {
            runs(handle);
        } else {
            release(element);
        }
    }

    void put_watermark() {
        auto *const element = new Payload, *const result = new Payload;
        if (queue_.put_watermark(element, result) == QueueAnswer::DONE) return;
        release(element);
        release(result);
    }

    void renew() {
        long long handle = some_handle(random_);
        if (queue_.renew(&handle)) runs(handle);
    }

    void emit() {
        constexpr int MOST = 5;
        pair_t pairs[MOST];
        taking_out_.lock();
        const int count = queue_.emit(pairs, 1 + static_cast<int>(random_() % MOST));
        taking_out_.unlock();
        for (int index = 0; index < count; ++index) {
            release(pairs[index].element);
            release(pairs[index].result);
        }
    }

    void snapshot() {
        std::vector<entry_t> entries;
        queue_.snapshot(entries);
        for (const entry_t& entry : entries) {
            look(entry.element, nullptr);
            look(entry.result, nullptr);
            require(entry.state != EntryState::FINISHED || entry.result != nullptr, "a snapshot is torn");
        }
    }

    void clear() {
        std::vector<entry_t> entries;
        taking_out_.lock();
        queue_.clear(entries);
        taking_out_.unlock();
        for (const entry_t& entry : entries) {
            release(entry.element);
            if (entry.result != nullptr) release(entry.result);
        }
        const queue_counts_t counts = queue_.counts();
        require(counts.size == 0 && counts.running == 0 && counts.restoring == 0, "what was cleared is counted");
        if (random_() % 2 == 0) restore();
    }

    void restore() {
        constexpr EntryState STATES[] = {EntryState::RUNNING, EntryState::FINISHED, EntryState::WATERMARK};
        std::vector<entry_t> entries;
        for (int index = 0; index < RESTORED; ++index) {
            const EntryState state = STATES[random_() % 3];
            void* const result = state == EntryState::RUNNING ? nullptr : new Payload;
            entries.push_back({new Payload, result, state, 0});
        }
        require(queue_.restore(entries) == QueueAnswer::DONE, "an empty queue was not restored");
    }

    void admit_restored() {
        void* element = nullptr;
        long long handle = 0;
        if (queue_.admit_restored(&element, &handle)) runs(handle);
    }

    // ---- the other threads

    void complete(unsigned seed) {
        std::minstd_rand random(seed);
        while (!over_) {
            auto* const result = new Payload;
            if (!queue_.complete(some_handle(random), result)) release(result);
            if (random() % 4 == 0) std::this_thread::yield();
        }
    }

    void read() {
        long long completed = 0, late = 0;
        while (!over_) {
            const queue_counts_t now = queue_.counts();
            require(now.size >= 0 && now.size <= capacity_, "the capacity was exceeded");
            require(now.running >= 0 && now.running <= now.size, "more runs than there is");
            require(now.completed >= completed && now.late >= late, "a count has fallen");
            require(now.completed <= now.admitted, "more has finished than was admitted");
            require(now.restoring <= RESTORED, "more is to be restored than was given");
            completed = now.completed;
            late = now.late;
            std::this_thread::yield();
        }
    }

    void visit() {
        while (!over_) {
            taking_out_.lock_shared();
            queue_.visit(look, nullptr);
            taking_out_.unlock_shared();
            std::this_thread::yield();
        }
    }

    // ---- handles, the last few, so that some name what is gone

    void runs(long long handle) {
        const std::lock_guard<std::mutex> held(lock_);
        handles_.push_back(handle);
        if (handles_.size() > static_cast<std::size_t>(4 * capacity_)) handles_.erase(handles_.begin());
    }

    long long some_handle(std::minstd_rand& random) {
        const std::lock_guard<std::mutex> held(lock_);
        return handles_.empty() ? -1 : handles_[random() % handles_.size()];
    }

    const int capacity_;
    std::minstd_rand random_;
    ResultQueue queue_;
    std::shared_mutex taking_out_;
    std::mutex lock_;
    std::vector<long long> handles_;
    std::atomic<bool> over_{false};
};

}  // namespace

int main() {
    unsigned seed = 1;
    for (const int capacity : {1, 2, 5, 9}) {
        Sweep(capacity, true, seed++).run();
        Sweep(capacity, false, seed++).run();
    }
    std::puts("ok");
    return 0;
}
