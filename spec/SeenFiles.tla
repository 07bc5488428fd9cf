------------------------------ MODULE SeenFiles ------------------------------
(* Which files a stream has taken, where that lies in a folder beside the checkpoint. Each micro-batch takes some     *)
(* files; a segment with them is put into the folder, under a name that says what is in it and behind which segment   *)
(* it comes; the offset, which Spark writes down afterwards, has that name alone. After so many segments the next one *)
(* holds all that were taken, and begins a generation; old generations are deleted. The process may die at any step,  *)
(* Spark may drop a plan, and a query may go on from any offset that Spark still keeps.                               *)
(* pillarbox.sources.connectors.files: seen, discovery.                                                               *)
EXTENDS Naturals, Sequences, FiniteSets

CONSTANTS
    Files,          \* how many there will be; they are numbered by their times
    Chain,          \* segments of a generation
    Generations,    \* that are kept, the one at hand included
    Offsets,        \* that Spark keeps
    Crashes,        \* crashes and dropped plans together, at most
    Mutant

VARIABLES
    there,          \* the files that are there by now
    up, phase,      \* of the micro-batch: idle, planned, saved
    known, slice,   \* memory: the files that were taken, and those of the micro-batch that is planned
    at,             \* memory: the segment that holds what is known, but for what is not saved
    folder,         \* the segments
    log,            \* the offsets: the segment, and what the micro-batch has read
    crashes

memory == <<known, slice, at>>
vars == <<there, up, phase, memory, folder, log, crashes>>

None == [generation |-> 0, number |-> 0, own |-> {}, before |-> <<>>]
Max(S) == CHOOSE x \in S : \A y \in S : y <= x

(* What a segment stands for: its own files and those of the segments before it, as far as they are there.            *)
RECURSIVE Chained(_)
Chained(segment) == IF segment.before = <<>> THEN {segment} ELSE {segment} \cup Chained(segment.before[1])
Stands(segment) == UNION {each.own : each \in Chained(segment)}
Loads(segment) ==
    segment = None \/ (Chained(segment) \ {None}) \subseteq folder
Loaded(segment) ==
    IF Mutant = "one file" /\ folder # {} THEN UNION {each.own : each \in folder} ELSE Stands(segment)

Kept == {i \in 1..Len(log) : i + Offsets > Len(log)}
ReadUpTo(i) == UNION {log[j].slice : j \in 1..i}

TypeOK ==
    /\ there \subseteq 1..Files /\ known \subseteq there /\ slice \subseteq known
    /\ phase \in {"idle", "planned", "saved"}

Init ==
    /\ there = {} /\ up = FALSE /\ phase = "idle" /\ known = {} /\ slice = {} /\ at = None
    /\ folder = {} /\ log = <<>> /\ crashes = 0

-----------------------------------------------------------------------------
(* A file comes, whatever its time.                                                                                  *)
Appear(f) ==
    /\ f \notin there /\ there' = there \cup {f}
    /\ UNCHANGED <<up, phase, memory, folder, log, crashes>>

(* Discovery takes files that are not known.                                                                         *)
Take ==
    /\ up /\ phase = "idle"
    /\ \E new \in SUBSET (there \ known) :
        /\ new # {}
        /\ (Mutant = "by time" /\ known # {}) => \A f \in new : f > Max(known)
        /\ known' = known \cup new /\ slice' = new
    /\ phase' = "planned"
    /\ UNCHANGED <<there, up, at, folder, log, crashes>>

Following(all) ==
    IF at = None \/ at.number = Chain
    THEN [generation |-> at.generation + 1, number |-> 1, own |-> all, before |-> <<>>]
    ELSE [generation |-> at.generation, number |-> at.number + 1, own |-> all \ Stands(at), before |-> <<at>>]

(* The segment is put into the folder, whole or not at all; with the first one of a generation old ones are deleted. *)
Write ==
    LET new == Following(known)
        kept == IF Mutant = "keeps one generation" THEN 1 ELSE Generations
        old == {each \in folder : new.number = 1 /\ each.generation + kept <= new.generation}
    IN  /\ at' = new
        /\ folder' = IF Mutant = "one file" THEN {[None EXCEPT !.own = known]} ELSE (folder \ old) \cup {new}
Save ==
    /\ up /\ phase = "planned" /\ phase' = "saved"
    /\ IF Mutant = "offset first" THEN at' = Following(known) /\ UNCHANGED folder ELSE Write
    /\ UNCHANGED <<there, up, known, slice, log, crashes>>

(* Spark writes the offset down; the micro-batch is run, as often as it takes.                                       *)
LogOffset ==
    /\ up /\ phase = "saved" /\ phase' = "idle"
    /\ log' = Append(log, [segment |-> at, slice |-> slice]) /\ slice' = {}
    /\ UNCHANGED <<there, up, known, at, folder, crashes>>

(* With the mutant that writes the offset first.                                                                      *)
SaveLate ==
    /\ Mutant = "offset first" /\ up /\ phase = "idle" /\ at # None /\ at \notin folder
    /\ folder' = folder \cup {at}
    /\ UNCHANGED <<there, up, phase, memory, log, crashes>>

-----------------------------------------------------------------------------
MayCrash == crashes < Crashes /\ crashes' = crashes + 1
Crash ==
    /\ up /\ MayCrash /\ up' = FALSE /\ phase' = "idle" /\ known' = {} /\ slice' = {} /\ at' = None
    /\ UNCHANGED <<there, folder, log>>

(* From the last offset that is written down; a plan that Spark has dropped is made anew by a restart as well.        *)
Restart ==
    /\ ~up /\ up' = TRUE
    /\ at' = IF log = <<>> THEN None ELSE log[Len(log)].segment
    /\ known' = IF Mutant = "knows nothing at a start" THEN {} ELSE Loaded(at')
    /\ UNCHANGED <<there, phase, slice, folder, log, crashes>>

Next == Take \/ Save \/ LogOffset \/ SaveLate \/ Crash \/ Restart \/ \E f \in 1..Files : Appear(f)
Spec == Init /\ [][Next]_vars
FairSpec ==
    /\ Spec /\ WF_vars(Take) /\ WF_vars(Save) /\ WF_vars(LogOffset) /\ WF_vars(Restart)
    /\ \A f \in 1..Files : WF_vars(Appear(f))

-----------------------------------------------------------------------------
(* No file is in two micro-batches.                                                                                  *)
NothingTwice == \A i, j \in 1..Len(log) : i # j => log[i].slice \cap log[j].slice = {}

(* Whichever offset that Spark keeps a query goes on from, it finds there what was read up to it, and nothing else.   *)
EachIsFound == \A i \in Kept : Loads(log[i].segment) /\ Loaded(log[i].segment) = ReadUpTo(i)

EverythingIsRead == <>(ReadUpTo(Len(log)) = 1..Files)
=============================================================================
