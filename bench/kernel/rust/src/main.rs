//! Measures crossbeam's queues and channels, a chunk at a time, as `bench/native/chunks.cpp` measures ours:
//! `kernel_chunks WORK seg|channel NUMBER`, with the same words, questions and answers. `seg` spins, `channel` sleeps.

use crossbeam_channel::{bounded, unbounded, Receiver, Sender};
use crossbeam_queue::{ArrayQueue, SegQueue};
use std::hint::spin_loop;
use std::io::{stdin, stdout, BufRead, Write};
use std::sync::mpsc;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

const ROUND: usize = 1000;

/// What passes through: the address of one of many, which adds one to a count when it is run.
#[derive(Clone, Copy)]
struct Element(&'static Mail);

struct Mail {
    run: fn(&Mail),
    counted: *mut usize,
}

// Only the consumer runs one.
unsafe impl Sync for Mail {}

fn count(mail: &Mail) {
    unsafe { *mail.counted += 1 }
}

impl Element {
    fn run(self) {
        (self.0.run)(self.0)
    }
}

/// So many, and what they count.
fn elements(many: usize) -> (&'static [Mail], *mut usize) {
    let counted: *mut usize = Box::leak(Box::new(0));
    let mails = (0..many).map(|_| Mail { run: count, counted }).collect::<Vec<_>>();
    (Vec::leak(mails), counted)
}

/// A queue of many producers and one consumer.
trait Queue: Clone + Send + 'static {
    fn put(&self, element: Element);
    fn try_take(&self) -> Option<Element>;
    fn take(&self) -> Element;
}

#[derive(Clone)]
struct Seg(Arc<SegQueue<Element>>);

impl Queue for Seg {
    fn put(&self, element: Element) {
        self.0.push(element)
    }
    fn try_take(&self) -> Option<Element> {
        self.0.pop()
    }
    fn take(&self) -> Element {
        loop {
            match self.0.pop() {
                Some(element) => return element,
                None => spin_loop(),
            }
        }
    }
}

#[derive(Clone)]
struct Ring(Arc<ArrayQueue<Element>>);

impl Queue for Ring {
    fn put(&self, element: Element) {
        while self.0.push(element).is_err() {
            spin_loop()
        }
    }
    fn try_take(&self) -> Option<Element> {
        self.0.pop()
    }
    fn take(&self) -> Element {
        loop {
            match self.0.pop() {
                Some(element) => return element,
                None => spin_loop(),
            }
        }
    }
}

#[derive(Clone)]
struct Channel(Sender<Element>, Receiver<Element>);

impl Queue for Channel {
    fn put(&self, element: Element) {
        self.0.send(element).unwrap()
    }
    fn try_take(&self) -> Option<Element> {
        self.1.try_recv().ok()
    }
    fn take(&self) -> Element {
        self.1.recv().unwrap()
    }
}

/// One thread: put `round` elements, then take each.
fn rounds<Q: Queue>(queue: Q, round: usize) -> Box<dyn FnMut(usize) -> u128> {
    let (mails, counted) = elements(round);
    Box::new(move |operations| {
        let before = unsafe { *counted };
        let begin = Instant::now();
        for _ in 0..operations / round {
            for mail in mails {
                queue.put(Element(mail));
            }
            for _ in 0..round {
                queue.try_take().unwrap().run();
            }
        }
        let time = begin.elapsed().as_nanos();
        assert_eq!(unsafe { *counted } - before, operations / round * round);
        time
    })
}

/// Producers put as fast as they can, this thread takes. From the first put to the last take.
fn producers<Q: Queue>(queue: Q, producers: usize) -> Box<dyn FnMut(usize) -> u128> {
    let mut gates = Vec::new();
    let (done, finished) = mpsc::channel::<Instant>();
    for _ in 0..producers {
        let (gate, asked) = mpsc::channel::<&'static [Mail]>();
        let (queue, done) = (queue.clone(), done.clone());
        thread::spawn(move || {
            for share in asked {
                let begin = Instant::now();
                for mail in share {
                    queue.put(Element(mail));
                }
                done.send(begin).unwrap();
            }
        });
        gates.push(gate);
    }
    let (mut mails, mut counted) = elements(0);
    Box::new(move |operations| {
        let share = operations / producers;
        if mails.len() != share * producers {
            (mails, counted) = elements(share * producers);
        }
        let before = unsafe { *counted };
        for (gate, mine) in gates.iter().zip(mails.chunks(share)) {
            gate.send(mine).unwrap();
        }
        for _ in 0..share * producers {
            queue.take().run();
        }
        let end = Instant::now();
        assert_eq!(unsafe { *counted } - before, share * producers);
        let first = (0..producers).map(|_| finished.recv().unwrap()).min().unwrap();
        (end - first).as_nanos()
    })
}

/// An element goes to another thread, which sends it back; what so many percent of the journeys take at most.
fn there_and_back<Q: Queue>(here: Q, there: Q, percentage: usize) -> Box<dyn FnMut(usize) -> u128> {
    let (mails, _) = elements(1);
    let (answer, asked) = (here.clone(), there.clone());
    thread::spawn(move || loop {
        answer.put(asked.take());
    });
    Box::new(move |operations| {
        let mut times: Vec<u128> = (0..operations)
            .map(|_| {
                let begin = Instant::now();
                there.put(Element(&mails[0]));
                here.take().run();
                begin.elapsed().as_nanos()
            })
            .collect();
        times.sort();
        times[(operations - 1) * percentage / 100] * operations as u128
    })
}

fn seg() -> Seg {
    Seg(Arc::new(SegQueue::new()))
}

fn channel() -> Channel {
    let (sender, receiver) = unbounded();
    Channel(sender, receiver)
}

fn work(name: &str, kind: &str, number: usize) -> Box<dyn FnMut(usize) -> u128> {
    match (name, kind) {
        ("single", "seg") => rounds(seg(), 1),
        ("single", "channel") => rounds(channel(), 1),
        ("batch", "seg") => rounds(seg(), ROUND),
        ("batch", "channel") => rounds(channel(), ROUND),
        ("producers", "seg") => producers(seg(), number),
        ("producers", "channel") => producers(channel(), number),
        ("thereandback", "seg") => there_and_back(seg(), seg(), number),
        ("thereandback", "channel") => there_and_back(channel(), channel(), number),
        ("handover", "seg") => producers(Ring(Arc::new(ArrayQueue::new(number))), 1),
        ("handover", "channel") => {
            let (sender, receiver) = bounded(number);
            producers(Channel(sender, receiver), 1)
        }
        _ => panic!("no work is called {name} {kind}"),
    }
}

fn main() {
    let words: Vec<String> = std::env::args().collect();
    let number = words.get(3).map_or(0, |word| word.parse().unwrap());
    let mut work = work(&words[1], &words[2], number);
    println!("ready");
    for line in stdin().lock().lines() {
        println!("{}", work(line.unwrap().trim().parse().unwrap()));
        stdout().flush().unwrap();
    }
}
