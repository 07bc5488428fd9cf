// The memory orders of the result queue, one edge a run: `queue_orders EDGE`.
//
// One thread writes something and passes it on through the queue, the other waits, without another edge
// between the two, until it is there, and touches it. So ThreadSanitizer sees a race in every run in which the
// order that should make the edge is too weak, and none otherwise: nothing here is left to chance.
#include "pass.h"
#include "pillarbox_queue.h"

#include <atomic>
#include <cstdio>
#include <string_view>
#include <thread>

using namespace pillarbox;

int main(int count, char** words) {
    const std::string_view edge = count == 2 ? words[1] : "";
    ResultQueue ordered(1, true), unordered(1, false);
    int element = 0, result = 0;
    // Says that the completion has returned, and orders nothing.
    std::atomic<bool> completed{false};
    const auto complete = [&](ResultQueue& queue, long long handle) {
        result = 1;
        queue.complete(handle, &result);
        completed.store(true, std::memory_order_relaxed);
    };
    const auto emit = [&](ResultQueue& queue) {
        pair_t pair;
        while (queue.emit(&pair, 1) == 0) std::this_thread::yield();
        *static_cast<int*>(pair.result) = 2;
    };
    // The first handle of a queue is known beforehand.
    const long long first = handle_of(1, 0);
    long long handle = 0;
    if (edge == "put-complete") {
        return pass([&] { unordered.put(&element, &handle); },
                    [&] {
                        while (!unordered.complete(first, &result)) std::this_thread::yield();
                    });
    }
    // Reads all that the queue owns until there are so many payloads.
    const auto visit = [&](int wanted) {
        int found = 0;
        const auto each = [](void* payload, void* context) {
            *static_cast<int*>(context) += *static_cast<int*>(payload);
            return 0;
        };
        while (found != wanted) {
            found = 0;
            unordered.visit(each, &found);
            std::this_thread::yield();
        }
    };
    if (edge == "put-visit") {
        return pass(
            [&] {
                element = 1;
                unordered.put(&element, &handle);
            },
            [&] { visit(1); });
    }
    if (edge == "watermark-visit") {
        return pass(
            [&] {
                element = result = 1;
                unordered.put_watermark(&element, &result);
            },
            [&] { visit(2); });
    }
    if (edge == "complete-emit") {
        ordered.put(&element, &handle);
        return pass([&] { complete(ordered, first); }, [&] { emit(ordered); });
    }
    if (edge == "complete-collect") {
        unordered.put(&element, &handle);
        return pass([&] { complete(unordered, first); }, [&] { emit(unordered); });
    }
    if (edge == "complete-snapshot") {
        ordered.put(&element, &handle);
        return pass([&] { complete(ordered, first); },
                    [&] {
                        std::vector<entry_t> copied;
                        while (copied.empty() || copied[0].state != EntryState::FINISHED) {
                            copied.clear();
                            ordered.snapshot(copied);
                        }
                        *static_cast<int*>(copied[0].result) = 2;
                    });
    }
    if (edge == "complete-close") {
        ordered.put(&element, &handle);
        return pass([&] { complete(ordered, first); },
                    [&] {
                        while (!completed.load(std::memory_order_relaxed)) std::this_thread::yield();
                        std::vector<entry_t> left;
                        ordered.close(left);
                        *static_cast<int*>(left[0].result) = 2;
                    });
    }
    std::puts("queue_orders put-complete | put-visit | watermark-visit | complete-emit | complete-collect |"
              " complete-snapshot | complete-close");
    return 2;
}
