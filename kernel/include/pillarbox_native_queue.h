// What the functions of pillarbox.h on result queues do, over the queue of pillarbox_queue.h. No Python.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>

#include "pillarbox.h"
#include "pillarbox_queue.h"

namespace pillarbox {
namespace native {

static_assert(sizeof(pillarbox_pair) == sizeof(pair_t) && offsetof(pillarbox_pair, result) == offsetof(pair_t, result),
              "pairs of C and C++ agree");
static_assert(PILLARBOX_MAX_CAPACITY == MAX_CAPACITY, "capacities of C and C++ agree");

inline ResultQueue* queue_of(pillarbox_queue* queue) noexcept { return reinterpret_cast<ResultQueue*>(queue); }
inline pillarbox_queue* handle_of(ResultQueue* queue) noexcept { return reinterpret_cast<pillarbox_queue*>(queue); }

template <Completers COMPLETERS>
pillarbox_queue* create_queue(int capacity, bool ordered) noexcept {
    if (capacity < 1 || capacity > MAX_CAPACITY) return nullptr;
    try {
        return handle_of(new ResultQueue(capacity, ordered, COMPLETERS));
    } catch (const std::bad_alloc&) {
        return nullptr;
    }
}

inline void destroy_queue(pillarbox_queue* queue, void (*release)(void* payload)) noexcept {
    if (release != nullptr) queue_of(queue)->let_go(release);
    delete queue_of(queue);
}

inline bool put_entry(pillarbox_queue* queue, void* element, int64_t* handle) noexcept {
    long long named = 0;
    const bool done = queue_of(queue)->put(element, &named) == QueueAnswer::DONE;
    if (done) *handle = named;
    return done;
}

// An odd address would be taken for an attempt that runs.
inline bool is_even(const void* result) noexcept { return reinterpret_cast<std::uintptr_t>(result) % 2 == 0; }

inline bool put_watermark(pillarbox_queue* queue, void* element, void* result) noexcept {
    return is_even(result) && queue_of(queue)->put_watermark(element, result) == QueueAnswer::DONE;
}

inline bool renew(pillarbox_queue* queue, int64_t* handle) noexcept {
    long long named = *handle;
    const bool renewed = queue_of(queue)->renew(&named);
    *handle = named;
    return renewed;
}

inline bool complete(pillarbox_queue* queue, int64_t handle, void* result) noexcept {
    return is_even(result) && queue_of(queue)->complete(handle, result);
}

inline int emit(pillarbox_queue* queue, pillarbox_pair* out, int most) noexcept {
    return queue_of(queue)->emit(reinterpret_cast<pair_t*>(out), most);
}

// The part of the table on queues, but for `queue_of`, which needs Python.
inline void fill_queues(pillarbox_functions& table) noexcept {
    table.create_queue = create_queue<Completers::ANY>;
    table.create_confined_queue = create_queue<Completers::OWNER>;
    table.destroy_queue = destroy_queue;
    table.put_entry = put_entry;
    table.put_watermark = put_watermark;
    table.renew = renew;
    table.complete = complete;
    table.emit = emit;
}

}  // namespace native
}  // namespace pillarbox
