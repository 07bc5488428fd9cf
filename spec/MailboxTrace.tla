---------------------------- MODULE MailboxTrace ----------------------------
(* Was what real threads did and were told a behaviour of `Mailbox`?                                             *)
(* `spec/trace.py` writes the module MailboxTraceData: what each thread did, in its order, and in which order     *)
(* threads may have taken turns (`Turns`), as the search for a linearization has found it. A trace is accepted if  *)
(* TLC ends without a deadlock; for that TLC believes nothing of the search: each step must be a step of Mailbox  *)
(* with the recorded answer, and must not come before something that had ended when it began. That there is no    *)
(* other order is what the search says: TLC shows only that none goes on from where the search got stuck.        *)
EXTENDS Mailbox, MailboxTraceData

VARIABLES
    done,  \* for each thread, how many of its operations have taken place
    turn   \* how many in all

Left(t) == done[t] < Len(Programs[t])
Following(t) == Programs[t][done[t] + 1]

(* No operation that is left had ended before this one began.                                                   *)
MayBeNext(t) ==
    /\ Left(t)
    /\ turn < Len(Turns) => Turns[turn + 1] = t
    /\ \A u \in DOMAIN Programs : Left(u) => Following(u).last > Following(t).first

Answered(e) == said'.op = e.op /\ said'.answer = e.answer /\ said'.mails = e.out

Does(e) ==
    \/ e.op = "put" /\ e.answer = "OPEN" /\ (IF Len(e.mails) = 1 THEN Put(e.mails[1]) ELSE PutAll(e.mails))
    \/ e.op = "put" /\ e.answer # "OPEN" /\ PutRefused(e.mails)
    \/ e.op = "quiesce" /\ (IF state = "OPEN" THEN Quiesce ELSE UNCHANGED vars)
    \/ e.op = "take" /\ Take("take", e.p, e.skip) /\ Answered(e)
    \/ e.op = "take" /\ TakeNothing("take", e.p, e.skip) /\ Answered(e)
    \/ e.op = "take" /\ TakeEnded(e.p, e.skip) /\ Answered(e)
    \/ e.op = "take_from_batch" /\ (TakeFromBatch \/ BatchUsedUp) /\ Answered(e)
    \/ e.op = "create_batch" /\ CreateBatch /\ Answered(e)
    \/ e.op = "drain" /\ Drain /\ Answered(e)
    \/ e.op = "close" /\ Close /\ Answered(e)

TraceInit == Init /\ done = [t \in DOMAIN Programs |-> 0] /\ turn = 0

Step(t) ==
    /\ MayBeNext(t)
    /\ Does(Following(t))
    /\ done' = [done EXCEPT ![t] = @ + 1]
    /\ turn' = turn + 1

AllDone == (\A t \in DOMAIN Programs : ~Left(t)) /\ UNCHANGED <<vars, done, turn>>

TraceNext == (\E t \in DOMAIN Programs : Step(t)) \/ AllDone

TraceSpec == TraceInit /\ [][TraceNext]_<<vars, done, turn>>
=============================================================================
