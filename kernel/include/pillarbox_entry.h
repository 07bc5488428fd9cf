// What goes into a result queue and comes out of it: entries, pairs, handles, answers, counts.
//
// Plain values, which any thread may hold; what their payloads are is up to the user of the queue.
#pragma once

#include <cstddef>

namespace pillarbox {

// How an operation of the owner ended. Only one that is DONE has changed anything.
enum class QueueAnswer { DONE, FULL, CLOSED, RESTORING, NOT_EMPTY };

// Who completes the entries of a queue: any thread, or its owner alone, who then needs no atomic operation.
enum class Completers { ANY, OWNER };

enum class EntryState : unsigned char { FREE, RUNNING, FINISHED, WATERMARK };

// What is emitted. Whoever put a watermark has chosen both of its payloads.
struct pair_t {
    void* element;
    void* result;
};

// An entry outside of its slot. The result is null while the entry is RUNNING.
struct entry_t {
    void* element;
    void* result;
    EntryState state;
    long long admission;  // counted over the life of the queue; of no meaning in `restore`
};

struct queue_counts_t {
    int size;
    int running;
    std::size_t restoring;
    long long admitted, watermarks, completed, emitted, renewed, restored, late;
};

constexpr int SLOT_BITS = 24;
constexpr int MAX_CAPACITY = 1 << SLOT_BITS;

constexpr long long handle_of(long long attempt, int slot) noexcept { return attempt << SLOT_BITS | slot; }
constexpr int slot_of(long long handle) noexcept { return static_cast<int>(handle & (MAX_CAPACITY - 1)); }

}  // namespace pillarbox
