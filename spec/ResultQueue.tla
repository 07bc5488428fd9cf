---------------------------- MODULE ResultQueue ----------------------------
(* The result queue of the asynchronous operator, from the reading of the  *)
(* input to the committed output: admission, calls and their retries,      *)
(* completion from any thread, time-outs, emission, snapshots, crashes,    *)
(* restoring, end of input, cancelling. What has to hold is in             *)
(* ResultQueueChecks; the order of emission is in ResultQueueOrder.        *)
(*                                                                         *)
(* The input is the positions 1..Length; those in Marks are watermarks.    *)
(* One thread, the task, does all steps but Look, Complete and Tell,       *)
(* which are those of the threads that complete calls.                     *)
(*                                                                         *)
(* Methods of the kernel's ResultQueue: Put is put, PutWatermark           *)
(* put_watermark, Renew renew, Look and Complete are complete, Timeout is  *)
(* complete by the task, Emit is emit and emit_many, Snapshot snapshot,    *)
(* Restore restore, AdmitRestored admit_restored, Close close. The other   *)
(* actions are those of the operator around it.                            *)
EXTENDS Naturals, Sequences, FiniteSets, ResultQueueOrder

CONSTANTS
    Length,     \* positions of the input
    Capacity,   \* most entries admitted and not emitted
    Attempts,   \* most calls of one entry in one life, retries included
    Answers,    \* how often one call may be answered: 2 means callbacks that come twice
    Timeouts,   \* whether entries may time out
    Snapshots,  \* most snapshots taken
    Crashes,    \* most crashes
    Cancels     \* whether the operator may be cancelled

VARIABLES
    next,       \* the position of the input that is read next
    door,       \* what was read and waits to be admitted: a sequence of at most one position
    queue,      \* entries admitted and not emitted, in the order of admission
    rest,       \* entries of the restored snapshot that wait to be admitted
    calls,      \* answers on their way; `at` says how far each has come
    mail,       \* whether the mail "results are ready" waits for the task
    task,       \* what the task is about: "idle", "emitting", or "clearing" (one mutant)
    hand,       \* taken out but not given to the output: always empty but in one mutant
    output,     \* everything emitted and not taken back by a crash
    committed,  \* how much of the output is committed
    pending,    \* snapshots taken and not acknowledged, oldest first
    saved,      \* the last acknowledged snapshot
    taken,      \* number of snapshots taken
    crashes,    \* number of crashes
    phase,      \* "running", "draining", "quiesced", "done", "closed", or "down"
    kept        \* history: positions with a result in the snapshot that this life began with

vars == <<next, door, queue, rest, calls, mail, task, hand, output, committed,
          pending, saved, taken, crashes, phase, kept>>

Live == phase \in {"running", "draining"}

------------------------------------------------------------------------------
(* Entries and calls. A handle is the slot, the position and the attempt. *)

None == <<>>
TimedOut(pos) == <<pos, 0, 0>>
Answer(c) == <<c.pos, c.attempt, c.answer>>

Running(pos, slot) ==
    [pos |-> pos, slot |-> slot, attempt |-> 1, done |-> FALSE, result |-> None, first |-> None]

Mark(pos, slot) ==
    [pos |-> pos, slot |-> slot, attempt |-> 0, done |-> TRUE, result |-> <<pos>>, first |-> <<pos>>]

\* The entry with a result; `first` remembers which result was the first one.
Finished(e, result) ==
    [e EXCEPT !.done = TRUE, !.result = result, !.first = IF e.done THEN @ ELSE result]

Started(pos, slot, attempt) ==
    [pos : {pos}, slot : {slot}, attempt : {attempt}, answer : 1..Answers, at : {"calling"}]

FreeSlot ==
    CHOOSE s \in 1..(Capacity + Length) :
        /\ \A i \in 1..Len(queue) : queue[i].slot # s
        /\ \A r \in 1..(s - 1) : \E i \in 1..Len(queue) : queue[i].slot = r

HasRoom ==
    \/ Len(queue) < Capacity
    \/ Mutant = "capacity_off_by_one" /\ Len(queue) = Capacity

\* The entries that accept the handle of this call, finished ones included.
Holders(c) ==
    {i \in 1..Len(queue) :
        /\ queue[i].slot = c.slot
        /\ queue[i].pos = c.pos \/ Mutant = "slot_reused"
        /\ queue[i].attempt = c.attempt \/ Mutant = "earlier_attempt_accepted"}

\* Those among them that have no result yet.
Takers(c) == {i \in Holders(c) : ~queue[i].done \/ Mutant = "late_overwrites"}

------------------------------------------------------------------------------
(* Input. *)

Read ==
    /\ phase = "running" /\ next <= Length /\ door = <<>>
    /\ rest = <<>> \/ Mutant = "input_overtakes"
    /\ door' = <<next>> /\ next' = next + 1
    /\ UNCHANGED <<queue, rest, calls, mail, task, hand, output, committed, pending, saved, taken,
                   crashes, phase, kept>>

MayPut ==
    /\ phase = "running" /\ door # <<>>
    /\ HasRoom \/ (Mutant = "watermark_past_capacity" /\ door[1] \in Marks)
    /\ rest = <<>> \/ Mutant = "input_overtakes"

Put ==
    /\ MayPut /\ door[1] \notin Marks
    /\ queue' = Append(queue, Running(door[1], FreeSlot))
    /\ calls' = calls \cup Started(door[1], FreeSlot, 1)
    /\ door' = <<>>
    /\ UNCHANGED <<next, rest, mail, task, hand, output, committed, pending, saved, taken, crashes,
                   phase, kept>>

\* A watermark is finished when it comes, so it arms the emission.
PutWatermark ==
    /\ MayPut /\ door[1] \in Marks
    /\ queue' = Append(queue, Mark(door[1], FreeSlot))
    /\ mail' = (mail \/ Mutant # "watermark_not_armed")
    /\ door' = <<>>
    /\ UNCHANGED <<next, rest, calls, task, hand, output, committed, pending, saved, taken, crashes,
                   phase, kept>>

EndOfInput ==
    /\ phase = "running" /\ next > Length /\ door = <<>> /\ rest = <<>>
    /\ phase' = "draining"
    /\ UNCHANGED <<next, door, queue, rest, calls, mail, task, hand, output, committed, pending,
                   saved, taken, crashes, kept>>

\* Whether the end of the input has waited for everything.
Drained ==
    CASE Mutant = "quiesce_early" -> TRUE
      [] Mutant = "quiesce_forgets_retries" ->
            calls = {} /\ \A i \in 1..Len(queue) : ~queue[i].done
      [] Mutant = "quiesce_waits_for_late_calls" -> queue = <<>> /\ calls = {}
      [] OTHER -> queue = <<>> /\ hand = <<>>

Quiesce ==
    /\ phase = "draining" /\ Drained
    /\ phase' = "quiesced"
    /\ UNCHANGED <<next, door, queue, rest, calls, mail, task, hand, output, committed, pending,
                   saved, taken, crashes, kept>>

\* The end of the whole input is acknowledged too.
Finish ==
    /\ phase = "quiesced"
    /\ phase' = "done" /\ committed' = Len(output) /\ pending' = <<>>
    /\ UNCHANGED <<next, door, queue, rest, calls, mail, task, hand, output, saved, taken, crashes,
                   kept>>

------------------------------------------------------------------------------
(* Calls and completions. *)

At(where) == {c \in calls : c.at = where}

Unfinished == {i \in 1..Len(queue) : ~queue[i].done}

\* The call fails and is to be repeated: it ends without a completion, its entry waits for Renew.
Fail ==
    /\ Live
    /\ \E c \in At("calling") : c.attempt < Attempts /\ calls' = calls \ {c}
    /\ UNCHANGED <<next, door, queue, rest, mail, task, hand, output, committed, pending, saved,
                   taken, crashes, phase, kept>>

\* Another attempt. The call of the old one may still be under way.
Renew ==
    /\ Live
    /\ \E i \in Unfinished :
        /\ queue[i].attempt < Attempts
        /\ queue' = [queue EXCEPT ![i].attempt = @ + 1]
        /\ calls' = calls \cup Started(queue[i].pos, queue[i].slot, queue[i].attempt + 1)
    /\ UNCHANGED <<next, door, rest, mail, task, hand, output, committed, pending, saved, taken,
                   crashes, phase, kept>>

Timeout ==
    /\ Live /\ Timeouts
    /\ \E i \in Unfinished :
        queue' = IF Mutant = "timeout_without_result" THEN queue
                 ELSE [queue EXCEPT ![i] = Finished(@, TimedOut(@.pos))]
    /\ mail' = TRUE
    /\ UNCHANGED <<next, door, rest, calls, task, hand, output, committed, pending, saved, taken,
                   crashes, phase, kept>>

\* A compare-and-set in two steps. First look whether the handle is accepted ...
Look ==
    \E c \in At("calling") :
    /\ calls' = (calls \ {c}) \cup (IF Takers(c) # {} THEN {[c EXCEPT !.at = "looked"]} ELSE {})
    /\ UNCHANGED <<next, door, queue, rest, mail, task, hand, output, committed, pending, saved,
                   taken, crashes, phase, kept>>

\* ... then set the result, if the handle still is.
Complete ==
    \E c \in At("looked") :
    /\ LET accepting == IF Mutant = "check_then_set" THEN Holders(c) ELSE Takers(c)
       IN  IF accepting = {} THEN calls' = calls \ {c} /\ UNCHANGED queue
           ELSE \E i \in accepting :
                  /\ queue' = [queue EXCEPT ![i] = Finished(@, Answer(c))]
                  /\ calls' = (calls \ {c}) \cup {[c EXCEPT !.at = "set"]}
    /\ UNCHANGED <<next, door, rest, mail, task, hand, output, committed, pending, saved, taken,
                   crashes, phase, kept>>

\* After a completion its thread mails the task. One mail may serve several completions.
Tell ==
    \E c \in At("set") :
    /\ calls' = calls \ {c}
    /\ mail' = (mail \/ Live)
    /\ UNCHANGED <<next, door, queue, rest, task, hand, output, committed, pending, saved, taken,
                   crashes, phase, kept>>

------------------------------------------------------------------------------
(* Emission. *)

Emitting == task = "emitting" /\ (Live \/ Mutant = "emission_after_close")

TakeMail ==
    /\ Live /\ mail /\ task = "idle"
    /\ mail' = (Mutant = "mail_cleared_late")
    /\ task' = "emitting"
    /\ UNCHANGED <<next, door, queue, rest, calls, hand, output, committed, pending, saved, taken,
                   crashes, phase, kept>>

\* Out of the queue and into the output in one step; on until nothing more may go.
Emit ==
    \E i \in Ready(queue) :
    /\ Emitting /\ hand = <<>>
    /\ queue' = Without(queue, i)
    /\ IF Mutant = "emit_in_two_steps"
       THEN hand' = <<Emission(queue[i])>> /\ UNCHANGED output
       ELSE output' = Append(output, Emission(queue[i])) /\ UNCHANGED hand
    /\ task' = IF Mutant = "one_emission_per_mail" THEN "idle" ELSE task
    /\ UNCHANGED <<next, door, rest, calls, mail, committed, pending, saved, taken, crashes, phase,
                   kept>>

\* Emission may overlook a completion whose thread has not told the task yet, or whose mail waits: the task
\* comes back for it.
ComesBack(i) == mail \/ \E c \in At("set") : c.pos = queue[i].pos /\ c.slot = queue[i].slot

EmitDone ==
    /\ Emitting /\ hand = <<>> /\ \A i \in Ready(queue) : ComesBack(i)
    /\ task' = IF Mutant = "mail_cleared_late" THEN "clearing" ELSE "idle"
    /\ UNCHANGED <<next, door, queue, rest, calls, mail, hand, output, committed, pending, saved,
                   taken, crashes, phase, kept>>

------------------------------------------------------------------------------
(* Snapshot, commit, crash, restore, close. *)

AtDoor == IF door = <<>> \/ Mutant = "snapshot_without_door" THEN <<>>
          ELSE IF door[1] \in Marks THEN <<Mark(door[1], 0)>> ELSE <<Running(door[1], 0)>>

\* What a snapshot keeps of an entry. An unfinished one begins again with its first attempt.
Kept(e) == IF e.done /\ Mutant # "snapshot_drops_results" THEN [e EXCEPT !.slot = 0]
           ELSE Running(e.pos, 0)

Entries ==
    LET last == output[Len(output)]
        emitted == IF Mutant = "snapshot_keeps_emitted" /\ output # <<>> /\ last.pos \notin Marks
                   THEN <<[Finished(Running(last.pos, 0), last.result) EXCEPT !.attempt = last.result[2]]>>
                   ELSE <<>>
        held == [i \in 1..Len(queue) |-> Kept(queue[i])]
    IN  emitted \o held \o (IF Mutant = "snapshot_forgets_restoring" THEN <<>> ELSE rest) \o AtDoor

Snapshot ==
    /\ Live /\ taken < Snapshots
    /\ taken' = taken + 1
    /\ pending' = Append(pending, [next |-> next, entries |-> Entries, out |-> Len(output),
                                   finished |-> FinishedIn(queue) \cup FinishedIn(rest)])
    /\ UNCHANGED <<next, door, queue, rest, calls, mail, task, hand, output, committed, saved,
                   crashes, phase, kept>>

\* The acknowledgement of one snapshot makes those before it superfluous.
Acknowledge ==
    \E i \in 1..Len(pending) :
    /\ phase \in {"running", "draining", "quiesced"}
    /\ saved' = pending[i]
    /\ pending' = IF Mutant = "older_acknowledged" THEN Without(pending, i)
                  ELSE SubSeq(pending, i + 1, Len(pending))
    /\ committed' = IF Mutant = "commit_after_snapshot" THEN Len(output) ELSE pending[i].out
    /\ UNCHANGED <<next, door, queue, rest, calls, mail, task, hand, output, taken, crashes, phase,
                   kept>>

\* The process is gone, and with it what it emitted without a commit.
Crash ==
    /\ phase \in {"running", "draining", "quiesced"} /\ crashes < Crashes
    /\ crashes' = crashes + 1 /\ phase' = "down"
    /\ next' = 0 /\ door' = <<>> /\ queue' = <<>> /\ rest' = <<>> /\ calls' = {}
    /\ mail' = FALSE /\ task' = "idle" /\ hand' = <<>> /\ pending' = <<>> /\ kept' = {}
    /\ output' = SubSeq(output, 1, committed)
    /\ UNCHANGED <<committed, saved, taken>>

Restore ==
    /\ phase = "down"
    /\ phase' = "running" /\ next' = saved.next /\ kept' = saved.finished
    /\ rest' = IF Mutant = "restore_shuffled" THEN Reversed(saved.entries) ELSE saved.entries
    /\ UNCHANGED <<door, queue, calls, mail, task, hand, output, committed, pending, saved, taken,
                   crashes>>

\* A restored entry enters like any other. A finished one is not called, and arms the emission.
AdmitRestored ==
    /\ Live /\ rest # <<>>
    /\ HasRoom \/ Mutant = "restore_past_capacity"
    /\ LET e == Head(rest)
           again == ~e.done \/ (Mutant = "restored_called_again" /\ e.pos \notin Marks)
           entry == IF again THEN Running(e.pos, FreeSlot) ELSE [e EXCEPT !.slot = FreeSlot]
       IN  /\ queue' = Append(queue, entry)
           /\ calls' = calls \cup (IF again THEN Started(e.pos, FreeSlot, 1) ELSE {})
           /\ mail' = (mail \/ (~again /\ Mutant # "restored_not_armed"))
    /\ rest' = Tail(rest)
    /\ UNCHANGED <<next, door, task, hand, output, committed, pending, saved, taken, crashes, phase,
                   kept>>

\* Calls may still be under way afterwards; their completions have no effect.
Close ==
    /\ Live /\ Cancels
    /\ phase' = "closed" /\ door' = <<>> /\ mail' = FALSE /\ pending' = <<>>
    /\ rest' = IF Mutant = "close_keeps_restoring" THEN rest ELSE <<>>
    /\ IF Mutant = "emission_after_close" THEN UNCHANGED <<queue, task, hand>>
       ELSE queue' = <<>> /\ task' = "idle" /\ hand' = <<>>
    /\ UNCHANGED <<next, calls, output, committed, saved, taken, crashes, kept>>

------------------------------------------------------------------------------
(* Steps of mutants only. *)

\* "emit_in_two_steps": what was taken out is given to the output later.
GiveToOutput ==
    /\ Live /\ hand # <<>>
    /\ output' = output \o hand /\ hand' = <<>>
    /\ UNCHANGED <<next, door, queue, rest, calls, mail, task, committed, pending, saved, taken,
                   crashes, phase, kept>>

\* "mail_cleared_late": the mail is taken after the emission that it asked for.
ClearMail ==
    /\ Live /\ task = "clearing"
    /\ task' = "idle" /\ mail' = FALSE
    /\ UNCHANGED <<next, door, queue, rest, calls, hand, output, committed, pending, saved, taken,
                   crashes, phase, kept>>

------------------------------------------------------------------------------

Init ==
    /\ next = 1 /\ door = <<>> /\ queue = <<>> /\ rest = <<>> /\ calls = {}
    /\ mail = FALSE /\ task = "idle" /\ hand = <<>> /\ output = <<>> /\ committed = 0
    /\ pending = <<>> /\ taken = 0 /\ crashes = 0 /\ phase = "running" /\ kept = {}
    /\ saved = [next |-> 1, entries |-> <<>>, out |-> 0, finished |-> {}]

\* At the end nothing has to happen any more. A mutant may get stuck before, to be caught by the property
\* that says what has to happen.
Ended == (phase \in {"done", "closed"} \/ Mutant # "none") /\ UNCHANGED vars

OfTask ==
    \/ Read \/ Put \/ PutWatermark \/ EndOfInput \/ Quiesce \/ Finish
    \/ TakeMail \/ Emit \/ EmitDone \/ Restore \/ AdmitRestored \/ GiveToOutput \/ ClearMail

Next ==
    \/ OfTask
    \/ Renew \/ Timeout \/ Fail \/ Look \/ Complete \/ Tell
    \/ Snapshot \/ Acknowledge \/ Crash \/ Close \/ Ended

\* The task goes on, and so does a thread that has begun to complete a call. What ends a call is its
\* time-out if there is one, else its completion, which may need another attempt.
Fairness ==
    /\ WF_vars(OfTask)
    /\ WF_vars(Complete \/ Tell)
    /\ IF Timeouts THEN WF_vars(Timeout) ELSE WF_vars(Look) /\ WF_vars(Renew)

Spec == Init /\ [][Next]_vars /\ Fairness
=============================================================================
