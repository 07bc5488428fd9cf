-------------------------- MODULE StreamStateTrace --------------------------
(* Were recorded runs of the buckets of streams behaviours of `StreamState`?                                          *)
(* `spec/stream_trace.py` writes the module StreamStateTraceData: of each run its input, its bounds, and its steps in *)
(* the order in which they took place. Nothing is left for TLC to find, but which version of a bucket's state counts  *)
(* where no later execution reads it. TLC goes along all runs at once, and says of each that it gets to the end of    *)
(* that it is accepted; a run stops where no step of StreamState is the recorded one.                                 *)
EXTENDS Integers, Sequences, FiniteSets, TLC, StreamStateTraceData

CONSTANT Shows  \* whether TLC says how far each run gets

VARIABLES
    next, part, ticked, phase, committed, versions, tasks, done, taken, sunk, out, calls, seen, home, ledger, said,
    made, failures, moves, copies, h,
    run,
    through  \* steps of it that have taken place

(* Where nothing reports what is pending, the clock always moves.                                                     *)
Of(r) == INSTANCE StreamState WITH
    Input <- Runs[r].input, Ordered <- Runs[r].ordered, Sinks <- 1..Runs[r].sinks, Looks <- TRUE,
    Processes <- 1..Runs[r].processes, HasLedger <- FALSE, Reports <- FALSE, Failures <- Runs[r].failures,
    Moves <- Len(Runs[r].steps), Zombies <- Len(Runs[r].steps), Poisoned <- {}, OptionFrom <- 0, Mutant <- "none"

state == <<next, part, ticked, phase, committed, versions, tasks, done, taken, sunk, out, calls, seen, home, ledger,
           said, made, failures, moves, copies, h>>

-----------------------------------------------------------------------------
(* A process holds these rows of the bucket now, and these calls have begun, and no others.                           *)
Opened(r, p, b, held, begun) ==
    /\ {calls'[p][i].row : i \in {j \in DOMAIN calls'[p] : Of(r)!BucketOf(calls'[p][j].row) = b}} = held
    /\ made' = [q \in DOMAIN made |-> IF q \in begun THEN made[q] + 1 ELSE made[q]]

Opens(r, a, b, p, base, held, begun) ==
    /\ committed[b] = base
    /\ Of(r)!Open(a, b, p)
    /\ Opened(r, p, b, held, begun)

(* A task of an action that was given up. Spark tries it again where it fails later, so it is still there unopened.   *)
OpensLate(r, b, p, base, held, begun) ==
    \E t \in tasks :
        /\ t.bucket = b /\ t.process = p /\ t.base = base
        /\ Of(r)!OpenLateOf(t)
        /\ tasks' = tasks \cup {[t EXCEPT !.open = TRUE]}
        /\ Opened(r, p, b, held, begun)

(* A task of action -1 is one that was given up.                                                                      *)
Records(r, a, b, p, rows, version) ==
    \E t \in tasks :
        /\ t.action = a /\ t.bucket = b /\ t.process = p
        /\ LET written == Of(r)!Written(t) IN written.rows = rows /\ written.version = version
        /\ Of(r)!RecordOf(t)

(* Spark tries it again, so it stays. StreamState knows no task that outlives two micro-batches.                      *)
Refuses(r, b, p, age) ==
    /\ IF age > 1 THEN seen[p][b] < 2 ELSE \E t \in tasks : t.bucket = b /\ t.process = p /\ Of(r)!IsLate(t)
    /\ UNCHANGED state

(* All tasks that have opened their bucket may go on, and those that open it later.                                   *)
Restarts(r, unopened) ==
    /\ tasks' = {[t EXCEPT !.action = -1] : t \in tasks}
            \cup {[action |-> -1, bucket |-> each[1], process |-> each[2], base |-> committed[each[1]], part |-> part,
                   age |-> 0, open |-> FALSE, turned |-> FALSE] : each \in unopened}
    /\ Of(r)!Restart

(* Tasks of the process open their buckets in the next one.                                                           *)
Kills(r, p) ==
    LET own == {t \in tasks : t.process = p}
    IN  /\ tasks' = (tasks \ own) \cup {[t EXCEPT !.action = -1, !.open = FALSE] : t \in own}
        /\ Of(r)!Kill(p)

(* Of an action, the buckets of a task that is tried again.                                                           *)
Fails(r, a, buckets) ==
    LET own == {t \in tasks : t.action = a /\ t.bucket \in buckets}
    IN  /\ tasks' = (tasks \ own) \cup {[t EXCEPT !.action = -1] : t \in own}
        /\ Of(r)!Fail(a)
        /\ \A b \in DOMAIN done[a] : done'[a][b].is <=> done[a][b].is /\ b \notin buckets

(* read: of some buckets, the state that the next micro-batch reads.                                                  *)
Logs(r, read) ==
    /\ Of(r)!Log
    /\ \A i \in DOMAIN read : committed'[read[i][1]] = read[i][2]
    /\ tasks' = {[t EXCEPT !.age = 1, !.action = -1] : t \in {u \in tasks : u.age = 0}}

Does(r, e) ==
    LET name == e[1]
    IN  CASE name = "begin" -> /\ IF e[2] = 0 THEN Of(r)!BeginByClock ELSE Of(r)!BeginWithInput
                               /\ part' = e[2] /\ ticked' = e[3]
          [] name = "open" -> Opens(r, e[2], e[3], e[4], e[5], e[6], e[7])
          [] name = "pass" -> committed[e[3]] = <<>> /\ Of(r)!Open(e[2], e[3], e[4]) /\ UNCHANGED calls
          [] name = "open late" -> OpensLate(r, e[2], e[3], e[4], e[5], e[6])
          [] name = "finish" -> \E i \in DOMAIN calls[e[2]] : calls[e[2]][i].row = e[3] /\ Of(r)!Finish(e[2], i)
          [] name = "record" -> Records(r, e[2], e[3], e[4], e[5], e[6])
          [] name = "refuse" -> Refuses(r, e[2], e[3], e[4])
          [] name = "take" -> Of(r)!Take(e[2])
          [] name = "skip" -> Of(r)!Skip(e[2])
          [] name = "log" -> Logs(r, e[2])
          [] name = "restart" -> Restarts(r, e[2])
          [] name = "kill" -> Kills(r, e[2])
          [] name = "fail" -> Fails(r, e[2], e[3])
          [] OTHER -> FALSE

-----------------------------------------------------------------------------
TraceInit == \E r \in DOMAIN Runs : run = r /\ through = 0 /\ Of(r)!Init

Step ==
    /\ through < Len(Runs[run].steps)
    /\ \E r \in {run} : Does(r, Runs[r].steps[through + 1])
    /\ Shows => PrintT(<<"through", run, through + 1>>)
    /\ through' = through + 1 /\ run' = run

(* What the properties of StreamState forbid has not happened either.                                                 *)
IsRight(r) ==
    /\ Of(r)!NothingLostOrTwice /\ Of(r)!ExecutionsAgree /\ Of(r)!SinksAgree /\ Of(r)!VersionsAgree
    /\ Of(r)!KeyOrder /\ Of(r)!OwnCall /\ Of(r)!NotCalledAgain /\ Of(r)!LiveIsKept /\ Of(r)!SecondAtLatest

Accept ==
    /\ through = Len(Runs[run].steps)
    /\ \E r \in {run} : IsRight(r)
    /\ PrintT(<<"accepted", run>>)
    /\ UNCHANGED <<state, run, through>>

TraceNext == Step \/ Accept

TraceSpec == TraceInit /\ [][TraceNext]_<<state, run, through>>
=============================================================================
