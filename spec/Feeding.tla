------------------------------ MODULE Feeding ------------------------------
(* How the calls of an async operator get their slots: rows wait; runners, at most `limit` of them, carry one call   *)
(* after the other; a gate (a rate, a budget) may hold all calls back; a failed attempt waits for its retry without  *)
(* a slot; a call that timed out is cancelled, and may refuse to end. Everything happens on one thread, a callback   *)
(* of the event loop at a time, so each action is one step; what can go wrong is that nobody is left to start the    *)
(* next call. Packages pillarbox.aio: attempts.py, admission.py, coroutines.py.                                      *)
EXTENDS Naturals, Sequences, FiniteSets

CONSTANTS
    Rows,
    Limits,     \* the limits that the capacity may be changed to; the first one is the largest
    Attempts,   \* of one row, at most
    Tokens,     \* calls that the gate lets through before it holds back; 0 for no gate
    Appears,    \* whether the gate appears only while calls are made: that of a breaker
    Mutant

VARIABLES
    s,          \* what the code keeps: see TypeOK
    outside,    \* rows that have not been admitted
    attempts,   \* of each row, begun
    revoked,    \* runners whose call was taken from them, and that have not ended
    between,    \* runners that have ended a call and give the event loop its turn before the next
    pausing, done,
    begun       \* history: whether the last call began within the limit, and through the gate

vars == <<s, outside, attempts, revoked, between, pausing, done, begun>>

Most == CHOOSE most \in Limits : \A other \in Limits : other <= most

(* `starting`: runners that were made and have not run yet. `active`: all runners that hold a slot.               *)
TypeOK ==
    /\ s.waiting \in Seq(Rows) /\ s.running \subseteq Rows
    /\ s.starting \in Nat /\ s.active \in Nat /\ s.limit \in Limits /\ s.held \in BOOLEAN /\ s.gated \in BOOLEAN

Init ==
    /\ s = [waiting |-> <<>>, running |-> {}, starting |-> 0, active |-> 0, limit |-> Most,
            held |-> FALSE, tokens |-> Tokens, gated |-> Tokens > 0 /\ ~Appears]
    /\ outside = Rows /\ attempts = [r \in Rows |-> 0] /\ revoked = 0 /\ between = 0
    /\ pausing = {} /\ done = {} /\ begun = [limit |-> TRUE, gate |-> TRUE]

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

(* A runner without a call looks for one, for its first one or another.                                           *)
Look(t, first) ==
    LET gated == t.gated /\ (first \/ Mutant # "a runner remembers that there was no gate")
    IN
    IF t.waiting = <<>> \/ (t.active > t.limit /\ Mutant # "carries on beyond the limit") THEN Retire(t)
    ELSE IF ~gated THEN (IF first /\ Mutant # "the first starts none" THEN Feed(Begin(t)) ELSE Begin(t))
    ELSE IF t.held THEN Retire(t)
    ELSE IF t.tokens = 0 THEN Retire([t EXCEPT !.held = TRUE])
    ELSE LET admitted == Begin([t EXCEPT !.tokens = @ - 1])
         IN  IF Mutant = "admitted and none after" THEN admitted ELSE Feed(admitted)

(* A step in which a runner looked: who began, began within the limit of that moment.                             *)
Looked(t, first) ==
    LET after == Look(t, first)
    IN  /\ s' = after
        /\ attempts' = [r \in Rows |-> attempts[r] + (IF r \in after.running \ t.running THEN 1 ELSE 0)]
        /\ begun' = [limit |-> after.running \subseteq t.running \/ t.active <= t.limit,
                    gate |-> after.running \subseteq t.running \/ ~t.gated \/ (~t.held /\ t.tokens > 0)]

-----------------------------------------------------------------------------
Arrive(r) ==
    /\ r \in outside /\ outside' = outside \ {r}
    /\ s' = Feed([s EXCEPT !.waiting = Append(@, r)])
    /\ UNCHANGED <<attempts, revoked, between, pausing, done, begun>>

Start ==
    /\ s.starting > 0
    /\ Looked([s EXCEPT !.starting = @ - 1], TRUE)
    /\ UNCHANGED <<outside, revoked, between, pausing, done>>

(* An attempt ends, with a result or an error. Its runner looks for the next call at once, or after the event loop  *)
(* has had its turn, or it is retired since its call has left something behind.                                   *)
End(r) ==
    /\ r \in s.running
    /\ LET free == [s EXCEPT !.running = @ \ {r}]
       IN  \/ Looked(free, FALSE) /\ UNCHANGED between
           \/ s' = free /\ between' = between + 1 /\ UNCHANGED <<attempts, begun>>
           \/ s' = Retire(free) /\ UNCHANGED <<between, attempts, begun>>
    /\ UNCHANGED <<outside, revoked>>
Succeed(r) == End(r) /\ done' = done \cup {r} /\ UNCHANGED pausing
Fail(r) ==
    /\ End(r)
    /\ IF attempts[r] < Attempts
       THEN pausing' = pausing \cup {r} /\ UNCHANGED done
       ELSE done' = done \cup {r} /\ UNCHANGED pausing

GoOn ==
    /\ between > 0 /\ between' = between - 1
    /\ Looked(s, FALSE)
    /\ UNCHANGED <<outside, revoked, pausing, done>>

PauseOver(r) ==
    /\ r \in pausing /\ pausing' = pausing \ {r}
    /\ LET back == [s EXCEPT !.waiting = <<r>> \o @]
       IN  s' = IF Mutant = "a retry is not fed" THEN back ELSE Feed(back)
    /\ UNCHANGED <<outside, attempts, revoked, between, done, begun>>

(* The time of a row is over. What runs of it is cancelled, and keeps its slot until it has ended.                *)
TimeOut(r) ==
    /\ r \notin outside \cup done /\ attempts[r] > 0
    /\ done' = done \cup {r}
    /\ pausing' = pausing \ {r}
    /\ s' = [s EXCEPT !.running = @ \ {r}, !.waiting = SelectSeq(@, LAMBDA w : w # r)]
    /\ revoked' = IF r \in s.running THEN revoked + 1 ELSE revoked
    /\ UNCHANGED <<outside, attempts, between, begun>>

(* It ends, or its slot is given to another after the time of grace.                                              *)
RevokedEnds ==
    /\ revoked > 0 /\ revoked' = revoked - 1
    /\ s' = Retire(s)
    /\ UNCHANGED <<outside, attempts, between, pausing, done, begun>>
Abandon == Mutant # "no grace" /\ RevokedEnds

GateOpens ==
    /\ s.held
    /\ LET open == [s EXCEPT !.held = FALSE, !.tokens = Tokens]
       IN  s' = IF Mutant = "the gate wakes nobody" THEN open ELSE Feed(open)
    /\ UNCHANGED <<outside, attempts, revoked, between, pausing, done, begun>>

(* The service says for the first time that it is overloaded, or is not reached: from now on there is a gate. It is  *)
(* closed, or still open where this may be the matter of one row only.                                            *)
GateAppears ==
    /\ Appears /\ ~s.gated
    /\ \E tokens \in {0, Tokens} : s' = [s EXCEPT !.gated = TRUE, !.tokens = tokens]
    /\ UNCHANGED <<outside, attempts, revoked, between, pausing, done, begun>>

ChangeLimit ==
    /\ \E limit \in Limits \ {s.limit} :
        LET changed == [s EXCEPT !.limit = limit]
        IN  s' = IF limit > s.limit /\ Mutant # "grown and not fed" THEN Feed(changed) ELSE changed
    /\ UNCHANGED <<outside, attempts, revoked, between, pausing, done, begun>>

Next ==
    \/ Start \/ GoOn \/ RevokedEnds \/ Abandon \/ GateOpens \/ GateAppears \/ ChangeLimit
    \/ \E r \in Rows : Arrive(r) \/ Succeed(r) \/ Fail(r) \/ PauseOver(r) \/ TimeOut(r)
Spec == Init /\ [][Next]_vars

(* Calls end, timers fire, cancelled calls end or are abandoned. No row has to time out, and no limit to change.  *)
Fair ==
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

(* If a call could begin, somebody is on the way to begin it.                                                     *)
SomebodyStarts ==
    s.waiting # <<>> /\ s.active < s.limit /\ ~s.held => s.starting > 0 \/ between > 0

EverybodyIsServed == <>(done = Rows)
=============================================================================
