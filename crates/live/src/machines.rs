//! Machines between the books and the engine: who takes jobs, how large they are, and what others hold.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use hither_core::topology::{Machine, Topology};
use hither_sched::cluster::Status;
use hither_sched::event::Event;
use hither_sched::job::Host;

use crate::engine::{Held, Key, Stands};
use crate::jobs::View;

/// The news of all machines, and sentences for the log. Jobs that have `left` are nobody's in the books any
/// more: what they hold is others'. Nodes with jobs that are `stuck` take no others.
pub fn news(
    view: View<'_>,
    left: &HashSet<Key>,
    stuck: &BTreeMap<Key, Vec<Held>>,
) -> (Vec<Event>, Vec<String>) {
    let (mut events, mut notes) = (Vec::new(), Vec::new());
    let foreign = foreign(view, left);
    let stuck: BTreeSet<&str> = stuck.values().flatten().map(|held| held.node.as_str()).collect();
    for (id, machine) in (0..).zip(&view.state.cluster.machines) {
        let name = view.places.name(id);
        let node = view.seen.nodes.get(name);
        let is_empty = machine.taken == 0 && machine.stopping.is_empty();
        let is_stuck = stuck.contains(name);
        let status = match node {
            Some(_) if is_stuck => Status::Draining,
            Some(node) => node.status,
            None if is_empty => Status::Gone,
            None => Status::Draining,
        };
        if status != machine.status {
            let state = match node {
                Some(_) if is_stuck => "left alone: a job there is being ended and does not leave",
                Some(node) => &node.state,
                None => "gone",
            };
            notes.push(format!("node {name} is {state}"));
            events.push(Event::Machine { machine: id, status });
        }
        // What fits only on a machine that is gone fits nowhere.
        let gpus = match node {
            Some(node) => node.gpus,
            None if is_empty => 0,
            None => machine.gpus,
        };
        if gpus != machine.gpus {
            events.push(Event::Resized { machine: id, gpus });
        }
        let (gpus, others) = foreign.get(name).copied().unwrap_or_default();
        if gpus != machine.foreign {
            events.push(Event::Foreign { machine: id, gpus });
        }
        let host = node.map_or(machine.host, |node| node.host);
        if (host, others) != (machine.host, machine.host_foreign) {
            events.push(Event::Host { machine: id, host, foreign: others });
        }
    }
    (events, notes)
}

/// What jobs hold that are not in the books, by node.
fn foreign<'a>(view: View<'a>, left: &HashSet<Key>) -> BTreeMap<&'a str, (u32, Host)> {
    let mut foreign: BTreeMap<&str, (u32, Host)> = BTreeMap::new();
    for (key, job) in &view.seen.jobs {
        let holds = matches!(job.stands, Stands::Running | Stands::Leaving);
        if holds && (left.contains(key) || !view.managed.contains_key(key)) {
            for held in &job.holds {
                let (gpus, host) = foreign.entry(&held.node).or_default();
                *gpus += held.gpus;
                *host = host.plus(held.host);
            }
        }
    }
    foreign
}

/// The network with its machines in the order in which the books number them. Machines that are new come last;
/// those that are gone stay, empty, wherever there is a place.
pub fn in_order(topology: &Topology, names: &mut Vec<String>) -> Topology {
    let known: HashSet<&str> = names.iter().map(String::as_str).collect();
    let is_new = |machine: &&Machine| !known.contains(machine.name.as_str());
    let new: Vec<String> =
        topology.machines.iter().filter(is_new).map(|machine| machine.name.clone()).collect();
    names.extend(new);
    let by_name: BTreeMap<&str, &Machine> =
        topology.machines.iter().map(|machine| (machine.name.as_str(), machine)).collect();
    let gone = |name: &String| Machine {
        name: name.clone(),
        parent: 0,
        gpus: 0,
        gpu_type: topology.machines.first().map_or_else(String::new, |m| m.gpu_type.clone()),
    };
    let machine = |name: &String| match by_name.get(name.as_str()) {
        Some(machine) => (*machine).clone(),
        None => gone(name),
    };
    Topology { machines: names.iter().map(machine).collect(), ..topology.clone() }
}
