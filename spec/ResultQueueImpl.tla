-------------------------- MODULE ResultQueueImpl ---------------------------
(* The result queue without a lock, each access to a shared word one step. *)
(*                                                                         *)
(* Every slot has a word: free, the attempt that runs, or the result. A    *)
(* completion is one compare-and-swap from its attempt to its result. An   *)
(* unordered queue has a stack of finished slots beside it: `top` and,     *)
(* slot by slot, `link`. Who has completed pushes the slot; the owner      *)
(* takes the whole stack and lists its slots in the order of their         *)
(* arrival. Between the two steps of a completion its slot must not be     *)
(* used again: emission takes only what was pushed, and Clear and Close    *)
(* wait for the pushes that are due.                                       *)
(*                                                                         *)
(* Where only the owner completes (Alone), it looks and then stores, and   *)
(* lists what it has completed: no compare-and-swap, no stack.             *)
(*                                                                         *)
(* What is around the queue is as in ResultQueue, which this refines as    *)
(* long as nobody clears: of Clear, and of a snapshot that is made while   *)
(* completions come, the invariants say what holds.                        *)
EXTENDS Naturals, Sequences, FiniteSets, ResultQueueOrder

CONSTANTS Length, Capacity, Attempts, Answers, Cancels,
    Alone,      \* only the owner completes
    Clears,     \* most clears
    Snapshots   \* most snapshots

VARIABLES
    word, top, link,              \* shared
    calls,                        \* as in ResultQueue, between "looked" and "set": "won", "linking", "pushing"
    step,                         \* what the owner is in the middle of
    held,                         \* its entries, in the order of admission
    listed,                       \* unordered: slots it knows to be finished, in the order in which they were
    left, due, seen,              \* slots it has still to look at, pushes it waits for, what it has read
    next, door, mail, task, output, phase,  \* as in ResultQueue
    wins, first, returned, gone,  \* history: results that won; of each slot; given back by Clear and Close; their positions
    clears, snapshots, want, copied \* history: of snapshots, what was finished before, and what is copied

shared == <<word, top, link>>
owner == <<step, held, listed, left, due, seen>>
around == <<next, door, mail, task, output, phase>>
history == <<wins, first, returned, gone, clears, snapshots, want, copied>>
vars == <<shared, calls, owner, around, history>>

Slots == 1..Capacity
None == <<>>
Free == <<"free">>
Runs(pos, attempt) == <<"runs", pos, attempt>>
Has(result) == <<"has">> \o result
Finished(w) == w[1] = "has"
Range(sequence) == {sequence[i] : i \in 1..Len(sequence)}
HeldSlots == {held[i].slot : i \in 1..Len(held)}
FreeSlot ==
    IF HeldSlots = Slots THEN 1 ELSE CHOOSE s \in Slots \ HeldSlots : \A r \in Slots \ HeldSlots : s <= r
Answer(c) == <<c.pos, c.attempt, c.answer>>
At(where) == {c \in calls : c.at = where}
Started(pos, slot, attempt) ==
    [pos : {pos}, slot : {slot}, attempt : {attempt}, answer : 1..Answers, at : {"calling"}, seen : {0},
     after : {FALSE}]

(* The chain below a slot, newest first. A mutant may make it go in circles. *)
RECURSIVE Chain(_, _)
Chain(slot, most) == IF slot = 0 \/ most = 0 THEN <<>> ELSE <<slot>> \o Chain(link[slot], most - 1)
Stack(from) == Chain(from, Capacity + 1)

Init ==
    /\ word = [s \in Slots |-> Free] /\ top = 0 /\ link = [s \in Slots |-> 0]
    /\ calls = {}
    /\ step = "idle" /\ held = <<>> /\ listed = <<>> /\ left = {} /\ due = 0 /\ seen = <<>>
    /\ next = 1 /\ door = <<>> /\ mail = FALSE /\ task = "idle" /\ output = <<>> /\ phase = "running"
    /\ wins = {} /\ first = [s \in Slots |-> None] /\ returned = {} /\ gone = {}
    /\ clears = 0 /\ snapshots = 0 /\ want = {} /\ copied = {}

------------------------------------------------------------------------------
(* The owner: in. *)

Idle == step = "idle" /\ phase = "running"

Read ==
    /\ Idle /\ next <= Length /\ door = <<>>
    /\ door' = <<next>> /\ next' = next + 1
    /\ UNCHANGED <<shared, calls, owner, mail, task, output, phase, history>>

Admit(pos, attempt, w) ==
    /\ held' = Append(held, [pos |-> pos, slot |-> FreeSlot, attempt |-> attempt])
    /\ word' = [word EXCEPT ![FreeSlot] = w]
    /\ first' = [first EXCEPT ![FreeSlot] = IF Finished(w) THEN Tail(w) ELSE None]
    /\ door' = <<>>
    /\ UNCHANGED <<top, link, step, left, due, seen, next, task, output, phase, wins, returned, gone, clears,
                   snapshots, want, copied>>

MayPut ==
    /\ Idle /\ door # <<>>
    /\ HeldSlots # Slots \/ (Mutant = "a watermark shares a slot" /\ door[1] \in Marks)

Put ==
    /\ MayPut /\ door[1] \notin Marks
    /\ Admit(door[1], 1, Runs(door[1], 1))
    /\ calls' = calls \cup Started(door[1], FreeSlot, 1)
    /\ UNCHANGED <<listed, mail>>

PutWatermark ==
    /\ MayPut /\ door[1] \in Marks
    /\ Admit(door[1], 0, Has(<<door[1]>>))
    /\ listed' = IF Ordered THEN listed ELSE Append(listed, FreeSlot)
    /\ mail' = TRUE
    /\ UNCHANGED calls

\* A compare-and-swap from the old attempt to the new one. If it fails nothing has happened.
Renew ==
    \E i \in 1..Len(held) :
    LET e == held[i] IN
    /\ Idle /\ e.attempt \in 1..(Attempts - 1)
    /\ word[e.slot] = Runs(e.pos, e.attempt) \/ Mutant = "renew without a compare"
    /\ word' = [word EXCEPT ![e.slot] = Runs(e.pos, e.attempt + 1)]
    /\ held' = [held EXCEPT ![i].attempt = @ + 1]
    /\ calls' = calls \cup Started(e.pos, e.slot, e.attempt + 1)
    /\ UNCHANGED <<top, link, step, listed, left, due, seen, around, history>>

------------------------------------------------------------------------------
(* A completion. After "looked" it ends, or wins; only who has won goes on. *)

Accepts(c) ==
    \/ word[c.slot] = Runs(c.pos, c.attempt)
    \/ Mutant = "any attempt" /\ word[c.slot][1] = "runs"

Goes(c, where) == calls' = (calls \ {c}) \cup {[c EXCEPT !.at = where, !.after = @ \/ phase = "closed"]}

\* Who else may complete: other threads, unless the owner alone does.
Others == ~Alone \/ Mutant = "others complete, too"

\* A handle that does not name what the slot runs now will never name it again.
Look ==
    \E c \in At("calling") :
    /\ Others
    /\ IF Accepts(c) THEN Goes(c, "looked") ELSE calls' = calls \ {c}
    /\ UNCHANGED <<shared, owner, around, history>>

Win ==
    \E c \in At("looked") :
    /\ Others
    /\ IF Accepts(c) \/ Mutant = "set without a compare"
       THEN /\ word' = [word EXCEPT ![c.slot] = Has(Answer(c))]
            /\ wins' = wins \cup {Answer(c)}
            /\ first' = [first EXCEPT ![c.slot] = IF @ = None THEN Answer(c) ELSE @]
            /\ Goes(c, IF Ordered THEN "set" ELSE "won")
       ELSE calls' = calls \ {c} /\ UNCHANGED <<word, wins, first>>
    /\ UNCHANGED <<top, link, owner, around, returned, gone, clears, snapshots, want, copied>>

\* The owner completes: two steps, between which others may run, but nobody else writes the word of a slot.
LookAlone ==
    \E c \in At("calling") :
    /\ Alone /\ Idle
    /\ IF Accepts(c) \/ Mutant = "alone, so not looked at"
       THEN Goes(c, "looked") /\ step' = "completing" /\ seen' = <<c>>
       ELSE calls' = calls \ {c} /\ UNCHANGED <<step, seen>>
    /\ UNCHANGED <<shared, held, listed, left, due, around, history>>

SetAlone ==
    /\ step = "completing"
    /\ LET c == [seen[1] EXCEPT !.at = "looked"]
       IN  /\ word' = [word EXCEPT ![c.slot] = Has(Answer(c))]
           /\ wins' = wins \cup {Answer(c)}
           /\ first' = [first EXCEPT ![c.slot] = IF @ = None THEN Answer(c) ELSE @]
           /\ Goes(c, "set")
           /\ listed' = IF Ordered \/ Mutant = "alone, and not listed" THEN listed ELSE Append(listed, c.slot)
    /\ step' = "idle" /\ seen' = <<>>
    /\ UNCHANGED <<top, link, held, left, due, around, returned, gone, clears, snapshots, want, copied>>

ReadTop ==
    \E c \in At("won") :
    /\ calls' = (calls \ {c}) \cup
            {[c EXCEPT !.at = IF Mutant = "link after push" THEN "pushing" ELSE "linking", !.seen = top]}
    /\ UNCHANGED <<shared, owner, around, history>>

Link ==
    \E c \in At("linking") :
    /\ link' = [link EXCEPT ![c.slot] = c.seen]
    /\ calls' = (calls \ {c}) \cup {[c EXCEPT !.at = IF Mutant = "link after push" THEN "set" ELSE "pushing"]}
    /\ UNCHANGED <<word, top, owner, around, history>>

Push ==
    \E c \in At("pushing") :
    /\ IF top = c.seen \/ Mutant = "push without a compare"
       THEN /\ top' = c.slot
            /\ calls' = (calls \ {c}) \cup {[c EXCEPT !.at = IF Mutant = "link after push" THEN "linking" ELSE "set"]}
       ELSE /\ calls' = (calls \ {c}) \cup
                    {[c EXCEPT !.seen = top, !.at = IF Mutant = "link after push" THEN @ ELSE "linking"]}
            /\ UNCHANGED top
    /\ UNCHANGED <<word, link, owner, around, history>>

Tell ==
    \E c \in At("set") :
    /\ calls' = calls \ {c}
    /\ mail' = (mail \/ phase = "running")
    /\ UNCHANGED <<shared, owner, next, door, task, output, phase, history>>

------------------------------------------------------------------------------
(* The owner: out. *)

TakeMail ==
    /\ Idle /\ mail /\ task = "idle"
    /\ mail' = FALSE
    /\ task' = IF Ordered THEN "emitting" ELSE "collecting"
    /\ UNCHANGED <<shared, calls, owner, next, door, output, phase, history>>

Listed(slots) == listed' = listed \o Reversed(slots)

Collect ==
    /\ Idle /\ task = "collecting"
    /\ IF Mutant = "collect in two steps" /\ seen = <<>>
       THEN seen' = <<top>> /\ UNCHANGED <<top, listed, task>>
       ELSE /\ top' = 0
            /\ Listed(Stack(IF seen = <<>> THEN top ELSE seen[1]))
            /\ seen' = <<>>
            /\ task' = "emitting"
    /\ UNCHANGED <<word, link, calls, step, held, left, due, next, door, mail, output, phase, history>>

Turns == [i \in 1..Len(held) |-> [pos |-> held[i].pos, done |-> TRUE]]

\* Of the listed the first one that may leave; ordered, the oldest, if it is finished: 0 is none.
MayLeave ==
    IF Ordered THEN (IF held # <<>> /\ Finished(word[held[1].slot]) THEN 1 ELSE 0)
    ELSE LET of(slot) == CHOOSE i \in 1..Len(held) : held[i].slot = slot
             ready == {k \in 1..Len(listed) : listed[k] \in HeldSlots /\ InTurn(Turns, of(listed[k]))}
         IN  IF ready = {} THEN 0 ELSE of(listed[CHOOSE k \in ready : \A l \in ready : k <= l])

Emit ==
    /\ Idle /\ task = "emitting" /\ MayLeave # 0
    /\ LET e == held[MayLeave]
       IN  /\ output' = Append(output, [pos |-> e.pos, result |-> Tail(word[e.slot])])
           /\ held' = Without(held, MayLeave)
           /\ listed' = SelectSeq(listed, LAMBDA s : s # e.slot)
    /\ UNCHANGED <<shared, calls, step, left, due, seen, next, door, mail, task, phase, history>>

EmitDone ==
    /\ Idle /\ task = "emitting" /\ MayLeave = 0
    /\ task' = "idle"
    /\ UNCHANGED <<shared, calls, owner, next, door, mail, output, phase, history>>

------------------------------------------------------------------------------
(* The owner: all at once. *)

BeginTaking ==
    /\ step' = "taking" /\ left' = HeldSlots /\ due' = 0 /\ seen' = <<>>
    /\ task' = "idle"
    /\ UNCHANGED <<shared, calls, held, listed, next, output, wins, first, returned, gone, snapshots, want, copied>>

Close ==
    /\ Idle /\ Cancels
    /\ BeginTaking
    /\ phase' = "closed" /\ door' = <<>> /\ mail' = FALSE
    /\ UNCHANGED clears

Clear ==
    /\ Idle /\ clears < Clears
    /\ BeginTaking
    /\ clears' = clears + 1
    /\ UNCHANGED <<phase, door, mail>>

\* An exchange: from then on no completion of this entry wins.
TakeOne ==
    /\ step = "taking" /\ left # {}
    /\ LET s == CHOOSE s \in left : \A r \in left : s <= r
           w == IF seen = <<>> THEN word[s] ELSE seen[1]
       IN  IF Mutant = "take in two steps" /\ seen = <<>>
           THEN seen' = <<w>> /\ UNCHANGED <<word, left, due, returned>>
           ELSE /\ word' = [word EXCEPT ![s] = Free]
                /\ left' = left \ {s}
                /\ returned' = IF Finished(w) THEN returned \cup {Tail(w)} ELSE returned
                /\ due' = IF Finished(w) /\ ~Ordered /\ s \notin Range(listed) THEN due + 1 ELSE due
                /\ seen' = <<>>
    /\ UNCHANGED <<top, link, calls, step, held, listed, around, wins, first, gone, clears, snapshots, want, copied>>

\* The pushes of completions that have won are due: before them nobody else may have their slots.
AwaitPush ==
    /\ step = "taking" /\ left = {} /\ due > 0 /\ top # 0
    /\ due' = due - Len(Stack(top))
    /\ top' = 0
    /\ UNCHANGED <<word, link, calls, step, held, listed, left, seen, around, history>>

Taken ==
    /\ step = "taking" /\ left = {}
    /\ due = 0 \/ Mutant = "clear without waiting"
    /\ step' = "idle" /\ held' = <<>> /\ listed' = <<>> /\ due' = 0
    /\ gone' = gone \cup {held[i].pos : i \in 1..Len(held)}
    /\ UNCHANGED <<shared, calls, left, seen, around, wins, first, returned, clears, snapshots, want, copied>>

Snapshot ==
    /\ Idle /\ snapshots < Snapshots /\ held # <<>>
    /\ step' = "copying" /\ left' = HeldSlots
    /\ snapshots' = snapshots + 1
    /\ want' = {s \in HeldSlots : Finished(word[s])} /\ copied' = {}
    /\ UNCHANGED <<shared, calls, held, listed, due, seen, around, wins, first, returned, gone, clears>>

CopyOne ==
    /\ step = "copying"
    /\ LET s == CHOOSE s \in left : \A r \in left : s <= r
           finished == Finished(word[s]) /\ (Mutant = "snapshot by the list" => s \in Range(listed))
       IN  /\ left' = left \ {s}
           /\ copied' = IF finished THEN copied \cup {<<s, Tail(word[s])>>} ELSE copied
    /\ step' = IF left' = {} THEN "idle" ELSE step
    /\ want' = IF left' = {} /\ want \subseteq {c[1] : c \in copied'} THEN {} ELSE want
    /\ UNCHANGED <<shared, calls, held, listed, due, seen, around, wins, first, returned, gone, clears, snapshots>>

Completer == Look \/ Win \/ ReadTop \/ Link \/ Push \/ Tell
Owner ==
    \/ LookAlone \/ SetAlone
    \/ Read \/ Put \/ PutWatermark \/ Renew
    \/ TakeMail \/ Collect \/ Emit \/ EmitDone
    \/ Close \/ Clear \/ TakeOne \/ AwaitPush \/ Taken \/ Snapshot \/ CopyOne
Next == Completer \/ Owner
Spec == Init /\ [][Next]_vars
FairSpec == Spec /\ WF_vars(Completer) /\ WF_vars(Taken \/ AwaitPush \/ TakeOne)

------------------------------------------------------------------------------
(* It is a result queue. Clear is not among the operations there, so this is checked without it. *)

Entry(e) ==
    LET w == word[e.slot]
    IN  [pos |-> e.pos, slot |-> e.slot, attempt |-> e.attempt, done |-> Finished(w),
         result |-> IF Finished(w) THEN Tail(w) ELSE None, first |-> first[e.slot]]

Seen(c) ==
    [pos |-> c.pos, slot |-> c.slot, attempt |-> c.attempt, answer |-> c.answer,
     at |-> IF c.at \in {"calling", "looked"} THEN c.at ELSE "set"]

\* Close takes effect when it begins: what completes while it goes on belongs to what is given back.
Q == INSTANCE ResultQueue WITH
    queue <- IF phase = "closed" THEN <<>> ELSE [i \in 1..Len(held) |-> Entry(held[i])],
    calls <- {Seen(c) : c \in {d \in calls : ~d.after}},
    task <- IF task = "collecting" THEN "emitting" ELSE task,
    rest <- <<>>, hand <- <<>>, committed <- 0, pending <- <<>>, taken <- 0, crashes <- 0, kept <- {},
    saved <- [next |-> 1, entries |-> <<>>, out |-> 0, finished |-> {}],
    Timeouts <- FALSE, Snapshots <- 0, Crashes <- 0, Mutant <- "none"

IsResultQueue == Q!Init /\ [][Q!Next]_(Q!vars)

------------------------------------------------------------------------------
(* What holds also of Clear, and while a snapshot is made. *)

Pushes == {c \in calls : c.at \in {"won", "linking", "pushing"}}

TypeOK ==
    /\ top \in 0..Capacity /\ link \in [Slots -> 0..Capacity] /\ due \in 0..Capacity
    /\ step \in {"idle", "completing", "taking", "copying"} /\ left \subseteq Slots
    /\ Cardinality(HeldSlots) = Len(held) /\ Cardinality(Range(listed)) = Len(listed)
    /\ Len(Stack(top)) <= Capacity

\* Who has won and has not pushed yet has the slot for itself.
SlotNotReused == \A c \in Pushes : \E i \in 1..Len(held) : held[i].pos = c.pos /\ held[i].slot = c.slot

\* Never more entries than slots, each in a slot of its own; a watermark has one too.
CapacityNeverExceeded == Len(held) <= Capacity /\ Cardinality(HeldSlots) = Len(held)

\* Every result that won is held, was emitted, or was given back.
NoResultLost ==
    \A r \in wins :
        \/ \E i \in 1..Len(held) : word[held[i].slot] = Has(r)
        \/ \E i \in 1..Len(output) : output[i].result = r
        \/ r \in returned

\* Of one entry one result wins, and it is the entry's own.
OneWins == \A r, s \in wins : r[1] = s[1] => r = s
EmitsOwn == \A i \in 1..Len(output) : output[i].result # None /\ output[i].result[1] = output[i].pos

\* A result is that of the present attempt.
AttemptsOwn ==
    \A i \in 1..Len(held) :
        LET w == word[held[i].slot]
        IN  Finished(w) /\ held[i].attempt # 0 => w[3] = held[i].attempt

\* A position is in one place.
NothingTwice ==
    LET emitted == {output[i].pos : i \in 1..Len(output)}
        holds == {held[i].pos : i \in 1..Len(held)}
    IN  /\ Cardinality(emitted) = Len(output)
        /\ emitted \cap holds = {} /\ gone \cap (emitted \cup holds) = {}

\* What has finished will be emitted: it is listed, stacked, or its push is still to come.
NothingStuck ==
    ~Ordered /\ step # "taking" => \A i \in 1..Len(held) :
        Finished(word[held[i].slot]) =>
            \/ held[i].slot \in Range(listed) \cup Range(Stack(top))
            \/ seen # <<>>
            \/ \E c \in Pushes : c.slot = held[i].slot

\* A snapshot has the results that were there when it began, and no others but those that came since.
SnapshotTruthful ==
    /\ step = "idle" => want = {}
    /\ step = "copying" => \A c \in copied : c[2] = Tail(word[c[1]])

EveryTakingEnds == (step = "taking") ~> (step = "idle")
=============================================================================
