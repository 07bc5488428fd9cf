--------------------------- MODULE SplitPerThread ---------------------------
(* A reader with a thread and a client for each split. Each split is a lane: a fetcher, and a hand-over between it     *)
(* and the task. The task polls the lanes in turn, and holds a split by not taking from its lane. When there is       *)
(* nothing it asks for a future and sleeps: the future is done when one of the lanes has something, when a held split  *)
(* fails, when splits come, go on or are held, and when another thread closes. What one fetcher does by itself, over   *)
(* restarts too, is in SplitFetch; so its client here is a step that gives one record. Module                         *)
(* pillarbox.sources.fetching.                                                                                        *)
(*                                                                                                                    *)
(* There is one future that matters: the one that was made last. Another one is made only when that is done, so that   *)
(* whoever still holds an earlier one would set what is set already: `armed` and `calls` are about the last one.       *)
EXTENDS Naturals, Sequences, FiniteSets

CONSTANTS
    Splits,     \* 1..N
    Records,    \* a batch is one record; the last of a split says that it is finished
    Endless,    \* or there is always another one
    Given,      \* how often a split is given to this reader, at most
    MaxBatches, \* that wait for the task in a lane
    Changes,    \* orders of the task, at most
    Failures,   \* at most
    Closes,     \* whether another thread closes
    Mutant

VARIABLES
    (* the task *)
    mine,       \* its splits
    given,      \* of each split: how often it was given; with that a lane is named
    pos,        \* of each: records that poll has given; the snapshot
    out,        \* of each: records that poll has given, in order (history)
    lanes,      \* in the order in which they came
    held,       \* lanes that it takes nothing from
    turn,       \* the place that poll has taken from last
    task,       \* "runs", "polls", "opens", "asks", "sleeps"; "raised", or "ended" as it found all closed
    looks,      \* the lanes that poll, or what arms the future, has yet to look at
    opening,    \* the lane of a split that is being added
    count,
    (* its future *)
    kept,       \* whether the reader knows it
    done,
    armed,      \* lanes whose next batch, or failure, sets it
    calls,      \* lanes whose fetcher has it in its hands, and is about to set it
    (* who closes *)
    closed, ends, poked,
    owes,       \* of the task and of who closes: the lane whose client it is about to wake
    (* of each lane: its fetcher, the orders for it and the hand-over *)
    pc,         \* "none", "new", "top", "in", "put", "calling", "failing", "poking", "setting", "leaving", "ended"
    left,       \* whether there is an order for it
    stopped,    \* whether it was ordered to fetch nothing
    closing, fetching, woken,
    at,         \* records that fetch has returned
    failure,    \* what the task may look at
    opened,     \* whether the client is open
    queue, over,    \* batches, and what ended them: "open", "failed" or "closed"
    failures

snapshot == <<given, pos, out>>
wait == <<kept, done, armed, calls>>
close == <<closed, ends, poked>>
client == <<stopped, at, opened>>
task_vars == <<mine, snapshot, lanes, held, turn, task, looks, opening, count>>
fetcher == <<pc, left, closing, fetching, woken, client, failure, queue, over, failures>>
vars == <<mine, given, pos, out, lanes, held, turn, task, looks, opening, count, kept, done, armed, calls, closed, ends,
          poked, owes, pc, left, stopped, closing, fetching, woken, at, failure, opened, queue, over, failures>>

Lanes == Splits \X (1..Given)
None == <<0, 0>>
Lane(s) == <<s, given[s]>>
Split(l) == l[1]
Listed(l) == \E i \in DOMAIN lanes : lanes[i] = l
Without(l) == SelectSeq(lanes, LAMBDA each : each # l)
Place(l) == CHOOSE i \in DOMAIN lanes : lanes[i] = l
Last(l) == ~Endless /\ at[l] = Records
Waiting == {<<l, i>> : l \in Lanes, i \in 1..MaxBatches} \cap UNION {{<<l, i>> : i \in DOMAIN queue[l]} : l \in Lanes}
Each(value) == [l \in Lanes |-> value]

TypeOK ==
    /\ mine \subseteq Splits /\ given \in [Splits -> 1..Given] /\ pos \in [Splits -> 0..Records]
    /\ {lanes[i] : i \in DOMAIN lanes} \cup held \cup armed \cup calls \cup ends \subseteq Lanes
    /\ task \in {"runs", "polls", "opens", "asks", "sleeps", "raised", "ended"}
    /\ {opening, owes.task, owes.closer} \subseteq Lanes \cup {None}
    /\ \A l \in Lanes :
        /\ pc[l] \in {"none", "new", "top", "in", "put", "calling", "failing", "poking", "setting", "leaving", "ended"}
        /\ at[l] \in 0..Records /\ over[l] \in {"open", "failed", "closed"}
        /\ pc[l] = "none" => ~Listed(l)

Init ==
    /\ mine = Splits /\ given = [s \in Splits |-> 1] /\ pos = [s \in Splits |-> 0] /\ out = [s \in Splits |-> <<>>]
    /\ lanes = [s \in 1..Cardinality(Splits) |-> <<s, 1>>] /\ held = {} /\ turn = 0 /\ task = "runs" /\ looks = <<>>
    /\ opening = None /\ count = 0 /\ kept = FALSE /\ done = FALSE /\ armed = {} /\ calls = {}
    /\ closed = FALSE /\ ends = {} /\ poked = FALSE /\ owes = [task |-> None, closer |-> None]
    /\ pc = [l \in Lanes |-> IF l[2] = 1 THEN "new" ELSE "none"] /\ left = Each(FALSE) /\ stopped = Each(FALSE)
    /\ closing = Each(FALSE) /\ fetching = Each(FALSE) /\ woken = Each(FALSE) /\ at = Each(0) /\ failure = Each(FALSE)
    /\ opened = Each(FALSE) /\ queue = Each(<<>>) /\ over = Each("open") /\ failures = 0

-----------------------------------------------------------------------------
(* A fetcher is told to end: under its lock, then by closing the hand-over, then by waking its client.               *)
Tell(told, who) ==
    /\ closing' = [l \in Lanes |-> closing[l] \/ l \in told]
    /\ over' = [l \in Lanes |-> IF l \in told THEN "closed" ELSE over[l]]
    /\ queue' = [l \in Lanes |-> IF l \in told THEN <<>> ELSE queue[l]]
    /\ armed' = armed \ told
    /\ owes' = [owes EXCEPT ![who] =
                    IF Mutant # "its end wakes nobody" /\ \E l \in told : fetching[l]
                    THEN CHOOSE l \in told : fetching[l] ELSE None]
TellNobody == UNCHANGED <<closing, over, queue, armed, owes>>
(* The lane of a split that is finished, or was removed. Who closes has it in its list, if it was there first.        *)
EndLane(l) ==
    IF closed THEN TellNobody /\ UNCHANGED lanes
    ELSE /\ lanes' = Without(l)
         /\ CASE Mutant = "the thread stays" -> TellNobody
              [] Mutant = "one end closes all" -> Tell({m \in Lanes : pc[m] # "none"}, "task")
              [] OTHER -> Tell({l}, "task")

(* The task's thread. It has orders for a lane that it wakes afterwards; then whoever waits is to ask again.          *)
Free == task \in {"runs", "sleeps"} /\ owes.task = None /\ opening = None
May == Free /\ ~closed /\ count < Changes /\ count' = count + 1
Poke == done' = (done \/ kept)

AddSplits(s) ==
    /\ May /\ s \notin mine /\ pos[s] < Records /\ given[s] < Given
    /\ mine' = mine \cup {s} /\ given' = [given EXCEPT ![s] = @ + 1] /\ opening' = <<s, given[s] + 1>>
    /\ UNCHANGED <<pos, out, lanes, held, turn, task, looks, wait, close, owes, fetcher>>
(* Under the lock that close takes too: what comes after it is refused, and has no thread.                            *)
Open ==
    /\ opening # None /\ opening' = None
    /\ IF closed /\ Mutant # "comes after close"
       THEN task' = "ended" /\ UNCHANGED <<lanes, pc, at, done>>
       ELSE /\ lanes' = Append(lanes, opening) /\ pc' = [pc EXCEPT ![opening] = "new"]
            /\ at' = [at EXCEPT ![opening] = pos[Split(opening)]] /\ Poke /\ UNCHANGED task
    /\ UNCHANGED <<mine, snapshot, held, turn, looks, count, kept, armed, calls, close, owes, left, stopped, opened,
                   closing, fetching, woken, failure, queue, over, failures>>
RemoveSplits(s) ==
    /\ May /\ s \in mine /\ mine' = mine \ {s} /\ held' = held \ {Lane(s)} /\ EndLane(Lane(s))
    /\ UNCHANGED <<snapshot, turn, task, looks, opening, kept, done, calls, close, pc, left, fetching, woken, client,
                   failure, failures>>
Order(l) ==
    /\ May /\ left' = [left EXCEPT ![l] = TRUE] /\ Poke
    /\ owes' = [owes EXCEPT !.task = IF fetching[l] THEN l ELSE None]
    /\ UNCHANGED <<mine, snapshot, lanes, turn, task, looks, opening, kept, armed, calls, close, pc, client, closing,
                   fetching, woken, failure, queue, over, failures>>
Pause(s) == s \in mine /\ Lane(s) \notin held /\ held' = held \cup {Lane(s)} /\ Order(Lane(s))
Resume(s) == s \in mine /\ Lane(s) \in held /\ held' = held \ {Lane(s)} /\ Order(Lane(s))

(* Of the task, or of who closes.                                                                                    *)
WakeUp(who) ==
    /\ owes[who] # None /\ owes' = [owes EXCEPT ![who] = None]
    /\ LET l == IF Mutant = "wakes the first" /\ lanes # <<>> THEN lanes[1] ELSE owes[who]
       IN  woken' = [woken EXCEPT ![l] = TRUE]
    /\ UNCHANGED <<task_vars, wait, close, pc, left, closing, fetching, client, failure, queue, over, failures>>

-----------------------------------------------------------------------------
(* Poll looks at each lane once, and begins behind the one that it has taken from last.                               *)
Rotated(place) == [i \in DOMAIN lanes |-> lanes[((place + i - 1) % Len(lanes)) + 1]]
Poll ==
    /\ task = "runs" /\ Free
    /\ IF closed THEN task' = "ended" /\ UNCHANGED looks
       ELSE task' = "polls" /\ looks' = Rotated(IF Mutant = "begins at the first" THEN 0 ELSE turn)
    /\ UNCHANGED <<mine, snapshot, lanes, held, turn, opening, count, wait, close, owes, fetcher>>

Looked == looks' = Tail(looks) /\ UNCHANGED task
(* Of a lane that is held nothing is taken; that it has failed is said at once.                                      *)
PassOver ==
    /\ task = "polls" /\ looks # <<>>
    /\ LET l == Head(looks)
       IN  IF l \in held THEN ~failure[l] /\ Mutant # "drops what is held"
           ELSE queue[l] = <<>> /\ over[l] = "open"
    /\ Looked
    /\ UNCHANGED <<mine, snapshot, lanes, held, turn, opening, count, wait, close, owes, fetcher>>
DropHeld ==
    /\ Mutant = "drops what is held" /\ task = "polls" /\ looks # <<>> /\ Head(looks) \in held
    /\ Looked /\ queue' = [queue EXCEPT ![Head(looks)] = <<>>]
    /\ UNCHANGED <<mine, snapshot, lanes, held, turn, opening, count, wait, close, owes, pc, left, closing, fetching,
                   woken, client, failure, over, failures>>
Take ==
    /\ task = "polls" /\ owes.task = None /\ looks # <<>> /\ task' = "runs" /\ looks' = <<>>
    /\ LET l == Head(looks)
           s == Split(l)
           n == Head(queue[l])
       IN  /\ l \notin held \/ Mutant = "takes what is held"
           /\ queue[l] # <<>>
           /\ turn' = IF Listed(l) THEN Place(l) ELSE 0
           /\ IF Endless THEN UNCHANGED <<pos, out>>
              ELSE pos' = [pos EXCEPT ![s] = n] /\ out' = [out EXCEPT ![s] = Append(@, n)]
           /\ IF n = Records
              THEN mine' = mine \ {s} /\ held' = held \ {l} /\ EndLane(l)
              ELSE /\ queue' = [queue EXCEPT ![l] = Tail(@)]
                   /\ UNCHANGED <<mine, held, lanes, closing, over, armed, owes>>
    /\ UNCHANGED <<given, opening, count, kept, done, calls, close, pc, left, fetching, woken, client, failure, failures>>
(* The failure of one ends the reader, after what was fetched before it of a split that is not held.                   *)
Raises(l) ==
    \/ l \in held /\ failure[l] /\ Mutant # "held fails silently"
    \/ l \notin held /\ queue[l] = <<>> /\ over[l] = "failed"
    \/ Mutant = "what was removed fails" /\ \E m \in Lanes : failure[m] /\ Split(m) = Split(l)
PollRaises ==
    /\ task = "polls" /\ looks # <<>> /\ Raises(Head(looks)) /\ task' = "raised" /\ looks' = <<>>
    /\ UNCHANGED <<mine, snapshot, lanes, held, turn, opening, count, wait, close, owes, fetcher>>
PollEnds ==
    /\ task = "polls" /\ looks # <<>> /\ Head(looks) \notin held /\ over[Head(looks)] = "closed"
    /\ task' = "ended" /\ looks' = <<>>
    /\ UNCHANGED <<mine, snapshot, lanes, held, turn, opening, count, wait, close, owes, fetcher>>

(* Poll has found nothing. The future is there before anything is looked at: what comes after the look finds it.       *)
Ask ==
    /\ task = "polls" /\ looks = <<>> /\ task' = "opens"
    /\ IF kept /\ ~done THEN UNCHANGED wait
       ELSE kept' = TRUE /\ done' = FALSE /\ armed' = {} /\ calls' = {}
    /\ UNCHANGED <<mine, snapshot, lanes, held, turn, looks, opening, count, close, owes, fetcher>>
AskLanes ==
    /\ task = "opens" /\ task' = (IF closed THEN "ended" ELSE "asks")
    /\ looks' = IF closed THEN <<>> ELSE IF Mutant = "arms one" /\ lanes # <<>> THEN <<lanes[1]>> ELSE lanes
    /\ UNCHANGED <<mine, snapshot, lanes, held, turn, opening, count, wait, close, owes, fetcher>>
Something(l) == IF l \in held THEN failure[l] ELSE queue[l] # <<>> \/ over[l] # "open"
Arm ==
    /\ task = "asks" /\ looks # <<>>
    /\ IF Something(Head(looks)) /\ ~(Mutant = "held fails silently" /\ Head(looks) \in held)
       THEN task' = "runs" /\ looks' = <<>> /\ UNCHANGED armed
       ELSE Looked /\ armed' = IF Head(looks) \in held THEN armed ELSE armed \cup {Head(looks)}
    /\ UNCHANGED <<mine, snapshot, lanes, held, turn, opening, count, kept, done, calls, close, owes, fetcher>>
Sleep ==
    /\ task = "asks" /\ looks = <<>> /\ task' = "sleeps"
    /\ UNCHANGED <<mine, snapshot, lanes, held, turn, looks, opening, count, wait, close, owes, fetcher>>
AskAgain ==
    /\ task = "sleeps" /\ Free /\ done /\ task' = "runs"
    /\ UNCHANGED <<mine, snapshot, lanes, held, turn, looks, opening, count, wait, close, owes, fetcher>>

-----------------------------------------------------------------------------
(* Another thread closes: under the lock it takes the lanes, tells one after the other, and sets the future.          *)
Close ==
    /\ Closes /\ ~closed /\ closed' = TRUE /\ ends' = {lanes[i] : i \in DOMAIN lanes} /\ lanes' = <<>>
    /\ UNCHANGED <<mine, snapshot, held, turn, task, looks, opening, count, wait, poked, owes, fetcher>>
CloseLane(l) ==
    /\ l \in ends /\ owes.closer = None
    /\ ends' = IF Mutant = "closes one" THEN {} ELSE ends \ {l}
    /\ Tell({l}, "closer")
    /\ UNCHANGED <<task_vars, kept, done, calls, closed, poked, pc, left, fetching, woken, client, failure, failures>>
ClosePokes ==
    /\ closed /\ ends = {} /\ owes.closer = None /\ ~poked /\ poked' = TRUE /\ Poke
    /\ UNCHANGED <<task_vars, kept, armed, calls, closed, ends, owes, fetcher>>

-----------------------------------------------------------------------------
(* The fetcher of a lane.                                                                                            *)
Goes(l, place) == pc' = [pc EXCEPT ![l] = place]
Make(l) ==
    /\ pc[l] = "new" /\ Goes(l, "top") /\ opened' = [opened EXCEPT ![l] = TRUE]
    /\ UNCHANGED <<task_vars, wait, close, owes, left, closing, fetching, woken, stopped, at, failure, queue, over,
                   failures>>
TakeUp(l) ==
    /\ pc[l] = "top" /\ ~closing[l] /\ left[l] /\ left' = [left EXCEPT ![l] = FALSE]
    /\ stopped' = [stopped EXCEPT ![l] = l \in held]
    /\ UNCHANGED <<task_vars, wait, close, owes, pc, closing, fetching, woken, at, opened, failure, queue, over, failures>>
GoFetch(l) ==
    /\ pc[l] = "top" /\ ~closing[l] /\ ~left[l] /\ ~stopped[l] /\ ~Last(l)
    /\ Goes(l, "in") /\ fetching' = [fetching EXCEPT ![l] = TRUE]
    /\ UNCHANGED <<task_vars, wait, close, owes, left, closing, woken, client, failure, queue, over, failures>>
Back(l) == fetching' = [fetching EXCEPT ![l] = FALSE] /\ woken' = [woken EXCEPT ![l] = FALSE]
Fetch(l) ==
    /\ pc[l] = "in" /\ Back(l) /\ Goes(l, "put") /\ at' = [at EXCEPT ![l] = IF Endless THEN 1 ELSE @ + 1]
    /\ UNCHANGED <<task_vars, wait, close, owes, left, closing, stopped, opened, failure, queue, over, failures>>
FetchIsWoken(l) ==
    /\ pc[l] = "in" /\ woken[l] /\ Back(l) /\ Goes(l, "top")
    /\ UNCHANGED <<task_vars, wait, close, owes, left, closing, client, failure, queue, over, failures>>

(* The batch goes in under the hand-over's lock; the armed call comes after it.                                       *)
Room(l) ==
    CASE Mutant = "one bound for all" -> Cardinality(Waiting) < MaxBatches
      [] Mutant = "puts what has no room" -> TRUE
      [] OTHER -> Len(queue[l]) < MaxBatches
HandOver(l) ==
    /\ pc[l] = "put" /\ over[l] # "closed" /\ Room(l) /\ queue' = [queue EXCEPT ![l] = Append(@, at[l])]
    /\ IF l \in armed THEN Goes(l, "calling") /\ calls' = calls \cup {l} ELSE Goes(l, "top") /\ UNCHANGED calls
    /\ armed' = armed \ {l}
    /\ UNCHANGED <<task_vars, kept, done, close, owes, left, closing, fetching, woken, client, failure, over, failures>>
PutRefused(l) ==
    /\ pc[l] = "put" /\ over[l] = "closed" /\ Goes(l, "leaving")
    /\ UNCHANGED <<task_vars, wait, close, owes, left, closing, fetching, woken, client, failure, queue, over, failures>>
Set(l) == done' = (done \/ l \in calls) /\ calls' = calls \ {l}
CallArmed(l) ==
    /\ pc[l] = "calling" /\ Goes(l, "top") /\ Set(l)
    /\ UNCHANGED <<task_vars, kept, armed, close, owes, left, closing, fetching, woken, client, failure, queue, over,
                   failures>>

(* What fails when it was told to end is nobody's. Otherwise the failure is there, then the hand-over has it, then the *)
(* future is set, for a held split: two steps, as the task may ask in between.                                        *)
FetchFails(l) ==
    /\ pc[l] \in {"new", "in"} /\ failures < Failures /\ failures' = failures + 1
    /\ IF closing[l] THEN Goes(l, "leaving") /\ UNCHANGED failure
       ELSE Goes(l, "failing") /\ failure' = [failure EXCEPT ![l] = TRUE]
    /\ UNCHANGED <<task_vars, wait, close, owes, left, closing, fetching, woken, client, queue, over>>
FailHandover(l) ==
    /\ pc[l] = "failing" /\ Goes(l, IF Mutant = "nobody is told of what is held" THEN "leaving" ELSE "poking")
    /\ over' = [over EXCEPT ![l] = IF @ = "open" THEN "failed" ELSE @]
    /\ done' = (done \/ l \in armed) /\ armed' = armed \ {l}
    /\ UNCHANGED <<task_vars, kept, calls, close, owes, left, closing, fetching, woken, client, failure, queue, failures>>
PokeReads(l) ==
    /\ pc[l] = "poking" /\ Goes(l, "setting") /\ calls' = IF kept THEN calls \cup {l} ELSE calls
    /\ UNCHANGED <<task_vars, kept, done, armed, close, owes, left, closing, fetching, woken, client, failure, queue, over,
                   failures>>
PokeSets(l) ==
    /\ pc[l] = "setting" /\ Goes(l, "leaving") /\ Set(l)
    /\ kept' = IF Mutant = "takes the future away" THEN FALSE ELSE kept
    /\ UNCHANGED <<task_vars, armed, close, owes, left, closing, fetching, woken, client, failure, queue, over, failures>>
End(l) ==
    /\ (pc[l] = "top" /\ closing[l]) \/ pc[l] = "leaving"
    /\ Goes(l, "ended") /\ opened' = [opened EXCEPT ![l] = Mutant = "stays open" /\ failure[l]]
    /\ UNCHANGED <<task_vars, wait, close, owes, left, closing, fetching, woken, stopped, at, failure, queue, over,
                   failures>>

Next ==
    \/ \E s \in Splits : AddSplits(s) \/ RemoveSplits(s) \/ Pause(s) \/ Resume(s)
    \/ Open \/ Poll \/ PassOver \/ DropHeld \/ Take \/ PollRaises \/ PollEnds \/ Ask \/ AskLanes \/ Arm \/ Sleep \/ AskAgain
    \/ Close \/ ClosePokes
    \/ \E who \in {"task", "closer"} : WakeUp(who)
    \/ \E l \in Lanes :
        \/ CloseLane(l) \/ Make(l) \/ TakeUp(l) \/ GoFetch(l) \/ Fetch(l) \/ FetchIsWoken(l) \/ HandOver(l) \/ PutRefused(l)
        \/ CallArmed(l) \/ FetchFails(l) \/ FailHandover(l) \/ PokeReads(l) \/ PokeSets(l) \/ End(l)
Spec == Init /\ [][Next]_vars
(* The task polls, and asks when there is nothing. No service need have anything.                                     *)
Task == Open \/ Poll \/ PassOver \/ DropHeld \/ Take \/ PollRaises \/ PollEnds \/ Ask \/ AskLanes \/ Arm \/ Sleep \/ AskAgain
Thread(l) ==
    \/ Make(l) \/ TakeUp(l) \/ GoFetch(l) \/ FetchIsWoken(l) \/ HandOver(l) \/ PutRefused(l) \/ CallArmed(l)
    \/ FailHandover(l) \/ PokeReads(l) \/ PokeSets(l) \/ End(l)
QuietSpec ==
    /\ Spec /\ WF_vars(Task) /\ WF_vars(WakeUp("task")) /\ WF_vars(WakeUp("closer")) /\ WF_vars(ClosePokes)
    /\ \A l \in Lanes : WF_vars(CloseLane(l)) /\ WF_vars(Thread(l))
FairSpec == QuietSpec /\ \A l \in Lanes : WF_vars(Fetch(l))

-----------------------------------------------------------------------------
Over == task \in {"raised", "ended"} \/ closed

(* Every record once and in order, also of what was held, and of a split that comes back.                             *)
OnceInOrder == \A s \in Splits : \A i \in DOMAIN out[s] : out[s][i] = i

(* What was removed gives nothing any more, and what is held nothing.                                                *)
HeldGivesNothing == [][\A s \in Splits : out'[s] # out[s] => s \in mine /\ Lane(s) \notin held]_out

(* No more waits for the task in a lane than may.                                                                    *)
BackPressure == \A l \in Lanes : Len(queue[l]) <= MaxBatches

(* The end of one split is not the end of another.                                                                   *)
EndsAlone == \A l \in Lanes : Listed(l) => ~closing[l] /\ over[l] # "closed"

(* A thread runs for a split that is here, or was told to end, or is about to be: nobody else has a thread or client.  *)
NoThreadIsLeft ==
    \A l \in Lanes : pc[l] \notin {"none", "ended"} => Listed(l) \/ closing[l] \/ l \in ends
ClientIsClosed == \A l \in Lanes : pc[l] = "ended" => ~opened[l]

(* An order that lies there is seen: its fetch, and no other, is woken, or about to be.                               *)
NoLostWakeUp ==
    \A l \in Lanes : left[l] \/ closing[l] => pc[l] # "in" \/ woken[l] \/ \E who \in DOMAIN owes : owes[who] = l

(* Who sleeps with a reason to be awake is about to be woken.                                                        *)
AboutToSet == \E l \in calls : pc[l] \in {"calling", "setting"}
NoLostCall ==
    task = "sleeps" /\ ~done =>
        /\ \A l \in Lanes : Listed(l) /\ Something(l) => AboutToSet \/ (kept /\ pc[l] \in {"failing", "poking"})
        /\ closed => kept /\ ~poked

(* Only a split that is here fails the reader.                                                                       *)
FailsForItsOwn == [][task' = "raised" => \E l \in Lanes : (Listed(l) \/ l \in ends \/ closed) /\ failure[l]]_task

(* The task learns of the failure of any split that is here, held or not, whatever the others do.                      *)
FailureIsTold == \A l \in Lanes : failure[l] /\ Listed(l) ~> Over \/ ~Listed(l)

(* Close ends all threads.                                                                                           *)
CloseEnds == closed ~> \A l \in Lanes : pc[l] \in {"none", "ended"}
(* And whoever was finished or removed has ended, without it.                                                         *)
ThreadEnds == \A l \in Lanes : closing[l] ~> pc[l] = "ended"

(* What is here and not held is read to its end, although others are held.                                            *)
WhatIsHereIsRead == \A l \in Lanes : ~<>[](Listed(l) /\ l \notin held /\ ~Over)

(* And if it has no end, each has its turn.                                                                          *)
EachHasItsTurn == \A l \in Lanes : pc[l] = "put" /\ Listed(l) ~> pc[l] # "put" \/ l \in held \/ ~Listed(l) \/ Over
=============================================================================
