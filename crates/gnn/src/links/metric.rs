//! How well held-out edges are found again.
//!
//! `recall@K` and `ndcg@K` rank every node that a source could be linked to, without its training edges.
//! `mrr` and `hits@K` rank each held-out edge among nodes drawn by seed, the same ones in every evaluation.

use std::fmt;
use std::str::FromStr;

use hither_core::seed;
use rayon::prelude::*;

use super::pairs::{NegativesBy, dot};
use super::rank::{Ranked, top};
use super::{Held, Links};
use crate::Dataset;
use crate::model::Inference;
use crate::task::{Objective, Scores};

/// Nodes that each held-out edge is ranked among by `mrr` and `hits@K`.
pub const AMONG: usize = 100;
/// Held-out edges whose nodes are drawn from one stream.
const BLOCK: usize = 1024;
/// Upper bound on the K of a metric.
const MOST: usize = 1000;

/// A score of held-out edges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkMetric {
    /// Share of a source's held-out targets among the first K, averaged over sources.
    Recall(usize),
    /// Discounted gain of the first K against the best possible, averaged over sources.
    Ndcg(usize),
    /// Mean of 1/rank.
    Mrr,
    /// Share of edges that rank among the first K.
    Hits(usize),
}

impl LinkMetric {
    /// The usual score of a graph: users' items are ranked among all, edges between alike nodes among some. Of fewer
    /// than 200 items, 20 would hold nearly all that a user could take, whatever the model.
    pub fn usual(links: &Links, nodes: usize) -> Self {
        match links.users {
            Some(users) => Self::Recall((nodes.saturating_sub(users) / 10).clamp(1, 20)),
            None => Self::Mrr,
        }
    }

    /// The score that is told beside this one.
    fn companion(self) -> Self {
        match self {
            Self::Recall(k) => Self::Ndcg(k),
            Self::Ndcg(k) => Self::Recall(k),
            Self::Mrr => Self::Hits(10),
            Self::Hits(_) => Self::Mrr,
        }
    }
}

impl fmt::Display for LinkMetric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Recall(k) => write!(f, "recall@{k}"),
            Self::Ndcg(k) => write!(f, "ndcg@{k}"),
            Self::Mrr => f.write_str("mrr"),
            Self::Hits(k) => write!(f, "hits@{k}"),
        }
    }
}

impl FromStr for LinkMetric {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let k = |text: &str| text.parse().ok().filter(|k| (1..=MOST).contains(k));
        let found = match text.split_once('@') {
            None if text == "mrr" => Some(Self::Mrr),
            Some(("recall", text)) => k(text).map(Self::Recall),
            Some(("ndcg", text)) => k(text).map(Self::Ndcg),
            Some(("hits", text)) => k(text).map(Self::Hits),
            _ => None,
        };
        found.ok_or_else(|| {
            format!("expected recall@K, ndcg@K, mrr or hits@K with K from 1 to {MOST}")
        })
    }
}

/// The scores of outputs for all nodes.
pub fn scores(objective: &Objective, data: &Dataset, outputs: &Inference) -> Scores {
    let Some(links) = &data.links else { return Scores::default() };
    let (metric, companion) = (objective.metric, objective.metric.companion());
    let score = |held: &Held, known: &[&Held], name: &str| match metric {
        LinkMetric::Recall(k) | LinkMetric::Ndcg(k) => {
            let ranked = top(data, outputs, &held.sources, known, k);
            [metric, companion].map(|metric| ranking_score(metric, held, &ranked))
        }
        LinkMetric::Mrr | LinkMetric::Hits(_) => {
            let ranks = ranks(objective.seed, name, data, outputs, held, known);
            [metric, companion].map(|metric| rank_score(metric, &ranks))
        }
    };
    let mut scores = Scores::default();
    if !links.valid.is_empty() {
        let [valid, further] = score(&links.valid, &[], "valid");
        scores.valid = Some(valid);
        scores.further.push((format!("valid_{companion}"), further));
    }
    // Validation edges were known when the model was chosen: they are no candidates of the test.
    let [test, further] = score(&links.test, &[&links.valid], "test");
    scores.test = test;
    scores.further.push((format!("test_{companion}"), further));
    scores
}

/// The mean over sources of how well their first nodes are the held-out ones.
fn ranking_score(metric: LinkMetric, held: &Held, ranked: &Ranked) -> f64 {
    let gain = |place: usize| 1.0 / (place as f64 + 2.0).log2();
    let of_source = |(at, (_, targets)): (usize, (u32, &[u32]))| {
        let first = ranked.of(at);
        let is_hit = |node: &u32| targets.binary_search(node).is_ok();
        match metric {
            LinkMetric::Ndcg(k) => {
                let places = (0..).zip(first).filter(|(_, (node, _))| is_hit(node));
                let found: f64 = places.map(|(place, _)| gain(place)).sum();
                let best: f64 = (0..targets.len().min(k)).map(gain).sum();
                found / best
            }
            _ => {
                let found = first.iter().filter(|(node, _)| is_hit(node)).count();
                found as f64 / targets.len() as f64
            }
        }
    };
    let total: f64 = held.iter().enumerate().map(of_source).sum();
    total / held.sources.len().max(1) as f64
}

/// The rank of each held-out edge among nodes that its source is not linked to, from 1; equal ones count
/// half. Links are those of the graph, the held-out ones, and those that are `known` besides.
pub fn ranks(
    seed: u64,
    set: &str,
    data: &Dataset,
    outputs: &Inference,
    held: &Held,
    known: &[&Held],
) -> Vec<f64> {
    let dim = outputs.classes;
    let row = |node: u32| &outputs.logits[node as usize * dim..(node as usize + 1) * dim];
    // Between nodes of one kind an edge is held out from one end, but links both.
    let is_held_in = |held: &Held, u: u32, v: u32| {
        held.of(u).binary_search(&v).is_ok() || held.of(v).binary_search(&u).is_ok()
    };
    let edges = held.iter().flat_map(|(source, targets)| targets.iter().map(move |t| (source, *t)));
    let edges: Vec<(u32, u32)> = edges.collect();
    let blocks = edges.par_chunks(BLOCK).enumerate().flat_map_iter(|(block, edges)| {
        let mut random = seed::stream(seed, &format!("among/{set}/{block}"));
        let rank = |(source, target): &(u32, u32)| {
            let score = dot(row(*source), row(*target));
            let mut rank = 1.0;
            for _ in 0..AMONG {
                let is_held =
                    |node| known.iter().chain([&held]).any(|held| is_held_in(held, *source, node));
                let by = NegativesBy::Nodes;
                let other = data.draw_unlinked(*source, by, is_held, &mut random);
                let other = dot(row(*source), row(other));
                rank += if other > score {
                    1.0
                } else if other == score {
                    0.5
                } else {
                    0.0
                };
            }
            rank
        };
        edges.iter().map(rank).collect::<Vec<f64>>()
    });
    blocks.collect()
}

fn rank_score(metric: LinkMetric, ranks: &[f64]) -> f64 {
    let score = |rank: &f64| match metric {
        LinkMetric::Hits(k) => f64::from(u8::from(*rank <= k as f64)),
        _ => 1.0 / rank,
    };
    ranks.iter().map(score).sum::<f64>() / ranks.len().max(1) as f64
}
