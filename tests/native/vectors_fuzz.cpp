// Answers with vectors, whole and damaged, through the reader of pillarbox_vectors.h: it finds what was written, and
// reads nothing beyond the text, which a sanitizer sees.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "pillarbox_vectors.h"

namespace {

using namespace pillarbox;

constexpr int WHOLE = 300;
constexpr int DAMAGED = 60000;

std::string encoded(const std::string& bytes) {
    static const char ALPHABET[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    std::string text;
    for (std::size_t at = 0; at < bytes.size(); at += 3) {
        const std::size_t left = bytes.size() - at;
        unsigned group = 0;
        for (std::size_t i = 0; i < 3; ++i) {
            group = group << 8 | (i < left ? static_cast<unsigned char>(bytes[at + i]) : 0);
        }
        for (std::size_t i = 0; i < 4; ++i) text += i <= left ? ALPHABET[group >> (18 - 6 * i) & 63] : '=';
    }
    return text;
}

// In memory of its own, so that a byte beyond is a mistake that is seen.
bool read(const std::string& text, std::size_t count, vectors_t& found) {
    const std::unique_ptr<char[]> exact(new char[text.size()]);
    std::memcpy(exact.get(), text.data(), text.size());
    return VectorReader(exact.get(), text.size()).read(count, found);
}

// Each character at each place of a text: what is decoded, and whether it is base64, is the same by the usual way.
void compare_characters(std::mt19937& random) {
    for (const std::size_t length : {4, 44, 48, 52, 80, 120}) {
        for (std::size_t place = 0; place < length; ++place) {
            for (int character = 0; character < 256; ++character) {
                std::string text;
                for (std::size_t at = 0; at < length; ++at) text += static_cast<char>(random());
                text = encoded(text).substr(0, length);
                text[place] = static_cast<char>(character);
                const std::size_t nbytes = base64::decoded_nbytes(text.data(), length);
                std::string wide(nbytes, '-'), narrow(nbytes, '-');
                const bool is_base64 = base64::decode(text.data(), length, wide.data());
                require(is_base64 == base64::decode(text.data(), length, narrow.data(), true), "one takes it");
                require(!is_base64 || wide == narrow, "the bytes are others");
            }
        }
    }
}

// Each length, with an odd number at each place or none: as the library's own function says.
void compare_numbers(std::mt19937& random) {
    const float odd[] = {
        std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
        std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::max(), -0.0f,
        std::numeric_limits<float>::denorm_min(),
    };
    for (std::size_t length = 0; length < 21; ++length) {
        for (std::size_t place = 0; place <= length; ++place) {
            for (const float number : odd) {
                std::vector<float> numbers;
                bool are_finite = true;
                for (std::size_t at = 0; at < length; ++at) {
                    numbers.push_back(at == place ? number : static_cast<float>(random()));
                    are_finite = are_finite && std::isfinite(numbers.back());
                }
                const auto* const bytes = reinterpret_cast<const char*>(numbers.data());
                require(finite(bytes, length * sizeof(float)) == are_finite, "an odd number is not seen");
            }
        }
    }
}

}  // namespace

int main() {
    std::mt19937 random(20);
    std::string text;
    compare_characters(random);
    compare_numbers(random);
    for (int turn = 0; turn < WHOLE; ++turn) {
        const std::size_t count = 1 + random() % 5;
        // Long ones are decoded many characters at a time, where the processor can.
        const std::size_t nbytes = 1 + random() % (turn % 2 ? 40 : 400);
        std::string block;
        text = R"({ "object":"list", "more":[1,{"a":"\"}"},null,[]], "data":[)";
        for (std::size_t place = 0; place < count; ++place) {
            std::string bytes;
            for (std::size_t i = 0; i < nbytes; ++i) bytes += static_cast<char>(random());
            block += bytes;
            text += place ? ",\n{" : "{";
            if (turn % 2) text += "\"index\": " + std::to_string(place) + ",";
            text += "\"embedding\":\"" + encoded(bytes) + "\",\"object\":\"embedding\"}";
        }
        text += R"(],"usage":{"prompt_tokens":12,"total_tokens":13}} )";
        vectors_t found;
        require(read(text, count, found), "a whole answer is not read");
        require(std::string(found.block.data(), found.block.size()) == block, "the vectors are others");
        require(found.tokens == 12, "the tokens are others");
        bool are_finite = true;
        for (std::size_t place = 0; place < count; ++place) {
            are_finite = are_finite && finite(block.data() + place * nbytes, nbytes);
        }
        require(found.are_finite == are_finite, "one of the vectors has an odd number, or none has");
        vectors_t other;
        require(!read(text, count + 1, other), "vectors are missing, and it reads on");
        if (count > 1) require(!read(text, count - 1, other), "vectors are too many, and it reads on");
        for (int damaged = 0; damaged < DAMAGED / WHOLE; ++damaged) {
            std::string changed = text.substr(0, random() % 3 ? text.size() : random() % text.size());
            for (unsigned times = random() % 4; times > 0 && !changed.empty(); --times) {
                changed[random() % changed.size()] = "\"\\{}[],:=0A \0\xff"[random() % 14];
            }
            vectors_t whatever;
            if (read(changed, count, whatever)) require(whatever.block.size() % count == 0, "a block has another size");
        }
    }
    std::puts("ok");
    return 0;
}
