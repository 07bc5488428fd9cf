// Mails that the kernel allocates for native producers, from slabs.
//
// A thread gives the places of its slab out one after the other, without an atomic operation; any thread frees a
// mail, in any order. A place is not given out twice, so only the end of a slab has to be agreed upon: a counter
// of the places that are not freed yet, and who makes it zero releases the memory. So what a burst has taken goes
// back when the burst is over. A slab stays as long as one of its mails is in use.
//
// Any thread. A slab is found by its address: it is aligned to its size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>

#include "pillarbox_mail.h"

namespace pillarbox {

// A mail that calls a function with an argument: to do the work, or only to let go of the argument.
struct posted_t : mail_t {
    void (*call)(void* arg, bool run) = nullptr;
    void* arg = nullptr;
};
static_assert(sizeof(posted_t) <= 48, "what a waiting native mail costs");

class Slab {
public:
    static constexpr std::size_t BYTES = std::size_t{1} << 14;
    static constexpr std::size_t PLACES = (BYTES - alignof(posted_t)) / sizeof(posted_t);

    // A slab that belongs to the calling thread; null if there is no memory.
    // spec: Slabs!NewSlab
    static Slab* make() noexcept {
        void* const memory = ::operator new(BYTES, std::align_val_t{BYTES}, std::nothrow);
        return memory == nullptr ? nullptr : new (memory) Slab;
    }

    // Its thread only: the next place. With the last one the slab is not the thread's any more, for others may free
    // all of it at once: `*last` says so.
    // spec: Slabs!Allocate
    posted_t* allocate(bool* last) noexcept {
        posted_t* const mail = new (place(given_++)) posted_t;
        *last = given_ == PLACES;
        return mail;
    }

    // Its thread only, whose slab it is not any more.
    // spec: Slabs!LetGo
    void let_go() noexcept {
        take_off(PLACES - given_);
    }

    // Any thread.
    // spec: Slabs!Free
    static void free(posted_t* mail) noexcept {
        const auto address = reinterpret_cast<std::uintptr_t>(mail);
        reinterpret_cast<Slab*>(address & ~std::uintptr_t{BYTES - 1})->take_off(1);
    }

private:
    Slab() noexcept = default;

    void* place(std::size_t number) noexcept {
        return reinterpret_cast<char*>(this) + alignof(posted_t) + number * sizeof(posted_t);
    }

    void take_off(std::size_t places) noexcept {
        // Release: what its users have done with a mail comes before the memory goes back. Acquire: who releases the
        // memory has seen the end of every other use.
        if (left_.fetch_sub(places, std::memory_order_acq_rel) == places) {
            this->~Slab();
            ::operator delete(this, std::align_val_t{BYTES});
        }
    }

    Atomic<std::size_t> left_{PLACES};
    std::size_t given_ = 0;
};
static_assert(sizeof(Slab) <= alignof(posted_t), "the first place is behind the head of the slab");

// The slab of one thread; let go of when the thread ends.
class SlabOfThread {
public:
    SlabOfThread() noexcept = default;
    SlabOfThread(const SlabOfThread&) = delete;
    ~SlabOfThread() {
        if (slab_ != nullptr) slab_->let_go();
    }

    posted_t* allocate() noexcept {
        if (slab_ == nullptr) slab_ = Slab::make();
        if (slab_ == nullptr) return nullptr;
        bool last = false;
        posted_t* const mail = slab_->allocate(&last);
        if (last) slab_ = nullptr;
        return mail;
    }

private:
    Slab* slab_ = nullptr;
};

// Any thread. A mail from the slab of the calling thread; null if there is no memory.
inline posted_t* allocate_posted() noexcept {
    thread_local SlabOfThread slab;
    return slab.allocate();
}

// Any thread. Ends the life of such a mail, which nobody may have any more.
inline void free_posted(posted_t* mail) noexcept { Slab::free(mail); }

}  // namespace pillarbox
