// The bounded hand-over between two threads, and the deadlines of one.
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>

#include "pillarbox_deadlines.h"
#include "pillarbox_handover.h"
#include "work.h"

namespace bench {

// A producer puts items of a hundred bytes, of which so many may wait, by number and by bytes; another thread takes all
// there are. From the first put to the last take.
class BoundedItems : public Work {
public:
    explicit BoundedItems(int bound) {
        const auto items = static_cast<std::size_t>(bound);
        handover_.bound(items, items * BYTES, [](void*) {});
    }

    ~BoundedItems() override {
        ask(-1);
        producer_.join();
    }

    long long chunk(long long operations) override {
        if (items_.size() != static_cast<std::size_t>(operations)) items_.resize(static_cast<std::size_t>(operations));
        ask(operations);
        for (long long left = operations; left > 0;) {
            pillarbox::taken_t taken;
            bool waited = false;
            while (handover_.take(true, &taken) == pillarbox::TakeAnswer::NOTHING) handover_.await_item(1.0, &waited);
            for (pillarbox::item_t* item = taken.items; item != nullptr; item = item->next) --left;
        }
        const long long end = nanoseconds();
        std::unique_lock<std::mutex> held(lock_);
        changed_.wait(held, [&] { return asked_ == 0; });
        return end - begun_;
    }

private:
    static constexpr std::size_t BYTES = 100;

    void ask(long long operations) {
        std::lock_guard<std::mutex> held(lock_);
        asked_ = operations;
        changed_.notify_all();
    }

    void produce() {
        for (;;) {
            std::unique_lock<std::mutex> held(lock_);
            changed_.wait(held, [&] { return asked_ != 0; });
            if (asked_ < 0) return;
            held.unlock();
            begun_ = nanoseconds();
            for (pillarbox::item_t& item : items_) {
                item = {nullptr, nullptr, BYTES};
                void* armed = nullptr;
                bool waited = false;
                while (handover_.put(&item, &armed) == pillarbox::PutAnswer::NO_ROOM) {
                    handover_.await_room(BYTES, 1.0, &waited);
                }
            }
            ask(0);
        }
    }

    pillarbox::Handover handover_;
    std::vector<pillarbox::item_t> items_;
    std::mutex lock_;
    std::condition_variable changed_;
    long long asked_ = 0;
    long long begun_ = 0;
    std::thread producer_{&BoundedItems::produce, this};
};

// So many deadlines of equal length wait. Arm one more, and cancel it.
class ArmedAndCancelled : public Work {
public:
    explicit ArmedAndCancelled(int waiting) {
        for (int number = 0; number < waiting; ++number) deadlines_.arm(30.0, this);
    }

    long long chunk(long long operations) override {
        const long long begin = nanoseconds();
        for (long long number = 0; number < operations; ++number) {
            void* payload = nullptr;
            require(deadlines_.cancel(deadlines_.arm(30.0, this), &payload), "a deadline that waits is not cancelled");
        }
        return nanoseconds() - begin;
    }

private:
    pillarbox::Deadlines deadlines_;
};

}  // namespace bench
