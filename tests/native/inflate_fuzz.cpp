// Compressed answers, whole, cut and damaged, in pieces of all sizes, through pillarbox_inflate.h: what was compressed
// comes out, a stream that is cut is not whole, no bound is passed, and a sanitizer sees no byte beyond.
//
// Called with a file of pairs: a word (gzip, deflate), the lengths of a stream and of its text, both after it.
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "pillarbox_inflate.h"

namespace {

using namespace pillarbox;

constexpr int ROUNDS = 60;
constexpr std::size_t NO_BOUND = static_cast<std::size_t>(1) << 40;

struct stream_t {
    bool is_gzip;
    std::string bytes;
    std::string text;
};

std::vector<stream_t> streams_of(const char* path) {
    std::ifstream file(path, std::ios::binary);
    std::vector<stream_t> found;
    std::string word;
    std::size_t compressed = 0;
    std::size_t plain = 0;
    while (file >> word >> compressed >> plain) {
        file.get();
        stream_t each{word == "gzip", std::string(compressed, '\0'), std::string(plain, '\0')};
        file.read(&each.bytes[0], static_cast<std::streamsize>(compressed));
        file.read(&each.text[0], static_cast<std::streamsize>(plain));
        found.push_back(each);
    }
    return found;
}

// In pieces that have memory of their own.
inflated_t feed(Inflater& inflater, const std::string& bytes, std::size_t piece, Buffer& out, std::size_t bound) {
    for (std::size_t at = 0; at < bytes.size(); at += piece) {
        const std::size_t count = bytes.size() - at < piece ? bytes.size() - at : piece;
        const std::unique_ptr<char[]> exact(new char[count]);
        std::memcpy(exact.get(), bytes.data() + at, count);
        const inflated_t done = inflater.feed(exact.get(), count, out, bound);
        if (done != inflated_t::OK) return done;
    }
    return inflated_t::OK;
}

}  // namespace

int main(int, char** words) {
    zlib::functions_t zlib;
    require(zlib.find_in(RTLD_DEFAULT), "no zlib");
    std::mt19937 random(7);
    Inflater inflater;
    const std::vector<stream_t> streams = streams_of(words[1]);
    require(streams.size() > 5, "no streams");
    for (const stream_t& stream : streams) {
        for (const std::size_t piece : {std::size_t{1}, std::size_t{2}, std::size_t{7}, stream.bytes.size()}) {
            Buffer out;
            require(inflater.begin(zlib, stream.is_gzip), "no memory");
            require(feed(inflater, stream.bytes, piece, out, NO_BOUND) == inflated_t::OK, "a stream is refused");
            require(inflater.is_whole(), "a whole stream is not whole");
            require(out.size() == stream.text.size(), "another length");
            require(std::memcmp(out.data(), stream.text.data(), out.size()) == 0, "another text");
        }
        for (int round = 0; round < ROUNDS; ++round) {
            const std::size_t piece = 1 + random() % (stream.bytes.size() + 1);
            const std::size_t cut = 1 + random() % (stream.bytes.size() - 1);
            Buffer out;
            require(inflater.begin(zlib, stream.is_gzip), "no memory");
            require(feed(inflater, stream.bytes.substr(0, cut), piece, out, NO_BOUND) == inflated_t::OK, "a cut");
            require(!inflater.is_whole(), "a stream that is cut is whole");

            Buffer bounded;
            const std::size_t bound = random() % stream.text.size();
            require(inflater.begin(zlib, stream.is_gzip), "no memory");
            require(feed(inflater, stream.bytes, piece, bounded, bound) == inflated_t::TOO_LARGE, "above the bound");
            require(bounded.size() <= bound + 1, "the bound is passed");

            Buffer damaged;
            std::string bytes = stream.bytes;
            bytes[random() % bytes.size()] ^= static_cast<char>(1 + random() % 255);
            require(inflater.begin(zlib, stream.is_gzip), "no memory");
            (void)feed(inflater, bytes, piece, damaged, stream.text.size() * 2);
            require(damaged.size() <= stream.text.size() * 2 + 1, "the bound of a damaged stream is passed");
        }
    }
    std::puts("ok");
}
