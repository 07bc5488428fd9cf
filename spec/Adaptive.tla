------------------------------ MODULE Adaptive ------------------------------
(* How the number of calls in flight is found, and what a refusal does. A window has the calls that began after the  *)
(* last change of the limit; it decides by a share, once. A server that is full refuses (503) or is slow: the limit  *)
(* is cut, or halved for a look. A rate that is used up (429) is no matter of the limit: its refusals are of their    *)
(* rows, and hold all calls back when they are many. Numbers are small, and what is 10 % and chance in the code is    *)
(* `Share` here; how near the limit comes to the knee is measured (`python -m bench.limits.adaptive`), not proved.    *)
(* Packages pillarbox.aio: concurrency.py, policies/breaker.py, policies/load.py.                                    *)
EXTENDS Naturals

CONSTANTS
    Least, Most,    \* bounds of the limit
    Many,           \* refusals that may be more than chance, at least
    Share,          \* they are if `Share` times them is more than the calls of the window
    Hangs,          \* calls that may never end, at most
    Mutant

VARIABLES
    limit,
    ceiling,        \* the limit that was refused last; Most + 1 for none
    waited,         \* whether a window has passed just below it
    before,         \* the limit before a look; 0 while there is none
    old, new,       \* calls in flight that began before the window, and in it
    answered, refused, throttled,   \* what the window counts
    held,           \* whether all calls are held back
    calm,           \* whether the service has room for all calls from now on
    stuck,          \* calls in flight that never end
    more,           \* slots beside the limit, for those that were found to hang
    really,         \* history: refusals by a full server of calls of this window
    cut, tripped    \* history: whether the last cut, the last trip, was for as many as it must

vars == <<limit, ceiling, waited, before, old, new, answered, refused, throttled, held, calm, stuck, more,
          really, cut, tripped>>

Max(a, b) == IF a < b THEN b ELSE a
Min(a, b) == IF a < b THEN a ELSE b

TypeOK ==
    /\ limit \in Nat /\ ceiling \in 1..Most + 1 /\ waited \in BOOLEAN /\ before \in 0..Most
    /\ old \in 0..Most /\ new \in 0..Most /\ answered \in 0..Most /\ refused \in Nat /\ throttled \in Nat
    /\ held \in BOOLEAN /\ calm \in BOOLEAN /\ really \in Nat /\ cut \in BOOLEAN /\ tripped \in BOOLEAN
    /\ stuck \in 0..Hangs /\ more \in 0..Hangs

Init ==
    /\ limit \in Least..Most /\ ceiling = Most + 1 /\ waited = FALSE /\ before = 0
    /\ old = 0 /\ new = 0 /\ answered = 0 /\ refused = 0 /\ throttled = 0
    /\ held = FALSE /\ calm = FALSE /\ really = 0 /\ cut = TRUE /\ tripped = TRUE
    /\ stuck = 0 /\ more = 0

(* Those in flight count as calls: of a service whose calls take long, only refusals have ended at first.            *)
AreMany(n, calls) == n >= Many /\ n * Share > calls

NoneHangs == UNCHANGED <<stuck, more>>

(* A window begins with the limit `l`; one that stays as it is has its calls in flight already. `l` counts from here. *)
Window(l, o, n) ==
    /\ limit' = l
    /\ IF l = limit THEN old' = o /\ new' = n ELSE old' = o + n /\ new' = 0
    /\ answered' = 0 /\ refused' = 0 /\ really' = 0

-----------------------------------------------------------------------------
Begin ==
    /\ ~held /\ old + new + stuck < limit + more
    /\ new' = new + 1
    /\ UNCHANGED <<limit, ceiling, waited, before, old, answered, refused, throttled, held, calm, really, cut, tripped>>
    /\ NoneHangs

AnswerOld ==
    /\ old > 0 /\ old' = old - 1 /\ throttled' = 0
    /\ UNCHANGED <<limit, ceiling, waited, before, new, answered, refused, held, calm, really, cut, tripped>>
    /\ NoneHangs

AnswerNew ==
    /\ new > 0 /\ answered + 1 < limit
    /\ new' = new - 1 /\ answered' = answered + 1 /\ throttled' = 0
    /\ UNCHANGED <<limit, ceiling, waited, before, old, refused, held, calm, really, cut, tripped>>
    /\ NoneHangs

(* The answer with which a window is over. *)
Over == new > 0 /\ answered + 1 >= limit /\ throttled' = 0 /\ UNCHANGED <<held, calm, cut, tripped>> /\ NoneHangs

(* Nothing was wrong: the limit grows, by steps below what was refused, and waits there. *)
Grow ==
    /\ Over /\ before = 0
    /\ IF limit + 1 < ceiling
       THEN Window(Min(Most, limit + 1), old, new - 1) /\ UNCHANGED <<ceiling, waited>>
       ELSE IF ~waited \/ Mutant = "what was refused is never tried again"
       THEN Window(limit, old, new - 1) /\ waited' = TRUE /\ UNCHANGED ceiling
       ELSE /\ Window(IF Mutant = "grows beyond the bound" THEN limit + 1 ELSE Min(Most, limit + 1), old, new - 1)
            /\ ceiling' = Most + 1 /\ waited' = FALSE
    /\ UNCHANGED before

(* The latency is long, or has not been looked at for long. Half of the calls show what it is without a queue.        *)
Look ==
    /\ Over /\ before = 0 /\ limit > Least /\ ~calm
    /\ before' = limit /\ Window(Max(Least, limit \div 2), old, new - 1)
    /\ UNCHANGED <<ceiling, waited>>

(* They are as slow: nothing has waited, and the limit is put back. Or they are faster by as much as calls have waited. *)
LookEnds ==
    /\ Over /\ before > 0
    /\ \E l \in IF calm THEN {before} ELSE Least..before :
        Window(l, old, new - 1)
    /\ before' = IF Mutant = "a look never ends" THEN before ELSE 0
    /\ UNCHANGED <<ceiling, waited>>

-----------------------------------------------------------------------------
(* The service is full, or refuses for a reason of its own, and says so for a call. Then a cut, if these are many.     *)
Cut(o, n, count, truth) ==
    /\ ceiling' = limit /\ waited' = FALSE /\ before' = 0
    (* A window behind it, whatever the limit is now: it may be the least one already. *)
    /\ limit' = IF Mutant = "cuts below the bound" THEN limit - 1 ELSE Max(Least, limit - 1)
    /\ old' = o + n /\ new' = 0
    /\ answered' = 0 /\ refused' = 0 /\ really' = 0
    /\ cut' = AreMany(truth, answered + truth + limit)

Refuse(isNew) ==
    /\ ~calm
    /\ LET o == IF isNew THEN old ELSE old - 1
           n == IF isNew THEN new - 1 ELSE new
           counts == isNew \/ Mutant = "counts calls of before the window"
           count == IF counts THEN refused + 1 ELSE refused
           truth == IF isNew THEN really + 1 ELSE really
           many == IF Mutant = "one refusal cuts" THEN count > 0 ELSE AreMany(count, answered + count + limit)
       IN  /\ IF isNew THEN new > 0 ELSE old > 0
           /\ IF counts /\ many THEN Cut(o, n, count, truth)
              ELSE /\ old' = o /\ new' = n /\ refused' = count /\ really' = truth
                   /\ UNCHANGED <<limit, ceiling, waited, before, answered, cut>>
    /\ UNCHANGED <<throttled, held, calm, tripped>>
    /\ NoneHangs

(* A rate is used up: the row waits, for as long as the service asks; all calls do, where these are many.              *)
Throttle(isNew) ==
    /\ ~calm /\ IF isNew THEN new > 0 ELSE old > 0
    /\ LET many == AreMany(throttled + 1, answered + throttled + 1 + limit)
           trips == many \/ Mutant = "one refusal that asks for a pause holds all back"
       IN  /\ throttled' = IF trips THEN 0 ELSE throttled + 1
           /\ held' = (held \/ trips)
           /\ tripped' = IF trips /\ ~held THEN many ELSE tripped
    /\ old' = (IF isNew THEN old ELSE old - 1) /\ new' = (IF isNew THEN new - 1 ELSE new)
    /\ limit' = IF Mutant = "a rate cuts" THEN Max(Least, limit - 1) ELSE limit
    /\ UNCHANGED <<ceiling, waited, before, answered, refused, calm, really, cut>>
    /\ NoneHangs

Resume ==
    /\ held /\ held' = FALSE
    /\ UNCHANGED <<limit, ceiling, waited, before, old, new, answered, refused, throttled, calm, really, cut, tripped>>
    /\ NoneHangs

(* From now on there is room for every call. *)
CalmDown ==
    /\ ~calm /\ calm' = TRUE
    /\ UNCHANGED <<limit, ceiling, waited, before, old, new, answered, refused, throttled, held, really, cut, tripped>>
    /\ NoneHangs

(* A call hangs: nobody knows yet. Now and then those that have run for many round trips are counted, and get slots   *)
(* beside the limit, as many at most, or as before a look: else they would be the only ones in flight.              *)
Hang ==
    /\ new > 0 /\ stuck < Hangs
    /\ new' = new - 1 /\ stuck' = stuck + 1
    /\ UNCHANGED <<limit, ceiling, waited, before, old, answered, refused, throttled, held, calm, really, cut, tripped>>
    /\ UNCHANGED more

Find ==
    /\ more' = IF Mutant = "calls that hang keep their slots" THEN 0 ELSE Min(stuck, Max(limit, before))
    /\ UNCHANGED <<limit, ceiling, waited, before, old, new, answered, refused, throttled, held, calm, really, cut>>
    /\ UNCHANGED <<tripped, stuck>>

Refused == \E isNew \in BOOLEAN : Refuse(isNew)
Throttled == \E isNew \in BOOLEAN : Throttle(isNew)
Next ==
    \/ Begin \/ AnswerOld \/ AnswerNew \/ Grow \/ Look \/ LookEnds \/ Refused \/ Throttled \/ Resume \/ CalmDown
    \/ Hang \/ Find
Spec == Init /\ [][Next]_vars
Fair == WF_vars(Begin) /\ WF_vars(AnswerOld) /\ WF_vars(AnswerNew \/ Grow \/ LookEnds) /\ WF_vars(Resume) /\ WF_vars(Find)
FairSpec == Spec /\ Fair

-----------------------------------------------------------------------------
BoundsHold == Least <= limit /\ limit <= Most

(* A window cuts once, and for refusals of its own calls only, which are more than a few.                             *)
CutsAreEarned == cut

(* All calls are held back for refusals that are many; whatever pause one asks for, it is of its row.                 *)
TripsAreEarned == tripped

(* A rate that is used up leaves the limit as it is.                                                                  *)
RateIsNotFull == [][Throttled => limit' = limit]_vars

(* When the service has room again, the limit comes to its bound, wherever it was cut.                                *)
Recovers == calm ~> limit = Most

(* A measurement ends: while calls are answered, half of them are not left in flight.                                 *)
LooksEnd == calm /\ before > 0 ~> before = 0
=============================================================================
