------------------------------- MODULE Stream -------------------------------
(* One bucket of a stream over micro-batches. A micro-batch begins with what the last committed one has left and with *)
(* its own input. When all calls have finished, or its time is up, it emits what has finished and keeps the rest as   *)
(* state; both count when it commits. Until then it may fail, and is done again with the same input. Calls go on      *)
(* between micro-batches, each under a ticket of its own; a process that is killed takes its calls along. Package     *)
(* pillarbox.spark.stream.                                                                                            *)
EXTENDS Naturals, Sequences, FiniteSets

CONSTANTS
    Arrival,    \* of each row: the micro-batch that reads it, in order
    Key,        \* of each row
    Ordered,    \* whether rows of one key leave in order
    Crashes,    \* failed micro-batches and killed processes together, at most
    Mutant

VARIABLES
    batch, phase,   \* the micro-batch that is next or runs; idle, open, flushed
    held,           \* what the task holds, in order: rows, the ticket of each, whether it has its result
    emitted, staged,\* what it has emitted, and left as state, not committed
    committed, out, \* state and output that Spark keeps
    live,           \* calls of the process: ticket -> row and whether it has finished
    next,           \* the next ticket
    up,             \* the time of the micro-batch is up
    memory,         \* what the execution of this micro-batch that flushed gave, as its process remembers it
    ended,
    (* history *)
    had, paid,      \* rows left as state that had their result: of the present micro-batch, of the committed ones
    again, dear,    \* rows called although they were paid for, or their call was alive
    given,          \* what the first execution of this micro-batch gave, since its process began
    crashes

vars == <<batch, phase, held, emitted, staged, committed, out, live, next, up, memory, ended, had, paid, again, dear, given, crashes>>

Rows == DOMAIN Arrival
LastInput == Arrival[Len(Arrival)]
Input(b) == SelectSeq([r \in Rows |-> r], LAMBDA r : Arrival[r] = b)
RowsOf(items) == {items[i].row : i \in DOMAIN items}
RowsInOrder(items) == [i \in DOMAIN items |-> items[i].row]
None == [row |-> 0, done |-> FALSE]
IsLive(t) == t \in DOMAIN live
Nothing == [is |-> FALSE]
(* For the configurations, which know no sequences.                                                                 *)
Two == <<1, 2>>
OneKey == <<1, 1>>
Three == <<1, 1, 2>>
OneKeyOfThree == <<1, 1, 1>>
TwoKeys == <<1, 2, 1>>

TypeOK ==
    /\ phase \in {"idle", "open", "flushed"} /\ batch \in 1..(LastInput + 1) /\ next \in Nat
    /\ \A i \in DOMAIN held : held[i].row \in Rows
    /\ \A t \in DOMAIN live : t < next /\ live[t].row \in Rows

Init ==
    /\ batch = 1 /\ phase = "idle" /\ held = <<>> /\ emitted = <<>> /\ staged = <<>>
    /\ committed = <<>> /\ out = <<>> /\ live = [t \in {} |-> None] /\ next = 1 /\ up = FALSE /\ ended = FALSE
    /\ memory = Nothing /\ given = Nothing
    /\ had = {} /\ paid = {} /\ again = {} /\ dear = {} /\ crashes = 0

-----------------------------------------------------------------------------
(* The state is read, and with it the tickets: a call is adopted if it has the ticket that the committed state names. *)
(* Others of the bucket belong to a micro-batch that failed, or have been emitted: they are let go.                   *)
Begins ==
    \/ committed # <<>> /\ Mutant # "no timer" /\ ~(Mutant = "no clock" /\ crashes > 0)
    \/ Input(batch) # <<>>
Restored ==
    LET from == IF Mutant = "goes on from memory" /\ staged # <<>> THEN staged ELSE committed
        adopted(i) ==
            IF Mutant = "never adopts" THEN 0
            ELSE IF Mutant = "adopts by position"
                 THEN IF Cardinality(DOMAIN live) >= i
                      THEN CHOOSE t \in DOMAIN live : Cardinality({u \in DOMAIN live : u < t}) = i - 1 ELSE 0
            ELSE IF IsLive(from[i].ticket) THEN from[i].ticket ELSE 0
    IN  [i \in DOMAIN from |->
            [row |-> from[i].row,
             done |-> from[i].done /\ Mutant # "calls what has its result",
             ticket |-> IF from[i].done /\ Mutant # "calls what has its result" THEN 0 ELSE adopted(i)]]
Remembers == memory.is /\ Mutant # "executes anew" /\ Mutant # "goes on from memory"
Open ==
    /\ phase = "idle" /\ ~ended /\ Begins /\ ~Remembers
    /\ LET old == Restored
           new == Input(batch)
           all == old \o [i \in DOMAIN new |-> [row |-> new[i], done |-> FALSE, ticket |-> 0]]
           calls == {i \in DOMAIN all : ~all[i].done /\ all[i].ticket = 0}
           ticket(i) == next + Cardinality({j \in calls : j < i})
           kept == {all[i].ticket : i \in {j \in DOMAIN all : all[j].ticket # 0}}
       IN  /\ held' = [i \in DOMAIN all |-> IF i \in calls THEN [all[i] EXCEPT !.ticket = ticket(i)] ELSE all[i]]
           /\ live' = [t \in kept \cup {ticket(i) : i \in calls} |->
                  IF t \in kept THEN live[t] 
                  ELSE [row |-> all[CHOOSE i \in calls : ticket(i) = t].row, done |-> FALSE]]
           /\ next' = next + Cardinality(calls)
           /\ again' = again \cup {all[i].row : i \in {j \in calls : all[j].row \in paid}}
           /\ dear' = dear \cup {all[i].row : i \in {j \in calls : j \in DOMAIN old /\ j \in DOMAIN committed
                                                                  /\ IsLive(committed[j].ticket)}}
    /\ phase' = "open" /\ up' = FALSE /\ emitted' = <<>> /\ staged' = <<>>
    /\ UNCHANGED <<batch, committed, out, memory, ended, had, paid, given, crashes>>

(* Another action in `foreachBatch`, or a replay, executes a micro-batch that this process has executed: it gets the  *)
(* same rows, and the same state.                                                                                    *)
Again ==
    /\ phase = "idle" /\ ~ended /\ Remembers
    /\ emitted' = memory.emitted /\ staged' = memory.staged /\ had' = memory.had /\ phase' = "flushed"
    /\ UNCHANGED <<batch, held, committed, out, live, next, up, memory, ended, paid, again, dear, given, crashes>>

(* A call ends whenever it likes: within a micro-batch or between two.                                              *)
Finish(t) ==
    /\ IsLive(t) /\ ~live[t].done
    /\ live' = [live EXCEPT ![t].done = TRUE]
    /\ UNCHANGED <<batch, phase, held, emitted, staged, committed, out, next, up, memory, ended, had, paid, again, dear, given, crashes>>

TimeUp ==
    /\ phase = "open" /\ ~up /\ up' = TRUE
    /\ UNCHANGED <<batch, phase, held, emitted, staged, committed, out, live, next, memory, ended, had, paid, again, dear, given, crashes>>

Done(i) == held[i].done \/ (IsLive(held[i].ticket) /\ live[held[i].ticket].done)
AllDone == \A i \in DOMAIN held : Done(i)
(* In order, a row waits for those of its key that came before it.                                                  *)
Leaves(i) ==
    /\ Done(i)
    /\ ~Ordered \/ Mutant = "leaves as it finishes" \/ \A j \in 1..(i - 1) : Key[held[j].row] = Key[held[i].row] => Done(j)
Picked(Test(_)) ==
    LET indices == SelectSeq([i \in DOMAIN held |-> i], Test)
    IN  [i \in DOMAIN indices |-> [held[indices[i]] EXCEPT !.done = Done(indices[i])]]
Flush ==
    /\ phase = "open"
    /\ AllDone \/ (up /\ Mutant # "waits for all")
    /\ LET stays(i) == ~Leaves(i)
           rest == Picked(stays)
       IN  /\ emitted' = Picked(Leaves)
           /\ staged' = CASE Mutant = "keeps what is emitted" -> Picked(LAMBDA i : TRUE)
                          [] Mutant = "drops what has finished" -> SelectSeq(rest, LAMBDA item : ~item.done)
                          [] Mutant = "result is not kept" -> [i \in DOMAIN rest |-> [rest[i] EXCEPT !.done = FALSE]]
                          [] OTHER -> rest
           /\ had' = {rest[i].row : i \in {j \in DOMAIN rest : rest[j].done}}
    /\ memory' = [is |-> TRUE, emitted |-> emitted', staged |-> staged', had |-> had']
    /\ given' = IF given.is THEN given ELSE [is |-> TRUE, rows |-> RowsInOrder(emitted')]
    /\ phase' = "flushed"
    /\ UNCHANGED <<batch, held, committed, out, live, next, up, ended, paid, again, dear, crashes>>

(* Output and state in one step: that is what Spark gives, with a sink that writes a micro-batch once.               *)
Commit ==
    /\ phase = "flushed"
    /\ out' = out \o RowsInOrder(emitted)
    /\ committed' = staged /\ staged' = <<>> /\ emitted' = <<>> /\ held' = <<>>
    /\ batch' = IF batch > LastInput THEN batch ELSE batch + 1 \* those without input are all the same
    /\ phase' = "idle" /\ paid' = had /\ memory' = Nothing /\ given' = Nothing
    /\ UNCHANGED <<live, next, up, ended, had, again, dear, crashes>>

(* The micro-batch fails elsewhere, or another action executes it: this process and its calls stay. Or the process   *)
(* is killed, at any moment.                                                                                         *)
MayCrash == crashes < Crashes /\ crashes' = crashes + 1
Fail ==
    /\ phase \in {"open", "flushed"} /\ MayCrash /\ phase' = "idle"
    /\ out' = IF Mutant = "emits at once" THEN out \o RowsInOrder(emitted) ELSE out
    /\ UNCHANGED <<batch, held, emitted, staged, committed, live, next, up, memory, ended, had, paid, again, dear, given>>
Kill ==
    /\ MayCrash /\ phase' = "idle"
    /\ live' = [t \in {} |-> None] /\ held' = <<>> /\ emitted' = <<>> /\ staged' = <<>>
    /\ memory' = Nothing /\ given' = Nothing
    /\ UNCHANGED <<batch, committed, out, next, up, ended, had, paid, again, dear>>

(* With `availableNow` the query is stopped when no input is left and a whole micro-batch has left nothing.           *)
End ==
    /\ phase = "idle" /\ ~ended /\ batch > LastInput
    /\ committed = <<>> \/ Mutant = "ends with the input"
    /\ ended' = TRUE
    /\ UNCHANGED <<batch, phase, held, emitted, staged, committed, out, live, next, up, memory, had, paid, again, dear, given, crashes>>

Next == Open \/ Again \/ TimeUp \/ Flush \/ Commit \/ Fail \/ Kill \/ End \/ \E t \in 1..(next - 1) : Finish(t)
Spec == Init /\ [][Next]_vars
Steps == WF_vars(Open) /\ WF_vars(Again) /\ WF_vars(TimeUp) /\ WF_vars(Flush) /\ WF_vars(Commit) /\ WF_vars(End)
(* Calls may hang for ever: a micro-batch goes on all the same.                                                      *)
HangingSpec == Spec /\ Steps
FairSpec == Spec /\ Steps /\ \A t \in 1..(Len(Arrival) * (Crashes + 1)) : WF_vars(Finish(t))

-----------------------------------------------------------------------------
(* Of all rows that committed micro-batches have read, each is in the output or in the state, once.                  *)
NothingLostOrTwice ==
    LET read == {r \in Rows : Arrival[r] < batch}
    IN  /\ {out[i] : i \in DOMAIN out} \cup RowsOf(committed) = read
        /\ Len(out) + Len(committed) = Cardinality(read)

(* Each execution of a micro-batch gives the rows of the first, or what one of them wrote is lost or doubled.        *)
ExecutionsAgree == phase = "flushed" => RowsInOrder(emitted) = given.rows

KeyOrder == Ordered => \A i, j \in DOMAIN out : i < j /\ Key[out[i]] = Key[out[j]] => out[i] < out[j]

(* What is adopted is the call of this row, and no other.                                                            *)
OwnCall == phase # "idle" => \A i \in DOMAIN held : IsLive(held[i].ticket) => live[held[i].ticket].row = held[i].row

(* A result that the committed state has, or should have, is not paid for again, whatever is killed.                *)
NotCalledAgain == again = {}
LiveIsAdopted == dear = {}

EndsDrained == ended => committed = <<>> /\ Len(out) = Len(Arrival)

(* A micro-batch is not held up by calls, however long these take.                                                   *)
HoldIsBounded == (phase = "open") ~> (phase # "open")
EverythingComesOut == <>ended
=============================================================================
