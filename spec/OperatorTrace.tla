--------------------------- MODULE OperatorTrace ---------------------------
(* Were recorded runs of the async operator behaviours of `Operator`?                                             *)
(* `spec/operator_runs.py` writes the module OperatorTraceData: of each run, what the operator did in its lives,   *)
(* step by step. All steps are those of one thread, so there is nothing to search. TLC goes along all runs at      *)
(* once, and says of each that it gets to the end of that it is accepted; a run stops where no step of Operator     *)
(* is the recorded one.                                                                                          *)
EXTENDS Operator, OperatorTraceData, TLC

VARIABLES
    run,
    done    \* steps of it that have taken place

(* A step is its name, its time, and its words; most are about the row of a number.                               *)
OfRow(e, k) ==
    LET name == e[1]
        now == e[2]
    IN  CASE name = "start" -> Start(k, e[4], now)
          [] name = "answer" -> Answer(k, now) \/ LateAnswer(k)
          [] name = "complete" -> Complete(k)
          [] name = "emit" -> EmitRow(k)
          [] name = "fail" -> Fail(k) \/ LateFailure(k)
          [] name = "again" -> Again(k, e[4], now)
          [] name = "ask_again" -> AskAgain(k, e[4], now)
          [] name = "return" -> Return(k, e[4], e[5] = 1, now)
          [] name = "time_out" -> TimeOut(k, now)
          [] name = "give_up" -> GiveUp(k) \/ LateEnd(k)
          [] name = "join" -> Join(k)
          [] name = "find" -> Find(k) \/ LateShare(k)
          [] name = "withdraw" -> Withdraw(k)

Does(e) ==
    LET name == e[1]
        now == e[2]
    IN  CASE name = "admit" -> Admit(e[3], e[4])
          [] name = "mark" -> PutMark(e[3], e[4])
          [] name = "emit_mark" -> EmitMark(e[3], e[4])
          [] name = "readmit" -> Readmit(now)
          [] name = "snapshot" -> Snapshot(e[4], e[3], now)
          [] name = "restore" -> Restore(e[4], e[3])
          [] name = "create" -> Create([ordered |-> e[3] = 1, window |-> e[4], limit |-> e[5], attempts |-> e[6],
                                        timeout |-> e[7], slack |-> e[8], parts |-> e[9] = 1])
          [] name = "end_input" -> EndInput
          [] name = "finish" -> Finish
          [] name = "close" -> Close
          [] OTHER -> \E k \in DOMAIN queue : queue[k].pos = e[3] /\ OfRow(e, k)

TraceInit == Init /\ run \in DOMAIN Runs /\ done = 0

Step ==
    /\ done < Len(Runs[run])
    /\ Does(Runs[run][done + 1])
    /\ done' = done + 1 /\ run' = run

Accept ==
    /\ done = Len(Runs[run])
    /\ PrintT(<<"accepted", run>>)
    /\ UNCHANGED <<vars, run, done>>

TraceNext == Step \/ Accept

TraceSpec == TraceInit /\ [][TraceNext]_<<vars, run, done>>
=============================================================================
