------------------------------ MODULE Operator ------------------------------
(* One asynchronous operator, step by step, as it ships: AsyncWaitOperator of pillarbox.aio with its CallScheduler,   *)
(* result queue and the output behind it. Each step is told of by what makes it, so that a recorded run of the        *)
(* operator is judged step by step, in OperatorTrace. What has to hold is in OperatorChecks; the order of emission is  *)
(* that of ResultQueueOrder. What two operators in a task do with links, room and batches is in Chain, who begins      *)
(* calls in Feeding, what threads may do to a queue in ResultQueue.                                                  *)
(*                                                                                                                  *)
(* An operator has lives: Create begins one, which may take over a snapshot of one before (Restore). A row has a      *)
(* number in each life, and a label that is its own in all. Times are milliseconds of the present life.              *)
EXTENDS Integers, Sequences, FiniteSets

CONSTANTS
    Tolerance,  \* milliseconds by which a timer may be early
    Mutant

VARIABLES
    plan,       \* of the present life: [ordered, window, limit, attempts, timeout, slack, parts]; 0: no limit.
                \* attempts: of a row, but for those that an error of its function asked for (AskAgain).
                \* slack: milliseconds by which a time-out may be late, and what a snapshot says of times be off
    phase,      \* "none", "running", "ended" (the input), "finished", "closed"
    queue,      \* entries admitted and not emitted
    rest,       \* entries of the restored snapshot that wait to be admitted
    inputs,     \* labels of the rows in the order in which they come, in every life
    admitted,   \* rows that have come in, in the timeline that no restart has taken back
    gone,       \* rows that have been emitted in it
    saved       \* snapshots taken

vars == <<plan, phase, queue, rest, inputs, admitted, gone, saved>>

Live == phase \in {"running", "ended"}

Turn(ordered) == INSTANCE ResultQueueOrder WITH Marks <- {0}, Ordered <- ordered
InTurn(k) == Turn(plan.ordered)!InTurn(queue, k)
Without(k) == SubSeq(queue, 1, k - 1) \o SubSeq(queue, k + 1, Len(queue))

(* Entries. A row is waiting, running, failed (an attempt of it, or its time), pausing, joined to another's call,     *)
(* decided (its result is there, perhaps not durable), withdrawn, done: its entry has the result; or it ended behind    *)
(* the close of the operator: late (an attempt failed), or dropped. `began` is when its time began to count, which may  *)
(* be before this life; `due` when its pause ends.                                                                    *)
NotBegun == 1000000000

Row(n, label) ==
    [pos |-> n, label |-> label, state |-> "waiting", attempts |-> 0, repeats |-> 0, began |-> NotBegun, due |-> 0]
MarkEntry(elements) == [pos |-> 0, state |-> "done", elements |-> elements]
IsMark(e) == e.pos = 0
IsRow(k, states) == ~IsMark(queue[k]) /\ queue[k].state \in states

HasRoom == Len(queue) < plan.window \/ (Mutant = "admits one too many" /\ Len(queue) = plan.window)

(* The time of a row is not over for longer than the slack.                                                         *)
InTime(k, now) ==
    plan.timeout > 0 /\ queue[k].began # NotBegun => now <= queue[k].began + plan.timeout + plan.slack

-----------------------------------------------------------------------------
(* Lives. The one before has ended, or was killed. The next one may keep the order where that one did not, or the     *)
(* other way: what was saved is in the order of the input.                                                           *)
Create(p) ==
    /\ plan' = p /\ phase' = "running" /\ queue' = <<>> /\ rest' = <<>> /\ admitted' = 0 /\ gone' = 0
    /\ UNCHANGED <<inputs, saved>>

Unnumbered(entries) == [i \in DOMAIN entries |-> [entries[i] EXCEPT !.pos = 0]]

Restore(entries, out) ==
    /\ phase = "running" /\ queue = <<>> /\ admitted = 0
    /\ \E s \in DOMAIN saved :
        /\ saved[s].gone = out
        /\ Len(saved[s].entries) = Len(entries) /\ Unnumbered(saved[s].entries) = Unnumbered(entries)
        /\ rest' = entries /\ admitted' = saved[s].admitted /\ gone' = out
    /\ UNCHANGED <<plan, phase, queue, inputs, saved>>

EndInput ==
    /\ phase = "running" /\ phase' = "ended"
    /\ UNCHANGED <<plan, queue, rest, inputs, admitted, gone, saved>>

Finish ==
    /\ phase = "ended" /\ phase' = "finished"
    /\ (queue = <<>> /\ rest = <<>>) \/ (Mutant = "ends before retries" /\ \A k \in DOMAIN queue : IsRow(k, {"pausing"}))
    /\ UNCHANGED <<plan, queue, rest, inputs, admitted, gone, saved>>

Close ==
    /\ phase \notin {"none", "closed"} /\ phase' = "closed"
    /\ UNCHANGED <<plan, queue, rest, inputs, admitted, gone, saved>>

-----------------------------------------------------------------------------
(* Rows and marks come in. In each life the same row comes at a place.                                              *)
MayEnter == phase = "running" /\ (rest = <<>> \/ Mutant = "input overtakes what is restored")

Admit(n, label) ==
    /\ MayEnter /\ HasRoom
    /\ admitted < Len(inputs) => inputs[admitted + 1] = label
    /\ queue' = Append(queue, Row(n, label))
    /\ inputs' = IF admitted < Len(inputs) THEN inputs ELSE Append(inputs, label)
    /\ admitted' = admitted + 1
    /\ UNCHANGED <<plan, phase, rest, gone, saved>>

(* A mark takes an entry, or takes part in that of the mark just before: the newest of each kind is kept.            *)
PutMark(kind, value) ==
    /\ MayEnter
    /\ LET last == queue[Len(queue)]
           Other(element) == element[1] # kind
       IN  IF queue # <<>> /\ IsMark(last)
           THEN queue' = [queue EXCEPT ![Len(queue)].elements = Append(SelectSeq(@, Other), <<kind, value>>)]
           ELSE HasRoom /\ queue' = Append(queue, MarkEntry(<<<<kind, value>>>>))
    /\ UNCHANGED <<plan, phase, rest, inputs, admitted, gone, saved>>

(* A restored entry enters like any other. One with a result is not called; of another counts what it has spent       *)
(* already, not the time between snapshot and restore.                                                              *)
Readmitted(e, now) ==
    IF e.kind = "mark" THEN MarkEntry(e.elements)
    ELSE IF e.kind # "open" /\ Mutant # "a restored result is called again"
         THEN [Row(e.pos, e.label) EXCEPT !.state = IF e.kind = "done" THEN "done" ELSE "decided"]
    ELSE [Row(e.pos, e.label) EXCEPT
            !.state = IF e.pause >= 0 THEN "pausing" ELSE "waiting",
            !.attempts = IF Mutant = "a restore resets the attempts" THEN 0 ELSE e.attempts,
            !.repeats = IF Mutant = "a restore resets the repeats" THEN 0 ELSE e.repeats,
            !.began = IF (e.attempts > 0 \/ e.spent > 0) /\ Mutant # "a restore resets the time"
                      THEN now - e.spent ELSE NotBegun,
            !.due = IF e.pause >= 0 THEN now + e.pause ELSE 0]

Readmit(now) ==
    /\ Live /\ rest # <<>> /\ HasRoom
    /\ queue' = Append(queue, Readmitted(Head(rest), now)) /\ rest' = Tail(rest)
    /\ UNCHANGED <<plan, phase, inputs, admitted, gone, saved>>

-----------------------------------------------------------------------------
(* Calls.                                                                                                          *)
Becomes(k, states, e) ==
    /\ Live /\ IsRow(k, states) /\ queue' = [queue EXCEPT ![k] = e]
    /\ UNCHANGED <<plan, phase, rest, inputs, admitted, gone, saved>>

To(k, states, state) == Becomes(k, states, [queue[k] EXCEPT !.state = state])

Running == {j \in DOMAIN queue : queue[j].state = "running"}

(* Rows of a batch that failed together may be called in parts, at once.                                             *)
Start(k, attempt, now) ==
    /\ Becomes(k, {"waiting", "pausing"} \cup (IF plan.parts THEN {"failed"} ELSE {}),
               [queue[k] EXCEPT !.state = "running", !.attempts = attempt, !.began = IF @ = NotBegun THEN now ELSE @])
    /\ attempt = queue[k].attempts + 1
    /\ plan.attempts > 0 => attempt - queue[k].repeats <= plan.attempts
    /\ now + Tolerance >= queue[k].due \/ Mutant = "a pause is cut short"
    /\ InTime(k, now)
    /\ plan.limit > 0 => Cardinality(Running) < plan.limit

Answer(k, now) == InTime(k, now) /\ To(k, {"running"}, "decided")

Fail(k) == To(k, {"running"}, "failed")

Again(k, pause, now) == Becomes(k, {"failed"}, [queue[k] EXCEPT !.state = "pausing", !.due = now + pause])

(* A call that has not come to its end for want of something of its process is not an attempt: it returns to wait, and *)
(* its row is as it was before. The time of one whose first call it was begins with the next (`fresh`).                  *)
Return(k, pause, fresh, now) ==
    /\ Becomes(k, {"running"},
               [queue[k] EXCEPT !.state = "pausing", !.due = now + pause,
                                !.attempts = IF Mutant = "a returned call counts" THEN @ ELSE @ - 1,
                                !.began = IF fresh THEN NotBegun ELSE @])
    /\ fresh => queue[k].attempts = 1

(* The error of a failed attempt asks for another one, at once, of those that it allows; that one is counted apart.   *)
(* One is allowed where nothing was read of the request.                                                            *)
AskAgain(k, most, now) ==
    /\ Becomes(k, {"failed"}, [queue[k] EXCEPT !.state = "pausing", !.due = now, !.repeats = @ + 1])
    /\ queue[k].repeats < most \/ Mutant = "asks again without end"

TimeOut(k, now) ==
    /\ To(k, {"waiting", "running", "pausing", "failed"}
               \cup (IF Mutant = "a time-out comes after the result" THEN {"decided", "done"} ELSE {}), "failed")
    /\ plan.timeout > 0 /\ queue[k].began # NotBegun
    /\ now + Tolerance >= queue[k].began + plan.timeout /\ InTime(k, now)

GiveUp(k) == To(k, {"waiting", "joined", "running", "failed"}, "decided")

(* The result of another row's call, of another attempt of the task, or of the ledger.                              *)
Join(k) == To(k, {"waiting"}, "joined")
Find(k) == To(k, {"waiting", "joined", "pausing", "decided", "withdrawn"}, "decided")

Withdraw(k) == To(k, {"waiting", "running", "pausing", "failed"}, "withdrawn")

Complete(k) == To(k, {"decided", "withdrawn"}, "done")

(* A call that is in flight when the operator is closed ends behind that, before it is cancelled, and so do rows that  *)
(* share it. An answer, a failure and what the row ends with are dropped: none of them comes out, is called again, or *)
(* is in a snapshot.                                                                                                *)
LateOutcome(k, states, state) ==
    /\ phase = "closed" /\ IsRow(k, states)
    /\ IF Mutant = "emits a late outcome" /\ state = "dropped"
       THEN queue' = Without(k) /\ gone' = gone + 1
       ELSE queue' = [queue EXCEPT ![k].state = state] /\ UNCHANGED gone
    /\ UNCHANGED <<plan, phase, rest, inputs, admitted, saved>>

LateAnswer(k) == LateOutcome(k, {"running"}, "dropped")
LateFailure(k) == LateOutcome(k, {"running"}, "late")
LateEnd(k) == LateOutcome(k, {"running", "late"}, "dropped")
LateShare(k) == LateOutcome(k, {"joined"}, "dropped")

-----------------------------------------------------------------------------
(* Results come out.                                                                                               *)
EmitRow(k) ==
    /\ Live \/ (Mutant = "emits after it was closed" /\ phase = "closed")
    /\ IsRow(k, {"done"}) /\ InTurn(k)
    /\ queue' = IF Mutant = "emits twice" /\ gone = 0 THEN queue ELSE Without(k)
    /\ gone' = gone + 1
    /\ UNCHANGED <<plan, phase, rest, inputs, admitted, saved>>

EmitMark(kind, value) ==
    /\ Live
    /\ \E k \in {1} \cap DOMAIN queue :
        /\ IsMark(queue[k]) /\ Head(queue[k].elements) = <<kind, value>>
        /\ queue' = IF Len(queue[k].elements) = 1 THEN Without(k) ELSE [queue EXCEPT ![k].elements = Tail(@)]
    /\ UNCHANGED <<plan, phase, rest, inputs, admitted, gone, saved>>

-----------------------------------------------------------------------------
(* A snapshot has everything that came in and has not gone out, as it is.                                            *)
Near(a, b) == a - b <= plan.slack /\ b - a <= plan.slack

Spent(e, now) == IF e.began = NotBegun THEN 0 ELSE now - e.began

\* Of a pause; -1 where none is waited for.
Left(e, now) ==
    IF e.state \notin {"pausing", "failed"} THEN -1 ELSE IF e.due > now THEN e.due - now ELSE 0

Failures(e) == IF e.state = "running" THEN e.attempts - 1 ELSE e.attempts

Kept(e, now) ==
    IF IsMark(e) THEN [pos |-> 0, kind |-> "mark", elements |-> e.elements]
    ELSE LET result == e.state \in {"done", "decided"} /\ Mutant # "a snapshot drops results"
         IN  [pos |-> e.pos, label |-> e.label,
              kind |-> IF ~result THEN "open" ELSE IF e.state = "done" THEN "done" ELSE "kept",
              attempts |-> IF result THEN 0 ELSE Failures(e), repeats |-> IF result THEN 0 ELSE e.repeats,
              spent |-> IF result THEN 0 ELSE Spent(e, now),
              pause |-> IF result \/ Mutant = "a snapshot forgets pauses" THEN -1 ELSE Left(e, now)]

(* What was recorded of an entry says what the entry is: its times were rounded, and whose pause is over waits as      *)
(* any other.                                                                                                      *)
Says(recorded, e, now) ==
    LET kept == Kept(e, now)
    IN  IF kept.kind = "mark" THEN recorded = kept
        ELSE /\ recorded.kind = kept.kind /\ recorded.pos = kept.pos /\ recorded.label = kept.label
             /\ recorded.attempts = kept.attempts /\ recorded.repeats = kept.repeats
             /\ Near(recorded.spent, kept.spent)
             /\ \/ recorded.pause = -1 /\ kept.pause <= plan.slack
                \/ recorded.pause >= 0 /\ kept.pause >= 0 /\ Near(recorded.pause, kept.pause)

Snapshot(entries, out, now) ==
    /\ phase \in {"running", "ended", "finished"} /\ out = gone
    /\ Len(entries) = Len(queue) + Len(rest)
    /\ \A i \in DOMAIN queue : Says(entries[i], queue[i], now)
    /\ SubSeq(entries, Len(queue) + 1, Len(entries)) = rest
    /\ saved' = Append(saved, [ordered |-> plan.ordered, entries |-> entries, admitted |-> admitted, gone |-> gone])
    /\ UNCHANGED <<plan, phase, queue, rest, inputs, admitted, gone>>

Init ==
    /\ plan = [ordered |-> TRUE, window |-> 0, limit |-> 0, attempts |-> 0, timeout |-> 0, slack |-> 0, parts |-> FALSE]
    /\ phase = "none" /\ queue = <<>> /\ rest = <<>> /\ inputs = <<>> /\ admitted = 0 /\ gone = 0 /\ saved = <<>>
=============================================================================
