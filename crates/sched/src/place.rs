//! Placement inside a tier. Consolidating rules keep large holes whole: a machine is chosen by
//! best fit, a rack by the least free that fits, and inside it the fewest machines.

use std::collections::BTreeSet;

use hither_core::topology::Tier;

use crate::cluster::{Cluster, MachineId, Placement, PoolId, Slot};

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

    /// A placement of exactly this kind of domain, if it is free.
    pub fn place_at(&self, gpus: u32, pool: PoolId, tier: Tier) -> Option<Placement> {
        let index = &self.pools[pool as usize];
        let mut slots = Vec::new();
        match tier {
            Tier::Machine => {
                let &(_, machine) = index.machines.range((gpus, 0)..).next()?;
                slots.push(Slot { machine, gpus });
            }
            Tier::Rack => {
                let &(_, rack) = index.racks.range((gpus, 0)..).next()?;
                fewest_machines(&index.in_rack[rack as usize], gpus, &mut slots);
            }
            Tier::Network => {
                if index.free < gpus {
                    return None;
                }
                let mut left = gpus;
                let mut racks = index.racks.iter().rev().filter(|&&(free, _)| free > 0);
                while left > 0 {
                    // Whole racks from the emptiest on; the rest goes where it fits best.
                    let &(free, rack) = racks.next()?;
                    let (take, rack) = match index.racks.range((left, 0)..).next() {
                        Some(&(_, fitting)) if free >= left => (left, fitting),
                        _ => (free.min(left), rack),
                    };
                    fewest_machines(&index.in_rack[rack as usize], take, &mut slots);
                    left -= take;
                }
            }
        }
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
            return Some(Placement { slots, tier: Tier::Machine });
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

/// Takes `gpus` from machines given as (free, machine): the emptiest first, and for the rest the
/// one that it fits best. The machines hold enough together.
pub(crate) fn fewest_machines(
    machines: &BTreeSet<(u32, MachineId)>,
    gpus: u32,
    slots: &mut Vec<Slot>,
) {
    let mut left = gpus;
    for &(free, machine) in machines.iter().rev() {
        if free >= left {
            // Those taken so far come after this one in the set's order, so the first that fits
            // is not among them.
            let &(_, fitting) = machines.range((left, 0)..).next().expect("this one fits");
            slots.push(Slot { machine: fitting, gpus: left });
            return;
        }
        slots.push(Slot { machine, gpus: free });
        left -= free;
    }
    debug_assert_eq!(left, 0, "the domain was said to hold the gang");
}
