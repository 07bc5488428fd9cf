----------------------------- MODULE ToldLimits -----------------------------
(* How a coordinator tells the tasks of a job the limits that it has learned by the answers of all of them, for      *)
(* their statistics: aio/limits/coordinator.py and lease.py. One limit, of which a number is known, or nothing (0).  *)
(* It changes by answers, and between them by calls that are granted and by time. It is told to all tasks at once    *)
(* where nothing was told just now, and otherwise when a timer of a second is over, if it differs from what was told. *)
(* A task forgets what it was told when its connection ends: the coordinator may have died, and a new one knows       *)
(* nothing. So what a job shows is what its coordinator knows, or nothing.                                          *)
EXTENDS Naturals, Sequences, FiniteSets

CONSTANTS
    Tasks,
    Values,     \* the numbers, from 1 on
    Changes,    \* changes of the limit, at most
    Cuts,       \* connections that break, at most
    Mutant

VARIABLES
    known,      \* what the coordinator knows: 0 for nothing
    told,       \* what it has told to all last; "none" where a task was told something else
    timer,      \* whether it looks again after a while
    link,       \* the tasks that are connected
    down,       \* of each task: what is on its way to it
    shown,      \* of each task: what its statistics show
    changes, cuts

vars == <<known, told, timer, link, down, shown, changes, cuts>>

Nothing == 0
None == 99

Init ==
    /\ known = Nothing /\ told = Nothing /\ timer = FALSE /\ link = {}
    /\ down = [t \in Tasks |-> <<>>] /\ shown = [t \in Tasks |-> Nothing]
    /\ changes = 0 /\ cuts = 0

TypeOK ==
    /\ known \in {Nothing} \cup Values /\ told \in {Nothing, None} \cup Values /\ timer \in BOOLEAN
    /\ link \subseteq Tasks /\ shown \in [Tasks -> {Nothing} \cup Values]

(* What is known is told to all that are connected, unless it was.                                                 *)
TellOf(now) ==
    IF link = {} THEN timer' = FALSE /\ UNCHANGED <<told, down>>
    ELSE /\ told' = now
         /\ down' = IF now = told \/ (Mutant = "contradiction_stays" /\ now = Nothing) THEN down
                    ELSE [t \in Tasks |-> IF t \in link THEN Append(down[t], now) ELSE down[t]]
         /\ timer' = (now # Nothing /\ ~(Mutant = "looks_until_it_stands" /\ now = told))

(* An answer says something of the limit, or contradicts what was said: then nothing is known.                      *)
Learn(now) ==
    /\ changes < Changes /\ changes' = changes + 1 /\ link # {}
    /\ now # known /\ known' = now
    /\ IF timer THEN UNCHANGED <<told, down, timer>> ELSE TellOf(now)
    /\ UNCHANGED <<link, shown, cuts>>

(* Calls are granted, or time passes.                                                                              *)
Drift(now) ==
    /\ changes < Changes /\ changes' = changes + 1
    /\ known # Nothing /\ now \in Values /\ now # known /\ known' = now
    /\ UNCHANGED <<told, timer, link, down, shown, cuts>>

Tell ==
    /\ timer /\ TellOf(known)
    /\ UNCHANGED <<known, link, shown, changes, cuts>>

(* A task is there, first or again.                                                                                *)
Register(t) ==
    /\ t \notin link /\ link' = link \cup {t}
    /\ told' = IF Mutant = "register_is_as_told" THEN told ELSE None
    /\ IF known = Nothing THEN UNCHANGED <<down, timer>>
       ELSE down' = [down EXCEPT ![t] = <<known>>] /\ timer' = TRUE
    /\ UNCHANGED <<known, shown, changes, cuts>>

Hear(t) ==
    /\ down[t] # <<>>
    /\ shown' = [shown EXCEPT ![t] = Head(down[t])]
    /\ down' = [down EXCEPT ![t] = Tail(@)]
    /\ UNCHANGED <<known, told, timer, link, changes, cuts>>

Cut(t) ==
    /\ t \in link /\ cuts < Cuts /\ cuts' = cuts + 1
    /\ link' = link \ {t} /\ down' = [down EXCEPT ![t] = <<>>]
    /\ shown' = IF Mutant = "lost_is_shown" THEN shown ELSE [shown EXCEPT ![t] = Nothing]
    /\ UNCHANGED <<known, told, timer, changes>>

Next ==
    \/ \E now \in {Nothing} \cup Values : Learn(now) \/ Drift(now)
    \/ \E t \in Tasks : Register(t) \/ Hear(t) \/ Cut(t)
    \/ Tell

Spec == Init /\ [][Next]_vars

FairSpec == Spec /\ WF_vars(Tell) /\ \A t \in Tasks : WF_vars(Register(t)) /\ WF_vars(Hear(t))

-----------------------------------------------------------------------------
(* A task that is cut off shows no limit of the job: what it was told last may be long over.                        *)
LostIsUnknown == \A t \in Tasks : t \notin link => shown[t] = Nothing

(* What the coordinator knows all tasks show in the end, and that it knows nothing, too.                            *)
ShownInTheEnd == <>[](changes = Changes) => <>[](\A t \in Tasks : shown[t] = known)
=============================================================================
