// Lists of numbers in a text of JSON, read as float32, and the text without them.
//
// Services that have no base64 send vectors as decimal numbers, some 20 characters each, which cost a reader of all
// JSON an object each. What is read here is what that reader and a conversion of its doubles to float32 would give, to
// the bit: a list with a number for which that is not sure is left in the text, as is all else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "pillarbox_buffer.h"

namespace pillarbox {

namespace decimal {

constexpr int MAX_DIGITS = 19;         // those of any number below 2^64
constexpr int MAX_EXACT_POWER = 22;    // ten to it is a double without rounding
constexpr int MAX_POWER = 60;          // beyond it no float32 comes of 19 digits
constexpr std::uint64_t MAX_EXACT_DIGITS = std::uint64_t{1} << 53;
constexpr double SMALLEST = 0x1p-126, LARGEST = 0x1.fffffep127;  // of a float32 with all its bits

constexpr double POWERS[MAX_POWER + 1] = {
    1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11, 1e12, 1e13, 1e14, 1e15,
    1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22, 1e23, 1e24, 1e25, 1e26, 1e27, 1e28, 1e29, 1e30, 1e31,
    1e32, 1e33, 1e34, 1e35, 1e36, 1e37, 1e38, 1e39, 1e40, 1e41, 1e42, 1e43, 1e44, 1e45, 1e46, 1e47,
    1e48, 1e49, 1e50, 1e51, 1e52, 1e53, 1e54, 1e55, 1e56, 1e57, 1e58, 1e59, 1e60};

inline bool is_digit(char character) noexcept { return static_cast<unsigned char>(character - '0') < 10; }

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ && defined(__GNUC__)
#define PILLARBOX_EIGHT_DIGITS 1
constexpr std::uint64_t SCALES[9] = {1, 10, 100, 1000, 10000, 100000, 1000000, 10000000, 100000000};

// The value of eight bytes that are digits less their '0', by three multiplications: D. Lemire, "Quickly parsing eight
// digits" (2018).
inline std::uint64_t eight_digits(std::uint64_t digits) noexcept {
    digits = digits * 2561 >> 8;
    digits = (digits & 0x00FF00FF00FF00FFu) * 6553601 >> 16;
    return (digits & 0x0000FFFF0000FFFFu) * 42949672960001u >> 32;
}
#endif

// Reads the digits at `at`, which moves behind them; `value` is right for 19 of them at most.
inline void digits(const char*& at, const char* end, std::uint64_t& value) noexcept {
#ifdef PILLARBOX_EIGHT_DIGITS
    while (end - at >= 8) {
        std::uint64_t bytes;
        std::memcpy(&bytes, at, 8);
        bytes ^= 0x3030303030303030u;
        // The lowest bit that is set is that of the first byte which is not a digit; those above it may be wrong.
        const std::uint64_t others = ((bytes + 0x7676767676767676u) | bytes) & 0x8080808080808080u;
        if (others == 0) {
            value = value * SCALES[8] + eight_digits(bytes);
            at += 8;
            continue;
        }
        // How many digits a number has cannot be predicted, so that no branch asks for it.
        const int count = __builtin_ctzll(others) / 8;
        if (count != 0) value = value * SCALES[count] + eight_digits(bytes << (64 - 8 * count));
        at += count;
        return;
    }
#endif
    for (; is_digit(*at); ++at) value = value * 10 + static_cast<std::uint64_t>(*at - '0');
}

// The first 19 digits of more, as a value and the power of ten that it lacks. The text may have a point in it.
inline int cut(const char* from, const char* to, bool is_fraction, std::uint64_t& value) noexcept {
    value = 0;
    int count = 0, power = 0;
    for (; from != to; ++from) {
        if (*from == '.') {
            is_fraction = true;
        } else if (count < MAX_DIGITS) {
            value = value * 10 + static_cast<std::uint64_t>(*from - '0');
            ++count;
            power -= is_fraction;
        } else {
            power += !is_fraction;
        }
    }
    return power;
}

// The float32 that is nearest to the double that is nearest to `value` times ten to `power`. False if not sure.
//
// The digits, the power and what is done with them are rounded, so that the double made here is off by four units of
// its last place at most. Both have the same nearest float32, unless one is that close to the middle between two.
inline bool rounded(std::uint64_t value, int power, bool is_cut, float& found) noexcept {
    if (value == 0) {
        found = 0.0f;
        return true;
    }
    if (power < -MAX_POWER || power > MAX_POWER) return false;
    const double number = power < 0 ? static_cast<double>(value) / POWERS[-power]
                                    : static_cast<double>(value) * POWERS[power];
    if (!(number >= SMALLEST && number <= LARGEST)) return false;
    if (is_cut || value > MAX_EXACT_DIGITS || power < -MAX_EXACT_POWER || power > MAX_EXACT_POWER) {
        constexpr std::uint64_t LOST_BITS = 0x1FFFFFFF, MIDDLE = 0x10000000, UNSURE = 8;
        std::uint64_t bits;
        std::memcpy(&bits, &number, sizeof bits);
        const std::uint64_t lost = bits & LOST_BITS;
        if (lost + UNSURE >= MIDDLE && lost <= MIDDLE + UNSURE) return false;
    }
    found = static_cast<float>(number);
    return true;
}

// Reads the number at `at`, which moves behind it. False if there is none as JSON has them, or it is not sure.
inline bool number(const char*& at, const char* end, float& found) noexcept {
    const bool is_negative = *at == '-';
    at += is_negative;
    // Where the digits of the value begin, how many there are, and the power of ten that it lacks.
    const char* from = at;
    std::uint64_t value = 0;
    std::ptrdiff_t count = 0;
    int power = 0;
    if (*at == '0') {
        ++at;
    } else {
        digits(at, end, value);
        count = at - from;
        if (count == 0) return false;
    }
    const bool is_below_one = count == 0;
    std::ptrdiff_t zeros = 0;
    if (*at == '.') {
        const char* const point = ++at;
        if (is_below_one) {
            while (*at == '0') ++at;
            from = at;
            zeros = at - point;
        }
        const char* const first = at;
        digits(at, end, value);
        if (at == point || at - point > MAX_POWER) return false;
        count += at - first;
        power = static_cast<int>(point - at);
    }
    const bool is_cut = count > MAX_DIGITS;
    if (is_cut) power = cut(from, at, is_below_one, value) - static_cast<int>(zeros);
    if ((*at | 0x20) == 'e') {
        ++at;
        const bool is_down = *at == '-';
        at += is_down || *at == '+';
        const char* const first = at;
        int exponent = 0;
        for (; is_digit(*at); ++at) {
            if (exponent > 9999) return false;
            exponent = exponent * 10 + (*at - '0');
        }
        if (at == first) return false;
        power += is_down ? -exponent : exponent;
    }
    if (!rounded(value, power, is_cut, found)) return false;
    if (is_negative) found = -found;
    return true;
}

}  // namespace decimal

// What was taken out of a text.
struct number_lists_t {
    Buffer floats;  // the numbers of all lists, one after the other
    Buffer ends;    // std::uint64_t: of each list, how many numbers it and those before it have
    Buffer rest;    // the text, with a mark in place of each list: see `MARK`
    std::size_t count = 0;
};

// Takes the lists out of a text; there must be a zero behind it, as there is behind Python's bytes. One thread.
class NumberListReader {
public:
    // And the place of the list, counted from 0. A service that sent that as a number would be the first.
    static constexpr char MARK[] = "-0.0e-0";
    static constexpr int MARK_SIZE = sizeof MARK - 1;

    NumberListReader(const char* text, std::size_t size) noexcept : text_(text), end_(text + size) {}

    // False if there is no memory. Without a list in the text `count` stays 0, and nothing is copied.
    bool take(number_lists_t& found) noexcept {
        const char* copied = text_;
        for (const char* at = text_; at != end_;) {
            const char character = *at;
            if (character == '"') {
                at = behind_string(at + 1);
            } else if (character != '[') {
                ++at;
            } else {
                const char* const opened = at++;
                const std::size_t before = found.floats.size();
                const read_t read = list(at, found.floats);
                if (read == read_t::NO_MEMORY) return false;
                if (read == read_t::LEFT) {
                    // What stands in it may have lists of its own.
                    if (!found.floats.resize(before)) return false;
                    at = opened + 1;
                    continue;
                }
                if (!mark(found, copied, opened)) return false;
                copied = at;
            }
        }
        return found.count == 0 || found.rest.append(copied, static_cast<std::size_t>(end_ - copied));
    }

private:
    enum class read_t { LIST, LEFT, NO_MEMORY };

    static bool is_space(char character) noexcept {
        return character == ' ' || character == '\n' || character == '\r' || character == '\t';
    }

    // `at`: behind the quote that begins a string.
    const char* behind_string(const char* at) const noexcept {
        for (const char* from = at;;) {
            const auto* const quote =
                static_cast<const char*>(std::memchr(at, '"', static_cast<std::size_t>(end_ - at)));
            if (quote == nullptr) return end_;
            const char* before = quote;
            while (before != from && before[-1] == '\\') --before;
            at = quote + 1;
            if ((quote - before) % 2 == 0) return at;
        }
    }

    // `at`: behind the bracket, and then behind the other one.
    read_t list(const char*& at, Buffer& floats) const noexcept {
        std::size_t size = floats.size(), capacity = floats.capacity();
        while (true) {
            while (is_space(*at)) ++at;
            float number;
            if (!decimal::number(at, end_, number)) return read_t::LEFT;
            if (size + sizeof number > capacity) {
                // A number has some 20 characters as a rule. Memory that nothing is written to costs nothing.
                const auto left = static_cast<std::size_t>(end_ - at);
                if (!floats.reserve(2 * capacity + left / 4 + 64)) return read_t::NO_MEMORY;
                capacity = floats.capacity();
            }
            std::memcpy(floats.data() + size, &number, sizeof number);
            size += sizeof number;
            while (is_space(*at)) ++at;
            const char character = *at++;
            if (character == ',') continue;
            if (character != ']') return read_t::LEFT;
            return floats.resize(size) ? read_t::LIST : read_t::NO_MEMORY;
        }
    }

    bool mark(number_lists_t& found, const char* copied, const char* opened) const noexcept {
        char digits[24];
        char* first = digits + sizeof digits;
        std::size_t place = found.count++;
        do *--first = static_cast<char>('0' + place % 10);
        while (place /= 10);
        const std::uint64_t end = found.floats.size() / sizeof(float);
        return found.rest.append(copied, static_cast<std::size_t>(opened - copied)) &&
               found.rest.append(MARK, MARK_SIZE) &&
               found.rest.append(first, static_cast<std::size_t>(digits + sizeof digits - first)) &&
               found.ends.append(reinterpret_cast<const char*>(&end), sizeof end);
    }

    const char* const text_;
    const char* const end_;
};

}  // namespace pillarbox
