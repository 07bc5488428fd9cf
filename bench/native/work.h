// What every workload of the benchmark is: something that does a number of operations and says how long they
// took.
//
// The main thread makes, asks and destroys a workload; what its own threads do is its own affair.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <utility>
#include <vector>

namespace bench {

inline long long nanoseconds() noexcept {
    using namespace std::chrono;
    return duration_cast<std::chrono::nanoseconds>(steady_clock::now().time_since_epoch()).count();
}

class Work {
public:
    virtual ~Work() = default;

    // Does so many operations, or a few more or less where they come in rounds, and says what one chunk of
    // exactly that many took: nanoseconds, or bytes.
    virtual long long chunk(long long operations) = 0;
};

// A workload that had another outcome than it must have is not worth a figure.
inline void require(bool holds, const char* what) noexcept {
    if (holds) return;
    std::fprintf(stderr, "%s\n", what);
    std::_Exit(1);
}

// What so many percent of the times are at most.
inline long long percentile(std::vector<long long>& times, int percentage) {
    const auto place = static_cast<std::ptrdiff_t>((times.size() - 1) * static_cast<std::size_t>(percentage) / 100);
    std::nth_element(times.begin(), times.begin() + place, times.end());
    return times[static_cast<std::size_t>(place)];
}

// The numbers below `count` in an order that looks random and is the same in every program that is compared.
inline std::vector<int> shuffled(int count) {
    std::vector<int> order(static_cast<std::size_t>(count));
    std::iota(order.begin(), order.end(), 0);
    std::uint64_t state = 1;
    for (int index = count - 1; index > 0; --index) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        const std::uint64_t other = (state >> 33) % static_cast<std::uint64_t>(index + 1);
        std::swap(order[static_cast<std::size_t>(index)], order[other]);
    }
    return order;
}

}  // namespace bench
