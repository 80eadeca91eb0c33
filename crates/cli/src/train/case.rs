//! The dataset, split and partition that all runs with one seed share.

use std::sync::{Arc, OnceLock};

use anyhow::bail;
use hither_gnn::links::Shares;
use hither_gnn::partition::{self, Partition, quality};
use hither_gnn::parts::StoredParts;
use hither_gnn::train::Mode;
use hither_gnn::{Dataset, Features};

use super::args::{LinkArgs, TrainArgs};
use crate::Common;
use crate::partition::partition_graph;

const PARTS: usize = 8;

pub struct TrainingCase<'a> {
    args: &'a TrainArgs,
    common: &'a Common,
    pub seed: u64,
    pub data: Arc<Dataset>,
    cut: OnceLock<Cut>,
}

/// A partition, its method or file, and the share of edges that it cuts.
pub struct Cut {
    pub partition: Partition,
    pub name: String,
    pub share: f64,
}

/// A graph with held-out edges. Models with a row per node take no features.
fn links(args: &TrainArgs, seed: u64, common: &Common) -> anyhow::Result<Dataset> {
    let mut data = args.data.open_graph(seed, common)?;
    if data.parts.is_some() {
        bail!("{} is partitioned by its labels; learn links from the graph itself", data.name);
    }
    if args.has_rows() {
        data.features = Features::one_hot(data.graph.nodes());
    } else if data.features.dim() == 0 {
        bail!(
            "{} has no features, which --model {} reads; use lightgcn, or begin with an embedding, such as \
             embedding,sage,sage",
            data.name,
            args.model_name()
        );
    }
    let LinkArgs { valid_share, test_share, .. } = &args.links;
    data.hold_out(Shares { valid: *valid_share, test: *test_share }, seed)?;
    data.check_links()?;
    Ok(data)
}

impl<'a> TrainingCase<'a> {
    pub fn open(args: &'a TrainArgs, seed: u64, common: &'a Common) -> anyhow::Result<Self> {
        let data = if args.learns_links() {
            links(args, seed, common)?
        } else {
            let mut data = args.data.open(seed, common)?;
            if data.links.is_some() {
                bail!(
                    "{} has no labels to learn; it is a user–item graph: use --task links",
                    data.name
                );
            }
            args.prepare_labels(&mut data)?;
            data
        };
        let data = Arc::new(data);
        Ok(Self { args, common, seed, data, cut: OnceLock::new() })
    }

    /// The partition that a mode works on; modes with one machine have one part.
    pub fn cut(&self, mode: Mode) -> anyhow::Result<Cut> {
        if !mode.is_distributed() {
            let of = vec![0; self.data.graph.nodes()];
            return Ok(Cut {
                partition: Partition { of, parts: 1 },
                name: "none".into(),
                share: 0.0,
            });
        }
        let Cut { partition, name, share } = self.parts()?;
        Ok(Cut { partition: partition.clone(), name: name.clone(), share: *share })
    }

    /// Number of workers; `single` does the work of as many.
    pub fn workers(&self) -> anyhow::Result<usize> {
        let args = &self.args.parts;
        match (args.parts, &args.partition_file) {
            (Some(parts), _) => Ok(parts),
            (None, None) if self.data.parts.is_none() => Ok(PARTS),
            (None, _) => Ok(self.parts()?.partition.parts),
        }
    }

    /// Partitions the graph on first use, because that takes a while.
    fn parts(&self) -> anyhow::Result<&Cut> {
        if let Some(cut) = self.cut.get() {
            return Ok(cut);
        }
        let cut = self.make()?;
        Ok(self.cut.get_or_init(|| cut))
    }

    /// The parts that the dataset was written in.
    fn stored(&self, stored: &StoredParts) -> anyhow::Result<Cut> {
        let args = &self.args.parts;
        if args.partition_file.is_some() || args.partition.is_some() {
            bail!(
                "{} is already partitioned; to cut it otherwise, train on the dataset that it was made of",
                self.data.name
            );
        }
        let partition = stored.partition();
        if let Some(parts) = args.parts.filter(|parts| *parts != partition.parts) {
            let found = partition.parts;
            bail!("{} has {found} parts, but --parts is {parts}", self.data.name);
        }
        let (edges, inside) = (self.data.graph.edges(), stored.edges_inside());
        let share = edges.saturating_sub(inside) as f64 / edges.max(1) as f64;
        Ok(Cut { partition, name: stored.method.clone(), share })
    }

    fn make(&self) -> anyhow::Result<Cut> {
        if let Some(stored) = &self.data.parts {
            return self.stored(stored);
        }
        let Dataset { graph, labels, split, .. } = &*self.data;
        let args = &self.args.parts;
        let (partition, name) = match &args.partition_file {
            Some(path) => {
                let partition = partition::read(path, graph.nodes())?;
                if let Some(parts) = args.parts.filter(|parts| *parts != partition.parts) {
                    let found = partition.parts;
                    bail!("{} has {found} parts, but --parts is {parts}", path.display());
                }
                (partition, path.file_name().unwrap_or_default().to_string_lossy().into_owned())
            }
            None => {
                let settings = partition::Settings {
                    method: args.partition.unwrap_or_default(),
                    parts: args.parts.unwrap_or(PARTS),
                    seed: self.seed,
                    ..partition::Settings::default()
                };
                let method = settings.method.name().into();
                (partition_graph(&self.data, &settings, self.common)?, method)
            }
        };
        let share = quality(graph, labels, &split.train, &partition).cut_share;
        Ok(Cut { partition, name, share })
    }
}
