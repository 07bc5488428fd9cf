------------------------------ MODULE SeenFiles ------------------------------
(* Which files a stream has taken, where that lies in a folder beside the checkpoint. Each micro-batch takes some     *)
(* files; a segment with them is put into the folder, under a name that says what is in it, and takes the place of    *)
(* those before it, but larger ones; the offset, which Spark writes down afterwards, has the names of all. Nothing    *)
(* is deleted. The process may die at any step, Spark may drop a plan, and a query may go on from any offset that     *)
(* Spark still keeps. pillarbox.sources.connectors.file_discovery.                                                    *)
EXTENDS Naturals, Sequences, FiniteSets

CONSTANTS
    Files,          \* how many there will be; they are numbered by their times
    Offsets,        \* that Spark keeps
    Crashes,        \* crashes and dropped plans together, at most
    Mutant

VARIABLES
    there,          \* the files that are there by now
    up, phase,      \* of the micro-batch: idle, planned, saved
    known, slice,   \* memory: the files that were taken, and those of the micro-batch that is planned
    at,             \* memory: the segments that hold what is known, but for what is not saved
    folder,         \* the segments that are there, each the files in it
    log,            \* the offsets: the segments, and what the micro-batch has read
    crashes

memory == <<known, slice, at>>
vars == <<there, up, phase, memory, folder, log, crashes>>

Max(S) == CHOOSE x \in S : \A y \in S : y <= x
Members(segments) == {segments[i] : i \in 1..Len(segments)}

Loads(segments) == Members(segments) \subseteq folder
Loaded(segments) == UNION (IF Mutant = "one file" /\ folder # {} THEN folder ELSE Members(segments))

Kept == {i \in 1..Len(log) : i + Offsets > Len(log)}
ReadUpTo(i) == UNION {log[j].slice : j \in 1..i}

TypeOK ==
    /\ there \subseteq 1..Files /\ known \subseteq there /\ slice \subseteq known
    /\ phase \in {"idle", "planned", "saved"}

Init ==
    /\ there = {} /\ up = FALSE /\ phase = "idle" /\ known = {} /\ slice = {} /\ at = <<>>
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

RECURSIVE Merged(_, _)
Merged(before, own) ==
    IF before # <<>> /\ Cardinality(before[Len(before)]) <= Cardinality(own)
    THEN Merged(SubSeq(before, 1, Len(before) - 1), own \cup before[Len(before)])
    ELSE Append(before, own)
Following == Merged(at, known \ UNION Members(at))

(* The new segment is put into the folder, whole or not at all.                                                       *)
Write ==
    LET left == IF Mutant = "deletes what is merged" THEN folder \ Members(at) ELSE folder
    IN  /\ at' = Following
        /\ folder' = IF Mutant = "one file" THEN {known} ELSE left \cup Members(Following)
Save ==
    /\ up /\ phase = "planned" /\ phase' = "saved"
    /\ IF Mutant = "offset first" THEN at' = Following /\ UNCHANGED folder ELSE Write
    /\ UNCHANGED <<there, up, known, slice, log, crashes>>

(* Spark writes the offset down; the micro-batch is run, as often as it takes.                                       *)
LogOffset ==
    /\ up /\ phase = "saved" /\ phase' = "idle"
    /\ log' = Append(log, [segments |-> at, slice |-> slice]) /\ slice' = {}
    /\ UNCHANGED <<there, up, known, at, folder, crashes>>

(* With the mutant that writes the offset first.                                                                      *)
SaveLate ==
    /\ Mutant = "offset first" /\ up /\ phase = "idle" /\ ~Loads(at)
    /\ folder' = folder \cup Members(at)
    /\ UNCHANGED <<there, up, phase, memory, log, crashes>>

-----------------------------------------------------------------------------
MayCrash == crashes < Crashes /\ crashes' = crashes + 1
Crash ==
    /\ up /\ MayCrash /\ up' = FALSE /\ phase' = "idle" /\ known' = {} /\ slice' = {} /\ at' = <<>>
    /\ UNCHANGED <<there, folder, log>>

(* From the last offset that is written down; a plan that Spark has dropped is made anew by a restart as well.        *)
Restart ==
    /\ ~up /\ up' = TRUE
    /\ at' = IF log = <<>> THEN <<>> ELSE log[Len(log)].segments
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
EachIsFound == \A i \in Kept : Loads(log[i].segments) /\ Loaded(log[i].segments) = ReadUpTo(i)

EverythingIsRead == <>(ReadUpTo(Len(log)) = 1..Files)
=============================================================================
