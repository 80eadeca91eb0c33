//! Products of matrices for training, where both factors are new each time.

use rayon::prelude::*;

use crate::detect::{self, Isa};

/// A matrix to read: rows of a slice or rows chosen from a table, as they are or transposed.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    data: &'a [f32],
    /// As stored, whatever `transposed` says.
    rows: usize,
    cols: usize,
    transposed: bool,
    ids: Option<&'a [u32]>,
}

impl<'a> Matrix<'a> {
    /// # Panics
    /// If `data` is not `rows` times `cols` long.
    pub fn new(data: &'a [f32], rows: usize, cols: usize) -> Self {
        assert_eq!(
            Some(data.len()),
            rows.checked_mul(cols),
            "elements of a {rows} × {cols} matrix"
        );
        Self { data, rows, cols, transposed: false, ids: None }
    }

    /// The matrix whose row `i` is row `ids[i]` of a table of rows of `cols`.
    ///
    /// # Panics
    /// If the table is not whole rows, or an id is not one of them.
    pub fn rows_of(table: &'a [f32], cols: usize, ids: &'a [u32]) -> Self {
        assert!(cols == 0 || table.len().is_multiple_of(cols), "a table of rows of {cols}");
        let count = table.len() / cols.max(1);
        let fine = cols == 0 || ids.iter().all(|id| (*id as usize) < count);
        assert!(fine, "an id beyond {count} rows");
        Self { data: table, rows: ids.len(), cols, transposed: false, ids: Some(ids) }
    }

    /// Transposed.
    pub fn t(self) -> Self {
        Self { transposed: !self.transposed, ..self }
    }

    /// Rows and columns, as the product sees them.
    pub fn shape(&self) -> (usize, usize) {
        if self.transposed { (self.cols, self.rows) } else { (self.rows, self.cols) }
    }

    /// A row as stored.
    fn row(&self, row: usize) -> &'a [f32] {
        let row = self.ids.map_or(row, |ids| ids[row] as usize);
        &self.data[row * self.cols..][..self.cols]
    }

    fn at(&self, row: usize, col: usize) -> f32 {
        if self.transposed { self.row(col)[row] } else { self.row(row)[col] }
    }
}

/// `out = a · b`, with `bias` added to every row; or that is added to what `out` holds.
///
/// # Panics
/// If the shapes do not fit each other, the bias or `out`.
pub fn product(a: Matrix, b: Matrix, bias: Option<&[f32]>, out: &mut [f32], accumulate: bool) {
    product_by(detect::cpu().isa, a, b, bias, out, accumulate);
}

/// [`product`] by kernels of no more than this instruction set.
pub fn product_by(
    isa: Isa,
    a: Matrix,
    b: Matrix,
    bias: Option<&[f32]>,
    out: &mut [f32],
    accumulate: bool,
) {
    let ((rows, inner), (b_rows, cols)) = (a.shape(), b.shape());
    assert_eq!(inner, b_rows, "a product of {rows} × {inner} and {b_rows} × {cols}");
    assert_eq!(Some(out.len()), rows.checked_mul(cols), "elements of a {rows} × {cols} product");
    assert!(bias.is_none_or(|bias| bias.len() == cols), "a bias of {cols} columns");
    if out.is_empty() {
        return;
    }
    let _ = isa.lowered();
    out.par_chunks_mut(cols).enumerate().for_each(|(row, out)| {
        let mut sums = bias.map_or_else(|| vec![0.0; cols], <[f32]>::to_vec);
        for k in 0..inner {
            let x = a.at(row, k);
            if b.transposed {
                for (col, sum) in sums.iter_mut().enumerate() {
                    *sum += x * b.at(k, col);
                }
            } else {
                for (sum, y) in sums.iter_mut().zip(b.row(k)) {
                    *sum += x * y;
                }
            }
        }
        for (out, sum) in out.iter_mut().zip(sums) {
            *out = if accumulate { *out + sum } else { sum };
        }
    });
}
