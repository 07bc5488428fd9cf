----------------------------- MODULE Collector -----------------------------
(* One row whose function is handed a collector, from its first attempt to its outcome. Each attempt has a collector *)
(* of its own, which any number of threads may complete or fail at any time, also when nobody listens any more. The   *)
(* completion that comes first puts one mail with its result; only the task, which runs the mail, ends the attempt,   *)
(* so that its deadline, its slot and the ledger come before the entry of the result queue: what ends there is        *)
(* ResultQueue!Complete. kernel/collector.pyx, pillarbox.aio.runners.                                              *)
EXTENDS Naturals, Sequences, FiniteSets

CONSTANTS
    Attempts,   \* of the row, at most
    Callers,    \* threads that complete or fail each attempt, each once
    Closes,     \* whether the operator may end before the row has its outcome
    Mutant

VARIABLES
    row,        \* "waiting" for its next attempt, "running", "done", or "dropped": the operator ended before
    attempt,    \* attempts begun
    armed,      \* whether the deadline of the present attempt is armed
    word,       \* of each collector: "unmade", "waiting", "revoked" when its attempt has ended without it, "taken"
    calls,      \* of each collector, its callers
    mails,      \* completions on their way to the task
    box,        \* "open", "quiesced" or "closed"
    outcome,    \* <<>>, or <<attempt, caller>>, where caller 0 is the time-out
    first,      \* history: the outcome that came first
    ended,      \* history: attempts that have ended, in whatever way
    puts,       \* history: mails put by the callers of each attempt
    late,       \* completions that were counted as late
    decided     \* history: completions that have ended an attempt

vars == <<row, attempt, armed, word, calls, mails, box, outcome, first, ended, puts, late, decided>>

All == (1..Attempts) \X (1..Callers)

\* A caller: `at` says how far it is, `first` what it found, `answer` what complete or fail has returned, `stale`
\* whether it came when its attempt had ended.
Init ==
    /\ row = "waiting" /\ attempt = 0 /\ armed = FALSE
    /\ word = [a \in 1..Attempts |-> "unmade"]
    /\ calls = [c \in All |-> [at |-> "calling", found |-> "nothing", answer |-> FALSE, stale |-> FALSE]]
    /\ mails = <<>> /\ box = "open" /\ outcome = <<>> /\ first = <<>> /\ ended = {}
    /\ puts = [a \in 1..Attempts |-> 0] /\ late = 0 /\ decided = 0

------------------------------------------------------------------------------
(* The task. *)

Begin ==
    /\ row = "waiting" /\ box = "open" /\ attempt < Attempts
    /\ attempt' = attempt + 1 /\ row' = "running" /\ armed' = TRUE
    /\ word' = [word EXCEPT ![attempt + 1] = "waiting"]
    /\ UNCHANGED <<calls, mails, box, outcome, first, ended, puts, late, decided>>

Settled(by) == /\ outcome' = <<attempt, by>> /\ first' = IF first = <<>> THEN outcome' ELSE first

\* A mail is run. It ends the attempt that it is of, if that one still runs: with a result, or with a failure that
\* is tried again or not.
RunMail ==
    /\ mails # <<>> /\ box # "closed"
    /\ mails' = Tail(mails)
    /\ LET mail == Head(mails)
           runs == row = "running" \/ (Mutant = "ends what has ended" /\ row = "done")
           present == mail[1] = attempt \/ Mutant = "an earlier attempt counts"
       IN  IF runs /\ present
           THEN /\ decided' = decided + 1 /\ armed' = FALSE /\ ended' = ended \cup {attempt}
                /\ \/ /\ row' = "done" /\ outcome' = mail
                      /\ first' = IF first = <<>> THEN mail ELSE first
                   \/ row = "running" /\ attempt < Attempts /\ row' = "waiting" /\ UNCHANGED <<outcome, first>>
                /\ UNCHANGED late
           ELSE /\ late' = late + 1 /\ UNCHANGED <<row, armed, outcome, first, ended, decided>>
    /\ UNCHANGED <<attempt, word, calls, box, puts>>

Revoked == IF word[attempt] = "waiting" /\ Mutant # "a time-out revokes nothing"
           THEN [word EXCEPT ![attempt] = "revoked"] ELSE word

TimeOut ==
    /\ row = "running" /\ armed
    /\ armed' = FALSE /\ ended' = ended \cup {attempt} /\ word' = Revoked
    /\ \/ row' = "done" /\ Settled(0)
       \/ attempt < Attempts /\ row' = "waiting" /\ UNCHANGED <<outcome, first>>
    /\ UNCHANGED <<attempt, calls, mails, box, puts, late, decided>>

\* The operator ends: nobody listens to any collector any more.
Quiesce ==
    /\ box = "open" /\ (Closes \/ row = "done")
    /\ box' = "quiesced" /\ armed' = FALSE /\ ended' = 1..Attempts
    /\ row' = IF row = "done" THEN row ELSE "dropped"
    /\ word' = [a \in 1..Attempts |->
                  IF word[a] = "waiting" THEN "taken" ELSE word[a]]
    /\ UNCHANGED <<attempt, calls, mails, outcome, first, puts, late, decided>>

\* What still lies in the mailbox is dropped.
Close ==
    /\ box = "quiesced"
    /\ box' = "closed" /\ mails' = <<>>
    /\ late' = late + IF Mutant = "what is dropped is not counted" THEN 0 ELSE Len(mails)
    /\ UNCHANGED <<row, attempt, armed, word, calls, outcome, first, ended, puts, decided>>

------------------------------------------------------------------------------
(* Threads that complete or fail. *)

Lost(c, call) ==
    /\ calls' = [calls EXCEPT ![c] = [call EXCEPT !.at = "returned", !.answer = FALSE]]
    /\ late' = late + IF Mutant = "who loses is not counted" THEN 0 ELSE 1

\* One exchange of the collector's word says what the caller is.
Claim ==
    \E c \in All :
    /\ calls[c].at = "calling" /\ word[c[1]] # "unmade"
    /\ LET call == [calls[c] EXCEPT !.found = word[c[1]], !.stale = c[1] \in ended]
       IN  IF Mutant = "looks, then sets"
           THEN calls' = [calls EXCEPT ![c] = [call EXCEPT !.at = "looked"]] /\ UNCHANGED <<word, late>>
           ELSE /\ word' = [word EXCEPT ![c[1]] = "taken"]
                /\ IF word[c[1]] = "taken" THEN Lost(c, call)
                   ELSE calls' = [calls EXCEPT ![c] = [call EXCEPT !.at = "claimed"]] /\ UNCHANGED late
    /\ UNCHANGED <<row, attempt, armed, mails, box, outcome, first, ended, puts, decided>>

\* "looks, then sets".
Set ==
    \E c \in All :
    /\ calls[c].at = "looked"
    /\ word' = [word EXCEPT ![c[1]] = "taken"]
    /\ IF calls[c].found = "taken" THEN Lost(c, calls[c])
       ELSE calls' = [calls EXCEPT ![c].at = "claimed"] /\ UNCHANGED late
    /\ UNCHANGED <<row, attempt, armed, mails, box, outcome, first, ended, puts, decided>>

\* Who has claimed the collector puts its mail. After a time-out nobody waits for it, but it may have been paid for:
\* the task is told, the caller hears False.
PutMail ==
    \E c \in All :
    /\ calls[c].at = "claimed"
    /\ IF box = "open" \/ Mutant = "put after the end"
       THEN /\ puts' = [puts EXCEPT ![c[1]] = @ + 1]
            /\ calls' = [calls EXCEPT ![c].at = "returned", ![c].answer = (@ \/ calls[c].found = "waiting")]
            /\ IF Mutant = "ends it on its own thread" /\ row = "running" /\ c[1] = attempt
               THEN /\ row' = "done" /\ outcome' = c /\ first' = IF first = <<>> THEN c ELSE first
                    /\ ended' = ended \cup {attempt} /\ decided' = decided + 1 /\ UNCHANGED mails
               ELSE /\ mails' = IF Mutant = "no mail" THEN mails ELSE Append(mails, c)
                    /\ UNCHANGED <<row, outcome, first, ended, decided>>
            /\ UNCHANGED late
       ELSE Lost(c, calls[c]) /\ UNCHANGED <<row, mails, outcome, first, ended, puts, decided>>
    /\ UNCHANGED <<attempt, armed, word, box>>

------------------------------------------------------------------------------

OfTask == Begin \/ RunMail \/ Quiesce \/ Close
OfCallers == Claim \/ Set \/ PutMail
Next == OfTask \/ TimeOut \/ OfCallers

\* No attempt has to time out: its callers end it.
Spec == Init /\ [][Next]_vars
FairSpec == Spec /\ WF_vars(Begin) /\ WF_vars(RunMail) /\ WF_vars(OfCallers)

------------------------------------------------------------------------------

Of(a) == {c \in All : c[1] = a}
Returned == {c \in All : calls[c].at = "returned"}

TypeOK ==
    /\ row \in {"waiting", "running", "done", "dropped"} /\ attempt \in 0..Attempts /\ armed \in BOOLEAN
    /\ \A a \in 1..Attempts : word[a] \in {"unmade", "waiting", "revoked", "taken"}
    /\ \A c \in All : calls[c].at \in {"calling", "looked", "claimed", "returned"}
    /\ box \in {"open", "quiesced", "closed"} /\ (row = "done") = (outcome # <<>>)

\* Of an attempt's completions one hears True at most.
FirstWins == \A a \in 1..Attempts : Cardinality({c \in Of(a) : calls[c].answer}) <= 1

OneMail == \A a \in 1..Attempts : puts[a] <= 1

\* Whatever comes after the outcome changes nothing.
OutcomeStays == outcome = first

\* An attempt that was given up has no part in the outcome.
EarlierHasNoEffect == outcome # <<>> => outcome[1] = attempt

\* The row is finished by the task, which has disarmed the deadline before.
DeadlineFirst == row # "running" => ~armed

\* Who comes when the attempt has ended hears False.
StaleIsFalse == \A c \in Returned : calls[c].stale => ~calls[c].answer

\* Each completion has ended an attempt, or was counted as late, or is on its way to the task.
LateIsCounted == Cardinality(Returned) = decided + late + Len(mails)

NothingAfterClose == box = "closed" => mails = <<>>

ClosedStays == [][box = "closed" => outcome' = outcome /\ row' = row]_vars

\* Whoever is called back by every service gets its outcome.
RowEnds == <>(row \in {"done", "dropped"})
=============================================================================
