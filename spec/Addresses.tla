------------------------------ MODULE Addresses ------------------------------
(* The addresses of one service, as a client knows them: each has a breaker of its own. A request that an address    *)
(* refuses goes to another one at once, and the address rests; after its rest one request probes. Only where no      *)
(* address takes a request does the operator hold back all calls, until the first one takes one again.               *)
(* An outcome counts in the period of its address in which its request began: a period ends when the address opens,  *)
(* rests again or closes. Time is not here: a rest may end at any time. Nor are the thresholds by which a fault is   *)
(* the address's: each refusal is. Module pillarbox.clients.addresses; the pause is in pillarbox.aio.throttle.       *)
EXTENDS Naturals, FiniteSets

CONSTANTS
    Addrs, Calls,
    Changes,    \* changes of mind of the addresses, at most
    Cancels,    \* requests that are cancelled, at most
    Endless,    \* whether a call that was answered is made again, for ever
    Mutant

VARIABLES
    well,       \* of each address: whether it answers
    open,       \* of each address: whether its breaker is open
    rested,     \* of each address that is open: whether its rest is over
    probing,    \* of each address: whether a request probes
    call,       \* of each call: where it is, see TypeOK
    paused,     \* whether the operator holds back all calls
    changes, cancels

vars == <<well, open, rested, probing, call, paused, changes, cancels>>
breaker == <<open, rested, probing>>

(* `fresh`: the request began in the present period of its address. `sound`: its address answered then. `tried`:     *)
(* addresses that have refused it.                                                                                  *)
TypeOK ==
    /\ well \in [Addrs -> BOOLEAN] /\ open \in [Addrs -> BOOLEAN] /\ rested \in [Addrs -> BOOLEAN]
    /\ probing \in [Addrs -> BOOLEAN] /\ paused \in BOOLEAN
    /\ call \in [Calls -> [at : {"new", "out", "held", "done", "lost"}, addr : Addrs, fresh : BOOLEAN,
                           sound : BOOLEAN, tried : SUBSET Addrs]]

New == [at |-> "new", addr |-> CHOOSE a \in Addrs : TRUE, fresh |-> FALSE, sound |-> FALSE, tried |-> {}]

Init ==
    /\ well = [a \in Addrs |-> TRUE] /\ open = [a \in Addrs |-> FALSE] /\ rested = open /\ probing = open
    /\ call = [c \in Calls |-> New] /\ paused = FALSE /\ changes = 0 /\ cancels = 0

CanTake(a) ==
    \/ ~open[a]
    \/ /\ rested[a] \/ Mutant = "takes_while_it_rests"
       /\ ~probing[a] \/ Mutant = "many_probes"
       /\ Mutant # "never_probed"
Left(c) == {a \in Addrs \ call[c].tried : CanTake(a)}

(* The requests that are out at `a` belong to a former period from now on.                                         *)
Aged(a, calls) == [c \in Calls |-> IF calls[c].at = "out" /\ calls[c].addr = a
                                   THEN [calls[c] EXCEPT !.fresh = FALSE] ELSE calls[c]]

Send(c, a) ==
    /\ call[c].at = "new" /\ ~paused /\ a \in Left(c)
    /\ call' = [call EXCEPT ![c] = [at |-> "out", addr |-> a, fresh |-> TRUE, sound |-> well[a], tried |-> @.tried]]
    /\ probing' = [probing EXCEPT ![a] = open[a]]
    /\ UNCHANGED <<well, open, rested, paused, changes, cancels>>

(* What an end of a request frees: the place of the probe, if it was that.                                         *)
Freed(c) == LET a == call[c].addr IN IF call[c].fresh THEN [probing EXCEPT ![a] = FALSE] ELSE probing

Answer(c) ==
    LET a == call[c].addr
        counts == call[c].fresh \/ Mutant = "stale_closes"
        after == [call EXCEPT ![c] = IF Endless THEN New ELSE [@ EXCEPT !.at = "done"]]
    IN  /\ call[c].at = "out" /\ (well[a] \/ call[c].sound)
        /\ IF counts /\ open[a]
           THEN /\ open' = [open EXCEPT ![a] = FALSE]
                /\ rested' = [rested EXCEPT ![a] = FALSE]
                /\ probing' = [probing EXCEPT ![a] = FALSE]
                /\ call' = Aged(a, after)
           ELSE /\ probing' = Freed(c) /\ call' = after
                /\ UNCHANGED <<open, rested>>
        /\ UNCHANGED <<well, paused, changes, cancels>>

Refuse(c) ==
    LET a == call[c].addr
        counts == call[c].fresh \/ Mutant = "stale_opens"
        after == [call EXCEPT ![c] = [@ EXCEPT !.at = "new", !.tried = @ \cup {a}, !.fresh = FALSE, !.sound = FALSE]]
    IN  /\ call[c].at = "out" /\ (~well[a] \/ ~call[c].sound)
        /\ IF counts
           THEN /\ open' = [open EXCEPT ![a] = TRUE]
                /\ rested' = [rested EXCEPT ![a] = FALSE]
                /\ probing' = [probing EXCEPT ![a] = FALSE]
                /\ call' = Aged(a, after)
           ELSE /\ call' = after
                /\ UNCHANGED breaker
        /\ UNCHANGED <<well, paused, changes, cancels>>

(* Its call has no more time, or nobody wants it: the operator has its outcome.                                    *)
Cancel(c) ==
    /\ call[c].at = "out" /\ cancels < Cancels
    /\ cancels' = cancels + 1
    /\ call' = [call EXCEPT ![c] = [@ EXCEPT !.at = "done", !.fresh = FALSE]]
    /\ probing' = IF Mutant = "cancelled_probe_stays" THEN probing ELSE Freed(c)
    /\ UNCHANGED <<well, open, rested, paused, changes>>

(* No address takes the request, and none has seen it: nothing was sent, which counts as no attempt.               *)
Pause(c) ==
    /\ call[c].at = "new" /\ ~paused /\ call[c].tried = {}
    /\ IF Mutant = "pauses_for_one" THEN \E a \in Addrs : open[a] ELSE Left(c) = {}
    /\ paused' = TRUE
    /\ call' = [call EXCEPT ![c].at = "held"]
    /\ UNCHANGED <<well, breaker, changes, cancels>>

(* Addresses have refused it, and no other one takes it: the operator makes it again.                              *)
Fail(c) ==
    /\ call[c].at = "new" /\ ~paused /\ call[c].tried # {} /\ Left(c) = {}
    /\ call' = [call EXCEPT ![c] = IF Mutant = "refused_is_lost" THEN [@ EXCEPT !.at = "lost"] ELSE New]
    /\ UNCHANGED <<well, breaker, paused, changes, cancels>>

Resume ==
    /\ paused /\ \E a \in Addrs : CanTake(a)
    /\ paused' = FALSE
    /\ call' = [c \in Calls |-> IF call[c].at = "held" THEN New ELSE call[c]]
    /\ UNCHANGED <<well, breaker, changes, cancels>>

RestEnds(a) ==
    /\ open[a] /\ ~rested[a]
    /\ rested' = [rested EXCEPT ![a] = TRUE]
    /\ UNCHANGED <<well, open, probing, call, paused, changes, cancels>>

Change(a) ==
    /\ changes < Changes
    /\ changes' = changes + 1
    /\ well' = [well EXCEPT ![a] = ~@]
    /\ UNCHANGED <<breaker, call, paused, cancels>>

Next ==
    \/ \E c \in Calls : Answer(c) \/ Refuse(c) \/ Cancel(c) \/ Pause(c) \/ Fail(c) \/ \E a \in Addrs : Send(c, a)
    \/ \E a \in Addrs : RestEnds(a) \/ Change(a)
    \/ Resume

Spec == Init /\ [][Next]_vars

(* A request ends, a rest ends, and by turns each address that takes requests gets one.                            *)
FairSpec ==
    /\ Spec
    /\ \A c \in Calls : WF_vars(Answer(c) \/ Refuse(c)) /\ WF_vars(Pause(c) \/ Fail(c) \/ \E a \in Addrs : Send(c, a))
    /\ \A a \in Addrs : WF_vars(RestEnds(a)) /\ SF_vars(\E c \in Calls : Send(c, a))
    /\ WF_vars(Resume)

-----------------------------------------------------------------------------
Out(a) == {c \in Calls : call[c].at = "out" /\ call[c].addr = a /\ call[c].fresh}

(* An address that is open gets one request, and that after its rest.                                              *)
OnlyProbes == \A a \in Addrs : open[a] => Cardinality(Out(a)) <= IF rested[a] THEN 1 ELSE 0

(* The place of the probe is taken by a request that is out, or free: else the address would never be used again.  *)
ProbeIsOut == \A a \in Addrs : probing[a] => open[a] /\ Out(a) # {}

(* No call is forgotten, and none waits for a pause that is over.                                                  *)
NoneLost == \A c \in Calls : call[c].at # "lost" /\ (call[c].at = "held" => paused)

(* All calls are held back for the fault of all addresses only.                                                    *)
PausedForAll == [][(paused' /\ ~paused) => \A a \in Addrs : ~CanTake(a)]_vars

(* What a request of a former period brings changes nothing of its address.                                        *)
StaleSaysNothing ==
    [][\A c \in Calls : (call[c].at = "out" /\ ~call[c].fresh /\ call'[c].at # "out")
        => LET a == call[c].addr IN open'[a] = open[a] /\ rested'[a] = rested[a] /\ probing'[a] = probing[a]]_vars

(* Where one address is well for good, every call gets its answer.                                                 *)
AllAnswered == (\E a \in Addrs : <>[]well[a]) => \A c \in Calls : <>(call[c].at = "done")

(* An address that is well again for good is used again, as long as there are calls.                               *)
UsedAgain == \A a \in Addrs : <>[]well[a] => <>[](~open[a])
=============================================================================
