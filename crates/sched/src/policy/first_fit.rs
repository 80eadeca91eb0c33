//! In order of submission, but every job that fits may start; on the first machines that have room.

use crate::event::Why;
use crate::job::JobId;
use crate::pass::{Answer, Offer};
use crate::policy::Policy;
use crate::state::{Ask, Turn};

pub const ABOUT: &str = "in order of submission, skipping jobs that do not fit; first machines";

pub struct FirstFit;

impl Policy for FirstFit {
    fn answer(&mut self, turn: &mut Turn, id: JobId, _offer: Offer) -> Answer {
        let cluster = &turn.state.cluster;
        let Ask { gang, pool } = Ask::of(turn.state.job(id));
        let mut places = cluster.pools_for(pool).filter_map(|pool| cluster.first_fit(gang, pool));
        let place = places.next().expect("there is an offer");
        let why = Why::Turn { tier: place.tier };
        Answer::Take(place, why)
    }
}
