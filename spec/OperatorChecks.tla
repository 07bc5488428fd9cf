--------------------------- MODULE OperatorChecks ---------------------------
(* What has to hold of Operator, each property by its name, as the manifest names it; and the operator's steps with an *)
(* input of rows 1, 2, ... and marks, a clock, and lives that end at any step. TLC runs this module.                  *)
EXTENDS Operator

CONSTANTS
    Rows,       \* of the input
    MarksAfter, \* rows behind which a mark comes
    Ordered,
    Changes,    \* whether a life may keep the order where another one does not
    Windows,    \* entries of a life, one of these
    Attempts,   \* of a row, at most
    Repeats,    \* that errors ask for, beside those
    Returns,    \* calls that come to no end for want of something of their process, at most
    Pause,      \* before another one
    Timeout,    \* of a row; 0: none
    Ticks,      \* of the clock in a life, at most
    Snapshots, Crashes,
    Others,     \* whether rows may join others, be found, or withdrawn
    Cancels     \* whether it may be closed at any time

VARIABLES
    clock, crashes,
    h,          \* history of the timeline that no crash has taken back: see NoHistory
    past        \* the history that belongs to each snapshot

all == <<vars, clock, crashes, h, past>>

Labels == 1..Rows
Of(value) == [label \in Labels |-> value]
NoHistory ==
    [out |-> <<>>,              \* what was emitted: rows by their labels, marks by the negative of theirs
     marked |-> 0,              \* the last mark that came in
     failures |-> Of(0), repeats |-> Of(0), spent |-> Of(0), pause |-> Of(0),
     returns |-> 0, decided |-> {}, again |-> FALSE, early |-> FALSE]

Same == UNCHANGED <<clock, crashes, h, past>>
Only(next) == h' = next /\ UNCHANGED <<clock, crashes, past>>

Orders == IF Changes THEN BOOLEAN ELSE {Ordered}
Plans == {[ordered |-> o, window |-> w, limit |-> 0, attempts |-> Attempts, timeout |-> Timeout, slack |-> 0,
           parts |-> FALSE] : o \in Orders, w \in Windows}

Open(k) == ~IsMark(queue[k]) /\ queue[k].state \notin {"decided", "withdrawn", "done", "late", "dropped"}
Began(k) == Open(k) /\ queue[k].began # NotBegun
Label(k) == queue[k].label

\* What the model begins with is a first life.
ChecksInit == Init /\ clock = 0 /\ crashes = -1 /\ h = NoHistory /\ past = <<>>

Begin ==
    /\ phase \in {"none", "running", "ended"} /\ crashes < Crashes
    /\ \E p \in Plans : Create(p)
    /\ crashes' = crashes + 1 /\ clock' = 0 /\ h' = NoHistory /\ UNCHANGED past

RestoreFrom ==
    \E s \in DOMAIN saved :
        /\ Restore(saved[s].entries, saved[s].gone)
        /\ Only(past[s])

AdmitNext ==
    LET n == admitted + 1
    IN  n <= Rows /\ (n - 1 \in MarksAfter => h.marked = n - 1) /\ Admit(n, n) /\ Same

MarkNext ==
    /\ admitted \in MarksAfter /\ h.marked < admitted /\ PutMark("watermark", admitted)
    /\ Only([h EXCEPT !.marked = admitted])

EndNext == admitted = Rows /\ (Rows \in MarksAfter => h.marked = Rows) /\ EndInput /\ Same

ReadmitNext == Readmit(clock) /\ Same

StartNext ==
    \E k \in DOMAIN queue :
        /\ Start(k, queue[k].attempts + 1, clock)
        /\ Only([h EXCEPT !.again = @ \/ Label(k) \in h.decided, !.early = @ \/ h.pause[Label(k)] > 0])

Decides(k) == Only([h EXCEPT !.decided = @ \cup {Label(k)}])

AnswerNext == \E k \in DOMAIN queue : Answer(k, clock) /\ Decides(k)
FailNext == \E k \in DOMAIN queue : Fail(k) /\ Only([h EXCEPT !.failures[Label(k)] = @ + 1])
AgainNext ==
    \E k \in DOMAIN queue :
        /\ IsRow(k, {"failed"}) /\ queue[k].attempts - queue[k].repeats < Attempts /\ (Timeout > 0 => clock < queue[k].began + Timeout)
        /\ Again(k, Pause, clock) /\ Only([h EXCEPT !.pause[Label(k)] = Pause])
AskAgainNext ==
    \E k \in DOMAIN queue :
        /\ Timeout > 0 => clock < queue[k].began + Timeout
        /\ Repeats > 0 /\ AskAgain(k, Repeats, clock) /\ Only([h EXCEPT !.repeats[Label(k)] = @ + 1])
ReturnNext ==
    \E k \in DOMAIN queue, fresh \in BOOLEAN :
        /\ h.returns < Returns /\ Return(k, Pause, fresh, clock)
        /\ Only([h EXCEPT !.returns = @ + 1, !.pause[Label(k)] = Pause, !.spent[Label(k)] = IF fresh THEN 0 ELSE @])
TimeOutNext ==
    \E k \in DOMAIN queue : TimeOut(k, clock) /\ Only([h EXCEPT !.failures[Label(k)] = queue[k].attempts])
\* Of a failed attempt, or of time that is over.
GiveUpNext == \E k \in DOMAIN queue : IsRow(k, {"failed"}) /\ GiveUp(k) /\ Decides(k)
JoinNext == Others /\ \E k \in DOMAIN queue : Join(k) /\ Same
FindNext == Others /\ \E k \in DOMAIN queue : Find(k) /\ Decides(k)
WithdrawNext == Others /\ \E k \in DOMAIN queue : Withdraw(k) /\ Decides(k)
CompleteNext == \E k \in DOMAIN queue : Complete(k) /\ Same

EmitNext == \E k \in DOMAIN queue : EmitRow(k) /\ Only([h EXCEPT !.out = Append(@, Label(k))])
EmitMarkNext ==
    \E k \in {1} \cap DOMAIN queue :
        /\ IsMark(queue[k]) /\ EmitMark("watermark", Head(queue[k].elements)[2])
        /\ Only([h EXCEPT !.out = Append(@, -Head(queue[k].elements)[2])])

SnapshotNext ==
    /\ Len(saved) < Snapshots
    /\ Snapshot([i \in DOMAIN queue |-> Kept(queue[i], clock)] \o rest, gone, clock)
    /\ past' = Append(past, h) /\ UNCHANGED <<clock, crashes, h>>

FinishNext == Finish /\ Same
CloseNext == Cancels /\ Live /\ Close /\ Same
LateNext ==
    \E k \in DOMAIN queue :
        /\ LateAnswer(k) \/ LateFailure(k) \/ LateEnd(k) \/ LateShare(k)
        /\ Only(IF gone' = gone THEN h ELSE [h EXCEPT !.out = Append(@, Label(k))])

\* Timers fire in time, so that time passes only where none is due.
Tick ==
    /\ Live /\ clock < Ticks
    /\ \A k \in DOMAIN queue : Timeout > 0 /\ Began(k) => clock < queue[k].began + Timeout
    /\ clock' = clock + 1
    /\ h' = [h EXCEPT
                !.spent = [label \in Labels |->
                    IF \E k \in DOMAIN queue : Began(k) /\ Label(k) = label THEN @[label] + 1 ELSE @[label]],
                !.pause = [label \in Labels |->
                    IF @[label] > 0 /\ \E k \in DOMAIN queue : Open(k) /\ Label(k) = label
                    THEN @[label] - 1 ELSE @[label]]]
    /\ UNCHANGED <<vars, crashes, past>>

ChecksNext ==
    \/ Begin \/ RestoreFrom \/ AdmitNext \/ MarkNext \/ EndNext \/ ReadmitNext \/ StartNext \/ AnswerNext \/ FailNext
    \/ AgainNext \/ AskAgainNext \/ ReturnNext \/ TimeOutNext \/ GiveUpNext \/ JoinNext \/ FindNext \/ WithdrawNext \/ CompleteNext \/ EmitNext
    \/ EmitMarkNext \/ SnapshotNext \/ FinishNext \/ CloseNext \/ LateNext \/ Tick

Spec == ChecksInit /\ [][ChecksNext]_all

-----------------------------------------------------------------------------
RowsIn(entries) == {entries[i].label : i \in {j \in DOMAIN entries : entries[j].pos # 0}}
RowsOut(out) == {out[i] : i \in {j \in DOMAIN out : out[j] > 0}}
CountOut(out) == Cardinality({j \in DOMAIN out : out[j] > 0})

CapacityNeverExceeded == Len(queue) <= plan.window

\* What was read is held, to be restored, or has gone out; one of these, and once.
EachRowOnce ==
    Live =>
        /\ RowsIn(queue) \cap RowsOut(h.out) = {} /\ CountOut(h.out) = Cardinality(RowsOut(h.out))
        /\ RowsIn(queue) \cup RowsIn(rest) \cup RowsOut(h.out) = 1..admitted
        /\ gone = CountOut(h.out)

\* What is held, then what is to be restored: in the order of the input.
RestoredInOrder ==
    LET rows == SelectSeq([i \in DOMAIN queue |-> IF IsMark(queue[i]) THEN 0 ELSE queue[i].label]
                            \o [i \in DOMAIN rest |-> IF rest[i].pos = 0 THEN 0 ELSE rest[i].label],
                          LAMBDA label : label > 0)
    IN  \A i \in 1..(Len(rows) - 1) : rows[i] < rows[i + 1]

OrderedOutput == Ordered => \A i, j \in DOMAIN h.out : i < j /\ h.out[i] > 0 /\ h.out[j] > 0 => h.out[i] < h.out[j]

\* A mark comes after everything before it, and before everything after it.
NoRecordPassesWatermark ==
    \A i, j \in DOMAIN h.out : i < j =>
        /\ h.out[i] > 0 /\ h.out[j] < 0 => h.out[i] <= -h.out[j]
        /\ h.out[i] < 0 /\ h.out[j] > 0 => h.out[j] > -h.out[i]

\* What has a result is not called, in this life or, if a snapshot has the result, in the next.
NotCalledAgain == ~h.again

PausesKept == ~h.early

\* A row has had as many attempts as there were in the timeline, and has spent the time that it has spent.
AttemptsKept == \A k \in DOMAIN queue : Open(k) => Failures(queue[k]) = h.failures[Label(k)]

\* It has asked to be called again as often as in the timeline, and no more often than it may; that changes nothing of
\* the attempts that it has otherwise.
RepeatsKept ==
    \A k \in DOMAIN queue : Open(k) =>
        /\ queue[k].repeats = h.repeats[Label(k)] /\ queue[k].repeats <= Repeats
        /\ queue[k].state = "running" => queue[k].attempts <= Attempts + Repeats

TimeKept == \A k \in DOMAIN queue : Open(k) /\ Timeout > 0 => h.spent[Label(k)] <= Timeout

ResultStays == \A k \in DOMAIN queue : Open(k) => Label(k) \notin h.decided

FinishAfterDrain == phase = "finished" => queue = <<>> /\ rest = <<>> /\ RowsOut(h.out) = Labels

NothingAfterClose ==
    \* Nothing comes out, is taken in, called, charged to a row or kept for a restart.
    [][phase = "closed" =>
        /\ h' = h /\ gone' = gone /\ admitted' = admitted /\ saved' = saved
        /\ \A k \in DOMAIN queue' : queue'[k].state \in {"running", "decided", "done"} => queue'[k] = queue[k]]_all
=============================================================================
