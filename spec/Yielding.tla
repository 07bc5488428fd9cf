------------------------------ MODULE Yielding ------------------------------
(* A task whose operator yields: what its yields run, who asks for deferrable mail, and why none waits in vain. *)
(*                                                                                                              *)
(* The operator begins a call for each element, into a queue of bounded size, in order: only the oldest leaves. *)
(* No service answers here, so calls end by their time-outs alone. While the queue is full the operator yields. *)
(* A mail of the timers fires some of what is due, any of it; what is left follows in another one.              *)
(* Meanwhile others submit work whose mail is deferrable. In the end the task waits for the timers that had     *)
(* begun, then, if an executor is shut down, for the submitted work, and runs what mail is left.                *)
(*                                                                                                              *)
(* `MailboxExecutor.yield_` is Yield, and with `deferrable=True` Ask; `MailboxProcessor` does Loop and Drain,   *)
(* the service of timers Ring, Quiesce and, in each of its mails, Fired.                                        *)
EXTENDS Naturals, Sequences, FiniteSets

CONSTANTS
    Calls,     \* elements of the input, each with a call
    Capacity,  \* of the queue
    Limit,     \* timers that one mail fires at most
    Works,     \* deferrable mails that others submit
    Mutant     \* the planted mistake, "none" for the specification itself

VARIABLES
    at,        \* where the task is: "loop", "blocked", "timers", "work", "draining", "done"
    mails,     \* what waits, oldest first: "timers", "work"
    queue,     \* calls in flight, oldest first
    begun,     \* how many calls have begun
    armed,     \* calls whose time-out is not due yet
    due,       \* and those whose time-out is, and has not fired
    alarm,     \* "set", or "rung": then it is silent until its mail has run
    submitted, \* how much work was submitted
    ran        \* remembers: the last mail that was run, where the task was then, and the place of the mail

vars == <<at, mails, queue, begun, armed, due, alarm, submitted, ran>>

None == [at |-> "nowhere", mail |-> "none", place |-> 1]

Deferrable ==
    {"work"} \cup (IF Mutant = "a time-out is deferrable" THEN {"timers"} ELSE {})

Range(q) == {q[i] : i \in DOMAIN q}
Without(q, i) == [k \in 1..(Len(q) - 1) |-> q[IF k < i THEN k ELSE k + 1]]

Init ==
    /\ at = "loop" /\ mails = <<>> /\ queue = <<>> /\ begun = 0
    /\ armed = {} /\ due = {} /\ alarm = "set" /\ submitted = 0
    /\ ran = None

-----------------------------------------------------------------------------
(* Mail. The place in the mailbox of the mail that who is there would run next; 0 if there is none for him.     *)

(* Whether a task that is there leaves deferrable mail where it is.                                             *)
Skips(where) ==
    CASE where = "blocked" -> Mutant # "a yield runs deferrable mail"
      [] where = "loop" -> Mutant = "the loop skips deferrable mail"
      [] where = "timers" -> FALSE
      [] where = "work" -> Mutant = "a shutdown does not ask"
      [] OTHER -> Mutant = "the end skips deferrable mail"

Accepted(where) == {i \in DOMAIN mails : ~(Skips(where) /\ mails[i] \in Deferrable)}
Place(where) ==
    IF Accepted(where) = {} THEN 0 ELSE CHOOSE i \in Accepted(where) : \A j \in Accepted(where) : i <= j

(* The calls of `those` have ended: what is oldest leaves the queue, as far as calls have ended.                *)
RECURSIVE Emitted(_, _)
Emitted(q, running) == IF q = <<>> \/ Head(q) \in running THEN q ELSE Emitted(Tail(q), running)

(* A mail of the timers has fired `those`. If more are due, another one waits for them; otherwise the alarm is   *)
(* set again.                                                                                                   *)
Fired(those, left) ==
    LET rest == due \ those
        more == CASE rest = {} \/ Mutant = "the rest has no mail" -> <<>>
                  [] Mutant = "each timer has a mail" -> [k \in 1..Cardinality(rest) |-> "timers"]
                  [] OTHER -> <<"timers">>
    IN  /\ due' = rest
        /\ mails' = left \o more
        /\ queue' = Emitted(queue, armed \cup rest)
        /\ alarm' = IF rest = {} /\ Mutant # "the alarm rings once" THEN "set" ELSE alarm

AtOnce == IF Cardinality(due) < Limit THEN Cardinality(due) ELSE Limit
Fires == {those \in SUBSET due : Cardinality(those) = AtOnce}

Run(where) ==
    LET place == Place(where)
        left == Without(mails, place)
    IN  /\ at = where /\ place # 0
        /\ ran' = [at |-> where, mail |-> mails[place], place |-> place]
        /\ IF mails[place] = "work" THEN mails' = left /\ UNCHANGED <<queue, due, alarm>>
           ELSE \E those \in Fires : Fired(those, left)
        /\ UNCHANGED <<begun, armed, submitted>>

-----------------------------------------------------------------------------
(* The task.                                                                                                    *)

Loop == Run("loop") /\ UNCHANGED at

(* The default action reads an element, and the operator blocks with it if the queue is full.                   *)
Begin ==
    /\ at \in {"loop", "blocked"} /\ begun < Calls /\ Len(queue) < Capacity
    /\ at' = "loop"
    /\ begun' = begun + 1
    /\ queue' = Append(queue, begun + 1)
    /\ armed' = armed \cup {begun + 1}
    /\ UNCHANGED <<mails, due, alarm, submitted, ran>>

Block ==
    /\ at = "loop" /\ begun < Calls /\ Len(queue) = Capacity
    /\ at' = "blocked"
    /\ UNCHANGED <<mails, queue, begun, armed, due, alarm, submitted, ran>>

Yield == Run("blocked") /\ UNCHANGED at

(* At the end what is not due is forgotten, what is due still fires; the alarm may have put its mail before.    *)
Quiesce ==
    /\ at = "loop" /\ begun = Calls
    /\ at' = "timers"
    /\ armed' = {} /\ queue' = Emitted(queue, due)
    /\ mails' = IF due # {} THEN Append(mails, "timers") ELSE mails
    /\ UNCHANGED <<begun, due, alarm, submitted, ran>>

(* Whoever waits for what deferrable mail does, submitted work, asks for it.                                    *)
Ask ==
    /\ (due # {} /\ Run("timers")) \/ ("work" \in Range(mails) /\ Run("work"))
    /\ UNCHANGED at

GoOn ==
    /\ \/ at = "timers" /\ due = {} /\ at' \in {"work", "draining"}
       \/ at = "work" /\ "work" \notin Range(mails) /\ at' = "draining"
       \/ at = "draining" /\ Place("draining") = 0 /\ at' = "done"
    /\ UNCHANGED <<mails, queue, begun, armed, due, alarm, submitted, ran>>

Drain == Run("draining") /\ UNCHANGED at

Task == Loop \/ Begin \/ Block \/ Yield \/ Quiesce \/ Ask \/ GoOn \/ Drain

-----------------------------------------------------------------------------
(* Others.                                                                                                      *)

Accepts == at \notin {"draining", "done"}

TimePasses ==
    /\ \E c \in armed : armed' = armed \ {c} /\ due' = due \cup {c}
    /\ UNCHANGED <<at, mails, queue, begun, alarm, submitted, ran>>

Ring ==
    /\ Accepts /\ alarm = "set" /\ due # {}
    /\ alarm' = "rung" /\ mails' = Append(mails, "timers")
    /\ UNCHANGED <<at, queue, begun, armed, due, submitted, ran>>

Submit ==
    /\ Accepts /\ at # "work" /\ submitted < Works
    /\ submitted' = submitted + 1 /\ mails' = Append(mails, "work")
    /\ UNCHANGED <<at, queue, begun, armed, due, alarm, ran>>

Next == Task \/ TimePasses \/ Ring \/ Submit
Spec == Init /\ [][Next]_vars
FairSpec == Spec /\ WF_vars(Task) /\ WF_vars(TimePasses) /\ WF_vars(Ring)

-----------------------------------------------------------------------------
TypeOK ==
    /\ at \in {"loop", "blocked", "timers", "work", "draining", "done"}
    /\ Range(mails) \subseteq {"timers", "work"}
    /\ Len(queue) <= Capacity /\ armed \cap due = {} /\ armed \cup due \subseteq 1..Calls

Waiting(kind) == Cardinality({i \in DOMAIN mails : mails[i] = kind})

(* However many timers are due, few mails of theirs wait: one, and one more at the end.                         *)
FewMails == Waiting("timers") <= 2

(* A yield leaves deferrable mail where it is.                                                                  *)
YieldsSkipDeferrable == ran.at = "blocked" => ran.mail \in {"timers"}

(* And nobody else does: everybody else runs what has waited longest.                                           *)
OthersSkipNothing == ran.at # "blocked" => ran.place = 1

(* Who waits for what deferrable mail does finds it, with nothing else left.                                    *)
WaitersFind == at = "work" /\ mails # <<>> => Place("work") # 0

(* Mail that is left at the end is run.                                                                         *)
EndLeavesNothing == at = "done" => mails = <<>>

(* An operator that is blocked gets its time-outs, all of them, whatever else is deferred.                      *)
BlockedGoesOn == (at = "blocked") ~> (at # "blocked")

(* The task comes to its end: whoever waits is served.                                                          *)
EverybodyEnds == <>(at = "done")
=============================================================================
