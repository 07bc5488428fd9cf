----------------------------- MODULE SkippedRows -----------------------------
(* The rows of a task that are not called, as a condition does not hold for them. The thread that reads the input     *)
(* holds them beside the operator, with the number of called rows in front of each; the thread that takes results     *)
(* has them leave at their places. While more are held than Limit the reader waits, and wakes the other, which may    *)
(* have no result to wait for. pillarbox.spark.writer.                                                          *)
EXTENDS Naturals, Sequences

CONSTANTS
    Batches,        \* of the input, each of one to
    Rows,           \* rows, called or not
    Limit,          \* rows that are held, beyond which no batch is read
    Window,         \* rows that the operator holds
    Ordered,        \* results leave in order, and what is not called at its place among them
    Mutant

VARIABLES
    read,           \* batches that were read
    rows,           \* rows that were read, and
    pending,        \* those of the newest batch that are to be handed to the operator,
    called,         \* how many were handed over, or wait for it
    held,           \* the rows that are not called: number, and called rows in front
    calls,          \* the numbers of called rows that have not left, in order
    inside,         \* how many of them the operator has
    left,           \* results that have left
    waits, woken,   \* the reader waits for room; the consumer is to look although no result is there
    out             \* the numbers of the rows that have left

vars == <<read, rows, pending, called, held, calls, inside, left, waits, woken, out>>

Init ==
    /\ read = 0 /\ rows = 0 /\ pending = 0 /\ called = 0 /\ held = <<>> /\ calls = <<>> /\ inside = 0
    /\ left = 0 /\ waits = FALSE /\ woken = FALSE /\ out = <<>>

TypeOK == /\ read \in 0..Batches /\ pending \in 0..Rows /\ inside \in 0..Window /\ left <= called

IsFull == Len(held) > Limit
Range(q) == {q[i] : i \in DOMAIN q}
Kinds == UNION {[1..n -> BOOLEAN] : n \in 1..Rows}

RECURSIVE Before(_, _)
Before(kinds, i) == IF i = 1 THEN 0 ELSE Before(kinds, i - 1) + (IF kinds[i - 1] THEN 1 ELSE 0)

RECURSIVE Places(_, _, _)
(* The places of the rows that are called, or are not.                                                               *)
Places(kinds, is, i) ==
    IF i > Len(kinds) THEN <<>> ELSE (IF kinds[i] = is THEN <<i>> ELSE <<>>) \o Places(kinds, is, i + 1)

-----------------------------------------------------------------------------
(* The next batch; its predecessor's rows were all handed over.                                                      *)
Read ==
    /\ read < Batches /\ pending = 0 /\ ~waits
    /\ ~IsFull \/ Mutant = "never waits"
    /\ \E kinds \in Kinds :
        LET yes == Places(kinds, TRUE, 1)
            no == Places(kinds, FALSE, 1)
        IN  /\ rows' = rows + Len(kinds)
            /\ pending' = Len(yes)
            /\ called' = called + Len(yes)
            /\ calls' = calls \o [i \in DOMAIN yes |-> rows + yes[i]]
            /\ held' = held \o [i \in DOMAIN no |-> [row |-> rows + no[i], front |-> called + Before(kinds, no[i])]]
    /\ read' = read + 1
    /\ UNCHANGED <<inside, left, waits, woken, out>>

(* The operator takes a row of it.                                                                                   *)
HandOver ==
    /\ pending > 0 /\ inside < Window
    /\ Mutant = "holds rows back" => ~IsFull
    /\ pending' = pending - 1 /\ inside' = inside + 1
    /\ UNCHANGED <<read, rows, called, held, calls, left, waits, woken, out>>

(* Too many are held: the reader wakes the consumer, and waits.                                                      *)
Wait ==
    /\ pending = 0 /\ IsFull /\ ~waits /\ read < Batches /\ Mutant # "never waits"
    /\ waits' = TRUE /\ woken' = (Mutant # "wakes nobody")
    /\ UNCHANGED <<read, rows, pending, called, held, calls, inside, left, out>>

GoOn ==
    /\ waits /\ ~IsFull
    /\ waits' = FALSE
    /\ UNCHANGED <<read, rows, pending, called, held, calls, inside, left, woken, out>>

(* What leaves with the first of the results, if is, where so many have left then.                                   *)
Leaving(after) ==
    IF ~Ordered \/ Mutant = "does not look at places" THEN held
    ELSE SelectSeq(held, LAMBDA each : each.front <= after)

RECURSIVE Merged(_, _)
Merged(one, other) ==
    IF one = <<>> \/ other = <<>> THEN one \o other
    ELSE IF Head(one) < Head(other) THEN <<Head(one)>> \o Merged(Tail(one), other)
    ELSE <<Head(other)>> \o Merged(one, Tail(other))

Leave(results) ==
    LET some == Leaving(left + Len(results))
    IN  /\ out' = out \o Merged([i \in DOMAIN some |-> some[i].row], results)
        /\ held' = SelectSeq(held, LAMBDA each : each \notin Range(some))
        /\ left' = left + Len(results)

(* A chunk of one result; in an operator without order it may be any, which makes no difference here.                *)
Take ==
    /\ inside > 0
    /\ inside' = inside - 1 /\ calls' = Tail(calls)
    /\ Leave(<<Head(calls)>>)
    /\ UNCHANGED <<read, rows, pending, called, waits, woken>>

(* The consumer was woken, and no result is there.                                                                   *)
TakeNone ==
    /\ woken /\ woken' = FALSE
    /\ Leave(<<>>)
    /\ UNCHANGED <<read, rows, pending, called, calls, inside, waits>>

(* All results have left.                                                                                            *)
End ==
    /\ read = Batches /\ pending = 0 /\ calls = <<>> /\ held # <<>>
    /\ Leave(<<>>)
    /\ UNCHANGED <<read, rows, pending, called, calls, inside, waits, woken>>

Done == read = Batches /\ pending = 0 /\ calls = <<>> /\ held = <<>>
Over == Done /\ UNCHANGED vars

Next == Read \/ HandOver \/ Wait \/ GoOn \/ Take \/ TakeNone \/ End \/ Over

Spec == Init /\ [][Next]_vars
FairSpec == Spec /\ WF_vars(Next)

-----------------------------------------------------------------------------
(* Rows leave in the order in which they came, where results do.                                                     *)
InOrder == Ordered => \A i \in DOMAIN out : out[i] = i

(* No row leaves twice.                                                                                              *)
NothingTwice == \A i, j \in DOMAIN out : out[i] = out[j] => i = j

(* No more is held than the limit and one batch.                                                                     *)
FewAreHeld == Len(held) <= Limit + Rows

(* Every row leaves.                                                                                                 *)
AllLeave == <>(read = Batches /\ Len(out) = rows /\ Done)
=============================================================================
