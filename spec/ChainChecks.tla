---------------------------- MODULE ChainChecks ----------------------------
(* What has to hold of Chain: each property by its name, as the manifest names it. TLC runs this module.            *)
EXTENDS Chain

TypeOK ==
    /\ next \in 0..(Max + 1) /\ phase \in {"running", "down", "closed", "done"}
    /\ \A i \in Operators :
        /\ \A k \in DOMAIN t.link[i] : t.link[i][k].at \in DOMAIN t.link[i][k].rows
        /\ \A k \in DOMAIN t.queue[i] : t.queue[i][k].state \in {"waiting", "running", "pausing", "done"}
        /\ \A k \in DOMAIN t.rest[i] : t.rest[i][k].state \in {"waiting", "pausing", "done"}
    /\ t.asked \subseteq Operators /\ t.waiting \subseteq {0} \cup Operators /\ t.asked \cap t.waiting = {}
    /\ t.moving \in BOOLEAN /\ t.watch \in {"no", "due", "armed", "mail"}
    /\ t.finished \in 0..2 /\ t.told \in {t.finished, t.finished + 1}
    /\ snapshots \in 0..Snapshots /\ crashes \in 0..Crashes

-----------------------------------------------------------------------------
(* A world: everything that was read, at one instant or in one snapshot.                                           *)
World == [next |-> next, link |-> t.link, queue |-> [i \in Operators |-> t.queue[i] \o t.rest[i]],
          out |-> output \o t.chunk, dropped |-> h.dropped]
SavedWorld == [next |-> saved.next, link |-> saved.link, queue |-> saved.queue,
               out |-> SubSeq(output, 1, saved.out) \o saved.chunk, dropped |-> saved.dropped]

RECURSIVE OnLink(_)
OnLink(link) == IF link = <<>> THEN <<>> ELSE RowsLeft(Head(link)) \o OnLink(Tail(link))
RowsOf(queue) == [k \in DOMAIN queue |-> queue[k].row]
Behind(w, i) == RowsOf(w.queue[i]) \o OnLink(w.link[i])

(* From the output back to the input.                                                                              *)
Everything(w) == w.out \o Behind(w, 2) \o Behind(w, 1)

Count(rows, p, o) == Cardinality({k \in DOMAIN rows : rows[k].pos = p /\ rows[k].ord = o})

Whole(w) ==
    \A p \in (1..Length) \ Marks :
        LET before == Count(Behind(w, 1), p, 0)
            behind(o) == Count(w.out \o Behind(w, 2), p, o) + (IF <<2, p, o>> \in w.dropped THEN 1 ELSE 0)
            dropped == <<1, p, 0>> \in w.dropped
            results(failed, width) == behind(0) = failed /\ \A o \in 1..2 : behind(o) = (IF o <= width THEN 1 ELSE 0)
        IN  \/ p < w.next /\ before = 1 /\ ~dropped /\ results(0, 0)
            \/ p < w.next /\ before = 0 /\ ~dropped /\ (results(0, Width(p)) \/ results(1, 0))
            \/ p < w.next /\ before = 0 /\ dropped /\ results(0, 0)
            \/ p >= w.next /\ before = 0 /\ ~dropped /\ results(0, 0)

(* Each row that was read is in front of the first operator or in it, once; or its results are behind it, each once:  *)
(* as many as it has, or one that failed, or none where failed rows are dropped.                                    *)
EachRowOnce == phase \in {"running", "done"} => Whole(World)

(* The same holds of a snapshot and the output before it.                                                           *)
SnapshotComplete == Whole(SavedWorld)

(* At the end the consumer has everything, and behind it the mark of the end, once.                                  *)
EndsWithMax ==
    phase = "done" =>
        /\ Behind(World, 1) = <<>> /\ Behind(World, 2) = <<>>
        /\ output # <<>> /\ output[Len(output)].pos = Max /\ Count(output, Max, 0) = 1

(* No window ever has more entries than it may, those of marks and of restored rows included, nor has the output.     *)
CapacityNeverExceeded == Len(t.chunk) <= OutputRoom /\ \A i \in Operators : Len(t.queue[i]) <= Window(i)

Before(a, b) == a.pos < b.pos \/ (a.pos = b.pos /\ a.ord <= b.ord)

(* Where both operators keep the order, everything is in the order of the input, from the output to the first link.   *)
OrderKept ==
    Ordered = Operators => \A k, l \in DOMAIN Everything(World) :
        k < l => Before(Everything(World)[k], Everything(World)[l])

(* A mark stays between what came before it and what came after it, at every place of the chain.                     *)
NoRecordPassesWatermark ==
    LET all == Everything(World)
    IN  \A k, l \in DOMAIN all : k < l /\ (IsMark(all[k]) \/ IsMark(all[l])) => all[k].pos <= all[l].pos

(* Of the marks that were before a row, the newest is before it still.                                              *)
WatermarksArrive ==
    LET all == Everything(World)
    IN  \A l \in DOMAIN all : \A m \in Marks : ~IsMark(all[l]) /\ m < all[l].pos =>
            \E k \in 1..(l - 1) : IsMark(all[k]) /\ m <= all[k].pos

-----------------------------------------------------------------------------
(* Between two actions nobody waits for room that is there, unless the mail that says so is on its way; for that of   *)
(* the output it is on its way, or will be.                                                                         *)
NoLostWakeUp ==
    Runs => /\ t.watch = "mail" \/ \A j \in t.waiting : ~IsAvailable(t, j + 1)
            /\ 2 \in t.waiting => t.watch \in {"armed", "mail"}

(* For what may go, the emission has been asked for, or waits for room.                                             *)
EmissionArmed == Runs => \A i \in Operators : Ready(i, t.queue[i]) # {} => i \in t.asked \cup t.waiting

(* An operator hears of the end of its input when nothing is on its link, nor to come.                               *)
EndAfterLink == phase = "running" => \A i \in Operators : t.told >= i => t.link[i] = <<>> /\ next > Max

(* An operator has finished when everything has come out of it, retries included.                                    *)
FinishAfterDrain ==
    phase = "running" => \A i \in Operators : t.finished >= i => t.queue[i] = <<>> /\ t.rest[i] = <<>>

(* What an operator holds, then what is to be restored, then its link: always in the order in which it came.         *)
RestoredInOrder ==
    \A i \in Operators : (i = 1 \/ 1 \in Ordered) => \A k, l \in DOMAIN Behind(World, i) :
        k < l => Before(Behind(World, i)[k], Behind(World, i)[l])

(* What has a result is not called, neither in this life nor, if the snapshot has it, in the next.                   *)
NotCalledAgain == ~h.again

(* No attempt begins before the pause after the one before is over, whatever is restored.                            *)
PausesKept == ~h.early

(* A row has no more attempts than it may have, whatever is restored.                                               *)
AttemptsKept == \A i \in Operators : \A key \in Keys : h.past[i][key].failures <= Attempts

(* A row has no more time than it may have, whatever is restored; time between snapshot and restore does not count.   *)
TimeKept == \A i \in Operators : \A key \in Keys : h.past[i][key].spent <= TimeoutParts

(* A result comes from a call of the life in which its entry was called.                                            *)
OwnLifeCompletes == \A i \in Operators : \A k \in DOMAIN t.queue[i] : t.queue[i][k].by = t.queue[i][k].life

(* A row that failed for good is not called by the next operator, and stays one that failed.                         *)
FailedIsNotCalled ==
    \A k \in DOMAIN t.queue[2] : ~t.queue[2][k].row.ok => Done(t.queue[2][k]) /\ ~t.queue[2][k].ok

(* A row that is dropped goes no further.                                                                           *)
DroppedGoesNoFurther ==
    LET behind == World.out \o Behind(World, 2) IN Drop => \A k \in DOMAIN behind : behind[k].ok

-----------------------------------------------------------------------------
(* Nothing goes on a link, or into the output, that has no room; but for the mark of the end of the input.           *)
EmittedWithRoom ==
    [][phase = "running" =>
        /\ Len(t'.link[1]) > Len(t.link[1]) => IsAvailable(t, 1) \/ next' > Max
        /\ Len(t'.link[2]) > Len(t.link[2]) => IsAvailable(t, 2)
        /\ Len(t'.chunk) > Len(t.chunk) => IsAvailable(t, 3)]_vars

(* Nothing leaves an operator of a task that was stopped.                                                           *)
NothingAfterStop == [][phase = "closed" => t'.link = t.link /\ t'.chunk = t.chunk /\ output' = output]_vars

(* The task comes to its end, however little room there is.                                                        *)
InputEnds == <>(phase \in {"done", "closed"})
=============================================================================
