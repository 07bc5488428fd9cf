// Waits of the kernel where the wall clock is an hour behind: `waits_clock`. Each must last its time, and end.
//
// `clock_gettime` is replaced for the whole program, the C++ library included, so that CLOCK_REALTIME shows what it
// shows after it was set back. The kernel of the system has its own clocks, which stay: a wait whose end is reckoned by
// the one clock and awaited by the other ends at once, or not for years.
//
// A wait may end early, without cause; one of several must last. Prints "ok", or what is wrong.
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <thread>

#include "check.h"
#include "pillarbox_monitor.h"

namespace {

constexpr time_t HOUR = 3600;
constexpr int TRIES = 5;
constexpr auto TOO_LONG = std::chrono::seconds(10);

double true_seconds(clockid_t clock) {
    timespec now{};
    ::syscall(SYS_clock_gettime, clock, &now);
    return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

}  // namespace

extern "C" int clock_gettime(clockid_t clock, timespec* now) noexcept {
    const auto answer = static_cast<int>(::syscall(SYS_clock_gettime, clock, now));
    if (answer == 0 && clock == CLOCK_REALTIME) now->tv_sec -= HOUR;
    return answer;
}

using namespace pillarbox;

namespace {

template <class Wait>
void lasts(const char* name, double seconds, Wait wait) {
    double longest = 0.0;
    for (int i = 0; i < TRIES && longest < seconds; ++i) {
        const double begin = true_seconds(CLOCK_MONOTONIC);
        wait(seconds);
        longest = true_seconds(CLOCK_MONOTONIC) - begin;
    }
    if (longest >= seconds) return;
    std::printf("%s of %g s lasts %g s\n", name, seconds, longest);
    fail("a wait is too short");
}

}  // namespace

int main() {
    // Of a wait that does not end.
    std::thread([] {
        std::this_thread::sleep_for(TOO_LONG);
        fail("a wait does not end");
    }).detach();

    timespec wall{};
    require(clock_gettime(CLOCK_REALTIME, &wall) == 0, "no clock");
    const double behind = true_seconds(CLOCK_REALTIME) - static_cast<double>(wall.tv_sec);
    require(behind > HOUR - 60 && behind < HOUR + 60, "the wall clock is not an hour behind");
    require(true_seconds(CLOCK_MONOTONIC) - steady_seconds() < 60, "the steady clock is another one");

    Lock lock;
    Sleepers sleepers;
    Signal signal;
    // The two long ones, one after the other, pass the end of a second of the clock.
    for (const double seconds : {0.0, 0.002, 0.007, 0.03, 0.6, 0.6}) {
        lasts("a sleep under a lock", seconds, [&](double time) {
            lock.lock();
            sleepers.sleep(lock, time);
            lock.unlock();
        });
    }
    for (const double seconds : {0.002, 0.03}) {
        lasts("a sleep on a signal", seconds, [&](double time) { signal.sleep(signal.value(), time); });
    }
    std::puts("ok");
    std::fflush(stdout);
    std::_Exit(0);
}
