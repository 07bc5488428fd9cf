--------------------------- MODULE SplitPerThread ---------------------------
(* A reader with a thread and a client for each split. Each split is a lane: a fetcher, and a hand-over between it     *)
(* and the task. The task polls the lanes in turn. When there is nothing it asks for a future and sleeps: the future   *)
(* is done when one of the lanes has something, when splits come or go on, and when another thread closes. Of a lane   *)
(* that is held one batch is set aside, and nothing more taken: its fetcher waits for room. What one fetcher           *)
(* does by itself, over restarts too, is in SplitFetch; so its client here is a step that gives one record. Module      *)
(* pillarbox.sources.fetching.                                                                                        *)
(*                                                                                                                    *)
(* There is one future that matters: the one that was made last. Another one is made only when that is done, so that   *)
(* whoever still holds an earlier one would set what is set already: `armed` and `calls` are about the last one.       *)
EXTENDS Naturals, Sequences, FiniteSets

CONSTANTS
    Splits,     \* numbers; a lane is called by its split
    First,      \* how many are there from the beginning; the others come later
    Records,    \* a batch is one record; the last of a split says that it is finished
    Endless,    \* or there is always another one
    MaxBatches, \* that wait for the task in a lane
    Pauses,     \* of lanes, and ends of pauses
    Failures,   \* at most
    Closes,     \* whether another thread closes
    Mutant

VARIABLES
    (* the task *)
    mine,       \* its splits
    come,       \* those that it was ever given
    out,        \* of each: records that poll has given, in order (history)
    lanes,      \* in the order in which they came
    turn,       \* the place that poll has taken from last
    task,       \* "runs", "polls", "opens", "asks", "sleeps"; "raised", or "ended" as it found all closed
    looks,      \* the lanes that poll, or what arms the future, has yet to look at
    opening,    \* the lane of a split that is being added
    held,       \* lanes that are paused
    aside,      \* of each: batches that were set aside
    pauses,
    (* its future *)
    kept,       \* whether the reader knows it
    done,
    armed,      \* lanes whose next batch, or failure, sets it
    calls,      \* lanes whose fetcher has it in its hands, and is about to set it
    (* who closes *)
    closed, ends, poked,
    owes,       \* of the task and of who closes: the lane whose client it is about to wake
    (* of each lane: its fetcher and the hand-over *)
    pc,         \* "none", "new", "top", "in", "put", "calling", "failing", "leaving", "ended"
    closing, fetching, woken,
    at,         \* records that fetch has returned
    opened,     \* whether the client is open
    queue, over,    \* batches, and what ended them: "open", "failed" or "closed"
    failures

wait == <<kept, done, armed, calls>>
close == <<closed, ends, poked>>
pausing == <<held, aside, pauses>>
task_vars == <<pausing, mine, come, out, lanes, turn, task, looks, opening>>
fetcher == <<pc, closing, fetching, woken, at, opened, queue, over, failures>>
vars == <<held, aside, pauses, mine, come, out, lanes, turn, task, looks, opening,
          kept, done, armed, calls, closed, ends, poked, owes, pc,
          closing, fetching, woken, at, opened, queue, over, failures>>

None == 0
Listed(l) == \E i \in DOMAIN lanes : lanes[i] = l
Without(l) == SelectSeq(lanes, LAMBDA each : each # l)
Place(l) == CHOOSE i \in DOMAIN lanes : lanes[i] = l
Last(l) == ~Endless /\ at[l] = Records
Each(value) == [l \in Splits |-> value]

TypeOK ==
    /\ held \subseteq mine /\ mine \subseteq come /\ come \subseteq Splits
    /\ {lanes[i] : i \in DOMAIN lanes} \cup armed \cup calls \cup ends \subseteq Splits
    /\ task \in {"runs", "polls", "opens", "asks", "sleeps", "raised", "ended"}
    /\ {opening, owes.task, owes.closer} \subseteq Splits \cup {None}
    /\ \A l \in Splits :
        /\ pc[l] \in {"none", "new", "top", "in", "put", "calling", "failing", "leaving", "ended"}
        /\ at[l] \in 0..Records /\ over[l] \in {"open", "failed", "closed"}
        /\ pc[l] = "none" => ~Listed(l)

Init ==
    /\ mine = 1..First /\ come = 1..First /\ out = Each(<<>>) /\ lanes = [s \in 1..First |-> s] /\ turn = 0
    /\ task = "runs" /\ looks = <<>> /\ opening = None /\ kept = FALSE /\ done = FALSE /\ armed = {} /\ calls = {}
    /\ closed = FALSE /\ ends = {} /\ poked = FALSE /\ owes = [task |-> None, closer |-> None]
    /\ pc = [l \in Splits |-> IF l <= First THEN "new" ELSE "none"] /\ closing = Each(FALSE) /\ fetching = Each(FALSE)
    /\ woken = Each(FALSE) /\ at = Each(0) /\ opened = Each(FALSE) /\ queue = Each(<<>>) /\ over = Each("open")
    /\ failures = 0 /\ held = {} /\ aside = Each(<<>>) /\ pauses = 0

-----------------------------------------------------------------------------
(* A fetcher is told to end: under its lock, then by closing the hand-over, then by waking its client.               *)
Tell(told, who) ==
    /\ closing' = [l \in Splits |-> closing[l] \/ l \in told]
    /\ over' = [l \in Splits |-> IF l \in told THEN "closed" ELSE over[l]]
    /\ queue' = [l \in Splits |-> IF l \in told THEN <<>> ELSE queue[l]]
    /\ armed' = armed \ told
    /\ owes' = [owes EXCEPT ![who] =
                    IF Mutant # "its end wakes nobody" /\ \E l \in told : fetching[l]
                    THEN CHOOSE l \in told : fetching[l] ELSE None]
TellNobody == UNCHANGED <<closing, over, queue, armed, owes>>
(* The lane of a split that is finished. Who closes has it in its list, if it was there first.                       *)
EndLane(l) ==
    IF closed THEN TellNobody /\ UNCHANGED lanes
    ELSE /\ lanes' = Without(l)
         /\ CASE Mutant = "the thread stays" -> TellNobody
              [] Mutant = "one end closes all" -> Tell({m \in Splits : pc[m] # "none"}, "task")
              [] OTHER -> Tell({l}, "task")

Free == task \in {"runs", "sleeps"} /\ owes.task = None /\ opening = None
Poke == done' = (done \/ kept)

AddSplits(s) ==
    /\ Free /\ ~closed /\ s \notin come
    /\ mine' = mine \cup {s} /\ come' = come \cup {s} /\ opening' = s
    /\ UNCHANGED <<pausing, out, lanes, turn, task, looks, wait, close, owes, fetcher>>
(* Under the lock that close takes too: what comes after it is refused, and has no thread.                            *)
Open ==
    /\ opening # None /\ opening' = None
    /\ IF closed /\ Mutant # "comes after close"
       THEN task' = "ended" /\ UNCHANGED <<lanes, pc, done>>
       ELSE /\ lanes' = Append(lanes, opening) /\ Poke /\ UNCHANGED task
            /\ pc' = IF Mutant = "comes without a thread" THEN pc ELSE [pc EXCEPT ![opening] = "new"]
    /\ UNCHANGED <<pausing, mine, come, out, turn, looks, kept, armed, calls, close, owes, closing, fetching, woken, at>>
    /\ UNCHANGED <<opened, queue, over, failures>>

(* No thread is told: who is held takes nothing, and who goes on looks again.                                         *)
Pause(l) ==
    /\ Free /\ pauses < Pauses /\ pauses' = pauses + 1 /\ l \in mine \ held /\ held' = held \cup {l} /\ Poke
    /\ UNCHANGED <<aside, mine, come, out, lanes, turn, task, looks, opening, kept, armed, calls, close, owes, fetcher>>
Resume(l) ==
    /\ Free /\ pauses < Pauses /\ pauses' = pauses + 1 /\ l \in held /\ held' = held \ {l}
    /\ IF Mutant = "goes on in silence" THEN UNCHANGED done ELSE Poke
    /\ UNCHANGED <<aside, mine, come, out, lanes, turn, task, looks, opening, kept, armed, calls, close, owes, fetcher>>

(* Of the task, or of who closes.                                                                                    *)
WakeUp(who) ==
    /\ owes[who] # None /\ owes' = [owes EXCEPT ![who] = None] /\ woken' = [woken EXCEPT ![owes[who]] = TRUE]
    /\ UNCHANGED <<task_vars, wait, close, pc, closing, fetching, at, opened, queue, over, failures>>

-----------------------------------------------------------------------------
(* Poll looks at each lane once, and begins behind the one that it has taken from last.                               *)
Rotated(place) == [i \in DOMAIN lanes |-> lanes[((place + i - 1) % Len(lanes)) + 1]]
Poll ==
    /\ task = "runs" /\ Free
    /\ IF closed THEN task' = "ended" /\ UNCHANGED looks
       ELSE task' = "polls" /\ looks' = Rotated(IF Mutant = "begins at the first" THEN 0 ELSE turn)
    /\ UNCHANGED <<pausing, mine, come, out, lanes, turn, opening, wait, close, owes, fetcher>>

Looked == looks' = Tail(looks) /\ UNCHANGED task
(* Nothing is taken out of its hand-over.                                                                            *)
Stands(l) == aside[l] # <<>> /\ l \in held
MayTake(l) == aside[l] = <<>>
PassOver ==
    /\ task = "polls" /\ looks # <<>>
    /\ LET l == Head(looks) IN Stands(l) \/ (MayTake(l) /\ queue[l] = <<>> /\ over[l] = "open")
    /\ Looked
    /\ UNCHANGED <<pausing, mine, come, out, lanes, turn, opening, wait, close, owes, fetcher>>
Give(l, n, rest) ==
    /\ task' = "runs" /\ looks' = <<>> /\ turn' = IF Listed(l) THEN Place(l) ELSE 0
    /\ IF Endless THEN UNCHANGED out ELSE out' = [out EXCEPT ![l] = Append(@, n)]
    /\ IF n = Records
       THEN mine' = mine \ {l} /\ held' = held \ {l} /\ EndLane(l)
       ELSE queue' = rest /\ UNCHANGED <<mine, held, lanes, closing, over, armed, owes>>
    /\ UNCHANGED <<pauses, come, opening, kept, done, calls, close, pc, fetching, woken, at, opened, failures>>
Take ==
    /\ task = "polls" /\ owes.task = None /\ looks # <<>>
    /\ LET l == Head(looks)
       IN  /\ MayTake(l) /\ queue[l] # <<>> /\ (l \notin held \/ Mutant = "takes what is held")
           /\ Give(l, Head(queue[l]), IF Mutant = "gives it again" THEN queue ELSE [queue EXCEPT ![l] = Tail(@)])
    /\ UNCHANGED aside
TakeAside ==
    /\ task = "polls" /\ owes.task = None /\ looks # <<>>
    /\ LET l == Head(looks)
       IN  /\ aside[l] # <<>> /\ l \notin held
           /\ Give(l, Head(aside[l]), queue) /\ aside' = [aside EXCEPT ![l] = Tail(@)]
SetAside ==
    /\ task = "polls" /\ looks # <<>>
    /\ LET l == Head(looks)
       IN  /\ l \in held /\ queue[l] # <<>> /\ (MayTake(l) \/ Mutant = "sets all aside")
           /\ queue' = [queue EXCEPT ![l] = Tail(@)]
           /\ aside' = IF Mutant = "drops what is held" THEN aside ELSE [aside EXCEPT ![l] = Append(@, Head(queue[l]))]
    /\ Looked
    /\ UNCHANGED <<held, pauses, mine, come, out, lanes, turn, opening, wait, close, owes, pc, closing, fetching, woken>>
    /\ UNCHANGED <<at, opened, over, failures>>
(* The failure of one ends the reader, after what was fetched before it.                                              *)
PollRaises ==
    /\ task = "polls" /\ looks # <<>>
    /\ LET l == Head(looks) IN MayTake(l) /\ queue[l] = <<>> /\ over[l] = "failed"
    /\ task' = "raised" /\ looks' = <<>>
    /\ UNCHANGED <<pausing, mine, come, out, lanes, turn, opening, wait, close, owes, fetcher>>
PollEnds ==
    /\ task = "polls" /\ looks # <<>> /\ MayTake(Head(looks)) /\ over[Head(looks)] = "closed"
    /\ task' = "ended" /\ looks' = <<>>
    /\ UNCHANGED <<pausing, mine, come, out, lanes, turn, opening, wait, close, owes, fetcher>>

(* Poll has found nothing. The future is there before anything is looked at: what comes after the look finds it.       *)
Ask ==
    /\ task = "polls" /\ looks = <<>> /\ task' = "opens"
    /\ IF kept /\ ~done THEN UNCHANGED wait
       ELSE kept' = TRUE /\ done' = FALSE /\ armed' = {} /\ calls' = {}
    /\ UNCHANGED <<pausing, mine, come, out, lanes, turn, looks, opening, close, owes, fetcher>>
AskLanes ==
    /\ task = "opens" /\ task' = (IF closed THEN "ended" ELSE "asks")
    /\ looks' = IF closed THEN <<>> ELSE IF Mutant = "arms one" /\ lanes # <<>> THEN <<lanes[1]>> ELSE lanes
    /\ UNCHANGED <<pausing, mine, come, out, lanes, turn, opening, wait, close, owes, fetcher>>
Something(l) == ~Stands(l) /\ (aside[l] # <<>> \/ queue[l] # <<>> \/ over[l] # "open")
Arm ==
    /\ task = "asks" /\ looks # <<>>
    /\ IF Something(Head(looks))
       THEN task' = "runs" /\ looks' = <<>> /\ UNCHANGED armed
       ELSE Looked /\ armed' = IF Stands(Head(looks)) THEN armed ELSE armed \cup {Head(looks)}
    /\ UNCHANGED <<pausing, mine, come, out, lanes, turn, opening, kept, done, calls, close, owes, fetcher>>
Sleep ==
    /\ task = "asks" /\ looks = <<>> /\ task' = "sleeps"
    /\ UNCHANGED <<pausing, mine, come, out, lanes, turn, looks, opening, wait, close, owes, fetcher>>
AskAgain ==
    /\ task = "sleeps" /\ Free /\ done /\ task' = "runs"
    /\ UNCHANGED <<pausing, mine, come, out, lanes, turn, looks, opening, wait, close, owes, fetcher>>

-----------------------------------------------------------------------------
(* Another thread closes: under the lock it takes the lanes, tells one after the other, and sets the future.          *)
Close ==
    /\ Closes /\ ~closed /\ closed' = TRUE /\ ends' = {lanes[i] : i \in DOMAIN lanes} /\ lanes' = <<>>
    /\ UNCHANGED <<pausing, mine, come, out, turn, task, looks, opening, wait, poked, owes, fetcher>>
CloseLane(l) ==
    /\ l \in ends /\ owes.closer = None
    /\ ends' = IF Mutant = "closes one" THEN {} ELSE ends \ {l}
    /\ Tell({l}, "closer")
    /\ UNCHANGED <<task_vars, kept, done, calls, closed, poked, pc, fetching, woken, at, opened, failures>>
ClosePokes ==
    /\ closed /\ ends = {} /\ owes.closer = None /\ ~poked /\ poked' = TRUE
    /\ IF Mutant = "close sets nothing" THEN UNCHANGED done ELSE Poke
    /\ UNCHANGED <<task_vars, kept, armed, calls, closed, ends, owes, fetcher>>

-----------------------------------------------------------------------------
(* The fetcher of a lane.                                                                                            *)
Goes(l, place) == pc' = [pc EXCEPT ![l] = place]
Make(l) ==
    /\ pc[l] = "new" /\ Goes(l, "top") /\ opened' = [opened EXCEPT ![l] = TRUE]
    /\ UNCHANGED <<task_vars, wait, close, owes, closing, fetching, woken, at, queue, over, failures>>
GoFetch(l) ==
    /\ pc[l] = "top" /\ ~closing[l] /\ ~Last(l)
    /\ Goes(l, "in") /\ fetching' = [fetching EXCEPT ![l] = TRUE]
    /\ UNCHANGED <<task_vars, wait, close, owes, closing, woken, at, opened, queue, over, failures>>
Back(l) == fetching' = [fetching EXCEPT ![l] = FALSE] /\ woken' = [woken EXCEPT ![l] = FALSE]
Fetch(l) ==
    /\ pc[l] = "in" /\ Back(l) /\ Goes(l, "put") /\ at' = [at EXCEPT ![l] = IF Endless THEN 1 ELSE @ + 1]
    /\ UNCHANGED <<task_vars, wait, close, owes, closing, opened, queue, over, failures>>
FetchIsWoken(l) ==
    /\ pc[l] = "in" /\ woken[l] /\ Back(l) /\ Goes(l, "top")
    /\ UNCHANGED <<task_vars, wait, close, owes, closing, at, opened, queue, over, failures>>

(* The batch goes in under the hand-over's lock; the armed call comes after it.                                       *)
Room(l) == Len(queue[l]) < MaxBatches \/ Mutant = "puts what has no room"
HandOver(l) ==
    /\ pc[l] = "put" /\ over[l] # "closed" /\ Room(l) /\ queue' = [queue EXCEPT ![l] = Append(@, at[l])]
    /\ IF l \in armed THEN Goes(l, "calling") /\ calls' = calls \cup {l} ELSE Goes(l, "top") /\ UNCHANGED calls
    /\ armed' = armed \ {l}
    /\ UNCHANGED <<task_vars, kept, done, close, owes, closing, fetching, woken, at, opened, over, failures>>
PutRefused(l) ==
    /\ pc[l] = "put" /\ over[l] = "closed" /\ Goes(l, "leaving")
    /\ UNCHANGED <<task_vars, wait, close, owes, closing, fetching, woken, at, opened, queue, over, failures>>
CallArmed(l) ==
    /\ pc[l] = "calling" /\ Goes(l, "top") /\ done' = (done \/ l \in calls) /\ calls' = calls \ {l}
    /\ UNCHANGED <<task_vars, kept, armed, close, owes, closing, fetching, woken, at, opened, queue, over, failures>>

(* What fails when it was told to end is nobody's. Otherwise the hand-over has it, and its armed call is made.        *)
FetchFails(l) ==
    /\ pc[l] \in {"new", "in"} /\ failures < Failures /\ failures' = failures + 1
    /\ Goes(l, IF closing[l] \/ Mutant = "fails silently" THEN "leaving" ELSE "failing")
    /\ UNCHANGED <<task_vars, wait, close, owes, closing, fetching, woken, at, opened, queue, over>>
FailHandover(l) ==
    /\ pc[l] = "failing" /\ Goes(l, "leaving")
    /\ over' = [over EXCEPT ![l] = IF @ = "open" THEN "failed" ELSE @]
    /\ done' = (done \/ l \in armed) /\ armed' = armed \ {l}
    /\ UNCHANGED <<task_vars, kept, calls, close, owes, closing, fetching, woken, at, opened, queue, failures>>
End(l) ==
    /\ (pc[l] = "top" /\ closing[l]) \/ pc[l] = "leaving"
    /\ Goes(l, "ended") /\ opened' = [opened EXCEPT ![l] = Mutant = "stays open" /\ over[l] = "failed"]
    /\ UNCHANGED <<task_vars, wait, close, owes, closing, fetching, woken, at, queue, over, failures>>

(* The task polls, and asks when there is nothing. No service need have anything.                                     *)
Task ==
    \/ Open \/ Poll \/ PassOver \/ Take \/ TakeAside \/ SetAside \/ PollRaises \/ PollEnds
    \/ Ask \/ AskLanes \/ Arm \/ Sleep \/ AskAgain
Next ==
    \/ \E s \in Splits : AddSplits(s) \/ Pause(s) \/ Resume(s)
    \/ Open \/ Poll \/ PassOver \/ Take \/ TakeAside \/ SetAside \/ PollRaises \/ PollEnds
    \/ Ask \/ AskLanes \/ Arm \/ Sleep \/ AskAgain
    \/ Close \/ ClosePokes
    \/ \E who \in {"task", "closer"} : WakeUp(who)
    \/ \E l \in Splits :
        \/ CloseLane(l) \/ Make(l) \/ GoFetch(l) \/ Fetch(l) \/ FetchIsWoken(l) \/ HandOver(l) \/ PutRefused(l)
        \/ CallArmed(l) \/ FetchFails(l) \/ FailHandover(l) \/ End(l)
Spec == Init /\ [][Next]_vars
Thread(l) ==
    \/ Make(l) \/ GoFetch(l) \/ FetchIsWoken(l) \/ HandOver(l) \/ PutRefused(l) \/ CallArmed(l) \/ FailHandover(l) \/ End(l)
QuietSpec ==
    /\ Spec /\ WF_vars(Task) /\ WF_vars(WakeUp("task")) /\ WF_vars(WakeUp("closer")) /\ WF_vars(ClosePokes)
    /\ \A l \in Splits : WF_vars(CloseLane(l)) /\ WF_vars(Thread(l))
FairSpec == QuietSpec /\ \A l \in Splits : WF_vars(Fetch(l))

-----------------------------------------------------------------------------
Over == task \in {"raised", "ended"} \/ closed

(* Every record once and in order.                                                                                   *)
OnceInOrder == \A s \in Splits : \A i \in DOMAIN out[s] : out[s][i] = i

(* No more waits for the task in a lane than may, and one batch besides that was set aside.                           *)
BackPressure == \A l \in Splits : Len(queue[l]) <= MaxBatches /\ Len(aside[l]) <= 1

(* What is held gives nothing.                                                                                       *)
HeldGivesNothing == [][\A s \in Splits : out'[s] # out[s] => s \notin held]_out

(* The end of one split is not the end of another.                                                                   *)
EndsAlone == \A l \in Splits : Listed(l) => ~closing[l] /\ over[l] # "closed"

(* A thread runs for a split that is here, or was told to end, or is about to be: nobody else has a thread or client.  *)
NoThreadIsLeft == \A l \in Splits : pc[l] \notin {"none", "ended"} => Listed(l) \/ closing[l] \/ l \in ends
ClientIsClosed == \A l \in Splits : pc[l] = "ended" => ~opened[l]

(* Who sleeps with a reason to be awake is about to be woken.                                                        *)
NoLostCall ==
    task = "sleeps" /\ ~done =>
        /\ \A l \in Splits : Listed(l) /\ Something(l) => \E m \in calls : pc[m] = "calling"
        /\ closed => kept /\ ~poked

(* The task learns of the failure of any split that is here and not held, whatever the others do.                     *)
FailureIsTold ==
    \A l \in Splits : pc[l] \in {"failing", "leaving", "ended"} /\ Listed(l) ~> Over \/ ~Listed(l) \/ l \in held

(* Close ends all threads.                                                                                           *)
CloseEnds == closed ~> \A l \in Splits : pc[l] \in {"none", "ended"}
(* And whoever was finished has ended, without it.                                                                    *)
ThreadEnds == \A l \in Splits : closing[l] ~> pc[l] = "ended"

(* What is here and not held is read to its end, whatever else is.                                                    *)
WhatIsHereIsRead == \A s \in Splits : ~<>[](s \in mine \ held /\ ~Over)

(* And if it has no end, each has its turn.                                                                          *)
EachHasItsTurn == \A l \in Splits : pc[l] = "put" /\ Listed(l) ~> pc[l] # "put" \/ ~Listed(l) \/ Over
=============================================================================
