//! Gandiva (OSDI 2018), for gangs: machines are set aside by job size; jobs that find no room share
//! GPUs in turns; and jobs move, which costs them seconds. After every departure jobs on several
//! machines look for a place together, and now and then a machine is emptied into fuller ones.
//!
//! The paper knows machines only. With `racks` homes and moves count racks too: that is a variant of
//! ours (`gandiva-rack`), not the paper's.

mod homes;

use std::collections::{BTreeMap, BTreeSet};

use hither_core::Seconds;
use hither_core::record::Reason;
use serde::{Deserialize, Serialize};

use crate::cluster::{MachineId, Placement, PoolId, Slot};
use crate::event::{Timer, Why};
use crate::job::{JobId, Profile};
use crate::order::SortKey;
use crate::policy::queue::{Queue, class_of};
use crate::policy::{Policy, saved_whole};
use crate::state::Turn;
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

pub fn gandiva(options: &Options) -> Box<dyn Policy> {
    Box::new(Gandiva {
        options: options.clone(),
        homes: Homes::default(),
        waiting: Queue::default(),
        since: BTreeMap::new(),
        slice_set: false,
        slice_over: false,
        group: 0,
        has_departed: false,
        last_looked_at: 0,
        emptied_s: 0.0,
    })
}

pub fn rack(options: &Options) -> Box<dyn Policy> {
    gandiva(&Options { racks: true, ..options.clone() })
}

#[derive(Debug, Serialize, Deserialize)]
struct Gandiva {
    #[serde(skip)]
    options: Options,
    homes: Homes,
    /// By since when they wait.
    waiting: Queue<SortKey>,
    since: BTreeMap<JobId, SortKey>,
    slice_set: bool,
    slice_over: bool,
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
    // ---- waiting ----

    fn wait(&mut self, turn: &Turn, id: JobId) {
        let job = turn.state.job(id);
        self.since.insert(id, SortKey(job.since_s));
        self.waiting.insert(class_of(job), SortKey(job.since_s), id);
    }

    fn wait_no_more(&mut self, turn: &Turn, id: JobId) {
        if let Some(since) = self.since.remove(&id) {
            self.waiting.remove(class_of(turn.state.job(id)), since, id);
        }
    }

    /// Starts a waiting job at its home.
    fn start(&mut self, turn: &mut Turn, id: JobId, why: Why) {
        self.wait_no_more(turn, id);
        turn.start(id, self.homes.get(id).expect("it has one").clone(), why);
    }

    /// Starts jobs on free GPUs, those that have waited longest first.
    fn fill(&mut self, turn: &mut Turn) {
        while let Some((_, _, id)) = self.waiting.first_fitting(&turn.state.cluster) {
            self.start_on_free(turn, id);
        }
    }

    /// Starts a job for which there are enough free GPUs, at its home if they are there.
    fn start_on_free(&mut self, turn: &mut Turn, id: JobId) {
        if !self.homes.get(id).is_some_and(|home| is_free(turn, home)) {
            let job = turn.state.job(id);
            let cluster = &turn.state.cluster;
            let (_, pool) = cluster.best_pool(job.demand(), job.pool).expect("it fits somewhere");
            let home = self.homes.find_free(cluster, job.demand(), pool, self.options.racks);
            self.homes.settle(id, home.expect("the pool has that many free"), job.gpus());
            let move_s = move_s(&job.job.profile);
            turn.move_memory(id, move_s);
        }
        let tier = self.homes.get(id).expect("it has one").tier;
        self.start(turn, id, Why::Turn { tier });
    }

    // ---- time slices ----

    /// Jobs that have waited longest come first, so that large gangs get their turn too.
    fn take_turns(&mut self, turn: &mut Turn) {
        let groups = self.groups();
        self.group = (self.group + 1) % groups;
        // Machines where all who run have only just begun.
        let mut is_spent = vec![false; self.homes.machine_count()];
        let mut left = is_spent.len();
        for id in self.waiting.ids() {
            if left == 0 {
                break; // nobody else can get a turn
            }
            let job = turn.state.job(id);
            if turn.state.cluster.best_pool(job.demand(), job.pool).is_some() {
                self.start_on_free(turn, id);
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
            self.wait(turn, other);
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
    fn enqueue(&mut self, turn: &mut Turn, id: JobId) {
        self.homes.resize(&turn.state.cluster);
        // After a failure the old home is gone.
        self.homes.unsettle(id);
        self.wait(turn, id);
    }

    fn forget(&mut self, turn: &mut Turn, id: JobId) {
        self.homes.unsettle(id);
        self.wait_no_more(turn, id);
        self.has_departed = true;
    }

    fn adopt(&mut self, turn: &mut Turn, id: JobId) {
        self.homes.resize(&turn.state.cluster);
        self.forget(turn, id);
        let job = turn.state.job(id);
        if let Some(run) = job.run() {
            self.homes.settle(id, Placement::clone(&run.placement), job.gpus());
        }
    }

    fn schedule(&mut self, turn: &mut Turn) {
        self.homes.resize(&turn.state.cluster);
        if std::mem::take(&mut self.slice_over) {
            self.take_turns(turn);
        }
        self.fill(turn);
        if std::mem::take(&mut self.has_departed) {
            self.move_together(turn);
            self.fill(turn);
        }
        if turn.now() - self.emptied_s >= self.options.rebalance_s {
            self.emptied_s = turn.now();
            for pool in 0..turn.state.cluster.pool_count() {
                self.defragment(turn, pool as PoolId);
            }
            self.fill(turn);
        }
        if !self.waiting.is_empty() && !self.slice_set {
            self.slice_set = true;
            let between_s = self.options.slice_s / self.groups() as f64;
            turn.set_timer(Timer::Round, turn.now() + between_s);
        }
    }

    saved_whole!(options);

    fn timer(&mut self, _turn: &mut Turn, _round: Timer) {
        self.slice_set = false;
        self.slice_over = true;
    }
}
