// Slots for many small things of one kind: a number names a slot as long as it is taken, and nothing moves.
//
// For one thread at a time, without Python. Slots come in pages: one is allocated when all others are full,
// and freed when its last slot is given back, but for one that is kept, so that a number that goes up and
// down by one does not allocate each time.
#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <vector>

namespace pillarbox {

template <class T>
class Slots {
public:
    static constexpr int NONE = -1;
    static constexpr int PAGE_BITS = 8;

    // Numbers are below `most`, a multiple of the size of a page.
    explicit Slots(int most) noexcept : most_pages_(most >> PAGE_BITS) {}

    // Throws bad_alloc, and has changed nothing. If it returns, the next `take` succeeds.
    void make_room() {
        if (with_room_ != NONE) return;
        const bool reuses = !vacant_.empty();
        const int number = reuses ? vacant_.back() : static_cast<int>(pages_.size());
        if (number == most_pages_) throw std::bad_alloc();
        std::unique_ptr<page_t> page(new page_t);
        if (reuses) {
            vacant_.pop_back();
            pages_[static_cast<std::size_t>(number)] = std::move(page);
        } else {
            // `give_back` does not allocate.
            if (vacant_.capacity() <= pages_.size()) vacant_.reserve(2 * pages_.size() + 1);
            pages_.push_back(std::move(page));
        }
        ++empty_;
        ++allocated_;
        has_room(number);
    }

    // A slot as its last user has left it, or as it is made. Only after `make_room`.
    int take() noexcept {
        const int number = with_room_;
        page_t& page = page_of(number);
        const int index = page.free;
        page.free = page.next_free[index];
        if (page.taken++ == 0) --empty_;
        if (page.taken == PAGE) has_no_room(number);
        return number << PAGE_BITS | index;
    }

    void give_back(int slot) noexcept {
        const int number = slot >> PAGE_BITS;
        const int index = slot & (PAGE - 1);
        page_t& page = page_of(number);
        if (page.taken == PAGE) has_room(number);
        page.next_free[index] = static_cast<unsigned char>(page.free);
        page.free = index;
        if (--page.taken != 0) return;
        if (empty_ == 0) {
            ++empty_;
            return;
        }
        has_no_room(number);
        pages_[static_cast<std::size_t>(number)].reset();
        vacant_.push_back(number);
        --allocated_;
    }

    T& operator[](int slot) const noexcept { return page_of(slot >> PAGE_BITS).slots[slot & (PAGE - 1)]; }

    // Whether the number, which is not negative, is that of a slot that exists, taken or not.
    bool exists(int slot) const noexcept {
        const auto number = static_cast<std::size_t>(slot >> PAGE_BITS);
        return number < pages_.size() && pages_[number] != nullptr;
    }

    // Bytes allocated.
    std::size_t bytes() const noexcept {
        return allocated_ * sizeof(page_t) + pages_.capacity() * sizeof(pages_[0]) +
               vacant_.capacity() * sizeof(vacant_[0]);
    }

private:
    static constexpr int PAGE = 1 << PAGE_BITS;

    struct page_t {
        T slots[PAGE]{};
        int taken = 0;
        int free = 0;  // of no meaning when all are taken
        int next = NONE;  // in the list of pages with room
        int previous = NONE;
        unsigned char next_free[PAGE];

        page_t() noexcept {
            for (int index = 0; index < PAGE; ++index) {
                next_free[index] = static_cast<unsigned char>(index + 1);
            }
        }
    };

    page_t& page_of(int number) const noexcept { return *pages_[static_cast<std::size_t>(number)]; }

    void has_room(int number) noexcept {
        page_of(number).next = with_room_;
        page_of(number).previous = NONE;
        if (with_room_ != NONE) page_of(with_room_).previous = number;
        with_room_ = number;
    }

    void has_no_room(int number) noexcept {
        const page_t& page = page_of(number);
        (page.previous == NONE ? with_room_ : page_of(page.previous).next) = page.next;
        if (page.next != NONE) page_of(page.next).previous = page.previous;
    }

    std::vector<std::unique_ptr<page_t>> pages_;  // null: there is no such page now
    std::vector<int> vacant_;                     // the numbers of those
    int most_pages_;
    int with_room_ = NONE;  // the first of the pages with room
    int empty_ = 0;         // pages without a taken slot
    std::size_t allocated_ = 0;
};

}  // namespace pillarbox
