----------------------------- MODULE SplitFetch -----------------------------
(* A reader of splits: the task's thread, and a fetcher, which is a thread that runs a client that may block. The     *)
(* task's thread leaves new splits for the fetcher and wakes its fetch. The fetcher takes them up, fetches, and puts  *)
(* each batch into a hand-over that holds MaxBatches; the task polls, and only that moves the position of a split. A  *)
(* snapshot is those positions. The hand-over is an atomic queue here: Handover.tla is about its inside. Module       *)
(* pillarbox.sources.fetching.                                                                                        *)
(*                                                                                                                    *)
(* The wake-up. Under one lock the fetcher finds that there is nothing new and says that it fetches, or the task      *)
(* leaves a split and sees whether it fetches; if so, it wakes the client afterwards, without the lock. The wake-up    *)
(* may so come before the fetch blocks, while it does, or after it has come back: it is kept for the next fetch.      *)
EXTENDS Naturals, Sequences, FiniteSets

CONSTANTS
    Splits, First,      \* those that are there from the beginning; the others come later
    Records,            \* a batch is one record; the last of a split says that it is finished
    MaxBatches,         \* that wait for the task
    OneByOne,           \* whether the client has one split at a time: the next when that is finished
    Failures, Restarts, \* at most
    Closes,             \* whether the task closes
    Mutant

VARIABLES
    (* the task *)
    mine,       \* its splits
    come,       \* those that it was ever given
    pos,        \* of each: records that poll has given; the snapshot
    out,        \* of each: records that poll has given, in order (history)
    closing, raised,
    (* between them *)
    new, fetching,      \* guarded by one lock
    owes,       \* whether the task is about to wake the client
    woken,      \* a wake-up that no fetch has answered
    queue, failure,     \* the hand-over: batches, and what ended it: "none", "kept" (for the task) or "closed"
    (* the fetcher and its client *)
    pc,         \* "top", "going", "in", "put", "leaving", "ended"; and for one mutant "late"
    reads,      \* splits that the client reads
    aside,      \* those that wait for their turn
    at,         \* of each: records that the client has taken from the service
    buffer,     \* what the client has taken and fetch has not returned
    hand,       \* what fetch has returned and is not in the hand-over
    opened,     \* clients that are open
    restarts, failures

task == <<mine, come, pos, out>>
client == <<reads, aside, at, buffer>>
counts == <<restarts, failures>>
vars == <<mine, come, pos, out, closing, raised, new, fetching, owes, woken, queue, failure, pc, reads, aside, at, buffer,
          hand, opened, restarts, failures>>

Batch(s, n) == [split |-> s, record |-> n]

TypeOK ==
    /\ mine \subseteq come /\ come \subseteq Splits /\ reads \cap aside = {} /\ new \cap (reads \cup aside) = {}
    /\ pc \in {"top", "going", "in", "put", "leaving", "ended", "late"}
    /\ pos \in [Splits -> 0..Records] /\ at \in [Splits -> 0..Records] /\ opened \in {0, 1}
    /\ Len(buffer) <= 1 /\ Len(hand) <= 1 /\ (Len(hand) = 1) = (pc = "put")
    /\ failure \in {"none", "kept", "closed"}

Init ==
    /\ mine = First /\ come = First /\ pos = [s \in Splits |-> 0] /\ out = [s \in Splits |-> <<>>]
    /\ closing = FALSE /\ raised = FALSE /\ new = First /\ fetching = FALSE /\ owes = FALSE /\ woken = FALSE
    /\ queue = <<>> /\ failure = "none" /\ pc = "top" /\ reads = {} /\ aside = {} /\ at = pos /\ buffer = <<>>
    /\ hand = <<>> /\ opened = 1 /\ restarts = 0 /\ failures = 0

-----------------------------------------------------------------------------
(* The task's thread. A split is given in two steps: it is left, under the lock, and the client is woken.             *)
Free == ~owes /\ ~closing /\ ~raised
AddSplits(s) ==
    /\ Free /\ s \notin come
    /\ mine' = mine \cup {s} /\ come' = come \cup {s} /\ new' = new \cup {s} /\ owes' = fetching
    /\ UNCHANGED <<pos, out, closing, raised, fetching, woken, queue, failure, pc, client, hand, opened, counts>>

WakeUp ==
    /\ owes /\ owes' = FALSE /\ woken' = IF Mutant = "wakes nobody" THEN woken ELSE TRUE
    /\ UNCHANGED <<task, closing, raised, new, fetching, queue, failure, pc, client, hand, opened, counts>>

Poll ==
    /\ Free /\ queue # <<>> /\ queue' = Tail(queue)
    /\ LET b == Head(queue)
       IN  /\ out' = [out EXCEPT ![b.split] = Append(@, b.record)]
           /\ pos' = IF Mutant = "moves when it fetches" THEN pos ELSE [pos EXCEPT ![b.split] = b.record]
           /\ mine' = IF b.record = Records THEN mine \ {b.split} ELSE mine
    /\ UNCHANGED <<come, closing, raised, new, fetching, owes, woken, failure, pc, client, hand, opened, counts>>
(* A failure comes after what was fetched before it.                                                                 *)
PollRaises ==
    /\ Free /\ queue = <<>> /\ failure = "kept" /\ raised' = TRUE
    /\ UNCHANGED <<task, closing, new, fetching, owes, woken, queue, failure, pc, client, hand, opened, counts>>

(* Close wakes a fetch, and a put that waits for room, by closing the hand-over.                                     *)
Close ==
    /\ Closes /\ ~closing /\ ~owes /\ closing' = TRUE
    /\ owes' = (fetching /\ Mutant # "close wakes nobody")
    /\ IF Mutant = "the hand-over stays open" THEN UNCHANGED <<queue, failure>> ELSE queue' = <<>> /\ failure' = "closed"
    /\ UNCHANGED <<task, raised, new, fetching, woken, pc, client, hand, opened, counts>>

(* The process is lost, or the job goes back: a new reader has the splits of the snapshot.                            *)
Restart ==
    /\ restarts < Restarts /\ ~closing /\ restarts' = restarts + 1
    /\ raised' = FALSE /\ new' = mine /\ fetching' = FALSE /\ owes' = FALSE /\ woken' = FALSE /\ queue' = <<>>
    /\ failure' = "none" /\ pc' = "top" /\ reads' = {} /\ aside' = {} /\ at' = pos /\ buffer' = <<>> /\ hand' = <<>>
    /\ opened' = 1
    /\ UNCHANGED <<task, closing, failures>>

-----------------------------------------------------------------------------
(* The fetcher. It takes up what was left for it.                                                                    *)
Goes(place) == pc' = place
TakeUp ==
    /\ pc = "top" /\ ~closing /\ new # {} /\ new' = {}
    /\ at' = [s \in Splits |-> IF s \in new THEN pos[s] ELSE at[s]]
    /\ IF OneByOne THEN aside' = (IF Mutant = "forgets whose turn it was" THEN new ELSE aside \cup new) /\ UNCHANGED reads
       ELSE reads' = reads \cup new /\ UNCHANGED aside
    /\ UNCHANGED <<task, closing, raised, fetching, owes, woken, queue, failure, pc, buffer, hand, opened, counts>>

(* One by one: the client gets the next split.                                                                       *)
Choose(s) ==
    /\ OneByOne /\ pc = "top" /\ s \in aside /\ reads = {}
    /\ reads' = {s} /\ aside' = aside \ {s}
    /\ UNCHANGED <<task, closing, raised, new, fetching, owes, woken, queue, failure, pc, at, buffer, hand, opened, counts>>

(* Under the lock: nothing is left for it, so it will fetch. With nothing to fetch from it waits, under the lock, for  *)
(* a split.                                                                                                           *)
GoFetch ==
    /\ pc = "top" /\ ~closing /\ new = {} /\ reads # {}
    /\ IF Mutant = "says too late that it fetches" THEN Goes("late") /\ UNCHANGED fetching
       ELSE Goes("going") /\ fetching' = TRUE
    /\ UNCHANGED <<task, closing, raised, new, owes, woken, queue, failure, client, hand, opened, counts>>
SayLate ==
    /\ pc = "late" /\ fetching' = TRUE /\ Goes("going")
    /\ UNCHANGED <<task, closing, raised, new, owes, woken, queue, failure, client, hand, opened, counts>>
End ==
    /\ (pc = "top" /\ closing) \/ pc = "leaving"
    /\ Goes("ended") /\ opened' = IF Mutant = "stays open" /\ pc = "leaving" THEN 1 ELSE 0
    /\ failure' = IF Mutant = "told when the client is closed" /\ pc = "leaving" /\ failure = "none" THEN "kept"
                  ELSE failure
    /\ UNCHANGED <<task, closing, raised, new, fetching, owes, woken, queue, client, hand, counts>>

Begin ==
    /\ pc = "going" /\ Goes("in") /\ woken' = IF Mutant = "forgets before it fetches" THEN FALSE ELSE woken
    /\ UNCHANGED <<task, closing, raised, new, fetching, owes, queue, failure, client, hand, opened, counts>>

(* The client takes a record from the service; it may be woken up before fetch has returned it.                       *)
Receive(s) ==
    /\ pc = "in" /\ buffer = <<>> /\ s \in reads /\ at[s] < Records
    /\ at' = [at EXCEPT ![s] = @ + 1] /\ buffer' = <<Batch(s, at[s] + 1)>>
    /\ UNCHANGED <<task, closing, raised, new, fetching, owes, woken, queue, failure, pc, reads, aside, hand, opened, counts>>
Back == fetching' = FALSE /\ woken' = FALSE
Fetch ==
    /\ pc = "in" /\ buffer # <<>> /\ Back /\ Goes("put") /\ hand' = buffer /\ buffer' = <<>>
    /\ LET b == Head(buffer)
       IN  /\ reads' = IF b.record = Records THEN reads \ {b.split} ELSE reads
           /\ pos' = IF Mutant = "moves when it fetches" THEN [pos EXCEPT ![b.split] = b.record] ELSE pos
    /\ UNCHANGED <<mine, come, out, closing, raised, new, owes, queue, failure, aside, at, opened, counts>>
(* It returns nothing. What the client has taken it returns next time.                                               *)
FetchIsWoken ==
    /\ pc = "in" /\ woken /\ Back /\ Goes("top")
    /\ buffer' = IF Mutant = "drops what it has" THEN <<>> ELSE buffer
    /\ UNCHANGED <<task, closing, raised, new, owes, queue, failure, reads, aside, at, hand, opened, counts>>
(* The failure goes to the task before the client is closed, which may take as long as it likes.                     *)
FetchFails ==
    /\ pc = "in" /\ failures < Failures /\ failures' = failures + 1 /\ Back /\ Goes("leaving")
    /\ failure' = IF failure = "none" /\ Mutant # "fails silently" /\ Mutant # "told when the client is closed"
                  THEN "kept" ELSE failure
    /\ UNCHANGED <<task, closing, raised, new, owes, queue, client, hand, opened, restarts>>

HandOver ==
    /\ pc = "put" /\ failure # "closed"
    /\ Len(queue) < MaxBatches \/ Mutant = "puts what has no room"
    /\ queue' = queue \o hand /\ hand' = <<>> /\ Goes("top")
    /\ UNCHANGED <<task, closing, raised, new, fetching, owes, woken, failure, client, opened, counts>>
PutRefused ==
    /\ pc = "put" /\ hand' = <<>>
    /\ \/ failure = "closed" /\ Goes("leaving")
       \/ Mutant = "a wake-up ends the put" /\ woken /\ Goes("top")
    /\ UNCHANGED <<task, closing, raised, new, fetching, owes, woken, queue, failure, client, opened, counts>>

Next ==
    \/ \E s \in Splits : AddSplits(s) \/ Receive(s) \/ Choose(s)
    \/ WakeUp \/ Poll \/ PollRaises \/ Close \/ Restart
    \/ TakeUp \/ GoFetch \/ SayLate \/ End \/ Begin \/ Fetch \/ FetchIsWoken \/ FetchFails \/ HandOver \/ PutRefused
Spec == Init /\ [][Next]_vars
(* The service need not have anything; the task goes on polling, and finishes what it has begun.                      *)
Fetcher ==
    \/ \E s \in Splits : Choose(s)
    \/ TakeUp \/ GoFetch \/ SayLate \/ Begin \/ Fetch \/ FetchIsWoken \/ HandOver \/ PutRefused
HangingSpec == Spec /\ WF_vars(WakeUp) /\ WF_vars(Poll) /\ WF_vars(PollRaises) /\ WF_vars(Fetcher)
(* And closing the client comes to its end.                                                                          *)
QuietSpec == HangingSpec /\ WF_vars(End)
FairSpec == QuietSpec /\ \A s \in Splits : WF_vars(Receive(s))

-----------------------------------------------------------------------------
(* Every record once and in order, over restarts from a snapshot.                                                    *)
OnceInOrder == \A s \in Splits : \A i \in DOMAIN out[s] : out[s][i] = i

(* The snapshot is what poll has given, no more and no less.                                                         *)
SnapshotIsWhatWasGiven == \A s \in Splits : pos[s] = Len(out[s])

(* No more waits for the task than may.                                                                              *)
BackPressure == Len(queue) <= MaxBatches

(* A split that lies there is seen: whoever left it wakes the fetch, or has done so.                                 *)
NoLostWakeUp == new # {} \/ closing => pc \notin {"going", "in"} \/ owes \/ woken

(* Who has ended has closed its client, whatever the end was.                                                        *)
ClientIsClosed == pc = "ended" => opened = 0

(* A split is taken up although the service has nothing.                                                             *)
ChangesAreSeen == new # {} ~> new = {} \/ closing \/ raised

(* Close ends the thread, whether it fetches, waits for room, or neither.                                            *)
CloseEnds == closing ~> pc = "ended"

(* The task learns of a failure, although closing the client may hang.                                               *)
FailureIsTold == pc = "leaving" ~> raised \/ closing \/ pc \notin {"leaving", "ended"}

(* What is here is read to its end.                                                                                  *)
WhatIsHereIsRead == \A s \in Splits : ~<>[](s \in mine /\ ~raised /\ ~closing)
=============================================================================
