//! Threads that are shared by all models: every part runs once, panics reach whoever waits.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier};

use hither_kernels::threads::{Pinning, Threads};

#[test]
fn every_part_runs_once_for_any_number_of_threads() {
    for count in [0, 1, 3] {
        let threads = Threads::<Vec<usize>>::new(count, Pinning::Free).expect("started");
        let mut own = Vec::new();
        for (len, chunk) in [(0, 1), (1, 1), (10, 3), (1000, 7), (64, 64)] {
            let mut out = vec![0; len];
            for _ in 0..20 {
                threads.split_chunks(&mut own, &mut out, chunk, 2, &|part, out, scratch| {
                    scratch.push(part);
                    out.iter_mut().for_each(|value| *value += part + 1);
                });
            }
            let wanted: Vec<usize> = (0..len).map(|at| 20 * (at / chunk + 1)).collect();
            assert_eq!(out, wanted, "{count} threads, {len} in chunks of {chunk}");
        }
    }
}

/// Parts that wait for each other end only if helpers really help.
#[test]
fn idle_threads_help_and_no_more_than_allowed() {
    let threads = Threads::<()>::new(3, Pinning::Pinned).expect("started");
    let barrier = Barrier::new(3);
    threads.split(&mut (), 3, 2, &|_, ()| {
        barrier.wait();
    });
    let caller = std::thread::current().id();
    threads.split(&mut (), 100, 0, &|_, ()| assert_eq!(std::thread::current().id(), caller));
}

#[test]
fn jobs_keep_their_threads_scratch_and_may_split() {
    let threads = Arc::new(Threads::<Vec<u8>>::new(1, Pinning::Free).expect("started"));
    let (send, receive) = channel();
    for _ in 0..3 {
        let (send, weak) = (send.clone(), Arc::downgrade(&threads));
        let job = move |scratch: &mut Vec<u8>| {
            let threads = weak.upgrade().expect("alive");
            threads.split(scratch, 2, 9, &|part, scratch| scratch.push(part as u8));
            send.send(scratch.clone()).expect("heard");
        };
        threads.spawn(job);
    }
    let seen: Vec<usize> = (0..3).map(|_| receive.recv().expect("sent").len()).collect();
    assert_eq!(seen, [2, 4, 6]);
}

#[test]
fn a_panic_reaches_whoever_waits_and_threads_go_on() {
    let threads = Threads::<Vec<u8>>::new(2, Pinning::Free).expect("started");
    let (send, receive) = channel();
    threads.spawn(|scratch| {
        scratch.push(1);
        panic!("a job's own");
    });
    for _ in 0..4 {
        let send = send.clone();
        threads.spawn(move |_| send.send(()).expect("heard"));
        receive.recv().expect("the threads live");
    }
    let barrier = Barrier::new(2);
    let result = catch_unwind(AssertUnwindSafe(|| {
        threads.split(&mut Vec::new(), 2, 1, &|part, _| {
            barrier.wait();
            assert_eq!(part, 7, "a part's own");
        });
    }));
    assert!(result.is_err());
    let mut sum = [0; 8];
    threads.split_chunks(&mut Vec::new(), &mut sum, 1, 2, &|part, sum, _| sum[0] = part);
    assert_eq!(sum, [0, 1, 2, 3, 4, 5, 6, 7]);
}
