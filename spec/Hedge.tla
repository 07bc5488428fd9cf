------------------------------- MODULE Hedge -------------------------------
(* Calls of an async operator that are hedged: where the call of a row is slow, another one of the same row begins,    *)
(* and the first good answer is the row's. What the calls of one row do beside each other, how they take slots and       *)
(* credit, and what a time-out and the end leave of them. All calls of an attempt are one attempt. How the slots are fed  *)
(* is in Feeding; what a row goes through otherwise in Operator, for which all of this is one call. Everything happens on  *)
(* one thread, so each action is one step. A row may stand for the rows of a batch, of which each may leave for its     *)
(* time: the first answer of a call is that of all that still wait, so that nothing else differs.                       *)
(* Package pillarbox.aio: hedging.py, batches/batch_hedging.py, policies/hedge.py.                                      *)
EXTENDS Naturals, FiniteSets

CONSTANTS
    Rows,
    Capacity,   \* calls in flight, at most
    Size,       \* rows of a batch; 1 without batches
    Calls,      \* calls of one attempt, at most
    Attempts,   \* of one row, at most
    Start,      \* hedges that no call has paid for
    Every,      \* calls that pay for a hedge
    Gated,      \* whether a gate may hold calls back: a rate, a breaker
    Fails,      \* whether calls may fail
    TimesOut,   \* whether attempts may be given up for their time
    Ends,       \* whether the operator may be closed before its end
    Mutant

Numbers == 1..Calls

VARIABLES
    state,      \* of each row: "waiting", "running", "answered", "failed"
    attempts,   \* of each row, begun
    calls,      \* of each row, calls of the present attempt that have begun
    live,       \* of each row, those of them that run and that the row waits for, by their numbers
    left,       \* of each row, calls that run although the row waits for them no longer
    due,        \* rows that wait for a further call
    credit,     \* in parts of a hedge: each call pays one, a hedge costs Every
    held,       \* whether the gate holds
    closed,
    h           \* history: see HistoryOK

vars == <<state, attempts, calls, live, left, due, credit, held, closed, h>>

RECURSIVE Sum(_, _)
Sum(f, rows) == IF rows = {} THEN 0 ELSE LET r == CHOOSE r \in rows : TRUE IN f[r] + Sum(f, rows \ {r})
InFlight == Sum([r \in Rows |-> Cardinality(live[r]) + left[r]], Rows)

TypeOK ==
    /\ state \in [Rows -> {"waiting", "running", "answered", "failed"}]
    /\ attempts \in [Rows -> Nat] /\ calls \in [Rows -> 0..Calls]
    /\ live \in [Rows -> SUBSET Numbers] /\ left \in [Rows -> Nat]
    /\ due \subseteq Rows /\ credit \in Nat /\ held \in BOOLEAN /\ closed \in BOOLEAN

(* `results`: of each row, how often it has got its result or its failure. `records`: of each row, answers that were     *)
(* kept for it. `answers`, `billed`: those that came, and those that were paid for. `begun`, `hedges`: calls in all.      *)
(* `errors`: of each row, calls of its present attempt that have failed. `early`: a call began while the gate held.      *)
(* `gone`: of each batch, rows that have left.                                                                       *)
Init ==
    /\ state = [r \in Rows |-> "waiting"] /\ attempts = [r \in Rows |-> 0] /\ calls = [r \in Rows |-> 0]
    /\ live = [r \in Rows |-> {}] /\ left = [r \in Rows |-> 0]
    /\ due = {} /\ credit = Start * Every /\ held = FALSE /\ closed = FALSE
    /\ h = [results |-> [r \in Rows |-> 0], records |-> [r \in Rows |-> 0], errors |-> [r \in Rows |-> 0],
            gone |-> [r \in Rows |-> 0], answers |-> 0, billed |-> 0, begun |-> 0, hedges |-> 0, early |-> FALSE, lost |-> FALSE]

MayBegin == ~closed /\ ~held /\ InFlight < Capacity

-----------------------------------------------------------------------------
(* An attempt begins with one call.                                                                               *)
Begin(r) ==
    /\ state[r] = "waiting" /\ MayBegin
    /\ state' = [state EXCEPT ![r] = "running"]
    /\ attempts' = [attempts EXCEPT ![r] = @ + 1]
    /\ calls' = [calls EXCEPT ![r] = 1] /\ live' = [live EXCEPT ![r] = {1}]
    /\ credit' = credit + 1
    /\ h' = [h EXCEPT !.begun = @ + 1, !.errors[r] = 0]
    /\ UNCHANGED <<left, due, held, closed>>

(* It has run for longer than it should.                                                                           *)
Due(r) ==
    /\ ~closed /\ state[r] = "running" /\ r \notin due /\ calls[r] < Calls
    /\ due' = due \cup {r}
    /\ UNCHANGED <<state, attempts, calls, live, left, credit, held, closed, h>>

(* A further call: it takes a slot, goes through the gate, and is paid for by the calls before it.                    *)
Hedge(r) ==
    /\ r \in due /\ due' = due \ {r}
    /\ ~closed /\ calls[r] < Calls
    /\ ~held \/ Mutant = "hedges while the gate holds"
    /\ InFlight < Capacity \/ Mutant = "a hedge takes no slot"
    /\ credit >= Every \/ Mutant = "a hedge needs no credit"
    /\ calls' = [calls EXCEPT ![r] = @ + 1]
    /\ live' = [live EXCEPT ![r] = @ \cup {calls[r] + 1}]
    /\ state' = IF Mutant = "what has ended is hedged" THEN [state EXCEPT ![r] = "running"] ELSE state
    /\ attempts' = IF Mutant = "a hedge is an attempt" THEN [attempts EXCEPT ![r] = @ + 1] ELSE attempts
    /\ credit' = IF credit >= Every THEN credit - Every ELSE 0
    /\ h' = [h EXCEPT !.hedges = @ + 1, !.early = @ \/ held]
    /\ UNCHANGED <<left, held, closed>>

-----------------------------------------------------------------------------
(* The attempt is over: its calls that still run are cancelled. They keep their slots until they have ended.            *)
Over(r, still) ==
    /\ live' = [live EXCEPT ![r] = IF Mutant = "the slower goes on" THEN still ELSE {}]
    /\ left' = [left EXCEPT ![r] = IF Mutant = "the slower goes on" THEN @ ELSE @ + Cardinality(still)]
    /\ due' = IF Mutant = "what has ended is hedged" THEN due ELSE due \ {r}

(* The first good answer, of whichever call.                                                                        *)
Answer(r, c) ==
    /\ ~closed /\ state[r] # "waiting" /\ c \in live[r]
    /\ state' = [state EXCEPT ![r] = "answered"]
    /\ Over(r, live[r] \ {c})
    /\ h' = [h EXCEPT !.results[r] = @ + 1, !.records[r] = @ + 1, !.answers = @ + 1, !.billed = @ + 1]
    /\ UNCHANGED <<attempts, calls, credit, held, closed>>

(* The attempt has failed, and another follows or none.                                                              *)
Failed(r) ==
    IF attempts[r] < Attempts THEN /\ state' = [state EXCEPT ![r] = "waiting"] /\ UNCHANGED h
    ELSE /\ state' = [state EXCEPT ![r] = "failed"]
         /\ h' = [h EXCEPT !.results[r] = @ + 1,
                           !.lost = @ \/ Cardinality(live[r]) > 1]

(* An error of one call lets the others go on; that of the last one is the attempt's.                                 *)
Fail(r, c) ==
    /\ Fails /\ ~closed /\ state[r] = "running" /\ c \in live[r]
    /\ IF live[r] # {c} /\ Mutant # "the first error is the attempt's"
       THEN /\ live' = [live EXCEPT ![r] = @ \ {c}]
            /\ UNCHANGED <<state, left, due, h>>
       ELSE IF Mutant = "an error is for the others to settle" /\ calls[r] > 1
       THEN /\ live' = [live EXCEPT ![r] = @ \ {c}] /\ UNCHANGED <<state, left, due, h>>
       ELSE Failed(r) /\ Over(r, live[r] \ {c})
    /\ UNCHANGED <<attempts, calls, credit, held, closed>>

(* The time of the attempt is over, for all its calls.                                                              *)
TimeOut(r) ==
    /\ TimesOut /\ ~closed /\ state[r] = "running"
    /\ state' = [state EXCEPT ![r] = IF attempts[r] < Attempts THEN "waiting" ELSE "failed"]
    /\ LET still == IF Mutant = "a time-out ends the first call alone" THEN {1} \cap live[r] ELSE live[r]
       IN  /\ live' = [live EXCEPT ![r] = @ \ still]
           /\ left' = [left EXCEPT ![r] = @ + Cardinality(still)]
    /\ due' = due \ {r}
    /\ h' = IF attempts[r] < Attempts THEN h ELSE [h EXCEPT !.results[r] = @ + 1]
    /\ UNCHANGED <<attempts, calls, credit, held, closed>>

(* The time of one row of a batch is over: the calls go on for the others. They end with the last one that leaves.       *)
RowLeaves(r) ==
    /\ Size > 1 /\ ~closed /\ state[r] = "running" /\ h.gone[r] < Size
    /\ LET isLast == h.gone[r] + 1 = Size
           ends == IF isLast THEN Mutant # "the last row leaves its calls running"
                   ELSE Mutant = "a row that leaves ends the calls"
           still == IF ends THEN live[r] ELSE {}
       IN  /\ state' = [state EXCEPT ![r] = IF isLast THEN "failed" ELSE @]
           /\ live' = [live EXCEPT ![r] = @ \ still]
           /\ left' = [left EXCEPT ![r] = @ + Cardinality(still)]
           /\ due' = IF isLast THEN due \ {r} ELSE due
           /\ h' = [h EXCEPT !.gone[r] = @ + 1, !.results[r] = IF isLast THEN @ + 1 ELSE @]
    /\ UNCHANGED <<attempts, calls, credit, held, closed>>

(* A call that was cancelled ends. It may have an answer all the same, which is paid for and not kept: its row has one,   *)
(* or gets one by its next attempt.                                                                                *)
LeftEnds(r) ==
    /\ left[r] > 0 /\ left' = [left EXCEPT ![r] = @ - 1]
    /\ UNCHANGED <<state, attempts, calls, live, due, credit, held, closed, h>>

LateAnswer(r) ==
    /\ ~closed /\ left[r] > 0 /\ left' = [left EXCEPT ![r] = @ - 1]
    /\ h' = [h EXCEPT !.answers = @ + 1,
                      !.billed = IF Mutant = "a late answer is not paid for" THEN @ ELSE @ + 1,
                      !.records[r] = IF Mutant = "a late answer is kept" /\ state[r] = "answered" THEN @ + 1 ELSE @,
                      !.results[r] = IF Mutant = "a late answer is emitted" THEN @ + 1 ELSE @]
    /\ UNCHANGED <<state, attempts, calls, live, due, credit, held, closed>>

GateCloses == Gated /\ ~held /\ held' = TRUE /\ UNCHANGED <<state, attempts, calls, live, left, due, credit, closed, h>>
GateOpens == held /\ held' = FALSE /\ UNCHANGED <<state, attempts, calls, live, left, due, credit, closed, h>>

Close ==
    /\ Ends /\ ~closed /\ closed' = TRUE
    /\ left' = [r \in Rows |-> left[r] + Cardinality(live[r])]
    /\ live' = [r \in Rows |-> {}] /\ due' = {}
    /\ UNCHANGED <<state, attempts, calls, credit, held, h>>

(* A call that ends behind the close: nothing of it counts.                                                         *)
AnswerBehind(r) ==
    /\ closed /\ Mutant = "answers behind the close" /\ left[r] > 0 /\ state[r] = "running"
    /\ state' = [state EXCEPT ![r] = "answered"] /\ left' = [left EXCEPT ![r] = @ - 1]
    /\ h' = [h EXCEPT !.results[r] = @ + 1]
    /\ UNCHANGED <<attempts, calls, live, due, credit, held, closed>>

Next ==
    \/ GateCloses \/ GateOpens \/ Close
    \/ \E r \in Rows : Begin(r) \/ Due(r) \/ Hedge(r) \/ TimeOut(r) \/ RowLeaves(r) \/ LeftEnds(r) \/ LateAnswer(r) \/ AnswerBehind(r)
    \/ \E r \in Rows, c \in Numbers : Answer(r, c) \/ Fail(r, c)
Spec == Init /\ [][Next]_vars

(* The first call of an attempt may hang; what hedges it answers, and calls that are cancelled end. Without a slot for   *)
(* the hedge, or with a hedge that fails, a row waits for its first call.                                             *)
HungSpec ==
    /\ Spec
    /\ WF_vars(GateOpens)
    /\ \A r \in Rows :
        /\ SF_vars(Begin(r)) /\ WF_vars(Due(r)) /\ SF_vars(Hedge(r)) /\ WF_vars(LeftEnds(r))
        /\ WF_vars(\E c \in 2..Calls : Answer(r, c))

-----------------------------------------------------------------------------
(* A row has one result.                                                                                            *)
OneResult == \A r \in Rows : h.results[r] <= 1

(* A ledger has one record of a row.                                                                                *)
OneRecord == \A r \in Rows : h.records[r] <= 1

(* Never more calls in flight than there are slots, cancelled ones included.                                         *)
CapacityHolds == InFlight <= Capacity

(* A row runs as long as one of its calls does, and no longer: none is lost.                                          *)
RunsWithItsCalls == ~closed => \A r \in Rows : state[r] = "running" <=> live[r] # {}

(* No row fails while a call of it may still answer.                                                                *)
NoneFailsEarly == ~h.lost

(* All calls of an attempt are one attempt.                                                                         *)
PairIsOneAttempt == \A r \in Rows : attempts[r] <= Attempts

(* Only what runs is hedged.                                                                                       *)
DueRuns == \A r \in due : state[r] = "running" /\ calls[r] < Calls

(* No more hedges begin than the calls have paid for.                                                                *)
BudgetHolds == h.hedges * Every <= Start * Every + h.begun

(* No hedge begins while calls are held back.                                                                        *)
NoneWhileHeld == ~h.early

(* Each answer is paid for, late ones too.                                                                         *)
AllBilled == h.billed = h.answers

(* A call that ends behind the close changes nothing of its row.                                                     *)
NothingAfterClose ==
    [][closed => h' = h /\ state' = state /\ attempts' = attempts /\ calls' = calls /\ live' = live]_vars

(* Although first calls hang, each row comes to its end.                                                              *)
SlowIsOvertaken == \A r \in Rows : <>(state[r] \in {"answered", "failed"})
=============================================================================
