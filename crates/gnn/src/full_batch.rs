//! Which full batches are too large: attention and sparse features are transposed in the backward pass, and a
//! transposed matrix numbers its entries with 32 bits. Callers check before any work starts.

use crate::mode::{Corrects, Sees};
use crate::model::Model;
use crate::partition::Partition;
use crate::train::Settings;
use crate::{Dataset, Error, Features};

/// Upper bound on the entries of a matrix that is transposed.
const ENTRIES_MAX: u64 = u32::MAX as u64;

/// The sizes of a full batch that its backward pass depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FullBatch {
    /// Nodes and their neighbours: each edge counts at both ends.
    pub neighbours: u64,
    /// Entries of sparse features that are not zero; 0 if features are dense.
    pub feature_entries: u64,
}

impl FullBatch {
    /// The largest full batches of a run's workers, if they take any, and of its server.
    pub fn of_run(settings: &Settings, data: &Dataset, partition: &Partition) -> Vec<Self> {
        let whole = || Self::from_nodes(data, 0..data.graph.nodes() as u32);
        let does = settings.mode.does();
        let mut batches = vec![];
        match does.workers.filter(|_| settings.local.batch.is_none()) {
            None => {}
            // Edges that the partition cut are counted, though the worker lacks them: an upper bound.
            Some(Sees::Part) => {
                let parts = partition.nodes_of().into_iter();
                batches.extend(parts.map(|nodes| Self::from_nodes(data, nodes.into_iter())));
            }
            Some(Sees::Whole | Sees::PartAndCopies | Sees::WholeByFetching) => {
                batches.push(whole())
            }
        }
        if does.corrects != Corrects::Never && settings.server.batch.is_none() {
            batches.push(whole());
        }
        batches
    }

    /// A batch of some nodes with all their neighbours.
    pub fn from_nodes(data: &Dataset, nodes: impl Iterator<Item = u32>) -> Self {
        let mut batch = Self { neighbours: 0, feature_entries: 0 };
        for node in nodes {
            batch.neighbours += 1 + data.graph.degree(node) as u64;
            if let Features::Sparse { offsets, .. } = &data.features {
                batch.feature_entries += offsets[node as usize + 1] - offsets[node as usize];
            }
        }
        batch
    }

    /// Whether a model can learn from the batch; the error names what is too large.
    pub fn check(&self, model: &Model) -> Result<(), Error> {
        let transposes = model.stages.iter().any(|stage| stage.layer.reads().transposes);
        let too_large = |entries: u64, of: &str| {
            let problem = format!("a full batch has {entries} {of}, more than {ENTRIES_MAX}");
            Err(Error::Settings(problem))
        };
        if transposes && self.neighbours > ENTRIES_MAX {
            return too_large(self.neighbours, "neighbours for graph attention");
        }
        if self.feature_entries > ENTRIES_MAX {
            return too_large(self.feature_entries, "entries of sparse features");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Kind, Spec};

    fn model(kind: Kind) -> Model {
        Model::new(Spec { layers: vec![kind, kind], ..Spec::default() }).expect("a model")
    }

    #[test]
    fn what_32_bits_cannot_number_is_refused() {
        let check = |kind, neighbours, feature_entries| {
            FullBatch { neighbours, feature_entries }.check(&model(kind)).map_err(|e| e.to_string())
        };
        for kind in [Kind::Gat, Kind::Gatv2] {
            assert_eq!(check(kind, ENTRIES_MAX, ENTRIES_MAX), Ok(()));
            let refused = check(kind, ENTRIES_MAX + 1, 0).expect_err("too many");
            assert!(refused.contains("4294967296 neighbours for graph attention"), "{refused}");
        }
        // Other layers read a symmetric graph by rows in both directions.
        assert_eq!(check(Kind::Gcn, 1 << 40, ENTRIES_MAX), Ok(()));
        let refused = check(Kind::Gcn, 0, ENTRIES_MAX + 1).expect_err("too many");
        assert!(refused.contains("entries of sparse features"), "{refused}");
    }
}
