----------------------------- MODULE Alignment -----------------------------
(* Splits of a source whose event times are kept together. Readers read them and say how far they are; a coordinator  *)
(* takes the least of those that are read and not idle, adds MaxDrift, and tells all readers this limit. A reader      *)
(* gives nothing more of a split that is beyond the limit that it knows, unless it is idle. Reports and limits are     *)
(* messages: each comes some time later, in order. Splits dry up, become idle, wake, finish, are found while others    *)
(* are far ahead; a reader dies, and another in its place, if one comes, begins again at the last checkpoint.          *)
(* Modules pillarbox.sources.split_coordinator and .event_time; how a reader holds a split back is in SplitFetch.      *)
(*                                                                                                                    *)
(* What is late does no harm where time only goes on: a limit of before is lower than it could be. So by event time    *)
(* a split is ahead by MaxDrift and one batch at most, the one with which it passed the limit. What was idle, is       *)
(* found, or begins again may be behind by anything: then the others go on until the limit is there that says so,      *)
(* and stand until it has come up. What wakes beyond the limit gives the batch with which it wakes.                    *)
EXTENDS Naturals, Sequences, FiniteSets

CONSTANTS
    Splits,     \* numbers
    Late,       \* splits that are found only later
    Reader,     \* of each split, the reader that has it
    OneByOne,   \* whether a reader goes to another split only when the one before is finished
    Last,       \* event time of each split's last record; they have one record for each time from 1 on
    MaxDrift,
    UnderWay,   \* limits that are under way to a reader, at most
    Dries,      \* how often, together, a split has nothing for a while
    Deaths,     \* how often a reader dies
    Mutant

VARIABLES
    found, done,    \* splits that are there; those that have been read to the end
    at,             \* of each: the event time that its reader has come to, 0: none
    current,        \* of each reader, the split that it is at, 0: none; where they are read one by one
    dry,            \* splits that have nothing at the moment
    idle,           \* of each, for its reader
    told,           \* what its reader has said of it last
    up,             \* the report of each split that is under way
    seen,           \* what the coordinator has heard of it
    limit,          \* what the coordinator has told the readers last
    down,           \* of each reader, the limits that are under way to it
    to,             \* and the one that it knows
    stray,          \* a report of a split's former reader that is still under way
    gone,           \* readers that have died, and in whose place is nobody yet
    dries, deaths

vars == <<found, done, at, current, dry, idle, told, up, seen, limit, down, to, stray, gone, dries, deaths>>
reader == <<found, done, at, current, dry, idle>>
limits == <<limit, down, to>>
counts == <<gone, dries, deaths>>

(* For the configurations, which know no functions.                                                                  *)
Two == [s \in Splits |-> IF s = 1 THEN 1 ELSE 2]
Pairs == [s \in Splits |-> IF s < 3 THEN 1 ELSE 2]

(* What a report can say besides a time.                                                                             *)
Nothing == 0
Idle == 90
Done == 91
(* The limit where nobody has to be waited for.                                                                      *)
Infinite == 99
Times == 1..Last
Limits == (0..Last + MaxDrift) \cup {Infinite}
Readers == {Reader[s] : s \in Splits}
Live(s) == s \in found \ done
Mine(r) == {s \in found : Reader[s] = r}
Here(s) == Reader[s] \notin gone
(* A split that its reader holds back.                                                                               *)
Paused(s) == at[s] > to[Reader[s]] /\ ~idle[s]
(* What a reader would say of a split now.                                                                           *)
Word(s) == IF s \in done THEN Done ELSE IF idle[s] THEN Idle ELSE at[s]

TypeOK ==
    /\ current \in [Readers -> Splits \cup {0}] /\ found \subseteq Splits /\ done \subseteq found /\ dry \subseteq Splits
    /\ at \in [Splits -> 0..Last] /\ idle \in [Splits -> BOOLEAN] /\ limit \in Limits /\ to \in [Readers -> Limits]
    /\ \A s \in Splits : {told[s], seen[s].time} \subseteq {Nothing, Idle, Done} \cup Times /\ Len(up[s]) <= 1
    /\ gone \subseteq Readers /\ \A r \in Readers : Len(down[r]) <= UnderWay

Init ==
    /\ found = Splits \ Late /\ done = {} /\ at = [s \in Splits |-> 0] /\ dry = {}
    /\ current = [r \in Readers |-> 0]
    /\ idle = [s \in Splits |-> FALSE]
    /\ told = [s \in Splits |-> Nothing] /\ up = [s \in Splits |-> <<>>]
    /\ seen = [s \in Splits |-> [time |-> Nothing, state |-> "new"]]
    /\ limit = Infinite /\ down = [r \in Readers |-> <<>>] /\ to = [r \in Readers |-> Infinite]
    /\ stray = [s \in Splits |-> <<>>]
    /\ gone = {} /\ dries = 0 /\ deaths = 0

-----------------------------------------------------------------------------
(* The readers.                                                                                                       *)
Discover(s) ==
    /\ s \notin found /\ found' = found \cup {s}
    /\ UNCHANGED <<current, done, at, dry, idle, told, up, seen, limits, stray, counts>>

(* One by one: a reader that is at nothing goes to another split. At what is held it stays: those behind it have no    *)
(* watermark yet, so that nobody waits for them.                                                                      *)
Choose(s) ==
    /\ OneByOne /\ Live(s) /\ Here(s)
    /\ LET now == current[Reader[s]] IN now = 0 \/ (now # 0 /\ ~Live(now))
    /\ current' = [current EXCEPT ![Reader[s]] = s]
    /\ UNCHANGED <<found, done, at, dry, idle, told, up, seen, limits, stray, counts>>
Turn(s) == OneByOne => current[Reader[s]] = s

(* What has been fetched of a held split already is set aside.                                                       *)
Gives(s) == ~Paused(s) \/ (Mutant = "what was fetched is given out" /\ at[s] = to[Reader[s]] + 1)
MayRead(s) == Live(s) /\ Here(s) /\ Gives(s) /\ Turn(s) /\ s \notin dry
Next1(s) == at' = [at EXCEPT ![s] = @ + 1]
Read(s) ==
    /\ MayRead(s) /\ ~idle[s] /\ at[s] < Last /\ Next1(s)
    /\ UNCHANGED <<current, found, done, dry, idle, told, up, seen, limits, stray, counts>>

(* An idle split has a record again.                                                                                 *)
Wake(s) ==
    /\ MayRead(s) /\ idle[s] /\ at[s] < Last /\ Next1(s)
    /\ idle' = [idle EXCEPT ![s] = FALSE]
    /\ UNCHANGED <<current, found, done, dry, told, up, seen, limits, stray, counts>>

Finish(s) ==
    /\ MayRead(s) /\ at[s] = Last
    /\ done' = done \cup {s} /\ idle' = [idle EXCEPT ![s] = FALSE]
    /\ UNCHANGED <<current, found, at, dry, told, up, seen, limits, stray, counts>>

DryUp(s) ==
    /\ Live(s) /\ s \notin dry /\ dries < Dries
    /\ dry' = dry \cup {s} /\ dries' = dries + 1
    /\ UNCHANGED <<current, found, done, at, idle, told, up, seen, limits, stray, gone, deaths>>
Flow(s) ==
    /\ s \in dry /\ dry' = dry \ {s}
    /\ UNCHANGED <<current, found, done, at, idle, told, up, seen, limits, stray, counts>>

(* It had nothing for so long. The clock for that stands still while a split is held or waits for its turn: if it did *)
(* not, the watermark of the others would pass records that are there.                                                *)
GoIdle(s) ==
    /\ Live(s) /\ Here(s) /\ ~idle[s] /\ Turn(s)
    /\ (~Paused(s) /\ s \in dry) \/ (Mutant = "held is idle" /\ Paused(s))
    /\ idle' = [idle EXCEPT ![s] = TRUE]
    /\ UNCHANGED <<current, found, done, at, dry, told, up, seen, limits, stray, counts>>

Report(s) ==
    /\ s \in found /\ Word(s) # told[s] /\ up[s] = <<>>
    /\ told' = [told EXCEPT ![s] = Word(s)] /\ up' = [up EXCEPT ![s] = <<Word(s)>>]
    /\ UNCHANGED <<reader, seen, limits, stray, counts>>

-----------------------------------------------------------------------------
(* The coordinator. An idle split holds nobody.                                                                       *)
Heard(s, word) ==
    CASE word = Done -> IF Mutant = "finished is counted" THEN seen[s] ELSE [time |-> Nothing, state |-> "done"]
      [] word = Idle -> IF Mutant = "idle is counted" THEN seen[s] ELSE [seen[s] EXCEPT !.state = "idle"]
      [] word = Nothing -> [time |-> Nothing, state |-> "new"]
      [] OTHER -> IF Mutant = "woken stays idle" /\ seen[s].state = "idle" THEN seen[s]
                  ELSE [time |-> word, state |-> "read"]
Hear(s) ==
    /\ up[s] # <<>> /\ up' = [up EXCEPT ![s] = <<>>]
    /\ seen' = [seen EXCEPT ![s] = Heard(s, Head(up[s]))]
    /\ UNCHANGED <<reader, told, limits, stray, counts>>

(* What nobody has begun counts for nothing: it may wait behind a split that would be held because of it.            *)
Counts(s) ==
    \/ seen[s].state = "read"
    \/ Mutant = "unread is counted" /\ seen[s].state = "new" /\ s \in found
Limit ==
    IF \E s \in Splits : Counts(s)
    THEN MaxDrift + (CHOOSE time \in {seen[s].time : s \in {u \in Splits : Counts(u)}} :
                        \A s \in Splits : Counts(s) => time <= seen[s].time)
    ELSE Infinite

(* All readers that are there are told.                                                                              *)
Told == IF Mutant = "waits for the dead" THEN Readers ELSE Readers \ gone
Announce ==
    /\ Limit # limit
    /\ limit' = Limit
    /\ \A r \in Told : Len(down[r]) < UnderWay
    /\ down' = [r \in Readers |-> IF r \in Told THEN Append(down[r], Limit) ELSE down[r]]
    /\ UNCHANGED <<reader, to, told, up, seen, stray, counts>>

(* Limits come as they were told.                                                                                    *)
Obey(r) ==
    /\ r \notin gone
    /\ \E i \in DOMAIN down[r] :
        /\ i = 1 \/ Mutant = "limits overtake"
        /\ to' = [to EXCEPT ![r] = down[r][i]]
        /\ down' = [down EXCEPT ![r] = SubSeq(@, 1, i - 1) \o SubSeq(@, i + 1, Len(@))]
    /\ UNCHANGED <<reader, told, up, seen, limit, stray, counts>>

(* A reader dies. What of its splits is not known to be read to the end begins again, from the checkpoint, which is     *)
(* the beginning here. What it has sent may come later.                                                               *)
Die(r) ==
    LET mine == {s \in Mine(r) : seen[s].state # "done"}
        anew(f, value) == [s \in Splits |-> IF s \in mine THEN value ELSE f[s]]
    IN  /\ r \notin gone /\ mine # {} /\ deaths < Deaths /\ deaths' = deaths + 1 /\ gone' = gone \cup {r}
        /\ done' = done \ mine
        /\ stray' = [s \in Splits |-> IF s \in mine THEN up[s] ELSE stray[s]]
        /\ at' = anew(at, 0) /\ idle' = anew(idle, FALSE) /\ told' = anew(told, Nothing) /\ up' = anew(up, <<>>)
        /\ seen' = IF Mutant = "the old position stays" THEN seen ELSE anew(seen, [time |-> Nothing, state |-> "new"])
        /\ current' = [current EXCEPT ![r] = 0]
        /\ to' = [to EXCEPT ![r] = Infinite] /\ down' = [down EXCEPT ![r] = <<>>]
        /\ UNCHANGED <<found, dry, limit, dries>>
(* There is one in its place, which is told the limit when it comes.                                                  *)
Return(r) ==
    /\ r \in gone /\ gone' = gone \ {r}
    /\ down' = [down EXCEPT ![r] = IF Mutant = "who comes is not told" THEN <<>> ELSE <<limit>>]
    /\ UNCHANGED <<reader, to, told, up, seen, limit, stray, dries, deaths>>
HearStray(s) ==
    /\ stray[s] # <<>> /\ stray' = [stray EXCEPT ![s] = <<>>]
    /\ seen' = IF Mutant = "former reader is heard" THEN [seen EXCEPT ![s] = Heard(s, Head(stray[s]))] ELSE seen
    /\ UNCHANGED <<reader, told, up, limits, counts>>

Next ==
    \/ \E s \in Splits :
        \/ Discover(s) \/ Choose(s) \/ Read(s) \/ Wake(s) \/ Finish(s) \/ DryUp(s) \/ Flow(s)
        \/ GoIdle(s) \/ Report(s) \/ Hear(s) \/ HearStray(s)
    \/ Announce
    \/ \E r \in Readers : Obey(r) \/ Die(r) \/ Return(r)
Spec == Init /\ [][Next]_vars
Steps ==
    /\ \A s \in Splits :
        /\ WF_vars(Choose(s)) /\ WF_vars(Read(s)) /\ WF_vars(Wake(s)) /\ WF_vars(Finish(s))
        /\ WF_vars(GoIdle(s)) /\ WF_vars(Report(s)) /\ WF_vars(Hear(s))
    /\ WF_vars(Announce) /\ \A r \in Readers : WF_vars(Obey(r))
(* Nothing need come ever again on a split that is dry, nor anybody in the place of a reader that has died, nor what   *)
(* that one had sent.                                                                                                 *)
DrySpec == Spec /\ Steps
FairSpec == Spec /\ Steps /\ (\A s \in Splits : WF_vars(Flow(s))) /\ (\A r \in Readers : WF_vars(Return(r)))

-----------------------------------------------------------------------------
Counted(s) == Live(s) /\ ~idle[s] /\ at[s] > 0
(* The limit that a reader has or will have next, of those that the coordinator has told.                             *)
ToldLast(r) == IF down[r] = <<>> THEN to[r] ELSE down[r][Len(down[r])]
(* The coordinator has yet to hear that a split is there to be waited for.                                           *)
NotYetCounted(s) == s \in found /\ seen[s].state # "read" /\ (Word(s) # told[s] \/ up[s] # <<>>)
Unheard(s) == s \in found /\ (Word(s) # told[s] \/ up[s] # <<>>)

(* Bounded drift: a split that is ahead of another by more than MaxDrift stands, whatever is under way of its own;     *)
(* unless the other has just been begun, found or woken: then the report or the limit that says so is under way.     *)
DriftIsBounded ==
    \A s, u \in Splits :
        Live(s) /\ ~idle[s] /\ Counted(u) /\ at[s] > at[u] + MaxDrift /\ Gives(s)
            => NotYetCounted(u) \/ Limit < limit \/ (down[Reader[s]] # <<>> /\ ToldLast(Reader[s]) < at[s])
(* Who is held has somebody behind by more than MaxDrift who is read on; or the word that releases it is under way.    *)
(* So the slowest waits for words only, were it its own; nor is anybody held when all others are idle or finished.   *)
HeldForAReason ==
    \A s \in Splits :
        Live(s) /\ Paused(s)
            => \/ \E u \in Splits : Counted(u) /\ at[s] > at[u] + MaxDrift
               \/ \E u \in Splits : Unheard(u)
               \/ Limit # limit
               \/ ToldLast(Reader[s]) >= at[s]

(* Idle is only what has nothing, not what is held.                                                                  *)
IdleHadNothing == [][\A s \in Splits : idle'[s] /\ ~idle[s] => s \in dry]_idle

(* Whoever is held goes on, although others may never have a record again.                                           *)
HeldGoesOn == \A s \in Splits : Paused(s) ~> ~Paused(s) \/ s \in done
(* No deadlock: if what has dried up flows again some time, and who has died comes back, everything is read.          *)
EverythingIsRead == \A s \in Splits : s \in found ~> s \in done
(* And if not, what has something is.                                                                                *)
WhatIsThereIsRead == \A s \in Splits : <>[](s \in found /\ s \notin dry /\ Here(s)) => <>(s \in done)
=============================================================================
