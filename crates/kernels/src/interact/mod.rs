//! How dense features and pooled rows meet: all dot products of two of them, or side by side.
//!
//! The features of a sample are its dense row and, behind it, one pooled row per table.

mod dot;

use crate::detect::Isa;
use crate::gemm::{Rows, RowsMut};

/// Dot products of features that all have `dim` elements.
#[derive(Clone, Copy, Debug)]
pub struct Dot {
    dim: usize,
    tables: usize,
    itself: bool,
    isa: Isa,
}

impl Dot {
    /// Products of each feature with those before it. An instruction set that the processor lacks
    /// is replaced by the best one below.
    pub fn new(dim: usize, tables: usize, isa: Isa) -> Self {
        Self { dim, tables, itself: false, isa: isa.lowered() }
    }

    /// As [`Dot::new`], and products of each feature with itself.
    pub fn with_itself(dim: usize, tables: usize, isa: Isa) -> Self {
        Self { itself: true, ..Self::new(dim, tables, isa) }
    }

    /// The dense features and one product per pair.
    pub fn width(&self) -> usize {
        let itself = if self.itself { self.tables + 1 } else { 0 };
        self.dim + self.tables * (self.tables + 1) / 2 + itself
    }

    /// `dense` is `[rows, dim]`, `pooled` is `[rows, tables · dim]`. Each row of `out` gets the
    /// dense features and then, for each feature i, its products with all features before it, and
    /// with itself if asked for. A row's result depends on nothing but the row.
    ///
    /// # Panics
    /// If the matrices differ in rows or do not hold rows of these widths.
    pub fn forward(&self, dense: Rows<'_, f32>, pooled: Rows<'_, f32>, mut out: RowsMut<'_, f32>) {
        check(&dense, self.dim, &pooled, self.dim * self.tables, &out, self.width());
        for row in 0..dense.rows {
            let dense = dense.row(row, self.dim);
            let pooled = pooled.row(row, self.dim * self.tables);
            let (head, products) = out.row(row, self.width()).split_at_mut(self.dim);
            head.copy_from_slice(dense);
            match self.isa {
                Isa::Reference => dot::reference(dense, pooled, self.itself, products),
                // SAFETY: `new` saw that the processor has it.
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 => unsafe { dot::avx2(dense, pooled, self.itself, products) },
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 | Isa::Avx512Vnni => {
                    // SAFETY: `new` saw that the processor has it.
                    unsafe { dot::avx512(dense, pooled, self.itself, products) }
                }
                #[cfg(not(target_arch = "x86_64"))]
                Isa::Avx2 | Isa::Avx512 | Isa::Avx512Vnni => {
                    dot::reference(dense, pooled, self.itself, products)
                }
            }
        }
    }
}

/// The dense features, then the pooled rows: `[rows, dense_width + pooled_width]`.
///
/// # Panics
/// If the matrices differ in rows or do not hold rows of these widths.
pub fn cat(
    dense: Rows<'_, f32>,
    dense_width: usize,
    pooled: Rows<'_, f32>,
    pooled_width: usize,
    mut out: RowsMut<'_, f32>,
) {
    let width = dense_width + pooled_width;
    check(&dense, dense_width, &pooled, pooled_width, &out, width);
    for row in 0..dense.rows {
        let (head, tail) = out.row(row, width).split_at_mut(dense_width);
        head.copy_from_slice(dense.row(row, dense_width));
        tail.copy_from_slice(pooled.row(row, pooled_width));
    }
}

/// The last step of a cross layer: `x` becomes `first · gate + x`, element by element.
///
/// # Panics
/// If the matrices differ in rows or do not hold rows of `width`.
pub fn cross(first: Rows<'_, f32>, gate: Rows<'_, f32>, mut x: RowsMut<'_, f32>, width: usize) {
    check(&first, width, &gate, width, &x, width);
    for row in 0..first.rows {
        let factors = first.row(row, width).iter().zip(gate.row(row, width));
        for (x, (first, gate)) in x.row(row, width).iter_mut().zip(factors) {
            *x += first * gate;
        }
    }
}

/// The dense features, then the product of two matrices per row: `[lefts / dim, dim]` in a row of
/// `left` and `[dim, rights / dim]` in a row of `right`. A plain loop, because few models have it.
///
/// # Panics
/// If the matrices differ in rows or do not hold rows of these widths.
pub fn products(
    dense: Rows<'_, f32>,
    dim: usize,
    (left, lefts): (Rows<'_, f32>, usize),
    (right, rights): (Rows<'_, f32>, usize),
    mut out: RowsMut<'_, f32>,
) {
    let columns = rights / dim;
    let width = dim + lefts / dim * columns;
    check(&left, lefts, &right, rights, &out, width);
    dense.check(dim);
    for row in 0..left.rows {
        let (head, products) = out.row(row, width).split_at_mut(dim);
        head.copy_from_slice(dense.row(row, dim));
        let (left, right) = (left.row(row, lefts), right.row(row, rights));
        for (at, product) in products.iter_mut().enumerate() {
            let vector = &left[at / columns * dim..][..dim];
            let column = right[at % columns..].iter().step_by(columns);
            *product = vector.iter().zip(column).map(|(a, b)| a * b).sum();
        }
    }
}

fn check(
    a: &Rows<'_, f32>,
    a_width: usize,
    b: &Rows<'_, f32>,
    b_width: usize,
    out: &RowsMut<'_, f32>,
    width: usize,
) {
    assert!(a.rows == b.rows && b.rows == out.rows, "rows of the features and of the result");
    a.check(a_width);
    b.check(b_width);
    out.check(width);
}
