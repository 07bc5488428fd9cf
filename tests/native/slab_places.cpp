// Slabs give their memory back when it is not used any more, and not before. Prints "ok", or what went wrong.
//
// First by one thread, place by place; then of functions that a mailbox refuses; then threads give each other's mails
// back in any order.
#include "pillarbox_native.h"
#include "pillarbox_slab.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <new>
#include <random>
#include <thread>
#include <vector>

namespace {

std::atomic<int> held{0}, asked{0};
std::atomic<bool> none_left{false};

}  // namespace

// Counts the slabs: nothing else here asks for memory that is aligned like that.
void* operator new(std::size_t bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
    if (none_left) return nullptr;
    ++held;
    ++asked;
    return std::aligned_alloc(static_cast<std::size_t>(alignment), bytes);
}
void operator delete(void* memory, std::align_val_t) noexcept {
    --held;
    std::free(memory);
}

using namespace pillarbox;

namespace {

[[noreturn]] void fail(const char* what) {
    std::puts(what);
    std::exit(1);
}
void require(bool holds, const char* what) {
    if (!holds) fail(what);
}

void one_thread() {
    std::vector<posted_t*> mails;
    {
        SlabOfThread mine;
        for (std::size_t place = 0; place < Slab::PLACES; ++place) mails.push_back(mine.allocate());
        require(held == 1, "one slab holds as many mails as it has places");
        for (posted_t* mail : mails) free_posted(mail);
        require(held == 0, "a slab whose mails are all freed is released");
        mails = {mine.allocate(), mine.allocate(), mine.allocate()};
        free_posted(mails[0]);
        free_posted(mails[1]);
        require(held == 1, "a slab that its thread still has is not released");
    }
    require(held == 1, "a slab stays as long as one of its mails is in use");
    free_posted(mails[2]);
    require(held == 0, "a slab is released with its last mail when its thread has ended");
    SlabOfThread other;
    none_left = true;
    require(other.allocate() == nullptr, "without memory there is no mail");
    none_left = false;
    posted_t* const mail = other.allocate();
    require(mail != nullptr, "and when there is memory again there is one");
    free_posted(mail);
}

// In a thread of its own, whose slab goes with it.
void refused() {
    std::thread([] {
        pillarbox_mailbox* const mailbox = native::create(PILLARBOX_LOCK_FREE, 64);
        require(mailbox != nullptr, "there is memory for a mailbox");
        native::quiesce(mailbox);
        const int before = held;
        for (std::size_t post = 0; post < 3 * Slab::PLACES; ++post) {
            const auto never = [](void*, bool) { fail("what was refused is called"); };
            require(native::post(mailbox, never, nullptr, 0, 0) == PILLARBOX_QUIESCED, "a post is refused");
        }
        require(held <= before + 1, "what was refused takes no memory");
        native::destroy(mailbox);
    }).join();
    require(held == 0, "nothing is left of what was refused");
}

// Threads allocate, write, put what they have into a common heap, and free what others have put there.
void many_threads() {
    constexpr int THREADS = 4, ROUNDS = 20000;
    std::mutex lock;
    std::vector<posted_t*> common;
    std::vector<std::thread> threads;
    for (unsigned number = 0; number < THREADS; ++number) {
        threads.emplace_back([&, number] {
            std::minstd_rand random(number);
            for (int round = 0; round < ROUNDS; ++round) {
                posted_t* mail = allocate_posted();
                mail->arg = mail;
                {
                    const std::lock_guard<std::mutex> guard(lock);
                    common.push_back(mail);
                    std::swap(common[random() % common.size()], common.back());
                    if (common.size() < 1000 && random() % 4 != 0) continue;
                    mail = common.back();
                    common.pop_back();
                }
                require(mail->arg == mail, "the memory of a mail in use was given out again");
                mail->arg = nullptr;
                free_posted(mail);
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
    for (posted_t* mail : common) {
        require(mail->arg == mail, "the memory of a mail in use was given out again");
        free_posted(mail);
    }
    require(held == 0, "when all mails are freed and all threads have ended, all slabs are released");
    require(asked > 100, "there were several slabs");
}

}  // namespace

int main() {
    one_thread();
    refused();
    many_threads();
    std::puts("ok");
}
