// Bytes that grow, in memory of malloc. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace pillarbox {

// A refusal means that there is no memory, and leaves the bytes as they were.
class Buffer {
public:
    Buffer() = default;
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    ~Buffer() { std::free(data_); }

    bool reserve(std::size_t capacity) noexcept {
        if (capacity <= capacity_) return true;
        void* const grown = std::realloc(data_, capacity);
        if (grown == nullptr) return false;
        data_ = static_cast<char*>(grown);
        capacity_ = capacity;
        return true;
    }
    bool append(const char* bytes, std::size_t count) noexcept {
        const std::size_t needed = size_ + count;
        if (needed > capacity_ && !reserve(needed < 2 * capacity_ ? 2 * capacity_ : needed)) return false;
        std::memcpy(data_ + size_, bytes, count);
        size_ = needed;
        return true;
    }
    // What is new of them is not set.
    bool resize(std::size_t size) noexcept {
        if (!reserve(size)) return false;
        size_ = size;
        return true;
    }
    // The memory stays.
    void clear() noexcept { size_ = 0; }
    void swap(Buffer& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(size_, other.size_);
        std::swap(capacity_, other.capacity_);
    }
    char* data() noexcept { return data_; }
    const char* data() const noexcept { return data_; }
    std::size_t size() const noexcept { return size_; }
    std::size_t capacity() const noexcept { return capacity_; }

private:
    char* data_ = nullptr;
    std::size_t size_ = 0;
    std::size_t capacity_ = 0;
};

}  // namespace pillarbox
