// Decompression of gzip and deflate (RFC 1950 to 1952) as it arrives, with a bound, by zlib as it is loaded already.
//
// libcurl's own takes a stream that ends in its middle for a whole one, and knows no bound. zlib's interface is stable
// since its version 1.2.0 (https://zlib.net/manual.html), so neither its header is needed nor anything to link with.
// One thread at a time.
#pragma once

#include <dlfcn.h>

#include <cstddef>

#include "pillarbox_buffer.h"

namespace pillarbox {
namespace zlib {

// `z_stream` of zlib.h.
struct stream_t {
    const unsigned char* next_in = nullptr;
    unsigned int avail_in = 0;
    unsigned long total_in = 0;
    unsigned char* next_out = nullptr;
    unsigned int avail_out = 0;
    unsigned long total_out = 0;
    const char* message = nullptr;
    void* state = nullptr;
    void* (*allocate)(void*, unsigned int, unsigned int) = nullptr;
    void (*free)(void*, void*) = nullptr;
    void* opaque = nullptr;
    int data_type = 0;
    unsigned long adler = 0;
    unsigned long reserved = 0;
};

constexpr int OK = 0;
constexpr int STREAM_END = 1;
constexpr int MEMORY_ERROR = -4;
constexpr int BUFFER_ERROR = -5;  // no progress: the input is used up
constexpr int GZIP = 15 + 16;
constexpr int WRAPPED = 15;
constexpr int RAW = -15;

struct functions_t {
    int (*inflateInit2_)(stream_t*, int, const char*, int) = nullptr;
    int (*inflateReset2)(stream_t*, int) = nullptr;
    int (*inflate)(stream_t*, int) = nullptr;
    int (*inflateEnd)(stream_t*) = nullptr;

    // Finds them in `library` or in those that it is linked with, or else in the system's. False: they are not there.
    bool find_in(void* library) noexcept {
        if (find(library)) return true;
        void* const own = dlopen("libz.so.1", RTLD_NOW);
        return own != nullptr && find(own);
    }

    bool are_there() const noexcept { return inflateEnd != nullptr; }

private:
    bool find(void* library) noexcept {
        inflateInit2_ = reinterpret_cast<decltype(inflateInit2_)>(dlsym(library, "inflateInit2_"));
        inflateReset2 = reinterpret_cast<decltype(inflateReset2)>(dlsym(library, "inflateReset2"));
        inflate = reinterpret_cast<decltype(inflate)>(dlsym(library, "inflate"));
        inflateEnd = reinterpret_cast<decltype(inflateEnd)>(dlsym(library, "inflateEnd"));
        if (inflateInit2_ != nullptr && inflateReset2 != nullptr && inflate != nullptr && inflateEnd != nullptr) {
            return true;
        }
        inflateEnd = nullptr;
        return false;
    }
};

}  // namespace zlib

enum class inflated_t { OK, BAD, TOO_LARGE, NO_MEMORY };

// One stream after another. A gzip stream may have several members; bytes behind it that are not zeros are a fault.
class Inflater {
public:
    Inflater() = default;
    Inflater(const Inflater&) = delete;
    Inflater& operator=(const Inflater&) = delete;
    ~Inflater() {
        if (zlib_ != nullptr) zlib_->inflateEnd(&stream_);
    }

    // A new stream. False: no memory.
    bool begin(const zlib::functions_t& zlib, bool is_gzip) noexcept {
        is_gzip_ = is_gzip;
        has_begun_ = is_whole_ = false;
        may_be_raw_ = !is_gzip;
        taken_ = 0;
        const int bits = is_gzip ? zlib::GZIP : zlib::WRAPPED;
        if (zlib_ != nullptr) return zlib_->inflateReset2(&stream_, bits) == zlib::OK;
        stream_ = zlib::stream_t();
        // Of the version zlib looks at the first number alone.
        if (zlib.inflateInit2_(&stream_, bits, "1", static_cast<int>(sizeof(stream_))) != zlib::OK) return false;
        zlib_ = &zlib;
        return true;
    }

    // Appends to `out`, which may have `max_bytes` at most.
    inflated_t feed(const char* bytes, std::size_t count, Buffer& out, std::size_t max_bytes) noexcept {
        stream_.next_in = reinterpret_cast<const unsigned char*>(bytes);
        stream_.avail_in = static_cast<unsigned int>(count);
        goes_on_ = count != 0;
        while (true) {
            if (is_whole_ && !begin_member()) return inflated_t::BAD;
            if (is_whole_ || !goes_on_) return inflated_t::OK;
            const inflated_t done = step(out, max_bytes);
            if (done != inflated_t::OK) return done;
        }
    }

    // True if the stream has come to its end, or has no byte at all.
    bool is_whole() const noexcept { return is_whole_ || !has_begun_; }

private:
    static constexpr std::size_t STEP_BYTES = 1 << 16;

    // One call of zlib. `goes_on_`: another one may follow.
    inflated_t step(Buffer& out, std::size_t max_bytes) noexcept {
        const std::size_t size = out.size();
        // One byte beyond the bound tells that there is more.
        const std::size_t left = max_bytes - size + 1;
        std::size_t room = out.capacity() > size + STEP_BYTES ? out.capacity() - size : STEP_BYTES;
        if (room > left) room = left;
        if (room > MAX_ROOM) room = MAX_ROOM;
        if (out.capacity() < size + room && !out.reserve(2 * size > size + room ? 2 * size : size + room)) {
            return inflated_t::NO_MEMORY;
        }
        const auto* const first = stream_.next_in;
        const unsigned int count = stream_.avail_in;
        if (may_be_raw_ && taken_ == 0 && count != 0) first_byte_ = *first;
        stream_.next_out = reinterpret_cast<unsigned char*>(out.data()) + size;
        stream_.avail_out = static_cast<unsigned int>(room);
        has_begun_ = true;
        const int code = zlib_->inflate(&stream_, 0);
        const std::size_t made = room - stream_.avail_out;
        (void)out.resize(size + made);
        if (out.size() > max_bytes) return inflated_t::TOO_LARGE;
        goes_on_ = stream_.avail_in != 0 || stream_.avail_out == 0;
        if (code == zlib::STREAM_END) {
            is_whole_ = true;
            return inflated_t::OK;
        }
        if (code == zlib::OK || code == zlib::BUFFER_ERROR) {
            goes_on_ = goes_on_ && code == zlib::OK;
            taken_ += count - stream_.avail_in;
            may_be_raw_ = may_be_raw_ && taken_ < 2;
            return inflated_t::OK;
        }
        if (code == zlib::MEMORY_ERROR) return inflated_t::NO_MEMORY;
        if (!may_be_raw_) return inflated_t::BAD;
        return begin_raw(first, count);
    }

    // Some servers send deflate without the wrapping of zlib, whose two bytes are checked when the second is there.
    inflated_t begin_raw(const unsigned char* bytes, unsigned int count) noexcept {
        may_be_raw_ = false;
        if (zlib_->inflateReset2(&stream_, zlib::RAW) != zlib::OK) return inflated_t::NO_MEMORY;
        if (taken_ == 1) {
            unsigned char nowhere = 0;
            stream_.next_in = &first_byte_;
            stream_.avail_in = 1;
            stream_.next_out = &nowhere;
            stream_.avail_out = 0;
            const int code = zlib_->inflate(&stream_, 0);
            if (code != zlib::OK && code != zlib::BUFFER_ERROR) return inflated_t::BAD;
        }
        stream_.next_in = bytes;
        stream_.avail_in = count;
        goes_on_ = true;
        return inflated_t::OK;
    }

    // Behind the end of a stream: zeros are left out, another member is begun. False: other bytes.
    bool begin_member() noexcept {
        while (stream_.avail_in != 0 && *stream_.next_in == 0) {
            ++stream_.next_in;
            --stream_.avail_in;
        }
        if (stream_.avail_in == 0) return true;
        if (!is_gzip_ || *stream_.next_in != GZIP_BEGINS) return false;
        is_whole_ = false;
        return zlib_->inflateReset2(&stream_, zlib::GZIP) == zlib::OK;
    }

    static constexpr unsigned char GZIP_BEGINS = 0x1f;
    static constexpr std::size_t MAX_ROOM = 1 << 30;

    const zlib::functions_t* zlib_ = nullptr;
    zlib::stream_t stream_;
    bool is_gzip_ = false;
    bool may_be_raw_ = false;
    unsigned char first_byte_ = 0;
    std::size_t taken_ = 0;
    bool has_begun_ = false;
    bool is_whole_ = false;
    bool goes_on_ = false;
};

}  // namespace pillarbox
