--------------------------- MODULE WorkerModel ----------------------------
(* One model in a process, and the thread that alone uses it (models/worker_model.py). Calls put their texts before  *)
(* it; it takes those that wait as a window, in any order of texts, and answers each call with its own vectors.      *)
(* Process 1 may fork process 2, which has a copy of what stood in memory, and none of the threads.                  *)
EXTENDS Integers, Sequences, FiniteSets

CONSTANTS
    Calls,       \* of the process 1, or of 2 after the fork: 1..n
    Window,      \* calls in a window, at most
    CanFail,     \* whether the model may be one that cannot be loaded
    Mutant

VARIABLES
    model,       \* in each process: "none", "loading", "loaded" or "failed"
    thread,      \* whether each process has the model's thread
    loads,       \* how often each process has begun to load
    queue,       \* of each process: the calls that wait for the thread, in order
    window,      \* of each process: the calls that it computes, those with shorter texts first
    places,      \* the same in the order in which they were put
    at,          \* of each call: "new", "waits", "answered", "failed" or "cancelled"
    home,        \* of each call: its process
    vectors,     \* of each call: whose vectors it was answered with; 0 for none
    forked

vars == <<model, thread, loads, queue, window, places, at, home, vectors, forked>>

Both == {1, 2}
Without(q, c) == SelectSeq(q, LAMBDA d : d # c)
Of(q) == {q[i] : i \in 1..Len(q)}
Here(p) == p = 1 \/ forked

Init ==
    /\ model = [p \in Both |-> "none"] /\ thread = [p \in Both |-> FALSE] /\ loads = [p \in Both |-> 0]
    /\ queue = [p \in Both |-> <<>>] /\ window = [p \in Both |-> <<>>] /\ places = [p \in Both |-> <<>>]
    /\ at = [c \in Calls |-> "new"] /\ home = [c \in Calls |-> 0] /\ vectors = [c \in Calls |-> 0]
    /\ forked = FALSE

(* The first call of a process has the model loaded, in its thread; others wait for the same load.                 *)
Call(c, p) ==
    /\ at[c] = "new" /\ Here(p)
    /\ home' = [home EXCEPT ![c] = p]
    /\ LET loadsNow == \/ model[p] = "none"
                       \/ Mutant = "each call loads"
                       \/ Mutant = "a failed load is tried again" /\ model[p] = "failed"
       IN  IF loadsNow
           THEN /\ model' = [model EXCEPT ![p] = "loading"] /\ thread' = [thread EXCEPT ![p] = TRUE]
                /\ loads' = [loads EXCEPT ![p] = @ + 1]
           ELSE UNCHANGED <<model, thread, loads>>
    /\ IF model'[p] = "failed"
       THEN at' = [at EXCEPT ![c] = "failed"] /\ UNCHANGED queue
       ELSE at' = [at EXCEPT ![c] = "waits"] /\ queue' = [queue EXCEPT ![p] = Append(@, c)]
    /\ UNCHANGED <<window, places, vectors, forked>>

Load(p) ==
    /\ model[p] = "loading" /\ thread[p]
    /\ model' = [model EXCEPT ![p] = "loaded"]
    /\ UNCHANGED <<thread, loads, queue, window, places, at, home, vectors, forked>>

(* All who wait fail with the same error, and so does who comes later.                                             *)
Fail(p) ==
    /\ CanFail /\ model[p] = "loading" /\ thread[p]
    /\ model' = [model EXCEPT ![p] = "failed"] /\ thread' = [thread EXCEPT ![p] = FALSE]
    /\ at' = IF Mutant = "those who wait are forgotten" THEN at
             ELSE [c \in Calls |-> IF c \in Of(queue[p]) THEN "failed" ELSE at[c]]
    /\ queue' = [queue EXCEPT ![p] = <<>>]
    /\ UNCHANGED <<loads, window, places, home, vectors, forked>>

(* The thread takes what waits, and sorts it by length; any order may come of that.                                *)
Orders(q) == {s \in [1..Len(q) -> Of(q)] : Of(s) = Of(q)}
Take(p) ==
    /\ model[p] = "loaded" /\ thread[p] /\ window[p] = <<>> /\ queue[p] # <<>>
    /\ LET n == IF Len(queue[p]) < Window THEN Len(queue[p]) ELSE Window
           taken == SubSeq(queue[p], 1, n)
       IN  /\ \E s \in Orders(taken) : window' = [window EXCEPT ![p] = s]
           /\ places' = [places EXCEPT ![p] = taken]
           /\ queue' = [queue EXCEPT ![p] = SubSeq(@, n + 1, Len(@))]
    /\ UNCHANGED <<model, thread, loads, at, home, vectors, forked>>

(* The next texts of the window, which are those of one call here. A call that was cancelled is left out.          *)
Compute(p) ==
    /\ thread[p] /\ window[p] # <<>>
    /\ LET of == Head(window[p])
           to == IF Mutant = "vectors stand in the order of lengths" THEN Head(places[p]) ELSE of
       IN  IF at[to] = "waits"
           THEN at' = [at EXCEPT ![to] = "answered"] /\ vectors' = [vectors EXCEPT ![to] = of]
           ELSE UNCHANGED <<at, vectors>>
    /\ window' = [window EXCEPT ![p] = Tail(@)] /\ places' = [places EXCEPT ![p] = Tail(@)]
    /\ UNCHANGED <<model, thread, loads, queue, home, forked>>

Cancel(c) ==
    /\ at[c] = "waits"
    /\ at' = [at EXCEPT ![c] = "cancelled"]
    /\ queue' = [p \in Both |-> Without(queue[p], c)]
    /\ UNCHANGED <<model, thread, loads, window, places, home, vectors, forked>>

(* The copy begins with nothing, whatever stood in the memory of which it is one.                                  *)
Fork ==
    /\ ~forked
    /\ forked' = TRUE
    /\ model' = [model EXCEPT ![2] = IF Mutant = "a fork has the model" THEN model[1] ELSE "none"]
    /\ UNCHANGED <<thread, loads, queue, window, places, at, home, vectors>>

Next ==
    \/ \E c \in Calls : (\E p \in Both : Call(c, p)) \/ Cancel(c)
    \/ \E p \in Both : Load(p) \/ Fail(p) \/ Take(p) \/ Compute(p)
    \/ Fork

Spec == Init /\ [][Next]_vars
FairSpec == Spec /\ \A p \in Both : WF_vars(Load(p) \/ Fail(p)) /\ WF_vars(Take(p)) /\ WF_vars(Compute(p))

TypeOK == \A c \in Calls : at[c] \in {"new", "waits", "answered", "failed", "cancelled"}

(* However many call, and whether it can be loaded or not.                                                         *)
LoadedOnce == \A p \in Both : loads[p] <= 1
OwnVectors == \A c \in Calls : vectors[c] \in {0, c} /\ (at[c] = "answered" => vectors[c] = c)
(* What a process computes with it has loaded itself.                                                              *)
NotAfterFork == \A p \in Both : model[p] # "none" => loads[p] > 0
EveryCallEnds == \A c \in Calls : at[c] = "waits" ~> at[c] # "waits"
=============================================================================
