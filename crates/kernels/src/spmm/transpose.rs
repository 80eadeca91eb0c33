//! The transposed structure, by counting.

use super::Csr;

/// A sparse matrix by columns: row `c` has the rows of the original that lead to `c`, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transposed {
    pub offsets: Vec<u64>,
    pub columns: Vec<u32>,
    /// For each entry, which edge of the original it is.
    pub edges: Vec<u32>,
}

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
    csr.check_rows(0..rows, inputs);
    let mut offsets = vec![0_u64; inputs + 1];
    for column in &csr.columns[edges.clone()] {
        offsets[*column as usize] += 1;
    }
    // Each row's end; filling backwards moves it to the row's start.
    let mut end = 0;
    for offset in &mut offsets {
        end += *offset;
        *offset = end;
    }
    let mut columns = vec![0_u32; edges.len()];
    let mut origins = vec![0_u32; edges.len()];
    for row in (0..rows).rev() {
        for edge in csr.edges(row..row + 1).rev() {
            let at = &mut offsets[csr.columns[edge] as usize];
            *at -= 1;
            columns[*at as usize] = row as u32;
            origins[*at as usize] = edge as u32;
        }
    }
    Transposed { offsets, columns, edges: origins }
}
