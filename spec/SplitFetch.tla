----------------------------- MODULE SplitFetch -----------------------------
(* A reader of splits: the task's thread, and a fetcher, which is a thread that runs a client that may block. The     *)
(* task's thread leaves new splits for the fetcher and wakes its fetch. The fetcher takes them up, fetches, and puts  *)
(* each batch into a hand-over that holds MaxBatches; the task polls, and only that moves the position of a split. A  *)
(* snapshot is those positions. The hand-over is an atomic queue here: Handover.tla is about its inside. Module       *)
(* pillarbox.sources.fetching.                                                                                        *)
(*                                                                                                                    *)
(* Splits are paused and resumed. What comes of one that is paused is set aside, and is first when the split goes on.  *)
(* A client with many splits is told, as it is told of new splits, to fetch nothing of that one until then. Of one     *)
(* that has one split at a time nothing more is taken, so that it waits for room.                                     *)
(*                                                                                                                    *)
(* The wake-up. Under one lock the fetcher finds that it was told nothing and says that it fetches, or the task       *)
(* tells it something and sees whether it fetches; if so, it wakes the client afterwards, without the lock. The wake-up *)
(* may so come before the fetch blocks, while it does, or after it has come back: it is kept for the next fetch.      *)
EXTENDS Naturals, Sequences, FiniteSets

CONSTANTS
    Splits, First,      \* those that are there from the beginning; the others come later
    Records,            \* a batch is one record; the last of a split says that it is finished
    MaxBatches,         \* that wait for the task
    OneByOne,           \* whether the client has one split at a time: the next when that is finished
    Pauses,             \* of splits, and ends of pauses
    Failures, Restarts, \* at most
    Closes,             \* whether the task closes
    Mutant

VARIABLES
    (* the task *)
    mine,       \* its splits
    come,       \* those that it was ever given
    pos,        \* of each: records that poll has given; the snapshot
    out,        \* of each: records that poll has given, in order (history)
    paused,     \* those of which poll gives nothing
    shelf,      \* batches that were set aside
    closing, raised, pauses,
    (* between them *)
    new, told, fetching,    \* guarded by one lock: splits that were left; whether anything is to be heeded
    owes,       \* whether the task is about to wake the client
    woken,      \* a wake-up that no fetch has answered
    queue, failure,     \* the hand-over: batches, and what ended it: "none", "kept" (for the task) or "closed"
    (* the fetcher and its client *)
    pc,         \* "top", "going", "in", "put", "leaving", "ended"; and for one mutant "late"
    reads,      \* splits that the client reads
    aside,      \* those that wait for their turn
    stopped,    \* those of which it fetches nothing
    at,         \* of each: records that the client has taken from the service
    buffer,     \* what the client has taken and fetch has not returned
    hand,       \* what fetch has returned and is not in the hand-over
    opened,     \* clients that are open
    restarts, failures

task == <<mine, come, pos, out, paused, shelf>>
left == <<new, told>>
client == <<reads, aside, stopped, at, buffer>>
counts == <<pauses, restarts, failures>>
vars == <<mine, come, pos, out, paused, shelf, closing, raised, pauses, new, told, fetching, owes, woken, queue,
          failure, pc, reads, aside, stopped, at, buffer, hand, opened, restarts, failures>>

Batch(s, n) == [split |-> s, record |-> n]
OnShelf(s) == \E i \in DOMAIN shelf : shelf[i].split = s

TypeOK ==
    /\ mine \subseteq come /\ come \subseteq Splits /\ reads \cap aside = {} /\ new \cap (reads \cup aside) = {}
    /\ pc \in {"top", "going", "in", "put", "leaving", "ended", "late"}
    /\ pos \in [Splits -> 0..Records] /\ at \in [Splits -> 0..Records] /\ opened \in {0, 1}
    /\ paused \subseteq mine /\ stopped \subseteq reads
    /\ Len(buffer) <= 1 /\ Len(hand) <= 1 /\ (Len(hand) = 1) = (pc = "put")
    /\ failure \in {"none", "kept", "closed"}

Init ==
    /\ mine = First /\ come = First /\ pos = [s \in Splits |-> 0] /\ out = [s \in Splits |-> <<>>]
    /\ paused = {} /\ shelf = <<>> /\ closing = FALSE /\ raised = FALSE /\ pauses = 0
    /\ new = First /\ told = TRUE /\ fetching = FALSE /\ owes = FALSE /\ woken = FALSE
    /\ queue = <<>> /\ failure = "none" /\ pc = "top" /\ reads = {} /\ aside = {} /\ stopped = {} /\ at = pos
    /\ buffer = <<>> /\ hand = <<>> /\ opened = 1 /\ restarts = 0 /\ failures = 0

-----------------------------------------------------------------------------
(* The task's thread. It tells something in two steps: it is left, under the lock, and the client is woken.           *)
Free == ~owes /\ ~closing /\ ~raised
Tell == told' = TRUE /\ owes' = fetching
AddSplits(s) ==
    /\ Free /\ s \notin come
    /\ mine' = mine \cup {s} /\ come' = come \cup {s} /\ new' = new \cup {s} /\ Tell
    /\ UNCHANGED <<pos, out, paused, shelf, closing, raised, fetching, woken, queue, failure, pc, client, hand, opened>>
    /\ UNCHANGED counts

Order ==
    /\ pauses < Pauses /\ pauses' = pauses + 1 /\ IF OneByOne THEN UNCHANGED <<told, owes>> ELSE Tell
    /\ UNCHANGED <<mine, come, pos, out, shelf, closing, raised, new, fetching, woken, queue, failure, pc, client, hand>>
    /\ UNCHANGED <<opened, restarts, failures>>
Pause(s) == Free /\ s \in mine \ paused /\ paused' = paused \cup {s} /\ Order
Resume(s) == Free /\ s \in paused /\ paused' = paused \ {s} /\ Order

WakeUp ==
    /\ owes /\ owes' = FALSE /\ woken' = IF Mutant = "wakes nobody" THEN woken ELSE TRUE
    /\ UNCHANGED <<task, closing, raised, left, fetching, queue, failure, pc, client, hand, opened, counts>>

Give(b) ==
    /\ out' = [out EXCEPT ![b.split] = Append(@, b.record)]
    /\ pos' = IF Mutant = "moves when it fetches" THEN pos ELSE [pos EXCEPT ![b.split] = b.record]
    /\ mine' = IF b.record = Records THEN mine \ {b.split} ELSE mine
    /\ UNCHANGED <<come, paused, closing, raised, new, fetching, woken, failure, pc, client, hand, opened, counts>>
(* What was set aside and may go on is first. One by one, nothing else is taken while something lies there.           *)
Due == {i \in DOMAIN shelf : shelf[i].split \notin paused}
MayTake == Free /\ Due = {} /\ (OneByOne => shelf = <<>>)
PollAside ==
    /\ Free /\ Due # {} /\ Mutant # "sets aside for ever"
    /\ LET i == CHOOSE i \in Due : \A j \in Due : i <= j
       IN  /\ shelf' = SubSeq(shelf, 1, i - 1) \o SubSeq(shelf, i + 1, Len(shelf)) /\ Give(shelf[i])
           /\ IF OneByOne \/ Mutant = "goes on untold" \/ \E j \in DOMAIN shelf \ {i} : shelf[j].split = shelf[i].split
              THEN UNCHANGED <<told, owes>> ELSE Tell
    /\ UNCHANGED queue
Poll ==
    /\ (IF Mutant = "new before old" THEN Free ELSE MayTake) /\ queue # <<>> /\ queue' = Tail(queue)
    /\ Head(queue).split \notin paused \/ Mutant = "gives what is paused"
    /\ Give(Head(queue)) /\ UNCHANGED <<shelf, told, owes>>
SetAside ==
    /\ MayTake /\ queue # <<>> /\ Head(queue).split \in paused
    /\ queue' = Tail(queue) /\ shelf' = Append(shelf, Head(queue))
    /\ UNCHANGED <<mine, come, pos, out, paused, closing, raised, left, fetching, owes, woken, failure, pc, client, hand>>
    /\ UNCHANGED <<opened, counts>>
(* A failure comes after what was fetched before it.                                                                 *)
PollRaises ==
    /\ MayTake /\ queue = <<>> /\ failure = "kept" /\ raised' = TRUE
    /\ UNCHANGED <<task, closing, left, fetching, owes, woken, queue, failure, pc, client, hand, opened, counts>>

(* Close wakes a fetch, and a put that waits for room, by closing the hand-over.                                     *)
Close ==
    /\ Closes /\ ~closing /\ ~owes /\ closing' = TRUE
    /\ owes' = (fetching /\ Mutant # "close wakes nobody")
    /\ IF Mutant = "the hand-over stays open" THEN UNCHANGED <<queue, failure>> ELSE queue' = <<>> /\ failure' = "closed"
    /\ UNCHANGED <<task, raised, left, fetching, woken, pc, client, hand, opened, counts>>

(* The process is lost, or the job goes back: a new reader has the splits of the snapshot.                            *)
Restart ==
    /\ restarts < Restarts /\ ~closing /\ restarts' = restarts + 1
    /\ raised' = FALSE /\ new' = mine /\ told' = TRUE /\ fetching' = FALSE /\ owes' = FALSE /\ woken' = FALSE
    /\ queue' = <<>> /\ failure' = "none" /\ pc' = "top" /\ reads' = {} /\ aside' = {} /\ stopped' = {} /\ at' = pos
    /\ buffer' = <<>> /\ hand' = <<>> /\ opened' = 1 /\ paused' = {} /\ shelf' = <<>>
    /\ UNCHANGED <<mine, come, pos, out, closing, pauses, failures>>

-----------------------------------------------------------------------------
(* The fetcher. It takes up what was left for it.                                                                    *)
Goes(place) == pc' = place
Stop(s) == s \in paused \/ (OnShelf(s) /\ Mutant # "goes on before what was set aside")
TakeUp ==
    /\ pc = "top" /\ ~closing /\ told /\ told' = FALSE /\ new' = {}
    /\ at' = [s \in Splits |-> IF s \in new THEN pos[s] ELSE at[s]]
    /\ IF OneByOne THEN aside' = (IF Mutant = "forgets whose turn it was" THEN new ELSE aside \cup new) /\ UNCHANGED reads
       ELSE reads' = reads \cup new /\ UNCHANGED aside
    /\ stopped' = IF OneByOne THEN {} ELSE {s \in reads' : Stop(s)}
    /\ UNCHANGED <<task, closing, raised, fetching, owes, woken, queue, failure, pc, buffer, hand, opened, counts>>

(* One by one: the client gets the next split.                                                                       *)
Choose(s) ==
    /\ OneByOne /\ pc = "top" /\ s \in aside /\ reads = {}
    /\ reads' = {s} /\ aside' = aside \ {s}
    /\ UNCHANGED <<task, closing, raised, left, fetching, owes, woken, queue, failure, pc, stopped, at, buffer, hand, opened>>
    /\ UNCHANGED counts

(* Under the lock: it was told nothing, so it will fetch. With nothing to fetch from it waits, under the lock, to be   *)
(* told.                                                                                                              *)
GoFetch ==
    /\ pc = "top" /\ ~closing /\ ~told /\ reads \ stopped # {}
    /\ IF Mutant = "says too late that it fetches" THEN Goes("late") /\ UNCHANGED fetching
       ELSE Goes("going") /\ fetching' = TRUE
    /\ UNCHANGED <<task, closing, raised, left, owes, woken, queue, failure, client, hand, opened, counts>>
SayLate ==
    /\ pc = "late" /\ fetching' = TRUE /\ Goes("going")
    /\ UNCHANGED <<task, closing, raised, left, owes, woken, queue, failure, client, hand, opened, counts>>
End ==
    /\ (pc = "top" /\ closing) \/ pc = "leaving"
    /\ Goes("ended") /\ opened' = IF Mutant = "stays open" /\ pc = "leaving" THEN 1 ELSE 0
    /\ failure' = IF Mutant = "told when the client is closed" /\ pc = "leaving" /\ failure = "none" THEN "kept"
                  ELSE failure
    /\ UNCHANGED <<task, closing, raised, left, fetching, owes, woken, queue, client, hand, counts>>

Begin ==
    /\ pc = "going" /\ Goes("in") /\ woken' = IF Mutant = "forgets before it fetches" THEN FALSE ELSE woken
    /\ UNCHANGED <<task, closing, raised, left, fetching, owes, queue, failure, client, hand, opened, counts>>

(* The client takes a record from the service; it may be woken up before fetch has returned it.                       *)
Receive(s) ==
    /\ pc = "in" /\ buffer = <<>> /\ s \in reads /\ at[s] < Records
    /\ s \notin stopped \/ Mutant = "fetches what is paused"
    /\ at' = [at EXCEPT ![s] = @ + 1] /\ buffer' = <<Batch(s, at[s] + 1)>>
    /\ UNCHANGED <<task, closing, raised, left, fetching, owes, woken, queue, failure, pc, reads, aside, stopped, hand, opened>>
    /\ UNCHANGED counts
Back == fetching' = FALSE /\ woken' = FALSE
Fetch ==
    /\ pc = "in" /\ buffer # <<>> /\ Back /\ Goes("put") /\ hand' = buffer /\ buffer' = <<>>
    /\ LET b == Head(buffer)
       IN  /\ reads' = IF b.record = Records THEN reads \ {b.split} ELSE reads
           /\ stopped' = stopped \cap reads'
           /\ pos' = IF Mutant = "moves when it fetches" THEN [pos EXCEPT ![b.split] = b.record] ELSE pos
    /\ UNCHANGED <<mine, come, out, paused, shelf, closing, raised, left, owes, queue, failure, aside, at, opened, counts>>
(* It returns nothing. What the client has taken it returns next time.                                               *)
FetchIsWoken ==
    /\ pc = "in" /\ woken /\ Back /\ Goes("top")
    /\ buffer' = IF Mutant = "drops what it has" THEN <<>> ELSE buffer
    /\ UNCHANGED <<task, closing, raised, left, owes, queue, failure, reads, aside, stopped, at, hand, opened, counts>>
(* The failure goes to the task before the client is closed, which may take as long as it likes.                     *)
FetchFails ==
    /\ pc = "in" /\ failures < Failures /\ failures' = failures + 1 /\ Back /\ Goes("leaving")
    /\ failure' = IF failure = "none" /\ Mutant # "fails silently" /\ Mutant # "told when the client is closed"
                  THEN "kept" ELSE failure
    /\ UNCHANGED <<task, closing, raised, left, owes, queue, client, hand, opened, pauses, restarts>>

HandOver ==
    /\ pc = "put" /\ failure # "closed"
    /\ Len(queue) < MaxBatches \/ Mutant = "puts what has no room"
    /\ queue' = queue \o hand /\ hand' = <<>> /\ Goes("top")
    /\ UNCHANGED <<task, closing, raised, left, fetching, owes, woken, failure, client, opened, counts>>
PutRefused ==
    /\ pc = "put" /\ hand' = <<>>
    /\ \/ failure = "closed" /\ Goes("leaving")
       \/ Mutant = "a wake-up ends the put" /\ woken /\ Goes("top")
    /\ UNCHANGED <<task, closing, raised, left, fetching, owes, woken, queue, failure, client, opened, counts>>

Next ==
    \/ \E s \in Splits : AddSplits(s) \/ Pause(s) \/ Resume(s) \/ Receive(s) \/ Choose(s)
    \/ WakeUp \/ Poll \/ PollAside \/ SetAside \/ PollRaises \/ Close \/ Restart
    \/ TakeUp \/ GoFetch \/ SayLate \/ End \/ Begin \/ Fetch \/ FetchIsWoken \/ FetchFails \/ HandOver \/ PutRefused
Spec == Init /\ [][Next]_vars
(* The service need not have anything; the task goes on polling, and finishes what it has begun.                      *)
Fetcher ==
    \/ \E s \in Splits : Choose(s)
    \/ TakeUp \/ GoFetch \/ SayLate \/ Begin \/ Fetch \/ FetchIsWoken \/ HandOver \/ PutRefused
HangingSpec ==
    Spec /\ WF_vars(WakeUp) /\ WF_vars(Poll \/ PollAside \/ SetAside) /\ WF_vars(PollRaises) /\ WF_vars(Fetcher)
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

(* What was told is seen: whoever told it wakes the fetch, or has done so.                                           *)
NoLostWakeUp == told \/ closing => pc \notin {"going", "in"} \/ owes \/ woken

(* Who has ended has closed its client, whatever the end was.                                                        *)
ClientIsClosed == pc = "ended" => opened = 0

(* What is paused gives nothing.                                                                                     *)
PausedGivesNothing == [][\A s \in Splits : out'[s] # out[s] => s \notin paused]_out

(* Nothing of what is paused is fetched, as soon as that was heeded, until all that was set aside has been given.       *)
PausedIsNotFetched == [][\A s \in Splits : at'[s] > at[s] /\ (s \in paused \/ OnShelf(s)) => told \/ OneByOne]_at

(* What is set aside of a split is what was in the hand-over and in the fetcher's hands, however often it goes on.     *)
ShelfIsBounded ==
    \A s \in Splits : Cardinality({i \in DOMAIN shelf : shelf[i].split = s}) <= IF OneByOne THEN 1 ELSE MaxBatches + 2

(* A split is taken up, and a pause heeded, although the service has nothing.                                         *)
ChangesAreSeen == told ~> ~told \/ closing \/ raised

(* Close ends the thread, whether it fetches, waits for room, or neither.                                            *)
CloseEnds == closing ~> pc = "ended"

(* The task learns of a failure, although closing the client may hang.                                               *)
FailureIsTold == pc = "leaving" ~> raised \/ closing \/ pc \notin {"leaving", "ended"} \/ (OneByOne /\ paused # {})

(* What is here and not paused, nor behind what is, is read to its end.                                               *)
WhatIsHereIsRead ==
    \A s \in Splits : ~<>[](s \in mine \ paused /\ (OneByOne => paused = {}) /\ ~raised /\ ~closing)
=============================================================================
