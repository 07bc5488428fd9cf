------------------------------- MODULE Ledger -------------------------------
(* A run's finished calls, in segments: each attempt of a task appends to one of its own. Two attempts may live at a *)
(* time (speculation, zombies). A result is buffered, then written under the lock of the run, then durable by fsync, *)
(* and only then its row is emitted. Who holds the lock sees what the others have written, so the first record of a  *)
(* key is the only one. Processes are killed, the machine loses power, the disk is full; closed segments are merged; *)
(* what is committed expires. A record says of which input it is the answer, and which execution has written it: an  *)
(* execution is an action of the user, tasks and their retries in one are the same. Package pillarbox.ledger.        *)
EXTENDS Naturals, Sequences, FiniteSets

CONSTANTS
    Keys,
    Attempts,   \* of the task, at most; only the last one is never hit
    MostLive,   \* attempts at a time
    Window,     \* results of an attempt that a kill may cost
    Crashes,    \* kills, losses of power and full disks together, at most
    Compacts,   \* whether segments are merged
    Later,      \* attempts of a second execution; the others are of the first
    Changed,    \* attempts whose rows have another input (or version) under the same keys
    Locked,     \* whether commits are made under a lock: an object store has none
    ByKey,      \* whether attempts claim keys one by one (Dedupe(across_tasks=True)), instead of all by a lease
    Mutant

VARIABLES
    state,      \* of each attempt: new, live, failed, done
    place,      \* of each key in each attempt: todo, calling, buffered, written, found, out
    seg,        \* segments: of each attempt, and 0 for the merged one
    synced,     \* of each segment: records at its front that are durable
    lease,      \* the attempt that should call; 0 for none
    merge,      \* what the compaction has in hand
    untold,     \* of each attempt: segments with a record of which the log of commits does not tell it
    poisoned,   \* segments whose fsync has failed, and that are still there whole
    committed, expired,
    old,        \* of each attempt: keys whose answer it has found and an earlier execution has kept
    told,       \* attempts that have written these down where others find them, at their end
    claim,      \* of each key: the attempt that has claimed it; 0 for none
    hasty,      \* attempt and key: who has waited too long for another's claim, and calls without
    (* history *)
    seen,       \* of each key: the results that the output has seen, with the input of the row
    paid,       \* keys that have had a durable record, with its input
    had, made,  \* of each attempt: keys durable when it began, keys that it called
    lost,       \* finished calls that were lost
    crashes

ends == <<old, told>>
claims == <<claim, hasty>>
vars == <<state, place, seg, synced, lease, merge, untold, poisoned, committed, expired, ends, claims, seen, paid, had, made,
          lost, crashes>>
more == <<untold, poisoned, ends, claims>>

Tasks == 1..Attempts
Segments == 0..Attempts
Torn == 0
Execution(a) == IF a \in Later THEN 2 ELSE 1
Input(a) == IF a \in Changed THEN 2 ELSE 1
Inputs == {1, 2}
NoMerge == [step |-> "idle", records |-> <<>>, taken |-> {}]
Live == {a \in Tasks : state[a] = "live"}

(* A record is a key and the attempt whose call gave the result: its input and execution are those of the attempt. A *)
(* torn one has a key, as it may seem, and garbage.                                                                *)
TypeOK ==
    /\ state \in [Tasks -> {"new", "live", "failed", "refused", "done"}]
    /\ place \in [Tasks -> [Keys -> {"todo", "calling", "buffered", "written", "found", "out"}]]
    /\ \A s \in Segments : synced[s] \in 0..Len(seg[s])
    /\ lease \in 0..Attempts
    /\ merge.step \in {"idle", "staged", "published"}
    /\ \A a \in Tasks : old[a] \subseteq Keys
    /\ told \subseteq Tasks
    /\ claim \in [Keys -> 0..Attempts] /\ hasty \subseteq Tasks \X Keys

Init ==
    /\ state = [a \in Tasks |-> "new"] /\ place = [a \in Tasks |-> [k \in Keys |-> "todo"]]
    /\ seg = [s \in Segments |-> <<>>] /\ synced = [s \in Segments |-> 0]
    /\ untold = [a \in Tasks |-> {}] /\ poisoned = {}
    /\ lease = 0 /\ merge = NoMerge /\ committed = FALSE /\ expired = FALSE
    /\ old = [a \in Tasks |-> {}] /\ told = {}
    /\ claim = [k \in Keys |-> 0] /\ hasty = {}
    /\ seen = [k \in Keys |-> {}] /\ paid = {} /\ had = [a \in Tasks |-> {}] /\ made = [a \in Tasks |-> {}]
    /\ lost = 0 /\ crashes = 0

-----------------------------------------------------------------------------
(* What a scan trusts: whole records, up to the first that is not.                                                 *)
Whole(records) ==
    LET whole == {n \in 0..Len(records) : \A i \in 1..n : records[i].result # Torn}
    IN  IF Mutant = "trusts what is torn" THEN records
        ELSE SubSeq(records, 1, CHOOSE n \in whole : \A m \in whole : m <= n)
IsTorn(s) == \E i \in 1..Len(seg[s]) : seg[s][i].result = Torn

Any(k) == {<<s, i>> \in Segments \X (1..Cardinality(Keys) * 2) : i <= Len(Whole(seg[s])) /\ seg[s][i].key = k}
At(at) == seg[at[1]][at[2]]
OfInput(at) == IF At(at).result = Torn THEN 1 ELSE Input(At(at).result)
(* Those that answer a row with this input: the first of them counts.                                               *)
With(k, input) ==
    IF Mutant = "answers whatever the input" THEN Any(k) ELSE {at \in Any(k) : OfInput(at) = input}
Found(a, k) == With(k, Input(a))
First(a, k) == CHOOSE at \in Found(a, k) : \A other \in Found(a, k) :
    at[1] < other[1] \/ (at[1] = other[1] /\ at[2] <= other[2])
IsDurable(at) == at[2] <= synced[at[1]]
Durable(a, k) == {at \in Found(a, k) : IsDurable(at)}
(* Two rows of one execution have this key, and different inputs. *)
Clashes(a, k) == {at \in Any(k) : /\ At(at).result # Torn
                                  /\ OfInput(at) # Input(a)
                                  /\ Execution(At(at).result) = Execution(a) \/ Mutant = "refuses what has changed"}

InOrder(keys) == CHOOSE order \in [1..Cardinality(keys) -> keys] :
    \A i, j \in 1..Cardinality(keys) : i < j => order[i] < order[j]
Records(keys, result) == [i \in 1..Cardinality(keys) |-> [key |-> InOrder(keys)[i], result |-> result]]
In(a, what) == {k \in Keys : place[a][k] \in what}

(* The scan with which an attempt begins.                                                                          *)
Scan(a) ==
    IF Mutant = "scan ends at damage" /\ \E s \in Segments : IsTorn(s) THEN {}
    ELSE {k \in Keys : Found(a, k) # {}}

-----------------------------------------------------------------------------
Start(a) ==
    /\ state[a] = "new" /\ \A b \in 1..(a - 1) : state[b] # "new"
    /\ Cardinality(Live) < MostLive /\ ~committed
    /\ state' = [state EXCEPT ![a] = "live"]
    /\ place' = [place EXCEPT ![a] = [k \in Keys |-> IF k \in Scan(a) THEN "found" ELSE "todo"]]
    /\ had' = [had EXCEPT ![a] = {k \in Keys : Durable(a, k) # {}}]
    /\ UNCHANGED <<more, seg, synced, lease, merge, committed, expired, seen, paid, made, lost, crashes>>

(* One of the attempts that live should call, the others wait for its records. It is only about money: when a       *)
(* holder that lives does not renew the lease, or patience is over, another takes it. Who dies has freed it.         *)
Acquire(a) ==
    /\ state[a] = "live" /\ lease = 0 /\ ~ByKey /\ lease' = a
    /\ UNCHANGED <<more, state, place, seg, synced, merge, committed, expired, seen, paid, had, made, lost, crashes>>
TakeOver(a) ==
    /\ state[a] = "live" /\ lease \notin {0, a} /\ state[lease] = "live" /\ In(a, {"todo"}) # {}
    /\ Mutant # "lease never expires" /\ lease' = a
    /\ UNCHANGED <<more, state, place, seg, synced, merge, committed, expired, seen, paid, had, made, lost, crashes>>

(* Or tasks claim keys one by one, so that equal rows of all of them share a call: by a lock of the kernel, which it  *)
(* takes from the dead. Who gets the claim looks, and only then calls; who does not waits for the record. A claim is *)
(* freed with the record, or where a record of another was found. Of a holder that is stopped or hangs the others    *)
(* call without the claim in the end.                                                                              *)
Claim(a, k) ==
    /\ ByKey /\ state[a] = "live" /\ place[a][k] = "todo" /\ claim[k] = 0
    /\ claim' = [claim EXCEPT ![k] = a]
    /\ UNCHANGED <<untold, poisoned, ends, hasty, state, place, seg, synced, lease, merge, committed, expired, seen, paid>>
    /\ UNCHANGED <<had, made, lost, crashes>>
Overdue(a, k) ==
    /\ ByKey /\ state[a] = "live" /\ place[a][k] = "todo" /\ <<a, k>> \notin hasty
    /\ claim[k] \notin {0, a} /\ state[claim[k]] = "live" /\ Mutant # "a claim is waited for for ever"
    /\ hasty' = hasty \cup {<<a, k>>}
    /\ UNCHANGED <<untold, poisoned, ends, claim, state, place, seg, synced, lease, merge, committed, expired, seen, paid>>
    /\ UNCHANGED <<had, made, lost, crashes>>
Release(a, k) ==
    /\ claim[k] = a /\ state[a] = "live"
    /\ \/ place[a][k] \in {"found", "out"}
       \/ place[a][k] = "buffered" /\ Mutant = "frees a claim before its record is written"
    /\ claim' = [claim EXCEPT ![k] = 0]
    /\ UNCHANGED <<untold, poisoned, ends, hasty, state, place, seg, synced, lease, merge, committed, expired, seen, paid>>
    /\ UNCHANGED <<had, made, lost, crashes>>
WithoutClaimsOf(gone) ==
    [k \in Keys |-> IF claim[k] \in gone /\ Mutant # "the dead keep the lease" THEN 0 ELSE claim[k]]

MayCall(a, k) ==
    IF ByKey THEN claim[k] = a \/ <<a, k>> \in hasty \/ Mutant = "calls without a claim"
    ELSE IF Mutant = "each waits for the other" THEN Live = {a}
    ELSE lease = a \/ (Mutant = "a lost lease stops nothing" /\ made[a] # {})

(* Before each call, and before each that is made again, an attempt looks whether another has made it: in what it has *)
(* seen by then, which is all that is there when it gets the lease, and later what its own commits have met.        *)
Call(a, k) ==
    /\ state[a] = "live" /\ place[a][k] = "todo" /\ MayCall(a, k)
    /\ k \notin Scan(a) \/ Mutant = "calls without a look"
    /\ Cardinality(In(a, {"calling", "buffered", "written"})) < Window \/ Mutant = "window not held"
    /\ place' = [place EXCEPT ![a][k] = "calling"] /\ made' = [made EXCEPT ![a] = @ \cup {k}]
    /\ UNCHANGED <<more, state, seg, synced, lease, merge, committed, expired, seen, paid, had, lost, crashes>>
(* An attempt that has not called looks again now and then.                                                        *)
Look(a, k) ==
    /\ state[a] = "live" /\ place[a][k] = "todo" /\ Found(a, k) # {}
    /\ place' = [place EXCEPT ![a][k] = "found"]
    /\ UNCHANGED <<more, state, seg, synced, lease, merge, committed, expired, seen, paid, had, made, lost, crashes>>
(* A key stands for one row of an execution: who finds that it does not ends the job, before the call and at the     *)
(* commit, under the lock. What an earlier execution has for another input is no matter: the row is called.         *)
MayRefuse == Mutant # "takes any input of a key for the row's"
(* At its end each attempt looks once more, for what neither look can know: what an object store, which has no lock, *)
(* has got from two at a time, and a row of this execution that was not called, as an earlier one has kept its       *)
(* answer. Such keys it writes down before it looks, so that of two the one that ends later sees the other.          *)
IsTold(b) == IF Mutant = "looks before it tells" THEN state[b] = "done" ELSE b \in told
ClashesAtEnd(a) ==
    IF Mutant = "ends without a look" THEN {}
    ELSE {k \in Keys :
            \/ Clashes(a, k) # {}
            \/ /\ \E at \in Any(k) : At(at).result # Torn /\ OfInput(at) # Input(a)
               /\ \E b \in Tasks : /\ IsTold(b) /\ k \in old[b]
                                    /\ Execution(b) = Execution(a) /\ Input(b) # Input(a)}
Refuse(a) ==
    /\ state[a] = "live" /\ MayRefuse
    /\ \/ \E k \in Keys : /\ Clashes(a, k) # {}
                          /\ \/ place[a][k] = "todo"
                             \/ place[a][k] = "buffered" /\ Mutant # "looks for clashes before the call only"
       \/ In(a, {"out"}) = Keys /\ (a \in told \/ Mutant = "looks before it tells") /\ ClashesAtEnd(a) # {}
    /\ state' = [state EXCEPT ![a] = "refused"] /\ lease' = IF lease = a THEN 0 ELSE lease
    /\ claim' = WithoutClaimsOf({a})
    /\ UNCHANGED <<untold, poisoned, ends, hasty, place, seg, synced, merge, committed, expired, seen, paid, had, made, lost, crashes>>
(* A call that failed is made again. Those of the last attempt do not fail.                                         *)
Fail(a, k) ==
    /\ a < Attempts /\ state[a] = "live" /\ place[a][k] = "calling"
    /\ place' = [place EXCEPT ![a][k] = "todo"]
    /\ UNCHANGED <<more, state, seg, synced, lease, merge, committed, expired, seen, paid, had, made, lost, crashes>>
Answer(a, k) ==
    /\ state[a] = "live" /\ place[a][k] = "calling"
    /\ place' = [place EXCEPT ![a][k] = "buffered"]
    /\ UNCHANGED <<more, state, seg, synced, lease, merge, committed, expired, seen, paid, had, made, lost, crashes>>

(* The group commit, under the lock: what another has written since is his, the rest is appended. Where to look says *)
(* the log of commits, into which each one writes before it appends.                                               *)
Write(a) ==
    /\ state[a] = "live"
    /\ LET buffered == In(a, {"buffered"})
           theirs == IF Mutant = "writes unlooked" \/ ~Locked THEN {} ELSE
                        {k \in buffered : \E at \in Found(a, k) : at[1] \notin untold[a]}
           mine == buffered \ theirs
       IN  /\ buffered # {}
           /\ \/ \A k \in mine : Clashes(a, k) = {}
              \/ ~Locked
              \/ Mutant \in {"looks for clashes before the call only", "takes any input of a key for the row's"}
           /\ seg' = [seg EXCEPT ![a] = @ \o Records(mine, a)]
           /\ place' = [place EXCEPT ![a] = [k \in Keys |->
                  IF k \in mine THEN "written" ELSE IF k \in theirs THEN "found" ELSE @[k]]]
    /\ UNCHANGED <<more, state, synced, lease, merge, committed, expired, seen, paid, had, made, lost, crashes>>

(* After the lock: its own segment, and those of others of which it has found records.                             *)
Sync(a) ==
    /\ state[a] = "live"
    /\ LET others == IF Mutant = "found is not synced" THEN {} ELSE 
                        {First(a, k)[1] : k \in {l \in In(a, {"found"}) : Found(a, l) # {}}}
           files == {s \in (others \cup {a}) \ poisoned : synced[s] < Len(seg[s])}
       IN  /\ files # {}
           /\ synced' = [s \in Segments |-> IF s \in files THEN Len(seg[s]) ELSE synced[s]]
           /\ paid' = paid \cup {<<k, n>> \in Keys \X Inputs :
                                \E at \in Any(k) : at[1] \in files /\ OfInput(at) = n}
    /\ UNCHANGED <<more, state, place, seg, lease, merge, committed, expired, seen, had, made, lost, crashes>>

Emit(a, k) ==
    /\ state[a] = "live"
    /\ LET emit(result) ==
               seen' = IF committed THEN seen ELSE [seen EXCEPT ![k] = @ \cup {<<Input(a), result>>}]
       IN  \/ /\ place[a][k] = "written"
              /\ \/ \E i \in 1..synced[a] : seg[a][i].key = k /\ seg[a][i].result = a
                 \/ Mutant = "emits before the sync"
                 \/ expired \* a zombie, whose segment has gone
              /\ emit(a) /\ UNCHANGED old
           \/ /\ place[a][k] = "found" /\ Found(a, k) # {}
              /\ First(a, k) \in Durable(a, k) \/ Mutant = "found is not synced" \/ First(a, k)[1] \in poisoned
              /\ emit(At(First(a, k)).result)
              /\ LET result == At(First(a, k)).result
                 IN  old' = IF result # Torn /\ Execution(result) # Execution(a)
                            THEN [old EXCEPT ![a] = @ \cup {k}] ELSE old
    /\ place' = [place EXCEPT ![a][k] = "out"]
    /\ UNCHANGED <<untold, poisoned, told, claims, state, seg, synced, lease, merge, committed, expired, paid, had, made>>
    /\ UNCHANGED <<lost, crashes>>
(* What was found has expired since, or was cut off by who could not make it durable.                               *)
Gone(a, k) ==
    /\ state[a] = "live" /\ place[a][k] = "found" /\ Found(a, k) = {}
    /\ place' = [place EXCEPT ![a][k] = "todo"]
    /\ UNCHANGED <<more, state, seg, synced, lease, merge, committed, expired, seen, paid, had, made, lost, crashes>>

Tell(a) ==
    /\ state[a] = "live" /\ In(a, {"out"}) = Keys /\ a \notin told /\ told' = told \cup {a}
    /\ Mutant # "looks before it tells" \/ ClashesAtEnd(a) = {}
    /\ UNCHANGED <<untold, poisoned, old, claims, state, place, seg, synced, lease, merge, committed, expired, seen, paid, had, made>>
    /\ UNCHANGED <<lost, crashes>>
Done(a) ==
    /\ state[a] = "live" /\ In(a, {"out"}) = Keys /\ a \in told
    /\ ClashesAtEnd(a) = {} \/ Mutant \in {"looks before it tells", "takes any input of a key for the row's"}
    /\ state' = [state EXCEPT ![a] = "done"] /\ lease' = IF lease = a THEN 0 ELSE lease
    /\ claim' = WithoutClaimsOf({a})
    /\ UNCHANGED <<untold, poisoned, ends, hasty, place, seg, synced, merge, committed, expired, seen, paid, had, made, lost, crashes>>
Commit ==
    /\ ~committed /\ \E a \in Tasks : state[a] = "done"
    /\ committed' = TRUE
    /\ UNCHANGED <<more, state, place, seg, synced, lease, merge, expired, seen, paid, had, made, lost, crashes>>

-----------------------------------------------------------------------------
(* What goes wrong. The last attempt is spared, or nothing would ever be done.                                      *)
MayCrash == crashes < Crashes /\ crashes' = crashes + 1

Freed(a) == IF lease = a /\ Mutant # "the dead keep the lease" THEN 0 ELSE lease

(* SIGKILL: what is in the process is lost; a write in progress leaves a part, and the log may tell of one that never *)
(* began. What was written stays, and the lease, a lock of the process, is free.                                    *)
WithTorn(a, part) ==
    IF part THEN [seg EXCEPT ![a] = Append(@, [key |-> InOrder(In(a, {"buffered"}))[1], result |-> Torn])] ELSE seg
Kill(a) ==
    /\ a < Attempts /\ state[a] = "live" /\ MayCrash
    /\ state' = [state EXCEPT ![a] = "failed"]
    /\ lost' = lost + Cardinality(In(a, {"buffered"}))
    /\ lease' = Freed(a) /\ claim' = WithoutClaimsOf({a})
    /\ \/ /\ \E part \in {FALSE, In(a, {"buffered"}) # {}} : seg' = WithTorn(a, part)
          /\ UNCHANGED untold
       \/ /\ Mutant = "tells of a record when it is there"
          /\ LET mine == {k \in In(a, {"buffered"}) : Found(a, k) = {}}
             IN  seg' = [seg EXCEPT ![a] = @ \o Records(mine, a)]
          /\ untold' = [b \in Tasks |-> IF state[b] = "live" THEN untold[b] \cup {a} ELSE untold[b]]
    /\ UNCHANGED <<place, synced, merge, poisoned, ends, hasty, committed, expired, seen, paid, had, made>>

(* The disk is full: the attempt fails, and that is all.                                                           *)
DiskFull(a) ==
    /\ a < Attempts /\ state[a] = "live" /\ MayCrash /\ In(a, {"buffered"}) # {}
    /\ state' = [state EXCEPT ![a] = IF Mutant = "writes on after a full disk" THEN @ ELSE "failed"]
    /\ lost' = lost + Cardinality(In(a, {"buffered"}))
    /\ \E part \in BOOLEAN :
        seg' = IF Mutant = "full disk empties the segment" THEN [seg EXCEPT ![a] = <<>>] ELSE WithTorn(a, part)
    /\ synced' = [synced EXCEPT ![a] = IF Len(seg'[a]) < @ THEN Len(seg'[a]) ELSE @]
    /\ lease' = IF state'[a] = "live" THEN lease ELSE Freed(a)
    /\ claim' = IF state'[a] = "live" THEN claim ELSE WithoutClaimsOf({a})
    /\ UNCHANGED <<place, merge, untold, poisoned, ends, hasty, committed, expired, seen, paid, had, made>>

(* The fsync fails: memory still has the records, the disk has not, and the next fsync would say that all is well.  *)
(* So they are cut off.                                                                                            *)
SyncFails(a) ==
    /\ a < Attempts /\ state[a] = "live" /\ MayCrash /\ synced[a] < Len(seg[a])
    /\ state' = [state EXCEPT ![a] = "failed"]
    /\ lost' = lost + Cardinality(In(a, {"buffered"}) \cup {k \in In(a, {"written"}) : Durable(a, k) = {}})
    /\ lease' = Freed(a) /\ claim' = WithoutClaimsOf({a})
    /\ IF Mutant = "what could not be synced stays"
       THEN poisoned' = poisoned \cup {a} /\ UNCHANGED seg
       ELSE seg' = [seg EXCEPT ![a] = SubSeq(@, 1, synced[a])] /\ UNCHANGED poisoned
    /\ UNCHANGED <<place, synced, merge, untold, ends, hasty, committed, expired, seen, paid, had, made>>

(* Everything that is not durable goes, and the first record of it may be there in part.                           *)
PowerLoss ==
    /\ Live # {} /\ Attempts \notin Live /\ MayCrash
    /\ state' = [a \in Tasks |-> IF a \in Live THEN "failed" ELSE state[a]]
    /\ lost' = lost + Cardinality({<<a, k>> \in Live \X Keys : place[a][k] = "buffered"
                                    \/ (place[a][k] = "written" /\ Durable(a, k) = {})})
    /\ seg' = [s \in Segments |->
           IF synced[s] = Len(seg[s]) THEN seg[s]
           ELSE Append(SubSeq(seg[s], 1, synced[s]), [seg[s][synced[s] + 1] EXCEPT !.result = Torn])]
    /\ merge' = NoMerge /\ lease' = IF lease \in Live THEN Freed(lease) ELSE lease
    /\ claim' = WithoutClaimsOf(Live)
    /\ UNCHANGED <<place, synced, untold, poisoned, ends, hasty, committed, expired, seen, paid, had, made>>

-----------------------------------------------------------------------------
(* Closed segments become one: written beside them and synced, then renamed, and only then the others are deleted.   *)
Closed == {s \in Segments : seg[s] # <<>> /\
    (s = 0 \/ state[s] \in {"failed", "refused", "done"} \/ Mutant = "merges what is open")}
Merge ==
    /\ Compacts /\ merge.step = "idle" /\ ~expired /\ Closed \ {0} # {}
    /\ LET kept(k, n) == IF Mutant = "one record of a key is merged" THEN Any(k) ELSE With(k, n)
           of(k, n) == CHOOSE at \in kept(k, n) : at[1] \in Closed
           records(n) ==
               LET keys == {k \in Keys : \E at \in kept(k, n) : at[1] \in Closed}
               IN  [i \in 1..Cardinality(keys) |-> At(of(InOrder(keys)[i], n))]
           second == IF Mutant = "one record of a key is merged" THEN <<>> ELSE records(2)
       IN  merge' = [step |-> "staged", taken |-> Closed \ {0}, records |-> records(1) \o second]
    /\ UNCHANGED <<more, state, place, seg, synced, lease, committed, expired, seen, paid, had, made, lost, crashes>>
Deleted(s) == s \in merge.taken
Publish ==
    /\ merge.step = "staged" /\ ~expired
    /\ LET first == Mutant = "deletes before it publishes"
       IN  IF first
           THEN /\ seg' = [s \in Segments |-> IF Deleted(s) THEN <<>> ELSE seg[s]]
                /\ synced' = [s \in Segments |-> IF Deleted(s) THEN 0 ELSE synced[s]]
                /\ UNCHANGED paid
           ELSE /\ seg' = [seg EXCEPT ![0] = merge.records]
                /\ synced' = [synced EXCEPT ![0] = Len(merge.records)]
                /\ paid' = paid \cup {<<merge.records[i].key, Input(merge.records[i].result)>> :
                                        i \in {j \in 1..Len(merge.records) : merge.records[j].result # Torn}}
    /\ merge' = [merge EXCEPT !.step = "published"]
    /\ UNCHANGED <<more, state, place, lease, committed, expired, seen, had, made, lost, crashes>>
Delete ==
    /\ merge.step = "published" /\ merge' = NoMerge
    /\ LET first == Mutant = "deletes before it publishes"
       IN  /\ seg' = [s \in Segments |-> IF first /\ s = 0 THEN merge.records
                                         ELSE IF Deleted(s) THEN <<>> ELSE seg[s]]
           /\ synced' = [s \in Segments |-> IF first /\ s = 0 THEN Len(merge.records)
                                            ELSE IF Deleted(s) THEN 0 ELSE synced[s]]
    /\ UNCHANGED <<more, state, place, lease, committed, expired, seen, paid, had, made, lost, crashes>>
(* Killed in between: the next one begins anew.                                                                    *)
MergeKilled ==
    /\ merge.step # "idle" /\ MayCrash /\ merge' = NoMerge
    /\ UNCHANGED <<more, state, place, seg, synced, lease, committed, expired, seen, paid, had, made, lost>>

Expire ==
    /\ ~expired
    /\ committed \/ (Mutant = "expires what is not committed" /\ \A k \in Keys : \E n \in Inputs : <<k, n>> \in paid)
    /\ expired' = TRUE /\ merge' = NoMerge
    /\ seg' = [s \in Segments |-> <<>>] /\ synced' = [s \in Segments |-> 0]
    /\ UNCHANGED <<more, state, place, lease, committed, seen, paid, had, made, lost, crashes>>

Next ==
    \/ Commit \/ PowerLoss \/ Merge \/ Publish \/ Delete \/ MergeKilled \/ Expire
    \/ \E a \in Tasks :
        \/ Start(a) \/ Acquire(a) \/ TakeOver(a) \/ Write(a) \/ Sync(a) \/ Tell(a) \/ Done(a) \/ Refuse(a)
        \/ Kill(a) \/ DiskFull(a) \/ SyncFails(a)
        \/ \E k \in Keys : Claim(a, k) \/ Overdue(a, k) \/ Release(a, k)
        \/ \E k \in Keys : Call(a, k) \/ Look(a, k) \/ Answer(a, k) \/ Fail(a, k) \/ Emit(a, k) \/ Gone(a, k)
Spec == Init /\ [][Next]_vars

(* Calls of the last attempt are answered; those of another may hang for ever, while it renews its lease. Who has    *)
(* taken the lease over keeps it for as long as the others are patient, so it comes to its call: hence SF.           *)
Fair ==
    /\ WF_vars(Commit)
    /\ \A a \in Tasks : WF_vars(Start(a))
    /\ LET a == Attempts
       IN  /\ WF_vars(Acquire(a)) /\ WF_vars(TakeOver(a)) /\ WF_vars(Write(a)) /\ WF_vars(Sync(a)) /\ WF_vars(Tell(a))
           /\ WF_vars(Done(a))
           /\ \A k \in Keys : SF_vars(Call(a, k)) /\ WF_vars(Answer(a, k)) /\ WF_vars(Emit(a, k))
                              /\ WF_vars(Gone(a, k)) /\ WF_vars(Look(a, k))
                              /\ WF_vars(Claim(a, k)) /\ WF_vars(Overdue(a, k))
FairSpec == Spec /\ Fair

-----------------------------------------------------------------------------
(* Nothing is emitted whose record is not durable: after a loss of power at this moment a scan would find it.       *)
EmittedIsDurable == expired \/ \A a \in Tasks : \A k \in In(a, {"out"}) : Durable(a, k) # {}

(* A call whose record was durable when an attempt began is not made by it. After expiry nobody asks any more.      *)
NotCalledAgain == expired \/ \A a \in Tasks : made[a] \cap had[a] = {}

(* Money: who has lost the lease makes no call, and nobody makes one whose record is there.                         *)
Calls(a, k) == place[a][k] = "todo" /\ place'[a][k] = "calling"
OnlyTheHolderCalls == [][\A a \in Tasks, k \in Keys : Calls(a, k) => lease = a]_vars
NothingThereIsCalled == [][\A a \in Tasks, k \in Keys : Calls(a, k) => Found(a, k) = {}]_vars

(* Where keys are claimed, one attempt calls for a key, whatever the others do; only the calls of who was killed, and *)
(* of who has waited too long for another, come besides. Of these a record may be lost that others have taken.     *)
OneCallForAll == (~ByKey \/ expired) \/ \A k \in Keys :
    \/ \E a \in Tasks : <<a, k>> \in hasty /\ state[a] = "failed"
    \/ Cardinality({a \in Tasks : k \in made[a] /\ state[a] # "failed" /\ <<a, k>> \notin hasty}) <= 1

(* Whichever attempts emit a key, the output sees one result for an input.                                          *)
OneResult == \A k \in Keys : \A one, other \in seen[k] : one[1] = other[1] => one[2] = other[2]

TornIsNotTrusted == \A k \in Keys : \A one \in seen[k] : one[2] # Torn

(* A row gets the answer to its own input, whatever else has been kept under its key.                               *)
AnswersItsInput == \A k \in Keys : \A one \in seen[k] : one[2] # Torn => Input(one[2]) = one[1]

(* The ledger never has the answers to two inputs of a key from one execution, where there is a lock: the second     *)
(* task is refused.                                                                                                *)
ClashIsFound == \A k \in Keys : \A one, other \in Any(k) :
    At(one).result # Torn /\ At(other).result # Torn /\ Execution(At(one).result) = Execution(At(other).result)
        => OfInput(one) = OfInput(other)

(* Lock or none, and whoever has made the calls: two tasks with two inputs of a key do not both end well.           *)
ClashEndsTheJob == expired \/ \A a, b \in Tasks :
    state[a] = "done" /\ state[b] = "done" /\ Execution(a) = Execution(b) => Input(a) = Input(b)

(* What an earlier execution has kept for another input ends no job.                                                *)
OnlyClashesAreRefused == \A a \in Tasks : state[a] = "refused" =>
    \E b \in Tasks : Execution(a) = Execution(b) /\ Input(a) # Input(b)

(* What has been durable stays so until it is committed, whatever is merged, full or killed.                        *)
NeededIsKept == committed \/ \A <<k, n>> \in paid :
    \E at \in With(k, n) : IsDurable(at) /\ OfInput(at) = n

(* A crash costs the finished calls of the window, of each attempt that it hits.                                    *)
LossIsBounded == lost <= Window * crashes * MostLive

(* However others hang or have died, the last attempt comes to its end.                                             *)
NobodyWaitsForEver == <>committed
=============================================================================
