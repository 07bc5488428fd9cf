------------------------------ MODULE Mailbox -------------------------------
(* The mailbox as its users see it: each operation is one step. Many threads put, one takes.                     *)
(* `MailboxImpl` refines this module; the kernel's methods name its actions.                                     *)
(*                                                                                                              *)
(* `state`, `lanes`, `armed`, `owed` and `lent` are the mailbox. The variables below them only remember what      *)
(* happened, so that the properties can be stated without looking into the lanes.                                *)
EXTENDS Lanes, FiniteSets

CONSTANT Again  \* whether a mail that has left the mailbox, or was refused, may be put once more

VARIABLES
    state,   \* "OPEN", "QUIESCED", "CLOSED"
    lanes,   \* all mail that waits
    armed,   \* whether the next put or quiesce owes a call of the armed wake-up
    owed,    \* how many calls are owed: found armed, and not called yet
    lent,    \* whether such a call has gone to the wake-up that is being armed at this moment
    order,   \* remembers: the mails that wait, in the order of their puts
    fate,    \* remembers: where each mail is or went
    inBatch, \* remembers: the ordinary mails that waited when the batch was made
    inARow,  \* remembers: urgent mails taken one after the other, counted up to Burst
    said     \* remembers: the last answer to the mailbox thread; `odd` flips with each, so the same one twice is two

vars == <<state, lanes, armed, owed, lent, order, fate, inBatch, inARow, said>>

Nothing == [op |-> "nothing", p |-> -1, skip |-> FALSE, answer |-> "", mails |-> <<>>, odd |-> FALSE]

Init ==
    /\ state = "OPEN" /\ lanes = NoLanes
    /\ armed = FALSE /\ owed = 0 /\ lent = FALSE
    /\ order = <<>> /\ fate = [m \in Mails |-> "new"] /\ inBatch = {} /\ inARow = 0
    /\ said = Nothing

MayBePut(m) == fate[m] = "new" \/ (Again /\ fate[m] # "waiting")

(* The mails of one put: one, or several different ones as neighbours.                                           *)
Puts == {<<m>> : m \in Mails} \cup {ms \in Mails \X Mails : ms[1] # ms[2]}

Become(mails, what) == [m \in Mails |-> IF m \in mails THEN what ELSE fate[m]]
CountInARow(m) == IF m \notin Urgent THEN 0 ELSE IF inARow < Burst THEN inARow + 1 ELSE inARow
Say(op, p, skip, answer, mails) ==
    said' = [op |-> op, p |-> p, skip |-> skip, answer |-> answer, mails |-> mails, odd |-> ~said.odd]

-----------------------------------------------------------------------------
(* Any thread. Mailbox::put is Put, PutAll or PutRefused; Mailbox::quiesce is Quiesce.                           *)

(* Without the call that is owed if the wake-up was armed.                                                       *)
Accept(ms) ==
    /\ state = "OPEN"
    /\ \A m \in Range(ms) : MayBePut(m)
    /\ order' = order \o ms
    /\ fate' = Become(Range(ms), "waiting")
    /\ lanes' = Sorted(lanes, ms)
    /\ armed' = FALSE
    /\ inBatch' = inBatch \ Range(ms)
    /\ UNCHANGED <<state, lent, inARow, said>>

Owe == owed' = IF armed THEN owed + 1 ELSE owed

Put(m) == Accept(<<m>>) /\ Owe
PutAll(ms) == Accept(ms) /\ Owe

PutRefused(ms) ==
    /\ state # "OPEN"
    /\ \A m \in Range(ms) : MayBePut(m)
    /\ fate' = Become(Range(ms), "refused")
    /\ UNCHANGED <<state, lanes, armed, owed, lent, order, inBatch, inARow, said>>

End ==
    /\ state = "OPEN"
    /\ state' = "QUIESCED"
    /\ armed' = FALSE
    /\ UNCHANGED <<lanes, lent, order, fate, inBatch, inARow, said>>

Quiesce == End /\ Owe

(* A thread that owes a call makes it. If the mailbox thread is arming anew by then, the call may go to the new  *)
(* wake-up; a wake-up that was replaced or dropped is not called at all.                                         *)
Call ==
    /\ owed > 0
    /\ owed' = owed - 1
    /\ lent' \in {lent, TRUE}
    /\ UNCHANGED <<state, lanes, armed, order, fate, inBatch, inARow, said>>

-----------------------------------------------------------------------------
(* The mailbox thread. Mailbox::take is Take, TakeNothing or TakeEnded; Mailbox::take_from_batch is TakeFromBatch *)
(* or BatchUsedUp; Mailbox::create_batch, drain, close, has_mail and arm are called as here.                     *)

Handed(m) ==
    /\ order' = Without(order, m)
    /\ lanes' = After(lanes, m)
    /\ fate' = Become({m}, "taken")
    /\ inBatch' = inBatch \ {m}
    /\ inARow' = CountInARow(m)
    /\ UNCHANGED <<state, armed, owed, lent>>

Unchanged == UNCHANGED <<state, lanes, armed, owed, lent, order, fate, inBatch, inARow>>

(* `op` is "take" or "try_take". A take that finds nothing waits: this action is not enabled then.               *)
Take(op, p, skip) ==
    LET m == NextMail(lanes, p, skip, TRUE)
    IN  state # "CLOSED" /\ m # None /\ Say(op, p, skip, "mail", <<m>>) /\ Handed(m)

(* A try_take, or a take whose time is over.                                                                     *)
TakeNothing(op, p, skip) ==
    /\ \/ state = "OPEN"
       \/ state = "QUIESCED" /\ (op = "try_take" \/ Mutant = "the end is told as none")
    /\ Say(op, p, skip, "none", <<>>)
    /\ NextMail(lanes, p, skip, TRUE) = None
    /\ Unchanged

(* Nothing can come any more, so a take does not wait.                                                           *)
TakeEnded(p, skip) ==
    /\ state = "QUIESCED" \/ (state = "OPEN" /\ Mutant = "an open mailbox says closed")
    /\ Say("take", p, skip, "closed", <<>>)
    /\ NextMail(lanes, p, skip, TRUE) = None
    /\ Unchanged

CreateBatch ==
    /\ state # "CLOSED"
    /\ LET made == Batched(lanes)
       IN  /\ Say("create_batch", -1, FALSE, IF made.batch # <<>> \/ made.urgent # <<>> THEN "yes" ELSE "no", <<>>)
           /\ lanes' = made
    /\ inBatch' = Range(order) \ Urgent
    /\ UNCHANGED <<state, armed, owed, lent, order, fate, inARow>>

TakeFromBatch ==
    LET m == NextMail(lanes, -1, FALSE, FALSE)
    IN  state # "CLOSED" /\ m # None /\ Say("take_from_batch", -1, FALSE, "mail", <<m>>) /\ Handed(m)

BatchUsedUp ==
    /\ state # "CLOSED"
    /\ Say("take_from_batch", -1, FALSE, "none", <<>>)
    /\ NextMail(lanes, -1, FALSE, FALSE) = None
    /\ Unchanged

HasMail ==
    Say("has_mail", -1, FALSE, IF InLanes(lanes) # {} THEN "yes" ELSE "no", <<>>) /\ Unchanged

RECURSIVE CountedInARow(_, _)
CountedInARow(mails, count) ==
    IF mails = <<>> THEN count
    ELSE CountedInARow(Tail(mails), IF Head(mails) \notin Urgent THEN 0 ELSE IF count < Burst THEN count + 1 ELSE count)

Drain ==
    LET all == Drained(lanes)
    IN  /\ Say("drain", -1, FALSE, "mails", all.mails)
        /\ lanes' = all.lanes
        /\ order' = SelectSeq(order, LAMBDA m : m \notin Range(all.mails))
        /\ fate' = Become(Range(all.mails), "drained")
        /\ inBatch' = inBatch \ Range(all.mails)
        /\ inARow' = CountedInARow(all.mails, inARow)
        /\ UNCHANGED <<state, armed, owed, lent>>

Close ==
    LET all == Returned(lanes)
    IN  /\ state' = "CLOSED"
        /\ lanes' = NoLanes
        /\ order' = <<>> /\ inBatch' = {} /\ inARow' = 0
        /\ fate' = Become(Range(all), "returned")
        /\ armed' = (armed /\ Mutant = "close leaves the wake-up armed")
        /\ Say("close", -1, FALSE, "mails", all)
        /\ UNCHANGED <<owed, lent>>

(* take, try_take, create_batch and take_from_batch of a closed mailbox raise.                                   *)
RaiseClosed(op, p, skip) ==
    /\ state = "CLOSED"
    /\ Say(op, p, skip, "closed", <<>>) /\ Unchanged

Arm ==
    /\ state = "OPEN" /\ InLanes(lanes) = {}
    /\ armed' = TRUE /\ lent' = FALSE
    /\ Say("arm", -1, FALSE, "yes", <<>>)
    /\ UNCHANGED <<state, lanes, owed, order, fate, inBatch, inARow>>

ArmRefused ==
    /\ ~lent
    /\ state # "OPEN" \/ InLanes(lanes) # {}
    /\ Unchanged /\ Say("arm", -1, FALSE, "no", <<>>)

(* Mail waits, but a call that was owed has gone to this wake-up: it was called, or is about to be.              *)
ArmSpent ==
    /\ lent /\ lent' = FALSE
    /\ Say("arm", -1, FALSE, "yes", <<>>)
    /\ UNCHANGED <<state, lanes, armed, owed, order, fate, inBatch, inARow>>

-----------------------------------------------------------------------------
Next ==
    \/ \E m \in Mails : Put(m)
    \/ \E ms \in Puts : Len(ms) > 1 /\ PutAll(ms)
    \/ \E ms \in Puts : PutRefused(ms)
    \/ Quiesce
    \/ Call
    \/ \E op \in {"take", "try_take"}, p \in Priorities, skip \in Skips :
            Take(op, p, skip) \/ TakeNothing(op, p, skip) \/ RaiseClosed(op, p, skip)
    \/ \E p \in Priorities, skip \in Skips : TakeEnded(p, skip)
    \/ CreateBatch \/ TakeFromBatch \/ BatchUsedUp \/ HasMail \/ Drain \/ Close
    \/ \E op \in {"create_batch", "take_from_batch"} : RaiseClosed(op, -1, FALSE)
    \/ Arm \/ ArmRefused \/ ArmSpent

Spec == Init /\ [][Next]_vars

(* For runs in which mails are put again and again.                                                              *)
FewOwed == owed <= 2

(* A step may not depend on the last answer, and what a property says of a step is computed from the new answer and *)
(* the rest of the old state. Then states that differ in the last answer alone may count as one: the steps out of  *)
(* one of them are checked, also those to states that count as seen. That no step depends on it is not certain of *)
(* a model with a mistake in it, so there are runs without this view too.                                        *)
ButSaid == <<state, lanes, armed, owed, lent, order, fate, inBatch, inARow>>

-----------------------------------------------------------------------------
(* The properties. Those with a prime are about steps.                                                           *)

TypeOK ==
    /\ state \in {"OPEN", "QUIESCED", "CLOSED"}
    /\ armed \in BOOLEAN /\ lent \in BOOLEAN /\ owed \in Nat
    /\ \A m \in Mails : fate[m] \in {"new", "waiting", "refused", "taken", "drained", "returned"}

(* Every mail that was accepted and did not come out is there, once, and no other is.                            *)
NothingLost ==
    /\ InLanes(lanes) = {m \in Mails : fate[m] = "waiting"}
    /\ Range(order) = {m \in Mails : fate[m] = "waiting"}
    /\ Len(lanes.urgent) + Len(lanes.batch) + Len(lanes.later) = Cardinality(InLanes(lanes))
    /\ Len(order) = Cardinality(Range(order))

(* What an answer hands out was waiting until then: nothing comes out twice.                                    *)
ComesOutOnce ==
    [][\A m \in Mails : fate[m] # fate'[m] /\ fate'[m] \in {"taken", "drained", "returned"} =>
            fate[m] = "waiting" /\ \E i \in DOMAIN said'.mails : said'.mails[i] = m]_vars

(* A refused mail is nowhere.                                                                                   *)
RefusedLeavesNothing == \A m \in Mails : fate[m] = "refused" => m \notin InLanes(lanes) \cup Range(order)

StatesGoForward ==
    [][state' = state \/ <<state, state'>> \in
            {<<"OPEN", "QUIESCED">>, <<"OPEN", "CLOSED">>, <<"QUIESCED", "CLOSED">>}]_vars

AcceptedOnlyWhileOpen ==
    [][\A m \in Mails : fate'[m] = "waiting" /\ fate[m] # "waiting" => state = "OPEN" /\ state' = "OPEN"]_vars

(* From here on: what the answer of a step must be, computed from `order`, the mails in the order of their puts.  *)
Heard == said' # said
Took == Heard /\ said'.answer = "mail"
Takes == {"take", "try_take", "create_batch", "take_from_batch"}
Of(op) == IF op = "take_from_batch" THEN Urgent \cup inBatch ELSE Mails
Candidates == {i \in DOMAIN order : order[i] \in Of(said'.op) /\ Accepts(said'.p, said'.skip, order[i])}
IsUrgent(i) == order[i] \in Urgent
OfTaken(P(_)) == Took => \A k \in DOMAIN order : order[k] = said'.mails[1] => P(k)

AcceptedByTake == [][Took => \E k \in Candidates : order[k] = said'.mails[1]]_vars

TakenInOrder ==
    [][OfTaken(LAMBDA k : \A i \in Candidates : IsUrgent(i) = IsUrgent(k) => k <= i)]_vars

UrgentFirst ==
    [][OfTaken(LAMBDA k : ~IsUrgent(k) /\ (\E i \in Candidates : IsUrgent(i)) => inARow >= Burst)]_vars

UrgentDoNotStarve ==
    [][OfTaken(LAMBDA k : IsUrgent(k) /\ (\E i \in Candidates : ~IsUrgent(i)) => inARow < Burst)]_vars

(* "No mail", and "no mail can come any more", are said of a moment at which there was none.                     *)
NoFalseEmpty ==
    [][Heard /\ said'.op \in {"take", "try_take", "take_from_batch"} /\ said'.answer \in {"none", "closed"}
       /\ state # "CLOSED" => Candidates = {}]_vars

(* No take says "closed" of an OPEN mailbox; of a quiesced one only a take that would have to wait.              *)
ClosedIsTrue ==
    [][Heard /\ said'.answer = "closed" /\ said'.op \in Takes =>
            state = "CLOSED" \/ (state = "QUIESCED" /\ said'.op = "take")]_vars

(* A take says "none" only if mail can still come; of a quiesced mailbox that is empty it says "closed".         *)
NoneIsNotTheEnd == [][Heard /\ said'.op = "take" /\ said'.answer = "none" => state = "OPEN"]_vars

NoFalseHasMail ==
    [][Heard /\ said'.op = "has_mail" => (said'.answer = "yes") = (order # <<>>)]_vars

BatchDoesNotGrow ==
    [][Took /\ said'.op = "take_from_batch" => said'.mails[1] \in Urgent \cup inBatch]_vars

BatchHoldsAll ==
    [][Heard /\ said'.op = "create_batch" /\ state # "CLOSED" => (said'.answer = "yes") = (order # <<>>)]_vars

(* The order of takes that accept everything, by the same rules, one after the other.                            *)
RECURSIVE OrderOfTakes(_, _)
OrderOfTakes(waiting, count) ==
    LET urgent == SelectSeq(waiting, LAMBDA m : m \in Urgent)
        ordinary == SelectSeq(waiting, LAMBDA m : m \notin Urgent)
        first == IF urgent # <<>> /\ (ordinary = <<>> \/ count < Burst) THEN Head(urgent) ELSE Head(ordinary)
    IN  IF waiting = <<>> THEN <<>>
        ELSE <<first>> \o OrderOfTakes(
                Without(waiting, first),
                IF first \notin Urgent THEN 0 ELSE IF count < Burst THEN count + 1 ELSE count)

DrainTakesAll == [][Heard /\ said'.op = "drain" => said'.mails = OrderOfTakes(order, inARow) /\ order' = <<>>]_vars
CloseReturnsTheRest == [][Heard /\ said'.op = "close" => said'.mails = OrderOfTakes(order, inARow)]_vars

(* True means: no mail, and the next put or quiesce will call. A call that was still owed may come instead.      *)
ArmedOnlyWhileIdle ==
    [][Heard /\ said'.op = "arm" => (said'.answer = "yes") = ((order = <<>> /\ state = "OPEN") \/ lent)]_vars
ArmedBesideNoMail == armed => state = "OPEN" /\ order = <<>>
=============================================================================
