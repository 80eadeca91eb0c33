//! Free GPUs and placements, against plain searches over all machines, racks and subsets.

mod common;

use common::{placed, typed_topology};
use hither_core::topology::{Tier, Topology};
use hither_sched::cluster::{Cluster, Placement, PoolId, Status};
use proptest::prelude::*;

/// The same cluster, kept as plainly as can be.
struct Plain {
    /// (rack, type, GPUs).
    machines: Vec<(u32, PoolId, u32)>,
    up: Vec<bool>,
    taken: Vec<Placement>,
}

impl Plain {
    fn new(topology: &Topology) -> Self {
        let mut types: Vec<&str> = Vec::new();
        let mut machines = Vec::new();
        for m in &topology.machines {
            if !types.contains(&m.gpu_type.as_str()) {
                types.push(&m.gpu_type);
            }
            let pool = types.iter().position(|t| *t == m.gpu_type).expect("just added");
            machines.push((m.rack, pool as PoolId, m.gpus));
        }
        Self { up: vec![true; machines.len()], machines, taken: Vec::new() }
    }

    fn free(&self, machine: usize) -> u32 {
        let slots = self.taken.iter().flat_map(|p| &p.slots);
        let used: u32 = slots.filter(|s| s.machine as usize == machine).map(|s| s.gpus).sum();
        if self.up[machine] { self.machines[machine].2 - used } else { 0 }
    }

    /// (machine, free GPUs) of the pool's machines in the rack, or in all racks.
    fn holes(&self, pool: PoolId, rack: Option<u32>) -> Vec<(usize, u32)> {
        let here =
            |&m: &usize| self.machines[m].1 == pool && rack.is_none_or(|r| self.machines[m].0 == r);
        (0..self.machines.len()).filter(here).map(|m| (m, self.free(m))).collect()
    }

    fn racks(&self) -> u32 {
        self.machines.iter().map(|m| m.0 + 1).max().unwrap_or(0)
    }

    fn rack_free(&self, pool: PoolId) -> Vec<u32> {
        (0..self.racks()).map(|r| total(&self.holes(pool, Some(r)))).collect()
    }

    /// Whether some domain of the tier has room for the gang now.
    fn fits(&self, gpus: u32, pool: PoolId, tier: Tier) -> bool {
        match tier {
            Tier::Machine => self.holes(pool, None).iter().any(|h| h.1 >= gpus),
            Tier::Rack => self.rack_free(pool).iter().any(|&f| f >= gpus),
            Tier::Network => total(&self.holes(pool, None)) >= gpus,
        }
    }

    fn lowest(&self, gpus: u32, pool: PoolId) -> Option<Tier> {
        Tier::ALL.into_iter().find(|&tier| self.fits(gpus, pool, tier))
    }

    fn tier_of(&self, placement: &Placement) -> Tier {
        let rack = |at: usize| self.machines[placement.slots[at].machine as usize].0;
        match placement.slots.len() {
            0 | 1 => Tier::Machine,
            n if (1..n).all(|at| rack(at) == rack(0)) => Tier::Rack,
            _ => Tier::Network,
        }
    }

    fn check_valid(&self, placement: &Placement, gpus: u32, pool: PoolId) {
        let mut machines: Vec<u32> = placement.slots.iter().map(|s| s.machine).collect();
        machines.sort_unstable();
        machines.dedup();
        assert_eq!(machines.len(), placement.slots.len(), "machines are distinct");
        assert_eq!(placement.slots.iter().map(|s| s.gpus).sum::<u32>(), gpus, "all or nothing");
        for slot in &placement.slots {
            assert!(slot.gpus > 0 && slot.gpus <= self.free(slot.machine as usize), "it is free");
            assert_eq!(self.machines[slot.machine as usize].1, pool, "types are not mixed");
        }
        assert_eq!(placement.tier, self.tier_of(placement));
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

fn check_placements(cluster: &Cluster, plain: &Plain, gpus: u32, pool: PoolId) {
    for tier in Tier::ALL {
        let got = cluster.place_at(gpus, pool, tier);
        assert_eq!(got.is_some(), plain.fits(gpus, pool, tier), "{gpus} GPUs at {tier:?}");
        let Some(got) = got else { continue };
        plain.check_valid(&got, gpus, pool);
        assert!(got.tier <= tier);
        let first = got.slots[0].machine as usize;
        match tier {
            Tier::Machine => {
                let holes = plain.holes(pool, None);
                let tightest = holes.iter().map(|h| h.1).filter(|&f| f >= gpus).min();
                assert_eq!(Some(plain.free(first)), tightest, "best fit");
            }
            Tier::Rack => {
                let racks = plain.rack_free(pool);
                let tightest = racks.iter().copied().filter(|&f| f >= gpus).min();
                let rack = plain.machines[first].0;
                assert_eq!(Some(racks[rack as usize]), tightest, "the rack with the least free");
                let inside = plain.holes(pool, Some(rack));
                let holes: Vec<u32> = inside.iter().map(|h| h.1).collect();
                let machines = got.slots.len() as u32;
                assert_eq!(Some(machines), fewest(&holes, gpus), "fewest machines");
            }
            Tier::Network => {
                let slots = got.slots.iter();
                let mut racks: Vec<u32> =
                    slots.map(|s| plain.machines[s.machine as usize].0).collect();
                racks.sort_unstable();
                racks.dedup();
                let spread = racks.len() as u32;
                assert_eq!(Some(spread), fewest(&plain.rack_free(pool), gpus), "fewest racks");
            }
        }
    }
}

fn check_first_fit(cluster: &Cluster, plain: &Plain, gpus: u32, pool: PoolId) {
    let got = cluster.first_fit(gpus, pool);
    let holes = plain.holes(pool, None);
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
        assert_eq!(cluster.free_gpus(pool), total(&plain.holes(pool, None)));
        for gpus in 1..=cluster.most_gpus(Some(&cluster.pool_names[pool as usize])) as u32 + 1 {
            assert_eq!(cluster.offer_tier(gpus, pool), plain.lowest(gpus, pool));
            assert_eq!(cluster.best_tier(gpus, Some(pool)), empty.lowest(gpus, pool));
            check_placements(cluster, plain, gpus, pool);
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
            let least = tighter.map(|p| total(&plain.holes(p, None))).min();
            assert_eq!(Some(total(&plain.holes(pool, None))), least, "the scarcest pool");
        }
    }
}

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

fn clusters() -> impl Strategy<Value = Topology> {
    let machine = (0..3u32, 1..6u32, prop_oneof![3 => Just("a"), 1 => Just("b")]);
    prop::collection::vec(machine, 1..9).prop_map(|machines| typed_topology(&machines))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_history_of_takes_releases_and_failures_agrees_with_a_plain_search(
        topology in clusters(),
        steps in steps(),
    ) {
        let mut cluster = Cluster::new(&topology);
        let mut plain = Plain::new(&topology);
        let empty = Plain::new(&topology);
        check_all(&cluster, &plain, &empty);
        for step in steps {
            match step {
                Step::Take { gpus, pool, how } => {
                    let pool = pool % cluster.pool_count() as u16;
                    let placement = match how {
                        0 => cluster.place_at(gpus, pool, Tier::Machine),
                        1 => cluster.place_at(gpus, pool, Tier::Rack),
                        2 => cluster.place_at(gpus, pool, Tier::Network),
                        3 => cluster.first_fit(gpus, pool),
                        _ => cluster.best_offer(gpus, None),
                    };
                    if let Some(placement) = placement {
                        cluster.take(&placement);
                        plain.taken.push(placement);
                    }
                }
                Step::Release(at) if !plain.taken.is_empty() => {
                    let at = at % plain.taken.len();
                    cluster.release(&plain.taken.swap_remove(at));
                }
                Step::Release(_) => {}
                Step::Down(at) => {
                    let id = at % plain.machines.len();
                    let there = |p: &Placement| p.slots.iter().any(|s| s.machine as usize == id);
                    for placement in plain.taken.extract_if(.., |p| there(p)) {
                        cluster.release(&placement);
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
    }
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
    assert_eq!(three.tier, Tier::Network);
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
    cluster.take(&placed(&cluster, &[(2, 3)]));
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
    cluster.take(&spread);
    cluster.release(&spread);
    cluster.set_status(0, Status::Gone);
    assert_eq!((cluster.free_total(), cluster.offer_tier(3, 0)), (2, None));
    assert_eq!(cluster.best_tier(3, None), Some(Tier::Rack), "what the repaired cluster holds");
    cluster.set_status(0, Status::Up);
    assert_eq!(machines(&cluster, 4), [0, 1]);
}
