---------------------------- MODULE MailboxImpl -----------------------------
(* The mailbox without a lock, each access to a shared word one step.                                            *)
(*                                                                                                              *)
(* `head` is one word: a pointer to the newest mail, or None, and beside it the state, PARKED and ARMED. Mails     *)
(* are linked from the newest to the oldest through `link`. `signal` counts wake-ups; a sleeper sleeps as long as  *)
(* the count has not moved. It says too with which count the consumer parked last, and with which one somebody    *)
(* has woken it: puts that find it parked, but woken already, leave it alone. `slot` holds the armed wake-up.      *)
(* Producers put and quiesce; the consumer is the mailbox thread. A failed compare-and-swap reads the word anew,  *)
(* so it goes on as if it had just loaded it.                                                                    *)
EXTENDS Lanes, FiniteSets, TLC

CONSTANTS
    Producers,
    Stalls,      \* those of them that may stop for ever between their push and their wake-up
    MayQuiesce,  \* whether producers quiesce
    MayPutAll,   \* whether producers put two mails at once
    Ops,         \* what the consumer does
    Elsewhere,   \* whether it sleeps elsewhere: it takes until there is nothing, arms, and waits to be called
    Slices,      \* whether a sleep may end by itself
    Timeouts,    \* whether a take may give up
    MaxArms,     \* how often it arms
    Again        \* whether a mail that came out, or was refused, may be put once more

VARIABLES
    head, link, signal, slot,      \* shared
    pc, held, seen, calling,       \* of each producer
    cpc, asked, before, lanes,     \* of the consumer
    order, fate, inBatch, inARow, said,  \* as in Mailbox
    arms, answered, calls, trusted, due, \* about wake-ups: see below
    ended, late                    \* whether a quiesce has returned; mails whose put began after that

shared == <<head, link, signal, slot>>
producers == <<pc, held, seen, calling>>
consumer == <<cpc, asked, before, lanes>>
remembered == <<order, fate, inBatch, inARow, said>>
wakeups == <<arms, answered, calls, trusted, due>>
vars == <<shared, producers, consumer, remembered, wakeups, ended, late>>

(* States count as one that differ only in what no step depends on: the last answer (`Mailbox` says why that may  *)
(* be), links of mails that are not in the chain, and how far the signal is when nobody compares it.             *)
Compares == cpc \in {"publish", "park", "sleep", "asleep"}
Symmetry == Permutations(Producers)

(* `parking` is not in the word: a producer remembers there with which count the consumer had parked.           *)
Word ==
    [top : Mails \cup {None}, state : {"OPEN", "QUIESCED", "CLOSED"}, parked : BOOLEAN, armed : BOOLEAN, parking : Nat]
Empty == [top |-> None, state |-> "OPEN", parked |-> FALSE, armed |-> FALSE, parking |-> 0]
Idle(word) == word.top = None /\ word.state = "OPEN" /\ ~word.parked

Init ==
    /\ head = Empty /\ link = [m \in Mails |-> None] /\ signal = [count |-> 1, parked |-> 0, woken |-> 0] /\ slot = 0
    /\ pc = [p \in Producers |-> "idle"] /\ held = [p \in Producers |-> <<>>]
    /\ seen = [p \in Producers |-> Empty] /\ calling = [p \in Producers |-> 0]
    /\ cpc = "idle" /\ asked = <<>> /\ before = 0 /\ lanes = NoLanes
    /\ order = <<>> /\ fate = [m \in Mails |-> "new"] /\ inBatch = {} /\ inARow = 0
    /\ said = [op |-> "nothing", p |-> -1, skip |-> FALSE, answer |-> "", mails |-> <<>>, odd |-> FALSE]
    /\ arms = 0 /\ answered = [k \in 1..MaxArms |-> "no"] /\ calls = [k \in 1..MaxArms |-> 0]
    /\ trusted = 0 /\ due = FALSE
    /\ ended = FALSE /\ late = {}

(* The chain below a mail, oldest first.                                                                        *)
RECURSIVE Chain(_)
Chain(top) == IF top = None THEN <<>> ELSE Append(Chain(link[top]), top)
Arrived == Chain(head.top)
Reversed(q) == [i \in 1..Len(q) |-> q[Len(q) + 1 - i]]

(* Of the counts it matters only which are equal, and the signal's own is the greatest.                          *)
Waking == {"look", "compare", "signal", "wake", "note"}
Counts == {signal.count, signal.parked, signal.woken, before} \cup {seen[p].parking : p \in Producers}
Rank(count) == Cardinality({other \in Counts : other < count})
Matters == Compares \/ head.parked \/ \E p \in Producers : pc[p] \in Waking
Ranks ==
    IF Matters THEN <<Rank(signal.parked), Rank(signal.woken), IF Compares THEN Rank(before) ELSE 0, Rank(signal.count)>>
    ELSE <<>>
Seen == [p \in Producers |-> [seen[p] EXCEPT !.parking = IF pc[p] \in Waking THEN Rank(@) ELSE 0]]
View == <<head, Arrived, slot, pc, held, Seen, calling, cpc, asked, Ranks, lanes, order, fate, inBatch, inARow,
    (IF Elsewhere THEN said.op \o said.answer ELSE ""), wakeups, ended, late>>

(* What the mailbox is for its users: Mailbox, with what has arrived sorted into the lanes already.              *)
OwesCall(p) == pc[p] = "take callback" \/ (pc[p] \in Waking /\ seen[p].armed)
M == INSTANCE Mailbox WITH
    state <- head.state,
    lanes <- Sorted(lanes, Arrived),
    armed <- head.armed,
    owed <- Cardinality({p \in Producers : OwesCall(p)}),
    lent <- cpc \in {"arm swap", "arm undo"} /\ slot = 0,
    Mutant <- "none"

Become(mails, what) == [m \in Mails |-> IF m \in mails THEN what ELSE fate[m]]
Say(op, p, skip, answer, mails) ==
    said' = [op |-> op, p |-> p, skip |-> skip, answer |-> answer, mails |-> mails, odd |-> ~said.odd]

-----------------------------------------------------------------------------
(* A producer. LockFreeInbox::push is BeginPut, Load, Link, Push; LockFreeInbox::quiesce is BeginQuiesce and        *)
(* QuiesceSwap; LockFreeInbox::notify is LookParked, Compare, Signal, Wake, Note, TakeCallback; the caller of      *)
(* both does CallArmed.                                                                                          *)

MayBePut(m) ==
    /\ fate[m] = "new" \/ (Again /\ fate[m] # "waiting")
    /\ \A p \in Producers : m \notin Range(held[p])

Chains ==
    {<<m>> : m \in Mails} \cup (IF MayPutAll THEN {ms \in Mails \X Mails : ms[1] # ms[2]} ELSE {})

(* The chain of one put is linked before anybody else can see it: newest first.                                  *)
Linked(ms) == IF Len(ms) = 1 THEN link ELSE [link EXCEPT ![ms[2]] = ms[1]]
Newest(ms) == IF Mutant = "put_all in reverse" THEN ms[1] ELSE ms[Len(ms)]
Bottom(ms) == IF Mutant = "put_all in reverse" THEN ms[Len(ms)] ELSE ms[1]

BeginPut(p) ==
    /\ pc[p] = "idle"
    /\ \E ms \in Chains :
        /\ \A m \in Range(ms) : MayBePut(m)
        /\ held' = [held EXCEPT ![p] = ms]
        /\ link' = Linked(IF Mutant = "put_all in reverse" THEN Reversed(ms) ELSE ms)
        /\ late' = IF ended THEN late \cup Range(ms) ELSE late
    /\ pc' = [pc EXCEPT ![p] = "load"]
    /\ UNCHANGED <<head, signal, slot, seen, calling, consumer, remembered, wakeups, ended>>

(* The end of a put or a quiesce; only a quiesce holds no mail.                                                  *)
Return(p) ==
    /\ pc' = [pc EXCEPT ![p] = "idle"]
    /\ held' = [held EXCEPT ![p] = <<>>]
    /\ seen' = [seen EXCEPT ![p] = Empty]
    /\ calling' = [calling EXCEPT ![p] = 0]
    /\ ended' = (ended \/ held[p] = <<>>)

Refuse(p) ==
    /\ Return(p)
    /\ fate' = Become(Range(held[p]), "refused")
    /\ IF Mutant = "a refused put leaves its mail"
       THEN link' = [link EXCEPT ![Bottom(held[p])] = head.top] /\ head' = [head EXCEPT !.top = Newest(held[p])]
       ELSE UNCHANGED <<head, link>>
    /\ UNCHANGED <<signal, slot, consumer, order, inBatch, inARow, said, wakeups, late>>

Look(p, next) ==
    /\ pc' = [pc EXCEPT ![p] = next]
    /\ seen' = [seen EXCEPT ![p] = head]
    /\ UNCHANGED <<shared, held, calling, consumer, remembered, wakeups, ended, late>>

Load(p) ==
    /\ pc[p] = "load"
    /\ IF head.state # "OPEN" THEN Refuse(p)
       ELSE Look(p, IF Mutant = "wake before push" /\ head.parked THEN "early signal" ELSE "link")

Link(p) ==
    /\ pc[p] = "link"
    /\ link' = [link EXCEPT ![Bottom(held[p])] = seen[p].top]
    /\ pc' = [pc EXCEPT ![p] = "push"]
    /\ UNCHANGED <<head, signal, slot, held, seen, calling, consumer, remembered, wakeups, ended, late>>

(* Whom a thread that has swung the word from `word` has to wake or to call.                                     *)
Notice(p, word) ==
    IF word.parked THEN "look" ELSE IF word.armed THEN "take callback" ELSE "idle"
Noticed(p, word) ==
    IF Notice(p, word) = "idle" THEN Return(p)
    ELSE /\ pc' = [pc EXCEPT ![p] = Notice(p, word)]
         /\ seen' = [seen EXCEPT ![p] = [Empty EXCEPT !.parked = word.parked, !.armed = word.armed]]
         /\ UNCHANGED <<held, calling, ended>>

(* What a put that has swung the word from `word` acts on.                                                       *)
Found(word) ==
    CASE Mutant \in {"a put does not wake", "wake before push"} -> [word EXCEPT !.parked = FALSE]
      [] Mutant \in {"the first put wakes", "takes leave mail, the first put wakes"} ->
            [word EXCEPT !.parked = @ /\ word.top = None]
      [] OTHER -> word

Swing(p, word) ==
    /\ head' = [word EXCEPT
            !.top = Newest(held[p]),
            !.parked = @ /\ Mutant # "a put clears PARKED",
            !.armed = @ /\ Mutant = "a put leaves ARMED"]
    /\ order' = order \o held[p]
    /\ fate' = Become(Range(held[p]), "waiting")
    /\ inBatch' = inBatch \ Range(held[p])
    /\ due' = TRUE
    /\ Noticed(p, Found(word))
    /\ UNCHANGED <<signal, slot, consumer, inARow, said, arms, answered, calls, trusted, late>>

Push(p) ==
    /\ pc[p] = "push"
    /\ IF Mutant = "check, then push" THEN
            Swing(p, head) /\ link' = [link EXCEPT ![Bottom(held[p])] = head.top]
       ELSE IF head = seen[p] THEN Swing(p, head) /\ UNCHANGED link
       ELSE IF head.state # "OPEN" THEN Refuse(p)
       ELSE Look(p, "link")

BeginQuiesce(p) ==
    /\ pc[p] = "idle" /\ MayQuiesce
    /\ IF head.state # "OPEN"
       THEN ended' = TRUE /\ UNCHANGED <<pc, seen>>
       ELSE pc' = [pc EXCEPT ![p] = "quiesce"] /\ seen' = [seen EXCEPT ![p] = head] /\ UNCHANGED ended
    /\ UNCHANGED <<shared, held, calling, consumer, remembered, wakeups, late>>

QuiesceSwap(p) ==
    /\ pc[p] = "quiesce"
    /\ IF head = seen[p] THEN
            /\ head' = [head EXCEPT
                    !.top = IF Mutant = "quiesce drops the chain" THEN None ELSE @,
                    !.state = "QUIESCED",
                    !.armed = FALSE]
            /\ due' = TRUE
            /\ Noticed(p, IF Mutant = "quiesce does not wake" THEN [head EXCEPT !.parked = FALSE] ELSE head)
            /\ UNCHANGED <<arms, answered, calls, trusted>>
       ELSE IF head.state # "OPEN" THEN Return(p) /\ UNCHANGED <<head, wakeups>>
       ELSE /\ seen' = [seen EXCEPT ![p] = head]
            /\ UNCHANGED <<head, pc, held, calling, wakeups, ended>>
    /\ UNCHANGED <<link, signal, slot, consumer, remembered, late>>

(* The consumer may have parked anew by now; then what this producer has put was fetched.                         *)
LookParked(p) ==
    /\ pc[p] = "look"
    /\ seen' = [seen EXCEPT ![p].parking = signal.parked]
    /\ pc' = [pc EXCEPT ![p] = "compare"]
    /\ UNCHANGED <<shared, held, calling, consumer, remembered, wakeups, ended, late>>

(* Nobody is left to be woken by this producer.                                                                  *)
Woken(p) ==
    IF ~seen[p].armed THEN Return(p)
    ELSE pc' = [pc EXCEPT ![p] = "take callback"] /\ UNCHANGED <<held, seen, calling, ended>>

Compare(p) ==
    /\ pc[p] = "compare"
    /\ IF signal.woken = seen[p].parking \/ (Mutant = "woken once is enough" /\ signal.woken # 0)
       THEN Woken(p)
       ELSE pc' = [pc EXCEPT ![p] = "signal"] /\ UNCHANGED <<held, seen, calling, ended>>
    /\ UNCHANGED <<shared, consumer, remembered, wakeups, late>>

Signal(p) ==
    /\ pc[p] \in {"signal", "early signal"}
    /\ signal' = [signal EXCEPT
            !.count = @ + 1,
            !.woken = IF Mutant = "woken is said before it is done" THEN seen[p].parking ELSE @]
    /\ pc' = [pc EXCEPT ![p] = IF @ = "signal" THEN "wake" ELSE "early wake"]
    /\ UNCHANGED <<head, link, slot, held, seen, calling, consumer, remembered, wakeups, ended, late>>

Wake(p) ==
    /\ pc[p] \in {"wake", "early wake"}
    /\ cpc' = IF cpc = "asleep" THEN "fetch" ELSE cpc
    /\ pc' = [pc EXCEPT ![p] = IF @ = "early wake" THEN "link" ELSE "note"]
    /\ UNCHANGED <<shared, held, seen, calling, asked, before, lanes, remembered, wakeups, ended, late>>

(* The consumer that had parked with this count does not sleep any more.                                         *)
Note(p) ==
    /\ pc[p] = "note"
    /\ signal' = [signal EXCEPT !.woken = seen[p].parking]
    /\ Woken(p)
    /\ UNCHANGED <<head, link, slot, consumer, remembered, wakeups, late>>

TakeCallback(p) ==
    /\ pc[p] = "take callback"
    /\ slot' = 0
    /\ IF slot = 0 THEN Return(p)
       ELSE /\ pc' = [pc EXCEPT ![p] = "call"]
            /\ calling' = [calling EXCEPT ![p] = slot]
            /\ UNCHANGED <<held, seen, ended>>
    /\ UNCHANGED <<head, link, signal, consumer, remembered, wakeups, late>>

CallArmed(p) ==
    /\ pc[p] = "call"
    /\ calls' = [calls EXCEPT ![calling[p]] = @ + 1]
    /\ Return(p)
    /\ UNCHANGED <<shared, consumer, remembered, arms, answered, trusted, due, late>>

-----------------------------------------------------------------------------
(* The consumer. Its lanes are private, so what it does to them belongs to the step that fetches.                 *)
(* LockFreeInbox::fetch is Fetch, a part of each operation; LockFreeInbox::park is ReadSignal, Publish, Park,      *)
(* Sleep; LockFreeInbox::arm is BeginArm, ArmSwap, ArmUndo; LockFreeInbox::close is Close and DropCallback.        *)

Fetched == Sorted(lanes, IF Mutant = "the chain is not reversed" THEN Reversed(Arrived) ELSE Arrived)

(* One plain load if there is no mail and no PARKED, or else an exchange that keeps the state.                   *)
Fetch ==
    IF head.top = None /\ ~head.parked THEN UNCHANGED head
    ELSE head' = [head EXCEPT
            !.top = None,
            !.state = IF Mutant = "an exchange drops the state" THEN "OPEN" ELSE @,
            !.parked = @ /\ Mutant = "a fetch leaves PARKED",
            !.armed = @ /\ Mutant # "a fetch disarms"]

Handed(l, m) ==
    /\ lanes' = After(l, m)
    /\ order' = Without(order, m)
    /\ fate' = Become({m}, "taken")
    /\ inBatch' = inBatch \ {m}
    /\ inARow' = IF m \notin Urgent THEN 0 ELSE IF inARow < Burst THEN inARow + 1 ELSE inARow

Kept(l) == lanes' = l /\ UNCHANGED <<order, fate, inBatch, inARow>>
Done == cpc' = "idle" /\ asked' = <<>> /\ before' = 0
Rest == UNCHANGED <<signal, slot, producers, wakeups, ended, late>>

MayBegin(op) == cpc = "idle" /\ op \in Ops
Tired == said.op = "try_take" /\ said.answer \in {"none", "closed"}

(* Only of mutants: an answer that is given once more, without a look.                                           *)
SaysAgain(op) ==
    \/ op = "try_take" /\ Mutant = "none is said again" /\ said.op = op /\ said.answer = "none"
    \/ op = "has_mail" /\ Mutant = "no is said again" /\ said.op = op /\ said.answer = "no"

TryTake ==
    /\ MayBegin("try_take") /\ (Elsewhere => ~Tired)
    /\ \E p \in Priorities, skip \in Skips :
        LET m == NextMail(Fetched, p, skip, TRUE)
        IN  IF head.state = "CLOSED" THEN
                Kept(lanes) /\ UNCHANGED head /\ Say("try_take", p, skip, "closed", <<>>)
            ELSE IF SaysAgain("try_take") THEN
                Kept(lanes) /\ UNCHANGED head /\ Say("try_take", p, skip, "none", <<>>)
            ELSE IF m # None THEN Fetch /\ Handed(Fetched, m) /\ Say("try_take", p, skip, "mail", <<m>>)
            ELSE Fetch /\ Kept(Fetched) /\ Say("try_take", p, skip, "none", <<>>)
    /\ Done /\ UNCHANGED link /\ Rest

BeginTake ==
    /\ MayBegin("take")
    /\ \E p \in Priorities, skip \in Skips : asked' = <<p, skip>>
    /\ cpc' = "fetch"
    /\ UNCHANGED <<shared, producers, before, lanes, remembered, wakeups, ended, late>>

(* Variant and mutant: a take that finds nothing for it leaves what has arrived where it is.                      *)
Leaves ==
    /\ Mutant \in {"takes leave mail", "takes leave mail, the first put wakes"}
    /\ NextMail(Fetched, asked[1], asked[2], TRUE) = None /\ head.state = "OPEN"

TakeFetch ==
    /\ cpc = "fetch"
    /\ LET p == asked[1]
           skip == asked[2]
           m == NextMail(Fetched, p, skip, TRUE)
           waits == head.state = "OPEN" \/ Mutant = "a quiesced take waits"
       IN  IF head.state = "CLOSED" THEN
                Done /\ UNCHANGED head /\ Kept(lanes) /\ Say("take", p, skip, "closed", <<>>)
           ELSE IF m # None THEN Done /\ Fetch /\ Handed(Fetched, m) /\ Say("take", p, skip, "mail", <<m>>)
           ELSE IF ~waits THEN Done /\ Fetch /\ Kept(Fetched) /\ Say("take", p, skip, "closed", <<>>)
           ELSE IF Leaves THEN
                /\ cpc' = "read signal" /\ head' = [head EXCEPT !.parked = FALSE] /\ Kept(lanes)
                /\ UNCHANGED <<asked, before, said>>
           ELSE \/ Timeouts /\ head.state = "OPEN" /\ Done /\ Fetch /\ Kept(Fetched) /\ Say("take", p, skip, "none", <<>>)
                \/ /\ cpc' = CASE Mutant = "the signal is read late" -> "park"
                               [] Mutant = "ended by a later look" -> "look"
                               [] OTHER -> "read signal"
                   /\ Fetch /\ Kept(Fetched) /\ UNCHANGED <<asked, before, said>>
    /\ UNCHANGED link /\ Rest

(* Only of a mutant: the state is read after the mail was fetched.                                               *)
LaterLook ==
    /\ cpc = "look"
    /\ IF head.state # "OPEN" THEN Done /\ Say("take", asked[1], asked[2], "closed", <<>>)
       ELSE cpc' = "read signal" /\ UNCHANGED <<asked, before, said>>
    /\ UNCHANGED <<shared, lanes, order, fate, inBatch, inARow>> /\ Rest

ReadSignal ==
    /\ cpc = "read signal"
    /\ before' = signal.count
    /\ cpc' = "publish"
    /\ UNCHANGED <<shared, asked, lanes, remembered>> /\ Rest

Publish ==
    /\ cpc = "publish"
    /\ signal' = [signal EXCEPT !.parked = before]
    /\ cpc' = IF Mutant = "the signal is read late" THEN "sleep" ELSE "park"
    /\ UNCHANGED <<head, link, slot, producers, asked, before, lanes, remembered, wakeups, ended, late>>

Park ==
    /\ cpc = "park"
    /\ IF \/ Idle(head)
          \/ Mutant = "parks without a look"
          \/ Leaves
       THEN /\ head' = [head EXCEPT !.parked = TRUE]
            /\ cpc' = IF Mutant = "the signal is read late" THEN "read signal" ELSE "sleep"
       ELSE cpc' = "fetch" /\ UNCHANGED head
    /\ UNCHANGED <<link, asked, before, lanes, remembered>> /\ Rest

Sleep ==
    /\ cpc = "sleep"
    /\ cpc' = IF signal.count = before THEN "asleep" ELSE "fetch"
    /\ UNCHANGED <<shared, asked, before, lanes, remembered>> /\ Rest

SliceEnds ==
    /\ cpc = "asleep" /\ Slices
    /\ cpc' = "fetch"
    /\ UNCHANGED <<shared, asked, before, lanes, remembered>> /\ Rest

Raises(op) ==
    /\ head.state = "CLOSED"
    /\ UNCHANGED head /\ Kept(lanes) /\ Say(op, -1, FALSE, "closed", <<>>)

CreateBatch ==
    /\ MayBegin("create_batch")
    /\ \/ Raises("create_batch")
       \/ /\ head.state # "CLOSED"
          /\ Fetch
          /\ lanes' = Batched(Fetched)
          /\ inBatch' = Range(order) \ Urgent
          /\ UNCHANGED <<order, fate, inARow>>
          /\ Say("create_batch", -1, FALSE, IF lanes'.batch # <<>> \/ lanes'.urgent # <<>> THEN "yes" ELSE "no", <<>>)
    /\ Done /\ UNCHANGED link /\ Rest

TakeFromBatch ==
    /\ MayBegin("take_from_batch")
    /\ \/ Raises("take_from_batch")
       \/ /\ head.state # "CLOSED"
          /\ Fetch
          /\ LET m == NextMail(Fetched, -1, FALSE, FALSE)
             IN  IF m # None THEN Handed(Fetched, m) /\ Say("take_from_batch", -1, FALSE, "mail", <<m>>)
                 ELSE Kept(Fetched) /\ Say("take_from_batch", -1, FALSE, "none", <<>>)
    /\ Done /\ UNCHANGED link /\ Rest

HasMail ==
    /\ MayBegin("has_mail")
    /\ Kept(lanes) /\ UNCHANGED head
    /\ LET some == (InLanes(lanes) # {} \/ head.top # None) /\ ~SaysAgain("has_mail")
       IN  Say("has_mail", -1, FALSE, IF some THEN "yes" ELSE "no", <<>>)
    /\ Done /\ UNCHANGED link /\ Rest

Drain ==
    /\ MayBegin("drain")
    /\ LET all == Drained(Fetched)
       IN  IF head.state = "CLOSED" THEN UNCHANGED head /\ Kept(lanes) /\ Say("drain", -1, FALSE, "mails", <<>>)
           ELSE /\ Fetch
                /\ lanes' = all.lanes
                /\ order' = SelectSeq(order, LAMBDA m : m \notin Range(all.mails))
                /\ fate' = Become(Range(all.mails), "drained")
                /\ inBatch' = inBatch \ Range(all.mails)
                /\ inARow' = M!CountedInARow(all.mails, inARow)
                /\ Say("drain", -1, FALSE, "mails", all.mails)
    /\ Done /\ UNCHANGED link /\ Rest

(* The exchange takes the chain and the state out together; what the callback's slot holds is dropped next.      *)
Close ==
    /\ MayBegin("close")
    /\ LET all == Returned(Fetched)
       IN  /\ head' = [Empty EXCEPT !.state = "CLOSED"]
           /\ lanes' = NoLanes
           /\ order' = <<>> /\ inBatch' = {} /\ inARow' = 0
           /\ fate' = Become(Range(all), "returned")
           /\ Say("close", -1, FALSE, "mails", all)
    /\ cpc' = "drop callback"
    /\ trusted' = 0
    /\ UNCHANGED <<link, signal, slot, producers, asked, before, arms, answered, calls, due, ended, late>>

DropCallback ==
    /\ cpc = "drop callback"
    /\ slot' = IF Mutant = "close leaves the callback" THEN slot ELSE 0
    /\ Done
    /\ UNCHANGED <<head, link, signal, producers, lanes, remembered, wakeups, ended, late>>

(* Wake-ups have numbers. `answered` is what arm said of each, `calls` how often it was called. `trusted` is the   *)
(* one by which the consumer expects to be called; `due` says that something has happened since.                 *)
ArmAnswers(yes) ==
    /\ Say("arm", -1, FALSE, IF yes THEN "yes" ELSE "no", <<>>)
    /\ UNCHANGED <<order, fate, inBatch, inARow>>

BeginArm ==
    /\ MayBegin("arm") /\ (Elsewhere => Tired)
    /\ arms < MaxArms
    /\ IF InLanes(lanes) # {} THEN
            ArmAnswers(FALSE) /\ UNCHANGED <<slot, cpc, wakeups>>
       ELSE /\ slot' = arms + 1
            /\ arms' = arms + 1
            /\ trusted' = 0
            /\ cpc' = "arm swap"
            /\ UNCHANGED <<answered, calls, due, remembered>>
    /\ UNCHANGED <<head, link, signal, producers, asked, before, lanes, ended, late>>

ArmSwap ==
    /\ cpc = "arm swap"
    /\ IF Idle(head) \/ Mutant = "arms without a look" THEN
            /\ head' = [head EXCEPT !.armed = TRUE]
            /\ answered' = [answered EXCEPT ![arms] = "yes"]
            /\ trusted' = arms
            /\ due' = ~Idle(head)
            /\ ArmAnswers(TRUE)
            /\ cpc' = IF Elsewhere THEN "elsewhere" ELSE "idle"
            /\ UNCHANGED <<arms, calls>>
       ELSE cpc' = "arm undo" /\ UNCHANGED <<head, wakeups, remembered>>
    /\ UNCHANGED <<link, signal, slot, producers, asked, before, lanes, ended, late>>

ArmUndo ==
    /\ cpc = "arm undo"
    /\ slot' = 0
    /\ LET spent == slot = 0
       IN  /\ answered' = [answered EXCEPT ![arms] = IF spent THEN "yes" ELSE "refused"]
           /\ trusted' = IF spent THEN arms ELSE 0
           /\ due' = spent
           /\ ArmAnswers(spent)
           /\ cpc' = IF Elsewhere /\ spent THEN "elsewhere" ELSE "idle"
    /\ UNCHANGED <<head, link, signal, producers, asked, before, lanes, arms, calls, ended, late>>

(* The consumer sleeps elsewhere until its wake-up is called, and then looks for mail.                           *)
Called ==
    /\ cpc = "elsewhere" /\ calls[trusted] > 0
    /\ cpc' = "idle"
    /\ said' = [said EXCEPT !.op = "nothing"]
    /\ UNCHANGED <<shared, producers, asked, before, lanes, order, fate, inBatch, inARow, wakeups, ended, late>>

-----------------------------------------------------------------------------
Producer(p) ==
    \/ Load(p) \/ Link(p) \/ Push(p) \/ QuiesceSwap(p) \/ LookParked(p) \/ Compare(p) \/ Signal(p) \/ Wake(p)
    \/ Note(p) \/ TakeCallback(p) \/ CallArmed(p)

Consumer ==
    \/ TryTake \/ BeginTake \/ TakeFetch \/ LaterLook \/ ReadSignal \/ Publish \/ Park \/ Sleep \/ SliceEnds
    \/ CreateBatch \/ TakeFromBatch \/ HasMail \/ Drain \/ Close \/ DropCallback
    \/ BeginArm \/ ArmSwap \/ ArmUndo \/ Called

Next == (\E p \in Producers : BeginPut(p) \/ BeginQuiesce(p) \/ Producer(p)) \/ Consumer

Spec == Init /\ [][Next]_vars

(* A step of producer p, except that one of `Stalls` may stop where it has pushed and woken nobody yet.           *)
Steady(p) == Producer(p) /\ ~(p \in Stalls /\ pc[p] \in Waking \cup {"take callback", "call"})
FairSpec == Spec /\ WF_vars(Consumer) /\ \A p \in Producers : WF_vars(Steady(p))

-----------------------------------------------------------------------------
TypeOK ==
    /\ head \in Word /\ link \in [Mails -> Mails \cup {None}] /\ slot \in 0..MaxArms
    /\ signal \in [count : Nat, parked : Nat, woken : Nat]
    /\ \A p \in Producers : seen[p] \in Word

(* It is a mailbox.                                                                                             *)
IsMailbox == M!Spec

(* The same, found faster: TLC tries the parts of a formula in their order, and here each kind of step is tried     *)
(* only if it can be the one. Each part is one of M!Next, so `Refines` implies `IsMailbox`.                        *)
Came == SubSeq(order', Len(order) + 1, Len(order'))
IsTake(op, p, skip) ==
    op \in {"take", "try_take"} /\ (M!Take(op, p, skip) \/ M!TakeNothing(op, p, skip) \/ M!RaiseClosed(op, p, skip))
IsNext ==
    \/ UNCHANGED M!vars
    \/ Len(order') > Len(order) /\ Came \in M!Puts /\ (IF Len(Came) = 1 THEN M!Put(Came[1]) ELSE M!PutAll(Came))
    \/ order' = order /\ fate' # fate /\ \E ms \in M!Puts : M!PutRefused(ms)
    \/ head'.state # head.state /\ said' = said /\ M!Quiesce
    \/ IsTake(said'.op, said'.p, said'.skip)
    \/ said'.op = "take" /\ M!TakeEnded(said'.p, said'.skip)
    \/ said'.op = "create_batch" /\ (M!CreateBatch \/ M!RaiseClosed("create_batch", -1, FALSE))
    \/ said'.op = "take_from_batch" /\ (M!TakeFromBatch \/ M!BatchUsedUp \/ M!RaiseClosed("take_from_batch", -1, FALSE))
    \/ said'.op = "has_mail" /\ M!HasMail
    \/ said'.op = "drain" /\ M!Drain
    \/ said'.op = "close" /\ M!Close
    \/ said'.op = "arm" /\ (M!Arm \/ M!ArmRefused \/ M!ArmSpent)
    \/ M!Call
Refines == M!Init /\ [][IsNext]_(M!vars)

NothingLost == M!NothingLost
RefusedLeavesNothing == M!RefusedLeavesNothing
ArmedBesideNoMail == M!ArmedBesideNoMail
ComesOutOnce == M!ComesOutOnce
StatesGoForward == M!StatesGoForward
AcceptedOnlyWhileOpen == M!AcceptedOnlyWhileOpen
TakenInOrder == M!TakenInOrder
NoFalseEmpty == M!NoFalseEmpty
NoFalseHasMail == M!NoFalseHasMail
DrainTakesAll == M!DrainTakesAll
CloseReturnsTheRest == M!CloseReturnsTheRest
ArmedOnlyWhileIdle == M!ArmedOnlyWhileIdle

(* No put that begins after a quiesce has returned succeeds.                                                     *)
NoPutAfterQuiesce == \A m \in late : fate[m] # "waiting"

(* A sleeper has nothing to do, or somebody is on the way to wake it.                                            *)
NoLostWakeup ==
    cpc = "asleep" /\ (\A p \in Producers : pc[p] \notin Waking) =>
        /\ NextMail(Fetched, asked[1], asked[2], TRUE) = None
        /\ head.state = "OPEN" /\ head.parked /\ signal.count = before

(* The same for a consumer that sleeps elsewhere.                                                                *)
NoLostCall ==
    trusted # 0 /\ due /\ (\A p \in Producers : pc[p] \notin Waking \cup {"take callback", "call"}) =>
        calls[trusted] = 1

CalledOnceAtMost == \A k \in 1..MaxArms : calls[k] <= 1 /\ (answered[k] = "refused" => calls[k] = 0)

(* A closed mailbox keeps no callback: what it refers to would live as long as the mailbox.                      *)
CallbackDropped == head.state = "CLOSED" /\ cpc = "idle" => slot = 0

(* Not quite true: a put that was still to call an earlier wake-up may call the one that was armed since. It comes *)
(* too early then, never too late, and `NoLostCall` holds.                                                      *)
CalledOnlyWhenDue == trusted # 0 /\ ~due => calls[trusted] = 0

EveryMailTaken == \A m \in Mails : (fate[m] = "waiting") ~> (fate[m] # "waiting")
EveryTakeEnds == (cpc \in {"fetch", "read signal", "park", "sleep", "asleep"} /\ head.state # "OPEN") ~> (cpc = "idle")
(* A take that finds nothing sleeps: it does not look again and again while nothing comes.                       *)
TakesComeToRest == (cpc = "fetch") ~> (cpc \in {"idle", "asleep"})
(* A mail whose producer has returned from its put is taken, whoever else stalls.                                *)
HeldByStalled(m) == \E p \in Stalls : m \in Range(held[p])
OthersTaken == \A m \in Mails : (fate[m] = "waiting" /\ ~HeldByStalled(m)) ~> (fate[m] # "waiting")
=============================================================================
