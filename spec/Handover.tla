------------------------------ MODULE Handover ------------------------------
(* The bounded passage between producers and one consumer. Every step that *)
(* holds the lock is one step here; waking sleepers and calling armed      *)
(* wake-ups happen after the lock, as steps of their own (Deliver). What   *)
(* has to hold is in HandoverChecks.                                       *)
(*                                                                         *)
(* Methods of the kernel's Handover: Put, PutAtEnd, PutFindsNoRoom,        *)
(* PutSleeps and PutTimesOut are put and try_put; Finish finish, Fail      *)
(* fail, ArmProducer arm_wakeup_producer; Take and its kin take and        *)
(* try_take, TakeAll take_all, Close close, WakeUp wake_up, ArmConsumer    *)
(* arm_wakeup_consumer.                                                    *)
(*                                                                         *)
(* An item is a number: 21 is the first item of producer 2. The threads    *)
(* are the producers, the consumer 0, and one that only calls wake_up, 9.  *)
EXTENDS Naturals, Sequences, FiniteSets

CONSTANTS
    Producers,   \* a set of numbers from 1 to 8
    PerProducer, \* items that each producer puts
    Large,       \* items of two bytes, the others have one
    MaxItems,
    MaxBytes,
    Armed,       \* threads that do not sleep in put and take but arm a wake-up and sleep elsewhere
    Both,        \* whether the consumer, if in Armed, may sleep in a take too, even with a wake-up armed
    GiveUp,      \* whether puts and takes may time out (that is also try_put and try_take)
    Slices,      \* whether a sleeper may look again without having been woken
    Closes,      \* whether the consumer may close
    Wakes,       \* most calls of wake_up
    Mutant       \* the name of the planted mistake, "none" for the specification itself

VARIABLES
    items,       \* what waits, oldest first
    end,         \* "running", "ending" (after finish or fail), or "closed"
    failed,      \* whether the input ended with a failure
    woken,       \* a wake_up that no take has answered yet
    armedC,      \* whether the consumer's wake-up is armed
    armedP,      \* the bytes for which the producer's wake-up is armed; 0: it is not
    pc,          \* where each thread is: see below
    owes,        \* what each thread still does after its last locked step
    sent,        \* how many puts of each producer have returned
    wakes,       \* calls of wake_up so far
    accepted,    \* history: items that went in, in that order
    refused,     \* history: items whose put returned False or raised
    taken,       \* history: items that takes returned, in that order
    returned,    \* history: items that close returned
    raised,      \* history: what ended the takes: "nothing", "end", "failure", "closed"
    due          \* history: whether a call of wake_up is to be answered

vars == <<items, end, failed, woken, armedC, armedP, pc, owes, sent, wakes, accepted, refused, taken,
          returned, raised, due>>

Consumer == 0
Waker == 9
Threads == Producers \cup {Consumer, Waker}

\* Where a thread can be: between two calls or about to try; having found no room or no item; asleep under
\* the lock; asleep elsewhere with a wake-up armed; at the end; and for one mutant, about to append.
Places == {"ready", "stuck", "asleep", "elsewhere", "done", "late"}

Item(p) == 10 * p + sent[p] + 1
Size(item) == IF item \in Large THEN 2 ELSE 1

RECURSIVE Sum(_)
Sum(list) == IF list = <<>> THEN 0 ELSE Size(Head(list)) + Sum(Tail(list))

RoomFor(list, bytes) ==
    \/ list = <<>> /\ Mutant # "empty_refuses_large"
    \/ /\ Len(list) < MaxItems + (IF Mutant = "items_off_by_one" THEN 1 ELSE 0)
       /\ Mutant = "bytes_not_counted" \/ Sum(list) + bytes <= MaxBytes

HasRoom(bytes) == RoomFor(items, bytes)

Free(t) == owes[t] = {}
At(t, place) == pc[t] = place /\ Free(t)
Goes(t, place) == pc' = [pc EXCEPT ![t] = place]
Sleeping(t) == pc[t] = "asleep"

WakeConsumer == IF Sleeping(Consumer) THEN {"consumer"} ELSE {}
WakeProducers == IF \E p \in Producers : Sleeping(p) THEN {"producers"} ELSE {}
CallConsumer == IF armedC /\ Mutant # "armed_not_called" THEN {"armed consumer"} ELSE {}

\* What a step owes that leaves `left` to wait.
AfterTaking(left) ==
    WakeProducers \cup (IF armedP # 0 /\ RoomFor(left, armedP) THEN {"armed producer"} ELSE {})

StaysArmed(left) == IF armedP # 0 /\ RoomFor(left, armedP) THEN 0 ELSE armedP

Owes(t, what) == owes' = [owes EXCEPT ![t] = what]

------------------------------------------------------------------------------
(* Producers. *)

PutAccepted(p) ==
    /\ items' = Append(items, Item(p)) /\ accepted' = Append(accepted, Item(p))
    /\ Owes(p, WakeConsumer \cup CallConsumer) /\ armedC' = FALSE
    /\ sent' = [sent EXCEPT ![p] = @ + 1]
    /\ UNCHANGED <<end, failed, woken, armedP, wakes, refused, taken, returned, raised, due>>

PutRefused(p) ==
    /\ refused' = refused \cup {Item(p)}
    /\ sent' = [sent EXCEPT ![p] = @ + 1] /\ Goes(p, "ready")
    /\ UNCHANGED <<items, end, failed, woken, armedC, armedP, owes, wakes, accepted, taken, returned,
                   raised, due>>

MayAppend(p) ==
    /\ end = "running" \/ (Mutant = "put_after_close" /\ end = "closed")
    /\ HasRoom(Size(Item(p)))

Put(p) ==
    /\ At(p, "ready") /\ sent[p] < PerProducer /\ MayAppend(p) /\ Mutant # "wake_before_append"
    /\ PutAccepted(p) /\ UNCHANGED pc

\* The input has been ended, or the consumer has gone: the put raises, or returns False.
PutAtEnd(p) ==
    /\ At(p, "ready") /\ sent[p] < PerProducer /\ end # "running" /\ ~MayAppend(p)
    /\ PutRefused(p)

PutFindsNoRoom(p) ==
    /\ At(p, "ready") /\ sent[p] < PerProducer /\ end = "running" /\ ~MayAppend(p)
    /\ Goes(p, "stuck")
    /\ UNCHANGED <<items, end, failed, woken, armedC, armedP, owes, sent, wakes, accepted, refused,
                   taken, returned, raised, due>>

\* The lock has been given up in between, so look again before going to sleep.
PutSleeps(p) ==
    /\ At(p, "stuck") /\ p \notin Armed
    /\ Goes(p, IF (end = "running" /\ ~HasRoom(Size(Item(p)))) \/ Mutant = "put_sleeps_unlooked"
               THEN "asleep" ELSE "ready")
    /\ UNCHANGED <<items, end, failed, woken, armedC, armedP, owes, sent, wakes, accepted, refused,
                   taken, returned, raised, due>>

PutTimesOut(p) ==
    /\ GiveUp /\ At(p, "stuck") /\ Mutant # "timed_out_put_stays"
    /\ PutRefused(p)

ArmProducer(p) ==
    /\ At(p, "stuck") /\ p \in Armed
    /\ IF end # "closed" /\ ~HasRoom(Size(Item(p)))
       THEN armedP' = Size(Item(p)) /\ Goes(p, "elsewhere")
       ELSE Goes(p, "ready") /\ UNCHANGED armedP
    /\ UNCHANGED <<items, end, failed, woken, armedC, owes, sent, wakes, accepted, refused, taken,
                   returned, raised, due>>

\* The first producer ends the input when it has put all of its items; the others just leave.
EndInput(p, failure) ==
    /\ At(p, "ready") /\ sent[p] = PerProducer /\ p = 1
    /\ Goes(p, "done")
    /\ IF end = "running"
       THEN /\ end' = "ending" /\ failed' = failure /\ armedC' = FALSE
            /\ Owes(p, IF Mutant = "finish_does_not_wake" THEN CallConsumer
                       ELSE WakeConsumer \cup WakeProducers \cup CallConsumer)
       ELSE UNCHANGED <<end, failed, armedC, owes>>
    /\ UNCHANGED <<items, woken, armedP, sent, wakes, accepted, refused, taken, returned, raised, due>>

Finish(p) == EndInput(p, FALSE)
Fail(p) == EndInput(p, TRUE)

Leave(p) ==
    /\ At(p, "ready") /\ sent[p] = PerProducer /\ p # 1
    /\ Goes(p, "done")
    /\ UNCHANGED <<items, end, failed, woken, armedC, armedP, owes, sent, wakes, accepted, refused,
                   taken, returned, raised, due>>

------------------------------------------------------------------------------
(* The consumer. *)

Overtakes == Mutant = "failure_overtakes" /\ failed

\* Takes out what comes before `left`.
TakeOut(out, left) ==
    /\ At(Consumer, "ready") /\ items # <<>> /\ ~Overtakes
    /\ taken' = taken \o out /\ items' = left
    /\ Owes(Consumer, AfterTaking(left)) /\ armedP' = StaysArmed(left)
    /\ woken' = (woken /\ Mutant # "item_answers_wake_up")
    /\ UNCHANGED <<end, failed, armedC, pc, sent, wakes, accepted, refused, returned, raised, due>>

Take == TakeOut(SubSeq(items, 1, 1), SubSeq(items, 2, Len(items)))

TakeAll ==
    TakeOut(IF Mutant = "take_all_reversed" THEN [i \in 1..Len(items) |-> items[Len(items) + 1 - i]]
            ELSE items, <<>>)

TakeAtEnd ==
    /\ At(Consumer, "ready") /\ (items = <<>> \/ Overtakes) /\ end # "running"
    /\ raised' = CASE end = "closed" \/ Mutant = "end_told_as_closed" -> "closed"
                   [] failed /\ Mutant # "failure_told_as_end" -> "failure"
                   [] OTHER -> "end"
    /\ Goes(Consumer, "done")
    /\ UNCHANGED <<items, end, failed, woken, armedC, armedP, owes, sent, wakes, accepted, refused,
                   taken, returned, due>>

TakeFindsNothing ==
    /\ At(Consumer, "ready") /\ items = <<>> /\ end = "running"
    /\ Goes(Consumer, "stuck")
    /\ UNCHANGED <<items, end, failed, woken, armedC, armedP, owes, sent, wakes, accepted, refused,
                   taken, returned, raised, due>>

MaySleep == At(Consumer, "stuck") /\ (Consumer \notin Armed \/ Both)
Idle == items = <<>> /\ end = "running"

\* If there is something to take after all, it is taken, and a wake_up is kept for the next take.
TakeSleeps ==
    /\ MaySleep /\ ~(woken /\ Idle)
    /\ Goes(Consumer, IF Idle \/ Mutant = "take_sleeps_unlooked" THEN "asleep" ELSE "ready")
    /\ UNCHANGED <<items, end, failed, woken, armedC, armedP, owes, sent, wakes, accepted, refused,
                   taken, returned, raised, due>>

\* The take returns None.
TakeIsWoken ==
    /\ MaySleep /\ woken /\ (Idle \/ Mutant = "wake_up_hides_item")
    /\ Goes(Consumer, "ready") /\ woken' = (Mutant = "wake_up_answered_again") /\ due' = FALSE
    /\ UNCHANGED <<items, end, failed, armedC, armedP, owes, sent, wakes, accepted, refused, taken,
                   returned, raised>>

\* The take returns None too, and answers no wake_up.
TakeTimesOut ==
    /\ GiveUp /\ At(Consumer, "stuck")
    /\ Goes(Consumer, "ready")
    /\ UNCHANGED <<items, end, failed, woken, armedC, armedP, owes, sent, wakes, accepted, refused,
                   taken, returned, raised, due>>

\* Arming returns False if there is something to do; one wake_up is answered by that.
ArmConsumer ==
    /\ At(Consumer, "stuck") /\ Consumer \in Armed
    /\ IF Idle /\ ~woken
       THEN armedC' = TRUE /\ Goes(Consumer, "elsewhere")
       ELSE Goes(Consumer, "ready") /\ UNCHANGED armedC
    /\ woken' = FALSE /\ due' = FALSE
    /\ UNCHANGED <<items, end, failed, armedP, owes, sent, wakes, accepted, refused, taken, returned,
                   raised>>

Close ==
    /\ Closes /\ At(Consumer, "ready") /\ end # "closed"
    /\ end' = "closed" /\ items' = <<>> /\ armedC' = (armedC /\ Mutant = "close_leaves_armed") /\ armedP' = 0
    /\ returned' = IF Mutant = "close_loses_items" THEN <<>> ELSE items
    /\ Owes(Consumer, (IF Mutant = "close_does_not_wake" THEN {} ELSE WakeProducers)
                          \cup (IF armedP # 0 THEN {"armed producer"} ELSE {}))
    /\ UNCHANGED <<failed, woken, pc, sent, wakes, accepted, refused, taken, raised, due>>

------------------------------------------------------------------------------
(* wake_up, and what a thread does after the lock. *)

\* Answered by the take that sleeps; else by the call of an armed wake-up; else by the next take that would
\* sleep. A take that is only about to sleep is none that sleeps.
WakeUp ==
    /\ Free(Waker) /\ wakes < Wakes
    /\ wakes' = wakes + 1 /\ armedC' = FALSE /\ due' = (~armedC \/ Sleeping(Consumer))
    /\ woken' = CASE Mutant = "wake_up_forgotten" -> ~armedC /\ Sleeping(Consumer)
                  [] Mutant = "armed_answers_sleeper" -> ~armedC
                  [] OTHER -> ~armedC \/ Sleeping(Consumer)
    /\ Owes(Waker, WakeConsumer \cup CallConsumer)
    /\ UNCHANGED <<items, end, failed, armedP, pc, sent, accepted, refused, taken, returned, raised>>

\* The threads that one notification wakes.
Woken(what) ==
    CASE what = "consumer" -> {{Consumer} \cap {t \in Threads : Sleeping(t)}}
      [] what = "producers" ->
            LET all == {p \in Producers : Sleeping(p)}
            IN  IF Mutant = "take_wakes_one" /\ all # {} THEN {{p} : p \in all} ELSE {all}
      [] what = "armed consumer" -> {{Consumer} \cap {t \in Threads : pc[t] = "elsewhere"}}
      [] OTHER -> {{p \in Producers : pc[p] = "elsewhere"}}

Deliver(t) ==
    /\ \E what \in owes[t] :
        /\ owes' = [owes EXCEPT ![t] = @ \ {what}]
        /\ \E those \in Woken(what) :
            pc' = [u \in Threads |-> IF u \in those THEN "ready" ELSE pc[u]]
    /\ UNCHANGED <<items, end, failed, woken, armedC, armedP, sent, wakes, accepted, refused, taken,
                   returned, raised, due>>

\* The end of a slice of sleep; or the consumer has another reason to look, and its wake-up stays armed.
LooksAgain(t) ==
    /\ Slices /\ (Sleeping(t) \/ (Both /\ t = Consumer /\ pc[t] = "elsewhere"))
    /\ Goes(t, "ready")
    /\ UNCHANGED <<items, end, failed, woken, armedC, armedP, owes, sent, wakes, accepted, refused,
                   taken, returned, raised, due>>

\* "wake_before_append": the sleeper is woken first, and finds nothing.
WakeFirst(p) ==
    /\ Mutant = "wake_before_append"
    /\ At(p, "ready") /\ sent[p] < PerProducer /\ MayAppend(p)
    /\ Goes(p, "late") /\ Owes(p, WakeConsumer)
    /\ UNCHANGED <<items, end, failed, woken, armedC, armedP, sent, wakes, accepted, refused, taken,
                   returned, raised, due>>

AppendLate(p) ==
    /\ At(p, "late")
    /\ items' = Append(items, Item(p)) /\ accepted' = Append(accepted, Item(p))
    /\ sent' = [sent EXCEPT ![p] = @ + 1] /\ Goes(p, "ready")
    /\ UNCHANGED <<end, failed, woken, armedC, armedP, owes, wakes, refused, taken, returned, raised,
                   due>>

\* "timed_out_put_stays": what the put says is not what it did.
TimedOutPutStays(p) ==
    /\ Mutant = "timed_out_put_stays" /\ GiveUp /\ At(p, "stuck")
    /\ items' = Append(items, Item(p)) /\ accepted' = Append(accepted, Item(p))
    /\ refused' = refused \cup {Item(p)}
    /\ sent' = [sent EXCEPT ![p] = @ + 1] /\ Goes(p, "ready")
    /\ UNCHANGED <<end, failed, woken, armedC, armedP, owes, wakes, taken, returned, raised, due>>

------------------------------------------------------------------------------

Init ==
    /\ items = <<>> /\ end = "running" /\ failed = FALSE /\ woken = FALSE
    /\ armedC = FALSE /\ armedP = 0 /\ pc = [t \in Threads |-> "ready"]
    /\ owes = [t \in Threads |-> {}] /\ sent = [p \in Producers |-> 0] /\ wakes = 0
    /\ accepted = <<>> /\ refused = {} /\ taken = <<>> /\ returned = <<>> /\ raised = "nothing"
    /\ due = FALSE

OfProducer(p) ==
    \/ Put(p) \/ PutAtEnd(p) \/ PutFindsNoRoom(p) \/ PutSleeps(p) \/ PutTimesOut(p) \/ ArmProducer(p)
    \/ Finish(p) \/ Fail(p) \/ Leave(p) \/ WakeFirst(p) \/ AppendLate(p)
    \/ TimedOutPutStays(p)

OfConsumer ==
    \/ Take \/ TakeAll \/ TakeAtEnd \/ TakeFindsNothing \/ TakeSleeps \/ TakeIsWoken \/ TakeTimesOut
    \/ ArmConsumer \/ Close

AllDone == \A t \in Producers \cup {Consumer} : pc[t] = "done" /\ Free(t)

\* At the end nothing has to happen any more. A mutant may get stuck before.
Ended == (AllDone \/ Mutant # "none") /\ UNCHANGED vars

Next ==
    \/ \E p \in Producers : OfProducer(p)
    \/ OfConsumer \/ WakeUp
    \/ \E t \in Threads : Deliver(t) \/ LooksAgain(t)
    \/ Ended

\* Producers and consumer go on; nobody needs to call wake_up or close, or to end a slice.
Fairness ==
    /\ \A p \in Producers : WF_vars(OfProducer(p))
    /\ WF_vars(OfConsumer)
    /\ \A t \in Threads : WF_vars(Deliver(t))

Spec == Init /\ [][Next]_vars /\ Fairness
=============================================================================
