------------------------------ MODULE KeyOrder ------------------------------
(* Rows of one key are called one after the other, or a few at a time, in their order; keys side by side. A row that *)
(* comes is let through, or queues behind the unfinished rows of its key. It keeps its place through pauses and      *)
(* retries, until it has its result. A row may end while it queues: its job discards it, or a ledger has its result. *)
(* What runs, pauses and times out among the rows that are let through is in Feeding.tla. Module                     *)
(* pillarbox.aio.policies.per_key.                                                                                   *)
EXTENDS Naturals, Sequences, FiniteSets

CONSTANTS
    Rows,       \* how many rows there are; they come in the order of their numbers
    Keys,       \* keys are 1..Keys; the key of a row is its number modulo that
    AtOnce,     \* rows of a key that are let through, at most
    Mutant

VARIABLES
    next,       \* the next row that comes
    through,    \* rows that are let through and not finished
    queues,     \* of each key: the rows that queue
    done,       \* rows that are finished
    (* history *)
    passed      \* of each key: its rows in the order in which they were let through

vars == <<next, through, queues, done, passed>>

KeyOf(row) == (row % Keys) + 1
Elements(sequence) == {sequence[i] : i \in 1..Len(sequence)}
ThroughOf(key) == {row \in through : KeyOf(row) = key}
Without(sequence, row) == SelectSeq(sequence, LAMBDA other : other # row)

TypeOK ==
    /\ next \in 1..(Rows + 1) /\ through \subseteq 1..Rows /\ done \subseteq 1..Rows
    /\ \A key \in 1..Keys : Elements(queues[key]) \subseteq 1..Rows

Init ==
    /\ next = 1 /\ through = {} /\ done = {}
    /\ queues = [key \in 1..Keys |-> <<>>] /\ passed = [key \in 1..Keys |-> <<>>]

(* A row that comes is let through where its key has room.                                                          *)
HasRoom(key) ==
    \/ Cardinality(ThroughOf(key)) < AtOnce
    \/ Mutant = "one too many" /\ Cardinality(ThroughOf(key)) = AtOnce
Come ==
    /\ next <= Rows /\ next' = next + 1
    /\ LET key == KeyOf(next) IN
       IF HasRoom(key)
       THEN /\ through' = through \cup {next} /\ passed' = [passed EXCEPT ![key] = Append(@, next)]
            /\ UNCHANGED queues
       ELSE queues' = [queues EXCEPT ![key] = Append(@, next)] /\ UNCHANGED <<through, passed>>
    /\ UNCHANGED done

(* The first row that queues takes the place of one that ends.                                                      *)
Promoted(key) ==
    IF Mutant = "the newest goes first" THEN queues[key][Len(queues[key])] ELSE Head(queues[key])
End(row) ==
    /\ row \in through /\ done' = done \cup {row}
    /\ LET key == KeyOf(row) IN
       IF queues[key] = <<>> \/ Mutant = "nobody is let through"
       THEN through' = through \ {row} /\ UNCHANGED <<queues, passed>>
       ELSE /\ through' = (through \ {row}) \cup {Promoted(key)}
            /\ queues' = [queues EXCEPT ![key] = Without(@, Promoted(key))]
            /\ passed' = [passed EXCEPT ![key] = Append(@, Promoted(key))]
    /\ UNCHANGED next

(* A row that queues ends without its call: its place in the queue goes, and nobody's place becomes free.            *)
Withdraw(row) ==
    /\ row \in Elements(queues[KeyOf(row)])
    /\ LET key == KeyOf(row)
           rest == Without(queues[key], row)
       IN  IF Mutant = "a row that queued frees a place" /\ rest # <<>>
           THEN /\ queues' = [queues EXCEPT ![key] = Tail(rest)] /\ through' = through \cup {Head(rest)}
                /\ passed' = [passed EXCEPT ![key] = Append(@, Head(rest))]
           ELSE queues' = [queues EXCEPT ![key] = rest] /\ UNCHANGED <<through, passed>>
    /\ done' = done \cup {row}
    /\ UNCHANGED next

Next == Come \/ \E row \in 1..Rows : End(row) \/ Withdraw(row)
Spec == Init /\ [][Next]_vars
FairSpec == Spec /\ WF_vars(Come) /\ \A row \in 1..Rows : WF_vars(End(row))

-----------------------------------------------------------------------------
(* No more rows of a key are let through and not finished than are allowed.                                          *)
AtMost == \A key \in 1..Keys : Cardinality(ThroughOf(key)) <= AtOnce

(* Rows of a key are let through in the order in which they came.                                                    *)
InOrder == \A key \in 1..Keys : \A i, j \in 1..Len(passed[key]) : i < j => passed[key][i] < passed[key][j]

(* No row queues while its key has room: another key holds nobody back.                                              *)
NoneWaitsForOthers == \A key \in 1..Keys : queues[key] # <<>> => Cardinality(ThroughOf(key)) >= AtOnce

(* Each row comes to its end.                                                                                        *)
AllEnd == <>(done = 1..Rows)
=============================================================================
