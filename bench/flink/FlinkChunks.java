// Measures Flink's mailbox and result queues, a chunk at a time, as `bench/native/chunks.cpp` measures ours:
// `java FlinkChunks WORK [KIND] [NUMBER]`, with the same words, the same questions on the standard input and
// the same answers, in nanoseconds.
//
// Each workload does what the native one of its name does. Mails, elements and results exist beforehand
// there and here. The main thread makes and asks; what a workload's own threads do is its own affair.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import org.apache.flink.runtime.event.WatermarkEvent;
import org.apache.flink.streaming.api.functions.async.ResultFuture;
import org.apache.flink.streaming.api.operators.Output;
import org.apache.flink.streaming.api.operators.TimestampedCollector;
import org.apache.flink.streaming.api.operators.async.queue.OrderedStreamElementQueue;
import org.apache.flink.streaming.api.operators.async.queue.StreamElementQueue;
import org.apache.flink.streaming.api.operators.async.queue.UnorderedStreamElementQueue;
import org.apache.flink.streaming.api.watermark.Watermark;
import org.apache.flink.streaming.runtime.streamrecord.LatencyMarker;
import org.apache.flink.streaming.runtime.streamrecord.RecordAttributes;
import org.apache.flink.streaming.runtime.streamrecord.StreamRecord;
import org.apache.flink.streaming.runtime.tasks.mailbox.Mail;
import org.apache.flink.streaming.runtime.tasks.mailbox.TaskMailbox;
import org.apache.flink.streaming.runtime.tasks.mailbox.TaskMailboxImpl;
import org.apache.flink.streaming.runtime.watermarkstatus.WatermarkStatus;
import org.apache.flink.util.OutputTag;

public final class FlinkChunks {
    static final int ANY = TaskMailbox.MIN_PRIORITY;
    static final int ROUND = 1000;

    /** Does a number of operations and says how many nanoseconds they took. */
    interface Work {
        long chunk(int operations) throws Exception;

        default void close() throws Exception {}
    }

    static void require(boolean holds, String what) {
        if (!holds) throw new IllegalStateException(what);
    }

    // ---- mails

    /** A mailbox of the main thread, and mails that add one to a count when they are run. */
    abstract static class MailWork implements Work {
        final TaskMailbox mailbox = new TaskMailboxImpl(Thread.currentThread());
        long counted;

        Mail[] makeMails(int count, int priority) {
            Mail[] mails = new Mail[count];
            for (int index = 0; index < count; ++index) {
                mails[index] = new Mail(() -> ++counted, priority, "count");
            }
            return mails;
        }

        int runBatch() throws Exception {
            int count = 0;
            mailbox.createBatch();
            for (var mail = mailbox.tryTakeFromBatch(); mail.isPresent(); mail = mailbox.tryTakeFromBatch()) {
                mail.get().run();
                ++count;
            }
            return count;
        }
    }

    /** One thread: put a mail, take it, run it. */
    static final class SingleMails extends MailWork {
        private final Mail mail = makeMails(1, 0)[0];

        @Override
        public long chunk(int operations) throws Exception {
            long begin = System.nanoTime();
            for (int number = 0; number < operations; ++number) {
                mailbox.put(mail);
                mailbox.tryTake(ANY).get().run();
            }
            return System.nanoTime() - begin;
        }
    }

    /** One thread: put a thousand mails, make a batch of them, run it. */
    static final class BatchedMails extends MailWork {
        private final Mail[] mails = makeMails(ROUND, 0);

        @Override
        public long chunk(int operations) throws Exception {
            long before = counted;
            long begin = System.nanoTime();
            for (int round = 0; round < operations / ROUND; ++round) {
                for (Mail mail : mails) mailbox.put(mail);
                runBatch();
            }
            long time = System.nanoTime() - begin;
            require(counted - before == operations / ROUND * ROUND, "a batch is not what was put");
            return time;
        }
    }

    /** Producers put as fast as they can; the main thread takes and runs batches, and waits for more. */
    static final class ProducedMails extends MailWork {
        private final int producers;
        private final List<Thread> threads = new ArrayList<>();
        private final List<Semaphore> gates = new ArrayList<>();
        private final long[] begun;
        private Mail[] mails = new Mail[0];
        private volatile int share;
        private volatile CountDownLatch done;

        ProducedMails(int producers) {
            this.producers = producers;
            begun = new long[producers];
            for (int producer = 0; producer < producers; ++producer) {
                int mine = producer;
                gates.add(new Semaphore(0));
                threads.add(new Thread(() -> produce(mine), "producer " + producer));
                threads.get(producer).start();
            }
        }

        private void produce(int producer) {
            while (true) {
                gates.get(producer).acquireUninterruptibly();
                if (share < 0) return;
                putShare(producer * share, (producer + 1) * share, producer);
                done.countDown();
            }
        }

        private void putShare(int from, int to, int producer) {
            begun[producer] = System.nanoTime();
            for (int index = from; index < to; ++index) mailbox.put(mails[index]);
        }

        @Override
        public long chunk(int operations) throws Exception {
            if (operations / producers != share) {
                share = operations / producers;
                mails = makeMails(share * producers, 0);
            }
            long before = counted;
            done = new CountDownLatch(producers);
            gates.forEach(Semaphore::release);
            for (int left = share * producers; left > 0; --left) {
                mailbox.take(ANY).run();
                left -= runBatch();
            }
            long end = System.nanoTime();
            require(counted - before == share * producers, "what was run is not what was put");
            done.await();
            long first = begun[0];
            for (long each : begun) first = Math.min(first, each);
            return end - first;
        }

        @Override
        public void close() throws Exception {
            share = -1;
            gates.forEach(Semaphore::release);
            for (Thread thread : threads) thread.join();
        }
    }

    /** So many mails of priority 0 wait. Put one of priority 1, take it past them, run it. */
    static final class PastWaiting extends MailWork {
        private final Mail mail = makeMails(1, 1)[0];

        PastWaiting(int waiting) {
            for (Mail each : makeMails(waiting, 0)) mailbox.put(each);
        }

        @Override
        public long chunk(int operations) throws Exception {
            long begin = System.nanoTime();
            for (int number = 0; number < operations; ++number) {
                mailbox.put(mail);
                mailbox.tryTake(1).get().run();
            }
            return System.nanoTime() - begin;
        }
    }

    // ---- result queues

    /** Where results go: counts them. */
    static final class Counted implements Output<StreamRecord<Object>> {
        long results;
        long watermarks;

        @Override
        public void collect(StreamRecord<Object> record) {
            ++results;
        }

        @Override
        public void emitWatermark(Watermark mark) {
            ++watermarks;
        }

        @Override
        public void emitWatermarkStatus(WatermarkStatus status) {}

        @Override
        public <X> void collect(OutputTag<X> tag, StreamRecord<X> record) {}

        @Override
        public void emitLatencyMarker(LatencyMarker marker) {}

        @Override
        public void emitRecordAttributes(RecordAttributes attributes) {}

        @Override
        public void emitWatermark(WatermarkEvent event) {}

        @Override
        public void close() {}
    }

    static StreamElementQueue<Object> queue(boolean ordered, int capacity) {
        if (ordered) return new OrderedStreamElementQueue<>(capacity);
        return new UnorderedStreamElementQueue<>(capacity);
    }

    /** A queue of either order, and what passes through it. */
    abstract static class QueueWork implements Work {
        final Counted out = new Counted();
        final TimestampedCollector<Object> collector = new TimestampedCollector<>(out);
        final StreamRecord<Object> element = new StreamRecord<>(new Object());
        final Collection<Object> result = Collections.singletonList(new Object());
    }

    /** So many records are in flight. Complete the oldest, emit it, put another one. */
    static final class SteadyQueue extends QueueWork {
        private final StreamElementQueue<Object> queue;
        private final ResultFuture<Object>[] futures;
        private int oldest;

        @SuppressWarnings({"unchecked", "rawtypes"})
        SteadyQueue(boolean ordered, int inFlight) {
            queue = queue(ordered, inFlight);
            futures = new ResultFuture[inFlight];
            for (int index = 0; index < inFlight; ++index) futures[index] = queue.tryPut(element).get();
        }

        @Override
        public long chunk(int operations) {
            long before = out.results;
            long begin = System.nanoTime();
            for (int number = 0; number < operations; ++number) {
                futures[oldest].complete(result);
                queue.emitCompletedElement(collector);
                futures[oldest] = queue.tryPut(element).get();
                oldest = oldest + 1 == futures.length ? 0 : oldest + 1;
            }
            long time = System.nanoTime() - begin;
            require(out.results - before == operations, "a finished record does not come out");
            return time;
        }
    }

    /** A thousand records, a watermark after every `each`; completed at random, emitted when they may be. */
    static final class QueueRounds extends QueueWork {
        private final int each;
        private final int marks;
        private final Watermark mark = new Watermark(1);
        private final StreamElementQueue<Object> queue;
        private final ResultFuture<Object>[] futures;
        private final int[] order = shuffled(ROUND);

        @SuppressWarnings({"unchecked", "rawtypes"})
        QueueRounds(boolean ordered, int each) {
            this.each = each;
            marks = each == 0 ? 0 : ROUND / each;
            queue = queue(ordered, ROUND + marks);
            futures = new ResultFuture[ROUND];
        }

        @Override
        public long chunk(int operations) {
            long before = out.results + out.watermarks;
            long begin = System.nanoTime();
            for (int round = 0; round < operations / ROUND; ++round) {
                for (int index = 0; index < ROUND; ++index) {
                    futures[index] = queue.tryPut(element).get();
                    if (each != 0 && index % each == each - 1) queue.tryPut(mark);
                }
                for (int index : order) {
                    futures[index].complete(result);
                    while (queue.hasCompletedElements()) queue.emitCompletedElement(collector);
                }
            }
            long time = System.nanoTime() - begin;
            long emitted = out.results + out.watermarks - before;
            require(emitted == operations / ROUND * (ROUND + marks), "not everything that was put came out");
            return time;
        }
    }

    /** The numbers below `count` in the order that the native program has. */
    static int[] shuffled(int count) {
        int[] order = new int[count];
        for (int index = 0; index < count; ++index) order[index] = index;
        long state = 1;
        for (int index = count - 1; index > 0; --index) {
            state = state * 6364136223846793005L + 1442695040888963407L;
            int other = (int) ((state >>> 33) % (index + 1));
            int kept = order[index];
            order[index] = order[other];
            order[other] = kept;
        }
        return order;
    }

    // ---- asked

    static Work workOf(String[] words) {
        boolean ordered = words[1].equals("ordered");
        int number = words.length > 2 ? Integer.parseInt(words[2]) : 0;
        switch (words[0]) {
            case "single":
                return new SingleMails();
            case "batch":
                return new BatchedMails();
            case "producers":
                return new ProducedMails(number);
            case "past":
                return new PastWaiting(number);
            case "steady":
                return new SteadyQueue(ordered, number);
            case "rounds":
                return new QueueRounds(ordered, number);
            default:
                throw new IllegalArgumentException("no work is called " + words[0]);
        }
    }

    public static void main(String[] words) throws Exception {
        Work work = workOf(words);
        System.out.println("ready");
        BufferedReader questions = new BufferedReader(new InputStreamReader(System.in));
        for (String line = questions.readLine(); line != null; line = questions.readLine()) {
            System.out.println(work.chunk(Integer.parseInt(line)));
        }
        work.close();
    }
}
