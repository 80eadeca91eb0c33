//! Products of matrices in all forms, on every instruction set, against sums of f64.

use hither_kernels::detect::Isa;
use hither_kernels::gemm::{Matrix, product_by};
use proptest::prelude::*;

struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn floats(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0).collect()
    }
}

/// How a factor is stored.
#[derive(Clone, Copy, Debug)]
struct Form {
    transposed: bool,
    by_ids: bool,
}

/// A factor of the given shape, and where it is stored.
struct Factor {
    data: Vec<f32>,
    ids: Vec<u32>,
    stored: (usize, usize),
    form: Form,
}

impl Factor {
    fn new(rows: usize, cols: usize, form: Form, numbers: &mut Numbers) -> Self {
        let stored = if form.transposed { (cols, rows) } else { (rows, cols) };
        let table = if form.by_ids { stored.0 / 2 + 3 } else { stored.0 };
        let data = numbers.floats(table * stored.1);
        let ids = (0..stored.0).map(|_| (numbers.next() % table as u64) as u32).collect();
        Self { data, ids, stored, form }
    }

    fn matrix(&self) -> Matrix<'_> {
        let matrix = if self.form.by_ids {
            Matrix::rows_of(&self.data, self.stored.1, &self.ids)
        } else {
            Matrix::new(&self.data, self.stored.0, self.stored.1)
        };
        if self.form.transposed { matrix.t() } else { matrix }
    }

    fn at(&self, row: usize, col: usize) -> f64 {
        let (row, col) = if self.form.transposed { (col, row) } else { (row, col) };
        let row = if self.form.by_ids { self.ids[row] as usize } else { row };
        f64::from(self.data[row * self.stored.1 + col])
    }
}

fn form() -> impl Strategy<Value = Form> {
    any::<(bool, bool)>().prop_map(|(transposed, by_ids)| Form { transposed, by_ids })
}

fn check(
    (rows, inner, cols): (usize, usize, usize),
    forms: (Form, Form),
    with_bias: bool,
    accumulate: bool,
    seed: u64,
) {
    let mut numbers = Numbers(seed | 1);
    let a = Factor::new(rows, inner, forms.0, &mut numbers);
    let b = Factor::new(inner, cols, forms.1, &mut numbers);
    let bias = numbers.floats(cols);
    let before = numbers.floats(rows * cols);
    let mut exact = vec![(0.0_f64, 0.0_f64); rows * cols];
    for row in 0..rows {
        for k in 0..inner {
            let x = a.at(row, k);
            for col in 0..cols {
                let term = x * b.at(k, col);
                let (sum, magnitude) = &mut exact[row * cols + col];
                *sum += term;
                *magnitude += term.abs();
            }
        }
    }
    for isa in Isa::available() {
        let mut out = before.clone();
        let bias = with_bias.then_some(&bias[..]);
        product_by(isa, a.matrix(), b.matrix(), bias, &mut out, accumulate);
        for (at, out) in out.iter().enumerate() {
            let (mut sum, magnitude) = exact[at];
            sum += bias.map_or(0.0, |bias| f64::from(bias[at % cols]));
            sum += if accumulate { f64::from(before[at]) } else { 0.0 };
            let error = (f64::from(*out) - sum).abs();
            assert!(error <= 1e-6 * (magnitude + 2.0), "{isa} {forms:?} at {at}: {out}, {sum}");
        }
    }
}

const SIZES: [usize; 16] = [0, 1, 2, 3, 6, 13, 14, 15, 16, 17, 31, 33, 47, 64, 100, 129];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(160))]

    #[test]
    fn products_are_right(
        rows in prop_oneof![3 => prop::sample::select(&SIZES[..]), 1 => 130..420_usize],
        inner in prop::sample::select(&SIZES[..]),
        cols in prop::sample::select(&SIZES[..]),
        forms in (form(), form()),
        with_bias in any::<bool>(),
        accumulate in any::<bool>(),
        seed in any::<u64>(),
    ) {
        check((rows, inner, cols), forms, with_bias, accumulate, seed);
    }
}

/// Long sums are cut into pieces; wide rows are a multiple of 2 KiB apart.
#[test]
fn long_sums_and_wide_rows() {
    for transposed in [false, true] {
        for by_ids in [false, true] {
            let form = Form { transposed, by_ids };
            check((33, 5003, 17), (form, form), true, true, 3);
            check((45, 1024, 260), (form, form), true, false, 4);
        }
    }
}

#[test]
fn threads_change_no_bit() {
    let mut numbers = Numbers(11);
    let shapes = [(40, 9000, 24), (900, 64, 100), (64, 3000, 600)];
    for (rows, inner, cols) in shapes {
        let (a, b) = (numbers.floats(inner * rows), numbers.floats(inner * cols));
        let run = || {
            let mut out = vec![0.0; rows * cols];
            let (a, b) = (Matrix::new(&a, inner, rows).t(), Matrix::new(&b, inner, cols));
            product_by(Isa::Avx512, a, b, None, &mut out, false);
            out.into_iter().map(f32::to_bits).collect::<Vec<_>>()
        };
        let in_pool = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
            pool.expect("a pool").install(run)
        };
        assert!(in_pool(1) == in_pool(2) && in_pool(1) == in_pool(7));
    }
}

#[test]
#[should_panic(expected = "a product of 2 × 3 and 2 × 3")]
fn shapes_that_do_not_fit_are_refused() {
    let data = [0.0; 6];
    let matrix = Matrix::new(&data, 2, 3);
    product_by(Isa::Avx512, matrix, matrix, None, &mut [0.0; 6], false);
}

#[test]
#[should_panic(expected = "an id beyond 2 rows")]
fn ids_out_of_range_are_refused() {
    Matrix::rows_of(&[0.0; 6], 3, &[0, 2]);
}
