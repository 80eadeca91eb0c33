//! What a place costs: the price that waiting, preemption and upgrades share.
//!
//! A job that takes a place loses the time by which its iterations take longer there than at its best
//! tier, over what is left of it, and slows the jobs whose links it shares. Both count in seconds on the
//! job's own GPUs. A trial start among the running jobs, as the scheduler believes them to be, tells what
//! the links do today; the forecast tells what the tier and the place have usually cost. A job that stops
//! gives back what its place costs it and its neighbours.

use hither_core::Seconds;

use crate::cluster::Placement;
use crate::contention::Trial;
use crate::job::JobId;
use crate::network::Shape;
use crate::state::Turn;

/// What the place would cost the job if it stayed there to its end: the time by which it ends later than at
/// its best place, and what it takes from the others; `None` if nobody knows its profile.
pub fn place_costs_s(
    turn: &mut Turn,
    id: JobId,
    place: &Placement,
    best: &Shape,
    anticipate: bool,
) -> Option<Seconds> {
    let alone_s = best_iteration_s(turn, id, best)?;
    let at = iteration_at(turn, id, place, anticipate);
    let (job, forecast) = (turn.state.job(id), &turn.state.forecast);
    let usually = match anticipate {
        true => forecast.slowdown_at(&job.job, job.best),
        false => 1.0,
    };
    let left_s = forecast.left_s(job, turn.now());
    let run_s = left_s * (at.iteration_s / (alone_s * usually)).max(1.0);
    Some(run_s - left_s + others_lose_s(turn, id, &at.others, run_s))
}

/// An iteration at the best place on idle links. The estimate counts with places of average size; where they
/// differ in size, the best one may be worse. Measured against an estimate that no place keeps, every place
/// would seem to lose time, and the job would decline an idle cluster.
fn best_iteration_s(turn: &Turn, id: JobId, best: &Shape) -> Option<Seconds> {
    let state = &turn.state;
    let job = state.job(id);
    let estimate_s = job.iteration_s?[job.best.level()];
    let there_s = state.network.iteration_s(&job.job.profile, best);
    Some(if there_s > estimate_s * (1.0 + 1e-9) { there_s } else { estimate_s })
}

/// Time that a running job and its neighbours, old and new, save if it goes on at the place, in seconds on
/// its GPUs; `None`: nobody knows.
pub fn move_saves_s(
    turn: &mut Turn,
    id: JobId,
    place: &Placement,
    anticipate: bool,
) -> Option<Seconds> {
    let job = turn.state.job(id);
    let rate = job.run().map(|run| run.pace.rate).filter(|&rate| rate > 0.0)?;
    let left = turn.state.forecast.left(job, turn.now())?;
    let own = if anticipate { job.own_pace(&turn.state.forecast) } else { 1.0 };
    let at = iteration_at(turn, id, place, anticipate);
    let there_s = own * at.iteration_s;
    let others_s = others_lose_s(turn, id, &at.others, left * there_s);
    Some(left * (1.0 / rate - there_s) - others_s)
}

/// GPU seconds that stopping a running job now costs, at least 0: its checkpoint, its restart and the work
/// that it does again, less what its place would go on to cost. So jobs that are badly placed go first.
pub fn stop_costs(turn: &mut Turn, id: JobId, anticipate: bool) -> f64 {
    // A lone GPU loses nothing to its place, and most jobs of many clusters have one.
    if turn.state.job(id).gpus() == 1 {
        return turn.state.stop_cost(id);
    }
    let faster = if anticipate { turn.trial_stop(id) } else { Vec::new() };
    let (state, now) = (&turn.state, turn.now());
    let job = state.job(id);
    let own_s =
        state.forecast.saving_s(job, now, anticipate).map_or(0.0, |saved_s| saved_s.max(0.0));
    let left_s = state.forecast.left_s(job, now);
    let others_s = -others_lose_s(turn, id, &faster, left_s);
    (state.stop_cost(id) - f64::from(job.gpus()) * (own_s + others_s)).max(0.0)
}

/// An iteration of the job at the place, and what becomes of the others.
fn iteration_at(turn: &mut Turn, id: JobId, place: &Placement, anticipate: bool) -> Trial {
    let shape = turn.state.network.shape(&turn.state.cluster, place);
    let trial = anticipate.then(|| turn.trial(id, place, &shape));
    let state = &turn.state;
    let job = &state.job(id).job;
    let alone_s = state.network.iteration_s(&job.profile, &shape);
    let Some(trial) = trial else { return Trial { iteration_s: alone_s, others: Vec::new() } };
    let domain = state.cluster.domain_of(place);
    let usual_s = alone_s * state.forecast.slowdown(job, place.tier, domain);
    Trial { iteration_s: usual_s.max(trial.iteration_s), ..trial }
}

/// What the others, with their iterations before and after, lose over a run of this length, in seconds on
/// the job's GPUs.
fn others_lose_s(
    turn: &Turn,
    id: JobId,
    others: &[(JobId, Seconds, Seconds)],
    run_s: Seconds,
) -> Seconds {
    let state = &turn.state;
    let gpus = f64::from(state.job(id).gpus());
    let lose_s = |&(other, before_s, after_s): &(JobId, Seconds, Seconds)| {
        let other = state.job(other);
        let together_s = state.forecast.left_s(other, state.now).min(run_s);
        f64::from(other.gpus()) / gpus * (1.0 - before_s / after_s) * together_s
    };
    others.iter().map(lose_s).sum()
}
