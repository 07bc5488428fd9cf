---------------------------- MODULE ArrivedCount ----------------------------
(* How many mails a mailbox has accepted, without an atomic operation of its own for each put: the word that a     *)
(* put swings counts the mails that have arrived, up to `Most`. What is beyond that is counted beside the word,    *)
(* before the put, by a put that finds no room. The consumer, who takes the chain, moves both into a count of its  *)
(* own; a version, odd meanwhile, tells readers to read again. Class LockFreeInbox of                             *)
(* pillarbox_inbox_lockfree.h.                                                                                   *)
EXTENDS Naturals, Sequences, FiniteSets

CONSTANTS
    Producers,
    Sizes,     \* how many mails each put of a producer has, one put after the other
    Most,      \* what the word can count
    Fetches, Reads, Mutant

OneTwo == <<1, 2>>
TwoOneTwo == <<2, 1, 2>>

VARIABLES
    open, count, chain,         \* the word: its state and count; the mails that have arrived
    beyond, fetched, version,   \* shared; the last two are written by the consumer only
    puts, at, seen, charge,     \* of each producer: puts done; where it is; what it saw of the word; what it has added to `beyond`
    step, had, got,             \* of the consumer: where it is, the count of the word it took, the mails it took
    fetches, reads,
    look, sum, low, high,       \* of a reader: where it is and the version it saw; its sum; what was in when it began, and when it had looked
    accepted, answered          \* history: mails that are in; the last answer between what it had to be at least and at most

word == <<open, count, chain>>
consumer == <<step, had, got, fetches>>
reader == <<reads, look, sum, low, high, answered>>
vars == <<word, beyond, fetched, version, puts, at, seen, charge, consumer, reader, accepted>>

Init ==
    /\ open = TRUE /\ count = 0 /\ chain = 0 /\ beyond = 0 /\ fetched = 0 /\ version = 0
    /\ puts = [p \in Producers |-> 0] /\ at = [p \in Producers |-> "idle"]
    /\ seen = [p \in Producers |-> <<>>] /\ charge = [p \in Producers |-> 0]
    /\ step = "idle" /\ had = 0 /\ got = 0 /\ fetches = 0
    /\ reads = 0 /\ look = <<>> /\ sum = 0 /\ low = 0 /\ high = 0
    /\ accepted = 0 /\ answered = <<0, 0, 0>>

(* Two words that are the same have the same mails in them: a put compares the address of the newest, too.       *)
Word == <<open, count, chain, accepted>>
Size(p) == Sizes[puts[p] + 1]
Excess(p, had_before) == IF had_before + Size(p) > Most THEN had_before + Size(p) - Most ELSE 0

RECURSIVE Sum(_, _)
Sum(charges, of) ==
    IF of = {} THEN 0 ELSE LET p == CHOOSE p \in of : TRUE IN charges[p] + Sum(charges, of \ {p})
InProgress == Sum(charge, Producers)

-----------------------------------------------------------------------------
(* Producers.                                                                                                    *)
Load(p) ==
    /\ at[p] = "idle" /\ puts[p] < Len(Sizes)
    /\ seen' = [seen EXCEPT ![p] = Word]
    /\ at' = [at EXCEPT ![p] = "seen"]
    /\ UNCHANGED <<word, beyond, fetched, version, puts, charge, consumer, reader, accepted>>

Refused(p) ==
    /\ at[p] = "seen" /\ ~seen[p][1]
    /\ beyond' = IF Mutant = "a refused put stays counted" THEN beyond ELSE beyond - charge[p]
    /\ charge' = [charge EXCEPT ![p] = 0]
    /\ puts' = [puts EXCEPT ![p] = @ + 1] /\ at' = [at EXCEPT ![p] = "idle"]
    /\ UNCHANGED <<word, fetched, version, seen, consumer, reader, accepted>>

(* Each look at the word may give another excess.                                                                *)
Charge(p) ==
    /\ at[p] = "seen" /\ seen[p][1]
    /\ LET excess == IF Mutant = "the first look charges" /\ charge[p] # 0 THEN charge[p]
                     ELSE IF Mutant = "charged after the push" THEN 0 ELSE Excess(p, seen[p][2])
       IN  /\ beyond' = (beyond + excess) - charge[p]
           /\ charge' = [charge EXCEPT ![p] = excess]
    /\ at' = [at EXCEPT ![p] = "charged"]
    /\ UNCHANGED <<word, fetched, version, puts, seen, consumer, reader, accepted>>

Swing(p) ==
    /\ at[p] = "charged"
    /\ IF seen[p] = Word
       THEN /\ count' = IF count + Size(p) > Most THEN Most ELSE count + Size(p)
            /\ chain' = chain + Size(p) /\ accepted' = accepted + Size(p)
            /\ charge' = [charge EXCEPT ![p] = 0]
            /\ IF Mutant = "charged after the push" /\ Excess(p, count) > 0
               THEN at' = [at EXCEPT ![p] = "owes"] /\ seen' = [seen EXCEPT ![p] = <<Excess(p, count)>>]
               ELSE at' = [at EXCEPT ![p] = "idle"] /\ UNCHANGED seen
            /\ puts' = [puts EXCEPT ![p] = @ + 1]
            /\ UNCHANGED open
       ELSE /\ seen' = [seen EXCEPT ![p] = Word] /\ at' = [at EXCEPT ![p] = "seen"]
            /\ UNCHANGED <<word, accepted, charge, puts>>
    /\ UNCHANGED <<beyond, fetched, version, consumer, reader>>

ChargeLate(p) ==
    /\ at[p] = "owes"
    /\ beyond' = beyond + seen[p][1]
    /\ at' = [at EXCEPT ![p] = "idle"]
    /\ UNCHANGED <<word, fetched, version, puts, seen, charge, consumer, reader, accepted>>

Quiesce ==
    /\ open /\ open' = FALSE
    /\ UNCHANGED <<count, chain, beyond, fetched, version, puts, at, seen, charge, consumer, reader, accepted>>

-----------------------------------------------------------------------------
(* The consumer.                                                                                                 *)
Turn(from, to) == step = from /\ step' = to
Odd == version' = IF Mutant = "no version" THEN version ELSE version + 1

BeginFetch ==
    /\ Turn("idle", "taking") /\ chain > 0 /\ fetches < Fetches
    /\ fetches' = fetches + 1
    /\ Odd
    /\ UNCHANGED <<word, beyond, fetched, puts, at, seen, charge, had, got, reader, accepted>>

Fetch ==
    /\ Turn("taking", "taken")
    /\ had' = count /\ got' = chain /\ count' = 0 /\ chain' = 0
    /\ UNCHANGED <<open, beyond, fetched, version, puts, at, seen, charge, fetches, reader, accepted>>

CountFetched ==
    /\ Turn("taken", "counted")
    /\ fetched' = fetched + had
    /\ UNCHANGED <<word, beyond, version, puts, at, seen, charge, had, got, fetches, reader, accepted>>

EndFetch ==
    /\ Turn("counted", IF got > had THEN "known" ELSE "idle")
    /\ Odd
    /\ UNCHANGED <<word, beyond, fetched, puts, at, seen, charge, had, got, fetches, reader, accepted>>

(* It has counted the chain meanwhile.                                                                            *)
BeginMove ==
    /\ Turn("known", "moving")
    /\ Odd
    /\ UNCHANGED <<word, beyond, fetched, puts, at, seen, charge, had, got, fetches, reader, accepted>>

Move ==
    /\ Turn("moving", "moved")
    /\ beyond' = IF Mutant = "what was beyond stays" THEN beyond ELSE beyond - (got - had)
    /\ UNCHANGED <<word, fetched, version, puts, at, seen, charge, had, got, fetches, reader, accepted>>

CountMoved ==
    /\ Turn("moved", "ending")
    /\ fetched' = fetched + (got - had)
    /\ UNCHANGED <<word, beyond, version, puts, at, seen, charge, had, got, fetches, reader, accepted>>

EndMove ==
    /\ Turn("ending", "idle")
    /\ Odd
    /\ UNCHANGED <<word, beyond, fetched, puts, at, seen, charge, had, got, fetches, reader, accepted>>

-----------------------------------------------------------------------------
(* A reader.                                                                                                     *)
ReadVersion ==
    /\ look = <<>> /\ reads < Reads /\ version % 2 = 0
    /\ look' = <<"word", version>> /\ low' = accepted /\ sum' = 0
    /\ UNCHANGED <<word, beyond, fetched, version, puts, at, seen, charge, consumer, reads, high, answered, accepted>>

ReadOne(from, to, value) ==
    /\ look # <<>> /\ look[1] = from
    /\ look' = <<to, look[2]>> /\ sum' = sum + value
    /\ high' = IF from = "beyond" THEN accepted + InProgress ELSE high
    /\ UNCHANGED <<word, beyond, fetched, version, puts, at, seen, charge, consumer, reads, low, answered, accepted>>

Compare ==
    /\ look # <<>> /\ look[1] = "version"
    /\ look' = <<>> /\ sum' = 0
    /\ IF look[2] = version
       THEN answered' = <<low, sum, high>> /\ reads' = reads + 1
       ELSE UNCHANGED <<answered, reads>>
    /\ UNCHANGED <<word, beyond, fetched, version, puts, at, seen, charge, consumer, low, high, accepted>>

Read ==
    \/ ReadVersion \/ Compare
    \/ ReadOne("word", "beyond", count) \/ ReadOne("beyond", "fetched", beyond)
    \/ ReadOne("fetched", "version", fetched)

Next ==
    \/ \E p \in Producers : Load(p) \/ Refused(p) \/ Charge(p) \/ Swing(p) \/ ChargeLate(p)
    \/ Quiesce
    \/ BeginFetch \/ Fetch \/ CountFetched \/ EndFetch \/ BeginMove \/ Move \/ CountMoved \/ EndMove
    \/ Read
Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
(* Between two fetches nothing is missing, and nothing is there but what puts in progress have added.            *)
AllCounted == step \in {"idle", "known"} => count + beyond + fetched = accepted + InProgress

(* An answer has every mail whose put had returned when it began, and no more than were in, or being put, when it  *)
(* looked beyond the word.                                                                                       *)
NotTooFew == answered[1] <= answered[2]
NotTooMany == answered[2] <= answered[3]
=============================================================================
