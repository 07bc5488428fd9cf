------------------------------ MODULE Addresses ------------------------------
(* The addresses of one service, as all operators of a process know them: each has a breaker of its own. A request   *)
(* that an address refuses goes to another one at once, and the address rests; after its rest one request probes, of *)
(* whichever operator. Only where no address takes a request does an operator hold back all its calls, until the     *)
(* first one takes one again. An operator may end with requests out: their places are free then.                     *)
(* An outcome counts in the period of its address in which its request began: a period ends when the address opens,  *)
(* rests again or closes. Time is not here: a rest may end at any time. Nor are the thresholds by which a fault is   *)
(* the address's: each refusal is. Nor load, latency, weight and pace: they order those that take a request, and any *)
(* of these may be chosen.                                                                                           *)
(* With Quota > 0 each address has a quota of its own, which its answers name: what is left of it as the process     *)
(* knows it (`known`) is passed over in the choice once it is used up. A quota may be gone for good, which makes its  *)
(* address rest until then; operators stop where those of all addresses are gone.                                    *)
(* Modules pillarbox.aio.endpoint_health, endpoint_pool and endpoint_limits; the two ways to use them are             *)
(* pillarbox.clients.addresses and pillarbox.aio.policies.endpoints. What tasks of other processes find of an         *)
(* address is an end of a period, too: AddressFacts.tla.                                                            *)
EXTENDS Naturals, FiniteSets

CONSTANTS
    Addrs, Calls,
    Ops,        \* the operators: 1..n; call c is of operator 1 + c % n
    Closes,     \* operators that end early, at most
    Changes,    \* changes of mind of the addresses, at most
    Cancels,    \* requests that are cancelled, at most
    Facts,      \* findings of tasks of other processes that come, at most: see AddressFacts
    Quota,      \* requests that an address takes until its quota comes back; 0 where none has a quota
    Goes,       \* quotas that are gone for good, at most
    Endless,    \* whether a call that was answered is made again, for ever
    Mutant

VARIABLES
    well,       \* of each address: whether it answers
    open,       \* of each address: whether its breaker is open
    rested,     \* of each address that is open: whether its rest is over
    probing,    \* of each address: whether a request probes
    call,       \* of each call: where it is, see TypeOK
    paused,     \* of each operator: whether it holds back all calls
    woken,      \* the operators that hold back all calls and have a reason to look again
    closed,     \* the operators that have ended early
    left,       \* of each address: what is left of its quota
    known,      \* of each address: the same, as the process knows it
    gone,       \* of each address: whether its quota does not come back, which an answer has said if it is in `told`
    told,
    stopped,    \* whether the operators make no call any more, since the quotas of all are gone
    changes, cancels, facts

quotas == <<left, known, gone, told, stopped>>
vars == <<well, open, rested, probing, call, paused, woken, closed, left, known, gone, told, stopped, changes, cancels,
          facts>>
breaker == <<open, rested, probing>>
gate == <<paused, woken>>

Op(c) == 1 + (c % Ops)

(* `fresh`: the request began in the present period of its address. `sound`: its address answered then. `tried`:     *)
(* addresses that have refused it.                                                                                  *)
TypeOK ==
    /\ well \in [Addrs -> BOOLEAN] /\ open \in [Addrs -> BOOLEAN] /\ rested \in [Addrs -> BOOLEAN]
    /\ probing \in [Addrs -> BOOLEAN] /\ paused \in [1..Ops -> BOOLEAN]
    /\ closed \subseteq 1..Ops /\ woken \subseteq {o \in 1..Ops : paused[o]}
    /\ left \in [Addrs -> 0..Quota] /\ known \in [Addrs -> 0..Quota]
    /\ gone \subseteq Addrs /\ told \subseteq gone /\ stopped \in BOOLEAN
    /\ call \in [Calls -> [at : {"new", "out", "held", "done", "lost"}, addr : Addrs, fresh : BOOLEAN,
                           sound : BOOLEAN, tried : SUBSET Addrs]]

New == [at |-> "new", addr |-> CHOOSE a \in Addrs : TRUE, fresh |-> FALSE, sound |-> FALSE, tried |-> {}]

Init ==
    /\ well = [a \in Addrs |-> TRUE] /\ open = [a \in Addrs |-> FALSE] /\ rested = open /\ probing = open
    /\ call = [c \in Calls |-> New] /\ paused = [o \in 1..Ops |-> FALSE] /\ woken = {} /\ closed = {} /\ changes = 0 /\ cancels = 0
    /\ facts = 0
    /\ left = [a \in Addrs |-> Quota] /\ known = left /\ gone = {} /\ told = {} /\ stopped = FALSE

(* The requests that probe, in the eyes of an operator: of all of them.                                            *)
Probes(o, a) ==
    IF Mutant = "own_probes"
    THEN \E c \in Calls : Op(c) = o /\ call[c].at = "out" /\ call[c].addr = a /\ call[c].fresh
    ELSE probing[a]
(* Its quota has room, as far as is known.                                                                         *)
HasRoom(a) == Quota = 0 \/ Mutant = "takes_beyond_quota" \/ (known[a] > 0 /\ a \notin told)
CanTakeBy(o, a) ==
    /\ HasRoom(a)
    /\ \/ ~open[a]
       \/ /\ rested[a] \/ Mutant = "takes_while_it_rests"
          /\ ~Probes(o, a) \/ Mutant = "many_probes"
          /\ Mutant # "never_probed"
CanTake(a) == \E o \in 1..Ops : CanTakeBy(o, a)
Left(c) == {a \in Addrs \ call[c].tried : CanTakeBy(Op(c), a)}

(* A request that has failed before does not probe, where another address takes it.                                *)
MayProbe(c, a) ==
    \/ ~open[a] \/ call[c].tried = {} \/ Mutant = "failed_probes"
    \/ \A b \in Left(c) : open[b]

(* The requests that are out at `a` belong to a former period from now on.                                         *)
Aged(a, calls) == [c \in Calls |-> IF calls[c].at = "out" /\ calls[c].addr = a
                                   THEN [calls[c] EXCEPT !.fresh = FALSE] ELSE calls[c]]

(* An operator that holds back all calls looks again at the end of the first rest, at the time at which the first     *)
(* quota comes back, and where an address has become well, whoever has found that.                                  *)
Wake == woken' = {o \in 1..Ops : paused[o]}

(* What it will use of the quota is reserved. Where the quota is used up although that was not known, since others   *)
(* use it too, the request is refused.                                                                             *)
Takes(a) == well[a] /\ (Quota = 0 \/ left[a] > 0)
Less(amounts, a) == IF amounts[a] > 0 THEN [amounts EXCEPT ![a] = @ - 1] ELSE amounts
Send(c, a) ==
    /\ ~stopped
    /\ call[c].at = "new" /\ ~paused[Op(c)] /\ Op(c) \notin closed /\ a \in Left(c) /\ MayProbe(c, a)
    /\ call' = [call EXCEPT ![c] = [at |-> "out", addr |-> a, fresh |-> TRUE, sound |-> Takes(a), tried |-> @.tried]]
    /\ probing' = [probing EXCEPT ![a] = open[a]]
    /\ left' = IF Takes(a) THEN Less(left, a) ELSE left
    /\ known' = Less(known, a)
    /\ UNCHANGED <<well, open, rested, gate, closed, gone, told, stopped, changes, cancels, facts>>

(* What an end of a request frees: the place of the probe, if it was that.                                         *)
Freed(c) == LET a == call[c].addr IN IF call[c].fresh THEN [probing EXCEPT ![a] = FALSE] ELSE probing

Answer(c) ==
    LET a == call[c].addr
        counts == call[c].fresh \/ Mutant = "stale_closes"
        after == [call EXCEPT ![c] = IF Endless THEN New ELSE [@ EXCEPT !.at = "done"]]
    IN  /\ call[c].at = "out" /\ (Takes(a) \/ call[c].sound)
        /\ IF counts /\ open[a]
           THEN /\ open' = [open EXCEPT ![a] = FALSE]
                /\ rested' = [rested EXCEPT ![a] = FALSE]
                /\ probing' = [probing EXCEPT ![a] = FALSE]
                /\ call' = Aged(a, after)
                /\ Wake
           ELSE /\ probing' = Freed(c) /\ call' = after
                /\ UNCHANGED <<open, rested, woken>>
        /\ UNCHANGED <<well, paused, closed, quotas, changes, cancels, facts>>

Refuse(c) ==
    LET a == call[c].addr
        counts == call[c].fresh \/ Mutant = "stale_opens"
        after == [call EXCEPT ![c] = [@ EXCEPT !.at = "new", !.tried = @ \cup {a}, !.fresh = FALSE, !.sound = FALSE]]
    IN  /\ call[c].at = "out" /\ (~well[a] \/ (Quota = 0 /\ ~call[c].sound))
        /\ IF counts
           THEN /\ open' = [open EXCEPT ![a] = TRUE]
                /\ rested' = [rested EXCEPT ![a] = FALSE]
                /\ probing' = [probing EXCEPT ![a] = FALSE]
                /\ call' = Aged(a, after)
           ELSE /\ call' = after
                /\ UNCHANGED breaker
        /\ UNCHANGED <<well, gate, closed, quotas, changes, cancels, facts>>

(* It is refused for the quota, which is used up: the address is not ill, and does not rest. Its answer names what   *)
(* is left, and whether it comes back: if not, the address is out until a person acts. Where that is so of all, the   *)
(* operators stop.                                                                                                 *)
RefuseForQuota(c) ==
    LET a == call[c].addr
        named == [known EXCEPT ![a] = left[a]]
        all == told' = Addrs \/ (Mutant = "stops_for_one" /\ told' # {})
    IN  /\ Quota > 0 /\ call[c].at = "out" /\ well[a] /\ ~call[c].sound /\ left[a] = 0
        /\ known' = named
        /\ told' = IF a \in gone THEN told \cup {a} ELSE told
        /\ stopped' = (stopped \/ all)
        /\ call' = [call EXCEPT ![c] = [@ EXCEPT !.at = "new", !.tried = @ \cup {a}, !.fresh = FALSE, !.sound = FALSE]]
        /\ probing' = Freed(c)
        /\ UNCHANGED <<well, open, rested, gate, closed, left, gone, changes, cancels, facts>>

(* Others use the quota as well: this process learns of it by its own answers.                                      *)
UsedByOthers(a) ==
    /\ Quota > 0 /\ left[a] > 0 /\ changes < Changes
    /\ changes' = changes + 1
    /\ left' = [left EXCEPT ![a] = @ - 1]
    /\ UNCHANGED <<well, breaker, call, gate, closed, known, gone, told, stopped, cancels, facts>>

(* It comes back, at the time that was named.                                                                      *)
QuotaBack(a) ==
    /\ Quota > 0 /\ a \notin gone /\ (left[a] < Quota \/ known[a] < Quota)
    /\ left' = [left EXCEPT ![a] = Quota]
    /\ known' = IF Mutant = "quota_stays_used_up" THEN known ELSE [known EXCEPT ![a] = Quota]
    /\ Wake
    /\ UNCHANGED <<well, breaker, call, paused, closed, gone, told, stopped, changes, cancels, facts>>

(* It is used up for good.                                                                                         *)
QuotaGoes(a) ==
    /\ Quota > 0 /\ a \notin gone /\ Cardinality(gone) < Goes
    /\ gone' = gone \cup {a} /\ left' = [left EXCEPT ![a] = 0]
    /\ UNCHANGED <<well, breaker, call, gate, closed, known, told, stopped, changes, cancels, facts>>

(* Its call has no more time, or nobody wants it: the operator has its outcome.                                    *)
Cancel(c) ==
    /\ call[c].at = "out" /\ cancels < Cancels
    /\ cancels' = cancels + 1
    /\ call' = [call EXCEPT ![c] = [@ EXCEPT !.at = "done", !.fresh = FALSE]]
    /\ probing' = IF Mutant = "cancelled_probe_stays" THEN probing ELSE Freed(c)
    /\ UNCHANGED <<well, open, rested, gate, closed, quotas, changes, facts>>

(* No address takes the request, and none has seen it: nothing was sent, which counts as no attempt.               *)
Pause(c) ==
    /\ ~stopped
    /\ call[c].at = "new" /\ ~paused[Op(c)] /\ Op(c) \notin closed /\ call[c].tried = {}
    /\ IF Mutant = "held_for_one_quota" THEN \E a \in Addrs : ~HasRoom(a) ELSE
       IF Mutant = "pauses_for_one" THEN \E a \in Addrs : open[a] ELSE Left(c) = {}
    /\ paused' = [paused EXCEPT ![Op(c)] = TRUE]
    (* While a request probes an address whose rest is over it looks again after a while.                           *)
    /\ woken' = IF \E a \in Addrs : open[a] /\ rested[a] THEN woken \cup {Op(c)} ELSE woken
    /\ call' = [call EXCEPT ![c].at = "held"]
    /\ UNCHANGED <<well, breaker, closed, quotas, changes, cancels, facts>>

(* Addresses have refused it, and no other one takes it: the operator makes it again.                              *)
Fail(c) ==
    /\ call[c].at = "new" /\ ~paused[Op(c)] /\ Op(c) \notin closed /\ call[c].tried # {} /\ Left(c) = {}
    /\ call' = [call EXCEPT ![c] = IF Mutant = "refused_is_lost" THEN [@ EXCEPT !.at = "lost"] ELSE New]
    /\ UNCHANGED <<well, breaker, gate, closed, quotas, changes, cancels, facts>>

Resume(o) ==
    /\ o \in woken /\ \E a \in Addrs : CanTakeBy(o, a)
    /\ paused' = [paused EXCEPT ![o] = FALSE] /\ woken' = woken \ {o}
    /\ call' = [c \in Calls |-> IF call[c].at = "held" /\ Op(c) = o THEN New ELSE call[c]]
    /\ UNCHANGED <<well, breaker, closed, quotas, changes, cancels, facts>>

(* The task ends, with an error or since it is left: no request of it has an outcome.                              *)
Close(o) ==
    /\ o \notin closed /\ Cardinality(closed) < Closes
    /\ closed' = closed \cup {o}
    /\ paused' = [paused EXCEPT ![o] = FALSE] /\ woken' = woken \ {o}
    /\ call' = [c \in Calls |-> IF Op(c) = o THEN [call[c] EXCEPT !.at = "done", !.fresh = FALSE] ELSE call[c]]
    /\ probing' = [a \in Addrs |->
                      probing[a] /\ (\/ Mutant = "closed_probe_stays"
                                     \/ \A c \in Calls : ~(Op(c) = o /\ call[c].at = "out" /\ call[c].addr = a
                                                             /\ call[c].fresh))]
    /\ UNCHANGED <<well, open, rested, quotas, changes, cancels, facts>>

RestEnds(a) ==
    /\ open[a] /\ ~rested[a]
    /\ rested' = [rested EXCEPT ![a] = TRUE]
    /\ Wake
    /\ UNCHANGED <<well, open, probing, call, paused, closed, quotas, changes, cancels, facts>>

Change(a) ==
    /\ changes < Changes
    /\ changes' = changes + 1
    /\ well' = [well EXCEPT ![a] = ~@]
    /\ UNCHANGED <<breaker, call, gate, closed, quotas, cancels, facts>>

(* A task of another process has found the address ill, or has had an answer of its probe; or it probes now, and     *)
(* its address rests a while longer for the others. A request that is out then says nothing of what it is now.       *)
Told(a, isOpen) ==
    /\ facts < Facts /\ facts' = facts + 1
    /\ open' = [open EXCEPT ![a] = isOpen]
    /\ rested' = [rested EXCEPT ![a] = FALSE]
    /\ probing' = [probing EXCEPT ![a] = FALSE]
    /\ call' = IF Mutant = "told_keeps_period" THEN call ELSE Aged(a, call)
    /\ IF isOpen \/ Mutant = "told_wakes_none" THEN UNCHANGED woken ELSE Wake
    /\ UNCHANGED <<well, paused, closed, quotas, changes, cancels>>
ToldRest(a) == Told(a, TRUE)
ToldWell(a) == open[a] /\ Told(a, FALSE)
ToldProbe(a) ==
    /\ facts < Facts /\ facts' = facts + 1
    /\ open[a] /\ rested[a] /\ (~probing[a] \/ Mutant = "told_while_it_probes")
    /\ rested' = [rested EXCEPT ![a] = FALSE]
    /\ UNCHANGED <<well, open, probing, call, gate, closed, quotas, changes, cancels>>

Next ==
    \/ \E c \in Calls : Answer(c) \/ Refuse(c) \/ RefuseForQuota(c) \/ Cancel(c) \/ Pause(c) \/ Fail(c)
    \/ \E c \in Calls, a \in Addrs : Send(c, a)
    \/ \E a \in Addrs : RestEnds(a) \/ Change(a) \/ UsedByOthers(a) \/ QuotaBack(a) \/ QuotaGoes(a)
    \/ \E a \in Addrs : ToldRest(a) \/ ToldWell(a) \/ ToldProbe(a)
    \/ \E o \in 1..Ops : Resume(o) \/ Close(o)

Spec == Init /\ [][Next]_vars

(* A request ends, a rest ends, a quota comes back, and by turns each address that takes requests gets one.                            *)
FairSpec ==
    /\ Spec
    /\ \A c \in Calls : WF_vars(Answer(c) \/ Refuse(c) \/ RefuseForQuota(c)) /\ WF_vars(Pause(c) \/ Fail(c) \/ \E a \in Addrs : Send(c, a))
    /\ \A a \in Addrs : WF_vars(RestEnds(a)) /\ SF_vars(QuotaBack(a)) /\ SF_vars(\E c \in Calls : Send(c, a))
    /\ \A o \in 1..Ops : WF_vars(Resume(o))

-----------------------------------------------------------------------------
Out(a) == {c \in Calls : call[c].at = "out" /\ call[c].addr = a /\ call[c].fresh}

(* An address that is open gets one request, and that after its rest.                                              *)
OnlyProbes == \A a \in Addrs : open[a] => Cardinality(Out(a)) <= IF rested[a] THEN 1 ELSE 0

(* The place of the probe is taken by a request that is out, or free: else the address would never be used again.  *)
ProbeIsOut == \A a \in Addrs : probing[a] => open[a] /\ Out(a) # {}

(* No call is forgotten, and none waits for a pause that is over.                                                  *)
NoneLost == \A c \in Calls : call[c].at # "lost" /\ (call[c].at = "held" => paused[Op(c)])

(* All calls are held back for the fault of all addresses only.                                                    *)
PausedForAll == [][\A o \in 1..Ops : (paused'[o] /\ ~paused[o]) => \A a \in Addrs : ~CanTakeBy(o, a)]_vars

(* An operator that holds back all calls is woken as soon as an address is known to be well, whoever has found it.  *)
WokenForWell == \A o \in 1..Ops : (paused[o] /\ \E a \in Addrs : ~open[a] /\ HasRoom(a)) => o \in woken

(* No request goes to an address whose quota is used up, as far as is known, or gone.                               *)
PassesOver ==
    [][\A c \in Calls : (call[c].at = "new" /\ call'[c].at = "out")
        => LET a == call'[c].addr IN Quota = 0 \/ (known[a] > 0 /\ a \notin told)]_vars

(* The operators stop where no address has a quota that comes back.                                                 *)
StoppedForAll == stopped => gone = Addrs

(* A request that has failed is not lost to a probe, while an address that is closed takes it.                     *)
FailedDoesNotProbe ==
    [][\A c \in Calls : (call[c].at = "new" /\ call'[c].at = "out" /\ call[c].tried # {} /\ open[call'[c].addr])
        => \A b \in Addrs \ call[c].tried : open[b]]_vars

(* What a request of a former period brings changes nothing of its address.                                        *)
StaleSaysNothing ==
    [][\A c \in Calls : (call[c].at = "out" /\ ~call[c].fresh /\ call'[c].at # "out" /\ closed' = closed)
        => LET a == call[c].addr IN open'[a] = open[a] /\ rested'[a] = rested[a] /\ probing'[a] = probing[a]]_vars

(* Where one address is well for good, every call gets its answer.                                                 *)
AllAnswered == (\E a \in Addrs : <>[](well[a] /\ a \notin gone)) => \A c \in Calls : <>(call[c].at = "done")

(* An address that is well again for good is used again, as long as there are calls.                               *)
UsedAgain == \A a \in Addrs : <>[]well[a] => <>[](~open[a])
=============================================================================
