--------------------------- MODULE HandoverChecks ---------------------------
(* What has to hold of Handover: each property by its name, as the         *)
(* manifest names it. TLC runs this module.                                *)
EXTENDS Handover

Range(sequence) == {sequence[i] : i \in 1..Len(sequence)}

AllItems == {10 * p + k : p \in Producers, k \in 1..PerProducer}

TypeOK ==
    /\ Range(items) \subseteq AllItems
    /\ end \in {"running", "ending", "closed"}
    /\ failed \in BOOLEAN /\ woken \in BOOLEAN /\ armedC \in BOOLEAN /\ due \in BOOLEAN
    /\ armedP \in 0..2
    /\ pc \in [Threads -> Places]
    /\ \A t \in Threads :
        owes[t] \subseteq {"consumer", "producers", "armed consumer", "armed producer"}
    /\ sent \in [Producers -> 0..PerProducer]
    /\ raised \in {"nothing", "end", "failure", "closed"}

------------------------------------------------------------------------------
(* Safety. *)

\* What went in has come out, was returned by close, or waits: each once, in the order of going in.
NothingLostOrDuplicated ==
    /\ accepted = taken \o returned \o items
    /\ Cardinality(Range(accepted)) = Len(accepted)

\* A put that says so has left nothing behind, and every put has said one or the other.
PutsSayWhatHappened ==
    /\ refused \cap Range(accepted) = {}
    /\ refused \cup Range(accepted) = {10 * p + k : p \in Producers, k \in 1..PerProducer}
                                        \cap {i \in AllItems : i % 10 <= sent[i \div 10]}

\* The items of one producer come out in the order in which it put them.
FifoPerProducer ==
    \A j \in 1..Len(taken) : \A i \in 1..(j - 1) :
        taken[i] \div 10 = taken[j] \div 10 => taken[i] < taken[j]

\* Never more items than allowed, and more bytes only by a single item that came when nothing waited.
BoundsHold ==
    /\ Len(items) <= MaxItems
    /\ Len(items) > 1 => Sum(items) <= MaxBytes

\* Nobody is told that there is no room when nothing waits.
EmptyTakesAny ==
    [][\A p \in Producers : pc[p] = "ready" /\ pc'[p] = "stuck" => items # <<>>]_vars

\* A take that a wake_up ends had nothing to take. (Arming may answer a wake_up although there is something.)
NoneOnlyWhenNothing ==
    [][Consumer \notin Armed /\ woken /\ ~woken' => items = <<>> /\ end = "running"]_vars

\* The end, and a failure, reach the consumer after everything that went in before.
FailureAfterItems == raised # "nothing" => items = <<>>

\* A take says truly how the input has ended: closed here, failed, or at its plain end.
EndIsToldTruly ==
    /\ raised = "closed" => end = "closed"
    /\ raised = "failure" => end = "ending" /\ failed
    /\ raised = "end" => end = "ending" /\ ~failed

\* Close drops what is armed: a wake-up that nothing can call any more would be kept for nothing.
NothingArmedAfterClose == end = "closed" => ~armedC /\ armedP = 0

\* After close nothing waits, and nothing goes in.
NothingAfterClose == end = "closed" => items = <<>>

\* A wake_up that has not been answered is remembered.
WakeUpKept == due => woken

\* A wake_up that has been answered is not answered again: the consumer would never sleep.
WokenHasCause == woken => due

\* Whether a sleeper has a reason to be awake.
ConsumerHasReason == items # <<>> \/ end # "running" \/ due

RoomNow(item) ==
    items = <<>> \/ (Len(items) < MaxItems /\ Sum(items) + Size(item) <= MaxBytes)

ProducerHasReason(p) == end # "running" \/ RoomNow(Item(p))

Owed(what) == \E t \in Threads : what \in owes[t]

\* Nobody sleeps who has a reason not to, unless somebody is about to wake him.
NoLostWakeUp ==
    /\ pc[Consumer] = "asleep" /\ ConsumerHasReason => Owed("consumer")
    /\ \A p \in Producers : pc[p] = "asleep" /\ ProducerHasReason(p) => Owed("producers")

\* The same for those who sleep elsewhere: their wake-up is armed or about to be called. While a producer
\* waits for room, the end of the input is not a reason: only close is.
NoLostCall ==
    /\ pc[Consumer] = "elsewhere" => Owed("armed consumer") \/ (armedC /\ ~ConsumerHasReason)
    /\ \A p \in Producers : pc[p] = "elsewhere" =>
        \/ Owed("armed producer")
        \/ armedP = Size(Item(p)) /\ end # "closed" /\ ~RoomNow(Item(p))

------------------------------------------------------------------------------
(* Liveness. *)

\* Whoever sleeps and has a reason to be awake wakes up, or the reason goes away.
SleepersWake ==
    /\ (pc[Consumer] = "asleep" /\ ConsumerHasReason) ~> (pc[Consumer] # "asleep")
    /\ \A p \in Producers :
        (pc[p] = "asleep" /\ ProducerHasReason(p)) ~> (pc[p] # "asleep" \/ ~ProducerHasReason(p))

\* All puts return, and the consumer learns of the end.
EverybodyEnds == <>AllDone
=============================================================================
