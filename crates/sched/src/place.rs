//! Placement inside a tier. Consolidating rules keep large holes whole: of the places that hold the
//! gang the one with the least free is chosen, and inside it the fewest parts, level by level.

use hither_core::topology::Tier;

use crate::cluster::{Cluster, MachineId, MachineState, Placement, PoolId, Slot};
use crate::holes::Hole;
use crate::job::Demand;

impl Cluster {
    /// The best placement that is free now: lowest tier, best fit inside it.
    pub fn best_offer(&self, gang: impl Into<Demand>, wanted: Option<PoolId>) -> Option<Placement> {
        let gang = gang.into();
        self.best_pool(gang, wanted).and_then(|(tier, pool)| self.place_at(gang, pool, tier))
    }

    /// Lowest tier on offer over the pools that the job may use, and the pool that offers it. Among
    /// equals the pool with the least free, so that scarce large holes stay whole.
    pub fn best_pool(
        &self,
        gang: impl Into<Demand>,
        wanted: Option<PoolId>,
    ) -> Option<(Tier, PoolId)> {
        let gang = gang.into();
        self.pools_for(wanted)
            .filter_map(|pool| Some((self.offer_tier(gang, pool)?, self.free_gpus(pool), pool)))
            .min()
            .map(|(tier, _, pool)| (tier, pool))
    }

    /// A placement in one place of this level, if one has room.
    pub fn place_at(&self, gang: impl Into<Demand>, pool: PoolId, tier: Tier) -> Option<Placement> {
        let gang = gang.into();
        let (room, chunks) = (self.room(pool, gang.split), gang.chunks());
        let place = match room.by_free.get(tier.level()) {
            Some(places) => places.best_fit(chunks, Hole::MAX)?,
            None if room.free.chunks < chunks => return None,
            None => 0,
        };
        let mut slots = Vec::new();
        room.fill(tier.level(), place, chunks, &mut slots);
        Some(Placement { tier: self.tier_of(&slots), slots })
    }

    /// Machines in index order, as much of each as is free; a gang that fits a machine takes the
    /// first that holds it.
    pub fn first_fit(&self, gang: impl Into<Demand>, pool: PoolId) -> Option<Placement> {
        let gang = gang.into();
        let room = self.room(pool, gang.split);
        let chunks = |m: &MachineState| room.of(m).chunks;
        let machines = || {
            let all = self.machines.iter().enumerate();
            all.filter(move |(_, m)| m.pool == pool && m.is_up() && m.free > 0)
        };
        if let Some((id, _)) = machines().find(|(_, m)| chunks(m) >= gang.chunks()) {
            let slots = vec![Slot { machine: id as MachineId, gpus: gang.gpus }];
            return Some(Placement { slots, tier: Tier::MACHINE });
        }
        self.gather(gang, machines().map(|(id, m)| (chunks(m) * gang.split.chunk, id as MachineId)))
    }

    /// As much of each (free, machine) as the gang may have, in this order, until it is whole.
    pub(crate) fn gather(
        &self,
        gang: Demand,
        holes: impl Iterator<Item = (u32, MachineId)>,
    ) -> Option<Placement> {
        let mut left = gang.chunks();
        let mut slots = Vec::new();
        for (free, machine) in holes {
            let chunks = gang.split.chunks_in(free).min(left);
            if chunks > 0 {
                slots.push(Slot { machine, gpus: chunks * gang.split.chunk });
            }
            left -= chunks;
            if left == 0 {
                return Some(Placement { tier: self.tier_of(&slots), slots });
            }
        }
        None
    }
}
