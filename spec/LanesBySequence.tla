-------------------------- MODULE LanesBySequence --------------------------
(* How the kernel keeps what `Lanes` describes, so that a take does not look at mail that it does not accept.    *)
(*                                                                                                              *)
(* Every mail gets a number when it is sorted in. Mail of one kind (its priority, and whether it is deferrable)  *)
(* is in one lane, so a take compares the first mails of the lanes that it accepts. Only `Few` kinds have lanes  *)
(* of their own at a time; mail of all other kinds shares one, which is searched. The batch is what has a number *)
(* up to `bound`. Class Lanes of pillarbox_lanes.h does it, twice: for urgent mail, and for all other.           *)
EXTENDS Lanes, FiniteSets

CONSTANTS
    Few,         \* how many kinds may have a lane of their own, in each of the two
    MaxNumbered  \* how many mails are sorted in, in all

VARIABLES
    urgent, ordinary,  \* each: the lanes by kind, and the shared one
    number,            \* of each mail, as of its last coming
    numbered,          \* the last number that was given
    bound,
    lists              \* what `Lanes` has by now; only its `streak` is kept, the rest is remembered

vars == <<urgent, ordinary, number, numbered, bound, lists>>

Kind(m) == <<m \in High, m \in Deferrable>>
NoKinds == [own |-> <<>>, shared |-> <<>>]

Init ==
    /\ urgent = NoKinds /\ ordinary = NoKinds
    /\ number = [m \in Mails |-> 0] /\ numbered = 0
    /\ bound = 0 /\ lists = NoLanes

Lane(set, kind) == IF kind \in DOMAIN set.own THEN set.own[kind] ELSE <<>>
Held(set) == Range(set.shared) \cup UNION {Range(set.own[kind]) : kind \in DOMAIN set.own}

(* `own` without the kinds whose lanes are empty: a lane is free for another kind then.                          *)
Used(own) == [kind \in {k \in DOMAIN own : own[k] # <<>>} |-> own[kind]]

With(set, m) ==
    LET has == Kind(m) \in DOMAIN set.own
    IN  IF has \/ Cardinality(DOMAIN set.own) < Few
        THEN [set EXCEPT !.own =
                 [kind \in DOMAIN set.own \cup {Kind(m)} |->
                     IF kind = Kind(m) THEN Append(Lane(set, kind), m) ELSE set.own[kind]]]
        ELSE [set EXCEPT !.shared = Append(@, m)]

Less(set, m) ==
    [own |-> Used([kind \in DOMAIN set.own |-> Without(set.own[kind], m)]), shared |-> Without(set.shared, m)]

(* The mails that a take has to compare: the first of each lane that it accepts, one of the shared lane.         *)
Firsts(set, p, skip) ==
    LET heads == {Head(set.own[kind]) : kind \in DOMAIN set.own}
        shared == IF Mutant = "the shared lane is forgotten" THEN None ELSE Oldest(set.shared, p, skip)
    IN  ({m \in heads : Accepts(p, skip, m)} \cup {shared}) \ {None}

Before(m, n) ==
    IF Mutant = "the higher priority goes first" /\ (m \in High) # (n \in High) THEN m \in High
    ELSE number[m] < number[n]

(* The first of them, unless its number is beyond `end`.                                                         *)
First(set, p, skip, end) ==
    LET firsts == Firsts(set, p, skip)
        first == CHOOSE m \in firsts : \A n \in firsts : n = m \/ Before(m, n)
    IN  IF firsts = {} \/ number[first] > end THEN None ELSE first

Choice(p, skip, whole) ==
    LET pressing == First(urgent, p, skip, numbered)
        other == First(ordinary, p, skip, IF whole THEN numbered ELSE bound)
    IN  IF pressing # None /\ ~(lists.streak >= Burst /\ other # None) THEN pressing ELSE other

-----------------------------------------------------------------------------
(* Mail that was fetched, in the order of the puts. A mail may come again when it is gone.                       *)
Sort(m) ==
    /\ m \notin Held(urgent) \cup Held(ordinary)
    /\ numbered < MaxNumbered
    /\ numbered' = numbered + 1
    /\ number' = IF Mutant = "a mail keeps its first number" /\ number[m] # 0 THEN number
                 ELSE [number EXCEPT ![m] = numbered + 1]
    /\ IF m \in Urgent THEN urgent' = With(urgent, m) /\ UNCHANGED ordinary
       ELSE ordinary' = With(ordinary, m) /\ UNCHANGED urgent
    /\ lists' = Sorted(lists, <<m>>)
    /\ UNCHANGED bound

TakeMail(p, skip, whole) ==
    LET m == Choice(p, skip, whole)
    IN  /\ m # None
        /\ urgent' = Less(urgent, m) /\ ordinary' = Less(ordinary, m)
        /\ lists' = After(lists, m)
        /\ UNCHANGED <<number, numbered, bound>>

MakeBatch ==
    /\ bound' = IF Mutant = "the batch stops one short" /\ numbered > bound THEN numbered - 1 ELSE numbered
    /\ lists' = Batched(lists)
    /\ UNCHANGED <<urgent, ordinary, number, numbered>>

Next ==
    \/ \E m \in Mails : Sort(m)
    \/ \E p \in Priorities, skip \in Skips : TakeMail(p, skip, TRUE)
    \/ TakeMail(-1, FALSE, FALSE)
    \/ MakeBatch

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
RECURSIVE InOrder(_)
InOrder(mails) ==
    IF mails = {} THEN <<>>
    ELSE LET first == CHOOSE m \in mails : \A n \in mails : number[m] <= number[n]
         IN  <<first>> \o InOrder(mails \ {first})

(* The numbers tell the lists.                                                                                   *)
HoldsAsLanes ==
    LET others == Held(ordinary)
    IN  /\ lists.urgent = InOrder(Held(urgent))
        /\ lists.batch = InOrder({m \in others : number[m] <= bound})
        /\ lists.later = InOrder({m \in others : number[m] > bound})

(* A take, of everything or of the batch, gets what it would get from the lists.                                 *)
ChoosesAsLanes ==
    /\ \A p \in Priorities, skip \in Skips : Choice(p, skip, TRUE) = NextMail(lists, p, skip, TRUE)
    /\ Choice(-1, FALSE, FALSE) = NextMail(lists, -1, FALSE, FALSE)

FewLanes == Cardinality(DOMAIN urgent.own) <= Few /\ Cardinality(DOMAIN ordinary.own) <= Few
=============================================================================
