// Measures Flink's mailbox and result queues, and JCTools' queues, a chunk at a time, as `bench/native/chunks.cpp` measures ours:
// `java KernelChunks WORK [KIND] [NUMBER]`, with the same words, the same questions on the standard input and
// the same answers, in nanoseconds.
//
// Each workload does what the native one of its name does. Mails, elements and results exist beforehand
// there and here. The main thread makes and asks; what a workload's own threads do is its own affair.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Collections;
import java.util.List;
import java.util.Queue;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.BlockingQueue;
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
import org.jctools.queues.MessagePassingQueue;
import org.jctools.queues.MpscArrayQueue;
import org.jctools.queues.MpscLinkedQueue;
import org.jctools.queues.MpscUnboundedArrayQueue;

public final class KernelChunks {
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

    // ---- queues of JCTools, which never sleep

    /** What a queue carries in the place of a mail: one of many, which adds one to a count when it is run. */
    static final class Element {
        private final long[] counted;

        Element(long[] counted) {
            this.counted = counted;
        }

        void run() {
            ++counted[0];
        }

        static Element[] many(int count, long[] counted) {
            Element[] elements = new Element[count];
            for (int index = 0; index < count; ++index) elements[index] = new Element(counted);
            return elements;
        }
    }

    static Queue<Element> unbounded(String kind) {
        return kind.equals("linked") ? new MpscLinkedQueue<>() : new MpscUnboundedArrayQueue<>(1024);
    }

    static Element await(Queue<Element> queue) {
        Element element;
        while ((element = queue.poll()) == null) Thread.onSpinWait();
        return element;
    }

    /** Put `round` elements, then take and run each; one thread. */
    static final class QueueRound implements Work {
        private final Queue<Element> queue;
        private final int round;
        private final long[] counted = new long[1];
        private final Element[] elements = Element.many(ROUND, counted);

        QueueRound(String kind, int round) {
            queue = unbounded(kind);
            this.round = round;
        }

        @Override
        public long chunk(int operations) {
            long before = counted[0];
            long begin = System.nanoTime();
            for (int done = 0; done < operations; done += round) {
                for (int number = 0; number < round; ++number) queue.offer(elements[number]);
                for (int number = 0; number < round; ++number) queue.poll().run();
            }
            long time = System.nanoTime() - begin;
            require(counted[0] - before == operations / round * round, "what was run is not what was put");
            return time;
        }
    }

    /** Producers offer as fast as they can, `together` at a time; the main thread polls, and spins. */
    static final class ProducedElements implements Work {
        private final MessagePassingQueue<Element> queue;
        private final int together;
        private final List<Thread> threads = new ArrayList<>();
        private final List<Semaphore> gates = new ArrayList<>();
        private final long[] begun;
        private final long[] counted = new long[1];
        private Element[] elements = new Element[0];
        private volatile int share;
        private volatile CountDownLatch done;

        @SuppressWarnings("unchecked")
        ProducedElements(Queue<Element> queue, int producers, int together) {
            this.queue = (MessagePassingQueue<Element>) queue;
            this.together = together;
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
                putShare(producer);
                done.countDown();
            }
        }

        private void putShare(int producer) {
            int first = producer * share;
            int[] next = {first};
            begun[producer] = System.nanoTime();
            if (together == 1) {
                for (int index = first; index < first + share; ++index) {
                    while (!queue.offer(elements[index])) Thread.onSpinWait();
                }
            } else {
                for (int left = share; left > 0; ) {
                    left -= queue.fill(() -> elements[next[0]++], Math.min(left, together));
                }
            }
        }

        @Override
        public long chunk(int operations) throws Exception {
            if (share != operations / begun.length) {
                share = operations / begun.length;
                elements = Element.many(share * begun.length, counted);
            }
            done = new CountDownLatch(begun.length);
            gates.forEach(Semaphore::release);
            for (int left = share * begun.length; left > 0; ) {
                int some = queue.drain(Element::run);
                if (some == 0) Thread.onSpinWait();
                left -= some;
            }
            long end = System.nanoTime();
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

    /** An element goes to another thread, which sends it back; what so many percent of the journeys take at most. */
    abstract static class ThereAndBack implements Work {
        private final int percentage;
        private volatile boolean over;
        private final Thread other = new Thread(this::sendBack, "there");

        ThereAndBack(int percentage) {
            this.percentage = percentage;
        }

        abstract void putThere() throws Exception;

        abstract void takeThere() throws Exception;

        abstract void putHere() throws Exception;

        abstract void takeHere() throws Exception;

        private void sendBack() {
            try {
                while (true) {
                    takeThere();
                    if (over) return;
                    putHere();
                }
            } catch (Exception error) {
                throw new IllegalStateException(error);
            }
        }

        @Override
        public long chunk(int operations) throws Exception {
            if (!other.isAlive()) other.start();
            long[] times = new long[operations];
            for (int number = 0; number < operations; ++number) {
                long begin = System.nanoTime();
                putThere();
                takeHere();
                times[number] = System.nanoTime() - begin;
            }
            Arrays.sort(times);
            return times[(operations - 1) * percentage / 100] * operations;
        }

        @Override
        public void close() throws Exception {
            over = true;
            putThere();
            other.join();
        }
    }

    /** By queues that spin. */
    static final class SpinningThereAndBack extends ThereAndBack {
        private final Queue<Element> here;
        private final Queue<Element> there;
        private final Element element = new Element(new long[1]);

        SpinningThereAndBack(String kind, int percentage) {
            super(percentage);
            here = unbounded(kind);
            there = unbounded(kind);
        }

        @Override
        void putThere() {
            there.offer(element);
        }

        @Override
        void takeThere() {
            await(there);
        }

        @Override
        void putHere() {
            here.offer(element);
        }

        @Override
        void takeHere() {
            await(here);
        }
    }

    /** By Flink's mailboxes, which sleep. */
    static final class MailThereAndBack extends ThereAndBack {
        private final TaskMailbox here = new TaskMailboxImpl(Thread.currentThread());
        private final Mail mail = new Mail(() -> {}, 0, "there and back");
        // The other thread makes its own mailbox.
        private final CountDownLatch ready = new CountDownLatch(1);
        private TaskMailbox there;

        MailThereAndBack(int percentage) {
            super(percentage);
        }

        @Override
        void putThere() throws Exception {
            ready.await();
            there.put(mail);
        }

        @Override
        void takeThere() throws Exception {
            if (there == null) {
                there = new TaskMailboxImpl(Thread.currentThread());
                ready.countDown();
            }
            there.take(ANY).run();
        }

        @Override
        void putHere() {
            here.put(mail);
        }

        @Override
        void takeHere() throws Exception {
            here.take(ANY).run();
        }
    }

    /** A producer puts, another thread takes; so many may wait. */
    static final class BoundedElements implements Work {
        private final BlockingQueue<Element> queue;
        private final Element element = new Element(new long[1]);
        private final Semaphore gate = new Semaphore(0);
        private final Semaphore done = new Semaphore(0);
        private volatile int share;
        private volatile long begun;
        private final Thread producer = new Thread(this::produce, "producer");

        BoundedElements(int bound) {
            queue = new ArrayBlockingQueue<>(bound);
            producer.start();
        }

        private void produce() {
            try {
                while (true) {
                    gate.acquire();
                    if (share < 0) return;
                    begun = System.nanoTime();
                    for (int number = 0; number < share; ++number) queue.put(element);
                    done.release();
                }
            } catch (InterruptedException error) {
                throw new IllegalStateException(error);
            }
        }

        @Override
        public long chunk(int operations) throws Exception {
            share = operations;
            gate.release();
            List<Element> taken = new ArrayList<>();
            for (int left = operations; left > 0; ) {
                queue.take();
                taken.clear();
                left -= 1 + queue.drainTo(taken);
            }
            long end = System.nanoTime();
            done.acquire();
            return end - begun;
        }

        @Override
        public void close() throws Exception {
            share = -1;
            gate.release();
            producer.join();
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

    static Work workOf(String[] words) throws Exception {
        boolean ordered = words[1].equals("ordered");
        int number = words.length > 2 ? Integer.parseInt(words[2]) : 0;
        switch (words[1]) {
            case "array":
            case "linked":
                return queueWorkOf(words[0], words[1], number);
            case "mpsc-bounded":
                return new ProducedElements(new MpscArrayQueue<>(number), 1, 1);
            case "blocking-bounded":
                return new BoundedElements(number);
            default:
                break;
        }
        switch (words[0]) {
            case "single":
                return new SingleMails();
            case "batch":
                return new BatchedMails();
            case "producers":
                return new ProducedMails(number);
            case "thereandback":
                return new MailThereAndBack(number);
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

    static Work queueWorkOf(String name, String kind, int number) {
        switch (name) {
            case "single":
                return new QueueRound(kind, 1);
            case "batch":
                return new QueueRound(kind, ROUND);
            case "producers":
                return new ProducedElements(unbounded(kind), number, 1);
            case "chains":
                return new ProducedElements(unbounded(kind), 1, number);
            case "thereandback":
                return new SpinningThereAndBack(kind, number);
            default:
                throw new IllegalArgumentException("no work is called " + name);
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
