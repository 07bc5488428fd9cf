---------------------------- MODULE StreamSegments ----------------------------
(* Where the rows of one bucket of `async_stream` are, with a ledger: pillarbox.spark.stream.payload. `StreamState`   *)
(* says what the states are; here, which segments they name, and which of these are deleted.                          *)
(*                                                                                                                    *)
(* An execution of a micro-batch writes the bucket's part of the input into segments of its own (Write, Sync), reads  *)
(* the state that the micro-batch before has committed (Open), the rows that wait in it and those of its input, and   *)
(* writes a version of the next state (Record), in which other rows may have finished than in another version. Then,  *)
(* in each micro-batch whose count says so, it deletes (Delete); the rows of its outputs are read until its end.      *)
(* The state that counts is that of any execution (Log). The driver may die at each step, a task fail or be given up, *)
(* and some go on then: with what they have read, for any time. Each execution may cut the input into other tasks.    *)
(*                                                                                                                    *)
(* Delete is one step, at any moment after Record: which segments go is settled by what was read, so those that are   *)
(* listed early and removed late are among them. The clock is set back only while no given-up task goes on: where one *)
(* does, it would delete what a later micro-batch has named for an earlier time (mutant "set back under a late task").*)
EXTENDS Integers, Sequences, FiniteSets

CONSTANTS
    Input,      \* of each micro-batch: how many rows it reads
    Tasks,      \* numbers of tasks that the input may be cut into
    Kept,       \* whether outputs have columns of their rows
    Ordered,    \* whether an output waits for the rows in front of it
    Interval,   \* states from one deletion to the next
    Executions, \* executions of a micro-batch, at most, those that are made again among them
    Failures,   \* tasks that fail, restarts and losses of power, at most
    Zombies,    \* tasks at a time that go on although they were given up, at most
    Setbacks,   \* how often the clock may be set back
    Mutant

VARIABLES
    batch, time,    \* the micro-batch, and its time, which replays keep
    phase,          \* idle, running
    committed,      \* the state that counts: entries, and a count modulo Interval
    versions,       \* what executions of this micro-batch have written
    tasks,          \* executions that have not ended
    begun,          \* executions of this micro-batch
    complete,       \* whether one has come to its end in this run of the driver
    disk,           \* segment -> the rows in it
    loose,          \* segments that a loss of power would take
    failures, setbacks,
    doomed,         \* what this micro-batch has to delete
    since,          \* micro-batches since the last one that had to delete
    copies          \* versions that executors have kept of the state that counts; of a mutant only

vars == <<batch, time, phase, committed, versions, tasks, begun, complete, disk, loose, failures, setbacks, doomed,
          since, copies>>

(* For the configurations, which know no sequences.                                                                   *)
Short == <<1, 0, 0>>
Pair == <<2, 0>>
Two == <<1, 1, 0>>

Least(numbers) == CHOOSE m \in numbers : \A k \in numbers : m <= k
Later(r, q) == r[1] > q[1] \/ (r[1] = q[1] /\ r[2] > q[2])

(* An entry of a state is a row that waits, or an output: blocked, or leaving next. An output without columns of its  *)
(* row names no segment.                                                                                              *)
Names(entry) == Kept \/ entry.is = "waits"
Named(entries) == {e \in entries : Names(e)}
Empty == [entries |-> {}, count |-> 0]
Oldest(entries, now) == Least({now} \cup {e.segment.time : e \in Named(entries)})
IsDue(state) == state.count = 0 /\ ~(Mutant = "an empty bucket deletes nothing" /\ state.entries = {})
IsThere(e) == e.segment \in DOMAIN disk /\ e.row \in disk[e.segment]

TypeOK ==
    /\ batch \in 0..Len(Input) /\ time \in Nat /\ phase \in {"idle", "running"}
    /\ \A state \in versions \cup {committed} :
        state.count \in 0..(Interval - 1) /\ \A e \in state.entries : e.is \in {"waits", "blocked", "leaves"}
    /\ \A t \in tasks : t.step \in {"begins", "writes", "packed", "open", "recorded", "deleted"}
    /\ loose \subseteq DOMAIN disk

Init ==
    /\ batch = 0 /\ time = 0 /\ phase = "idle" /\ committed = Empty /\ versions = {} /\ tasks = {} /\ begun = 0
    /\ complete = FALSE /\ disk = [s \in {} |-> {}] /\ loose = {} /\ failures = 0 /\ setbacks = 0 /\ doomed = {}
    /\ since = 0 /\ copies = {}

-----------------------------------------------------------------------------
(* A micro-batch that opens the bucket. Two may have the same time.                                                   *)
Begin ==
    /\ phase = "idle" /\ batch < Len(Input) /\ phase' = "running" /\ batch' = batch + 1 /\ begun' = 0
    /\ \/ time' = time + 1 /\ UNCHANGED setbacks
       \/ /\ setbacks < Setbacks /\ setbacks' = setbacks + 1
          /\ tasks = {} \/ Mutant = "set back under a late task"
          /\ time' \in 0..time
    /\ doomed' = {s \in DOMAIN disk : IsDue(committed) /\ s.time < Oldest(committed.entries, time')}
    /\ UNCHANGED <<committed, versions, tasks, complete, disk, loose, failures, since, copies>>

(* The segments of an execution, for each of the tasks that pack one.                                                 *)
Segment(number, part) ==
    [time |-> time, batch |-> batch, part |-> part,
     number |-> IF Mutant = "named by micro-batch and task" THEN 0 ELSE number]

Execute ==
    /\ phase = "running" /\ begun < Executions /\ begun' = begun + 1
    /\ \E parts \in Tasks :
        tasks' = tasks \cup {[number |-> begun + 1, batch |-> batch, time |-> time, step |-> "begins", given |-> FALSE,
            base |-> committed, wrote |-> {},
            input |-> {[row |-> <<batch, k>>, segment |-> Segment(begun + 1, k % parts), is |-> "waits"]
                         : k \in 1..Input[batch]}]}
    /\ UNCHANGED <<batch, time, phase, committed, versions, complete, disk, loose, failures, setbacks, doomed, since,
                   copies>>

Own(t) == {e.segment : e \in t.input}
Becomes(t, new) == tasks' = (tasks \ {t}) \cup {new}

Write ==
  \E t \in tasks :
    /\ t.step = "begins"
    /\ Becomes(t, [t EXCEPT !.step = IF Mutant = "not synced" THEN "packed" ELSE "writes"])
    /\ disk' = [s \in DOMAIN disk \cup Own(t) |->
                    IF s \in Own(t) THEN {e.row : e \in {f \in t.input : f.segment = s}} ELSE disk[s]]
    /\ loose' = loose \cup Own(t)
    /\ UNCHANGED <<batch, time, phase, committed, versions, begun, complete, failures, setbacks, doomed, since, copies>>

Sync ==
  \E t \in tasks :
    /\ t.step = "writes" /\ Becomes(t, [t EXCEPT !.step = "packed"]) /\ loose' = loose \ Own(t)
    /\ UNCHANGED <<batch, time, phase, committed, versions, begun, complete, disk, failures, setbacks, doomed, since,
                   copies>>

IsLate(t) == t.batch < batch \/ phase = "idle"
Readable == IF Mutant = "reads its own copy" /\ copies # {} THEN copies ELSE {committed}

(* A late task reads what was committed before its own micro-batch.                                                   *)
Open ==
  \E t \in tasks :
    /\ t.step = "packed"
    /\ \E base \in Readable : Becomes(t, [t EXCEPT !.step = "open", !.base = IF IsLate(t) THEN @ ELSE base])
    /\ UNCHANGED <<batch, time, phase, committed, versions, begun, complete, disk, loose, failures, setbacks, doomed,
                   since, copies>>

(* What leaves has left. Of the rows that wait any may have finished.                                                 *)
Record ==
  \E t \in tasks :
    /\ t.step = "open"
    /\ LET all == {e \in t.base.entries : e.is # "leaves"} \cup t.input
       IN \E finished \in SUBSET {e \in all : e.is = "waits"} :
        LET waiting == {e \in all : e.is = "waits"} \ finished
            goes(e) == ~Ordered \/ ~\E w \in waiting : Later(e.row, w.row)
            entries == waiting \cup {[e EXCEPT !.is = IF goes(e) THEN "leaves" ELSE "blocked"] : e \in all \ waiting}
            version == IF entries = {} THEN Empty
                       ELSE [entries |-> entries, count |-> (t.base.count + 1) % Interval]
        IN  /\ versions' = IF IsLate(t) THEN versions ELSE versions \cup {version}
            \* What comes after the commit changes nothing where versions have names of their own.
            /\ committed' = IF Mutant = "written after the commit" /\ IsLate(t)
                               /\ t.batch = (IF phase = "idle" THEN batch ELSE batch - 1)
                            THEN version ELSE committed
            /\ Becomes(t, [t EXCEPT !.step = "recorded",
                                    !.wrote = IF Mutant = "deletes by its own state" THEN version.entries ELSE {}])
    /\ UNCHANGED <<batch, time, phase, begun, complete, disk, loose, failures, setbacks, doomed, since, copies>>

Before(t) ==
    CASE Mutant = "deletes by its own state" -> Oldest(t.wrote, t.time)
      [] Mutant = "deletes all that is older than the micro-batch" -> t.time
      [] Mutant = "outputs do not count" -> Oldest({e \in t.base.entries : e.is = "waits"}, t.time)
      [] Mutant = "its input does not count" /\ Named(t.base.entries) # {} ->
            Least({e.segment.time : e \in Named(t.base.entries)})
      [] Mutant = "deletes by the time of its end" -> Oldest(t.base.entries, time)
      [] OTHER -> Oldest(t.base.entries, t.time)

Delete ==
  \E t \in tasks :
    /\ t.step = "recorded" /\ Becomes(t, [t EXCEPT !.step = "deleted"])
    /\ LET left == {s \in DOMAIN disk :
                       \/ ~IsDue(t.base)
                       \/ s.time >= Before(t)
                       \/ Mutant = "deletes its own segments only" /\ s.number # t.number}
       IN disk' = [s \in left |-> disk[s]] /\ loose' = loose \cap left
    /\ UNCHANGED <<batch, time, phase, committed, versions, begun, complete, failures, setbacks, doomed, since, copies>>

End ==
  \E t \in tasks :
    /\ t.step = "deleted" /\ tasks' = tasks \ {t} /\ complete' = (complete \/ ~t.given)
    /\ UNCHANGED <<batch, time, phase, committed, versions, begun, disk, loose, failures, setbacks, doomed, since,
                   copies>>

(* Of those that are given up a few go on.                                                                            *)
Linger(given) ==
    \E some \in SUBSET {[t EXCEPT !.given = TRUE] : t \in given} : Cardinality(some) <= Zombies /\ tasks' = some

Log ==
    /\ phase = "running" /\ complete /\ phase' = "idle" /\ complete' = FALSE
    /\ committed' \in versions
    /\ copies' = IF Mutant = "reads its own copy" THEN versions ELSE {}
    /\ versions' = {} /\ Linger(tasks)
    /\ since' = IF IsDue(committed) THEN 0 ELSE since + 1
    /\ UNCHANGED <<batch, time, begun, disk, loose, failures, setbacks, doomed>>

-----------------------------------------------------------------------------
MayFail == failures < Failures /\ failures' = failures + 1

(* A task fails, or takes long. What was packed for it is there still, for another attempt.                           *)
Fail ==
  \E t \in tasks :
    /\ MayFail /\ ~t.given
    /\ \E left \in SUBSET {[t EXCEPT !.given = TRUE]},
          again \in SUBSET {[t EXCEPT !.number = begun + 1, !.step = "packed", !.wrote = {}]} :
        /\ Cardinality({s \in tasks : s.given} \cup left) <= Zombies
        /\ again # {} => t.step \notin {"begins", "writes"} /\ begun < Executions
        /\ tasks' = (tasks \ {t}) \cup left \cup again
        /\ begun' = begun + Cardinality(again)
    /\ UNCHANGED <<batch, time, phase, committed, versions, complete, disk, loose, setbacks, doomed, since, copies>>

Restart ==
    /\ MayFail /\ Linger(tasks) /\ complete' = FALSE /\ begun' = begun
    /\ UNCHANGED <<batch, time, phase, committed, versions, disk, loose, setbacks, doomed, since, copies>>

LosePower ==
    /\ MayFail /\ tasks' = {} /\ complete' = FALSE
    /\ disk' = [s \in DOMAIN disk \ loose |-> disk[s]] /\ loose' = {}
    /\ UNCHANGED <<batch, time, phase, committed, versions, begun, setbacks, doomed, since, copies>>

Next ==
    \/ Begin \/ Execute \/ Write \/ Sync \/ Open \/ Record \/ Delete \/ End \/ Log \/ Fail \/ Restart \/ LosePower

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
(* The rows that the committed state names are there, and so are those of each version that may be committed next.    *)
StateIsWhole == \A state \in versions \cup {committed} : \A e \in Named(state.entries) : IsThere(e)

IsOfUse(t) == ~t.given /\ ~IsLate(t)

(* The rows that an execution may have called are there while it does: those that wait in its state, and its input.   *)
ExecutionsReadRows ==
    \A t \in tasks : IsOfUse(t) /\ t.step = "open" =>
        \A e \in t.input \cup {f \in t.base.entries : f.is = "waits"} : IsThere(e)

(* The rows of what an execution emits are there until its end, whoever deletes.                                      *)
OutputsReadRows ==
    \A t \in tasks : IsOfUse(t) /\ t.step \in {"open", "recorded", "deleted"} =>
        \A e \in Named({f \in t.base.entries : f.is = "leaves"}) : IsThere(e)

(* A micro-batch that has to delete leaves nothing that is older than all that the state before it names.             *)
OldAreDeleted == phase = "idle" => doomed \cap DOMAIN disk = {}

(* Of the micro-batches that open the bucket, one in an interval has to delete.                                       *)
DeletesInTime == since < Interval
=============================================================================
