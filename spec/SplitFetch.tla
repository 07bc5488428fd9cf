----------------------------- MODULE SplitFetch -----------------------------
(* A reader of splits: the task's thread, and a fetcher, which is a thread that runs a client that may block. The     *)
(* task's thread leaves changes for the fetcher (splits to add or remove, to pause or resume) and wakes its fetch.    *)
(* The fetcher takes the changes up, fetches, and puts each batch into a hand-over that holds MaxBatches; the task    *)
(* polls, and only that moves the position of a split. A snapshot is those positions. The hand-over is an atomic      *)
(* queue here: Handover.tla is about its inside. Module pillarbox.sources.fetching.                                   *)
(*                                                                                                                    *)
(* The wake-up. Under one lock the fetcher finds that there are no changes and says that it fetches, or the task      *)
(* leaves a change and sees whether it fetches; if so, it wakes the client afterwards, without the lock. The wake-up  *)
(* may so come before the fetch blocks, while it does, or after it has come back: it is kept for the next fetch.      *)
EXTENDS Naturals, Sequences, FiniteSets

CONSTANTS
    Splits, Records,    \* a batch is one record; the last of a split says that it is finished
    MaxBatches,         \* that wait for the task
    OneByOne,           \* whether the client has one split at a time: the next when that is finished or paused
    Changes,            \* orders of the task, at most, after the first splits were added
    Failures, Restarts, \* at most
    Closes,             \* whether the task closes
    Mutant

VARIABLES
    (* the task *)
    mine,       \* its splits
    asked,      \* those that it has asked to be paused
    given,      \* of each split: how often it was given to this reader
    pos,        \* of each: records that poll has given; the snapshot
    out,        \* of each: records that poll has given, in order (history)
    closing, raised, count,
    (* between them *)
    changes, fetching,  \* guarded by one lock
    owes,       \* whether the task is about to wake the client
    woken,      \* a wake-up that no fetch has answered
    queue, failure,     \* the hand-over: batches, and what ended it: "none", "kept" (for the task) or "closed"
    (* the fetcher and its client *)
    pc,         \* "top", "going", "in", "put", "leaving", "ended"; and for one mutant "late"
    reads,      \* splits that the client reads: which giving of each, 0: none
    aside,      \* those that wait for their turn, in the same way
    stopped,    \* those that it does not fetch
    at,         \* of each: records that the client has taken from the service
    reached,    \* of each: records that fetch has returned
    buffer,     \* what the client has taken and fetch has not returned
    hand,       \* what fetch has returned and is not in the hand-over
    opened,     \* clients that are open
    restarts, failures

task == <<mine, asked, given, pos, out>>
client == <<reads, aside, stopped, at, reached, buffer>>
counts == <<restarts, failures>>
vars == <<mine, asked, given, pos, out, closing, raised, count, changes, fetching, owes, woken, queue, failure, pc,
          reads, aside, stopped, at, reached, buffer, hand, opened, restarts, failures>>

Batch(s, n, g) == [split |-> s, record |-> n, given |-> g]
Change(what, s, from, g) == [what |-> what, split |-> s, from |-> from, given |-> g]
Unread(s) == pos[s] < Records
RemoveFrom(seq, s) == SelectSeq(seq, LAMBDA b : b.split # s)
Added(set, g) == SelectSeq([s \in Splits |-> Change("add", s, pos[s], g[s])], LAMBDA c : c.split \in set)

TypeOK ==
    /\ mine \subseteq Splits /\ asked \subseteq mine /\ stopped \subseteq Splits
    /\ pc \in {"top", "going", "in", "put", "leaving", "ended", "late"}
    /\ pos \in [Splits -> 0..Records] /\ at \in [Splits -> 0..Records] /\ opened \in {0, 1}
    /\ Len(buffer) <= 1 /\ Len(hand) <= 1 /\ (Len(hand) = 1) = (pc = "put")
    /\ failure \in {"none", "kept", "closed"}

Init ==
    /\ mine = Splits /\ asked = {} /\ given = [s \in Splits |-> 1] /\ pos = [s \in Splits |-> 0]
    /\ out = [s \in Splits |-> <<>>] /\ closing = FALSE /\ raised = FALSE /\ count = 0
    /\ changes = Added(Splits, given) /\ fetching = FALSE /\ owes = FALSE /\ woken = FALSE
    /\ queue = <<>> /\ failure = "none" /\ pc = "top" /\ reads = [s \in Splits |-> 0] /\ stopped = {}
    /\ aside = reads /\ at = [s \in Splits |-> 0] /\ reached = at /\ buffer = <<>> /\ hand = <<>> /\ opened = 1
    /\ restarts = 0 /\ failures = 0

-----------------------------------------------------------------------------
(* The task's thread. An order is two steps: the change, under the lock, and the wake-up.                             *)
Free == ~owes /\ ~closing /\ ~raised
Leave(change) ==
    /\ Free /\ count < Changes /\ count' = count + 1
    /\ changes' = Append(changes, change)
    /\ owes' = fetching
    /\ UNCHANGED <<out, pos, closing, raised, fetching, woken, queue, failure, pc, client, hand, opened, counts>>

(* The split comes back, with the position that it had, and as another one than before: what was fetched of it while   *)
(* it was here first is not for now.                                                                                  *)
AddSplits(s) ==
    /\ s \notin mine /\ Unread(s)
    /\ LET g == IF Mutant = "known by its name alone" THEN given[s] ELSE given[s] + 1
       IN  given' = [given EXCEPT ![s] = g] /\ Leave(Change("add", s, pos[s], g))
    /\ mine' = mine \cup {s} /\ UNCHANGED asked
RemoveSplits(s) ==
    /\ s \in mine /\ Leave(Change("remove", s, 0, given[s]))
    /\ mine' = mine \ {s} /\ asked' = asked \ {s}
    /\ UNCHANGED given
Pause(s) ==
    /\ s \in mine \ asked /\ Leave(Change("pause", s, 0, given[s]))
    /\ asked' = asked \cup {s} /\ UNCHANGED <<mine, given>>
Resume(s) ==
    /\ s \in mine \cap asked /\ Leave(Change("resume", s, 0, given[s]))
    /\ asked' = asked \ {s} /\ UNCHANGED <<mine, given>>

WakeUp ==
    /\ owes /\ owes' = FALSE /\ woken' = IF Mutant = "wakes nobody" THEN woken ELSE TRUE
    /\ UNCHANGED <<task, closing, raised, count, changes, fetching, queue, failure, pc, client, hand, opened, counts>>

(* What poll finds of a split that was removed it drops.                                                             *)
Poll ==
    /\ Free /\ queue # <<>> /\ queue' = Tail(queue)
    /\ LET b == Head(queue)
           mineStill == b.split \in mine /\ b.given = given[b.split]
       IN  IF mineStill \/ Mutant = "gives what was removed"
           THEN /\ out' = [out EXCEPT ![b.split] = Append(@, b.record)]
                /\ pos' = IF Mutant = "moves when it fetches" THEN pos ELSE [pos EXCEPT ![b.split] = b.record]
                /\ mine' = IF b.record = Records THEN mine \ {b.split} ELSE mine
                /\ asked' = IF b.record = Records THEN asked \ {b.split} ELSE asked
           ELSE UNCHANGED <<out, pos, mine, asked>>
    /\ UNCHANGED <<given, closing, raised, count, changes, fetching, owes, woken, failure, pc, client, hand, opened,
                   counts>>
(* A failure comes after what was fetched before it.                                                                 *)
PollRaises ==
    /\ Free /\ queue = <<>> /\ failure = "kept" /\ raised' = TRUE
    /\ UNCHANGED <<task, closing, count, changes, fetching, owes, woken, queue, failure, pc, client, hand, opened, counts>>

(* Close wakes a fetch, and a put that waits for room, by closing the hand-over.                                     *)
Close ==
    /\ Closes /\ ~closing /\ ~owes /\ closing' = TRUE
    /\ owes' = (fetching /\ Mutant # "close wakes nobody")
    /\ IF Mutant = "the hand-over stays open" THEN UNCHANGED <<queue, failure>> ELSE queue' = <<>> /\ failure' = "closed"
    /\ UNCHANGED <<task, raised, count, changes, fetching, woken, pc, client, hand, opened, counts>>

(* The process is lost, or the job goes back: a new reader has the splits of the snapshot.                            *)
Restart ==
    /\ restarts < Restarts /\ ~closing /\ restarts' = restarts + 1
    /\ given' = [s \in Splits |-> IF s \in mine THEN given[s] + 1 ELSE given[s]]
    /\ asked' = {} /\ raised' = FALSE /\ changes' = Added(mine, given') /\ fetching' = FALSE /\ owes' = FALSE
    /\ woken' = FALSE /\ queue' = <<>> /\ failure' = "none" /\ pc' = "top" /\ reads' = [s \in Splits |-> 0]
    /\ aside' = reads' /\ stopped' = {} /\ at' = pos /\ reached' = pos /\ buffer' = <<>> /\ hand' = <<>> /\ opened' = 1
    /\ UNCHANGED <<mine, pos, out, closing, count, failures>>

-----------------------------------------------------------------------------
(* The fetcher. It takes up what was left for it, one after the other.                                                *)
Goes(place) == pc' = place
TakeUp ==
    /\ pc = "top" /\ ~closing /\ changes # <<>> /\ changes' = Tail(changes)
    /\ LET c == Head(changes)
           to == IF c.what = "add" THEN c.given ELSE 0
       IN  CASE c.what \in {"add", "remove"} ->
                    /\ IF OneByOne /\ c.what = "add"
                       THEN aside' = [aside EXCEPT ![c.split] = to] /\ UNCHANGED reads
                       ELSE reads' = [reads EXCEPT ![c.split] = to] /\ aside' = [aside EXCEPT ![c.split] = 0]
                    /\ at' = IF c.what = "add" THEN [at EXCEPT ![c.split] = c.from] ELSE at
                    /\ reached' = IF c.what = "add" THEN [reached EXCEPT ![c.split] = c.from] ELSE reached
                    /\ stopped' = IF c.what = "add" \/ Mutant = "stays paused" THEN stopped ELSE stopped \ {c.split}
                    /\ buffer' = RemoveFrom(buffer, c.split)
             [] c.what = "pause" -> stopped' = stopped \cup {c.split} /\ UNCHANGED <<reads, aside, at, reached, buffer>>
             [] OTHER -> stopped' = stopped \ {c.split} /\ UNCHANGED <<reads, aside, at, reached, buffer>>
    /\ UNCHANGED <<task, closing, raised, count, fetching, owes, woken, queue, failure, pc, hand, opened, counts>>

(* One by one: the client gets the next split, and what it had, if that is not finished, waits for its turn again,    *)
(* from where fetch has returned it: what the client had taken besides, it has to take again.                         *)
Readable == \E s \in Splits : reads[s] # 0 /\ s \notin stopped
Choose(s) ==
    /\ OneByOne /\ pc = "top" /\ ~closing /\ changes = <<>> /\ ~Readable
    /\ aside[s] # 0 /\ s \notin stopped
    /\ reads' = [u \in Splits |-> IF u = s THEN aside[s] ELSE 0]
    /\ aside' = [u \in Splits |-> IF u = s THEN 0
                                  ELSE IF reads[u] # 0 /\ Mutant # "forgets whose turn it was" THEN reads[u] ELSE aside[u]]
    /\ at' = IF Mutant = "goes on where the client was" THEN at ELSE [at EXCEPT ![s] = reached[s]]
    /\ buffer' = <<>>
    /\ UNCHANGED <<task, closing, raised, count, changes, fetching, owes, woken, queue, failure, pc, stopped, reached,
                   hand, opened, counts>>

(* Under the lock: nothing is left for it, so it will fetch. With nothing to fetch from it waits, under the lock, for  *)
(* a change.                                                                                                          *)
GoFetch ==
    /\ pc = "top" /\ ~closing /\ changes = <<>> /\ Readable
    /\ IF Mutant = "says too late that it fetches" THEN Goes("late") /\ UNCHANGED fetching
       ELSE Goes("going") /\ fetching' = TRUE
    /\ UNCHANGED <<task, closing, raised, count, changes, owes, woken, queue, failure, client, hand, opened, counts>>
SayLate ==
    /\ pc = "late" /\ fetching' = TRUE /\ Goes("going")
    /\ UNCHANGED <<task, closing, raised, count, changes, owes, woken, queue, failure, client, hand, opened, counts>>
End ==
    /\ (pc = "top" /\ closing) \/ pc = "leaving"
    /\ Goes("ended") /\ opened' = IF Mutant = "stays open" /\ pc = "leaving" THEN 1 ELSE 0
    /\ failure' = IF Mutant = "told when the client is closed" /\ pc = "leaving" /\ failure = "none" THEN "kept"
                  ELSE failure
    /\ UNCHANGED <<task, closing, raised, count, changes, fetching, owes, woken, queue, client, hand, counts>>

Begin ==
    /\ pc = "going" /\ Goes("in") /\ woken' = IF Mutant = "forgets before it fetches" THEN FALSE ELSE woken
    /\ UNCHANGED <<task, closing, raised, count, changes, fetching, owes, queue, failure, client, hand, opened, counts>>

(* The client takes a record from the service; it may be woken up before fetch has returned it.                       *)
Receive(s) ==
    /\ pc = "in" /\ buffer = <<>> /\ reads[s] # 0 /\ at[s] < Records
    /\ s \notin stopped \/ Mutant = "fetches what is paused"
    /\ at' = [at EXCEPT ![s] = @ + 1] /\ buffer' = <<Batch(s, at[s] + 1, reads[s])>>
    /\ UNCHANGED <<task, closing, raised, count, changes, fetching, owes, woken, queue, failure, pc, reads, aside,
                   stopped, reached, hand, opened, counts>>
Back == fetching' = FALSE /\ woken' = FALSE
Fetch ==
    /\ pc = "in" /\ buffer # <<>> /\ Back /\ Goes("put") /\ hand' = buffer /\ buffer' = <<>>
    /\ LET b == Head(buffer)
       IN  /\ reached' = [reached EXCEPT ![b.split] = b.record]
           /\ reads' = IF b.record = Records THEN [reads EXCEPT ![b.split] = 0] ELSE reads
           /\ pos' = IF Mutant = "moves when it fetches" THEN [pos EXCEPT ![b.split] = b.record] ELSE pos
    /\ UNCHANGED <<mine, asked, given, out, closing, raised, count, changes, owes, queue, failure, aside, stopped, at,
                   opened, counts>>
(* It returns nothing. What the client has taken it returns next time.                                               *)
FetchIsWoken ==
    /\ pc = "in" /\ woken /\ Back /\ Goes("top")
    /\ buffer' = IF Mutant = "drops what it has" THEN <<>> ELSE buffer
    /\ UNCHANGED <<task, closing, raised, count, changes, owes, queue, failure, reads, aside, stopped, at, reached, hand,
                   opened, counts>>
(* The failure goes to the task before the client is closed, which may take as long as it likes.                     *)
FetchFails ==
    /\ pc = "in" /\ failures < Failures /\ failures' = failures + 1 /\ Back /\ Goes("leaving")
    /\ failure' = IF failure = "none" /\ Mutant # "fails silently" /\ Mutant # "told when the client is closed"
                  THEN "kept" ELSE failure
    /\ UNCHANGED <<task, closing, raised, count, changes, owes, queue, client, hand, opened, restarts>>

HandOver ==
    /\ pc = "put" /\ failure # "closed"
    /\ Len(queue) < MaxBatches \/ Mutant = "puts what has no room"
    /\ queue' = queue \o hand /\ hand' = <<>> /\ Goes("top")
    /\ UNCHANGED <<task, closing, raised, count, changes, fetching, owes, woken, failure, client, opened, counts>>
PutRefused ==
    /\ pc = "put" /\ hand' = <<>>
    /\ \/ failure = "closed" /\ Goes("leaving")
       \/ Mutant = "a wake-up ends the put" /\ woken /\ Goes("top")
    /\ UNCHANGED <<task, closing, raised, count, changes, fetching, owes, woken, queue, failure, client, opened, counts>>

Next ==
    \/ \E s \in Splits : AddSplits(s) \/ RemoveSplits(s) \/ Pause(s) \/ Resume(s) \/ Receive(s) \/ Choose(s)
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
(* Every record once and in order, over restarts from a snapshot, removals and comings back.                          *)
OnceInOrder == \A s \in Splits : \A i \in DOMAIN out[s] : out[s][i] = i

(* The snapshot is what poll has given, no more and no less.                                                         *)
SnapshotIsWhatWasGiven == \A s \in Splits : pos[s] = Len(out[s])

(* What was removed gives nothing any more.                                                                          *)
RemovedGivesNothing == [][\A s \in Splits : out'[s] # out[s] => s \in mine]_out

(* No more waits for the task than may.                                                                              *)
BackPressure == Len(queue) <= MaxBatches

(* A change that lies there is seen: whoever left it wakes the fetch, or has done so.                                *)
NoLostWakeUp == changes # <<>> \/ closing => pc \notin {"going", "in"} \/ owes \/ woken

(* Who has ended has closed its client, whatever the end was.                                                        *)
ClientIsClosed == pc = "ended" => opened = 0

(* Nothing new of a paused split is fetched.                                                                         *)
PausedIsNotFetched == [][\A s \in Splits : s \in stopped => at'[s] # at[s] + 1]_at

(* A change is taken up although the service has nothing.                                                            *)
ChangesAreSeen == changes # <<>> ~> changes = <<>> \/ closing \/ raised

(* Close ends the thread, whether it fetches, waits for room, or neither.                                            *)
CloseEnds == closing ~> pc = "ended"

(* The task learns of a failure, although closing the client may hang.                                               *)
FailureIsTold == pc = "leaving" ~> raised \/ closing \/ pc \notin {"leaving", "ended"}

(* What stays here, and is not paused, is read to its end.                                                           *)
WhatIsHereIsRead == \A s \in Splits : ~<>[](s \in mine \ asked /\ ~raised /\ ~closing)
=============================================================================
