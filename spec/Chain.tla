------------------------------- MODULE Chain -------------------------------
(* A task with two asynchronous operators: input, link 1, operator 1, link 2, operator 2, output. Batches of rows     *)
(* with a position go over the links; an operator takes what it has room for, and the rest stays at the head of its   *)
(* link. Package pillarbox.task. What has to hold is in ChainChecks; the order of emission is that of                 *)
(* ResultQueueOrder. What one result queue does while threads complete calls is in ResultQueue, who begins calls in   *)
(* Feeding.                                                                                                          *)
(*                                                                                                                  *)
(* The input is the positions 1..Length; those in Marks are watermarks; Max is Watermark(MAX), which ends it. All     *)
(* steps but Take are those of one thread: an action of the task, with what follows it (`moving`), or a callback of   *)
(* the event loop. Take is the consumer's, at any moment; if the output was armed, a mail tells the task of it.        *)
EXTENDS Naturals, Sequences, FiniteSets

CONSTANTS
    Length,     \* positions of the input
    Marks,      \* those that are watermarks
    Slice,      \* most rows of a batch of the input
    WindowA, WindowB,   \* most entries of either operator
    Shrinks,    \* whether the windows are of one entry after a restore
    Ordered,    \* the operators whose results leave in order
    Twofold,    \* positions for which operator 1 gives two results
    Empty,      \* positions for which it gives none
    OutputRoom, \* most rows and marks in the output that the consumer has not taken
    Attempts,   \* of a row, at most; 0: calls do not fail
    Drop,       \* whether rows that failed for good go no further
    TimeoutParts,   \* parts into which the time of a row is divided; 0: it has no limit
    Snapshots,  \* snapshots taken or declined, at most
    Crashes,    \* crashes, at most
    Lingers,    \* whether calls outlive the task that began them: the process goes on, a thread runs on
    Cancels,    \* whether the task may be cancelled
    Mutant

VARIABLES
    next,       \* the position that is read next; Length + 2 when the end was read
    t,          \* what the task holds: see TypeOK
    output,     \* what the consumer has taken, and a crash has not taken back
    phase,      \* running, down, closed, done
    saved,      \* the last complete snapshot
    snapshots, crashes,
    late,       \* calls of an earlier life that have not ended
    h           \* history of the timeline that no crash has taken back: see TypeOK

vars == <<next, t, output, phase, saved, snapshots, crashes, late, h>>

Operators == {1, 2}
Max == Length + 1
MarkPositions == Marks \cup {Max}
Width(p) == IF p \in Twofold THEN 2 ELSE IF p \in Empty THEN 0 ELSE 1
Life == crashes + 1
Window(i) == IF Shrinks /\ crashes > 0 THEN 1 ELSE IF i = 1 THEN WindowA ELSE WindowB

(* A row: its position in the input, its place in the result of operator 1 (0: it is not one), whether it is one of   *)
(* which a call has not failed for good.                                                                           *)
Row(p) == [pos |-> p, ord |-> 0, ok |-> TRUE]
IsMark(row) == row.pos \in MarkPositions
Keys == (1..Length) \X (0..2)
Key(row) == <<row.pos, row.ord>>

(* An element of a link: rows, of which those from the position `at` on are left; or one mark.                      *)
Element(rows) == [rows |-> rows, at |-> 1]
RowsLeft(element) == SubSeq(element.rows, element.at, Len(element.rows))
IsMarkElement(element) == IsMark(element.rows[1])

(* An entry of a result queue. `life`: that of the call which may complete it; `by`: that of the call which did.     *)
Entry(row, state) ==
    [row |-> row, state |-> state, ok |-> row.ok, failures |-> 0, spent |-> 0, life |-> Life, by |-> Life]
Admitted(row) == Entry(row, IF row.ok \/ Mutant = "a failed row is called again" THEN "waiting" ELSE "done")
Done(e) == e.state = "done"

Turn(ordered) == INSTANCE ResultQueueOrder WITH Marks <- MarkPositions, Ordered <- ordered
Ready(i, queue) ==
    Turn(i \in Ordered)!Ready([k \in DOMAIN queue |-> [pos |-> queue[k].row.pos, done |-> Done(queue[k])]])
Without(queue, k) == SubSeq(queue, 1, k - 1) \o SubSeq(queue, k + 1, Len(queue))

Nobody == [key \in Keys |-> [failures |-> 0, pauses |-> 0, spent |-> 0, done |-> FALSE]]
Fresh(link, rest, chunk, finished) ==
    [link |-> link, queue |-> <<<<>>, <<>>>>, rest |-> rest, asked |-> {}, waiting |-> {}, moving |-> FALSE,
     watch |-> "no", chunk |-> chunk, told |-> finished, finished |-> finished]
Nothing == Fresh(<<<<>>, <<>>>>, <<<<>>, <<>>>>, <<>>, 0)

Init ==
    /\ next = 1 /\ t = Nothing /\ output = <<>> /\ phase = "running"
    /\ snapshots = 0 /\ crashes = 0 /\ late = {}
    /\ h = [past |-> <<Nobody, Nobody>>, dropped |-> {}, again |-> FALSE, early |-> FALSE]
    /\ saved = [next |-> 1, link |-> <<<<>>, <<>>>>, queue |-> <<<<>>, <<>>>>, chunk |-> <<>>, finished |-> 0,
                out |-> 0, past |-> <<Nobody, Nobody>>, dropped |-> {}]

-----------------------------------------------------------------------------
(* Room: one rule. `u` is a state of the task.                                                                     *)
Room(u, i) == Window(i) - Len(u.queue[i])
HasRoom(u, i) == Room(u, i) > 0 /\ (u.rest[i] = <<>> \/ Mutant = "input overtakes what is restored")
IsAvailable(u, j) ==
    IF j \in Operators THEN u.link[j] = <<>> /\ HasRoom(u, j) ELSE Len(u.chunk) < OutputRoom

(* Whoever waits for room that is there is woken: the input (0) goes on, an operator's emission is asked for.        *)
Woken(u, who) ==
    LET free == {j \in u.waiting \cap who : IsAvailable(u, j + 1)}
    IN  [u EXCEPT !.waiting = @ \ free, !.asked = @ \cup (free \ {0})]

(* The one mail `emit` of an operator: put if something may go, unless it is on its way or waits for room.           *)
Ask(u, i) ==
    IF Ready(i, u.queue[i]) = {} \/ i \in u.asked \cup u.waiting THEN u ELSE [u EXCEPT !.asked = @ \cup {i}]

Give(u, i, elements) ==
    IF i = 1 THEN [u EXCEPT !.link[2] = @ \o elements]
    ELSE LET RECURSIVE Flat(_)
             Flat(rest) == IF rest = <<>> THEN <<>> ELSE RowsLeft(Head(rest)) \o Flat(Tail(rest))
         IN  [u EXCEPT !.chunk = @ \o Flat(elements)]

Runs == phase = "running" /\ ~t.moving /\ t.watch # "due"
Same == UNCHANGED <<next, output, phase, saved, snapshots, crashes, late, h>>
SameButHistory == UNCHANGED <<next, output, phase, saved, snapshots, crashes, late>>

-----------------------------------------------------------------------------
(* The default action. The input gives one element: a mark, or rows up to the next one.                             *)
Slices ==
    LET most == IF next + Slice > Max THEN Max ELSE next + Slice
        ends == {e \in (next + 1)..most : \A p \in next..(e - 1) : p \notin Marks}
    IN  IF next \in Marks THEN Element(<<Row(next)>>)
        ELSE LET end == CHOOSE e \in ends : \A f \in ends : f <= e
             IN  Element([k \in 1..(end - next) |-> Row(next + k - 1)])

Read ==
    /\ Runs /\ 0 \notin t.waiting /\ next <= Length
    /\ IsAvailable(t, 1) \/ Mutant = "reads without room"
    /\ t' = [t EXCEPT !.link[1] = Append(@, Slices), !.moving = TRUE]
    /\ next' = next + Len(Slices.rows)
    /\ UNCHANGED <<output, phase, saved, snapshots, crashes, late, h>>

SuspendInput ==
    /\ Runs /\ 0 \notin t.waiting /\ next <= Length /\ ~IsAvailable(t, 1)
    /\ t' = [t EXCEPT !.waiting = @ \cup {0}, !.moving = TRUE]
    /\ Same

(* The mark is part of the input's position: whoever is restored behind it does not put it again.                   *)
EndOfInput ==
    /\ Runs /\ next = Max
    /\ t' = [t EXCEPT !.link[1] = IF Mutant = "no mark at the end" THEN @ ELSE Append(@, Element(<<Row(Max)>>)),
                      !.moving = TRUE]
    /\ next' = Max + 1
    /\ UNCHANGED <<output, phase, saved, snapshots, crashes, late, h>>

-----------------------------------------------------------------------------
(* After every action the chain moves elements, last link first; then it wakes who waits for room that is there.     *)
(* Room comes back in two ways: a link empties, and an operator behind an empty one emits.                           *)
Waits(i) == t.link[i] # <<>>
MarkIsNext(i) == Waits(i) /\ IsMarkElement(Head(t.link[i]))
Passes(i) == t.queue[i] = <<>> /\ (IsAvailable(t, i + 1) \/ Mutant = "a mark passes without room")
Last(sequence) == sequence[Len(sequence)]
Replaces(i) == t.queue[i] # <<>> /\ IsMark(Last(t.queue[i]).row)

CanAdmit(i) == t.rest[i] # <<>> /\ Room(t, i) > 0
CanTakeRows(i) == Waits(i) /\ ~MarkIsNext(i) /\ HasRoom(t, i)
CanTakeMark(i) ==
    /\ MarkIsNext(i) /\ t.rest[i] = <<>>
    /\ Passes(i) \/ Replaces(i) \/ Room(t, i) > 0 \/ Mutant = "a mark takes no entry"
Moves(i) == CanAdmit(i) \/ CanTakeRows(i) \/ CanTakeMark(i)
MovesNext(i) == phase = "running" /\ t.moving /\ \A j \in Operators : j > i => ~Moves(j)

Emptied(u, i) ==
    IF Mutant = "wakes when a link empties" /\ u.link[i] = <<>> THEN Woken(u, {i - 1}) ELSE u

ProcessBatch(i) ==
    /\ MovesNext(i) /\ CanTakeRows(i)
    /\ LET batch == Head(t.link[i])
           left == RowsLeft(batch)
           taken == IF Len(left) <= Room(t, i) THEN Len(left)
                    ELSE Room(t, i) + (IF Mutant = "admits one too many" THEN 1 ELSE 0)
           moved == [batch EXCEPT !.at = IF Mutant = "goes on from the start of the batch" THEN @ ELSE @ + taken]
           link == IF taken = Len(left) THEN Tail(t.link[i])
                   ELSE IF Mutant = "drops the rest of the batch" THEN Tail(t.link[i])
                   ELSE <<moved>> \o Tail(t.link[i])
           queue == t.queue[i] \o [k \in 1..taken |-> Admitted(left[k])]
       IN  t' = Emptied(Ask([t EXCEPT !.link[i] = link, !.queue[i] = queue], i), i)
    /\ Same

(* An empty queue passes a mark at once if its output has room. Otherwise it takes an entry, that of the mark before  *)
(* if nothing lies between them; where there is none it waits at the link.                                          *)
ProcessWatermark(i) ==
    /\ MovesNext(i) /\ CanTakeMark(i)
    /\ LET mark == Head(t.link[i])
           left == [t EXCEPT !.link[i] = Tail(@)]
           entry == Entry(mark.rows[1], "done")
           queued == IF Replaces(i)
                     THEN [left EXCEPT !.queue[i] = IF Mutant = "the older mark is kept" THEN @
                                                    ELSE Append(SubSeq(@, 1, Len(@) - 1), entry)]
                     ELSE [left EXCEPT !.queue[i] = Append(@, entry)]
       IN  t' = Emptied(CASE Passes(i) \/ Mutant = "a mark passes what is in the queue" -> Give(left, i, <<mark>>)
                          [] Mutant = "a mark asks for no emission" -> queued
                          [] OTHER -> Ask(queued, i), i)
    /\ Same

(* A restored entry enters like any other, before anything of its link.                                             *)
AdmitRestored(i) ==
    /\ MovesNext(i) /\ CanAdmit(i)
    /\ LET e == Head(t.rest[i])
           called == Mutant = "a restored result is called again" /\ Done(e) /\ ~IsMark(e.row)
           entry == IF Done(e) /\ ~called THEN e
                    ELSE [e EXCEPT !.life = Life, !.by = Life, !.state = IF called THEN "waiting" ELSE @]
           admitted == [t EXCEPT !.rest[i] = Tail(@), !.queue[i] = Append(@, entry)]
       IN  t' = IF Mutant = "a restored result asks for no emission" THEN admitted ELSE Ask(admitted, i)
    /\ Same

Wake ==
    /\ phase = "running" /\ t.moving /\ \A i \in Operators : ~Moves(i)
    /\ LET who == CASE Mutant \in {"wakes when a link empties", "wakes on an emission"} -> {2}
                    [] Mutant = "the input is not resumed" -> Operators
                    [] OTHER -> {0} \cup Operators
           woken == Woken(t, who)
       IN  t' = [woken EXCEPT !.moving = FALSE, !.watch = IF @ = "no" /\ woken.waiting # {} THEN "due" ELSE @]
    /\ Same

(* At the end of the action the output is armed for whoever still waits. The consumer may have made room since the    *)
(* look of who waits for it, and arms nothing then: so there is one more action.                                    *)
Watch ==
    /\ phase = "running" /\ t.watch = "due"
    /\ t' = [t EXCEPT !.watch = IF ~IsAvailable(t, 3) THEN "armed"
                                ELSE IF 2 \in t.waiting /\ Mutant # "room between two looks" THEN "mail"
                                ELSE "no"]
    /\ Same

RoomMail ==
    /\ Runs /\ t.watch = "mail"
    /\ t' = [t EXCEPT !.watch = "no", !.moving = TRUE]
    /\ Same

-----------------------------------------------------------------------------
(* Calls. They end outside the actions of the task: a completion never emits, it asks for the emission.              *)
InState(i, state) == {k \in DOMAIN t.queue[i] : t.queue[i][k].state = state}
Past(i, e) == h.past[i][Key(e.row)]

Start(i) ==
    /\ Runs /\ InState(i, "waiting") # {}
    /\ LET k == CHOOSE k \in InState(i, "waiting") : \A l \in InState(i, "waiting") : k <= l
           e == t.queue[i][k]
       IN  /\ t' = [t EXCEPT !.queue[i][k].state = "running"]
           /\ h' = [h EXCEPT !.again = @ \/ Past(i, e).done,
                             !.early = @ \/ Past(i, e).pauses < Past(i, e).failures]
    /\ SameButHistory

Finished(i, k, ok) ==
    LET done == [t EXCEPT !.queue[i][k].state = "done", !.queue[i][k].ok = ok]
    IN  IF Mutant = "a completion asks for no emission" THEN done ELSE Ask(done, i)

Complete(i) ==
    /\ Runs
    /\ \E k \in InState(i, "running") :
        /\ t' = Finished(i, k, TRUE)
        /\ h' = [h EXCEPT !.past[i][Key(t.queue[i][k].row)].done = TRUE]
    /\ SameButHistory

Fail(i) ==
    /\ Runs /\ Attempts > 0
    /\ \E k \in InState(i, "running") :
       LET failures == t.queue[i][k].failures + 1
           key == Key(t.queue[i][k].row)
       IN  IF failures < Attempts
           THEN /\ t' = [t EXCEPT !.queue[i][k].state = "pausing", !.queue[i][k].failures = failures]
                /\ h' = [h EXCEPT !.past[i][key].failures = @ + 1]
           ELSE /\ t' = Finished(i, k, FALSE)
                /\ h' = [h EXCEPT !.past[i][key].failures = @ + 1, !.past[i][key].done = TRUE]
    /\ SameButHistory

PauseOver(i) ==
    /\ Runs
    /\ \E k \in InState(i, "pausing") :
        /\ t' = [t EXCEPT !.queue[i][k].state = "waiting"]
        /\ h' = [h EXCEPT !.past[i][Key(t.queue[i][k].row)].pauses = @ + 1]
    /\ SameButHistory

(* A part of a row's time is over; with the last one the row is out of time, whether it is called or pauses.          *)
TimePasses(i) ==
    /\ Runs /\ TimeoutParts > 0
    /\ \E k \in InState(i, "running") \cup InState(i, "pausing") :
       LET key == Key(t.queue[i][k].row)
           spent == t.queue[i][k].spent + 1
       IN  /\ t' = IF spent < TimeoutParts THEN [t EXCEPT !.queue[i][k].spent = spent] ELSE Finished(i, k, FALSE)
           /\ h' = [h EXCEPT !.past[i][key].spent = @ + 1,
                             !.past[i][key].done = @ \/ spent >= TimeoutParts]
    /\ SameButHistory

(* A call of an earlier life ends. Its handle means nothing to the queue of this one.                               *)
LateAnswer ==
    /\ phase \in {"running", "closed", "done"} /\ ~t.moving
    /\ \E c \in late :
        /\ late' = late \ {c}
        /\ LET takes == {k \in DOMAIN t.queue[c.operator] :
                            /\ t.queue[c.operator][k].row = c.row /\ ~Done(t.queue[c.operator][k])}
           IN  IF Mutant = "an earlier life completes" /\ takes # {}
               THEN LET k == CHOOSE k \in takes : TRUE
                        done == [t EXCEPT !.queue[c.operator][k].state = "done", !.queue[c.operator][k].by = c.life]
                    IN  t' = Ask(done, c.operator)
               ELSE UNCHANGED t
    /\ UNCHANGED <<next, output, phase, saved, snapshots, crashes, h>>

-----------------------------------------------------------------------------
(* Emission: everything that may go, in one, or as much as the output has room for. Control elements split it into    *)
(* batches.                                                                                                        *)
RECURSIVE Emissions(_, _, _)
Emissions(i, queue, room) ==
    IF Ready(i, queue) = {} \/ room = 0 THEN {[out |-> <<>>, left |-> queue]}
    ELSE UNION {{[e EXCEPT !.out = <<queue[k]>> \o @] : e \in Emissions(i, Without(queue, k), room - 1)}
                    : k \in Ready(i, queue)}

Drops == Drop /\ Mutant # "a dropped row goes on"

Results(i, e) ==
    IF IsMark(e.row) THEN <<e.row>>
    ELSE IF ~e.ok THEN (IF Drops THEN <<>> ELSE <<[e.row EXCEPT !.ok = FALSE]>>)
    ELSE IF i = 2 THEN <<e.row>>
    ELSE [o \in 1..Width(e.row.pos) |-> [e.row EXCEPT !.ord = o]]

RECURSIVE Elements(_, _, _)
Elements(i, out, rows) ==
    IF out = <<>> THEN (IF rows = <<>> THEN <<>> ELSE <<Element(rows)>>)
    ELSE IF IsMark(Head(out).row)
         THEN (IF rows = <<>> THEN <<>> ELSE <<Element(rows)>>)
                  \o <<Element(<<Head(out).row>>)>> \o Elements(i, Tail(out), <<>>)
         ELSE Elements(i, Tail(out), rows \o Results(i, Head(out)))

Collected(i, out) ==
    LET elements == Elements(i, out, <<>>)
        marks(element) == IsMarkElement(element)
        rows(element) == ~IsMarkElement(element)
    IN  IF Mutant = "marks are emitted before rows" THEN SelectSeq(elements, marks) \o SelectSeq(elements, rows)
        ELSE elements

Emits == Runs \/ (Mutant = "emits after it was stopped" /\ phase = "closed")

Emit(i) ==
    /\ Emits /\ i \in t.asked /\ (IsAvailable(t, i + 1) \/ Mutant = "emits without room")
    /\ \E e \in Emissions(i, t.queue[i], IF i = 1 \/ Mutant = "emits without room" THEN Len(t.queue[i])
                                         ELSE OutputRoom - Len(t.chunk)) :
        LET rest == [t EXCEPT !.queue[i] = e.left, !.asked = @ \ {i}, !.moving = (phase = "running")]
            sent == Give(IF Mutant = "what finds no room is not asked for" THEN rest ELSE Ask(rest, i),
                         i, Collected(i, e.out))
            rows == {e.out[k] : k \in {l \in DOMAIN e.out : ~IsMark(e.out[l].row)}}
        IN  /\ t' = IF Mutant = "wakes on an emission" THEN Woken(sent, {i - 1}) ELSE sent
            \* Of what has left nobody asks how it came about.
            /\ h' = [h EXCEPT !.past[i] = [key \in Keys |-> IF \E r \in rows : Key(r.row) = key
                                                             THEN Nobody[key] ELSE @[key]],
                              !.dropped = @ \cup {<<i, r.row.pos, r.row.ord>> : r \in {s \in rows : Drops /\ ~s.ok}}]
    /\ SameButHistory

WaitForRoom(i) ==
    /\ Runs /\ i \in t.asked /\ ~IsAvailable(t, i + 1) /\ Mutant # "emits without room"
    /\ t' = [t EXCEPT !.asked = @ \ {i}, !.waiting = @ \cup {i}, !.moving = TRUE]
    /\ Same

(* The consumer takes what there is, in the middle of an action too.                                                *)
Take ==
    /\ phase = "running" /\ t.chunk # <<>>
    /\ output' = output \o t.chunk
    /\ t' = [t EXCEPT !.chunk = <<>>,
                      !.watch = IF @ = "armed" /\ Mutant # "a take wakes nobody" THEN "mail" ELSE @]
    /\ UNCHANGED <<next, phase, saved, snapshots, crashes, late, h>>

-----------------------------------------------------------------------------
(* The end of the input: operator by operator.                                                                     *)
EndInput(i) ==
    /\ Runs /\ next > Max /\ t.told = i - 1 /\ t.finished = i - 1
    /\ t.link[i] = <<>> \/ Mutant = "the input ends before its link is empty"
    /\ t' = [t EXCEPT !.told = i]
    /\ Same

HasDrained(i) ==
    CASE Mutant = "ends before retries" ->
            \A k \in DOMAIN t.queue[i] : t.queue[i][k].state = "pausing" \/ IsMark(t.queue[i][k].row)
      [] Mutant = "ends before it has emitted" -> \A k \in DOMAIN t.queue[i] : Done(t.queue[i][k])
      [] OTHER -> t.queue[i] = <<>>

Finish(i) ==
    /\ Runs /\ t.told = i /\ t.finished = i - 1
    /\ HasDrained(i) /\ t.rest[i] = <<>>
    /\ t' = [t EXCEPT !.finished = i]
    /\ Same

EndTask ==
    /\ Runs /\ t.finished = 2
    /\ phase' = "done" /\ output' = output \o t.chunk
    /\ t' = [t EXCEPT !.chunk = <<>>]
    /\ UNCHANGED <<next, saved, snapshots, crashes, late, h>>

-----------------------------------------------------------------------------
(* Snapshot, crash, restore, stop. A snapshot is taken between two actions, at one instant.                         *)
Kept(e) ==
    CASE Done(e) -> IF Mutant = "a snapshot drops results" /\ ~IsMark(e.row) THEN [e EXCEPT !.state = "waiting"] ELSE e
      [] e.state = "running" \/ Mutant = "a snapshot forgets pauses" -> [e EXCEPT !.state = "waiting"]
      [] OTHER -> e

KeptQueue(i) ==
    LET all == t.queue[i] \o (IF Mutant = "a snapshot forgets what is to be restored" THEN <<>> ELSE t.rest[i])
    IN  [k \in DOMAIN all |-> Kept(all[k])]

KeptLink(i) ==
    IF Mutant = "a snapshot forgets the links" THEN <<>>
    ELSE [k \in DOMAIN t.link[i] |->
            IF Mutant = "a snapshot keeps whole batches" THEN Element(t.link[i][k].rows)
            ELSE Element(RowsLeft(t.link[i][k]))]

Now == [next |-> next, link |-> [i \in Operators |-> KeptLink(i)], queue |-> [i \in Operators |-> KeptQueue(i)],
        chunk |-> IF Mutant = "a snapshot forgets the output" THEN <<>> ELSE t.chunk, finished |-> t.finished,
        out |-> Len(output), past |-> h.past, dropped |-> h.dropped]

Snapshot ==
    /\ Runs /\ snapshots < Snapshots
    /\ snapshots' = snapshots + 1 /\ saved' = Now
    /\ UNCHANGED <<next, t, output, phase, crashes, late, h>>

(* An operator's part raises: nothing of it is kept, and the task goes on.                                          *)
Decline ==
    /\ Runs /\ snapshots < Snapshots
    /\ snapshots' = snapshots + 1
    /\ saved' = IF Mutant = "half of a declined snapshot is kept" THEN [saved EXCEPT !.queue[1] = Now.queue[1]]
                ELSE saved
    /\ UNCHANGED <<next, t, output, phase, crashes, late, h>>

(* Between two actions: what a crash within one takes away, no snapshot and no consumer has seen.                    *)
Crash ==
    /\ Runs /\ crashes < Crashes
    /\ phase' = "down" /\ crashes' = crashes + 1
    /\ next' = 0 /\ t' = Nothing /\ output' = SubSeq(output, 1, saved.out)
    /\ late' = IF ~Lingers THEN {}
               ELSE UNION {{[operator |-> i, row |-> t.queue[i][k].row, life |-> Life] : k \in InState(i, "running")}
                               : i \in Operators}
    /\ h' = [h EXCEPT !.past = saved.past, !.dropped = saved.dropped]
    /\ UNCHANGED <<saved, snapshots>>

Restored(e) ==
    [e EXCEPT !.failures = IF Mutant = "a restore resets the attempts" THEN 0 ELSE @,
              !.spent = IF Mutant = "a restore resets the time" THEN 0 ELSE @]

Restore ==
    /\ phase = "down" /\ phase' = "running"
    /\ next' = IF Mutant = "the end is put again" /\ saved.next > Max THEN Max ELSE saved.next
    /\ LET rest == [i \in Operators |-> [k \in DOMAIN saved.queue[i] |-> Restored(saved.queue[i][k])]]
       IN  t' = [Fresh(saved.link, rest, saved.chunk, saved.finished) EXCEPT !.moving = TRUE]
    /\ UNCHANGED <<output, saved, snapshots, crashes, late, h>>

Stop ==
    /\ Runs /\ Cancels /\ phase' = "closed"
    /\ t' = IF Mutant = "emits after it was stopped" THEN t
            ELSE [Nothing EXCEPT !.chunk = t.chunk]
    /\ UNCHANGED <<next, output, saved, snapshots, crashes, late, h>>

Ended == phase \in {"done", "closed"} /\ UNCHANGED vars

-----------------------------------------------------------------------------
Goes ==
    \/ Read \/ SuspendInput \/ EndOfInput \/ Wake \/ Watch \/ RoomMail \/ Take \/ EndTask \/ Restore \/ LateAnswer
    \/ \E i \in Operators :
        \/ ProcessBatch(i) \/ ProcessWatermark(i) \/ AdmitRestored(i) \/ Start(i) \/ Emit(i) \/ WaitForRoom(i)
        \/ Complete(i) \/ Fail(i) \/ PauseOver(i) \/ TimePasses(i) \/ EndInput(i) \/ Finish(i)

Next == Goes \/ Snapshot \/ Decline \/ Crash \/ Stop \/ Ended

(* Nothing waits for a particular step: whatever is done brings the end nearer, and the loop does something while     *)
(* there is something to do. Calls end, pauses too, and the consumer takes.                                         *)
Spec == Init /\ [][Next]_vars
FairSpec == Spec /\ WF_vars(Goes)
=============================================================================
