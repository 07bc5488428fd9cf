// Lists of numbers, whole and damaged, through the reader of pillarbox_number_lists.h: it finds what strtod finds, and
// reads nothing beyond the text and the zero behind it, which a sanitizer sees.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "pillarbox_number_lists.h"

namespace {

using namespace pillarbox;

constexpr int WHOLE = 2000;
constexpr int DAMAGED = 30;

// In memory of its own, so that a byte beyond is a mistake that is seen.
void take(const std::string& text, number_lists_t& found) {
    const std::unique_ptr<char[]> exact(new char[text.size() + 1]);
    std::memcpy(exact.get(), text.c_str(), text.size() + 1);
    require(NumberListReader(exact.get(), text.size()).take(found), "there is memory");
}

std::string written(std::mt19937& random) {
    char text[80];
    const double number = (double(random()) - double(random())) / double(1u << (random() % 31));
    const char* const formats[] = {"%.17g", "%.9g", "%.3f", "%.25f", "%.20e", "%.0f"};
    std::snprintf(text, sizeof text, formats[random() % 6], number);
    return text;
}

}  // namespace

int main() {
    std::mt19937 random(31);
    for (int turn = 0; turn < WHOLE; ++turn) {
        std::string text = R"({"data": [)";
        std::vector<float> numbers;
        const std::size_t count = 1 + random() % 4;
        for (std::size_t place = 0; place < count; ++place) {
            text += place ? R"(, {"a\"": "[1]\\", "e":[)" : R"({"a":"",  "e": [ )";
            for (std::size_t left = 1 + random() % 40; left > 0; --left) {
                const std::string number = written(random);
                text += number + (left > 1 ? (random() % 2 ? "," : " , ") : "");
                numbers.push_back(static_cast<float>(std::strtod(number.c_str(), nullptr)));
            }
            text += "]}";
        }
        text += R"(], "none": [null, [], {}]})";
        number_lists_t found;
        take(text, found);
        if (found.count == count) {
            require(found.floats.size() == numbers.size() * sizeof(float), "as many numbers");
            require(!std::memcmp(found.floats.data(), numbers.data(), found.floats.size()), "the same numbers");
        }
        for (int damaged = 0; damaged < DAMAGED; ++damaged) {
            std::string changed = text.substr(0, random() % 3 ? text.size() : random() % text.size());
            for (unsigned times = random() % 4; times > 0 && !changed.empty(); --times) {
                changed[random() % changed.size()] = "\"\\[],.eE-+019 \0"[random() % 14];
            }
            number_lists_t whatever;
            take(changed, whatever);
            require(whatever.ends.size() == whatever.count * sizeof(std::uint64_t), "an end for each list");
        }
    }
    std::puts("ok");
    return 0;
}
