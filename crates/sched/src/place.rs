//! Placement inside a tier. Consolidating rules keep large holes whole: of the places that hold the
//! gang the one with the least free is chosen, and inside it the fewest parts, level by level.

use hither_core::topology::Tier;

use crate::cluster::{Cluster, MachineId, PlaceId, Placement, Pool, PoolId, Slot};

impl Cluster {
    /// The best placement that is free now: lowest tier, best fit inside it.
    pub fn best_offer(&self, gpus: u32, wanted: Option<PoolId>) -> Option<Placement> {
        self.best_pool(gpus, wanted).and_then(|(tier, pool)| self.place_at(gpus, pool, tier))
    }

    /// Lowest tier on offer over the pools that the job may use, and the pool that offers it. Among
    /// equals the pool with the least free, so that scarce large holes stay whole.
    pub fn best_pool(&self, gpus: u32, wanted: Option<PoolId>) -> Option<(Tier, PoolId)> {
        self.pools_for(wanted)
            .filter_map(|pool| Some((self.offer_tier(gpus, pool)?, self.free_gpus(pool), pool)))
            .min()
            .map(|(tier, _, pool)| (tier, pool))
    }

    /// A placement in one place of this level, if one has room.
    pub fn place_at(&self, gpus: u32, pool: PoolId, tier: Tier) -> Option<Placement> {
        let pool = &self.pools[pool as usize];
        let place = match pool.by_free.get(tier.level()) {
            Some(places) => places.range((gpus, 0)..).next()?.1,
            None if pool.free < gpus => return None,
            None => 0,
        };
        let mut slots = Vec::new();
        pool.fill(tier.level(), place, gpus, &mut slots);
        Some(Placement { tier: self.tier_of(&slots), slots })
    }

    /// Machines in index order, as much of each as is free; a gang that fits a machine takes the
    /// first that holds it.
    pub fn first_fit(&self, gpus: u32, pool: PoolId) -> Option<Placement> {
        let machines = || {
            let all = self.machines.iter().enumerate();
            all.filter(move |(_, m)| m.pool == pool && m.is_up() && m.free > 0)
        };
        if let Some((id, _)) = machines().find(|(_, m)| m.free >= gpus) {
            let slots = vec![Slot { machine: id as MachineId, gpus }];
            return Some(Placement { slots, tier: Tier::MACHINE });
        }
        self.gather(gpus, machines().map(|(id, m)| (m.free, id as MachineId)))
    }

    /// As much of each (free, machine) as there is, in this order, until the gang is whole.
    pub(crate) fn gather(
        &self,
        gpus: u32,
        holes: impl Iterator<Item = (u32, u32)>,
    ) -> Option<Placement> {
        let mut left = gpus;
        let mut slots = Vec::new();
        for (free, machine) in holes {
            let take = free.min(left);
            slots.push(Slot { machine, gpus: take });
            left -= take;
            if left == 0 {
                return Some(Placement { tier: self.tier_of(&slots), slots });
            }
        }
        None
    }
}

impl Pool {
    /// Takes `gpus` from a place that holds as many: whole parts from the emptiest on, and for the
    /// rest the part that it fits best.
    fn fill(&self, level: usize, place: PlaceId, gpus: u32, slots: &mut Vec<Slot>) {
        if level == 0 {
            slots.push(Slot { machine: place, gpus });
            return;
        }
        let parts = self.parts_of(level, place);
        let mut left = gpus;
        for &(free, part) in parts.iter().rev() {
            if free >= left {
                // Those taken so far come after this one in the set's order, so the first that
                // fits is not among them.
                let &(_, fitting) = parts.range((left, 0)..).next().expect("this one fits");
                return self.fill(level - 1, fitting, left, slots);
            }
            self.fill(level - 1, part, free, slots);
            left -= free;
        }
        debug_assert_eq!(left, 0, "the place was said to hold the gang");
    }
}
