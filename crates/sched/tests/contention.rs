//! Sharing of links among running jobs: the max-min property, and shares worked out by hand.

mod common;

use std::collections::BTreeMap;

use common::{GB, assert_close, placed, profile, topology};
use hither_core::topology::{LEVELS_MAX, Link, Topology};
use hither_sched::cluster::{Cluster, Placement};
use hither_sched::contention::{Contention, LinkDemand, fill, max_min};
use hither_sched::job::{JobId, Profile};
use hither_sched::network::{Network, Shape};
use proptest::prelude::*;

fn flow(links: &[usize], most: f64) -> LinkDemand {
    LinkDemand { links: links.iter().map(|&l| (l, 1.0)).collect(), most }
}

fn load(demands: &[LinkDemand], rates: &[f64], link: usize) -> f64 {
    let on_link = |d: &LinkDemand| d.links.iter().filter(|l| l.0 == link).map(|l| l.1).sum::<f64>();
    demands.iter().zip(rates).map(|(d, rate)| on_link(d) * rate).sum()
}

#[test]
fn the_textbook_example() {
    // A crosses both links, B the small one, C the large one: A and B split the small link, and C
    // gets all that A leaves.
    let demands = [flow(&[0, 1], 9.0), flow(&[0], 9.0), flow(&[1], 9.0)];
    let (rates, left, level) = max_min(&[1.0, 2.0], &demands);
    for (got, want) in rates.iter().zip([0.5, 0.5, 1.5]) {
        assert_close(*got, want);
    }
    assert!(left.iter().all(|l| l.abs() < 1e-9));
    assert_close(level[0], 0.5);
    assert_close(level[1], 1.5);
}

#[test]
fn three_bottlenecks_one_after_the_other() {
    // Link 0 (6) holds A, B, C at 2; link 1 (10) then gives D 8; link 2 (3) is E's alone, which
    // wants but 1.
    let demands = [
        flow(&[0], 99.0),
        flow(&[0], 99.0),
        flow(&[0, 1], 99.0),
        flow(&[1], 99.0),
        flow(&[2], 1.0),
    ];
    let (rates, left, _) = max_min(&[6.0, 10.0, 3.0], &demands);
    for (got, want) in rates.iter().zip([2.0, 2.0, 2.0, 8.0, 1.0]) {
        assert_close(*got, want);
    }
    assert_close(left[2], 2.0);
}

#[test]
fn a_flow_that_loads_a_link_twice_counts_twice() {
    // 3 units of load for each unit of rate that both have: 12 / 3.
    let twice = LinkDemand { links: vec![(0, 2.0)], most: 99.0 };
    let (rates, ..) = max_min(&[12.0], &[twice, flow(&[0], 99.0)]);
    assert_close(rates[0], 4.0);
    assert_close(rates[1], 4.0);
}

#[test]
fn bursts_get_what_the_others_leave() {
    // Alone: all of the link, however little is wanted on average.
    assert_close(fill(&[10.0], &[flow(&[0], 1.0)])[0], 10.0);
    // Both want all: half each.
    let bursts = fill(&[10.0], &[flow(&[0], 99.0), flow(&[0], 99.0)]);
    assert_close(bursts[0], 5.0);
    assert_close(bursts[1], 5.0);
    // One wants little: the other gets the rest, not half.
    let bursts = fill(&[10.0], &[flow(&[0], 1.0), flow(&[0], 99.0)]);
    assert_close(bursts[1], 9.0);
    assert!(bursts[0] >= 1.0);
    // Neither fills the link: each may use what the other does not, and at least its half.
    let bursts = fill(&[10.0], &[flow(&[0], 3.0), flow(&[0], 4.0)]);
    assert_close(bursts[0], 6.0);
    assert_close(bursts[1], 7.0);
    let bursts = fill(&[10.0], &[flow(&[0], 0.5), flow(&[0], 9.0)]);
    assert_close(bursts[0], 5.0);
    assert_close(bursts[1], 9.5);
    // Even where the others stop higher, nobody gets more than the link holds for it alone.
    let twice = LinkDemand { links: vec![(0, 2.0)], most: 0.5 };
    let bursts = fill(&[10.0], &[twice, flow(&[0], 99.0)]);
    assert_close(bursts[0], 5.0);
    assert_close(bursts[1], 9.0);
}

fn networks() -> impl Strategy<Value = (Vec<f64>, Vec<LinkDemand>)> {
    let capacity = prop::collection::vec(0.5..100.0f64, 1..6);
    capacity.prop_flat_map(|capacity| {
        let links = prop::collection::btree_map(0..capacity.len(), 1..4u32, 1..=capacity.len());
        let demand = (links, prop_oneof![0.01..50.0f64, Just(1e4)]).prop_map(|(links, most)| {
            let links = links.into_iter().map(|(l, w)| (l, f64::from(w))).collect();
            LinkDemand { links, most }
        });
        (Just(capacity), prop::collection::vec(demand, 1..10))
    })
}

proptest! {
    #[test]
    fn everybody_has_what_it_wants_or_a_full_link_where_nobody_has_more(
        (capacity, demands) in networks(),
    ) {
        let (rates, left, _) = max_min(&capacity, &demands);
        for (link, &room) in capacity.iter().enumerate() {
            let load = load(&demands, &rates, link);
            prop_assert!(load <= room * (1.0 + 1e-6), "link {link} carries {load} of {room}");
            prop_assert!((room - load - left[link]).abs() <= 1e-6 * room);
        }
        for (demand, &rate) in demands.iter().zip(&rates) {
            prop_assert!(rate >= 0.0 && rate <= demand.most * (1.0 + 1e-9));
            if rate >= demand.most * (1.0 - 1e-6) {
                continue;
            }
            let bottleneck = |&(link, _): &(usize, f64)| {
                let full = load(&demands, &rates, link) >= capacity[link] * (1.0 - 1e-6);
                let crosses = |d: &LinkDemand| d.links.iter().any(|l| l.0 == link);
                let mut others = demands.iter().zip(&rates).filter(|(d, _)| crosses(d));
                full && others.all(|(_, &other)| other <= rate * (1.0 + 1e-6))
            };
            prop_assert!(demand.links.iter().any(bottleneck), "no bottleneck at {rate}");
        }
    }

    #[test]
    fn rates_agree_with_filling_in_tiny_steps((capacity, demands) in networks()) {
        let (rates, ..) = max_min(&capacity, &demands);
        let step = 0.002;
        let mut slow = vec![0.0; demands.len()];
        let mut rising = vec![true; demands.len()];
        while rising.contains(&true) {
            for at in 0..demands.len() {
                let full = |l: &(usize, f64)| load(&demands, &slow, l.0) + l.1 * step > capacity[l.0];
                rising[at] &= slow[at] + step <= demands[at].most;
                rising[at] &= !demands[at].links.iter().any(full);
                slow[at] += if rising[at] { step } else { 0.0 };
            }
        }
        for (fast, slow) in rates.iter().zip(&slow) {
            // A link stops its flows up to one step each too early, which others then gain.
            prop_assert!((fast - slow).abs() <= 0.5, "{rates:?} {slow:?}");
        }
    }

    #[test]
    fn bursts_lie_between_the_fair_share_and_the_whole_link((capacity, demands) in networks()) {
        let (rates, ..) = max_min(&capacity, &demands);
        let ones = vec![1.0; demands.len()];
        for ((demand, burst), rate) in demands.iter().zip(fill(&capacity, &demands)).zip(rates) {
            prop_assert!(burst >= rate * (1.0 - 1e-6), "slower than its own average");
            let alone = demand.links.iter().map(|&(l, w)| capacity[l] / w);
            let most = alone.fold(f64::INFINITY, f64::min);
            prop_assert!(burst <= most * (1.0 + 1e-6), "faster than alone");
            let shared = demand.links.iter().map(|&(l, _)| capacity[l] / load(&demands, &ones, l));
            let fair = shared.fold(f64::INFINITY, f64::min);
            prop_assert!(burst >= fair * (1.0 - 1e-6), "less than an equal part");
        }
    }
}

/// A network of running jobs, and the shares that starts and stops have reported.
struct Wire {
    cluster: Cluster,
    network: Network,
    contention: Contention,
    running: BTreeMap<JobId, (Profile, Placement)>,
    shares: BTreeMap<JobId, [f64; LEVELS_MAX]>,
}

impl Wire {
    fn new(topology: &Topology) -> Self {
        let network = Network::new(topology, 1.0);
        Self {
            cluster: Cluster::new(topology),
            contention: Contention::new(&network),
            network,
            running: BTreeMap::new(),
            shares: BTreeMap::new(),
        }
    }

    fn start(&mut self, id: JobId, gigabytes: f64, slots: &[(u32, u32)]) {
        let placement = placed(&self.cluster, slots);
        let model = profile(gigabytes);
        self.contention.start(id, &model, &placement, &self.cluster, &self.network);
        let changed = self.contention.settle();
        assert!(changed.iter().any(|c| c.0 == id), "the new job is told its share");
        self.note(changed);
        self.running.insert(id, (model, placement));
    }

    fn stop(&mut self, id: JobId) {
        self.contention.stop(id);
        let changed = self.contention.settle();
        assert!(changed.iter().all(|c| c.0 != id), "who is gone has no share");
        self.note(changed);
        self.running.remove(&id);
        self.shares.remove(&id);
    }

    fn note(&mut self, changed: Vec<(JobId, Shape)>) {
        self.shares.extend(changed.into_iter().map(|(id, shape)| (id, shape.share)));
    }

    /// The shares of the same jobs, all started at once on a network that knows nothing.
    fn started_anew(&self) -> BTreeMap<JobId, [f64; LEVELS_MAX]> {
        let mut contention = Contention::new(&self.network);
        for (&id, (model, placement)) in &self.running {
            contention.start(id, model, placement, &self.cluster, &self.network);
        }
        let shares = contention.settle();
        shares.into_iter().map(|(id, shape)| (id, shape.share)).collect()
    }

    fn nic(&self, id: JobId) -> f64 {
        self.shares[&id][1] / GB
    }

    fn uplink(&self, id: JobId) -> f64 {
        self.shares[&id][2] / GB
    }
}

#[test]
fn two_equal_jobs_that_saturate_an_uplink_get_half_each() {
    // Both rings cross from rack 0 to rack 1 on machines of their own. Alone: 1 s computing and
    // 1 GB at 0.5 GB/s, so 1/3 GB/s on average; two of them want more than the uplink has.
    let mut wire = Wire::new(&topology(&[(0, 1), (0, 1), (1, 1), (1, 1)]));
    wire.start(0, 1.0, &[(0, 1), (2, 1)]);
    assert_close(wire.uplink(0), 0.5);
    wire.start(1, 1.0, &[(1, 1), (3, 1)]);
    assert_close(wire.uplink(0), 0.25);
    assert_close(wire.uplink(1), 0.25);
    assert_close(wire.nic(0), 1.0);
    wire.stop(0);
    assert_close(wire.uplink(1), 0.5);
}

#[test]
fn an_overloaded_link_is_noticed() {
    // Two rings send 1 GB each per iteration through uplinks of 0.5 GB/s.
    let mut wire = Wire::new(&topology(&[(0, 1), (0, 1), (1, 1), (1, 1)]));
    wire.start(0, 1.0, &[(0, 1), (2, 1)]);
    wire.start(1, 1.0, &[(1, 1), (3, 1)]);
    assert_eq!(wire.contention.overload(|_| 0.25, 1e-6), None);
    let (level, share) = wire.contention.overload(|_| 0.26, 1e-6).expect("it is too much");
    assert_eq!(level, 2);
    assert_close(share, 1.04);
}

#[test]
fn two_equal_jobs_that_saturate_a_card_get_half_each() {
    // 9 GB at 1 GB/s and 1 s computing: 0.9 GB/s on average.
    let mut wire = Wire::new(&topology(&[(0, 2), (0, 2), (0, 2)]));
    wire.start(0, 9.0, &[(0, 1), (1, 1)]);
    assert_close(wire.nic(0), 1.0);
    wire.start(1, 9.0, &[(1, 1), (2, 1)]);
    assert_close(wire.nic(0), 0.5);
    assert_close(wire.nic(1), 0.5);
    wire.stop(1);
    assert_close(wire.nic(0), 1.0);
}

#[test]
fn a_light_job_does_not_take_a_heavy_ones_share() {
    let mut wire = Wire::new(&topology(&[(0, 2), (0, 2)]));
    wire.start(0, 9.0, &[(0, 1), (1, 1)]);
    // 1 GB every 25 s is 0.04 GB/s: 24 s of computing and 1 s of communication.
    let placement = placed(&wire.cluster, &[(0, 1), (1, 1)]);
    let light = Profile { compute_s: 24.0, ..profile(1.0) };
    wire.contention.start(1, &light, &placement, &wire.cluster, &wire.network);
    let changed = wire.contention.settle();
    wire.note(changed);
    assert_close(wire.nic(0), 0.96);
}

#[test]
fn jobs_apart_do_not_feel_each_other() {
    let mut wire = Wire::new(&topology(&[(0, 2), (0, 2), (0, 2), (0, 2), (1, 2)]));
    wire.start(0, 50.0, &[(0, 1), (1, 1)]);
    wire.start(1, 50.0, &[(2, 1), (3, 1)]);
    wire.start(2, 50.0, &[(4, 2)]);
    assert_close(wire.nic(0), 1.0);
    assert_close(wire.nic(1), 1.0);
    // A third job ties them together.
    wire.start(3, 50.0, &[(1, 1), (2, 1)]);
    assert_close(wire.nic(0), 0.5);
    assert_close(wire.nic(1), 0.5);
}

#[test]
fn a_core_that_fills_slows_jobs_of_different_racks() {
    // Each job puts its rate on the core once for either rack. A core of 1 GB/s has 0.5 GB/s for
    // two racks; two jobs of 10 GB want 10/21 GB/s each, four times which is more than 1.
    let mut core = topology(&[(0, 1), (1, 1), (2, 1), (3, 1)]);
    core.levels[2].core = Some(Link::Gbit(8.0));
    let mut wire = Wire::new(&core);
    wire.start(0, 10.0, &[(0, 1), (1, 1)]);
    assert_close(wire.uplink(0), 0.5);
    wire.start(1, 10.0, &[(2, 1), (3, 1)]);
    assert_close(wire.uplink(0), 0.25);
    assert_close(wire.uplink(1), 0.25);
}

#[derive(Debug, Clone)]
enum Step {
    Start(f64, Vec<(u32, u32)>),
    Stop(usize),
}

proptest! {
    #[test]
    fn starts_and_stops_leave_the_same_shares_as_starting_started_anew(
        steps in prop::collection::vec(
            prop_oneof![
                2 => (0.01..20.0f64, prop::collection::btree_map(0..8u32, 1..3u32, 1..5))
                    .prop_map(|(gb, slots)| Step::Start(gb, slots.into_iter().collect())),
                1 => (0..64usize).prop_map(Step::Stop),
            ],
            1..30,
        ),
    ) {
        let mut topology = topology(&(0..8).map(|m| (m / 3, 8)).collect::<Vec<_>>());
        topology.levels[2].core = Some(Link::Gbit(10.0));
        let mut wire = Wire::new(&topology);
        for (id, step) in (0..).zip(steps) {
            match step {
                Step::Start(gigabytes, slots) => wire.start(id, gigabytes, &slots),
                Step::Stop(at) if !wire.running.is_empty() => {
                    let ids: Vec<JobId> = wire.running.keys().copied().collect();
                    wire.stop(ids[at % ids.len()]);
                }
                Step::Stop(_) => {}
            }
            let fresh = wire.started_anew();
            prop_assert_eq!(fresh.len(), wire.shares.len());
            for (id, want) in fresh {
                let got = wire.shares[&id];
                for (got, want) in got.iter().zip(want) {
                    let same = *got == want || (got / want - 1.0).abs() < 1e-6;
                    prop_assert!(same, "{got:?} {want:?}");
                }
            }
        }
    }
}

/// Max-min rates by the rule of the smallest bottleneck: the link with the least for each of its flows
/// stops them all; a demand is a link of its own.
fn bottlenecks(capacity: &[f64], demands: &[LinkDemand]) -> Vec<f64> {
    let mut rates: Vec<Option<f64>> = vec![None; demands.len()];
    while rates.contains(&None) {
        let share = |link: usize| {
            let (mut left, mut weight) = (capacity[link], 0.0);
            for (demand, rate) in demands.iter().zip(&rates) {
                for &(_, w) in demand.links.iter().filter(|l| l.0 == link) {
                    match rate {
                        Some(rate) => left -= rate * w,
                        None => weight += w,
                    }
                }
            }
            if weight > 0.0 { left.max(0.0) / weight } else { f64::INFINITY }
        };
        let shares: Vec<f64> = (0..capacity.len()).map(share).collect();
        let open = |at: &usize| rates[*at].is_none();
        let fair = |at: usize| {
            let links = demands[at].links.iter().map(|l| shares[l.0]);
            links.fold(demands[at].most, f64::min)
        };
        let all: Vec<(usize, f64)> =
            (0..demands.len()).filter(open).map(|at| (at, fair(at))).collect();
        let least = all.iter().map(|a| a.1).fold(f64::INFINITY, f64::min);
        for (at, rate) in all {
            if rate <= least * (1.0 + 1e-12) {
                rates[at] = Some(least);
            }
        }
    }
    rates.into_iter().flatten().collect()
}

/// The bursts of all jobs on one level, from all its links at once.
fn plain_shares(wire: &Wire, level: usize) -> BTreeMap<JobId, f64> {
    let (links, cores) = (&wire.network.links[level], &wire.network.cores[level]);
    let capacity: Vec<f64> = links.iter().chain(cores).copied().collect();
    let mut ids = Vec::new();
    let mut demands = Vec::new();
    for (&id, (model, placement)) in &wire.running {
        let shape = wire.network.shape(&wire.cluster, placement);
        if placement.tier.level() < level {
            continue;
        }
        let mut loads: BTreeMap<usize, f64> = BTreeMap::new();
        let mut parts: Vec<(u32, u32)> = placement
            .slots
            .iter()
            .map(|s| wire.cluster.machines[s.machine as usize].within)
            .map(|within| (within[level - 1], within[level]))
            .collect();
        parts.sort_unstable();
        parts.dedup();
        for (part, place) in parts {
            loads.insert(part as usize, 1.0);
            *loads.entry(links.len() + place as usize).or_default() += 1.0;
        }
        let alone_s = wire.network.iteration_s(model, &shape);
        let most = wire.network.traffic(model.gradient_bytes, &shape)[level] / alone_s;
        demands.push(LinkDemand { links: loads.into_iter().collect(), most });
        ids.push(id);
    }
    let rates = bottlenecks(&capacity, &demands);
    let burst = |at: usize| {
        let on = |&(link, weight): &(usize, f64)| {
            let room = capacity[link];
            let used = load(&demands, &rates, link);
            let all = load(&demands, &vec![1.0; demands.len()], link);
            let full = used >= room * (1.0 - 1e-9);
            let crossing =
                demands.iter().zip(&rates).filter(|(d, _)| d.links.iter().any(|l| l.0 == link));
            let level = if full { crossing.map(|(_, r)| *r).fold(0.0, f64::max) } else { 0.0 };
            let spare = rates[at] + (room - used).max(0.0) / weight;
            spare.max(level).max(room / all).min(room / weight)
        };
        demands[at]
            .links
            .iter()
            .filter(|l| capacity[l.0].is_finite())
            .map(on)
            .fold(f64::INFINITY, f64::min)
    };
    ids.into_iter().enumerate().map(|(at, id)| (id, burst(at))).collect()
}

proptest! {
    #[test]
    fn shares_at_any_depth_are_those_of_a_plain_max_min(
        (topology, jobs) in common::any_tree().prop_flat_map(|t| {
            let job = (0.01..20.0f64, common::some_slots(t.machines.len()));
            (Just(t), prop::collection::vec(job, 1..8))
        }),
        stops in prop::collection::vec(0..8u32, 0..4),
    ) {
        let mut wire = Wire::new(&topology);
        for (id, (gigabytes, slots)) in (0..).zip(jobs) {
            wire.start(id, gigabytes, &slots);
        }
        for id in stops {
            if wire.running.contains_key(&id) {
                wire.stop(id);
            }
        }
        for level in 1..topology.levels.len() {
            for (id, want) in plain_shares(&wire, level) {
                let got = wire.shares[&id][level];
                let same = got == want || (got / want - 1.0).abs() < 1e-6;
                prop_assert!(same, "job {id} at level {level}: {got} {want}");
            }
        }
    }
}
