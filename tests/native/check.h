// How a native test ends when a promise is broken: it says which, and exits at once.
//
// Other threads may be in the middle of anything, so nothing is destroyed.
#pragma once

#include <cstdio>
#include <cstdlib>

[[noreturn]] inline void fail(const char* what) {
    std::puts(what);
    std::fflush(stdout);
    std::_Exit(1);
}

inline void require(bool holds, const char* what) {
    if (!holds) fail(what);
}
