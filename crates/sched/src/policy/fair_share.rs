//! Fair share by user: the next job comes from the user who holds the fewest GPUs now; among equals
//! from the one who has used the least, with a half-life.

use std::collections::{BTreeMap, BTreeSet};

use hither_core::Seconds;
use serde::{Deserialize, Serialize};

use crate::event::Why;
use crate::job::JobId;
use crate::order::SortKey;
use crate::pass::{Answer, Offer};
use crate::policy::{Policy, best_place, learned_whole};
use crate::state::{Claim, Phase, State, Turn};

pub const ABOUT: &str =
    "users take turns: next is who holds the fewest GPUs, then who used the least";

/// Past use counts half after a week, as Slurm's default.
const HALF_LIFE_S: Seconds = 7.0 * 86_400.0;

/// What a user holds and has used.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
struct Use {
    held: u32,
    /// GPU seconds used so far, less `held` since the beginning: it stands still while `held` does, and orders users
    /// who hold as many. A second is worth twice as much as one a half-life earlier.
    used: f64,
}

impl Use {
    fn hold(&mut self, now: Seconds, held: u32) {
        let rate = std::f64::consts::LN_2 / HALF_LIFE_S;
        let worth = (rate * now).exp() / rate;
        self.used += (f64::from(self.held) - f64::from(held)) * worth;
        self.held = held;
    }
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub struct FairShare {
    users: BTreeMap<String, Use>,
    /// Whether the next job may start: after each start all are ranked anew.
    #[serde(skip)]
    is_ranked: bool,
    /// Whether anybody could start if all were ranked.
    #[serde(skip)]
    is_asked: bool,
}

impl FairShare {
    /// Brings what users hold up to date. Returns those who hold another number of GPUs than before.
    fn count(&mut self, state: &State) -> BTreeSet<String> {
        let mut held: BTreeMap<&str, u32> = BTreeMap::new();
        let starting = state.in_flight.values().copied();
        let starting = starting.filter(|id| matches!(state.job(*id).phase, Phase::Starting(_)));
        for id in state.running.iter().copied().chain(starting) {
            let job = state.job(id);
            *held.entry(&job.job.user).or_default() += job.gpus();
        }
        let mut changed = BTreeSet::new();
        for (user, known) in &mut self.users {
            let held = held.remove(user.as_str()).unwrap_or(0);
            if held != known.held {
                known.hold(state.now, held);
                changed.insert(user.clone());
            }
        }
        for (user, held) in held {
            let mut new = Use::default();
            new.hold(state.now, held);
            self.users.insert(user.to_owned(), new);
            changed.insert(user.to_owned());
        }
        changed
    }
}

impl Policy for FairShare {
    fn claim(&self, state: &State, id: JobId) -> Claim {
        let Use { held, used } =
            self.users.get(&state.job(id).job.user).copied().unwrap_or_default();
        Claim { class: held, value: SortKey(used) }
    }

    fn answer(&mut self, turn: &mut Turn, id: JobId, offer: Offer) -> Answer {
        self.is_asked = true;
        if !std::mem::take(&mut self.is_ranked) {
            return Answer::AllWait;
        }
        Answer::Take(best_place(turn, id, offer), Why::Turn { tier: offer.tier })
    }

    fn round(&mut self, turn: &mut Turn) -> bool {
        let changed = self.count(&turn.state);
        if !changed.is_empty() {
            let is_of = |id: &JobId| changed.contains(&turn.state.job(*id).job.user);
            let waiting: Vec<JobId> = turn.state.line.ids().filter(is_of).collect();
            turn.rank_anew(self, &waiting);
        }
        self.is_ranked = std::mem::take(&mut self.is_asked);
        self.is_ranked
    }

    learned_whole!();
}
