//! How jobs slow each other on shared links: the max-min property, and paces worked out by hand.

use crate::common;

use std::collections::BTreeMap;

use common::{GB, assert_close, placed, profile, topology};
use hither_core::topology::{LEVELS_MAX, Link, Topology};
use hither_sched::cluster::{Cluster, Placement};
use hither_sched::contention::{Contention, Trial};
use hither_sched::job::{JobId, Profile};
use hither_sched::network::{Network, Shape};
use proptest::prelude::*;

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

    fn trial(&mut self, id: JobId, gigabytes: f64, slots: &[(u32, u32)]) -> Trial {
        let Self { cluster, network, contention, .. } = self;
        let placement = placed(cluster, slots);
        let shape = network.shape(cluster, &placement);
        contention.trial(id, &profile(gigabytes), &placement, &shape, cluster, network)
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

    /// Time of an iteration, and how much longer its communication takes than alone.
    fn pace(&self, id: JobId) -> (f64, f64) {
        let (model, placement) = &self.running[&id];
        let alone = self.network.shape(&self.cluster, placement);
        let shape = Shape { share: self.shares[&id], ..alone };
        let stretch = if alone.machines > 1 { alone.share[1] / shape.share[1] } else { 1.0 };
        (self.network.iteration_s(model, &shape), stretch)
    }

    /// The links of one level that a job uses, and the bytes that an iteration sends through each. The
    /// cores follow the links of the parts.
    fn links(&self, id: JobId, level: usize) -> BTreeMap<usize, f64> {
        let (model, placement) = &self.running[&id];
        let shape = self.network.shape(&self.cluster, placement);
        let mut links = BTreeMap::new();
        if placement.tier.level() < level {
            return links;
        }
        let bytes = self.network.traffic(model.gradient_bytes, &shape)[level];
        let within = |machine: u32| self.cluster.machines[machine as usize].within;
        let mut parts: Vec<(u32, u32)> = (placement.slots.iter())
            .map(|slot| (within(slot.machine)[level - 1], within(slot.machine)[level]))
            .collect();
        parts.sort_unstable();
        parts.dedup();
        for (part, place) in parts {
            links.insert(part as usize, bytes);
            let core = self.network.links[level].len() + place as usize;
            *links.entry(core).or_default() += bytes;
        }
        links
    }
}

#[test]
fn two_equal_jobs_share_an_uplink_that_never_rests() {
    // Both rings cross from rack 0 to rack 1 on machines of their own. Alone: 1 s computing and 1 GB at
    // 0.5 GB/s, 3 s. Together the uplink carries 2 GB in 4 s.
    let mut wire = Wire::new(&topology(&[(0, 1), (0, 1), (1, 1), (1, 1)]));
    wire.start(0, 1.0, &[(0, 1), (2, 1)]);
    assert_close(wire.uplink(0), 0.5);
    wire.start(1, 1.0, &[(1, 1), (3, 1)]);
    for id in [0, 1] {
        assert_close(wire.pace(id).0, 4.0);
        assert_close(wire.uplink(id), 1.0 / 3.0);
    }
    wire.stop(0);
    assert_eq!(wire.uplink(1), 0.5);
}

#[test]
fn a_link_that_is_not_full_slows_nobody() {
    // 1 GB in 6 s each: a third of the uplink's 0.5 GB/s, and their bursts interleave.
    let mut wire = Wire::new(&topology(&[(0, 1), (0, 1), (1, 1), (1, 1)]));
    for (id, machines) in [(0, [0, 2]), (1, [1, 3])] {
        let placement = placed(&wire.cluster, &machines.map(|m| (m, 1)));
        let model = Profile { compute_s: 4.0, ..profile(1.0) };
        wire.contention.start(id, &model, &placement, &wire.cluster, &wire.network);
        let changed = wire.contention.settle();
        wire.note(changed);
    }
    assert_eq!((wire.uplink(0), wire.uplink(1)), (0.5, 0.5));
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
fn two_equal_jobs_share_a_card() {
    // 9 GB at 1 GB/s and 1 s computing: 10 s alone. Together the card carries 18 GB in 18 s.
    let mut wire = Wire::new(&topology(&[(0, 2), (0, 2), (0, 2)]));
    wire.start(0, 9.0, &[(0, 1), (1, 1)]);
    assert_eq!(wire.nic(0), 1.0);
    wire.start(1, 9.0, &[(1, 1), (2, 1)]);
    assert_close(wire.pace(0).0, 18.0);
    assert_close(wire.pace(1).0, 18.0);
    wire.stop(1);
    assert_eq!(wire.nic(0), 1.0);
}

#[test]
fn a_light_job_is_stretched_as_much_and_slowed_far_less() {
    let mut wire = Wire::new(&topology(&[(0, 2), (0, 2)]));
    wire.start(0, 9.0, &[(0, 1), (1, 1)]);
    // 3 GB every 24 s, of which 21 s are computing: 0.125 GB/s besides the heavy job's 0.9.
    let placement = placed(&wire.cluster, &[(0, 1), (1, 1)]);
    let light = Profile { compute_s: 21.0, ..profile(3.0) };
    wire.contention.start(1, &light, &placement, &wire.cluster, &wire.network);
    let changed = wire.contention.settle();
    wire.note(changed);
    wire.running.insert(1, (light, placement));
    let [(heavy_s, heavy), (light_s, light)] = [wire.pace(0), wire.pace(1)];
    assert_close(heavy, light);
    assert_close(9.0 / heavy_s + 3.0 / light_s, 1.0);
    assert!(heavy_s / 10.0 > 1.02 && light_s / 24.0 < 1.005, "{heavy_s} {light_s}");
}

#[test]
fn jobs_apart_do_not_feel_each_other() {
    let mut wire = Wire::new(&topology(&[(0, 2), (0, 2), (0, 2), (0, 2), (1, 2)]));
    wire.start(0, 50.0, &[(0, 1), (1, 1)]);
    wire.start(1, 50.0, &[(2, 1), (3, 1)]);
    wire.start(2, 50.0, &[(4, 2)]);
    assert_eq!((wire.nic(0), wire.nic(1)), (1.0, 1.0));
    // A third job ties them together.
    wire.start(3, 50.0, &[(1, 1), (2, 1)]);
    for id in [0, 1, 3] {
        assert_close(wire.pace(id).0, 100.0);
    }
}

#[test]
fn a_core_that_fills_slows_jobs_of_different_racks() {
    // Each job puts its bytes on the core once for either rack. A core of 1 GB/s has 0.5 GB/s for two
    // racks: 21 s an iteration of 10 GB alone. Two jobs send 40 GB through it in 40 s.
    let mut core = topology(&[(0, 1), (1, 1), (2, 1), (3, 1)]);
    core.levels[2].core = Some(Link::Gbit(8.0));
    let mut wire = Wire::new(&core);
    wire.start(0, 10.0, &[(0, 1), (1, 1)]);
    assert_close(wire.pace(0).0, 21.0);
    wire.start(1, 10.0, &[(2, 1), (3, 1)]);
    assert_close(wire.pace(0).0, 40.0);
    assert_close(wire.pace(1).0, 40.0);
}

#[test]
fn a_trial_tells_what_a_start_would_do_and_does_nothing() {
    let mut wire = Wire::new(&topology(&[(0, 1), (0, 1), (1, 1), (1, 1)]));
    wire.start(0, 1.0, &[(0, 1), (2, 1)]);
    let trial = wire.trial(1, 1.0, &[(1, 1), (3, 1)]);
    assert_close(trial.iteration_s, 4.0);
    let [(id, before_s, after_s)] = trial.others[..] else { panic!("one neighbour: {trial:?}") };
    assert_eq!(id, 0);
    assert_close(before_s, 3.0);
    assert_close(after_s, 4.0);
    assert_eq!(wire.contention.settle(), [], "nothing has changed");
    // A running job leaves its links when it moves: both are alone then.
    wire.start(1, 1.0, &[(1, 1), (3, 1)]);
    let trial = wire.trial(1, 1.0, &[(0, 1), (1, 1)]);
    assert_close(trial.iteration_s, 2.0);
    let [(0, before_s, after_s)] = trial.others[..] else { panic!("one neighbour: {trial:?}") };
    assert_close(before_s, 4.0);
    assert_close(after_s, 3.0);
    assert_eq!(wire.contention.settle(), [], "nothing has changed");
}

#[test]
fn a_trial_stop_tells_who_would_go_faster_and_does_nothing() {
    let mut wire = Wire::new(&topology(&[(0, 1), (0, 1), (1, 1), (1, 1)]));
    wire.start(0, 1.0, &[(0, 1), (2, 1)]);
    assert_eq!(wire.contention.trial_stop(0), [], "nobody else runs");
    wire.start(1, 1.0, &[(1, 1), (3, 1)]);
    let faster = wire.contention.trial_stop(1);
    let [(0, before_s, after_s)] = faster[..] else { panic!("one neighbour: {faster:?}") };
    assert_close(before_s, 4.0);
    assert_close(after_s, 3.0);
    assert_eq!(wire.contention.settle(), [], "nothing has changed");
    assert_eq!(wire.contention.trial_stop(7), [], "it does not run");
}

#[derive(Debug, Clone)]
enum Step {
    Start(f64, Vec<(u32, u32)>),
    Stop(usize),
}

proptest! {
    #[test]
    fn starts_are_as_trials_told_and_leave_the_same_shares_as_starting_anew(
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
                Step::Start(gigabytes, slots) => {
                    let before: BTreeMap<JobId, f64> =
                        wire.running.keys().map(|&other| (other, wire.pace(other).0)).collect();
                    let trial = wire.trial(id, gigabytes, &slots);
                    wire.start(id, gigabytes, &slots);
                    assert_close(trial.iteration_s, wire.pace(id).0);
                    let told: BTreeMap<JobId, f64> =
                        trial.others.iter().map(|&(other, _, after_s)| (other, after_s)).collect();
                    for (other, before_s) in before {
                        let after_s = told.get(&other).copied().unwrap_or(before_s);
                        assert_close(after_s, wire.pace(other).0);
                    }
                }
                Step::Stop(at) if !wire.running.is_empty() => {
                    let ids: Vec<JobId> = wire.running.keys().copied().collect();
                    wire.stop(ids[at % ids.len()]);
                }
                Step::Stop(_) => {}
            }
            let fresh = wire.started_anew();
            prop_assert_eq!(fresh.len(), wire.shares.len());
            for (id, want) in fresh {
                prop_assert_eq!(wire.shares[&id], want, "the same to the last bit");
            }
        }
    }
}

proptest! {
    #[test]
    fn every_slowed_job_crosses_a_full_link_where_nobody_is_stretched_less(
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
        // (level, link) → (load over capacity, least stretch)
        let mut links: BTreeMap<(usize, usize), (f64, f64)> = BTreeMap::new();
        for level in 1..topology.levels.len() {
            let capacity: Vec<f64> =
                wire.network.links[level].iter().chain(&wire.network.cores[level]).copied().collect();
            for &id in wire.running.keys() {
                let (iteration_s, stretch) = wire.pace(id);
                for (link, bytes) in wire.links(id, level) {
                    let entry = links.entry((level, link)).or_insert((0.0, f64::INFINITY));
                    entry.0 += bytes / iteration_s / capacity[link];
                    entry.1 = entry.1.min(stretch);
                }
            }
        }
        for (link, (load, _)) in &links {
            prop_assert!(*load <= 1.0 + 1e-6, "link {:?} carries {} times what it can", link, load);
        }
        for &id in wire.running.keys() {
            let (_, stretch) = wire.pace(id);
            prop_assert!(stretch >= 1.0 - 1e-9);
            if stretch <= 1.0 + 1e-9 {
                continue;
            }
            let is_bottleneck = |level: usize, link: usize| {
                let (load, least) = links[&(level, link)];
                load >= 1.0 - 1e-6 && stretch <= least * (1.0 + 1e-6)
            };
            let mut crossed =
                (1..topology.levels.len()).flat_map(|l| wire.links(id, l).into_keys().map(move |k| (l, k)));
            prop_assert!(crossed.any(|(l, k)| is_bottleneck(l, k)), "job {} is slowed by nobody", id);
        }
    }
}
