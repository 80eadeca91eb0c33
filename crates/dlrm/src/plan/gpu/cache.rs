//! How lookups meet a GPU's caches: an L1 for each SM and one L2, with a part for pinned rows.
//!
//! Rows are read in the order in which the device would read them: blocks go to SMs in turn, and the
//! resident warps of all SMs advance by one row each. Lines are replaced least recently used first.

use std::cell::RefCell;
use std::collections::BTreeMap;

use hither_kernels::bag::Ids;
use hither_kernels::cuda::gpu::Gpu;
use hither_kernels::cuda::row_stride;
use serde::Serialize;

use super::device_dtype;
use crate::hotness::Histogram;
use crate::lookups::Lookups;
use crate::model::Spec;

const LINE: usize = 128;
const WAYS: usize = 16;

/// What becomes of a lookup's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Traffic {
    /// Bytes of a row, on average over lookups.
    pub row_bytes: f64,
    /// The share of lines found in L1, and of the others the share found in L2.
    pub l1_hits: f64,
    pub l2_hits: f64,
    /// Bytes from DRAM per lookup.
    pub dram_bytes: f64,
}

/// The lookups of a trace, in the form that the caches see.
pub struct Caches {
    sms: usize,
    l2_bytes: usize,
    pinned_bytes: usize,
    /// Runs of lookups, each read by one warp: first line, lines, and whether the row is hot.
    runs: Vec<Vec<Read>>,
    row_bytes: f64,
    /// Variants with equal caches meet equal traffic: it is counted once.
    known: RefCell<BTreeMap<(usize, usize, bool), Traffic>>,
}

#[derive(Clone, Copy)]
struct Read {
    line: u64,
    lines: u16,
    is_hot: bool,
}

impl Caches {
    /// Takes at most `most` lookups of the trace.
    pub fn new(
        gpu: &Gpu,
        spec: &Spec,
        lookups: &Lookups,
        hot: &[Histogram],
        hot_rows: &[usize],
        most: usize,
    ) -> Self {
        let strides: Vec<usize> = (spec.tables.iter())
            .map(|table| row_stride(device_dtype(table.dtype), table.dim))
            .collect();
        let is_hot: Vec<Vec<bool>> = (0..spec.tables.len())
            .map(|t| {
                let mut rows = vec![false; spec.tables[t].rows];
                hot[t].hottest(hot_rows[t]).iter().for_each(|row| rows[*row as usize] = true);
                rows
            })
            .collect();
        let mut first_line = vec![0u64];
        for (table, stride) in spec.tables.iter().zip(&strides) {
            let lines = (table.rows * stride).div_ceil(LINE) as u64;
            first_line.push(first_line[first_line.len() - 1] + lines);
        }
        let (mut runs, mut count, mut bytes) = (Vec::new(), 0, 0.0);
        'all: for k in 0..lookups.len() {
            let bags = lookups.bags(k);
            for (index, ends) in bags.offsets.windows(2).enumerate() {
                let t = index / bags.batch.max(1);
                let mut run = Vec::new();
                for position in ends[0] as usize..ends[1] as usize {
                    let id = match bags.ids {
                        Ids::U32(ids) => u64::from(ids[position]),
                        Ids::I64(ids) => ids[position] as u64,
                    };
                    let Some(is_hot) = is_hot[t].get(id as usize) else { continue };
                    let start = id as usize * strides[t];
                    let lines = (start + strides[t]).div_ceil(LINE) - start / LINE;
                    let line = first_line[t] + (start / LINE) as u64;
                    run.push(Read { line, lines: lines as u16, is_hot: *is_hot });
                    bytes += strides[t] as f64;
                }
                count += run.len();
                runs.push(run);
                if count >= most {
                    break 'all;
                }
            }
        }
        let pinned_bytes = hot_rows.iter().zip(&strides).map(|(rows, stride)| rows * stride).sum();
        let row_bytes = bytes / (count.max(1)) as f64;
        Self {
            sms: gpu.sms,
            l2_bytes: gpu.l2_bytes,
            pinned_bytes,
            runs,
            row_bytes,
            known: RefCell::default(),
        }
    }

    /// What becomes of all lookups with `warps` resident warps per SM.
    pub fn traffic(&self, l1_bytes: usize, warps: usize, is_pinned: bool) -> Traffic {
        let key = (l1_bytes, warps, is_pinned);
        *self.known.borrow_mut().entry(key).or_insert_with(|| self.walk(l1_bytes, warps, is_pinned))
    }

    fn walk(&self, l1_bytes: usize, warps: usize, is_pinned: bool) -> Traffic {
        let mut l1: Vec<Lru> = (0..self.sms).map(|_| Lru::new(l1_bytes)).collect();
        let l2_bytes =
            if is_pinned { self.l2_bytes.saturating_sub(self.pinned_bytes) } else { self.l2_bytes };
        let mut l2 = Lru::new(l2_bytes);
        let (mut lines, mut l1_hits, mut l2_hits) = (0u64, 0u64, 0u64);
        let resident = (self.sms * warps.max(1)).max(1);
        for wave in self.runs.chunks(resident) {
            let longest = wave.iter().map(Vec::len).max().unwrap_or(0);
            for step in 0..longest {
                for (place, run) in wave.iter().enumerate() {
                    let Some(read) = run.get(step) else { continue };
                    // Eight warps to a block, blocks to SMs in turn.
                    let l1 = &mut l1[place / 8 % self.sms];
                    for line in read.line..read.line + u64::from(read.lines) {
                        lines += 1;
                        if l1.touch(line) {
                            l1_hits += 1;
                        } else if is_pinned && read.is_hot || l2.touch(line) {
                            l2_hits += 1;
                        }
                    }
                }
            }
        }
        let share = |part: u64, all: u64| if all == 0 { 0.0 } else { part as f64 / all as f64 };
        let (l1_share, l2_share) = (share(l1_hits, lines), share(l2_hits, lines - l1_hits));
        let dram_bytes = self.row_bytes * (1.0 - l1_share) * (1.0 - l2_share);
        Traffic { row_bytes: self.row_bytes, l1_hits: l1_share, l2_hits: l2_share, dram_bytes }
    }
}

/// A cache of lines, set-associative, least recently used first.
struct Lru {
    /// `WAYS` lines per set, the latest first; 0 for none.
    lines: Vec<u64>,
    sets: u64,
}

impl Lru {
    fn new(bytes: usize) -> Self {
        let sets = (bytes / LINE / WAYS).max(1);
        Self { lines: vec![0; sets * WAYS], sets: sets as u64 }
    }

    /// Reads a line. Returns whether it was there.
    fn touch(&mut self, line: u64) -> bool {
        let tag = line + 1;
        // Spread, as the hardware spreads addresses over slices.
        let set = (tag.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20) % self.sets;
        let ways = &mut self.lines[set as usize * WAYS..][..WAYS];
        let found = ways.iter().position(|way| *way == tag);
        ways[..=found.unwrap_or(WAYS - 1)].rotate_right(1);
        ways[0] = tag;
        found.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_line_leaves() {
        let mut cache = Lru::new(LINE * WAYS);
        assert!((0..WAYS as u64).all(|line| !cache.touch(line)));
        assert!(cache.touch(0), "still there");
        assert!(!cache.touch(99), "new, and line 1 leaves");
        assert!(cache.touch(0) && !cache.touch(1));
    }
}
