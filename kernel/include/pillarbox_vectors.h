// Vectors in base64 of an answer in OpenAI's form: {"data": [{"embedding": "...", "index": 0}, ...], "usage": {...}}.
//
// It reads what services send as a rule, and gives up at anything else: escapes, vectors as lists of numbers, an order
// that is another one, vectors that differ in length. Whoever calls it then has the text read by a reader of all JSON,
// which also has the words for what is wrong.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__) && defined(__GNUC__)
#include <cpuid.h>
#include <immintrin.h>
#define PILLARBOX_WIDE_BASE64 1
#endif

#include "pillarbox_buffer.h"

namespace pillarbox {

struct vectors_t {
    Buffer block;              // the bytes of all vectors, one after the other
    std::int64_t tokens = -1;  // of the texts, as the service counted them; -1: it did not
    bool are_finite = true;    // as numbers of 32 bits, all of them
};

// True if none of the numbers of 32 bits in these bytes is infinite or NaN, whose exponents are all ones. Asked for as
// soon as they are written, while the processor has them at hand: later they come from memory once more.
inline bool finite(const char* bytes, std::size_t nbytes) noexcept {
    constexpr std::uint32_t EXPONENT = 0x7F800000u;
    std::size_t at = 0;
#ifdef PILLARBOX_WIDE_BASE64
    const __m128i exponent = _mm_set1_epi32(static_cast<int>(EXPONENT));
    __m128i odd = _mm_setzero_si128();
    for (; at + sizeof(__m128i) <= nbytes; at += sizeof(__m128i)) {
        const __m128i some = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes + at));
        odd = _mm_or_si128(odd, _mm_cmpeq_epi32(_mm_and_si128(some, exponent), exponent));
    }
    if (_mm_movemask_epi8(odd) != 0) return false;
#endif
    for (; at + sizeof(std::uint32_t) <= nbytes; at += sizeof(std::uint32_t)) {
        std::uint32_t number = 0;
        std::memcpy(&number, bytes + at, sizeof number);
        if ((number & EXPONENT) == EXPONENT) return false;
    }
    return true;
}

namespace base64 {

constexpr std::uint32_t INVALID = 0x80000000u;

// What a character of each of the four places of a group gives of its three bytes, the first of them lowest.
struct tables_t {
    std::uint32_t of[4][256];
};

constexpr tables_t make_tables() {
    tables_t tables{};
    for (auto& table : tables.of) {
        for (auto& entry : table) entry = INVALID;
    }
    constexpr char ALPHABET[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (std::uint32_t number = 0; number < 64; ++number) {
        for (unsigned place = 0; place < 4; ++place) {
            const std::uint32_t bits = number << (18 - 6 * place);
            tables.of[place][static_cast<unsigned char>(ALPHABET[number])] =
                (bits >> 16 & 0xFF) | (bits & 0xFF00) | (bits & 0xFF) << 16;
        }
    }
    return tables;
}

inline constexpr tables_t TABLES = make_tables();

// How many bytes a text stands for, if it is base64; 0 if its length cannot be.
inline std::size_t decoded_nbytes(const char* text, std::size_t length) noexcept {
    if (length == 0 || length % 4 != 0) return 0;
    const std::size_t padding = text[length - 1] != '=' ? 0 : text[length - 2] != '=' ? 1 : 2;
    return length / 4 * 3 - padding;
}

#ifdef PILLARBOX_WIDE_BASE64
// Groups of four characters that are decoded at a time, and that must follow: eight bytes beyond are written over.
constexpr std::size_t WIDE_GROUPS = 8;
constexpr std::size_t GROUPS_BEHIND = 4;

// True if the processor has AVX2, and the system keeps its registers.
inline bool has_wide() noexcept {
    static const bool has = [] {
        unsigned a = 0, b = 0, c = 0, d = 0;
        constexpr unsigned OSXSAVE = 1u << 27, AVX2 = 1u << 5, YMM_STATE = 6;
        if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & OSXSAVE)) return false;
        unsigned state = 0, high = 0;
        __asm__("xgetbv" : "=a"(state), "=d"(high) : "c"(0));
        return (state & YMM_STATE) == YMM_STATE && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & AVX2);
    }();
    return has;
}

// Decodes as many of `groups` as come in eights, and moves both places behind them. False if one is not base64.
// The lookups are those of W. Mula and D. Lemire, "Faster Base64 Encoding and Decoding Using AVX2 Instructions" (2018):
// a character is one if the bits for its upper and for its lower half have none in common, and its number is
// itself and an offset by its upper half.
__attribute__((target("avx2"))) inline bool decode_wide(
    const unsigned char*& at, std::size_t& groups, char*& to
) noexcept {
    const __m256i of_low = _mm256_setr_epi8(
        0x15, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x13, 0x1A, 0x1B, 0x1B, 0x1B, 0x1A,
        0x15, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x13, 0x1A, 0x1B, 0x1B, 0x1B, 0x1A
    );
    const __m256i of_high = _mm256_setr_epi8(
        0x10, 0x10, 0x01, 0x02, 0x04, 0x08, 0x04, 0x08, 0x10, 0x10, 0x10, 0x10, 0x10, 0x10, 0x10, 0x10,
        0x10, 0x10, 0x01, 0x02, 0x04, 0x08, 0x04, 0x08, 0x10, 0x10, 0x10, 0x10, 0x10, 0x10, 0x10, 0x10
    );
    const __m256i offsets = _mm256_setr_epi8(
        0, 16, 19, 4, -65, -65, -71, -71, 0, 0, 0, 0, 0, 0, 0, 0,
        0, 16, 19, 4, -65, -65, -71, -71, 0, 0, 0, 0, 0, 0, 0, 0
    );
    const __m256i bytes_in_order = _mm256_setr_epi8(
        2, 1, 0, 6, 5, 4, 10, 9, 8, 14, 13, 12, -1, -1, -1, -1,
        2, 1, 0, 6, 5, 4, 10, 9, 8, 14, 13, 12, -1, -1, -1, -1
    );
    const __m256i words_in_order = _mm256_setr_epi32(0, 1, 2, 4, 5, 6, 7, 7);
    const __m256i half = _mm256_set1_epi8(0x0F);
    const __m256i slash = _mm256_set1_epi8('/');
    __m256i wrong = _mm256_setzero_si256();
    for (; groups >= WIDE_GROUPS + GROUPS_BEHIND; groups -= WIDE_GROUPS, at += 32, to += 24) {
        const __m256i text = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
        const __m256i high = _mm256_and_si256(_mm256_srli_epi32(text, 4), half);
        const __m256i low = _mm256_and_si256(text, half);
        wrong = _mm256_or_si256(
            wrong, _mm256_and_si256(_mm256_shuffle_epi8(of_low, low), _mm256_shuffle_epi8(of_high, high))
        );
        // The slash has an offset of its own: that in front of its half's.
        const __m256i place = _mm256_add_epi8(_mm256_cmpeq_epi8(text, slash), high);
        const __m256i numbers = _mm256_add_epi8(text, _mm256_shuffle_epi8(offsets, place));
        const __m256i pairs = _mm256_maddubs_epi16(numbers, _mm256_set1_epi32(0x01400140));
        const __m256i triples = _mm256_madd_epi16(pairs, _mm256_set1_epi32(0x00011000));
        const __m256i bytes = _mm256_shuffle_epi8(triples, bytes_in_order);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_permutevar8x32_epi32(bytes, words_in_order));
    }
    return _mm256_testz_si256(wrong, wrong) != 0;
}
#endif

// Writes `decoded_nbytes` bytes. False if the text is not base64. is_narrow: as on a processor of any kind.
inline bool decode(const char* text, std::size_t length, char* to, bool is_narrow = false) noexcept {
    const auto* at = reinterpret_cast<const unsigned char*>(text);
    const auto& of = TABLES.of;
    std::uint32_t seen = 0;
    std::size_t group = length / 4;
#ifdef PILLARBOX_WIDE_BASE64
    if (!is_narrow && has_wide() && !decode_wide(at, group, to)) return false;
#else
    (void)is_narrow;
#endif
    for (; group > 1; --group, at += 4, to += 3) {
        const std::uint32_t bytes = of[0][at[0]] | of[1][at[1]] | of[2][at[2]] | of[3][at[3]];
        seen |= bytes;
        // The fourth is written over by the next group.
        std::memcpy(to, &bytes, 4);
    }
    const std::size_t count = decoded_nbytes(reinterpret_cast<const char*>(at), 4);
    std::uint32_t bytes = of[0][at[0]] | of[1][at[1]];
    if (count > 1) bytes |= of[2][at[2]];
    if (count > 2) bytes |= of[3][at[3]];
    std::memcpy(to, &bytes, count);
    return ((seen | bytes) & INVALID) == 0;
}

}  // namespace base64

class VectorReader {
public:
    VectorReader(const char* text, std::size_t size) noexcept : at_(text), end_(text + size), size_(size) {}

    // Reads an answer with so many vectors. False if it gives up; what it has found then means nothing.
    bool read(std::size_t count, vectors_t& found) noexcept {
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
        bool has_data = false;
        bool has_usage = false;
        const bool is_read = members([&](const text_t& name) {
            if (name.is("data")) return first(has_data) && items(count, found);
            if (name.is("usage")) return first(has_usage) && usage(found);
            return skip(0);
        });
        skip_space();
        return is_read && has_data && at_ == end_;
#else
        (void)count, (void)found;
        return false;
#endif
    }

private:
    static constexpr int MAX_DEPTH = 32;

    struct text_t {
        const char* start = nullptr;
        std::size_t length = 0;

        bool is(const char* word) const noexcept {
            return length == std::strlen(word) && std::memcmp(start, word, length) == 0;
        }
    };

    // False where a name comes a second time.
    static bool first(bool& seen) noexcept {
        const bool is_first = !seen;
        seen = true;
        return is_first;
    }

    bool items(std::size_t count, vectors_t& found) noexcept {
        std::size_t items = 0;
        std::size_t indices = 0;
        if (!eat('[') || peek() == ']') return false;
        do {
            if (items == count || !item(items, count, found, indices)) return false;
            ++items;
        } while (eat(','));
        return eat(']') && items == count && (indices == 0 || indices == count);
    }

    bool item(std::size_t place, std::size_t count, vectors_t& found, std::size_t& indices) noexcept {
        bool has_vector = false;
        bool has_index = false;
        const bool is_read = members([&](const text_t& name) {
            if (name.is("embedding")) return first(has_vector) && vector(place, count, found);
            if (!name.is("index")) return skip(0);
            std::int64_t index = -1;
            if (!first(has_index) || !number_or_null(index)) return false;
            indices += index >= 0;
            return index < 0 || static_cast<std::size_t>(index) == place;
        });
        return is_read && has_vector;
    }

    bool vector(std::size_t place, std::size_t count, vectors_t& found) noexcept {
        Buffer& block = found.block;
        text_t text;
        // An escape is not base64.
        if (!string(text)) return false;
        const std::size_t nbytes = base64::decoded_nbytes(text.start, text.length);
        // More than the whole text has room for is not there, whatever its first vector is like.
        if (nbytes == 0 || nbytes > size_ / count) return false;
        if (place == 0 && !block.resize(nbytes * count)) return false;
        if (block.size() != nbytes * count) return false;
        char* const to = block.data() + place * nbytes;
        if (!base64::decode(text.start, text.length, to)) return false;
        found.are_finite = found.are_finite && finite(to, nbytes);
        return true;
    }

    bool usage(vectors_t& found) noexcept {
        if (word("null")) return true;
        std::int64_t prompt = -1;
        std::int64_t total = -1;
        if (!members([&](const text_t& name) {
                if (name.is("prompt_tokens")) return number_or_null(prompt);
                if (name.is("total_tokens")) return number_or_null(total);
                return skip(0);
            })) {
            return false;
        }
        found.tokens = prompt > 0 ? prompt : total;
        return true;
    }

    // ---- JSON

    template <class Each>
    bool members(const Each& each) noexcept {
        if (!eat('{')) return false;
        if (eat('}')) return true;
        do {
            text_t name;
            if (!string(name) || !eat(':') || !each(name)) return false;
        } while (eat(','));
        return eat('}');
    }

    bool skip(int depth) noexcept {
        const char next = peek();
        text_t text;
        if (next == '"') return string(text);
        if (next != '{' && next != '[') return scalar();
        if (depth == MAX_DEPTH) return false;
        if (next == '{') return members([&](const text_t&) { return skip(depth + 1); });
        ++at_;
        if (eat(']')) return true;
        do {
            if (!skip(depth + 1)) return false;
        } while (eat(','));
        return eat(']');
    }

    // A number, true, false or null.
    bool scalar() noexcept {
        const char* const start = at_;
        while (at_ != end_ && std::strchr("+-.0123456789Eaeflnrstu", *at_) != nullptr && *at_ != '\0') ++at_;
        return at_ != start;
    }

    bool number_or_null(std::int64_t& number) noexcept {
        if (word("null")) return true;
        skip_space();
        const char* const start = at_;
        std::int64_t value = 0;
        while (at_ != end_ && *at_ >= '0' && *at_ <= '9' && at_ - start < 18) value = 10 * value + (*at_++ - '0');
        const char next = peek();
        if (at_ == start || (next != ',' && next != '}')) return false;
        number = value;
        return true;
    }

    bool string(text_t& text) noexcept {
        if (!eat('"')) return false;
        text.start = at_;
        while (true) {
            const auto left = static_cast<std::size_t>(end_ - at_);
            const void* const quote = left == 0 ? nullptr : std::memchr(at_, '"', left);
            if (quote == nullptr) return false;
            at_ = static_cast<const char*>(quote);
            // A quote behind an odd number of backslashes belongs to the string.
            std::size_t backslashes = 0;
            while (at_ - backslashes != text.start && at_[-1 - static_cast<std::ptrdiff_t>(backslashes)] == '\\') {
                ++backslashes;
            }
            ++at_;
            if (backslashes % 2 != 0) continue;
            text.length = static_cast<std::size_t>(at_ - 1 - text.start);
            return true;
        }
    }

    void skip_space() noexcept {
        while (at_ != end_ && (*at_ == ' ' || *at_ == '\n' || *at_ == '\r' || *at_ == '\t')) ++at_;
    }
    // The next character that is not a space, or 0 at the end.
    char peek() noexcept {
        skip_space();
        return at_ == end_ ? '\0' : *at_;
    }
    bool eat(char wanted) noexcept {
        if (peek() != wanted || at_ == end_) return false;
        ++at_;
        return true;
    }
    bool word(const char* wanted) noexcept {
        const std::size_t length = std::strlen(wanted);
        skip_space();
        if (static_cast<std::size_t>(end_ - at_) < length || std::memcmp(at_, wanted, length) != 0) return false;
        at_ += length;
        return true;
    }

    const char* at_;
    const char* end_;
    std::size_t size_;
};

}  // namespace pillarbox
