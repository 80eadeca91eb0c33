//! What tells one dataset from another of the same name and size.

use rayon::prelude::*;

use crate::links::Held;
use crate::{Dataset, Features, Labels};

/// Words that one thread hashes at once. The result depends on it, and not on threads.
const BLOCK_WORDS: usize = 1 << 17;

/// Mixes words one by one: an odd multiplier and a rotation, as in FxHash.
fn mix(hash: u64, word: u64) -> u64 {
    (hash.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn of_bytes(bytes: &[u8]) -> u64 {
    let block = |block: &[u8]| {
        let (words, rest) = block.as_chunks::<8>();
        let hash = words.iter().fold(0, |hash, word| mix(hash, u64::from_le_bytes(*word)));
        rest.iter().fold(hash, |hash, byte| mix(hash, u64::from(*byte)))
    };
    let blocks: Vec<u64> = bytes.par_chunks(8 * BLOCK_WORDS).map(block).collect();
    blocks.into_iter().fold(bytes.len() as u64, mix)
}

fn of_numbers<T: bytemuck::Pod>(numbers: &[T]) -> u64 {
    of_bytes(bytemuck::cast_slice(numbers))
}

impl Dataset {
    /// A hash of everything that training reads: the graph, features, labels, the split and held-out links.
    pub fn id(&self) -> String {
        format!("{:016x}", self.hash())
    }

    pub(crate) fn hash(&self) -> u64 {
        let Self { graph, features, labels, split, class_weights, links, .. } = self;
        let mut all = vec![of_numbers(graph.offsets()), of_numbers(graph.targets())];
        all.extend(graph.weights().map(of_numbers));
        match features {
            Features::Dense { values, dim } => all.extend([of_numbers(values), *dim as u64]),
            Features::Sparse { offsets, indices, values, dim } => {
                all.extend([of_numbers(offsets), of_numbers(indices), *dim as u64]);
                all.extend(values.as_ref().map(|values| of_numbers(values)));
            }
        }
        match labels {
            Labels::Classes { of, count } => all.extend([of_numbers(of), *count as u64]),
            Labels::Tasks { of, count } => all.extend([of_numbers(of), *count as u64]),
        }
        all.extend([&split.train, &split.valid, &split.test].map(|nodes| of_numbers(nodes)));
        all.extend(class_weights.as_ref().map(|weights| of_numbers(weights)));
        for Held { sources, targets, .. } in links.iter().flat_map(|l| [&l.valid, &l.test]) {
            all.extend([of_numbers(sources), of_numbers(targets)]);
        }
        all.into_iter().fold(0, mix)
    }
}
