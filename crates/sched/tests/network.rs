//! What communication costs, against figures worked out by hand.

use crate::common;

use std::collections::{BTreeMap, BTreeSet};

use common::{assert_close, placed, profile, topology};
use hither_core::topology::{AllReduce, LEVELS_MAX, Link, Tier, Topology};
use hither_sched::cluster::Cluster;
use hither_sched::job::{Measured, Profile};
use hither_sched::network::{Network, Shape, measured_step_s};
use proptest::prelude::*;

const S: f64 = 1.5e9;

/// Two racks of two machines of four GPUs. Cards 12.5 GB/s; uplinks 2 × 12.5 / 4 = 6.25 GB/s; core
/// half of both uplinks, 6.25 GB/s; 150 GB/s inside a machine.
fn common_cluster(all_reduce: AllReduce) -> Topology {
    let mut topology = Topology::uniform(2, 2, 4);
    topology.all_reduce = all_reduce;
    topology.levels[2].core = Some(Link::Oversubscribed(2.0));
    topology
}

fn cost_s(topology: &Topology, slots: &[(u32, u32)]) -> f64 {
    let cluster = Cluster::new(topology);
    let network = Network::new(topology, 1.0);
    network.all_reduce_s(S, &network.shape(&cluster, &placed(&cluster, slots)))
}

const ALL: &[(u32, u32)] = &[(0, 4), (1, 4), (2, 4), (3, 4)];
const RACK: &[(u32, u32)] = &[(0, 4), (1, 4)];

#[test]
fn links_follow_from_the_topology() {
    let network = Network::new(&common_cluster(AllReduce::Hierarchical), 1.0);
    assert_eq!(network.links, [vec![150e9], vec![12.5e9; 4], vec![6.25e9; 2]]);
    assert_eq!(network.cores, [vec![], vec![f64::INFINITY; 2], vec![6.25e9]]);
    // A rack of three machines and one of a single one: uplinks follow the number of cards.
    let mut uneven = topology(&[(0, 1), (0, 1), (0, 1), (1, 1)]);
    uneven.levels[2].link = Link::Oversubscribed(4.0);
    let network = Network::new(&uneven, 1.0);
    assert_eq!(network.links[2], [0.75e9, 0.25e9]);
}

#[test]
fn hierarchical_all_reduce_by_hand() {
    let topology = common_cluster(AllReduce::Hierarchical);
    // Machine: 2·3/4·1.5/150 = 0.015 s and 6 messages of 1 µs.
    assert_close(cost_s(&topology, &[(0, 4)]), 0.015 + 6e-6);
    // Rack: 2·1/2·1.5/12.5 = 0.12 s more and 2 messages of 5 µs.
    assert_close(cost_s(&topology, RACK), 0.135 + 16e-6);
    // Across: both racks use the core, 3.125 GB/s each: 0.48 s more and 2 messages of 15 µs.
    assert_close(cost_s(&topology, ALL), 0.615 + 46e-6);
}

#[test]
fn a_single_card_cannot_fill_a_faster_uplink() {
    // One machine in each rack: the card's 1 GB/s counts, not the uplink's 4.
    let mut topology = topology(&[(0, 4), (1, 4)]);
    topology.levels[2].link = Link::Gbit(32.0);
    assert_close(cost_s(&topology, &[(0, 4), (1, 4)]), 1.5);
    // Two machines in each: 1.5 s over the cards, then 2 GB/s over the uplinks.
    let mut topology = common::topology(&[(0, 4), (0, 4), (1, 4), (1, 4)]);
    topology.levels[2].link = Link::Gbit(32.0);
    assert_close(cost_s(&topology, ALL), 1.5 + 0.75);
}

#[test]
fn ring_all_reduce_by_hand() {
    let topology = common_cluster(AllReduce::Ring);
    assert_close(cost_s(&topology, &[(0, 4)]), 0.015 + 6e-6);
    // 8 GPUs at 12.5 GB/s: 2·7/8·1.5/12.5 and 14 messages of 5 µs.
    assert_close(cost_s(&topology, RACK), 0.21 + 70e-6);
    // 16 GPUs at 3.125 GB/s: 2·15/16·1.5/3.125 and 30 messages of 15 µs.
    assert_close(cost_s(&topology, ALL), 0.9 + 450e-6);
}

#[test]
fn uneven_placements_cost_what_their_widest_part_costs() {
    let topology = common_cluster(AllReduce::Hierarchical);
    let cluster = Cluster::new(&topology);
    let network = Network::new(&topology, 1.0);
    let shape = network.shape(&cluster, &placed(&cluster, &[(3, 1), (0, 2), (1, 3)]));
    assert_eq!((shape.gpus, shape.machines, shape.tier()), (6, 3, Tier(2)));
    assert_eq!(shape.parts[..3], [3, 2, 2]);
}

#[test]
fn a_single_gpu_never_communicates() {
    let topology = topology(&[(0, 1), (0, 1)]);
    let cluster = Cluster::new(&topology);
    let network = Network::new(&topology, 1.0);
    let shape = network.shape(&cluster, &placed(&cluster, &[(0, 1)]));
    assert_eq!(network.iteration_s(&profile(100.0), &shape), 1.0);
}

#[test]
fn communication_hides_behind_the_overlapping_part_of_the_backward_pass() {
    let topology = common_cluster(AllReduce::Hierarchical);
    let cluster = Cluster::new(&topology);
    let network = Network::new(&topology, 1.0);
    let shape = network.shape(&cluster, &placed(&cluster, ALL));
    let with = |overlap| Profile {
        compute_s: 0.9,
        backward_share: 2.0 / 3.0,
        overlap,
        gradient_bytes: S,
        ..profile(0.0)
    };
    // All-reduce 0.615046 s; backward pass 0.6 s.
    assert_close(network.exposed_s(&with(0.0), &shape), 0.615046);
    assert_close(network.exposed_s(&with(0.5), &shape), 0.315046);
    assert_close(network.exposed_s(&with(1.0), &shape), 0.015046);
    assert_close(network.iteration_s(&with(1.0), &shape), 0.915046);
    let light = Profile { gradient_bytes: S / 2.0, ..with(1.0) };
    assert_eq!(network.exposed_s(&light, &shape), 0.0);
}

#[test]
fn congestion_slows_everything_outside_the_machines() {
    let topology = common_cluster(AllReduce::Hierarchical);
    let cluster = Cluster::new(&topology);
    let busy = Network::new(&topology, 10.0);
    assert_eq!((busy.links[0][0], busy.links[1][0], busy.cores[2][0]), (150e9, 1.25e9, 0.625e9));
    let shape = busy.shape(&cluster, &placed(&cluster, ALL));
    assert_close(busy.all_reduce_s(S, &shape), 0.015 + 10.0 * 0.6 + 46e-6);
    let quiet = Network::new(&topology, 1.0);
    let largest = [4, 8, 16, 0, 0, 0];
    for tier in Tier::all(3) {
        assert_eq!(busy.typical_quiet(12, largest, tier), quiet.typical(12, largest, tier));
    }
}

#[test]
fn traffic_by_hand() {
    let topology = common_cluster(AllReduce::Hierarchical);
    let cluster = Cluster::new(&topology);
    let network = Network::new(&topology, 1.0);
    let traffic = |network: &Network, slots| {
        let shape = network.shape(&cluster, &placed(&cluster, slots));
        let traffic = network.traffic(S, &shape);
        (traffic[1] / S, traffic[2] / S)
    };
    assert_eq!(traffic(&network, &[(0, 4)]), (0.0, 0.0));
    assert_eq!(traffic(&network, RACK), (1.0, 0.0));
    // Across racks each card carries half of what its rack exchanges.
    assert_eq!(traffic(&network, ALL), (1.5, 1.0));
    let ring = Network::new(&common_cluster(AllReduce::Ring), 1.0);
    assert_eq!(traffic(&ring, RACK), (1.75, 0.0));
    assert_eq!(traffic(&ring, ALL), (1.875, 1.875));
}

#[test]
fn typical_shapes_are_compact() {
    let network = Network::new(&common_cluster(AllReduce::Hierarchical), 1.0);
    let shape = |gpus, tier| {
        let s = network.typical(gpus, [4, 8, 16, 0, 0, 0], tier);
        (s.parts[0], s.parts[1], s.parts[2])
    };
    assert_eq!(shape(4, Tier::MACHINE), (4, 1, 1));
    assert_eq!(shape(4, Tier(1)), (2, 2, 1));
    assert_eq!(shape(4, Tier(2)), (2, 1, 2));
    assert_eq!(shape(8, Tier(1)), (4, 2, 1));
    assert_eq!(shape(16, Tier(2)), (4, 2, 2));
    assert_eq!(shape(1, Tier(2)).2, 1, "one GPU spans nothing");
}

fn measured(rows: &[(&[u32], f64)]) -> Profile {
    let row =
        |&(placement, step_s): &(&[u32], f64)| Measured { placement: placement.into(), step_s };
    Profile { compute_s: 0.5, table: rows.iter().map(row).collect(), ..profile(1.0) }
}

fn spread(slots: &[u32]) -> Shape {
    let mut parts = [1; LEVELS_MAX];
    (parts[0], parts[1]) = (slots.iter().copied().max().unwrap_or(0), slots.len() as u32);
    Shape {
        gpus: slots.iter().sum(),
        machines: slots.len() as u32,
        parts,
        share: [f64::INFINITY, 1e9, 0.5e9, 0.5e9, 0.5e9, 0.5e9],
    }
}

#[test]
fn measured_steps_exact_between_and_beyond() {
    // The first three were measured for BERT on machines of four T4.
    let bert = measured(&[(&[4], 0.74), (&[1, 1, 1, 1], 1.31), (&[2, 2], 2.10), (&[4, 4], 3.0)]);
    let at = |slots: &[u32]| measured_step_s(&bert, &spread(slots));
    assert_eq!(at(&[4]), (0.74, false));
    assert_eq!(at(&[1, 1, 1, 1]), (1.31, false));
    assert_eq!(at(&[2, 2]), (2.10, false));
    // As many GPUs, spread otherwise: the mean of what was measured.
    let (step_s, beyond) = at(&[3, 1]);
    assert_close(step_s, (1.31 + 2.10) / 2.0);
    assert!(!beyond);
    // Six GPUs lie half way between four and eight.
    let (step_s, beyond) = at(&[3, 3]);
    assert_close(step_s, (1.705 + 3.0) / 2.0);
    assert!(!beyond);
    // More or fewer than ever measured on several machines; fewer than ever on one.
    assert_eq!(at(&[4, 4, 4]), (3.0, true));
    let (step_s, beyond) = at(&[1, 1]);
    assert_close(step_s, 1.705);
    assert!(beyond);
    assert_eq!(at(&[2]), (0.74, true));
    // One machine says nothing about several.
    let alone = measured(&[(&[4], 0.74)]);
    assert_eq!(measured_step_s(&alone, &spread(&[2, 2])), (0.5, true));
}

#[test]
fn measured_steps_stretch_with_the_network_outside_the_machine_only() {
    let topology = topology(&[(0, 2), (0, 2), (1, 2)]);
    let cluster = Cluster::new(&topology);
    let bert = measured(&[(&[2], 0.6), (&[2, 2], 2.5)]);
    let exposed = |congestion, slots: &[(u32, u32)]| {
        let network = Network::new(&topology, congestion);
        network.exposed_s(&bert, &network.shape(&cluster, &placed(&cluster, slots)))
    };
    assert_close(exposed(1.0, &[(0, 2)]), 0.1);
    assert_close(exposed(7.0, &[(0, 2)]), 0.1);
    assert_close(exposed(1.0, &[(0, 2), (1, 2)]), 2.0);
    assert_close(exposed(3.0, &[(0, 2), (1, 2)]), 6.0);
    // Across racks the uplink has half the speed of the cards it was measured with.
    assert_close(exposed(1.0, &[(0, 2), (2, 2)]), 4.0);
}

#[test]
fn a_step_faster_than_its_computing_time_costs_no_communication() {
    let odd = measured(&[(&[2, 2], 0.4)]);
    let topology = topology(&[(0, 2), (0, 2)]);
    let network = Network::new(&topology, 1.0);
    assert_eq!(network.exposed_s(&odd, &spread(&[2, 2])), 0.0);
}

proptest! {
    #[test]
    fn more_congestion_never_makes_an_iteration_faster(
        slots in prop::collection::btree_map(0..6u32, 1..5u32, 1..6),
        gigabytes in 0.0..4.0f64,
        overlap in 0.0..1.0f64,
        congestion in 1.0..100.0f64,
        ring: bool,
        table: bool,
    ) {
        let mut topology = topology(&[(0, 4), (0, 4), (1, 4), (1, 4), (2, 4), (2, 4)]);
        topology.all_reduce = if ring { AllReduce::Ring } else { AllReduce::Hierarchical };
        for (level, latency_us) in topology.levels.iter_mut().zip([1.0, 5.0, 15.0]) {
            level.latency_us = latency_us;
        }
        let cluster = Cluster::new(&topology);
        let slots: Vec<(u32, u32)> = slots.into_iter().collect();
        let mut model = Profile { overlap, ..profile(gigabytes) };
        if table {
            model.table = measured(&[(&[4], 1.2), (&[4, 4], 1.9)]).table;
        }
        let iteration_s = |congestion| {
            let network = Network::new(&topology, congestion);
            network.iteration_s(&model, &network.shape(&cluster, &placed(&cluster, &slots)))
        };
        let (quiet, busy, busier) =
            (iteration_s(1.0), iteration_s(congestion), iteration_s(2.0 * congestion));
        prop_assert!(quiet >= model.compute_s);
        prop_assert!(busy >= quiet && busier >= busy, "{quiet} {busy} {busier}");
        if slots.len() == 1 {
            prop_assert_eq!(busy, quiet);
        }
    }
}

/// Bytes a second of the link of a part inside a level, straight from the description.
fn plain_link(topology: &Topology, level: usize, part: u32) -> f64 {
    let parts_of = |at: usize| -> Vec<u32> {
        match at {
            0 => (0..topology.machines.len() as u32).collect(),
            _ => (0..topology.levels[at].places.len() as u32).collect(),
        }
    };
    match topology.levels[level].link {
        Link::Gbit(gbit) => gbit * 1e9 / 8.0,
        Link::Oversubscribed(factor) if level == 1 => {
            let gpus = f64::from(topology.machines[part as usize].gpus);
            gpus * plain_link(topology, 0, 0) / factor
        }
        Link::Oversubscribed(factor) => {
            let parent = |p: u32| match level {
                2 => topology.machines[p as usize].parent,
                _ => topology.levels[level - 2].places[p as usize].parent,
            };
            let inside = parts_of(level - 2).into_iter().filter(|&p| parent(p) == part);
            inside.map(|p| plain_link(topology, level - 1, p)).sum::<f64>() / factor
        }
    }
}

/// The all-reduce as docs/simulator.md writes it: a sum over levels, from sets of places.
fn plain_all_reduce_s(topology: &Topology, slots: &[(u32, u32)]) -> f64 {
    let within: Vec<Vec<u32>> = slots.iter().map(|s| topology.within(s.0 as usize)).collect();
    let mut parts = f64::from(slots.iter().map(|s| s.1).max().expect("a slot"));
    let cost_s = |n: f64, bandwidth: f64, level: usize| {
        2.0 * (n - 1.0) / n * S / bandwidth
            + 2.0 * (n - 1.0) * topology.levels[level].latency_us * 1e-6
    };
    let mut sum_s = cost_s(parts, plain_link(topology, 0, 0), 0);
    let mut below = f64::INFINITY;
    for level in 1..topology.levels.len() {
        let mut used: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
        for path in &within {
            used.entry(path[level]).or_default().insert(path[level - 1]);
        }
        let mut bandwidth = parts * below;
        for (&place, inside) in &used {
            for &part in inside {
                bandwidth = bandwidth.min(plain_link(topology, level, part));
            }
            let all: BTreeSet<u32> = (0..topology.machines.len())
                .map(|m| topology.within(m))
                .filter(|w| w[level] == place)
                .map(|w| w[level - 1])
                .collect();
            let core = match topology.levels[level].core {
                None => f64::INFINITY,
                Some(Link::Gbit(gbit)) => gbit * 1e9 / 8.0,
                Some(Link::Oversubscribed(factor)) => {
                    all.iter().map(|&p| plain_link(topology, level, p)).sum::<f64>() / factor
                }
            };
            bandwidth = bandwidth.min(core / inside.len() as f64);
        }
        parts = used.values().map(BTreeSet::len).max().expect("a place") as f64;
        sum_s += cost_s(parts, bandwidth, level);
        below = bandwidth;
        if used.len() == 1 {
            break;
        }
    }
    sum_s
}

proptest! {
    #[test]
    fn hierarchical_all_reduce_at_any_depth(
        (topology, slots) in common::any_tree()
            .prop_flat_map(|t| { let slots = common::some_slots(t.machines.len()); (Just(t), slots) }),
    ) {
        let (got, want) = (cost_s(&topology, &slots), plain_all_reduce_s(&topology, &slots));
        prop_assert!((got / want - 1.0).abs() < 1e-9 || got == want, "{got} {want}");
    }
}

#[test]
fn four_levels_by_hand() {
    // Two pods of two racks of two machines of four GPUs: cards 12.5 GB/s, racks 2 × 12.5 / 4 = 6.25,
    // pods 2 × 6.25 / 2 = 6.25, core half of both pods, 6.25.
    let mut topology = Topology::regular(&[2, 2, 2, 4]);
    topology.levels[3].core = Some(Link::Oversubscribed(2.0));
    let rack = 0.015 + 6e-6 + 0.12 + 10e-6;
    assert_close(cost_s(&topology, RACK), rack);
    // A pod: 1.5 GB over uplinks of 6.25 GB/s, and 2 messages of 15 µs.
    assert_close(cost_s(&topology, ALL), rack + 0.24 + 30e-6);
    // Both pods: two on a core of 6.25 GB/s have 3.125 each, and 2 messages of 25 µs.
    let both: Vec<(u32, u32)> = (0..8).map(|machine| (machine, 4)).collect();
    assert_close(cost_s(&topology, &both), rack + 0.24 + 30e-6 + 0.48 + 50e-6);
}
