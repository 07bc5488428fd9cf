------------------------- MODULE MailboxGraphChecks -------------------------
(* The small model that leads the kernel, held against the properties of Mailbox: what `op` says must be right.   *)
(* `order` and `inBatch` remember what Mailbox remembers, and `odd` flips with each step; the rest of Mailbox is    *)
(* seen in the state or in `op`.                                                                                 *)
EXTENDS MailboxGraph, TLC

VARIABLES order, inBatch, odd

Name == CASE op[1] = "try_take_from_batch" -> "take_from_batch" [] op[1] = "arm_wakeup" -> "arm" [] OTHER -> op[1]
Answer == op[3][1]
\* Answers are of several kinds, which TLC does not compare; their texts it does.
IsMail == ToString(Answer) \in {ToString(m) : m \in Mails}
IsFlag == ToString(Answer) \in {ToString(flag) : flag \in BOOLEAN}
IsTake == op[1] \in {"take", "try_take", "try_take_from_batch"}
Yes(answer) == IF answer THEN "yes" ELSE "no"

M == INSTANCE Mailbox WITH
    Again <- TRUE, owed <- 0, lent <- FALSE, inARow <- lanes.streak,
    fate <- [m \in Mails |-> IF m \in InLanes(lanes) THEN "waiting" ELSE "new"],
    said <- [
        op |-> Name,
        odd |-> odd,
        p |-> IF op[1] \in {"take", "try_take"} THEN op[2][1] ELSE -1,
        skip |-> IF op[1] \in {"take", "try_take"} THEN op[2][2] ELSE FALSE,
        answer |->
            CASE IsTake /\ IsMail -> "mail"
              [] op[1] \in {"drain", "close"} -> "mails"
              [] op[1] \in {"has_mail", "arm_wakeup", "create_batch"} /\ IsFlag -> Yes(Answer)
              [] op[1] = "try_put" -> ""
              [] OTHER -> Answer,
        mails |->
            CASE IsTake /\ IsMail -> <<Answer>>
              [] op[1] \in {"drain", "close"} -> Answer
              [] OTHER -> <<>>]

Came == op'[1] \in {"put", "try_put", "put_all"} /\ lanes' # lanes

CheckInit == Init /\ order = <<>> /\ inBatch = {} /\ odd = FALSE
CheckNext ==
    /\ Next
    /\ order' = IF Came THEN order \o op'[2] ELSE SelectSeq(order, LAMBDA m : m \in InLanes(lanes'))
    /\ inBatch' = IF op'[1] = "create_batch" THEN Range(order) \ Urgent ELSE inBatch \cap InLanes(lanes')
    /\ odd' = ~odd

CheckSpec == CheckInit /\ [][CheckNext]_<<vars, order, inBatch, odd>>

(* No step depends on what the last one said. `Mailbox` says why states that differ in that alone count as one.  *)
ButOp == <<state, lanes, armed, order, inBatch>>

NothingLost == M!NothingLost
ArmedBesideNoMail == M!ArmedBesideNoMail
StatesGoForward == M!StatesGoForward
AcceptedOnlyWhileOpen == M!AcceptedOnlyWhileOpen
AcceptedByTake == M!AcceptedByTake
TakenInOrder == M!TakenInOrder
UrgentFirst == M!UrgentFirst
UrgentDoNotStarve == M!UrgentDoNotStarve
NoFalseEmpty == M!NoFalseEmpty
ClosedIsTrue == M!ClosedIsTrue
NoneIsNotTheEnd == M!NoneIsNotTheEnd
NoFalseHasMail == M!NoFalseHasMail
BatchDoesNotGrow == M!BatchDoesNotGrow
BatchHoldsAll == M!BatchHoldsAll
DrainTakesAll == M!DrainTakesAll
CloseReturnsTheRest == M!CloseReturnsTheRest
ArmedOnlyWhileIdle == M!ArmedOnlyWhileIdle

(* The armed wake-up is called by what disarms it, and by nothing else; close drops it.                          *)
CalledWhenDue ==
    [][op'[3][2] = (armed /\ ~armed' /\ op'[1] # "close")]_odd
=============================================================================
