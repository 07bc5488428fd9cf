------------------------- MODULE ResultQueueChecks -------------------------
(* What has to hold of ResultQueue: each property by its name, as the      *)
(* manifest names it. TLC runs this module.                                *)
EXTENDS ResultQueue

Range(sequence) == {sequence[i] : i \in 1..Len(sequence)}

Increasing(numbers) == \A i \in 1..(Len(numbers) - 1) : numbers[i] < numbers[i + 1]

AllPositions == 1..Length

\* Every entry that there is: held, to be restored, or in a snapshot.
AllEntries == Range(queue) \cup Range(rest) \cup Range(saved.entries)
                  \cup UNION {Range(s.entries) : s \in Range(pending)}

TypeOK ==
    /\ next \in 0..(Length + 1)
    /\ door \in {<<>>} \cup {<<p>> : p \in AllPositions}
    /\ \A e \in AllEntries :
        /\ e.pos \in AllPositions /\ e.slot \in 0..(Capacity + Length) /\ e.attempt \in 0..Attempts
        /\ e.done = (e.result # None)
    /\ \A c \in calls :
        /\ c.pos \in AllPositions \ Marks /\ c.slot \in 1..(Capacity + Length) /\ c.attempt \in 1..Attempts
        /\ c.answer \in 1..Answers /\ c.at \in {"calling", "looked", "set"}
    /\ mail \in BOOLEAN
    /\ task \in {"idle", "emitting", "clearing"}
    /\ Len(hand) <= 1
    /\ committed \in 0..Len(output)
    /\ taken \in 0..Snapshots
    /\ crashes \in 0..Crashes
    /\ phase \in {"running", "draining", "quiesced", "done", "closed", "down"}

------------------------------------------------------------------------------
(* Safety. *)

\* Never more entries than the capacity, not even by restoring.
CapacityNeverExceeded == Len(queue) <= Capacity

\* What is held, then what is to be restored, then what waits at the door: always in input order.
RestoredInOrder == Increasing(Positions(queue) \o Positions(rest) \o door)

\* A result belongs to its entry, and to the attempt that was the present one when it came.
StaleHandleHasNoEffect ==
    \A e \in AllEntries :
        e.done /\ ~IsMark(e) =>
            e.result[1] = e.pos /\ (e.result = TimedOut(e.pos) \/ e.result[2] = e.attempt)

\* Whatever comes after the first completion changes nothing.
FirstCompletionWins == \A e \in AllEntries : e.result = e.first

\* Entries with a result in the snapshot that was restored are not called.
NotCalledAgain == \A c \in calls : c.pos \notin kept

\* In ordered mode the output is the input, in its order.
OrderedOutput == Ordered => \A i \in 1..Len(output) : output[i].pos = i

\* A watermark comes out after everything before it and before everything after it.
NoRecordPassesWatermark ==
    \A j \in 1..Len(output) : \A i \in 1..(j - 1) :
        output[i].pos \in Marks \/ output[j].pos \in Marks => output[i].pos < output[j].pos

\* A snapshot and the output before it have every position that had been read exactly once between
\* them, the snapshot in input order; and it keeps the result of what was finished.
CompleteSnapshot(s) ==
    LET before == {output[i].pos : i \in 1..s.out}
        inside == Range(Positions(s.entries))
    IN  /\ before \cap inside = {}
        /\ before \cup inside = 1..(s.next - 1)
        /\ Increasing(Positions(s.entries))
        /\ s.finished \subseteq FinishedIn(s.entries)

SnapshotComplete == \A s \in Range(pending) \cup {saved} : CompleteSnapshot(s)

\* In what is committed no position is twice; at the end every one is there, once.
ExactlyOnceCommitted ==
    LET positions == {output[i].pos : i \in 1..committed}
    IN  /\ Cardinality(positions) = committed
        /\ phase = "done" => positions = AllPositions

\* What is committed is what was emitted before the acknowledged snapshot, nothing later.
CommittedWithSnapshot == phase # "done" => committed = saved.out

\* The end of input has waited for everything.
QuiesceAfterDrain ==
    phase \in {"quiesced", "done"} =>
        queue = <<>> /\ rest = <<>> /\ door = <<>> /\ Range(Positions(output)) = AllPositions

\* If something may go, then the task knows it, or a thread is about to tell it.
EmissionArmed ==
    Live /\ Ready(queue) # {} => mail \/ task = "emitting" \/ \E c \in calls : c.at = "set"

\* Close leaves nothing behind: what was held, what was still to be restored, and what waited at the door.
CloseLeavesNothing ==
    phase = "closed" => queue = <<>> /\ rest = <<>> /\ door = <<>> /\ hand = <<>> /\ pending = <<>>

\* Nothing is emitted when close has returned.
NoEmissionAfterClose == [][phase = "closed" => output' = output]_vars

\* What is committed stays as it is.
CommittedStays ==
    [][committed' >= committed /\ SubSeq(output', 1, committed) = SubSeq(output, 1, committed)]_vars

------------------------------------------------------------------------------
(* Liveness. *)

Emitted(p) == \E i \in 1..Len(output) : output[i].pos = p

\* What is in flight comes out, unless a crash or a cancel comes between.
EverythingEmitted ==
    \A p \in AllPositions :
        p \in Range(Positions(queue)) ~> Emitted(p) \/ phase \in {"closed", "down"}

\* The end of the input is reached and committed, unless the operator is cancelled.
InputEnds == <>(phase \in {"done", "closed"})
=============================================================================
