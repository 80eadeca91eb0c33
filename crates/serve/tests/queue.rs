//! The queue alone: bounds, order, fairness, deadlines and when batches are cut.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use hither_serve::infer::ClientId;
use hither_serve::queue::{Offered, Policy, Queue, Ticket, Waiting};
use proptest::prelude::*;

fn policy() -> Policy {
    Policy {
        batch_samples_max: 64,
        batch_samples_preferred: Vec::new(),
        window: Duration::ZERO,
        queue_requests_max: 16,
        queue_samples_max: 1000,
    }
}

fn waiting(client: u64, samples: usize, arrived: Instant, item: u32) -> Waiting<u32> {
    Waiting { client: ClientId(client), samples, arrived, deadline: None, item }
}

fn take(queue: &mut Queue<u32>, now: Instant) -> (Vec<u32>, Vec<u32>) {
    let (mut batch, mut expired) = (Vec::new(), Vec::new());
    queue.take(now, &mut batch, &mut expired);
    let items = |list: Vec<Waiting<u32>>| list.into_iter().map(|waiting| waiting.item).collect();
    (items(batch), items(expired))
}

fn ticket(offered: Offered<u32>) -> Ticket {
    match offered {
        Offered::Queued(ticket) => ticket,
        other => panic!("{other:?}"),
    }
}

#[test]
fn one_client_is_served_in_order_and_refused_when_the_queue_is_full() {
    let now = Instant::now();
    let mut queue = Queue::new(policy());
    for item in 0..16 {
        ticket(queue.offer(waiting(1, 10, now, item)));
    }
    assert!(matches!(queue.offer(waiting(1, 10, now, 16)), Offered::Refused(_)));
    assert_eq!(take(&mut queue, now).0, [0, 1, 2, 3, 4, 5], "60 of 64 samples");
    assert_eq!(queue.len(), 10);
    ticket(queue.offer(waiting(1, 10, now, 17)));
}

#[test]
fn what_cannot_be_answered_in_time_is_refused_at_once() {
    let now = Instant::now();
    let ms = Duration::from_millis;
    let mut queue = Queue::new(policy());
    let timed = |item| Waiting { deadline: Some(now + ms(10)), ..waiting(1, 10, now, item) };
    // Ten samples take four milliseconds: two requests can be answered within ten, and no third one.
    queue.learn(100, ms(40));
    ticket(queue.offer(timed(0)));
    ticket(queue.offer(timed(1)));
    assert!(matches!(queue.offer(timed(2)), Offered::Refused(_)));
    ticket(queue.offer(waiting(1, 10, now, 3)));
    // Three milliseconds later both would be late in one batch; one by itself is not.
    assert_eq!(take(&mut queue, now + ms(3)), (vec![0], vec![]));
    assert_eq!(take(&mut queue, now + ms(7)), (vec![3], vec![1]));
    // A pace that nobody could keep is tried again: an empty queue takes one request, and computes it.
    queue.learn(1, ms(1_000_000));
    ticket(queue.offer(timed(4)));
    assert!(matches!(queue.offer(timed(5)), Offered::Refused(_)));
    assert_eq!(take(&mut queue, now), (vec![4], vec![]));
}

#[test]
fn a_client_with_one_request_does_not_wait_for_one_with_many() {
    let now = Instant::now();
    let mut queue = Queue::new(policy());
    for item in 0..12 {
        ticket(queue.offer(waiting(1, 16, now, item)));
    }
    ticket(queue.offer(waiting(2, 16, now, 100)));
    assert_eq!(take(&mut queue, now).0, [0, 100, 1, 2]);
}

#[test]
fn samples_count_for_fairness_and_not_requests() {
    let now = Instant::now();
    let mut queue = Queue::new(policy());
    for item in 0..6 {
        ticket(queue.offer(waiting(1, 16, now, item)));
        ticket(queue.offer(waiting(2, 4, now, 100 + item)));
    }
    let (batch, _) = take(&mut queue, now);
    let samples = |first: u32| batch.iter().filter(|item| **item / 100 == first).count();
    assert_eq!((samples(0) * 16, samples(1) * 4), (32, 24), "{batch:?}");
}

#[test]
fn a_full_queue_displaces_the_client_that_waits_for_most() {
    let now = Instant::now();
    let mut queue = Queue::new(policy());
    for item in 0..16 {
        ticket(queue.offer(waiting(1, 16, now, item)));
    }
    match queue.offer(waiting(2, 16, now, 100)) {
        Offered::Displaced(_, displaced) => assert_eq!(displaced.item, 15, "its newest"),
        other => panic!("{other:?}"),
    }
    assert_eq!(queue.len(), 16);
    assert!(take(&mut queue, now).0.contains(&100));
}

#[test]
fn a_request_that_is_withdrawn_is_not_computed_and_leaves_room() {
    let now = Instant::now();
    let mut queue = Queue::new(policy());
    let first = ticket(queue.offer(waiting(1, 8, now, 0)));
    ticket(queue.offer(waiting(1, 8, now, 1)));
    assert_eq!(queue.remove(first).map(|waiting| waiting.item), Some(0));
    assert!(queue.remove(first).is_none());
    assert_eq!(queue.samples(), 8);
    assert_eq!(take(&mut queue, now).0, [1]);
    assert!(queue.is_empty() && queue.ready_at().is_none());
}

#[test]
fn late_requests_are_set_aside_and_cost_no_room_in_the_batch() {
    let now = Instant::now();
    let mut queue = Queue::new(policy());
    let deadline = Some(now + Duration::from_millis(1));
    ticket(queue.offer(Waiting { deadline, ..waiting(1, 60, now, 0) }));
    ticket(queue.offer(waiting(1, 60, now, 1)));
    let (batch, expired) = take(&mut queue, now + Duration::from_millis(2));
    assert_eq!((batch, expired), (vec![1], vec![0]));
}

#[test]
fn a_window_holds_a_batch_until_it_is_full_enough_or_old_enough() {
    let now = Instant::now();
    let window = Duration::from_millis(5);
    let preferred = vec![16, 32];
    let mut queue = Queue::new(Policy { window, batch_samples_preferred: preferred, ..policy() });
    assert_eq!(queue.ready_at(), None);
    ticket(queue.offer(waiting(1, 8, now, 0)));
    assert_eq!(queue.ready_at(), Some(now + window));
    let later = now + Duration::from_millis(1);
    ticket(queue.offer(waiting(1, 8, later, 1)));
    assert_eq!(queue.ready_at(), Some(now), "16 samples are a preferred size");
    ticket(queue.offer(waiting(1, 8, later, 2)));
    assert_eq!(take(&mut queue, later).0, [0, 1], "the largest preferred size that fits");
    assert_eq!(queue.ready_at(), Some(later + window));
}

#[derive(Clone, Debug)]
enum Step {
    Offer { client: u64, samples: usize, late: bool },
    Take,
    Withdraw(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let offer = (0u64..5, 1usize..65, any::<bool>())
        .prop_map(|(client, samples, late)| Step::Offer { client, samples, late });
    let step =
        prop_oneof![6 => offer, 2 => Just(Step::Take), 1 => (0usize..20).prop_map(Step::Withdraw)];
    prop::collection::vec(step, 1..200)
}

proptest! {
    /// Every request leaves the queue once, in its client's order; bounds hold at every step; no
    /// client with something waiting is passed over by more than a batch and a request.
    #[test]
    fn nothing_is_lost_doubled_or_reordered(steps in steps(), preferred in prop::bool::ANY) {
        let now = Instant::now();
        let sizes = if preferred { vec![16, 48] } else { Vec::new() };
        let policy = Policy { batch_samples_preferred: sizes, ..policy() };
        let mut queue = Queue::new(policy.clone());
        let mut model: Vec<(u32, u64, usize, Ticket)> = Vec::new();
        let mut last: HashMap<u64, u32> = HashMap::new();
        for (item, step) in (0u32..).zip(steps) {
            match step {
                Step::Offer { client, samples, late } => {
                    let deadline = late.then_some(now);
                    let offered = queue.offer(Waiting { deadline, ..waiting(client, samples, now, item) });
                    let ticket = match offered {
                        Offered::Refused(back) => {
                            prop_assert_eq!(back.item, item);
                            let full = model.len() == policy.queue_requests_max
                                || queue.samples() + samples > policy.queue_samples_max;
                            prop_assert!(full, "refused while there is room");
                            continue;
                        }
                        Offered::Queued(ticket) => ticket,
                        Offered::Displaced(ticket, gone) => {
                            prop_assert_ne!(gone.client.0, client);
                            model.retain(|(item, ..)| *item != gone.item);
                            ticket
                        }
                    };
                    model.push((item, client, samples, ticket));
                }
                Step::Withdraw(at) => {
                    if let Some((item, .., ticket)) = model.get(at).copied() {
                        prop_assert_eq!(queue.remove(ticket).map(|one| one.item), Some(item));
                        model.remove(at);
                    }
                }
                Step::Take => {
                    let (mut batch, mut expired) = (Vec::new(), Vec::new());
                    queue.take(now, &mut batch, &mut expired);
                    let samples: usize = batch.iter().map(|one| one.samples).sum();
                    prop_assert!(samples <= policy.batch_samples_max);
                    prop_assert!(!batch.is_empty() || queue.is_empty());
                    for one in batch.iter().chain(&expired) {
                        let known = model.iter().position(|(item, ..)| *item == one.item);
                        prop_assert!(known.is_some(), "not waiting");
                        model.remove(known.unwrap());
                    }
                    let mut order: Vec<&Waiting<u32>> = batch.iter().chain(&expired).collect();
                    order.sort_by_key(|one| one.item);
                    for one in order {
                        let before = last.insert(one.client.0, one.item);
                        prop_assert!(before < Some(one.item), "a client's requests keep their order");
                    }
                }
            }
            prop_assert_eq!(queue.len(), model.len());
            let samples: usize = model.iter().map(|(_, _, samples, _)| samples).sum();
            prop_assert_eq!(queue.samples(), samples);
            prop_assert!(model.len() <= policy.queue_requests_max);
            prop_assert!(samples <= policy.queue_samples_max);
        }
    }
}
