//! The transposed structure, by counting.
//!
//! A large matrix is sorted twice: first, chunk by chunk of its rows, by groups of columns; then each
//! group by itself. So all that is written to at a time is in cache, and threads share the work.

use std::ops::Range;

use rayon::prelude::*;

use super::{Csr, chunk};
use crate::memory;

/// A sparse matrix by columns: row `c` has the rows of the original that lead to `c`, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transposed {
    pub offsets: Vec<u64>,
    pub columns: Vec<u32>,
    /// For each entry, which edge of the original it is.
    pub edges: Vec<u32>,
}

/// Matrices of fewer edges are sorted at once: all is in cache anyway.
const EDGES_FEW: usize = 1 << 18;
/// Edges of a chunk that is sorted by groups of columns.
const EDGES_CHUNK: usize = 1 << 18;
/// Columns of a group, at least, and how many groups there may be.
const GROUP_MIN: usize = 1 << 12;
const GROUPS_MAX: usize = 1 << 9;

impl Transposed {
    pub fn csr(&self) -> Csr<'_> {
        Csr { offsets: &self.offsets, columns: &self.columns }
    }
}

/// # Panics
/// If a column is not below `inputs`, or there are more edges than 32 bits can number.
pub fn transpose(csr: Csr, inputs: usize) -> Transposed {
    let rows = csr.rows();
    if rows == 0 {
        return Transposed { offsets: vec![0; inputs + 1], ..Transposed::default() };
    }
    let edges = csr.edges(0..rows);
    assert!(edges.end <= u32::MAX as usize, "{} edges are more than 32 bits number", edges.end);
    csr.check_columns(inputs);
    let mut out = Transposed {
        offsets: zeros(inputs + 1),
        columns: zeros(edges.len()),
        edges: zeros(edges.len()),
    };
    if edges.len() < EDGES_FEW {
        at_once(csr, &mut out);
    } else {
        by_groups(csr, &mut out);
    }
    out
}

fn at_once(csr: Csr, out: &mut Transposed) {
    let edges = csr.edges(0..csr.rows());
    for column in &csr.columns[edges] {
        out.offsets[*column as usize] += 1;
    }
    // Each row's end; filling backwards moves it to the row's start.
    let mut end = 0;
    for offset in &mut out.offsets {
        end += *offset;
        *offset = end;
    }
    for row in (0..csr.rows()).rev() {
        for edge in csr.edges(row..row + 1).rev() {
            let at = &mut out.offsets[csr.columns[edge] as usize];
            *at -= 1;
            out.columns[*at as usize] = row as u32;
            out.edges[*at as usize] = edge as u32;
        }
    }
}

fn zeros<T: Clone + Default>(len: usize) -> Vec<T> {
    let mut zeros = memory::room(len);
    zeros.resize(len, T::default());
    zeros
}

#[derive(Clone, Copy, Default)]
struct Entry {
    column: u32,
    row: u32,
    edge: u32,
}

/// The entries of a chunk, group by group; and where each group begins, and the last one ends.
struct Sorted {
    entries: Vec<Entry>,
    starts: Vec<usize>,
}

/// What of the transposed matrix one group of columns becomes.
struct Group<'a> {
    offsets: &'a mut [u64],
    columns: &'a mut [u32],
    edges: &'a mut [u32],
    /// Its entries begin here.
    start: u64,
}

fn by_groups(csr: Csr, out: &mut Transposed) {
    let inputs = out.offsets.len() - 1;
    let width = inputs.div_ceil(GROUPS_MAX).max(GROUP_MIN).next_power_of_two();
    let groups = inputs.div_ceil(width);
    let chunks: Vec<Sorted> = chunk::ranges(csr, EDGES_CHUNK)
        .into_par_iter()
        .map(|rows| sorted(csr, rows, groups, width.ilog2()))
        .collect();
    let (mut columns, mut edges) = (&mut out.columns[..], &mut out.edges[..]);
    let mut start = 0;
    let mut parts = Vec::with_capacity(groups);
    out.offsets[inputs] = columns.len() as u64;
    for (group, offsets) in out.offsets[..inputs].chunks_mut(width).enumerate() {
        let len = chunks.iter().map(|c| c.starts[group + 1] - c.starts[group]).sum();
        let (these, others) = columns.split_at_mut(len);
        let (these_edges, other_edges) = edges.split_at_mut(len);
        parts.push(Group { offsets, columns: these, edges: these_edges, start });
        (columns, edges, start) = (others, other_edges, start + len as u64);
    }
    parts.into_par_iter().enumerate().for_each(|(group, part)| {
        let entries = chunks.iter().map(|c| &c.entries[c.starts[group]..c.starts[group + 1]]);
        part.fill(entries, (group * width) as u32);
    });
}

fn sorted(csr: Csr, rows: Range<usize>, groups: usize, shift: u32) -> Sorted {
    let edges = csr.edges(rows.clone());
    let mut starts = vec![0; groups + 1];
    for column in &csr.columns[edges.clone()] {
        starts[(*column >> shift) as usize] += 1;
    }
    let mut start = 0;
    for entry in &mut starts {
        (*entry, start) = (start, start + *entry);
    }
    let mut next = starts.clone();
    let mut entries = zeros::<Entry>(edges.len());
    for row in rows {
        for edge in csr.edges(row..row + 1) {
            let column = csr.columns[edge];
            let at = &mut next[(column >> shift) as usize];
            entries[*at] = Entry { column, row: row as u32, edge: edge as u32 };
            *at += 1;
        }
    }
    Sorted { entries, starts }
}

impl Group<'_> {
    /// With entries that come in the order of their rows, from column `first` on.
    fn fill<'e>(self, entries: impl Iterator<Item = &'e [Entry]> + Clone, first: u32) {
        for entry in entries.clone().flatten() {
            self.offsets[(entry.column - first) as usize] += 1;
        }
        let mut start = 0;
        let mut next: Vec<usize> = Vec::with_capacity(self.offsets.len());
        for offset in &mut *self.offsets {
            next.push(start);
            start += *offset as usize;
            *offset = self.start + next[next.len() - 1] as u64;
        }
        for entry in entries.flatten() {
            let at = &mut next[(entry.column - first) as usize];
            self.columns[*at] = entry.row;
            self.edges[*at] = entry.edge;
            *at += 1;
        }
    }
}
