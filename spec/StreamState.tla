------------------------------ MODULE StreamState ------------------------------
(* The buckets of `async_stream` over micro-batches, with output that is a function of committed state:               *)
(* pillarbox.spark.stream.                                                                                            *)
(*                                                                                                                    *)
(* The state of a bucket is its rows that have not left, in order, each with its result or without. Micro-batch N     *)
(* emits the rows whose result stands in the state that N-1 committed, adds its input, and records which calls have   *)
(* finished. Spark executes N any number of times: each action of foreachBatch does, each replay, each speculative    *)
(* attempt. Each execution reads the state of N-1 and writes a version of the state of N (step "state": Record); a    *)
(* sink takes the rows of one execution, and skips a batch number that it has (step "sink": Take, Skip); then N is    *)
(* committed, and of each bucket the version of any execution counts (step "log": Log). The driver may die between    *)
(* any two of these steps, and N is replayed with the same input.                                                     *)
(*                                                                                                                    *)
(* Calls live in one process on each executor, and go on between micro-batches. An execution opens its bucket there   *)
(* with what it has read: calls that live are adopted, others begun, and those that nobody waits for released. It     *)
(* only reads results. A bucket without state and input asks no process. A process refuses the task of a bucket that  *)
(* a later micro-batch has opened there.                                                                              *)
(*                                                                                                                    *)
(* A micro-batch opens all buckets where the clock has moved, and those that have input where it has not.             *)
(*                                                                                                                    *)
(* A state may have rows that nothing can go on from, as a version that did not look has committed them (`Poisoned`): *)
(* a null where there may be none, text not in UTF-8. An execution that reads one fails, so that the query does,      *)
(* at each start; or, where it is started with the option, it puts the row aside, in a file that it names by what all *)
(* executions of the micro-batch read, and goes on without it.                                                        *)
(*                                                                                                                    *)
(* Not in the model: that the tasks of a host go to the process that holds the calls of a bucket, which moves only    *)
(* where that process is gone, or to another host (here it may move at any time, Moves times); and rows that have no  *)
(* room in a process, of which the state alone knows.                                                                 *)
EXTENDS Integers, Sequences, FiniteSets

CONSTANTS
    Input,      \* rows: the part of the input that each is in, in order; its bucket, key and content
    Ordered,    \* whether rows of a key leave in order
    Sinks,      \* each has an action of its own in each micro-batch
    Looks,      \* whether there is one action more, which takes rows to no sink, and need not be complete
    Processes,
    HasLedger,  \* whether a finished result is found again after its process has died
    Reports,    \* whether the clock is told what is pending after a micro-batch
    Failures,   \* restarts of the driver, deaths of processes and lost reports together, at most
    Moves,      \* executions of a bucket in another process than the one before, at most
    Zombies,    \* tasks at a time that outlive their driver or their micro-batch, at most
    Poisoned,   \* rows that no state can have had, and has
    OptionFrom, \* so many failures are there before the query is started with the option that puts these aside
    Mutant

VARIABLES
    next, part,     \* the part of the input that is read next; the one that this micro-batch reads, 0 for none
    ticked,         \* whether the clock has moved in this micro-batch
    phase,          \* idle, running, ended
    committed,      \* of each bucket: the state that counts
    versions,       \* of each bucket: what executions of this micro-batch have written, in any run of the driver
    tasks,          \* executions of a bucket that have opened it, and have not written their version; and zombies
    done,           \* of each action and bucket: what the execution of this run emits, if it has come to its end
    taken, sunk,    \* sinks that have this micro-batch; those with which this run is through
    out,            \* of each sink: rows and results, in order
    calls,          \* of each process: identity -> row, which of the row's calls it is, whether it has finished
    seen,           \* of each process and bucket: how many micro-batches ago the newest one was that has opened it
                    \* there; 2 or more: 2
    home,           \* of each bucket: the process that executed it last
    ledger,         \* identity -> result
    said,           \* what the clock knows: pending, nothing; awaited, awaited with input: it will be told, and the
                    \* micro-batch had input; untold: it will not
    made,           \* of each row: how many calls of it have begun
    failures, moves,
    copies,         \* versions that executors have kept of the state that counts; of a mutant only
    h               \* history: see TypeOK

vars == <<next, part, ticked, phase, committed, versions, tasks, done, taken, sunk, out, calls, seen, home, ledger,
          said, made, failures, moves, copies, h>>

Rows == DOMAIN Input
PartOf(r) == Input[r].part
BucketOf(r) == Input[r].bucket
KeyOf(r) == Input[r].key
Content(r) == Input[r].content
Buckets == {BucketOf(r) : r \in Rows}
LastPart == PartOf(Len(Input))
Actions == Sinks \cup (IF Looks THEN {0} ELSE {})
NewRows(n, b) == SelectSeq([r \in Rows |-> r], LAMBDA r : PartOf(r) = n /\ BucketOf(r) = b)
Elements(sequence) == {sequence[i] : i \in DOMAIN sequence}

(* Where the order counts, a key is in one bucket; equal rows are in one bucket anyway.                               *)
ASSUME \A r, q \in Rows :
    (Ordered /\ KeyOf(r) = KeyOf(q)) \/ Content(r) = Content(q) => BucketOf(r) = BucketOf(q)

(* For the configurations, which know no sequences.                                                                   *)
Row(p, b, k, c) == [part |-> p, bucket |-> b, key |-> k, content |-> c]
One == <<Row(1, 1, 1, 1)>>
Together == <<Row(1, 1, 1, 1), Row(1, 1, 1, 2)>>
Apart == <<Row(1, 1, 1, 1), Row(2, 1, 1, 2)>>
Three == <<Row(1, 1, 1, 1), Row(1, 1, 2, 2), Row(2, 1, 1, 3)>>
TwoBuckets == <<Row(1, 1, 1, 1), Row(1, 2, 2, 2)>>
Equal == <<Row(1, 1, 1, 1), Row(1, 1, 1, 1), Row(2, 1, 1, 1)>>

(* A row is known by the time of the micro-batch that has read it, its content, and which of equal rows it is. All    *)
(* executions of a micro-batch have the same time. They may see its rows in another order each (`turned`: backwards), *)
(* which changes nothing about identities: equal rows have no order of their own. A hash, which rows that differ may  *)
(* share, would not do; here all share it.                                                                            *)
Known(r) == IF Mutant = "identity by a hash" THEN 0 ELSE Content(r)
IdIn(r, turned) ==
    LET isNotBehind(q) == IF turned /\ Content(q) # Content(r) THEN q >= r ELSE q <= r
    IN  <<IF Mutant = "identity without the time" THEN 0 ELSE PartOf(r), Known(r),
          IF Mutant = "identity without the count" THEN 1
          ELSE Cardinality({q \in Rows : PartOf(q) = PartOf(r) /\ Known(q) = Known(r) /\ isNotBehind(q)})>>
Id(r) == IdIn(r, FALSE)
Ids == {Id(r) : r \in Rows}
Turns == IF Mutant = "identity by a hash" THEN BOOLEAN ELSE {FALSE}
ASSUME Mutant = "identity by a hash" \/ \A r \in Rows : IdIn(r, TRUE) = Id(r)

(* A result is the row whose call gave it, and which of its calls: two calls of a row may answer otherwise.           *)
None == <<0, 0>>
Entry(r) == [row |-> r, result |-> None]
RowsOf(entries) == [i \in DOMAIN entries |-> entries[i].row]
NotYet == [is |-> FALSE, rows |-> <<>>]
Nothing == [b \in Buckets |-> NotYet]
NoCalls == [i \in {} |-> None]
Unseen == [b \in Buckets |-> 2]
Least(numbers) == CHOOSE n \in numbers : \A m \in numbers : n <= m

TypeOK ==
    /\ phase \in {"idle", "running", "ended"} /\ next \in 1..(LastPart + 1) /\ part \in 0..LastPart
    /\ ticked \in BOOLEAN
    /\ said \in {"untold", "awaited", "awaited with input", "pending", "nothing"}
    /\ \A b \in Buckets : \A e \in Elements(committed[b]) : e.row \in Rows
    /\ \A p \in Processes : DOMAIN calls[p] \subseteq Ids /\ \A b \in Buckets : seen[p][b] \in 0..2
    /\ \A t \in tasks : t.bucket \in Buckets /\ t.process \in Processes /\ t.age \in 0..1
    /\ taken \subseteq Sinks /\ sunk \subseteq Sinks
    \* Of each process: rows that were called in its life. Of this micro-batch: what its first execution has emitted,
    \* and rows that had finished when it began. Whether something happened that must not. The files of rows that were
    \* put aside: the row of each, and what else it is named by.
    /\ DOMAIN h = {"called", "given", "ripe", "again", "lost", "differ", "late", "aside"}

Init ==
    /\ next = 1 /\ part = 0 /\ phase = "idle" /\ ticked = FALSE
    /\ committed = [b \in Buckets |-> <<>>] /\ versions = [b \in Buckets |-> {}] /\ tasks = {}
    /\ done = [a \in Actions |-> Nothing] /\ taken = {} /\ sunk = {} /\ out = [s \in Sinks |-> <<>>]
    /\ calls = [p \in Processes |-> NoCalls] /\ seen = [p \in Processes |-> Unseen]
    /\ home = [b \in Buckets |-> Least(Processes)] /\ ledger = NoCalls /\ said = "untold" /\ made = [r \in Rows |-> 0]
    /\ failures = 0 /\ moves = 0 /\ copies = [b \in Buckets |-> {}]
    /\ h = [called |-> [p \in Processes |-> {}], given |-> Nothing, ripe |-> {},
            again |-> FALSE, lost |-> FALSE, differ |-> FALSE, late |-> FALSE, aside |-> {}]

-----------------------------------------------------------------------------
(* A micro-batch begins: with input, or as the clock has moved. The clock moves while something is pending. After a   *)
(* start, and where a report does not come in time, it does not know, and moves as well.                              *)
Ticks == Mutant # "no clock" /\ said \in {"pending"} \cup (IF Mutant = "waits for a report" THEN {} ELSE {"untold"})

Finished(r) ==
    LET b == BucketOf(r) IN Id(r) \in DOMAIN calls[home[b]] /\ calls[home[b]][Id(r)].done

IsOpened(b) == ticked \/ NewRows(part, b) # <<>>

Begin(n, ticks) ==
    /\ phase = "idle" /\ phase' = "running" /\ part' = n /\ ticked' = ticks
    /\ h' = [h EXCEPT !.ripe = {r \in Rows : PartOf(r) < next /\ Finished(r) /\ IsOpened(BucketOf(r))'}]
    /\ UNCHANGED <<next, committed, versions, tasks, done, taken, sunk, out, calls, seen, home, ledger, said, made,
                   failures, moves, copies>>
BeginWithInput == next <= LastPart /\ \E ticks \in BOOLEAN : Begin(next, ticks)
BeginByClock == Ticks /\ Begin(0, TRUE)

-----------------------------------------------------------------------------
(* A process: what it does when a task opens bucket `b` with the state `base`, and with part `n` of the input. Calls  *)
(* of the bucket that neither of them waits for are released: their results are in the state, or they belong to an    *)
(* execution that does not count.                                                                                     *)
Here(p, b) == {i \in DOMAIN calls[p] : BucketOf(calls[p][i].row) = b}
Waiting(base) == {e.row : e \in {f \in Elements(base) : f.result = None \/ Mutant = "calls what has its result"}}
IsWanted(r) ==
    \/ r \notin Poisoned /\ \E e \in Elements(committed[BucketOf(r)]) : e.row = r /\ e.result = None
    \/ phase = "running" /\ PartOf(r) = part

(* What an execution goes on from, of the state that it has read, and the files of what it puts aside first.          *)
PoisonIn(read) == {e.row : e \in Elements(read)} \cap Poisoned
MayRead(read) == PoisonIn(read) = {} \/ failures >= OptionFrom
Sound(read) ==
    CASE Mutant = "a poisoned row goes on" -> read
      [] Mutant = "the bucket is dropped with it" /\ PoisonIn(read) # {} -> <<>>
      [] OTHER -> SelectSeq(read, LAMBDA e : e.row \notin Poisoned)
Letters(read) ==
    IF Mutant = "dropped before it is put aside" THEN {}
    ELSE {<<r, IF Mutant = "a file for each execution" THEN Cardinality(h.aside) ELSE 0>> : r \in PoisonIn(read)}

IsAsked(b, base, n) == base # <<>> \/ NewRows(n, b) # <<>>
OpenIn(p, b, base, n, turned, letters) ==
    LET input == Elements(NewRows(n, b))
        id(r) == IdIn(r, turned /\ r \in input)
        wanted == {id(r) : r \in Waiting(base) \cup input}
        early == {Id(e.row) : e \in {f \in UNION {Elements(v) : v \in versions[b]} : f.result # None}}
        kept == CASE Mutant = "released by a version" -> (Here(p, b) \cap wanted) \ early
                  [] Mutant = "releases what is done" ->
                        {i \in Here(p, b) : i \in wanted \/ ~calls[p][i].done}
                  [] OTHER -> Here(p, b) \cap wanted
        begun == (wanted \ kept) \cup (IF Mutant = "begins its input twice" THEN {id(r) : r \in input} ELSE {})
        row(i) == Least({r \in Waiting(base) \cup input : id(r) = i})
        found(i) == i \in DOMAIN ledger /\ Mutant # "the ledger is not asked"
        called == {i \in begun : ~found(i)}
        others == DOMAIN calls[p] \ Here(p, b)
    IN  /\ calls' = [calls EXCEPT ![p] = [i \in others \cup kept \cup begun |->
                        IF i \notin begun THEN calls[p][i]
                        ELSE IF found(i) THEN [row |-> ledger[i][1], number |-> ledger[i][2], done |-> TRUE]
                        ELSE [row |-> row(i), number |-> made[row(i)] + 1, done |-> FALSE]]]
        /\ made' = [r \in Rows |-> IF \E i \in called : row(i) = r THEN made[r] + 1 ELSE made[r]]
        /\ h' = [h EXCEPT
                    !.called[p] = @ \cup {row(i) : i \in called},
                    !.again = @ \/ \E i \in called : \/ row(i) \in h.called[p] \/ i \in DOMAIN ledger
                                                     \/ \E e \in Elements(base) : e.row = row(i) /\ e.result # None,
                    !.lost = @ \/ \E i \in Here(p, b) \ kept : IsWanted(calls[p][i].row),
                    !.aside = @ \cup letters,
                    !.ripe = IF p = home[b] THEN @ ELSE {r \in @ : BucketOf(r) # b}]

(* An action executes a bucket, on any executor. Opening is one step, as the state of N-1 does not change under it. A *)
(* task that has neither state nor input goes to no process.                                                          *)
Reversed(sequence) == [i \in DOMAIN sequence |-> sequence[Len(sequence) + 1 - i]]
Readable(b) ==
    CASE Mutant = "reads a version of its own micro-batch" /\ versions[b] # {} -> versions[b]
      [] Mutant = "reads its own copy" /\ copies[b] # {} -> copies[b]
      [] Mutant = "restored in another order" -> {Reversed(committed[b])}
      [] OTHER -> {committed[b]}

Open(a, b, p) ==
    /\ phase = "running" /\ IsOpened(b) /\ ~done[a][b].is
    /\ ~\E t \in tasks : t.action = a /\ t.bucket = b
    /\ IF p = home[b] THEN moves' = moves ELSE moves < Moves /\ moves' = moves + 1
    /\ \E read \in Readable(b), turned \in Turns :
        /\ MayRead(read)
        /\ IF IsAsked(b, read, part)
           THEN /\ OpenIn(p, b, Sound(read), part, turned, Letters(read))
                /\ seen' = [seen EXCEPT ![p][b] = 0]
           ELSE p = home[b] /\ UNCHANGED <<calls, seen, made, h>>
        /\ tasks' = tasks \cup {[action |-> a, bucket |-> b, process |-> p, base |-> Sound(read), part |-> part,
                                 age |-> 0, open |-> TRUE, turned |-> turned]}
    /\ home' = [home EXCEPT ![b] = p]
    /\ UNCHANGED <<next, part, ticked, phase, committed, versions, done, taken, sunk, out, ledger, said, failures,
                   copies>>

IsLate(t) == seen[t.process][t.bucket] < t.age /\ Mutant # "a late task is not refused"

(* A zombie had read its state before its driver died, and comes to the process only now.                             *)
OpenLateOf(t) ==
    /\ ~t.open /\ ~IsLate(t)
    /\ IF IsAsked(t.bucket, t.base, t.part)
       THEN /\ OpenIn(t.process, t.bucket, t.base, t.part, t.turned, {})
            /\ seen' = [seen EXCEPT ![t.process][t.bucket] = IF @ < t.age THEN @ ELSE t.age]
       ELSE UNCHANGED <<calls, seen, made, h>>
    /\ UNCHANGED <<next, part, ticked, phase, committed, versions, done, taken, sunk, out, home, ledger, said,
                   failures, moves, copies>>
OpenLate ==
    \E t \in tasks :
        /\ tasks' = (tasks \ {t}) \cup {[t EXCEPT !.open = TRUE]}
        /\ OpenLateOf(t)

Refuse ==
    /\ \E t \in tasks : IsLate(t) /\ tasks' = tasks \ {t}
    /\ UNCHANGED <<next, part, ticked, phase, committed, versions, done, taken, sunk, out, calls, seen, home, ledger,
                   said, made, failures, moves, copies, h>>

(* A call ends whenever it likes: within a micro-batch or between two.                                                *)
Finish(p, i) ==
    /\ i \in DOMAIN calls[p] /\ ~calls[p][i].done
    /\ calls' = [calls EXCEPT ![p][i].done = TRUE]
    /\ ledger' = IF ~HasLedger \/ i \in DOMAIN ledger THEN ledger
                 ELSE [j \in DOMAIN ledger \cup {i} |->
                        IF j = i THEN <<calls[p][i].row, calls[p][i].number>> ELSE ledger[j]]
    /\ UNCHANGED <<next, part, ticked, phase, committed, versions, tasks, done, taken, sunk, out, seen, home, said,
                   made, failures, moves, copies, h>>

(* A process that is no longer the one of a bucket forgets it: it has seen the second micro-batch of the clock since  *)
(* the bucket was opened there, or, without tasks, its time is over.                                                  *)
Forget(p, b) ==
    /\ Here(p, b) # {} /\ ~\E t \in tasks : t.open /\ t.process = p /\ t.bucket = b
    /\ CASE Mutant = "forgets after a time" -> TRUE
         [] Mutant = "forgets nothing" -> FALSE
         [] OTHER -> home[b] # p
    /\ calls' = [calls EXCEPT ![p] = [i \in DOMAIN calls[p] \ Here(p, b) |-> calls[p][i]]]
    /\ h' = [h EXCEPT !.called[p] = {r \in @ : BucketOf(r) # b},
                      !.lost = @ \/ (home[b] = p /\ \E i \in Here(p, b) : IsWanted(calls[p][i].row))]
    /\ UNCHANGED <<next, part, ticked, phase, committed, versions, tasks, done, taken, sunk, out, seen, home, ledger,
                   said, made, failures, moves, copies>>

-----------------------------------------------------------------------------
(* State: an execution emits, and writes its version. What it emits is settled by what it has read; the version has   *)
(* the results that are there by now. In order, a row leaves when all before it of its key leave or have left.        *)
Result(p, e, id) ==
    IF e.result # None \/ id \notin DOMAIN calls[p] \/ ~calls[p][id].done THEN e.result
    ELSE <<calls[p][id].row, calls[p][id].number>>

Written(t) ==
    LET p == t.process
        input == NewRows(t.part, t.bucket)
        all == t.base \o [i \in DOMAIN input |-> Entry(input[i])]
        result(i) == Result(p, all[i], IdIn(all[i].row, t.turned /\ i > Len(t.base)))
        has(i) ==
            IF Mutant = "emits what has finished by now" THEN result(i) # None ELSE all[i].result # None
        leaves(i) ==
            /\ has(i)
            /\ \/ ~Ordered \/ Mutant = "order is ignored"
               \/ \A j \in 1..(i - 1) : KeyOf(all[j].row) = KeyOf(all[i].row) => has(j)
        stays(i) == ~leaves(i)
        recorded(i) ==
            CASE Mutant = "a result is not kept" /\ all[i].result # None -> None
              [] Mutant = "records of its input only" /\ i <= Len(t.base) -> all[i].result
              [] OTHER -> result(i)
        places == [i \in DOMAIN all |-> i]
        going == SelectSeq(places, leaves)
        staying == SelectSeq(places, stays)
    IN  [rows |-> [i \in DOMAIN going |-> <<all[going[i]].row, result(going[i])>>],
         version |-> [i \in DOMAIN staying |-> [all[staying[i]] EXCEPT !.result = recorded(staying[i])]],
         waits |-> \E i \in DOMAIN all : result(i) = None]

RecordOf(t) ==
    /\ t.open /\ ~IsLate(t)
    /\ LET p == t.process
           b == t.bucket
           written == Written(t)
           rows == written.rows
           version == written.version
           consumed == IF Mutant = "an execution consumes results"
                       THEN {i \in Here(p, b) : calls[p][i].done} ELSE {}
       IN  /\ Mutant = "waits for its calls" => ~written.waits
           \* What comes after the commit changes nothing where versions have names of their own.
           /\ committed' = IF t.age > 0 /\ Mutant = "written after the commit"
                           THEN [committed EXCEPT ![b] = version] ELSE committed
           /\ versions' = IF t.age = 0 THEN [versions EXCEPT ![b] = @ \cup {version}] ELSE versions
           /\ done' = IF t.age = 0 /\ t.action \in Actions
                      THEN [done EXCEPT ![t.action][b] = [is |-> TRUE, rows |-> rows]] ELSE done
           /\ calls' = [calls EXCEPT ![p] = [i \in DOMAIN calls[p] \ consumed |-> calls[p][i]]]
           /\ h' = [h EXCEPT
                       !.given[b] = IF @.is \/ t.age > 0 THEN @ ELSE [is |-> TRUE, rows |-> rows],
                       !.differ = @ \/ (t.age = 0 /\ h.given[b].is /\ h.given[b].rows # rows),
                       !.lost = @ \/ \E i \in consumed : IsWanted(calls[p][i].row)]
    /\ tasks' = tasks \ {t}
    /\ UNCHANGED <<next, part, ticked, phase, taken, sunk, out, seen, home, ledger, said, made, failures, moves,
                   copies>>
Record == \E t \in tasks : RecordOf(t)

-----------------------------------------------------------------------------
(* Sink: it takes the rows of the execution that its action made, by batch number: what it has, it does not take      *)
(* again.                                                                                                             *)
IsComplete(a) == \A b \in Buckets : IsOpened(b) => done[a][b].is
RECURSIVE Flat(_, _)
Flat(a, buckets) ==
    IF buckets = {} THEN <<>> ELSE done[a][Least(buckets)].rows \o Flat(a, buckets \ {Least(buckets)})

Take(s) ==
    /\ phase = "running" /\ s \notin sunk /\ IsComplete(s)
    /\ out' = IF s \in taken /\ Mutant # "a sink takes a replay" THEN out ELSE [out EXCEPT ![s] = @ \o Flat(s, Buckets)]
    /\ taken' = taken \cup {s} /\ sunk' = sunk \cup {s}
    /\ UNCHANGED <<next, part, ticked, phase, committed, versions, tasks, done, calls, seen, home, ledger, said, made,
                   failures, moves, copies, h>>

(* It may look at the batch number first, and begin no action.                                                        *)
Skip(s) ==
    /\ phase = "running" /\ s \in taken \ sunk /\ sunk' = sunk \cup {s}
    /\ UNCHANGED <<next, part, ticked, phase, committed, versions, tasks, done, taken, out, calls, seen, home, ledger,
                   said, made, failures, moves, copies, h>>

(* Log: the micro-batch counts, and of each bucket one version, whichever. This run has executed all of it once, at   *)
(* least: of a bucket that it has not executed Spark would have the state of N-1.                                     *)
WasExecuted(b) == \E a \in Actions : done[a][b].is
Candidates(b) == IF WasExecuted(b) THEN versions[b] ELSE {committed[b]}

\* Of a mutant: some execution has left nothing in the buckets that it has executed.
IsEmptySomewhere ==
    \E a \in Actions : /\ \E b \in Buckets : done[a][b].is
                       /\ \A b \in Buckets : done[a][b].is => committed'[b] = <<>>

Log ==
    /\ phase = "running" /\ sunk = Sinks
    /\ (\E a \in Actions : IsComplete(a)) \/ Mutant = "a skipped replay executes nothing"
    /\ \E chosen \in [Buckets -> UNION {Candidates(b) : b \in Buckets}] :
        /\ \A b \in Buckets : chosen[b] \in Candidates(b)
        /\ committed' = chosen
    /\ \E some \in SUBSET {t \in tasks : t.age = 0} :
        /\ Cardinality(some) <= Zombies
        /\ tasks' = {[t EXCEPT !.age = 1, !.action = -1] : t \in some}
    /\ next' = IF part = 0 THEN next ELSE next + 1
    /\ part' = 0 /\ ticked' = FALSE /\ phase' = "idle" /\ taken' = {} /\ sunk' = {}
    /\ versions' = [b \in Buckets |-> {}] /\ done' = [a \in Actions |-> Nothing]
    /\ seen' = [p \in Processes |-> [b \in Buckets |-> IF seen[p][b] = 2 THEN 2 ELSE seen[p][b] + 1]]
    /\ said' = CASE Mutant = "believes an earlier report" /\ said = "nothing" -> said
                 [] Mutant = "any execution reports" /\ IsEmptySomewhere -> "nothing"
                 [] OTHER -> CASE ~Reports -> "untold" [] part = 0 -> "awaited" [] OTHER -> "awaited with input"
    /\ copies' = IF Mutant = "reads its own copy" THEN versions ELSE copies
    /\ h' = [h EXCEPT
                !.given = Nothing, !.ripe = {},
                !.late = @ \/ \E r \in h.ripe : Entry(r) \in Elements(committed'[BucketOf(r)])]
    /\ UNCHANGED <<out, calls, home, ledger, made, failures, moves>>

(* A report says which buckets have rows left: all versions of a state have the same rows, so any execution may say   *)
(* it. But one that is not complete knows of its buckets only. After input something is taken to be pending: the next *)
(* micro-batch will tell.                                                                                             *)
IsAwaited == said \in {"awaited", "awaited with input"}

Report ==
    /\ phase = "idle" /\ IsAwaited
    /\ said' = IF said = "awaited" /\ \A b \in Buckets : committed[b] = <<>> THEN "nothing" ELSE "pending"
    /\ UNCHANGED <<next, part, ticked, phase, committed, versions, tasks, done, taken, sunk, out, calls, seen, home,
                   ledger, made, failures, moves, copies, h>>

(* With `availableNow` the query ends when no input is left, and the clock knows that nothing is pending.             *)
End ==
    /\ phase = "idle" /\ next > LastPart /\ (said = "nothing" \/ Mutant = "ends with the input")
    /\ phase' = "ended"
    /\ UNCHANGED <<next, part, ticked, committed, versions, tasks, done, taken, sunk, out, calls, seen, home, ledger,
                   said, made, failures, moves, copies, h>>

-----------------------------------------------------------------------------
(* The driver dies, or the micro-batch fails: its tasks are gone, but for some that go on for a while; one of these   *)
(* may have read its state, and not been at the process yet. Processes live.                                          *)
MayFail == failures < Failures /\ failures' = failures + 1
Unopened ==
    IF phase # "running" THEN {}
    ELSE {[action |-> -1, bucket |-> b, process |-> p, base |-> Sound(committed[b]), part |-> part, age |-> 0,
           open |-> FALSE, turned |-> FALSE]
            : b \in {d \in Buckets : IsOpened(d) /\ MayRead(committed[d])}, p \in Processes}

Restart ==
    /\ MayFail /\ phase # "ended"
    /\ \E some \in SUBSET ({[t EXCEPT !.action = -1] : t \in tasks} \cup Unopened) :
        /\ Cardinality(some) <= Zombies /\ tasks' = some
    /\ done' = [a \in Actions |-> Nothing] /\ sunk' = {}
    /\ said' = "untold"
    /\ UNCHANGED <<next, part, ticked, phase, committed, versions, taken, out, calls, seen, home, ledger, made, moves,
                   copies, h>>

(* Of tasks that are given up some go on for a while; they may have to open their bucket anew.                        *)
LingerOf(given, open) ==
    \E left \in SUBSET {[t EXCEPT !.action = -1, !.open = t.open /\ open] : t \in given} :
        /\ Cardinality({t \in tasks \ given : t.action = -1} \cup left) <= Zombies
        /\ tasks' = (tasks \ given) \cup left

(* An attempt of a task fails, which executes some of the buckets, or another attempt is quicker: it is made again.   *)
Fail(a) ==
    /\ MayFail /\ phase = "running" /\ a \notin sunk
    /\ \E some \in SUBSET Buckets :
        LET own == {t \in tasks : t.action = a /\ t.bucket \in some}
        IN  /\ own # {} \/ \E b \in some : done[a][b].is
            /\ LingerOf(own, TRUE)
            /\ done' = [done EXCEPT ![a] = [b \in Buckets |-> IF b \in some THEN NotYet ELSE done[a][b]]]
    /\ UNCHANGED <<next, part, ticked, phase, committed, versions, taken, sunk, out, calls, seen, home, ledger, said,
                   made, moves, copies, h>>

LoseReport ==
    /\ MayFail /\ phase = "idle" /\ IsAwaited /\ said' = "untold"
    /\ UNCHANGED <<next, part, ticked, phase, committed, versions, tasks, done, taken, sunk, out, calls, seen, home,
                   ledger, made, moves, copies, h>>

(* An executor dies, with its process, its calls and its tasks. Or the process alone: tasks of this run open their    *)
(* buckets in the next one, and so may zombies.                                                                       *)
Kill(p) ==
    /\ MayFail /\ phase # "ended"
    /\ calls' = [calls EXCEPT ![p] = NoCalls] /\ seen' = [seen EXCEPT ![p] = Unseen]
    /\ LingerOf({t \in tasks : t.process = p}, FALSE)
    /\ h' = [h EXCEPT !.called[p] = {}, !.ripe = {r \in @ : home[BucketOf(r)] # p}]
    /\ UNCHANGED <<next, part, ticked, phase, committed, versions, done, taken, sunk, out, home, ledger, said, made,
                   moves, copies>>

-----------------------------------------------------------------------------
Next ==
    \/ BeginWithInput \/ BeginByClock \/ Record \/ Log \/ Report \/ End \/ OpenLate \/ Refuse \/ Restart
    \/ LoseReport
    \/ \E a \in Actions, b \in Buckets, p \in Processes : Open(a, b, p)
    \/ \E a \in Actions : Fail(a)
    \/ \E s \in Sinks : Take(s) \/ Skip(s)
    \/ \E p \in Processes : Kill(p) \/ \E i \in Ids : Finish(p, i)
    \/ \E p \in Processes, b \in Buckets : Forget(p, b)

Spec == Init /\ [][Next]_vars

(* Of input that comes when the clock has moved anyway, the source is asked again and again.                          *)
Steps ==
    /\ SF_vars(BeginWithInput) /\ WF_vars(BeginByClock) /\ WF_vars(Log) /\ WF_vars(Report) /\ WF_vars(End)
    /\ WF_vars(\E s \in Sinks, b \in Buckets : Open(s, b, home[b]))
    /\ WF_vars(Record \/ Refuse) /\ WF_vars(\E s \in Sinks : Take(s))
    /\ WF_vars(\E p \in Processes, b \in Buckets : Forget(p, b))
(* Calls may hang for ever: micro-batches go on all the same.                                                         *)
HangingSpec == Spec /\ Steps
FairSpec == Spec /\ Steps /\ \A p \in Processes, i \in Ids : WF_vars(Finish(p, i))

-----------------------------------------------------------------------------
(* Rows that were put aside: they count as gone below.                                                                *)
IsAside == {file[1] : file \in h.aside}

(* No row is twice in a sink; between micro-batches, each row that was read has left to every sink, or is in the      *)
(* state.                                                                                                             *)
NothingLostOrTwice ==
    \A s \in Sinks :
        /\ \A i, j \in DOMAIN out[s] : out[s][i][1] = out[s][j][1] => i = j
        /\ phase # "running" =>
            LET gone == {o[1] : o \in Elements(out[s])}
                left(b) == Elements(RowsOf(committed[b]))
            IN  /\ gone \cup IsAside \cup UNION {left(b) : b \in Buckets} = {r \in Rows : PartOf(r) < next}
                /\ gone \cap IsAside = {}
                /\ \A b \in Buckets : gone \cap left(b) = {} /\ Cardinality(left(b)) = Len(committed[b])

(* What nothing can go on from leaves to no sink.                                                                     *)
NoPoisonLeaves == \A s \in Sinks : \A o \in Elements(out[s]) : o[1] \notin Poisoned

(* It is put aside once, however many executions read it, and nothing else is.                                        *)
PutAsideOnce == /\ IsAside \subseteq Poisoned
                /\ \A file, other \in h.aside : file[1] = other[1] => file = other

(* Every execution of a micro-batch emits what its first one has emitted.                                             *)
ExecutionsAgree == ~h.differ

(* Sinks have the same rows, with the same results.                                                                   *)
SinksAgree == phase # "running" => \A s, u \in Sinks : out[s] = out[u]

(* Versions differ in which results they have, in nothing else.                                                       *)
VersionsAgree == \A b \in Buckets : \A v, w \in versions[b] : RowsOf(v) = RowsOf(w)

KeyOrder ==
    Ordered => \A s \in Sinks : \A i, j \in DOMAIN out[s] :
                    i < j /\ KeyOf(out[s][i][1]) = KeyOf(out[s][j][1]) => out[s][i][1] < out[s][j][1]

(* A row has the result of its own call.                                                                              *)
OwnCall ==
    /\ \A s \in Sinks : \A o \in Elements(out[s]) : o[1] = o[2][1]
    /\ \A b \in Buckets : \A e \in Elements(committed[b]) : e.result # None => e.result[1] = e.row

(* In the life of a process a row is called once, but where its bucket has moved; and no call is made whose result    *)
(* the state has, or the ledger.                                                                                      *)
NotCalledAgain == ~h.again

(* A live call that the committed state waits for, or the micro-batch that runs, is not released.                     *)
LiveIsKept == ~h.lost

(* What had finished when a micro-batch began that opens its bucket stands in its state, and so leaves with the next  *)
(* one that does.                                                                                                     *)
SecondAtLatest == ~h.late

EndsDrained ==
    phase = "ended" => /\ \A b \in Buckets : committed[b] = <<>>
                       /\ \A s \in Sinks : Len(out[s]) + Cardinality(IsAside) = Len(Input)

(* A micro-batch is not held up by calls, however long these take.                                                    *)
HoldIsBounded == (phase = "running") ~> (phase # "running")

(* A call that nobody waits for gives its slot back.                                                                  *)
IsUnwanted(p, i) ==
    i \in DOMAIN calls[p] /\ LET r == calls[p][i].row IN ~IsWanted(r) \/ home[BucketOf(r)] # p
SlotsComeBack == \A p \in Processes, i \in Ids : IsUnwanted(p, i) ~> ~IsUnwanted(p, i)

EverythingComesOut == <>(\A s \in Sinks : Len(out[s]) + Cardinality(IsAside) = Len(Input))
QueryEnds == <>(phase = "ended")
=============================================================================
