//! Sums over neighbours: every instruction set against the plain one, to the last bit, and the plain
//! one against sums of f64.

use hither_kernels::detect::Isa;
use hither_kernels::spmm::{Csr, Gather, Own, edge_dots_by, gather_by, gather_heads_by, transpose};
use proptest::prelude::*;

const DIMS: [usize; 14] = [1, 2, 3, 8, 15, 16, 17, 33, 64, 100, 128, 255, 256, 602];

/// Numbers from a xorshift; proptest need not shrink each of them.
#[derive(Clone, Debug)]
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

    fn below(&mut self, bound: usize) -> u32 {
        (self.next() % bound as u64) as u32
    }
}

#[derive(Clone, Debug)]
struct Sparse {
    offsets: Vec<u64>,
    columns: Vec<u32>,
    inputs: usize,
    numbers: Numbers,
}

impl Sparse {
    fn csr(&self) -> Csr<'_> {
        Csr { offsets: &self.offsets, columns: &self.columns }
    }

    fn rows(&self) -> usize {
        self.offsets.len() - 1
    }

    fn edges_of(&self, row: usize) -> std::ops::Range<usize> {
        self.offsets[row] as usize..self.offsets[row + 1] as usize
    }
}

/// Rows with no edges, with the same column again and again, and a few with very many.
fn sparse() -> impl Strategy<Value = Sparse> {
    (0..60_usize, 1..50_usize, any::<u64>()).prop_map(|(rows, inputs, seed)| {
        let mut numbers = Numbers(seed | 1);
        let (mut offsets, mut columns) = (vec![0], vec![]);
        for _ in 0..rows {
            let degree = match numbers.below(8) {
                0 | 1 => 0,
                2 => 1,
                3 => numbers.below(300),
                _ => numbers.below(12),
            };
            columns.extend((0..degree).map(|_| numbers.below(inputs)));
            offsets.push(columns.len() as u64);
        }
        Sparse { offsets, columns, inputs, numbers }
    })
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Whether rounding explains the difference: each of so many operations may cost half a unit in the
/// last place of no more than `magnitude`, the sum of the terms' sizes.
fn close(value: f32, exact: f64, operations: usize, magnitude: f64) -> bool {
    let rounding = operations as f64 * f64::from(f32::EPSILON) / 2.0;
    (f64::from(value) - exact).abs() <= rounding * magnitude * 1.01 + 1e-9
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn gathers_agree(
        sparse in sparse(),
        dim in prop::sample::select(&DIMS[..]),
        options in any::<[bool; 6]>(),
    ) {
        let mut numbers = sparse.numbers.clone();
        let (rows, inputs) = (sparse.rows(), sparse.inputs);
        let x = numbers.floats(inputs * dim);
        let [weighted, source, target, own, by_ids, accumulate] = options;
        let edge_weights = weighted.then(|| numbers.floats(sparse.columns.len()));
        let source_scale = source.then(|| numbers.floats(inputs));
        let target_scale = target.then(|| numbers.floats(rows));
        let own_scale = numbers.floats(rows);
        let ids: Vec<u32> = (0..rows).map(|_| numbers.below(inputs)).collect();
        let first = numbers.below(inputs.max(1)) as usize;
        let len = rows.min(inputs - first).saturating_sub(2);
        let rows_own = if by_ids { Own::Ids(&ids) } else { Own::Run { first, len } };
        let gather = Gather {
            csr: sparse.csr(),
            edge_weights: edge_weights.as_deref(),
            source_scale: source_scale.as_deref(),
            target_scale: target_scale.as_deref(),
            own: own.then_some((rows_own, (!accumulate).then_some(&own_scale[..]))),
        };
        let before = numbers.floats(rows * dim);
        let mut plain = before.clone();
        gather_by(Isa::Reference, &gather, &x, dim, &mut plain, accumulate);

        for row in 0..rows {
            for d in 0..dim {
                let (mut sum, mut magnitude) = (0.0_f64, 0.0_f64);
                for edge in sparse.edges_of(row) {
                    let column = sparse.columns[edge] as usize;
                    let weight = edge_weights.as_ref().map_or(1.0, |w| f64::from(w[edge]));
                    let scale = source_scale.as_ref().map_or(1.0, |s| f64::from(s[column]));
                    let term = weight * scale * f64::from(x[column * dim + d]);
                    sum += term;
                    magnitude += term.abs();
                }
                sum *= target_scale.as_ref().map_or(1.0, |s| f64::from(s[row]));
                let has_own = own && (by_ids || row < len);
                if has_own {
                    let input = if by_ids { ids[row] as usize } else { first + row };
                    let scale = if accumulate { 1.0 } else { f64::from(own_scale[row]) };
                    sum += scale * f64::from(x[input * dim + d]);
                    magnitude += 1.0;
                }
                let at = row * dim + d;
                sum += if accumulate { f64::from(before[at]) } else { 0.0 };
                // Two products and a sum for each edge; the other scales, the own row and what was
                // there before, each of no more than 1.
                let operations = 3 * sparse.edges_of(row).len() + 4;
                let is_close = close(plain[at], sum, operations, magnitude + 2.0);
                prop_assert!(is_close, "{} {sum}", plain[at]);
            }
        }
        for isa in Isa::available() {
            let mut out = before.clone();
            gather_by(isa, &gather, &x, dim, &mut out, accumulate);
            prop_assert_eq!(bits(&out), bits(&plain), "{}", isa);
        }
    }

    #[test]
    fn heads_agree(
        sparse in sparse(),
        heads in 1..20_usize,
        dim in prop::sample::select(&DIMS[..10]),
        ordered in any::<bool>(),
        accumulate in any::<bool>(),
    ) {
        let mut numbers = sparse.numbers.clone();
        let (rows, edges, width) = (sparse.rows(), sparse.columns.len(), heads * dim);
        let x = numbers.floats(sparse.inputs * width);
        let weights = numbers.floats(edges * heads);
        let order: Vec<u32> = (0..edges).map(|_| numbers.below(edges)).collect();
        let order = ordered.then_some(&order[..]);
        let before = numbers.floats(rows * width);
        let csr = sparse.csr();
        let mut exact = vec![0.0_f32; rows * width];
        for row in 0..rows {
            for edge in sparse.edges_of(row) {
                let from = sparse.columns[edge] as usize * width;
                let at = order.map_or(edge, |order| order[edge] as usize);
                for d in 0..width {
                    let sum = &mut exact[row * width + d];
                    *sum = x[from + d].mul_add(weights[at * heads + d / dim], *sum);
                }
            }
        }
        if accumulate {
            exact.iter_mut().zip(&before).for_each(|(sum, before)| *sum += before);
        }
        for isa in Isa::available() {
            let mut out = before.clone();
            gather_heads_by(isa, csr, &weights, order, &x, heads, dim, &mut out, accumulate);
            prop_assert_eq!(bits(&out), bits(&exact), "{}", isa);
        }
    }

    #[test]
    fn dots_agree(
        sparse in sparse(),
        heads in 1..10_usize,
        dim in prop::sample::select(&DIMS[..]),
    ) {
        let mut numbers = sparse.numbers.clone();
        let width = heads * dim;
        let a = numbers.floats(sparse.rows() * width);
        let b = numbers.floats(sparse.inputs * width);
        for isa in Isa::available() {
            let mut out = vec![f32::NAN; sparse.columns.len() * heads];
            edge_dots_by(isa, sparse.csr(), &a, &b, heads, dim, &mut out);
            for row in 0..sparse.rows() {
                for edge in sparse.edges_of(row) {
                    let column = sparse.columns[edge] as usize;
                    for head in 0..heads {
                        let a = &a[row * width + head * dim..][..dim];
                        let b = &b[column * width + head * dim..][..dim];
                        let terms = || a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b));
                        let magnitude = terms().map(f64::abs).sum();
                        let dot = out[edge * heads + head];
                        let is_close = close(dot, terms().sum(), 2 * dim, magnitude);
                        prop_assert!(is_close, "{isa}: {dot}");
                    }
                }
            }
        }
    }

    #[test]
    fn transposed_is_sorted_by_column(sparse in sparse()) {
        let transposed = transpose(sparse.csr(), sparse.inputs);
        let mut entries: Vec<(u32, u32, u32)> = vec![];
        for row in 0..sparse.rows() {
            for edge in sparse.edges_of(row) {
                entries.push((sparse.columns[edge], row as u32, edge as u32));
            }
        }
        entries.sort_unstable();
        let mut found = vec![];
        for column in 0..sparse.inputs {
            for at in transposed.offsets[column]..transposed.offsets[column + 1] {
                let at = at as usize;
                found.push((column as u32, transposed.columns[at], transposed.edges[at]));
            }
        }
        prop_assert_eq!(found, entries);
        prop_assert_eq!(transposed.offsets.len(), sparse.inputs + 1);
    }
}

/// Large enough to be shared by threads and sorted by groups, with one row that has many edges.
fn large() -> Sparse {
    let mut numbers = Numbers(7);
    let (rows, inputs) = (30_000, 20_000);
    let (mut offsets, mut columns) = (vec![0], vec![]);
    for row in 0..rows {
        let degree = if row == 777 { 50_000 } else { numbers.below(24) as usize };
        columns.extend((0..degree).map(|_| numbers.below(inputs)));
        offsets.push(columns.len() as u64);
    }
    Sparse { offsets, columns, inputs, numbers }
}

fn in_pool<T: Send>(threads: usize, work: impl FnOnce() -> T + Send) -> T {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool").install(work)
}

#[test]
fn threads_change_no_bit() {
    let sparse = large();
    let csr = sparse.csr();
    let (heads, dim) = (3, 7);
    let width = heads * dim;
    let mut numbers = sparse.numbers.clone();
    let x = numbers.floats(sparse.inputs * width);
    let a = numbers.floats(sparse.rows() * width);
    let weights = numbers.floats(csr.columns.len() * heads);
    let scale = numbers.floats(sparse.rows());
    let run = || {
        let gather = Gather {
            csr,
            edge_weights: None,
            source_scale: None,
            target_scale: Some(&scale),
            own: None,
        };
        let mut sums = vec![0.0; sparse.rows() * width];
        gather_by(Isa::Avx512, &gather, &x, width, &mut sums, false);
        let mut heads_sums = vec![0.0; sparse.rows() * width];
        let isa = Isa::Avx512;
        gather_heads_by(isa, csr, &weights, None, &x, heads, dim, &mut heads_sums, false);
        let mut dots = vec![0.0; csr.columns.len() * heads];
        edge_dots_by(isa, csr, &a, &x, heads, dim, &mut dots);
        (bits(&sums), bits(&heads_sums), bits(&dots), transpose(csr, sparse.inputs))
    };
    let one = in_pool(1, run);
    for threads in [2, 5] {
        assert!(in_pool(threads, run) == one, "{threads} threads");
    }
    let gather = Gather {
        csr,
        edge_weights: None,
        source_scale: None,
        target_scale: Some(&scale),
        own: None,
    };
    let mut plain = vec![0.0; sparse.rows() * width];
    gather_by(Isa::Reference, &gather, &x, width, &mut plain, false);
    assert!(bits(&plain) == one.0);
}

#[test]
fn large_matrices_are_transposed_alike() {
    let sparse = large();
    let mut entries: Vec<(u32, u32, u32)> = vec![];
    for row in 0..sparse.rows() {
        entries.extend(sparse.edges_of(row).map(|e| (sparse.columns[e], row as u32, e as u32)));
    }
    entries.sort_unstable();
    let transposed = transpose(sparse.csr(), sparse.inputs);
    assert!(transposed.columns.iter().eq(entries.iter().map(|(_, row, _)| row)));
    assert!(transposed.edges.iter().eq(entries.iter().map(|(_, _, edge)| edge)));
    for column in 0..=sparse.inputs {
        let before = entries.partition_point(|entry| (entry.0 as usize) < column);
        assert_eq!(transposed.offsets[column], before as u64, "column {column}");
    }
}

#[test]
fn transposing_twice_gives_the_matrix_back() {
    let mut sparse = large();
    for row in 0..sparse.rows() {
        let edges = sparse.edges_of(row);
        sparse.columns[edges].sort_unstable();
    }
    let once = transpose(sparse.csr(), sparse.inputs);
    let twice = transpose(once.csr(), sparse.rows());
    assert!(twice.offsets == sparse.offsets && twice.columns == sparse.columns);
    assert!(
        once.edges
            .iter()
            .zip(&once.columns)
            .all(|(edge, row)| { sparse.edges_of(*row as usize).contains(&(*edge as usize)) })
    );
}

#[test]
#[should_panic(expected = "column 3 of 3 rows")]
fn columns_out_of_range_are_refused() {
    let csr = Csr { offsets: &[0, 2], columns: &[0, 3] };
    let gather =
        Gather { csr, edge_weights: None, source_scale: None, target_scale: None, own: None };
    gather_by(Isa::Avx512, &gather, &[0.0; 12], 4, &mut [0.0; 4], false);
}

#[test]
#[should_panic(expected = "offsets")]
fn offsets_that_fall_are_refused() {
    let csr = Csr { offsets: &[0, 2, 1, 2], columns: &[0, 1] };
    let gather =
        Gather { csr, edge_weights: None, source_scale: None, target_scale: None, own: None };
    gather_by(Isa::Avx512, &gather, &[0.0; 12], 4, &mut [0.0; 12], false);
}

/// Every number that becomes an address is checked where it is used.
#[test]
fn no_kernel_reads_beyond_its_input() {
    let csr = Csr { offsets: &[0, 1, 2], columns: &[0, 2] };
    let beyond = Csr { offsets: &[0, 1, 2], columns: &[0, 3] };
    let long = Csr { offsets: &[0, 1, 3], columns: &[0, 2] };
    let x = [1.0_f32; 3 * 8];
    let refused = |run: &dyn Fn()| {
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).expect_err("refused")
    };
    for isa in Isa::available() {
        let sum = |csr, own| {
            let (edge_weights, source_scale) = (Some(&[1.0, 1.0][..]), Some(&[1.0; 3][..]));
            let gather = Gather { csr, edge_weights, source_scale, target_scale: None, own };
            gather_by(isa, &gather, &x, 8, &mut [0.0; 16], false);
        };
        let ids = |ids| Some((Own::Ids(ids), None));
        sum(csr, ids(&[0, 2]));
        refused(&|| sum(csr, ids(&[0, 3])));
        refused(&|| sum(beyond, None));
        refused(&|| sum(long, None));
        let heads = |csr, order: &[u32]| {
            let weights = [1.0; 4];
            gather_heads_by(isa, csr, &weights, Some(order), &x, 2, 4, &mut [0.0; 16], false);
        };
        heads(csr, &[1, 0]);
        refused(&|| heads(csr, &[2, 0]));
        refused(&|| heads(beyond, &[1, 0]));
        let dots = |csr| edge_dots_by(isa, csr, &[1.0; 16], &x, 2, 4, &mut [0.0; 4]);
        dots(csr);
        refused(&|| dots(beyond));
        refused(&|| dots(long));
    }
}
