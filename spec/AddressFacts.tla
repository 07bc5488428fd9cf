---------------------------- MODULE AddressFacts ----------------------------
(* How the tasks of a job tell each other, through a coordinator, that an address of a service rests or is well     *)
(* again: aio/endpoint_facts.py and aio/limits/facts.py, aio/limits/fact_link.py. One address; what one process      *)
(* does with what it knows is Addresses.tla, where what another task has found comes at any time (Hear).             *)
(* The coordinator has the last state and numbers its changes. A report says to which number its task knew the       *)
(* state; it counts only if there is no later one, which is then on its way to that task. So all that are connected  *)
(* come to the same state, in the same order. A report is repeated by no one: a task has one on its way at a time.   *)
(* Numbers belong to a connection: a coordinator that was started again knows nothing, and begins anew.              *)
EXTENDS Naturals, Sequences, FiniteSets

CONSTANTS
    Tasks,
    Callers,    \* the tasks that make calls
    Changes,    \* changes of mind of the address, at most
    Findings,   \* changes of state that tasks find by themselves, at most
    Cuts,       \* connections that break, or coordinators that start again, at most
    Mutant

VARIABLES
    well,       \* whether the address answers
    open,       \* of each task: whether it holds the address for ill
    rested,     \* of each task: whether the rest is over
    out,        \* of each task: its request at the address: "none", "fresh", "stale" if it began before the last change
    sound,      \* of each task: whether its request will be answered
    number,     \* of each task: the last change that it has heard of
    due,        \* of each task: whether it has found something that it has not reported
    waits,      \* of each task: what it waits for: "known", "note" on its report, or "none"
    link,       \* of each task: whether it is connected
    up, down,   \* of each task: messages on their way
    book,       \* the last state that the coordinator has, and its number
    changes, findings, cuts

vars == <<well, open, rested, out, sound, number, due, waits, link, up, down, book, changes, findings, cuts>>
mine == <<open, rested, out, sound>>
wires == <<number, due, waits, link, up, down, book, cuts>>

No == [t \in Tasks |-> FALSE]
Nothing == [open |-> FALSE, number |-> 0]

Init ==
    /\ well = TRUE /\ open = No /\ rested = No /\ out = [t \in Tasks |-> "none"] /\ sound = No
    /\ number = [t \in Tasks |-> 0] /\ due = No /\ link = No
    /\ waits = [t \in Tasks |-> "none"]
    /\ up = [t \in Tasks |-> <<>>] /\ down = up /\ book = Nothing
    /\ changes = 0 /\ findings = 0 /\ cuts = 0

TypeOK ==
    /\ \A t \in Tasks : out[t] \in {"none", "fresh", "stale"} /\ Len(up[t]) <= 1
    /\ waits \in [Tasks -> {"none", "known", "note"}]

-----------------------------------------------------------------------------
(* One process, as in Addresses.tla.                                                                               *)
Send(t) ==
    /\ out[t] = "none" /\ (~open[t] \/ rested[t]) /\ t \in Callers
    /\ out' = [out EXCEPT ![t] = "fresh"] /\ sound' = [sound EXCEPT ![t] = well]
    /\ UNCHANGED <<well, open, rested, wires, changes, findings>>

Found(t, isOpen) ==
    /\ findings < Findings /\ findings' = findings + 1
    /\ open' = [open EXCEPT ![t] = isOpen] /\ rested' = [rested EXCEPT ![t] = FALSE]
    /\ due' = IF Mutant = "well_is_not_told" /\ ~isOpen THEN due ELSE [due EXCEPT ![t] = TRUE]

Answer(t) ==
    /\ out[t] # "none" /\ (sound[t] \/ well)
    /\ out' = [out EXCEPT ![t] = "none"]
    /\ IF out[t] = "fresh" /\ open[t] THEN Found(t, FALSE) ELSE UNCHANGED <<findings, open, rested, due>>
    /\ UNCHANGED <<well, sound, number, waits, link, up, down, book, cuts, changes>>

Refuse(t) ==
    /\ out[t] # "none" /\ (~sound[t] \/ ~well)
    /\ out' = [out EXCEPT ![t] = "none"]
    /\ IF out[t] = "fresh" THEN Found(t, TRUE) ELSE UNCHANGED <<findings, open, rested, due>>
    /\ UNCHANGED <<well, sound, number, waits, link, up, down, book, cuts, changes>>

RestEnds(t) ==
    /\ open[t] /\ ~rested[t]
    /\ rested' = [rested EXCEPT ![t] = TRUE]
    /\ UNCHANGED <<well, open, out, sound, wires, changes, findings>>

Change ==
    /\ changes < Changes /\ changes' = changes + 1 /\ well' = ~well
    /\ UNCHANGED <<mine, wires, findings>>

-----------------------------------------------------------------------------
(* A task that is there, first or again, is told what is known, by the numbers of this coordinator.                *)
Register(t) ==
    /\ ~link[t]
    /\ link' = [link EXCEPT ![t] = TRUE] /\ number' = [number EXCEPT ![t] = 0]
    /\ down' = [down EXCEPT ![t] = <<[is |-> "known", open |-> book.open, number |-> book.number]>>]
    /\ waits' = [waits EXCEPT ![t] = "known"]
    (* A rest of which this coordinator may know nothing. *)
    /\ due' = [due EXCEPT ![t] = @ \/ (open[t] /\ Mutant # "restart_forgets")]
    /\ UNCHANGED <<well, mine, up, book, cuts, changes, findings>>

(* Once it has heard what was known at the beginning of its connection.                                             *)
Report(t) ==
    /\ link[t] /\ due[t] /\ (waits[t] = "none" \/ Mutant = "many_reports") /\ Len(up[t]) = 0
    /\ up' = [up EXCEPT ![t] = <<[open |-> open[t], number |-> number[t]]>>]
    /\ due' = [due EXCEPT ![t] = FALSE] /\ waits' = [waits EXCEPT ![t] = "note"]
    /\ UNCHANGED <<well, mine, number, link, down, book, cuts, changes, findings>>

Counts(m) == m.number = book.number \/ Mutant = "late_reports_count"

Take(t) ==
    /\ up[t] # <<>>
    /\ LET m == Head(up[t])
           next == [open |-> m.open, number |-> book.number + 1]
           to(u) == [is |-> IF u = t THEN "noted" ELSE "fact", open |-> m.open, number |-> next.number]
       IN  IF Counts(m)
           THEN /\ book' = next
                /\ down' = [u \in Tasks |-> IF link[u] THEN Append(down[u], to(u)) ELSE down[u]]
           ELSE UNCHANGED <<book, down>>
    /\ up' = [up EXCEPT ![t] = <<>>]
    /\ UNCHANGED <<well, mine, number, due, waits, link, cuts, changes, findings>>

Hear(t) ==
    /\ down[t] # <<>>
    /\ LET m == Head(down[t])
           (* A coordinator that knows nothing says nothing. What a task has found while it was cut off, or what    *)
           (* it knows of a coordinator before, is reported once the number is known.                               *)
           keeps == m.is = "noted" \/ (m.is = "known" /\ (m.number = 0 \/ (due[t] /\ m.open # open[t])))
           same == ~m.open /\ ~open[t]
       IN  /\ number' = [number EXCEPT ![t] = m.number]
           /\ waits' = [waits EXCEPT ![t] = "none"]
           /\ due' = IF keeps THEN due ELSE [due EXCEPT ![t] = FALSE]
           /\ IF keeps \/ same THEN UNCHANGED <<open, rested, out>>
              ELSE /\ open' = [open EXCEPT ![t] = m.open] /\ rested' = [rested EXCEPT ![t] = FALSE]
                   /\ out' = IF out[t] = "fresh" /\ Mutant # "heard_keeps_period"
                             THEN [out EXCEPT ![t] = "stale"] ELSE out
    /\ down' = [down EXCEPT ![t] = Tail(@)]
    /\ UNCHANGED <<well, sound, link, up, book, cuts, changes, findings>>

(* What was on its way is lost: a rest is reported again (Register), and that it is over is found out again.        *)
Lost(t) ==
    /\ link' = [link EXCEPT ![t] = FALSE]
    /\ up' = [up EXCEPT ![t] = <<>>] /\ down' = [down EXCEPT ![t] = <<>>]
    /\ waits' = [waits EXCEPT ![t] = "none"]

Cut(t) ==
    /\ link[t] /\ cuts < Cuts /\ cuts' = cuts + 1 /\ Lost(t)
    /\ UNCHANGED <<well, mine, number, due, book, changes, findings>>

(* The coordinator starts again, without what it knew.                                                             *)
Restart ==
    /\ cuts < Cuts /\ cuts' = cuts + 1
    /\ link' = No /\ up' = [t \in Tasks |-> <<>>] /\ down' = [t \in Tasks |-> <<>>]
    /\ waits' = [t \in Tasks |-> "none"] /\ book' = Nothing
    /\ UNCHANGED <<well, mine, number, due, changes, findings>>

Next ==
    \/ \E t \in Tasks : \/ Send(t) \/ Answer(t) \/ Refuse(t) \/ RestEnds(t)
                        \/ Register(t) \/ Report(t) \/ Take(t) \/ Hear(t) \/ Cut(t)
    \/ Change \/ Restart

Spec == Init /\ [][Next]_vars

FairSpec ==
    /\ Spec
    /\ \A t \in Tasks : /\ WF_vars(Send(t)) /\ WF_vars(Answer(t) \/ Refuse(t)) /\ WF_vars(RestEnds(t))
                        /\ WF_vars(Register(t)) /\ WF_vars(Report(t)) /\ WF_vars(Take(t)) /\ WF_vars(Hear(t))

-----------------------------------------------------------------------------
Quiet == \A t \in Tasks : link[t] /\ up[t] = <<>> /\ down[t] = <<>> /\ ~due[t]

(* When nothing is on its way, all tasks have the state that the coordinator has.                                  *)
Agree == Quiet => \A t \in Tasks : open[t] = book.open /\ number[t] = book.number

(* An address of which a task has heard that it rests gets its probes alone.                                       *)
OnlyProbes == \A t \in Tasks : (open[t] /\ out[t] = "fresh") => rested[t]

(* A task that has heard of a rest is not brought back by the answer to a request of before.                       *)
StaleSaysNothing == [][\A t \in Tasks : out[t] = "stale" /\ out'[t] = "none" => open'[t] = open[t]]_vars

(* A task that makes no call itself learns that the address is well, as long as others probe and findings are left. *)
Learnt == <>[](well /\ findings < Findings) => <>[](\A t \in Tasks : ~open[t])
=============================================================================
