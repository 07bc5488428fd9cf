------------------------------ MODULE RunHolder ------------------------------
(* Which job works on a run whose ledger is in an object store: one record, that is written on a condition only. A    *)
(* process of a job looks at it, takes it where it is free or its holder gave no sign for `Expiry`, renews it, and     *)
(* frees it at the end; several processes of one job share it. A write says which version of the record it expects,    *)
(* and the store does nothing if that is no longer the one. Writes are on their way for any time, and arrive although  *)
(* who sent them was stopped or killed; answers get lost. Each process measures durations by a clock of its own, and   *)
(* believes that its job holds the run for `Belief` after the last write that it knows of. Package pillarbox.ledger.   *)
EXTENDS Integers, FiniteSets

CONSTANTS
    Processes,
    Shared,     \* those of job 1, which has number 1 among them; each other process is a job by itself
    Expiry,     \* ticks for which who waits must see no write before it takes over
    Belief,     \* ticks after a write for which a process believes that its job holds the run
    Faults,     \* stops, kills and lost answers, at most
    Mutant

VARIABLES
    record,     \* the job that holds the run; 0 for none
    current,    \* processes whose last look, or write, is of the version that is there now
    phase,      \* of each process: out, in (it wants to call), holds, refused, lost, done
    life,       \* running, stopped, dead
    seen,       \* what it has seen: a job, 0, or "nothing" yet
    waited,     \* ticks for which it has seen this version, up to `Expiry`
    looked,     \* ticks since its last look or write, up to `Belief`, which stands for none
    trust,      \* ticks for which it still believes
    sent,       \* its write: no; take, renew, free on their way; done, refused, which it does not know yet; old: it
                \* looks before the next one
    age,        \* ticks since it was sent, up to `Belief`
    faults

vars == <<record, current, phase, life, seen, waited, looked, trust, sent, age, faults>>
clocks == <<waited, looked, trust, age>>

Job(p) == IF p \in Shared THEN 1 ELSE p
Jobs == {Job(p) : p \in Processes}
Of(job) == {p \in Processes : Job(p) = job}
(* Who has seen another's record.                                                                                     *)
Waits(p) == phase[p] = "in" /\ seen[p] \notin {-1, 0, Job(p)}
Running(p) == life[p] = "running"
Believes(p) == phase[p] \in {"holds", "done"} /\ trust[p] > 0 /\ life[p] # "dead"
Smaller(a, b) == IF a < b THEN a ELSE b
Larger(a, b) == IF a > b THEN a ELSE b
Less(a, b) == IF a > b THEN a - b ELSE 0

TypeOK ==
    /\ record \in Jobs \cup {0} /\ current \subseteq Processes
    /\ phase \in [Processes -> {"out", "in", "holds", "refused", "lost", "done"}]
    /\ life \in [Processes -> {"running", "stopped", "dead"}]
    /\ \A p \in Processes : seen[p] \in {-1, 0} \cup Jobs
    /\ waited \in [Processes -> 0..Expiry] /\ looked \in [Processes -> 0..Belief]
    /\ trust \in [Processes -> 0..Belief] /\ age \in [Processes -> 0..Belief]
    /\ sent \in [Processes -> {"no", "take", "renew", "free", "done", "refused", "old"}]

Init ==
    /\ record = 0 /\ current = {} /\ faults = 0
    /\ phase = [p \in Processes |-> "out"] /\ life = [p \in Processes |-> "running"]
    /\ seen = [p \in Processes |-> -1] /\ sent = [p \in Processes |-> "no"]
    /\ waited = [p \in Processes |-> 0] /\ looked = [p \in Processes |-> Belief]
    /\ trust = [p \in Processes |-> 0] /\ age = [p \in Processes |-> 0]

-----------------------------------------------------------------------------
(* Clocks need not agree: only durations are compared.                                                               *)
Tick ==
    /\ waited' = [p \in Processes |-> IF Waits(p) THEN Smaller(waited[p] + 1, Expiry) ELSE 0]
    /\ looked' = [p \in Processes |-> Smaller(looked[p] + 1, Belief)]
    /\ trust' = [p \in Processes |-> IF Mutant = "believes for ever" THEN trust[p] ELSE Less(trust[p], 1)]
    /\ age' = [p \in Processes |-> IF sent[p] \in {"no", "old"} THEN 0 ELSE Smaller(age[p] + 1, Belief)]
    /\ UNCHANGED <<record, current, phase, life, seen, sent, faults>>

Come(p) ==
    /\ Running(p) /\ phase[p] = "out"
    /\ phase' = [phase EXCEPT ![p] = "in"]
    /\ UNCHANGED <<record, current, life, seen, clocks, sent, faults>>

(* A look at what has changed since the last one. A version that is new was written since the look before: so where   *)
(* it is its own job's, a process believes from that look on; of a first look it knows nothing, and it writes. Whose   *)
(* the run was, and is another's or nobody's now, has lost it. Who waits, and sees that the holder has written, knows  *)
(* that it lives.                                                                                                    *)
MayLook(p) == Running(p) /\ phase[p] \in {"in", "holds"} /\ sent[p] \in {"no", "old"} /\ p \notin current
Looked(p) ==
    /\ current' = current \cup {p} /\ seen' = [seen EXCEPT ![p] = record]
    /\ waited' = [waited EXCEPT ![p] = 0] /\ looked' = [looked EXCEPT ![p] = 0]
    /\ sent' = [sent EXCEPT ![p] = "no"] /\ UNCHANGED <<record, life, age, faults>>
See(p) ==
    /\ MayLook(p) /\ phase[p] = "in" /\ (~Waits(p) \/ record \in {0, Job(p)})
    /\ record # Job(p) \/ looked[p] = Belief
    /\ Looked(p) /\ UNCHANGED <<phase, trust>>
Refuse(p) ==
    /\ MayLook(p) /\ Waits(p) /\ record \notin {0, Job(p)}
    /\ Looked(p) /\ phase' = [phase EXCEPT ![p] = "refused"] /\ UNCHANGED trust
SeeOwn(p) ==
    /\ MayLook(p) /\ record = Job(p) /\ (phase[p] = "holds" \/ looked[p] < Belief)
    /\ phase' = [phase EXCEPT ![p] = "holds"]
    /\ trust' = [trust EXCEPT ![p] = Larger(@, IF Mutant = "believes from the look" THEN Belief
                                                ELSE Less(Belief, looked[p]))]
    /\ Looked(p)
Lose(p) ==
    /\ MayLook(p) /\ phase[p] = "holds" /\ record # Job(p)
    /\ phase' = [phase EXCEPT ![p] = "lost"] /\ trust' = [trust EXCEPT ![p] = 0] /\ Looked(p)

(* Nothing has changed since the last look: a process of the holder writes.                                           *)
Send(p, what) ==
    /\ sent' = [sent EXCEPT ![p] = what] /\ age' = [age EXCEPT ![p] = 0]
    /\ UNCHANGED <<record, current, phase, life, seen, waited, looked, trust, faults>>
Take(p) ==
    /\ Running(p) /\ phase[p] = "in" /\ sent[p] = "no" /\ seen[p] \notin {-1, Job(p)}
    /\ \/ seen[p] = 0
       \/ waited[p] = Expiry /\ Mutant # "never takes over"
       \/ Mutant = "takes over at once"
    /\ Send(p, "take")
Renew(p) ==
    /\ Running(p) /\ phase[p] \in {"in", "holds"} /\ sent[p] = "no" /\ seen[p] = Job(p)
    /\ Send(p, "renew")
(* The last process of a job, which believes no more from then on.                                                    *)
Free(p) ==
    /\ Running(p) /\ phase[p] = "holds" /\ sent[p] = "no" /\ seen[p] = Job(p)
    /\ \A q \in Of(Job(p)) \ {p} : phase[q] \notin {"in", "holds"} \/ life[q] = "dead"
    /\ phase' = [phase EXCEPT ![p] = "done"]
    /\ trust' = [trust EXCEPT ![p] = IF Mutant = "believes until it is free" THEN @ ELSE 0]
    /\ sent' = [sent EXCEPT ![p] = "free"] /\ age' = [age EXCEPT ![p] = 0]
    /\ UNCHANGED <<record, current, life, seen, waited, looked, faults>>
(* Half of a renewal by a look alone.                                                                                *)
LookOnly(p) ==
    /\ Mutant = "a look is enough" /\ Running(p) /\ phase[p] = "holds" /\ sent[p] = "no" /\ p \in current
    /\ trust' = [trust EXCEPT ![p] = Belief]
    /\ UNCHANGED <<record, current, phase, life, seen, waited, looked, sent, age, faults>>

(* The store: it writes what expects the version that is there.                                                       *)
IsMet(p) ==
    \/ p \in current
    \/ Mutant = "writes whatever is there" /\ sent[p] # "free"
    \/ Mutant = "frees whatever is there" /\ sent[p] = "free"
Arrive(p) ==
    /\ sent[p] \in {"take", "renew", "free"}
    /\ IF IsMet(p)
       THEN /\ record' = IF sent[p] = "free" THEN 0 ELSE Job(p)
            /\ current' = {p}
            /\ sent' = [sent EXCEPT ![p] = IF @ = "free" THEN "no" ELSE "done"]
       ELSE sent' = [sent EXCEPT ![p] = IF @ = "free" THEN "no" ELSE "refused"] /\ UNCHANGED <<record, current>>
    /\ UNCHANGED <<phase, life, seen, clocks, faults>>

Answer(p) ==
    /\ Running(p) /\ sent[p] \in {"done", "refused"}
    \* Refused, it knows that what it has seen is old.
    /\ sent' = [sent EXCEPT ![p] = IF @ = "done" THEN "no" ELSE "old"]
    /\ CASE sent[p] = "done" ->
              /\ phase' = [phase EXCEPT ![p] = "holds"] /\ seen' = [seen EXCEPT ![p] = Job(p)]
              /\ waited' = [waited EXCEPT ![p] = 0] /\ looked' = [looked EXCEPT ![p] = age[p]]
              /\ trust' = [trust EXCEPT ![p] = Larger(@, IF Mutant = "believes from the answer" THEN Belief
                                                         ELSE Less(Belief, age[p]))]
         [] OTHER -> UNCHANGED <<phase, seen, waited, looked, trust>>
    /\ UNCHANGED <<record, current, life, age, faults>>
(* It does not know whether the store has written: it looks.                                                          *)
AnswerLost(p) ==
    /\ Running(p) /\ sent[p] \in {"done", "refused"} /\ faults < Faults
    /\ sent' = [sent EXCEPT ![p] = "old"] /\ current' = current \ {p} /\ faults' = faults + 1
    /\ UNCHANGED <<record, phase, life, seen, clocks>>

Stop(p) ==
    /\ Running(p) /\ phase[p] \in {"in", "holds"} /\ faults < Faults
    /\ life' = [life EXCEPT ![p] = "stopped"] /\ faults' = faults + 1
    /\ UNCHANGED <<record, current, phase, seen, clocks, sent>>
Resume(p) ==
    /\ life[p] = "stopped" /\ life' = [life EXCEPT ![p] = "running"]
    /\ UNCHANGED <<record, current, phase, seen, clocks, sent, faults>>
Kill(p) ==
    /\ life[p] # "dead" /\ phase[p] \in {"in", "holds"} /\ faults < Faults
    /\ life' = [life EXCEPT ![p] = "dead"] /\ faults' = faults + 1
    /\ UNCHANGED <<record, current, phase, seen, clocks, sent>>

Next ==
    \/ Tick
    \/ \E p \in Processes :
        \/ Come(p) \/ See(p) \/ Refuse(p) \/ SeeOwn(p) \/ Lose(p) \/ Take(p) \/ Renew(p) \/ Free(p) \/ LookOnly(p)
        \/ Arrive(p) \/ Answer(p) \/ AnswerLost(p) \/ Stop(p) \/ Resume(p) \/ Kill(p)

(* A process that runs goes on, and its writes arrive; who is stopped may stay so.                                    *)
Spec == Init /\ [][Next]_vars
Step(p) == See(p) \/ Refuse(p) \/ SeeOwn(p) \/ Lose(p) \/ Take(p) \/ Answer(p)
FairSpec ==
    /\ Spec /\ WF_vars(Tick)
    /\ \A p \in Processes : WF_vars(Step(p)) /\ SF_vars(Renew(p)) /\ WF_vars(Arrive(p))

-----------------------------------------------------------------------------
(* Of two that believe so both are right: they are of one job. Stopped ones too, for the time that their clocks allow. *)
OneJobBelieves == \A p, q \in Processes : Believes(p) /\ Believes(q) => Job(p) = Job(q)
(* A write that the store has refused changes nothing.                                                               *)
OnlyOnCondition == [][\A p \in Processes : record' # record /\ sent'[p] # sent[p] => p \in current]_vars

(* Who comes learns whether it may call.                                                                             *)
EverybodyLearns ==
    \A p \in Processes : phase[p] = "in" ~> (phase[p] # "in" \/ ~Running(p))
(* A run is taken over whose holder is dead, and nothing of it is on its way.                                         *)
Alone(p) ==
    /\ phase[p] = "in" /\ (p \in current \/ seen[p] = -1)
    /\ \A q \in Processes \ Of(Job(p)) : life[q] = "dead" /\ sent[q] \notin {"take", "renew", "free"}
DeadIsTakenOver == \A p \in Processes : Alone(p) ~> (phase[p] \notin {"in", "refused"} \/ ~Running(p))
=============================================================================
