//! Loops over vectors: every instruction set gives the same bits, and the right ones.

use hither_kernels::detect::Isa;
use hither_kernels::vector::{
    Adam, Dropout, adam_by, add_column_sums_by, add_scaled_by, exp_sum_by, norm_squared_by,
    relu_dropout_backward_by, relu_dropout_by,
};
use proptest::prelude::*;

fn floats(len: usize, seed: u64) -> Vec<f32> {
    let mut state = seed | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    (0..len).map(|_| (next() >> 40) as f32 / (1 << 23) as f32 - 1.0).collect()
}

#[test]
fn exponentials_are_right_and_the_same_on_every_instruction_set() {
    for len in [0, 1, 31, 32, 33, 1000] {
        let x: Vec<f32> = floats(len, 3).iter().map(|x| x * 90.0).collect();
        let by = |isa: Isa| {
            let mut x = x.clone();
            let sum = exp_sum_by(isa, &mut x, 3.0);
            (bits(&x), sum.to_bits(), x, sum)
        };
        let (reference_bits, sum_bits, values, sum) = by(Isa::Reference);
        for isa in [Isa::Avx2, Isa::Avx512] {
            let other = by(isa);
            assert_eq!((&other.0, other.1), (&reference_bits, sum_bits), "{isa:?}");
        }
        for (x, value) in x.iter().zip(&values) {
            // The difference is rounded before; that is not the exponential's error.
            let exact = f64::from(x - 3.0).exp();
            let is_right = (f64::from(*value) - exact).abs() <= exact * 2_f64.powi(-21);
            // Below the normal numbers all become 0.
            assert!(is_right || (x - 3.0 < -86.9 && *value == 0.0), "{x}: {value} is not {exact}");
        }
        let exact: f64 = values.iter().map(|value| f64::from(*value)).sum();
        assert!((f64::from(sum) - exact).abs() <= exact * 1e-5, "{sum} is not {exact}");
    }
    let mut edges = [f32::NEG_INFINITY, 0.0, 88.0];
    exp_sum_by(Isa::Avx512, &mut edges, 0.0);
    assert_eq!((edges[0], edges[1]), (0.0, 1.0));
    assert!(edges[2].is_finite());
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// As `torch.optim.Adam` writes it, in f64.
fn adam_exact(
    adam: &Adam,
    params: &[f32],
    first: &[f32],
    second: &[f32],
    grads: &[f32],
) -> Vec<f64> {
    let correction = |beta: f64| 1.0 - beta.powi(adam.step as i32);
    (0..params.len())
        .map(|i| {
            let param = f64::from(params[i]);
            let grad = f64::from(grads[i]) + adam.decay * param;
            let m = adam.beta1 * f64::from(first[i]) + (1.0 - adam.beta1) * grad;
            let v = adam.beta2 * f64::from(second[i]) + (1.0 - adam.beta2) * grad * grad;
            let root = (v / correction(adam.beta2)).sqrt() + adam.epsilon;
            param - adam.rate * m / correction(adam.beta1) / root
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn adam_agrees(
        len in prop::sample::select(vec![0_usize, 1, 7, 16, 33, 1000]),
        step in 1..2000_u64,
        decay in prop::sample::select(vec![0.0, 5e-4]),
        seed in any::<u64>(),
    ) {
        let adam = Adam { rate: 0.01, beta1: 0.9, beta2: 0.999, epsilon: 1e-8, decay, step };
        let (params, first) = (floats(len, seed), floats(len, seed ^ 5));
        let second: Vec<f32> = floats(len, seed ^ 9).iter().map(|v| v * v + 1e-3).collect();
        let grads = floats(len, seed ^ 17);
        let exact = adam_exact(&adam, &params, &first, &second, &grads);
        let run = |isa| {
            let (mut params, mut first, mut second) =
                (params.clone(), first.clone(), second.clone());
            adam_by(isa, &adam, &mut params, &mut first, &mut second, &grads);
            (params, first, second)
        };
        let plain = run(Isa::Reference);
        for (param, exact) in plain.0.iter().zip(&exact) {
            prop_assert!((f64::from(*param) - exact).abs() <= 1e-6 * exact.abs().max(1.0));
        }
        for isa in Isa::available() {
            let found = run(isa);
            prop_assert_eq!(bits(&found.0), bits(&plain.0));
            prop_assert_eq!(bits(&found.1), bits(&plain.1));
            prop_assert_eq!(bits(&found.2), bits(&plain.2));
        }
    }

    #[test]
    fn sums_agree(
        rows in 0..400_usize,
        cols in prop::sample::select(vec![1_usize, 3, 16, 17, 100, 256]),
        seed in any::<u64>(),
    ) {
        let x = floats(rows * cols, seed);
        let exact: f64 = x.iter().map(|x| f64::from(*x) * f64::from(*x)).sum();
        let norm = norm_squared_by(Isa::Reference, &x);
        prop_assert!((norm - exact).abs() <= 1e-12 * exact);
        let mut plain = vec![0.0; cols];
        add_column_sums_by(Isa::Reference, &x, cols, &mut plain);
        for (col, sum) in plain.iter().enumerate() {
            let column = || x.iter().skip(col).step_by(cols).map(|x| f64::from(*x));
            let magnitude: f64 = column().map(f64::abs).sum();
            prop_assert!((f64::from(*sum) - column().sum::<f64>()).abs() <= 1e-5 * magnitude);
        }
        for isa in Isa::available() {
            prop_assert_eq!(norm_squared_by(isa, &x).to_bits(), norm.to_bits());
            let mut sums = vec![0.0; cols];
            add_column_sums_by(isa, &x, cols, &mut sums);
            prop_assert_eq!(bits(&sums), bits(&plain));
            // What was there is added to.
            let mut sums = vec![1000.0; cols];
            add_column_sums_by(isa, &x, cols, &mut sums);
            let right = |(sum, plain): (&f32, &f32)| (sum - 1000.0 - plain).abs() < 0.05;
            prop_assert!(sums.iter().zip(&plain).all(right));
            let mut y = x.clone();
            add_scaled_by(isa, &mut y, 0.3, &x);
            prop_assert!(y.iter().zip(&x).all(|(y, x)| *y == x + 0.3 * x));
        }
    }

    #[test]
    fn relu_and_dropout_agree(
        len in prop::sample::select(vec![0_usize, 1, 15, 17, 1000, 40_000]),
        rate in prop::sample::select(vec![0.0_f32, 0.2, 0.5, 0.9]),
        seed in any::<u64>(),
    ) {
        let x = floats(len, seed);
        let dropout = Dropout { seed, rate };
        let mut plain = x.clone();
        relu_dropout_by(Isa::Reference, &mut plain, Some(dropout));
        let positive = x.iter().filter(|x| **x > 0.0).count() as f64;
        let kept = plain.iter().filter(|x| **x != 0.0).count() as f64;
        let expected = positive * f64::from(1.0 - rate);
        prop_assert!((kept - expected).abs() <= 6.0 * positive.sqrt() + 1.0);
        for (out, x) in plain.iter().zip(&x) {
            prop_assert!(*out == 0.0 || *out == x.max(0.0) * dropout.scale());
        }
        let mut relu = x.clone();
        relu_dropout_by(Isa::Reference, &mut relu, None);
        prop_assert!(relu.iter().zip(&x).all(|(out, x)| *out == x.max(0.0)));
        for isa in Isa::available() {
            let mut out = x.clone();
            relu_dropout_by(isa, &mut out, Some(dropout));
            prop_assert_eq!(bits(&out), bits(&plain));
            let mut grad = x.clone();
            relu_dropout_backward_by(isa, &out, 2.0, &mut grad);
            let right = |((grad, out), x): ((&f32, &f32), &f32)| {
                *grad == if *out != 0.0 { x * 2.0 } else { 0.0 }
            };
            prop_assert!(grad.iter().zip(&out).zip(&x).all(right));
        }
    }
}

#[test]
fn threads_change_no_bit() {
    let len = 700 * 1000;
    let x = floats(len, 3);
    let adam = Adam { rate: 0.01, beta1: 0.9, beta2: 0.999, epsilon: 1e-8, decay: 5e-4, step: 3 };
    let run = || {
        let (mut params, mut first) = (x.clone(), x.clone());
        let mut second: Vec<f32> = x.iter().map(|x| x * x).collect();
        adam_by(Isa::Avx512, &adam, &mut params, &mut first, &mut second, &x);
        let mut sums = vec![0.0; 700];
        add_column_sums_by(Isa::Avx512, &x, 700, &mut sums);
        let mut dropped = x.clone();
        relu_dropout_by(Isa::Avx512, &mut dropped, Some(Dropout { seed: 1, rate: 0.5 }));
        let norm = norm_squared_by(Isa::Avx512, &x).to_bits();
        (bits(&params), bits(&sums), bits(&dropped), norm)
    };
    let in_pool = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
        pool.expect("a pool").install(run)
    };
    assert!(in_pool(1) == in_pool(2) && in_pool(1) == in_pool(5));
}

/// Neighbours in a row, in a column, in a block and in a seed are not dropped together.
#[test]
fn drops_are_independent() {
    let len = 1 << 20;
    let kept = |seed| {
        let mut x = vec![1.0; len];
        relu_dropout_by(Isa::Avx512, &mut x, Some(Dropout { seed, rate: 0.5 }));
        x.into_iter().map(|x| x != 0.0).collect::<Vec<bool>>()
    };
    let one = kept(1);
    let agree = |a: &[bool], b: &[bool]| {
        let same = a.iter().zip(b).filter(|(a, b)| a == b).count() as f64;
        let len = a.len() as f64;
        (same - len / 2.0).abs() / (len.sqrt() / 2.0)
    };
    for shift in [1, 2, 3, 16, 64, 100, 128, 256, 1 << 14, 1 << 15, 1 << 18] {
        let deviations = agree(&one[shift..], &one[..len - shift]);
        assert!(deviations < 5.0, "shift {shift}: {deviations} deviations");
    }
    for seed in [0, 2, 3, 1 << 32] {
        assert!(agree(&one, &kept(seed)) < 5.0, "seed {seed}");
    }
}

#[test]
fn zeros_of_any_size() {
    for len in [0, 1, 1000, 3 << 20] {
        let zeros = hither_kernels::memory::zeros(len);
        assert!(zeros.len() == len && zeros.iter().all(|zero| *zero == 0.0));
    }
}
