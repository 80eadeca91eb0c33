//! METIS' multilevel k-way cut.

use std::sync::Mutex;

use metis::option::{NCuts, Seed};
use metis::{Graph as Metis, Idx, Real};

use super::quota::Quota;
use super::{Settings, refused};
use crate::{Error, Graph};

/// METIS draws from the C library's generator, of which there is one a process: two cuts at once
/// would take numbers from each other.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

pub fn cut(graph: &Graph, quota: &Quota, settings: &Settings) -> Result<Vec<u32>, Error> {
    let (nodes, parts) = (graph.nodes(), settings.parts);
    let refused = |problem: &str| refused(nodes, parts, problem);
    if graph.targets().len() > Idx::MAX as usize || nodes >= Idx::MAX as usize {
        return Err(refused("metis takes at most 2^30 edges; choose ldg or fennel"));
    }
    if !is_symmetric(graph) {
        return Err(refused("an edge lacks its other direction or is a loop; convert it again"));
    }
    if graph.edges() == 0 {
        // Nothing to cut, on which METIS would not end well.
        return Ok((0..nodes).map(|node| (node % parts) as u32).collect());
    }
    let starts: Vec<Idx> = graph.offsets().iter().map(|offset| *offset as Idx).collect();
    // Indices are below 2^31: as signed numbers they have the same bits, and no copy is needed.
    let ends: &[Idx] = bytemuck::cast_slice(graph.targets());
    let kinds = usize::from(quota.is_split()) + 1;
    let weights: Vec<Idx> = if quota.is_split() {
        (0..nodes).flat_map(|node| [0, 1].map(|kind| Idx::from(quota.kind(node) == kind))).collect()
    } else {
        vec![]
    };
    let slack = [settings.imbalance.max(1.001) as Real; 2];
    let seed = (settings.seed ^ settings.seed >> 31) & 0x7fff_ffff;
    let mut of = vec![0; nodes];
    let lock = ONE_AT_A_TIME.lock().unwrap_or_else(|broken| broken.into_inner());
    let mut input = Metis::new(kinds as Idx, parts as Idx, &starts, ends)
        .map_err(|error| refused(&format!("metis: {error}")))?
        .set_option(Seed(seed as Idx))
        .set_option(NCuts(1))
        .set_ubvec(&slack[..kinds]);
    if quota.is_split() {
        input = input.set_vwgt(&weights);
    }
    input.part_kway(&mut of).map_err(|error| refused(&format!("metis: {error}")))?;
    drop(lock);
    Ok(of.into_iter().map(|part| (part as u32).min(parts as u32 - 1)).collect())
}

/// Whether each edge stands with both ends and none is a loop: METIS writes beyond its arrays
/// where that does not hold. Rows are sorted, so walking all edges in order must meet the entries
/// of each other row in order, too.
fn is_symmetric(graph: &Graph) -> bool {
    let mut next = graph.offsets().to_vec();
    for node in 0..graph.nodes() as u32 {
        for neighbour in graph.neighbours(node) {
            let at = next[*neighbour as usize];
            let end = graph.offsets()[*neighbour as usize + 1];
            if *neighbour == node || at == end || graph.targets()[at as usize] != node {
                return false;
            }
            next[*neighbour as usize] += 1;
        }
    }
    true
}
