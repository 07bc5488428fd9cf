// Defects that test builds plant in the kernel, to see which check catches which. A normal build has none.
//
// `-DPILLARBOX_DEFECT=name` plants one at compile time. `-DPILLARBOX_DEFECTS` makes a build that takes the
// name from the environment variable PILLARBOX_DEFECT when it is loaded; there a memory order, which the
// compiler wants to know, cannot be weakened. The table of what is caught where is in `spec/README.md`.
#pragma once

#ifdef PILLARBOX_DEFECTS
#include <cstdlib>
#include <cstring>
#endif

// clang-format off
#define PILLARBOX_DEFECT_LIST(X) \
    /* the lock-free inbox */ \
    X(check_then_push)          /* the state is checked, then the mail pushed whatever the state is by then */ \
    X(push_without_wake)        /* a put that finds the consumer parked does not wake it */ \
    X(wake_before_push)         /* a put wakes the consumer first and pushes afterwards */ \
    X(wake_only_when_empty)     /* a put wakes only if it finds no other mail: the first one may have stalled */ \
    X(park_without_look)        /* the consumer parks whatever has arrived by then */ \
    X(woken_once)               /* a wake-up of an earlier parking is taken for one of this */ \
    X(woken_too_early)          /* who wakes the consumer says so before it is done: it may stall there */ \
    X(late_signal)              /* the consumer reads the signal after it has parked */ \
    X(fetch_drops_state)        /* fetching takes the state out together with the chain */ \
    X(counts_torn)              /* who reads counts does not see that their owner is at work on them */ \
    X(beyond_stays)             /* what did not fit into the word's count is counted again when it is fetched */ \
    X(fetch_in_reverse)         /* the chain is not turned round: newest first */ \
    X(fetch_disarms)            /* fetching forgets the armed wake-up */ \
    X(quiesce_without_wake)     /* quiesce does not wake the consumer */ \
    X(quiesce_drops_mail)       /* quiesce sets the state and loses the chain */ \
    X(arm_without_look)         /* arms whatever has arrived by then */ \
    X(armed_stays)              /* a put calls the armed wake-up and leaves it armed */ \
    X(put_all_in_reverse)       /* several mails at once go in newest first */ \
    X(armed_is_enough)          /* a put that finds the consumer parked and a wake-up armed only calls that */ \
    X(arm_disowns)              /* arming says no although a put has taken the callback and will call it */ \
    X(weak_close)               /* memory order: a close does not see what a push has published */ \
    X(weak_push)                /* memory order: a push does not publish the mail */ \
    X(weak_fetch)               /* memory order: a fetch does not see what a push has published */ \
    /* the inbox with a mutex */ \
    X(mutex_park_without_look)  /* the consumer sleeps whatever has arrived by then */ \
    X(mutex_push_without_wake)  /* a put does not wake the sleeping consumer */ \
    X(mutex_push_when_quiesced) /* a quiesced inbox takes mail in */ \
    X(mutex_quiesce_without_wake) \
    X(mutex_armed_stays)        /* a put calls the armed wake-up and leaves it armed */ \
    X(mutex_push_unlocked)      /* a put links its mail without the lock */ \
    /* the mail */ \
    X(weak_claim)               /* memory order: a claim does not see that the last taker has unlinked the mail */ \
    X(weak_release)             /* memory order: a taker releases the mail before it is seen to be unlinked */ \
    X(claim_twice)              /* a mail that waits can be put again */ \
    X(weak_free)                /* memory order: a slab is released before its users are seen to have ended */ \
    X(slab_stays)               /* the memory of a slab that was not used up is never released */ \
    X(slab_released_early)      /* the memory of a slab is released while one of its mails is in use */ \
    /* the mailbox thread's side */ \
    X(urgent_not_first)         /* urgent mails are sorted as if they were not */ \
    X(urgent_starves)           /* urgent mails come first for ever */ \
    X(burst_too_long)           /* one urgent mail more than allowed comes before the others */ \
    X(priority_excluded)        /* a take does not accept its own least priority */ \
    X(deferrable_not_skipped)   /* a take that asks to skip deferrable mail gets it */ \
    X(drain_skips_deferrable) \
    X(batch_grows)              /* what was fetched after the batch was made is taken as of the batch */ \
    X(shared_lane_forgotten)    /* a take looks only at kinds of mail that have a lane of their own */ \
    X(batch_stops_short)        /* the newest mail does not get into the batch that is made */ \
    X(close_forgets_batch) \
    X(close_forgets_arrived)    /* what nobody fetched before close is not returned */ \
    X(ended_by_a_later_look)    /* "quiesced and nothing there" is put together from two looks */ \
    X(ended_take_waits)         /* a take of a quiesced mailbox does not end */ \
    /* the result queue */ \
    X(capacity_off_by_one)      /* a queue holds one entry more than its capacity */ \
    X(late_completion_overwrites) /* a second completion replaces the result, and says that it won */ \
    X(earlier_attempt_accepted) /* a handle needs to name the slot only, not its present attempt */ \
    X(passes_unfinished_head)   /* an ordered queue emits entries as they finish */ \
    X(passes_watermark)         /* a watermark is emitted among the entries around it */ \
    X(watermark_not_finished)   /* a watermark waits for a result that nobody gives it */ \
    X(slot_not_freed)           /* the slot of an entry that was emitted is not used again */ \
    X(snapshot_forgets_restored) /* a snapshot leaves out what is still to be restored */ \
    X(restore_shuffles)         /* restored entries are admitted in the wrong order */ \
    X(restored_called_again)    /* a restored entry that has its result is given out to be called */ \
    X(put_overtakes_restored)   /* new input goes in before what is still to be restored */ \
    X(clear_without_waiting)    /* a clear frees slots whose completions have won and still push them */ \
    X(running_beyond_size)      /* what has left before its completion was counted still runs by the counts */ \
    X(finished_in_reverse)      /* what finished last is emitted first */ \
    X(taken_in_two_steps)       /* a clear or a close looks at an entry first and takes it then */ \
    X(weak_put)                 /* memory order: a put does not publish its slot */ \
    X(weak_complete)            /* memory order: a completion neither sees its slot nor publishes the result */ \
    X(weak_finish)              /* memory order: the push of a finished slot publishes nothing */ \
    X(weak_collect)             /* memory order: the owner does not see what was pushed */ \
    X(weak_emit)                /* memory order: an ordered emission does not see the result */ \
    X(weak_snapshot)            /* memory order: a snapshot does not see the result */ \
    X(weak_take)                /* memory order: a clear or a close does not see the result */ \
    /* the hand-over */ \
    X(handover_put_without_wake) /* a put does not wake the sleeping consumer */ \
    X(put_forgets_armed)        /* a put does not call the consumer's armed wake-up */ \
    X(put_after_finish)         /* an item goes in after the end of the input */ \
    X(one_item_too_many)        /* one item more than allowed waits */ \
    X(bytes_not_counted)        /* an item that goes in adds nothing to the bytes that wait */ \
    X(bytes_stay_counted)       /* an item that is taken out leaves its bytes counted */ \
    X(take_without_wake)        /* a take that makes room does not wake the sleeping producer */ \
    X(failure_overtakes)        /* a failure comes out before the items that went in before it */ \
    X(finish_without_wake)      /* the end of the input does not wake the sleeping consumer */ \
    X(close_without_wake)       /* close does not wake the sleeping producers */ \
    X(wake_up_forgotten)        /* a wake-up that meets no sleeping consumer is lost */
// clang-format on

namespace pillarbox {

enum class Defect : int {
    none,
#define PILLARBOX_DEFECT_NAME(name) name,
    PILLARBOX_DEFECT_LIST(PILLARBOX_DEFECT_NAME)
#undef PILLARBOX_DEFECT_NAME
};

#if defined(PILLARBOX_DEFECT)
constexpr Defect planted = Defect::PILLARBOX_DEFECT;
#elif defined(PILLARBOX_DEFECTS)
inline Defect named_defect(const char* name) {
    if (name == nullptr || *name == '\0') return Defect::none;
#define PILLARBOX_DEFECT_NAMED(defect) \
    if (std::strcmp(name, #defect) == 0) return Defect::defect;
    PILLARBOX_DEFECT_LIST(PILLARBOX_DEFECT_NAMED)
#undef PILLARBOX_DEFECT_NAMED
    std::abort();
}
inline const Defect planted = named_defect(std::getenv("PILLARBOX_DEFECT"));
#else
constexpr Defect planted = Defect::none;
#endif

}  // namespace pillarbox

// Whether this build has the defect planted.
#define PILLARBOX_PLANTED(name) (::pillarbox::planted == ::pillarbox::Defect::name)

// The first form; the second where the defect is planted.
#define PILLARBOX_SEEDED(name, right, wrong) (PILLARBOX_PLANTED(name) ? (wrong) : (right))

// A memory order; relaxed where a build with PILLARBOX_DEFECT weakens it.
#ifdef PILLARBOX_DEFECTS
#define PILLARBOX_ORDER(defect, right) std::memory_order_##right
#else
#define PILLARBOX_ORDER(defect, right) \
    PILLARBOX_SEEDED(defect, std::memory_order_##right, std::memory_order_relaxed)
#endif
