//! The storage that checkpoints go through: the whole cluster shares it, one checkpoint after the other,
//! each at the full bandwidth. And the GPUs that are held until a checkpoint is written.

use std::collections::BTreeMap;

use hither_core::Seconds;
use serde::{Deserialize, Serialize};

use crate::cluster::{Cluster, MachineId, Placement};

/// What the storage has still to do.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Storage {
    /// When it has read and written all that was asked of it.
    read_until_s: Seconds,
    write_until_s: Seconds,
    /// By machine: GPUs whose last job still writes, and until when.
    writing: BTreeMap<MachineId, Vec<(Seconds, u32)>>,
}

impl Storage {
    /// A job is asked to write a checkpoint that takes so long. Returns when it is written; its GPUs are
    /// held until then.
    pub fn write(&mut self, now: Seconds, write_s: Seconds, placement: &Placement) -> Seconds {
        if write_s <= 0.0 {
            return now;
        }
        self.write_until_s = self.write_until_s.max(now) + write_s;
        for slot in &placement.slots {
            self.writing.entry(slot.machine).or_default().push((self.write_until_s, slot.gpus));
        }
        self.write_until_s
    }

    /// A checkpoint that takes so long to read is asked for. Returns how long others keep it waiting.
    pub fn read(&mut self, from_s: Seconds, read_s: Seconds) -> Seconds {
        if read_s <= 0.0 {
            return 0.0;
        }
        let begin_s = self.read_until_s.max(from_s);
        self.read_until_s = begin_s + read_s;
        begin_s - from_s
    }

    /// When all GPUs of a placement that was just taken are there. Of the free GPUs of a machine, those go
    /// first that nobody writes from, then those whose checkpoint is written first.
    pub fn ready_s(&mut self, now: Seconds, cluster: &Cluster, placement: &Placement) -> Seconds {
        let mut ready_s = now;
        if self.writing.is_empty() {
            return ready_s;
        }
        for slot in &placement.slots {
            let Some(writing) = self.writing.get_mut(&slot.machine) else { continue };
            writing.retain(|&(until_s, _)| until_s > now);
            let held: u32 = writing.iter().map(|w| w.1).sum();
            let free = cluster.machines[slot.machine as usize].free + slot.gpus;
            let mut missing = slot.gpus.saturating_sub(free.saturating_sub(held));
            for (until_s, gpus) in writing.iter_mut() {
                let taken = missing.min(*gpus);
                if taken > 0 {
                    ready_s = ready_s.max(*until_s);
                }
                *gpus -= taken;
                missing -= taken;
            }
            writing.retain(|&(_, gpus)| gpus > 0);
            if writing.is_empty() {
                self.writing.remove(&slot.machine);
            }
        }
        ready_s
    }
}

#[cfg(test)]
mod tests {
    use hither_core::topology::{Tier, Topology};

    use super::*;
    use crate::cluster::Slot;
    use crate::job::Split;

    fn on(machine: MachineId, gpus: u32) -> Placement {
        Placement { slots: vec![Slot { machine, gpus }], tier: Tier::MACHINE }
    }

    #[test]
    fn checkpoints_queue_for_the_storage() {
        let mut storage = Storage::default();
        assert_eq!(storage.write(100.0, 10.0, &on(0, 1)), 110.0);
        assert_eq!(storage.write(105.0, 10.0, &on(1, 1)), 120.0);
        assert_eq!(storage.read(100.0, 30.0), 0.0);
        assert_eq!(storage.read(110.0, 30.0), 20.0);
        assert_eq!(storage.read(500.0, 30.0), 0.0);
        assert_eq!(storage.read(110.0, 0.0), 0.0, "nothing to read, nothing to wait for");
    }

    #[test]
    fn gpus_are_held_until_the_checkpoint_is_written() {
        let mut cluster = Cluster::new(&Topology::uniform(1, 2, 8));
        let mut storage = Storage::default();
        // Six of eight GPUs write until 10; the next job of four takes the two others and two of those.
        storage.write(0.0, 10.0, &on(0, 6));
        let (two, four) = (on(0, 2), on(0, 4));
        cluster.take(&two, Split::ANY);
        assert_eq!(storage.ready_s(1.0, &cluster, &two), 1.0);
        cluster.take(&four, Split::ANY);
        assert_eq!(storage.ready_s(1.0, &cluster, &four), 10.0);
        assert_eq!(storage.ready_s(1.0, &cluster, &on(1, 4)), 1.0, "another machine");
    }
}
