----------------------------- MODULE Alignment -----------------------------
(* Splits of a source whose event times are kept together. Readers read them and say how far they are; a coordinator  *)
(* takes the least of those that are read and not idle, adds MaxDrift, and orders who waits. Reports and orders are   *)
(* messages: each comes some time later, and connections break. Splits dry up, become idle, wake, finish,             *)
(* are found while others are far ahead, and move to another reader, which begins again at their last checkpoint.     *)
(* Modules pillarbox.sources.alignment, .coordinator and .event_time.                                                 *)
(*                                                                                                                    *)
(* What is in flight. Drift cannot be bounded by MaxDrift alone: what stops a split takes a report and an order. So   *)
(* the bound says: a split that is ahead by more than MaxDrift is read on only while the word that stops it is under  *)
(* way. By event time it is therefore ahead by MaxDrift and what is read in one round at most: the batch that passed   *)
(* the bound, and what had been fetched already. What was idle, is found, or has moved may be behind by anything:     *)
(* then the others stand after one round until it has come up. What was idle far ahead has one round when it wakes.   *)
EXTENDS Naturals, Sequences, FiniteSets

CONSTANTS
    Splits,     \* numbers
    Late,       \* splits that are found only later
    Reader,     \* of each split, the reader that has it
    OneByOne,   \* whether a reader goes to another split only when the one before is finished or held
    Last,       \* event time of each split's last record; they have one record for each time from 1 on
    MaxDrift,
    Dries,      \* how often, together, a split has nothing for a while
    Breaks,     \* how often a connection breaks
    Moves,      \* how often a split moves
    Mutant

VARIABLES
    found, done,    \* splits that are there; those that have been read to the end
    at,             \* of each: the event time that its reader has come to, 0: none
    current,        \* of each reader, the split that it is at, 0: none; where they are read one by one
    dry,            \* splits that have nothing at the moment
    idle, paused,   \* of each, for its reader
    told,           \* what its reader has said of it last
    up, down,       \* reports and orders under way, of each split
    seen, ordered,  \* what the coordinator has heard, and has ordered: "free" or "held"
    stray, astray,  \* report and order of a split's former reader that are still under way
    dries, breaks, moves

vars == <<found, done, at, current, dry, idle, paused, told, up, down, seen, ordered, stray, astray, dries, breaks, moves>>
reader == <<found, done, at, current, dry, idle>>
counts == <<dries, breaks, moves>>

(* For the configurations, which know no functions.                                                                  *)
Two == [s \in Splits |-> IF s = 1 THEN 1 ELSE 2]
Pairs == [s \in Splits |-> IF s < 3 THEN 1 ELSE 2]

(* What a report can say besides a time.                                                                             *)
Nothing == 0
Idle == 90
Done == 91
Times == 1..Last
Readers == {Reader[s] : s \in Splits}
Live(s) == s \in found \ done
(* What a reader would say of a split now.                                                                           *)
Word(s) == IF s \in done THEN Done ELSE IF idle[s] THEN Idle ELSE at[s]

TypeOK ==
    /\ current \in [Readers -> Splits \cup {0}] /\ found \subseteq Splits /\ done \subseteq found /\ dry \subseteq Splits
    /\ at \in [Splits -> 0..Last] /\ idle \in [Splits -> BOOLEAN] /\ paused \in [Splits -> BOOLEAN]
    /\ \A s \in Splits :
        /\ {told[s], seen[s].time} \subseteq {Nothing, Idle, Done} \cup Times
        /\ ordered[s] \in {"free", "held"} /\ Len(up[s]) <= 1 /\ Len(down[s]) <= 2

Init ==
    /\ found = Splits \ Late /\ done = {} /\ at = [s \in Splits |-> 0] /\ dry = {}
    /\ current = [r \in Readers |-> 0]
    /\ idle = [s \in Splits |-> FALSE] /\ paused = [s \in Splits |-> FALSE]
    /\ told = [s \in Splits |-> Nothing] /\ up = [s \in Splits |-> <<>>] /\ down = [s \in Splits |-> <<>>]
    /\ seen = [s \in Splits |-> [time |-> Nothing, state |-> "new"]] /\ ordered = [s \in Splits |-> "free"]
    /\ stray = [s \in Splits |-> <<>>] /\ astray = [s \in Splits |-> <<>>]
    /\ dries = 0 /\ breaks = 0 /\ moves = 0

-----------------------------------------------------------------------------
(* The readers.                                                                                                       *)
Discover(s) ==
    /\ s \notin found /\ found' = found \cup {s}
    /\ UNCHANGED <<current, done, at, dry, idle, paused, told, up, down, seen, ordered, stray, astray, counts>>

(* One by one: a reader that is at nothing, or at what is held, goes to a split that is not held.                     *)
Choose(s) ==
    /\ OneByOne /\ Live(s) /\ ~paused[s]
    /\ LET now == current[Reader[s]] IN now = 0 \/ (now # 0 /\ (~Live(now) \/ paused[now]))
    /\ current' = [current EXCEPT ![Reader[s]] = s]
    /\ UNCHANGED <<found, done, at, dry, idle, paused, told, up, down, seen, ordered, stray, astray, counts>>
Turn(s) == OneByOne => current[Reader[s]] = s
MayRead(s) == Live(s) /\ ~paused[s] /\ Turn(s) /\ s \notin dry
Next1(s) == at' = [at EXCEPT ![s] = @ + 1]
Read(s) ==
    /\ MayRead(s) /\ ~idle[s] /\ at[s] < Last /\ Next1(s)
    /\ UNCHANGED <<current, found, done, dry, idle, paused, told, up, down, seen, ordered, stray, astray, counts>>

(* An idle split has a record again.                                                                                 *)
Wake(s) ==
    /\ MayRead(s) /\ idle[s] /\ at[s] < Last /\ Next1(s)
    /\ idle' = [idle EXCEPT ![s] = FALSE]
    /\ UNCHANGED <<current, found, done, dry, paused, told, up, down, seen, ordered, stray, astray, counts>>

Finish(s) ==
    /\ MayRead(s) /\ at[s] = Last
    /\ done' = done \cup {s} /\ idle' = [idle EXCEPT ![s] = FALSE]
    /\ UNCHANGED <<current, found, at, dry, paused, told, up, down, seen, ordered, stray, astray, counts>>

DryUp(s) ==
    /\ Live(s) /\ s \notin dry /\ dries < Dries
    /\ dry' = dry \cup {s} /\ dries' = dries + 1
    /\ UNCHANGED <<current, found, done, at, idle, paused, told, up, down, seen, ordered, stray, astray, breaks, moves>>
Flow(s) ==
    /\ s \in dry /\ dry' = dry \ {s}
    /\ UNCHANGED <<current, found, done, at, idle, paused, told, up, down, seen, ordered, stray, astray, counts>>

(* It had nothing for so long. The clock for that stands still while a split is held or waits for its turn: if it did *)
(* not, the watermark of the others would pass records that are there.                                                *)
GoIdle(s) ==
    /\ Live(s) /\ ~idle[s] /\ Turn(s)
    /\ (~paused[s] /\ s \in dry) \/ (Mutant = "held is idle" /\ paused[s])
    /\ idle' = [idle EXCEPT ![s] = TRUE]
    /\ UNCHANGED <<current, found, done, at, dry, paused, told, up, down, seen, ordered, stray, astray, counts>>

Report(s) ==
    /\ s \in found /\ Word(s) # told[s] /\ up[s] = <<>>
    /\ told' = [told EXCEPT ![s] = Word(s)] /\ up' = [up EXCEPT ![s] = <<Word(s)>>]
    /\ UNCHANGED <<reader, paused, down, seen, ordered, stray, astray, counts>>

-----------------------------------------------------------------------------
(* The coordinator. Of an idle split it keeps the last time that it has heard: it may be held, and holds nobody.       *)
Heard(s, word) ==
    CASE word = Done -> IF Mutant = "finished is counted" THEN seen[s] ELSE [time |-> Nothing, state |-> "done"]
      [] word = Idle -> IF Mutant = "idle is counted" THEN seen[s] ELSE [seen[s] EXCEPT !.state = "idle"]
      [] word = Nothing -> [time |-> Nothing, state |-> "new"]
      [] OTHER -> IF Mutant = "woken stays idle" /\ seen[s].state = "idle" THEN seen[s]
                  ELSE [time |-> word, state |-> "read"]
Hear(s) ==
    /\ up[s] # <<>> /\ up' = [up EXCEPT ![s] = <<>>]
    /\ seen' = [seen EXCEPT ![s] = Heard(s, Head(up[s]))]
    /\ UNCHANGED <<reader, paused, told, down, ordered, stray, astray, counts>>

(* What nobody has begun counts for nothing: it may wait behind a split that would be held because of it.            *)
Counts(s) ==
    \/ seen[s].state = "read"
    \/ Mutant = "unread is counted" /\ seen[s].state = "new" /\ s \in found
Holds(u, s) == Counts(u) /\ seen[s].time > seen[u].time + MaxDrift
ToHold(s) == seen[s].state \in {"read", "idle"} /\ \E u \in Splits : Holds(u, s)

Order(s, word) ==
    /\ Len(down[s]) < 2 /\ down' = [down EXCEPT ![s] = Append(@, word)]
    /\ ordered' = [ordered EXCEPT ![s] = word]
    /\ UNCHANGED <<reader, paused, told, up, seen, stray, astray, counts>>
Hold(s) == ToHold(s) /\ ordered[s] # "held" /\ Order(s, "held")
Release(s) == ~ToHold(s) /\ ordered[s] # "free" /\ Order(s, "free")

(* Orders come as they were sent.                                                                                    *)
Obey(s) ==
    /\ \E i \in DOMAIN down[s] :
        /\ i = 1 \/ Mutant = "orders overtake"
        /\ paused' = [paused EXCEPT ![s] = (down[s][i] = "held")]
        /\ down' = [down EXCEPT ![s] = SubSeq(@, 1, i - 1) \o SubSeq(@, i + 1, Len(@))]
    /\ UNCHANGED <<reader, told, up, seen, ordered, stray, astray, counts>>

(* A connection breaks and is made again: each side has kept what the other has not acknowledged, and says it again.  *)
Reconnect(r) ==
    LET mine == {s \in found : Reader[s] = r}
        without(f) == [s \in Splits |-> IF s \in mine THEN <<>> ELSE f[s]]
    IN  /\ breaks < Breaks /\ breaks' = breaks + 1 /\ \E s \in mine : up[s] # <<>> \/ down[s] # <<>>
        /\ up' = IF Mutant = "notices are lost" THEN without(up) ELSE up
        /\ down' = IF Mutant = "orders are lost" THEN without(down) ELSE down
        /\ UNCHANGED <<reader, paused, told, seen, ordered, stray, astray, dries, moves>>

(* A split gets another reader, which has it from its checkpoint on, here from the beginning. The former one may have *)
(* sent something that comes later, and orders are still on their way to it.                                          *)
Move(s) ==
    /\ Live(s) /\ moves < Moves /\ moves' = moves + 1
    /\ stray' = [stray EXCEPT ![s] = up[s]] /\ astray' = [astray EXCEPT ![s] = down[s]]
    /\ at' = [at EXCEPT ![s] = 0] /\ idle' = [idle EXCEPT ![s] = FALSE]
    /\ paused' = [paused EXCEPT ![s] = FALSE]
    /\ told' = [told EXCEPT ![s] = Nothing] /\ up' = [up EXCEPT ![s] = <<>>] /\ down' = [down EXCEPT ![s] = <<>>]
    /\ seen' = IF Mutant = "the old position stays" THEN seen
               ELSE [seen EXCEPT ![s] = [time |-> Nothing, state |-> "new"]]
    /\ ordered' = [ordered EXCEPT ![s] = "free"]
    /\ UNCHANGED <<current, found, done, dry, dries, breaks>>
HearStray(s) ==
    /\ stray[s] # <<>> /\ stray' = [stray EXCEPT ![s] = <<>>]
    /\ seen' = IF Mutant = "former reader is heard" THEN [seen EXCEPT ![s] = Heard(s, Head(stray[s]))] ELSE seen
    /\ UNCHANGED <<reader, paused, told, up, down, ordered, astray, counts>>
ObeyStray(s) ==
    /\ astray[s] # <<>> /\ astray' = [astray EXCEPT ![s] = Tail(@)]
    /\ paused' = IF Mutant = "order follows the split" /\ Live(s)
                 THEN [paused EXCEPT ![s] = (Head(astray[s]) = "held")] ELSE paused
    /\ UNCHANGED <<reader, told, up, down, seen, ordered, stray, counts>>

Next ==
    \/ \E s \in Splits :
        \/ Discover(s) \/ Choose(s) \/ Read(s) \/ Wake(s) \/ Finish(s) \/ DryUp(s) \/ Flow(s) \/ GoIdle(s) \/ Report(s)
        \/ Hear(s) \/ Hold(s) \/ Release(s) \/ Obey(s) \/ Move(s) \/ HearStray(s) \/ ObeyStray(s)
    \/ \E r \in Readers : Reconnect(r)
Spec == Init /\ [][Next]_vars
Steps(s) ==
    /\ WF_vars(Choose(s)) /\ WF_vars(Read(s)) /\ WF_vars(Wake(s)) /\ WF_vars(Finish(s))
    /\ WF_vars(GoIdle(s)) /\ WF_vars(Report(s)) /\ WF_vars(Hear(s)) /\ WF_vars(Hold(s) \/ Release(s)) /\ WF_vars(Obey(s))
(* Nothing need come ever again on a split that is dry.                                                              *)
DrySpec == Spec /\ \A s \in Splits : Steps(s)
FairSpec == Spec /\ \A s \in Splits : Steps(s) /\ WF_vars(Flow(s))

-----------------------------------------------------------------------------
Counted(s) == Live(s) /\ ~idle[s] /\ at[s] > 0
(* What its reader knows of a split, and the coordinator does not, is under way or about to be said.                 *)
Unheard(s) == s \in found /\ (Word(s) # told[s] \/ up[s] # <<>>)
OrderedLast(s) == IF down[s] = <<>> THEN IF paused[s] THEN "held" ELSE "free" ELSE down[s][Len(down[s])]

(* Bounded drift: a split that is ahead of another by more than MaxDrift stands, or the word that stops it is under    *)
(* way: the report of one of the two, or the order.                                                                  *)
DriftIsBounded ==
    \A s, u \in Splits :
        Live(s) /\ ~idle[s] /\ Counted(u) /\ at[s] > at[u] + MaxDrift /\ ~paused[s]
            => Unheard(s) \/ Unheard(u) \/ (ToHold(s) /\ ordered[s] # "held") \/ OrderedLast(s) = "held"

(* Who is held has somebody behind by more than MaxDrift who is read on; or the word that releases it is under way.    *)
(* So the slowest is not held, nor is anybody when all others are idle or have finished.                             *)
HeldForAReason ==
    \A s \in Splits :
        Live(s) /\ paused[s]
            => \/ \E u \in Splits : Counted(u) /\ at[s] > at[u] + MaxDrift
               \/ \E u \in Splits : Unheard(u)
               \/ ~ToHold(s) /\ ordered[s] # "free"
               \/ OrderedLast(s) = "free"

(* Idle is only what has nothing, not what is held.                                                                  *)
IdleHadNothing == [][\A s \in Splits : idle'[s] /\ ~idle[s] => s \in dry]_idle

(* Whoever is held goes on, although others may never have a record again.                                           *)
HeldGoesOn == \A s \in Splits : paused[s] ~> ~paused[s] \/ s \in done
(* No deadlock: if what has dried up flows again some time, everything is read.                                      *)
EverythingIsRead == \A s \in Splits : s \in found ~> s \in done
(* And if not, what has something is.                                                                                *)
WhatIsThereIsRead == \A s \in Splits : <>[](s \in found /\ s \notin dry) => <>(s \in done)
=============================================================================
