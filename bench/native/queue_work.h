// The workloads with result queues: put, complete and emit of one record, by one thread.
//
// Elements and results exist beforehand; only their addresses pass through the queue.
#pragma once

#include "pillarbox_queue.h"
#include "work.h"

namespace bench {

// So many records are in flight. Complete the oldest, emit it, put another one.
class SteadyQueue : public Work {
public:
    SteadyQueue(bool ordered, pillarbox::Completers completers, int in_flight)
        : queue_(in_flight, ordered, completers), handles_(static_cast<std::size_t>(in_flight)) {
        for (long long& handle : handles_) put(&handle);
    }

    long long chunk(long long operations) override {
        const long long begin = nanoseconds();
        std::size_t oldest = oldest_;
        for (long long number = 0; number < operations; ++number) {
            pillarbox::pair_t pair;
            queue_.complete(handles_[oldest], &result_);
            const bool emitted = queue_.emit(&pair, 1) == 1 && pair.result == &result_;
            require(emitted, "a finished record does not come out");
            put(&handles_[oldest]);
            oldest = oldest + 1 == handles_.size() ? 0 : oldest + 1;
        }
        oldest_ = oldest;
        return nanoseconds() - begin;
    }

private:
    void put(long long* handle) {
        require(queue_.put(&element_, handle) == pillarbox::QueueAnswer::DONE, "the queue is full");
    }

    pillarbox::ResultQueue queue_;
    std::vector<long long> handles_;
    std::size_t oldest_ = 0;
    int element_ = 0;
    int result_ = 0;
};

// A round: put a thousand records, with a watermark after every `each`; complete them in random order, and
// emit, after each completion, what may leave then. `each` of 0: no watermarks.
class QueueRounds : public Work {
public:
    QueueRounds(bool ordered, pillarbox::Completers completers, int each)
        : each_(each), marks_(each == 0 ? 0 : ROUND / each), queue_(ROUND + marks_, ordered, completers) {}

    long long chunk(long long operations) override {
        const long long begin = nanoseconds();
        for (long long round = 0; round < operations / ROUND; ++round) {
            for (int index = 0; index < ROUND; ++index) {
                queue_.put(&element_, &handles_[index]);
                if (each_ != 0 && index % each_ == each_ - 1) queue_.put_watermark(&mark_, &mark_);
            }
            int out = 0;
            for (const int index : order_) {
                queue_.complete(handles_[index], &result_);
                out += emit();
            }
            require(out == ROUND + marks_, "not everything that was put came out");
        }
        return nanoseconds() - begin;
    }

private:
    static constexpr int ROUND = 1000;
    static constexpr int AT_ONCE = 64;

    int emit() {
        int out = 0, count = AT_ONCE;
        while (count == AT_ONCE) {
            count = queue_.emit(pairs_, AT_ONCE);
            for (int index = 0; index < count; ++index) results_ += pairs_[index].result == &result_;
            out += count;
        }
        return out;
    }

    const int each_;
    const int marks_;
    pillarbox::ResultQueue queue_;
    long long handles_[ROUND] = {};
    const std::vector<int> order_ = shuffled(ROUND);
    pillarbox::pair_t pairs_[AT_ONCE] = {};
    long long results_ = 0;
    int element_ = 0;
    int result_ = 0;
    int mark_ = 0;
};

}  // namespace bench
