//! Whom to preempt so that one domain can hold a gang. Victims spread over many domains would free
//! nothing that a network-sensitive job can use.
//!
//! What a victim costs, `worth::stop_costs` tells: its GPUs × (restart + work lost), less what its place costs
//! it and its neighbours. All its GPUs count, also those outside of the
//! domain, so a small newcomer does not stop a large gang that only touches its machine. The
//! cheapest set of victims is a knapsack problem; `cheapest_in` finds one of at most twice the least
//! cost in a single pass (Gens and Levner, 1979).
//!
//! A round asks for many gangs, and each answer changes few domains. So the domains are ranked once
//! for each demand, and only those that a victim has left are ranked anew.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::ops::Range;

use hither_core::topology::Tier;

use crate::cluster::{Cluster, MachineId, PlaceId, PoolId};
use crate::job::{Demand, Host, JobId, Split};
use crate::order::SortKey;
use crate::state::State;

/// A running job that may be preempted now.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    pub id: JobId,
    pub claim: f64,
    /// GPU seconds that stopping it costs.
    pub cost: f64,
}

/// What a candidate, by index, holds of one domain.
#[derive(Debug, Clone, Copy)]
struct Share {
    candidate: u32,
    gpus: u32,
    cost_per_gpu: f64,
}

/// What candidates hold of every domain of one tier, one domain after the other.
#[derive(Debug, Default)]
struct Shares {
    all: Vec<Share>,
    by_domain: Vec<Held>,
}

/// The shares of one domain.
#[derive(Debug, Clone, Default)]
struct Held {
    /// Where they are, cheapest per GPU first.
    range: Range<usize>,
    /// At most so many GPUs: candidates that are gone may count until they are dropped.
    gpus_max: u32,
}

impl Shares {
    fn of(&self, domain: usize) -> &[Share] {
        &self.all[self.by_domain[domain].range.clone()]
    }
}

/// What is looked for: a domain of this tier and type that holds the gang.
type Place = (Tier, PoolId, Demand);

/// A search for such a domain: victims have a claim above `above`.
struct Search<'a> {
    state: &'a State,
    cluster: &'a Cluster,
    tier: Tier,
    pool: PoolId,
    gang: Demand,
    above: f64,
}

/// Cost, number of victims, domain: the order in which domains are preferred.
type Price = (SortKey, usize, usize);

/// The domains of one tier and type that can hold a gang of one size, cheapest first. Prices may
/// have risen since they were noted, and never have fallen.
#[derive(Debug, Default)]
struct Ranking {
    prices: BinaryHeap<Reverse<Price>>,
    /// The claim above which victims were looked for.
    above: f64,
    /// Entries of `Candidates::left` that were taken into account.
    seen: usize,
}

/// Running jobs that may be preempted now.
#[derive(Debug, Default)]
pub struct Candidates {
    /// In order of id.
    all: Vec<Candidate>,
    is_gone: Vec<bool>,
    /// By tier; made when first asked for.
    shares: BTreeMap<Tier, Shares>,
    rankings: BTreeMap<Place, Ranking>,
    /// Machines that candidates have left since.
    left: Vec<MachineId>,
}

impl Candidates {
    /// `candidates` are in order of id.
    pub fn new(candidates: Vec<Candidate>) -> Self {
        Self { is_gone: vec![false; candidates.len()], all: candidates, ..Self::default() }
    }

    /// Takes a job that runs, and is about to stop, off the list.
    pub fn remove(&mut self, state: &State, id: JobId) {
        if let Ok(at) = self.all.binary_search_by_key(&id, |candidate| candidate.id) {
            self.is_gone[at] = true;
        }
        let slots = state.job(id).run().map_or(&[][..], |run| &run.placement.slots);
        self.left.extend(slots.iter().map(|slot| slot.machine));
    }

    /// Jobs with a claim above `above` whose end leaves room for the gang in one domain of this tier,
    /// at the least cost; among equals the fewest. Returns their cost too.
    pub fn cheapest(
        &mut self,
        state: &State,
        gang: impl Into<Demand>,
        pool: PoolId,
        tier: Tier,
        above: f64,
    ) -> Option<(f64, Vec<JobId>)> {
        let (cluster, gang) = (&state.cluster, gang.into());
        // Only gangs that may not be split freely ask for machines everywhere.
        let by_machine = Some(Tier::MACHINE).filter(|_| gang.split != Split::ANY);
        for tier in [Some(tier), by_machine].into_iter().flatten() {
            if !self.shares.contains_key(&tier) {
                self.shares.insert(tier, self.shares_by_domain(state, tier));
            }
        }
        let mut victims = Vec::new();
        let search = Search { state, cluster, tier, pool, gang, above };
        let key: Place = (tier, pool, gang);
        let ranking = self.rankings.remove(&key).filter(|ranking| ranking.above <= above);
        let mut ranking = match ranking {
            Some(ranking) => ranking,
            None => {
                let prices = domains(cluster, pool, tier)
                    .filter_map(|domain| self.price(&search, domain, &mut victims))
                    .map(Reverse);
                Ranking { prices: prices.collect(), above, seen: self.left.len() }
            }
        };
        for domain in self.left_since(&search, ranking.seen) {
            self.drop_gone(tier, domain);
            let price = self.price(&search, domain, &mut victims);
            ranking.prices.extend(price.map(Reverse));
        }
        (ranking.seen, ranking.above) = (self.left.len(), above);
        let mut found = None;
        while let Some(Reverse(noted)) = ranking.prices.pop() {
            let domain = noted.2;
            let Some(price) = self.price(&search, domain, &mut victims) else { continue };
            ranking.prices.push(Reverse(price));
            if price <= noted {
                let ids = victims.iter().map(|&at| self.all[at as usize].id);
                found = Some((price.0.0, ids.collect()));
                break;
            }
        }
        self.rankings.insert(key, ranking);
        found
    }

    /// The domains that candidates have left since, each once. Those of other types are no domains
    /// of the search.
    fn left_since(&self, search: &Search, seen: usize) -> BTreeSet<usize> {
        let Search { cluster, tier, pool, .. } = *search;
        let of_pool = |&&id: &&MachineId| cluster.machines[id as usize].pool == pool;
        let machines = self.left[seen..].iter().filter(of_pool);
        machines.map(|&machine| domain_of(cluster, tier, machine)).collect()
    }

    /// Drops the shares of those that are gone, so that nobody looks at them again.
    fn drop_gone(&mut self, tier: Tier, domain: usize) {
        let Shares { all, by_domain } =
            self.shares.get_mut(&tier).expect("made when first asked for");
        let Held { range, gpus_max } = &mut by_domain[domain];
        let (mut kept, mut gpus) = (range.start, 0);
        for at in range.clone() {
            if !self.is_gone[all[at].candidate as usize] {
                gpus += all[at].gpus;
                all[kept] = all[at];
                kept += 1;
            }
        }
        (range.end, *gpus_max) = (kept, gpus);
    }

    /// The price of the domain, and the victims, by index, who would have to go.
    fn price(&self, search: &Search, domain: usize, victims: &mut Vec<u32>) -> Option<Price> {
        let cost = self.cheapest_in(search, domain, victims)?;
        Some((SortKey(cost), victims.len(), domain))
    }

    /// The victims, by index, that make room in the domain. Returns their cost.
    fn cheapest_in(&self, search: &Search, domain: usize, victims: &mut Vec<u32>) -> Option<f64> {
        let Search { cluster, tier, pool, gang, above, .. } = *search;
        if gang.split != Split::ANY {
            return self.cheapest_by_machine(search, domain, victims);
        }
        let free = free_in(cluster, pool, tier, domain);
        let missing = gang.gpus.checked_sub(free).filter(|&missing| missing > 0)?;
        let shares = &self.shares[&tier];
        if shares.by_domain[domain].gpus_max < missing {
            return None;
        }
        let is_eligible = |candidate: u32| self.is_eligible(candidate, above);
        self.cheapest_of(shares.of(domain), missing, is_eligible, victims)
    }

    fn is_eligible(&self, candidate: u32, above: f64) -> bool {
        !self.is_gone[candidate as usize] && self.all[candidate as usize].claim > above
    }

    /// The victims for a gang that may not be split freely. Each machine has a price for as many of
    /// its chunks as it could hold; the cheapest per chunk are freed until the gang is whole.
    fn cheapest_by_machine(
        &self,
        search: &Search,
        domain: usize,
        victims: &mut Vec<u32>,
    ) -> Option<f64> {
        let Search { cluster, gang, .. } = *search;
        let machines = machines_in(search, domain);
        let free: u32 = machines.iter().map(|&m| cluster.chunks_on(m, gang.split)).sum();
        let mut missing = gang.chunks().checked_sub(free).filter(|&missing| missing > 0)?;
        let mut chosen: BTreeSet<u32> = BTreeSet::new();
        let offer = |machine: MachineId, missing: u32, chosen: &BTreeSet<u32>| {
            self.most_chunks(search, machine, missing, chosen)
        };
        let per_chunk = |offer: &(u32, f64, Vec<u32>)| SortKey(offer.1 / f64::from(offer.0));
        let mut offers: Vec<(SortKey, MachineId)> = machines
            .into_iter()
            .filter_map(|m| offer(m, missing, &chosen).map(|offer| (per_chunk(&offer), m)))
            .collect();
        offers.sort_unstable();
        for (_, machine) in offers {
            // Victims that span machines may have made room here too.
            let Some((chunks, _, here)) = offer(machine, missing, &chosen) else { continue };
            chosen.extend(here);
            missing -= chunks.min(missing);
            if missing == 0 {
                victims.clear();
                victims.extend(&chosen);
                return Some(self.cost_of(victims));
            }
        }
        None
    }

    /// The most chunks, up to so many, that victims could free on a machine: how many, the victims'
    /// cost, and who they are. Those who are `chosen` leave anyway.
    fn most_chunks(
        &self,
        &Search { state, cluster, gang: Demand { split, .. }, above, .. }: &Search,
        machine: MachineId,
        chunks_max: u32,
        chosen: &BTreeSet<u32>,
    ) -> Option<(u32, f64, Vec<u32>)> {
        let shares = self.shares[&Tier::MACHINE].of(machine as usize);
        let free = free_of(cluster, machine);
        let held = |wanted: &dyn Fn(u32) -> bool| {
            let shares = shares.iter().filter(|share| wanted(share.candidate));
            shares.map(|share| share.gpus).sum::<u32>()
        };
        let is_eligible = |at: u32| self.is_eligible(at, above) && !chosen.contains(&at);
        let free_then = free + held(&|at| chosen.contains(&at));
        let most = split.chunks_in(free_then + held(&is_eligible));
        let before = cluster.chunks_on(machine, split);
        let chunks = most.saturating_sub(before).min(chunks_max);
        if chunks == 0 {
            return None;
        }
        let missing = ((before + chunks) * split.chunk).saturating_sub(free_then);
        let mut victims = Vec::new();
        let cost = match missing {
            0 => 0.0,
            _ => self.cheapest_of(shares, missing, is_eligible, &mut victims)?,
        };
        if split.host == Host::NONE {
            return Some((chunks, cost, victims));
        }
        // The victims were chosen by their GPUs. Their CPUs and memory may leave room for fewer chunks.
        let leaves = |share: &&Share| {
            chosen.contains(&share.candidate) || victims.contains(&share.candidate)
        };
        let (gpus, host) = shares.iter().filter(leaves).fold(
            (free, cluster.machines[machine as usize].host_free),
            |(gpus, host), share| {
                let of_victim = state.job(self.all[share.candidate as usize].id).job.terms.split;
                (gpus + share.gpus, host.plus(of_victim.host_of(share.gpus)))
            },
        );
        let chunks = split.chunks_on(gpus, host).saturating_sub(before).min(chunks);
        (chunks > 0).then_some((chunks, cost, victims))
    }

    /// The victims whose shares add up to the missing GPUs. In order of cost per GPU freed, those
    /// that do not suffice are collected; each that would suffice on top of them is an answer. Returns
    /// their cost.
    fn cheapest_of(
        &self,
        shares: &[Share],
        missing: u32,
        is_eligible: impl Fn(u32) -> bool,
        victims: &mut Vec<u32>,
    ) -> Option<f64> {
        victims.clear(); // until the end they are positions in `shares`
        let (mut freed, mut cost) = (0, 0.0);
        // (cost, how many of the collected, the one on top)
        let mut best: Option<(f64, usize, u32)> = None;
        for (at, share) in (0..).zip(shares).filter(|(_, share)| is_eligible(share.candidate)) {
            let candidate = &self.all[share.candidate as usize];
            if best.is_some_and(|(least, ..)| cost >= least) {
                break;
            }
            if freed + share.gpus < missing {
                victims.push(at);
                freed += share.gpus;
                cost += candidate.cost;
            } else if best.is_none_or(|(least, ..)| cost + candidate.cost < least) {
                best = Some((cost + candidate.cost, victims.len(), at));
            }
        }
        let (_, count, last) = best?;
        victims.truncate(count);
        victims.push(last);
        drop_needless(shares, missing, victims);
        victims.iter_mut().for_each(|at| *at = shares[*at as usize].candidate);
        Some(self.cost_of(victims))
    }

    fn cost_of(&self, victims: &[u32]) -> f64 {
        victims.iter().map(|&at| self.all[at as usize].cost).sum()
    }

    fn shares_by_domain(&self, state: &State, tier: Tier) -> Shares {
        let cluster = &state.cluster;
        let present = (0..).zip(&self.all).filter(|&(at, _)| !self.is_gone[at as usize]);
        // Others may not have the GPUs of a machine that drains.
        let slots = |candidate: &Candidate| {
            let slots = state.job(candidate.id).run().map_or(&[][..], |run| &run.placement.slots);
            slots.iter().filter(|s| cluster.machines[s.machine as usize].is_up())
        };
        let mut counts = vec![0; domain_count(cluster, tier)];
        for slot in present.clone().flat_map(|(_, candidate)| slots(candidate)) {
            counts[domain_of(cluster, tier, slot.machine)] += 1;
        }
        let mut end = 0;
        let room = |count: usize| {
            end += count;
            Held { range: end - count..end - count, gpus_max: 0 }
        };
        let mut by_domain: Vec<Held> = counts.into_iter().map(room).collect();
        let mut all = vec![Share { candidate: 0, gpus: 0, cost_per_gpu: 0.0 }; end];
        for (candidate, at) in present {
            for slot in slots(at) {
                let Held { range, gpus_max } =
                    &mut by_domain[domain_of(cluster, tier, slot.machine)];
                *gpus_max += slot.gpus;
                match all[range.clone()].last_mut().filter(|last| last.candidate == candidate) {
                    Some(share) => share.gpus += slot.gpus,
                    None => {
                        all[range.end] = Share { candidate, gpus: slot.gpus, cost_per_gpu: 0.0 };
                        range.end += 1;
                    }
                }
            }
        }
        for Held { range, .. } in &by_domain {
            let shares = &mut all[range.clone()];
            for share in &mut *shares {
                let cost = self.all[share.candidate as usize].cost;
                share.cost_per_gpu = cost / f64::from(share.gpus.max(1));
            }
            shares.sort_unstable_by_key(|share| (SortKey(share.cost_per_gpu), share.candidate));
        }
        Shares { all, by_domain }
    }
}

/// The last victim, by position, may have made some of the others needless: the dearest per GPU go first.
fn drop_needless(shares: &[Share], missing: u32, victims: &mut Vec<u32>) {
    let gpus = |at: u32| shares[at as usize].gpus;
    let mut spare = victims.iter().map(|&at| gpus(at)).sum::<u32>() - missing;
    let is_needed = |&at: &u32| match spare.checked_sub(gpus(at)) {
        Some(less) => {
            spare = less;
            false
        }
        None => true,
    };
    victims.reverse();
    victims.retain(is_needed);
    victims.reverse();
}

// ---- domains of one GPU type, numbered ----

fn domain_count(cluster: &Cluster, tier: Tier) -> usize {
    match tier {
        Tier::MACHINE => cluster.machines.len(),
        _ => cluster.pool_count() * cluster.places(tier.level()),
    }
}

fn domain_of(cluster: &Cluster, tier: Tier, id: MachineId) -> usize {
    let machine = &cluster.machines[id as usize];
    match tier {
        Tier::MACHINE => id as usize,
        _ => {
            let first = machine.pool as usize * cluster.places(tier.level());
            first + machine.within[tier.level()] as usize
        }
    }
}

fn domains(cluster: &Cluster, pool: PoolId, tier: Tier) -> impl Iterator<Item = usize> {
    let places = cluster.places(tier.level());
    let first = if tier == Tier::MACHINE { 0 } else { pool as usize * places };
    let of_pool = move |&d: &usize| tier != Tier::MACHINE || cluster.machines[d].pool == pool;
    (first..first + places).filter(of_pool)
}

fn free_in(cluster: &Cluster, pool: PoolId, tier: Tier, domain: usize) -> u32 {
    let place = domain % cluster.places(tier.level());
    cluster.free_in(pool, tier, place as PlaceId)
}

fn free_of(cluster: &Cluster, machine: MachineId) -> u32 {
    cluster.machines[machine as usize].free
}

/// Machines of a domain that are up.
fn machines_in(search: &Search, domain: usize) -> Vec<MachineId> {
    let Search { cluster, tier, pool, .. } = *search;
    if tier == Tier::MACHINE {
        return Vec::from_iter(
            Some(domain as MachineId).filter(|_| cluster.machines[domain].is_up()),
        );
    }
    let place = (domain % cluster.places(tier.level())) as PlaceId;
    let is_in = |&m: &MachineId| {
        let machine = &cluster.machines[m as usize];
        machine.pool == pool && machine.is_up() && machine.within[tier.level()] == place
    };
    (0..cluster.machines.len() as MachineId).filter(is_in).collect()
}

#[cfg(test)]
mod tests {
    use hither_core::topology::Topology;
    use proptest::prelude::*;

    use super::*;
    use crate::fixture::running_on;

    /// Racks of two machines of four GPUs, and jobs that run on (machine, GPUs) each.
    fn running(racks: u32, jobs: &[Vec<(u32, u32)>]) -> State {
        running_on(&Topology::uniform(racks, 2, 4), jobs, |_| true)
    }

    fn candidates(state: &State, claims: &[f64], cost_per_gpu: &[f64]) -> Candidates {
        let candidate = |(&id, (&claim, &cost)): (&JobId, (&f64, &f64))| Candidate {
            id,
            claim,
            cost: cost * f64::from(state.job(id).gpus()),
        };
        let zipped = state.running.iter().zip(claims.iter().zip(cost_per_gpu));
        Candidates::new(zipped.map(candidate).collect())
    }

    #[test]
    fn a_small_job_goes_before_a_gang_that_only_touches_the_machine() {
        // Job 0 spans both machines of a rack; job 1 has the next machine to itself.
        let state = running(2, &[vec![(0, 4), (1, 4)], vec![(2, 4)], vec![(3, 4)]]);
        let mut all = candidates(&state, &[10.0, 10.0, 0.5], &[62.0; 3]);
        assert_eq!(all.cheapest(&state, 4, 0, Tier::MACHINE, 1.0), Some((248.0, vec![1])));
        // A dear restart makes the gang the cheaper one.
        let mut all = candidates(&state, &[10.0, 10.0, 0.5], &[62.0, 200.0, 62.0]);
        assert_eq!(all.cheapest(&state, 4, 0, Tier::MACHINE, 1.0), Some((496.0, vec![0])));
    }

    #[test]
    fn among_equal_costs_the_fewest_go() {
        let singles = vec![vec![(0, 1)]; 4];
        let jobs = [singles, vec![vec![(1, 4)], vec![(2, 2)], vec![(2, 2)], vec![(3, 4)]]].concat();
        let state = running(2, &jobs);
        let mut all = candidates(&state, &[5.0; 8], &[62.0; 8]);
        assert_eq!(all.cheapest(&state, 4, 0, Tier::MACHINE, 1.0), Some((248.0, vec![4])));
    }

    #[test]
    fn victims_are_of_the_wanted_type() {
        let mut topology = Topology::uniform(2, 2, 4);
        for machine in [1, 3] {
            topology.machines[machine].gpu_type = "other".into();
        }
        // One job has each machine of the first type; the cheap ones are of the other.
        let jobs = [vec![(0, 4)], vec![(2, 4)], vec![(1, 4)], vec![(3, 2)], vec![(3, 2)]];
        let state = running_on(&topology, &jobs, |_| true);
        for tier in state.cluster.tiers() {
            let mut all = candidates(&state, &[5.0; 5], &[62.0, 70.0, 1.0, 1.0, 1.0]);
            let wanted = Some((248.0, vec![0]));
            assert_eq!(all.cheapest(&state, 2, 0, tier, 1.0), wanted, "{tier:?}");
            // A victim of the other type leaves: its neighbour there is no victim for this type.
            all.remove(&state, 3);
            assert_eq!(all.cheapest(&state, 2, 0, tier, 1.0), wanted, "{tier:?}");
        }
    }

    /// Machine by machine, jobs until the dice say stop; some span two machines.
    fn any_jobs() -> impl Strategy<Value = Vec<Vec<(u32, u32)>>> {
        let machine = prop::collection::vec(1u32..=4, 0..5);
        (prop::collection::vec(machine, 6), any::<u8>()).prop_map(|(machines, spans)| {
            let mut jobs: Vec<Vec<(u32, u32)>> = Vec::new();
            for (machine, sizes) in (0..).zip(machines) {
                let mut free = 4u32;
                for gpus in sizes {
                    let gpus = gpus.min(free);
                    free -= gpus;
                    let joins = spans >> machine & 1 == 1;
                    match jobs.last_mut().filter(|j| joins && j[0].0 + 1 == machine && j.len() < 2)
                    {
                        _ if gpus == 0 => {}
                        Some(job) => job.push((machine, gpus)),
                        None => jobs.push(vec![(machine, gpus)]),
                    }
                }
            }
            jobs
        })
    }

    /// The least cost over all subsets of the candidates and all domains of the tier.
    fn least(state: &State, all: &Candidates, gpus: u32, tier: Tier, above: f64) -> Option<f64> {
        let subsets = 0u32..1 << all.all.len();
        let enough = |subset: &u32| {
            let chosen: Vec<&Candidate> =
                (0..).zip(&all.all).filter(|(at, _)| subset >> at & 1 == 1).map(|c| c.1).collect();
            if !chosen.iter().all(|c| c.claim > above && !all.is_gone[c.id as usize]) {
                return None;
            }
            let mut free: BTreeMap<usize, u32> = BTreeMap::new();
            for (id, machine) in (0..).zip(&state.cluster.machines) {
                *free.entry(domain_of(&state.cluster, tier, id)).or_default() += machine.free;
            }
            let full: Vec<usize> =
                free.iter().filter(|(_, free)| **free < gpus).map(|(d, _)| *d).collect();
            for candidate in &chosen {
                for slot in &state.job(candidate.id).run().unwrap().placement.slots {
                    *free.entry(domain_of(&state.cluster, tier, slot.machine)).or_default() +=
                        slot.gpus;
                }
            }
            let made = full.iter().any(|domain| free[domain] >= gpus);
            made.then(|| chosen.iter().map(|c| c.cost).sum::<f64>())
        };
        subsets.filter_map(|subset| enough(&subset)).min_by(f64::total_cmp)
    }

    /// Whether any domain of the tier that is full could hold the gang without all candidates.
    fn could_hold(state: &State, all: &Candidates, gang: Demand, tier: Tier, above: f64) -> bool {
        let split = gang.split;
        let mut free: Vec<u32> = state.cluster.machines.iter().map(|m| m.free).collect();
        let sums = |free: &[u32]| {
            let mut chunks: BTreeMap<usize, u32> = BTreeMap::new();
            for (id, &free) in (0..).zip(free) {
                let domain = domain_of(&state.cluster, tier, id);
                *chunks.entry(domain).or_default() += split.chunks_in(free);
            }
            chunks
        };
        let before = sums(&free);
        for candidate in all.all.iter().filter(|c| c.claim > above && !all.is_gone[c.id as usize]) {
            for slot in &state.job(candidate.id).run().unwrap().placement.slots {
                free[slot.machine as usize] += slot.gpus;
            }
        }
        let after = sums(&free);
        before.iter().any(|(d, chunks)| *chunks < gang.chunks() && after[d] >= gang.chunks())
    }

    proptest! {
        #[test]
        fn victims_make_room_for_gangs_that_are_not_split_freely(
            jobs in any_jobs(),
            claims in prop::collection::vec(0.0..10.0f64, 24),
            costs in prop::collection::vec(0.0..100.0f64, 24),
            (chunk, chunks, chunks_max) in (1u32..=4, 1u32..4, 1u32..4),
            (tier, above) in (0u8..3, 0.0..8.0f64),
        ) {
            let mut state = running(3, &jobs);
            let mut all = candidates(&state, &claims, &costs);
            let gang = Demand { gpus: chunk * chunks, split: Split { chunk, chunks_max, ..Split::ANY } };
            state.cluster.prepare(gang.split);
            let tier = Tier(tier);
            let found = all.cheapest(&state, gang, 0, tier, above);
            prop_assert_eq!(found.is_some(), could_hold(&state, &all, gang, tier, above));
            let Some((cost, victims)) = found else { return Ok(()) };
            let costs: f64 = victims.iter().map(|&id| all.all[id as usize].cost).sum();
            prop_assert!((cost - costs).abs() < 1e-9);
            for id in victims {
                prop_assert!(all.all[id as usize].claim > above);
                state.end(id, true);
            }
            prop_assert!(state.cluster.place_at(gang, 0, tier).is_some());
        }

        #[test]
        fn victims_cost_at_most_twice_the_least(
            jobs in any_jobs(),
            claims in prop::collection::vec(0.0..10.0f64, 24),
            costs in prop::collection::vec(0.0..100.0f64, 24),
            asked in prop::collection::vec((1u32..12, 0u8..3, 0.0..8.0f64, any::<bool>()), 1..6),
        ) {
            prop_assume!(jobs.len() <= 10);
            let mut state = running(3, &jobs);
            let mut all = candidates(&state, &claims, &costs);
            for (gpus, tier, above, goes) in asked {
                let tier = Tier(tier);
                let found = all.cheapest(&state, gpus, 0, tier, above);
                let least = least(&state, &all, gpus, tier, above);
                prop_assert_eq!(found.is_some(), least.is_some());
                let (Some((cost, victims)), Some(least)) = (found, least) else { continue };
                prop_assert!(cost <= 2.0 * least + 1e-9, "{cost} for {least}");
                for &id in &victims {
                    prop_assert!(all.all[id as usize].claim > above);
                    prop_assert!(!all.is_gone[id as usize]);
                }
                if goes {
                    for id in victims {
                        all.remove(&state, id);
                        state.end(id, true);
                    }
                }
            }
        }
    }
}
