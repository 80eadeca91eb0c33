//! METIS' recursive bisection.

use std::sync::Mutex;

use metis::option::Seed;
use metis::{Graph as Metis, Idx, Real};

use super::level::Level;
use super::quota::Quota;

/// METIS uses the C library's random generator, of which there is one per process: two calls at once
/// would take numbers from each other.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Recursive bisection, which on dense graphs cuts a tenth to a third fewer edges than METIS' direct
/// k-way method. The error says why it cannot be done.
pub fn cut(level: &Level, quota: &Quota, imbalance: f64, seed: Idx) -> Result<Vec<u32>, String> {
    let (nodes, parts) = (level.nodes(), quota.parts);
    let weight: u64 = level.weights().iter().map(|weight| u64::from(*weight)).sum();
    if weight.max(level.targets.len() as u64) > Idx::MAX as u64 || nodes >= Idx::MAX as usize {
        return Err("it has too many edges for metis; choose ldg or fennel".into());
    }
    if !is_symmetric(level) {
        return Err(
            "an edge lacks its other direction or is a loop; convert the graph again".into()
        );
    }
    if level.targets.is_empty() {
        // METIS fails on graphs without edges.
        return Ok((0..nodes).map(|node| (node % parts) as u32).collect());
    }
    let starts: Vec<Idx> = level.offsets.iter().map(|offset| *offset as Idx).collect();
    // All are below 2^31: as signed numbers they have the same bits, and no copy is needed.
    let ends: &[Idx] = bytemuck::cast_slice(&level.targets);
    let edge_weights: &[Idx] = bytemuck::cast_slice(level.weights());
    let kinds = quota.kinds.count;
    let sizes: &[Idx] = bytemuck::cast_slice(level.sizes.all());
    // More slack does not help it: given 1.3, it cuts more edges of dense graphs than given 1.03.
    let slack = imbalance.clamp(1.001, 1.1);
    // A kind of few nodes cannot be more even than whole nodes allow.
    let whole =
        |(most, total): (&u32, &u32)| f64::from(*most) * parts as f64 / f64::from((*total).max(1));
    let slack: Vec<Real> =
        quota.most.iter().zip(&quota.total).map(|kind| slack.max(whole(kind)) as Real).collect();
    let mut of = vec![0; nodes];
    let lock = ONE_AT_A_TIME.lock().unwrap_or_else(|broken| broken.into_inner());
    let mut input = Metis::new(kinds as Idx, parts as Idx, &starts, ends)
        .map_err(|error| format!("metis: {error}"))?
        .set_option(Seed(seed))
        .set_vwgt(sizes)
        .set_ubvec(&slack);
    if !edge_weights.is_empty() {
        input = input.set_adjwgt(edge_weights);
    }
    input.part_recursive(&mut of).map_err(|error| format!("metis: {error}"))?;
    drop(lock);
    Ok(of.into_iter().map(|part| (part as u32).min(parts as u32 - 1)).collect())
}

/// Whether each edge is stored at both ends and none is a loop: METIS writes beyond its arrays
/// otherwise. Rows are sorted, so walking all edges in order must meet the
/// entries of each other row in order, too.
fn is_symmetric(level: &Level) -> bool {
    let mut next = level.offsets.to_vec();
    for node in 0..level.nodes() as u32 {
        for (neighbour, weight) in level.row(node) {
            let at = next[neighbour as usize];
            let end = level.offsets[neighbour as usize + 1];
            let other = level.weights().get(at as usize).copied().unwrap_or(1);
            let met = at < end && level.targets[at as usize] == node && other == weight;
            if neighbour == node || !met {
                return false;
            }
            next[neighbour as usize] += 1;
        }
    }
    true
}
