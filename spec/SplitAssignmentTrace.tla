-------------------------- MODULE SplitAssignmentTrace --------------------------
(* Were recorded runs of a source's coordinator behaviours of `SplitAssignment`?                                      *)
(* `spec/source_trace.py` writes the module SplitAssignmentTraceData: of each run how splits come to its readers, its *)
(* bounds, and its steps in the order in which they took place. Nothing is left for TLC to find. TLC goes along all runs at once, and says of each that it *)
(* gets to the end of that it is accepted; a run stops where no step of SplitAssignment is the recorded one, or where *)
(* the state that is recorded is another, or a property does not hold.                                                *)
EXTENDS Integers, Sequences, FiniteSets, TLC, SplitAssignmentTraceData

CONSTANT Shows  \* whether TLC says how far each run gets

VARIABLES
    up, life, parallelism, known, found, there, ended, pool, registered, asked, told, given, alive, left, heard, has, out,
    part, staged, last, committed, arrived, gone, target, over, phase, begin, written, reads,
    since, twice, crashes,
    run,
    through  \* steps of it that have taken place

Of(r) == INSTANCE SplitAssignment WITH
    Delivery <- Runs[r].delivery, Splits <- Runs[r].splits, Piece <- Runs[r].splits, Length <- Runs[r].length,
    Readers <- Runs[r].readers, Crashes <- Runs[r].crashes, Remade <- FALSE,
    Limit <- Runs[r].splits * Runs[r].length, AvailableNow <- Runs[r].available_now,
    Latest <- FALSE, Mutant <- "none"

state == <<up, life, parallelism, known, found, there, ended, pool, registered, asked, told, given, alive, left, heard,
           has, out, part, staged, last, committed, arrived, gone, target, over, phase, begin,
           written, reads, since, twice, crashes>>

SetOf(s) == {s[i] : i \in DOMAIN s}
Added(r) == SetOf(SubSeq(given'[r], Len(given[r]) + 1, Len(given'[r])))

-----------------------------------------------------------------------------
(* Other splits than those that were found are not taken up; nor is the knowledge another.                           *)
Finds(r, upto) == Of(r)!Discover /\ \A f \in found' : f.life = life => f.known = upto
TakesUp(r) == \E f \in found : f.life = life /\ Of(r)!TakeUp(f)

Reads(r, a, record) ==
    LET before == <<record[1], record[2] - 1>>
    IN  before \in has[a] /\ Of(r)!Read(a) /\ before \notin has'[a]

Checkpoints(r, knows, waiting, parts) ==
    /\ Of(r)!Checkpoint
    /\ staged'.known = knows /\ staged'.waiting = waiting
    /\ \A i \in DOMAIN parts : staged'.parts[parts[i][1]].has = parts[i][2]

Plans(r, knows, waiting, slices) ==
    /\ Of(r)!Plan
    /\ staged'.known = knows /\ staged'.waiting = waiting
    /\ {<<slice.split, slice.from, slice.to>> : slice \in staged'.slices} = slices

(* The service may have heard it before.                                                                             *)
Notifies(r, positions) ==
    /\ \A i \in DOMAIN positions : Of(r)!ReadTo(begin, positions[i][1]) = positions[i][2]
    /\ IF \E i \in DOMAIN positions : positions[i][2] > gone[positions[i][1]] THEN Of(r)!NotifyCommitted ELSE UNCHANGED state

Does(r, e) ==
    LET name == e[1]
    IN  CASE name = "discover" -> Finds(r, e[2])
          [] name = "take up" -> TakesUp(r)
          [] name = "pool" -> pool = e[2] /\ UNCHANGED state
          [] name = "ask" -> Of(r)!AskOf(e[2])
          [] name = "assign" -> Of(r)!Assign(e[2]) /\ Added(e[2]) = e[3]
          [] name = "no more" -> Of(r)!NoMore(e[2])
          [] name = "hear" -> Of(r)!Hear(e[2])
          [] name = "read" -> Reads(r, e[2], e[3])
          [] name = "leave" -> Of(r)!Leave(e[2])
          [] name = "part" -> Of(r)!Part(e[2]) /\ has[e[2]] = e[3]
          [] name = "checkpoint" -> Checkpoints(r, e[2], e[3], e[4])
          [] name = "complete" -> Of(r)!Complete
          [] name = "reader dies" -> Of(r)!ReaderDies(e[2])
          [] name = "add back" -> Of(r)!AddBack(e[2])
          [] name = "return" -> Of(r)!Return(e[2]) /\ Added(e[2]) = e[3]
          [] name = "driver dies" -> Of(r)!DriverDies
          [] name = "restore" -> Of(r)!Restore(e[2])
          [] name = "arrive" -> Of(r)!Arrive(e[2])
          [] name = "plan" -> Plans(r, e[2], e[3], e[4])
          [] name = "log" -> Of(r)!LogOffset
          [] name = "run" -> Of(r)!Run /\ written' = e[2]
          [] name = "done" -> Of(r)!BatchDone
          [] name = "notify" -> Notifies(r, e[2])
          [] name = "drop" -> Of(r)!Drop
          [] name = "end" -> Of(r)!End
          [] OTHER -> FALSE

-----------------------------------------------------------------------------
TraceInit == \E r \in DOMAIN Runs : run = r /\ through = 0 /\ Of(r)!Init

(* What the properties of SplitAssignment forbid has not happened.                                                   *)
IsRight(r) ==
    /\ Of(r)!TypeOK /\ Of(r)!NothingTwice /\ Of(r)!NothingLost /\ Of(r)!RestoresExactly /\ Of(r)!NoMoreIsTrue
    /\ Of(r)!SameEachTime /\ Of(r)!OneOfAName /\ Of(r)!SaidIsDone /\ Of(r)!TargetHolds /\ Of(r)!EndsComplete

Step ==
    /\ through < Len(Runs[run].steps)
    /\ \E r \in {run} : IsRight(r) /\ Does(r, Runs[r].steps[through + 1])
    /\ Shows => PrintT(<<"through", run, through + 1>>)
    /\ through' = through + 1 /\ run' = run

(* And at the end everything has been read.                                                                          *)
HasRead(r) == \A s \in 1..Runs[r].splits : \A i \in 1..arrived[s] : <<s, i>> \in committed

Accept ==
    /\ through = Len(Runs[run].steps)
    /\ \E r \in {run} : IsRight(r) /\ HasRead(r)
    /\ PrintT(<<"accepted", run>>)
    /\ UNCHANGED <<state, run, through>>

TraceNext == Step \/ Accept

TraceSpec == TraceInit /\ [][TraceNext]_<<state, run, through>>
=============================================================================
