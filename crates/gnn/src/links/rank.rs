//! All nodes that a source could be linked to, ranked by their products with it.

use std::convert::Infallible;

use hither_kernels::gemm::{Matrix, product};
use hither_kernels::memory::zeros;
use rayon::prelude::*;

use super::Held;
use crate::Dataset;
use crate::model::Inference;

/// Results per source up to which a sorted list is fastest.
const FEW: usize = 64;
/// Elements of the products that are in memory at a time.
const PRODUCTS: usize = 1 << 24;

/// The first nodes of some sources, best first, with their products.
pub struct Ranked {
    nodes: Vec<Vec<(u32, f32)>>,
}

impl Ranked {
    /// The first nodes of the source in this place.
    pub fn of(&self, place: usize) -> &[(u32, f32)] {
        &self.nodes[place]
    }
}

/// The `k` nodes with the largest products, for each of some sources. Left out are the source itself, its
/// neighbours in the graph, and those that are `known` besides.
pub fn top(
    data: &Dataset,
    outputs: &Inference,
    sources: &[u32],
    known: &[&Held],
    k: usize,
) -> Ranked {
    let mut nodes = Vec::with_capacity(sources.len());
    each_top(data, outputs, sources, known, k, |_, best| {
        nodes.push(best);
        Ok::<(), Infallible>(())
    })
    .unwrap_or_else(|never| match never {});
    Ranked { nodes }
}

/// As [`top`], but gives each source and its nodes to `take`, in order: few are in memory at a time.
pub fn each_top<E>(
    data: &Dataset,
    outputs: &Inference,
    sources: &[u32],
    known: &[&Held],
    k: usize,
    mut take: impl FnMut(u32, Vec<(u32, f32)>) -> Result<(), E>,
) -> Result<(), E> {
    let (dim, candidates) = (outputs.classes, data.candidates());
    let first = candidates.start as usize;
    let width = candidates.len();
    let table = &outputs.logits[first * dim..(first + width) * dim];
    let at_once = (PRODUCTS / width.max(1)).clamp(1, 1024).min(sources.len().max(1));
    let mut products = zeros(at_once * width);
    for sources in sources.chunks(at_once) {
        let products = &mut products[..sources.len() * width];
        let rows = Matrix::rows_of(&outputs.logits, dim, sources);
        product(rows, Matrix::new(table, width, dim).t(), None, products, false);
        let rows = sources.par_iter().zip(products.par_chunks_exact_mut(width));
        let best = rows.map(|(source, row)| {
            let near = data.graph.neighbours(*source).iter().chain([source]);
            let besides = known.iter().flat_map(|held| held.of(*source));
            for node in near.chain(besides).filter(|node| candidates.contains(node)) {
                row[*node as usize - first] = f32::NEG_INFINITY;
            }
            largest(row, k).into_iter().map(|(at, value)| (at + candidates.start, value)).collect()
        });
        for (source, best) in sources.iter().zip(best.collect::<Vec<Vec<(u32, f32)>>>()) {
            take(*source, best)?;
        }
    }
    Ok(())
}

/// Places and values of the `k` largest values above −∞, largest first; of equal ones the first.
fn largest(values: &[f32], k: usize) -> Vec<(u32, f32)> {
    if k > FEW {
        return largest_of_many(values, k);
    }
    let mut best: Vec<(u32, f32)> = Vec::with_capacity(k + 1);
    let mut least = f32::NEG_INFINITY;
    for (at, value) in (0..).zip(values) {
        // Also false if the value is not a number.
        if *value > least {
            let place = best.partition_point(|(_, other)| other >= value);
            best.insert(place, (at, *value));
            best.truncate(k);
            if best.len() == k {
                least = best[k - 1].1;
            }
        }
    }
    best
}

/// The same where inserting into a sorted list would take too long.
fn largest_of_many(values: &[f32], k: usize) -> Vec<(u32, f32)> {
    let above = (0..).zip(values).filter(|(_, value)| **value > f32::NEG_INFINITY);
    let mut best: Vec<(u32, f32)> = above.map(|(at, value)| (at, *value)).collect();
    let order = |a: &(u32, f32), b: &(u32, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
    if k < best.len() {
        best.select_nth_unstable_by(k, order);
        best.truncate(k);
    }
    best.sort_unstable_by(order);
    best
}

#[cfg(test)]
mod tests {
    use super::{largest, largest_of_many};

    #[test]
    fn the_largest_come_first_and_equal_ones_in_order() {
        let values = [0.5, f32::NEG_INFINITY, 2.0, 0.5, f32::NAN, 3.0, 2.0];
        assert_eq!(largest(&values, 3), [(5, 3.0), (2, 2.0), (6, 2.0)]);
        assert_eq!(largest(&values, 9).len(), 5);
        assert_eq!(largest(&[], 3), []);
        for k in [1, 3, 5, 9] {
            assert_eq!(largest_of_many(&values, k), largest(&values, k));
        }
    }
}
