//! Which kernels do a call, and in which parts.

use super::attention::Heads;
use super::sums::{DotsFn, HeadsFn, Part, SumsFn};
use crate::detect::Isa;

/// A family of loops: that for `n` vectors is at `n - 1`.
pub(super) struct Kernels {
    pub lanes: usize,
    pub plain: &'static [SumsFn],
    pub weighted: &'static [SumsFn],
    pub heads: &'static [HeadsFn],
    pub dots: DotsFn,
}

impl Kernels {
    /// Those for the instruction set, if the processor has it and it has vectors.
    pub fn for_isa(isa: Isa) -> Option<&'static Self> {
        match isa.lowered() {
            Isa::Reference => None,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => Some(&super::avx2::KERNELS),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Vnni => Some(&super::avx512::KERNELS),
            #[cfg(not(target_arch = "x86_64"))]
            _ => None,
        }
    }

    /// The parts that rows of `dim` are summed in: as few as there can be, of nearly equal width.
    pub fn parts(&self, dim: usize) -> Vec<Part> {
        let vectors = dim.div_ceil(self.lanes);
        let together = vectors.div_ceil(vectors.div_ceil(self.plain.len()));
        let firsts = (0..dim).step_by(together * self.lanes);
        firsts.map(|first| Part::starting_at(first, dim, together, self.lanes)).collect()
    }

    /// The parts for heads: no part has columns of more heads than a vector has lanes.
    pub fn heads_parts(&self, heads: &Heads) -> Vec<Part> {
        let width = heads.width();
        let (mut parts, mut first) = (vec![], 0);
        while first < width {
            let fits = |part: &Part| {
                let last = first + part.columns(self.lanes) - 1;
                last / heads.dim - first / heads.dim < self.lanes
            };
            let some = |vectors| Part::starting_at(first, width, vectors, self.lanes);
            let narrowest = some(1);
            let part = (2..=self.heads.len()).rev().map(some).find(fits).unwrap_or(narrowest);
            parts.push(part);
            first += part.columns(self.lanes);
        }
        parts
    }
}
