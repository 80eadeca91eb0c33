//! Machines by name and by number: the engine knows the first, the scheduler the second.

use std::collections::HashMap;

use hither_core::topology::Tier;
use hither_sched::cluster::{Cluster, MachineId, Placement, Slot};
use hither_sched::state::State;

use crate::engine::Held;

#[derive(Debug, Clone, Default)]
pub struct Places {
    names: Vec<String>,
    ids: HashMap<String, MachineId>,
}

impl Places {
    pub fn new(names: Vec<String>) -> Self {
        let ids = (0..).zip(&names).map(|(id, name)| (name.clone(), id)).collect();
        Self { names, ids }
    }

    pub fn names(&self) -> &[String] {
        &self.names
    }

    pub fn id(&self, name: &str) -> Option<MachineId> {
        self.ids.get(name).copied()
    }

    pub fn name(&self, machine: MachineId) -> &str {
        &self.names[machine as usize]
    }

    /// The nodes of a placement, in order of name.
    pub fn nodes(&self, placement: &Placement) -> Vec<String> {
        let mut nodes: Vec<String> =
            placement.slots.iter().map(|slot| self.name(slot.machine).to_owned()).collect();
        nodes.sort_unstable();
        nodes
    }

    /// The placement that these GPUs make; `None` if one of the nodes is not managed.
    pub fn placement(&self, cluster: &Cluster, holds: &[Held]) -> Option<Placement> {
        let slot = |held: &Held| Some(Slot { machine: self.id(&held.node)?, gpus: held.gpus });
        let holds = holds.iter().filter(|held| held.gpus > 0);
        let mut slots: Vec<Slot> = holds.map(slot).collect::<Option<_>>()?;
        slots.sort_unstable_by_key(|slot| slot.machine);
        let tier = cluster.tier_of(&slots);
        Some(Placement { slots, tier })
    }

    /// Whether a job holds just the GPUs of the placement.
    pub fn is_at(&self, placement: &Placement, holds: &[Held]) -> bool {
        let at = |slot: &Slot| {
            let name = self.name(slot.machine);
            holds.iter().any(|held| held.node == name && held.gpus == slot.gpus)
        };
        let count = holds.iter().filter(|held| held.gpus > 0).count();
        placement.slots.len() == count && placement.slots.iter().all(at)
    }
}

/// What a tier is called.
pub fn tier_name(state: &State, tier: Tier) -> String {
    state.cluster.levels[tier.level()].clone()
}
