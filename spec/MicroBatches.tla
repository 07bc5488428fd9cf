----------------------------- MODULE MicroBatches -----------------------------
(* A stream of micro-batches on Spark. The reader plans one: the offset behind it, which says what the enumerator     *)
(* knows, where each open split goes on, and which slices are read. Spark writes the offset down, has the slices read *)
(* by as many tasks as there are, writes down that the micro-batch is done, and then says so. All may crash at any    *)
(* step; what was written down and not done is done again, by a new reader, perhaps with fewer tasks, while splits    *)
(* grow and others appear. What the service was told is done it may throw away. pillarbox.spark.source: stream,       *)
(* planning, offsets.                                                                                                 *)
EXTENDS Naturals, FiniteSets

CONSTANTS
    Splits,         \* how many there will be
    Length,         \* records of a split when it is whole
    Limit,          \* records of a micro-batch, at most
    Tasks,          \* at most, and at the first start
    AvailableNow,   \* whether the query reads what is there when it starts, and ends
    Remade,         \* whether splits never end, and the second one comes by the name of the first when that is deleted
    Crashes,        \* crashes and plans that Spark drops together, at most
    Mutant

VARIABLES
    there,          \* of each split: the records that it has by now
    gone,           \* and how many of them the service has been told are done, and throws away
    deleted,        \* splits that somebody has deleted
    up, ended, tasks,
    memory,         \* the reader's: what is known, where open splits go on
    phase,          \* of the micro-batch: idle, planned, logged, ran
    plan,           \* the offset that is planned and not written down
    begin, end,     \* the last two that are written down; the same one when it is done
    target,         \* with availableNow: how far to read each split
    written,        \* what the sink has of the micro-batch that is not done
    committed,      \* what it has of those that are
    (* history *)
    reads,          \* what the runs of this micro-batch have read
    twice, crashes

service == <<there, gone, deleted>>
query == <<up, ended, tasks, target>>
log == <<begin, end>>
sink == <<written, committed, twice>>
vars == <<service, query, memory, phase, plan, log, sink, reads, crashes>>

Names == 1..Splits
All == Names \X (1..Length)
Name(s) == IF Remade THEN 1 ELSE s
Nothing == [s \in {} |-> 0]
Zero == [known |-> {}, open |-> Nothing, slices |-> {}]
StateOf(offset) == [known |-> offset.known, open |-> offset.open]
(* How far a split has been read; one that is known and not open, to its end.                                        *)
Position(state, s) ==
    IF s \in DOMAIN state.open THEN state.open[s]
    ELSE IF s \in deleted THEN there[s]
    ELSE IF s \in state.known /\ ~Remade THEN Length ELSE 0
RecordsOf(slices) == UNION {{<<slice.split, i>> : i \in (slice.from + 1)..slice.to} : slice \in slices}

TypeOK ==
    /\ \A s \in Names : gone[s] <= there[s] /\ there[s] <= Length
    /\ phase \in {"idle", "planned", "logged", "ran"}
    /\ memory.known \cup end.known \subseteq {Name(s) : s \in Names}
    /\ phase = "idle" => begin = end

Init ==
    /\ there = [s \in Names |-> 0] /\ gone = there /\ deleted = {} /\ up = FALSE /\ ended = FALSE /\ tasks = Tasks /\ target = there
    /\ memory = StateOf(Zero) /\ phase = "idle" /\ plan = Zero /\ begin = Zero /\ end = Zero
    /\ written = {} /\ committed = {} /\ reads = {} /\ twice = {} /\ crashes = 0

-----------------------------------------------------------------------------
(* A record comes. The first one makes the split.                                                                    *)
Arrive(s) ==
    /\ s \notin deleted /\ (Remade /\ s = 2 => 1 \in deleted)
    /\ there[s] < Length /\ there' = [there EXCEPT ![s] = @ + 1]
    /\ UNCHANGED <<gone, deleted, query, memory, phase, plan, log, sink, reads, crashes>>

(* When all of it is done: what is deleted earlier is lost, and no reader can help it.                               *)
Delete(s) ==
    /\ Remade /\ s = 1 /\ s \notin deleted /\ there[s] > 0 /\ \A i \in 1..there[s] : <<s, i>> \in committed
    /\ deleted' = deleted \cup {s}
    /\ UNCHANGED <<there, gone, query, memory, phase, plan, log, sink, reads, crashes>>

(* At any moment, whatever becomes of the micro-batch; it counts with the next offset that is planned.               *)
Discover ==
    /\ up /\ ~ended
    /\ Mutant = "discovers once" => memory.known = {}
    /\ \E s \in Names \ deleted :
        /\ Name(s) \notin memory.known
        /\ (IF AvailableNow THEN target[s] ELSE there[s]) > 0
        /\ memory' = [known |-> memory.known \cup {Name(s)},
                      open |-> [t \in DOMAIN memory.open \cup {s} |-> IF t = s THEN 0 ELSE memory.open[t]]]
    /\ UNCHANGED <<service, query, phase, plan, log, sink, reads, crashes>>

(* A split that is deleted is open no more, and its name is not known: in one step, which counts with the next offset *)
(* as well.                                                                                                          *)
LetGo ==
    /\ up /\ ~ended
    /\ \E s \in DOMAIN memory.open :
        /\ s \in deleted \/ (Mutant = "lets go of what waits" /\ Remade /\ memory.open[s] = there[s] /\ phase = "idle")
        /\ memory' = [known |-> IF Mutant = "the name stays known" THEN memory.known ELSE memory.known \ {Name(s)},
                      open |-> [t \in DOMAIN memory.open \ (IF Mutant = "the split stays open" THEN {} ELSE {s})
                                  |-> memory.open[t]]]
    /\ UNCHANGED <<service, query, phase, plan, log, sink, reads, crashes>>

(* Slices of open splits, as many as the limit allows, and the offset behind them. If there is nothing to read, there *)
(* is no offset and no micro-batch, but for the first one: where splits begin is kept from then on.                  *)
Bound(s) == IF AvailableNow /\ Mutant # "reads what came since" THEN target[s] ELSE there[s]
Readable == {s \in DOMAIN memory.open : memory.open[s] < Bound(s)}
Plan ==
    /\ up /\ ~ended /\ phase = "idle"
    /\ \E cut \in [Readable -> 0..Length] :
        LET cuts == {s \in Readable : cut[s] > memory.open[s]}
            slices == {[split |-> s, from |-> memory.open[s], to |-> cut[s]] : s \in cuts}
            read == Cardinality(RecordsOf(slices))
            at(s) == IF s \in Readable THEN cut[s] ELSE memory.open[s]
            open == {s \in DOMAIN memory.open : at(s) < Length \/ Remade}
            kept == IF Mutant = "the offset has what is read only"
                    THEN {s \in open : s \in DOMAIN end.open \/ s \in cuts} ELSE open
        IN  /\ \A s \in Readable : cut[s] \in memory.open[s]..Bound(s)
            /\ slices # {} \/ (end = Zero /\ memory.known # {})
            /\ read <= Limit \/ (Mutant = "a limit for each split" /\ \A x \in slices : x.to - x.from <= Limit)
            /\ plan' = [known |-> memory.known, slices |-> slices, open |-> [s \in kept |-> at(s)]]
            /\ memory' = [known |-> memory.known, open |-> [s \in open |-> at(s)]]
    /\ phase' = "planned"
    /\ UNCHANGED <<service, query, log, sink, reads, crashes>>

LogOffset ==
    /\ up /\ phase = "planned" /\ phase' = "logged"
    /\ end' = plan /\ begin' = end /\ reads' = {}
    /\ plan' = IF Mutant = "the reader remembers the slices" THEN plan ELSE Zero
    /\ UNCHANGED <<service, query, memory, sink, crashes>>

(* What the offset says is read, and nothing else; however many tasks there are, each slice has one. The sink takes   *)
(* the output of all tasks or none, and what a run gives takes the place of what an earlier one has given.           *)
Dealt(slices, task) ==
    LET of == IF Mutant = "dealt out when it was planned" THEN Tasks ELSE tasks
    IN  {slice \in slices : (slice.split - 1) % of = task - 1}
Run ==
    /\ up /\ phase = "logged" /\ phase' = "ran"
    /\ LET now == {[split |-> s, from |-> Position(begin, s), to |-> there[s]] : s \in end.known}
           slices == CASE Mutant = "reads what is there" -> now
                       [] Mutant = "the reader remembers the slices" -> plan.slices
                       [] OTHER -> end.slices
           read == {record \in UNION {RecordsOf(Dealt(slices, task)) : task \in 1..tasks} : record[2] > gone[record[1]]}
       IN  written' = read /\ reads' = reads \cup {read}
    /\ UNCHANGED <<service, query, memory, plan, log, committed, twice, crashes>>

(* Spark writes down that it is done.                                                                                *)
SparkCommits ==
    /\ up /\ phase = "ran" /\ phase' = "idle"
    /\ committed' = committed \cup written /\ twice' = twice \cup (committed \cap written) /\ written' = {}
    /\ begin' = end
    /\ UNCHANGED <<service, query, memory, plan, end, reads, crashes>>

(* Spark says so, sooner or later, or never.                                                                         *)
Commit ==
    /\ up
    /\ LET done == IF phase = "logged" /\ Mutant = "said before it is run" THEN end ELSE begin
           said(s) == Position(IF Mutant = "says what is planned" THEN memory ELSE done, s)
       IN  /\ \E s \in Names : said(s) > gone[s]
           /\ gone' = [s \in Names |-> IF said(s) > gone[s] THEN said(s) ELSE gone[s]]
    /\ UNCHANGED <<there, deleted, query, memory, phase, plan, log, sink, reads, crashes>>

-----------------------------------------------------------------------------
MayCrash == crashes < Crashes /\ crashes' = crashes + 1

Crash ==
    /\ up /\ ~ended /\ MayCrash /\ up' = FALSE
    /\ phase' = IF phase \in {"logged", "ran"} THEN "logged" ELSE "idle"
    /\ memory' = StateOf(Zero) /\ plan' = Zero
    /\ UNCHANGED <<service, ended, tasks, target, log, sink, reads>>

(* The query starts, for the first time too: a new reader goes on from the last offset that is written down.          *)
Restart(n) ==
    /\ ~up /\ up' = TRUE
    /\ tasks' = IF end = Zero THEN Tasks ELSE n
    /\ memory' = StateOf(IF Mutant = "goes on from what is done" THEN begin ELSE end)
    /\ target' = IF AvailableNow THEN there ELSE target
    /\ UNCHANGED <<service, ended, phase, plan, log, sink, reads, crashes>>

(* Spark asks once more from the same offset, and the plan before it never was.                                      *)
Drop ==
    /\ up /\ phase = "planned" /\ MayCrash /\ phase' = "idle" /\ plan' = Zero
    /\ memory' = IF Mutant = "goes on from memory" THEN memory ELSE StateOf(end)
    /\ UNCHANGED <<service, query, log, sink, reads>>

(* With `availableNow`.                                                                                              *)
End ==
    /\ up /\ AvailableNow /\ ~ended /\ phase = "idle"
    /\ \/ /\ \A s \in Names : Position(memory, s) >= target[s]
          /\ Mutant = "ends when all splits are whole" => memory.open = Nothing
       \/ Mutant = "ends after a micro-batch" /\ end # Zero
    /\ ended' = TRUE
    /\ UNCHANGED <<service, up, tasks, target, memory, phase, plan, log, sink, reads, crashes>>

Next ==
    \/ Discover \/ LetGo \/ Plan \/ LogOffset \/ Run \/ SparkCommits \/ Commit \/ Crash \/ Drop \/ End
    \/ \E s \in Names : Arrive(s) \/ Delete(s)
    \/ \E n \in 1..Tasks : Restart(n)
Spec == Init /\ [][Next]_vars
Restarts == \E n \in 1..Tasks : Restart(n)
FairSpec ==
    /\ Spec /\ WF_vars(Discover) /\ WF_vars(Plan) /\ WF_vars(LogOffset) /\ WF_vars(Run) /\ WF_vars(SparkCommits)
    /\ WF_vars(Restarts) /\ WF_vars(End) /\ WF_vars(LetGo)
    /\ \A s \in Names : WF_vars(Arrive(s)) /\ WF_vars(Delete(s))

-----------------------------------------------------------------------------
(* No record is in two micro-batches, and what those that are done have passed is in the output.                     *)
NothingTwice == twice = {}
NothingLost == \A record \in All : record[2] <= Position(begin, record[1]) => record \in committed

(* No split is found that is open; and where a state has a split open, its name is known.                             *)
OneOfAName ==
    \A state \in {memory, StateOf(end)} :
        /\ {Name(s) : s \in DOMAIN state.open} \subseteq state.known
        /\ Remade => Cardinality(DOMAIN state.open) <= 1

(* A micro-batch that is done again gives the same.                                                                  *)
SameEachTime == Cardinality(reads) <= 1

(* The service hears that something is done when Spark has it, not earlier.                                          *)
SaidIsDone == \A record \in All : record[2] <= gone[record[1]] => record \in committed

LimitHolds == Cardinality(RecordsOf(plan.slices)) <= Limit /\ Cardinality(RecordsOf(end.slices)) <= Limit

(* With `availableNow`: nothing that came later, and at the end all that was there.                                  *)
TargetHolds == up /\ AvailableNow => \A s \in Names : Position(memory, s) <= target[s]
EndsComplete == ended => \A record \in All : record[2] <= target[record[1]] => record \in committed

EverythingComesOut ==
    <>(\A record \in All : record \in committed \/ (record[1] \in deleted /\ record[2] > there[record[1]]))
Ends == <>ended
=============================================================================
