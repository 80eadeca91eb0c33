//! Small states for unit tests.

use std::sync::Arc;

use hither_core::topology::Topology;

use crate::cluster::{Placement, Slot};
use crate::job::{Job, JobId, Length, Profile, Terms};
use crate::network::Network;
use crate::state::{Checkpoints, State};

/// A gang of unknown length that takes 1 s per iteration.
pub fn gang(gpus: u32, gpu_type: Option<&str>) -> Job {
    let profile: Profile = serde_json::from_str(r#"{"name": "", "compute_s": 1}"#).unwrap();
    Job {
        name: String::new(),
        user: String::new(),
        gpus,
        terms: Terms::default(),
        gpu_type: gpu_type.map(str::to_owned),
        submit_s: 0.0,
        length: Length::Unknown,
        profile: Arc::new(profile),
    }
}

/// Jobs that run on (machine, GPUs) each.
pub fn running_on(
    topology: &Topology,
    jobs: &[Vec<(u32, u32)>],
    is_preemptible: impl Fn(JobId) -> bool,
) -> State {
    let network = Network::new(topology, 1.0);
    let mut state = State::new(topology, network, Checkpoints::default());
    for (id, slots) in (0..).zip(jobs) {
        let slots: Vec<Slot> =
            slots.iter().map(|&(machine, gpus)| Slot { machine, gpus }).collect();
        let mut job = gang(slots.iter().map(|slot| slot.gpus).sum(), None);
        job.terms.preemptible = is_preemptible(id);
        let id = state.admit(Arc::new(job));
        let tier = state.cluster.tier_of(&slots);
        state.found(id, Arc::new(Placement { slots, tier }));
    }
    state
}
