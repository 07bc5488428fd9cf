// Tries the schedules of a scenario: all with few preemptions, then random ones; prints what replays a failure.
//
// A program of scenarios calls `schedules_main`. Its words: `list`, `all PREEMPTIONS RANDOM SEED [SCENARIO...]` for a
// memory that all threads see alike, `weak PREEMPTIONS STALE RANDOM SEED [SCENARIO...]` for schedules in which STALE
// operations do not see the newest store, or `replay SCENARIO SCHEDULE`. It prints a line for each scenario and exits
// with 1 if one has failed.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>

#include "pillarbox_monitor.h"

namespace pillarbox::sched {

// The threads of one run with what they share, made anew for each schedule.
struct Scenario {
    virtual ~Scenario() = default;
    virtual std::vector<std::function<void()>> threads() = 0;
    // After all threads have ended: what is wrong, or nothing.
    virtual std::string verdict() = 0;
};

using Make = std::function<std::unique_ptr<Scenario>()>;

template <class S>
std::unique_ptr<Scenario> make() {
    return std::make_unique<S>();
}

class Explorer {
public:
    explicit Explorer(Make make) : make_(std::move(make)) {}

    // Every schedule with at most so many preemptions, and so many stores read that are not the newest. True if all
    // went well.
    bool all(int preemptions, int stale) {
        std::vector<Step> path;
        while (true) {
            std::size_t depth = 0;
            int preemptions_left = preemptions, stale_left = stale, free = 1 << 30;
            const bool well = run([&](int options, Choice choice) {
                // Leaving a thread that could go on is a preemption; choosing for one that cannot is free.
                int& left = choice == Choice::PREEMPTION ? preemptions_left
                            : choice == Choice::STORE    ? stale_left
                                                         : free;
                if (depth == path.size()) path.push_back({left == 0 ? 1 : options, 0});
                const int chosen = path[depth++].chosen;
                left -= chosen != 0;
                return chosen;
            });
            if (!well) return false;
            path.resize(depth);
            while (!path.empty() && path.back().chosen + 1 == path.back().options) path.pop_back();
            if (path.empty()) return true;
            ++path.back().chosen;
        }
    }

    // Random schedules: another thread goes on at one point in four. With `weak` one choice in four may not be the newest
    // store, and in every other schedule each is the newest or the oldest: there threads lag behind for long.
    bool random(int count, unsigned seed, bool weak) {
        std::mt19937 numbers(seed);
        for (int number = 0; number < count; ++number) {
            const bool well = run([&](int options, Choice choice) {
                if (choice == Choice::STORE && !weak) return 0;
                if (choice == Choice::STORE && number % 2 == 1) return numbers() % 2 == 0 ? 0 : options - 1;
                if (choice != Choice::SUCCESSOR && numbers() % 4 != 0) return 0;
                return static_cast<int>(numbers() % static_cast<unsigned>(options));
            });
            if (!well) return false;
        }
        return true;
    }

    bool replay(const std::string& schedule) {
        std::size_t depth = 0;
        return run([&](int options, Choice) {
            const int chosen = depth < schedule.size() ? schedule[depth++] - '0' : 0;
            return chosen < options ? chosen : 0;
        });
    }

    long runs() const { return runs_; }
    const std::string& failure() const { return failure_; }
    // One digit for each point at which there was a choice.
    const std::string& schedule() const { return schedule_; }

private:
    struct Step {
        int options;
        int chosen;
    };

    bool run(const Scheduler::Choose& choose) {
        ++runs_;
        schedule_.clear();
        std::unique_ptr<Scenario> scenario = make_();
        failure_ = Scheduler::the().run(scenario->threads(), [&](int options, Choice choice) {
            const int chosen = choose(options, choice);
            schedule_ += static_cast<char>('0' + chosen);
            return chosen;
        });
        if (failure_.empty()) failure_ = scenario->verdict();
        // What a failed run holds is in the middle of something.
        if (!failure_.empty()) scenario.release();
        return failure_.empty();
    }

    Make make_;
    long runs_ = 0;
    std::string failure_;
    std::string schedule_;
};

inline int schedules_main(int count, char** words, const std::map<std::string, Make>& scenarios) {
    const std::string command = count > 1 ? words[1] : "";
    if (command == "list") {
        for (const auto& [name, make] : scenarios) std::puts(name.c_str());
        return 0;
    }
    if (command == "replay" && count == 4 && scenarios.count(words[2])) {
        Explorer explorer(scenarios.at(words[2]));
        const bool well = explorer.replay(words[3]);
        std::printf("%s %s\n", words[2], well ? "ok" : explorer.failure().c_str());
        return well ? 0 : 1;
    }
    const bool weak = command == "weak";
    const int numbers = weak ? 4 : 3;
    if ((command != "all" && !weak) || count < 2 + numbers) {
        std::puts("words: list | all PREEMPTIONS RANDOM SEED [SCENARIO...] | "
                  "weak PREEMPTIONS STALE RANDOM SEED [SCENARIO...] | replay SCENARIO SCHEDULE");
        return 2;
    }
    const auto number = [&](int place) { return std::atoi(words[2 + place]); };
    int failed = 0;
    for (const auto& [name, make] : scenarios) {
        bool wanted = count == 2 + numbers;
        for (int word = 2 + numbers; word < count; ++word) wanted = wanted || name == words[word];
        if (!wanted) continue;
        Explorer explorer(make);
        const bool well = explorer.all(number(0), weak ? number(1) : 0) &&
                          explorer.random(number(numbers - 2), static_cast<unsigned>(number(numbers - 1)), weak);
        std::printf("%s %ld schedules: %s\n", name.c_str(), explorer.runs(), well ? "ok" : explorer.failure().c_str());
        if (!well) std::printf("replay %s %s\n", name.c_str(), explorer.schedule().c_str());
        failed += !well;
    }
    return failed == 0 ? 0 : 1;
}

}  // namespace pillarbox::sched
