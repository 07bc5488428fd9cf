---------------------------- MODULE SplitAssignment ----------------------------
(* Who reads which split of a source, in tasks with checkpoints. One thread of the enumerator knows what was found,   *)
(* what waits and who was given what; splits are found on another thread, by a step that changes nothing, and taken   *)
(* up in one step here. Readers ask for splits, read, give their part of a checkpoint at moments of their own, die    *)
(* and come back. A checkpoint is put together from these parts and what the enumerator knows by then; until it is    *)
(* complete the one before counts, and output counts when its checkpoint is complete. The driver dies as well, and    *)
(* goes on from the last complete checkpoint, with as many readers as it likes. A split may be deleted and made anew  *)
(* under its name: what is known, and what readers have, are in different parts, and have to let go of it together.   *)
(* pillarbox.sources: link, split_coordinator, enumerating; the reader of connectors.redis_streams.                   *)
EXTENDS Naturals, Sequences, FiniteSets

CONSTANTS
    Splits,     \* how many there are; they are found in order
    Piece,      \* how many are found at a time, at most
    Length,     \* records of a split
    Readers,    \* at most
    Crashes,    \* readers and drivers that die, at most
    Remade,     \* whether split 2 is split 1 made anew: they have no end, and one name
    Mutant

VARIABLES
    up, life,   \* the driver: whether it is there; which of its lives this is
    parallelism,
    known,      \* splits 1 to `known` have been taken up
    found,      \* what the discovery thread has found: in which life, from which split to which
    there,      \* if Remade: the one of the two splits that is there now, or 0
    ended,      \* if Remade: whether its name is to be forgotten
    pool,       \* splits that wait, each with the place from which to read
    registered, asked, told, \* what the enumerator holds of each reader: there, has asked, was told that no more come
    given,      \* of each reader: the splits it was sent since its part of the last complete checkpoint, in order
    alive, left,\* of each reader: whether it is there; whether it has gone because it was through
    heard,      \* how many of `given` have arrived; the others are under way
    has, out,   \* what it has still to read; what it has put out since its part of a checkpoint
    part,       \* its part of the checkpoint that is being taken
    staged,     \* a checkpoint that was put together and is not complete
    last,       \* the last complete checkpoint
    committed,
    (* history *)
    twice, crashes

driver == <<up, life, parallelism>>
finding == <<known, found, there, ended>>
asking == <<registered, asked, told>>
reading == <<alive, left, heard, has, out>>
taking == <<part, staged, last>>
history == <<committed, twice>>
vars == <<driver, finding, pool, asking, given, reading, taking, history, crashes>>

Everyone == 1..Readers
Present == 1..parallelism
All == (1..Splits) \X (1..Length)
Wanted == IF Remade THEN {2} \X (1..Length) ELSE All
Range(s) == {s[i] : i \in DOMAIN s}
InOrder(splits) == CHOOSE s \in [1..Cardinality(splits) -> splits] : Range(s) = splits
From(s, n) == SubSeq(s, n, Len(s))
None == [taken |-> FALSE]
NoOne(value) == [r \in Everyone |-> value]
UnderWay(r) == Range(From(given[r], heard[r] + 1))

TypeOK ==
    /\ known \in 0..(IF Remade THEN 1 ELSE Splits) /\ parallelism \in Everyone /\ there \in 0..2
    /\ \A f \in found : f.from > 0 /\ f.to <= Splits
    /\ \A r \in Everyone : heard[r] \in 0..Len(given[r]) /\ (alive[r] => registered[r])
    /\ committed \subseteq All

Init ==
    /\ up = TRUE /\ life = 1 /\ parallelism = Readers /\ known = 0 /\ found = {} /\ pool = {}
    /\ ended = FALSE /\ there = IF Remade THEN 1 ELSE 0
    /\ registered = NoOne(TRUE) /\ asked = NoOne("no") /\ told = NoOne(FALSE) /\ given = NoOne(<<>>)
    /\ alive = NoOne(TRUE) /\ left = NoOne(FALSE) /\ heard = NoOne(0) /\ has = NoOne({}) /\ out = NoOne({})
    /\ part = NoOne(None) /\ staged = None /\ last = [known |-> 0, waiting |-> {}, parts |-> NoOne({})]
    /\ committed = {} /\ twice = {} /\ crashes = 0

-----------------------------------------------------------------------------
(* Finding splits. The thread that does is given what is known, and gives back what is known then.                   *)
Discover ==
    /\ up /\ \A f \in found : f.life # life
    /\ IF Remade THEN known = 0 /\ there > 0 ELSE known < Splits
    /\ LET from == IF Remade THEN there ELSE known + 1
           to == IF Remade THEN there ELSE IF known + Piece > Splits THEN Splits ELSE known + Piece
       IN  /\ found' = found \cup {[life |-> life, from |-> from, to |-> to]}
           /\ known' = IF Mutant = "discovery changes what is known" THEN to ELSE known
    /\ UNCHANGED <<driver, there, ended, pool, asking, given, reading, taking, history, crashes>>

(* Splits and knowledge in one step. What was found in an earlier life is nothing to this one.                       *)
TakeUp(f) ==
    /\ up
    /\ IF f.life = life \/ Mutant = "an earlier life is believed"
       THEN LET splits == {<<s, 0>> : s \in f.from..f.to}
                half == Mutant = "taken up in two steps" /\ splits # {}
            IN  /\ pool' = pool \cup splits
                /\ known' = IF half THEN known ELSE IF Remade THEN 1 ELSE f.to
                /\ found' = (found \ {f}) \cup IF half THEN {[f EXCEPT !.from = f.to + 1]} ELSE {}
       ELSE found' = found \ {f} /\ UNCHANGED <<pool, known>>
    /\ UNCHANGED <<driver, there, ended, asking, given, reading, taking, history, crashes>>

-----------------------------------------------------------------------------
(* Giving splits out. A request is kept until there is an answer to it.                                              *)
Ask(r) ==
    /\ alive[r] /\ asked[r] = "no" /\ ~told[r] /\ has[r] = {} /\ UnderWay(r) = {}
    /\ asked' = [asked EXCEPT ![r] = IF Mutant = "asks once" /\ pool = {} /\ known < Splits THEN "dropped" ELSE "yes"]
    /\ UNCHANGED <<driver, finding, pool, registered, told, given, reading, taking, history, crashes>>

(* Who has died may be given splits for as long as nobody has noticed: they go back with the others.                 *)
Assign(r) ==
    /\ asked[r] = "yes" /\ (registered[r] \/ Mutant = "a request outlives its reader")
    /\ \E split \in pool :
        /\ pool' = pool \ {split}
        /\ given' = IF registered[r] THEN [given EXCEPT ![r] = Append(@, split)] ELSE given
    /\ asked' = [asked EXCEPT ![r] = "no"]
    /\ UNCHANGED <<driver, finding, registered, told, reading, taking, history, crashes>>

NoMore(r) ==
    /\ asked[r] = "yes" /\ registered[r] /\ pool = {}
    /\ known = Splits \/ Mutant = "no more because nothing waits"
    /\ told' = [told EXCEPT ![r] = TRUE] /\ asked' = [asked EXCEPT ![r] = "no"]
    /\ UNCHANGED <<driver, finding, pool, registered, given, reading, taking, history, crashes>>

(* A message arrives.                                                                                                *)
Hear(r) ==
    /\ alive[r] /\ heard[r] < Len(given[r])
    /\ has' = [has EXCEPT ![r] = @ \cup {given[r][heard[r] + 1]}]
    /\ heard' = [heard EXCEPT ![r] = @ + 1]
    /\ UNCHANGED <<driver, finding, pool, asking, given, alive, left, out, taking, history, crashes>>

Read(r) ==
    /\ alive[r]
    /\ \E split \in has[r] :
        LET record == <<split[1], split[2] + 1>>
        IN  /\ Remade => split[1] = there /\ split[2] < Length
            /\ has' = [has EXCEPT ![r] = (@ \ {split}) \cup IF record[2] < Length \/ Remade THEN {record} ELSE {}]
            /\ out' = [out EXCEPT ![r] = @ \cup {record}]
            /\ twice' = twice \cup ({record} \cap out[r])
    /\ UNCHANGED <<driver, finding, pool, asking, given, alive, left, heard, taking, committed, crashes>>

(* It was told that no more come, and has read what it had. Its output is still to be committed.                     *)
Leave(r) ==
    /\ alive[r] /\ told[r] /\ has[r] = {} /\ UnderWay(r) = {}
    /\ alive' = [alive EXCEPT ![r] = FALSE] /\ left' = [left EXCEPT ![r] = TRUE]
    /\ UNCHANGED <<driver, finding, pool, asking, given, heard, has, out, taking, history, crashes>>

-----------------------------------------------------------------------------
(* A split is deleted, at any moment: what nobody has read is lost. Later it is made anew under its name.             *)
Delete ==
    /\ Remade /\ there = 1 /\ there' = 0
    /\ UNCHANGED <<driver, known, found, ended, pool, asking, given, reading, taking, history, crashes>>
Make ==
    /\ Remade /\ there = 0 /\ there' = 2
    /\ UNCHANGED <<driver, known, found, ended, pool, asking, given, reading, taking, history, crashes>>

(* The reader finds that it is gone, or another one: it will read what comes under the name from the beginning. In    *)
(* Redis it sees that it is gone, or the new ids are above the old place: to go on from there is to begin.            *)
StartAgain(r) ==
    /\ Remade /\ alive[r] /\ there # 1
    /\ \E split \in has[r] :
        /\ split[1] = 1
        /\ has' = [has EXCEPT ![r] = {<<2, IF Mutant = "goes on from the old place" THEN split[2] ELSE 0>>}]
    /\ UNCHANGED <<driver, finding, pool, asking, given, alive, left, heard, out, taking, history, crashes>>

(* Or it waits no longer, and has read the split to its end. Nobody is told: that it is missing in a part says it.    *)
EndGone(r) ==
    /\ Remade /\ alive[r] /\ (there = 0 \/ Mutant = "ends what was made again")
    /\ \E split \in has[r] : split[1] = 2
    /\ has' = [has EXCEPT ![r] = {}]
    /\ known' = IF Mutant = "the name is forgotten at once" THEN 0 ELSE known
    /\ UNCHANGED <<driver, found, there, ended, pool, asking, given, alive, left, heard, out, taking, history, crashes>>

-----------------------------------------------------------------------------
(* Checkpoints. First each reader gives its part: what it has, and how many of the splits it was sent that counts in. *)
Part(r) ==
    /\ alive[r] /\ staged = None /\ part[r] = None
    /\ part' = [part EXCEPT ![r] = [taken |-> TRUE, heard |-> heard[r], has |-> has[r], out |-> out[r]]]
    /\ out' = [out EXCEPT ![r] = {}]
    /\ UNCHANGED <<driver, finding, pool, asking, given, alive, left, heard, has, staged, last, history, crashes>>

(* Then the enumerator: what a part does not count in was not read before it, so it waits, wherever it is by now. Who *)
(* has left gives all that is not in an earlier part; who has died, what the last complete checkpoint has of it.     *)
PartOf(r) ==
    CASE left[r] /\ (part[r] = None \/ Mutant = "who has left has read everything") ->
            [taken |-> TRUE, heard |-> heard[r], has |-> {}, out |-> IF part[r] = None THEN out[r] ELSE part[r].out]
      [] ~registered[r] /\ part[r] = None -> [taken |-> TRUE, heard |-> 0, has |-> last.parts[r], out |-> {}]
      [] OTHER -> part[r]
Checkpoint ==
    /\ up /\ staged = None /\ \A r \in Present : part[r] # None \/ left[r] \/ ~registered[r]
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
    /\ UNCHANGED <<driver, finding, pool, asking, alive, left, has, last, history, crashes>>

(* From now on it is what counts: for output, and for what goes back when a reader dies. So the enumerator must hear  *)
(* of it before any reader is started again from it. What a reader had before it, or has been given, and neither has  *)
(* now nor is still to hear of, has been read to its end, and nobody goes back behind that: its name may be forgotten.*)
Complete ==
    /\ up /\ staged # None
    /\ LET forgotten(r) ==
               IF r \notin Present \/ Mutant = "goes back although it is counted in"
                    \/ Mutant = "forgets before it is complete"
               THEN 0 ELSE staged.parts[r].heard
           output(r) == IF r \in Present THEN staged.parts[r].out ELSE {}
           heardOf(r) == staged.parts[r].heard
           later(r) == IF Mutant = "what is under way has ended" THEN {} ELSE Range(From(given[r], heardOf(r) + 1))
           without(r) == /\ last.parts[r] \cup Range(SubSeq(given[r], 1, heardOf(r))) # {}
                         /\ staged.parts[r].has \cup later(r) = {}
           forgets == Remade /\ Mutant # "an ended split stays known" /\ \E r \in Present : without(r)
       IN  /\ ended' = (ended \/ forgets)
           /\ last' = [known |-> staged.known, waiting |-> staged.waiting,
                       parts |-> [r \in Everyone |-> IF r \in Present THEN staged.parts[r].has ELSE {}]]
           /\ given' = [r \in Everyone |-> From(given[r], forgotten(r) + 1)]
           /\ heard' = [r \in Everyone |-> IF heard[r] < forgotten(r) THEN 0 ELSE heard[r] - forgotten(r)]
           /\ committed' = committed \cup UNION {output(r) : r \in Present}
           /\ twice' = twice \cup UNION {output(r) \cap
                                            (committed \cup UNION {output(q) : q \in Present \ {r}}) : r \in Present}
    /\ staged' = None
    /\ UNCHANGED <<driver, known, found, there, pool, asking, alive, left, has, out, part, crashes>>

(* Later, when no discovery is under way: what that has found began with more.                                        *)
Forget ==
    /\ up /\ ended /\ \A f \in found : f.life # life
    /\ known' = 0 /\ ended' = FALSE
    /\ UNCHANGED <<driver, found, there, pool, asking, given, reading, taking, history, crashes>>

-----------------------------------------------------------------------------
(* What goes wrong.                                                                                                  *)
MayCrash == crashes < Crashes /\ crashes' = crashes + 1

(* One that has left may, too, as far as its output is not committed.                                                *)
ReaderDies(r) ==
    /\ (alive[r] \/ left[r]) /\ MayCrash
    /\ alive' = [alive EXCEPT ![r] = FALSE] /\ left' = [left EXCEPT ![r] = FALSE] /\ out' = [out EXCEPT ![r] = {}]
    /\ UNCHANGED <<driver, finding, pool, asking, given, heard, has, taking, history>>

(* It is noticed. What the last complete checkpoint does not count in waits again, from where it was begun; the rest  *)
(* is for the reader when it comes back. A checkpoint that is being taken is given up: the output of the others stays *)
(* theirs, for the next one.                                                                                          *)
AddBack(r) ==
    /\ registered[r] /\ ~alive[r] /\ ~left[r]
    /\ registered' = [registered EXCEPT ![r] = FALSE]
    /\ asked' = [asked EXCEPT ![r] = IF Mutant = "a request outlives its reader" THEN @ ELSE "no"]
    /\ told' = [told EXCEPT ![r] = Mutant = "told for ever" /\ @]
    /\ pool' = pool \cup (Range(given[r]) \ last.parts[r])
    /\ given' = [given EXCEPT ![r] =
           IF Mutant = "the next one hears what was under way" THEN From(@, heard[r] + 1) ELSE <<>>]
    /\ heard' = [heard EXCEPT ![r] = 0]
    /\ has' = [has EXCEPT ![r] = IF Mutant = "goes on where it was" THEN @ ELSE {}]
    /\ LET parts == Mutant = "a part outlives its reader"
           whole == Mutant = "completes all the same"
           again(q, p) == IF p[q] = None THEN {} ELSE p[q].out
       IN  /\ part' = IF parts THEN part ELSE NoOne(None)
           /\ staged' = IF whole THEN staged ELSE None
           /\ out' = [q \in Everyone |->
                  IF q = r THEN {}
                  ELSE out[q] \cup (IF parts THEN {} ELSE again(q, part))
                              \cup (IF whole \/ staged = None THEN {} ELSE again(q, staged.parts))]
    /\ UNCHANGED <<driver, finding, alive, left, last, history, crashes>>

(* It comes back, and is sent what it had.                                                                           *)
Return(r) ==
    /\ up /\ r \in Present /\ ~registered[r]
    /\ registered' = [registered EXCEPT ![r] = TRUE] /\ alive' = [alive EXCEPT ![r] = TRUE]
    /\ asked' = [asked EXCEPT ![r] = "no"]
    /\ given' = [given EXCEPT ![r] = @ \o IF Mutant = "goes on where it was" THEN <<>> ELSE InOrder(last.parts[r])]
    /\ UNCHANGED <<driver, finding, pool, told, left, heard, has, out, taking, history, crashes>>

(* With the driver everybody goes; what the discovery thread has found may still come.                               *)
DriverDies ==
    /\ up /\ MayCrash /\ up' = FALSE
    /\ pool' = {} /\ registered' = NoOne(FALSE) /\ asked' = NoOne("no") /\ told' = NoOne(FALSE)
    /\ given' = NoOne(<<>>) /\ alive' = NoOne(FALSE) /\ left' = NoOne(FALSE)
    /\ heard' = NoOne(0) /\ has' = NoOne({}) /\ out' = NoOne({})
    /\ part' = NoOne(None) /\ staged' = None
    /\ ended' = FALSE
    /\ UNCHANGED <<life, parallelism, known, found, there, last, history>>

(* All that was not read to its end waits, and is given to whoever asks. The parts of readers may be ahead of what was *)
(* known: a name of which there is no split has ended.                                                                *)
Restore(n) ==
    /\ ~up /\ up' = TRUE /\ life' = life + 1 /\ parallelism' = n
    /\ LET all == last.waiting \cup UNION {last.parts[r] : r \in Everyone}
           own == Mutant = "each reader its own"
           nothing == Remade /\ all = {} /\ Mutant # "known without a split"
       IN  /\ known' = IF nothing THEN 0 ELSE last.known
           /\ pool' = IF own THEN last.waiting ELSE all
           /\ given' = IF own THEN [r \in Everyone |-> IF r <= n THEN InOrder(last.parts[r]) ELSE <<>>] ELSE given
           /\ last' = IF own THEN last ELSE [last EXCEPT !.waiting = all, !.parts = NoOne({})]
    /\ registered' = [r \in Everyone |-> r <= n] /\ alive' = [r \in Everyone |-> r <= n]
    /\ UNCHANGED <<found, there, ended, asked, told, left, heard, has, out, part, staged, history, crashes>>

Next ==
    \/ Discover \/ Checkpoint \/ Complete \/ Forget \/ DriverDies \/ Delete \/ Make
    \/ \E f \in found : TakeUp(f)
    \/ \E r \in Everyone :
        \/ Ask(r) \/ Assign(r) \/ NoMore(r) \/ Hear(r) \/ Read(r) \/ Part(r)
        \/ Leave(r) \/ ReaderDies(r) \/ AddBack(r) \/ Return(r) \/ Restore(r) \/ StartAgain(r) \/ EndGone(r)
Spec == Init /\ [][Next]_vars

TakesUp == \E f \in found : TakeUp(f)
Restores == \E n \in Everyone : Restore(n)
FairSpec ==
    /\ Spec /\ WF_vars(Discover) /\ WF_vars(TakesUp) /\ WF_vars(Restores) /\ WF_vars(Checkpoint) /\ WF_vars(Complete)
    /\ WF_vars(Forget)
    /\ WF_vars(Delete) /\ WF_vars(Make)
    /\ \A r \in Everyone :
        /\ WF_vars(Ask(r)) /\ WF_vars(Assign(r)) /\ WF_vars(NoMore(r)) /\ WF_vars(Hear(r)) /\ WF_vars(Read(r))
        /\ WF_vars(Part(r)) /\ WF_vars(Leave(r)) /\ WF_vars(AddBack(r)) /\ WF_vars(Return(r))
        /\ WF_vars(StartAgain(r)) /\ WF_vars(EndGone(r))

-----------------------------------------------------------------------------
(* No record is twice in the committed output.                                                                       *)
NothingTwice == twice = {}

(* When all readers were told that no more come, have read what they had, and their output is committed, it is all.   *)
Ended ==
    /\ up /\ staged = None
    /\ \A r \in Present :
        left[r] /\ told[r] /\ has[r] = {} /\ UnderWay(r) = {} /\ out[r] = {} /\ part[r] = None
NothingLost == Ended => committed = All

(* Whenever everybody died: each record is committed, or to be read by somebody after the last complete checkpoint,   *)
(* or in a split that is still to be found; and only one of these.                                                    *)
RestoresExactly ==
    ~Remade => \A record \in All :
        LET in(splits) == Cardinality({split \in splits : split[1] = record[1] /\ split[2] < record[2]})
            places == {r \in Everyone : in(last.parts[r]) > 0}
        IN  (IF record \in committed THEN 1 ELSE 0) + (IF record[1] > last.known THEN 1 ELSE 0)
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

(* Nobody is told that no more come while some are still to be found, and whatever goes back has a reader left.       *)
NoMoreIsTrue ==
    /\ \A r \in Present : told[r] => known = Splits
    /\ up /\ pool # {} => \E r \in Present : ~told[r]

EverythingIsRead == <>(Wanted \subseteq committed)
=============================================================================
