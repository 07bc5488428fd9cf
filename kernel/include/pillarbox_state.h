// The states of a mailbox: they follow each other and never go back.
#pragma once

namespace pillarbox {

enum state_t { OPEN = 0, QUIESCED = 1, CLOSED = 2 };

}  // namespace pillarbox
