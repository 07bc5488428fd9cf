----------------------------- MODULE PartitionLog -----------------------------
(* A batch read on Spark. Each partition has a log of splits, beside the driver. A task asks for what comes next by   *)
(* its place: what stands there in the log, or else a split that waits, which is appended first, or the end, after    *)
(* which the log is closed. Spark runs a partition more than once: after a failure, speculatively, because an output  *)
(* is lost, for a later job over the same plan. All see the same log, so each split is in the output of one partition *)
(* and it is the same each time. Splits are found while the read goes on. pillarbox.sources.split_coordinator.        *)
EXTENDS Naturals, FiniteSets \* not Sequences, whose Append is another

CONSTANTS
    Splits,     \* how many there are; they are found in order
    Partitions, \* how many
    Jobs,       \* over the one plan, one after the other
    Slots,      \* attempts at a time
    Failures,   \* attempts that die and outputs that are lost together, at most
    Mutant

VARIABLES
    found,      \* splits 1 to `found` are known
    waiting,    \* of these: in no log
    log, closed,\* of each partition
    attempt,    \* in each slot: partition, job, what it has read, whether it was told the end; job 0: none
    output,     \* of each job and partition: what was committed, or None
    (* history *)
    outputs,    \* of each partition: all that were ever committed, lost ones included
    failures

vars == <<found, waiting, log, closed, attempt, output, outputs, failures>>

Parts == 1..Partitions
Free == [job |-> 0, part |-> 1, read |-> <<>>, ended |-> FALSE]
None == <<0>> \* no split is called 0
Runs(a) == attempt[a].job # 0
AllFound == found = Splits
JobDone(j) == \A p \in Parts : output[j][p] # None
Range(s) == {s[i] : i \in DOMAIN s}
Len(s) == Cardinality(DOMAIN s)
With(s, x) == [i \in 1..(Len(s) + 1) |-> IF i > Len(s) THEN x ELSE s[i]]

TypeOK ==
    /\ found \in 0..Splits /\ waiting \subseteq 1..found
    /\ \A p \in Parts : Range(log[p]) \subseteq 1..found /\ closed[p] \in BOOLEAN
    /\ \A a \in Slots : attempt[a].job \in 0..Jobs /\ attempt[a].part \in Parts

Init ==
    /\ found = 0 /\ waiting = {} /\ log = [p \in Parts |-> <<>>] /\ closed = [p \in Parts |-> FALSE]
    /\ attempt = [a \in Slots |-> Free] /\ output = [j \in 1..Jobs |-> [p \in Parts |-> None]]
    /\ outputs = [p \in Parts |-> {}] /\ failures = 0

-----------------------------------------------------------------------------
Discover ==
    /\ ~AllFound /\ found' = found + 1 /\ waiting' = waiting \cup {found + 1}
    /\ UNCHANGED <<log, closed, attempt, output, outputs, failures>>

(* Spark starts an attempt where no output is, whether or not another one runs.                                      *)
Start(a, j, p) ==
    /\ ~Runs(a) /\ output[j][p] = None /\ \A i \in 1..(j - 1) : JobDone(i)
    /\ attempt' = [attempt EXCEPT ![a] = [Free EXCEPT !.job = j, !.part = p]]
    /\ \E anew \in {FALSE, Mutant = "two logs"} :
        /\ log' = [q \in Parts |-> IF anew THEN <<>> ELSE log[q]]
        /\ closed' = [q \in Parts |-> closed[q] /\ ~anew]
        /\ waiting' = IF anew THEN 1..found ELSE waiting
    /\ UNCHANGED <<found, output, outputs, failures>>

(* The three answers to "what is next in this partition, at this place?"                                             *)
Asks(a) == Runs(a) /\ ~attempt[a].ended
Log(a) == log[attempt[a].part]
Place(a) == Len(attempt[a].read) + 1
InLog(a) == Place(a) <= Len(Log(a)) /\ Mutant # "each attempt gets its own"
Gets(a, s) == attempt' = [attempt EXCEPT ![a].read = With(@, s)]
IsToldTheEnd(a) == attempt' = [attempt EXCEPT ![a].ended = TRUE]

Replay(a) ==
    /\ Asks(a)
    /\ \/ InLog(a) /\ Gets(a, Log(a)[Place(a)])
       \/ ~InLog(a) /\ closed[attempt[a].part] /\ IsToldTheEnd(a)
    /\ UNCHANGED <<found, waiting, log, closed, output, outputs, failures>>

Append(a) ==
    /\ Asks(a) /\ ~InLog(a) /\ ~closed[attempt[a].part]
    /\ \E s \in waiting :
        /\ log' = [log EXCEPT ![attempt[a].part] = With(@, s)]
        /\ waiting' = waiting \ {s}
        /\ Gets(a, s) \/ UNCHANGED attempt \* the answer is lost: it asks again, and finds it in the log
    /\ UNCHANGED <<found, closed, output, outputs, failures>>

(* Nothing waits. What is found later goes into a log that is still open: the last one stays so until all is found.   *)
Close(a) ==
    LET p == attempt[a].part
    IN  /\ Asks(a) /\ ~InLog(a) /\ ~closed[p] /\ waiting = {}
        /\ AllFound \/ Mutant = "the last closes early" \/ \E q \in Parts \ {p} : ~closed[q]
        /\ Mutant = "the end waits for the others" => \A q \in Parts \ {p} : closed[q]
        /\ closed' = IF Mutant = "close forgotten" THEN closed ELSE [closed EXCEPT ![p] = TRUE]
        /\ IsToldTheEnd(a)
        /\ UNCHANGED <<found, waiting, log, output, outputs, failures>>

(* The first attempt that ends gives the output; what comes later is thrown away.                                    *)
Commit(a) ==
    LET j == attempt[a].job
        p == attempt[a].part
    IN  /\ Runs(a) /\ attempt[a].ended
        /\ IF output[j][p] = None
           THEN /\ output' = [output EXCEPT ![j][p] = attempt[a].read]
                /\ outputs' = [outputs EXCEPT ![p] = @ \cup {attempt[a].read}]
           ELSE UNCHANGED <<output, outputs>>
        /\ attempt' = [attempt EXCEPT ![a] = Free]
        /\ UNCHANGED <<found, waiting, log, closed, failures>>

-----------------------------------------------------------------------------
MayFail == failures < Failures /\ failures' = failures + 1

(* Nothing goes back: what the attempt has read stands in the log, for the next one.                                 *)
AttemptDies(a) ==
    /\ Runs(a) /\ MayFail
    /\ attempt' = [attempt EXCEPT ![a] = Free]
    /\ waiting' = IF Mutant = "goes back with the dead" THEN waiting \cup Range(attempt[a].read) ELSE waiting
    /\ UNCHANGED <<found, log, closed, output, outputs>>

(* An executor is lost, and with it an output that others may have used in part.                                     *)
Lose(j, p) ==
    /\ output[j][p] # None /\ MayFail
    /\ output' = [output EXCEPT ![j][p] = None]
    /\ UNCHANGED <<found, waiting, log, closed, attempt, outputs>>

Asked(a) == Replay(a) \/ Append(a) \/ Close(a)
Next ==
    \/ Discover
    \/ \E a \in Slots : Replay(a) \/ Append(a) \/ Close(a) \/ Commit(a) \/ AttemptDies(a)
    \/ \E j \in 1..Jobs, p \in Parts : Lose(j, p) \/ \E a \in Slots : Start(a, j, p)
Spec == Init /\ [][Next]_vars
Starts(j, p) == \E a \in Slots : Start(a, j, p)
FairSpec ==
    /\ Spec /\ WF_vars(Discover)
    /\ \A a \in Slots : WF_vars(Asked(a)) /\ WF_vars(Commit(a))
    /\ \A j \in 1..Jobs, p \in Parts : SF_vars(Starts(j, p))

-----------------------------------------------------------------------------
(* In the output of a job no split is twice, and when it is done none is missing.                                    *)
NothingTwice ==
    \A j \in 1..Jobs : \A p, q \in Parts : \A i \in DOMAIN output[j][p], k \in DOMAIN output[j][q] :
        output[j][p] # None /\ output[j][q] # None /\ output[j][p][i] = output[j][q][k] => p = q /\ i = k
NothingLost ==
    \A j \in 1..Jobs : JobDone(j) => \A s \in 1..Splits : \E p \in Parts : s \in Range(output[j][p])

(* Whichever attempt of whichever job gives it, a partition's output is the same: who has used a part of one that     *)
(* was lost goes on with the next.                                                                                   *)
SameEachTime == \A p \in Parts : Cardinality(outputs[p]) <= 1

(* Every job ends, although an attempt may have to wait for splits that are still to be found.                       *)
JobsEnd == <>(\A j \in 1..Jobs : JobDone(j))
=============================================================================
