---------------------------- MODULE SlotLease -----------------------------
(* How tasks share `Total` slots through a coordinator: the accounts of slots.py, and what a task does with the   *)
(* slots that it holds (slot_lease.py). A call that runs is in a slot.                                             *)
(* A lease lasts as long as the connection of its task, and some time longer. Time is here in one thing alone: a   *)
(* task that is cut off knows that its lease is over before the coordinator gives its slots to others.             *)
(* The number of slots may be found by the coordinator (Adaptive.tla), and changes then: Resize. More of them are    *)
(* granted at once; of fewer, those that are too many are asked back, and none is granted until they are back.       *)
(* A number that is found must not be used up by calls that never end (Adaptive!Find): tasks report those that seem    *)
(* so, and there are as many slots beside the number, for as long as such calls are in flight.                         *)
EXTENDS Integers, FiniteSets, TLC

CONSTANTS
    Tasks, Total, Cuts, Resizes,
    Hangs,    \* calls that may never end, at most
    Mutant

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
    cuts,
    forall,   \* of each task: whether it is asked for a slot that all are asked for, since there are too many
    total,    \* the slots that there are now, of `Total` at most
    most,     \* the slots that there were, since the last moment without too many by the book
    resizes,
    hung,     \* of each task: its calls in flight that never end
    found,    \* of each task: how many of them there are by the book, as it has reported
    hangs

vars == <<at, book, life, link, over, held, flying, wire, back, asked, cuts, forall, total, most, resizes, hung, found,
          hangs>>
stuck == <<hung, found, hangs>>
size == <<forall, total, most, resizes, stuck>>
ways == <<wire, back, asked>>

RECURSIVE Sum(_, _)
Sum(f, S) == IF S = {} THEN 0 ELSE LET t == CHOOSE t \in S : TRUE IN f[t] + Sum(f, S \ {t})

Zero == [t \in Tasks |-> 0]
No == [t \in Tasks |-> FALSE]
Min(a, b) == IF a < b THEN a ELSE b
Max(a, b) == IF a < b THEN b ELSE a

(* By the book: the slots of a task in which a call ends.                                                          *)
Use(t) == IF Mutant = "hangs_are_a_share" THEN book[t] ELSE book[t] - found[t]
(* Slots in all: beside those that were found, one for each such call, as many as those at most.                   *)
Beside == IF Mutant = "beside_unbounded" THEN Sum(found, Tasks) ELSE Min(Sum(found, Tasks), total)
Room == total + (IF Mutant = "hangs_keep_slots" THEN 0 ELSE Beside)

Init ==
    /\ at = [t \in Tasks |-> "none"] /\ life = [t \in Tasks |-> "new"]
    /\ book = Zero /\ held = Zero /\ flying = Zero /\ wire = Zero /\ back = Zero
    /\ link = No /\ over = No /\ asked = No
    /\ cuts = 0 /\ forall = No /\ total = Total /\ most = Total /\ resizes = 0
    /\ hung = Zero /\ found = Zero /\ hangs = 0

(* By the book there are not too many any more.                                                                    *)
Fitted == most' = IF Sum(book', Tasks) <= Room' THEN Room' ELSE Max(most, Room')
Sized == UNCHANGED <<total, resizes>> /\ Fitted
Asked(t, isForAll) == forall' = [forall EXCEPT ![t] = isForAll]

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
    /\ hung' = [hung EXCEPT ![t] = IF over[t] THEN 0 ELSE @]
    /\ found' = [found EXCEPT ![t] = hung'[t]]
    /\ Sized /\ Asked(t, FALSE) /\ UNCHANGED <<cuts, hangs>>

(* A free slot, to one of those who have least, without those of calls that hang.                                  *)
Grant(t) ==
    /\ at[t] = "there" /\ link[t] /\ life[t] = "live"
    /\ Sum(book, Tasks) < (IF Mutant = "grants_as_before" THEN most ELSE Room)
    /\ \A u \in Tasks : at[u] = "there" => Use(t) <= Use(u)
    /\ book' = [book EXCEPT ![t] = @ + 1]
    /\ wire' = [wire EXCEPT ![t] = @ + 1]
    /\ UNCHANGED <<at, life, link, over, held, flying, back, asked, cuts, size>>

Receive(t) ==
    /\ life[t] = "live" /\ wire[t] > 0 /\ (link[t] \/ Mutant = "wire_survives")
    /\ held' = [held EXCEPT ![t] = @ + wire[t]]
    /\ wire' = [wire EXCEPT ![t] = 0]
    /\ UNCHANGED <<at, book, life, link, over, flying, back, asked, cuts, size>>

(* A row begins in a free slot; a task that is asked for one begins none.                                          *)
Begin(t) ==
    /\ life[t] = "live" /\ flying[t] < held[t] - (IF asked[t] THEN 1 ELSE 0)
    /\ ~over[t]
    /\ flying' = [flying EXCEPT ![t] = @ + 1]
    /\ UNCHANGED <<at, book, life, link, over, held, ways, cuts, size>>

End(t) ==
    /\ flying[t] > hung[t]
    /\ flying' = [flying EXCEPT ![t] = @ - 1]
    /\ UNCHANGED <<at, book, life, link, over, held, ways, cuts, size>>

(* A call hangs: nobody knows yet, nor whether it ends after all.                                                  *)
Hang(t) ==
    /\ flying[t] > hung[t] /\ hangs < Hangs
    /\ hangs' = hangs + 1 /\ hung' = [hung EXCEPT ![t] = @ + 1]
    /\ UNCHANGED <<at, book, life, link, over, held, flying, ways, cuts, forall, total, most, resizes, found>>

EndAfterAll(t) ==
    /\ hung[t] > 0
    /\ hung' = [hung EXCEPT ![t] = @ - 1] /\ flying' = [flying EXCEPT ![t] = @ - 1]
    /\ UNCHANGED <<at, book, life, link, over, held, ways, cuts, forall, total, most, resizes, found, hangs>>

(* Now and then a task counts its calls that have run for many round trips. A slot that is asked for does not come *)
(* where all calls of the task hang: it is asked for no more.                                                      *)
Find(t) ==
    /\ at[t] = "there" /\ link[t] /\ life[t] = "live" /\ found[t] # hung[t]
    /\ found[t] < hung[t] \/ Mutant # "found_stays"
    /\ found' = [found EXCEPT ![t] = hung[t]]
    /\ UNCHANGED <<at, book, life, link, over, held, flying, wire, back, cuts, hung, hangs>>
    /\ LET stays == asked[t] /\ (Use(t)' > 0 \/ Mutant = "request_stays")
       IN  asked' = [asked EXCEPT ![t] = stays] /\ Asked(t, forall[t] /\ stays)
    /\ Sized

(* Where more are held than there are; or all, and one has a slot more than another, or one while another has none. *)
(* A call that hangs gives no slot back, and is in none that others lack.                                           *)
AskBack(t) ==
    /\ at[t] = "there" /\ link[t] /\ ~asked[t] /\ wire[t] = 0 /\ Use(t) > 0
    /\ Mutant # "never_asks"
    /\ \/ Sum(book, Tasks) > Room /\ Mutant # "shrinks_never"
       \/ /\ Sum(book, Tasks) = Room
          /\ \E u \in Tasks : /\ at[u] = "there" /\ life[u] = "live" /\ u # t
                              /\ (Use(t) >= Use(u) + 2 \/ Use(u) = 0)
    /\ Sum(book, Tasks) > Room \/ ~\E u \in Tasks : asked[u] \/ back[u] > 0
    /\ asked' = [asked EXCEPT ![t] = TRUE]
    /\ book' = IF Mutant = "asked_is_taken" THEN [book EXCEPT ![t] = @ - 1] ELSE book
    /\ UNCHANGED <<at, life, link, over, held, flying, wire, back, cuts, stuck>>
    /\ Sized /\ Asked(t, Sum(book, Tasks) > Room)

(* A slot without a call goes back: it is asked for, or no row waits.                                              *)
GiveBack(t) ==
    /\ life[t] = "live" /\ link[t] /\ held[t] > flying[t]
    /\ held' = [held EXCEPT ![t] = @ - 1]
    /\ back' = [back EXCEPT ![t] = @ + 1]
    /\ asked' = [asked EXCEPT ![t] = FALSE]
    /\ UNCHANGED <<at, book, life, link, over, flying, wire, cuts, total, most, resizes, stuck>> /\ Asked(t, FALSE)

TakeBack(t) ==
    /\ at[t] = "there" /\ back[t] > 0
    /\ book' = [book EXCEPT ![t] = IF Mutant = "asked_is_taken" THEN @ ELSE @ - back[t]]
    /\ back' = [back EXCEPT ![t] = 0]
    \* A call in a slot that came back has ended after all.
    /\ found' = [found EXCEPT ![t] = IF Mutant = "found_returns" THEN @ ELSE Min(@, book'[t])]
    /\ UNCHANGED <<forall, at, life, link, over, held, flying, wire, asked, cuts, hung, hangs>> /\ Sized

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
    /\ found' = [found EXCEPT ![t] = 0]
    /\ Sized /\ Asked(t, FALSE) /\ UNCHANGED <<over, flying, cuts, hung, hangs>>

(* A connection breaks, or its task is killed: what the task has sent to the service is there all the same.        *)
Cut(t) ==
    /\ link[t] /\ cuts < Cuts
    /\ cuts' = cuts + 1
    /\ link' = [link EXCEPT ![t] = FALSE]
    /\ life' \in {life, [life EXCEPT ![t] = "dead"]}
    /\ back' = [back EXCEPT ![t] = 0]
    /\ UNCHANGED <<at, book, over, held, flying, wire, asked, size>>

Notice(t) ==
    /\ at[t] = "there" /\ ~link[t]
    /\ at' = [at EXCEPT ![t] = "gone"]
    /\ UNCHANGED <<book, life, link, over, held, flying, ways, cuts, size>>

(* A task that is cut off begins nothing more; a dead one has begun its last call.                                 *)
LeaseOver(t) ==
    /\ at[t] = "gone" /\ ~link[t] /\ ~over[t]
    /\ over' = [over EXCEPT ![t] = TRUE]
    /\ UNCHANGED <<at, book, life, link, held, flying, ways, cuts, size>>

Expire(t) ==
    /\ at[t] = "gone" /\ (over[t] \/ Mutant = "expires_early")
    /\ at' = [at EXCEPT ![t] = "none"]
    /\ book' = [book EXCEPT ![t] = 0]
    /\ wire' = [wire EXCEPT ![t] = 0]
    /\ found' = [found EXCEPT ![t] = 0]
    /\ Sized /\ UNCHANGED <<forall, life, link, over, held, flying, back, asked, cuts, hung, hangs>>

(* The coordinator has found that the service works on more calls at once, or on fewer.                            *)
Resize(n) ==
    /\ resizes < Resizes /\ n # total
    /\ resizes' = resizes + 1 /\ total' = n
    /\ book' = IF Mutant = "shrink_takes" /\ n < total
               THEN [t \in Tasks |-> IF book[t] > n THEN n ELSE book[t]] ELSE book
    /\ UNCHANGED <<at, life, link, over, held, flying, ways, cuts, forall, stuck>> /\ Fitted

(* Others have given back what was too many: the task keeps its slots.                                             *)
Lift(t) ==
    /\ asked[t] /\ forall[t] /\ link[t] /\ Sum(book, Tasks) <= Room
    /\ asked' = [asked EXCEPT ![t] = FALSE] /\ Asked(t, FALSE)
    /\ UNCHANGED <<at, book, life, link, over, held, flying, wire, back, cuts, total, most, resizes, stuck>>

Next ==
    \/ \E t \in Tasks : \/ Register(t) \/ Grant(t) \/ Receive(t) \/ Begin(t) \/ End(t) \/ AskBack(t) \/ GiveBack(t)
                     \/ TakeBack(t) \/ Leave(t) \/ Cut(t) \/ Notice(t) \/ LeaseOver(t) \/ Expire(t)
                        \/ Lift(t) \/ Hang(t) \/ EndAfterAll(t) \/ Find(t)
    \/ \E n \in 1..Total : Resize(n)

(* What goes on by itself: calls end, but for those that hang, and these are counted; slots that are asked for go   *)
(* back, messages arrive, leases end.                                                                              *)
Fairness == \A t \in Tasks :
    /\ WF_vars(Find(t))
    /\ WF_vars(Receive(t)) /\ WF_vars(End(t)) /\ WF_vars(TakeBack(t)) /\ WF_vars(Notice(t))
    /\ WF_vars(LeaseOver(t)) /\ WF_vars(Expire(t)) /\ WF_vars(Lift(t))
    /\ WF_vars(asked[t] /\ GiveBack(t))
    /\ SF_vars(Grant(t))
    /\ SF_vars(AskBack(t))

Spec == Init /\ [][Next]_vars /\ Fairness

(* Never more calls are in flight than there are slots, in leases that hold.                                       *)
Flying == [t \in Tasks |-> IF over[t] THEN 0 ELSE flying[t]]
NeverMore == Sum(Flying, Tasks) <= most
Booked == Sum(book, Tasks) <= most

(* Nothing is granted while there are too many; and they come down, however many calls begin.                      *)
GrantsFit == [][Sum(book', Tasks) > Sum(book, Tasks) => Sum(book', Tasks) <= Room']_vars
Shrinks == <>[](Sum(book, Tasks) <= Room)

(* Calls that hang double the slots at most; and where fewer hang, there are only as many beside the number, as soon *)
(* as their ends, or those of their tasks, are known.                                                              *)
AtMostTwice == Resizes = 0 => Sum(Flying, Tasks) <= 2 * total
BesideEnds == <>[](Sum(book, Tasks) <= total + Sum([t \in Tasks |-> IF at[t] = "none" THEN 0 ELSE hung[t]], Tasks))

(* When nothing is on its way, what no task holds can be granted.                                                  *)
Quiet == \A t \in Tasks : /\ at[t] # "gone" /\ (at[t] = "there" => link[t])
                          /\ wire[t] = 0 /\ back[t] = 0 /\ ~asked[t]
Live == [t \in Tasks |-> IF at[t] = "there" THEN held[t] ELSE 0]
NothingLost == Quiet => Sum(book, Tasks) = Sum(Live, Tasks)

TypeOK == \A t \in Tasks :
    book[t] >= found[t] /\ found[t] >= 0 /\ held[t] >= 0 /\ flying[t] >= hung[t] /\ hung[t] >= 0

\* One beside those of its calls that hang, which it may use.

(* A task that is connected gets a slot, sooner or later, unless it is cut off or ends.                            *)
NoStarvation == \A t \in Tasks :
    (life[t] = "live" /\ link[t])
        ~> (held[t] - (IF asked[t] THEN 1 ELSE 0) > hung[t] \/ ~link[t] \/ life[t] # "live")

Symmetry == Permutations(Tasks)
=============================================================================
