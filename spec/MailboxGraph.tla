---------------------------- MODULE MailboxGraph ----------------------------
(* The kernel's mailbox as one thread sees it: each operation one step,         *)
(* refusals included. Its state graph is checked in, and the kernel is led      *)
(* along every edge of it. The actions are those of Mailbox; `op` holds the     *)
(* arguments, and as result the answer and whether the armed wake-up was called. *)
(*                                                                              *)
(* A mail that is not there may be put, again and again.                        *)
EXTENDS Lanes

VARIABLES
    state,  \* "OPEN", "QUIESCED", "CLOSED"
    lanes,  \* all mail that waits
    armed,  \* whether a wake-up is armed
    op      \* <<name, arguments, <<answer, called>>>> of the last operation

vars == <<state, lanes, armed, op>>

Did(name, args, answer) == op' = <<name, args, <<answer, FALSE>>>>
DidAndCalls(name, args, answer) == op' = <<name, args, <<answer, armed>>>>
Same == UNCHANGED <<state, lanes, armed>>

Waits(ms) == \E i \in DOMAIN ms : ms[i] \in InLanes(lanes)

Puts == {<<m>> : m \in Mails} \cup {ms \in Mails \X Mails : ms[1] < ms[2]} \cup {<<3, 1>>}

(* A mail that waits already is refused in each state; by an error, whichever way it is put.                      *)
Offer(name, ms, accepted, refused) ==
    CASE Waits(ms) -> Did(name, ms, "waits already") /\ Same
      [] state # "OPEN" -> Did(name, ms, refused) /\ Same
      [] OTHER ->
            /\ DidAndCalls(name, ms, accepted)
            /\ lanes' = Sorted(lanes, ms)
            /\ armed' = FALSE
            /\ UNCHANGED state

Put == \E m \in Mails : Offer("put", <<m>>, "none", "closed")
TryPut == \E m \in Mails : Offer("try_put", <<m>>, TRUE, FALSE)
PutAll == \E ms \in Puts : Offer("put_all", ms, "none", "closed")

Quiesce ==
    /\ DidAndCalls("quiesce", <<>>, "none")
    /\ state' = IF state = "OPEN" THEN "QUIESCED" ELSE state
    /\ armed' = FALSE
    /\ UNCHANGED lanes

Hand(name, args, m) ==
    /\ Did(name, args, m)
    /\ lanes' = After(lanes, m)
    /\ UNCHANGED <<state, armed>>

(* `take` has the time-out 0.                                                                                   *)
Taking(name, p, skip) ==
    LET m == NextMail(lanes, p, skip, TRUE)
    IN  CASE state = "CLOSED" -> Did(name, <<p, skip>>, "closed") /\ Same
          [] state # "CLOSED" /\ m # None -> Hand(name, <<p, skip>>, m)
          [] OTHER ->
                /\ Did(name, <<p, skip>>, IF state = "QUIESCED" /\ name = "take" THEN "closed" ELSE "none")
                /\ Same

Take == \E name \in {"take", "try_take"}, p \in Priorities, skip \in Skips : Taking(name, p, skip)

CreateBatch ==
    IF state = "CLOSED" THEN Did("create_batch", <<>>, "closed") /\ Same
    ELSE /\ lanes' = Batched(lanes)
         /\ Did("create_batch", <<>>, InLanes(lanes) # {})
         /\ UNCHANGED <<state, armed>>

TakeFromBatch ==
    LET m == NextMail(lanes, -1, FALSE, FALSE)
    IN  CASE state = "CLOSED" -> Did("try_take_from_batch", <<>>, "closed") /\ Same
          [] state # "CLOSED" /\ m = None -> Did("try_take_from_batch", <<>>, "none") /\ Same
          [] OTHER -> Hand("try_take_from_batch", <<>>, m)

HasMail == Did("has_mail", <<>>, InLanes(lanes) # {}) /\ Same

Drain ==
    LET all == Drained(lanes)
    IN  /\ Did("drain", <<>>, all.mails)
        /\ lanes' = all.lanes
        /\ UNCHANGED <<state, armed>>

Close ==
    /\ Did("close", <<>>, Returned(lanes))
    /\ lanes' = NoLanes /\ state' = "CLOSED" /\ armed' = FALSE

ArmWakeup ==
    LET arms == state = "OPEN" /\ InLanes(lanes) = {}
    IN  /\ Did("arm_wakeup", <<>>, arms)
        /\ armed' = (armed \/ arms)
        /\ UNCHANGED <<state, lanes>>

Init == state = "OPEN" /\ lanes = NoLanes /\ armed = FALSE /\ op = <<"made", <<>>, <<"none", FALSE>>>>

Next ==
    \/ Put \/ TryPut \/ PutAll \/ Quiesce
    \/ Take \/ CreateBatch \/ TakeFromBatch \/ HasMail \/ Drain \/ Close \/ ArmWakeup

Spec == Init /\ [][Next]_vars
=============================================================================
