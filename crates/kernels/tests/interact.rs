//! Interaction of features against plain loops in twice the precision.

use hither_kernels::detect::{Isa, cpu};
use hither_kernels::gemm::{Rows, RowsMut};
use hither_kernels::interact::{Dot, cat, cross, products};
use proptest::prelude::*;

const DIMS: [usize; 12] = [1, 2, 3, 7, 8, 9, 16, 17, 33, 64, 100, 128];

/// Samples with `tables` pooled rows behind a dense one, all of `dim` elements.
#[derive(Debug)]
struct Case {
    rows: usize,
    dim: usize,
    tables: usize,
    itself: bool,
    dense: Vec<f32>,
    pooled: Vec<f32>,
}

fn cases() -> impl Strategy<Value = Case> {
    let shapes = (0..5usize, prop::sample::select(&DIMS[..]), 0..30usize, any::<bool>());
    shapes.prop_flat_map(|(rows, dim, tables, itself)| {
        let values = |count| prop::collection::vec(-1.0f32..1.0, count);
        (values(rows * dim), values(rows * dim * tables)).prop_map(move |(dense, pooled)| Case {
            rows,
            dim,
            tables,
            itself,
            dense,
            pooled,
        })
    })
}

impl Case {
    fn dense(&self) -> Rows<'_, f32> {
        Rows::new(&self.dense, self.rows, self.dim)
    }

    fn pooled(&self) -> Rows<'_, f32> {
        Rows::new(&self.pooled, self.rows, self.dim * self.tables)
    }

    fn layer(&self, isa: Isa) -> Dot {
        match self.itself {
            true => Dot::with_itself(self.dim, self.tables, isa),
            false => Dot::new(self.dim, self.tables, isa),
        }
    }

    fn dot(&self, isa: Isa) -> Vec<f32> {
        let dot = self.layer(isa);
        let mut out = vec![f32::NAN; self.rows * dot.width()];
        dot.forward(self.dense(), self.pooled(), RowsMut::new(&mut out, self.rows, dot.width()));
        out
    }

    /// Each result and how far off rounding may carry it: a sum of n products is rounded at most
    /// 2n times, each by u = 2⁻²⁴ of a sum that no part of the products' sizes exceeds.
    fn exact(&self) -> Vec<(f64, f64)> {
        let mut all = Vec::new();
        for row in 0..self.rows {
            let mut features = vec![&self.dense[row * self.dim..][..self.dim]];
            let pooled = &self.pooled[row * self.dim * self.tables..][..self.dim * self.tables];
            features.extend(pooled.chunks(self.dim));
            all.extend(features[0].iter().map(|x| (f64::from(*x), 0.0)));
            for i in 0..features.len() {
                for j in 0..i + usize::from(self.itself) {
                    let products = features[i]
                        .iter()
                        .zip(features[j])
                        .map(|(a, b)| f64::from(*a) * f64::from(*b));
                    let size: f64 = products.clone().map(f64::abs).sum();
                    let bound = 1.1 * 2.0 * self.dim as f64 * 2f64.powi(-24) * size;
                    all.push((products.sum(), bound));
                }
            }
        }
        all
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn every_variant_stays_within_what_rounding_allows(case in cases()) {
        let exact = case.exact();
        for isa in Isa::available() {
            let out = case.dot(isa);
            prop_assert_eq!(out.len(), exact.len());
            for (at, (y, (value, bound))) in out.iter().zip(&exact).enumerate() {
                let off = (f64::from(*y) - value).abs();
                prop_assert!(off <= *bound, "{isa} [{at}]: {y}, not {value} ± {bound:e}");
            }
        }
    }

    #[test]
    fn a_sample_does_not_depend_on_those_beside_it(case in cases()) {
        for isa in Isa::available() {
            let dot = case.layer(isa);
            let together = case.dot(isa);
            for row in 0..case.rows {
                let mut out = vec![0.0; dot.width()];
                let dense = Rows::new(&case.dense[row * case.dim..], 1, case.dim);
                let width = case.dim * case.tables;
                let pooled = Rows::new(&case.pooled[row * width..], 1, width);
                dot.forward(dense, pooled, RowsMut::new(&mut out, 1, dot.width()));
                prop_assert_eq!(&out, &together[row * dot.width()..][..dot.width()]);
            }
        }
    }

    #[test]
    fn gaps_between_rows_are_left_alone(case in cases()) {
        for isa in Isa::available() {
            let dot = case.layer(isa);
            let stride = dot.width() + 2;
            let mut out = vec![9.0; case.rows * stride];
            dot.forward(case.dense(), case.pooled(), RowsMut::new(&mut out, case.rows, stride));
            for (row, plain) in out.chunks(stride).zip(case.dot(isa).chunks(dot.width())) {
                prop_assert_eq!(&row[..dot.width()], plain);
                prop_assert_eq!(&row[dot.width()..], &[9.0; 2]);
            }
        }
    }

    #[test]
    fn cat_puts_pooled_rows_behind_the_dense_ones(case in cases()) {
        let (dense, pooled) = (case.dim, case.dim * case.tables);
        let mut out = vec![f32::NAN; case.rows * (dense + pooled)];
        let rows = RowsMut::new(&mut out, case.rows, dense + pooled);
        cat(case.dense(), dense, case.pooled(), pooled, rows);
        for (row, out) in out.chunks(dense + pooled).enumerate() {
            prop_assert_eq!(&out[..dense], &case.dense[row * dense..][..dense]);
            prop_assert_eq!(&out[dense..], &case.pooled[row * pooled..][..pooled]);
        }
    }
}

#[test]
fn nan_and_infinity_reach_the_products_they_belong_to() {
    for isa in Isa::available() {
        let dot = Dot::new(2, 2, isa);
        let mut out = vec![0.0; dot.width()];
        let (dense, pooled) = ([1.0, 2.0], [f32::NAN, 0.0, f32::INFINITY, 1.0]);
        dot.forward(
            Rows::new(&dense, 1, 2),
            Rows::new(&pooled, 1, 4),
            RowsMut::new(&mut out, 1, 5),
        );
        assert!(out[2].is_nan() && out[3] == f32::INFINITY && out[4].is_nan(), "{isa}: {out:?}");
    }
}

#[test]
fn cross_adds_the_gated_first_features() {
    let (first, gate, mut x) = ([1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0], [1.0; 4]);
    cross(Rows::new(&first, 2, 2), Rows::new(&gate, 2, 2), RowsMut::new(&mut x, 2, 2), 2);
    assert_eq!(x, [6.0, 13.0, 22.0, 33.0]);
}

#[test]
fn products_are_those_of_a_matrix_per_row() {
    // [[1, 2], [3, 4], [5, 6]] times [[1, 10], [100, 1000]], behind two dense features.
    let (left, right) = ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [1.0, 10.0, 100.0, 1000.0]);
    let mut out = [0.0; 8];
    products(
        Rows::new(&[7.0, 8.0], 1, 2),
        2,
        (Rows::new(&left, 1, 6), 6),
        (Rows::new(&right, 1, 4), 4),
        RowsMut::new(&mut out, 1, 8),
    );
    assert_eq!(out, [7.0, 8.0, 201.0, 2010.0, 403.0, 4030.0, 605.0, 6050.0]);
}

#[test]
#[should_panic(expected = "rows of the features")]
fn unequal_rows_are_refused() {
    let mut out = [0.0; 8];
    let out = RowsMut::new(&mut out, 2, 3);
    Dot::new(2, 1, cpu().isa).forward(Rows::new(&[0.0; 4], 2, 2), Rows::new(&[0.0; 4], 1, 2), out);
}
