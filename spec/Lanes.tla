------------------------------- MODULE Lanes -------------------------------
(* What a mailbox thread has fetched: urgent mails, the batch, and what came later.                             *)
(* Pure functions, without a variable: which mail is next, what is left when it is gone.                        *)
(* `Mailbox` and `MailboxImpl` extend this module; `Mutant` plants a mistake, "none" plants none.                *)
EXTENDS Integers, Sequences

CONSTANTS
    Mails,       \* all mails there are: numbers from 1
    Urgent,      \* those that are urgent,
    High,        \* those of priority 1; all others have 0,
    Deferrable,  \* and those that a take may ask to skip
    Burst,       \* how many urgent mails in a row come before one that is not urgent
    Choosy,      \* whether takes ask for a priority, and to skip what is deferrable
    Mutant       \* the planted mistake

None == 0

Priorities == IF Choosy THEN {-1, 1} ELSE {-1}
Skips == IF Choosy THEN BOOLEAN ELSE {FALSE}

Range(q) == {q[i] : i \in DOMAIN q}

(* Whether a take of least priority p, which may skip what is deferrable, accepts the mail.                     *)
Accepts(p, skip, m) ==
    /\ (IF m \in High THEN 1 ELSE 0) >= p
    /\ ~(skip /\ m \in Deferrable)

NoLanes == [urgent |-> <<>>, batch |-> <<>>, later |-> <<>>, streak |-> 0]

InLanes(l) == Range(l.urgent) \cup Range(l.batch) \cup Range(l.later)

Without(q, m) == SelectSeq(q, LAMBDA x : x # m)

(* The first mail of q that such a take accepts, or None.                                                       *)
Oldest(q, p, skip) ==
    LET fit == {i \in DOMAIN q : Accepts(p, skip, q[i])}
    IN  IF fit = {} THEN None ELSE q[CHOOSE i \in fit : \A j \in fit : i <= j]

(* What has arrived, oldest first, goes behind what was fetched before.                                         *)
Sorted(l, arrived) ==
    LET new == SelectSeq(arrived, LAMBDA m : m \in Urgent /\ Mutant # "urgent mails are not first")
    IN  [l EXCEPT
            !.urgent = IF Mutant = "urgent last in first out"
                       THEN [i \in 1..Len(new) |-> new[Len(new) + 1 - i]] \o @
                       ELSE @ \o new,
            !.later = @ \o SelectSeq(arrived, LAMBDA m : m \notin Range(new))]

(* The mail that a take gets, or None; `whole` says whether it looks beyond the batch.                          *)
NextMail(l, p, skip0, whole) ==
    LET skip == skip0 /\ Mutant # "deferrable mail is not skipped"
        least == IF Mutant = "a take excludes its own priority" /\ p > -1 THEN p + 1 ELSE p
        urgent == Oldest(l.urgent, least, skip)
        ordinary == Oldest(IF whole \/ Mutant = "the batch grows" THEN l.batch \o l.later ELSE l.batch, least, skip)
        turn == l.streak >= Burst /\ Mutant # "urgent mails starve the others"
    IN  IF urgent # None /\ ~(turn /\ ordinary # None) THEN urgent ELSE ordinary

(* The lanes without the mail m, which a take has got.                                                          *)
After(l, m) ==
    [urgent |-> Without(l.urgent, m),
     batch |-> Without(l.batch, m),
     later |-> Without(l.later, m),
     streak |-> IF m \notin Urgent THEN 0 ELSE IF l.streak < Burst THEN l.streak + 1 ELSE l.streak]

(* All mails in the order in which takes would get them, and the lanes that are left.                           *)
RECURSIVE Emptied(_, _, _)
Emptied(l, skip, mails) ==
    LET m == NextMail(l, -1, skip, TRUE)
    IN  IF m = None THEN [mails |-> mails, lanes |-> l] ELSE Emptied(After(l, m), skip, Append(mails, m))

Drained(l) == Emptied(l, Mutant = "drain skips deferrable mail", <<>>)

(* The same for close, after which nothing is left, nor any memory of a streak.                                 *)
Returned(l) ==
    Emptied(IF Mutant = "close forgets the batch" THEN [l EXCEPT !.batch = <<>>] ELSE l, FALSE, <<>>).mails

Batched(l) ==
    [l EXCEPT !.batch = IF Mutant = "create_batch forgets what is left" THEN l.later ELSE @ \o l.later,
              !.later = <<>>]
=============================================================================
