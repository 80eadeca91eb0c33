//! The options of link prediction, and what they make of a dataset.

use std::fmt;
use std::str::FromStr;

use anyhow::bail;
use clap::builder::RangedU64ValueParser;
use hither_gnn::links::metric::LinkMetric;
use hither_gnn::links::pairs::{Loss, NegativesBy};
use hither_gnn::task::{Objective, Task};
use hither_gnn::train::Mode;
use hither_gnn::{Dataset, Metric};

use super::TrainArgs;
use crate::inputs::number;

#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Link prediction")]
pub struct LinkArgs {
    /// Learn the labels of nodes (nodes) or which nodes are linked (links) [default: links for user–item
    /// graphs, else nodes]
    #[arg(long, value_name = "NAME")]
    pub task: Option<TaskName>,
    /// Loss of links: softmax (over sampled nodes), bpr or bce
    #[arg(long, value_name = "NAME", default_value = "softmax")]
    pub loss: Loss,
    /// Unlinked nodes to tell links from: per step with softmax [default: 2048], else per link [default: 1]
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..=1 << 20))]
    #[arg(allow_negative_numbers = true)]
    pub negatives: Option<usize>,
    /// How to draw them: from all nodes alike (nodes) or by their number of links (links)
    #[arg(long, value_name = "HOW", default_value = "nodes")]
    pub negatives_by: NegativesBy,
    /// Divide cosines by this in the softmax
    #[arg(long, value_name = "T", default_value_t = 0.1, value_parser = |t: &str| number(t, 0.001, 100.0))]
    #[arg(allow_negative_numbers = true)]
    pub temperature: f64,
    /// Power of the lengths of rows when links are ranked by products: 1 for products, 0 for cosines
    /// [default: 0.5 for user–item graphs with softmax, else 1]
    #[arg(long, value_name = "P", value_parser = |t: &str| number(t, 0.0, 1.0))]
    #[arg(allow_negative_numbers = true)]
    pub length_power: Option<f64>,
    /// Share of the links to validate by; with 0 the model of the last round is kept
    #[arg(long, value_name = "SHARE", default_value_t = 0.05, value_parser = |t: &str| number(t, 0.0, 0.5))]
    #[arg(allow_negative_numbers = true)]
    pub valid_share: f64,
    /// Share of the links to test by, if the dataset does not say which
    #[arg(long, value_name = "SHARE", default_value_t = 0.1, value_parser = |t: &str| number(t, 0.0, 0.5))]
    #[arg(allow_negative_numbers = true)]
    pub test_share: f64,
}

/// A score of labels or of links.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricName {
    Nodes(Metric),
    Links(LinkMetric),
}

impl FromStr for MetricName {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let of_nodes = Metric::ALL.into_iter().find(|metric| metric.name() == name);
        match of_nodes {
            Some(metric) => Ok(Self::Nodes(metric)),
            None => name.parse().map(Self::Links).map_err(|of_links: String| {
                let of_nodes = Metric::ALL.map(Metric::name).join(", ");
                format!("{of_links}; or, for labels, {of_nodes}")
            }),
        }
    }
}

impl fmt::Display for MetricName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nodes(metric) => f.write_str(metric.name()),
            Self::Links(metric) => metric.fmt(f),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskName {
    Nodes,
    Links,
}

impl FromStr for TaskName {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "nodes" => Ok(Self::Nodes),
            "links" => Ok(Self::Links),
            _ => Err("expected nodes or links".into()),
        }
    }
}

impl TrainArgs {
    /// Refuses what link prediction does not do.
    pub(super) fn check_links(&self, modes: &[Mode]) -> anyhow::Result<()> {
        let fetches = |mode: &&Mode| {
            use hither_gnn::mode::Sees::{PartAndCopies, PartAndSums, WholeByFetching};
            matches!(mode.does().workers, Some(PartAndCopies | PartAndSums | WholeByFetching))
        };
        if let Some(mode) = modes.iter().find(fetches) {
            bail!(
                "--mode {} learns labels of nodes only; links are learnt by single, psgd-pa, llcg, \
                 llcg-stale and server-only",
                mode.name()
            );
        }
        if let Some(metric @ MetricName::Nodes(_)) = self.model.metric {
            bail!(
                "--metric {metric} is a score of labels; links have recall@K, ndcg@K, mrr and hits@K"
            );
        }
        if self.model.class_weights.is_some() {
            bail!("--class-weights are of labels; links have no classes");
        }
        if self.run.probe.is_some() {
            bail!("--probe measures the drift of node labels only; leave it out for links");
        }
        Ok(())
    }

    /// The softmax learns by cosines, which say nothing of lengths; products would trust these too much.
    pub(super) fn length_power(&self) -> f32 {
        let by_cosines = self.links.loss == Loss::Softmax && self.data.is_user_item();
        self.links.length_power.unwrap_or(if by_cosines { 0.5 } else { 1.0 }) as f32
    }

    /// What is learnt from a dataset.
    pub(super) fn task(&self, data: &Dataset, seed: u64) -> Task {
        let Some(links) = &data.links else { return Task::Nodes };
        let LinkArgs { loss, negatives, negatives_by, temperature, .. } = &self.links;
        let metric = match self.model.metric {
            Some(MetricName::Links(metric)) => metric,
            _ => LinkMetric::usual(links),
        };
        let usual = if *loss == Loss::Softmax { 2048 } else { 1 };
        Task::Links(Objective {
            loss: *loss,
            negatives: negatives.unwrap_or(usual),
            negatives_by: *negatives_by,
            temperature: *temperature as f32,
            metric,
            seed,
        })
    }
}
