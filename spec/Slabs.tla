------------------------------- MODULE Slabs --------------------------------
(* Where the mails of native producers come from: slabs of `Size` mails, given out one after the other by the    *)
(* one thread that has the slab, and freed by any thread, in any order. A place is not given out twice, so only  *)
(* the end of a slab has to be agreed upon: `left` counts the places that are not freed yet, those never given   *)
(* out are taken off by their thread when it lets go of the slab, and who makes it 0 releases the memory.        *)
(* Class Slab of pillarbox_slab.h.                                                                              *)
EXTENDS Integers, FiniteSets

CONSTANTS Threads, Slabs, Size, Mutant

VARIABLES
    slab,     \* of each thread, 0: none
    given,    \* of each slab: how many of its places were given out
    live,     \* mails that are in use: slab and place
    left,     \* of each slab: the counter
    releases  \* of each slab: how often its memory was released

vars == <<slab, given, live, left, releases>>

Init ==
    /\ slab = [t \in Threads |-> 0]
    /\ given = [s \in Slabs |-> 0]
    /\ live = {}
    /\ left = [s \in Slabs |-> Size]
    /\ releases = [s \in Slabs |-> 0]

Owned(s) == \E t \in Threads : slab[t] = s

(* One step: a subtraction of an atomic counter, and the release by whoever has got it to 0.                     *)
TakeOff(s, places) ==
    /\ left' = [left EXCEPT ![s] = @ - places]
    /\ releases' = IF left[s] - places = 0 THEN [releases EXCEPT ![s] = @ + 1] ELSE releases

NewSlab(t) ==
    /\ slab[t] = 0
    /\ \E s \in Slabs : given[s] = 0 /\ left[s] = Size /\ ~Owned(s) /\ slab' = [slab EXCEPT ![t] = s]
    /\ UNCHANGED <<given, live, left, releases>>

Allocate(t) ==
    /\ slab[t] # 0 => given[slab[t]] < Size
    /\ slab[t] # 0
    /\ given' = [given EXCEPT ![slab[t]] = @ + 1]
    /\ live' = live \cup {<<slab[t], given[slab[t]] + 1>>}
    \* With the last place the thread has the slab no more: others may free all of it at once.
    /\ slab' = IF given'[slab[t]] = Size /\ Mutant # "a thread keeps a slab that is given out" THEN [slab EXCEPT ![t] = 0]
               ELSE slab
    /\ UNCHANGED <<left, releases>>

(* The thread ends.                                                                                              *)
LetGo(t) ==
    /\ slab[t] # 0
    /\ slab' = [slab EXCEPT ![t] = 0]
    /\ LET places == Size - given[slab[t]]
           wrong == IF Mutant = "one place too many is taken off" /\ places > 0 THEN places + 1
                    ELSE IF Mutant = "places never given out stay" THEN 0 ELSE places
       IN  IF wrong = 0 THEN UNCHANGED <<left, releases>> ELSE TakeOff(slab[t], wrong)
    /\ UNCHANGED <<given, live>>

Free(mail) ==
    /\ mail \in live
    /\ live' = live \ {mail}
    /\ IF Mutant = "a look decides who releases"
       THEN /\ left' = [left EXCEPT ![mail[1]] = @ - 1]
            /\ releases' = IF left[mail[1]] <= 2 THEN [releases EXCEPT ![mail[1]] = @ + 1] ELSE releases
       ELSE TakeOff(mail[1], 1)
    /\ UNCHANGED <<slab, given>>

Next ==
    \/ \E t \in Threads : NewSlab(t) \/ Allocate(t) \/ LetGo(t)
    \/ \E mail \in live : Free(mail)

Spec == Init /\ [][Next]_vars

InUse(s) == Owned(s) \/ \E mail \in live : mail[1] = s

NotReleasedInUse == \A s \in Slabs : InUse(s) => releases[s] = 0
ReleasedOnce == \A s \in Slabs : releases[s] <= 1
NothingStays == \A s \in Slabs : (given[s] > 0 \/ left[s] < Size) /\ ~InUse(s) => releases[s] = 1
=============================================================================
