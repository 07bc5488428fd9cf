----------------------------- MODULE SinkCommit -----------------------------
(* The two-phase commit of a job's sink with the job's checkpoints: pillarbox.job. Rows are read, called and leave     *)
(* the task in any order; a barrier cuts what has left; the job's thread writes rows to the sink, prepares them at a   *)
(* cut, writes the checkpoint to disk, commits, and removes older checkpoints. The process may die between any two     *)
(* steps. What a sink has prepared survives that (Survives: hidden files), or does not (a transaction of Kafka, which  *)
(* is aborted, and which commits the number of its checkpoint as well).                                               *)
EXTENDS Integers, Sequences, FiniteSets

CONSTANTS
    Rows,       \* rows of the source
    Survives,   \* what was prepared survives the process
    Barriers,   \* barriers of one life, at most, besides the last one
    Crashes,
    Aborts,     \* checkpoints that cannot be written
    Mutant

VARIABLES
    life,       \* "down", "up", "ended"
    read,       \* rows that were read
    held,       \* rows that were read and have not left: they are called, or have a result
    queue,      \* what has left and the job's thread has not taken: rows and cuts
    open,       \* rows written since the last cut
    prepared,   \* parts prepared and not committed, oldest first
    step,       \* of the job's thread: "serves", "prepared", "durable", "committed"
    now,        \* the checkpoint that it is at
    hidden,     \* in the sink: parts prepared, not visible
    visible,    \* how often each row is visible
    mark,       \* the number that the last committed transaction has committed as well
    disk,       \* checkpoints that are durable
    id,         \* of the next one
    barriers,
    crashes,
    aborts,
    kept        \* rows that a complete checkpoint has: no call of theirs is made again

task == <<read, held>>
thread == <<open, prepared, step, now>>
sink == <<hidden, visible, mark>>
counts == <<crashes, aborts>>
vars == <<life, task, queue, thread, sink, disk, id, barriers, counts, kept>>

None == [id |-> 0, read |-> 0, held |-> {}, last |-> FALSE]
RowsOf(parts) == UNION {parts[i].rows : i \in DOMAIN parts}
Seen(rows) == [r \in 1..Rows |-> visible[r] + (IF r \in rows THEN 1 ELSE 0)]
Newest == CHOOSE c \in disk : \A other \in disk : other.id <= c.id
Cuts == {i \in DOMAIN queue : queue[i].kind = "cut"}

Init ==
    /\ life = "down" /\ read = 0 /\ held = {} /\ queue = <<>> /\ open = {} /\ prepared = <<>> /\ step = "serves"
    /\ now = None /\ hidden = {} /\ visible = [r \in 1..Rows |-> 0] /\ mark = 0 /\ disk = {} /\ id = 1
    /\ barriers = 0 /\ crashes = 0 /\ aborts = 0 /\ kept = {}

-----------------------------------------------------------------------------
(* The task.                                                                                                        *)
Read ==
    /\ life = "up" /\ read < Rows
    /\ read' = read + 1 /\ held' = held \cup {read + 1}
    /\ UNCHANGED <<life, queue, thread, sink, disk, id, barriers, counts, kept>>

Leave ==
    /\ life = "up"
    /\ \E r \in held : held' = held \ {r} /\ queue' = Append(queue, [kind |-> "row", row |-> r])
    /\ UNCHANGED <<life, read, thread, sink, disk, id, barriers, counts, kept>>

Cut(last) ==
    /\ life = "up" /\ step = "serves" /\ Cuts = {}
    /\ queue' = Append(queue, [kind |-> "cut", id |-> id, read |-> read, held |-> held, last |-> last])
    /\ id' = id + 1
    /\ UNCHANGED <<life, task, thread, sink, disk, counts, kept>>

Barrier == barriers < Barriers /\ barriers' = barriers + 1 /\ Cut(FALSE)

(* The source has been read to its end, and all rows have left.                                                      *)
Finish == read = Rows /\ held = {} /\ Cut(TRUE) /\ UNCHANGED barriers

-----------------------------------------------------------------------------
(* The job's thread: what has left comes in its order.                                                              *)
WriteRow(i) ==
    /\ open' = open \cup {queue[i].row}
    /\ queue' = SubSeq(queue, 1, i - 1) \o SubSeq(queue, i + 1, Len(queue))
    /\ UNCHANGED <<life, task, prepared, step, now, sink, disk, id, barriers, counts, kept>>

Write ==
    /\ life = "up" /\ step = "serves" /\ queue # <<>>
    /\ \/ Head(queue).kind = "row" /\ WriteRow(1)
       \/ /\ Mutant = "rows pass the barrier"
          /\ \E i \in DOMAIN queue : queue[i].kind = "row" /\ WriteRow(i)

Prepare ==
    /\ life = "up" /\ step = "serves" /\ queue # <<>> /\ Head(queue).kind = "cut"
    /\ LET cut == Head(queue)
           part == [id |-> cut.id, rows |-> open]
       IN  /\ now' = [id |-> cut.id, read |-> cut.read, held |-> cut.held, last |-> cut.last]
           /\ prepared' = IF open = {} THEN prepared ELSE Append(prepared, part)
           /\ hidden' = IF open = {} THEN hidden ELSE hidden \cup {part}
    /\ open' = {} /\ queue' = Tail(queue) /\ step' = "prepared"
    /\ UNCHANGED <<life, task, visible, mark, disk, id, barriers, counts, kept>>

Checkpoint == [id |-> now.id, read |-> now.read, held |-> now.held, last |-> now.last,
               parts |-> prepared, known |-> FALSE]

Persist ==
    /\ life = "up" /\ (step = "prepared" \/ (Mutant = "commits before it is durable" /\ step = "seen"))
    /\ disk' = (IF Mutant = "the older one goes when it is durable" THEN {} ELSE disk) \cup {Checkpoint}
    /\ step' = IF step = "seen" THEN "committed" ELSE "durable"
    /\ UNCHANGED <<life, task, queue, open, prepared, now, sink, id, barriers, counts, kept>>

(* It cannot be written: the job goes on, and what was prepared is committed with the next one.                       *)
Abort ==
    /\ life = "up" /\ step = "prepared" /\ ~now.last /\ aborts < Aborts
    /\ aborts' = aborts + 1 /\ step' = "serves"
    /\ prepared' = IF Mutant = "aborted rows are dropped" THEN <<>> ELSE prepared
    /\ UNCHANGED <<life, task, queue, open, now, sink, disk, id, barriers, crashes, kept>>

(* Files get their names one by one; a transaction commits as a whole, with the number.                              *)
Commit ==
    /\ life = "up" /\ step = (IF Mutant = "commits before it is durable" THEN "prepared" ELSE "durable")
    /\ LET parts == IF Survives /\ prepared # <<>> THEN <<Head(prepared)>> ELSE prepared
           left == IF Survives /\ prepared # <<>> THEN Tail(prepared) ELSE <<>>
       IN  /\ visible' = Seen(RowsOf(parts))
           /\ hidden' = hidden \ {parts[i] : i \in DOMAIN parts}
           /\ mark' = IF parts = <<>> THEN mark ELSE parts[Len(parts)].id
           /\ prepared' = left
           /\ step' = IF left # <<>> THEN step
                      ELSE IF Mutant = "commits before it is durable" THEN "seen" ELSE "committed"
    /\ UNCHANGED <<life, task, queue, open, now, disk, id, barriers, counts, kept>>

Retire ==
    /\ life = "up" /\ step = "committed"
    /\ disk' = {[c EXCEPT !.known = TRUE] : c \in {c \in disk : c.id >= now.id}}
    /\ kept' = kept \cup ((1..now.read) \ now.held)
    /\ step' = "serves" /\ life' = IF now.last THEN "ended" ELSE "up"
    /\ UNCHANGED <<task, queue, open, prepared, now, sink, id, barriers, counts>>

-----------------------------------------------------------------------------
(* The process dies, and starts again.                                                                              *)
Crash ==
    /\ life = "up" /\ crashes < Crashes /\ crashes' = crashes + 1
    /\ life' = "down" /\ read' = 0 /\ held' = {} /\ queue' = <<>> /\ open' = {} /\ prepared' = <<>>
    /\ step' = "serves" /\ now' = None
    /\ hidden' = IF Survives THEN hidden ELSE {}
    /\ UNCHANGED <<visible, mark, disk, id, barriers, aborts, kept>>

Begin(c) ==
    /\ life' = IF c.last THEN "ended" ELSE "up"
    /\ read' = c.read /\ held' = c.held /\ id' = c.id + 1 /\ barriers' = 0
    /\ UNCHANGED <<queue, thread, counts>>

Listed(c) == {c.parts[i] : i \in DOMAIN c.parts}

(* What the checkpoint has prepared is committed, as far as it is not; everything else that is hidden goes.            *)
RecoverFiles(c) ==
    LET found == IF Mutant = "a restart commits all it finds" THEN hidden
                 ELSE IF Mutant = "a restart commits nothing" THEN {}
                 ELSE hidden \cap Listed(c)
    IN  visible' = Seen(UNION {part.rows : part \in found}) /\ hidden' = {} /\ UNCHANGED mark

IsCommitted(c) == IF c.known \/ c.parts = <<>> THEN TRUE ELSE mark >= c.parts[Len(c.parts)].id

Recover ==
    /\ life = "down" /\ disk # {}
    /\ LET c == Newest
       IN  /\ Begin(c)
           /\ disk' = {[c EXCEPT !.known = TRUE]}
           /\ kept' = kept \cup ((1..c.read) \ c.held)
           /\ IF Survives THEN RecoverFiles(c)
              ELSE /\ IsCommitted(c) \/ Mutant = "goes on after an aborted transaction"
                   /\ UNCHANGED sink

(* The rows of the newest checkpoint are lost with their transaction: the one before it counts.                      *)
GoBack ==
    /\ life = "down" /\ disk # {} /\ ~Survives /\ ~IsCommitted(Newest)
    /\ Mutant # "goes on after an aborted transaction" /\ Mutant # "never goes back"
    /\ disk' = disk \ {Newest}
    /\ UNCHANGED <<life, task, queue, thread, sink, id, barriers, counts, kept>>

StartAnew ==
    /\ life = "down" /\ disk = {}
    /\ Begin(None)
    /\ hidden' = {} /\ UNCHANGED <<visible, mark, disk, kept>>

-----------------------------------------------------------------------------
Next ==
    \/ Read \/ Leave \/ Barrier \/ Finish \/ Write \/ Prepare \/ Persist \/ Abort \/ Commit \/ Retire
    \/ Crash \/ Recover \/ GoBack \/ StartAnew
Spec == Init /\ [][Next]_vars
FairSpec ==
    /\ Spec
    /\ WF_vars(Read) /\ WF_vars(Leave) /\ WF_vars(Finish) /\ WF_vars(Write) /\ WF_vars(Prepare)
    /\ WF_vars(Persist) /\ WF_vars(Commit) /\ WF_vars(Retire)
    /\ WF_vars(Recover) /\ WF_vars(GoBack) /\ WF_vars(StartAnew)

-----------------------------------------------------------------------------
TypeOK ==
    /\ life \in {"down", "up", "ended"} /\ read \in 0..Rows /\ held \subseteq 1..read
    /\ step \in {"serves", "prepared", "durable", "committed", "seen"} /\ open \subseteq 1..Rows
    /\ Cardinality(disk) <= 2

(* No row is in the sink twice.                                                                                     *)
EachRowOnce == \A r \in 1..Rows : visible[r] <= 1

(* At the end each row is in the sink.                                                                              *)
NothingLost == life = "ended" => \A r \in 1..Rows : visible[r] = 1

(* No call is made again whose result a complete checkpoint has.                                                    *)
NotCalledAgain == life = "up" => held \cap kept = {} /\ \A r \in kept : r <= read

(* A row that is visible is behind a durable checkpoint: no restart makes it anew.                                   *)
VisibleIsDurable == \A r \in 1..Rows : visible[r] > 0 => \E c \in disk : r <= c.read /\ r \notin c.held

(* The job comes to its end, however often it dies.                                                                 *)
EverybodyEnds == <>(life = "ended")
=============================================================================
