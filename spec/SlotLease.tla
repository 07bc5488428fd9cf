---------------------------- MODULE SlotLease -----------------------------
(* How tasks share `Total` slots through a coordinator: the accounts of slots.py, and what a task does with the   *)
(* slots that it holds (slot_lease.py). A call that runs is in a slot.                                             *)
(* A lease lasts as long as the connection of its task, and some time longer. Time is here in one thing alone: a   *)
(* task that is cut off knows that its lease is over before the coordinator gives its slots to others.             *)
EXTENDS Integers, FiniteSets, TLC

CONSTANTS Tasks, Total, Cuts, Mutant

VARIABLES
    at,       \* of each task, as the coordinator sees it: "none", "there" or "gone"
    book,     \* of each task: the slots that it has, by the book
    life,     \* of each task: "new", "live", "dead" or "left"
    link,     \* of each task: whether it is connected
    over,     \* of each task: whether its lease is over, as it knows itself
    held,     \* of each task: its slots
    flying,   \* of each task: its calls in flight
    wire,     \* of each task: slots granted that are on their way to it
    back,     \* of each task: slots given back that are on their way
    asked,    \* of each task: whether it is asked for a slot
    cuts

vars == <<at, book, life, link, over, held, flying, wire, back, asked, cuts>>
ways == <<wire, back, asked>>

RECURSIVE Sum(_, _)
Sum(f, S) == IF S = {} THEN 0 ELSE LET t == CHOOSE t \in S : TRUE IN f[t] + Sum(f, S \ {t})

Zero == [t \in Tasks |-> 0]
No == [t \in Tasks |-> FALSE]

Init ==
    /\ at = [t \in Tasks |-> "none"] /\ life = [t \in Tasks |-> "new"]
    /\ book = Zero /\ held = Zero /\ flying = Zero /\ wire = Zero /\ back = Zero
    /\ link = No /\ over = No /\ asked = No
    /\ cuts = 0

(* The first time, or again: the task says what it holds. What was on its way to it never reaches it.             *)
Register(t) ==
    /\ life[t] \in {"new", "live"} /\ ~link[t]
    /\ life' = [life EXCEPT ![t] = "live"]
    /\ link' = [link EXCEPT ![t] = TRUE]
    /\ at' = [at EXCEPT ![t] = "there"]
    \* Of a lease that was over nothing is left but the calls in flight.
    /\ over' = [over EXCEPT ![t] = FALSE]
    /\ held' = [held EXCEPT ![t] = IF over[t] THEN 0 ELSE @]
    /\ flying' = [flying EXCEPT ![t] = IF over[t] THEN 0 ELSE @]
    /\ book' = [book EXCEPT ![t] = IF Mutant = "book_stays" /\ book[t] > held'[t] THEN @ ELSE held'[t]]
    /\ wire' = IF Mutant = "wire_survives" THEN wire ELSE [wire EXCEPT ![t] = 0]
    /\ back' = [back EXCEPT ![t] = 0]
    /\ asked' = [asked EXCEPT ![t] = FALSE]
    /\ UNCHANGED cuts

(* A free slot, to one of those who have least.                                                                    *)
Grant(t) ==
    /\ at[t] = "there" /\ link[t] /\ life[t] = "live"
    /\ Sum(book, Tasks) < Total
    /\ \A u \in Tasks : at[u] = "there" => book[t] <= book[u]
    /\ book' = [book EXCEPT ![t] = @ + 1]
    /\ wire' = [wire EXCEPT ![t] = @ + 1]
    /\ UNCHANGED <<at, life, link, over, held, flying, back, asked, cuts>>

Receive(t) ==
    /\ life[t] = "live" /\ wire[t] > 0 /\ (link[t] \/ Mutant = "wire_survives")
    /\ held' = [held EXCEPT ![t] = @ + wire[t]]
    /\ wire' = [wire EXCEPT ![t] = 0]
    /\ UNCHANGED <<at, book, life, link, over, flying, back, asked, cuts>>

(* A row begins in a free slot; a task that is asked for one begins none.                                          *)
Begin(t) ==
    /\ life[t] = "live" /\ flying[t] < held[t] - (IF asked[t] THEN 1 ELSE 0)
    /\ ~over[t]
    /\ flying' = [flying EXCEPT ![t] = @ + 1]
    /\ UNCHANGED <<at, book, life, link, over, held, ways, cuts>>

End(t) ==
    /\ flying[t] > 0
    /\ flying' = [flying EXCEPT ![t] = @ - 1]
    /\ UNCHANGED <<at, book, life, link, over, held, ways, cuts>>

(* Where all slots are held and one has a slot more than another, or has one while another has none.               *)
AskBack(t) ==
    /\ at[t] = "there" /\ link[t] /\ ~asked[t] /\ wire[t] = 0 /\ book[t] > 0
    /\ Sum(book, Tasks) = Total
    /\ Mutant # "never_asks"
    /\ \E u \in Tasks : /\ at[u] = "there" /\ life[u] = "live" /\ u # t
                        /\ (book[t] >= book[u] + 2 \/ book[u] = 0)
    /\ ~\E u \in Tasks : asked[u] \/ back[u] > 0
    /\ asked' = [asked EXCEPT ![t] = TRUE]
    /\ book' = IF Mutant = "asked_is_taken" THEN [book EXCEPT ![t] = @ - 1] ELSE book
    /\ UNCHANGED <<at, life, link, over, held, flying, wire, back, cuts>>

(* A slot without a call goes back: it is asked for, or no row waits.                                              *)
GiveBack(t) ==
    /\ life[t] = "live" /\ link[t] /\ held[t] > flying[t]
    /\ held' = [held EXCEPT ![t] = @ - 1]
    /\ back' = [back EXCEPT ![t] = @ + 1]
    /\ asked' = [asked EXCEPT ![t] = FALSE]
    /\ UNCHANGED <<at, book, life, link, over, flying, wire, cuts>>

TakeBack(t) ==
    /\ at[t] = "there" /\ back[t] > 0
    /\ book' = [book EXCEPT ![t] = IF Mutant = "asked_is_taken" THEN @ ELSE @ - back[t]]
    /\ back' = [back EXCEPT ![t] = 0]
    /\ UNCHANGED <<at, life, link, over, held, flying, wire, asked, cuts>>

Leave(t) ==
    /\ life[t] = "live" /\ link[t] /\ flying[t] = 0
    /\ life' = [life EXCEPT ![t] = "left"]
    /\ at' = [at EXCEPT ![t] = "none"]
    /\ link' = [link EXCEPT ![t] = FALSE]
    /\ book' = [book EXCEPT ![t] = 0]
    /\ held' = [held EXCEPT ![t] = 0]
    /\ wire' = [wire EXCEPT ![t] = 0]
    /\ back' = [back EXCEPT ![t] = 0]
    /\ asked' = [asked EXCEPT ![t] = FALSE]
    /\ UNCHANGED <<over, flying, cuts>>

(* A connection breaks, or its task is killed: what the task has sent to the service is there all the same.        *)
Cut(t) ==
    /\ link[t] /\ cuts < Cuts
    /\ cuts' = cuts + 1
    /\ link' = [link EXCEPT ![t] = FALSE]
    /\ life' \in {life, [life EXCEPT ![t] = "dead"]}
    /\ back' = [back EXCEPT ![t] = 0]
    /\ UNCHANGED <<at, book, over, held, flying, wire, asked>>

Notice(t) ==
    /\ at[t] = "there" /\ ~link[t]
    /\ at' = [at EXCEPT ![t] = "gone"]
    /\ UNCHANGED <<book, life, link, over, held, flying, ways, cuts>>

(* A task that is cut off begins nothing more; a dead one has begun its last call.                                 *)
LeaseOver(t) ==
    /\ at[t] = "gone" /\ ~link[t] /\ ~over[t]
    /\ over' = [over EXCEPT ![t] = TRUE]
    /\ UNCHANGED <<at, book, life, link, held, flying, ways, cuts>>

Expire(t) ==
    /\ at[t] = "gone" /\ (over[t] \/ Mutant = "expires_early")
    /\ at' = [at EXCEPT ![t] = "none"]
    /\ book' = [book EXCEPT ![t] = 0]
    /\ wire' = [wire EXCEPT ![t] = 0]
    /\ UNCHANGED <<life, link, over, held, flying, back, asked, cuts>>

Next ==
    \E t \in Tasks : \/ Register(t) \/ Grant(t) \/ Receive(t) \/ Begin(t) \/ End(t) \/ AskBack(t) \/ GiveBack(t)
                     \/ TakeBack(t) \/ Leave(t) \/ Cut(t) \/ Notice(t) \/ LeaseOver(t) \/ Expire(t)

(* What goes on by itself: calls end, slots that are asked for go back, messages arrive, leases end.               *)
Fairness == \A t \in Tasks :
    /\ WF_vars(Receive(t)) /\ WF_vars(End(t)) /\ WF_vars(TakeBack(t)) /\ WF_vars(Notice(t))
    /\ WF_vars(LeaseOver(t)) /\ WF_vars(Expire(t))
    /\ WF_vars(asked[t] /\ GiveBack(t))
    /\ SF_vars(Grant(t))
    /\ SF_vars(AskBack(t))

Spec == Init /\ [][Next]_vars /\ Fairness

(* Never more calls are in flight than there are slots, in leases that hold.                                       *)
Flying == [t \in Tasks |-> IF over[t] THEN 0 ELSE flying[t]]
NeverMore == Sum(Flying, Tasks) <= Total
Booked == Sum(book, Tasks) <= Total

(* When nothing is on its way, what no task holds can be granted.                                                  *)
Quiet == \A t \in Tasks : /\ at[t] # "gone" /\ (at[t] = "there" => link[t])
                          /\ wire[t] = 0 /\ back[t] = 0 /\ ~asked[t]
Live == [t \in Tasks |-> IF at[t] = "there" THEN held[t] ELSE 0]
NothingLost == Quiet => Sum(book, Tasks) = Sum(Live, Tasks)

TypeOK == \A t \in Tasks : book[t] >= 0 /\ held[t] >= 0 /\ flying[t] >= 0

(* A task that is connected gets a slot, sooner or later, unless it is cut off or ends.                            *)
NoStarvation == \A t \in Tasks : (life[t] = "live" /\ link[t]) ~> (held[t] > 0 \/ ~link[t] \/ life[t] # "live")

Symmetry == Permutations(Tasks)
=============================================================================
