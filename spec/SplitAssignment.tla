---------------------------- MODULE SplitAssignment ----------------------------
(* Who reads which split of a source. One state machine decides in all uses: one thread of the enumerator knows what  *)
(* was found, what waits and who was given what; splits are found on another thread, by a step that changes nothing,  *)
(* and taken up in one step here. What differs is who carries its messages and what a reader is, `Delivery`:          *)
(*                                                                                                                    *)
(* "pushed", tasks with checkpoints. A reader asks for splits, is sent them, reads, gives its part of a checkpoint at *)
(* a moment of its own, dies and comes back. A checkpoint is put together from these parts and what the enumerator    *)
(* knows by then; until it is complete the one before counts, and output counts when its checkpoint is complete.      *)
(*                                                                                                                    *)
(* "planned", a stream of micro-batches on Spark. Nothing is given to a reader that runs: slices of what waits are    *)
(* dealt out by a plan. A plan is a checkpoint, and Spark's offset: what is known, what waits and from where, and     *)
(* which slices are read before it. Spark writes it down, has the slices read by as many tasks as there are, and      *)
(* writes down that they are. What was written down and not done is done again, while splits grow and others appear.  *)
(*                                                                                                                    *)
(* Finding, what waits and going on from what was kept are the same actions. Apart are how tasks are given splits,    *)
(* take checkpoints and get back what a dead reader had; plans, what the service has by now and may throw away. Their *)
(* variables stand still elsewhere. A batch read on Spark is one plan, of all that is there.                          *)
(*                                                                                                                    *)
(* The driver dies as well, and goes on from what was kept, with as many readers as it likes. A split may be deleted  *)
(* and made anew under its name: what is known, and what readers have, are in different parts, and have to let go of  *)
(* it together. pillarbox.sources: link, split_coordinator, enumerating; the reader of connectors.redis_streams;      *)
(* pillarbox.spark: data_source, micro_batches.                                                                       *)
EXTENDS Naturals, Sequences, FiniteSets

CONSTANTS
    Delivery,   \* how splits come to readers: "pushed" or "planned"
    Splits,     \* how many there are; they are found in order
    Piece,      \* how many are found at a time, at most
    Length,     \* records of a split
    Readers,    \* at most; tasks of a micro-batch
    Crashes,    \* readers and drivers that die, plans that Spark drops: at most, together
    Remade,     \* whether split 2 is split 1 made anew: they have no end, and one name
    Limit,      \* planned: records of a micro-batch, at most
    AvailableNow, \* planned: whether the query reads what is there when it starts, and ends
    Latest,     \* planned: whether what the first look finds is read only from where it ends then
    Mutant

VARIABLES
    up, life,   \* the driver: whether it is there; which of its lives this is
    parallelism,
    known,      \* splits 1 to `known` have been taken up
    found,      \* what the discovery thread has found: in which life, which splits, what is known with them
    there,      \* if Remade: the one of the two splits that is there now, or 0
    ended,      \* if Remade: whether its name is to be forgotten
    pool,       \* splits that wait, each with the place from which to read
    registered, asked, told, \* what the enumerator holds of each reader: there, has asked, was told that no more come
    given,      \* of each reader: the splits it was sent since its part of the last complete checkpoint, in order
    (* who reads *)
    alive, left,\* whether it is there; whether it has gone because it was through
    heard,      \* how many of `given` have arrived; the others are under way
    has, out,   \* what it has still to read; what it has put out since its part of a checkpoint
    (* checkpoints *)
    part,       \* of each reader: its part of the checkpoint that is being taken
    staged,     \* a checkpoint that was put together and is not complete; an offset that is not written down
    last,       \* the last complete checkpoint; the last offset that is written down
    committed,
    (* planned *)
    arrived,    \* of each split: the records that it has by now
    gone,       \* and how many of them the service has been told are done, and throws away
    target,     \* with availableNow: how far to read each split
    over,       \* the query has ended
    phase,      \* of the micro-batch: idle, planned, logged, ran
    begin,      \* the offset before the last; the same when its micro-batch is done
    written,    \* what the sink has of the micro-batch that is not done
    reads,      \* history: what the runs of this micro-batch have read
    since,      \* history: where each split begins, once that is settled
    (* history *)
    twice, crashes

driver == <<up, life, parallelism>>
finding == <<known, found, there, ended>>
asking == <<registered, asked, told>>
reading == <<alive, left, heard, has, out>>
taking == <<part, staged, last>>
history == <<committed, twice>>
stream == <<arrived, gone, target, over, phase, begin, written, reads, since>>
vars == <<driver, finding, pool, asking, given, reading, taking, history, stream, crashes>>

Pushed == Delivery = "pushed"
Planned == Delivery = "planned"

Everyone == 1..Readers
Present == 1..parallelism
All == (1..Splits) \X (1..Length)
Wanted == IF Remade THEN {2} \X (1..Length) ELSE All
Range(s) == {s[i] : i \in DOMAIN s}
InOrder(splits) == CHOOSE s \in [1..Cardinality(splits) -> splits] : Range(s) = splits
From(s, n) == SubSeq(s, n, Len(s))
None == [taken |-> FALSE]
NoOne(value) == [r \in Everyone |-> value]
UnderWay(a) == Range(From(given[a], heard[a] + 1))
Waits(a) == has[a] = {} /\ UnderWay(a) = {}
OfAll(value) == [s \in 1..Splits |-> value]
Zero == [known |-> 0, waiting |-> {}, parts |-> NoOne({}), slices |-> {}]
Unsettled == IF Latest THEN OfAll(Length) ELSE OfAll(0)
(* What the discovery may see of a split.                                                                            *)
Visible(s) == IF AvailableNow THEN target[s] ELSE arrived[s]

TypeOK ==
    /\ Delivery \in {"pushed", "planned"}
    /\ known \in 0..(IF Remade THEN 1 ELSE Splits) /\ parallelism \in Everyone /\ there \in 0..2
    /\ \A f \in found : \A split \in f.splits : split[1] \in 1..Splits
    /\ \A a \in Everyone : heard[a] \in 0..Len(given[a]) /\ (alive[a] => registered[a])
    /\ committed \subseteq All
    /\ \A s \in 1..Splits : gone[s] <= arrived[s] /\ arrived[s] <= Length
    /\ phase \in {"idle", "planned", "logged", "ran"} /\ (Planned /\ phase = "idle" => begin = last)

Init ==
    /\ up = ~Planned /\ life = 1 /\ parallelism = Readers /\ known = 0 /\ found = {} /\ pool = {}
    /\ ended = FALSE /\ there = IF Remade THEN 1 ELSE 0
    /\ registered = NoOne(~Planned) /\ asked = NoOne("no") /\ told = NoOne(FALSE) /\ given = NoOne(<<>>)
    /\ alive = NoOne(Pushed) /\ left = NoOne(FALSE) /\ heard = NoOne(0) /\ has = NoOne({}) /\ out = NoOne({})
    /\ part = NoOne(None) /\ staged = None /\ last = Zero
    /\ arrived = OfAll(IF Planned THEN 0 ELSE Length) /\ gone = OfAll(0) /\ target = OfAll(0) /\ over = FALSE
    /\ phase = "idle" /\ begin = Zero /\ written = {} /\ reads = {} /\ since = Unsettled
    /\ committed = {} /\ twice = {} /\ crashes = 0

-----------------------------------------------------------------------------
(* Finding splits. The thread that does is given what is known, and gives back what is known then.                   *)
Discover ==
    /\ up /\ ~over /\ \A f \in found : f.life # life
    /\ IF Remade THEN known = 0 /\ there > 0 ELSE known < Splits
    /\ Mutant = "discovers once" => known = 0
    /\ LET from == IF Remade THEN there ELSE known + 1
           most == IF Remade THEN there ELSE IF known + Piece > Splits THEN Splits ELSE known + Piece
           (* Where to begin with what comes later nobody has to be told.                                            *)
           place(s) == IF Latest /\ known = 0 THEN Visible(s) ELSE 0
       IN  \E to \in from..most :
            LET knows == IF Remade THEN 1 ELSE to
            IN  /\ \A s \in from..to : Visible(s) > 0 \/ Latest
                /\ found' = found \cup {[life |-> life, splits |-> {<<s, place(s)>> : s \in from..to}, known |-> knows]}
                /\ known' = IF Mutant = "discovery changes what is known" THEN knows ELSE known
    /\ UNCHANGED <<driver, there, ended, pool, asking, given, reading, taking, history, stream, crashes>>

(* Splits and knowledge in one step. What was found in an earlier life is nothing to this one.                       *)
TakeUp(f) ==
    /\ up
    /\ IF f.life = life \/ Mutant = "an earlier life is believed"
       THEN LET half == Mutant = "taken up in two steps" /\ f.splits # {}
            IN  /\ pool' = pool \cup f.splits
                /\ known' = IF half THEN known ELSE f.known
                /\ found' = (found \ {f}) \cup IF half THEN {[f EXCEPT !.splits = {}]} ELSE {}
       ELSE found' = found \ {f} /\ UNCHANGED <<pool, known>>
    /\ UNCHANGED <<driver, there, ended, asking, given, reading, taking, history, stream, crashes>>

-----------------------------------------------------------------------------
(* Giving splits out. A request is kept until there is an answer to it. A reader may ask earlier than in Ask, when   *)
(* it has fetched all that it has.                                                                                   *)
AskOf(a) ==
    /\ alive[a] /\ asked[a] = "no" /\ ~told[a]
    /\ asked' = [asked EXCEPT ![a] = IF Mutant = "asks once" /\ pool = {} /\ known < Splits THEN "dropped" ELSE "yes"]
    /\ UNCHANGED <<driver, finding, pool, registered, told, given, reading, taking, history, stream, crashes>>
Ask(a) == Waits(a) /\ AskOf(a)

(* Who has died may be given splits for as long as nobody has noticed: they go back with the others.                   *)
Assign(r) ==
    /\ asked[r] = "yes" /\ (registered[r] \/ Mutant = "a request outlives its reader")
    /\ \E split \in pool :
        /\ pool' = pool \ {split}
        /\ given' = IF registered[r] THEN [given EXCEPT ![r] = Append(@, split)] ELSE given
    /\ asked' = [asked EXCEPT ![r] = "no"]
    /\ UNCHANGED <<driver, finding, registered, told, reading, taking, history, stream, crashes>>

(* Nothing waits, and nothing will be found: for somebody may die and leave it something to do.                       *)
NoMore(r) ==
    /\ up /\ asked[r] = "yes" /\ registered[r] /\ pool = {}
    /\ known = Splits \/ Mutant = "no more because nothing waits"
    /\ told' = [told EXCEPT ![r] = TRUE] /\ asked' = [asked EXCEPT ![r] = "no"]
    /\ UNCHANGED <<driver, finding, pool, registered, given, reading, taking, history, stream, crashes>>

(* A message arrives.                                                                                                *)
Hear(a) ==
    /\ alive[a] /\ heard[a] < Len(given[a])
    /\ has' = [has EXCEPT ![a] = @ \cup {given[a][heard[a] + 1]}]
    /\ heard' = [heard EXCEPT ![a] = @ + 1]
    /\ UNCHANGED <<driver, finding, pool, asking, given, alive, left, out, taking, history, stream, crashes>>

Read(a) ==
    /\ alive[a]
    /\ \E split \in has[a] :
        LET record == <<split[1], split[2] + 1>>
        IN  /\ Remade => split[1] = there /\ split[2] < Length
            /\ has' = [has EXCEPT ![a] = (@ \ {split}) \cup IF record[2] < Length \/ Remade THEN {record} ELSE {}]
            /\ out' = [out EXCEPT ![a] = @ \cup {record}]
            /\ twice' = twice \cup ({record} \cap out[a])
    /\ UNCHANGED <<driver, finding, pool, asking, given, alive, left, heard, taking, committed, stream, crashes>>

(* It was told that no more come, and has read what it had. Its output is still to be committed.                     *)
Leave(a) ==
    /\ alive[a] /\ Waits(a)
    /\ told[a]
    /\ alive' = [alive EXCEPT ![a] = FALSE] /\ left' = [left EXCEPT ![a] = TRUE]
    /\ UNCHANGED <<driver, finding, pool, asking, given, heard, has, out, taking, history, stream, crashes>>

-----------------------------------------------------------------------------
(* A split is deleted, at any moment: what nobody has read is lost, and no reader can help it; in a stream, when all  *)
(* of it is done. Later it is made anew under its name.                                                              *)
Delete ==
    /\ Remade /\ there = 1 /\ there' = 0
    /\ Planned => arrived[1] > 0 /\ \A i \in 1..arrived[1] : <<1, i>> \in committed
    /\ UNCHANGED <<driver, known, found, ended, pool, asking, given, reading, taking, history, stream, crashes>>
Make ==
    /\ Remade /\ there = 0 /\ there' = 2
    /\ UNCHANGED <<driver, known, found, ended, pool, asking, given, reading, taking, history, stream, crashes>>

(* The reader finds that it is gone, or another one: it will read what comes under the name from the beginning. In    *)
(* Redis it sees that it is gone, or the new ids are above the old place: to go on from there is to begin.            *)
StartAgain(r) ==
    /\ Remade /\ alive[r] /\ there # 1
    /\ \E split \in has[r] :
        /\ split[1] = 1
        /\ has' = [has EXCEPT ![r] = {<<2, IF Mutant = "goes on from the old place" THEN split[2] ELSE 0>>}]
    /\ UNCHANGED <<driver, finding, pool, asking, given, alive, left, heard, out, taking, history, stream, crashes>>

(* Or it waits no longer, and has read the split to its end. Nobody is told: that it is missing in a part says it.    *)
EndGone(r) ==
    /\ Remade /\ alive[r] /\ (there = 0 \/ Mutant = "ends what was made again")
    /\ \E split \in has[r] : split[1] = 2
    /\ has' = [has EXCEPT ![r] = {}]
    /\ known' = IF Mutant = "the name is forgotten at once" THEN 0 ELSE known
    /\ UNCHANGED <<driver, found, there, ended, pool, asking, given, alive, left, heard, out, taking, history, stream, crashes>>

-----------------------------------------------------------------------------
(* Checkpoints. First each reader gives its part: what it has, and how many of the splits it was sent that counts in. *)
Part(r) ==
    /\ Pushed /\ alive[r] /\ staged = None /\ part[r] = None
    /\ part' = [part EXCEPT ![r] = [taken |-> TRUE, heard |-> heard[r], has |-> has[r], out |-> out[r]]]
    /\ out' = [out EXCEPT ![r] = {}]
    /\ UNCHANGED <<driver, finding, pool, asking, given, alive, left, heard, has, staged, last, history, stream, crashes>>

(* Then the enumerator: what a part does not count in was not read before it, so it waits, wherever it is by now. Who *)
(* has left gives all that is not in an earlier part; who has died, what the last complete checkpoint has of it.     *)
PartOf(r) ==
    CASE left[r] /\ (part[r] = None \/ Mutant = "who has left has read everything") ->
            [taken |-> TRUE, heard |-> heard[r], has |-> {}, out |-> IF part[r] = None THEN out[r] ELSE part[r].out]
      [] ~registered[r] /\ part[r] = None -> [taken |-> TRUE, heard |-> 0, has |-> last.parts[r], out |-> {}]
      [] OTHER -> part[r]
Checkpoint ==
    /\ Pushed /\ up /\ staged = None /\ \A r \in Present : part[r] # None \/ left[r] \/ ~registered[r]
    /\ LET uncounted(r) ==
               IF Mutant = "what is under way is forgotten" THEN {}
               ELSE IF Mutant = "what was read by now counts" THEN UnderWay(r)
               ELSE Range(From(given[r], PartOf(r).heard + 1))
           early(r) == IF Mutant = "forgets before it is complete" /\ r \in Present THEN PartOf(r).heard ELSE 0
       IN  /\ staged' = [taken |-> TRUE, known |-> known,
                         parts |-> [r \in Everyone |-> IF r \in Present THEN PartOf(r) ELSE None],
                         waiting |-> pool \cup UNION {uncounted(r) : r \in Present}]
           /\ given' = [r \in Everyone |-> From(given[r], early(r) + 1)]
           /\ heard' = [r \in Everyone |-> heard[r] - early(r)]
    /\ part' = NoOne(None)
    /\ out' = [r \in Everyone |-> IF left[r] /\ part[r] = None THEN {} ELSE out[r]]
    /\ UNCHANGED <<driver, finding, pool, asking, alive, left, has, last, history, stream, crashes>>

(* From now on it is what counts: for output, and for what goes back when a reader dies. So the enumerator must hear  *)
(* of it before any reader is started again from it. What a reader had before it, or has been given, and neither has  *)
(* now nor is still to hear of, has been read to its end, and nobody goes back behind that: its name may be forgotten.*)
Complete ==
    /\ Pushed /\ up /\ staged # None
    /\ LET forgotten(r) ==
               IF r \notin Present \/ Mutant = "goes back although it is counted in"
                    \/ Mutant = "forgets before it is complete"
               THEN 0 ELSE staged.parts[r].heard
           partOut(r) == IF r \in Present THEN staged.parts[r].out ELSE {}
           heardOf(r) == staged.parts[r].heard
           later(r) == IF Mutant = "what is under way has ended" THEN {} ELSE Range(From(given[r], heardOf(r) + 1))
           without(r) == /\ last.parts[r] \cup Range(SubSeq(given[r], 1, heardOf(r))) # {}
                         /\ staged.parts[r].has \cup later(r) = {}
           forgets == Remade /\ Mutant # "an ended split stays known" /\ \E r \in Present : without(r)
       IN  /\ ended' = (ended \/ forgets)
           /\ last' = [known |-> staged.known, waiting |-> staged.waiting, slices |-> {},
                       parts |-> [r \in Everyone |-> IF r \in Present THEN staged.parts[r].has ELSE {}]]
           /\ given' = [r \in Everyone |-> From(given[r], forgotten(r) + 1)]
           /\ heard' = [r \in Everyone |-> IF heard[r] < forgotten(r) THEN 0 ELSE heard[r] - forgotten(r)]
           /\ committed' = committed \cup UNION {partOut(r) : r \in Present}
           /\ twice' = twice \cup UNION {partOut(r) \cap
                                            (committed \cup UNION {partOut(q) : q \in Present \ {r}}) : r \in Present}
    /\ staged' = None
    /\ UNCHANGED <<driver, known, found, there, pool, asking, alive, left, has, out, part, stream, crashes>>

(* Later, when no discovery is under way: what that has found began with more.                                        *)
Forget ==
    /\ up /\ ended /\ \A f \in found : f.life # life
    /\ known' = 0 /\ ended' = FALSE
    /\ UNCHANGED <<driver, found, there, pool, asking, given, reading, taking, history, stream, crashes>>

-----------------------------------------------------------------------------
(* What goes wrong.                                                                                                  *)
MayCrash == crashes < Crashes /\ crashes' = crashes + 1

(* One that has left may, too, as far as its output is not committed.                                                *)
ReaderDies(a) ==
    /\ (alive[a] \/ left[a]) /\ MayCrash
    /\ alive' = [alive EXCEPT ![a] = FALSE] /\ left' = [left EXCEPT ![a] = FALSE] /\ out' = [out EXCEPT ![a] = {}]
    /\ UNCHANGED <<driver, finding, pool, asking, given, heard, has, taking, history, stream>>

(* It is noticed. What the last complete checkpoint does not count in waits again, from where it was begun; the rest  *)
(* is for the reader when it comes back. A checkpoint that is not complete is given up: the output of the others stays *)
(* theirs, for the next one. Parts that they have given for that one stand.                                           *)
AddBack(r) ==
    /\ Pushed /\ registered[r] /\ ~alive[r] /\ ~left[r]
    /\ registered' = [registered EXCEPT ![r] = FALSE]
    /\ asked' = [asked EXCEPT ![r] = IF Mutant = "a request outlives its reader" THEN @ ELSE "no"]
    /\ told' = [told EXCEPT ![r] = Mutant = "told for ever" /\ @]
    /\ pool' = pool \cup (Range(given[r]) \ last.parts[r])
    /\ given' = [given EXCEPT ![r] =
           IF Mutant = "the next one hears what was under way" THEN From(@, heard[r] + 1) ELSE <<>>]
    /\ heard' = [heard EXCEPT ![r] = 0]
    /\ has' = [has EXCEPT ![r] = IF Mutant = "goes on where it was" THEN @ ELSE {}]
    /\ part' = IF Mutant = "a part outlives its reader" THEN part ELSE [part EXCEPT ![r] = None]
    /\ LET whole == staged = None \/ Mutant = "completes all the same"
       IN  /\ staged' = IF whole THEN staged ELSE None
           /\ out' = [q \in Everyone |->
                  IF q = r THEN {}
                  ELSE IF whole \/ staged.parts[q] = None THEN out[q] ELSE out[q] \cup staged.parts[q].out]
    /\ UNCHANGED <<driver, finding, alive, left, last, history, stream, crashes>>

(* It comes back, and is sent what it had.                                                                           *)
Return(r) ==
    /\ Pushed /\ up /\ r \in Present /\ ~registered[r]
    /\ registered' = [registered EXCEPT ![r] = TRUE] /\ alive' = [alive EXCEPT ![r] = TRUE]
    /\ asked' = [asked EXCEPT ![r] = "no"]
    /\ given' = [given EXCEPT ![r] = @ \o IF Mutant = "goes on where it was" THEN <<>> ELSE InOrder(last.parts[r])]
    /\ UNCHANGED <<driver, finding, pool, told, left, heard, has, out, taking, history, stream, crashes>>

(* With the driver everybody goes; what the discovery thread has found may still come.                                *)
DriverDies ==
    /\ up /\ ~over /\ MayCrash /\ up' = FALSE
    /\ pool' = {} /\ registered' = NoOne(FALSE) /\ asked' = NoOne("no") /\ told' = NoOne(FALSE)
    /\ given' = NoOne(<<>>) /\ alive' = NoOne(FALSE) /\ left' = NoOne(FALSE)
    /\ heard' = NoOne(0) /\ has' = NoOne({}) /\ out' = NoOne({})
    /\ part' = NoOne(None) /\ staged' = None
    /\ ended' = FALSE /\ phase' = IF phase \in {"logged", "ran"} THEN "logged" ELSE "idle"
    /\ UNCHANGED <<life, parallelism, known, found, there, last, history>>
    /\ UNCHANGED <<arrived, gone, target, over, begin, written, reads, since>>

(* All that was not read to its end waits, and is given to whoever asks. The parts of readers may be ahead of what was *)
(* known: a name of which there is no split has ended. A stream starts so for the first time, too.                   *)
Restore(n) ==
    /\ ~up /\ up' = TRUE /\ life' = life + 1 /\ parallelism' = n
    /\ LET kept == IF Mutant = "goes on from what is done" THEN begin ELSE last
           all == kept.waiting \cup UNION {kept.parts[r] : r \in Everyone}
           own == Mutant = "each reader its own"
           nothing == Remade /\ all = {} /\ Mutant # "known without a split"
       IN  /\ known' = IF nothing THEN 0 ELSE kept.known
           /\ pool' = IF own THEN last.waiting ELSE all
           /\ given' = IF own THEN [r \in Everyone |-> IF r <= n THEN InOrder(last.parts[r]) ELSE <<>>] ELSE given
           /\ last' = IF own \/ ~Pushed THEN last ELSE [last EXCEPT !.waiting = all, !.parts = NoOne({})]
    /\ registered' = IF Pushed THEN [r \in Everyone |-> r <= n] ELSE registered
    /\ alive' = IF Pushed THEN [r \in Everyone |-> r <= n] ELSE alive
    /\ target' = IF AvailableNow THEN arrived ELSE target
    /\ UNCHANGED <<found, there, ended, asked, told, left, heard, has, out, part, staged, history, crashes>>
    /\ UNCHANGED <<arrived, gone, over, phase, begin, written, reads, since>>

-----------------------------------------------------------------------------
(* Micro-batches.                                                                                                    *)
RecordsOf(slices) == UNION {{<<slice.split, i>> : i \in (slice.from + 1)..slice.to} : slice \in slices}
Memory == [known |-> known, waiting |-> pool]
(* How far a split has been read; one that is known and does not wait, to its end.                                   *)
ReadTo(offset, s) ==
    IF \E split \in offset.waiting : split[1] = s
    THEN (CHOOSE split \in offset.waiting : split[1] = s)[2]
    ELSE IF Remade THEN (IF s = 1 /\ there # 1 THEN arrived[s] ELSE 0)
    ELSE IF s <= offset.known THEN Length ELSE 0

(* A record comes. The first one makes the split, unless all are there from the beginning.                           *)
Arrive(s) ==
    /\ Planned /\ arrived[s] < Length /\ (Remade => there = s) /\ (~Remade /\ ~Latest /\ s > 1 => arrived[s - 1] > 0)
    /\ arrived' = [arrived EXCEPT ![s] = @ + 1]
    /\ UNCHANGED <<driver, finding, pool, asking, given, reading, taking, history, crashes>>
    /\ UNCHANGED <<gone, target, over, phase, begin, written, reads, since>>

(* A split that is deleted waits no more, and its name is not known: in one step, which counts with the next offset.  *)
(* What is being found began with more.                                                                              *)
LetGo ==
    /\ Planned /\ Remade /\ up /\ ~over
    /\ \E split \in pool :
        /\ (split[1] = 1 /\ there # 1)
           \/ (Mutant = "lets go of what waits" /\ split[2] = arrived[split[1]] /\ phase = "idle")
        /\ pool' = IF Mutant = "the split stays open" THEN pool ELSE pool \ {split}
        /\ known' = IF Mutant = "the name stays known" THEN known ELSE 0
        /\ found' = {f \in found : f.life # life}
    /\ UNCHANGED <<driver, there, ended, asking, given, reading, taking, history, stream, crashes>>

(* Slices of what waits, as many as the limit allows, and the offset behind them. If there is nothing to read, there  *)
(* is neither offset nor micro-batch, but for the first one: where splits begin is kept from then on.                    *)
Bound(s) == IF AvailableNow /\ Mutant # "reads what came since" THEN target[s] ELSE arrived[s]
Readable == {split \in pool : split[2] < Bound(split[1])}
Plan ==
    /\ Planned /\ up /\ ~over /\ phase = "idle"
    /\ \E cut \in [Readable -> 0..Length] :
        LET cuts == {split \in Readable : cut[split] > split[2]}
            slices == {[split |-> split[1], from |-> split[2], to |-> cut[split]] : split \in cuts}
            read == Cardinality(RecordsOf(slices))
            behind == {<<split[1], IF split \in Readable THEN cut[split] ELSE split[2]>> : split \in pool}
            open == {split \in behind : split[2] < Length \/ Remade}
            names == {split[1] : split \in cuts \cup last.waiting}
            kept == IF Mutant = "the offset has what is read only" THEN {split \in open : split[1] \in names} ELSE open
        IN  /\ \A split \in Readable : cut[split] \in split[2]..Bound(split[1])
            /\ slices # {} \/ (last = Zero /\ known > 0 /\ Mutant # "the start is decided again at each restart")
            /\ read <= Limit \/ (Mutant = "a limit for each split" /\ \A x \in slices : x.to - x.from <= Limit)
            /\ staged' = [known |-> known, waiting |-> kept, parts |-> NoOne({}), slices |-> slices]
            /\ pool' = open
    /\ phase' = "planned"
    /\ UNCHANGED <<driver, finding, asking, given, reading, part, last, history, crashes>>
    /\ UNCHANGED <<arrived, gone, target, over, begin, written, reads, since>>

(* Where splits begin is settled once Spark knows it, or thinks so.                                                  *)
Settled(offset) ==
    IF since # Unsettled \/ ~Latest THEN since
    ELSE [s \in 1..Splits |->
            IF \E slice \in offset.slices : slice.split = s
            THEN (CHOOSE slice \in offset.slices : slice.split = s).from
            ELSE ReadTo(offset, s)]
LogOffset ==
    /\ up /\ phase = "planned" /\ phase' = "logged"
    /\ last' = staged /\ begin' = last /\ reads' = {} /\ since' = Settled(staged)
    /\ staged' = IF Mutant = "the reader remembers the slices" THEN staged ELSE None
    /\ UNCHANGED <<driver, finding, pool, asking, given, reading, part, history, crashes>>
    /\ UNCHANGED <<arrived, gone, target, over, written>>

(* Spark is told that there is nothing to read. It has the first offset by then.                                     *)
FindNothing ==
    /\ Planned /\ up /\ ~over /\ phase = "idle" /\ known > 0 /\ Readable = {}
    /\ last # Zero \/ Mutant = "the start is decided again at each restart"
    /\ since' = Settled([known |-> known, waiting |-> pool, slices |-> {}])
    /\ UNCHANGED <<driver, finding, pool, asking, given, reading, taking, history, crashes>>
    /\ UNCHANGED <<arrived, gone, target, over, phase, begin, written, reads>>

(* What the offset says is read, and nothing else; however many tasks there are, each slice has one. The sink takes   *)
(* the output of all tasks or none, and what a run gives takes the place of what an earlier one has given.           *)
Dealt(slices, task) ==
    LET tasks == IF Mutant = "dealt out when it was planned" THEN Readers ELSE parallelism
    IN  {slice \in slices : (slice.split - 1) % tasks = task - 1}
Run ==
    /\ up /\ phase = "logged" /\ phase' = "ran"
    /\ LET now == {[split |-> s, from |-> ReadTo(begin, s), to |-> arrived[s]] : s \in 1..last.known}
           slices == CASE Mutant = "reads what is there" -> now
                       [] Mutant = "the reader remembers the slices" -> IF staged = None THEN {} ELSE staged.slices
                       [] OTHER -> last.slices
           dealt == UNION {RecordsOf(Dealt(slices, task)) : task \in Present}
           read == {record \in dealt : record[2] > gone[record[1]]}
       IN  written' = read /\ reads' = reads \cup {read}
    /\ UNCHANGED <<driver, finding, pool, asking, given, reading, taking, history, crashes>>
    /\ UNCHANGED <<arrived, gone, target, over, begin, since>>

(* Spark writes down that it is done.                                                                                *)
BatchDone ==
    /\ up /\ phase = "ran" /\ phase' = "idle"
    /\ committed' = committed \cup written /\ twice' = twice \cup (committed \cap written) /\ written' = {}
    /\ begin' = last
    /\ staged' = None
    /\ UNCHANGED <<driver, finding, pool, asking, given, reading, part, last, crashes>>
    /\ UNCHANGED <<arrived, gone, target, over, reads, since>>

(* Spark says so, and the service is told, sooner or later, or never.                                                *)
NotifyCommitted ==
    /\ Planned /\ up
    /\ LET done == IF phase = "logged" /\ Mutant = "said before it is run" THEN last ELSE begin
           said(s) == ReadTo(IF Mutant = "says what is planned" THEN Memory ELSE done, s)
       IN  /\ \E s \in 1..Splits : said(s) > gone[s]
           /\ gone' = [s \in 1..Splits |-> IF said(s) > gone[s] THEN said(s) ELSE gone[s]]
    /\ UNCHANGED <<driver, finding, pool, asking, given, reading, taking, history, crashes>>
    /\ UNCHANGED <<arrived, target, over, phase, begin, written, reads, since>>

(* Spark asks once more from the same offset, and the plan before it never was.                                      *)
Drop ==
    /\ up /\ phase = "planned" /\ MayCrash /\ phase' = "idle" /\ staged' = None /\ life' = life + 1
    /\ known' = IF Mutant = "goes on from memory" THEN known ELSE last.known
    /\ pool' = IF Mutant = "goes on from memory" THEN pool ELSE last.waiting
    /\ UNCHANGED <<up, parallelism, found, there, ended, asking, given, reading, part, last, history>>
    /\ UNCHANGED <<arrived, gone, target, over, begin, written, reads, since>>

(* With `availableNow`.                                                                                              *)
End ==
    /\ up /\ AvailableNow /\ ~over /\ phase = "idle"
    /\ \/ /\ \A s \in 1..Splits : ReadTo(Memory, s) >= target[s]
          /\ Mutant = "ends when all splits are whole" => pool = {}
       \/ Mutant = "ends after a micro-batch" /\ last # Zero
    /\ over' = TRUE
    /\ UNCHANGED <<driver, finding, pool, asking, given, reading, taking, history, crashes>>
    /\ UNCHANGED <<arrived, gone, target, phase, begin, written, reads, since>>

-----------------------------------------------------------------------------
Next ==
    \/ Discover \/ Checkpoint \/ Complete \/ Forget \/ DriverDies \/ Delete \/ Make
    \/ LetGo \/ Plan \/ FindNothing \/ LogOffset \/ Run \/ BatchDone \/ NotifyCommitted \/ Drop \/ End
    \/ \E f \in found : TakeUp(f)
    \/ \E a \in Everyone : Ask(a) \/ Hear(a) \/ Read(a) \/ Leave(a) \/ ReaderDies(a)
    \/ \E r \in Everyone :
        \/ Assign(r) \/ NoMore(r) \/ Part(r) \/ AddBack(r) \/ Return(r) \/ Restore(r) \/ StartAgain(r) \/ EndGone(r)
    \/ \E s \in 1..Splits : Arrive(s)
Spec == Init /\ [][Next]_vars

TakesUp == \E f \in found : TakeUp(f)
Restores == \E n \in Everyone : Restore(n)
FairSpec ==
    /\ Spec /\ WF_vars(Discover) /\ WF_vars(TakesUp) /\ WF_vars(Restores) /\ WF_vars(Checkpoint) /\ WF_vars(Complete)
    /\ WF_vars(Forget) /\ WF_vars(Delete) /\ WF_vars(Make)
    /\ WF_vars(Plan) /\ WF_vars(LogOffset) /\ WF_vars(Run) /\ WF_vars(BatchDone) /\ WF_vars(End) /\ WF_vars(LetGo)
    /\ \A s \in 1..Splits : WF_vars(Arrive(s))
    /\ \A a \in Everyone :
        WF_vars(Ask(a)) /\ WF_vars(Hear(a)) /\ WF_vars(Read(a)) /\ WF_vars(Leave(a))
    /\ \A r \in Everyone :
        /\ WF_vars(Assign(r)) /\ WF_vars(NoMore(r)) /\ WF_vars(Part(r)) /\ WF_vars(AddBack(r)) /\ WF_vars(Return(r))
        /\ WF_vars(StartAgain(r)) /\ WF_vars(EndGone(r))

-----------------------------------------------------------------------------
(* No record is twice in the committed output.                                                                        *)
NothingTwice == twice = {}

(* When all readers were told that no more come, have read what they had, and their output is committed, it is all.   *)
(* What the micro-batches that are done have passed is in the output.                                                 *)
Ended ==
    /\ Pushed /\ up /\ staged = None
    /\ \A r \in Present : left[r] /\ told[r] /\ Waits(r) /\ out[r] = {} /\ part[r] = None
NothingLost ==
    /\ Ended => committed = All
    /\ Planned => \A record \in All :
        record[2] > since[record[1]] /\ record[2] <= ReadTo(begin, record[1]) => record \in committed

(* A micro-batch that is done again gives the same.                                                                   *)
SameEachTime == Cardinality(reads) <= 1

(* Whenever everybody died: each record is committed, or to be read by somebody after what was kept last, or in a      *)
(* split that is still to be found; and only one of these.                                                            *)
RestoresExactly ==
    ~Remade => \A record \in All :
        LET in(splits) == Cardinality({split \in splits : split[1] = record[1] /\ split[2] < record[2]})
            places == {r \in Everyone : in(last.parts[r]) > 0}
            isDone == record \in committed \/ (phase \in {"logged", "ran"} /\ record \in RecordsOf(last.slices))
        IN  record[2] > since[record[1]] =>
                (IF isDone THEN 1 ELSE 0) + (IF record[1] > last.known THEN 1 ELSE 0)
                    + in(last.waiting) + Cardinality(places) = 1

(* The same of a split that is made anew: to be read by who has its name open, from the beginning if that one stands  *)
(* in the split before, or to be found where the name is closed. A name is open once at most, and known then.         *)
MadeAnewIsRead ==
    LET places(holds(_)) == Cardinality({split \in last.waiting : holds(split)})
                                + Cardinality({r \in Everyone : \E split \in last.parts[r] : holds(split)})
        Open(split) == TRUE
        open == places(Open)
    IN  Remade =>
            /\ open <= last.known
            /\ \A record \in All :
                LET Behind(split) == split[1] < record[1] \/ (split[1] = record[1] /\ split[2] < record[2])
                    toRead == places(Behind) + (IF open = 0 THEN 1 ELSE 0)
                IN  record[1] = 2 \/ there = 1 => (IF record \in committed THEN 1 ELSE 0) + toRead = 1

(* No split is found that waits; and where a stream has a split open, its name is known.                             *)
OneOfAName ==
    \A offset \in {Memory, last} :
        /\ offset.waiting # {} => offset.known > 0
        /\ \A split \in offset.waiting : Remade \/ split[1] <= offset.known
        /\ Cardinality({split[1] : split \in offset.waiting}) = Cardinality(offset.waiting)
        /\ Remade => Cardinality(offset.waiting) <= 1

(* Nobody is told that no more come while some are still to be found, and whatever goes back has a reader left.       *)
NoMoreIsTrue ==
    /\ \A r \in Present : told[r] /\ Pushed => known = Splits
    /\ up /\ pool # {} => \E r \in Present : ~told[r]

(* The service hears that something is done when Spark has it, not earlier.                                          *)
SaidIsDone == \A record \in All : record[2] <= gone[record[1]] => record \in committed \/ record[2] <= since[record[1]]

LimitHolds ==
    /\ phase = "planned" => Cardinality(RecordsOf(staged.slices)) <= Limit
    /\ Cardinality(RecordsOf(last.slices)) <= Limit

(* With `availableNow`: nothing that came later, and at the end all that was there.                                  *)
TargetHolds == up /\ AvailableNow => \A s \in 1..Splits : ReadTo(Memory, s) <= target[s]
EndsComplete == over => \A record \in All : record[2] <= target[record[1]] => record \in committed
Ends == <>over

EverythingIsRead == <>(Wanted \subseteq committed)
=============================================================================
