//! Free GPUs and placements, against plain searches over all machines, racks and subsets.

use crate::common;

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use common::{placed, typed_topology};
use hither_core::topology::{Level, Place, Tier, Topology};
use hither_sched::cluster::{Cluster, Placement, PoolId, Status};
use hither_sched::job::{Demand, Host, Split};
use proptest::prelude::*;

/// The same cluster, kept as plainly as can be.
struct Plain {
    /// (the place of each level that holds it, type, GPUs).
    machines: Vec<(Vec<u32>, PoolId, u32)>,
    levels: usize,
    up: Vec<bool>,
    taken: Vec<Placement>,
}

impl Plain {
    fn new(topology: &Topology) -> Self {
        let mut types: Vec<&str> = Vec::new();
        let mut machines = Vec::new();
        for (at, m) in topology.machines.iter().enumerate() {
            if !types.contains(&m.gpu_type.as_str()) {
                types.push(&m.gpu_type);
            }
            let pool = types.iter().position(|t| *t == m.gpu_type).expect("just added");
            machines.push((topology.within(at), pool as PoolId, m.gpus));
        }
        let levels = topology.levels.len();
        Self { up: vec![true; machines.len()], machines, levels, taken: Vec::new() }
    }

    fn tiers(&self) -> impl Iterator<Item = Tier> {
        Tier::all(self.levels)
    }

    fn free(&self, machine: usize) -> u32 {
        let slots = self.taken.iter().flat_map(|p| &p.slots);
        let used: u32 = slots.filter(|s| s.machine as usize == machine).map(|s| s.gpus).sum();
        if self.up[machine] { self.machines[machine].2 - used } else { 0 }
    }

    /// (machine, free GPUs) of all machines of the pool.
    fn holes(&self, pool: PoolId) -> Vec<(usize, u32)> {
        let here = |&m: &usize| self.machines[m].1 == pool;
        (0..self.machines.len()).filter(here).map(|m| (m, self.free(m))).collect()
    }

    /// Free chunks of the pool in each place of a level, of those inside the given place if any.
    fn rooms(
        &self,
        pool: PoolId,
        split: Split,
        level: usize,
        inside: Option<(usize, u32)>,
    ) -> BTreeMap<u32, u32> {
        let mut rooms = BTreeMap::new();
        for (machine, free) in self.holes(pool) {
            let within = &self.machines[machine].0;
            if inside.is_none_or(|(level, place)| within[level] == place) {
                *rooms.entry(within[level]).or_default() += split.chunks_in(free);
            }
        }
        rooms
    }

    /// Whether some place of the level has room for the gang now.
    fn fits(&self, gang: Demand, pool: PoolId, tier: Tier) -> bool {
        let rooms = self.rooms(pool, gang.split, tier.level(), None);
        rooms.values().any(|&chunks| chunks >= gang.chunks())
    }

    fn lowest(&self, gang: impl Into<Demand>, pool: PoolId) -> Option<Tier> {
        let gang = gang.into();
        self.tiers().find(|&tier| self.fits(gang, pool, tier))
    }

    fn tier_of(&self, placement: &Placement) -> Tier {
        let place = |at: usize, tier: Tier| {
            self.machines[placement.slots[at].machine as usize].0[tier.level()]
        };
        let holds_all =
            |&tier: &Tier| (0..placement.slots.len()).all(|at| place(at, tier) == place(0, tier));
        self.tiers().find(holds_all).expect("the network holds all")
    }

    fn check_valid(&self, placement: &Placement, gang: impl Into<Demand>, pool: PoolId) {
        let Demand { gpus, split } = gang.into();
        let mut machines: Vec<u32> = placement.slots.iter().map(|s| s.machine).collect();
        machines.sort_unstable();
        machines.dedup();
        assert_eq!(machines.len(), placement.slots.len(), "machines are distinct");
        assert_eq!(placement.slots.iter().map(|s| s.gpus).sum::<u32>(), gpus, "all or nothing");
        for slot in &placement.slots {
            assert!(slot.gpus > 0 && slot.gpus <= self.free(slot.machine as usize), "it is free");
            assert_eq!(self.machines[slot.machine as usize].1, pool, "types are not mixed");
            assert_eq!(slot.gpus, split.chunks_in(slot.gpus) * split.chunk, "whole chunks");
        }
        assert_eq!(placement.tier, self.tier_of(placement));
    }

    /// The GPUs that a placement takes in each place of a level.
    fn taken_in(&self, placement: &Placement, level: usize) -> BTreeMap<u32, u32> {
        let mut taken = BTreeMap::new();
        for slot in &placement.slots {
            let place = self.machines[slot.machine as usize].0[level];
            *taken.entry(place).or_default() += slot.gpus;
        }
        taken
    }
}

fn total(holes: &[(usize, u32)]) -> u32 {
    holes.iter().map(|h| h.1).sum()
}

/// The size of the smallest subset of these holes that holds the gang.
fn fewest(holes: &[u32], gpus: u32) -> Option<u32> {
    let sum = |set: u32| -> u32 {
        (0..holes.len()).filter(|at| set >> at & 1 == 1).map(|at| holes[at]).sum()
    };
    (0..1u32 << holes.len()).filter(|&set| sum(set) >= gpus).map(u32::count_ones).min()
}

/// The place has the least free of those that hold the gang; and it, and every place inside it that
/// is used, has the fewest parts that hold what is taken there.
fn check_placements(cluster: &Cluster, plain: &Plain, gang: Demand, pool: PoolId) {
    let (split, chunks) = (gang.split, gang.chunks());
    for tier in plain.tiers() {
        let got = cluster.place_at(gang, pool, tier);
        assert_eq!(got.is_some(), plain.fits(gang, pool, tier), "{gang:?} at {tier:?}");
        let Some(got) = got else { continue };
        plain.check_valid(&got, gang, pool);
        assert!(got.tier <= tier);
        let rooms = plain.rooms(pool, split, tier.level(), None);
        let tightest = rooms.values().copied().filter(|&free| free >= chunks).min();
        let (&place, _) = plain.taken_in(&got, tier.level()).first_key_value().expect("one place");
        assert_eq!(Some(rooms[&place]), tightest, "best fit");
        for level in 1..=tier.level() {
            for (place, taken) in plain.taken_in(&got, level) {
                let inside_it = Some((level, place));
                let parts: Vec<u32> =
                    plain.rooms(pool, split, level - 1, inside_it).into_values().collect();
                let inside = |part: &u32| {
                    let mut machines = plain.machines.iter();
                    machines.any(|m| m.0[level] == place && m.0[level - 1] == *part)
                };
                let used = plain.taken_in(&got, level - 1);
                let used = used.keys().filter(|part| inside(part)).count() as u32;
                let taken = taken / split.chunk;
                assert_eq!(Some(used), fewest(&parts, taken), "fewest parts at level {level}");
            }
        }
    }
}

fn check_first_fit(cluster: &Cluster, plain: &Plain, gpus: u32, pool: PoolId) {
    let got = cluster.first_fit(gpus, pool);
    let holes = plain.holes(pool);
    let mut want: Vec<(u32, u32)> = Vec::new();
    if let Some(hole) = holes.iter().find(|h| h.1 >= gpus) {
        want.push((hole.0 as u32, gpus));
    } else {
        let mut left = gpus;
        for &(machine, free) in &holes {
            if free.min(left) > 0 {
                want.push((machine as u32, free.min(left)));
                left -= free.min(left);
            }
        }
        want = if left > 0 { Vec::new() } else { want };
    }
    assert_eq!(got.is_some(), !want.is_empty());
    if let Some(got) = got {
        plain.check_valid(&got, gpus, pool);
        let slots: Vec<(u32, u32)> = got.slots.iter().map(|s| (s.machine, s.gpus)).collect();
        assert_eq!(slots, want, "in order of index");
    }
}

fn check_all(cluster: &Cluster, plain: &Plain, empty: &Plain) {
    let all = || (0..plain.machines.len()).map(|m| plain.free(m));
    assert_eq!(cluster.free_total(), all().sum::<u32>());
    let partly = all().zip(&plain.machines).filter(|(free, m)| *free < m.2).map(|(f, _)| f);
    assert_eq!(cluster.fragmented, partly.sum::<u32>());
    for pool in 0..cluster.pool_count() as PoolId {
        assert_eq!(cluster.free_gpus(pool), total(&plain.holes(pool)));
        for gpus in 1..=cluster.most_gpus(Some(&cluster.pool_names[pool as usize])) as u32 + 1 {
            assert_eq!(cluster.offer_tier(gpus, pool), plain.lowest(gpus, pool));
            assert_eq!(cluster.best_tier(gpus, Some(pool)), empty.lowest(gpus, pool));
            check_placements(cluster, plain, gpus.into(), pool);
            check_first_fit(cluster, plain, gpus, pool);
        }
    }
    let pools = || 0..cluster.pool_count() as PoolId;
    for gpus in 1..=20 {
        let lowest = pools().filter_map(|p| plain.lowest(gpus, p)).min();
        let offer = cluster.best_offer(gpus, None);
        assert_eq!(offer.is_some(), lowest.is_some());
        assert_eq!(
            cluster.best_tier(gpus, None),
            pools().filter_map(|p| empty.lowest(gpus, p)).min()
        );
        if let Some(offer) = offer {
            let pool = plain.machines[offer.slots[0].machine as usize].1;
            plain.check_valid(&offer, gpus, pool);
            assert_eq!(Some(offer.tier), lowest);
            let tighter = pools().filter(|&p| plain.lowest(gpus, p) == lowest);
            let least = tighter.map(|p| total(&plain.holes(p))).min();
            assert_eq!(Some(total(&plain.holes(pool))), least, "the scarcest pool");
        }
    }
}

/// Gangs that may not be split freely, whether the cluster was prepared for them at the beginning
/// or is only now.
fn check_splits(cluster: &Cluster, plain: &Plain, empty: &Plain) {
    let chunks_max = u32::MAX;
    for split in [EARLY[0], EARLY[1], Split { chunk: 2, chunks_max, ..Split::ANY }, Split::even(3)]
    {
        let mut cluster = cluster.clone();
        cluster.prepare(split);
        for pool in 0..cluster.pool_count() as PoolId {
            for chunks in 1..6 {
                let gang = Demand { gpus: chunks * split.chunk, split };
                assert_eq!(cluster.offer_tier(gang, pool), plain.lowest(gang, pool), "{gang:?}");
                assert_eq!(cluster.best_tier(gang, Some(pool)), empty.lowest(gang, pool));
                check_placements(&cluster, plain, gang, pool);
                let first = cluster.first_fit(gang, pool);
                assert_eq!(first.is_some(), plain.fits(gang, pool, cluster.widest()));
                first.iter().for_each(|placement| plain.check_valid(placement, gang, pool));
            }
        }
    }
}

const EARLY: [Split; 2] = [Split::even(2), Split { chunk: 1, chunks_max: 2, host: Host::NONE }];

#[derive(Debug, Clone)]
enum Step {
    Take { gpus: u32, pool: u16, how: u8 },
    Release(usize),
    Down(usize),
    Up(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        5 => (1..9u32, 0..2u16, 0..5u8).prop_map(|(gpus, pool, how)| Step::Take { gpus, pool, how }),
        2 => (0..64usize).prop_map(Step::Release),
        1 => (0..64usize).prop_map(Step::Down),
        1 => (0..64usize).prop_map(Step::Up),
    ];
    prop::collection::vec(step, 1..25)
}

/// Two to six levels of up to three places each, joined at random, with up to eight machines.
fn clusters() -> impl Strategy<Value = Topology> {
    let machine = (0..3u32, 1..6u32, prop_oneof![3 => Just("a"), 1 => Just("b")]);
    let parents = prop::collection::vec(prop::collection::vec(0..3u32, 3), 0..=4);
    (parents, prop::collection::vec(machine, 1..9)).prop_map(|(parents, machines)| {
        let mut topology = typed_topology(&machines);
        topology.levels = Level::common(parents.len() + 2);
        let inner = parents.len();
        for (at, level) in topology.levels.iter_mut().enumerate().skip(1) {
            let place = |parent: u32| Place { name: String::new(), parent };
            level.places = match at.cmp(&(inner + 1)) {
                Ordering::Less if at == inner => vec![place(0); 3],
                Ordering::Less => parents[at].iter().map(|&p| place(p)).collect(),
                _ => vec![place(0)],
            };
        }
        for machine in topology.machines.iter_mut().filter(|_| inner == 0) {
            machine.parent = 0;
        }
        topology
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_history_of_takes_releases_and_failures_agrees_with_a_plain_search(
        topology in clusters(),
        steps in steps(),
    ) {
        let mut cluster = Cluster::new(&topology);
        EARLY.iter().for_each(|split| cluster.prepare(*split));
        let mut plain = Plain::new(&topology);
        let empty = Plain::new(&topology);
        check_all(&cluster, &plain, &empty);
        for step in steps {
            match step {
                Step::Take { gpus, pool, how } => {
                    let pool = pool % cluster.pool_count() as u16;
                    let placement = match how {
                        0..3 => cluster.place_at(gpus, pool, Tier(how).min(cluster.widest())),
                        3 => cluster.first_fit(gpus, pool),
                        _ => cluster.best_offer(gpus, None),
                    };
                    if let Some(placement) = placement {
                        cluster.take(&placement, Split::ANY);
                        plain.taken.push(placement);
                    }
                }
                Step::Release(at) if !plain.taken.is_empty() => {
                    let at = at % plain.taken.len();
                    cluster.release(&plain.taken.swap_remove(at), Split::ANY);
                }
                Step::Release(_) => {}
                Step::Down(at) => {
                    let id = at % plain.machines.len();
                    let there = |p: &Placement| p.slots.iter().any(|s| s.machine as usize == id);
                    for placement in plain.taken.extract_if(.., |p| there(p)) {
                        cluster.release(&placement, Split::ANY);
                    }
                    if plain.up[id] {
                        cluster.set_status(id as u32, Status::Gone);
                    }
                    plain.up[id] = false;
                }
                Step::Up(at) => {
                    let id = at % plain.machines.len();
                    if !plain.up[id] {
                        cluster.set_status(id as u32, Status::Up);
                    }
                    plain.up[id] = true;
                }
            }
            check_all(&cluster, &plain, &empty);
        }
        check_splits(&cluster, &plain, &empty);
    }
}

/// Each chunk of two GPUs wants three CPUs and 20 MB, or one GPU five CPUs.
const HUNGRY: [Split; 2] = [
    Split { chunk: 2, chunks_max: u32::MAX, host: Host { cpus: 3, memory_mb: 20 } },
    Split { chunk: 1, chunks_max: 2, host: Host { cpus: 5, memory_mb: 0 } },
];

proptest! {
    #[test]
    fn gangs_go_where_cpus_and_memory_are_left(
        topology in clusters(),
        hosts in prop::collection::vec((0..20u32, 0..100u32, 0..10u32), 64),
        steps in prop::collection::vec((0..2usize, 1..5u32, any::<bool>(), 0..64usize), 1..20),
    ) {
        let mut cluster = Cluster::new(&topology);
        HUNGRY.iter().for_each(|split| cluster.prepare(*split));
        for (id, (cpus, memory_mb, foreign)) in (0..cluster.machines.len()).zip(&hosts) {
            let (host, foreign) =
                (Host { cpus: *cpus, memory_mb: *memory_mb }, Host { cpus: *foreign, memory_mb: 0 });
            cluster.set_host(id as u32, host, foreign);
        }
        let mut taken: Vec<(Placement, Split)> = Vec::new();
        let mut closed: BTreeSet<(usize, usize)> = BTreeSet::new();
        for (which, chunks, takes, at) in steps {
            let (split, machine) = (HUNGRY[which], at % cluster.machines.len());
            if takes {
                let gang = Demand { gpus: chunks * split.chunk, split };
                if let Some(placement) = cluster.best_offer(gang, None) {
                    cluster.take(&placement, split);
                    taken.push((placement, split));
                }
            } else if at % 3 == 0 && !taken.is_empty() {
                let (placement, split) = taken.swap_remove(at % taken.len());
                cluster.release(&placement, split);
            } else {
                let is_closed = closed.insert((which, machine)) || !closed.remove(&(which, machine));
                cluster.set_closed(machine as u32, split, is_closed);
            }
            for (which, split) in HUNGRY.into_iter().enumerate() {
                let room = |machine: usize| {
                    let (cpus, memory_mb, foreign) = hosts[machine];
                    let slots = |p: &Placement| {
                        p.slots.iter().find(|s| s.machine as usize == machine).map_or(0, |s| s.gpus)
                    };
                    let held = taken.iter().map(|(p, split)| (slots(p), *split));
                    let used = held.fold((0, 0, 0), |(gpus, cpus, mb), (took, split)| {
                        let chunks = took / split.chunk;
                        let host = split.host;
                        (gpus + took, cpus + chunks * host.cpus, mb + chunks * host.memory_mb)
                    });
                    let gpus = topology.machines[machine].gpus - used.0;
                    let by_cpu = cpus.saturating_sub(foreign).saturating_sub(used.1) / split.host.cpus;
                    let left_mb = memory_mb - used.2;
                    let by_memory = left_mb.checked_div(split.host.memory_mb).unwrap_or(u32::MAX);
                    match closed.contains(&(which, machine)) {
                        true => 0,
                        false => split.chunks_in(gpus).min(by_cpu).min(by_memory),
                    }
                };
                for pool in 0..cluster.pool_count() as PoolId {
                    let here = |m: &usize| cluster.machines[*m].pool == pool;
                    let all: u32 = (0..cluster.machines.len()).filter(here).map(room).sum();
                    let largest = (0..cluster.machines.len()).filter(here).map(room).max();
                    for chunks in 1..6 {
                        let gang = Demand { gpus: chunks * split.chunk, split };
                        let anywhere = cluster.place_at(gang, pool, cluster.widest());
                        prop_assert_eq!(anywhere.is_some(), chunks <= all);
                        prop_assert_eq!(cluster.first_fit(gang, pool).is_some(), chunks <= all);
                        let on_one = cluster.place_at(gang, pool, Tier::MACHINE);
                        prop_assert_eq!(on_one.is_some(), chunks <= largest.unwrap_or(0));
                        for slot in anywhere.iter().chain(&on_one).flat_map(|p| &p.slots) {
                            prop_assert!(slot.gpus / split.chunk <= room(slot.machine as usize));
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn a_gang_of_a_fixed_shape_takes_machines_that_it_leaves_full() {
    // Four GPUs are free on the first and the third, eight on the second.
    let topology = typed_topology(&[(0, 4, "a"), (0, 8, "a"), (0, 4, "a")]);
    let mut cluster = Cluster::new(&topology);
    let split = Split::even(4);
    cluster.prepare(split);
    let one = cluster.best_offer(Demand { gpus: 4, split }, None);
    assert_eq!(one, Some(placed(&cluster, &[(0, 4)])));
    let two = cluster.best_offer(Demand { gpus: 8, split }, None);
    assert_eq!(two, Some(placed(&cluster, &[(2, 4), (0, 4)])));
    let three = cluster.best_offer(Demand { gpus: 12, split }, None);
    assert_eq!(three, Some(placed(&cluster, &[(2, 4), (0, 4), (1, 4)])));
    assert_eq!(cluster.best_offer(Demand { gpus: 16, split }, None), None);
}

#[test]
fn a_gang_never_mixes_types() {
    let topology = typed_topology(&[(0, 2, "a"), (0, 2, "b"), (1, 1, "b")]);
    let cluster = Cluster::new(&topology);
    assert_eq!(cluster.free_total(), 5);
    assert_eq!(cluster.best_offer(4, None), None, "five are free, but three of one type at most");
    assert_eq!(cluster.best_tier(4, None), None);
    let three = cluster.best_offer(3, None).expect("all of type b");
    assert_eq!(three, placed(&cluster, &[(1, 2), (2, 1)]));
    assert_eq!(three.tier, Tier(2));
    assert_eq!(cluster.best_offer(3, cluster.pool_named("a")), None);
}

fn machines(cluster: &Cluster, gpus: u32) -> Vec<u32> {
    let offer = cluster.best_offer(gpus, None).expect("there is room");
    let mut machines: Vec<u32> = offer.slots.iter().map(|s| s.machine).collect();
    machines.sort_unstable();
    machines
}

#[test]
fn small_gangs_leave_whole_machines_and_racks_alone() {
    let topology = common::topology(&[(0, 4), (0, 4), (1, 4), (1, 4)]);
    let mut cluster = Cluster::new(&topology);
    cluster.take(&placed(&cluster, &[(2, 3)]), Split::ANY);
    // One GPU goes to the machine that is in use anyway.
    assert_eq!(cluster.best_offer(1, None), Some(placed(&cluster, &[(2, 1)])));
    // Five fit rack 1 exactly: rack 0 stays whole for eight.
    assert_eq!(cluster.best_offer(5, None), Some(placed(&cluster, &[(3, 4), (2, 1)])));
    assert_eq!(machines(&cluster, 8), [0, 1]);
    // Nine need both racks: all of the emptiest, and the rest where it fits best.
    let nine = cluster.best_offer(9, None).expect("thirteen are free");
    assert_eq!(nine.slots.len(), 3);
    assert_eq!(nine.slots.last().map(|s| (s.machine, s.gpus)), Some((2, 1)));
}

#[test]
fn a_failed_machine_keeps_nothing_for_its_jobs() {
    let topology = common::topology(&[(0, 2), (0, 2)]);
    let mut cluster = Cluster::new(&topology);
    let spread = placed(&cluster, &[(0, 2), (1, 1)]);
    cluster.take(&spread, Split::ANY);
    cluster.release(&spread, Split::ANY);
    cluster.set_status(0, Status::Gone);
    assert_eq!((cluster.free_total(), cluster.offer_tier(3, 0)), (2, None));
    assert_eq!(cluster.best_tier(3, None), Some(Tier(1)), "what the repaired cluster holds");
    cluster.set_status(0, Status::Up);
    assert_eq!(machines(&cluster, 4), [0, 1]);
}
