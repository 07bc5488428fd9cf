---------------------------- MODULE HandoverGraph ----------------------------
(* The kernel's hand-over as one thread sees it: each operation one step,  *)
(* refusals included. Its state graph is checked in, and the kernel is led *)
(* along every edge of it. The actions are those of Handover that the      *)
(* kernel has; `op` holds the arguments, and as result the answer and who  *)
(* was called: "consumer", "producer" (armed wake-ups), or "nobody".       *)
(*                                                                         *)
(* An item is a number: the bytes that it has.                             *)
EXTENDS Naturals, Sequences

CONSTANTS
    Sizes,      \* the items that there are
    MaxItems,
    MaxBytes

VARIABLES
    items,      \* what waits, oldest first
    end,        \* "running", "finished", "failed", or "closed"
    woken,      \* a wake_up that nothing has answered yet
    armedC,     \* whether the consumer's wake-up is armed
    armedP,     \* whether the producer's is, and for how many bytes: <<>> or <<bytes>>
    op          \* <<name, arguments, <<answer, called>>>> of the last operation

vars == <<items, end, woken, armedC, armedP, op>>

RECURSIVE Sum(_)
Sum(list) == IF list = <<>> THEN 0 ELSE Head(list) + Sum(Tail(list))

RoomFor(list, bytes) ==
    list = <<>> \/ (Len(list) < MaxItems /\ Sum(list) + bytes <= MaxBytes)

HasRoom(bytes) == RoomFor(items, bytes)

Did(name, args, answer, called) == op' = <<name, args, <<answer, called>>>>

Same == UNCHANGED <<items, end, woken, armedC, armedP>>

------------------------------------------------------------------------------
(* The producer. `put` has the time-out 0. *)

Offer(name, item) ==
    CASE end = "closed" -> Did(name, <<item>>, FALSE, "nobody") /\ Same
      [] end \in {"finished", "failed"} -> Did(name, <<item>>, "raises", "nobody") /\ Same
      [] end = "running" /\ ~HasRoom(item) -> Did(name, <<item>>, FALSE, "nobody") /\ Same
      [] OTHER ->
            /\ Did(name, <<item>>, TRUE, IF armedC THEN "consumer" ELSE "nobody")
            /\ items' = Append(items, item) /\ armedC' = FALSE
            /\ UNCHANGED <<end, woken, armedP>>

Put == \E item \in Sizes : Offer("put", item)
TryPut == \E item \in Sizes : Offer("try_put", item)

EndInput(name, reached) ==
    IF end # "running" THEN Did(name, <<>>, FALSE, "nobody") /\ Same
    ELSE /\ Did(name, <<>>, TRUE, IF armedC THEN "consumer" ELSE "nobody")
         /\ end' = reached /\ armedC' = FALSE
         /\ UNCHANGED <<items, woken, armedP>>

Finish == EndInput("finish", "finished")
Fail == EndInput("fail", "failed")

ArmProducer ==
    \E bytes \in Sizes :
        IF HasRoom(bytes) \/ end = "closed"
        THEN Did("arm_wakeup_producer", <<bytes>>, FALSE, "nobody") /\ Same
        ELSE /\ Did("arm_wakeup_producer", <<bytes>>, TRUE, "nobody")
             /\ armedP' = <<bytes>>
             /\ UNCHANGED <<items, end, woken, armedC>>

------------------------------------------------------------------------------
(* The consumer. *)

\* What a take says when nothing waits.
Nothing == CASE end = "finished" -> "ended" [] end = "failed" -> "failure"
             [] end = "closed" -> "closed" [] OTHER -> "none"

\* Takes the first `count` items; calls the producer if that makes room for what it waits for.
TakeOut(name, count, answer) ==
    LET left == SubSeq(items, count + 1, Len(items))
        calls == armedP # <<>> /\ RoomFor(left, armedP[1])
    IN  /\ Did(name, <<>>, answer, IF calls THEN "producer" ELSE "nobody")
        /\ items' = left
        /\ armedP' = IF calls THEN <<>> ELSE armedP
        /\ UNCHANGED <<end, woken, armedC>>

TakeNow(name) ==
    IF items = <<>> THEN Did(name, <<>>, Nothing, "nobody") /\ Same
    ELSE TakeOut(name, 1, items[1])

TryTake == TakeNow("try_take")

\* With the time-out 0: it answers no wake_up.
TakeAtOnce == TakeNow("take_at_once")

\* Without a time-out, where that does not wait for another thread.
Take ==
    IF items = <<>> /\ end = "running"
    THEN /\ woken /\ Did("take", <<>>, "none", "nobody")
         /\ woken' = FALSE
         /\ UNCHANGED <<items, end, armedC, armedP>>
    ELSE TakeNow("take")

TakeAll ==
    IF items = <<>>
    THEN Did("take_all", <<>>, IF end = "running" THEN <<>> ELSE Nothing, "nobody") /\ Same
    ELSE TakeOut("take_all", Len(items), items)

Close ==
    /\ Did("close", <<>>, items, IF armedP # <<>> THEN "producer" ELSE "nobody")
    /\ items' = <<>> /\ end' = "closed" /\ armedC' = FALSE /\ armedP' = <<>>
    /\ UNCHANGED woken

ArmConsumer ==
    LET arms == items = <<>> /\ end = "running" /\ ~woken
    IN  /\ Did("arm_wakeup_consumer", <<>>, arms, "nobody")
        /\ armedC' = (armedC \/ arms) /\ woken' = FALSE
        /\ UNCHANGED <<items, end, armedP>>

WakeUp ==
    /\ Did("wake_up", <<>>, "none", IF armedC THEN "consumer" ELSE "nobody")
    /\ woken' = ~armedC /\ armedC' = FALSE
    /\ UNCHANGED <<items, end, armedP>>

------------------------------------------------------------------------------

Init ==
    /\ items = <<>> /\ end = "running" /\ woken = FALSE /\ armedC = FALSE /\ armedP = <<>>
    /\ op = <<"made", <<>>, <<"none", "nobody">>>>

Next ==
    \/ Put \/ TryPut \/ Finish \/ Fail \/ ArmProducer
    \/ Take \/ TryTake \/ TakeAtOnce \/ TakeAll \/ Close \/ ArmConsumer \/ WakeUp

Spec == Init /\ [][Next]_vars

BoundsHold == Len(items) <= MaxItems /\ (Len(items) > 1 => Sum(items) <= MaxBytes)

\* An armed wake-up has something to wait for.
ArmedHasCause ==
    /\ armedC => items = <<>> /\ end = "running" /\ ~woken
    /\ armedP # <<>> => end # "closed" /\ ~HasRoom(armedP[1])
=============================================================================
