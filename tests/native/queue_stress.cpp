// The result queues among real threads, with no interpreter lock to order them. Prints "ok", or what went
// wrong.
//
// A run is several lives of one input. In each life the owner restores what the life before left in its
// snapshot, puts new elements with watermarks between them, renews attempts, emits, and ends somewhere by a
// snapshot and a close. Several threads complete all that runs, all of them everything. Over all lives every
// element must be completed once, and be emitted once, with the result of that completion, in the order asked
// for.
#include "check.h"
#include "pillarbox_queue.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

using namespace pillarbox;

constexpr int COMPLETERS = 3;
constexpr int MOST = 7;       // the greatest capacity of a life
constexpr int EACH_MARK = 5;  // elements between two watermarks
constexpr int TOTAL = 400;    // elements in all lives of a run
constexpr std::chrono::seconds TOO_LONG(10);

// An even address, as the queue wants it.
void* payload(std::intptr_t number) { return reinterpret_cast<void*>(2 * number); }
std::intptr_t number_of(void* payload) { return reinterpret_cast<std::intptr_t>(payload) / 2; }

// The element of a watermark; its result is the number of elements before it.
char mark;

struct Job {
    int number;
    long long handle;
};

// What the lives of one input have in common.
struct Run {
    std::atomic<int> winner[TOTAL];  // 1 + which completer, 0 before
    long long handles[TOTAL] = {};
    bool emitted[TOTAL] = {};
    int out = 0;  // elements emitted
    int marks_out = 0;
    int put = 0;
    bool mark_due = false;
    std::minstd_rand random;

    explicit Run(unsigned seed) : random(seed) {
        for (auto& who : winner) who = 0;
    }

    bool once_in(unsigned chances) { return random() % chances == 0; }
};

// One queue with its threads; everything but `complete_all` is the owner's.
class Life {
public:
    Life(Run& run, bool ordered, int capacity, std::vector<entry_t>& kept)
        : run_(run), ordered_(ordered), capacity_(capacity), queue_(capacity, ordered) {
        // Handles are those of one queue: in another one they may name something else.
        std::fill(std::begin(run.handles), std::end(run.handles), -1);
        require(queue_.restore(kept) == QueueAnswer::DONE, "a fresh queue was not restored");
        for (int who = 0; who < COMPLETERS; ++who) threads_.emplace_back(&Life::complete_all, this, who);
    }

    // One turn: returns whether there will be more.
    bool turn() {
        const int seen = wins_;
        bool moved = false;
        if (run_.put < TOTAL || run_.mark_due || queue_.counts().restoring != 0) moved = admit();
        if (run_.put != 0 && run_.once_in(4)) renew(static_cast<int>(run_.random()) % run_.put);
        if (run_.once_in(3)) moved = emit(1 + static_cast<int>(run_.random() % MOST)) || moved;
        if (!moved && !emit(1)) await_completion(seen);
        const queue_counts_t now = queue_.counts();
        require(now.size <= capacity_, "the capacity was exceeded");
        return run_.put < TOTAL || run_.mark_due || now.size != 0 || now.restoring != 0;
    }

    // Ends all completions, leaves what is not emitted in `kept`, closes.
    void end(std::vector<entry_t>& kept) {
        stop();
        std::vector<entry_t> closed;
        queue_.snapshot(kept);
        queue_.close(closed);
        const auto same = [](const entry_t& a, const entry_t& b) { return a.element == b.element; };
        require(std::equal(closed.begin(), closed.end(), kept.begin(), kept.end(), same),
                "a close gives something else than the snapshot before it");
        pair_t pair;
        long long handle = 0;
        require(queue_.emit(&pair, 1) == 0, "something was emitted after close");
        require(queue_.put(nullptr, &handle) == QueueAnswer::CLOSED, "something was put after close");
    }

private:
    void complete_all(int who) {
        std::minstd_rand random(static_cast<unsigned>(who) + 1);
        std::vector<Job> jobs;
        while (true) {
            {
                std::unique_lock<std::mutex> held(lock_);
                changed_.wait(held, [&] { return over_ || !jobs_[who].empty(); });
                if (over_) return;
                jobs.swap(jobs_[who]);
            }
            std::shuffle(jobs.begin(), jobs.end(), random);
            for (const Job& job : jobs) {
                if (!queue_.complete(job.handle, payload(who * TOTAL + job.number))) continue;
                require(run_.winner[job.number].exchange(who + 1) == 0, "an element was completed twice");
                const std::lock_guard<std::mutex> held(lock_);
                ++wins_;
                changed_.notify_all();
            }
            jobs.clear();
        }
    }

    void ask_for(int number, long long handle) {
        run_.handles[number] = handle;
        const std::lock_guard<std::mutex> held(lock_);
        for (auto& jobs : jobs_) jobs.push_back({number, handle});
        changed_.notify_all();
    }

    void await_completion(int seen) {
        std::unique_lock<std::mutex> held(lock_);
        require(changed_.wait_for(held, TOO_LONG, [&] { return wins_ != seen; }), "nothing goes on any more");
    }

    bool admit() {
        void* element = nullptr;
        long long handle = 0;
        const std::size_t restoring = queue_.counts().restoring;
        if (restoring != 0) {
            require(queue_.put(nullptr, &handle) == QueueAnswer::RESTORING, "a put overtook the restored");
            if (queue_.admit_restored(&element, &handle)) {
                const int number = static_cast<int>(number_of(element));
                require(run_.winner[number] == 0, "a finished element was given out to be called again");
                ask_for(number, handle);
            }
            return queue_.counts().restoring != restoring;
        }
        QueueAnswer answer = QueueAnswer::DONE;
        if (run_.mark_due) {
            answer = queue_.put_watermark(&mark, payload(run_.put));
            run_.mark_due = answer != QueueAnswer::DONE;
        } else {
            answer = queue_.put(payload(run_.put), &handle);
            if (answer == QueueAnswer::DONE) {
                ask_for(run_.put, handle);
                run_.mark_due = ++run_.put % EACH_MARK == 0;
            }
        }
        if (answer == QueueAnswer::DONE) return true;
        require(answer == QueueAnswer::FULL && queue_.counts().size == capacity_, "refused without a reason");
        return false;
    }

    void renew(int number) {
        const long long old = run_.handles[number];
        long long handle = old;
        if (run_.winner[number] != 0 || !queue_.renew(&handle)) return;
        require(!queue_.complete(old, nullptr), "a completion of an earlier attempt was accepted");
        ask_for(number, handle);
    }

    bool emit(int most) {
        pair_t pairs[MOST];
        const int count = queue_.emit(pairs, most);
        for (int index = 0; index < count; ++index) check(pairs[index]);
        return count != 0;
    }

    void check(const pair_t& pair) {
        const auto result = number_of(pair.result);
        if (pair.element == &mark) {
            require(result == run_.out, "a watermark was passed");
            require(result == ++run_.marks_out * EACH_MARK, "a watermark came out of order");
            return;
        }
        const int number = static_cast<int>(number_of(pair.element));
        require(!run_.emitted[number], "an element was emitted twice");
        require(!ordered_ || number == run_.out, "an element came out of order");
        require(number / EACH_MARK == run_.marks_out, "an element passed a watermark");
        // The completer notes its win after the queue has told it; there is nothing else to wait for.
        while (run_.winner[number] == 0) std::this_thread::yield();
        require(result == (run_.winner[number] - 1) * TOTAL + number, "a result is not that of the winner");
        run_.emitted[number] = true;
        ++run_.out;
    }

    void stop() {
        {
            const std::lock_guard<std::mutex> held(lock_);
            over_ = true;
            changed_.notify_all();
        }
        for (std::thread& thread : threads_) thread.join();
    }

    Run& run_;
    const bool ordered_;
    const int capacity_;
    ResultQueue queue_;
    std::mutex lock_;
    std::condition_variable changed_;
    std::vector<Job> jobs_[COMPLETERS];
    std::atomic<int> wins_{0};
    bool over_ = false;
    std::vector<std::thread> threads_;
};

void run_once(unsigned seed, bool ordered) {
    Run run(seed);
    std::vector<entry_t> kept;
    for (bool more = true; more;) {
        Life life(run, ordered, 1 + static_cast<int>(run.random() % MOST), kept);
        do {
            more = life.turn();
        } while (more && !run.once_in(50));
        kept.clear();
        life.end(kept);
    }
    require(kept.empty() && run.out == TOTAL && run.marks_out == TOTAL / EACH_MARK, "something was lost");
}

int main() {
    for (unsigned seed = 1; seed <= 40; ++seed) {
        run_once(seed, true);
        run_once(seed, false);
    }
    std::puts("ok");
    return 0;
}
