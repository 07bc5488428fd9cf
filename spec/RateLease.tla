----------------------------- MODULE RateLease -----------------------------
(* How tasks share a number of calls, `Max`, through a coordinator that may die: the accounts of quota.py, and   *)
(* what a task does with what it was granted. A task says some time later that calls have begun: all that it     *)
(* holds when it dies counts as begun. All reports are counts since the beginning of a task, so only the last    *)
(* one on its way matters.                                                                                       *)
(* Time is not here: a task may be given up at any time, and may use what it holds all the same.                  *)
(* Nor are units, the weights of calls: those that come with a grant lapse and are given back with its calls.    *)
EXTENDS Integers, FiniteSets, TLC

CONSTANTS Tasks, Max, Crashes, Cuts, Mutant

VARIABLES
    up,       \* whether there is a coordinator
    book,     \* of each task, what the coordinator knows
    disk,     \* the book as it was written last
    life,     \* of each task: "new", "live" or "dead"
    recv, used, back,  \* of each task: calls received, begun, given back
    link,     \* of each task: whether it is connected
    wire,     \* of each task: calls granted that are on their way to it
    told,     \* of each task: its reports on their way to the coordinator, {} or {the last}
    crashes, cuts

vars == <<up, book, disk, life, recv, used, back, link, wire, told, crashes, cuts>>
mine == <<life, recv, used, back>>
ways == <<link, wire, told>>

Nobody == [at |-> "none", granted |-> 0, used |-> 0, back |-> 0, counted |-> 0]

RECURSIVE Sum(_, _)
Sum(f, S) == IF S = {} THEN 0 ELSE LET t == CHOOSE t \in S : TRUE IN f[t] + Sum(f, S \ {t})

Committed(b) == Sum([t \in Tasks |-> b[t].counted
    + (IF b[t].at \in {"there", "gone"} THEN b[t].granted - b[t].back ELSE 0)], Tasks)
Held(t) == recv[t] - used[t] - back[t]
Begun == Sum(used, Tasks)
Larger(a, b) == IF a > b THEN a ELSE b

Init ==
    /\ up = TRUE
    /\ book = [t \in Tasks |-> Nobody]
    /\ disk = book
    /\ life = [t \in Tasks |-> "new"]
    /\ recv = [t \in Tasks |-> 0]
    /\ used = recv
    /\ back = recv
    /\ wire = recv
    /\ link = [t \in Tasks |-> FALSE]
    /\ told = [t \in Tasks |-> {}]
    /\ crashes = 0
    /\ cuts = 0

(* The first time, or again after whatever happened: the task says all that it knows.                            *)
Register(t) ==
    /\ up /\ ~link[t] /\ life[t] # "dead"
    /\ life' = [life EXCEPT ![t] = "live"]
    /\ link' = [link EXCEPT ![t] = TRUE]
    /\ book' = [book EXCEPT ![t] =
        [at |-> "there",
         granted |-> IF Mutant = "grants_on_their_way_stay" THEN Larger(@.granted, recv[t]) ELSE recv[t],
         used |-> used[t], back |-> back[t],
         counted |-> IF Mutant = "counted_twice" THEN @.counted ELSE 0]]
    \* Nobody reads the connection before this one any more.
    /\ wire' = [wire EXCEPT ![t] = 0]
    /\ told' = [told EXCEPT ![t] = {}]
    /\ UNCHANGED <<up, disk, recv, used, back, crashes, cuts>>

Grant(t) ==
    /\ up /\ link[t] /\ book[t].at = "there"
    /\ \E n \in 1..2 :
        /\ Committed(book) + n <= Max
        /\ book' = [book EXCEPT ![t].granted = @ + n]
        /\ wire' = [wire EXCEPT ![t] = @ + n]
    \* Written down before it is said.
    /\ disk' = IF Mutant = "grant_not_written" THEN disk ELSE book'
    /\ UNCHANGED <<up, mine, link, told, crashes, cuts>>

(* Also what came before a connection broke, and is read later.                                                  *)
Receive(t) ==
    /\ life[t] = "live" /\ wire[t] > 0
    /\ recv' = [recv EXCEPT ![t] = @ + wire[t]]
    /\ wire' = [wire EXCEPT ![t] = 0]
    /\ UNCHANGED <<up, book, disk, life, used, back, link, told, crashes, cuts>>

Begin(t) ==
    /\ life[t] = "live" /\ Held(t) > 0
    /\ used' = [used EXCEPT ![t] = @ + 1]
    /\ UNCHANGED <<up, book, disk, life, recv, back, ways, crashes, cuts>>

(* A task that does not know yet that it is cut off says it to nobody.                                           *)
Report(t) ==
    /\ life[t] = "live" /\ link[t]
    /\ told' = [told EXCEPT ![t] = {[used |-> used[t], back |-> back[t]]}]
    /\ UNCHANGED <<up, book, disk, mine, link, wire, crashes, cuts>>

(* What a lease has left when it is over; a task that is cut off says it when it is back.                        *)
GiveBack(t) ==
    /\ life[t] = "live" /\ Held(t) > 0
    /\ back' = [back EXCEPT ![t] = @ + Held(t)]
    /\ UNCHANGED <<up, book, disk, life, recv, used, ways, crashes, cuts>>

(* A report may come more than once.                                                                             *)
Hear(t) ==
    /\ up /\ book[t].at = "there"
    /\ \E report \in told[t] :
        /\ book' = [book EXCEPT ![t].used = Larger(@, report.used),
                                ![t].back = IF Mutant = "reports_add" THEN @ + report.back
                                            ELSE Larger(@, report.back)]
        /\ told' \in {[told EXCEPT ![t] = {}], told}
    /\ UNCHANGED <<up, disk, mine, link, wire, crashes, cuts>>

Write ==
    /\ up /\ disk # book
    /\ disk' = book
    /\ UNCHANGED <<up, book, mine, ways, crashes, cuts>>

(* SIGKILL: what the task has said arrives, or does not.                                                         *)
Die(t) ==
    /\ life[t] = "live"
    /\ life' = [life EXCEPT ![t] = "dead"]
    /\ UNCHANGED <<up, book, disk, recv, used, back, ways, crashes, cuts>>

(* The net may break, or the machine of the task: what is on its way is lost, or comes all the same.             *)
Cut(t) ==
    /\ link[t] /\ cuts < Cuts
    /\ cuts' = cuts + 1
    /\ link' = [link EXCEPT ![t] = FALSE]
    /\ wire' \in {wire, [wire EXCEPT ![t] = 0]}
    /\ told' \in {told, [told EXCEPT ![t] = {}]}
    /\ UNCHANGED <<up, book, disk, mine, crashes>>

Notice(t) ==
    /\ up /\ book[t].at = "there" /\ (~link[t] \/ life[t] = "dead")
    /\ book' = [book EXCEPT ![t].at = "gone"]
    /\ link' = [link EXCEPT ![t] = FALSE]
    /\ told' = [told EXCEPT ![t] = {}]
    /\ UNCHANGED <<up, disk, mine, wire, crashes, cuts>>

(* Nobody knows what it did with what it held, so all of that counts.                                            *)
GiveUp(t) ==
    /\ up /\ book[t].at = "gone"
    /\ book' = [book EXCEPT ![t].at = "ended",
                            ![t].counted = IF @ > 0 THEN @
                                           ELSE IF Mutant = "unknown_counts_as_unused"
                                           THEN book[t].used ELSE book[t].granted - book[t].back]
    /\ UNCHANGED <<up, disk, mine, ways, crashes, cuts>>

Crash ==
    /\ up /\ crashes < Crashes
    /\ crashes' = crashes + 1
    /\ up' = FALSE
    /\ link' = [t \in Tasks |-> FALSE]
    /\ told' = [t \in Tasks |-> {}]
    /\ UNCHANGED <<book, disk, mine, wire, cuts>>

Restart ==
    /\ ~up
    /\ up' = TRUE
    /\ book' = [t \in Tasks |-> IF disk[t].at \in {"there", "gone"}
                                THEN [disk[t] EXCEPT !.at = "gone"] ELSE disk[t]]
    /\ UNCHANGED <<disk, mine, ways, crashes, cuts>>

Next ==
    \/ \E t \in Tasks : \/ Register(t) \/ Grant(t) \/ Receive(t) \/ Begin(t) \/ Report(t) \/ GiveBack(t)
                        \/ Hear(t) \/ Die(t) \/ Cut(t) \/ Notice(t) \/ GiveUp(t)
    \/ Write \/ Crash \/ Restart

Spec == Init /\ [][Next]_vars

(* Never more than is allowed, whoever dies.                                                                     *)
NeverMore == Begun <= Max /\ (up => Committed(book) <= Max)

(* When everybody has said all and nothing is held or on its way, what has not begun can be granted. Except for  *)
(* what a task held that died.                                                                                   *)
Quiet == up /\ \A t \in Tasks : IF life[t] = "live"
    THEN link[t] /\ wire[t] = 0 /\ Held(t) = 0 /\ told[t] = {} /\ book[t].used = used[t] /\ book[t].back = back[t]
    ELSE book[t].at = "none"
NothingLost == Quiet => Committed(book) = Begun

(* The book never says that less was begun than is possible: what it grants is there.                            *)
TypeOK ==
    /\ \A t \in Tasks : Held(t) >= 0 /\ Cardinality(told[t]) <= 1
    /\ \A t \in Tasks : book[t].granted - book[t].used - book[t].back >= 0

(* Bounds what is explored: calls come back and are granted again.                                               *)
Few == Sum(recv, Tasks) + Sum(wire, Tasks) <= Max + 1

Symmetry == Permutations(Tasks)
=============================================================================
