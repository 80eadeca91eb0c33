//! Displacing, as policies do that plan anew at every event: empty the cluster on paper, walk all jobs in order of
//! rank, take all that fit, stop the rest.
//!
//! While gangs may be split in any way and take any GPUs, counting them makes the plan. Otherwise it is made on paper,
//! which is a copy of the cluster once anything is moved on it.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::job::JobId;
use crate::policy::Placing;
use crate::state::{Ask, Claim, Spot, State, Turn};

/// Running jobs that lose their GPUs to those who wait, all at once, when the first of these finds no place in a pass;
/// then all are offered what is free. `rank` is that of a running job; `None`: it keeps its GPUs. `planned` is the
/// pass that the last plan was for.
pub fn outranked(
    turn: &Turn,
    planned: &mut u64,
    placing: Placing,
    rank: impl Fn(&State, JobId) -> Option<Claim>,
) -> Vec<JobId> {
    if std::mem::replace(planned, turn.pass()) == turn.pass() {
        return Vec::new();
    }
    let ranked = ranked(&turn.state, rank);
    match turn.state.cluster.splits_freely() && !placing.may_decline() {
        true => by_counting(&turn.state, &ranked),
        false => on_paper(&turn.state, &ranked, placing),
    }
}

/// Running jobs that may be stopped, the last first.
fn ranked(state: &State, rank: impl Fn(&State, JobId) -> Option<Claim>) -> Vec<Spot> {
    let may_stop = |id: &JobId| state.job(*id).job.terms.preemptible;
    let running = state.running.iter().copied().filter(may_stop);
    let mut ranked: Vec<Spot> = running.filter_map(|id| Some((rank(state, id)?, id))).collect();
    ranked.sort_unstable_by_key(|spot| Reverse(*spot));
    ranked
}

/// Who finds no room when all jobs take GPUs in order of rank. A running job goes before a waiting one of the same
/// rank.
fn by_counting(state: &State, ranked: &[Spot]) -> Vec<JobId> {
    let cluster = &state.cluster;
    let mut room: Vec<u32> =
        (0..cluster.pool_count()).map(|pool| cluster.free_gpus(pool as _)).collect();
    for &(_, id) in ranked {
        room[state.pool_of_run(id) as usize] += state.would_free(id);
    }
    let mut victims = Vec::new();
    let mut running = ranked.iter().rev().peekable();
    let mut pass_running = |room: &mut [u32], until: Option<Claim>| {
        while let Some(&(_, id)) = running.next_if(|spot| until.is_none_or(|at| spot.0 <= at)) {
            let (pool, gpus) = (state.pool_of_run(id) as usize, state.would_free(id));
            match room[pool].checked_sub(gpus) {
                Some(left) => room[pool] = left,
                None => victims.push(id),
            }
        }
    };
    let mut heads = heads(state);
    while let Some(Reverse((spot, ask))) = heads.pop() {
        pass_running(&mut room, Some(spot.0));
        let mut pools = cluster.pools_for(ask.pool);
        // Room only shrinks on the way: the others of an ask that does not fit do not fit either.
        if let Some(pool) = pools.find(|&pool| room[pool as usize] >= ask.gang.gpus) {
            room[pool as usize] -= ask.gang.gpus;
            heads.extend(state.line.after(ask, spot).map(|spot| Reverse((spot, ask))));
        }
    }
    pass_running(&mut room, None);
    victims
}

/// The same, where counted GPUs do not tell whether a gang fits. A waiting job takes what is free; else running jobs
/// that rank after it leave, the last first, until it fits. Those whose GPUs nobody takes stay.
fn on_paper(state: &State, ranked: &[Spot], placing: Placing) -> Vec<JobId> {
    let mut paper = Cow::Borrowed(&state.cluster);
    let held = |id: JobId| &*state.job(id).run().expect("it runs").placement;
    let split = |id: JobId| state.job(id).job.terms.split;
    let mut gone = 0;
    let mut hopeless: Vec<Ask> = Vec::new();
    let mut heads = heads(state);
    while let Some(Reverse((spot, ask))) = heads.pop() {
        let (claim, id) = spot;
        let next = state.line.after(ask, spot).map(|spot| Reverse((spot, ask)));
        let is_strict = placing.is_strict(&state.forecast, state.job(id));
        if is_strict && hopeless.contains(&ask) {
            heads.extend(next);
            continue;
        }
        let before = gone;
        let place = loop {
            let place = placing.find(state, &paper, id);
            let Some(last) = ranked.get(gone).filter(|last| place.is_none() && last.0 > claim)
            else {
                break place;
            };
            paper.to_mut().release(held(last.1), split(last.1));
            gone += 1;
        };
        if let Some(place) = place {
            paper.to_mut().take(&place, split(id));
            heads.extend(next);
            continue;
        }
        for &(_, back) in &ranked[before..gone] {
            paper.to_mut().take(held(back), split(back));
        }
        gone = before;
        // The others of the ask rank after it and fare no better, if they want the same.
        if is_strict && placing == Placing::ByProfile {
            hopeless.push(ask);
            heads.extend(next);
        }
    }
    let mut victims = Vec::new();
    for &(_, id) in ranked[..gone].iter().rev() {
        match paper.has_room(held(id), split(id)) {
            true => paper.to_mut().take(held(id), split(id)),
            false => victims.push(id),
        }
    }
    victims
}

/// The first job of each ask.
fn heads(state: &State) -> BinaryHeap<Reverse<(Spot, Ask)>> {
    state.line.heads().map(|(ask, spot, _)| Reverse((spot, ask))).collect()
}
