------------------------- MODULE ResultQueueOrder -------------------------
(* Which entries of a result queue may be emitted, ordered or unordered   *)
(* with watermarks. A queue is the sequence of the entries admitted and   *)
(* not emitted, in the order of admission. Used by ResultQueue and by     *)
(* ResultQueueGraph.                                                      *)
EXTENDS Naturals, Sequences

CONSTANTS
    Marks,    \* positions that are watermarks
    Ordered,  \* whether results leave in the order of the input
    Mutant    \* the name of the planted mistake, "none" for the specification itself

IsMark(e) == e.pos \in Marks

\* Ordered: only the oldest. Unordered: a record behind no watermark, a watermark behind nothing.
InTurn(queue, i) ==
    CASE Mutant = "ordered_emits_any" /\ Ordered -> TRUE
      [] Ordered \/ (IsMark(queue[i]) /\ Mutant # "watermark_passes_record") -> i = 1
      [] Mutant = "record_passes_watermark" -> TRUE
      [] OTHER -> \A j \in 1..(i - 1) : ~IsMark(queue[j])

Ready(queue) == {i \in 1..Len(queue) : queue[i].done /\ InTurn(queue, i)}

Without(queue, i) == SubSeq(queue, 1, i - 1) \o SubSeq(queue, i + 1, Len(queue))

Emission(e) == [pos |-> e.pos, result |-> e.result]

Positions(entries) == [i \in 1..Len(entries) |-> entries[i].pos]

FinishedIn(entries) == {entries[i].pos : i \in {j \in 1..Len(entries) : entries[j].done}}

Reversed(entries) == [i \in 1..Len(entries) |-> entries[Len(entries) + 1 - i]]
=============================================================================
