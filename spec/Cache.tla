-------------------------------- MODULE Cache --------------------------------
(* A ledger that is a cache: its results outlast executions, and expire by age and by size. An execution sees the    *)
(* records that are not older than its cut, which it chooses when it begins: by age, or so that what is younger has  *)
(* room. It writes its cut down, a pin, before it looks what is there, and under the lock of the folder. Who expires *)
(* takes whole closed segments, all of whose records are older than its own cut and than every pin, and holds that   *)
(* lock from its look at the pins to its last deletion. Merging makes one segment of closed ones, and of the records *)
(* of a key, which was called again when one was too old, leaves one: the newest. How records come to be, durable,   *)
(* is in Ledger.tla. Module pillarbox.ledger.maintenance.                                                            *)
EXTENDS Naturals, FiniteSets

CONSTANTS
    Executions,
    Last,       \* the last time at which a record is written; each time has one
    Kills,      \* executions that are killed, at most
    Mutant

VARIABLES
    now,        \* the time; a record is the time at which it was written
    state,      \* of each execution: new, pinned, running, ended
    cut,        \* of each execution: records before this are too old for it
    pins,       \* executions whose pin is there
    seg,        \* segments, each a set of records: of each execution, and 0 for the merged one
    lock,       \* who expires holds the folder's lock
    victims,    \* what it has still to delete
    (* history *)
    needed,     \* of each execution: records that it may ask for
    given,      \* of each execution: records that it has answered with
    kills

vars == <<now, state, cut, pins, seg, lock, victims, needed, given, kills>>

Segments == Executions \cup {0}
Times == 0..Last
Records == UNION {seg[s] : s \in Segments}
Running == {e \in Executions : state[e] = "running"}
Closed == {s \in Segments : seg[s] # {} /\ (s = 0 \/ state[s] = "ended")}
Oldest(times) == CHOOSE one \in times : \A other \in times : one <= other
Newest(times) == CHOOSE one \in times : \A other \in times : one >= other
(* Two records that follow one another have a key together.                                                         *)
Key(time) == time \div 2
OfKey(times, time) == {other \in times : Key(other) = Key(time)}

TypeOK ==
    /\ now \in 0..(Last + 1) /\ lock \in BOOLEAN /\ victims \subseteq Segments /\ pins \subseteq Executions
    /\ state \in [Executions -> {"new", "pinned", "running", "ended"}]
    /\ \A s \in Segments : seg[s] \subseteq Times
    /\ lock \/ victims = {}

Init ==
    /\ now = 0 /\ state = [e \in Executions |-> "new"] /\ cut = [e \in Executions |-> 0] /\ pins = {}
    /\ seg = [s \in Segments |-> {}] /\ lock = FALSE /\ victims = {}
    /\ needed = [e \in Executions |-> {}] /\ given = [e \in Executions |-> {}] /\ kills = 0

(* The cut is any time that is not to come: by max_age, or by the size of what is younger.                         *)
Pin(e) ==
    /\ state[e] = "new"
    /\ ~lock \/ Mutant = "pins without the lock"
    /\ \E time \in 0..now : cut' = [cut EXCEPT ![e] = time]
    /\ state' = [state EXCEPT ![e] = "pinned"]
    /\ pins' = IF Mutant = "looks before it pins" THEN pins ELSE pins \cup {e}
    /\ UNCHANGED <<now, seg, lock, victims, needed, given, kills>>

(* What is there when it looks, and young enough, it may ask for until its end.                                     *)
Begin(e) ==
    /\ state[e] = "pinned" /\ state' = [state EXCEPT ![e] = "running"]
    /\ needed' = [needed EXCEPT ![e] = {time \in Records : time >= cut[e]}]
    /\ UNCHANGED <<now, cut, pins, seg, lock, victims, given, kills>>
PinLate(e) ==
    /\ Mutant = "looks before it pins" /\ e \in Running /\ e \notin pins /\ ~lock
    /\ pins' = pins \cup {e}
    /\ UNCHANGED <<now, state, cut, seg, lock, victims, needed, given, kills>>

(* Its own results, too: an attempt that is made again asks for these.                                              *)
Write(e) ==
    /\ e \in Running /\ now <= Last /\ now' = now + 1
    /\ seg' = [seg EXCEPT ![e] = @ \cup {now}] /\ needed' = [needed EXCEPT ![e] = @ \cup {now}]
    /\ UNCHANGED <<state, cut, pins, lock, victims, given, kills>>

Answer(e) ==
    /\ e \in Running
    /\ \E time \in Records :
        /\ time >= cut[e] \/ Mutant = "answers what is too old"
        /\ time \notin given[e]
        /\ given' = [given EXCEPT ![e] = @ \cup {time}]
    /\ UNCHANGED <<now, state, cut, pins, seg, lock, victims, needed, kills>>

End(e) ==
    /\ e \in Running /\ state' = [state EXCEPT ![e] = "ended"] /\ UNCHANGED kills
    /\ UNCHANGED <<now, cut, pins, seg, lock, victims, needed, given>>
Kill(e) ==
    /\ e \in Running /\ kills < Kills /\ kills' = kills + 1 /\ state' = [state EXCEPT ![e] = "ended"]
    /\ UNCHANGED <<now, cut, pins, seg, lock, victims, needed, given>>
(* A pin that nobody has renewed for long is that of an execution that has ended.                                   *)
Lapse(e) ==
    /\ e \in pins /\ pins' = pins \ {e}
    /\ state[e] = "ended" \/ Mutant = "a pin lapses while it is used"
    /\ UNCHANGED <<now, state, cut, seg, lock, victims, needed, given, kills>>

(* Under the lock: the pins, then what is older than all of them and than the own cut.                              *)
Choose ==
    /\ ~lock /\ lock' = TRUE
    /\ \E own \in 0..now :
        LET cuts == {own} \cup (IF Mutant = "does not look at pins" THEN {} ELSE {cut[e] : e \in pins})
            age(times) == IF Mutant = "goes by the oldest record" THEN Oldest(times) ELSE Newest(times)
        IN  victims' = {s \in Closed : age(seg[s]) < Oldest(cuts)}
    /\ UNCHANGED <<now, state, cut, pins, seg, needed, given, kills>>
Expire ==
    /\ lock
    /\ IF victims = {} THEN lock' = FALSE /\ UNCHANGED <<seg, victims>>
       ELSE \E s \in victims :
            /\ seg' = [seg EXCEPT ![s] = {}] /\ victims' = victims \ {s} /\ UNCHANGED lock
    /\ UNCHANGED <<now, state, cut, pins, needed, given, kills>>

(* What was merged is as old as the newest record in it. Of each key the newest record counts: who may ask for     *)
(* another one may ask for that.                                                                                    *)
Counting(times) ==
    LET one(some) == IF Mutant = "a merge keeps the oldest" THEN Oldest(some) ELSE Newest(some)
    IN  {one(OfKey(times, time)) : time \in times}
Merge ==
    /\ ~lock /\ Cardinality(Closed) > 1
    /\ \E taken \in SUBSET Closed :
        /\ Cardinality(taken) > 1 /\ (0 \in taken \/ seg[0] = {})
        /\ seg' = [s \in Segments |-> IF s = 0 THEN Counting(UNION {seg[t] : t \in taken})
                                      ELSE IF s \in taken THEN {} ELSE seg[s]]
    /\ UNCHANGED <<now, state, cut, pins, lock, victims, needed, given, kills>>

Next ==
    \/ Choose \/ Expire \/ Merge
    \/ \E e \in Executions : Pin(e) \/ Begin(e) \/ PinLate(e) \/ Write(e) \/ Answer(e) \/ End(e) \/ Kill(e) \/ Lapse(e)
Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
(* Nothing goes that a running execution may ask for.                                                               *)
WhatIsAskedForStays ==
    \A e \in Running : \A time \in needed[e] : \E other \in OfKey(Records, time) : other >= time

(* No row gets an answer that is too old for its execution.                                                         *)
AnswersAreYoung == \A e \in Executions : \A time \in given[e] : time >= cut[e]

(* Who expires leaves no closed segment behind that is too old for all.                                             *)
NothingOldIsLeft == [][(lock /\ ~lock') => victims = {}]_vars
=============================================================================
