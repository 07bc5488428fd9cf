--------------------------- MODULE ServedLease ----------------------------
(* One server a host for all its processes: models/served.py, and models/supervisor.py, which watches the server.   *)
(* Three locks of files, which the system gives back when the last process that has one is dead:                    *)
(*   holders     shared by all who use the server; exclusive for a supervisor that ends it;                        *)
(*   server      of whoever starts a supervisor, who hands it on to that, and that to its server;                  *)
(*   alive       of the supervisor alone.                                                                          *)
(* And a file that says what has become of the server, written by the supervisor.                                  *)
(* How long a server outlasts its last holder is no matter here: it may end as soon as there is none.              *)
EXTENDS Integers, FiniteSets

CONSTANTS
    Processes,   \* that use the server
    Supervisors, \* that may be started: 1..n, one after the other
    Comes,       \* times that processes come, at most
    Kills,       \* of processes and supervisors, at most
    Deaths,      \* of the server by itself, at most
    Restarts,    \* that a supervisor makes
    Mutant

VARIABLES
    at,          \* of each process: "out", "holds", "starts", "waits", "uses", "refused" or "dead"
    phase,       \* of each supervisor: "no", "starting", "ready", "failed", "leaving", "ending" or "gone"
    server,      \* of each supervisor: whether its server runs
    told,        \* what the file says: "nothing", "ready" or "failed"
    exclusive,   \* the supervisor that has the lock of the holders for itself; 0 for none
    restarts, comes, kills, deaths,
    murdered     \* whether a supervisor was killed

vars == <<at, phase, server, told, exclusive, restarts, comes, kills, deaths, murdered>>
counts == <<restarts, comes, kills, deaths, murdered>>

Watching == {"starting", "ready", "failed", "leaving", "ending"}
Holders == {p \in Processes : at[p] \in {"holds", "starts", "waits", "uses"}}
Alive == \E s \in Supervisors : phase[s] \in Watching
Started == {s \in Supervisors : phase[s] # "no"}

(* The lock of the server is had by who starts a supervisor, by that, and by its server.                           *)
Locked ==
    \/ \E p \in Processes : at[p] = "starts"
    \/ Alive
    \/ Mutant # "server lacks the lock" /\ \E s \in Supervisors : server[s]

Init ==
    /\ at = [p \in Processes |-> "out"]
    /\ phase = [s \in Supervisors |-> "no"] /\ server = [s \in Supervisors |-> FALSE]
    /\ told = "nothing" /\ exclusive = 0
    /\ restarts = 0 /\ comes = 0 /\ kills = 0 /\ deaths = 0 /\ murdered = FALSE

(* -- processes ---------------------------------------------------------------------------------------------------- *)

(* The lock of the holders first: from here on no supervisor ends its server.                                      *)
Come(p) ==
    /\ at[p] = "out" /\ comes < Comes /\ exclusive = 0
    /\ at' = [at EXCEPT ![p] = "holds"] /\ comes' = comes + 1
    /\ UNCHANGED <<phase, server, told, exclusive, restarts, kills, deaths, murdered>>

(* Then the lock of the server, without waiting: who gets it finds no server, and starts a supervisor.             *)
Take(p) ==
    /\ at[p] = "holds" /\ (~Locked \/ Mutant = "starts without the lock")
    /\ Cardinality(Started) < Cardinality(Supervisors)
    /\ at' = [at EXCEPT ![p] = "starts"]
    /\ UNCHANGED <<phase, server, told, exclusive, counts>>

Find(p) ==
    /\ at[p] = "holds" /\ Locked
    /\ at' = [at EXCEPT ![p] = "waits"]
    /\ UNCHANGED <<phase, server, told, exclusive, counts>>

(* What an earlier supervisor has told is deleted before the next one begins.                                      *)
Spawn(p) ==
    /\ at[p] = "starts"
    /\ LET s == Cardinality(Started) + 1 IN
        /\ s \in Supervisors
        /\ phase' = [phase EXCEPT ![s] = "starting"]
    /\ told' = IF Mutant = "what was told stays" THEN told ELSE "nothing"
    /\ restarts' = 0
    /\ at' = [at EXCEPT ![p] = "waits"]
    /\ UNCHANGED <<server, exclusive, comes, kills, deaths, murdered>>

See(p) ==
    /\ at[p] = "waits" /\ told # "nothing" /\ (Alive \/ Mutant = "believes the dead")
    /\ at' = [at EXCEPT ![p] = IF told = "ready" THEN "uses" ELSE "refused"]
    /\ UNCHANGED <<phase, server, told, exclusive, counts>>

(* Its supervisor was killed: it begins again.                                                                     *)
LookAgain(p) ==
    /\ at[p] = "waits" /\ ~Locked /\ Mutant # "waits for the dead"
    /\ at' = [at EXCEPT ![p] = "holds"]
    /\ UNCHANGED <<phase, server, told, exclusive, counts>>

Leave(p) ==
    /\ at[p] \in {"uses", "refused"}
    /\ at' = [at EXCEPT ![p] = "out"]
    /\ UNCHANGED <<phase, server, told, exclusive, counts>>

Kill(p) ==
    /\ at[p] \in {"holds", "starts", "waits", "uses"} /\ kills < Kills
    /\ at' = [at EXCEPT ![p] = "dead"] /\ kills' = kills + 1
    /\ UNCHANGED <<phase, server, told, exclusive, restarts, comes, deaths, murdered>>

(* -- supervisors -------------------------------------------------------------------------------------------------- *)

Launch(s) ==
    /\ phase[s] = "starting" /\ ~server[s]
    /\ server' = [server EXCEPT ![s] = TRUE]
    /\ UNCHANGED <<at, phase, told, exclusive, counts>>

Ready(s) ==
    /\ phase[s] = "starting" /\ server[s]
    /\ phase' = [phase EXCEPT ![s] = "ready"] /\ told' = "ready"
    /\ UNCHANGED <<at, server, exclusive, counts>>

(* The server dies by itself. Its supervisor starts it again, a few times, if it was ready once; or says that it     *)
(* cannot be had, for as long as somebody asks, so that not each of them starts it in vain.                       *)
Die(s) ==
    /\ server[s] /\ phase[s] \in {"starting", "ready"} /\ deaths < Deaths
    /\ deaths' = deaths + 1 /\ server' = [server EXCEPT ![s] = FALSE]
    /\ \E again \in BOOLEAN :
        /\ again => restarts < Restarts
        /\ restarts' = IF again THEN restarts + 1 ELSE restarts
        /\ phase' = [phase EXCEPT ![s] = IF again THEN "starting" ELSE "failed"]
        /\ told' = IF again THEN "nothing" ELSE "failed"
    /\ UNCHANGED <<at, exclusive, comes, kills, murdered>>

(* Who gets the lock of the holders for itself knows that there are none, and that none comes.                     *)
End(s) ==
    /\ phase[s] \in {"starting", "ready", "failed"} /\ Holders = {} /\ exclusive = 0
    /\ Mutant \notin {"never ends", "looks, then ends"}
    /\ exclusive' = s /\ phase' = [phase EXCEPT ![s] = "ending"]
    /\ UNCHANGED <<at, server, told, counts>>

(* Mutant: it looks, lets go of the lock, and ends later.                                                          *)
Look(s) ==
    /\ Mutant = "looks, then ends" /\ phase[s] \in {"starting", "ready", "failed"} /\ Holders = {}
    /\ phase' = [phase EXCEPT ![s] = "leaving"]
    /\ UNCHANGED <<at, server, told, exclusive, counts>>

EndLate(s) ==
    /\ phase[s] = "leaving"
    /\ phase' = [phase EXCEPT ![s] = "ending"]
    /\ UNCHANGED <<at, server, told, exclusive, counts>>

Stop(s) ==
    /\ phase[s] = "ending" /\ server[s]
    /\ server' = [server EXCEPT ![s] = FALSE]
    /\ UNCHANGED <<at, phase, told, exclusive, counts>>

(* Both locks go with the process, when its server is gone.                                                        *)
Exit(s) ==
    /\ phase[s] = "ending" /\ ~server[s]
    /\ phase' = [phase EXCEPT ![s] = "gone"]
    /\ exclusive' = IF exclusive = s THEN 0 ELSE exclusive
    /\ UNCHANGED <<at, server, told, counts>>

(* Nothing of it is left but its server, for a moment, and what it has told.                                       *)
Murder(s) ==
    /\ phase[s] \in Watching /\ kills < Kills
    /\ phase' = [phase EXCEPT ![s] = "gone"] /\ kills' = kills + 1 /\ murdered' = TRUE
    /\ exclusive' = IF exclusive = s THEN 0 ELSE exclusive
    /\ UNCHANGED <<at, server, told, restarts, comes, deaths>>

(* The system kills a server whose supervisor is dead.                                                             *)
Follow(s) ==
    /\ phase[s] = "gone" /\ server[s]
    /\ server' = [server EXCEPT ![s] = FALSE]
    /\ UNCHANGED <<at, phase, told, exclusive, counts>>

OfProcess(p) == Come(p) \/ Take(p) \/ Find(p) \/ Spawn(p) \/ See(p) \/ LookAgain(p) \/ Leave(p) \/ Kill(p)
OfSupervisor(s) ==
    \/ Launch(s) \/ Ready(s) \/ Die(s) \/ End(s) \/ Look(s) \/ EndLate(s) \/ Stop(s) \/ Exit(s) \/ Murder(s)
    \/ Follow(s)

Next == (\E p \in Processes : OfProcess(p)) \/ (\E s \in Supervisors : OfSupervisor(s))

Spec == Init /\ [][Next]_vars

Fairness ==
    /\ \A p \in Processes :
        /\ WF_vars(Take(p)) /\ WF_vars(Find(p)) /\ WF_vars(Spawn(p)) /\ WF_vars(See(p)) /\ WF_vars(LookAgain(p))
    /\ \A s \in Supervisors :
        /\ WF_vars(Launch(s)) /\ WF_vars(Ready(s)) /\ WF_vars(End(s)) /\ WF_vars(Stop(s)) /\ WF_vars(Exit(s))
        /\ WF_vars(Follow(s))

FairSpec == Spec /\ Fairness

TypeOK ==
    /\ at \in [Processes -> {"out", "holds", "starts", "waits", "uses", "refused", "dead"}]
    /\ phase \in [Supervisors -> {"no", "gone"} \cup Watching]
    /\ server \in [Supervisors -> BOOLEAN] /\ told \in {"nothing", "ready", "failed"}
    /\ exclusive \in {0} \cup Supervisors

(* Whatever is killed, and when.                                                                                   *)
AtMostOneServer == Cardinality({s \in Supervisors : server[s]}) <= 1
NeverEndedWhileHeld == \A s \in Supervisors : phase[s] = "ending" => Holders = {}
(* Who begins to use a server has one that has answered, and that is watched.                                      *)
UsesWhatIsReady == [][\A p \in Processes :
    at[p] = "waits" /\ at'[p] = "uses" => \E s \in Supervisors : phase[s] = "ready"]_vars
(* And it is watched until all have left.                                                                          *)
Watched == murdered \/ ((\E p \in Processes : at[p] = "uses") => Alive)

(* Without holders the server ends, however they went.                                                             *)
EndsUnheld == <>[](Holders = {}) => <>[](\A s \in Supervisors : ~server[s])
(* Who comes learns of a server that is ready, or of one that cannot be. The bound on supervisors is the model's.  *)
EverybodyLearns == \A p \in Processes :
    at[p] \in {"holds", "starts", "waits"} ~>
        (at[p] \notin {"holds", "starts", "waits"} \/ Cardinality(Started) = Cardinality(Supervisors))
=============================================================================
