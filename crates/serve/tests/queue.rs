//! The queue alone: bounds, order, fairness, deadlines and when batches are cut.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use hither_core::seed;
use hither_serve::infer::ClientId;
use hither_serve::pace::UnderWay;
use hither_serve::queue::{Offered, Policy, Queue, Ticket, Waiting};
use proptest::prelude::*;

fn policy() -> Policy {
    Policy {
        batch_cost_max: 64,
        batch_cost_preferred: Vec::new(),
        window: Duration::ZERO,
        queue_requests_max: 16,
        queue_cost_max: 1000,
    }
}

fn waiting(client: u64, cost: usize, arrived: Instant, item: u32) -> Waiting<u32> {
    Waiting { client: ClientId(client), cost, arrived, deadline: None, item }
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
    let mut queue = Queue::new(policy(), 1);
    for item in 0..16 {
        ticket(queue.offer(waiting(1, 10, now, item)));
    }
    assert!(matches!(queue.offer(waiting(1, 10, now, 16)), Offered::Refused(_)));
    assert_eq!(take(&mut queue, now).0, [0, 1, 2, 3, 4, 5], "a cost of 60 of 64");
    assert_eq!(queue.len(), 10);
    ticket(queue.offer(waiting(1, 10, now, 17)));
}

/// Computes one request of so many samples, which takes a time.
fn compute(queue: &mut Queue<u32>, samples: usize, begun: Instant, took: Duration) {
    ticket(queue.offer(waiting(9, samples, begun, 0)));
    let under_way = queue.take(begun, &mut Vec::new(), &mut Vec::new());
    queue.learn(&under_way.expect("a batch"), begun + took);
}

#[test]
fn what_cannot_be_answered_in_time_is_refused_at_once() {
    let ms = Duration::from_millis;
    let mut queue = Queue::new(policy(), 1);
    let begun = Instant::now();
    // Ten samples take four milliseconds: two requests can be answered within ten, and no third one.
    compute(&mut queue, 50, begun, ms(20));
    let now = begun + ms(20);
    let timed = |item| Waiting { deadline: Some(now + ms(10)), ..waiting(1, 10, now, item) };
    ticket(queue.offer(timed(0)));
    ticket(queue.offer(timed(1)));
    assert!(matches!(queue.offer(timed(2)), Offered::Refused(_)));
    ticket(queue.offer(waiting(1, 10, now, 3)));
    // Three milliseconds later both would be late in one batch; one by itself is not.
    assert_eq!(take(&mut queue, now + ms(3)), (vec![0], vec![]));
    assert_eq!(take(&mut queue, now + ms(7)), (vec![3], vec![1]));
}

#[test]
fn a_request_waits_for_the_batch_under_way() {
    let ms = Duration::from_millis;
    let begun = Instant::now();
    for (threads, is_queued) in [(1, false), (2, true)] {
        let mut queue = Queue::new(policy(), threads);
        compute(&mut queue, 50, begun, ms(20));
        let now = begun + ms(20);
        ticket(queue.offer(waiting(1, 20, now, 0)));
        take(&mut queue, now);
        // The batch ends in 8 ms, and this request takes 4 ms: too long for one thread, not for another one.
        let request = Waiting { deadline: Some(now + ms(10)), ..waiting(1, 10, now, 1) };
        let offered = queue.offer(request);
        assert_eq!(matches!(offered, Offered::Queued(_)), is_queued, "{threads} threads");
    }
}

#[test]
fn a_batch_that_failed_does_not_count_as_under_way() {
    let ms = Duration::from_millis;
    let mut queue = Queue::new(policy(), 2);
    let begun = Instant::now();
    compute(&mut queue, 50, begun, ms(20));
    // The first of three batches never tells its end. The others keep both threads busy for 8 ms.
    for (at, item) in [(20, 0), (120, 1), (120, 2)] {
        ticket(queue.offer(waiting(1, 20, begun + ms(at), item)));
        take(&mut queue, begun + ms(at));
    }
    let now = begun + ms(120);
    let request = Waiting { deadline: Some(now + ms(10)), ..waiting(1, 10, now, 3) };
    assert!(matches!(queue.offer(request), Offered::Refused(_)));
}

/// Other models compute on the same threads, and a GPU takes one batch at a time.
#[test]
fn waiting_for_a_thread_counts_against_deadlines() {
    let ms = Duration::from_millis;
    let begun = Instant::now();
    for (wait, is_queued) in [(ms(0), true), (ms(30), false)] {
        let mut queue = Queue::new(policy(), 2);
        compute(&mut queue, 50, begun, ms(20));
        (0..100).for_each(|_| queue.waited(wait));
        let now = begun + ms(20);
        ticket(queue.offer(waiting(1, 10, now, 0)));
        let request = Waiting { deadline: Some(now + ms(20)), ..waiting(2, 10, now, 1) };
        let offered = queue.offer(request);
        assert_eq!(matches!(offered, Offered::Queued(_)), is_queued, "{wait:?}");
    }
}

#[test]
fn a_pace_that_nobody_could_keep_is_tried_again() {
    let mut queue = Queue::new(policy(), 1);
    let begun = Instant::now();
    compute(&mut queue, 1, begun, Duration::from_secs(1000));
    let now = begun + Duration::from_secs(1000);
    let deadline = Some(now + Duration::from_millis(10));
    let timed = |item| Waiting { deadline, ..waiting(1, 10, now, item) };
    ticket(queue.offer(timed(4)));
    assert!(matches!(queue.offer(timed(5)), Offered::Refused(_)));
    assert_eq!(take(&mut queue, now), (vec![4], vec![]));
}

/// What became of requests in a simulated overload.
#[derive(Debug, Default)]
struct Overload {
    refused: usize,
    /// Refused after they had been queued.
    expired: usize,
    answered: usize,
    answered_late: usize,
}

/// One of the models that share threads. At most one job of it waits for a thread, since it was due.
struct Model {
    queue: Queue<u32>,
    due: Option<Instant>,
    next_arrival: Instant,
}

/// Offers three times what the threads can compute to some models together, in simulated time. A batch takes 0.2 ms
/// and 40 us per sample, and up to a quarter more or less.
fn overload(models: usize, threads: usize) -> Overload {
    let policy = Policy { batch_cost_max: 256, queue_requests_max: 1024, ..policy() };
    let policy = Policy { queue_cost_max: 1 << 20, ..policy };
    let mut chance = seed::stream(1, "overload");
    let begun = Instant::now();
    let new =
        |_| Model { queue: Queue::new(policy.clone(), threads), due: None, next_arrival: begun };
    let mut models: Vec<Model> = (0..models).map(new).collect();
    let gap_s = 16.0 * 40e-6 / threads as f64 / 3.0 * models.len() as f64;
    let mut running: Vec<(Instant, usize, UnderWay, Vec<Waiting<u32>>)> = Vec::new();
    let mut seen = Overload::default();
    for _ in 0..60_000 {
        let next = (0..models.len()).min_by_key(|model| models[*model].next_arrival);
        let next = next.expect("a model");
        let arrival = models[next].next_arrival;
        let ended = running.iter().map(|(end, ..)| *end).min().filter(|end| *end < arrival);
        let now = ended.unwrap_or(arrival);
        if ended.is_some() {
            let at = running.iter().position(|(end, ..)| *end == now).expect("it runs");
            let (_, model, under_way, batch) = running.swap_remove(at);
            models[model].queue.learn(&under_way, now);
            let late = batch.iter().filter(|waiting| waiting.deadline < Some(now)).count();
            seen.answered += batch.len() - late;
            seen.answered_late += late;
        } else {
            let gap_s = -(1.0 - chance.random::<f64>()).ln() * gap_s;
            models[next].next_arrival = now + Duration::from_secs_f64(gap_s);
            let deadline = Some(now + Duration::from_millis(10));
            let request = Waiting { deadline, ..waiting(1, 16, now, 0) };
            let offered = models[next].queue.offer(request);
            seen.refused += usize::from(matches!(offered, Offered::Refused(_)));
        }
        loop {
            for model in models.iter_mut().filter(|model| !model.queue.is_empty()) {
                model.due = model.due.or(Some(now));
            }
            let first = (0..models.len()).filter(|model| models[*model].due.is_some());
            let first = first.min_by_key(|model| models[*model].due);
            let Some(model) = first.filter(|_| running.len() < threads) else { break };
            let Model { queue, due, .. } = &mut models[model];
            queue.waited(now - due.take().expect("it is due"));
            let (mut batch, mut expired) = (Vec::new(), Vec::new());
            let under_way = queue.take(now, &mut batch, &mut expired);
            seen.expired += expired.len();
            let Some(under_way) = under_way else { continue };
            let samples: usize = batch.iter().map(|waiting| waiting.cost).sum();
            let took_s = (0.2e-3 + 40e-6 * samples as f64) * chance.random_range(0.75..1.25);
            running.push((now + Duration::from_secs_f64(took_s), model, under_way, batch));
        }
    }
    seen
}

#[test]
fn in_an_overload_requests_are_refused_at_once_and_the_rest_is_answered() {
    for (models, threads) in [(1, 1), (1, 4), (2, 1), (2, 4), (5, 2)] {
        let seen = overload(models, threads);
        let ended = seen.refused + seen.expired + seen.answered + seen.answered_late;
        let shows = format!("{models} models, {threads} threads: {seen:?}");
        // How long others keep the threads is known less exactly than one's own pace.
        let (expired, late) = if models == 1 { (100, 100) } else { (10, 50) };
        assert!(seen.expired * expired < seen.refused, "{shows}");
        assert!(seen.answered_late * late < seen.answered, "{shows}");
        assert!(seen.answered * 100 > 28 * ended, "{shows}");
    }
}

#[test]
fn a_client_with_one_request_does_not_wait_for_one_with_many() {
    let now = Instant::now();
    let mut queue = Queue::new(policy(), 1);
    for item in 0..12 {
        ticket(queue.offer(waiting(1, 16, now, item)));
    }
    ticket(queue.offer(waiting(2, 16, now, 100)));
    assert_eq!(take(&mut queue, now).0, [0, 100, 1, 2]);
}

#[test]
fn cost_counts_for_fairness_and_not_requests() {
    let now = Instant::now();
    let mut queue = Queue::new(policy(), 1);
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
    let mut queue = Queue::new(policy(), 1);
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
    let mut queue = Queue::new(policy(), 1);
    let first = ticket(queue.offer(waiting(1, 8, now, 0)));
    ticket(queue.offer(waiting(1, 8, now, 1)));
    assert_eq!(queue.remove(first).map(|waiting| waiting.item), Some(0));
    assert!(queue.remove(first).is_none());
    assert_eq!(queue.cost(), 8);
    assert_eq!(take(&mut queue, now).0, [1]);
    assert!(queue.is_empty() && queue.ready_at().is_none());
}

#[test]
fn late_requests_are_set_aside_and_cost_no_room_in_the_batch() {
    let now = Instant::now();
    let mut queue = Queue::new(policy(), 1);
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
    let mut queue = Queue::new(Policy { window, batch_cost_preferred: preferred, ..policy() }, 1);
    assert_eq!(queue.ready_at(), None);
    ticket(queue.offer(waiting(1, 8, now, 0)));
    assert_eq!(queue.ready_at(), Some(now + window));
    let later = now + Duration::from_millis(1);
    ticket(queue.offer(waiting(1, 8, later, 1)));
    assert_eq!(queue.ready_at(), Some(now), "16 is a preferred size");
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
    /// Every request leaves the queue once, in its client's order, and bounds hold at every step.
    #[test]
    fn nothing_is_lost_doubled_or_reordered(steps in steps(), preferred in prop::bool::ANY) {
        let now = Instant::now();
        let sizes = if preferred { vec![16, 48] } else { Vec::new() };
        let policy = Policy { batch_cost_preferred: sizes, ..policy() };
        let mut queue = Queue::new(policy.clone(), 1);
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
                                || queue.cost() + samples > policy.queue_cost_max;
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
                    let samples: usize = batch.iter().map(|one| one.cost).sum();
                    prop_assert!(samples <= policy.batch_cost_max);
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
            prop_assert_eq!(queue.cost(), samples);
            prop_assert!(model.len() <= policy.queue_requests_max);
            prop_assert!(samples <= policy.queue_cost_max);
        }
    }
}

/// Costs of usual requests, and now and then of one with a million ids.
fn cost() -> impl Strategy<Value = usize> {
    prop_oneof![6 => 1usize..33, 1 => 300usize..5000]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Clients of all kinds load the queue for 20,000 batches: some ask again at once and some a batch later,
    /// some come under a new name each time, and some send requests that cost more than a batch. At every
    /// moment, each client that has had something waiting since it was last idle got its share of the work to
    /// within one batch and one request, because a request is not cut.
    #[test]
    fn no_client_that_waits_gets_less_than_its_share(
        kinds in prop::collection::vec((1usize..8, cost(), any::<bool>()), 2..8),
        limit in prop::sample::select(vec![16usize, 64, 256]),
    ) {
        let now = Instant::now();
        let sizes = Policy { batch_cost_max: limit, queue_requests_max: 1 << 12, ..policy() };
        let mut queue = Queue::new(Policy { queue_cost_max: 1 << 20, ..sizes }, 1);
        // Clients of the last kind come with a new name each time, as callers without lasting connections do.
        let strangers = kinds.len() as u64 - 1;
        let mut name = 1000;
        let mut offer = |queue: &mut Queue<u32>, kind: u64| {
            let (_, cost, _) = kinds[kind as usize];
            name += u64::from(kind == strangers);
            let client = if kind == strangers { name } else { kind };
            ticket(queue.offer(waiting(client, cost, now, kind as u32)));
        };
        for (kind, (depth, ..)) in (0u64..).zip(&kinds) {
            (0..*depth).for_each(|_| offer(&mut queue, kind));
        }
        let largest = kinds.iter().map(|(_, cost, _)| *cost).max().expect("some kinds");
        let mut late: Vec<u64> = Vec::new();
        let mut got = vec![0.0; kinds.len()];
        let mut share = vec![0.0; kinds.len()];
        for batch in 0..20_000 {
            let mut taken = Vec::new();
            queue.take(now, &mut taken, &mut Vec::new());
            let cost: usize = taken.iter().map(|one| one.cost).sum();
            // Those that had something waiting all the time divide the batch.
            let waited: Vec<bool> = (0..kinds.len())
                .map(|kind| kinds[kind].2 && kinds[kind].0 > 1 && kind as u64 != strangers)
                .collect();
            let clients = kinds.len() - 1 + kinds[strangers as usize].0;
            for (kind, waited) in waited.iter().enumerate() {
                let mine: usize =
                    taken.iter().filter(|one| one.item == kind as u32).map(|one| one.cost).sum();
                got[kind] += mine as f64;
                share[kind] += cost as f64 / clients as f64;
                let behind = share[kind] - got[kind];
                let allowed = (limit.max(largest) + largest) as f64;
                // A client is idle while all it has is being computed, and then has no claim.
                let had_all = kinds[kind].0 * kinds[kind].1 <= mine;
                if had_all {
                    share[kind] = got[kind];
                } else if *waited {
                    prop_assert!(
                        behind <= allowed,
                        "batch {batch}: client {kind} is {behind} behind, of {kinds:?}"
                    );
                }
            }
            // Answers take a batch's time to reach their callers, who then ask again.
            for kind in std::mem::take(&mut late) {
                offer(&mut queue, kind);
            }
            for one in taken {
                match kinds[one.item as usize].2 {
                    true => offer(&mut queue, u64::from(one.item)),
                    false => late.push(u64::from(one.item)),
                }
            }
        }
    }
}

/// Virtual time that runs ahead of a client's turns would take from it what it has a right to.
#[test]
fn a_client_with_little_waiting_keeps_its_share_beside_requests_larger_than_a_batch() {
    let now = Instant::now();
    let sizes = Policy { batch_cost_max: 16, ..policy() };
    let mut queue = Queue::new(sizes, 1);
    let (mut name, mut got) = (100, [0, 0]);
    let mut offer = |queue: &mut Queue<u32>, is_heavy: u32| {
        name += 1;
        let (client, cost) = if is_heavy == 1 { (name, 300) } else { (1, 5) };
        ticket(queue.offer(waiting(client, cost, now, is_heavy)));
    };
    [0, 0, 0, 0, 1, 1].into_iter().for_each(|is_heavy| offer(&mut queue, is_heavy));
    for _ in 0..20_000 {
        for is_heavy in take(&mut queue, now).0 {
            got[is_heavy as usize] += if is_heavy == 1 { 300 } else { 5 };
            offer(&mut queue, is_heavy);
        }
    }
    // One of three that always wait.
    let share = got[0] as f64 / (got[0] + got[1]) as f64;
    assert!((share - 1.0 / 3.0).abs() < 0.005, "{share}: {got:?}");
}

/// The loads that starve a multiplexed connection where a lane is forgotten as soon as it is empty.
#[test]
fn many_requests_of_one_client_are_served_beside_callers_that_saturate() {
    let now = Instant::now();
    for (callers, size, backlog, cost, limit) in
        [(3, 4096, 10, 16, 4096), (200, 64, 50, 64, 4096), (12, 16, 10, 16, 64)]
    {
        let sizes = Policy { batch_cost_max: limit, queue_requests_max: 1 << 12, ..policy() };
        let mut queue = Queue::new(Policy { queue_cost_max: 1 << 20, ..sizes }, 1);
        for client in 1..=callers {
            ticket(queue.offer(waiting(client, size, now, client as u32)));
        }
        for _ in 0..backlog {
            ticket(queue.offer(waiting(0, cost, now, 0)));
        }
        let (mut left, mut batches, mut late) = (backlog, 0, Vec::new());
        while left > 0 {
            let (batch, _) = take(&mut queue, now);
            left -= batch.iter().filter(|item| **item == 0).count();
            for client in std::mem::take(&mut late) {
                ticket(queue.offer(waiting(u64::from(client), size, now, client)));
            }
            late = batch.into_iter().filter(|item| *item > 0).collect();
            batches += 1;
            // All work that waits ahead of the last of them in virtual time, and some.
            let fair = (callers as usize + 1) * backlog * cost / limit + 4 * callers as usize + 4;
            assert!(batches <= fair, "{left} of {backlog} wait after {batches} batches");
        }
    }
}
