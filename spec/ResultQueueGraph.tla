-------------------------- MODULE ResultQueueGraph --------------------------
(* The kernel's result queue as one thread sees it: each operation one     *)
(* step, refusals included. Its state graph is checked in, and the kernel  *)
(* is led along every edge of it. The actions are those of ResultQueue     *)
(* that the kernel has, with arguments and results in `op`.                *)
(*                                                                         *)
(* Elements are 1..Elements. A handle is <<element, attempt>>, attempts    *)
(* being counted for each element from 1 on; the result of an attempt is   *)
(* its number, 0 is a result that was restored. The one watermark is 9.    *)
EXTENDS Naturals, Sequences, FiniteSets, ResultQueueOrder

CONSTANTS
    Elements,
    Capacity,
    Attempts    \* most attempts of one element, over the whole life

VARIABLES
    queue,      \* entries admitted and not emitted, in the order of admission
    rest,       \* entries still to be restored
    finish,     \* unordered: elements that are finished, in the order in which they were
    attempts,   \* the last attempt of each element
    closed,
    op          \* <<name, arguments, result>> of the last operation

vars == <<queue, rest, finish, attempts, closed, op>>

\* What is put when the put is refused, and what waits at the door.
Stranger == Elements + 1

Entry(pos, done, result) == [pos |-> pos, done |-> done, result |-> result]
Watermark == Entry(9, TRUE, 9)

\* What is restored: a finished one, a watermark and an unfinished one; two in another order; nothing.
Lists == {
    <<Entry(1, TRUE, 0), Watermark, Entry(2, FALSE, 0)>>,
    <<Entry(2, FALSE, 0), Entry(1, FALSE, 0)>>,
    <<Watermark, Entry(1, FALSE, 0), Entry(2, TRUE, 0)>>,
    <<>>}

Triples(entries) ==
    [i \in 1..Len(entries) |-> <<entries[i].pos, entries[i].done, entries[i].result>>]

Records(entries) == SelectSeq(entries, LAMBDA e : ~IsMark(e))

Did(name, args, result) == op' = <<name, args, result>>

Refusal ==
    CASE closed -> "closed"
      [] rest # <<>> -> "restoring"
      [] Len(queue) = Capacity -> "full"
      [] OTHER -> "none"

Held(e) == \E i \in 1..Len(queue) : queue[i].pos = e

\* An element that can be put: not there, and not used up. The first of them, to keep the graph small.
Free == {e \in 1..Elements : ~Held(e) /\ attempts[e] < Attempts}

Next1(e) == [attempts EXCEPT ![e] = @ + 1]

\* The entry that a handle names and that takes a result: at most one.
Takers(e, k) == {i \in 1..Len(queue) : queue[i].pos = e /\ attempts[e] = k /\ ~queue[i].done}

------------------------------------------------------------------------------

Put ==
    IF Refusal # "none"
    THEN Did("put", <<Stranger>>, Refusal) /\ UNCHANGED <<queue, rest, finish, attempts, closed>>
    ELSE /\ Free # {}
         /\ LET e == CHOOSE e \in Free : \A f \in Free : e <= f
            IN  /\ queue' = Append(queue, Entry(e, FALSE, 0)) /\ attempts' = Next1(e)
                /\ Did("put", <<e>>, <<e, attempts[e] + 1>>)
         /\ UNCHANGED <<rest, finish, closed>>

PutWatermark ==
    /\ Did("put_watermark", <<9>>, Refusal)
    /\ queue' = IF Refusal = "none" THEN Append(queue, Watermark) ELSE queue
    /\ UNCHANGED <<rest, finish, attempts, closed>>

\* Every handle that was ever given out is tried.
Renew ==
    \E e \in 1..Elements : \E k \in 1..attempts[e] :
        /\ IF Takers(e, k) = {} THEN Did("renew", <<e, k>>, "stale") /\ UNCHANGED attempts
           ELSE k < Attempts /\ attempts' = Next1(e) /\ Did("renew", <<e, k>>, <<e, k + 1>>)
        /\ UNCHANGED <<queue, rest, finish, closed>>

Complete ==
    \E e \in 1..Elements : \E k \in 1..attempts[e] :
        /\ Did("complete", <<e, k>>, Takers(e, k) # {})
        /\ queue' = [i \in 1..Len(queue) |->
                        IF i \in Takers(e, k) THEN Entry(e, TRUE, k) ELSE queue[i]]
        /\ finish' = IF Takers(e, k) = {} \/ Ordered THEN finish ELSE Append(finish, e)
        /\ UNCHANGED <<rest, attempts, closed>>

------------------------------------------------------------------------------
(* Emission: ordered the head, unordered whichever finished first of those that may go. *)

Rank(order, e) == CHOOSE i \in 1..Len(order) : order[i] = e

First(entries, order) ==
    LET ready == Ready(entries)
    IN  IF Ordered \/ (1 \in ready /\ IsMark(entries[1])) THEN 1
        ELSE CHOOSE i \in ready : \A j \in ready :
                Rank(order, entries[i].pos) <= Rank(order, entries[j].pos)

Given(e) == IF IsMark(e) THEN <<9>> ELSE <<e.pos, e.result>>

\* What comes out of a queue, at most so many, and what is left of it.
RECURSIVE Emitted(_, _, _, _)
Emitted(entries, order, most, out) ==
    IF most = 0 \/ Ready(entries) = {}
    THEN [entries |-> entries, order |-> order, out |-> out]
    ELSE LET i == First(entries, order)
         IN  Emitted(Without(entries, i), SelectSeq(order, LAMBDA e : e # entries[i].pos), most - 1,
                     Append(out, Given(entries[i])))

EmitAtMost(most) ==
    LET left == Emitted(queue, finish, most, <<>>)
    IN  /\ queue' = left.entries /\ finish' = left.order
        /\ UNCHANGED <<rest, attempts, closed>>

Emit ==
    LET out == Emitted(queue, finish, 1, <<>>).out
    IN  EmitAtMost(1) /\ Did("emit", <<>>, IF out = <<>> THEN "none" ELSE out[1])

EmitMany ==
    \E most \in {0, 1, Capacity} :
        EmitAtMost(most) /\ Did("emit_many", <<most>>, Emitted(queue, finish, most, <<>>).out)

HasCompleted ==
    /\ Did("has_completed", <<>>, Ready(queue) # {})
    /\ UNCHANGED <<queue, rest, finish, attempts, closed>>

------------------------------------------------------------------------------
(* All at once. *)

Snapshot ==
    \E door \in {<<>>, <<Stranger>>} :
        /\ Did("snapshot", door, Triples(queue \o rest) \o [i \in 1..Len(door) |-> <<door[i], FALSE, 0>>])
        /\ UNCHANGED <<queue, rest, finish, attempts, closed>>

RestoreRefusal ==
    CASE closed -> "closed"
      [] rest # <<>> -> "restoring"
      [] queue # <<>> -> "not empty"
      [] OTHER -> "none"

\* Elements whose attempts are used up are not restored: a bound of this model.
Restore ==
    \E list \in Lists :
        /\ \A i \in 1..Len(list) : ~list[i].done => attempts[list[i].pos] < Attempts
        /\ Did("restore", Triples(list), RestoreRefusal)
        /\ rest' = IF RestoreRefusal = "none" THEN list ELSE rest
        /\ UNCHANGED <<queue, finish, attempts, closed>>

Smaller(a, b) == IF a < b THEN a ELSE b

\* Goes on to the first entry that needs its call, or until the queue is full.
AdmitRestored ==
    LET most == Smaller(Len(rest), Capacity - Len(queue))
        calls == {i \in 1..most : ~rest[i].done}
        count == IF calls = {} THEN most ELSE CHOOSE i \in calls : \A j \in calls : i <= j
        entered == SubSeq(rest, 1, count)
        e == rest[count].pos
    IN  /\ queue' = queue \o entered
        /\ rest' = SubSeq(rest, count + 1, Len(rest))
        /\ finish' = IF Ordered THEN finish
                     ELSE finish \o Positions(SelectSeq(Records(entered), LAMBDA x : x.done))
        /\ IF calls = {}
           THEN Did("admit_restored", <<>>, "none") /\ UNCHANGED attempts
           ELSE Did("admit_restored", <<>>, <<e, attempts[e] + 1>>) /\ attempts' = Next1(e)
        /\ UNCHANGED closed

KeepsRest(name) == Mutant = "close_keeps_restoring" /\ name = "close"

TakeOutAll(name) ==
    /\ Did(name, <<>>, Positions(Records(IF KeepsRest(name) THEN queue ELSE queue \o rest)))
    /\ queue' = <<>> /\ rest' = (IF KeepsRest(name) THEN rest ELSE <<>>) /\ finish' = <<>>
    /\ UNCHANGED attempts

Clear == TakeOutAll("clear") /\ UNCHANGED closed

Close == TakeOutAll("close") /\ closed' = TRUE

------------------------------------------------------------------------------

Init ==
    /\ queue = <<>> /\ rest = <<>> /\ finish = <<>> /\ closed = FALSE
    /\ attempts = [e \in 1..Elements |-> 0]
    /\ op = <<"made", <<>>, "none">>

Next ==
    \/ Put \/ PutWatermark \/ Renew \/ Complete
    \/ Emit \/ EmitMany \/ HasCompleted
    \/ Snapshot \/ Restore \/ AdmitRestored \/ Clear \/ Close

Spec == Init /\ [][Next]_vars

CapacityNeverExceeded == Len(queue) <= Capacity

\* Close and clear give back every element that was held or still to be restored, and keep none.
AllGivenBack ==
    [][op'[1] \in {"clear", "close"} =>
            op'[3] = Positions(Records(queue \o rest)) /\ queue' = <<>> /\ rest' = <<>>]_vars

\* Those that are finished, and nobody else, have a place in the order of finishing.
FinishOrderComplete ==
    ~Ordered => /\ {finish[i] : i \in 1..Len(finish)} = FinishedIn(queue) \ Marks
                /\ Cardinality({finish[i] : i \in 1..Len(finish)}) = Len(finish)
=============================================================================
