// In builds for tests that can have a defect planted: which one is.
//
// `spec/defects.py` makes headers in which each place of a defect asks here. The environment variable PILLARBOX_DEFECT
// names the defect when the program is loaded.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "pillarbox_defect_list.h"

namespace pillarbox {

enum class Defect : int {
    none,
#define PILLARBOX_DEFECT_NAME(name) name,
    PILLARBOX_DEFECT_LIST(PILLARBOX_DEFECT_NAME)
#undef PILLARBOX_DEFECT_NAME
};

inline Defect named_defect(const char* name) {
    if (name == nullptr || *name == '\0') return Defect::none;
#define PILLARBOX_DEFECT_NAMED(defect) \
    if (std::strcmp(name, #defect) == 0) return Defect::defect;
    PILLARBOX_DEFECT_LIST(PILLARBOX_DEFECT_NAMED)
#undef PILLARBOX_DEFECT_NAMED
    std::abort();
}
inline const Defect planted = named_defect(std::getenv("PILLARBOX_DEFECT"));

}  // namespace pillarbox

// Whether this defect is planted.
#define PILLARBOX_PLANTED(name) (::pillarbox::planted == ::pillarbox::Defect::name)
