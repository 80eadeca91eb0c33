//! Whom to preempt so that one domain can hold a gang. Victims spread over many domains would free
//! nothing that a network-sensitive job can use.

use hither_core::topology::Tier;

use crate::cluster::{Cluster, MachineId, PoolId};
use crate::job::JobId;
use crate::state::State;

/// Running jobs that may be preempted now, by machine: (claim, job, GPUs there), worst claim first.
#[derive(Debug)]
pub struct Candidates {
    on_machine: Vec<Vec<(f64, JobId, u32)>>,
}

impl Candidates {
    /// `claim` gives a job's claim, or none if it must not be preempted yet.
    pub fn new(state: &State, claim: impl Fn(JobId) -> Option<f64>) -> Self {
        let mut on_machine = vec![Vec::new(); state.cluster.machines.len()];
        for &id in &state.running {
            let (Some(run), Some(claim)) = (state.job(id).run(), claim(id)) else {
                continue;
            };
            for slot in &run.placement.slots {
                on_machine[slot.machine as usize].push((claim, id, slot.gpus));
            }
        }
        for jobs in &mut on_machine {
            jobs.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        }
        Self { on_machine }
    }

    /// Takes a job that runs, and is about to stop, off the list.
    pub fn remove(&mut self, state: &State, id: JobId) {
        for slot in state.job(id).run().map_or(&[][..], |run| &run.placement.slots) {
            self.on_machine[slot.machine as usize].retain(|c| c.1 != id);
        }
    }

    /// The fewest jobs, all with a claim above `above`, whose end leaves `gpus` free in one domain
    /// of this tier.
    pub fn fewest(
        &self,
        cluster: &Cluster,
        gpus: u32,
        pool: PoolId,
        tier: Tier,
        above: f64,
    ) -> Option<Vec<JobId>> {
        let mut best: Option<Vec<JobId>> = None;
        for domain in domains(cluster, pool, tier) {
            let at_most = best.as_ref().map_or(usize::MAX, |b| b.len() - 1);
            if let Some(victims) = self.in_domain(cluster, &domain, gpus, above, at_most) {
                let done = victims.len() <= 1;
                best = Some(victims);
                if done {
                    break;
                }
            }
        }
        best
    }

    /// Greedy: whoever holds most of the domain goes first.
    fn in_domain(
        &self,
        cluster: &Cluster,
        domain: &[MachineId],
        gpus: u32,
        above: f64,
        at_most: usize,
    ) -> Option<Vec<JobId>> {
        let free: u32 = domain.iter().map(|&m| cluster.machines[m as usize].free).sum();
        let mut held: Vec<(u32, JobId)> = Vec::new();
        for &machine in domain {
            for &(_, id, gpus) in
                self.on_machine[machine as usize].iter().take_while(|c| c.0 > above)
            {
                match held.iter_mut().find(|h| h.1 == id) {
                    Some(h) => h.0 += gpus,
                    None => held.push((gpus, id)),
                }
            }
        }
        let mut missing = gpus.checked_sub(free).filter(|&m| m > 0)?;
        if held.iter().map(|h| h.0).sum::<u32>() < missing {
            return None;
        }
        held.sort_unstable_by_key(|&(gpus, id)| (std::cmp::Reverse(gpus), id));
        let mut victims = Vec::new();
        while missing > 0 {
            if victims.len() >= at_most {
                return None;
            }
            // One that suffices alone: the smallest such. Otherwise the largest.
            let fitting = held.partition_point(|h| h.0 >= missing);
            let (gpus, id) = held.remove(fitting.saturating_sub(1));
            victims.push(id);
            missing = missing.saturating_sub(gpus);
        }
        Some(victims)
    }
}

/// The machines of the pool that are up, by the place of this level that holds them.
fn domains(cluster: &Cluster, pool: PoolId, tier: Tier) -> Vec<Vec<MachineId>> {
    let mut domains = vec![Vec::new(); cluster.places(tier.level())];
    for machine in cluster.machines.iter().filter(|m| m.pool == pool && m.is_up()) {
        domains[machine.within[tier.level()] as usize].push(machine.within[0]);
    }
    domains.retain(|domain| !domain.is_empty());
    domains
}
