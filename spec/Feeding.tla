------------------------------ MODULE Feeding ------------------------------
(* How the calls of an async operator get their slots: rows wait; runners, at most `limit` of them, carry one call   *)
(* after the other; a gate (a rate, a budget) may hold all calls back; a failed attempt waits for its retry without  *)
(* a slot; a call that timed out is cancelled, and may refuse to end. Everything happens on one thread, a callback   *)
(* of the event loop at a time, so each action is one step; what can go wrong is that nobody is left to start the    *)
(* next call. Packages pillarbox.aio: scheduler.py, throttle.py, runners.py.                                      *)
EXTENDS Naturals, Sequences, FiniteSets

CONSTANTS
    Rows,
    Limits,     \* the limits that the capacity may be changed to; the first one is the largest
    Attempts,   \* of one row, at most
    Tokens,     \* calls that the gate lets through before it holds back; 0 for no gate
    Appears,    \* whether the gate appears only while calls are made: that of a breaker
    Rate,       \* whether the gate is a rate: its tokens come one by one, and a cool-down closes it
    Heavy,      \* rows that weigh two tokens
    Budget,     \* calls that may be made in all; 0 for no limit
    Auto,       \* whether the limit is found while calls are made: each end of a call may change it
    Holds,      \* whether all calls may be held back for a time, as by a ledger that is behind
    Mutant

VARIABLES
    s,          \* what the code keeps: see TypeOK
    outside,    \* rows that have not been admitted
    attempts,   \* of each row, begun
    revoked,    \* runners whose call was taken from them, and that have not ended
    between,    \* runners that have ended a call and give the event loop its turn before the next
    pausing, done,
    begun,      \* history: whether the last call began within the limit, through the gate, and while none was held
    balance     \* history: tokens that came, less those that the calls which began weigh

vars == <<s, outside, attempts, revoked, between, pausing, done, begun, balance>>

Most == CHOOSE most \in Limits : \A other \in Limits : other <= most

(* `starting`: runners that were made and have not run yet. `active`: all runners that hold a slot. `found`: the limit *)
(* without regard to what holds calls back. `budget`: calls that may still be made.             *)
TypeOK ==
    /\ s.waiting \in Seq(Rows) /\ s.running \subseteq Rows
    /\ s.starting \in Nat /\ s.active \in Nat /\ s.held \in BOOLEAN /\ s.gated \in BOOLEAN
    /\ s.limit \in Limits \cup {0} /\ s.found \in Limits /\ s.hold \in BOOLEAN /\ s.cool \in BOOLEAN
    /\ s.tokens \in 0..Tokens /\ s.budget \in 0..Budget

Init ==
    /\ s = [waiting |-> <<>>, running |-> {}, starting |-> 0, active |-> 0, limit |-> Most,
            held |-> FALSE, tokens |-> Tokens, gated |-> Tokens > 0 /\ ~Appears,
            found |-> Most, hold |-> FALSE, cool |-> FALSE, budget |-> Budget]
    /\ outside = Rows /\ attempts = [r \in Rows |-> 0] /\ revoked = 0 /\ between = 0
    /\ pausing = {} /\ done = {} /\ begun = [limit |-> TRUE, gate |-> TRUE, hold |-> TRUE] /\ balance = Tokens

Min(a, b) == IF a < b THEN a ELSE b
Max(a, b) == IF a < b THEN b ELSE a

-----------------------------------------------------------------------------
(* What the steps are made of: functions of `s`.                                                                  *)
Feed(t) ==
    LET free == IF t.active < t.limit THEN t.limit - t.active ELSE 0
        rows == IF Len(t.waiting) > t.starting THEN Len(t.waiting) - t.starting ELSE 0
        slots == Min(free, rows)
        (* One at a time where most may be held back: each that is let through starts the next. Otherwise as many  *)
        (* as carry calls already, and each starts others with its first call: where calls end at once, one runner *)
        (* carries them all, and to make the others would be for nothing.                                         *)
        few == Max(1, t.active - t.starting)
        some == IF slots = 0 THEN 0
                ELSE IF t.gated THEN (IF t.held \/ t.starting > 0 THEN 0 ELSE 1)
                ELSE IF few > t.starting THEN Min(slots, few - t.starting) ELSE 0
    IN  [t EXCEPT !.starting = @ + some, !.active = @ + some]

Retire(t) ==
    LET left == [t EXCEPT !.active = @ - 1]
    IN  IF left.waiting = <<>> \/ Mutant = "retires without feeding" THEN left ELSE Feed(left)

Begin(t) == [t EXCEPT !.running = @ \cup {Head(t.waiting)}, !.waiting = Tail(@)]

Weight(r) == IF r \in Heavy THEN 2 ELSE 1
Asked(t) == IF Mutant = "every row weighs one" THEN 1 ELSE Weight(Head(t.waiting))
LetsThrough(t) == t.tokens >= Asked(t) /\ (~t.cool \/ Mutant = "a cool-down holds nobody")
IsUsedUp(t) == Budget > 0 /\ t.budget = 0 /\ Mutant # "the budget bounds nothing"
Let(t) == Begin([t EXCEPT !.tokens = @ - Asked(t), !.budget = IF @ = 0 THEN 0 ELSE @ - 1])

(* The limit is found to be another. It counts unless all calls are held back.                                      *)
Found(t, limit) ==
    LET changed == [t EXCEPT !.found = limit,
                             !.limit = IF t.hold /\ Mutant # "found while held" THEN 0 ELSE limit]
    IN  IF changed.limit > t.limit /\ Mutant # "grown and not fed" THEN Feed(changed) ELSE changed

(* A runner without a call looks for one, for its first one or another.                                           *)
Look(t, first) ==
    LET gated == t.gated /\ (first \/ Mutant # "a runner remembers that there was no gate")
    IN
    IF t.waiting = <<>> \/ (t.active > t.limit /\ Mutant # "carries on beyond the limit") THEN Retire(t)
    ELSE IF ~gated THEN (IF first /\ Mutant # "the first starts none" THEN Feed(Begin(t)) ELSE Begin(t))
    ELSE IF t.held THEN Retire(t)
    \* Rows that wait are finished without a call.
    ELSE IF IsUsedUp(t) THEN (IF Mutant = "waits for what is used up" THEN Retire([t EXCEPT !.held = TRUE])
                              ELSE Retire([t EXCEPT !.waiting = <<>>]))
    ELSE IF ~LetsThrough(t) THEN Retire([t EXCEPT !.held = TRUE])
    ELSE LET admitted == Let(t)
         IN  IF Mutant = "admitted and none after" THEN admitted ELSE Feed(admitted)

(* A step in which a runner looked, after the rows `ends` had their outcome: who began, began within the limit of that  *)
(* moment. Rows that wait no longer and do not run are finished without a call.                                    *)
Looked(t, first, ends) ==
    LET after == Look(t, first)
        new == after.running \ t.running
        waited(u) == {u.waiting[i] : i \in DOMAIN u.waiting}
    IN  /\ s' = after
        /\ done' = done \cup ends \cup (waited(t) \ (waited(after) \cup new))
        /\ attempts' = [r \in Rows |-> attempts[r] + (IF r \in new THEN 1 ELSE 0)]
        /\ begun' = [limit |-> new = {} \/ t.active <= t.limit,
                     gate |-> new = {} \/ ~t.gated \/ (~t.held /\ t.tokens > 0 /\ ~t.cool),
                     hold |-> new = {} \/ ~t.hold]
        /\ balance' = IF new = {} \/ ~t.gated THEN balance ELSE balance - Weight(CHOOSE r \in new : TRUE)

-----------------------------------------------------------------------------
Arrive(r) ==
    /\ r \in outside /\ outside' = outside \ {r}
    /\ s' = Feed([s EXCEPT !.waiting = Append(@, r)])
    /\ UNCHANGED <<attempts, revoked, between, pausing, done, begun, balance>>

Start ==
    /\ s.starting > 0
    /\ Looked([s EXCEPT !.starting = @ - 1], TRUE, {})
    /\ UNCHANGED <<outside, revoked, between, pausing>>

(* An attempt ends, with a result or an error, and the rows `ends` with it. The limit may be found to be another while  *)
(* its runner still holds its slot. The runner looks for the next call at once, or after the event loop has had its  *)
(* turn, or it is retired since its call has left something behind.                                                *)
End(r, ends, cools) ==
    /\ r \in s.running
    /\ \E limit \in IF Auto THEN Limits ELSE {s.found} :
        LET ended == [s EXCEPT !.running = @ \ {r}, !.cool = @ \/ cools]
            free == IF Auto THEN Found(ended, limit) ELSE ended
        IN  \/ Looked(free, FALSE, ends) /\ UNCHANGED between
            \/ s' = free /\ between' = between + 1 /\ done' = done \cup ends /\ UNCHANGED <<attempts, begun, balance>>
            \/ s' = Retire(free) /\ done' = done \cup ends /\ UNCHANGED <<between, attempts, begun, balance>>
    /\ UNCHANGED <<outside, revoked>>
Succeed(r) == End(r, {r}, FALSE) /\ UNCHANGED pausing
(* An error may say that the service is overloaded: then a rate lets nobody through for a time.                     *)
Fail(r) ==
    \E cools \in IF Rate THEN BOOLEAN ELSE {FALSE} :
        IF attempts[r] < Attempts
        THEN End(r, {}, cools) /\ pausing' = pausing \cup {r}
        ELSE End(r, {r}, cools) /\ UNCHANGED pausing

GoOn ==
    /\ between > 0 /\ between' = between - 1
    /\ Looked(s, FALSE, {})
    /\ UNCHANGED <<outside, revoked, pausing>>

PauseOver(r) ==
    /\ r \in pausing /\ pausing' = pausing \ {r}
    /\ LET back == [s EXCEPT !.waiting = <<r>> \o @]
       IN  s' = IF Mutant = "a retry is not fed" THEN back ELSE Feed(back)
    /\ UNCHANGED <<outside, attempts, revoked, between, done, begun, balance>>

(* The time of a row is over. What runs of it is cancelled, and keeps its slot until it has ended.                *)
TimeOut(r) ==
    /\ r \notin outside \cup done /\ attempts[r] > 0
    /\ done' = done \cup {r}
    /\ pausing' = pausing \ {r}
    /\ s' = [s EXCEPT !.running = @ \ {r}, !.waiting = SelectSeq(@, LAMBDA w : w # r)]
    /\ revoked' = IF r \in s.running THEN revoked + 1 ELSE revoked
    /\ UNCHANGED <<outside, attempts, between, begun, balance>>

(* It ends, or its slot is given to another after the time of grace.                                              *)
RevokedEnds ==
    /\ revoked > 0 /\ revoked' = revoked - 1
    /\ s' = Retire(s)
    /\ UNCHANGED <<outside, attempts, between, pausing, done, begun, balance>>
Abandon == Mutant # "no grace" /\ RevokedEnds

(* It is worth asking again. A rate may refuse again: who woke the runners cannot know what the next row weighs.      *)
GateOpens ==
    /\ s.held
    /\ LET open == IF Rate THEN [s EXCEPT !.held = FALSE] ELSE [s EXCEPT !.held = FALSE, !.tokens = Tokens]
       IN  s' = IF Mutant = "the gate wakes nobody" THEN open ELSE Feed(open)
    /\ balance' = IF Rate THEN balance ELSE balance + (Tokens - s.tokens)
    /\ UNCHANGED <<outside, attempts, revoked, between, pausing, done, begun>>

(* The service says for the first time that it is overloaded, or is not reached: from now on there is a gate. It is  *)
(* closed, or still open where this may be the matter of one row only.                                            *)
GateAppears ==
    /\ Appears /\ ~s.gated
    /\ \E tokens \in {0, Tokens} : s' = [s EXCEPT !.gated = TRUE, !.tokens = tokens] /\ balance' = tokens
    /\ UNCHANGED <<outside, attempts, revoked, between, pausing, done, begun>>

(* Time passes: the rate gives a token. Nobody is told; who is held back has a timer, which is GateOpens.            *)
Refill ==
    /\ Rate /\ s.tokens < Tokens
    /\ s' = [s EXCEPT !.tokens = @ + 1] /\ balance' = balance + 1
    /\ UNCHANGED <<outside, attempts, revoked, between, pausing, done, begun>>

(* A cool-down is over. One call tries; what has gathered meanwhile would be a burst.                               *)
CoolEnds ==
    /\ s.cool
    /\ LET tokens == Min(s.tokens, 1)
       IN  s' = [s EXCEPT !.cool = FALSE, !.tokens = tokens] /\ balance' = balance - (s.tokens - tokens)
    /\ UNCHANGED <<outside, attempts, revoked, between, pausing, done, begun>>

(* Memory, or who asks for it, changes the limit at any time; `Auto` at the end of a call.                          *)
ChangeLimit ==
    /\ \E limit \in Limits \ {s.found} : s' = Found(s, limit)
    /\ UNCHANGED <<outside, attempts, revoked, between, pausing, done, begun, balance>>

(* No call begins for now; those in flight go on, and may find another limit.                                       *)
Hold ==
    /\ Holds /\ ~s.hold
    /\ s' = [s EXCEPT !.hold = TRUE, !.limit = 0]
    /\ UNCHANGED <<outside, attempts, revoked, between, pausing, done, begun, balance>>
Release ==
    /\ s.hold
    /\ LET free == [s EXCEPT !.hold = FALSE, !.limit = s.found]
       IN  s' = IF Mutant = "released and not fed" THEN free ELSE Feed(free)
    /\ UNCHANGED <<outside, attempts, revoked, between, pausing, done, begun, balance>>

Next ==
    \/ Start \/ GoOn \/ RevokedEnds \/ Abandon \/ GateOpens \/ GateAppears \/ ChangeLimit
    \/ Refill \/ CoolEnds \/ Hold \/ Release
    \/ \E r \in Rows : Arrive(r) \/ Succeed(r) \/ Fail(r) \/ PauseOver(r) \/ TimeOut(r)
Spec == Init /\ [][Next]_vars

(* Calls end, timers fire, cancelled calls end or are abandoned. No row has to time out, and no limit to change.  *)
Fair ==
    /\ WF_vars(Refill) /\ WF_vars(CoolEnds) /\ WF_vars(Release)
    /\ WF_vars(Start) /\ WF_vars(GoOn) /\ WF_vars(Abandon) /\ WF_vars(GateOpens)
    /\ \A r \in Rows : WF_vars(Arrive(r)) /\ WF_vars(Succeed(r) \/ Fail(r)) /\ WF_vars(PauseOver(r))
FairSpec == Spec /\ Fair

-----------------------------------------------------------------------------
(* Each row is in one place.                                                                                      *)
OnePlace ==
    \A r \in Rows :
        Cardinality({place \in {"outside", "waiting", "running", "pausing", "done"} :
            \/ place = "outside" /\ r \in outside
            \/ place = "waiting" /\ \E i \in 1..Len(s.waiting) : s.waiting[i] = r
            \/ place = "running" /\ r \in s.running
            \/ place = "pausing" /\ r \in pausing
            \/ place = "done" /\ r \in done}) = 1

(* Who holds a slot: a runner with a call, one on its way to one, one whose cancelled call has not ended. Nobody    *)
(* else: no row that waits for its retry, for the gate or for a slot.                                              *)
SlotsAreRunners == s.active = s.starting + Cardinality(s.running) + between + revoked
CapacityHolds == s.active <= Most
BeginsWithinLimit == begun.limit
BeginsThroughGate == begun.gate

(* No call begins while all are held back, whatever the limit is found to be.                                       *)
NoneBeginsWhileHeld == begun.hold

(* No more begins than the rate gives, whatever the rows weigh.                                                    *)
RateHolds == balance >= 0

RECURSIVE Sum(_)
Sum(rows) == IF rows = {} THEN 0 ELSE LET r == CHOOSE r \in rows : TRUE IN attempts[r] + Sum(rows \ {r})
(* No more calls begin in all than the budget has, retries included.                                               *)
BudgetHolds == Budget > 0 => Sum(Rows) <= Budget

(* If a call could begin, somebody is on the way to begin it.                                                     *)
SomebodyStarts ==
    s.waiting # <<>> /\ s.active < s.limit /\ ~s.held => s.starting > 0 \/ between > 0

EverybodyIsServed == <>(done = Rows)
=============================================================================
