//! Multilevel partitioning: clusters of nodes become nodes until the graph is small, METIS partitions
//! that, and on the way back each level moves nodes while that cuts fewer edges.
//!
//! METIS alone takes 50 bytes per entry and minutes where clusters take a fraction of both and find
//! equal partitions on large graphs. On small dense graphs without communities METIS' own, slower
//! coarsening cuts fewer edges, so it gets those as they are.

use rand::RngExt;
use rand_pcg::Pcg64Mcg;

use super::cluster::cluster;
use super::level::Level;
use super::quota::Quota;
use super::{Settings, metis, refine, refused, stream};
use crate::{Error, Graph};

/// METIS gets a level with at most this many entries, which takes it some seconds and a gigabyte.
const ENTRIES_SMALL: usize = 16_000_000;
/// Up to this many entries METIS is fast enough for several attempts.
const ENTRIES_QUICK: usize = 4_000_000;
const ATTEMPTS: usize = 4;
/// Least clusters per part, so that parts of them can be balanced.
const CLUSTERS_PER_PART: u32 = 100;
/// With fewer nodes per part METIS may leave parts empty.
const NODES_PER_PART_MIN: usize = 16;

pub fn cut(graph: &Graph, quota: &Quota, settings: &Settings) -> Result<Vec<u32>, Error> {
    cut_from(ENTRIES_SMALL, graph, quota, settings)
        .map_err(|problem| refused(graph.nodes(), settings.parts, &problem))
}

fn cut_from(
    entries_small: usize,
    graph: &Graph,
    quota: &Quota,
    settings: &Settings,
) -> Result<Vec<u32>, String> {
    if graph.nodes() < NODES_PER_PART_MIN * settings.parts {
        let mut of = stream::cut(graph, quota, settings, stream::Price::Ldg);
        refine::refine(&Level::whole(graph, quota), quota, &mut of);
        return Ok(of);
    }
    let most: Vec<u32> = quota.most.iter().map(|most| (most / CLUSTERS_PER_PART).max(1)).collect();
    let mut random = hither_core::seed::stream(settings.seed, "partition");
    let mut level = Level::whole(graph, quota);
    // Finer levels, and the cluster that each of their nodes went into.
    let mut finer = vec![];
    while level.targets.len() > entries_small {
        let (cluster_of, count) = cluster(&level, &most, &mut random);
        // A level that hardly shrinks would never end.
        if count * 20 > level.nodes() * 19 {
            break;
        }
        let coarse = level.contract(&cluster_of, count);
        finer.push((level, cluster_of));
        level = coarse;
    }
    let mut of = best_of(&level, quota, settings.imbalance, &mut random)?;
    while let Some((level, cluster_of)) = finer.pop() {
        of = cluster_of.into_iter().map(|cluster| of[cluster as usize]).collect();
        refine::refine(&level, quota, &mut of);
    }
    Ok(of)
}

/// METIS' partition of a level, refined. Seeds differ by a tenth in cut edges: the best of a few is taken
/// if that costs little.
fn best_of(
    level: &Level,
    quota: &Quota,
    imbalance: f64,
    random: &mut Pcg64Mcg,
) -> Result<Vec<u32>, String> {
    let mut best = (u64::MAX, vec![]);
    let attempts = if level.targets.len() <= ENTRIES_QUICK { ATTEMPTS } else { 1 };
    for _ in 0..attempts {
        let mut of = metis::cut(level, quota, imbalance, random.random_range(0..i32::MAX))?;
        refine::refine(level, quota, &mut of);
        let weight = level.cut_weight(&of);
        if weight < best.0 {
            best = (weight, of);
        }
    }
    Ok(best.1)
}

#[cfg(test)]
mod tests {
    use super::super::kinds::Kinds;
    use super::*;

    /// Communities that nearly all edges stay in, some isolated nodes, and a hub.
    fn graph(nodes: u32) -> Graph {
        let mut random = hither_core::seed::stream(1, "graph");
        let edges = (0..nodes * 8).map(|edge| {
            let from = random.random_range(0..nodes - 50);
            let near = random.random_range(0..(nodes - 50) / 16) * 16 + from % 16;
            (from, if edge % 16 == 0 { 0 } else { near })
        });
        Graph::from_edges(nodes as usize, &edges.collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn clusters_find_what_metis_finds() {
        let graph = graph(16_000);
        for train in [vec![], (0..16_000).step_by(3).collect()] {
            let settings = Settings { parts: 8, balance_train: true, ..Settings::default() };
            let quota = Quota::new(16_000, Kinds::by_training(16_000, &train), &settings);
            let mut whole = cut_from(usize::MAX, &graph, &quota, &settings).unwrap();
            let mut clustered = cut_from(20_000, &graph, &quota, &settings).unwrap();
            quota.enforce(&graph, &mut whole);
            quota.enforce(&graph, &mut clustered);
            let cut = |of: &[u32]| Level::whole(&graph, &quota).cut_weight(of);
            let (whole, clustered, edges) = (cut(&whole), cut(&clustered), graph.edges() as u64);
            assert!(clustered * 20 <= whole * 21, "{clustered} {whole} of {edges}");
            assert!(whole * 10 < edges, "{whole} of {edges}");
        }
    }

    #[test]
    fn levels_keep_all_nodes_and_edges() {
        let graph = graph(2000);
        let settings = Settings { parts: 4, balance_train: true, ..Settings::default() };
        let quota = Quota::new(2000, Kinds::by_training(2000, &[1, 2, 3]), &settings);
        let whole = Level::whole(&graph, &quota);
        let mut random = hither_core::seed::stream(1, "test");
        let (cluster_of, count) = cluster(&whole, &[10, 2], &mut random);
        let coarse = whole.contract(&cluster_of, count);
        assert!(count < 1000, "{count}");
        let sizes: Vec<&[u32]> = (0..count).map(|cluster| coarse.sizes.row(cluster)).collect();
        let size = |kind: usize| sizes.iter().map(|size| size[kind]).sum::<u32>();
        assert_eq!((size(0), size(1)), (1997, 3));
        assert!(sizes.iter().all(|size| size[0] <= 10 && size[1] <= 2));
        let between: u32 = coarse.weights().iter().sum();
        assert_eq!(u64::from(between), 2 * whole.cut_weight(&cluster_of));
        for node in 0..count as u32 {
            let targets: Vec<u32> = coarse.row(node).map(|(target, _)| target).collect();
            assert!(targets.is_sorted_by(|a, b| a < b) && !targets.contains(&node));
        }
    }
}
