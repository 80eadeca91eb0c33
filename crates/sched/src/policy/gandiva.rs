//! Gandiva (OSDI 2018), for gangs: machines are set aside by job size; jobs that find no room share
//! GPUs in turns; and jobs move, which costs them seconds. After every departure jobs on several
//! machines look for a place together, and now and then a machine is emptied into fuller ones.
//!
//! The paper knows machines only. With `racks` homes and moves count racks too: that is a variant of
//! ours (`gandiva-rack`), not the paper's.

mod homes;

use std::collections::BTreeSet;

use hither_core::Seconds;
use hither_core::record::Reason;
use serde::{Deserialize, Serialize};

use crate::cluster::{MachineId, Placement, PoolId, Slot};
use crate::event::{Timer, Why};
use crate::job::{JobId, Profile};
use crate::pass::{Answer, Offer};
use crate::policy::{Policy, learned_whole};
use crate::state::{Claim, Phase, State, Turn};
use homes::Homes;

pub const ABOUT: &str = "Gandiva: machines by job size, time slicing, migration";
pub const ABOUT_RACK: &str = "gandiva that also keeps jobs inside racks";

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Options {
    /// How long a job runs before one that shares its GPUs takes its turn.
    pub slice_s: Seconds,
    /// How often a machine is emptied into fuller ones.
    pub rebalance_s: Seconds,
    /// Whether homes and moves count racks, and all larger places, as well as machines.
    pub racks: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { slice_s: 60.0, rebalance_s: 600.0, racks: false }
    }
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Gandiva {
    #[serde(skip)]
    options: Options,
    homes: Homes,
    /// Jobs whose time slice is over: their homes are kept for them.
    suspended: BTreeSet<JobId>,
    /// What had happened to jobs when homes were last brought up to date.
    #[serde(skip)]
    surprises: u64,
    /// The group of machines whose slices are over next.
    group: usize,
    /// Whether a job has departed since jobs last looked for a place together.
    has_departed: bool,
    /// The job on several machines that looked last.
    last_looked_at: JobId,
    /// When a machine was last emptied.
    emptied_s: Seconds,
}

/// Jobs on several machines that look for a place together after one departure.
const LOOKING_MAX: usize = 32;

/// Machines whose slices end at the same moment. Those of larger clusters end in groups, one after the
/// other, so that no round has to deal with all.
const GROUP_MAX: usize = 512;

/// What a move takes. The paper measured 1 s for models of a few megabytes, and 3.5 s for 1.4 GB.
fn move_s(profile: &Profile) -> Seconds {
    1.0 + 2.5 * profile.gradient_bytes / 1.4e9
}

impl Gandiva {
    pub fn new(options: &Options) -> Self {
        Self {
            options: options.clone(),
            homes: Homes::default(),
            suspended: BTreeSet::new(),
            surprises: 0,
            group: 0,
            has_departed: false,
            last_looked_at: 0,
            emptied_s: 0.0,
        }
    }

    /// Homes follow what happened to jobs without this policy: they ended, lost their machine, were found to
    /// run.
    fn find_homes(&mut self, state: &State) {
        self.homes.resize(&state.cluster);
        if std::mem::replace(&mut self.surprises, state.surprises) == state.surprises {
            return;
        }
        for id in self.homes.jobs() {
            let phase = state.jobs.get(id).map(|job| &job.phase);
            let is_there = !matches!(phase, None | Some(Phase::Parked));
            // After a failure the old home is gone.
            if !is_there || state.line.contains(id) && !self.suspended.contains(&id) {
                self.homes.unsettle(id);
                self.suspended.remove(&id);
                self.has_departed |= !is_there;
            }
        }
        for &id in &state.running {
            let job = state.job(id);
            let run = job.run().expect("it runs");
            if self.homes.get(id) != Some(&*run.placement) {
                self.homes.settle(id, Placement::clone(&run.placement), job.gpus());
            }
        }
    }

    // ---- waiting ----

    /// Starts a waiting job at its home.
    fn start(&mut self, turn: &mut Turn, id: JobId, why: Why) {
        self.suspended.remove(&id);
        turn.start(id, self.homes.get(id).expect("it has one").clone(), why);
    }

    /// A home for a job for which there are enough free GPUs: its own if they are there.
    fn free_home(&mut self, turn: &mut Turn, id: JobId) {
        if !self.homes.get(id).is_some_and(|home| is_free(turn, home)) {
            let job = turn.state.job(id);
            let cluster = &turn.state.cluster;
            let (_, pool) = cluster.best_pool(job.demand(), job.pool).expect("it fits somewhere");
            let home = self.homes.find_free(cluster, job.demand(), pool, self.options.racks);
            self.homes.settle(id, home.expect("the pool has that many free"), job.gpus());
            let move_s = move_s(&job.job.profile);
            turn.move_memory(id, move_s);
        }
    }

    // ---- time slices ----

    /// Jobs that have waited longest come first, so that large gangs get their turn too.
    fn take_turns(&mut self, turn: &mut Turn) {
        let groups = self.groups();
        self.group = (self.group + 1) % groups;
        // Machines where all who run have only just begun.
        let mut is_spent = vec![false; self.homes.machine_count()];
        let mut left = is_spent.len();
        for id in turn.state.line.by_claim() {
            if left == 0 {
                break; // nobody else can get a turn
            }
            let job = turn.state.job(id);
            if turn.state.cluster.best_pool(job.demand(), job.pool).is_some() {
                self.free_home(turn, id);
                let tier = self.homes.get(id).expect("it has one").tier;
                self.start(turn, id, Why::Turn { tier });
            } else if self.has_home(turn, id)
                && self.group_of(id) == Some(self.group)
                && let Some(machine) = self.take_turn(turn, id, &is_spent)
            {
                is_spent[machine as usize] = true;
                left -= 1;
            }
        }
    }

    fn groups(&self) -> usize {
        self.homes.machine_count().div_ceil(GROUP_MAX).max(1)
    }

    /// A gang takes its turn with the group of its first machine.
    fn group_of(&self, id: JobId) -> Option<usize> {
        let first = self.homes.get(id)?.slots.first()?.machine;
        Some(first as usize % self.groups())
    }

    /// Finds the job a home if it has none or one of its machines is down.
    fn has_home(&mut self, turn: &Turn, id: JobId) -> bool {
        let cluster = &turn.state.cluster;
        let is_up = |slot: &Slot| cluster.machines[slot.machine as usize].is_up();
        if self.homes.get(id).is_some_and(|home| home.slots.iter().all(is_up)) {
            return true;
        }
        self.homes.unsettle(id);
        let job = turn.state.job(id);
        let (gang, racks) = (job.demand(), self.options.racks);
        let mut pools = cluster.pools_for(job.pool);
        let home = pools.find_map(|pool| self.homes.find(cluster, gang, pool, racks));
        home.map(|home| self.homes.settle(id, home, job.gpus())).is_some()
    }

    /// Suspends those who have had their slice where `id` lives, if that makes room for it. Returns a
    /// machine where all who run have only just begun, if that is why it does not.
    fn take_turn(&mut self, turn: &mut Turn, id: JobId, is_spent: &[bool]) -> Option<MachineId> {
        let home = self.homes.get(id)?;
        if home.slots.iter().any(|slot| is_spent[slot.machine as usize]) {
            return None;
        }
        let mut suspended: BTreeSet<JobId> = BTreeSet::new();
        for slot in &home.slots {
            let mut free = turn.state.cluster.machines[slot.machine as usize].free;
            let residents = &self.homes.room(slot.machine).jobs;
            let leaving = residents.iter().filter(|resident| suspended.contains(&resident.0));
            free += leaving.map(|resident| resident.1).sum::<u32>();
            for &(other, gpus) in residents {
                if free >= slot.gpus {
                    break;
                }
                let job = turn.state.job(other);
                let had_slice = turn.now() - job.since_s >= self.options.slice_s - 1e-6;
                let runs = turn.state.running.contains(&other) && job.job.terms.preemptible;
                if runs && had_slice && suspended.insert(other) {
                    free += gpus;
                }
            }
            if free < slot.gpus {
                return suspended.is_empty().then_some(slot.machine);
            }
        }
        let victims = suspended.len() as u32;
        for other in suspended {
            turn.preempt(other, Reason::TimeSlice, Why::SliceOver);
            self.suspended.insert(other);
        }
        // Others may have taken GPUs from under the suspended jobs.
        let home = self.homes.get(id)?;
        if is_free(turn, home) {
            let tier = home.tier;
            self.start(turn, id, Why::RoomMade { tier, victims });
        }
        None
    }

    // ---- migration ----

    /// Whether the job runs, and has had its slice: jobs that moved have only just begun.
    fn may_move(&self, turn: &Turn, id: JobId) -> bool {
        turn.state.running.contains(&id)
            && turn.state.worked_s(id).is_some_and(|s| s >= self.options.slice_s)
    }

    fn migrate(&mut self, turn: &mut Turn, id: JobId, place: Placement, why: Why) {
        let job = turn.state.job(id);
        let (move_s, gpus) = (move_s(&job.job.profile), job.gpus());
        turn.preempt(id, Reason::Migration, why);
        self.homes.settle(id, place.clone(), gpus);
        turn.move_memory(id, move_s);
        turn.start(id, place, why);
    }

    /// Jobs on several machines move onto fewer, or into fewer racks where those count.
    fn move_together(&mut self, turn: &mut Turn) {
        for id in self.homes.spread_after(self.last_looked_at, LOOKING_MAX) {
            if turn.state.cluster.free_total() == 0 {
                return;
            }
            self.last_looked_at = id;
            if !self.may_move(turn, id) {
                continue;
            }
            let Some(better) = turn.offer_instead(id) else { continue };
            let home = self.homes.get(id).expect("it is one of them");
            let extent = |place: &Placement| match self.options.racks {
                true => (Some(place.tier), place.slots.len()),
                false => (None, place.slots.len()),
            };
            if extent(&better) < extent(home) {
                let why = Why::FewerMachines { machines: better.slots.len() as u32 };
                self.migrate(turn, id, better, why);
            }
        }
    }

    /// The machine with the most free GPUs of those in use is emptied, if fuller ones have room for all
    /// its jobs.
    fn defragment(&mut self, turn: &mut Turn, pool: PoolId) {
        let cluster = &turn.state.cluster;
        let in_use = (0..).zip(&cluster.machines).filter(|(id, m)| {
            let is_partly_free = m.is_up() && m.free > 0 && m.free < m.gpus;
            m.pool == pool && is_partly_free && !self.homes.room(*id).jobs.is_empty()
        });
        let in_use: Vec<(u32, MachineId)> = in_use.map(|(id, m)| (m.free, id)).collect();
        let emptiest = in_use.iter().max_by_key(|(free, id)| (*free, std::cmp::Reverse(*id)));
        let Some(&(most_free, emptiest)) = emptiest else { return };
        let mut fuller: BTreeSet<(u32, MachineId)> =
            in_use.into_iter().filter(|m| m.1 != emptiest && m.0 <= most_free).collect();
        let mut moves = Vec::new();
        for &(id, gpus) in &self.homes.room(emptiest).jobs {
            let is_whole = turn.state.job(id).gpus() == gpus;
            let target = fuller.range((gpus, 0)..).next().copied();
            let (true, true, Some(target)) = (is_whole, self.may_move(turn, id), target) else {
                return;
            };
            fuller.remove(&target);
            fuller.insert((target.0 - gpus, target.1));
            moves.push((id, Slot { machine: target.1, gpus }));
        }
        for (id, slot) in moves {
            let slots = vec![slot];
            let tier = turn.state.cluster.tier_of(&slots);
            self.migrate(turn, id, Placement { slots, tier }, Why::LeavesEmpty);
        }
    }
}

fn is_free(turn: &Turn, home: &Placement) -> bool {
    let machines = &turn.state.cluster.machines;
    home.slots.iter().all(|s| machines[s.machine as usize].free >= s.gpus)
}

impl Policy for Gandiva {
    /// Those who have waited longest first.
    fn claim(&self, state: &State, id: JobId) -> Claim {
        Claim::by(state.job(id).since_s)
    }

    fn answer(&mut self, turn: &mut Turn, id: JobId, _offer: Offer) -> Answer {
        self.find_homes(&turn.state);
        self.free_home(turn, id);
        self.suspended.remove(&id);
        let home = self.homes.get(id).expect("it has one").clone();
        let why = Why::Turn { tier: home.tier };
        Answer::Take(home, why)
    }

    fn round(&mut self, turn: &mut Turn) -> bool {
        self.find_homes(&turn.state);
        let mut has_moved = false;
        if turn.take_due(Timer::Round) {
            self.take_turns(turn);
            has_moved = true;
        }
        if std::mem::take(&mut self.has_departed) {
            self.move_together(turn);
            has_moved = true;
        }
        if turn.now() - self.emptied_s >= self.options.rebalance_s {
            self.emptied_s = turn.now();
            for pool in 0..turn.state.cluster.pool_count() {
                self.defragment(turn, pool as PoolId);
            }
            has_moved = true;
        }
        if !turn.state.line.is_empty() {
            turn.await_round(self.options.slice_s / self.groups() as f64);
        }
        has_moved
    }

    learned_whole!(options);
}
